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
from rltriage_probes.loss import preference_axes, preference_loss, preference_pairs
from rltriage_probes.loss import preference_cases as cases
from rltriage_probes.loss import preference_kto as kto
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
    ("dpo_halves_smoothed", "dpo", "conservative label smoothing, chosen answers before rejected ones"),
    ("dpo_of_kwargs", "dpo", "mean over the pairs"),
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
    ("KTOLoss.forward", "kto", "one loss an answer"),
    ("kto_in_batch", "kto", "KL from the batch itself"),
    ("kto_labelled", "kto", "KL estimate given"),
    ("kto_pair", "kto", "KL of the other side's answers"),
]


LEFT_TO_THE_CALLER = {
    ("preference_loss", "ipo"), ("preference_of_logits", "dpo"), ("preference_of_logits", "ipo"), ("kto_pair", "kto"),
    ("orpo_whole", "orpo"), ("simpo_constant", "simpo"),
}  # fmt: skip
"""Functions that do not say themselves which algorithm they belong to, or take it as a switch."""


@pytest.mark.parametrize(("name", "algorithm", "says"), RIGHT)
@pytest.mark.parametrize("declared", [True, False])
def test_a_right_loss_is_recognised_whether_or_not_the_algorithm_is_declared(
    name: str, algorithm: str, says: str, declared: bool
) -> None:
    result = examine(name, algorithm if declared or (name, algorithm) in LEFT_TO_THE_CALLER else "")

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
    ("PREF-SMOOTHING-INERT", "dpo_from_model_ratios", "dpo", (("-F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing", "-F.logsigmoid(beta * logits)"),)),
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
    ("PREF-KTO-KL", "kto_in_batch", "kto", ((".clamp_min(0.0)", ""),)),
    ("PREF-KTO-KL-GRADIENT", "kto_pair", "kto", ((".detach()", ""),)),
    ("PREF-SHIFT", "dpo_from_logits", "dpo", ()),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "algorithm", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(
    pitfall: str, name: str, algorithm: str, swaps: Swaps, tmp_path: Path
) -> None:
    if pitfall == "PREF-SHIFT":
        root = mutated(
            tmp_path, "_batch_logps", (("labels[:, 1:]", "labels[:, :-1]"), ("logits[:, :-1, :]", "logits[:, 1:, :]"))
        )
    else:
        root = mutated(tmp_path, name, swaps)
    hard_or_soft = ("hard", "soft") if pitfall == "PREF-AVERAGED" else ("hard",)

    assert named(examine(name, algorithm, root), *hard_or_soft) == {pitfall}


TWO = [
    (
        "dpo_mean",
        ((DELTA, "(pi_l - ref_l) - (pi_w - ref_w)"), ("-beta * delta", "-delta")),
        {"PREF-SWAPPED", "PREF-BETA"},
    ),
    (
        "dpo_concatenated",
        (("- ref_chosen", "+ ref_chosen"), ("- ref_rejected", "+ ref_rejected"), ("-F.logsigmoid", "F.logsigmoid")),
        {"PREF-REF-SIGN", "PREF-LOSS-SIGN"},
    ),
    (
        "dpo_by_token",
        ((" * chosen_mask)", ")"), (" * rejected_mask)", ")"), ("chosen - rejected))", "rejected - chosen))")),
        {"PREF-MASK", "PREF-SWAPPED"},
    ),
]


@pytest.mark.parametrize(("name", "swaps", "expected"), TWO)
def test_two_bugs_in_one_loss_are_both_named(name: str, swaps: Swaps, expected: set[str], tmp_path: Path) -> None:
    assert named(examine(name, "dpo", mutated(tmp_path, name, swaps))) == expected


STRANGERS = [
    ("dpo_mean", "dpo", ((DELTA, "(pi_w - ref_w) * (pi_l - ref_l)"),)),
    ("dpo_mean", "dpo", ((DELTA, "(pi_w - ref_w.roll(1)) - (pi_l - ref_l)"),)),
    ("dpo_mean", "dpo", (("F.softplus(-beta * delta)", "torch.tanh(-beta * delta)"),)),
    ("robust_dpo", "dpo", (("(1 - 2 * e)", "(1 - 3 * e)"),)),
    ("kto", "kto", (("reference_chosen_logps - kl", "reference_chosen_logps * kl"),)),
    ("orpo_odds", "orpo", (("_log1mexp(chosen_logps) -", "chosen_logps.abs().log() -"),)),
]


