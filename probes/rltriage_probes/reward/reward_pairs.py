"""Losses that train a reward model on comparisons.

    L = -log σ(r(y_w) - r(y_l) - m) + c · (r(y_w) + r(y_l))²

Bradley-Terry as in Ouyang et al. 2022, arXiv:2203.02155, eq. 1, there over all pairs of K ranked answers; margins m of
Touvron et al. 2023, arXiv:2307.09288, eq. 2; centring c of Eisenstein et al. 2023, arXiv:2312.09244. A score that is
read from a causal model is the one at the last real token, the only one that has seen the whole answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from rltriage_probes import probing
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Subject
from rltriage_probes.solver import Knobs, Options, Result, Seen

logsigmoid = functional.logsigmoid

SWAPPED = Pitfall(
    id="RM-SWAPPED", family="sign", says="exchanges the two answers, so the rejected one is scored higher"
)
SIGN = Pitfall(id="RM-LOSS-SIGN", family="sign", says="returns minus the loss, so that a step makes it worse")
NO_LOG = Pitfall(
    id="RM-NO-LOG",
    family="normalisation",
    says="uses a probability or a raw score where its natural log belongs, so what is far wrong gives no gradient",
)
OVERFLOW = Pitfall(
    id="RM-OVERFLOW", family="nonfinite", says="takes the log of a sigmoid that rounds to 0, which gives inf and NaN"
)
MARGIN = Pitfall(
    id="RM-MARGIN", family="sign", says="adds the margin, leaves it out or multiplies by it, instead of demanding it"
)
CENTRE = Pitfall(
    id="RM-CENTRE",
    family="normalisation",
    says="does not punish the square of the sum of both scores, so the offset of the scores drifts",
)
LAST_TOKEN = Pitfall(
    id="RM-LAST-TOKEN",
    family="pad-eos",
    says="reads the score from another position than the last real token",
)
PADDING = Pitfall(id="RM-PADDING", family="mask-missing", says="averages scores over padding")
PAIRS = Pitfall(
    id="RM-PAIRS",
    family="denominator",
    says="compares other pairs of a ranking than better with worse, or miscounts them",
)
REDUCTION = Pitfall(
    id="RM-REDUCTION", family="denominator", says="divides by another count than the number of pairs or steps"
)
DETACHED = Pitfall(
    id="RM-DETACHED", family="gradient-cut", says="lets no gradient flow to one of the scores, or to both"
)

ALL = (SWAPPED, SIGN, NO_LOG, OVERFLOW, MARGIN, CENTRE, LAST_TOKEN, PADDING, PAIRS, REDUCTION, DETACHED)

# Cases

ROWS, WIDTH, OTHER_WIDTH, PROMPTS, RANKED = 5, 7, 6, 3, 4
PAD = 0
NAMES = ("scores on both sides of each other", "other scores", "equal margins")
_LENGTHS = {"chosen": (7, 3, 5, 2, 4), "rejected": (4, 6, 2, 5, 3)}
SIDES = ("chosen", "rejected")
DIFFERENTIATED = (
    *(f"{s}_{k}" for s in (*SIDES, "pair") for k in ("rewards", "token_rewards")), "ranked_rewards",
)  # fmt: skip


def comparisons(name: str) -> dict[str, object]:
    """Scores in every form: one an answer, one a token, both answers in one batch, K ranked answers."""
    g = probing.generator("comparisons, " + name)
    inputs: dict[str, object] = {
        "pad_token_id": PAD,
        "center_coef": 0.3 if name != NAMES[1] else 0.05,
        "temperature": 1.0,
    }
    ids: dict[str, Tensor] = {}
    for side in SIDES:
        width = WIDTH if side == "chosen" else OTHER_WIDTH
        lengths = torch.tensor(_LENGTHS[side])
        mask = (torch.arange(width)[None] < lengths[:, None]).float()
        tokens = 1.2 * torch.randn(ROWS, width, generator=g) + 0.3
        ids[side] = torch.randint(1, 9, (ROWS, width), generator=g).where(mask > 0, torch.tensor(PAD))
        inputs |= {
            f"{side}_token_rewards": tokens, f"{side}_mask": mask, f"{side}_lengths": lengths, f"{side}_ids": ids[side],
            f"{side}_rewards": 1.5 * torch.randn(ROWS, generator=g) + 0.4,
        }  # fmt: skip
    for kind in ("token_rewards", "mask", "ids"):
        chosen, rejected = _tensor(inputs, f"chosen_{kind}"), _tensor(inputs, f"rejected_{kind}")
        filler = {"mask": 0.0, "ids": PAD}.get(kind, 0.9)
        inputs[f"pair_{kind}"] = torch.cat([chosen, functional.pad(rejected, (0, WIDTH - OTHER_WIDTH), value=filler)])
    for kind in ("rewards", "lengths"):
        inputs[f"pair_{kind}"] = torch.cat([_tensor(inputs, f"{s}_{kind}") for s in SIDES])
    inputs["ranked_rewards"] = 1.5 * torch.randn(PROMPTS, RANKED, generator=g)
    inputs["margin"] = torch.full((ROWS,), 0.5) if name == NAMES[2] else 1.3 * torch.rand(ROWS, generator=g) + 0.1
    return inputs


def padded_in_front(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same answers with their padding in front of them."""
    out = dict(inputs)
    for side in (*SIDES, "pair"):
        order = inputs[f"{side}_mask"].long().argsort(dim=1, stable=True)
        for kind in ("mask", "ids", "token_rewards"):
            out[f"{side}_{kind}"] = inputs[f"{side}_{kind}"].gather(1, order)
    return out


