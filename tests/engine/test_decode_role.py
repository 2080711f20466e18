"""The decode battery on decoders that are right and decoders that are not, loaded and bound as a user's are."""

from __future__ import annotations

from pathlib import Path

import pytest
from specimens import DATA, expected, functions, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, TargetResult, TargetSpec, Violates
from rltriage_probes.generation.contracts import Contract, contract_of
from rltriage_probes.generation.tokens import Tokenizer
from rltriage_probes.reading import Pair, Reading, markers


def examine(ref: str, root: Path = DATA) -> TargetResult:
    return checking.check(CheckRequest(id=1, root=str(root), target=TargetSpec(name="d", role="decode", ref=ref)))


def says(result: TargetResult, probe: str) -> str:
    """What the check of that name says."""
    (outcome,) = [c.outcome for c in result.checks if c.probe == probe]
    assert isinstance(outcome, Agrees | Violates)
    return outcome.convention.summary if isinstance(outcome, Agrees) else outcome.says


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, n) for m in ("decoders_right", "decoders_more_right", "decoders_routes_right") for n in functions(m)],
)
def test_a_right_decoder_is_not_called_a_bug_and_is_recognised(module: str, name: str) -> None:
    result = examine(f"{module}.py:{name}")

    assert violations(result, "hard") == {}
    assert [c.outcome for c in result.checks if c.outcome.kind in ("raised", "not_run")] == []
    assert any(isinstance(c.outcome, Agrees) for c in result.checks)


@pytest.mark.parametrize(
    ("module", "name", "pitfall"),
    [
        (m, n, p)
        for m in ("decoders_wrong", "decoders_more_wrong", "decoders_routes_wrong")
        for n, p in expected(m).items()
    ],
)
def test_a_wrong_decoder_is_named(module: str, name: str, pitfall: str) -> None:
    found = violations(examine(f"{module}.py:{name}"), "hard")

    assert pitfall in {p for ids in found.values() for p in ids}


@pytest.mark.parametrize("module", ["decoders_wrong", "decoders_more_wrong", "decoders_routes_wrong"])
def test_every_wrong_decoder_has_an_expectation(module: str) -> None:
    assert set(functions(module)) == set(expected(module))


def test_every_further_wrong_decoder_has_a_repaired_twin() -> None:
    assert set(functions("decoders_more_wrong")) <= set(functions("decoders_more_right"))


def test_a_finding_quotes_the_input_and_what_came_out() -> None:
    text = says(examine("decoders_wrong.py:blank_by_partition"), "decode.unmarked")

    assert "'The capital is Lima.' gives ''" in text


def test_the_branches_of_a_decoder_are_stated() -> None:
    result = examine("decoders_right.py:bracket_tags")

    assert says(result, "decode.unmarked") == "keeps text without markers"
    assert says(result, "decode.reasoning") == "strips the reasoning"
    assert says(result, "decode.unfinished") == "empty for unfinished reasoning"


def test_an_undocumented_branch_is_asked_about_not_judged() -> None:
    result = examine("decoders_right.py:extract_answer_block")

    assert violations(result, "hard") == {}
    assert "say so in the docstring" in says(result, "decode.unmarked")


def test_markers_come_from_constants_of_another_file_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "tags.py").write_text(
        'OPEN, CLOSE = "<scratch>", "</scratch>"\nREASON_START, REASON_END = OPEN, CLOSE\n'
    )
    (tmp_path / "rollout.py").write_text(
        "from tags import REASON_END, REASON_START\n\n\n"
        "def visible(text):\n"
        "    _, closed, answer = text.partition(REASON_END)\n"
        "    return answer.strip() if closed else ('' if REASON_START in text else text)\n"
    )
    result = examine("rollout.py:visible", tmp_path)

    assert violations(result, "hard") == {}
    assert says(result, "decode.reasoning") == "strips the reasoning"
    assert says(result, "decode.unfinished") == "empty for unfinished reasoning"


