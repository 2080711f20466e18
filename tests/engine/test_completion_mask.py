"""Completion masks that are right and wrong, loaded and bound as a user's are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import completion_mask

DATA = Path(__file__).parent / "data" / "loss"
Swaps = tuple[tuple[str, str], ...]
Intent = dict[str, Any]


def examine(name: str, root: Path = DATA, intent: Intent | None = None) -> TargetResult:
    target = TargetSpec(name="mask", role="completion_mask", ref=f"masks.py:{name}")
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent or {}, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the specimens in which texts inside one definition are exchanged."""
    text = (DATA / "masks.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name.split(".", maxsplit=1)[0])
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / "masks.py").write_text(before + code + after, encoding="utf-8")
    return folder


def named(result: TargetResult) -> set[str]:
    """Pitfalls of hard known bugs."""
    hard = [c.outcome for c in result.checks if isinstance(c.outcome, KnownBug) and c.outcome.severity == "hard"]
    return {n.pitfall for bug in hard for n in bug.pitfalls}


KEPT, REAL = "end token included", "every token that is not padding"
SPANS = "inserted passages left out with their markers"
RIGHT: list[tuple[str, str]] = [
    ("first_eos_by_argmax", KEPT),
    ("by_cumsum", KEPT),
    ("several_ends", KEPT),
    ("row_by_row", KEPT),
    ("of_lists", KEPT),
    ("behind_the_prompt", KEPT),
    ("whole_row", KEPT),
    ("by_lengths", KEPT),
    ("of_attention", REAL),
    ("pad_is_eos", KEPT),
    ("cummax", KEPT),
    ("truncated_rows_left_out", "end token included, completions without an end token are left out"),
    ("of_record", KEPT),
    ("Collector.response_mask", KEPT),
    ("padding_mask", "end token included, 1 on padding"),
    ("outside_passages", SPANS),
    ("outside_tool_output", SPANS),
    ("outside_ranges", SPANS),
    ("markers_by_the_policy", "markers of passages are trained, as where the policy writes them"),
]
QWEN: Intent = {"eos_token_id": 151645, "pad_token_id": 151643}
SAME: Intent = {"eos_token_id": 11, "pad_token_id": 11}


@pytest.mark.parametrize("intent", [{}, QWEN, SAME], ids=["ids 2 and 0", "large ids", "pad is eos"])
@pytest.mark.parametrize(("name", "words"), RIGHT)
def test_a_right_mask_is_recognised_whatever_the_ids_are(name: str, words: str, intent: Intent) -> None:
    (check,) = examine(name, intent=intent).checks

    assert isinstance(check.outcome, Agrees), check.outcome
    assert check.outcome.convention.summary == words


def test_masking_padding_by_its_id_is_right_until_the_end_token_shares_it() -> None:
    (check,) = examine("not_padding").checks

    assert isinstance(check.outcome, Agrees)
    assert check.outcome.convention.summary == REAL
    assert named(examine("not_padding", intent=SAME)) == {"MASK-BY-ID"}


LOOP = """        for j, token in enumerate(row):
            mask[i, j] = 1
            if token == eos_token_id:
                break
"""
BEFORE = """        for j, token in enumerate(row):
            if token == eos_token_id:
                break
            mask[i, j] = 1
"""
LAST = """        ends = (row == eos_token_id).nonzero()
        mask[i, : int(ends[-1]) + 1 if len(ends) else len(row)] = 1
"""
FIRST = "    eos_idx[is_eos.any(dim=1)] = is_eos.int().argmax(dim=1)[is_eos.any(dim=1)]\n"

