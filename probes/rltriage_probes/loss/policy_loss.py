"""Policy losses: a clipped surrogate and, inside the same function, a KL term and an entropy bonus.

The three parts add up, so each is observed alone: the surrogate as loss(A) - loss(0), the KL term as loss(A = 0), the
entropy bonus as the difference that entropies make. Formulas: `surrogate.py` and `estimators.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import probing, solver, tolerance
from rltriage_probes.contract import Agrees, Check, Gap, Named, Outcome, Severity
from rltriage_probes.invoke import cotangent
from rltriage_probes.loss import estimators, sampler, surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen, Solution

ASKS = "which surrogate, ratio and mean make up this loss?"
WRT = ("logprobs", "ratio", "log_ratio", "negative_log_ratio")

NOT_FINITE = Pitfall(id="LOSS-NOT-FINITE", family="nonfinite", says="gives NaN or inf on ordinary inputs")
NO_GRADIENT = Pitfall(
    id="LOSS-NO-GRADIENT", family="gradient-cut", says="returns a loss that no gradient flows through"
)
WRONG_WAY = Pitfall(
    id="LOSS-WRONG-WAY",
    family="sign",
    says="pushes tokens with a positive advantage down and those with a negative one up",
)
MIXED_ROW = Pitfall(
    id="LOSS-MIXED-ROW", family="axis", says="gives tokens of one response gradients of opposite direction on-policy"
)
READS_MASKED = Pitfall(
    id="LOSS-MASK-LEAK", family="mask-leak", says="lets log-probs at masked positions into the loss or its gradient"
)
ENTROPY_SIGN = Pitfall(
    id="LOSS-ENTROPY-SIGN", family="sign", says="adds the entropy to the loss, so exploration is punished"
)

# Cases

_DELTAS = (0.03, -0.04, 0.21, 0.3, -0.25, -0.5, 1.4, -1.3, 0.1, -0.12, 0.262, 0.6, -0.21, 0.17, 2.6, -0.02)
"""new - old: on every side of 0.2, 0.28, 1 and of a dual clip of 3."""


def example(intent: Mapping[str, Any]) -> Case:
    """Rows of unequal length, both signs of the advantage, ratios on every side of every usual bound."""
    return seeded("straddling ratios")


def seeded(name: str) -> Case:
    """The case of that name: always the same inputs."""
    b, t = 6, 8
    g = probing.generator(name)
    lengths = torch.tensor([8, 5, 3, 7, 2, 6])
    mask = (torch.arange(t)[None] < lengths[:, None]).float()
    mask[0, 3] = 0.0
    logp = -torch.rand(b, t, generator=g) * 3 - 0.05
    order = torch.randperm(b * t, generator=g) % len(_DELTAS)
    delta = torch.tensor(_DELTAS)[order].view(b, t) * (0.9 + 0.2 * torch.rand(b, t, generator=g))
    ref = logp + torch.randn(b, t, generator=g) * 0.7
    advantages = torch.tensor([1.3, -0.8, 0.6, -1.7, -0.4, 0.9]) * (0.8 + 0.4 * torch.rand(b, generator=g))
    return _filled(name, logp, logp - delta, ref, advantages, mask)


def _filled(name: str, logp: Tensor, old: Tensor, ref: Tensor, advantages: Tensor, mask: Tensor) -> Case:
    """A critic that is right everywhere, so that a value loss in the same function is 0."""
    b, t = mask.shape
    values = torch.linspace(-1.0, 1.0, b * t).view(b, t)
    return Case(
        name=name,
        inputs={
            "logprobs": logp, "old_logprobs": old, "ref_logprobs": ref, "rollout_logprobs": old.clone(),
            "advantages": advantages, "completion_mask": mask, "attention_mask": mask.long(),
            "lengths": mask.sum(-1).long(),
            "ratio": (logp - old).exp(), "log_ratio": logp - old, "negative_log_ratio": old - logp,
            "entropies": torch.zeros(b, t), "token_count": 1.5 * float(mask.sum()), "row_count": float(b),
            "token_ids": torch.arange(b * t).view(b, t) % 9 + 3, "max_completion_length": surrogate.PASSED_LENGTH,
            "group_size": 2,
            "values": values, "old_values": values.clone(), "returns": values.clone(),
        },
    )  # fmt: skip


# Observing


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What was seen of each part, on every case."""

    policy: list[Seen]
    kl: list[Seen]
    reduced: surrogate.Reduced
    graph: bool
    """Whether any gradient flows through the loss."""