def padding_inside(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same answers with a padding id at the second of their tokens, as an end of turn leaves one."""
    out = dict(inputs)
    for side in (*SIDES, "pair"):
        ids = inputs[f"{side}_ids"].clone()
        ids[0, 1] = PAD
        out[f"{side}_ids"] = ids
    return out


def _tensor(inputs: Mapping[str, object], word: str) -> Tensor:
    got = inputs[word]
    assert isinstance(got, Tensor)
    return got


def observe(subject: Subject, case: Case, wrt: Sequence[str] = DIFFERENTIATED) -> Seen:
    """Value and gradients with respect to the scores. Raises `CallFailed`."""
    for side in (*SIDES, "pair"):
        lengths, tokens = f"{side}_lengths", f"{side}_token_rewards"
        both = lengths in subject.bound.names and tokens in subject.bound.names
        if both and int(case.inputs[lengths].max()) > case.inputs[tokens].shape[1]:
            raise CallFailed("the lengths of the case go beyond its columns", "")  # no valid smaller case
    s = probing.observe(subject, case, wrt)
    for word in wrt:
        x = s.inputs.get(word)
        if word in subject.bound.names and isinstance(x, Tensor):
            s.cache["leaf:" + word] = x.clone().requires_grad_(True)
    return s


# Axes


def axes(subject: Subject, have: frozenset[str], seen: Sequence[Seen]) -> tuple[Axis, ...]:
    return (
        _loss(), _two("direction", "chosen", "rejected", SWAPPED), _two("sign", "plus", "minus", SIGN),
        _margin(subject, have), _centre(subject, have), _token(have), _layout(have), _ranking(have),
        _reduction(subject, seen),
        Axis(
            name="gradient",
            options=(
                Option(name="flows", standing="standard"),
                *(probing.as_pitfall(n, DETACHED) for n in ("both", "chosen", "rejected")),
            ),
        ),
    )  # fmt: skip


def _two(name: str, right: str, wrong: str, pitfall: Pitfall) -> Axis:
    return Axis(name=name, options=(Option(name=right, standing="standard"), probing.as_pitfall(wrong, pitfall)))


def _loss() -> Axis:
    wrong = ("sigmoid", "1 - sigmoid", "base 2", "base 10", "log sigmoid of the sigmoid")
    return Axis(
        name="loss",
        options=(
            Option(
                name="log", standing="standard", says="Bradley-Terry, -log sigmoid", source="arXiv:2203.02155 eq. 1"
            ),
            Option(name="hinge", says="ranking hinge at a margin of 1", source="torch MarginRankingLoss"),
            Option(name="hinge at 0", says="ranking hinge at 0", source="RRHF, arXiv:2304.05302"),
            Option(name="exponential", says="exponential ranking loss"),
            *(probing.as_pitfall(n, NO_LOG) for n in wrong),
        ),
    )


def _unread(subject: Subject, word: str) -> bool:
    """Whether what holds this input is a parameter that the function's body never looks at."""
    paths = [s.path for s in subject.bound.report.slots if s.meaning == word]
    return bool(paths) and all(len(re.findall(rf"\b{re.escape(x)}\b", subject.source)) == 1 for x in paths)


def _margin(subject: Subject, have: frozenset[str]) -> Axis:
    if "margin" not in have:
        return Axis(name="margin", options=(Option(name="none", standing="standard"),))
    wrong = ("plus", "times", "outside")
    none = Option(name="none", says="a margin that is taken and never read")
    return Axis(
        name="margin",
        options=(
            Option(
                name="minus", standing="standard", says="margin of each pair", source="Llama 2, arXiv:2307.09288 eq. 2"
            ),
            probing.wrong_here(none, MARGIN, not _unread(subject, "margin")),
            *(probing.as_pitfall(n, MARGIN) for n in wrong),
        ),
    )


def _centre(subject: Subject, have: frozenset[str]) -> Axis:
    if "center_coef" not in have:
        return Axis(name="centre", options=(Option(name="none", standing="standard"),))
    none = Option(name="none", says="a centring weight that is taken and never read")
    wrong = ("minus", "difference", "no square", "square of the mean", "unweighted")
    return Axis(
        name="centre",
        options=(
            Option(name="sum", standing="standard", says="centred by the square of the summed scores",
                   source="arXiv:2312.09244, TRL center_rewards_coefficient"),
            Option(name="each", says="square of each score added"),
            Option(name="each, halved", says="mean square of the scores added"),
            probing.wrong_here(none, CENTRE, not _unread(subject, "center_coef")),
            *(probing.as_pitfall(n, CENTRE) for n in wrong),
        ),
    )  # fmt: skip


def _by_token(have: frozenset[str]) -> bool:
    return any(f"{s}_token_rewards" in have for s in (*SIDES, "pair"))


def _told(have: frozenset[str]) -> bool:
    """Whether a function is told where an answer ends."""
    return any(f"{s}_{k}" in have for s in (*SIDES, "pair") for k in ("mask", "lengths", "ids"))


def _token(have: frozenset[str]) -> Axis:
    if not _by_token(have):
        return Axis(name="token", options=(Option(name="given", standing="standard"),))
    if not _told(have):
        plain = ("last column", "first", "mean of columns")
        return Axis(name="token", options=tuple(Option(name=n, says=f"score: {n}") for n in plain))
    wrong = ("last column", "first", "one early", "one late", "second last column", "other's")
    return Axis(
        name="token",
        options=(
            Option(name="last", standing="standard", says="score at the last real token"),
            Option(name="mean", says="mean score over the real tokens"),
            *(probing.as_pitfall(n, LAST_TOKEN) for n in wrong),
            *(probing.as_pitfall(n, PADDING) for n in ("mean of columns", "masked sum over columns")),
        ),
    )


def _layout(have: frozenset[str]) -> Axis:
    if not any(f"pair_{k}" in have for k in ("rewards", "token_rewards")):
        return Axis(name="layout", options=(Option(name="halves", standing="standard"),))
    return Axis(
        name="layout",
        options=(
            Option(name="halves", standing="standard", says="chosen answers before rejected ones"),
            Option(name="interleaved", says="chosen and rejected answers in turn"),
        ),
    )


def _ranking(have: frozenset[str]) -> Axis:
    if "ranked_rewards" not in have:
        return Axis(name="pairs", options=(Option(name="given", standing="standard"),))
    wrong = (
        "with itself",
        "both ways",
        "everything",
        "neighbours",
        "first with the rest",
        "first with last",
        "per K squared",
        "per K",
    )
    return Axis(
        name="pairs",
        options=(
            Option(name="all", standing="standard", says="all pairs of a ranking", source="arXiv:2203.02155 eq. 1"),
            *(probing.as_pitfall(n, PAIRS) for n in wrong),
        ),
    )


PROMISES_MEAN = (
    r"\b(mean|averaged?) (over|across|of) (all )?(the )?(batch|pairs?|examples|losses|samples|steps|step|labelled|all)",
    r"batch mean", r"mean loss", r"\(mean\)",
)  # fmt: skip


def _reduction(subject: Subject, seen: Sequence[Seen]) -> Axis:
    if seen[0].value.dim() > 0:
        return Axis(name="reduction", options=(Option(name="none", standing="standard", says="one loss a pair"),))
    summed = Option(name="sum", says="sum over the pairs")
    return Axis(
        name="reduction",
        options=(
            Option(name="mean", standing="standard", says="mean over the pairs"),
            probing.wrong_here(summed, REDUCTION, probing.claims(subject, *PROMISES_MEAN)),
            *(probing.as_pitfall(n, REDUCTION) for n in ("half", "double", "largest", "first", "last")),
        ),
    )


# Reference


@dataclass(frozen=True)
class Reference:
    """The losses of comparisons, float64."""

    have: frozenset[str]

    def __call__(self, s: Seen, o: Options, k: Knobs) -> Result:
        c, r = self._scores(s, o)
        per_pair = _LOSSES[o["loss"]](self._lead(s, o, c, r))
        if o["margin"] == "outside":
            per_pair = per_pair + surrogate.tensor(s, "margin")
        if o["pairs"] in ("per K squared", "per K") and "ranked_rewards" in self.have:
            size = surrogate.tensor(s, "ranked_rewards").shape[1]
            per_pair = per_pair * (size - 1) / (2 * size if o["pairs"] == "per K squared" else 2)
        centre = self._centre(s, o, c, r)
        value = _reduced(per_pair, o["reduction"])
        if centre is not None:
            value = value + (centre if value.dim() else centre.mean())
        value = -value if o["sign"] == "minus" else value
        return Result(value=value, grads=lambda: surrogate.gradients(value, s))

    def _lead(self, s: Seen, o: Options, c: Tensor, r: Tensor) -> Tensor:
        """By how much the chosen answer leads, the margin taken off."""
        z = c - r
        if o["margin"] in ("none", "outside"):
            return z
        m = surrogate.tensor(s, "margin")
        return {"minus": z - m, "plus": z + m, "times": z * m}[o["margin"]]

    def _scores(self, s: Seen, o: Options) -> tuple[Tensor, Tensor]:
        if "ranked_rewards" in self.have:
            c, r = _ranked(surrogate.tensor(s, "ranked_rewards"), o["pairs"])
        else:
            c, r = (self._score(s, side, o) for side in SIDES)
        c = c.detach() if o["gradient"] in ("both", "chosen") else c
        r = r.detach() if o["gradient"] in ("both", "rejected") else r
        return (r, c) if o["direction"] == "rejected" else (c, r)

    def _score(self, s: Seen, side: str, o: Options) -> Tensor:
        whole = self._part(s, side, "rewards", o)
        if whole is not None:
            return whole
        tokens = self._part(s, side, "token_rewards", o)
        assert tokens is not None
        real = self._real(s, side, o, tokens)
        if o["token"] == "other's":  # noqa: S105  an axis
            real = self._real(s, SIDES[1 - SIDES.index(side)], o, tokens)
        return _at(tokens, real, o["token"])

    def _real(self, s: Seen, side: str, o: Options, tokens: Tensor) -> Tensor:
        """1 on real tokens, in the width of the scores."""
        width = tokens.shape[1]
        mask = self._part(s, side, "mask", o)
        if mask is None:
            ids = self._part(s, side, "ids", o)
            mask = None if ids is None else ids.ne(int(s.inputs["pad_token_id"]))  # type: ignore[call-overload]
        if mask is None:
            lengths = self._part(s, side, "lengths", o)
            mask = torch.ones_like(tokens) if lengths is None else torch.arange(width)[None] < lengths[:, None]
        mask = mask.double()
        return functional.pad(mask, (0, max(0, width - mask.shape[1])))[:, :width]

    def _part(self, s: Seen, side: str, kind: str, o: Options) -> Tensor | None:
        if f"{side}_{kind}" in self.have:
            return surrogate.tensor(s, f"{side}_{kind}")
        if f"pair_{kind}" not in self.have:
            return None
        both = surrogate.tensor(s, f"pair_{kind}")
        at = SIDES.index(side)
        return both[at::2] if o["layout"] == "interleaved" else both.chunk(2)[at]

    def _centre(self, s: Seen, o: Options, c: Tensor, r: Tensor) -> Tensor | None:
        if o["centre"] == "none":
            return None
        weight = float(s.inputs["center_coef"])  # type: ignore[arg-type]
        term = {
            "sum": lambda: (c + r) ** 2, "minus": lambda: -((c + r) ** 2), "difference": lambda: (c - r) ** 2,
            "no square": lambda: c + r, "each": lambda: c**2 + r**2, "each, halved": lambda: (c**2 + r**2) / 2,
            "square of the mean": lambda: (c + r).mean() ** 2 + 0 * c, "unweighted": lambda: (c + r) ** 2 / weight,
        }[o["centre"]]()  # fmt: skip
        return weight * term


_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "log": lambda z: -logsigmoid(z),
    "hinge": lambda z: (1 - z).clamp(min=0),
    "hinge at 0": lambda z: (-z).clamp(min=0),
    "exponential": lambda z: (-z).exp(),
    "sigmoid": lambda z: -z.sigmoid(),
    "1 - sigmoid": lambda z: 1 - z.sigmoid(),
    "base 2": lambda z: -logsigmoid(z) / math.log(2),
    "base 10": lambda z: -logsigmoid(z) / math.log(10),
    "log sigmoid of the sigmoid": lambda z: -logsigmoid(z.sigmoid()),
}


