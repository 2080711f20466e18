"""Entropy of the policy's distribution at every position, or its mean over the trained tokens.

H[b, t] = - Σ_v p(v) log p(v),   p = softmax(z[b, t] / T)        in nats

A one-sample estimate of it is -log p of the sampled token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import torch

from rltriage_probes import probing, solver, tolerance
from rltriage_probes.contract import Agrees, Check
from rltriage_probes.logprobs import logprobs
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "is this the entropy of the softmax of the logits?"

SIGN = Pitfall(id="ENT-SIGN", family="sign", says="returns minus the entropy")
LOGITS = Pitfall(id="ENT-RAW-LOGITS", family="normalisation", says="weights raw logits, not log-probabilities, with p")
AXIS = Pitfall(id="ENT-AXIS", family="axis", says="normalises over the positions instead of over the vocabulary")
BANNED = Pitfall(id="ENT-BANNED-NAN", family="nonfinite", says="gives NaN where a token is banned with a logit of -inf")
PADDING = Pitfall(
    id="ENT-PADDING",
    family="mask-missing",
    says="counts the placeholder of padded positions as if it were their entropy",
)
TOP_K = Pitfall(
    id="ENT-TOP-K",
    family="normalisation",
    says="takes the kept tokens' probabilities as they were in the whole vocabulary, which do not sum to 1",
)
GRADIENT = Pitfall(
    id="ENT-GRADIENT",
    family="gradient-cut",
    says="has the value of the entropy but not its gradient, so a bonus trains nothing right",
)


def axes(subject: Subject, reduced: surrogate.Reduced = "tokens") -> tuple[Axis, ...]:
    sampled = (
        (
            Option(
                name="sampled", says="-log p of the sampled token, an estimate of the entropy", source="TRL RLOO, PPO"
            ),
            probing.as_pitfall("sampled negative", SIGN),
        )
        if reduced != "tokens" and "token_ids" in subject.bound.names
        else ()
    )
    return (
        Axis(
            name="form",
            options=(
                Option(name="entropy", standing="standard", says="entropy in nats"),
                Option(name="bits", says="entropy in bits"),
                *sampled,
                *_truncated(subject),
                probing.as_pitfall("negative", SIGN),
                probing.as_pitfall("raw logits", LOGITS),
                probing.as_pitfall("over positions", AXIS),
            ),
        ),
        _whole(logprobs.temperature_axis(subject)),
        surrogate.aggregation(subject, reduced),
        _masking(subject, reduced),
    )


def _truncated(subject: Subject) -> tuple[Option, ...]:
    """Entropies of the k likeliest tokens. A partial sum is a fair estimate where nothing else is promised."""
    if "top_k" not in subject.bound.names:
        return ()
    promised = probing.claims(
        subject, r"re-?normali[sz]", r"proper (distribution|probabilit)", r"sums? (up )?to (1|one)\b",
        r"(distribution|policy|softmax) (truncated|restricted|over the top|of the top)",
    )  # fmt: skip
    partial = Option(name="top k partial", says="terms of the k likeliest tokens alone, not normalised again")
    whole = Option(name="top k", says="entropy of the k likeliest tokens, normalised again", source="arXiv:1805.04833")
    return (whole, probing.wrong_here(partial, TOP_K, promised))


MASKS = ("completion_mask", "attention_mask", "lengths")
"""Words that say which positions count, the first that the function has."""


def _masking(subject: Subject, reduced: surrogate.Reduced) -> Axis:
    own = Option(name="own", standing="standard")
    if reduced == "tokens" or not subject.bound.names & set(MASKS):
        return Axis(name="mask", options=(own,))
    return Axis(
        name="mask",
        options=(
            own,
            probing.as_pitfall("missing", surrogate.MASK_MISSING),
            probing.as_pitfall("sentinel", PADDING),
            probing.as_pitfall("inverted", surrogate.MASK_INVERTED),
            probing.as_pitfall("inverted, own count", surrogate.MASK_INVERTED),
            *(probing.as_pitfall(name, surrogate.MASK_SHIFT) for name in surrogate.SHIFTS),
            probing.as_pitfall("numerator", surrogate.MASK_NUMERATOR),
        ),
    )


def _whole(axis: Axis) -> Axis:
    """Without the options that only a difference of logit and log-sum-exp has."""
    options = tuple(o for o in axis.options if o.pitfall is not logprobs.TEMPERATURE_HALF)
    return Axis(name=axis.name, options=options, needs=axis.needs, when=axis.when)


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """H [B, T], or its aggregate over the positions that count."""
    key = ("entropy", options["form"], options["temperature"], knobs.get("temperature", 1.0))
    each = s.remember(key, lambda: _each(s, options, knobs))
    if options["mask"] == "sentinel":
        mask = surrogate.tensor(s, "completion_mask")
        each = each.where(mask > 0, torch.full_like(each, -knobs["sentinel"]))
        options = {**options, "mask": "numerator"}
        key = (*key, knobs["sentinel"])
    return Result(value=surrogate.aggregated(each, s, options, knobs, key))


def _each(s: Seen, options: Options, knobs: Knobs) -> torch.Tensor:
    z = s.inputs["logits"]
    assert isinstance(z, torch.Tensor)
    return _of_logits(s, s.cache.get("leaf", z), options, knobs)


def _of_logits(s: Seen, z: torch.Tensor, options: Options, knobs: Knobs) -> torch.Tensor:
    """H [B, T] of logits."""
    t, form = knobs.get("temperature", 1.0), options["form"]
    z = logprobs.tempered(z, options["temperature"], t)
    if form == "top k":
        z = z.topk(logprobs.TOP_K, dim=-1).values
    logp = z.log_softmax(1 if form == "over positions" else -1)
    if form == "top k partial":
        logp = logp.topk(logprobs.TOP_K, dim=-1).values
    if form.startswith("sampled"):
        ids = s.inputs["token_ids"]
        assert isinstance(ids, torch.Tensor)
        h = -logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        h = -h if form == "sampled negative" else h
    else:
        p = logp.exp()
        h = (p * z).sum(-1) if form == "raw logits" else -(p * logp).sum(-1)
        h = {"negative": -h, "bits": h / 0.6931471805599453, "raw logits": -h}.get(form, h)
    return h / t if options["temperature"] == "after" else h


def run(subject: Subject) -> Iterator[Check]:
    try:
        seen = [
            probing.repeatable(_observed, subject, logprobs.logits_case(n, scale=s))
            for n, s in (("random logits", 2.0), ("peaked logits", 6.0))
        ]
    except CallFailed as e:
        yield probing.raised("entropy.formula", ASKS, "random logits", e)
        return
    base = axes(subject, surrogate.reduction(seen[0].value))
    known = logprobs.temperature_of(subject)
    values = (1.0,) if known is None else (known,)
    sentinels = tuple(dict.fromkeys((*(x for x in subject.literals if x), *(-x for x in subject.literals if x))))[:8]
    knobs = (
        Knob(name="temperature", values=values, known=True, active=lambda o: o["temperature"] != "none"),
        Knob(name="sentinel", values=sentinels or (1.0,), known=True, active=lambda o: o["mask"] == "sentinel"),
        surrogate.length_knob(subject),
    )
    found = solver.solve(seen, reference, base, knobs)
    if found is None:
        partly = _but_for_the_end(subject, seen, base, knobs)
        if partly is not None:
            yield partly
            return
        nearest = {"temperature": 1.0, "length": 1.0, "sentinel": 1.0}
        gap = probing.distance(seen, reference, {a.name: a.options[0].name for a in base}, nearest)
        yield Check(probe="entropy.formula", asks=ASKS, outcome=probing.diverges("not the entropy of the logits", gap))
        return
    convention = solver.convention(base, found)
    if found.pitfalls:
        gap = probing.distance(seen, reference, probing.right_twin(base, found), found.knobs)
        outcome = probing.known_bug(solver.named(found.pitfalls, {}), convention, gap)
        yield Check(probe="entropy.formula", asks=ASKS, outcome=outcome)
        return
    yield Check(probe="entropy.formula", asks=ASKS, outcome=Agrees(convention=convention))
    yield from _gradient(subject, seen, found)
    yield from _banned(subject)
    yield from _every_position(subject, found)
    yield from logprobs.unchanged(subject, seen[0], "entropy")


def _observed(subject: Subject, case: Case) -> Seen:
    s = probing.observe(subject, case, ("logits",))
    masks = [w for w in ("attention_mask", "completion_mask") if w in subject.bound.names]
    if masks and s.value.dim() == 2:
        s.where = torch.stack([case.inputs[w] > 0 for w in masks]).all(0)
    counted = _counted(subject, case)
    counts = {"token_count": float(counted.sum()), "row_count": float(counted.shape[0])}
    s.inputs = {**counts, **s.inputs, "completion_mask": counted}
    # gradients are compared once the value is known to be right
    s.cache["gradient"], s.grads = s.grads.get("logits", torch.zeros(())), {}
    return s


def _counted(subject: Subject, case: Case) -> torch.Tensor:
    """Positions [B, T] that count, by whatever the function is told."""
    logits = case.inputs["logits"]
    word = next((w for w in MASKS if w in subject.bound.names), "")
    if word == "lengths":
        columns = torch.arange(logits.shape[1])[None]
        return (columns < case.inputs["lengths"][:, None]).double()
    return case.inputs[word].double() if word else torch.ones(logits.shape[:2], dtype=torch.float64)


def _gradient(subject: Subject, seen: list[Seen], found: solver.Solution) -> Iterator[Check]:
    """Whether the gradient is the entropy's too; a function for a log may carry none."""
    asks = "is the gradient the one of the entropy?"
    probe = "entropy.gradient"
    for s in seen:
        have = s.cache["gradient"]
        logits = s.inputs["logits"]
        assert isinstance(logits, torch.Tensor)
        if have.dim() == 0:
            yield from _without_gradient(subject, asks, probe)
            return
        leaf = logits.clone().requires_grad_(True)
        fresh = Seen(case=s.case, inputs=s.inputs, value=s.value, grads={}, dtype=s.dtype, cache={"leaf": leaf})
        fresh.cache["leaf:logits"] = leaf
        want = surrogate.gradients(reference(fresh, found.options, found.knobs).value, fresh)["logits"]
        if s.where is not None:
            have, want = have[s.where], want[s.where]
        gap = tolerance.gap("gradient of logits", s.case, have, want, s.dtype)
        if gap is not None:
            yield probing.violation(probe, asks, GRADIENT.says, GRADIENT, gap=gap)
            return
    yield probing.holds(probe, asks, "value and gradient are those of the entropy")