def observe(subject: Subject, case: Case) -> tuple[Seen, Seen, bool]:
    """The surrogate alone, the rest alone, and whether any gradient came. Raises `CallFailed`."""
    full = surrogate.flat(probing.observe(subject, case, WRT))
    rest = surrogate.flat(
        probing.observe(subject, case, WRT, {"advantages": torch.zeros_like(case.inputs["advantages"])})
    )
    grads = {k: full.grads.get(k, 0.0) - rest.grads.get(k, 0.0) for k in {*full.grads, *rest.grads}}
    policy = Seen(
        case=case.name, inputs=full.inputs, value=full.value - rest.value,
        grads={k: g for k, g in grads.items() if isinstance(g, Tensor)}, dtype=full.dtype,
    )  # fmt: skip
    for s in (policy, rest):
        _prepare(subject, case, s)
    policy.again = lambda inputs: observe(subject, Case(name=case.name, inputs=inputs))[0]
    rest.again = lambda inputs: observe(subject, Case(name=case.name, inputs=inputs))[1]
    noise = torch.full((), 4e-7 * float(full.value.abs().max() + rest.value.abs().max()), dtype=torch.float64)
    policy.cache["conditioning"] = noise
    return policy, rest, bool(full.grads)


def _prepare(subject: Subject, case: Case, s: Seen) -> None:
    """Leaves for the reference, and which elements count where the function does not reduce."""
    for word in WRT:
        if word in subject.bound.names:
            value = s.inputs[word]
            assert isinstance(value, Tensor)
            s.cache["leaf:" + word] = value.clone().requires_grad_(True)
    if s.value.dim() == 2:
        where = case.inputs["completion_mask"] > 0
        s.where, s.grad_where = where, dict.fromkeys(WRT, where)


# Reference of the rest

SEQUENCE_WEIGHTED = Option(
    name="k3 weighted by sequence",
    says="k3 times the ratio of the sequence",
    source="TRL GRPOTrainer: use_bias_correction_kl with importance_sampling_level = sequence",
)


def rest_reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """β · agg(KL) of one case, advantages being 0."""
    if options["estimator"] == "none":
        value = torch.zeros_like(s.value)
        return Result(value=value, grads=lambda: surrogate.gradients(value, s))
    key = ("kl", *(options[k] for k in ("estimator", "direction", "gradient")))
    tokens = s.remember(key, lambda: _kl_tokens(s, options))
    factor = -knobs["beta"] if options["kl sign"] == "minus" else knobs["beta"]
    value = surrogate.aggregated(tokens, s, options, knobs, key) * factor
    return Result(value=value, grads=lambda: surrogate.gradients(value, s))


def _kl_tokens(s: Seen, options: Options) -> Tensor:
    estimate = estimators.reversed_estimate if options["direction"] == "reversed" else estimators.estimate
    logp, ref = surrogate.tensor(s, "logprobs"), surrogate.tensor(s, "ref_logprobs")
    by_sequence = options["estimator"] == SEQUENCE_WEIGHTED.name
    name = "k3 weighted" if by_sequence else options["estimator"]
    level = "sequence" if by_sequence else "token"
    out = estimate(name, logp, ref, lambda: surrogate.ratio_at(s, level))
    return out.detach() if options["gradient"] == "cut" else out