def _at(tokens: Tensor, real: Tensor, how: str) -> Tensor:
    """One score a row, from where the option says."""
    last = (real * torch.arange(1, real.shape[1] + 1)).argmax(-1)
    rows = torch.arange(len(tokens))
    return {
        "last": lambda: tokens[rows, last], "other's": lambda: tokens[rows, last], "last column": lambda: tokens[:, -1],
        "first": lambda: tokens[:, 0], "one early": lambda: tokens[rows, last - 1],
        "one late": lambda: tokens[rows, (last + 1).clamp(max=tokens.shape[1] - 1)],
        "second last column": lambda: tokens[:, -2], "mean": lambda: (tokens * real).sum(-1) / real.sum(-1),
        "mean of columns": lambda: tokens.mean(-1), "masked sum over columns": lambda: (tokens * real).mean(-1),
    }[how]()  # fmt: skip


def _ranked(x: Tensor, how: str) -> tuple[Tensor, Tensor]:
    """Better and worse scores of each compared pair, prompt by prompt."""
    size = x.shape[1]
    better, worse = torch.triu_indices(size, size, 1)
    if how == "with itself":
        better, worse = torch.triu_indices(size, size, 0)
    if how == "both ways":
        better, worse = torch.cat([better, worse]), torch.cat([worse, better])
    if how == "everything":
        better, worse = torch.arange(size).repeat_interleave(size), torch.arange(size).repeat(size)
    if how == "neighbours":
        better, worse = torch.arange(size - 1), torch.arange(1, size)
    if how == "first with the rest":
        better, worse = torch.zeros(size - 1, dtype=torch.long), torch.arange(1, size)
    if how == "first with last":
        better, worse = torch.tensor([0]), torch.tensor([size - 1])
    return x[:, better].flatten(), x[:, worse].flatten()


def _reduced(x: Tensor, how: str) -> Tensor:
    return {
        "none": lambda: x, "mean": x.mean, "sum": x.sum, "half": lambda: x.mean() / 2,
        "double": lambda: x.mean() * 2, "largest": x.max, "first": lambda: x[0], "last": lambda: x[-1],
    }[how]()  # fmt: skip
