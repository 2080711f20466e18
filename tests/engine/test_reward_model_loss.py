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
from rltriage_probes.contract import (
    Agrees,
    BindingReport,
    CheckRequest,
    Diverges,
    KnownBug,
    TargetResult,
    TargetSpec,
    Violates,
)
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


def test_padding_in_front_is_asked_about_where_the_function_promises_it(tmp_path: Path) -> None:
    promise = ('"""values [B, T] at every token', '"""Left-padded or right-padded. values [B, T] at every token')
    counted = ("mask.long().cumsum(-1).argmax(-1)", "mask.long().sum(-1) - 1")

    assert named(examine("at_last_token", mutated(tmp_path, "at_last_token", (promise,)))) == set()
    assert named(examine("at_last_token", mutated(tmp_path, "at_last_token", (counted,)))) == set()
    assert named(examine("at_last_token", mutated(tmp_path, "at_last_token", (promise, counted)))) == {"RM-LAST-TOKEN"}


def test_an_end_of_turn_inside_the_text_is_no_end_where_one_id_serves_for_both(tmp_path: Path) -> None:
    one_id = {"pad_token_id": 0, "eos_token_id": 0}
    first = (
        "row[(i != pad_token_id).nonzero().max()]",
        "row[int((i == pad_token_id).nonzero()[0]) - 1 if (i == pad_token_id).any() else -1]",
    )

    assert named(examine("at_last_id", intent=one_id)) == set()
    assert named(examine("at_last_id", mutated(tmp_path, "at_last_id", (first,)))) == set()
    assert named(examine("at_last_id", mutated(tmp_path, "at_last_id", (first,)), one_id)) == {"RM-LAST-TOKEN"}


def test_scores_far_apart_are_asked_about_and_a_bug_where_any_size_is_promised(tmp_path: Path) -> None:
    unstable = (
        "-F.logsigmoid(chosen_rewards - rejected_rewards)",
        "-torch.log(torch.sigmoid(chosen_rewards - rejected_rewards))",
    )
    promise = ("Mean over the pairs.", "Mean over the pairs; scores of any size.")

    assert named(examine("pairwise", mutated(tmp_path, "pairwise", (unstable,))), "soft") == {"RM-OVERFLOW"}
    assert named(examine("pairwise", mutated(tmp_path, "pairwise", (unstable, promise)))) == {"RM-OVERFLOW"}


def test_two_bugs_in_one_loss_are_both_named(tmp_path: Path) -> None:
    both = (("gap - margin", "gap + margin"), ("-F.logsigmoid", "F.logsigmoid"))

    assert named(examine("PairLoss.forward", mutated(tmp_path, "PairLoss.forward", both))) == {
        "RM-MARGIN",
        "RM-LOSS-SIGN",
    }


STRANGERS = [
    ("pairwise", (("chosen_rewards - rejected_rewards", "chosen_rewards * rejected_rewards"),)),
    ("pairwise", (("chosen_rewards - rejected_rewards", "chosen_rewards - rejected_rewards.roll(1)"),)),
    ("step_bce", (("step_labels[keep].float()", "0.9 * step_labels[keep].float()"),)),
]


@pytest.mark.parametrize(("name", "swaps"), STRANGERS)
def test_a_loss_that_nobody_knows_diverges(name: str, swaps: Swaps, tmp_path: Path) -> None:
    result = examine(name, mutated(tmp_path, name, swaps))

    assert any(isinstance(c.outcome, Diverges) for c in result.checks)
    assert named(result) == set()


# The reference against independent computations


def seen_of(shape: tuple[int, ...] = ()) -> Seen:
    inputs = {**reward_pairs.comparisons(reward_pairs.NAMES[0]), **process_loss.solutions(reward_pairs.NAMES[0])}
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    return Seen(case="x", inputs=wide, value=torch.zeros(shape, dtype=torch.float64), grads={}, dtype="float64")


class _Plain:
    """A subject that says nothing beyond its inputs."""

    doc, source, intent = "", "", {}
    report = BindingReport()

    @property
    def bound(self) -> _Plain:
        return self


def defaults(axes: tuple[Axis, ...]) -> dict[str, str]:
    return {a.name: a.options[0].name for a in axes}


def result(have: set[str], **changed: str) -> Result:
    s = seen_of()
    given = frozenset(have)
    if given & {"step_logits", "step_scores"}:
        options = defaults(process_loss.axes(_Plain(), given, [s]))  # type: ignore[arg-type]
        return process_loss.Reference(given)(s, {**options, **changed}, {})
    options = defaults(reward_pairs.axes(_Plain(), given, [s]))  # type: ignore[arg-type]
    return reward_pairs.Reference(given)(s, {**options, **changed}, {})