def rest_axes(subject: Subject, reduced: surrogate.Reduced) -> tuple[Axis, ...]:
    """The axes of the KL term as they concern this function."""
    none = Option(name="none", standing="standard", says="no KL term")
    if "ref_logprobs" not in subject.bound.names:
        estimator = Axis(name="estimator", options=(none,))
    else:
        with_ratio = "old_logprobs" in subject.bound.names
        wanted = estimators.wanted(subject)
        inner = estimators.estimator_axis(with_ratio=with_ratio, wanted=wanted, pitfall=estimators.ESTIMATOR)
        # a weight that is known to be 0 switches the term off
        at = 0 if subject.bound.settings.get("beta") == 0 else 1
        more = (probing.wrong_here(SEQUENCE_WEIGHTED, estimators.ESTIMATOR, wanted not in ("", "k3", "k3+")),)
        options = (*inner.options[:at], none, *inner.options[at:], *(more if with_ratio else ()))
        estimator = Axis(name="estimator", options=options)
    on = lambda o: o["estimator"] != "none"  # noqa: E731
    plain = surrogate.aggregation(subject, reduced)
    mask = surrogate.masking(subject, reduced)
    return (
        estimator,
        estimators.direction_axis(subject, on),
        Axis(
            name="kl sign",
            options=(Option(name="plus", standing="standard"), probing.as_pitfall("minus", estimators.SIGN)),
            when=on,
        ),
        Axis(
            name="gradient",
            options=(Option(name="flows", standing="standard"), probing.as_pitfall("cut", estimators.DETACHED)),
            when=on,
        ),
        Axis(name=plain.name, options=plain.options, when=on),
        Axis(name=mask.name, options=mask.options, when=on),
    )  # fmt: skip


# Knobs


def clip_knobs(subject: Subject) -> tuple[Knob, ...]:
    """Clip distances, caps and the constant denominator: known, written in the function, or usual."""
    clipping = lambda o: o["surrogate"] in surrogate.CLIPPING  # noqa: E731
    two = ("apart", "high for both")
    upper = surrogate.UPPER_ONLY
    apart = lambda o: (clipping(o) and o["bounds"] in two) or o["surrogate"] in upper  # noqa: E731
    dual = lambda o: o["surrogate"].startswith("dual")  # noqa: E731
    absolute = lambda o: o["surrogate"] == "cispo absolute"  # noqa: E731
    return (
        _clip_knob(subject, "clip_low", ("clip_low", "clip"), (0.2, 3e-4, 0.1), clipping, fit=(1e-4, 5.0)),
        _clip_knob(subject, "clip_high", ("clip_high", "clip"), (0.28, 4e-4, 0.272, 0.2), apart),
        probing.knob(
            subject, "dual_clip", ("dual_clip",), (3.0, 4.0, 10.0), active=dual, within=(1.01, 1e2)
        ),
        probing.knob(
            subject, "cap", ("clip_high", "clip"), (5.0,), active=absolute, within=(1.01, 1e2)
        ),
        surrogate.length_knob(subject),
    )  # fmt: skip


def _clip_knob(
    subject: Subject, name: str, words: tuple[str, ...], usual: tuple[float, ...], active: Callable[[Options], bool],
    fit: tuple[float, float] | None = None,
) -> Knob:  # fmt: skip
    """A clip distance; a function that hard-codes it writes 0.2, or the bounds 0.8 and 1.2."""
    known = probing.knob(subject, name, words, usual, active=active)
    if known.known:
        return known
    upper = name == "clip_high"
    other = subject.bound.settings.get("clip_high")
    usual = (float(other), *usual) if isinstance(other, (int, float)) and not isinstance(other, bool) else usual
    written = [
        x if x <= 0.5 or (upper and x < 1.0) else round(abs(x - 1), 12)
        for x in subject.literals
        if 1e-5 <= x < (3.0 if upper else 1.0) and x != 1.0
    ]
    return Knob(
        name=name,
        values=tuple(dict.fromkeys([*written[:6], *usual]))[: max(len(written[:6]) + 1, 3)],
        active=active,
        fit=fit,
    )


def beta_knob(subject: Subject) -> Knob:
    """The KL weight."""
    return probing.knob(
        subject, "beta", ("beta",), (0.04, 0.01, 0.001, 0.1, 1.0), active=lambda o: o["estimator"] != "none",
        fit=(1e-6, 1e3), within=(1e-8, 1e3),
    )  # fmt: skip