@pytest.mark.parametrize(("name", "algorithm", "swaps"), STRANGERS)
def test_a_loss_that_nobody_knows_diverges(name: str, algorithm: str, swaps: Swaps, tmp_path: Path) -> None:
    result = examine(name, algorithm, mutated(tmp_path, name, swaps))

    assert any(isinstance(c.outcome, Diverges) for c in result.checks)
    assert named(result) == set()


def test_half_precision_inside_is_asked_about_and_a_bug_where_full_precision_is_promised(tmp_path: Path) -> None:
    half = (DELTA, "((pi_w - ref_w) - (pi_l - ref_l)).bfloat16().float()")
    promise = ("DPO, mean over pairs.", "DPO, mean over pairs, computed in float32.")

    assert named(examine("dpo_mean", "dpo", mutated(tmp_path, "dpo_mean", (half,))), "soft") == {"PREF-PRECISION"}
    assert named(examine("dpo_mean", "dpo", mutated(tmp_path, "dpo_mean", (half, promise)))) == {"PREF-PRECISION"}


def test_an_odds_ratio_that_breaks_for_confident_models_is_asked_about_without_a_promise(tmp_path: Path) -> None:
    silent = (", numerically stable for confident answers", "")
    unstable = (
        "(_log1mexp(chosen_logps) - _log1mexp(rejected_logps))",
        "torch.log(1 - chosen_logps.exp()) + torch.log(1 - rejected_logps.exp())",
    )
    result = examine("orpo_odds", "orpo", mutated(tmp_path, "orpo_odds", (silent, unstable)))

    assert named(result) == set()
    assert named(result, "soft") == {"PREF-ODDS-OVERFLOW"}


def test_a_declared_algorithm_turns_the_switch_of_its_name_on() -> None:
    assert "squared distance" in words(examine("preference_loss", "ipo"))
    assert "-log sigmoid" in words(examine("preference_loss", "dpo"))


# The reference against independent computations


class _Plain:
    """A subject that says nothing beyond its inputs."""

    doc, source = "", ""

    def __init__(self, algorithm: str = "") -> None:
        self.intent = {"algorithm": algorithm}
        self.bound = self
        self.settings: dict[str, Any] = {}
        self.literals = ()


def seen_of(have: set[str], name: str = cases.NAMES[0], shape: tuple[int, ...] = (), uneven: bool = False) -> Seen:
    s = cases.seen(cases.uneven(cases.pairs(name)) if uneven else cases.pairs(name))
    s.value = torch.zeros(shape, dtype=torch.float64)
    for word in cases.DIFFERENTIATED:
        if word in have:
            x = s.inputs[word]
            assert isinstance(x, Tensor)
            s.cache["leaf:" + word] = x.clone().requires_grad_(True)
    return s


def axes_of(have: set[str], algorithm: str = "", shape: tuple[int, ...] = ()) -> tuple[Axis, ...]:
    given, seen = Given(frozenset(have)), [seen_of(have, shape=shape)]
    return preference_axes.axes(_Plain(algorithm), given, seen)  # type: ignore[arg-type]


def defaults(axes: tuple[Axis, ...]) -> dict[str, str]:
    return {a.name: a.options[0].name for a in axes}


FOUR = {"chosen_logprobs", "rejected_logprobs", "ref_chosen_logprobs", "ref_rejected_logprobs", "beta"}


def reference(have: set[str], algorithm: str = "", shape: tuple[int, ...] = (), **changed: str) -> Result:
    options = {**defaults(axes_of(have, algorithm, shape)), **changed}
    return preference_pairs.Reference(Given(frozenset(have)))(seen_of(have, shape=shape), options, {"tau": 0.05})


def numbers(word: str) -> list[float]:
    x = seen_of(set()).inputs[word]
    assert isinstance(x, Tensor)
    return x.tolist()


BETA = 0.3


def by_hand() -> list[float]:
    c, r, rc, rr = (
        numbers(w) for w in ("chosen_logprobs", "rejected_logprobs", "ref_chosen_logprobs", "ref_rejected_logprobs")
    )
    return [(c[i] - rc[i]) - (r[i] - rr[i]) for i in range(len(c))]


