"""Value losses that are right, wrong and strange, loaded and bound as a user's are."""

# ruff: noqa: E501  rows of a table, one a mutant

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import value_loss
from rltriage_probes.solver import Seen

DATA = Path(__file__).parent / "data"
Swaps = tuple[tuple[str, str], ...]


def examine(
    name: str, root: Path = DATA, module: str = "value_loss_right", intent: dict[str, Any] | None = None
) -> TargetResult:
    target = TargetSpec(name="value_loss", role="value_loss", ref=f"{module}.py:{name}")
    request = CheckRequest(id=1, root=str(root), target=target, intent=intent or {"algorithm": "ppo"}, device="cpu")
    return checking.check(request)


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the right functions in which texts inside one definition are exchanged."""
    text = (DATA / "value_loss_right.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name.split(".", maxsplit=1)[0])
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / "value_loss_right.py").write_text(before + code + after, encoding="utf-8")
    return folder


def named(result: TargetResult, severity: str = "hard") -> set[str]:
    """Pitfalls of known bugs and violations of a severity."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug() as bug if bug.severity == severity:
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates() as broken if broken.severity == severity:
                found |= {n.pitfall for n in broken.candidates}
            case _:
                pass
    return found


CLIPPED, HALF = "clipped around the old values", "half the error"
TOKENS, ROWS = "mean over the tokens of the batch", "mean over tokens, then over sequences"
RIGHT = [
    ("predicted_first", f"{CLIPPED}, {HALF}, {TOKENS}"),
    ("ValueLoss.forward", f"{CLIPPED}, {HALF}, {ROWS}"),
    ("cleanrl", f"{CLIPPED}, {HALF}, {TOKENS}"),
    ("unclipped", f"unclipped, error without 1/2, {TOKENS}"),
    ("without_half", f"{CLIPPED}, error without 1/2, {TOKENS}"),
    ("huber", f"Huber error, unclipped, {HALF}, {TOKENS}"),
    ("slice_of_sequence", "takes the columns of the states before each token"),
    ("of_batch", f"{CLIPPED}, {HALF}, {TOKENS}, clip=0.25, coef=0.1"),
    ("loops", f"{CLIPPED}, {HALF}, {TOKENS}"),
    ("advantages_given", "target: advantages + old values"),
    ("unreduced", f"{CLIPPED}, error without 1/2"),
    ("in_bfloat16", f"unclipped, {HALF}, {TOKENS}"),
    ("einsum_form", f"unclipped, {HALF}, {TOKENS}"),
    ("sums", f"unclipped, {HALF}, sum over all tokens"),
    ("packed", f"{CLIPPED}, {HALF}, {TOKENS}"),
    ("target_of_the_batch", f"unclipped, target: advantages + old values, {HALF}, {TOKENS}"),
]


@pytest.mark.parametrize(("name", "words"), RIGHT)
def test_a_right_loss_is_recognised(name: str, words: str) -> None:
    result = examine(name)

    outcomes = [c.outcome for c in result.checks]
    assert all(isinstance(o, Agrees) for o in outcomes), outcomes
    assert isinstance(outcomes[0], Agrees)
    assert words in outcomes[0].convention.summary


def test_what_is_declared_of_the_policys_loss_binds_no_critic() -> None:
    assert named(examine("predicted_first", intent={"algorithm": "ppo", "aggregation": "sequence-mean"})) == set()


