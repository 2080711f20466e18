"""Log-probabilities of given tokens under a model's logits.

    logp[b, t] = z[b, t, y] / T - log Σ_v exp(z[b, t, v] / T),   y = the token at that place, T = temperature

The sampler draws from softmax(z / T), so the same T belongs into the score (Huang et al. 2024, "The N
Implementation Details of RLHF with PPO", detail on temperature).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import probing, solver, tolerance
from rltriage_probes.contract import Agrees, Check, Named, Violates
from rltriage_probes.invoke import cotangent
from rltriage_probes.logprobs import scoring
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen, Solution

ASKS = "are these the log-probabilities of the tokens, and of which tokens?"
FLOOR_WRONG = 1e-6
"""Probabilities below this are sampled in practice: e^-14 at a vocabulary of 10^5 and more."""
TOP_K = 4
"""Tokens of the vocabulary that stay, for functions of a truncated distribution."""
KEEP = 4
"""Completion columns of the cases, for functions that return only those."""

# Pitfalls

SIGN = Pitfall(id="LOGP-SIGN", family="sign", says="returns minus the log-probability (log-sum-exp minus the logit)")
RAW = Pitfall(id="LOGP-RAW-LOGIT", family="normalisation", says="returns the logit without subtracting log-sum-exp")
PROBABILITY = Pitfall(id="LOGP-PROBABILITY", family="normalisation", says="returns the probability, not its logarithm")
MAXIMUM = Pitfall(
    id="LOGP-MAX-FOR-LSE", family="normalisation", says="subtracts the largest logit where log-sum-exp belongs"
)
AXIS = Pitfall(id="LOGP-AXIS", family="axis", says="normalises over the positions instead of over the vocabulary")
GREEDY = Pitfall(id="LOGP-GREEDY", family="axis", says="scores the most likely token instead of the sampled one")
SHIFT = Pitfall(id="LOGP-SHIFT", family="shift", says="pairs each logit with the token of another position")
TEMPERATURE_IGNORED = Pitfall(
    id="LOGP-TEMPERATURE-IGNORED", family="temperature", says="does not divide the logits by the sampling temperature"
)
TEMPERATURE_AFTER = Pitfall(
    id="LOGP-TEMPERATURE-AFTER",
    family="temperature",
    says="divides the log-probability, not the logits, by the temperature",
)
TEMPERATURE_INVERTED = Pitfall(
    id="LOGP-TEMPERATURE-INVERTED", family="temperature", says="multiplies the logits by the temperature"
)
TEMPERATURE_TWICE = Pitfall(
    id="LOGP-TEMPERATURE-TWICE", family="temperature", says="divides the logits by the temperature twice"
)
TEMPERATURE_HALF = Pitfall(
    id="LOGP-TEMPERATURE-HALF",
    family="temperature",
    says="divides either the logit or the log-sum-exp by the temperature, but not both",
)
MASK_SHIFT = Pitfall(id="LOGP-MASK-SHIFT", family="shift", says="zeroes log-probs with the mask of another position")
DOUBLE = Pitfall(id="LOGP-DOUBLE-SOFTMAX", family="normalisation", says="takes the log-softmax of probabilities")
FLATTENED = Pitfall(id="LOGP-FLATTEN", family="axis", says="flattens the logits in another order than the tokens")
NO_GRADIENT = Pitfall(
    id="LOGP-NO-GRADIENT", family="gradient-cut", says="returns log-probs through which no gradient flows"
)
NORMALISER_CUT = Pitfall(
    id="LOGP-NORMALISER-DETACHED", family="gradient-cut", says="lets no gradient through the log-sum-exp"
)
PADDING_INF = Pitfall(
    id="LOGP-PADDING-INF", family="nonfinite", says="puts inf or NaN on padding, which no later mask can remove"
)
FLOOR = Pitfall(id="LOGP-FLOOR", family="epsilon", says="adds a constant to the probability that hides unlikely tokens")
UNSTABLE = Pitfall(
    id="LOGP-OVERFLOW", family="nonfinite", says="exponentiates the logits without subtracting their maximum"
)
PACKED = Pitfall(
    id="LOGP-PACK-CROSS",
    family="shift",
    says="scores the first token of the next packed sequence at the end of a sequence",
)
NO_ATTENTION_MASK = Pitfall(
    id="LOGP-NO-ATTENTION-MASK", family="mask-missing", says="runs the model without the attention mask of the padding"
)
TAIL = Pitfall(
    id="LOGP-TAIL",
    family="truncation",
    says="leaves positions out: they keep the number with which the result was filled",
)
MUTATES = Pitfall(
    id="LOGP-MUTATES-LOGITS",
    family="aliasing",
    says="changes its caller's logits in place, so that whoever uses them next gets others",
)
POSITIVE = Pitfall(
    id="LOGP-POSITIVE", family="normalisation", says="returns values above 0 or probabilities that do not sum to 1"
)

# Axes

_ALIGNED = (
    Option(name="aligned", standing="standard", says="logits already aligned with the tokens"),
    Option(name="rolled", says="shifts inside, last column is filler", source="OpenRLHF, AReaL"),
    Option(name="current", says="shifts inside, first column is filler", source="prime-rl"),
    probing.as_pitfall("behind", SHIFT),
    probing.as_pitfall("two ahead", SHIFT),
    probing.as_pitfall("late", SHIFT),
    probing.as_pitfall("time-major", FLATTENED),
)
_INSIDE = (
    Option(name="inside", standing="standard", says="shifts inside"),
    probing.as_pitfall("unshifted", SHIFT),
    probing.as_pitfall("unshifted late", SHIFT),
    probing.as_pitfall("backwards", SHIFT),
    probing.as_pitfall("rolled back", SHIFT),
    probing.as_pitfall("time-major inside", FLATTENED),
)
_LAST = (
    Option(name="last inside", standing="standard", says="shifts inside, keeps the completion"),
    probing.as_pitfall("last unshifted", SHIFT),
    probing.as_pitfall("last late", SHIFT),
)
_NORMAL = Axis(
    name="normal",
    options=(
        Option(name="log_softmax", standing="standard"),
        Option(name="floored", says="log of the probability plus a floor", source="PaLM-rlhf-pytorch"),
        probing.as_pitfall("flipped", SIGN),
        probing.as_pitfall("raw", RAW),
        probing.as_pitfall("probability", PROBABILITY),
        probing.as_pitfall("maximum", MAXIMUM),
        probing.as_pitfall("over positions", AXIS),
        probing.as_pitfall("greedy", GREEDY),
        probing.as_pitfall("twice", DOUBLE),
    ),
)


def axes(subject: Subject, shape: torch.Size, width: int) -> tuple[Axis, ...]:
    """The axes for a result of this shape, of a case with `width` columns."""
    if len(shape) == 1:
        align = (Option(name="inside", standing="standard", says="shifts inside"), Option(name="aligned"))
    elif shape[1] == width:
        align = _ALIGNED
    elif shape[1] == width - 1:
        align = _INSIDE
    else:
        align = _LAST
    reduce = (Option(name="none", standing="standard"),)
    if len(shape) == 1:
        reduce = (
            Option(name="sum", standing="standard", says="summed over the tokens"),
            Option(name="mean", says="mean over the tokens"),
        )
    return (
        Axis(name="align", options=align), _NORMAL, temperature_axis(subject), Axis(name="reduce", options=reduce),
        probing.keep(_ZEROED, subject),
    )  # fmt: skip


_ZEROED = Axis(
    name="zeroed",
    options=(
        Option(name="own", standing="standard"),
        probing.as_pitfall("early", MASK_SHIFT),
        probing.as_pitfall("late", MASK_SHIFT),
    ),
    needs=("completion_mask",),
)
"""Where values are set to 0: outside the mask of the token itself, which is not compared, or of its neighbour."""


def temperature_axis(subject: Subject) -> Axis:
    known = temperature_of(subject)
    if known is None:
        return Axis(
            name="temperature",
            options=(
                Option(name="none", standing="standard", says="temperature 1 (division, if any, lies with the caller)"),
                Option(name="before", says="a temperature written into the function"),
            ),
        )
    return Axis(
        name="temperature",
        options=(
            Option(name="before", standing="standard", says="logits divided by the temperature"),
            probing.as_pitfall("none", TEMPERATURE_IGNORED),
            probing.as_pitfall("after", TEMPERATURE_AFTER),
            probing.as_pitfall("times", TEMPERATURE_INVERTED),
            probing.as_pitfall("twice", TEMPERATURE_TWICE),
            probing.as_pitfall("logit only", TEMPERATURE_HALF),
            probing.as_pitfall("normaliser only", TEMPERATURE_HALF),
        ),
    )


def temperature_of(subject: Subject) -> float | None:
    """The temperature that the function runs with, where it takes one at all."""
    if "temperature" in subject.bound.names:
        return 0.7
    value = subject.bound.settings.get("temperature")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and value != 1.0:
        return float(value)
    return None


# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return logits_case("random logits", scale=2.0)


def logits_case(name: str, *, scale: float, width: int = 7) -> Case:
    b, t, v = 3, width, 11
    g = probing.generator(name)
    logits = torch.randn(b, t, v, generator=g) * scale
    ids = torch.randint(3, v, (b, t), generator=g)
    return _filled(name, logits, ids)


def _filled(name: str, logits: Tensor, ids: Tensor) -> Case:
    b, t = ids.shape
    lengths = torch.tensor([t, t - 2, t - 1])[:b]
    prompt = t - KEEP
    columns = torch.arange(t)[None]
    attention = (columns < lengths[:, None]).long()
    completion = (attention * (columns >= prompt)).float()
    return Case(
        name=name,
        inputs={
            "logits": logits, "token_ids": ids, "labels": ids.where(completion > 0, torch.tensor(-100)),
            "attention_mask": attention, "completion_mask": completion, "lengths": lengths,
            "prompt_length": prompt, "completion_length": KEEP, "temperature": 0.7, "chunk_size": 2, "top_k": TOP_K,
            "pad_token_id": 0, "eos_token_id": 2,
            "cu_seqlens": torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).int(),
        },
    )  # fmt: skip


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """Log-probs of one case, with d/dlogits of the sum weighted by the cotangent."""
    t = knobs.get("temperature", 1.0)
    floor = knobs.get("floor", 0.0)
    table = s.remember(
        ("table", options["normal"], options["temperature"], t, floor), lambda: _table(s, options, t, floor)
    )
    picked = s.remember(
        ("picked", *options.values(), t, floor),
        lambda: _picked(table, _ids(s), options["align"], s.value, options["normal"]),
    )
    return Result(value=_reduced(_zeroed(picked, s, options), s, options))


def _zeroed(picked: Tensor, s: Seen, options: Options) -> Tensor:
    if options["zeroed"] == "own":
        return picked
    mask = s.inputs["completion_mask"]
    assert isinstance(mask, Tensor)
    moved = mask.roll(1 if options["zeroed"] == "early" else -1, 1)
    moved = moved[:, -picked.shape[1] :]
    return picked * moved


def _ids(s: Seen) -> Tensor:
    ids = s.inputs["labels" if "labels" in s.cache else "token_ids"]
    assert isinstance(ids, Tensor)
    return ids


def tempered(z: Tensor, where: str, t: float) -> Tensor:
    """Logits under an option of the axis `temperature`."""
    return {"before": z / t, "logit only": z / t, "times": z * t, "twice": z / t / t}.get(where, z)


def _table(s: Seen, options: Options, t: float, floor: float) -> Tensor:
    """[B, T, V]: what each token would get."""
    z = s.inputs["logits"]
    assert isinstance(z, Tensor)
    where = options["temperature"]
    raw = z
    z = tempered(z, where, t)
    lse = (raw / t if where == "normaliser only" else raw if where == "logit only" else z).logsumexp(-1, keepdim=True)
    normal = options["normal"]
    table = {
        "log_softmax": lambda: z - lse, "floored": ((z - lse).exp() + floor).log,
        "flipped": lambda: lse - z, "raw": lambda: z,
        "probability": (z - lse).exp, "maximum": lambda: z - z.amax(-1, keepdim=True),
        "twice": lambda: (z - lse).exp().log_softmax(-1), "over positions": lambda: z.log_softmax(1),
        "greedy": lambda: (z - lse).amax(-1, keepdim=True).expand_as(z),
    }[normal]()  # fmt: skip
    return table / t if where == "after" else table


def _time_major(table: Tensor) -> Tensor:
    """Rows flattened position by position and cut as if they had been flattened sequence by sequence."""
    return table.transpose(0, 1).reshape(table.shape)


def _picked(table: Tensor, ids: Tensor, align: str, like: Tensor, normal: str) -> Tensor:
    ids = ids.clamp(min=0)
    keep = like.shape[-1] if like.dim() > 1 else KEEP
    pairs = {
        "aligned": lambda: (table, ids),
        "rolled": lambda: (table, ids.roll(-1, 1)),
        "current": lambda: (table.roll(1, 1), ids),
        "behind": lambda: (table, ids.roll(1, 1)),
        "two ahead": lambda: (table, ids.roll(-2, 1)),
        "time-major": lambda: (_time_major(table), ids),
        "time-major inside": lambda: (_time_major(table[:, :-1]), ids[:, 1:]),
        "late": lambda: (table.roll(-1, 1), ids.roll(-1, 1)),
        "rolled back": lambda: (table[:, :-1], ids.roll(1, 1)[:, :-1]),
        "inside": lambda: (table[:, :-1], ids[:, 1:]),
        "unshifted": lambda: (table[:, :-1], ids[:, :-1]),
        "unshifted late": lambda: (table[:, 1:], ids[:, 1:]),
        "backwards": lambda: (table[:, 1:], ids[:, :-1]),
        "last inside": lambda: (table[:, :-1][:, -keep:], ids[:, -keep:]),
        "last unshifted": lambda: (table[:, -keep:], ids[:, -keep:]),
        "last late": lambda: (table[:, :-1][:, -keep:], ids[:, :-1][:, -keep:]),
    }
    rows, tokens = pairs[align]()
    return rows.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def _reduced(picked: Tensor, s: Seen, options: Options) -> Tensor:
    if options["reduce"] == "none":
        return picked
    labels = s.inputs["labels"]
    assert isinstance(labels, Tensor)
    scored = (labels[:, 1:] if options["align"] == "inside" else labels) != -100
    total = (picked * scored).sum(-1)
    return total / scored.sum(-1) if options["reduce"] == "mean" else total


# The probe


def run(subject: Subject) -> Iterator[Check]:
    """The formula first; then what makes it fail on real logits."""
    runs_model = "model" in subject.bound.names
    prepare = scoring.with_model if runs_model else lambda c: c
    try:
        made = (example({}), logits_case("peaked logits", scale=6.0))
        observed = [probing.repeatable(_observed, subject, prepare(c)) for c in made]
    except CallFailed as e:
        yield probing.raised("logprobs.formula", ASKS, "random logits", e)
        return
    base = axes(subject, observed[0].value.shape, 7)
    known = temperature_of(subject)
    knobs = (
        probing.knob(
            subject, "temperature", (), (1.0,), fit=(0.05, 20.0), within=(0.05, 20.0),
            active=lambda o: o["temperature"] != "none",
        )
        if known is None
        else Knob(name="temperature", values=(known,), known=True),
    )  # fmt: skip
    floor = probing.knob(
        subject, "floor", (), (1e-8, 1e-10, 1e-6, 1e-12), fit=(1e-9, 0.5), within=(1e-30, 0.5),
        active=lambda o: o["normal"] == "floored",
    )  # fmt: skip
    knobs = (*knobs, floor)
    best = solver.solve(observed, reference, base, knobs)
    yield _formula_check(subject, observed, base, best)
    if best is None:
        yield from _bounds(subject, observed[0])
        return
    yield from _padding_values(subject, observed[0])
    if not runs_model and not best.pitfalls:
        yield from _every_position(subject, best)
    yield from unchanged(subject, observed[0], "logprobs")
    if "cu_seqlens" in subject.bound.names:
        yield _borders(observed[0])
    elif not best.pitfalls:
        yield from _gradient(subject, observed[0], best)
    if runs_model:
        yield from scoring.left_padded(subject, scoring.with_model(example({})), NO_ATTENTION_MASK)
    else:
        yield from _stable(subject, observed[0])


def _observed(subject: Subject, case: Case) -> Seen:
    s = probing.observe(subject, case, wrt=("logits",))
    if "token_ids" not in subject.bound.names:
        s.cache["labels"] = torch.ones(())
    if s.value.dim() == 2:
        s.where = _compared(subject, case, s.value)
    return s


def _compared(subject: Subject, case: Case, value: Tensor) -> Tensor:
    """Positions whose value is fixed by the inputs: inside every mask that the function gets, off the ends."""
    ids = case.inputs["token_ids"]
    inside = torch.ones_like(ids, dtype=torch.bool)
    for word in ("attention_mask", "completion_mask"):
        if word in subject.bound.names:
            inside &= case.inputs[word] > 0
    if subject.bound.names & {"lengths", "cu_seqlens"}:
        inside &= case.inputs["attention_mask"] > 0
    if "cu_seqlens" in subject.bound.names:
        inside[:, :-1] &= inside[:, 1:].clone()
    if "labels" in subject.bound.names:
        inside &= case.inputs["labels"] != -100
    width = value.shape[1]
    if width < ids.shape[1]:
        return inside[:, -width:]
    ends = torch.ones_like(inside)
    ends[:, 0], ends[:, -2:] = False, False
    return inside & ends


def _formula_check(subject: Subject, observed: list[Seen], base: tuple[Axis, ...], best: Solution | None) -> Check:
    probe = "logprobs.formula"
    if best is None:
        nearest = {a.name: a.options[0].name for a in base}
        t = temperature_of(subject)
        found = probing.distance(observed, reference, nearest, {} if t is None else {"temperature": t})
        return Check(
            probe=probe, asks=ASKS, outcome=probing.diverges("no known way of scoring tokens gives these values", found)
        )
    convention = solver.convention(base, best)
    named = list(solver.named(best.pitfalls, dict(best.knobs)))
    named += _misdeclared(subject, best)
    if best.knobs.get("floor", 0.0) > FLOOR_WRONG:
        floor = best.knobs["floor"]
        says = f"adds {floor:.3g} to the probability, so that no log-prob falls below {math.log(floor):.3g}"
        named.append(Named(pitfall=FLOOR.id, family=FLOOR.family, says=says, numbers={"floor": best.knobs["floor"]}))
    if named:
        found = probing.distance(observed, reference, probing.right_twin(base, best), best.knobs)
        return Check(probe=probe, asks=ASKS, outcome=probing.known_bug(named, convention, found))
    return Check(probe=probe, asks=ASKS, outcome=Agrees(convention=convention))


def _misdeclared(subject: Subject, best: Solution) -> list[Named]:
    """A temperature written into the function that is not the declared one."""
    wanted, baked = subject.intent.get("temperature"), best.knobs.get("temperature")
    if temperature_of(subject) is not None or best.options["temperature"] != "before" or baked is None:
        return []
    if not isinstance(wanted, (int, float)) or wanted == baked:
        return []
    says = f"divides the logits by {baked:.4g}, while the pipeline samples at temperature {float(wanted):.4g}"
    p = TEMPERATURE_IGNORED
    return [Named(pitfall=p.id, family=p.family, says=says, numbers={"used": baked, "declared": float(wanted)})]


def _borders(s: Seen) -> Check:
    """Last slot of each packed sequence: no token follows there, so it holds 0 or filler that the caller masks."""
    asks = "does every packed sequence end without a look at the next one?"
    lengths = s.inputs["lengths"]
    ids = s.inputs["token_ids"]
    assert isinstance(lengths, Tensor) and isinstance(ids, Tensor)
    last = s.value.gather(1, lengths[:, None] - 1).squeeze(1)
    logits = s.inputs["logits"]
    assert isinstance(logits, Tensor)
    rows = torch.arange(ids.shape[0] - 1)
    crossing = [
        (logits[rows, lengths[:-1] - 1] / scale).log_softmax(-1).gather(1, ids[1:, :1]).squeeze(1)
        for scale in (0.7, 1.0)
    ]
    crosses = any(tolerance.equal(last[:-1], c, "float32") for c in crossing)
    if crosses and float(last[-1].abs()) == 0.0:
        says = (
            "the last slot of every sequence but the very last holds the log-prob of the next sequence's first token, "
            "although the very last slot is cleared"
        )
        return probing.violation("logprobs.borders", asks, says, PACKED)
    words = (
        "filler at the end of each sequence, which the caller has to mask" if crosses else "nothing crosses a border"
    )
    return probing.holds("logprobs.borders", asks, words)


def _gradient(subject: Subject, s: Seen, best: Solution) -> Iterator[Check]:
    """d logp / d logits of compared positions, where the function is differentiable at all."""
    got = s.grads.get("logits")
    if s.value.dim() != 2 or s.where is None:
        return
    asks = "does the gradient equal that of a log-softmax?"
    if got is None:
        if "model" not in subject.bound.names:
            yield from _no_gradient(subject, asks)
        return
    z = s.inputs["logits"]
    assert isinstance(z, Tensor)
    g = _reference_gradient(s, best.options, best.knobs)
    rows = s.where
    if best.options["align"] in ("inside", "last inside"):
        full = torch.zeros(z.shape[:2], dtype=torch.bool)
        full[:, -rows.shape[1] - 1 : -1] = rows
        rows = full
    elif best.options["align"] == "current":
        rows = rows.roll(-1, 1)
    found = tolerance.gap("gradient of logits", s.case, got[rows], g[rows], s.dtype)
    cut = _reference_gradient(s, {**best.options, "normal": "raw"}, best.knobs)
    if found is None:
        yield probing.holds("logprobs.gradient", asks, "gradient of a log-softmax")
    elif tolerance.equal(got[rows], cut[rows], s.dtype):
        says = "the gradient is that of the picked logit alone: none flows through the log-sum-exp"
        yield probing.violation("logprobs.gradient", asks, says, NORMALISER_CUT, gap=found)
    else:
        says = "the values are right but their gradient is not that of a log-softmax"
        yield Check(probe="logprobs.gradient", asks=asks, outcome=probing.diverges(says, found))


def long_case(subject: Subject) -> Case:
    """Rows that are longer than any piece in which the function may walk through them, and no multiple of it."""
    pieces = [int(x) for x in subject.literals if 8 <= x <= 256 and x == int(x)]
    return logits_case("long rows", scale=2.0, width=max([*pieces, 16]) + 3)


def tail(
    probe: str, s: Seen, formula: solver.Reference, options: Options, knobs: Knobs, pitfall: Pitfall
) -> Iterator[Check]:
    """Positions at which a result that is right elsewhere holds one and the same filler."""
    asks = "is every position computed, those at the end too?"
    want = formula(s, options, knobs).value.detach()
    inside = torch.ones_like(want, dtype=torch.bool) if s.where is None else s.where
    off = inside & ((s.value - want).abs() > tolerance.allowed(want, s.dtype))
    if not off.any():
        yield probing.holds(probe, asks, "every position is computed")
        return
    wrong = s.value[off]
    if bool(off[inside].all()) or bool((wrong != wrong[0]).any()):
        return
    says = f"{int(off.sum())} of {int(inside.sum())} positions hold {float(wrong[0]):.4g} instead of their own value"
    gap = probing.distance([s], formula, dict(options), dict(knobs))
    yield probing.violation(probe, asks, says, pitfall, gap=gap)


def _every_position(subject: Subject, best: Solution) -> Iterator[Check]:
    """The columns at the ends too, which the search leaves open as long as it doesn't know the alignment."""
    if best.options["align"] not in ("aligned", "inside") or "cu_seqlens" in subject.bound.names:
        return
    observe = _observed_whole if best.options["align"] == "aligned" else _observed_value
    for case in (example({}), long_case(subject)):
        try:
            s = probing.repeatable(observe, subject, case)
        except CallFailed:
            return
        if s.value.dim() != 2 or s.where is None or s.where.shape != s.value.shape:
            return
        checks = list(tail("logprobs.every-position", s, reference, best.options, best.knobs, TAIL))
        if case.name == "long rows" or any(isinstance(c.outcome, Violates) for c in checks):
            yield from checks
            return