MUTANTS: list[tuple[str, str, Swaps]] = [
    ("MASK-DROPS-EOS", "by_cumsum", (("(is_eos.cumsum(dim=1) - is_eos).eq(0)", "is_eos.cumsum(dim=1).eq(0)"),)),
    ("MASK-DROPS-EOS", "first_eos_by_argmax", (("sequence_indices <= eos", "sequence_indices < eos"),)),
    ("MASK-DROPS-EOS", "row_by_row", ((LOOP, BEFORE),)),
    ("MASK-BY-ID", "by_cumsum", (("(is_eos.cumsum(dim=1) - is_eos).eq(0)", "is_eos.eq(0)"),)),
    (
        "MASK-BY-ID",
        "not_padding",
        (
            ("completion_ids, pad", "completion_ids, eos_token_id, pad"),
            (".ne(pad_token_id)", ".ne(pad_token_id) & completion_ids.ne(eos_token_id)"),
            ("return completion", "return (completion"),
            (".int()", ").int()"),
        ),
    ),
    ("MASK-ALL-ONES", "by_cumsum", (("(is_eos.cumsum(dim=1) - is_eos).eq(0)", "torch.ones_like(is_eos)"),)),
    ("MASK-ALL-ONES", "row_by_row", (("                break", "                pass"),)),
    ("MASK-ONE-LATE", "first_eos_by_argmax", (("eos_idx.unsqueeze(1)", "eos_idx.unsqueeze(1) + 1"),)),
    ("MASK-ONE-LATE", "of_lists", (("row.index(eos_token_id) + 1", "min(row.index(eos_token_id) + 2, len(row))"),)),
    (
        "MASK-LAST-EOS",
        "first_eos_by_argmax",
        (("is_eos.int().argmax(dim=1)[", "is_eos.size(1) - 1 - is_eos.int().flip(1).argmax(dim=1)["),),
    ),
    ("MASK-LAST-EOS", "row_by_row", ((LOOP, LAST),)),
    ("MASK-NO-EOS-ROW", "first_eos_by_argmax", ((FIRST, "    eos_idx = is_eos.int().argmax(dim=1)\n"),)),
    (
        "MASK-NO-EOS-ROW",
        "by_lengths",
        (
            ("response_lengths[:, None]", "(response_ids.eq(eos_token_id).int().argmax(1) + 1)[:, None]"),
            ("response_lengths", "eos_token_id"),
        ),
    ),
    ("MASK-INVERTED", "by_cumsum", ((".eq(0)", ".ne(0)"),)),
    ("MASK-INVERTED", "behind_the_prompt", (("ended == 0", "ended > 0"),)),
    ("MASK-SPAN-MARKERS", "outside_passages", (("(opened > closed)", "responses.eq(info_start_id)"),)),
    (
        "MASK-SPAN-MARKERS",
        "outside_tool_output",
        (("if inside:", "if token in (tool_start_id, tool_end_id):"),),
    ),
    ("MASK-SPAN-FIRST", "outside_ranges", (("            at = b\n", "            break\n"),)),
    ("MASK-SPAN-FIRST", "outside_ranges", (("while obs_start_id in row[at:]:", "if obs_start_id in row:"),)),
    ("MASK-SPAN-GREEDY", "outside_passages", (("(opened > closed)", "(opened > 0)"),)),
    ("MASK-SPAN-GREEDY", "outside_tool_output", (("            inside = inside and token != tool_end_id\n", ""),)),
    ("MASK-OBSERVATION", "outside_passages", ((" * (~inserted).long()", ""),)),
    ("MASK-OBSERVATION", "outside_tool_output", (("mask[i, j] = 0.0", "mask[i, j] = mask[i, j]"),)),
    ("MASK-SPAN-EDGE", "outside_passages", ((" | responses.eq(info_end_id)", ""),)),
    ("MASK-SPAN-EDGE", "outside_ranges", (("mask[i, a:b] = 0", "mask[i, a + 1 : b] = 0"),)),
    ("MASK-SPAN-UNCLOSED", "outside_ranges", (("else len(row)", "else a"), ("at = b", "at = max(b, a + 1)"))),
    (
        "MASK-SPAN-UNCLOSED",
        "outside_passages",
        (
            ("    inserted =", "    closes = closed.max(1, keepdim=True).values\n    inserted ="),
            ("(opened > closed)", "((opened > closed) & (opened <= closes))"),
        ),
    ),
    ("MASK-PROMPT", "whole_row", (("torch.zeros_like(sequences)", "torch.ones_like(sequences)"),)),
    ("MASK-PROMPT", "of_attention", (("attention_mask[:, prompt_length:]", "attention_mask"),)),
]


@pytest.mark.parametrize(("pitfall", "name", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps))) == {pitfall}


STOPS = [("token in stop_token_ids", "token == stop_token_ids[0]"), ("stop_token_ids]", "stop_token_ids[-1:]]")]


@pytest.mark.parametrize("swap", STOPS, ids=["the first", "the last"])
def test_a_mask_that_knows_one_of_several_stop_ids_is_named(swap: tuple[str, str], tmp_path: Path) -> None:
    right = examine("any_stop")
    wrong = examine("any_stop", mutated(tmp_path, "any_stop", (swap,)), {"eos_token_id": 2, "pad_token_id": 0})

    assert [c.outcome.kind for c in right.checks] == ["agrees", "agrees"]
    violated = [c.outcome for c in wrong.checks if isinstance(c.outcome, Violates)]
    assert [c.pitfall for v in violated for c in v.candidates] == ["MASK-STOP-IDS"]


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [m[0] for m in MUTANTS] + ["MASK-STOP-IDS"] * len(STOPS)

    assert {p.id for p in completion_mask.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


PAIRS: list[tuple[set[str], str, Swaps]] = [
    (
        {"MASK-DROPS-EOS", "MASK-PROMPT"},
        "whole_row",
        (
            ("zeros_like(sequences)", "ones_like(sequences)"),
            ("(~seen).long()", "(~seen & (completion[:, t] != eos_token_id)).long()"),
        ),
    ),
    (
        {"MASK-DROPS-EOS", "MASK-INVERTED"},
        "by_cumsum",
        (("(is_eos.cumsum(dim=1) - is_eos).eq(0)", "is_eos.cumsum(dim=1).ne(0)"),),
    ),
    (
        {"MASK-ONE-LATE", "MASK-NO-EOS-ROW"},
        "first_eos_by_argmax",
        ((FIRST, "    eos_idx = is_eos.int().argmax(dim=1)\n    eos_idx = eos_idx + is_eos.any(dim=1).long()\n"),),
    ),
]


@pytest.mark.parametrize(("pitfalls", "name", "swaps"), PAIRS)
def test_two_bugs_in_one_mask_are_both_named(pitfalls: set[str], name: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps))) == pitfalls


def test_an_unknown_rule_diverges(tmp_path: Path) -> None:
    swaps = ((".eq(0).float()", ".eq(0).float() * (torch.arange(response_ids.size(1)) % 3 != 1)"),)
    (check,) = examine("by_cumsum", mutated(tmp_path, "by_cumsum", swaps)).checks

    assert check.outcome.kind == "diverges"