MEAN = "0.5 * masked_mean(torch.max(vf_losses1, vf_losses2), response_mask)"
NEAR = "near = old_value + (value - old_value).clamp(-value_eps_clip, value_eps_clip)"
CLAMP = "vpredclipped = torch.max(torch.min(vpreds, values + cliprange_value), values - cliprange_value)"
ONE_BRANCH = ((MEAN, "0.5 * torch.max(vf_losses1, vf_losses2 * response_mask).sum() / response_mask.sum()"),)
MOVING = (('rollout["advantages"] + rollout["values"]', 'rollout["advantages"] + values'),)
MUTANTS: list[tuple[str, str, Swaps]] = [
    ("VAL-SIGN", "predicted_first", (("vf_loss = 0.5", "vf_loss = -0.5"),)),
    ("VAL-SIGN", "unclipped", (("return F", "return -F"),)),
    ("LOSS-MASK-NUMERATOR", "predicted_first", ONE_BRANCH),
    ("VAL-MOVING-TARGET", "target_of_the_batch", MOVING),
    ("VAL-CLIP-MIN", "predicted_first", (("torch.max(vf_losses1, vf_losses2)", "torch.min(vf_losses1, vf_losses2)"),)),
    ("VAL-CLIP-MIN", "of_batch", (("amax(0)", "amin(0)"),)),
    ("VAL-CLIP-ONLY", "cleanrl", (("torch.max(v_loss_unclipped, v_loss_clipped)", "v_loss_clipped"),)),
    ("VAL-CLIP-ONLY", "unreduced", (("torch.max((values - returns) ** 2, (near - returns) ** 2)", "(near - returns) ** 2"),)),
    ("VAL-CLIP-CENTRE", "predicted_first", ((CLAMP, "vpredclipped = vpreds.clamp(-cliprange_value, cliprange_value)"),)),
    ("VAL-CLIP-CENTRE", "without_half", ((NEAR, "near = target_value + (value - target_value).clamp(-value_eps_clip, value_eps_clip)"), ("torch.maximum((value - target_value).square(), (near - target_value).square())", "(near - target_value).square()"))),
    ("VAL-CLIP-CENTRE", "predicted_first", (("values + cliprange_value", "values * (1 + cliprange_value)"), ("values - cliprange_value", "values * (1 - cliprange_value)"), ("torch.max(torch.min(", "torch.minimum(torch.maximum("), ("values * (1 + cliprange_value)), values * (1 - cliprange_value))", "values * (1 - cliprange_value)), values * (1 + cliprange_value))"))),
    ("VAL-CLIPS-RETURNS", "predicted_first", ((CLAMP, CLAMP.replace("vpreds,", "returns,")), ("(vpredclipped - returns)", "(vpreds - vpredclipped)"))),
    ("VAL-CLIPS-RETURNS", "unreduced", (("(values - old_values).clamp", "(returns - old_values).clamp"), ("torch.max((values - returns) ** 2, (near - returns) ** 2)", "(values - near) ** 2"))),
    ("VAL-CLIP-ONE-SIDED", "predicted_first", ((CLAMP, "vpredclipped = torch.min(vpreds, values + cliprange_value)"),)),
    ("VAL-CLIP-ONE-SIDED", "cleanrl", (("-clip_coef, clip_coef", "min=-clip_coef"),)),
    ("VAL-CLIP-CENTRE", "unreduced", (("near = old_values + (values - old_values).clamp(-clip_value, clip_value)", "near = values.clamp(1 - clip_value, 1 + clip_value)"),)),
    ("VAL-CLIP-CENTRE", "predicted_first", ((CLAMP, CLAMP.replace("vpreds, values", "values, vpreds").replace("), values", "), vpreds")),)),
    ("VAL-CLIP-SWAPPED", "unreduced", (("clamp(-clip_value, clip_value)", "clamp(clip_value, -clip_value)"),)),
    ("VAL-CLIP-SWAPPED", "cleanrl", (("-clip_coef, clip_coef", "clip_coef, -clip_coef"),)),
    ("VAL-CLIP-IGNORED", "predicted_first", (("torch.max(vf_losses1, vf_losses2)", "vf_losses1"),)),
    ("VAL-CLIP-IGNORED", "ValueLoss.forward", (("torch.max((clipped - returns) ** 2, (values - returns) ** 2)", "(values - returns) ** 2"),)),
    ("VAL-NO-SQUARE", "predicted_first", (("(vpreds - returns) ** 2", "(vpreds - returns).abs()"), ("(vpredclipped - returns) ** 2", "(vpredclipped - returns).abs()"))),
    ("VAL-NO-SQUARE", "unclipped", (("mse_loss", "l1_loss"),)),
    ("VAL-TARGET-OLD", "predicted_first", (("(vpreds - returns)", "(vpreds - values)"), ("(vpredclipped - returns)", "(vpredclipped - values)"))),
    ("VAL-TARGET-OLD", "ValueLoss.forward", (("returns) ** 2", "old_values) ** 2"),)),
    ("VAL-MOVING-TARGET", "advantages_given", (("(advantages + old_values).detach()", "(advantages + values).detach()"),)),
    ("VAL-MOVING-TARGET", "advantages_given", (("(advantages + old_values).detach()", "advantages + values"),)),
    ("VAL-TARGET-PART", "advantages_given", (("advantages + old_values", "advantages"),)),
    ("VAL-TARGET-PART", "advantages_given", (("advantages + old_values", "old_values - advantages"),)),
    ("VAL-DETACHED", "unclipped", (("values_pred)\n", "values_pred.detach())\n"),)),
    ("VAL-DETACHED", "of_batch", (('batch["vpreds"]', 'batch["vpreds"].detach()'),)),
    ("VAL-SHIFT", "slice_of_sequence", (("prompt_length - 1 : prompt_length - 1 + T", "prompt_length - 2 : prompt_length - 2 + T"),)),
    ("VAL-SHIFT", "slice_of_sequence", (("prompt_length - 1 : prompt_length - 1 + T", "prompt_length : prompt_length + T"),)),
    ("VAL-SHIFT", "slice_of_sequence", (("prompt_length - 1 : prompt_length - 1 + T", ":T"),)),
    ("LOSS-MASK-MISSING", "predicted_first", ((MEAN, "0.5 * torch.max(vf_losses1, vf_losses2).mean()"),)),
    ("LOSS-MASK-MISSING", "ValueLoss.forward", (("((loss * action_mask).sum(-1) / action_mask.sum(-1)).mean()", "loss.mean(-1).mean()"),)),
    ("LOSS-MASK-INVERTED", "without_half", (("worst[loss_mask.bool()]", "worst[~loss_mask.bool()]"),)),
    ("LOSS-MASK-INVERTED", "loops", (("if not m[t]", "if m[t]"),)),
    ("LOSS-MASK-SHIFT", "huber", (("    each", "    mask = mask.roll(1, 1)\n    each"),)),
    ("LOSS-MASK-SHIFT", "einsum_form", (("    d =", "    mask = mask.roll(-1, 1)\n    d ="),)),
    ("LOSS-MASK-NUMERATOR", "huber", (("(each * mask).sum()", "each.sum()"),)),
    ("LOSS-MASK-NUMERATOR", "ValueLoss.forward", (("(loss * action_mask).sum(-1)", "loss.sum(-1)"),)),
    ("LOSS-PADDED-DENOMINATOR", "huber", (("    each", '    """Mean over the response tokens."""\n    each'), ("(each * mask).sum() / mask.sum()", "(each * mask).mean()"))),
    ("LOSS-PADDED-DENOMINATOR", "slice_of_sequence", (("; the rest [B, T].", "; the rest [B, T]. Padding is left out."), ("(each * response_mask).sum() / response_mask.sum()", "(each * response_mask).mean()"))),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps))) == {pitfall}


