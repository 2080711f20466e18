"""KL(policy || reference) as a function of its own: an estimate on sampled tokens, or the sum over the vocabulary.

    KL[b, t] = Σ_v p(v) (log p(v) - log q(v)),   p = softmax(z_policy),  q = softmax(z_reference)

Formulas of the estimates and their sources: `estimators.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rltriage_probes import formula, probing, tolerance
from rltriage_probes.contract import Check
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.loss import estimators, surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "which estimator of KL(policy || reference) is this?"
WRT = ("logprobs", "logits")
VOCABULARY = 9
WHOLE_ASKS = "is this the KL divergence of the two softmax distributions?"

NOT_NORMALISED = Pitfall(
    id="KL-RAW-LOGITS", family="normalisation", says="takes differences of logits where log-probabilities are wanted"
)
VOCABULARY_MEAN = Pitfall(
    id="KL-VOCAB-MEAN", family="denominator", says="averages over the vocabulary, where the KL is a sum over it"
)


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
    logits = torch.randn(b, t, VOCABULARY, generator=g) * 1.5
    inputs = {
        "logprobs": logp, "ref_logprobs": ref, "old_logprobs": old, "completion_mask": mask,
        "attention_mask": mask.long(), "lengths": lengths, "ratio": (logp - old).exp(),
        "token_count": 1.5 * float(mask.sum()), "row_count": float(b), "logits": logits,
        "ref_logits": logits + torch.randn(b, t, VOCABULARY, generator=g) * 0.8, "temperature": 0.7,
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


def axes(subject: Subject, reduced: surrogate.Reduced) -> tuple[Axis, ...]:
    """Estimator, direction, sign, gradient; and the mean where the function averages."""
    with_ratio = bool(subject.bound.names & {"old_logprobs", "ratio"})
    return (
        estimators.estimator_axis(
            with_ratio=with_ratio, wanted=estimators.wanted(subject), pitfall=estimators.ESTIMATOR
        ),
        # the sign first: for k1 the exchange of policy and reference is the same, and says less of what it does
        _sign(),
        estimators.direction_axis(subject),
        surrogate.aggregation(subject, reduced),
        surrogate.masking(subject, reduced),
    )


def _sign() -> Axis:
    plus = Option(name="plus", standing="standard")
    return Axis(name="sign", options=(plus, probing.as_pitfall("minus", estimators.SIGN)))


def whole_axes(subject: Subject, reduced: surrogate.Reduced) -> tuple[Axis, ...]:
    """Form, direction and mean of a KL over the whole vocabulary."""
    forms = (
        Option(name="kl", standing="standard", says="KL over the whole vocabulary"),
        Option(name="jsd", says="Jensen-Shannon divergence, beta=0.5", source="GKD, arXiv:2306.13649"),
        probing.as_pitfall("raw logits", NOT_NORMALISED),
        probing.as_pitfall("vocabulary mean", VOCABULARY_MEAN),
    )
    known = "temperature" in subject.bound.names
    tempered = Option(name="divided", standing="standard", says="logits divided by the temperature")
    temperature = (
        (tempered, Option(name="none", says="temperature not used"))
        if known
        else (Option(name="none", standing="standard"),)
    )
    return (
        Axis(name="form", options=forms), Axis(name="temperature", options=temperature), _sign(),
        estimators.direction_axis(subject), surrogate.aggregation(subject, reduced),
        surrogate.masking(subject, reduced),
    )  # fmt: skip


def whole_reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """The sum over the vocabulary of the module's docstring, [B, T] or averaged."""
    key = ("whole", options["form"], options["direction"], options["temperature"])
    tokens = s.remember(key, lambda: _whole(s, options))
    factor = -knobs["beta"] if options["sign"] == "minus" else knobs["beta"]
    value = surrogate.aggregated(tokens, s, options, knobs, key) * factor
    return Result(value=value, grads=lambda: surrogate.gradients(value, s))


def _whole(s: Seen, options: Options) -> torch.Tensor:
    t = float(s.inputs["temperature"]) if options["temperature"] == "divided" else 1.0  # type: ignore[arg-type]
    mine, other = surrogate.tensor(s, "logits") / t, surrogate.tensor(s, "ref_logits").detach() / t
    log_p, log_q = mine.log_softmax(-1), other.log_softmax(-1)
    if options["direction"] == "reversed":
        log_p, log_q, mine, other = log_q, log_p, other, mine
    if options["form"] == "raw logits":
        return (log_p.exp() * (mine - other)).sum(-1)
    if options["form"] == "jsd":
        middle = torch.logaddexp(log_p, log_q) - 0.6931471805599453
        halves = (log_p.exp() * (log_p - middle)).sum(-1), (log_q.exp() * (log_q - middle)).sum(-1)
        return (halves[0] + halves[1]) / 2
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    return kl / mine.shape[-1] if options["form"] == "vocabulary mean" else kl


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
    whole = "logits" in subject.bound.names
    question = Formula(
        probe="kl.formula", asks=WHOLE_ASKS if whole else ASKS,
        cases=tuple(_case(n) for n in ("log-ratios of both signs", "other log-ratios")),
        reference=whole_reference if whole else reference, observe=_observed,
        axes=lambda seen: (whole_axes if whole else axes)(subject, surrogate.reduction(seen[0].value)),
        knobs=lambda seen: (_weight(subject), surrogate.length_knob(subject)),
        nothing_fits="no known KL gives these values" if whole else "no known KL estimator gives these values",
        hide=lambda knobs: {k: v for k, v in knobs.items() if v != 1.0},
    )  # fmt: skip
    found = formula.judge(subject, question)
    yield found.check
    if not found.right:
        return
    yield from _without_gradient(subject, found)
    if not whole and "completion_mask" in subject.bound.names:
        yield from _filler(subject)