# The probe

BUDGET = 30_000
"""Combinations tried for the surrogate: two pitfalls with a usual rest lie well before that."""


def run(subject: Subject) -> Iterator[Check]:
    """Surrogate, KL term, entropy bonus; then relations that need no formula."""
    names = subject.bound.names
    try:
        seen = [observe(subject, seeded(n)) for n in ("straddling ratios", "other ratios")]
    except CallFailed as e:
        yield probing.raised("policy_loss.formula", ASKS, "straddling ratios", e)
        return
    first = seen[0][0]
    if not bool(_compared(first).isfinite().all()):
        yield probing.violation(
            "policy_loss.finite", "is the loss finite?", "the loss is NaN or inf on ordinary log-probs", NOT_FINITE
        )
        return
    parts = Parts(
        policy=[p for p, _, _ in seen], kl=[k for _, k, _ in seen], reduced=surrogate.reduction(first.value),
        graph=any(g for _, _, g in seen),
    )  # fmt: skip
    subject.progress(1, 3, "surrogate")
    policy = _solve_policy(subject, parts)
    yield _policy_check(subject, parts, policy)
    if policy is None:
        yield from _relations(subject, parts)
    subject.progress(2, 3, "KL term")
    if "ref_logprobs" in names or _has_rest(parts):
        yield from _rest_check(subject, parts, policy)
    if "entropies" in names:
        yield from _entropy_check(subject)
    if policy is not None and not policy.pitfalls and "completion_mask" in names:
        yield from _unread_mask(subject, parts, policy)
        yield from _masked_filler(subject)
    if {"rollout_logprobs", "old_logprobs"} <= names:
        yield from _sampler_check(subject, parts, policy)


def _sampler_check(subject: Subject, parts: Parts, policy: Solution | None) -> Iterator[Check]:
    """Where sampler and trainer agree, a floor above 1 is a factor: so a surrogate with a factor counts too."""
    scaled = _scaled(subject, parts) if policy is None else None
    base = policy if scaled is None else scaled[0]
    if base is not None and not base.pitfalls:
        yield from sampler.check(subject, seeded("straddling ratios"), base, observe)


def _has_rest(parts: Parts) -> bool:
    return any(float(_compared(s).abs().max()) > 1e-7 for s in parts.kl)


def _compared(s: Seen) -> Tensor:
    return s.value if s.where is None else s.value[s.where]


def _solve_policy(subject: Subject, parts: Parts) -> Solution | None:
    axes = surrogate.axes(subject, parts.reduced)
    return solver.solve(
        parts.policy, surrogate.reference, axes, clip_knobs(subject), budget=BUDGET, quick=surrogate.quick
    )


def _policy_check(subject: Subject, parts: Parts, policy: Solution | None) -> Check:
    axes = surrogate.axes(subject, parts.reduced)
    outcome: Outcome
    if policy is None:
        outcome = _nearest(subject, parts, axes)
    else:
        shown = {
            k: v for k, v in policy.knobs.items() if k != "length" or "max_completion_length" not in subject.bound.names
        }
        convention = solver.convention(axes, policy, shown)
        if policy.pitfalls:
            gap = probing.distance(
                parts.policy, surrogate.reference, probing.right_twin(axes, policy), _all_knobs(policy)
            )
            named = [
                _without_graph(n) if not parts.graph else n for n in solver.named(policy.pitfalls, dict(policy.knobs))
            ]
            outcome = probing.known_bug(named, convention, gap, _severity(subject, policy))
        else:
            outcome = Agrees(convention=convention)
    return Check(probe="policy_loss.formula", asks=ASKS, outcome=outcome)


def _without_graph(named: Named) -> Named:
    """Where nothing at all has a gradient, the cut is not one of the ratio alone."""
    if named.family != "gradient-cut":
        return named
    return Named(pitfall=NO_GRADIENT.id, family=NO_GRADIENT.family, says=NO_GRADIENT.says, numbers=named.numbers)


def _all_knobs(policy: Solution) -> Knobs:
    return {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "cap": 5.0, "length": 1.0, **policy.knobs}


