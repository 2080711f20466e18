"""Weights between trainer and sampler that are right, wrong and strange, bound as a user's are."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from specimens import DATA, expected, functions

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import importance_weights as weights
from rltriage_probes.solver import Seen


def examine(module: str, name: str, settings: dict[str, Any] | None = None) -> TargetResult:
    ref = f"{module}.py:{name}"
    target = TargetSpec(name="weights", role="importance_weights", ref=ref, settings=settings or {})
    return checking.check(CheckRequest(id=1, root=str(DATA), target=target, intent={}, device="cpu"))


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


RIGHT = expected("importance_weights_right")
WRONG = expected("importance_weights_wrong")


def test_every_specimen_has_its_expectation() -> None:
    assert sorted(functions("importance_weights_right")) == sorted(n for n in RIGHT if "." not in n)
    assert sorted(functions("importance_weights_wrong")) == sorted(WRONG)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_weight_is_recognised(name: str) -> None:
    result = examine("importance_weights_right", name)

    assert named(result) == set()
    first = result.checks[0].outcome
    assert isinstance(first, Agrees), first
    assert first.convention.summary == RIGHT[name]


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_named_and_nothing_else_is(name: str) -> None:
    assert named(examine("importance_weights_wrong", name)) == set(WRONG[name].split())


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [p for both in WRONG.values() for p in both.split()]

    assert {p.id for p in weights.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


@pytest.mark.parametrize("name", functions("importance_weights_strange"))
def test_a_weight_that_nobody_knows_is_never_called_right(name: str) -> None:
    assert examine("importance_weights_strange", name).checks[0].outcome.kind == "diverges"


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_function_with_levels_is_judged_by_the_level_that_it_is_set_to(level: str) -> None:
    result = examine("importance_weights_right", "rollout_correction", {"ratio_level": level})

    assert all(isinstance(c.outcome, Agrees) for c in result.checks)


def test_a_weight_without_detach_is_asked_about_where_nothing_is_promised(tmp_path: Any) -> None:
    body = "return (logprobs - rollout_logprobs).exp().clamp(max=cap)"
    code = f"def weights(logprobs, rollout_logprobs, cap=2.0):\n    {body}\n"
    (tmp_path / "m.py").write_text(code)
    target = TargetSpec(name="weights", role="importance_weights", ref="m.py:weights")
    result = checking.check(CheckRequest(id=1, root=str(tmp_path), target=target, device="cpu"))

    assert named(result) == set()
    asked = [c.outcome for c in result.checks if isinstance(c.outcome, Violates)]
    assert [n.pitfall for o in asked for n in o.candidates] == ["IW-GRADIENT"]


# The reference

PLAIN = {
    "trainer": "old", "ratio": "own", "level": "token", "bound": "plain", "norm": "none", "veto": "none",
    "times": "weights", "mask": "own",
}  # fmt: skip


def seen_on(name: str) -> Seen:
    case = weights._case(name)
    wide = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in case.inputs.items()
    }
    flags = ("masked", "uses old_logprobs", "uses rollout_logprobs")
    cache = {f: torch.ones(()) for f in flags}
    return Seen(case=name, inputs=wide, value=torch.zeros(6, 7), grads={}, dtype="float64", cache=cache)


def made(s: Seen, **options: str) -> torch.Tensor:
    return weights.reference(s, {**PLAIN, **options}, {"cap": 0.0, "floor": 0.0}).value


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_the_reference_equals_products_written_out_token_by_token(level: str) -> None:
    s = seen_on("ratios around the bounds")
    old, rollout, mask = (s.inputs[w].tolist() for w in ("old_logprobs", "rollout_logprobs", "completion_mask"))
    got = made(s, level=level, bound="capped").tolist()

    for i, row in enumerate(mask):
        ratios = [math.exp(a) / math.exp(b) for a, b in zip(old[i], rollout[i], strict=True)]
        kept = [r for r, m in zip(ratios, row, strict=True) if m]
        whole = math.prod(kept)
        of_row = {"sequence": whole, "geometric": whole ** (1 / len(kept))}
        for t, m in enumerate(row):
            if m:
                assert got[i][t] == pytest.approx(min(of_row.get(level, ratios[t]), 1.6), rel=1e-9)


def test_equal_log_probs_give_weight_one_at_every_level() -> None:
    s = seen_on("ratios around the bounds")
    s.inputs = {**s.inputs, "rollout_logprobs": s.inputs["old_logprobs"]}

    for level, bound in itertools.product(("token", "sequence", "geometric"), ("capped", "clamped", "dropped", "kept")):
        assert torch.equal(made(s, level=level, bound=bound), torch.ones(6, 7, dtype=torch.float64))
        s.memo.clear()


def test_the_normalised_weights_have_mean_one() -> None:
    s = seen_on("ratios far apart")
    mask = s.inputs["completion_mask"]

    assert float((made(s, norm="mean", bound="capped") * mask).sum() / mask.sum()) == pytest.approx(1.0)


def test_the_cases_straddle_every_bound_at_every_level() -> None:
    for name, (_, cap, floor, _) in weights._SCALES.items():
        s = seen_on(name)
        trained = s.inputs["completion_mask"] > 0
        for level in weights.LEVELS:
            w = made(s, level=level)[trained]
            assert bool((w > cap).any())
            assert bool((w < floor).any())
            assert bool(((w >= floor) & (w <= cap)).any())


def test_every_two_options_give_different_weights() -> None:
    seen = [seen_on(name) for name in weights._SCALES]
    axes = {
        "trainer": ("old", "current"), "ratio": ("own", "inverted", "no exp"),
        "level": (*weights.LEVELS, "sequence padded", "geometric padded", "geometric over width"),
        "bound": (
            *(b[0] for b in weights._BOUNDS), "floored", "capped in log", "clamped in log", "outside", "outside above",
            "one", "one above", "rejected", "rejected above",
        ),
        "norm": ("none", "mean", "sequence mean", "padded mean"), "veto": ("none", "sequence", "token", "padding"),
        "times": ("weights", "losses"), "mask": ("own", "inverted"),
    }  # fmt: skip
    for axis, names in axes.items():
        found = {}
        for n in names:
            got = [made(s, **{"bound": "capped", axis: n}) for s in seen]
            found[n] = tuple(
                round(float(x), 9) for s, w in zip(seen, got, strict=True) for x in w[s.inputs["completion_mask"] > 0]
            )
        assert [(a, b) for a, b in itertools.combinations(names, 2) if found[a] == found[b]] == [], axis