def _observed_value(subject: Subject, case: Case) -> Seen:
    s = _observed(subject, case)
    s.grads = {}
    return s


def _observed_whole(subject: Subject, case: Case) -> Seen:
    """The same with every column that no mask leaves out."""
    s, names = _observed_value(subject, case), subject.bound.names
    inside = torch.ones_like(case.inputs["token_ids"], dtype=torch.bool)
    for word in ("attention_mask", "completion_mask"):
        inside &= (case.inputs[word] > 0) | (word not in names)
    if "lengths" in names:
        inside &= case.inputs["attention_mask"] > 0
    if "labels" in names:
        inside &= case.inputs["labels"] != -100
    s.where = inside
    return s


def unchanged(subject: Subject, s: Seen, role: str) -> Iterator[Check]:
    """The caller's logits, which an entropy or a KL may be computed of next."""
    if "logits" not in s.mutated:
        return
    says = "the caller's logits are other numbers after the call: a second use of them sees the change again"
    severity = "hard" if probing.keeps_inputs(subject) else "soft"
    yield probing.violation(f"{role}.aliasing", "are the caller's logits left alone?", says, MUTATES, severity=severity)


_MEANT = re.compile(
    r"no_grad|inference_mode|set_grad_enabled|numpy|\bnp\.|\.item\(|\.tolist\(|(?<!\.)\bfloat\(|\bmath\."
)
_OTHERS = re.compile(r"old|ref|rollout|sampl|behavio|infer|eval|vllm|teacher|frozen", re.IGNORECASE)


