"""Averages of token losses that are right, wrong and strange, bound as a user's are."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest
import torch
from specimens import DATA, expected, functions

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.forms import micro_batches
from rltriage_probes.loss import aggregate, surrogate
from rltriage_probes.solver import Seen

Intent = dict[str, Any]


def examine(module: str, name: str, intent: Intent | None = None, settings: Intent | None = None) -> TargetResult:
    ref = f"{module}.py:{name}"
    target = TargetSpec(name="aggregate", role="aggregate", ref=ref, settings=settings or {})
    return checking.check(CheckRequest(id=1, root=str(DATA), target=target, intent=intent or {}, device="cpu"))


def named(result: TargetResult) -> set[str]:
    """Pitfalls of hard known bugs and the first candidate of each hard violation."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug(severity="hard") as bug:
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates(severity="hard") as broken:
                found |= {n.pitfall for n in broken.candidates[:1]}
            case _:
                pass
    return found


RIGHT = expected("aggregate_right")
WRONG = expected("aggregate_wrong")


def test_every_specimen_has_its_expectation() -> None:
    assert sorted(functions("aggregate_right")) == sorted(RIGHT)
    assert sorted(functions("aggregate_wrong")) == sorted(WRONG)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_mean_is_recognised(name: str) -> None:
    result = examine("aggregate_right", name)

    assert named(result) == set()
    first = result.checks[0].outcome
    assert isinstance(first, Agrees), first
    assert first.convention.summary == RIGHT[name]


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_named_and_nothing_else_is(name: str) -> None:
    assert named(examine("aggregate_wrong", name)) == set(WRONG[name].split())


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [p for both in WRONG.values() for p in both.split()]

    assert {p.id for p in aggregate.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


@pytest.mark.parametrize("name", functions("aggregate_strange"))
def test_a_mean_that_nobody_knows_is_never_called_right(name: str) -> None:
    assert examine("aggregate_strange", name).checks[0].outcome.kind == "diverges"


@pytest.mark.parametrize(
    ("name", "declared", "wrong"),
    [
        ("by_einsum", "token-mean", False), ("by_einsum", "sequence-mean", True),
        ("grpo_rows", "sequence-mean", False),
        ("grpo_rows", "token-mean", True), ("sequence_token_sum", "sequence-sum", False),
        ("dr_grpo", "constant", False),
        ("sequence_token_sum", "token-mean", True), ("dr_grpo", "token-mean", True),
        ("dapo_over_items", "token-mean", False),
        ("nan_safe_masked_sum", "token-mean", False), ("horizon", "constant", False),
        ("jagged_samples", "sequence-mean", False),
    ],
)  # fmt: skip
def test_the_declared_mean_decides_which_one_is_right(name: str, declared: str, wrong: bool) -> None:
    found = named(examine("aggregate_right", name, {"aggregation": declared}))

    assert found == ({"LOSS-AGGREGATION"} if wrong else set())


@pytest.mark.parametrize("mode", ["token-mean", "sequence-mean", "sequence-sum"])
def test_a_function_with_a_mode_is_judged_by_the_mode_that_it_is_set_to(mode: str) -> None:
    result = examine("aggregate_right", "agg_loss", {"aggregation": "token-mean"}, {"aggregation": mode})

    assert named(result) == set()
    assert all(isinstance(c.outcome, Agrees) for c in result.checks)


def test_a_constant_that_is_given_and_replaced_by_the_width_is_named() -> None:
    found = named(examine("aggregate_wrong", "Normaliser.__call__", {"aggregation": "constant"}))

    assert found == {"LOSS-PADDED-DENOMINATOR"}


def test_a_helper_that_keeps_what_its_name_says_is_only_asked_about_the_declared_mean() -> None:
    result = examine("aggregate_right", "masked_mean", {"aggregation": "sequence-mean"})

    assert named(result) == set()


# The reference


def seen_on(name: str, flags: tuple[str, ...] = (), shape: tuple[int, ...] = ()) -> Seen:
    case = aggregate._case(name)
    wide = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in case.inputs.items()
    }
    cache = {f: torch.ones(()) for f in ("masked", "differentiable", *flags)}
    return Seen(case=name, inputs=wide, value=torch.zeros(shape), grads={}, dtype="float64", cache=cache)


PLAIN = {
    "sign": "plus", "mode": "token-mean", "mask": "own", "later": "applied", "rows": "all", "empty": "zero",
    "parts": "whole", "ranks": "right", "steps": "right", "eps": "none",
}  # fmt: skip
KNOBS = {"length": 16.0, "eps": 0.0, "added": 0.0}


def value(s: Seen, **options: str) -> float:
    knobs = {"length": 16.0, **({"added": 1.0} if options.get("eps") == "large" else {})}
    return float(aggregate.reference(s, {**PLAIN, **options}, knobs).value)


