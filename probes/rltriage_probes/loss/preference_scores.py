"""From whatever a preference loss is given to one score an answer.

score(y) = Σ_t m_t log p(y_t | y_<t)        summed over the answer (DPO), or divided by Σ_t m_t (SimPO, ORPO, IPO)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rltriage_probes.loss import surrogate
from rltriage_probes.loss.preference_cases import IGNORE, SIDES
from rltriage_probes.solver import Options, Seen

Scores = tuple[Tensor, Tensor]
"""Of the chosen and of the rejected answers, [B]."""
KINDS = ("logprobs", "token_logprobs", "logits")


@dataclass(frozen=True)
class Given:
    """What a function takes, among the forms of the same thing."""

    have: frozenset[str]

    def has(self, front: str) -> bool:
        """Whether the answers' log-probs of the policy (empty) or the reference (`ref_`) come in any form."""
        return any(f"{front}{s}_{k}" in self.have for s in (*SIDES, "pair") for k in KINDS)

    @property
    def concatenated(self) -> bool:
        return any(f"pair_{k}" in self.have for k in KINDS)

    @property
    def by_token(self) -> bool:
        return any(f"{s}_{k}" in self.have for s in (*SIDES, "pair") for k in KINDS[1:])

    @property
    def by_logits(self) -> bool:
        return any(f"{s}_logits" in self.have for s in (*SIDES, "pair"))

    @property
    def masked(self) -> bool:
        return any(f"{s}_{k}" in self.have for s in (*SIDES, "pair") for k in ("mask", "labels"))

    @property
    def lengths(self) -> bool:
        return any(f"{s}_lengths" in self.have for s in (*SIDES, "pair"))

    def scores(self, s: Seen, front: str, o: Options) -> Scores | None:
        """One score an answer under the policy or the reference; None where the function isn't given it."""
        found = tuple(self._score(s, front, side, o) for side in SIDES)
        if found[0] is None or found[1] is None:
            return None
        return found[0], found[1]

    def counts(self, s: Seen, o: Options) -> Scores | None:
        """Tokens of the answers, as lengths say or masks count; 1 where only the other answer's are known."""
        found = [self._count(s, side, o) for side in SIDES]
        if found == [None, None]:
            return None
        one = torch.ones((), dtype=torch.float64)
        c, r = (one if n is None else n.double() for n in found)
        return c, r

    def _count(self, s: Seen, side: str, o: Options) -> Tensor | None:
        length = self._part(s, "", side, "lengths", o)
        mask = self._mask(s, side, o) if length is None else None
        return length if mask is None else mask.sum(-1)

    def _score(self, s: Seen, front: str, side: str, o: Options) -> Tensor | None:
        whole = self._part(s, front, side, "logprobs", o)
        if whole is not None:
            return whole
        tokens = self._part(s, front, side, "token_logprobs", o)
        mask = self._mask(s, side, o)
        if tokens is None:
            tokens = self._from_logits(s, front, side, o)
        if tokens is None:
            return None
        if mask is not None and mask.shape[1] == tokens.shape[1] + 1:
            mask = mask[:, :-1] if o.get("shift") == "mask late" else mask[:, 1:]
        return _pooled(tokens, mask, o.get("tokens", "sum"))

    def _from_logits(self, s: Seen, front: str, side: str, o: Options) -> Tensor | None:
        """log p of each label, [B, T - 1] where logits and labels are shifted inside."""
        z, labels = self._part(s, front, side, "logits", o), self._part(s, "", side, "labels", o)
        if z is None or labels is None:
            return None
        if o.get("shift") != "aligned":
            z, labels = (z[:, 1:], labels[:, :-1]) if o.get("shift") == "backwards" else (z[:, :-1], labels[:, 1:])
        at = labels.where(labels != IGNORE, torch.zeros_like(labels)).unsqueeze(-1)
        return z.log_softmax(-1).gather(-1, at).squeeze(-1)

    def _mask(self, s: Seen, side: str, o: Options) -> Tensor | None:
        mask = self._part(s, "", side, "mask", o)
        if mask is not None:
            return mask.double()
        labels = self._part(s, "", side, "labels", o)
        if labels is None:
            return None
        shift = o.get("shift")
        counted = (labels != IGNORE).double()
        if not self.by_logits or shift == "aligned":
            return counted
        return counted[:, :-1] if shift == "backwards" else counted[:, 1:]

    def _part(self, s: Seen, front: str, side: str, kind: str, o: Options) -> Tensor | None:
        if f"{front}{side}_{kind}" in self.have:
            return surrogate.tensor(s, f"{front}{side}_{kind}")
        if f"{front}pair_{kind}" not in self.have:
            return None
        both = surrogate.tensor(s, f"{front}pair_{kind}")
        if o.get("layout") == "interleaved":
            return both[SIDES.index(side) :: 2]
        return both.chunk(2)[SIDES.index(side)]


def _pooled(tokens: Tensor, mask: Tensor | None, how: str) -> Tensor:
    """Log-probs of an answer's tokens as one number, [B]."""
    ones = torch.ones_like(tokens)
    m = ones if mask is None or how.startswith("unmasked") else mask
    if how == "inverted":
        m = 1 - m
    summed = (tokens.double() * m).sum(-1)
    if how in ("mean", "unmasked mean"):
        return summed / m.sum(-1).clamp(min=1)
    return summed / tokens.shape[1] if how == "padded mean" else summed
