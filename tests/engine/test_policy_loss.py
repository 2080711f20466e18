"""Policy losses that are right, wrong, strange or odd in their settings, loaded and bound as a user's are."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest

from rltriage_probes import binding, checking, loading, tolerance
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import policy_loss, surrogate
from rltriage_probes.model import Axis, Subject
from rltriage_probes.solver import Knobs, Options, Seen, combinations

DATA = Path(__file__).parent / "data" / "loss"
PLAIN, OBJECTS = "plain.py", "objects.py"
Swaps = tuple[tuple[str, str], ...]
Intent = dict[str, Any]

# Calling


def examine(ref: str, root: Path = DATA, intent: Intent | None = None, settings: Intent | None = None) -> TargetResult:
    target = TargetSpec(name="policy_loss", role="policy_loss", ref=ref, settings=settings or {})
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent or {}, device="cpu"))


def mutated(folder: Path, ref: str, swaps: Swaps) -> Path:
    """A copy of the specimen's file in which texts inside the target's own definition are exchanged."""
    file, target = ref.split(":")
    text = (DATA / file).read_text("utf-8")
    owner = target.split(".")[0]
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == owner)
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    before, part, after = lines[: node.lineno - 1], lines[node.lineno - 1 : node.end_lineno], lines[node.end_lineno :]
    code = "".join(part)
    for old, new in swaps:
        assert old in code, f"{ref} has no {old!r}"
        code = code.replace(old, new)
    (folder / file).write_text("".join(before) + code + "".join(after), encoding="utf-8")
    return folder


def named(result: TargetResult, severity: str = "hard") -> set[str]:
    """Pitfalls of known bugs and the first candidate of each broken relation."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug() as bug if bug.severity == severity:
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates() as broken if broken.severity == severity and broken.candidates:
                found.add(broken.candidates[0].pitfall)
            case _:
                pass
    return found


def says(result: TargetResult, probe: str = "policy_loss.formula") -> str:
    """What a check that agrees, or diverges, says."""
    (outcome,) = [c.outcome for c in result.checks if c.probe == probe]
    assert isinstance(outcome, Agrees | Diverges), outcome
    return outcome.convention.summary if isinstance(outcome, Agrees) else outcome.says


# Right functions

CLIP = "clipped surrogate"
TOKEN, ROWS = "mean over the tokens of the batch", "mean over tokens, then over sequences"
GSPO = "one length-normalised ratio a sequence"

