"""`rltriage verify --framework NAME`: no manifest, no glue. Clean on the releases that the packs were written for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rltriage import packs

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

MEASURED = {"trl": 25, "verl": 30, "openrlhf": 10}
"""Targets, settings variants counted, of which at least so many are measured."""
FUNCTIONS = {"trl": 12, "verl": 25, "openrlhf": 5}
"""Different functions (or blocks of one) among them."""


@pytest.fixture(scope="module")
def reports(python, verify, tmp_path_factory):
    folder = tmp_path_factory.mktemp("empty")
    return {name: verify("--framework", name, "--python", python, cwd=folder) for name in MEASURED}


@pytest.mark.parametrize("name", MEASURED)
def test_a_release_is_clean_and_nearly_everything_is_measured(reports, name: str) -> None:
    report = reports[name]
    targets = report.report["targets"]
    measured = [t for t in targets if report.kinds(t["name"]) & {"agrees", "diverges", "violates"}]

    assert report.hard() == []
    assert len(measured) >= MEASURED[name]
    assert len({(t["ref"], t["role"]) for t in measured}) >= FUNCTIONS[name]
    assert not any("differs from" in note for note in report.report["notes"])


@pytest.mark.parametrize("name", MEASURED)
def test_the_report_names_the_installed_copy_and_its_version(reports, name: str) -> None:
    assert reports[name].report["manifest"].startswith(f"{name} {packs.pack(name).versions[0]}.")
    assert f"site-packages/{name}" in reports[name].report["notes"][0]


@pytest.mark.parametrize(
    ("name", "target"), [(name, target) for name in MEASURED for target in packs.pack(name).expectations()]
)
def test_a_target_is_recognised_as_the_pack_says(reports, name: str, target: str) -> None:
    report, expected = reports[name], packs.pack(name).expectations()[target]

    if expected.unknown:
        assert "diverges" in report.kinds(target)
        assert any(expected.unknown in f["next"] for f in report.report["findings"] if f["name"] == target)
    elif expected.expect:
        said = report.recognised(target)
        assert [w for w in expected.expect if w not in said] == []
    else:
        assert report.kinds(target) <= {"agrees", "violates", "not_run"}


def test_a_framework_that_is_nowhere_is_an_error_that_says_where_was_looked(python: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rltriage", "verify", "--framework", "trl", "--python", sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert done.returncode == 2
    assert "trl is neither below" in done.stderr
    assert "--python" in done.stderr