def _severity(subject: Subject, policy: Solution) -> Severity:
    """Soft where what looks wrong here may be what the caller asks for or undoes."""
    ids = {o.pitfall for o in policy.pitfalls}
    if ids == {surrogate.SIGN} and probing.claims(subject, r"maximi[sz]", r"objective \(not", r"to be ascended"):
        return "soft"
    if ids <= {surrogate.AGGREGATION, surrogate.PADDED_DENOMINATOR} and surrogate.excused(subject, policy.options):
        return "soft"
    return "hard"


def _nearest(subject: Subject, parts: Parts, axes: tuple[Axis, ...]) -> Outcome:
    """No combination fits: say whether a right one fits but for a global factor."""
    scaled = _scaled(subject, parts)
    if scaled is not None:
        solution, factor = scaled
        says = f"equals {solver.convention(axes, solution).summary}, times {factor:.6g}"
        return probing.diverges(says, None, {"factor": factor})
    standard = {a.name: a.options[0].name for a in axes}
    gap = probing.distance(
        parts.policy, surrogate.reference, standard, {"clip_low": 0.2, "clip_high": 0.2, "length": 1.0}
    )
    return probing.diverges("no known surrogate gives this loss", gap)


def _scaled(subject: Subject, parts: Parts) -> tuple[Solution, float] | None:
    """A right combination that fits but for a global factor, and that factor."""
    knobs = clip_knobs(subject)
    for options, _ in solver.combinations(surrogate.axes(subject, parts.reduced), 0):
        values = {k.name: k.values[0] for k in knobs if k.active(options)}
        if not _proportional(parts.policy, surrogate.reference, options, values):
            continue
        factors = [f for s in parts.policy if (f := _factor(s, surrogate.reference(s, options, values))) is not None]
        if len(factors) == len(parts.policy):
            return Solution(options=options, knobs=values, pitfalls=()), factors[0]
    return None


def _proportional(seen: list[Seen], reference: solver.Reference, options: Options, knobs: Knobs) -> bool:
    """Whether the values of all cases are the same multiple of the reference's; gradients, which cost more, aside."""
    factors: list[float] = []
    for s in seen:
        expected = reference(s.plain(), options, knobs).value
        if s.value.dim() != 0 or expected.dim() != 0 or abs(float(expected)) < 1e-12 or abs(float(s.value)) < 1e-12:
            return False
        factors.append(float(s.value) / float(expected))
    return abs(factors[0] / factors[-1] - 1) < 1e-3


def _factor(s: Seen, want: Result) -> float | None:
    if s.value.dim() != 0:
        return None
    expected = want.value.detach()
    if float(expected.abs()) < 1e-12 or float(s.value.abs()) < 1e-12:
        return None
    factor = float(s.value / expected)
    for word, g in want.grads().items():
        have = s.grads.get(word)
        if have is None or not tolerance.equal(have / factor, g, "float16"):
            return None
    return factor


# KL and entropy


def _rest_check(subject: Subject, parts: Parts, policy: Solution | None) -> Iterator[Check]:
    asks = "which estimator of the KL to the reference is added?"
    probe = "policy_loss.kl"
    axes = rest_axes(subject, parts.reduced)
    if policy is not None:
        axes = tuple(_like(a, policy) for a in axes)
    knobs = (beta_knob(subject), surrogate.length_knob(subject))
    found = solver.solve(parts.kl, rest_reference, axes, knobs)
    if found is None:
        yield Check(probe=probe, asks=asks, outcome=_nearest_rest(subject, parts, axes))
        return
    convention = solver.convention(axes, found, {k: v for k, v in found.knobs.items() if k != "length"})
    named = list(solver.named(found.pitfalls, dict(found.knobs)))
    severity: Severity = "hard"
    if found.options["estimator"] == "none" and _weighs(subject):
        p = estimators.MISSING
        named.append(Named(pitfall=p.id, family=p.family, says=p.says, numbers={"beta": _beta(subject)}))
        severity = "soft" if _switched(subject) else "hard"
    if named:
        knobs_ = {"beta": _beta(subject) or 0.04, "length": 1.0, **found.knobs}
        twin = probing.right_twin(axes, found)
        if twin["estimator"] == "none":
            twin["estimator"] = "k3"
        gap: Gap | None = probing.distance(parts.kl, rest_reference, twin, knobs_)
        yield Check(probe=probe, asks=asks, outcome=probing.known_bug(named, convention, gap, severity))
    elif found.options["estimator"].startswith("k1"):
        p = estimators.K1_LOSS
        says = "adds the plain log-ratio (k1) to the loss: over tokens of the policy its gradient averages 0"
        yield probing.violation(probe, asks, says, p, severity="soft")
    else:
        yield Check(probe=probe, asks=asks, outcome=Agrees(convention=convention))