def test_text_that_the_user_prints_does_not_stand_in_a_message_unclipped(tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text("def decode(text):\n    return 'x' * 100_000 if '</think>' in text else ''\n")
    result = examine("long.py:decode", tmp_path)

    assert all(len(c.outcome.says) < 1000 for c in result.checks if isinstance(c.outcome, Violates))


# What a docstring promises


def contract(doc: str, name: str = "clean") -> Contract:
    return contract_of(
        Reading(name=name, doc=doc, code="", prose=doc, strings=(), named={}, parameters=(), reads=frozenset())
    )


@pytest.mark.parametrize(
    "doc",
    [
        "Text behind the marker; an empty string if the marker is missing.",
        "Answer of the completion. Text without tags gives ''.",
        "Returns None when there is no answer block.",
        "- no markers -> empty\n- closed block -> the answer",
    ],
)
def test_a_docstring_can_promise_nothing_for_unmarked_text(doc: str) -> None:
    assert contract(doc).unmarked == "empty"


@pytest.mark.parametrize("doc", ["Text without tags is returned unchanged.", "Plain text is returned as is."])
def test_a_docstring_can_promise_unmarked_text(doc: str) -> None:
    assert contract(doc).unmarked == "text"


@pytest.mark.parametrize(
    "doc",
    [
        "Reasoning that was cut off has no answer.",
        "An unclosed block gives an empty string.",
        "A completion that never closes its block: empty.",
    ],
)
def test_a_docstring_can_promise_nothing_for_unfinished_reasoning(doc: str) -> None:
    assert contract(doc).unfinished == "empty"


@pytest.mark.parametrize(
    "doc", ["The answer of a completion.", "A completion without a closing tag has no reasoning section content.", ""]
)
def test_a_docstring_that_is_silent_promises_nothing(doc: str) -> None:
    assert contract(doc).unmarked is None
    assert contract(doc).unfinished is None


def test_taking_the_tags_off_is_not_taking_the_reasoning_out() -> None:
    assert not contract("Strip the thinking tags.").removes
    assert contract("Strip the thinking.").removes


@pytest.mark.parametrize(
    ("strings", "pair"),
    [
        (("<think>", "</think>"), Pair("<think>", "</think>")),
        ((r"<reasoning>(.*?)</reasoning>",), Pair("<reasoning>", "</reasoning>")),
        ((r"\[THINK\].*?\[/THINK\]",), Pair("[THINK]", "[/THINK]")),
        ((r"</?thought>",), Pair("<thought>", "</thought>")),
        (("◁/think▷",), Pair("◁think▷", "◁/think▷")),
        (("<|end_of_thought|>",), Pair("<|begin_of_thought|>", "<|end_of_thought|>")),
    ],
)
def test_markers_are_read_from_literals_and_patterns(strings: tuple[str, ...], pair: Pair) -> None:
    reading = Reading(name="f", doc="", code="", prose="", strings=strings, named={}, parameters=(), reads=frozenset())
    found = markers(reading)

    assert found.reasoning == pair
    assert not found.assumed


def test_the_stand_in_tokenizer_decodes_what_it_encodes() -> None:
    tok = Tokenizer()
    text = "<think>\nA < b, 1 + 1.</think>\n42" + tok.eos_token

    assert tok.decode(tok.encode(text)) == text
    assert tok.decode(tok.encode(text), skip_special_tokens=True) == text.removesuffix(tok.eos_token)


def test_a_decoder_is_reached_as_a_method_with_its_tokenizer() -> None:
    result = examine("decoders_right.py:Decoder.decode")

    assert violations(result, "hard") == {}
    assert says(result, "decode.reasoning") == "strips the reasoning"


def test_markers_that_a_tokenizer_may_skip_are_asked_about() -> None:
    assert "decode.special" in violations(examine("decoders_right.py:decode_and_strip"), "soft")
    assert "decode.special" not in violations(examine("decoders_right.py:decode_each"), "soft")


def test_letters_of_a_header_inside_an_answer_are_told_from_the_header(tmp_path: Path) -> None:
    code = "HEADER = 'Reply from the model: '\n\n\ndef decode(text):\n    return text.{}(HEADER)\n"
    (tmp_path / "wrong.py").write_text(code.format("lstrip"))
    (tmp_path / "right.py").write_text(code.format("removeprefix"))
    wrong = examine("wrong.py:decode", tmp_path)

    assert violations(wrong, "hard")["decode.edges"] == ["DEC-STRIP"]
    assert "though" in says(wrong, "decode.edges")
    assert violations(examine("right.py:decode", tmp_path), "hard") == {}


def test_the_stand_in_tokenizer_spreads_letters_over_bytes_as_real_ones_do() -> None:
    tokenizer = Tokenizer()
    ids = tokenizer.encode("Sí 日")

    assert tokenizer.decode(ids) == "Sí 日"
    assert "\ufffd" in "".join(tokenizer.decode([i]) for i in ids)
    assert tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens(ids)) == "Sí 日"
    with pytest.raises(OverflowError):
        tokenizer.decode([-100])


@pytest.mark.parametrize(
    ("doc", "field"),
    [
        ("Every reasoning block is removed.", "all_blocks"),
        ("The stop string itself is kept.", "keeps_stop"),
        ("Tool calls survive.", "keeps_calls"),
        ("The thinking tags are kept.", "keeps_tags"),
        ("Rows are left-padded.", "left"),
        ("Completions without their prompts.", "completion_only"),
        ("White space is preserved.", "verbatim"),
        ("Up to the end token, which stays visible.", "keeps_end"),
    ],
)
def test_further_promises_are_read_from_the_docstring(doc: str, field: str) -> None:
    assert getattr(contract(doc), field)
    assert not getattr(contract("Text of the completion."), field)
