"""The battery of answer extractors on some that are right and some that are not, bound as a user's are."""

from __future__ import annotations

from pathlib import Path

import pytest
from specimens import DATA, expected, functions, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, TargetResult, TargetSpec
from rltriage_probes.reward.extract_answer import documented
from rltriage_probes.reward.extraction import Found, equal


def examine(ref: str, root: Path = DATA) -> TargetResult:
    spec = TargetSpec(name="x", role="extract_answer", ref=ref)
    return checking.check(CheckRequest(id=1, root=str(root), target=spec))


def summary(result: TargetResult, probe: str) -> str:
    (outcome,) = [c.outcome for c in result.checks if c.probe == probe]
    assert isinstance(outcome, Agrees)
    return outcome.convention.summary


@pytest.mark.parametrize("name", functions("extractors_right"))
def test_a_right_extractor_is_not_called_a_bug_and_is_recognised(name: str) -> None:
    result = examine(f"extractors_right.py:{name}")

    assert violations(result, "hard") == {}
    assert [c.outcome for c in result.checks if c.outcome.kind in ("raised", "not_run")] == []
    assert any(isinstance(c.outcome, Agrees) for c in result.checks)


@pytest.mark.parametrize(("name", "pitfall"), expected("extractors_wrong").items())
def test_a_wrong_extractor_is_named(name: str, pitfall: str) -> None:
    found = violations(examine(f"extractors_wrong.py:{name}"), "hard")

    assert pitfall in {p for ids in found.values() for p in ids}


def test_every_wrong_extractor_has_an_expectation() -> None:
    assert set(functions("extractors_wrong")) == set(expected("extractors_wrong"))


def written(folder: Path, code: str) -> TargetResult:
    (folder / "module.py").write_text("import re\n\n\n" + code, encoding="utf-8")
    return examine("module.py:extract", folder)


def test_the_convention_says_what_comes_out_of_which_format() -> None:
    result = examine("extractors_right.py:first_tag")

    assert "as str from: what its pattern matches" in summary(result, "extract_answer.finds")
    assert summary(result, "extract_answer.two_answers") == "of two answers first"


def test_a_method_gets_a_self_and_a_list_is_extracted_row_by_row() -> None:
    assert violations(examine("extractors_right.py:Extractor.extract"), "hard") == {}
    assert "whatever stands beside it" in summary(examine("extractors_right.py:for_each"), "extract_answer.batch")


_WINDOW = (
    "def extract(text):\n    {doc}\n"
    "    m = re.findall(r'#### (-?[0-9.]+)', text[-300:])\n    return m[-1] if m else None\n"
)


@pytest.mark.parametrize(
    ("doc", "severity"),
    [
        ("'The number behind ####.'", "soft"),
        ("'The number behind #### in the last 300 characters of the response.'", "soft"),
        ("'The number behind the last #### of the response, or None.'", "hard"),
    ],
)
def test_a_tail_window_is_asked_about_unless_the_docstring_promises_the_whole_response(
    tmp_path: Path, doc: str, severity: str
) -> None:
    found = violations(written(tmp_path, _WINDOW.format(doc=doc)), severity)

    assert found["extract_answer.window"] == ["EXT-WINDOW"]


_FALLBACK = "def extract(text):\n    {doc}\n    return text.split('####')[-1].strip()\n"


@pytest.mark.parametrize(
    ("doc", "severity"),
    [
        ("'The answer behind ####.'", "soft"),
        ("'The answer behind ####; the whole text if there is no ####.'", ""),
        ("'The answer behind ####, None if there is no ####.'", "hard"),
    ],
)
def test_a_fallback_is_a_convention_where_it_is_documented_and_a_bug_where_nothing_is_promised(
    tmp_path: Path, doc: str, severity: str
) -> None:
    result = written(tmp_path, _FALLBACK.format(doc=doc))

    found = {s: violations(result, s).get("extract_answer.nothing", []) for s in ("hard", "soft")}
    assert [s for s, ids in found.items() if "EXT-NOT-AN-ANSWER" in ids] == ([severity] if severity else [])


def test_every_way_that_a_parameter_chooses_is_examined() -> None:
    result = examine("extractors_wrong.py:flexible_only_looks_at_the_tail")
    texts = [c.outcome.says for c in result.checks if c.outcome.kind == "violates"]

    assert [t for t in texts if t.startswith("with method='flexible', ")]


def test_an_integer_extractor_is_not_asked_for_decimals_nor_an_unsigned_one_for_signs(tmp_path: Path) -> None:
    code = "def extract(text):\n    {doc}\n    m = re.findall(r'\\d+', text)\n    return int(m[-1]) if m else None\n"
    integer = written(tmp_path, code.format(doc="'The last non-negative integer of the text, None without one.'"))

    assert violations(integer, "hard") == {}


@pytest.mark.parametrize(
    ("doc", "shown"),
    [
        ('"so 4" -> "4"', [("so 4", "4")]),
        ("`'none here'` -> None", [("none here", None)]),
        (">>> extract('a 5')\n'5'", [("a 5", "5")]),
        (">>> extract('nothing')\n", [("nothing", None)]),
        ("Use it as `extract(text)`.", []),
    ],
)
def test_examples_of_the_docstring_are_read(doc: str, shown: list[tuple[str, str | None]]) -> None:
    assert list(documented(doc)) == shown


@pytest.mark.parametrize(
    ("atom", "answer", "same"),
    [
        ("1,420", "1420", True), (142.0, "142", True), ("\\boxed{3/7}", "\\frac{3}{7}", True), ("ZEBRA", "zebra", True),
        ("14", "142", False), ("-142", "142", False), ("nan", "142", False), ("1/0", "0", False),
    ],
)  # fmt: skip
def test_answers_are_equal_as_text_or_as_numbers(atom: str | float, answer: str, same: bool) -> None:
    assert equal(atom, answer) is same


@pytest.mark.parametrize("value", [None, "", "  ", (False, None), [], {"answer": ""}, float("nan"), "\\boxed{}"])
def test_nothing_is_nothing_in_every_type(value: object) -> None:
    assert Found(value).nothing