def _nearest_rest(subject: Subject, parts: Parts, axes: tuple[Axis, ...]) -> Outcome:
    """No KL term with the weight that is known: say whether one fits with another weight."""
    for options, _ in solver.combinations(axes, 0):
        if not _proportional(parts.kl, rest_reference, options, {"beta": 1.0, "length": 1.0}):
            continue
        weights = [_factor(s, rest_reference(s, options, {"beta": 1.0, "length": 1.0})) for s in parts.kl]
        if None not in weights and abs(weights[0] / weights[-1] - 1) < 1e-3:  # type: ignore[operator]
            words = solver.convention(axes, Solution(options=options, knobs={}, pitfalls=())).summary
            weight: float = weights[0]  # type: ignore[assignment]
            return probing.diverges(f"equals {words}, with weight {weight:.6g}", None, {"weight": weight})
    standard = {a.name: a.options[0].name for a in axes}
    gap = probing.distance(parts.kl, rest_reference, standard, {"beta": 0.04, "length": 1.0})
    has_reference = "ref_logprobs" in subject.bound.names
    says = (
        "with advantages of 0 the loss is not a known KL term"
        if has_reference
        else "a part of the loss has no advantage in it"
    )
    return probing.diverges(says, gap)


def _like(axis: Axis, policy: Solution) -> Axis:
    """Aggregation and mask of the KL term: first those of the surrogate, which is what most code shares."""
    name = policy.options.get(axis.name)
    options = sorted(axis.options, key=lambda o: (o.standing == "pitfall", o.name != name))
    if axis.name in ("agg", "mask") and any(p.name == name for p in policy.pitfalls):
        same = next(o for o in axis.options if o.name == name)
        options = [Option(name=same.name, standing="standard"), *(o for o in options if o.name != name)]
    return Axis(
        name=axis.name, options=tuple(options) if axis.name in ("agg", "mask") else axis.options, when=axis.when
    )


def _beta(subject: Subject) -> float:
    value = subject.bound.settings.get("beta")
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0


def _weighs(subject: Subject) -> bool:
    return "ref_logprobs" in subject.bound.names and _beta(subject) > 0.0


def _switched(subject: Subject) -> bool:
    """Whether the function has a switch for the KL term, which may be off here."""
    return (
        re.search(r"(use|with|add|enable|apply|has)_\w*(kl|ref)|kl_in_|(kl|ref)\w*_(enabled|on)\b", subject.source)
        is not None
    )


