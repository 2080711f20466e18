"""What the tests of this folder share: the interpreter that has the frameworks, and the public command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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


def verify(*arguments: str, cwd: Path) -> dict[str, Any]:
    """The JSON report of `rltriage verify` in a folder."""
    command = [sys.executable, "-m", "rltriage", "verify", "--json", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert not report["errors"], report["errors"]
    return report


def hard(report: dict[str, Any]) -> list[str]:
    """Every hard finding, an exception included, as a line that says where and what."""
    return [
        f"{f['name']}: {', '.join(f['pitfalls']) or f['certainty']}: {f['message']} {f['user_output']}"
        for f in report["findings"]
        if f["severity"] == "hard"
    ]


def recognised(report: dict[str, Any], name: str) -> str:
    """Everything that a target was found to compute."""
    return "; ".join(r["convention"] for r in report["recognised"] if r["name"] == name)


def kinds(report: dict[str, Any], name: str) -> set[str]:
    """Kinds of the outcomes of a target."""
    target = next(t for t in report["targets"] if t["name"] == name)
    return {c["outcome"]["kind"] for c in target["checks"]}
