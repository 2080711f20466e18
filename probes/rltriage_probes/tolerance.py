"""When two results count as equal: one table by dtype, and one comparison.

Each row holds the measured noise of *correct* code times a margin. The noise was measured as the largest
relative difference between the float64 reference and correct implementations run in that dtype
(log_softmax + gather, chunked logsumexp, two-pass and one-pass std, four loss aggregations), over
the seeded cases of every role: float64 3e-15, float32 6e-7, float16 1e-3, bfloat16 2e-2.

A result that is badly conditioned (a group whose rewards hardly differ) is noisier than its dtype: so the
reference is evaluated in that dtype too, and its own distance to float64 widens the tolerance there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rltriage_probes.contract import Gap, Number


class Precision(NamedTuple):
    rtol: float
    """Relative to the element."""
    atol: float
    """Relative to the largest finite element of the expected tensor."""


PRECISIONS: dict[str, Precision] = {
    "float64": Precision(1e-10, 1e-11),
    "float32": Precision(2e-5, 4e-6),
    "float16": Precision(1e-2, 5e-3),
    "bfloat16": Precision(6e-2, 4e-2),
}
CONDITIONING_MARGIN = 8.0
"""How many times the reference's own error in the user's dtype is forgiven."""


def allowed(expected: Tensor, dtype: str, conditioning: Tensor | None = None) -> Tensor:
    """Largest difference that counts as equal, element by element, float64."""
    p = PRECISIONS[dtype]
    finite = expected[expected.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    tolerance = p.atol * scale + p.rtol * expected.abs() + 1e-12
    if conditioning is not None:
        tolerance = tolerance + CONDITIONING_MARGIN * conditioning.abs().nan_to_num(0.0, 0.0, 0.0)
    return tolerance


def equal(actual: Tensor, expected: Tensor, dtype: str, conditioning: Tensor | None = None) -> bool:
    """Same shape and every element within tolerance; NaN equals NaN, an infinity its like."""
    if actual.shape != expected.shape:
        return False
    return not bool(_wrong(actual, expected, dtype, conditioning).any())


def gap(
    quantity: str, case: str, actual: Tensor, expected: Tensor, dtype: str, conditioning: Tensor | None = None
) -> Gap | None:
    """The largest excess over the tolerance, or None where the two are equal."""
    if actual.shape != expected.shape:
        return Gap(
            quantity=f"shape of {quantity}", case=case, index=(), actual=float(actual.numel()),
            expected=float(expected.numel()), allowed=0.0, mismatched=1, total=1,
        )  # fmt: skip
    wrong = _wrong(actual, expected, dtype, conditioning)
    if not bool(wrong.any()):
        return None
    excess = (actual - expected).abs().nan_to_num(torch.inf, torch.inf, torch.inf).where(wrong, actual.new_tensor(-1.0))
    flat = int(excess.argmax())
    index = _unravelled(flat, actual.shape)
    return Gap(
        quantity=quantity,
        case=case,
        index=index,
        actual=number(actual.flatten()[flat]),
        expected=number(expected.flatten()[flat]),
        allowed=number(allowed(expected, dtype, conditioning).flatten()[flat]),
        mismatched=int(wrong.sum()),
        total=actual.numel(),
    )


def _unravelled(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """`torch.unravel_index`, whose first call imports sympy (0.3 s)."""
    index: list[int] = []
    for n in reversed(shape):
        flat, at = divmod(flat, n)
        index.insert(0, at)
    return tuple(index)


def number(x: Tensor | float) -> Number:
    """A float that JSON can carry."""
    value = float(x)
    if value != value:
        return "nan"
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value


def _wrong(actual: Tensor, expected: Tensor, dtype: str, conditioning: Tensor | None) -> Tensor:
    close = ((actual - expected).abs() <= allowed(expected, dtype, conditioning)) & expected.isfinite()
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    return ~(close | same)
