"""What the tests of this folder share: the interpreter that has the frameworks, and the public command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "RLTRIAGE_FRAMEWORKS_PYTHON"
LONGEST_S = 900


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter of `make test-frameworks`."""
    found = os.environ.get(VARIABLE, "")
    if not found:
        pytest.skip(f"{VARIABLE} names no interpreter with TRL, verl and OpenRLHF: run `make test-frameworks`")
    return found


class Verified:
    """A JSON report of `rltriage verify`, with what the tests ask of it."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report

    def hard(self) -> list[str]:
        """Every hard finding, an exception included, as a line that says where and what."""
        return [
            f"{f['name']}: {', '.join(f['pitfalls']) or f['certainty']}: {f['message']} {f['user_output']}"
            for f in self.report["findings"]
            if f["severity"] == "hard"
        ]

    def named(self) -> set[str]:
        """Ids of all hard findings."""
        return {p for f in self.report["findings"] if f["severity"] == "hard" for p in f["pitfalls"]}

    def recognised(self, name: str) -> str:
        """Everything that a target was found to compute."""
        return "; ".join(r["convention"] for r in self.report["recognised"] if r["name"] == name)

    def kinds(self, name: str) -> set[str]:
        """Kinds of the outcomes of a target."""
        target = next(t for t in self.report["targets"] if t["name"] == name)
        return {c["outcome"]["kind"] for c in target["checks"]}


@pytest.fixture(scope="session")
def verify() -> Callable[..., Verified]:
    """Runs `rltriage verify --json` with these arguments in a folder."""

    def verify(*arguments: str, cwd: Path) -> Verified:
        command = [sys.executable, "-m", "rltriage", "verify", "--json", *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONGEST_S)
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        assert not report["errors"], report["errors"]
        return Verified(report)

    return verify