def _but_for_the_end(
    subject: Subject, seen: list[Seen], base: tuple[Axis, ...], knobs: tuple[Knob, ...]
) -> Check | None:
    """The finding that an entropy is right in front and not computed behind, where walking in pieces leaves a rest."""
    if any(s.value.dim() != 2 for s in seen):
        return None
    front = [replace(s, where=_inside(s).clone(), memo={}, listed={}, quick=None, shadow=None) for s in seen]
    for s in front:
        assert s.where is not None
        s.where[:, s.value.shape[1] // 2 :] = False
    found = solver.solve(front, reference, base, knobs)
    if found is None or found.pitfalls:
        return None
    for s in seen:
        for check in logprobs.tail("entropy.every-position", s, reference, found.options, found.knobs, logprobs.TAIL):
            return check
    return None


def _inside(s: Seen) -> torch.Tensor:
    return torch.ones_like(s.value, dtype=torch.bool) if s.where is None else s.where


def _every_position(subject: Subject, found: solver.Solution) -> Iterator[Check]:
    case = logprobs.long_case(subject)
    try:
        s = probing.repeatable(_observed, subject, case)
    except CallFailed:
        return
    if s.value.dim() != 2 or s.value.shape != case.inputs["token_ids"].shape:
        return
    yield from logprobs.tail("entropy.every-position", s, reference, found.options, found.knobs, logprobs.TAIL)


def _without_gradient(subject: Subject, asks: str, probe: str) -> Iterator[Check]:
    hard = probing.promises_gradient(subject)
    if not hard and not re.search(r"\.detach\(|\.data\b", subject.source):
        return
    if not hard and re.search(r"no_grad|inference_mode|requires_grad|set_grad_enabled", subject.source):
        return
    hard = hard or probing.claims(subject, r"bonus", r"regulari[sz]")
    says = "no gradient reaches the logits: fine for a log, useless as an entropy bonus"
    yield probing.violation(probe, asks, says, GRADIENT, severity="hard" if hard else "soft")


def _banned(subject: Subject) -> Iterator[Check]:
    """Logits of -inf: p log p is 0 there. Only a promise where the function's documentation speaks of it."""
    if not probing.claims(subject, r"-\s*inf", r"banned", r"masked? (out )?(tokens|logits)", r"probability (zero|0)"):
        return
    asks = "do tokens with a logit of -inf contribute 0?"
    case = logprobs.logits_case("random logits", scale=2.0)
    logits = case.inputs["logits"].clone()
    logits[..., 0] = -torch.inf
    try:
        s = _observed(subject, Case(name="one banned token", inputs={**case.inputs, "logits": logits}))
    except CallFailed as e:
        yield probing.raised("entropy.banned", asks, "one banned token", e)
        return
    if bool(s.value.isnan().any()):
        says = "entropy is NaN at every position where one logit is -inf (0 * -inf)"
        yield probing.violation("entropy.banned", asks, says, BANNED)
    else:
        yield probing.holds("entropy.banned", asks, "banned tokens contribute 0")


ROLE = Role(
    name="entropy",
    stage="logprobs",
    asks="logits [B, T, V] -> entropy [B, T]",
    takes=(
        "logits", "temperature", "attention_mask", "completion_mask", "chunk_size", "token_ids", "lengths", "top_k",
        "aggregation",
    ),
    needs=(("logits",),),
    returns="per token",
    example=logprobs.example,
    run=run,
    pitfalls=(
        SIGN, LOGITS, AXIS, BANNED, PADDING, GRADIENT, TOP_K, surrogate.AGGREGATION, surrogate.PADDED_DENOMINATOR,
        surrogate.MASK_MISSING, surrogate.MASK_INVERTED, surrogate.MASK_SHIFT, surrogate.MASK_NUMERATOR,
        logprobs.TEMPERATURE_IGNORED, logprobs.TEMPERATURE_AFTER,
        logprobs.TEMPERATURE_INVERTED, logprobs.TEMPERATURE_TWICE, logprobs.TAIL, logprobs.MUTATES,
    ),
)  # fmt: skip
