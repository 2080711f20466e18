"""Generating functions of released frameworks, named in a manifest with nothing bound by hand."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

REFS = ("trl.trainer.callbacks:_generate_completions",)


@pytest.fixture(scope="module")
def report(python, verify, tmp_path_factory):
    folder = tmp_path_factory.mktemp("generation")
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 120"]
    for ref in REFS:
        lines += [f"[targets.{json.dumps(ref)}]", 'role = "generate"', f'ref = "{ref}"']
    (folder / "rltriage.toml").write_text("\n".join(lines))
    return verify(cwd=folder)


def test_no_function_of_a_release_is_called_a_bug(report) -> None:
    assert report.hard() == []


@pytest.mark.parametrize("ref", REFS)
def test_a_function_is_recognised(report, ref: str) -> None:
    assert "completions alone" in report.recognised(ref)
    assert "padding changes nothing" in report.recognised(ref)
