#!/usr/bin/env python3
"""Puts what `rltriage verify --example` prints into the README: the stages, the marked lines and the verdict."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- sample: begin -->\n```text\n", "```\n<!-- sample: end -->"
KEPT = re.compile(r"^(  (ok|!!|\?) |[a-z]+: )")


def sample() -> str:
    """The lines of a real run that a newcomer needs; details and paths are left out."""
    command = [sys.executable, "-m", "rltriage", "verify", "--example"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 1:
        raise SystemExit(f"the example must give findings:\n{done.stdout}{done.stderr}")
    return "".join(f"{line}\n" for line in done.stdout.splitlines() if KEPT.match(line))


def main() -> int:
    text = README.read_text(encoding="utf-8")
    start, stop = text.index(BEGIN) + len(BEGIN), text.index(END)
    README.write_text(text[:start] + sample() + text[stop:], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
