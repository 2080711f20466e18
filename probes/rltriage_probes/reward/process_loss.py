"""Losses that train a process reward model: a judgement at the end of every step of a solution.

    L = - mean over steps s of log softmax(z_s)[y_s]        (Lightman et al. 2023, arXiv:2305.20050)

z_s are the logits at the step's last position: of the whole vocabulary, of the two tokens that say good and bad, or one
number a step whose sigmoid is the probability of a good one. Positions labelled -100 are no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rltriage_probes import probing
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, Option, Pitfall, Subject
from rltriage_probes.reward.reward_pairs import DETACHED, NO_LOG, PROMISES_MEAN, REDUCTION, SIGN
from rltriage_probes.solver import Knobs, Options, Result, Seen

DOUBLE = Pitfall(
    id="PRM-DOUBLE-SOFTMAX",
    family="normalisation",
    says="hands probabilities to a loss that normalises logits itself, so the loss can't fall below a floor",
)
SHIFT = Pitfall(
    id="PRM-SHIFT", family="shift", says="judges each step with the logits of another position than it means"
)
IGNORED = Pitfall(
    id="PRM-IGNORE", family="loss-masking", says="counts positions that are no end of a step (label -100)"
)
EXCHANGED = Pitfall(id="PRM-LABELS", family="sign", says="exchanges good and bad steps")
CANDIDATES = Pitfall(
    id="PRM-CANDIDATES",
    family="normalisation",
    says="is given the two judgement tokens and normalises over the whole vocabulary",
)

ALL = (DOUBLE, SHIFT, IGNORED, EXCHANGED, CANDIDATES)
DIFFERENTIATED = ("step_logits", "step_scores")
IGNORE = -100
ROWS, WIDTH, CLASSES = 4, 7, 4
GOOD, BAD, PLACEHOLDER = 1, 0, 7
_STEPS = ((1, 4, 6), (2, 5), (0, 3, 4), (5,))


def solutions(name: str) -> dict[str, object]:
    """Solutions of one to three steps, good and bad ones; token ids 1 and 0 are also the two classes."""
    g = probing.generator("steps, " + name)
    mask = torch.zeros(ROWS, WIDTH)
    for row, steps in enumerate(_STEPS):
        mask[row, list(steps)] = 1.0
    judged = torch.randint(0, 2, (ROWS, WIDTH), generator=g)
    judged[0, 1], judged[1, 2], judged[2, 3], judged[3, 5] = GOOD, BAD, GOOD, BAD
    ids = torch.randint(8, 12, (ROWS, WIDTH), generator=g)
    return {
        "step_logits": 1.7 * torch.randn(ROWS, WIDTH, CLASSES, generator=g),
        "step_scores": 1.7 * torch.randn(ROWS, WIDTH, generator=g), "step_mask": mask,
        "step_labels": judged.where(mask > 0, torch.tensor(IGNORE)),
        "step_ids": torch.where(mask > 0, torch.tensor(PLACEHOLDER), ids), "reward_token_ids": (GOOD, BAD),
        "placeholder_token_id": PLACEHOLDER,
    }  # fmt: skip


# Axes


def axes(subject: Subject, have: frozenset[str], seen: Sequence[Seen]) -> tuple[Axis, ...]:
    scored = "step_scores" in have
    return (
        _binary() if scored else _classes(have), _form(scored), _shift(subject, scored), _mask(), _labels(),
        Axis(name="sign", options=(Option(name="plus", standing="standard"), probing.as_pitfall("minus", SIGN))),
        _reduction(subject, seen),
        Axis(
            name="gradient", options=(Option(name="flows", standing="standard"), probing.as_pitfall("none", DETACHED))
        ),
    )  # fmt: skip


def _binary() -> Axis:
    return Axis(name="classes", options=(Option(name="one number", standing="standard", says="one number a step"),))


def _classes(have: frozenset[str]) -> Axis:
    if "reward_token_ids" not in have:
        options = (Option(name="all", standing="standard", says="classes of the model"),
                   Option(name="difference", says="difference of the logits of good and bad"))  # fmt: skip
    else:
        options = (
            Option(name="two", standing="standard", says="the two judgement tokens compete", source="OpenRLHF PRMLoss"),
            probing.as_pitfall("all", CANDIDATES),
        )
    return Axis(name="classes", options=options)


def _form(scored: bool) -> Axis:
    if scored:
        return Axis(
            name="form",
            options=(
                Option(name="bce", standing="standard", says="binary cross-entropy of the logit"),
                Option(name="mse of sigmoid", says="squared error of the probability"),
                Option(name="mse", says="squared error of the score"),
                Option(name="bce of probabilities", says="binary cross-entropy of a probability"),
                probing.as_pitfall("bce of sigmoid", DOUBLE),
                probing.as_pitfall("probability", NO_LOG),
            ),
        )
    return Axis(
        name="form",
        options=(
            Option(name="cross entropy", standing="standard", says="cross-entropy at the end of each step"),
            probing.as_pitfall("of softmax", DOUBLE),
            probing.as_pitfall("probability", NO_LOG),
            probing.as_pitfall("1 - probability", NO_LOG),
            probing.as_pitfall("raw logit", NO_LOG),
        ),
    )


def _shift(subject: Subject, scored: bool) -> Axis:
    said = probing.claims(
        subject,
        r"no shift",
        r"placeholder",
        r"position t of",
        r"(own|its) position",
        r"aligned",
        r"same position",
        r"not shifted",
    )
    predicts = probing.claims(
        subject, r"next[- ]token", r"shifted inside", r"predicts the (next|label)", r"one position (later|earlier)"
    )
    aligned = Option(name="aligned", says="" if scored else "logits judge their own position")
    inside = Option(name="inside", says="logits judge the next position")
    options = [
        probing.wrong_here(aligned, SHIFT, predicts and not said),
        probing.wrong_here(inside, SHIFT, said or scored),
    ]
    if predicts and not said:
        options.reverse()
    options[0] = Option(name=options[0].name, standing="standard", says=options[0].says)
    return Axis(name="shift", options=(*options, probing.as_pitfall("backwards", SHIFT)))


def _mask() -> Axis:
    return Axis(
        name="mask",
        options=(
            Option(name="steps", standing="standard"),
            probing.as_pitfall("none", IGNORED),
            probing.as_pitfall("others", IGNORED),
        ),
    )


def _labels() -> Axis:
    return Axis(
        name="labels", options=(Option(name="right", standing="standard"), probing.as_pitfall("exchanged", EXCHANGED))
    )


def _reduction(subject: Subject, seen: Sequence[Seen]) -> Axis:
    if seen[0].value.dim() > 0:
        options = (
            Option(name="none", standing="standard", says="one loss a step"),
            Option(name="rows", says="mean over the steps of each solution"),
        )
        return Axis(name="reduction", options=options)
    summed = Option(name="sum", says="sum over the steps")
    return Axis(
        name="reduction",
        options=(
            Option(name="mean", standing="standard", says="mean over the steps"),
            Option(name="solutions", says="mean over steps, then over solutions"),
            probing.wrong_here(summed, REDUCTION, probing.claims(subject, *PROMISES_MEAN)),
            *(probing.as_pitfall(n, REDUCTION) for n in ("positions", "per row", "half", "double")),
        ),
    )


# Reference


@dataclass(frozen=True)
class Reference:
    """The losses of judged steps, float64."""

    have: frozenset[str]

    def __call__(self, s: Seen, o: Options, k: Knobs) -> Result:
        z = surrogate.tensor(s, "step_scores" if "step_scores" in self.have else "step_logits")
        z = z.detach() if o["gradient"] == "none" else z
        labels, mask = self._judgements(s)
        if o["shift"] == "inside":
            z, labels, mask = z[:, :-1], labels[:, 1:], mask[:, 1:]
        elif o["shift"] == "backwards":
            z, labels, mask = z[:, 1:], labels[:, :-1], mask[:, :-1]
        y = labels.clamp(min=0)
        y = 1 - y if o["labels"] == "exchanged" else y
        losses = _of_numbers(z, y, o["form"]) if z.dim() == 2 else _of_classes(z, y, o)
        counted = {"steps": mask, "none": torch.ones_like(mask), "others": 1 - mask}[o["mask"]]
        value = _reduced(losses, counted, o["reduction"])
        value = -value if o["sign"] == "minus" else value
        return Result(value=value, grads=lambda: surrogate.gradients(value, s))

    def _judgements(self, s: Seen) -> tuple[Tensor, Tensor]:
        labels = surrogate.tensor(s, "step_labels").long()
        mask = labels.ne(IGNORE)
        if "step_mask" in self.have:
            mask = mask & surrogate.tensor(s, "step_mask").bool()
        return labels, mask.double()


def _of_numbers(z: Tensor, y: Tensor, form: str) -> Tensor:
    target = y.double()
    bce: Callable[[Tensor], Tensor] = lambda x: functional.binary_cross_entropy_with_logits(x, target, reduction="none")  # noqa: E731
    return {
        "bce": lambda: bce(z), "mse of sigmoid": lambda: (z.sigmoid() - target) ** 2, "mse": lambda: (z - target) ** 2,
        "bce of sigmoid": lambda: bce(z.sigmoid()),
        "probability": lambda: -(target * z.sigmoid() + (1 - target) * (-z).sigmoid()),
        "bce of probabilities": lambda: -(target * z.log() + (1 - target) * (1 - z).log()),
    }[form]()  # fmt: skip


def _of_classes(z: Tensor, y: Tensor, o: Options) -> Tensor:
    at = y
    if o["classes"] == "two":
        z, at = z[..., [GOOD, BAD]], (y == BAD).long()
    elif o["classes"] == "difference":
        return _of_numbers(
            z[..., GOOD] - z[..., BAD],
            y,
            {"cross entropy": "bce", "of softmax": "bce of sigmoid"}.get(o["form"], "probability"),
        )
    pick: Callable[[Tensor], Tensor] = lambda x: x.gather(-1, at.unsqueeze(-1)).squeeze(-1)  # noqa: E731
    return {
        "cross entropy": lambda: -pick(z.log_softmax(-1)), "of softmax": lambda: -pick(z.softmax(-1).log_softmax(-1)),
        "probability": lambda: -pick(z.softmax(-1)), "1 - probability": lambda: 1 - pick(z.softmax(-1)),
        "raw logit": lambda: -pick(z),
    }[o["form"]]()  # fmt: skip


def _reduced(losses: Tensor, counted: Tensor, how: str) -> Tensor:
    kept = losses * counted
    return {
        "none": lambda: losses[counted > 0], "rows": lambda: kept.sum(-1) / counted.sum(-1).clamp(min=1),
        "mean": lambda: kept.sum() / counted.sum(), "sum": kept.sum, "positions": kept.mean,
        "solutions": (kept.sum(-1) / counted.sum(-1).clamp(min=1)).mean,
        "per row": lambda: kept.sum() / len(losses), "half": lambda: kept.sum() / counted.sum() / 2,
        "double": lambda: 2 * kept.sum() / counted.sum(),
    }[how]()  # fmt: skip
