"""Preference losses that are right, wrong and strange, loaded and bound as a user's are."""

# ruff: noqa: E501  rows of a table, one a mutant

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rltriage_probes import checking, tolerance
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import preference_cases as cases
from rltriage_probes.loss import preference_kto as kto
from rltriage_probes.loss import preference_loss, preference_pairs
from rltriage_probes.loss.preference_scores import Given
from rltriage_probes.model import Axis, Option
from rltriage_probes.solver import Result, Seen

DATA = Path(__file__).parent / "data"
Swaps = tuple[tuple[str, str], ...]


def examine(
    name: str,
    algorithm: str = "",
    root: Path = DATA,
    settings: dict[str, Any] | None = None,
    module: str = "preference_right",
) -> TargetResult:
    target = TargetSpec(
        name="preference_loss", role="preference_loss", ref=f"{module}.py:{name}", settings=settings or {}
    )
    intent = {"algorithm": algorithm} if algorithm else {}
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps, module: str = "preference_right") -> Path:
    """A copy of the right functions in which texts inside one definition are exchanged."""
    text = (DATA / f"{module}.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name.split(".", maxsplit=1)[0])
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / f"{module}.py").write_text(before + code + after, encoding="utf-8")
    return folder


def named(result: TargetResult, *severities: str) -> set[str]:
    """Pitfalls of known bugs and violations of these severities."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug() as bug if bug.severity in (severities or ("hard",)):
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates() as broken if broken.severity in (severities or ("hard",)):
                found |= {n.pitfall for n in broken.candidates}
            case _:
                pass
    return found


def words(result: TargetResult) -> str:
    """The conventions of everything that agrees."""
    return "; ".join(c.outcome.convention.summary for c in result.checks if isinstance(c.outcome, Agrees))


RIGHT = [
    ("preference_loss", "dpo", "conservative label smoothing, one loss a pair"),
    ("preference_loss", "ipo", "squared distance to 1/(2 beta)"),
    ("dpo_mean", "dpo", "-log sigmoid of the margin, log-ratios to the reference, mean over the pairs"),
    ("dpo_in_numpy_style", "dpo", "mean over the pairs"),
    ("dpo_as_bce", "dpo", "mean over the pairs"),
    ("DPOLoss.forward", "dpo", "implicit rewards beta times the log-ratio"),
    ("dpo_by_token", "dpo", "summed over the answer"),
    ("dpo_concatenated", "dpo", "chosen answers before rejected ones"),
    ("dpo_interleaved", "dpo", "chosen and rejected answers in turn"),
    ("dpo_concatenated_tokens", "dpo", "summed over the answer, chosen answers before rejected ones"),
    ("dpo_from_logits", "dpo", "labels shifted inside"),
    ("dpo_of_batch", "dpo", "mean over the pairs"),
    ("dpo_of_record", "dpo", "mean over the pairs"),
    ("dpo_named_tuple", "dpo", "implicit rewards"),
    ("dpo_from_ratios", "dpo", "one loss a pair"),
    ("dpo_from_model_ratios", "dpo", "conservative label smoothing"),
    ("preference_of_logits", "dpo", "-log sigmoid"),
    ("preference_of_logits", "ipo", "squared distance"),
    ("dpo_lists", "dpo", "implicit rewards"),
    ("dpo_in_bfloat16", "dpo", "mean over the pairs"),
    ("dpo_norm", "dpo", "averaged by the lengths given"),
    ("robust_dpo", "dpo", "robust label smoothing"),
    ("ipo", "ipo", "squared distance to 1/(2 beta)"),
    ("ipo_by_token", "ipo", "averaged over the answer's tokens"),
    ("hinge", "hinge", "hinge"),
    ("simpo", "simpo", "no reference model, target margin"),
    ("simpo_ratio", "simpo", "target margin of beta times the ratio"),
    ("simpo_by_token", "simpo", "averaged over the answer's tokens"),
    ("simpo_constant", "simpo", "beta=2, target_margin=1.4"),
    ("cpo", "cpo", "plus the weighted NLL given"),
    ("rpo", "dpo", "plus the average NLL of the chosen answer"),
    ("dpop", "dpo", "DPOP penalty"),
    ("odpo", "dpo", "offset of each pair"),
    ("orpo_odds", "orpo", "odds ratio, no reference model, one loss a pair"),
    ("OddsTrainer.odds_ratio_loss", "orpo", "which the caller subtracts"),
    ("orpo_whole", "orpo", "odds ratio, no reference model, plus the NLL of the chosen answer"),
    ("kto", "kto", "KL from mismatched answers, at least 0"),
    ("kto_labelled", "kto", "KL estimate given"),
    ("kto_pair", "kto", "KL of the other side's answers"),
]


@pytest.mark.parametrize(("name", "algorithm", "says"), RIGHT)
@pytest.mark.parametrize("declared", [True, False])
def test_a_right_loss_is_recognised_whether_or_not_the_algorithm_is_declared(
    name: str, algorithm: str, says: str, declared: bool
) -> None:
    if not declared and name == "preference_loss" and algorithm == "ipo":
        pytest.skip("the declaration switches the loss on")
    if not declared and name in ("preference_of_logits", "kto_pair", "orpo_whole", "simpo_constant"):
        pytest.skip("what the function leaves to its caller to say")
    result = examine(name, algorithm if declared else "")

    assert named(result) == set()
    assert not [c for c in result.checks if isinstance(c.outcome, Diverges)]
    assert says in words(result)


TYPES = {
    "sigmoid": "-log sigmoid", "hinge": "hinge", "ipo": "squared distance", "exo_pair": "EXO", "nca_pair": "NCA",
    "robust": "robust label smoothing", "bco_pair": "BCO", "sppo_hard": "SPPO", "aot": "sorted log-ratios of each model",
    "aot_unpaired": "sorted log-ratios of each side", "apo_zero": "APO-zero", "apo_down": "APO-down",
    "discopop": "DiscoPOP",
}  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_every_loss_type_of_a_trainer_is_recognised(kind: str) -> None:
    result = examine("many", settings={"preference_type": kind})

    assert named(result, "hard", "soft") == set()
    assert TYPES[kind] in words(result)


DELTA = "(pi_w - ref_w) - (pi_l - ref_l)"
SMOOTH = "F.logsigmoid(-beta * logits) * label_smoothing"
MUTANTS: list[tuple[str, str, str, Swaps]] = [
    ("PREF-SWAPPED", "dpo_mean", "dpo", ((DELTA, "(pi_l - ref_l) - (pi_w - ref_w)"),)),
    ("PREF-SWAPPED", "dpo_concatenated", "dpo", (("chosen, rejected = logps", "rejected, chosen = logps"), ("ref_chosen, ref_rejected =", "ref_rejected, ref_chosen ="))),
    ("PREF-ADDED", "dpo_mean", "dpo", ((DELTA, "(pi_w - ref_w) + (pi_l - ref_l)"),)),
    ("PREF-ADDED", "dpo_from_ratios", "dpo", (("chosen_logratios - rejected", "chosen_logratios + rejected"),)),
    ("PREF-LOSS-SIGN", "dpo_of_batch", "dpo", (("-F.logsigmoid", "F.logsigmoid"),)),
    ("PREF-LOSS-SIGN", "hinge", "hinge", (("return F.relu", "return -F.relu"),)),
    ("PREF-REF-MISSING", "dpo_mean", "dpo", ((DELTA, "pi_w - pi_l"),)),
    ("PREF-REF-MISSING", "dpo_of_batch", "dpo", (('batch["reference_chosen_logps"] - batch["reference_rejected_logps"]', '0.0 * (batch["reference_chosen_logps"] - batch["reference_rejected_logps"])'),)),
    ("PREF-REF-SIGN", "dpo_mean", "dpo", ((DELTA, "(pi_w + ref_w) - (pi_l + ref_l)"),)),
    ("PREF-REF-SIGN", "dpo_from_model_ratios", "dpo", (("pi_logratios - ref_logratios", "pi_logratios + ref_logratios"),)),
    ("PREF-REF-HALF", "dpo_mean", "dpo", ((DELTA, "(pi_w - ref_w) - pi_l"),)),
    ("PREF-REF-HALF", "dpo_as_bce", "dpo", ((" - ref_chosen_logps + ", " + "),)),
    ("PREF-BETA", "dpo_mean", "dpo", (("-beta * delta", "-delta"),)),
    ("PREF-BETA", "dpo_mean", "dpo", (("-beta * delta", "-delta / beta"),)),
    ("PREF-BETA", "dpo_named_tuple", "dpo", (("F.logsigmoid(c - r)", "F.logsigmoid(beta * (c - r))"),)),
    ("PREF-NO-LOG", "dpo_concatenated", "dpo", (("F.logsigmoid", "torch.sigmoid"),)),
    ("PREF-NO-LOG", "dpo_from_ratios", "dpo", (("-F.logsigmoid", "1 - torch.sigmoid"),)),
    ("PREF-OVERFLOW", "dpo_concatenated", "dpo", (("-F.logsigmoid(beta * ((chosen - ref_chosen) - (rejected - ref_rejected)))", "-torch.log(torch.sigmoid(beta * ((chosen - ref_chosen) - (rejected - ref_rejected))))"),)),
    ("PREF-OVERFLOW", "dpo_mean", "dpo", (("F.softplus(-beta * delta)", "torch.log(1 + torch.exp(-beta * delta))"),)),
    ("PREF-SMOOTHING", "preference_loss", "dpo", ((f" - {SMOOTH}", ""),)),
    ("PREF-SMOOTHING", "robust_dpo", "dpo", ((" / (1 - 2 * e)", ""),)),
    ("PREF-SMOOTHING", "dpo_from_model_ratios", "dpo", ((" * (1 - label_smoothing)", ""),)),
    ("PREF-SMOOTHING-INERT", "dpo_from_model_ratios", "dpo", (("(-F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing)", "-F.logsigmoid(beta * logits)"),)),
    ("PREF-SMOOTHING-INERT", "DPOLoss.forward", "dpo", (("-(1 - self.label_smoothing) * kept - self.label_smoothing * flipped", "-kept + 0 * self.label_smoothing * flipped"),)),
    ("PREF-SUMMED", "simpo_by_token", "simpo", ((" / chosen_mask.sum(-1)", ""), (" / rejected_mask.sum(-1)", ""))),
    ("PREF-SUMMED", "ipo_by_token", "ipo", ((" / chosen_mask.sum(-1)", ""), (" / rejected_mask.sum(-1)", ""))),
    ("PREF-AVERAGED", "dpo_concatenated_tokens", "dpo", (("loss_mask: [2B, T].", "loss_mask: [2B, T]; summed over the answer."), (".sum(dim=-1)", ".sum(dim=-1) / loss_mask.sum(-1)"))),
    ("PREF-AVERAGED", "dpo_by_token", "dpo", ((" * chosen_mask).sum(-1)", " * chosen_mask).sum(-1) / chosen_mask.sum(-1)"), (" * rejected_mask).sum(-1)", " * rejected_mask).sum(-1) / rejected_mask.sum(-1)"))),
    ("PREF-LENGTH", "simpo_by_token", "simpo", ((" / chosen_mask.sum(-1)", " / chosen_mask.shape[-1]"), (" / rejected_mask.sum(-1)", " / rejected_mask.shape[-1]"))),
    ("PREF-LENGTH", "dpo_norm", "dpo", (("- ref_chosen_logps) / chosen_lengths", "- ref_chosen_logps) / rejected_lengths"), ("- ref_rejected_logps) / rejected_lengths", "- ref_rejected_logps) / chosen_lengths"))),
    ("PREF-LENGTH", "dpo_norm", "dpo", (("- ref_rejected_logps) / rejected_lengths", "- ref_rejected_logps)"),)),
    ("PREF-MASK", "dpo_by_token", "dpo", ((" * chosen_mask)", ")"), (" * rejected_mask)", ")"))),
    ("PREF-MASK", "dpo_concatenated_tokens", "dpo", (("((per_token_logps - ref_per_token_logps) * loss_mask)", "(per_token_logps - ref_per_token_logps)"),)),
    ("PREF-MASK-INVERTED", "dpo_by_token", "dpo", (("* chosen_mask", "* (1 - chosen_mask)"), ("* rejected_mask", "* (1 - rejected_mask)"))),
    ("PREF-MASK-INVERTED", "dpo_concatenated_tokens", "dpo", (("* loss_mask", "* (loss_mask == 0)"),)),
    ("PREF-IPO-TARGET", "ipo", "ipo", (("0.5 / tau", "1 / tau"),)),
    ("PREF-IPO-TARGET", "ipo", "ipo", (("0.5 / tau", "0.5 * tau"),)),
    ("PREF-IPO-TARGET", "ipo_by_token", "ipo", ((".square()", ".abs()"),)),
    ("PREF-IPO-TARGET", "preference_of_logits", "ipo", (("logits - 1 / (2 * beta)", "beta * logits - 1 / (2 * beta)"),)),
    ("PREF-HINGE", "hinge", "hinge", (("F.relu(1 - beta * ((chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)))", "1 - beta * ((chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps))"),)),
    ("PREF-HINGE", "hinge", "hinge", (("F.relu(1 - beta * (", "F.relu(-1 + beta * ("),)),
    ("PREF-ODDS", "orpo_odds", "orpo", (("_log1mexp(chosen_logps) - _log1mexp(rejected_logps)", "torch.log1p(chosen_logps.exp()) - torch.log1p(rejected_logps.exp())"),)),
    ("PREF-ODDS", "orpo_odds", "orpo", (("-beta * F.logsigmoid(log_odds)", "-F.logsigmoid(beta * log_odds)"),)),
    ("PREF-ODDS", "orpo_whole", "orpo", (("torch.logit(chosen_logps.exp()) - torch.logit(rejected_logps.exp())", "chosen_logps - rejected_logps"),)),
    ("PREF-ODDS-OVERFLOW", "orpo_odds", "orpo", (("(_log1mexp(chosen_logps) - _log1mexp(rejected_logps))", "torch.log(1 - chosen_logps.exp()) + torch.log(1 - rejected_logps.exp())"),)),
    ("PREF-ODDS-OVERFLOW", "orpo_odds", "orpo", (("(_log1mexp(chosen_logps) - _log1mexp(rejected_logps))", "torch.log1p(-chosen_logps.exp()) + torch.log1p(-rejected_logps.exp())"),)),
    ("PREF-MARGIN", "simpo", "simpo", (("- gamma / beta", "+ gamma / beta"),)),
    ("PREF-MARGIN", "simpo", "simpo", (("- gamma / beta", "- gamma"),)),
    ("PREF-MARGIN", "simpo_ratio", "simpo", ((" - gamma_beta_ratio", " - gamma_beta_ratio / beta"),)),
    ("PREF-MARGIN", "odpo", "dpo", ((" - offset", " + offset"),)),
    ("PREF-NLL", "cpo", "cpo", (("+ cpo_alpha * policy_nll_loss", "- policy_nll_loss"),)),
    ("PREF-NLL", "rpo", "dpo", (("- rpo_alpha * chosen_logps / chosen_lengths", "+ rpo_alpha * chosen_logps"),)),
    ("PREF-NLL", "orpo_whole", "orpo", (("(-chosen_logps", "(-rejected_logps"),)),
    ("PREF-DPOP", "dpop", "dpo", (("ref_chosen_logps - chosen_logps, min", "chosen_logps - ref_chosen_logps, min"),)),
    ("PREF-DPOP", "dpop", "dpo", (("gap - dpop_lambda", "gap + dpop_lambda"),)),
    ("PREF-DETACHED", "dpo_mean", "dpo", (("(pi_l - ref_l)", "(pi_l.detach() - ref_l)"),)),
    ("PREF-DETACHED", "dpo_of_batch", "dpo", (("    loss = ", "    policy = policy.detach()\n    loss = "),)),
    ("PREF-REDUCTION", "dpo_mean", "dpo", ((".mean()", ".sum()"),)),
    ("PREF-REDUCTION", "dpo_concatenated", "dpo", ((".mean()", ".sum() / logps.shape[0]"),)),
    ("PREF-ALGORITHM", "ipo", "dpo", ()),
    ("PREF-ALGORITHM", "dpo_mean", "ipo", ()),
    ("PREF-ALGORITHM", "hinge", "dpo", ()),
    ("PREF-REWARDS", "preference_loss", "dpo", (("chosen_rewards = beta * ", "chosen_rewards = "),)),
    ("PREF-REWARDS", "DPOLoss.forward", "dpo", (("self.beta * (policy_rejected_logps - ref_rejected_logps)", "self.beta * (policy_chosen_logps - ref_chosen_logps)"),)),
    ("PREF-REWARDS", "dpo_lists", "dpo", (("(dpo_beta * r)", "(-dpo_beta * r)"),)),
    ("PREF-KTO-WEIGHTS", "kto", "kto", (("desirable_weight * chosen_losses, undesirable_weight *", "undesirable_weight * chosen_losses, desirable_weight *"),)),
    ("PREF-KTO-WEIGHTS", "kto_labelled", "kto", (("torch.where(labels, desirable_weight, undesirable_weight)", "torch.where(labels, undesirable_weight, desirable_weight)"),)),
    ("PREF-KTO-SIDE", "kto", "kto", (("kl - (policy_rejected_logps - reference_rejected_logps)", "policy_rejected_logps - reference_rejected_logps - kl"),)),
    ("PREF-KTO-SIDE", "kto_labelled", "kto", (("torch.where(labels, torch.sigmoid", "torch.where(~labels, torch.sigmoid"),)),
    ("PREF-KTO-KL", "kto", "kto", ((".clamp(min=0)", ""),)),
    ("PREF-KTO-KL", "kto", "kto", (("policy_KL_logps - reference_KL_logps", "reference_KL_logps - policy_KL_logps"),)),
    ("PREF-KTO-KL", "kto_labelled", "kto", (("(ratio - kl)", "(ratio)"), ("(kl - ratio)", "(-ratio)"))),
    ("PREF-KTO-KL-GRADIENT", "kto", "kto", ((".detach()", ""),)),
    ("PREF-KTO-KL-GRADIENT", "kto_pair", "kto", ((".detach()", ""),)),
    ("PREF-SHIFT", "dpo_from_logits", "dpo", ()),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "algorithm", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(
    pitfall: str, name: str, algorithm: str, swaps: Swaps, tmp_path: Path
) -> None:
    if pitfall == "PREF-SHIFT":
        root = mutated(tmp_path, "_batch_logps", (("labels[:, 1:]", "labels[:, :-1]"), ("logits[:, :-1, :]", "logits[:, 1:, :]")))
    else:
        root = mutated(tmp_path, name, swaps)
    hard_or_soft = ("hard", "soft") if pitfall == "PREF-AVERAGED" else ("hard",)

    assert named(examine(name, algorithm, root), *hard_or_soft) == {pitfall}
