"""What the first look at the advantages already rules out, so that the solver needn't try it.

Every formula of the role gives one number a sample, and whitening leaves its mark on that number. Both can be read
off the result; neither decides anything but what is worth trying.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from rltriage_probes import tolerance
from rltriage_probes.model import Axis
from rltriage_probes.solver import Seen

MEAN_OFF = 0.05
"""How far the mean of whitened numbers may be from 0; generous, as half precision counts as well."""
VARIANCE_OFF = 0.15


def by_row(s: Seen) -> Seen | None:
    """The case with one value a sample, [N] from [N, T]; None where the trained tokens of a row differ.

    With turns, a row may rightly or wrongly carry 0 on some tokens: those cases stay as they are.
    """
    if s.value.dim() != 2 or s.cache.get("turns") is not None:
        return s
    inside = torch.ones_like(s.value, dtype=torch.bool) if s.where is None else s.where
    low = s.value.masked_fill(~inside, torch.inf).amin(1)
    high = s.value.masked_fill(~inside, -torch.inf).amax(1)
    known = inside.any(1)
    spread = (high - low)[known]
    if not bool(known.all()) or bool((spread > tolerance.allowed(high[known], s.dtype)).any()):
        return None if bool(known.all()) else s
    return dataclasses.replace(s, value=_kept(s.value, inside), where=None, memo={}, quick=None, shadow=None)


def _kept(value: Tensor, inside: Tensor) -> Tensor:
    """The value at the first trained token of each row."""
    first = inside.float().argmax(dim=1, keepdim=True)
    return value.gather(1, first).squeeze(1)


def whitening(axis: Axis, s: Seen) -> Axis:
    """The axis `after` without the kinds of whitening whose result would not have these moments."""
    mask = s.inputs["completion_mask"]
    if s.value.dim() != 1 or not isinstance(mask, Tensor) or mask.shape[0] != s.value.shape[0]:
        return axis
    kept = tuple(o for o in axis.options if o is axis.options[0] or _shows(s.value, mask, o.name))
    return dataclasses.replace(axis, options=kept)


def _shows(rows: Tensor, mask: Tensor, after: str) -> bool:
    if not bool(rows.isfinite().all()):
        return True
    weight = (mask > 0).sum(1).double() if after.startswith(("tokens", "padded")) else torch.ones_like(rows)
    total, first, second = float(weight.sum()), float((weight * rows).sum()), float((weight * rows.square()).sum())
    if after.startswith("padded"):
        padding = mask.numel() - total
        at_padding = -first / padding if padding else 0.0
        total, first, second = float(mask.numel()), 0.0, second + padding * at_padding**2
    centred = abs(first) <= MEAN_OFF * (second * total) ** 0.5
    unit = abs(second / total - 1.0) <= VARIANCE_OFF
    return centred and (unit or after == "normalised")
