#!/usr/bin/env python3
"""Runs `rltriage init` and `verify` on small broken projects and on their repaired twins.

    python scripts/score_pipelines.py FOLDER [--rltriage CMD] [--require NAME ...]

FOLDER holds one folder a project: `broken/`, `fixed/` and `truth.json`, whose `bugs` have `stage`, `family` and
`also`. A bug counts as named where a hard finding at its stage has one of its families; a hard finding in a twin is a
false alarm. Exit code 1 where a bug of a required project was not named, or any twin was accused.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def findings(command: list[str], project: Path) -> list[dict[str, Any]]:
    """Hard findings of `init` and `verify` in a copy of the project with a neutral name."""
    with tempfile.TemporaryDirectory() as tmp:
        here = Path(shutil.copytree(project, Path(tmp) / "project"))
        python = ["--python", sys.executable]
        subprocess.run([*command, "init", str(here), *python], check=True, stdout=subprocess.DEVNULL, timeout=300)
        manifest = ["--manifest", str(here / "rltriage.toml")]
        done = subprocess.run(
            [*command, "verify", "--json", *manifest, *python], check=False, capture_output=True, text=True, timeout=600
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise SystemExit(f"no report of {project}:\n{done.stderr[-2000:]}")
        found: list[dict[str, Any]] = json.loads(lines[-1])["findings"]
        return [f for f in found if f["severity"] == "hard" and f["certainty"] != "raised"]


def is_named(bug: dict[str, Any], found: list[dict[str, Any]]) -> bool:
    wanted = {bug["family"], *bug["also"]}
    return any(f["stage"] == bug["stage"] and wanted & set(f["families"]) for f in found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rltriage", default="rltriage")
    parser.add_argument("--require", action="append", default=[], metavar="NAME", help="every bug must be named")
    args = parser.parse_args()
    command = shlex.split(args.rltriage)
    wrong = 0
    for truth in sorted(args.folder.glob("*/truth.json")):
        bugs = json.loads(truth.read_text(encoding="utf-8"))["bugs"]
        found = findings(command, truth.parent / "broken")
        for bug in bugs:
            named = is_named(bug, found)
            wrong += truth.parent.name in args.require and not named
            print(f"{truth.parent.name:24} {bug['id']:28} {bug['stage']:12} {'named' if named else 'NOT NAMED'}")
        for alarm in findings(command, truth.parent / "fixed"):
            wrong += 1
            print(f"{truth.parent.name:24} FALSE ALARM at {alarm['target']}: {alarm['message']}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