def _without_gradient(subject: Subject, found: Judged) -> Iterator[Check]:
    """In a reward the KL needs no gradient, as a term of the loss it does."""
    if any(s.grads for s in found.seen):
        return
    in_loss = (r"\bloss term", r"term of the loss", r"for the loss\b", r"(added|goes) (in)?to the loss")
    hard = probing.promises_gradient(subject, *in_loss)
    if not hard and not re.search(r"\.detach\(|\.data\b", subject.source):
        return
    if not hard and re.search(r"no_grad|inference_mode", subject.source):
        return
    says = "no gradient reaches the policy's log-probs: fine in a reward, useless as a term of the loss"
    yield probing.violation(
        "kl.gradient",
        "does a gradient reach the policy?",
        says,
        estimators.DETACHED,
        severity="hard" if hard else "soft",
    )


def _weight(subject: Subject) -> Knob:
    """A weight that the function multiplies in: known, or a small number in its source; 1/2 belongs to k2."""
    known = probing.knob(subject, "beta", ("beta",), (1.0,))
    if known.known:
        return known
    return Knob(name="beta", values=(1.0, *(x for x in subject.literals if 1e-6 <= x < 0.5)))


def _observed(subject: Subject, case: Case) -> Seen:
    s = surrogate.flat(probing.observe(subject, case, WRT))
    for word in s.grads:
        given = s.inputs[word]
        assert isinstance(given, torch.Tensor)
        s.cache["leaf:" + word] = given.clone().requires_grad_(True)
    if "ratio" in subject.bound.names:
        s.cache["uses ratio"] = torch.ones(())
    if s.value.dim() == 2 and "completion_mask" in subject.bound.names:
        where = case.inputs["completion_mask"] > 0
        s.where, s.grad_where = where, {"logprobs": where, "logits": where}
    return s


def _filler(subject: Subject) -> Iterator[Check]:
    """Filler behind the mask, of any size: a promise that only some functions make."""
    finite = probing.claims(subject, r"filler", r"sentinel", r"arbitrary", r"any (value|size)", r"garbage|junk")
    fills = [torch.inf] * probing.claims(subject, r"-\s*inf", r"\binfinit") + [torch.nan] * probing.claims(
        subject, r"\bnan\b", r"undefined"
    )
    if not finite and not fills:
        return
    asks = "does filler at masked positions stay out of the estimate?"
    base = example({})
    mask = base.inputs["completion_mask"] > 0
    logp = base.inputs["logprobs"].where(mask, torch.tensor(-fills[0] if fills else 0.0))
    ref = base.inputs["ref_logprobs"].where(mask, torch.tensor(-fills[0] if fills else 150.0))
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
    if found is None and all(bool(g.isfinite().all()) for g in again.grads.values()):
        yield probing.holds("kl.filler", asks, "masked positions are never read")
        return
    says = (
        "filler at masked positions changes the result (exp overflows before the mask is applied)"
        if found is not None
        else "the value is right, but filler at masked positions makes its gradient NaN (0 * inf in the backward pass)"
    )
    yield probing.violation("kl.filler", asks, says, estimators.OVERFLOW, gap=found)


ROLE = Role(
    name="kl",
    stage="loss",
    asks="log-probs of policy and reference -> KL estimates [B, T], or their mean",
    takes=(
        "logprobs", "ref_logprobs", "completion_mask", "old_logprobs", "ratio", "attention_mask", "kl_estimator",
        "beta", "token_count", "logits", "ref_logits", "temperature",
    ),
    needs=(("logprobs", "logits"), ("ref_logprobs", "ref_logits")),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=(
        estimators.ESTIMATOR, estimators.REVERSED, estimators.SIGN, estimators.NOT_ZERO, estimators.NO_SQUARE,
        estimators.OVERFLOW, estimators.DETACHED, NOT_NORMALISED, VOCABULARY_MEAN,
        surrogate.AGGREGATION,
        surrogate.PADDED_DENOMINATOR, surrogate.MASK_MISSING, surrogate.MASK_INVERTED, surrogate.MASK_SHIFT,
        surrogate.MASK_NUMERATOR,
    ),
)  # fmt: skip