RIGHT: list[tuple[str, Intent, Intent, tuple[str, ...], str]] = [
    # target, intent, settings, words of the surrogate, words of the KL term
    (f"{PLAIN}:ppo_clip", {}, {}, (CLIP, TOKEN, "clip_low=0.2"), ""),
    (f"{PLAIN}:ppo_clip_column", {"clip_low": 0.1}, {}, (CLIP, TOKEN, "clip_low=0.1"), ""),
    (f"{PLAIN}:grpo_k3", {"aggregation": "sequence-mean", "kl_estimator": "k3"}, {}, (CLIP, ROWS), "k3"),
    (f"{PLAIN}:grpo_k2", {"kl_estimator": "k2"}, {}, (CLIP, ROWS), "k2"),
    (f"{PLAIN}:grpo_kl_separate_means", {}, {}, (CLIP, TOKEN), "beta=0.001"),
    (f"{PLAIN}:grpo_unbiased_kl", {}, {}, (CLIP, TOKEN), "k3 times the ratio"),
    (f"{PLAIN}:grpo_low_var_kl", {"kl_estimator": "low_var_kl"}, {}, (CLIP, TOKEN), "k3, clamped"),
    (f"{PLAIN}:grpo_straight_through_kl", {}, {}, (CLIP, TOKEN), "gradient of k2"),
    (f"{PLAIN}:dapo", {"algorithm": "dapo"}, {}, (CLIP, "upper clip distance of its own", "clip_high=0.28"), ""),
    (f"{PLAIN}:verl_style", {}, {}, (CLIP, "dual clip", "dual_clip=3"), ""),
    (f"{PLAIN}:verl_style", {}, {"loss_agg_mode": "seq-mean-token-mean"}, (CLIP, "dual clip", ROWS), ""),
    (f"{PLAIN}:verl_style", {}, {"loss_agg_mode": "seq-mean-token-sum"}, ("sum over tokens, mean over sequences",), ""),
    (f"{PLAIN}:trl_delta", {}, {}, (CLIP, "dual clip", "dual_clip=4"), ""),
    (f"{PLAIN}:gspo", {"algorithm": "gspo"}, {}, (GSPO, ROWS, "clip_low=0.0003", "clip_high=0.0004"), ""),
    (f"{PLAIN}:gspo_token", {"algorithm": "gspo", "aggregation": "sequence-mean"}, {}, (GSPO, ROWS), ""),
    (f"{PLAIN}:cispo_two_sided", {"algorithm": "cispo"}, {}, ("CISPO weight, clipped on both sides",), ""),
    (f"{PLAIN}:cispo_upper", {}, {}, ("CISPO weight capped at 1 + ε", "clip_high=0.28"), ""),
    (f"{PLAIN}:cispo_absolute", {}, {}, ("CISPO weight capped", "cap=5"), ""),
    (f"{PLAIN}:reinforce", {}, {}, ("advantage times log-prob, no ratio", TOKEN), ""),
    (f"{PLAIN}:reinforce_sequence", {}, {}, ("no ratio", "sum over tokens, mean over sequences"), ""),
    (f"{PLAIN}:rloo_sequence_ratio", {"algorithm": "rloo"}, {}, ("one ratio a sequence, of summed log-probs",), ""),
    (f"{PLAIN}:on_policy", {}, {}, ("ratio 1 with a gradient", ROWS), ""),
    (f"{PLAIN}:on_policy_fallback", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:masked_select_mean", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:boolean_index", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:masked_where", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:filled", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:per_token_matrix", {}, {}, (CLIP,), ""),
    (f"{PLAIN}:unreduced", {}, {}, (CLIP,), ""),
    (f"{PLAIN}:per_sequence_losses", {}, {}, (CLIP, "mean over the tokens of each sequence"), ""),
    (f"{PLAIN}:over_items_in_batch", {"aggregation": "token-mean"}, {}, ("sum over the given token count",), ""),
    (f"{PLAIN}:dr_grpo_constant", {"aggregation": "constant"}, {}, ("sum over B times a constant",), ""),
    (f"{PLAIN}:summed", {}, {}, (CLIP, "sum over all tokens"), ""),
    (f"{PLAIN}:slime_style", {}, {}, (CLIP,), ""),
    (f"{PLAIN}:from_ratio", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:from_log_ratio", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:with_entropy", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:dual_clip", {}, {}, ("dual clip", "dual_clip=3"), ""),
    (f"{PLAIN}:gmpo", {}, {}, ("geometric mean of ratios clipped in log space", "clip_low=0.4"), ""),
    (f"{PLAIN}:double_precision", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:looped", {}, {}, (CLIP, ROWS), ""),
    (f"{PLAIN}:relu_form", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:where_form", {}, {}, (CLIP, TOKEN), ""),
    (f"{PLAIN}:weighted_reinforce", {}, {}, ("detached ratio times log-prob",), ""),
    (f"{PLAIN}:importance_sampling", {}, {}, ("ratio without clipping", "sum over all tokens"), ""),
    ("layouts.py:bool_index", {}, {}, (CLIP, TOKEN), ""),
    ("layouts.py:long_mask", {}, {}, (CLIP, TOKEN), ""),
    ("layouts.py:ragged", {}, {}, (CLIP, ROWS), ""),
    ("layouts.py:packed", {}, {}, (CLIP, ROWS), ""),
    ("layouts.py:combined", {}, {}, (CLIP, TOKEN), ""),
    ("layouts.py:returns_named", {}, {}, (CLIP, TOKEN), "k3"),
    ("layouts.py:transposed", {}, {}, (CLIP, TOKEN), ""),
    ("layouts.py:rollout_ratio", {}, {}, (CLIP, TOKEN), ""),
    ("layouts.py:decoupled", {}, {}, (CLIP, TOKEN), ""),
    (f"{OBJECTS}:PolicyLoss", {}, {}, (CLIP, TOKEN, "clip_high=0.28"), ""),
    (f"{OBJECTS}:PolicyLoss.forward", {}, {"token_level_loss": False}, (CLIP, ROWS), ""),
    (f"{OBJECTS}:loss_of_rollout", {}, {}, (CLIP, TOKEN), ""),
    (f"{OBJECTS}:loss_of_dict", {}, {}, (CLIP, TOKEN), ""),
    (f"{OBJECTS}:loss_of_namespace", {}, {}, (CLIP, TOKEN), ""),
    (f"{OBJECTS}:Trainer.compute_loss", {}, {}, (CLIP, ROWS, "clip_high=0.28"), "k3"),
    (
        f"{OBJECTS}:Trainer.compute_loss",
        {},
        {"loss_type": "dr_grpo"},
        ("sum over B times a constant", "length=256"),
        "",
    ),
    (f"{OBJECTS}:Bnpo.loss", {"aggregation": "token-mean", "beta": 0.02}, {}, (CLIP, TOKEN), "beta=0.02"),
    (f"{OBJECTS}:Algorithm.actor_loss", {}, {}, (CLIP, TOKEN), "no KL term"),
    (f"{OBJECTS}:Algorithm.actor_loss", {"beta": 0.04}, {}, (CLIP, TOKEN), "k3"),
    (f"{OBJECTS}:Algorithm.reinforce", {}, {}, ("no ratio",), ""),
    (f"{OBJECTS}:switchable", {"aggregation": "token-mean"}, {}, ("dual clip", TOKEN), ""),
    (
        f"{OBJECTS}:switchable",
        {},
        {"loss_agg_mode": "seq-mean-token-sum-norm"},
        ("sum over B times the padded width",),
        "",
    ),
]


@pytest.mark.parametrize(
    ("ref", "intent", "settings", "words", "kl"), RIGHT, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_right_loss_is_recognised_and_never_called_a_bug(
    ref: str, intent: Intent, settings: Intent, words: tuple[str, ...], kl: str
) -> None:
    result = examine(ref, intent=intent, settings=settings)

    assert named(result) == set()
    assert [c.outcome.kind for c in result.checks if c.outcome.kind != "agrees"] == []
    assert [w for w in words if w not in says(result)] == []
    assert not kl or kl in says(result, "policy_loss.kl")


def test_k1_in_the_loss_is_a_question_and_not_a_verdict() -> None:
    result = examine(f"{PLAIN}:grpo_k1")

    assert named(result) == set()
    assert named(result, "soft") == {"KL-K1-AS-LOSS"}


def test_an_objective_that_says_it_is_to_be_maximised_has_the_sign_it_should_have() -> None:
    result = examine("layouts.py:maximised_objective")

    assert (named(result), named(result, "soft")) == (set(), {"LOSS-SIGN"})


def test_a_mean_that_the_caller_can_choose_is_examined_as_declared_and_one_to_undo_is_only_a_question() -> None:
    switch = examine(f"{OBJECTS}:switchable", intent={"aggregation": "sequence-mean"})
    total = examine(f"{PLAIN}:summed", intent={"aggregation": "token-mean"})

    assert (named(switch), named(switch, "soft")) == (set(), set())
    assert (named(total), named(total, "soft")) == (set(), {"LOSS-AGGREGATION"})


# Wrong functions

REPEAT = "advantages.repeat({0}.size(1)).view_as({0})"
MEAN = "(loss * completion_mask).sum() / completion_mask.sum().clamp(min=1)"
ROW_MEAN = "((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()"
MINIMUM = "torch.maximum(-ratio * adv, -ratio.clamp(1 - epsilon, 1 + epsilon) * adv)"
BLIND = "-torch.minimum(ratio, ratio.clamp(1 - epsilon, 1 + epsilon)) * adv"
TRAINER_LOSS = "loss = -torch.min(ratio * advantages, clipped * advantages)"
COLUMN, K3, TRAINER = f"{PLAIN}:ppo_clip_column", f"{PLAIN}:grpo_k3", f"{OBJECTS}:Trainer.compute_loss"
PPO, DAPO, MODULE = f"{PLAIN}:ppo_clip", f"{PLAIN}:dapo", f"{OBJECTS}:PolicyLoss.forward"
SEPARATE = f"{PLAIN}:grpo_kl_separate_means"

MUTANTS: list[tuple[str, str, Swaps, Intent]] = [
    ("LOSS-SIGN", PPO, (("-torch.min(surr1", "torch.min(surr1"),), {}),
    ("LOSS-SIGN", f"{PLAIN}:reinforce", (("return -", "return "),), {}),
    ("LOSS-SIGN", f"{OBJECTS}:loss_of_dict", (("-torch.min", "torch.min"),), {}),
    ("LOSS-ADV-SIGN", COLUMN, (("adv = adv", "adv = -adv"),), {}),
    ("LOSS-ADV-SIGN", f"{OBJECTS}:loss_of_rollout", (("adv = rollout.adv", "adv = -rollout.adv"),), {}),
    ("LOSS-ADV-AXIS", COLUMN, (("advantages.unsqueeze(-1)", REPEAT.format("logprobs")),), {}),
    ("LOSS-ADV-AXIS", K3, (("advantages.unsqueeze(1)", REPEAT.format("coef")),), {}),
    (
        "LOSS-ADV-AXIS",
        f"{PLAIN}:boolean_index",
        (
            (
                "advantages[:, None].expand_as(logprobs)",
                "torch.cat([advantages] * logprobs.size(1)).view(logprobs.shape)",
            ),
        ),
        {},
    ),
    ("LOSS-RATIO-INVERTED", PPO, (("log_probs - old_log_probs", "old_log_probs - log_probs"),), {}),
    ("LOSS-RATIO-INVERTED", f"{PLAIN}:slime_style", (("(-ppo_kl).exp()", "ppo_kl.exp()"),), {}),
    ("LOSS-RATIO-INVERTED", MODULE, (("log_probs - old_log_probs", "old_log_probs - log_probs"),), {}),
    ("LOSS-RATIO-DETACHED", K3, (("exp(per_token_logps - old", "exp(per_token_logps.detach() - old"),), {}),
    ("LOSS-RATIO-DETACHED", TRAINER, (("(per_token_logps - old)", "(per_token_logps - old).detach()"),), {}),
    ("LOSS-RATIO-CONSTANT", f"{PLAIN}:grpo_k2", (("torch.exp(logps - old_logps)", "torch.ones_like(logps)"),), {}),
    ("LOSS-RATIO-CONSTANT", TRAINER, (("(per_token_logps - old)", "(torch.zeros_like(old))"),), {}),
    ("LOSS-RATIO-NO-EXP", PPO, (("torch.exp(log_probs - old_log_probs)", "log_probs - old_log_probs"),), {}),
    ("LOSS-RATIO-NO-EXP", f"{PLAIN}:masked_where", (("log_ratio.exp()", "log_ratio"),), {}),
    ("LOSS-RATIO-SUM", f"{PLAIN}:gspo", ((" / mask.sum(-1)", ""),), {"algorithm": "gspo"}),
    ("LOSS-RATIO-SUM", f"{PLAIN}:gspo_token", ((" / seq_lengths", ""),), {"algorithm": "gspo"}),
    ("LOSS-RATIO-PADDED", f"{PLAIN}:gspo", ((".sum(-1) / mask.sum(-1)", ".mean(-1)"),), {}),
    (
        "LOSS-RATIO-PADDED",
        f"{PLAIN}:gspo_token",
        ((" / seq_lengths", " / response_mask.shape[1]"),),
        {"algorithm": "gspo"},
    ),
    ("LOSS-RATIO-REFERENCE", K3, (("exp(per_token_logps - old_", "exp(per_token_logps - ref_"),), {}),
    (
        "LOSS-RATIO-REFERENCE",
        f"{OBJECTS}:Algorithm.actor_loss",
        (("logprobs - old_logprobs", "logprobs - ref_logprobs"),),
        {},
    ),
    ("LOSS-CLIP-MAX", PPO, (("-torch.min", "-torch.max"),), {}),
    ("LOSS-CLIP-MAX", DAPO, (("torch.max(losses1", "torch.min(losses1"),), {}),
    ("LOSS-CLIP-NO-MIN", PPO, (("-torch.min(surr1, surr2)", "-surr2"),), {}),
    ("LOSS-CLIP-NO-MIN", DAPO, (("torch.max(losses1, losses2)", "losses2"),), {}),
    ("LOSS-CLIP-BLIND", COLUMN, ((MINIMUM, BLIND),), {}),
    (
        "LOSS-CLIP-BLIND",
        f"{PLAIN}:from_ratio",
        (("torch.min(ratio * advantages, bounded * advantages)", "torch.min(ratio, bounded) * advantages"),),
        {},
    ),
    (
        "LOSS-CLIP-SWAPPED",
        DAPO,
        (("1 - clip_ratio_low, 1 + clip_ratio_high", "1 - clip_ratio_high, 1 + clip_ratio_low"),),
        {},
    ),
    ("LOSS-CLIP-SWAPPED", MODULE, (("_low, 1", "_HIGH, 1"), ("_high)", "_low)"), ("_HIGH", "_high")), {}),
    ("LOSS-CLIP-ONE-SIDED", PPO, (("1.0 - clip_eps, 1.0 + clip_eps", "max=1.0 + clip_eps"),), {}),
    ("LOSS-CLIP-ONE-SIDED", DAPO, (("1 - clip_ratio_low, 1 + clip_ratio_high", "min=1 - clip_ratio_low"),), {}),
    ("LOSS-CLIP-NO-ONE", PPO, (("1.0 - clip_eps, 1.0 + clip_eps", "-clip_eps, clip_eps"),), {}),
    ("LOSS-CLIP-NO-ONE", f"{OBJECTS}:loss_of_dict", (("1 - clip_eps, 1 + clip_eps", "-clip_eps, clip_eps"),), {}),
    ("LOSS-CLIP-INERT", PPO, (("torch.clamp(ratio, 1.0 - clip_eps, 1.0 + clip_eps)", "ratio"),), {}),
    ("LOSS-CLIP-INERT", DAPO, (("torch.clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)", "ratio"),), {}),
    ("LOSS-CLIP-BOUND-IGNORED", DAPO, (("1 + clip_ratio_high", "1 + clip_ratio_low"),), {}),
    (
        "LOSS-CLIP-BOUND-IGNORED",
        f"{PLAIN}:trl_delta",
        (("1 + epsilon_high", "1 + epsilon_low"),),
        {"clip_low": 0.2, "clip_high": 0.28},
    ),
    ("LOSS-DUAL-CLIP-SIGN", f"{PLAIN}:dual_clip", (("torch.where(adv < 0, ", "("), ("* adv), base)", "* adv))")), {}),
    (
        "LOSS-DUAL-CLIP-SIGN",
        f"{OBJECTS}:switchable",
        (
            (
                "torch.where(advantages < 0, torch.min(-advantages * config.clip_ratio_c, losses), losses)",
                "torch.min(-advantages * config.clip_ratio_c, losses)",
            ),
        ),
        {},
    ),
    ("LOSS-CISPO-GRADIENT", f"{PLAIN}:cispo_two_sided", ((".detach()", ""),), {}),
    ("LOSS-CISPO-GRADIENT", f"{PLAIN}:cispo_upper", (("with torch.no_grad():", "if True:"),), {}),
    ("LOSS-BRANCH", TRAINER, ((TRAINER_LOSS, "loss = -clipped.detach() * advantages * per_token_logps"),), {}),
    (
        "LOSS-BRANCH",
        TRAINER,
        (
            (
                TRAINER_LOSS,
                "loss = -ratio.clamp(max=1 + self.args.epsilon_high).detach() * advantages * per_token_logps",
            ),
        ),
        {},
    ),
    ("LOSS-MASK-MISSING", COLUMN, ((MEAN, "loss.mean()"),), {}),
    ("LOSS-MASK-MISSING", K3, ((ROW_MEAN, "per_token_loss.mean(dim=1).mean()"),), {}),
    ("LOSS-MASK-INVERTED", COLUMN, ((MEAN, "(loss * (1 - completion_mask)).sum() / (1 - completion_mask).sum()"),), {}),
    ("LOSS-MASK-INVERTED", f"{PLAIN}:boolean_index", (("loss_mask > 0", "loss_mask == 0"),), {}),
    (
        "LOSS-MASK-SHIFT",
        COLUMN,
        ((MEAN, "(loss[:, 1:] * completion_mask[:, :-1]).sum() / completion_mask[:, :-1].sum()"),),
        {},
    ),
    ("LOSS-MASK-SHIFT", COLUMN, ((MEAN, "(loss[:, :-1] * completion_mask[:, 1:]).sum() / completion_mask.sum()"),), {}),
    (
        "LOSS-MASK-SHIFT",
        COLUMN,
        ((MEAN, "(loss * completion_mask.roll(1, dims=1)).sum() / completion_mask.sum()"),),
        {},
    ),
    (
        "LOSS-MASK-SHIFT",
        f"{PLAIN}:looped",
        (("(obj * m).sum() / m.sum()", "(obj[:-1] * m[1:]).sum() / m[1:].sum()"),),
        {},
    ),
    ("LOSS-MASK-NUMERATOR", COLUMN, (("(loss * completion_mask).sum()", "loss.sum()"),), {}),
    ("LOSS-MASK-NUMERATOR", K3, (("(per_token_loss * completion_mask).sum", "per_token_loss.sum"),), {}),
    ("LOSS-AGGREGATION", COLUMN, (), {"aggregation": "sequence-mean"}),
    ("LOSS-AGGREGATION", f"{PLAIN}:looped", (), {"aggregation": "token-mean"}),
    ("LOSS-PADDED-DENOMINATOR", COLUMN, ((MEAN, "(loss * completion_mask).mean()"),), {"aggregation": "token-mean"}),
    (
        "LOSS-PADDED-DENOMINATOR",
        K3,
        ((" / completion_mask.sum(dim=1)).mean()", " / completion_mask.size(1)).mean()"),),
        {"aggregation": "sequence-mean"},
    ),
    ("KL-ESTIMATOR", K3, (), {"kl_estimator": "k2"}),
    ("KL-ESTIMATOR", f"{PLAIN}:grpo_k2", (), {"kl_estimator": "k3"}),
    ("KL-REVERSED", K3, (("ref_per_token_logps - per_token_logps", "per_token_logps - ref_per_token_logps"),), {}),
    ("KL-REVERSED", SEPARATE, (("ref_logps - logps", "logps - ref_logps"),), {}),
    ("KL-SIGN", K3, (("+ beta *", "- beta *"),), {}),
    ("KL-SIGN", TRAINER, (("loss + self.args.beta", "loss - self.args.beta"),), {}),
    ("KL-DETACHED", K3, (("beta * per_token_kl", "beta * per_token_kl.detach()"),), {}),
    ("KL-DETACHED", SEPARATE, (("log_r = ref_logps - logps", "log_r = (ref_logps - logps).detach()"),), {}),
    ("KL-MISSING", K3, ((" + beta * per_token_kl", ""),), {}),
    ("KL-MISSING", SEPARATE, ((" + kl_coef * (kl * mask).sum() / n", ""),), {}),
    ("KL-K2-NO-SQUARE", f"{PLAIN}:grpo_k2", (("(logps - ref_logps) ** 2", "(logps - ref_logps).abs()"),), {}),
    ("KL-K2-NO-SQUARE", TRAINER, (("(torch.exp(diff) - diff - 1)", "diff.abs() / 2"),), {"kl_estimator": "k2"}),
    ("KL-NOT-ZERO", K3, (("torch.exp(diff) - diff - 1", "torch.exp(diff) - diff"),), {}),
    ("KL-NOT-ZERO", SEPARATE, (("log_r.exp() - 1 - log_r", "log_r.exp() - 1"),), {}),
    ("LOSS-ENTROPY-SIGN", f"{PLAIN}:with_entropy", (("- entropy_coef", "+ entropy_coef"),), {}),
    ("LOSS-ENTROPY-SIGN", f"{PLAIN}:with_entropy", (("mask) - entropy_coef * m", "mask) + 0.003 * m"),), {}),
    (
        "LOSS-NO-GRADIENT",
        PPO,
        (("return masked_mean(-", "return float(masked_mean(-"), ("surr2), mask)", "surr2), mask))")),
        {},
    ),
    ("LOSS-NO-GRADIENT", f"{PLAIN}:on_policy", (("exp(per_token_logps - ", "exp(per_token_logps.detach() - "),), {}),
    (
        "LOSS-NOT-FINITE",
        f"{PLAIN}:reinforce",
        (("(logprobs *", "(logprobs.masked_fill(mask == 0, float('-inf')) *"),),
        {},
    ),
    (
        "LOSS-NOT-FINITE",
        COLUMN,
        (("completion_mask.sum().clamp(min=1)", "(completion_mask.sum() - completion_mask.sum())"),),
        {},
    ),
]


@pytest.mark.parametrize(("pitfall", "ref", "swaps", "intent"), MUTANTS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_planted_bug_is_named_and_nothing_else_is(
    pitfall: str, ref: str, swaps: Swaps, intent: Intent, tmp_path: Path
) -> None:
    assert named(examine(ref, mutated(tmp_path, ref, swaps), intent)) == {pitfall}


SOFT_OR_STRANGE = {
    "KL-K1-AS-LOSS",
    "KL-OVERFLOW",
    "LOSS-WRONG-WAY",
    "LOSS-MIXED-ROW",
    "LOSS-MASK-LEAK",
    "LOSS-SAMPLER-INVERTED",
    "LOSS-SAMPLER-BOUND",
}
"""Pitfalls that tests of their own plant."""


def test_every_pitfall_of_the_role_is_planted_at_least_twice_or_has_a_test_of_its_own() -> None:
    planted = [m[0] for m in MUTANTS]
    declared = {p.id for p in policy_loss.ROLE.pitfalls}

    assert {p for p in declared if planted.count(p) < 2} == SOFT_OR_STRANGE
    assert set(planted) <= declared


PAIRS: list[tuple[set[str], str, Swaps, Intent]] = [
    (
        {"LOSS-CLIP-MAX", "KL-REVERSED"},
        K3,
        (
            ("-torch.min(coef", "-torch.max(coef"),
            ("ref_per_token_logps - per_token_logps", "per_token_logps - ref_per_token_logps"),
        ),
        {},
    ),
    (
        {"LOSS-ADV-AXIS", "LOSS-MASK-MISSING"},
        K3,
        (("advantages.unsqueeze(1)", REPEAT.format("coef")), (ROW_MEAN, "per_token_loss.mean()")),
        {},
    ),
    ({"LOSS-SIGN", "KL-SIGN"}, K3, (("-torch.min(coef", "torch.min(coef"), ("+ beta", "- beta")), {}),
    (
        {"LOSS-RATIO-INVERTED", "LOSS-MASK-NUMERATOR"},
        COLUMN,
        (("logprobs - old_logprobs", "old_logprobs - logprobs"), ("(loss * completion_mask).sum()", "loss.sum()")),
        {},
    ),
    (
        {"LOSS-CLIP-SWAPPED", "LOSS-RATIO-INVERTED"},
        DAPO,
        (
            ("1 - clip_ratio_low, 1 + clip_ratio_high", "1 - clip_ratio_high, 1 + clip_ratio_low"),
            ("log_probs - old_log_probs", "old_log_probs - log_probs"),
        ),
        {},
    ),
    (
        {"LOSS-ADV-SIGN", "LOSS-MASK-INVERTED"},
        COLUMN,
        (("adv = adv", "adv = -adv"), (MEAN, "(loss * (1 - completion_mask)).sum() / (1 - completion_mask).sum()")),
        {},
    ),
    (
        {"LOSS-RATIO-DETACHED", "KL-SIGN"},
        f"{PLAIN}:grpo_k2",
        (("torch.exp(logps - old_logps)", "torch.exp(logps.detach() - old_logps)"), ("kl = 0.5", "kl = -0.5")),
        {},
    ),
    (
        {"LOSS-RATIO-SUM", "LOSS-CLIP-MAX"},
        f"{PLAIN}:gspo",
        ((" / mask.sum(-1)", ""), ("-torch.min", "-torch.max")),
        {"algorithm": "gspo"},
    ),
    (
        {"LOSS-CISPO-GRADIENT", "LOSS-SIGN"},
        f"{PLAIN}:cispo_two_sided",
        ((".detach()", ""), ("return -", "return ")),
        {},
    ),
    (
        {"LOSS-CLIP-ONE-SIDED", "LOSS-RATIO-INVERTED"},
        PPO,
        (
            ("1.0 - clip_eps, 1.0 + clip_eps", "max=1.0 + clip_eps"),
            ("log_probs - old_log_probs", "old_log_probs - log_probs"),
        ),
        {},
    ),
    (
        {"LOSS-MASK-SHIFT", "LOSS-RATIO-NO-EXP"},
        COLUMN,
        (
            (MEAN, "(loss[:, 1:] * completion_mask[:, :-1]).sum() / completion_mask[:, :-1].sum()"),
            ("(logprobs - old_logprobs).exp()", "logprobs - old_logprobs"),
        ),
        {},
    ),
    (
        {"LOSS-CLIP-NO-ONE", "LOSS-MASK-MISSING"},
        TRAINER,
        (
            ("1 - self.args.epsilon, 1 + self", "-self.args.epsilon, self"),
            ("((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()", "loss.mean(-1).mean()"),
        ),
        {},
    ),
    (
        {"LOSS-ADV-SIGN", "KL-MISSING"},
        TRAINER,
        (
            ('inputs["advantages"]', '-inputs["advantages"]'),
            ("loss = loss + self.args.beta * (torch.exp(diff) - diff - 1)", "diff = diff + 0"),
        ),
        {},
    ),
    (
        {"LOSS-ENTROPY-SIGN", "LOSS-SIGN"},
        f"{PLAIN}:with_entropy",
        (("- entropy_coef", "+ entropy_coef"), ("-torch.min", "torch.min")),
        {},
    ),
    ({"LOSS-AGGREGATION", "KL-ESTIMATOR"}, K3, (), {"aggregation": "token-mean", "kl_estimator": "k2"}),
]


@pytest.mark.parametrize(
    ("pitfalls", "ref", "swaps", "intent"), PAIRS, ids=lambda x: "+".join(sorted(x)) if isinstance(x, set) else ""
)
def test_two_bugs_in_one_function_are_both_named(
    pitfalls: set[str], ref: str, swaps: Swaps, intent: Intent, tmp_path: Path
) -> None:
    assert named(examine(ref, mutated(tmp_path, ref, swaps), intent)) == pitfalls


def test_filler_behind_the_mask_counts_only_against_a_function_that_promises_to_bear_it(tmp_path: Path) -> None:
    promise = (
        ("    mask = mask.bool()", '    """mask: behind it stands filler of any size."""\n    mask = mask.bool()'),
    )
    ref = f"{PLAIN}:masked_where"
    result = examine(f"{PLAIN}:importance_sampling", mutated(tmp_path, f"{PLAIN}:importance_sampling", (
        ("    return", '    """mask: what stands behind it is filler of any size."""\n    return'),
    )))  # fmt: skip

    assert named(result) == {"KL-OVERFLOW"}
    assert named(examine(f"{PLAIN}:importance_sampling")) == set()
    assert named(examine(ref, mutated(tmp_path, ref, promise))) == set()


# Strange functions

STRANGE = sorted(
    n.name for n in ast.parse((DATA / "strangers.py").read_text("utf-8")).body if isinstance(n, ast.FunctionDef)
)


@pytest.mark.parametrize("name", STRANGE)
def test_an_unknown_formula_is_no_bug(name: str) -> None:
    result = examine(f"strangers.py:{name}")

    assert named(result) == set()
    assert {c.outcome.kind for c in result.checks} <= {"agrees", "diverges", "known_bug", "violates"}
    assert result.checks[0].outcome.kind in ("agrees", "diverges")


def test_a_factor_is_told_where_only_that_differs() -> None:
    assert says(examine("strangers.py:gpg_scaled")).endswith("times 1.37")


STRANGE_AND_WRONG: list[tuple[str, str, Swaps]] = [
    ("LOSS-WRONG-WAY", "strangers.py:advantage_weighted", (("return -", "return "),)),
    ("LOSS-WRONG-WAY", "strangers.py:positive_only", (("return -", "return "),)),
    (
        "LOSS-MIXED-ROW",
        "strangers.py:advantage_weighted",
        ((".clamp(max=20.0).unsqueeze(1)", ".clamp(max=20.0).repeat(log_probs.size(1)).view_as(log_probs)"),),
    ),
    (
        "LOSS-MIXED-ROW",
        "strangers.py:positive_only",
        (
            (
                "advantages.clamp(min=0).unsqueeze(1)",
                "torch.cat([advantages * 0.5] * log_probs.size(1)).view_as(log_probs).tanh()",
            ),
        ),
    ),
    (
        "LOSS-MASK-LEAK",
        "strangers.py:advantage_weighted",
        (("(log_probs * weights * mask).sum() / mask.sum()", "(log_probs * weights).sum() / mask.sum()"),),
    ),
    (
        "LOSS-MASK-LEAK",
        "strangers.py:positive_only",
        (("(log_probs * weights * mask).sum() / mask.sum()", "(log_probs * weights).mean()"),),
    ),
]


@pytest.mark.parametrize(("pitfall", "ref", "swaps"), STRANGE_AND_WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_relations_catch_what_no_formula_anticipated(pitfall: str, ref: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(ref, mutated(tmp_path, ref, swaps))) == {pitfall}


def test_a_wrong_sampler_correction_is_named_and_the_right_one_is_not(tmp_path: Path) -> None:
    ref = "strangers.py:truncated_is"

    assert named(examine(ref)) == set()
    inverted = mutated(tmp_path, ref, (("old_logprobs - rollout_logprobs", "rollout_logprobs - old_logprobs"),))
    assert named(examine(ref, inverted)) == {"LOSS-SAMPLER-INVERTED"}
    floored = mutated(tmp_path, ref, (("clamp(max=cap)", "clamp(min=cap)"),))
    assert named(examine(ref, floored)) == {"LOSS-SAMPLER-BOUND"}


# Settings

WRITTEN: list[tuple[str, Swaps, str, str]] = [
    (SEPARATE, (("0.8, 1.2", "1 - 0.137, 1 + 0.137"),), "policy_loss.formula", "clip_low=0.137"),
    (SEPARATE, (("0.8, 1.2", "0.863, 1.137"),), "policy_loss.formula", "clip_low=0.137"),
    (SEPARATE, (("0.8, 1.2", "1 - 0.11, 1 + 0.47"),), "policy_loss.formula", "clip_low=0.11, clip_high=0.47"),
    (SEPARATE, (("0.8, 1.2", "0.89, 1.47"),), "policy_loss.formula", "clip_low=0.11, clip_high=0.47"),
    (SEPARATE, (("0.8, 1.2", "1 - float('0.137'), 1 + float('0.137')"),), "policy_loss.formula", "clip_low=0.137"),
    (SEPARATE, ((", kl_coef=0.001", ""), ("kl_coef", "0.0317")), "policy_loss.kl", "beta=0.0317"),
    (SEPARATE, ((", kl_coef=0.001", ""), ("kl_coef", "float('0.0317')")), "policy_loss.kl", "beta=0.0317"),
    (SEPARATE, (("+ kl_coef", "+ 0.5 * kl_coef"),), "policy_loss.kl", "with weight 0.0005"),
    (
        f"{PLAIN}:dr_grpo_constant",
        ((", max_completion_length=512", ""), ("max_completion_length", "1024")),
        "policy_loss.formula",
        "length=1024",
    ),
    (
        f"{PLAIN}:dr_grpo_constant",
        ((", max_completion_length=512", ""), ("(loss.size(0) * max_completion_length)", "4096")),
        "policy_loss.formula",
        "sum over a constant, clip_low=0.2, length=4096",
    ),
    (
        f"{PLAIN}:cispo_absolute",
        ((", epsilon_high=5.0", ""), ("epsilon_high", "4.5")),
        "policy_loss.formula",
        "cap=4.5",
    ),
    (f"{PLAIN}:dual_clip", ((", dual_clip=3.0", ""), ("dual_clip *", "7.5 *")), "policy_loss.formula", "dual_clip=7.5"),
]


@pytest.mark.parametrize(("ref", "swaps", "probe", "words"), WRITTEN)
def test_an_odd_setting_is_solved_for(ref: str, swaps: Swaps, probe: str, words: str, tmp_path: Path) -> None:
    result = examine(ref, mutated(tmp_path, ref, swaps))

    assert named(result) == set()
    assert words in says(result, probe)


# Cases

USED: dict[str, Knobs] = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "cap": 1.5, "length": 16.0},
    "gspo": {"clip_low": 3e-4, "clip_high": 4e-4, "dual_clip": 1.1, "cap": 1.1, "length": 16.0},
}
MARGIN = 20.0


def subject_of(name: str, intent: Intent) -> Subject:
    """A real function, bound, so that every axis concerns it."""
    loaded = loading.load(str(DATA), TargetSpec(name="policy_loss", role="policy_loss", ref=f"{PLAIN}:{name}"))
    bound = binding.bind(loaded, policy_loss.ROLE, {}, {}, intent)
    return Subject(bound=bound, intent=intent, loaded=loaded.report, source=loaded.source, doc=loaded.doc)


def computed(s: Seen, options: Options, knobs: Knobs) -> list[Any]:
    """Value and gradients of one combination."""
    want = surrogate.reference(s, options, knobs)
    return [want.value.detach(), *want.grads().values()]


def apart(one: list[Any], other: list[Any]) -> bool:
    """Whether an element differs by more than `MARGIN` tolerances."""
    return any(
        bool(((a - b).abs() > MARGIN * tolerance.allowed(b, "float32")).any()) for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_the_cases_tell_every_pitfall_from_every_right_combination(algorithm: str) -> None:
    subject, knobs = subject_of("dapo", {"algorithm": algorithm}), USED[algorithm]
    axes: tuple[Axis, ...] = surrogate.axes(subject, "scalar")
    cases = ("straddling ratios", "other ratios")
    seen = [policy_loss.observe(subject, policy_loss.seeded(name))[0] for name in cases]
    right = [(o, [computed(s, o, knobs) for s in seen]) for o, _ in combinations(axes, 0)]
    wrong = [o for o, _ in combinations(axes, 1) if deviations(axes, o) == 1]
    if algorithm == "gspo":
        # a sequence's loss is the same at each of its tokens, so that a moved mask changes nothing; and all are clipped
        wrong = [o for o in wrong if o["mask"] == "own" and o["surrogate"] != "cispo leak"]
    alike = [
        (bad, good)
        for bad, good in itertools.product(wrong, right)
        if not any(
            apart(mine, theirs) for mine, theirs in zip([computed(s, bad, knobs) for s in seen], good[1], strict=True)
        )
    ]

    assert len(wrong) >= 15
    assert [(bad, good[0]) for bad, good in alike] == []


def deviations(axes: tuple[Axis, ...], options: Options) -> int:
    """How many axes depart from their first right option."""
    first = {a.name: next(o.name for o in a.options if o.standing != "pitfall") for a in axes}
    return sum(options[a] != name for a, name in first.items())
