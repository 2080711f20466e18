"""The policy-gradient part of a loss, as the reference that the solver varies.

    L = -agg_bt( m · min(ρ·A, clip(ρ, 1 - ε_low, 1 + ε_high)·A) )          ρ = exp(logp - old_logp)

Schulman et al. 2017, eq. 7 (arXiv:1707.06347). Sequence-level ρ: GSPO, Zheng et al. 2025 (arXiv:2507.18071).
Clip-higher and token mean: DAPO, Yu et al. 2025 (arXiv:2503.14476). sg(clip ρ)·A·logp: CISPO, MiniMax 2025
(arXiv:2506.13585). Dual clip: Ye et al. 2020 (arXiv:1912.09729). Constant denominator: Dr. GRPO (arXiv:2503.20783).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, cast

import torch
from torch import Tensor

from rltriage_probes import probing
from rltriage_probes.model import Axis, Option, Pitfall, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

# Pitfalls

SIGN = Pitfall(
    id="LOSS-SIGN", family="sign", says="returns the objective instead of its negative, so descent makes it worse"
)
ADV_SIGN = Pitfall(id="LOSS-ADV-SIGN", family="sign", says="uses the advantages with the opposite sign")
ADV_AXIS = Pitfall(
    id="LOSS-ADV-AXIS",
    family="axis",
    says="spreads the advantages along the batch instead of along the tokens of a row",
)
RATIO_INVERTED = Pitfall(
    id="LOSS-RATIO-INVERTED", family="ratio", says="divides the old probability by the new one in the ratio"
)
RATIO_DETACHED = Pitfall(
    id="LOSS-RATIO-DETACHED", family="gradient-cut", says="cuts the gradient of the ratio, so advantages teach nothing"
)
RATIO_CONSTANT = Pitfall(
    id="LOSS-RATIO-CONSTANT", family="gradient-cut", says="uses a constant ratio of 1 that carries no gradient"
)
RATIO_NO_EXP = Pitfall(
    id="LOSS-RATIO-NO-EXP", family="ratio", says="uses the difference of the log-probs as the ratio, without exp"
)
RATIO_SUM = Pitfall(
    id="LOSS-RATIO-SUM", family="ratio", says="sums the log-ratio over a sequence where GSPO takes its mean"
)
RATIO_PADDED = Pitfall(
    id="LOSS-RATIO-PADDED", family="denominator", says="averages a sequence's log-ratio over the padded width"
)
CLIP_MAX = Pitfall(
    id="LOSS-CLIP-MAX",
    family="clip-direction",
    says="takes the optimistic branch (max), so that clipping never holds back",
)
CLIP_NO_MIN = Pitfall(
    id="LOSS-CLIP-NO-MIN",
    family="clip-direction",
    says="clips the ratio without the min, so clipped tokens get no gradient",
)
CLIP_BLIND = Pitfall(
    id="LOSS-CLIP-BLIND", family="clip-direction", says="takes the min before multiplying with the advantage's sign"
)
CLIP_SWAPPED = Pitfall(
    id="LOSS-CLIP-SWAPPED", family="clip-bounds", says="exchanges the lower and the upper clip distance"
)
CLIP_ONE_SIDED = Pitfall(id="LOSS-CLIP-ONE-SIDED", family="clip-bounds", says="bounds the ratio on one side only")
CLIP_NO_ONE = Pitfall(
    id="LOSS-CLIP-NO-ONE", family="clip-bounds", says="clips the ratio to [-ε, ε] instead of around 1"
)
DUAL_SIGN = Pitfall(
    id="LOSS-DUAL-CLIP-SIGN",
    family="clip-direction",
    says="applies the bound of the dual clip to positive advantages as well",
)
ONE_BOUND = Pitfall(
    id="LOSS-CLIP-BOUND-IGNORED",
    family="clip-bounds",
    says="uses one clip distance for both sides although it is given two",
)
CLIP_INERT = Pitfall(
    id="LOSS-CLIP-INERT", family="inert-option", says="is given a clip distance and never limits the ratio"
)
RATIO_REFERENCE = Pitfall(
    id="LOSS-RATIO-REFERENCE", family="ratio", says="forms the ratio with the reference model instead of the old policy"
)
CISPO_GRADIENT = Pitfall(
    id="LOSS-CISPO-GRADIENT", family="gradient-leak", says="differentiates the clipped weight that CISPO keeps constant"
)
BRANCH = Pitfall(
    id="LOSS-BRANCH", family="config", says="runs the CISPO formula although its setting asks for the clipped surrogate"
)
MASK_MISSING = Pitfall(id="LOSS-MASK-MISSING", family="mask-missing", says="averages over padding as if it were tokens")
MASK_INVERTED = Pitfall(
    id="LOSS-MASK-INVERTED", family="mask-inverted", says="trains the masked positions instead of the others"
)
MASK_SHIFT = Pitfall(id="LOSS-MASK-SHIFT", family="shift", says="applies the mask one position off")
MASK_NUMERATOR = Pitfall(
    id="LOSS-MASK-NUMERATOR", family="mask-leak", says="divides by the trained tokens but sums over all positions"
)
AGGREGATION = Pitfall(
    id="LOSS-AGGREGATION", family="denominator", says="averages the token losses in another way than declared"
)
PADDED_DENOMINATOR = Pitfall(
    id="LOSS-PADDED-DENOMINATOR",
    family="denominator",
    says="divides by the padded size of the batch, not by its tokens",
)

PITFALLS = (
    SIGN, ADV_SIGN, ADV_AXIS, RATIO_INVERTED, RATIO_DETACHED, RATIO_CONSTANT, RATIO_NO_EXP, RATIO_SUM, RATIO_PADDED,
    CLIP_MAX, CLIP_NO_MIN, CLIP_BLIND, CLIP_SWAPPED, CLIP_ONE_SIDED, CLIP_NO_ONE, DUAL_SIGN, ONE_BOUND,
    CLIP_INERT, RATIO_REFERENCE, CISPO_GRADIENT, BRANCH, MASK_MISSING,
    MASK_INVERTED, MASK_SHIFT, MASK_NUMERATOR, AGGREGATION, PADDED_DENOMINATOR,
)  # fmt: skip

CLIPPING = frozenset({
    "clip", "dual", "max", "no min", "blind", "swapped", "lower only", "cispo", "cispo leak", "log clip", "geometric",
    "no one",
    "low no one", "dual for all",
})  # fmt: skip
UPPER_ONLY = frozenset({"upper only", "cispo upper", "cispo upper leak"})
"""Surrogates that know one bound, the upper one."""
NO_RATIO = ("reinforce",)
Reduced = Literal["scalar", "rows", "tokens"]
"""What a loss function returns: one number, one a sequence, one a token."""

# Axes


def reduction(value: Tensor) -> Reduced:
    return "scalar" if value.dim() == 0 else "rows" if value.dim() == 1 else "tokens"


def flat(s: Seen) -> Seen:
    """One value a sequence as [B], however the function shapes it."""
    if s.value.dim() == 2 and s.value.shape[1] == 1:
        s.value = s.value.squeeze(1)
    return s


def axes(subject: Subject, reduced: Reduced) -> tuple[Axis, ...]:
    """The axes of the policy-gradient part as they concern this function."""
    return (
        # the sign first: without a min or max, a negated advantage is the same and the rarer cause
        Axis(name="sign", options=(Option(name="minus", standing="standard"), probing.as_pitfall("plus", SIGN))),
        _level(subject), _surrogate(subject), _bounds(subject),
        Axis(
            name="adv",
            options=(
                Option(name="own", standing="standard"),
                probing.as_pitfall("negated", ADV_SIGN),
                probing.as_pitfall("tiled", ADV_AXIS),
            ),
        ),
        aggregation(subject, reduced), masking(subject, reduced),
    )  # fmt: skip


OFF_POLICY = frozenset({"old_logprobs", "rollout_logprobs", "ratio", "log_ratio", "negative_log_ratio"})
"""Words without one of which the ratio can only be 1."""


def _level(subject: Subject) -> Axis:
    names = subject.bound.names
    on_policy = Option(name="on policy", says="ratio of the policy with itself (one update a batch)")
    if not names & OFF_POLICY:
        options = (Option(name="on policy", standing="standard", says="ratio 1 with a gradient"),)
        return Axis(name="level", options=(*options, probing.as_pitfall("constant", RATIO_CONSTANT)), when=_has_ratio)
    gspo = str(subject.intent.get("algorithm", "")).lower() == "gspo"
    sequence = (
        Option(name="sequence", says="one length-normalised ratio a sequence", source="GSPO, arXiv:2507.18071"),
        probing.wrong_here(
            Option(
                name="sequence sum", says="one ratio a sequence, of summed log-probs", source="RLOO; TRL RLOOTrainer"
            ),
            RATIO_SUM, gspo,
        ),
        probing.as_pitfall("sequence padded", RATIO_PADDED),
        probing.as_pitfall("token padded", RATIO_PADDED),
        *([probing.as_pitfall("token sum", RATIO_SUM)] if gspo else ()),
    )  # fmt: skip
    token = Option(name="token", standing="standard", says="token-level ratio")
    order = (sequence[0], token, *sequence[1:]) if gspo else (token, *sequence)
    wrong = (
        probing.as_pitfall("inverted", RATIO_INVERTED),
        probing.as_pitfall("detached", RATIO_DETACHED),
        probing.as_pitfall("constant", RATIO_CONSTANT),
        probing.as_pitfall("no exp", RATIO_NO_EXP),
        *([probing.as_pitfall("reference", RATIO_REFERENCE)] if "ref_logprobs" in names else ()),
    )
    return Axis(name="level", options=(*order, on_policy, *wrong), when=_has_ratio)


def _has_ratio(o: Mapping[str, str]) -> bool:
    return o["surrogate"] not in NO_RATIO


def _surrogate(subject: Subject) -> Axis:
    if not subject.bound.names & OFF_POLICY:
        # with a ratio of 1 nothing is clipped, so that no other surrogate could be told apart
        plain = Option(name="none", standing="standard")
        return Axis(
            name="surrogate", options=(plain, Option(name="reinforce", says="advantage times log-prob, no ratio"))
        )
    setting = subject.bound.settings.get("loss_type")
    cispo_wrong = isinstance(setting, str) and setting.lower() in {
        "grpo",
        "bnpo",
        "dr_grpo",
        "dapo",
        "ppo",
        "clip",
        "vanilla",
    }
    cispo = tuple(
        probing.wrong_here(o, BRANCH, cispo_wrong)
        for o in (
            Option(name="cispo", says="CISPO weight, clipped on both sides", source="verl"),
            Option(name="cispo upper", says="CISPO weight capped at 1 + ε", source="open-instruct"),
            Option(
                name="cispo absolute", says="CISPO weight capped at a bound that is not added to 1", source="TRL, Liger"
            ),
        )
    )
    return Axis(
        name="surrogate",
        options=(
            Option(name="clip", standing="standard", says="clipped surrogate"),
            Option(name="dual", says="clipped surrogate with a dual clip", source="arXiv:1912.09729; verl; TRL delta"),
            probing.wrong_here(Option(name="none", says="ratio without clipping"), CLIP_INERT, _must_clip(subject)),
            Option(name="reinforce", says="advantage times log-prob, no ratio", source="REINFORCE; verl gpg"),
            Option(name="weighted", says="detached ratio times log-prob"),
            Option(name="log clip", says="clip in log space"),
            Option(
                name="geometric", says="geometric mean of ratios clipped in log space", source="GMPO, arXiv:2507.20673"
            ),
            *cispo,
            probing.as_pitfall("max", CLIP_MAX),
            probing.as_pitfall("no min", CLIP_NO_MIN),
            probing.as_pitfall("blind", CLIP_BLIND),
            probing.as_pitfall("swapped", CLIP_SWAPPED),
            probing.as_pitfall("upper only", CLIP_ONE_SIDED),
            probing.as_pitfall("lower only", CLIP_ONE_SIDED),
            probing.as_pitfall("no one", CLIP_NO_ONE),
            probing.as_pitfall("low no one", CLIP_NO_ONE),
            probing.as_pitfall("dual for all", DUAL_SIGN),
            probing.as_pitfall("cispo leak", CISPO_GRADIENT),
            probing.as_pitfall("cispo upper leak", CISPO_GRADIENT),
        ),
    )


def _must_clip(subject: Subject) -> bool:
    """Whether the function has a clip distance as a parameter of its own, and no setting that could switch it off."""
    words = ("clip", "clip_low", "clip_high")
    given = any(s.meaning in words and s.path.isidentifier() for s in subject.bound.report.slots)
    values = [subject.bound.settings.get(w) for w in words]
    positive = any(isinstance(x, float) and 0 < x < 1 for x in values)
    return given and positive and not {"loss_type", "ratio_level"} & set(subject.bound.settings)


def _bounds(subject: Subject) -> Axis:
    symmetric = Option(name="symmetric", standing="standard")
    apart = Option(name="apart", says="upper clip distance of its own", source="DAPO, arXiv:2503.14476")
    known = {w: x for w in ("clip", "clip_low", "clip_high") if _is_number(x := subject.bound.settings.get(w))}
    low = known.get("clip_low", known.get("clip"))
    if low is None:
        # where the upper distance is known, no other one can stand in its place
        options: tuple[Option, ...] = (apart,) if "clip_high" in known else (symmetric, apart)
    elif "clip_high" not in known or known["clip_high"] == low:
        options = (symmetric,)
    else:
        options = (apart, *(probing.as_pitfall(name, ONE_BOUND) for name in ("low for both", "high for both")))
    return Axis(name="bounds", options=options, when=lambda o: o["surrogate"] in CLIPPING)


def _is_number(x: object) -> bool:
    return isinstance(x, (int, float)) and not isinstance(x, bool)


def aggregation(subject: Subject, reduced: Reduced) -> Axis:
    """How token losses become one number."""
    if reduced == "tokens":
        return Axis(name="agg", options=(Option(name="none", standing="standard"),))
    if reduced == "rows":
        mean = Option(name="row mean", standing="standard", says="mean over the tokens of each sequence")
        return Axis(name="agg", options=(mean, Option(name="row sum", says="sum over the tokens of each sequence")))
    declared = str(subject.intent.get("aggregation") or "")
    if declared == "constant" and probing.claims(subject, *CONSTANT_PROMISED):
        declared = "promised constant"
    options = [
        Option(name="token-mean", standing="standard", says="mean over the tokens of the batch"),
        Option(name="sequence-mean", says="mean over tokens, then over sequences", source="GRPO, arXiv:2402.03300"),
        Option(name="sequence-sum", says="sum over tokens, mean over sequences"),
        Option(name="sum", says="sum over all tokens", source="prime-rl; SkyRL"),
        Option(name="token-mean by rows", says="token mean, divided by the number of sequences once more"),
        Option(name="padded", says="sum over B times the padded width", source="verl seq-mean-token-sum-norm"),
    ]
    if length_guesses(subject):
        options.append(Option(name="constant", says="sum over B times a constant", source="Dr. GRPO, arXiv:2503.20783"))
        options.append(Option(name="over constant", says="sum over a constant", source="nano-aha-moment"))
    if "token_count" in subject.bound.names:
        options.insert(0, Option(name="given count", standing="standard", says="sum over the given token count"))
    if "row_count" in subject.bound.names:
        options.append(Option(name="given rows", says="token means over the given number of sequences"))
    return Axis(name="agg", options=tuple(_judged(o, declared) for o in options))


CONSTANT_PROMISED = (r"budget|max_(new_tokens|completion_length|length|len|tokens)\b|same for every batch|constant",)
"""What documentation says when the denominator does not depend on the batch."""
PASSED_LENGTH = 16
"""The constant denominator that cases hand over: not the width of their tensors."""


def length_guesses(subject: Subject) -> tuple[float, ...]:
    """What a constant denominator may be: the known one alone, else numbers that the function is written with."""
    word = "max_completion_length"
    if word in subject.bound.names:
        return (float(PASSED_LENGTH),)
    known = subject.bound.settings.get(word)
    if _is_number(known):
        return (float(known),)  # type: ignore[arg-type]
    return tuple(dict.fromkeys(x for x in subject.literals if x >= 8 and x == int(x)))[:3]


def length_knob(subject: Subject) -> Knob:
    """The constant denominator of Dr. GRPO."""
    return Knob(
        name="length",
        values=length_guesses(subject),
        known=True,
        active=lambda o: o["agg"] in ("constant", "over constant"),
    )


ACCEPTS = {
    "token-mean": {"token-mean", "given count", "over constant"},
    "sequence-mean": {"sequence-mean", "sequence-sum", "given rows"},
    "sequence-sum": {"sequence-sum", "over constant"},
    "constant": {"constant", "padded", "sequence-sum", "over constant"},
    "promised constant": {"constant", "over constant"},
}
"""Which aggregations fit what a user declares."""


def _judged(option: Option, declared: str) -> Option:
    wrong = declared in ACCEPTS and option.name not in ACCEPTS[declared]
    return probing.wrong_here(option, PADDED_DENOMINATOR if option.name == "padded" else AGGREGATION, wrong)


SHIFTS = ("one late", "one early", "late, own count", "early, own count", "rolled late", "rolled early")


def excused(subject: Subject, options: Options) -> bool:
    """Whether an aggregation that was not declared may be no fault of this function: its caller can set or undo it."""
    switch = subject.bound.settings.get("aggregation")
    return options["agg"] == "sum" or options["agg"] in ACCEPTS.get(str(switch), ())


def masking(subject: Subject, reduced: Reduced) -> Axis:
    own = Option(name="own", standing="standard")
    if "completion_mask" not in subject.bound.names or reduced == "tokens":
        return Axis(name="mask", options=(own,))
    return Axis(
        name="mask",
        options=(
            own,
            probing.as_pitfall("missing", MASK_MISSING),
            probing.as_pitfall("inverted", MASK_INVERTED),
            probing.as_pitfall("inverted, own count", MASK_INVERTED),
            *(probing.as_pitfall(name, MASK_SHIFT) for name in SHIFTS),
            probing.as_pitfall("numerator", MASK_NUMERATOR),
        ),
    )


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """-agg(surrogate) and its gradient with respect to whatever log-prob the function was given."""
    key = (
        "pg",
        *(options[k] for k in ("level", "surrogate", "bounds", "adv")),
        *(v for k, v in knobs.items() if k != "length"),
    )
    value = aggregated(s.remember(key, lambda: tokens(s, options, knobs)), s, options, knobs, key)
    value = value if options["sign"] == "plus" else -value
    return Result(value=value, grads=lambda: gradients(value, s))


def quick(s: Seen, options: Options, knobs: Knobs) -> float | None:
    """The value of `reference` where it is a scalar."""
    place = _PLACE.get((options["agg"], options["mask"]))
    if place is None:
        return None
    key = (
        "pg",
        *(options[k] for k in ("level", "surrogate", "bounds", "adv")),
        *(v for k, v in knobs.items() if k != "length"),
    )
    means = s.listed.get(key)
    if means is None:
        each = s.remember(key, lambda: tokens(s, options, knobs))
        means = s.listed[key] = (_all_weights(s) @ each.flatten()).tolist()
    value = means[place] / (knobs["length"] if options["agg"] in ("constant", "over constant") else 1.0)
    return value if options["sign"] == "plus" else -value


def gradients(value: Tensor, s: Seen) -> dict[str, Tensor]:
    """d value / d input, of a sum weighted with the cotangent where the value is no scalar."""
    from rltriage_probes.invoke import cotangent

    leaves = {k.removeprefix("leaf:"): v for k, v in s.cache.items() if k.startswith("leaf:")}
    out = value if value.dim() == 0 else (value * cotangent(value.shape).double()).sum()
    if not out.requires_grad:
        return {k: torch.zeros_like(v) for k, v in leaves.items()}
    unused_too = torch.autograd.grad(out, list(leaves.values()), retain_graph=True, allow_unused=True)
    got = cast("tuple[Tensor | None, ...]", unused_too)
    return {k: torch.zeros_like(v) if g is None else g for (k, v), g in zip(leaves.items(), got, strict=True)}


def tensor(s: Seen, word: str) -> Tensor:
    """An input as the reference uses it: the leaf where gradients are compared."""
    leaf = s.cache.get("leaf:" + word)
    if leaf is not None:
        return leaf
    got = s.inputs[word]
    assert isinstance(got, Tensor)
    return got


def log_ratio(s: Seen) -> Tensor:
    """new - old, through whichever input the function gets it."""
    for word, turn in (("ratio", torch.log), ("log_ratio", torch.positive), ("negative_log_ratio", torch.neg)):
        if word in s.cache or "leaf:" + word in s.cache:
            return turn(tensor(s, word))
    return tensor(s, "logprobs") - tensor(s, "old_logprobs").detach()


def ratio_at(s: Seen, level: str) -> Tensor:
    """Importance ratio [B, T] at a level of the `level` axis."""
    return s.remember(("ratio", level), lambda: _ratio_at(s, level))


def _ratio_at(s: Seen, level: str) -> Tensor:
    d = log_ratio(s)
    mask = tensor(s, "completion_mask")
    logp = tensor(s, "logprobs")
    total = (d * mask).sum(-1, keepdim=True)
    made: dict[str, Callable[[], Tensor]] = {
        "token": d.exp,
        "sequence": lambda: (total / mask.sum(-1, keepdim=True)).exp().expand_as(d),
        "sequence sum": lambda: total.exp().expand_as(d),
        "sequence padded": lambda: (total / mask.shape[1]).exp().expand_as(d),
        # value of the sequence, gradient through each token's own log-prob; with the right count the two forms agree
        "token sum": lambda: (logp - logp.detach() + total.detach()).exp(),
        "token padded": lambda: (logp - logp.detach() + total.detach() / mask.shape[1]).exp(),
        "on policy": lambda: (logp - logp.detach()).exp(),
        "inverted": lambda: (-d).exp(),
        "detached": lambda: d.exp().detach(),
        "constant": lambda: torch.ones_like(d).detach(),
        "no exp": lambda: d,
        "reference": lambda: (logp - tensor(s, "ref_logprobs").detach()).exp(),
    }
    return made[level]()


def tokens(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """Per-token objective [B, T]."""
    a = s.remember(("advantage", options["adv"]), lambda: _advantage(s, options["adv"]))
    logp = tensor(s, "logprobs")
    kind = options["surrogate"]
    if kind == "reinforce":
        return a * logp
    r = ratio_at(s, options["level"])
    if kind == "none":
        return r * a
    if kind == "weighted":
        return r.detach() * a * logp
    if kind == "cispo absolute":
        return r.clamp(max=knobs["cap"]).detach() * a * logp
    if kind in UPPER_ONLY:
        return _capped(kind, r, a, logp, knobs["clip_high"])
    low = knobs["clip_high" if options["bounds"] == "high for both" else "clip_low"]
    high = knobs["clip_high"] if options["bounds"] in ("apart", "high for both") else low
    if kind == "geometric":
        return _geometric(r, a, tensor(s, "completion_mask"), low, high)
    return _clipped(kind, r, a, logp, low, high, knobs)


def _capped(kind: str, r: Tensor, a: Tensor, logp: Tensor, high: float) -> Tensor:
    """Surrogates with an upper bound alone."""
    made: dict[str, Callable[[], Tensor]] = {
        "upper only": lambda: torch.minimum(r * a, r.clamp(max=1 + high) * a),
        "cispo upper": lambda: r.clamp(max=1 + high).detach() * a * logp,
        "cispo upper leak": lambda: r.clamp(max=1 + high) * a * logp,
    }
    return made[kind]()


def _geometric(r: Tensor, a: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    """GMPO: exp of a sequence's mean of each token's pessimistic choice between its log-ratio and the clipped one."""
    d = r.log()
    sign = torch.where(a < 0, -1.0, 1.0)
    chosen = sign * torch.minimum(sign * d, sign * d.clamp(-low, high))
    return ((chosen * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).exp() * a


def _clipped(kind: str, r: Tensor, a: Tensor, logp: Tensor, low: float, high: float, knobs: Knobs) -> Tensor:
    inside = r.clamp(1 - low, 1 + high)
    made: dict[str, Callable[[], Tensor]] = {
        "clip": lambda: torch.minimum(r * a, inside * a),
        "dual": lambda: torch.where(
            a < 0,
            torch.maximum(torch.minimum(r * a, inside * a), knobs["dual_clip"] * a),
            torch.minimum(r * a, inside * a),
        ),
        "max": lambda: torch.maximum(r * a, inside * a),
        "no min": lambda: inside * a,
        "blind": lambda: torch.minimum(r, inside) * a,
        "swapped": lambda: torch.minimum(r * a, r.clamp(1 - high, 1 + low) * a),
        "lower only": lambda: torch.minimum(r * a, r.clamp(min=1 - low) * a),
        "no one": lambda: torch.minimum(r * a, r.clamp(-low, high) * a),
        "low no one": lambda: torch.minimum(r * a, r.clamp(low, 1 + high) * a),
        "dual for all": lambda: torch.maximum(torch.minimum(r * a, inside * a), knobs["dual_clip"] * a),
        "log clip": lambda: torch.minimum(r * a, r.log().clamp(-low, high).exp() * a),
        "cispo": lambda: inside.detach() * a * logp,
        "cispo leak": lambda: inside * a * logp,
    }
    return made[kind]()


def _advantage(s: Seen, choice: str) -> Tensor:
    a = tensor(s, "advantages")
    mask = tensor(s, "completion_mask")
    if choice == "tiled":
        return a.repeat(mask.shape[1]).view(mask.shape)
    a = a[:, None].expand_as(mask)
    return -a if choice == "negated" else a


AGGREGATIONS = (
    "token-mean", "token-mean by rows", "sequence-mean", "sequence-sum", "sum", "padded", "constant", "over constant",
    "given count", "given rows",
)  # fmt: skip
MASKINGS = ("own", "missing", "inverted", "inverted, own count", "numerator", *SHIFTS)
_PLACE = {pair: i for i, pair in enumerate((a, m) for a in AGGREGATIONS for m in MASKINGS)}


def aggregated(each: Tensor, s: Seen, options: Options, knobs: Knobs, key: tuple[object, ...]) -> Tensor:
    """[B, T] -> scalar, [B] or the matrix itself, by `agg` and `mask`; `key` stands for the tokens in the memo."""
    agg, masking_ = options["agg"], options["mask"]
    if agg == "none":
        return each
    if agg in ("row mean", "row sum"):
        return (each * _weights(s, agg, masking_)).sum(-1)
    length = knobs["length"] if agg in ("constant", "over constant") else 1.0
    if each.requires_grad:
        return (each * _weights(s, agg, masking_)).sum() / length
    # the search asks for every mean of the same tokens: one product gives them all
    totals = s.remember(("totals", *key), lambda: _all_weights(s) @ each.flatten())
    return totals[_PLACE[agg, masking_]] / length


def _all_weights(s: Seen) -> Tensor:
    """Weights of the tokens, flat, one row for each way to aggregate and mask."""
    return s.remember(("all weights",), lambda: torch.stack([_weights(s, a, m).flatten() for a, m in _PLACE]))


def _weights(s: Seen, agg: str, masking_: str) -> Tensor:
    return s.remember(("weights", agg, masking_), lambda: _made_weights(s, agg, masking_))


def _made_weights(s: Seen, agg: str, masking_: str) -> Tensor:
    own = tensor(s, "completion_mask")
    ones = torch.ones_like(own)
    zero = torch.zeros_like(own[:, :1])
    late, early = torch.cat([zero, own[:, :-1]], 1), torch.cat([own[:, 1:], zero], 1)
    mask = {
        "own": own, "missing": ones, "inverted": 1 - own, "inverted, own count": 1 - own, "numerator": ones,
        "one late": late, "one early": early, "late, own count": late, "early, own count": early,
        "rolled late": own.roll(1, 1), "rolled early": own.roll(-1, 1),
    }[masking_]  # fmt: skip
    below = own if masking_ == "numerator" or masking_.endswith("own count") else mask
    rows, width = own.shape
    lengths = below.sum(-1, keepdim=True).clamp(min=1e-300)
    return {
        "token-mean": lambda: mask / below.sum(),
        "token-mean by rows": lambda: mask / below.sum() / rows,
        "sequence-mean": lambda: mask / lengths / rows,
        "sequence-sum": lambda: mask / rows,
        "sum": lambda: mask,
        "padded": lambda: mask / (rows * width),
        "row mean": lambda: mask / lengths,
        "row sum": lambda: mask,
        "constant": lambda: mask / rows,
        "over constant": lambda: mask,
        "given count": lambda: mask / float(s.inputs["token_count"]),  # type: ignore[arg-type]
        "given rows": lambda: mask / lengths / float(s.inputs["row_count"]),  # type: ignore[arg-type]
    }[agg]()
