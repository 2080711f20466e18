"""Entropy of the policy's distribution at every position.

H[b, t] = - Σ_v p(v) log p(v),   p = softmax(z[b, t] / T)        in nats
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rltriage_probes import probing, solver
from rltriage_probes.contract import Agrees, Check
from rltriage_probes.logprobs import logprobs
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "is this the entropy of the softmax of the logits?"

SIGN = Pitfall(id="ENT-SIGN", family="sign", says="returns minus the entropy")
LOGITS = Pitfall(id="ENT-RAW-LOGITS", family="normalisation", says="weights raw logits, not log-probabilities, with p")
AXIS = Pitfall(id="ENT-AXIS", family="axis", says="normalises over the positions instead of over the vocabulary")
BANNED = Pitfall(id="ENT-BANNED-NAN", family="nonfinite", says="gives NaN where a token is banned with a logit of -inf")


def axes(subject: Subject) -> tuple[Axis, ...]:
    return (
        Axis(
            name="form",
            options=(
                Option(name="entropy", standing="standard", says="entropy in nats"),
                Option(name="bits", says="entropy in bits"),
                probing.as_pitfall("negative", SIGN),
                probing.as_pitfall("raw logits", LOGITS),
                probing.as_pitfall("over positions", AXIS),
            ),
        ),
        _whole(logprobs.temperature_axis(subject)),
    )


def _whole(axis: Axis) -> Axis:
    """Without the options that only a difference of logit and log-sum-exp has."""
    options = tuple(o for o in axis.options if o.pitfall is not logprobs.TEMPERATURE_HALF)
    return Axis(name=axis.name, options=options, needs=axis.needs, when=axis.when)


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    z = s.inputs["logits"]
    assert isinstance(z, torch.Tensor)
    t = knobs.get("temperature", 1.0)
    z = logprobs.tempered(z, options["temperature"], t)
    logp = z.log_softmax(1 if options["form"] == "over positions" else -1)
    p = logp.exp()
    h = (p * z).sum(-1) if options["form"] == "raw logits" else -(p * logp).sum(-1)
    h = {"negative": -h, "bits": h / 0.6931471805599453, "raw logits": -h}.get(options["form"], h)
    return Result(value=h / t if options["temperature"] == "after" else h)


def run(subject: Subject) -> Iterator[Check]:
    try:
        seen = [
            _observed(subject, logprobs.logits_case(n, scale=s))
            for n, s in (("random logits", 2.0), ("peaked logits", 6.0))
        ]
    except CallFailed as e:
        yield probing.raised("entropy.formula", ASKS, "random logits", e)
        return
    base = axes(subject)
    known = logprobs.temperature_of(subject)
    values = (1.0,) if known is None else (known,)
    knobs = (Knob(name="temperature", values=values, known=True, active=lambda o: o["temperature"] != "none"),)
    found = solver.solve(seen, reference, base, knobs)
    if found is None:
        gap = probing.distance(seen, reference, {a.name: a.options[0].name for a in base}, {})
        yield Check(probe="entropy.formula", asks=ASKS, outcome=probing.diverges("not the entropy of the logits", gap))
        return
    convention = solver.convention(base, found)
    if found.pitfalls:
        gap = probing.distance(seen, reference, probing.right_twin(base, found), found.knobs)
        outcome = probing.known_bug(solver.named(found.pitfalls, {}), convention, gap)
        yield Check(probe="entropy.formula", asks=ASKS, outcome=outcome)
        return
    yield Check(probe="entropy.formula", asks=ASKS, outcome=Agrees(convention=convention))
    yield from _banned(subject)


def _observed(subject: Subject, case: Case) -> Seen:
    s = probing.observe(subject, case)
    masks = [w for w in ("attention_mask", "completion_mask") if w in subject.bound.names]
    if masks and s.value.dim() == 2:
        s.where = torch.stack([case.inputs[w] > 0 for w in masks]).all(0)
    return s


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
    takes=("logits", "temperature", "attention_mask", "completion_mask", "chunk_size", "token_ids", "lengths"),
    needs=(("logits",),),
    returns="per token",
    example=logprobs.example,
    run=run,
    pitfalls=(
        SIGN, LOGITS, AXIS, BANNED, logprobs.TEMPERATURE_IGNORED, logprobs.TEMPERATURE_AFTER,
        logprobs.TEMPERATURE_INVERTED, logprobs.TEMPERATURE_TWICE,
    ),
)  # fmt: skip
