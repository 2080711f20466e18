#!/usr/bin/env python3
"""Writes `verify_pipeline.py` with the probes inside: one file to copy to where only torch is installed.

python scripts/export_verify_pipeline.py OUT.py
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
import textwrap
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path(__file__).resolve().parent / "verify_pipeline.py"
PLACE = 'BUNDLE = ""'


def bundle() -> str:
    """The probes as base64 of a zip file. The same sources give the same text."""
    buffer = io.BytesIO()
    package = ROOT / "probes" / "rltriage_probes"
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(package.rglob("*.py")):
            entry = zipfile.ZipInfo(f"rltriage_probes/{file.relative_to(package).as_posix()}")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return base64.b64encode(buffer.getvalue()).decode()


def exported() -> str:
    """Source of the single file."""
    source = SCRIPT.read_text(encoding="utf-8")
    if source.count(PLACE) != 1:
        raise ValueError(f"{SCRIPT.name} must have one line that begins with {PLACE}")
    rows = "\n".join(textwrap.wrap(bundle(), 120))
    return source.replace(PLACE, f'BUNDLE = """\n{rows}\n"""')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.write_text(exported(), encoding="utf-8")
    print(f"{out}: {out.stat().st_size // 1024} KB; run it with the Python that trains")
    return 0


if __name__ == "__main__":
    sys.exit(main())