def _entropy_check(subject: Subject) -> Iterator[Check]:
    """A bonus is linear in the entropies and apart from the advantages; other uses of them are not judged."""
    asks = "does the entropy term reward exploration?"
    case = seeded("straddling ratios")
    ones = torch.ones_like(case.inputs["entropies"])
    zero = torch.zeros_like(case.inputs["advantages"])
    tries = (
        {},
        {"entropies": ones},
        {"entropies": 2 * ones},
        {"advantages": zero},
        {"advantages": zero, "entropies": ones},
    )
    try:
        got = [float(_compared(_prepared(subject, case, t)).sum()) for t in tries]
    except CallFailed as e:
        yield probing.raised("policy_loss.entropy", asks, case.name, e)
        return
    change, double, alone = got[1] - got[0], got[2] - got[0], got[4] - got[3]
    coefficient = subject.bound.settings.get("entropy_coef")
    near = 1e-3 * abs(change) + 1e-6
    if abs(double - 2 * change) > 2 * near or abs(alone - change) > near:
        yield probing.holds("policy_loss.entropy", asks, "the entropies weight or select tokens; no plain bonus")
    elif change > 1e-6 and (not isinstance(coefficient, (int, float)) or coefficient > 0):
        says = f"raising every entropy by 1 raises the loss by {change:.4g}; a bonus lowers it"
        yield probing.violation("policy_loss.entropy", asks, says, ENTROPY_SIGN, numbers={"change": change})
    else:
        words = "no entropy bonus" if abs(change) <= 1e-6 else f"entropy bonus, weight {-change:.4g}"
        yield probing.holds("policy_loss.entropy", asks, words)


def _prepared(subject: Subject, case: Case, overrides: Mapping[str, Any]) -> Seen:
    s = surrogate.flat(probing.observe(subject, case, (), overrides))
    if s.value.dim() == 2:
        s.where = case.inputs["completion_mask"] > 0
    return s


# Relations


def _relations(subject: Subject, parts: Parts) -> Iterator[Check]:
    """On-policy every clip is open: whatever the surrogate, a positive advantage must raise the log-prob."""
    if "logprobs" not in subject.bound.names or "advantages" not in subject.bound.names:
        return
    asks = "on-policy, does the gradient raise the log-probs of rows with a positive advantage, and lower the others?"
    base = seeded("straddling ratios")
    inputs = {
        **base.inputs,
        "old_logprobs": base.inputs["logprobs"].clone(),
        "rollout_logprobs": base.inputs["logprobs"].clone(),
    }
    try:
        policy, _, graph = observe(subject, Case(name="on policy", inputs=inputs))
    except CallFailed:
        return
    g = policy.grads.get("logprobs")
    if g is None or float(g.abs().max()) == 0.0:
        says = "the loss does not depend on the log-probs through the advantages: its gradient is 0 everywhere"
        cut = (surrogate.RATIO_DETACHED, NO_GRADIENT) if graph else (NO_GRADIENT, surrogate.RATIO_DETACHED)
        yield probing.violation("policy_loss.direction", asks, says, *cut)
        return
    if parts.reduced == "tokens":
        return  # what each token's loss does to the others' log-probs can't be told from their weighted sum
    if parts.reduced == "rows":
        g = g / cotangent(policy.value.shape)[:, None]
    mask = base.inputs["completion_mask"] > 0
    yield _direction(g, base.inputs["advantages"].double()[:, None].expand_as(g), mask, asks)
    if "completion_mask" in subject.bound.names and bool((g.abs() > 1e-6 * g.abs().max())[~mask].any()):
        says = "log-probs at masked positions get a gradient"
        yield probing.violation(
            "policy_loss.masked", "is nothing trained where the mask is 0?", says, READS_MASKED,
            surrogate.MASK_MISSING, surrogate.MASK_INVERTED,
        )  # fmt: skip


def _direction(g: Tensor, a: Tensor, mask: Tensor, asks: str) -> Check:
    """Which way the trained tokens of each row move, compared with the row's advantage."""
    probe = "policy_loss.direction"
    matters = mask & (g.abs() > 1e-3 * g.abs().max())
    against = (g * a > 0) & matters
    total = max(1, int(matters.sum()))
    share = float(against.sum()) / total
    mixed = int((against.any(1) & (matters & ~against).any(1)).sum())
    if share > 0.95:
        says = f"{share:.0%} of the trained tokens are pushed against their advantage"
        return probing.violation(probe, asks, says, WRONG_WAY, surrogate.SIGN, surrogate.ADV_SIGN)
    if mixed:
        says = f"in {mixed} of {len(g)} rows some tokens move with the advantage of their row and some against it"
        return probing.violation(probe, asks, says, MIXED_ROW, surrogate.ADV_AXIS)
    if share > 0.02:
        says = (
            f"{share:.0%} of the trained tokens, in whole rows, are pushed against their advantage; "
            "a baseline inside the loss may do that"
        )
        return probing.violation(probe, asks, says, WRONG_WAY, surrogate.ADV_AXIS, severity="soft")
    return probing.holds(probe, asks, "tokens move with the advantage of their row")