def test_the_reference_of_pairs_is_bradley_terry_by_hand() -> None:
    s = seen_of()
    c, r = s.inputs["chosen_rewards"].tolist(), s.inputs["rejected_rewards"].tolist()  # type: ignore[attr-defined]
    by_hand = sum(math.log(1 + math.exp(b - a)) for a, b in zip(c, r, strict=True)) / len(c)

    assert float(result({"chosen_rewards", "rejected_rewards"}).value) == pytest.approx(by_hand, abs=1e-12)


def test_the_reference_of_a_ranking_is_the_mean_over_its_pairs_by_hand() -> None:
    x = seen_of().inputs["ranked_rewards"]
    assert isinstance(x, torch.Tensor)
    pairs = [(row[i], row[j]) for row in x.tolist() for i, j in itertools.combinations(range(len(row)), 2)]
    by_hand = sum(math.log(1 + math.exp(b - a)) for a, b in pairs) / len(pairs)

    assert float(result({"ranked_rewards"}).value) == pytest.approx(by_hand, abs=1e-12)


def test_the_reference_of_steps_is_torchs_cross_entropy() -> None:
    s = seen_of()
    z, y = s.inputs["step_logits"], s.inputs["step_labels"]
    assert isinstance(z, torch.Tensor)
    assert isinstance(y, torch.Tensor)
    other = functional.cross_entropy(z.reshape(-1, z.shape[-1]), y.reshape(-1), ignore_index=-100)

    assert torch.allclose(result({"step_logits", "step_labels"}).value, other)


def test_the_last_token_is_where_the_length_says() -> None:
    have = {"chosen_token_rewards", "rejected_token_rewards", "chosen_mask", "rejected_mask"}
    by_length = {"chosen_token_rewards", "rejected_token_rewards", "chosen_lengths", "rejected_lengths"}
    by_ids = {"chosen_token_rewards", "rejected_token_rewards", "chosen_ids", "rejected_ids"}

    assert result(have).value == result(by_length).value == result(by_ids).value


GIVEN = [
    {"chosen_rewards", "rejected_rewards", "margin", "center_coef"},
    {"chosen_token_rewards", "rejected_token_rewards", "chosen_mask", "rejected_mask"},
    {"pair_token_rewards", "pair_ids"},
    {"ranked_rewards"},
    {"step_logits", "step_labels", "reward_token_ids"},
    {"step_logits", "step_labels"},
    {"step_scores", "step_labels"},
]


@pytest.mark.parametrize("have", GIVEN, ids=lambda h: " ".join(sorted(h)))
def test_every_pair_of_options_is_told_apart_by_value_or_gradient(have: set[str]) -> None:
    s = seen_of()
    given = frozenset(have)
    process = bool(given & {"step_logits", "step_scores"})
    module = process_loss if process else reward_pairs
    axes = module.axes(_Plain(), given, [s])  # type: ignore[arg-type]
    for word in module.DIFFERENTIATED:
        if word in given:
            s.cache["leaf:" + word] = s.inputs[word].clone().requires_grad_(True)  # type: ignore[attr-defined]
    reference, base = module.Reference(given), defaults(axes)

    for axis in axes:
        for a, b in itertools.combinations(axis.options, 2):
            one, other = (reference(s, {**base, axis.name: o.name}, {}) for o in (a, b))
            apart = not tolerance.equal(one.value.detach(), other.value.detach(), "float32") or any(
                not tolerance.equal(g, other.grads()[w], "float32") for w, g in one.grads().items()
            )
            assert apart or (a.pitfall is not None and a.pitfall == b.pitfall), f"{axis.name}: {a.name} = {b.name}"


def test_no_combination_of_options_breaks_the_reference() -> None:
    for have in GIVEN:
        s = seen_of()
        given = frozenset(have)
        module = process_loss if given & {"step_logits", "step_scores"} else reward_pairs
        axes = module.axes(_Plain(), given, [s])  # type: ignore[arg-type]
        reference, base = module.Reference(given), defaults(axes)
        for one, other in itertools.combinations(axes, 2):
            for a, b in itertools.product(one.options, other.options):
                reference(s, {**base, one.name: a.name, other.name: b.name}, {})


def test_the_example_has_every_input_that_the_role_takes() -> None:
    assert set(reward_model_loss.ROLE.takes) <= set(reward_model_loss.example({}).inputs)
