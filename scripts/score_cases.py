#!/usr/bin/env python3
"""Scores `rltriage verify` on a folder of executable cases, for the roles that have a probe.

    python scripts/score_cases.py CASES [--rltriage CMD] [--role ROLE ...] [further options of CASES/score.py]

CASES holds `score.py` and folders of cases (`*/<id>/case.toml`). Without `--role`: every role that has a probe.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def probed_roles() -> list[str]:
    """The roles that this checkout has probes for."""
    sys.path.insert(0, str(ROOT / "probes"))
    from rltriage_probes.contract import ROLE_STAGES

    return list(ROLE_STAGES)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--role", action="append", default=[])
    args, further = parser.parse_known_args()
    roles = args.role or probed_roles()
    found = [tomllib.loads(p.read_text(encoding="utf-8")) for p in sorted(args.cases.glob("*/*/case.toml"))]
    ids = sorted({case["id"] for case in found if case["role"] in roles})
    if not ids:
        print(f"no cases of the roles {', '.join(roles)} under {args.cases}", file=sys.stderr)
        return 2
    print(f"{len(ids)} of {len(found)} cases, roles {', '.join(roles)}", flush=True)
    only = [word for i in ids for word in ("--only", i)]
    return subprocess.run([sys.executable, str(args.cases / "score.py"), *only, *further], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