def _no_gradient(subject: Subject, asks: str) -> Iterator[Check]:
    """A question where nothing says that these are the log-probs of a policy that is not being trained."""
    hard = probing.promises_gradient(subject)
    if not hard and (_MEANT.search(subject.source) or _OTHERS.search(_name_of(subject))):
        return
    says = "no gradient flows through the log-probs: right for old and reference ones, fatal for those that are trained"
    severity = "hard" if hard else "soft"
    yield probing.violation("logprobs.gradient", asks, says, NO_GRADIENT, severity=severity)


def _name_of(subject: Subject) -> str:
    found = re.search(r"def\s+(\w+)", subject.source)
    return found[1] if found else ""


def _reference_gradient(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """d/dlogits of the sum of the log-probs, weighted with the cotangent, [B, T, V]."""
    z = s.inputs["logits"]
    assert isinstance(z, Tensor)
    leaf = z.clone().requires_grad_(True)
    copy = Seen(case=s.case, inputs={**s.inputs, "logits": leaf}, value=s.value, grads={}, dtype=s.dtype)
    copy.cache.update({k: v for k, v in s.cache.items() if k == "labels"})
    want = reference(copy, options, knobs).value
    (g,) = torch.autograd.grad((want * cotangent(want.shape).double()).sum(), leaf)
    return g


def _padding_values(subject: Subject, s: Seen) -> Iterator[Check]:
    """What stands on masked positions: any number will do, but inf and NaN survive a multiplication by 0."""
    told = {"attention_mask", "completion_mask"} & subject.bound.names
    if not told or s.value.dim() != 2 or s.where is None:
        return
    asks = "can padding be masked out afterwards?"
    mask = torch.stack([s.inputs[w] for w in told]).amin(0)[:, -s.value.shape[1] :] > 0  # type: ignore[arg-type]
    if bool(s.value[~mask].isfinite().all()):
        yield probing.holds("logprobs.padding-values", asks, "finite on padding")
        return
    promised = probing.claims(
        subject, r"(padding|padded|masked|outside)\b.{0,60}\b0\b", r"\b0(\.0)? (on|at|for|outside|where)\b"
    )
    says = "padding holds inf or NaN, which survives a multiplication by the mask"
    yield probing.violation("logprobs.padding-values", asks, says, PADDING_INF, severity="hard" if promised else "soft")


def _stable(subject: Subject, s: Seen) -> Iterator[Check]:
    """Adding a constant to all logits of a position changes nothing; exp(logit) without care overflows."""
    asks = "do large logits leave the result finite?"
    case = example({})
    moved = Case(name="logits + 120", inputs={**case.inputs, "logits": case.inputs["logits"] + 120.0})
    try:
        again = _observed(subject, moved)
    except CallFailed as e:
        yield probing.raised("logprobs.large-logits", asks, moved.name, e)
        return
    actual, expected = (again.value, s.value) if s.where is None else (again.value[s.where], s.value[s.where])
    if not bool(actual.isfinite().all()):
        says = "gives inf or NaN when all logits are 120 higher, which leaves every probability as it was"
        yield probing.violation(
            "logprobs.large-logits", asks, says, UNSTABLE,
            gap=tolerance.gap("value", moved.name, actual, expected, "float32"),
        )  # fmt: skip
    elif tolerance.equal(actual, expected, "float16"):
        yield probing.holds("logprobs.large-logits", asks, "finite and unchanged with all logits 120 higher")


def _bounds(subject: Subject, s: Seen) -> Iterator[Check]:
    """No formula fits: log-probabilities are still at most 0."""
    asks = "is no log-probability above 0?"
    value = s.value if s.where is None else s.value[s.where]
    sentinel = value.numel() > 0 and bool((value == 1.0).all())
    worst = float(value.max()) if value.numel() else 0.0
    if worst > 1e-4 and not sentinel:
        says = f"the largest of these log-probabilities is {worst:.4g}; a probability can't exceed 1"
        yield probing.violation("logprobs.bound", asks, says, POSITIVE, SIGN, RAW, numbers={"largest": worst})
    elif value.numel():
        yield probing.holds("logprobs.bound", asks, f"all of them are at most 0 (largest {worst:.4g})")


ROLE = Role(
    name="logprobs",
    stage="logprobs",
    asks="logits [B, T, V] and token ids -> log-probs [B, T], [B, T-1], [B, completion] or sums [B]",
    takes=(
        "logits", "token_ids", "labels", "temperature", "attention_mask", "completion_mask", "lengths", "prompt_length",
        "completion_length", "cu_seqlens", "chunk_size", "model", "pad_token_id", "eos_token_id",
    ),
    needs=(("logits", "model"), ("token_ids", "labels")),
    returns="per token",
    example=example,
    run=run,
    pitfalls=(
        SIGN, RAW, PROBABILITY, MAXIMUM, AXIS, GREEDY, SHIFT, TEMPERATURE_IGNORED, TEMPERATURE_AFTER,
        TEMPERATURE_INVERTED, TEMPERATURE_TWICE, TEMPERATURE_HALF, MASK_SHIFT, FLOOR, DOUBLE, FLATTENED,
        NORMALISER_CUT, NO_GRADIENT, PADDING_INF, UNSTABLE, PACKED, NO_ATTENTION_MASK, POSITIVE, TAIL, MUTATES,
    ),
)  # fmt: skip
