"""Whether tokens were sampled as they should have been: likelihoods of hypotheses, and how well the best one fits.

The model's distribution is known at every position, so each hypothesis (another temperature, no truncation, ...) gives
the sampled tokens a probability. The likeliest hypothesis is taken, and believed only if the tokens look like its own:
their mean log-loss must lie within a few standard errors of the entropy that it predicts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltriage_probes.generation.tiny_lm import nucleus

Z = 5.0
"""Standard errors that right code is allowed; six tests of a million right functions exceed it three times."""
_IMPOSSIBLE = -20.0
"""Log-prob of a token that nobody has sampled in a few thousand draws."""
SURE = 12.0
"""Log-likelihood by which a wrong hypothesis has to win over the right one (odds of 160000 to 1)."""


@dataclass(frozen=True)
class Hypothesis:
    """One way to sample."""

    name: str
    warp: Callable[[Tensor], Tensor]
    """Logits [V] of the model -> logits that are sampled from."""
    right: bool = False


@dataclass(frozen=True)
class Verdict:
    """The likeliest hypothesis, how far it is ahead of the right one, and how well it fits."""

    best: Hypothesis
    lead: float
    z: float
    tokens: int
    outside: int
    """Tokens that the right hypothesis calls impossible."""

    @property
    def fits(self) -> bool:
        return abs(self.z) < Z


@dataclass(frozen=True)
class Sampled:
    """Tokens with the positions that they were sampled at."""

    logits: Tensor
    """[C, V], float64: the model's logits at each of C positions."""
    position: Tensor
    """[K] long, which of them."""
    token: Tensor
    """[K] long."""
    count: Tensor
    """[K], how often that token was sampled there."""


def sampled(logits: Mapping[Any, Tensor], counts: Mapping[tuple[Any, int], int]) -> Sampled:
    """From counts of (position, token), positions by any name."""
    at = {name: i for i, name in enumerate(logits)}
    return Sampled(
        torch.stack(list(logits.values())).double(),
        torch.tensor([at[p] for p, _ in counts]),
        torch.tensor([t for _, t in counts]),
        torch.tensor(list(counts.values()), dtype=torch.float64),
    )


def judge(tokens: Sampled, hypotheses: Sequence[Hypothesis]) -> Verdict:
    """The likeliest hypothesis; of equally likely ones the right one."""
    scores = {h.name: _likelihood(tokens, h) for h in hypotheses}
    right = next(h for h in hypotheses if h.right)
    best = max(hypotheses, key=lambda h: scores[h.name][0])
    if scores[right.name][0] >= scores[best.name][0] - 1e-6:
        best = right
    lead = scores[best.name][0] - scores[right.name][0]
    return Verdict(best, lead, scores[best.name][1], int(tokens.count.sum()), scores[right.name][2])


def _likelihood(tokens: Sampled, h: Hypothesis) -> tuple[float, float, int]:
    """Log-likelihood, z of the log-loss against its expectation, and the number of impossible tokens."""
    logp = h.warp(tokens.logits).log_softmax(-1)
    p = logp.exp()
    loss = torch.where(p > 0, -logp, torch.zeros_like(logp))
    mean = (p * loss).sum(-1)
    spread = (p * (loss - mean[:, None]) ** 2).sum(-1)
    value = logp[tokens.position, tokens.token]
    outside = int(tokens.count[value < _IMPOSSIBLE].sum())
    total = float((tokens.count * value.clamp_min(-60.0)).sum())
    expected = -float((tokens.count * mean[tokens.position]).sum())
    variance = float((tokens.count * spread[tokens.position]).sum())
    z = (total - expected) / math.sqrt(variance) if variance > 1e-9 else (0.0 if abs(total - expected) < 1e-3 else 99.0)
    return total, z, outside


# Hypotheses


def temperatures(asked: float) -> list[Hypothesis]:
    """What people do with a temperature, besides dividing the logits by it."""
    named = {
        "as asked": asked, "no temperature": 1.0, "multiplied by the temperature": 1 / asked,
        "divided twice by the temperature": asked**2, "divided by its root": asked**0.5,
    }  # fmt: skip
    out = [Hypothesis(name, _at(t), right=name == "as asked") for name, t in named.items()]
    return [*out, Hypothesis("greedy", _at(1e-3))]


def any_temperature(guesses: Sequence[float]) -> list[Hypothesis]:
    """For functions that take none: 1, the numbers in their source, and a grid."""
    grid = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.5, 2.0]
    values = dict.fromkeys([*(g for g in guesses if 0.05 <= g <= 3), *grid])
    out = [Hypothesis("1", _at(1.0), right=True)]
    return [*out, *(Hypothesis(f"{t:g}", _at(t)) for t in values if t != 1.0), Hypothesis("greedy", _at(1e-3))]


def cuts(temperature: float, top_k: int | None, top_p: float | None) -> list[Hypothesis]:
    """What is left of the vocabulary, rightly and wrongly."""
    t = _at(temperature)
    if top_k is not None:
        k = top_k
        return [
            Hypothesis("the k most likely", lambda x: _first(t(x), k), right=True),
            Hypothesis("the whole vocabulary", t),
            Hypothesis("one more than k", lambda x: _first(t(x), k + 1)),
            Hypothesis("one less than k", lambda x: _first(t(x), max(1, k - 1))),
            Hypothesis("all but the k most likely", lambda x: _all_but(t(x), k)),
            Hypothesis("the most likely alone", lambda x: _first(t(x), 1)),
        ]
    assert top_p is not None
    p = top_p
    return [
        Hypothesis("the nucleus", lambda x: _kept(t(x), nucleus(t(x), p)), right=True),
        Hypothesis("the nucleus before the temperature", lambda x: _kept(t(x), nucleus(x, p))),
        Hypothesis("the whole vocabulary", t),
        Hypothesis(
            "the nucleus without the token that reaches p", lambda x: _kept(t(x), nucleus(t(x), p, crossing=False))
        ),
        Hypothesis("the least likely tokens", lambda x: _kept(t(x), _tail(t(x), p))),
        Hypothesis("all tokens above a probability of 1 - p", lambda x: _kept(t(x), t(x).softmax(-1) >= 1 - p)),
        Hypothesis("the nucleus of 1 - p", lambda x: _kept(t(x), nucleus(t(x), 1 - p))),
        Hypothesis("the most likely alone", lambda x: _first(t(x), 1)),
    ]


CONVENTIONS = frozenset(("the nucleus before the temperature",))
"""Right in some frameworks: the order of temperature and nucleus."""


def _at(temperature: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x / temperature


def _first(x: Tensor, k: int) -> Tensor:
    return x.masked_fill(x < x.topk(min(k, x.shape[-1])).values[..., -1:], -math.inf)


def _all_but(x: Tensor, k: int) -> Tensor:
    return x.masked_fill(x >= x.topk(min(k, x.shape[-1])).values[..., -1:], -math.inf)


def _kept(x: Tensor, keep: Tensor) -> Tensor:
    return x.masked_fill(~(keep | ~keep.any(-1, keepdim=True)), -math.inf)


def _tail(x: Tensor, p: float) -> Tensor:
    """Tokens in ascending order up to a probability of p."""
    ordered, order = x.softmax(-1).sort(-1)
    kept = ordered.cumsum(-1) - ordered < p
    return torch.zeros_like(kept).scatter(-1, order, kept)