def _unread_mask(subject: Subject, parts: Parts, policy: Solution) -> Iterator[Check]:
    """Per-token advantages of the cases are 0 on padding, as trainers have it: a loss may lean on that."""
    if parts.reduced != "scalar" or policy.options["agg"] not in ("padded", "sum"):
        return
    asks = "does the mask matter where the advantages are not 0 on padding?"
    base = seeded("straddling ratios")
    spread = base.inputs["advantages"][:, None].expand_as(base.inputs["completion_mask"]).clone()
    try:
        with_mask = probing.observe(subject, base, (), {"advantages": spread})
        without = probing.observe(
            subject,
            base,
            (),
            {"advantages": spread, "completion_mask": torch.ones_like(base.inputs["completion_mask"])},
        )
    except (CallFailed, ValueError):
        return
    if tolerance.gap("value", "full mask", without.value, with_mask.value, "float32") is None:
        says = (
            "the result is the same whatever the mask; that is right only where advantages come with zeros on padding"
        )
        yield probing.violation("policy_loss.mask", asks, says, surrogate.MASK_MISSING, severity="soft")


def _masked_filler(subject: Subject) -> Iterator[Check]:
    """Filler of any size behind the mask. Much shipped code fails this harmlessly, so only a promise counts."""
    asks = "does filler at masked positions stay out of the loss?"
    base = seeded("straddling ratios")
    mask = base.inputs["completion_mask"] > 0
    filler = {"logprobs": 0.0, "old_logprobs": -150.0, "ref_logprobs": 120.0, "rollout_logprobs": -150.0}
    inputs = {k: v.where(mask, torch.tensor(filler[k])) if k in filler else v for k, v in base.inputs.items()}
    try:
        plain = probing.observe(subject, base)
        again = probing.observe(subject, Case(name="filler behind the mask", inputs=inputs))
    except CallFailed:
        return
    if plain.value.dim() != 0:
        return
    gap = tolerance.gap("value", "filler behind the mask", again.value, plain.value, "float32")
    if gap is None:
        yield probing.holds("policy_loss.filler", asks, "masked positions are never read")
        return
    if not probing.claims(subject, r"filler", r"sentinel", r"(any|whatever|huge|large) (value|size|magnitude)"):
        return
    says = "large log-ratios at masked positions reach the loss (exp overflows before the mask is applied)"
    yield probing.violation("policy_loss.filler", asks, says, estimators.OVERFLOW, gap=gap)


ROLE = Role(
    name="policy_loss",
    stage="loss",
    asks="log-probs, old log-probs, advantages, mask -> scalar loss, or token losses [B, T]",
    takes=(
        "logprobs", "old_logprobs", "advantages", "completion_mask", "ref_logprobs", "rollout_logprobs", "ratio",
        "log_ratio", "negative_log_ratio", "entropies", "attention_mask", "lengths", "token_ids", "token_count",
        "row_count", "clip", "clip_low", "clip_high", "dual_clip", "beta", "entropy_coef", "aggregation", "loss_type",
        "ratio_level", "kl_estimator", "max_completion_length", "group_size", "temperature", "values", "old_values",
        "returns", "clip_value",
    ),
    needs=(("logprobs", "ratio", "log_ratio", "negative_log_ratio"), ("advantages",)),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=(
        *surrogate.PITFALLS, estimators.ESTIMATOR, estimators.K1_LOSS, estimators.REVERSED, estimators.SIGN,
        estimators.DETACHED, estimators.NOT_ZERO, estimators.NO_SQUARE, estimators.MISSING, estimators.OVERFLOW,
        NOT_FINITE, NO_GRADIENT, WRONG_WAY, MIXED_ROW,
        READS_MASKED, ENTROPY_SIGN, sampler.INVERTED, sampler.BOUND,
    ),
)  # fmt: skip
