"""Losses of reward models that are right, wrong and strange, loaded and bound as a user's are."""

# ruff: noqa: E501  rows of a table, one a mutant

from __future__ import annotations

import ast
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from rltriage_probes import checking, tolerance
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.model import Axis
from rltriage_probes.reward import process_loss, reward_model_loss, reward_pairs
from rltriage_probes.solver import Result, Seen

DATA = Path(__file__).parent / "data"
MODULE = "reward_models_right"
Swaps = tuple[tuple[str, str], ...]


def examine(name: str, root: Path = DATA, intent: dict[str, Any] | None = None) -> TargetResult:
    target = TargetSpec(name="reward_model_loss", role="reward_model_loss", ref=f"{MODULE}.py:{name}")
    declared = {"algorithm": "rm", **(intent or {})}
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=declared, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the right functions in which texts inside one definition are exchanged."""
    text = (DATA / f"{MODULE}.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name.split(".", maxsplit=1)[0])
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / f"{MODULE}.py").write_text(before + code + after, encoding="utf-8")
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


RIGHT = {
    "pairwise": "Bradley-Terry, -log sigmoid, mean over the pairs",
    "pairwise_softplus": "Bradley-Terry, -log sigmoid, mean over the pairs",
    "pairwise_bce": "Bradley-Terry, -log sigmoid, mean over the pairs",
    "of_letters": "Bradley-Terry, -log sigmoid, mean over the pairs",
    "PairLoss.forward": "margin of each pair",
    "LogExp.forward": "Bradley-Terry, -log sigmoid",
    "concatenated": "centred by the square of the summed scores, chosen answers before rejected ones",
    "centred": "centred by the square of the summed scores",
    "at_last_token": "score at the last real token",
    "at_length": "score at the last real token",
    "at_last_id": "score at the last real token",
    "one_a_pair": "one loss a pair",
    "ranked": "all pairs of a ranking",
    "ranked_matrix": "all pairs of a ranking",
    "column": "mean over the pairs",
    "step_loss": "cross-entropy at the end of each step, logits judge their own position",
    "step_loss_of_tokens": "the two judgement tokens compete",
    "StepLoss.forward": "cross-entropy at the end of each step",
    "step_bce": "binary cross-entropy of the logit",
    "step_loop": "logits judge the next position",
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loss_is_recognised(name: str) -> None:
    result = examine(name)
    words = "; ".join(c.outcome.convention.summary for c in result.checks if isinstance(c.outcome, Agrees))

    assert named(result) == set()
    assert not [c for c in result.checks if isinstance(c.outcome, Diverges)]
    assert RIGHT[name] in words


MUTANTS: list[tuple[str, str, Swaps]] = [
    ("RM-SWAPPED", "pairwise", (("chosen_rewards - rejected_rewards)", "rejected_rewards - chosen_rewards)"),)),
    ("RM-SWAPPED", "ranked", (("scores[:, i] - scores[:, j]", "scores[:, j] - scores[:, i]"),)),
    ("RM-LOSS-SIGN", "pairwise", (("-F.logsigmoid", "F.logsigmoid"),)),
    ("RM-LOSS-SIGN", "step_bce", (("return F", "return -F"),)),
    ("RM-NO-LOG", "pairwise", (("F.logsigmoid", "torch.sigmoid"),)),
    ("RM-NO-LOG", "concatenated", (("-F.logsigmoid(z).mean()", "-torch.log2(torch.sigmoid(z)).mean()"),)),
    ("RM-NO-LOG", "step_loop", (("torch.log_softmax", "torch.softmax"),)),
    ("RM-MARGIN", "PairLoss.forward", (("gap - margin", "gap + margin"),)),
    ("RM-MARGIN", "concatenated", (("chosen - rejected - margin", "(chosen - rejected) * margin"),)),
    ("RM-MARGIN", "PairLoss.forward", (("gap = gap - margin", "gap = gap - 0.0 * margin"),)),
    ("RM-CENTRE", "centred", (("+ center_coef", "- center_coef"),)),
    ("RM-CENTRE", "concatenated", (("(chosen + rejected) ** 2", "(chosen - rejected) ** 2"),)),
    ("RM-LAST-TOKEN", "at_length", (("chosen_lengths - 1", "chosen_lengths - 2"), ("rejected_lengths - 1", "rejected_lengths - 2"))),
    ("RM-LAST-TOKEN", "at_last_token", (("values.gather(1, last.unsqueeze(1)).squeeze(1)", "values[:, -1]"),)),
    ("RM-LAST-TOKEN", "at_last_token", (("values.gather(1, last.unsqueeze(1)).squeeze(1)", "values[:, 0]"),)),
    ("RM-PADDING", "at_last_token", (("values.gather(1, last.unsqueeze(1)).squeeze(1)", "values.mean(-1)"),)),
    ("RM-PADDING", "at_last_token", (("values.gather(1, last.unsqueeze(1)).squeeze(1)", "(values * mask).mean(-1)"),)),
    ("RM-PAIRS", "ranked", (("itertools.combinations(", "itertools.permutations("),)),
    ("RM-PAIRS", "ranked_matrix", (("diagonal=1", "diagonal=0"),)),
    ("RM-REDUCTION", "pairwise", ((".mean()", ".sum()"),)),
    ("RM-REDUCTION", "concatenated", (("loss = -F.logsigmoid(z).mean()", "loss = -F.logsigmoid(z).sum() / len(rewards)"), ("loss + center_rewards_coefficient * ((chosen + rejected) ** 2).mean()", "loss + center_rewards_coefficient * ((chosen + rejected) ** 2).mean()"))),
    ("RM-REDUCTION", "step_bce", (("step_labels[keep].float())", "step_labels[keep].float(), reduction='sum') / step_labels.numel()"),)),
    ("RM-DETACHED", "pairwise", (("- rejected_rewards)", "- rejected_rewards.detach())"),)),
    ("RM-DETACHED", "ranked", (("scores[:, i] -", "scores[:, i].detach() -"),)),
    ("RM-DETACHED", "step_bce", (("step_scores[keep]", "step_scores[keep].detach()"),)),
    ("PRM-DOUBLE-SOFTMAX", "step_loss", (("logits.reshape(", "logits.softmax(-1).reshape("),)),
    ("PRM-DOUBLE-SOFTMAX", "step_bce", (("(step_scores[keep],", "(step_scores[keep].sigmoid(),"),)),
    ("PRM-DOUBLE-SOFTMAX", "step_loss_of_tokens", (("cross_entropy(two,", "cross_entropy(two.softmax(-1),"),)),
    ("PRM-SHIFT", "step_loss_of_tokens", (("    at = ", "    logits, labels = logits[:, :-1], labels[:, 1:]\n    at = "),)),
    ("PRM-SHIFT", "step_bce", (("    keep = ", "    step_scores, step_labels = step_scores[:, 1:], step_labels[:, :-1]\n    keep = "),)),
    ("PRM-IGNORE", "step_bce", (("step_labels != -100", "step_labels < 9"), ("step_labels[keep].float()", "step_labels[keep].clamp(min=0).float()"))),
    ("PRM-IGNORE", "step_loss", (("labels.reshape(-1), ignore_index=-100", "labels.clamp(min=0).reshape(-1)"),)),
    ("PRM-LABELS", "step_bce", (("step_labels[keep].float()", "1 - step_labels[keep].float()"),)),
    ("PRM-LABELS", "step_loss_of_tokens", (("ids).long().argmax(-1)", "ids).long().argmin(-1)"),)),
    ("PRM-CANDIDATES", "step_loss_of_tokens", (("logits[at][:, ids]", "logits[at].log_softmax(-1)"), ("F.cross_entropy(two, target)", "F.nll_loss(two, labels[at])"))),
    ("PRM-CANDIDATES", "step_loss_of_tokens", (("F.cross_entropy(two, target)", "F.cross_entropy(logits[at], labels[at])"),)),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps))) == {pitfall}