def loops(case: str, mode: str) -> float:
    """The means written out token by token."""
    inputs = aggregate._case(case).inputs
    losses, mask = inputs["token_losses"].double().tolist(), inputs["completion_mask"].tolist()
    rows = [[x for x, m in zip(r, k, strict=True) if m] for r, k in zip(losses, mask, strict=True)]
    total = sum(map(sum, rows))
    size = inputs["group_size"]
    groups = [[x for r in rows[at : at + size] for x in r] for at in range(0, len(rows), size)]
    return {
        "token-mean": lambda: total / sum(map(len, rows)),
        "sequence-mean": lambda: sum(sum(r) / len(r) for r in rows) / len(rows),
        "sequence-sum": lambda: total / len(rows),
        "padded": lambda: total / (len(rows) * len(losses[0])),
        "constant": lambda: total / (len(rows) * 16),
        "given count": lambda: total / inputs["token_count"],
        "group-mean": lambda: sum(sum(g) / len(g) for g in groups) / len(groups),
    }[mode]()


@pytest.mark.parametrize(
    "mode", ["token-mean", "sequence-mean", "sequence-sum", "padded", "constant", "given count", "group-mean"]
)
@pytest.mark.parametrize("case", aggregate._SIZES)
def test_the_reference_equals_sums_written_out_token_by_token(case: str, mode: str) -> None:
    assert value(seen_on(case), mode=mode) == pytest.approx(loops(case, mode), rel=1e-12)


def test_the_gradient_is_what_autograd_gives_for_the_plain_formula() -> None:
    s = seen_on("ragged rows")
    leaf = s.inputs["token_losses"].clone().requires_grad_(True)
    mask = s.inputs["completion_mask"]
    ((leaf * mask).sum(-1) / mask.sum(-1)).mean().backward()

    got = aggregate.reference(s, {**PLAIN, "mode": "sequence-mean"}, KNOBS).grads()["token_losses"]

    assert torch.allclose(got, leaf.grad, rtol=1e-12)


def test_parts_with_the_count_of_the_whole_add_up_to_the_whole() -> None:
    s = seen_on("ragged rows")
    losses, mask = s.inputs["token_losses"], s.inputs["completion_mask"]
    parts = [slice(r.start, r.stop) for r in micro_batches(len(losses))]

    added = sum(float((losses[p] * mask[p]).sum() / mask.sum()) for p in parts)

    assert added == pytest.approx(value(s))
    assert value(s, parts="by tokens, list") == pytest.approx(value(s))
    assert value(s, parts="equal, list") != pytest.approx(value(s), rel=1e-3)


LATER = ("applied", "ignored", "count before", "inverted", "numerator")


def test_every_two_options_give_different_weights() -> None:
    flags = ("uses is_truncated", "uses dp_size", "uses accumulation_steps")
    seen = [seen_on(name, flags) for name in aggregate._SIZES]
    modes = list(aggregate.MODES)
    axes = {
        "mask": aggregate.MASKS, "ranks": ("right", "missing", "over"), "steps": ("right", "times"),
        "sign": ("plus", "minus"), "eps": ("none", "large"), "later": LATER,
        "parts": ("whole", "equal, size", "by rows, size", "added, size", "divided again, size"),
    }  # fmt: skip
    for axis, names in axes.items():
        given = "given count" if axis == "ranks" else "token-mean"
        found = {n: tuple(round(value(s, mode=given, **{axis: n}), 9) for s in seen) for n in names}
        same = [(a, b) for a, b in itertools.combinations(names, 2) if found[a] == found[b]]
        assert same == [], axis
    plain = [seen_on(name) for name in aggregate._SIZES]
    found = {m: tuple(round(value(s, mode=m), 9) for s in plain) for m in modes}
    assert [(a, b) for a, b in itertools.combinations(modes, 2) if found[a] == found[b]] == []


def test_the_cases_have_no_row_without_tokens_even_where_two_masks_meet() -> None:
    for name in aggregate._SIZES:
        inputs = aggregate._case(name).inputs
        assert bool(((inputs["completion_mask"] * inputs["second_mask"]).sum(-1) > 0).all())


def test_the_aggregations_shared_with_the_losses_are_the_same_numbers() -> None:
    s = seen_on("other rows")
    for mode in ("token-mean", "sequence-mean", "sequence-sum", "padded"):
        options = {"agg": mode, "mask": "own"}
        theirs = surrogate.aggregated(s.inputs["token_losses"], s, options, {"length": 16.0}, ("shared", mode))
        assert float(theirs) == pytest.approx(value(s, mode=mode))


def test_specimens_are_read_without_running_them() -> None:
    tree = ast.parse((DATA / "aggregate_wrong.py").read_text("utf-8"))

    assert len(functions("aggregate_wrong")) == sum(isinstance(n, ast.FunctionDef) for n in tree.body)