def test_the_reference_of_dpo_is_equation_7_by_hand() -> None:
    losses = [math.log(1 + math.exp(-BETA * gap)) for gap in by_hand()]

    assert float(reference(FOUR).value.detach()) == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_the_reference_of_ipo_is_equation_17_by_hand() -> None:
    losses = [(gap - 1 / (2 * BETA)) ** 2 for gap in by_hand()]

    assert float(reference(FOUR, loss="ipo").value.detach()) == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_the_reference_of_orpo_is_the_log_odds_of_probabilities_by_hand() -> None:
    c, r = numbers("chosen_logprobs"), numbers("rejected_logprobs")
    odds = [math.exp(x) / (1 - math.exp(x)) for x in (*c, *r)]
    ratios = [a / b for a, b in zip(odds[: len(c)], odds[len(c) :], strict=True)]
    losses = [BETA * math.log(1 + 1 / ratio) for ratio in ratios]
    have = {"chosen_logprobs", "rejected_logprobs", "beta"}

    got = reference(have, "orpo", loss="odds ratio", likelihood="none")
    assert float(got.value.detach()) == pytest.approx(sum(losses) / len(losses), abs=1e-12)


def test_the_reference_of_kto_is_equation_7_by_hand() -> None:
    good, bad, kl, ref_kl = (
        numbers(w) for w in ("chosen_logratios", "rejected_logratios", "kl_logprobs", "ref_kl_logprobs")
    )
    z0 = max(0.0, sum(a - b for a, b in zip(kl, ref_kl, strict=True)) / len(kl))
    losses = [1.3 * (1 - 1 / (1 + math.exp(-BETA * (x - z0)))) for x in good]
    losses += [0.8 * (1 - 1 / (1 + math.exp(-BETA * (z0 - x)))) for x in bad]
    have = {
        "chosen_logratios",
        "rejected_logratios",
        "kl_logprobs",
        "ref_kl_logprobs",
        "beta",
        "desirable_weight",
        "undesirable_weight",
    }
    given = Given(frozenset(have))
    options = defaults(kto.axes(_Plain("kto"), given, [seen_of(have)]))  # type: ignore[arg-type]

    assert float(kto.Reference(given)(seen_of(have), options, {}).value.detach()) == pytest.approx(
        sum(losses) / len(losses), abs=1e-12
    )


def test_the_gradients_of_the_reference_are_those_of_finite_differences() -> None:
    made, step = reference(FOUR), 1e-6
    grad = made.grads()["chosen_logprobs"]
    for i in range(len(grad)):
        ends: list[float] = []
        for sign in (1, -1):
            s = seen_of(FOUR)
            s.cache["leaf:chosen_logprobs"] = s.cache["leaf:chosen_logprobs"].detach().clone()
            s.cache["leaf:chosen_logprobs"][i] += sign * step
            options = defaults(axes_of(FOUR))
            ends.append(float(preference_pairs.Reference(Given(frozenset(FOUR)))(s, options, {}).value.detach()))
        assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(float(grad[i]), abs=1e-8)


def test_at_step_0_dpo_is_ln_2_and_ipo_is_one_over_4_beta_squared() -> None:
    for loss, expected in (("sigmoid", math.log(2)), ("ipo", 1 / (4 * BETA**2)), ("hinge", 1.0)):
        s = seen_of(FOUR)
        for side in cases.SIDES:
            s.cache.pop(f"leaf:{side}_logprobs")
            s.inputs = {**s.inputs, f"{side}_logprobs": s.inputs[f"ref_{side}_logprobs"]}
        options = {**defaults(axes_of(FOUR)), "loss": loss}

        assert float(
            preference_pairs.Reference(Given(frozenset(FOUR)))(s, options, {}).value.detach()
        ) == pytest.approx(expected)


def test_tokens_logits_and_halves_give_what_summed_log_probs_give() -> None:
    tokens = {f"{f}{s}_token_logprobs" for f in ("", "ref_") for s in cases.SIDES} | {
        "chosen_mask",
        "rejected_mask",
        "beta",
    }
    halves = {"pair_logprobs", "ref_pair_logprobs", "beta"}
    both = {"pair_token_logprobs", "ref_pair_token_logprobs", "pair_mask", "beta"}

    values = [float(reference(h, tokens="sum").value.detach()) for h in (FOUR, tokens, halves, both)]
    assert values == pytest.approx([values[0]] * 4)


GIVEN = [
    (FOUR | {"label_smoothing"}, "dpo"),
    (FOUR | {"chosen_lengths", "rejected_lengths", "nll_weight"}, "ipo"),
    (FOUR | {"penalty_weight", "margin"}, "dpo"),
    ({f"{f}{s}_token_logprobs" for f in ("", "ref_") for s in cases.SIDES} | {"chosen_mask", "rejected_mask", "beta"}, "dpo"),
    ({"pair_logits", "ref_pair_logits", "pair_labels", "beta"}, "dpo"),
    ({"chosen_logprobs", "rejected_logprobs", "beta", "target_margin", "chosen_nll", "nll_weight"}, "simpo"),
    ({"chosen_logprobs", "rejected_logprobs", "beta", "margin_ratio"}, "simpo"),
    ({"chosen_logprobs", "rejected_logprobs", "beta"}, "orpo"),
    ({"chosen_logratios", "rejected_logratios", "beta", "label_smoothing"}, ""),
    ({"policy_logratios", "ref_logratios", "beta"}, ""),
    ({"preference_logits", "beta"}, "ipo"),
]  # fmt: skip


