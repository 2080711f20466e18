"""Per-token estimates of KL(policy || reference), as functions of their own.

Formulas and their sources: `estimators.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rltriage_probes import probing, solver, tolerance
from rltriage_probes.contract import Agrees, Check
from rltriage_probes.loss import estimators, surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen, Solution

ASKS = "which estimator of KL(policy || reference) is this?"
WRT = ("logprobs",)


def example(intent: Mapping[str, Any]) -> Case:
    return _case("log-ratios of both signs")


def _case(name: str) -> Case:
    b, t = 4, 6
    g = probing.generator(name)
    lengths = torch.tensor([6, 4, 5, 2])
    mask = (torch.arange(t)[None] < lengths[:, None]).float()
    mask[0, 2] = 0.0
    logp = -torch.rand(b, t, generator=g) * 3 - 0.05
    ref = logp + torch.randn(b, t, generator=g) * 0.8
    old = logp + torch.randn(b, t, generator=g) * 0.3
    inputs = {
        "logprobs": logp, "ref_logprobs": ref, "old_logprobs": old, "completion_mask": mask,
        "attention_mask": mask.long(), "lengths": lengths, "ratio": (logp - old).exp(),
        "token_count": 1.5 * float(mask.sum()), "row_count": float(b),
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


def axes(subject: Subject, reduced: surrogate.Reduced) -> tuple[Axis, ...]:
    """Estimator, direction, sign, gradient; and the mean where the function averages."""
    with_ratio = bool(subject.bound.names & {"old_logprobs", "ratio"})
    return (
        estimators.estimator_axis(
            with_ratio=with_ratio, wanted=estimators.wanted(subject), pitfall=estimators.ESTIMATOR
        ),
        estimators.direction_axis(subject),
        Axis(
            name="sign",
            options=(Option(name="plus", standing="standard"), probing.as_pitfall("minus", estimators.SIGN)),
        ),
        surrogate.aggregation(subject, reduced),
        surrogate.masking(subject, reduced),
    )


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """β · estimate, [B, T] or averaged."""
    estimate = estimators.reversed_estimate if options["direction"] == "reversed" else estimators.estimate
    logp, ref = surrogate.tensor(s, "logprobs"), surrogate.tensor(s, "ref_logprobs")
    key = ("kl", options["estimator"], options["direction"])
    tokens = s.remember(key, lambda: estimate(options["estimator"], logp, ref, lambda: _ratio(s)))
    factor = -knobs["beta"] if options["sign"] == "minus" else knobs["beta"]
    value = surrogate.aggregated(tokens, s, options, knobs, key) * factor
    return Result(value=value, grads=lambda: surrogate.gradients(value, s))


def _ratio(s: Seen) -> torch.Tensor:
    return surrogate.tensor(s, "ratio") if "uses ratio" in s.cache else surrogate.log_ratio(s).exp()


def run(subject: Subject) -> Iterator[Check]:
    try:
        seen = [_observed(subject, _case(n)) for n in ("log-ratios of both signs", "other log-ratios")]
    except CallFailed as e:
        yield probing.raised("kl.formula", ASKS, "log-ratios of both signs", e)
        return
    base = axes(subject, surrogate.reduction(seen[0].value))
    knobs = (_weight(subject), surrogate.length_knob(subject))
    found = solver.solve(seen, reference, base, knobs)
    yield _formula_check(seen, base, found)
    if found is not None and not found.pitfalls and "completion_mask" in subject.bound.names:
        yield from _filler(subject)


def _weight(subject: Subject) -> Knob:
    """A weight that the function multiplies in: known, or a small number in its source; 1/2 belongs to k2."""
    known = probing.knob(subject, "beta", ("beta",), (1.0,))
    if known.known:
        return known
    return Knob(name="beta", values=(1.0, *(x for x in subject.literals if 1e-6 <= x < 0.5)))


def _observed(subject: Subject, case: Case) -> Seen:
    s = surrogate.flat(probing.observe(subject, case, WRT))
    logp = s.inputs["logprobs"]
    assert isinstance(logp, torch.Tensor)
    if s.grads:
        s.cache["leaf:logprobs"] = logp.clone().requires_grad_(True)
    if "ratio" in subject.bound.names:
        s.cache["uses ratio"] = torch.ones(())
    if s.value.dim() == 2 and "completion_mask" in subject.bound.names:
        where = case.inputs["completion_mask"] > 0
        s.where, s.grad_where = where, {"logprobs": where}
    return s


def _formula_check(seen: list[Seen], base: tuple[Axis, ...], found: Solution | None) -> Check:
    if found is None:
        nearest = {a.name: a.options[0].name for a in base}
        gap = probing.distance(seen, reference, nearest, {"beta": 1.0, "length": 1.0})
        outcome = probing.diverges("no known KL estimator gives these values", gap)
        return Check(probe="kl.formula", asks=ASKS, outcome=outcome)
    convention = solver.convention(base, found, {k: v for k, v in found.knobs.items() if v != 1.0})
    if found.pitfalls:
        gap = probing.distance(seen, reference, probing.right_twin(base, found), found.knobs)
        outcome = probing.known_bug(solver.named(found.pitfalls, {}), convention, gap)
        return Check(probe="kl.formula", asks=ASKS, outcome=outcome)
    return Check(probe="kl.formula", asks=ASKS, outcome=Agrees(convention=convention))


def _filler(subject: Subject) -> Iterator[Check]:
    """Filler behind the mask, of any size: a promise that only some functions make."""
    if not probing.claims(subject, r"filler", r"sentinel", r"arbitrary", r"any (value|size)", r"garbage|junk"):
        return
    asks = "does filler at masked positions stay out of the estimate?"
    base = example({})
    mask = base.inputs["completion_mask"] > 0
    logp = base.inputs["logprobs"].where(mask, torch.tensor(0.0))
    ref = base.inputs["ref_logprobs"].where(mask, torch.tensor(150.0))
    try:
        plain = _observed(subject, base)
        again = _observed(
            subject, Case(name="filler behind the mask", inputs={**base.inputs, "logprobs": logp, "ref_logprobs": ref})
        )
    except CallFailed as e:
        yield probing.raised("kl.filler", asks, "filler behind the mask", e)
        return
    both = (again.value, plain.value)
    found = tolerance.gap("value", "filler behind the mask", *both, "float32")
    if found is None:
        yield probing.holds("kl.filler", asks, "masked positions are never read")
        return
    says = "filler at masked positions changes the result (exp overflows before the mask is applied)"
    yield probing.violation("kl.filler", asks, says, estimators.OVERFLOW, gap=found)


ROLE = Role(
    name="kl",
    stage="loss",
    asks="log-probs of policy and reference -> KL estimates [B, T], or their mean",
    takes=(
        "logprobs", "ref_logprobs", "completion_mask", "old_logprobs", "ratio", "attention_mask", "kl_estimator",
        "beta", "token_count",
    ),
    needs=(("logprobs",), ("ref_logprobs",)),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=(
        estimators.ESTIMATOR, estimators.REVERSED, estimators.SIGN, estimators.NOT_ZERO, estimators.NO_SQUARE,
        estimators.OVERFLOW,
        surrogate.AGGREGATION,
        surrogate.PADDED_DENOMINATOR, surrogate.MASK_MISSING, surrogate.MASK_INVERTED, surrogate.MASK_SHIFT,
        surrogate.MASK_NUMERATOR,
    ),
)  # fmt: skip
