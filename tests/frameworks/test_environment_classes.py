"""Environments against the contracts of released frameworks, in an interpreter that has these installed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

CLASSES = ("OpenRLHFAgent", "VerlTool", "TRLGame", "TinkerEnv", "TinkerGroup")
SPECIMENS = Path(__file__).parent / "data" / "environments.py"


@pytest.fixture(scope="module")
def report(python, verify, tmp_path_factory):
    folder = tmp_path_factory.mktemp("environments")
    shutil.copy(SPECIMENS, folder / "envs.py")
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 120"]
    for name in CLASSES:
        lines += [f"[targets.{name}]", 'role = "environment"', f'ref = "envs.py:{name}"']
    (folder / "rltriage.toml").write_text("\n".join(lines))
    return verify(cwd=folder)


def test_no_environment_of_a_framework_is_called_a_bug(report) -> None:
    assert report.hard() == []


@pytest.mark.parametrize("name", CLASSES)
def test_an_environment_is_driven(report, name: str) -> None:
    assert "not_run" not in report.kinds(name)
    assert "a fresh instance's episode" in report.recognised(name)


def test_a_group_is_recognised(report) -> None:
    assert "one problem for all members" in report.recognised("TinkerGroup")