def same(a: Result, b: Result) -> bool:
    if a.value.shape != b.value.shape or not tolerance.equal(a.value.detach(), b.value.detach(), "float32"):
        return False
    return all(tolerance.equal(g, b.grads()[w], "float32") for w, g in a.grads().items())


@pytest.mark.parametrize(("have", "algorithm"), GIVEN)
@pytest.mark.parametrize("shape", [(), (cases.PAIRS,)])
def test_every_pair_of_options_is_told_apart_by_value_or_gradient(
    have: set[str], algorithm: str, shape: tuple[int, ...]
) -> None:
    axes, given = axes_of(have, algorithm, shape), Given(frozenset(have))
    base = defaults(axes)
    several = [seen_of(have, n, shape) for n in cases.NAMES[:2]]
    made = preference_pairs.Reference(given)
    knobs = {"tau": 0.05, "target_margin": 0.0, "nll_weight": 1.0}
    for axis in axes:
        offered = [
            o
            for o in axis.options
            if axis.when is None or o is axis.options[0] or axis.when({**base, axis.name: o.name})
        ]
        for a, b in itertools.combinations(offered, 2):
            pairs = [tuple(made(s, {**base, axis.name: o.name}, knobs) for o in (a, b)) for s in several]
            assert not all(same(x, y) for x, y in pairs) or _one_pitfall(a, b), f"{axis.name}: {a.name} = {b.name}"


def _one_pitfall(a: Option, b: Option) -> bool:
    return a.pitfall is not None and b.pitfall is not None and a.pitfall.id == b.pitfall.id


def test_no_combination_of_options_breaks_the_reference() -> None:
    for have, algorithm in GIVEN:
        axes, given = axes_of(have, algorithm), Given(frozenset(have))
        base, s = defaults(axes), seen_of(have)
        made = preference_pairs.Reference(given)
        for one, other in itertools.combinations(axes, 2):
            for a, b in itertools.product(one.options, other.options):
                options = {**base, one.name: a.name, other.name: b.name}
                if all(x.when is None or options[x.name] == base[x.name] or x.when(options) for x in axes):
                    made(s, options, {"tau": 0.05})


KTO_GIVEN = [
    {"chosen_logprobs", "rejected_logprobs", "ref_chosen_logprobs", "ref_rejected_logprobs", "kl_logprobs", "ref_kl_logprobs", "beta", "desirable_weight", "undesirable_weight"},
    {"example_logprobs", "ref_example_logprobs", "desirable", "kl_estimate", "beta", "desirable_weight", "undesirable_weight"},
    {"example_logprobs", "ref_example_logprobs", "desirable", "beta"},
]  # fmt: skip


@pytest.mark.parametrize("have", KTO_GIVEN)
@pytest.mark.parametrize("shape", [(), (cases.EXAMPLES,)])
def test_every_pair_of_options_of_kto_is_told_apart(have: set[str], shape: tuple[int, ...]) -> None:
    given = Given(frozenset(have))
    several = [seen_of(have, n, shape, uneven="kl_logprobs" in have) for n in cases.NAMES[:2]]
    axes = kto.axes(_Plain("kto"), given, several)  # type: ignore[arg-type]
    base, made = defaults(axes), kto.Reference(given)
    for axis in axes:
        offered = [o for o in axis.options if axis.when is None or axis.when({**base, axis.name: o.name})]
        for a, b in itertools.combinations(offered, 2):
            pairs = [tuple(made(s, {**base, axis.name: o.name}, {}) for o in (a, b)) for s in several]
            assert not all(same(x, y) for x, y in pairs) or _one_pitfall(a, b), f"{axis.name}: {a.name} = {b.name}"


def test_the_example_has_every_input_that_the_role_takes() -> None:
    missing = set(preference_loss.ROLE.takes) - set(preference_loss.example({}).inputs)

    assert missing == {"preference_type"}


def test_every_pitfall_of_the_role_is_planted() -> None:
    planted = {m[0] for m in MUTANTS} | {"PREF-PRECISION"}

    assert {p.id for p in preference_loss.ROLE.pitfalls} == planted