def test_a_denominator_that_nobody_promised_is_asked_about_softly(tmp_path: Path) -> None:
    swaps = (("(each * mask).sum() / mask.sum()", "(each * mask).mean()"),)
    result = examine("huber", mutated(tmp_path, "huber", swaps))

    assert named(result) == set()
    assert named(result, "soft") == {"LOSS-PADDED-DENOMINATOR"}


def test_an_absolute_error_is_right_where_it_is_meant(tmp_path: Path) -> None:
    swaps = (("mse_loss", "l1_loss"), ("    return", '    """L1 loss of the critic."""\n    return'))

    assert named(examine("unclipped", mutated(tmp_path, "unclipped", swaps))) == set()


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [m[0] for m in MUTANTS]

    assert {p.id for p in value_loss.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


def test_two_bugs_in_one_loss_are_both_named(tmp_path: Path) -> None:
    both = (
        ("torch.max(vf_losses1, vf_losses2)", "torch.min(vf_losses1, vf_losses2)"),
        (", response_mask)\n    vf_clipfrac", ", torch.ones_like(vpreds))\n    vf_clipfrac"),
    )

    assert named(examine("predicted_first", mutated(tmp_path, "predicted_first", both))) == {
        "VAL-CLIP-MIN",
        "LOSS-MASK-MISSING",
    }


@pytest.mark.parametrize("name", ["fourth_power", "log_cosh", "between", "scaled"])
def test_an_unknown_loss_diverges(name: str) -> None:
    result = examine(name, module="value_loss_strange")

    assert isinstance(result.checks[0].outcome, Diverges)


# The reference itself

STANDARD = {
    "sign": "plus", "error": "square", "clipping": "max", "target": "returns", "slice": "own", "gradient": "own",
    "factor": "half", "agg": "token-mean", "mask": "own",
}  # fmt: skip
KNOBS = {"clip": 0.3, "delta": 0.7, "coef": 1.0}


def seen(outlier: bool = False) -> Seen:
    case = value_loss._case("a case", outlier=outlier)  # pyright: ignore[reportPrivateUsage]
    wide = {
        k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in case.inputs.items()
    }
    s = Seen(case="a case", inputs=wide, value=torch.zeros(()), grads={}, dtype="float32")
    leaf = wide["values"]
    assert isinstance(leaf, torch.Tensor)
    s.cache["leaf:values"] = leaf.clone().requires_grad_(True)
    return s


def test_the_reference_equals_a_sum_over_single_tokens() -> None:
    s = seen()
    v, o, r, m = (s.inputs[k] for k in ("values", "old_values", "returns", "completion_mask"))
    assert all(isinstance(x, torch.Tensor) for x in (v, o, r, m))
    total = count = 0.0
    for b, t in itertools.product(range(4), range(6)):
        if m[b, t]:  # type: ignore[index]
            x, old, ret = float(v[b, t]), float(o[b, t]), float(r[b, t])  # type: ignore[index]
            near = min(max(x, old - 0.3), old + 0.3)
            total, count = total + max((x - ret) ** 2, (near - ret) ** 2), count + 1

    assert value_loss.reference(s, STANDARD, KNOBS).value.item() == pytest.approx(total / count / 2)


@pytest.mark.parametrize("clipping", ["max", "plain", "min", "only"])
def test_the_references_gradient_is_that_of_differences(clipping: str) -> None:
    s = seen()
    options = {**STANDARD, "clipping": clipping}
    grad = value_loss.reference(s, options, KNOBS).grads()["values"]
    leaf = s.cache["leaf:values"]
    for b, t in ((0, 0), (1, 1), (2, 4), (3, 3), (0, 3)):
        got: list[float] = []
        for step in (1e-5, -1e-5):
            moved = leaf.detach().clone()
            moved[b, t] += step
            other = seen()
            other.cache["leaf:values"] = moved
            got.append(value_loss.reference(other, options, KNOBS).value.item())
        assert float(grad[b, t]) == pytest.approx((got[0] - got[1]) / 2e-5, abs=1e-6)


def test_huber_is_that_of_torch() -> None:
    d = torch.linspace(-3, 3, 41, dtype=torch.float64)
    zero = torch.zeros_like(d)
    error = value_loss._error_of  # pyright: ignore[reportPrivateUsage]

    assert torch.allclose(
        error("huber", d, 0.7) / 2, torch.nn.functional.huber_loss(d, zero, delta=0.7, reduction="none")
    )
    assert torch.allclose(
        error("smooth", d, 0.7) / 2, torch.nn.functional.smooth_l1_loss(d, zero, beta=0.7, reduction="none")
    )


OPTIONS = {
    "error": ["square", "huber", "smooth", "absolute"],
    "clipping": ["max", "plain", "min", "only", "around returns", "around zero", "around one", "old", "swapped", "swapped only", "relative", "returns", "returns max", "upper only", "lower only"],
    "target": ["returns", "old", "moving detached", "advantages", "difference"],
    "slice": ["own", "one early", "one late", "first columns"],
    "gradient": ["own", "cut"],
}  # fmt: skip


@pytest.mark.parametrize("axis", list(OPTIONS))
def test_the_cases_tell_every_pair_of_options_apart(axis: str) -> None:
    found: dict[str, list[torch.Tensor]] = {}
    for option in OPTIONS[axis]:
        parts: list[torch.Tensor] = []
        for outlier in (False, True):
            got = value_loss.reference(seen(outlier), {**STANDARD, axis: option}, KNOBS)
            parts += [got.value.detach().flatten(), got.grads()["values"].flatten()]
        found[option] = parts
    for one, other in itertools.combinations(found, 2):
        gap = max(float((a - b).abs().max()) for a, b in zip(found[one], found[other], strict=True))
        assert gap > 1e-3, (one, other)
