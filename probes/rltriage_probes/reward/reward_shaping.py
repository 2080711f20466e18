"""What is done to a score before it becomes an advantage: the KL penalty, the overlong penalty, clipping.

    r_t = [t = last] · (clip(score) + p(|y|)) - β · KL_t           KL_t = logp_t - ref_logp_t

KL in the reward: Ziegler et al. 2019, arXiv:1909.08593, eq. 2; per token: Ouyang et al. 2022, arXiv:2203.02155, eq. 2.

    p(n) = -f · clip((n - (L - C)) / C, 0, 1)                      DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 13

L is the length limit, C the buffer before it, f the largest penalty.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, probing, texts
from rltriage_probes.contract import Check, KnownBug, NotRun
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.loss import estimators
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "is this the score with its penalties, each with the right sign and at the right token?"
LIMIT, BUFFER, FACTOR, BETA, CLIP = 6, 3, 0.8, 0.3, 1.2
"""Settings that cases hand over: none is a default of anybody's."""
WIDEST = 4096

# Pitfalls

KL_SIGN = Pitfall(
    id="RSH-KL-SIGN", family="sign", says="pays for drifting from the reference instead of charging for it"
)
KL_REVERSED = Pitfall(
    id="RSH-KL-REVERSED", family="kl-direction", says="exchanges policy and reference inside the KL estimator"
)
KL_UNWEIGHTED = Pitfall(id="RSH-KL-UNWEIGHTED", family="inert-option", says="takes the KL without its weight")
KL_MISSING = Pitfall(id="RSH-KL-MISSING", family="inert-option", says="takes a KL and a weight, and charges nothing")
KL_PADDING = Pitfall(id="RSH-KL-PADDING", family="mask-leak", says="charges a KL on masked positions")
MASK_INVERTED = Pitfall(
    id="RSH-MASK-INVERTED", family="mask-inverted", says="charges the KL on masked positions and on no others"
)
OVERWRITES = Pitfall(
    id="RSH-SCORE-OVERWRITES",
    family="aliasing",
    says="puts the score in place of the last token's KL instead of adding it",
)
PLACE = Pitfall(id="RSH-SCORE-PLACE", family="shift", says="puts the score on another token than the last one")
EVERY = Pitfall(id="RSH-SCORE-EVERY-TOKEN", family="mask-leak", says="gives the whole score to every token")
LOST = Pitfall(id="RSH-SCORE-LOST", family="inert-option", says="leaves the score out of the reward")
LENGTH_SIGN = Pitfall(id="RSH-LENGTH-SIGN", family="sign", says="pays for length instead of charging for it")
LENGTH_EDGE = Pitfall(
    id="RSH-LENGTH-EDGE",
    family="shift",
    says="lets the penalty begin at another length than the limit minus the buffer",
)
LENGTH_SCALE = Pitfall(
    id="RSH-LENGTH-SCALE", family="denominator", says="divides the excess by something else than the buffer"
)
LENGTH_UNBOUNDED = Pitfall(
    id="RSH-LENGTH-UNBOUNDED",
    family="clip-bounds",
    says="pays responses that end before the buffer, the more the shorter they are",
)
REPETITION_SIGN = Pitfall(
    id="RSH-REPETITION-SIGN",
    family="sign",
    says="charges varied text more for repetition than text that repeats itself",
)
LENGTH_INERT = Pitfall(id="RSH-LENGTH-INERT", family="inert-option", says="has an overlong penalty that never acts")
FACTOR_IGNORED = Pitfall(id="RSH-FACTOR-IGNORED", family="inert-option", says="ignores the factor of the penalty")
LENGTH_PADDED = Pitfall(
    id="RSH-LENGTH-PADDED",
    family="denominator",
    says="takes the padded width of the batch for the length of a response",
)
CLIP_IGNORED = Pitfall(
    id="RSH-CLIP-IGNORED", family="inert-option", says="takes a bound of the score and clips nothing"
)
CLIP_SWAPPED = Pitfall(
    id="RSH-CLIP-SWAPPED", family="clip-bounds", says="exchanges the lower and the upper bound of the score"
)
CLIP_ONE_SIDED = Pitfall(id="RSH-CLIP-ONE-SIDED", family="clip-bounds", says="bounds the score on one side only")

# What documentation promises

MASK_PROMISED = (
    r"(every|each|all|on|over|the) (\w+ )?(response|completion|valid|unmasked|real)[ -](token|position)",
    r"(every|each|all|on|over|the) (\w+ )?(trained|action|generated|policy)[ -](token|position)",
    r"\b(0|zero|zeros|nothing)\b[^.]{0,30}(pad|mask)",
    r"(pad|mask)\w*[^.]{0,40}\b(0|zero|ignored|excluded|no reward|nothing)",
)
ADDED_PROMISED = (r"\b(every|each|all)\b[^.]{0,40}token", r"\b(added|adds|plus|\+)\b")
COUNT_WRONG = (r"\b(tool|observation|holes?|multi-?turn|gaps?)\b",)
LENGTH_PROMISED = (r"penalt|overlong|too long",)
SWITCH = re.compile(r"enabl|\buse_\w|\bapply_\w*\s*(:|=|and|or|\))|is not None|is None")
"""Signs in the source that a penalty may be switched off."""

# Axes


def axes(subject: Subject, seen: Sequence[Seen]) -> tuple[Axis, ...]:
    """The axes as they concern this function."""
    tokens = seen[0].value.dim() == 2
    return (
        *_kl(subject, tokens),
        _place(subject, tokens),
        *_length(subject),
        _clip(subject),
        _whiten(subject, tokens),
    )


def _only(name: str, option: str) -> Axis:
    return Axis(name=name, options=(Option(name=option, standing="standard"),))


def _has_kl(subject: Subject) -> bool:
    names = subject.bound.names
    return "token_kl" in names or ("ref_logprobs" in names and bool(names & {"logprobs", "old_logprobs"}))


def _has_score(subject: Subject) -> bool:
    return bool(subject.bound.names & {"rewards", "token_rewards"})


def _kl(subject: Subject, tokens: bool) -> tuple[Axis, ...]:
    if not _has_kl(subject):
        return (_only("estimator", "none"), _only("penalty", "none"), _only("kl on", "everywhere"))
    return (_estimator(subject), _penalty(subject), _kl_on(subject, tokens))


def _estimator(subject: Subject) -> Axis:
    if "token_kl" in subject.bound.names:
        return _only("estimator", "given")
    names = ("k1", "k3", "k2", "abs", "square", "k1 clamped", "k3 clamped", "k2 clamped")
    says = {o.name: o for o in estimators.estimator_axis(with_ratio=False).options}
    right = [dataclasses.replace(says[n], standing="standard" if n == "k1" else "convention") for n in names]
    wrong = [probing.as_pitfall(f"{n} reversed", KL_REVERSED) for n in ("k3", "k3 clamped")]
    return Axis(name="estimator", options=(*right, *wrong))


def _penalty(subject: Subject) -> Axis:
    options = [
        Option(name="minus", standing="standard", says="KL charged in the reward"),
        probing.as_pitfall("plus", KL_SIGN),
    ]
    if "beta" in subject.bound.names:
        options += [probing.as_pitfall("unweighted", KL_UNWEIGHTED), probing.as_pitfall("unweighted plus", KL_SIGN)]
    if _has_score(subject):
        options.append(probing.as_pitfall("none", KL_MISSING))
    return Axis(name="penalty", options=tuple(options))


def _kl_on(subject: Subject, tokens: bool) -> Axis:
    if not _masked(subject):
        mean = () if tokens else (Option(name="mean everywhere", says="mean KL of a sequence"),)
        return Axis(name="kl on", options=(Option(name="everywhere", standing="standard"), *mean))
    mean = () if tokens else (Option(name="mean", says="mean KL of a sequence"),)
    if "token_kl" in subject.bound.names:
        return Axis(name="kl on", options=(Option(name="masked", standing="standard"), *mean))
    return Axis(
        name="kl on",
        options=(
            Option(name="masked", standing="standard"),
            *mean,
            probing.as_pitfall("everywhere", KL_PADDING),
            *(() if tokens else (probing.as_pitfall("mean everywhere", KL_PADDING),)),
            probing.as_pitfall("inverted", MASK_INVERTED),
        ),
    )


def _masked(subject: Subject, *words: str) -> bool:
    """Whether the function knows which tokens are there."""
    return any(slot.meaning in (words or ("completion_mask", "lengths")) for slot in subject.bound.report.slots)


def _place(subject: Subject, tokens: bool) -> Axis:
    """Where the score [B] goes in a result [B, T]."""
    if not _has_score(subject):
        return _only("score", "none")
    if not tokens or "token_rewards" in subject.bound.names:
        lost = (probing.as_pitfall("none", LOST),) if _has_kl(subject) or _has_length(subject) else ()
        return Axis(name="score", options=(Option(name="given", standing="standard"), *lost))
    known = _masked(subject, "completion_mask", "lengths", "last_index")
    first = Option(name="last", standing="standard", says="score on the last token")
    column = Option(name="last column", says="score in the last column", source="torchtune get_rewards_ppo")
    count = Option(name="count", says="score at the index of the token count")
    options = [first, column] if not known else [
        first,
        probing.wrong_here(count, PLACE, probing.claims(subject, *COUNT_WRONG)),
        probing.as_pitfall("last column", PLACE),
    ]  # fmt: skip
    options += [probing.as_pitfall(n, PLACE) for n in ("one early", "one late", "first", "count early")]
    both = ("overwrites", "overwrites count") if _has_kl(subject) else ()
    overwrites = [probing.as_pitfall(n, OVERWRITES) for n in both]
    return Axis(
        name="score",
        options=(*options, probing.as_pitfall("every", EVERY), probing.as_pitfall("none", LOST), *overwrites),
    )


def _has_length(subject: Subject) -> bool:
    named = "buffer_length" in subject.bound.names or _number(subject, "buffer_length") is not None
    return named or _written(subject) is not None


def _has_limit(subject: Subject) -> bool:
    named = "max_completion_length" in subject.bound.names or _number(subject, "max_completion_length") is not None
    return named or _written(subject) is not None


def _written(subject: Subject) -> tuple[int, int] | None:
    """Limit and buffer that are written into a function about long responses; None where there are none."""
    names = subject.bound.names
    if names & {"max_completion_length", "buffer_length"} or not probing.claims(
        subject, r"overlong|too long|soft penalty"
    ):
        return None
    found = sorted({int(x) for x in subject.literals if x >= 2 and x == int(x)}, reverse=True)
    return (found[0], found[1]) if len(found) >= 2 and found[0] <= WIDEST else None


def _length(subject: Subject) -> tuple[Axis, ...]:
    """The overlong penalty."""
    if not (_has_length(subject) and _has_limit(subject)):
        return (_only("length", "none"),) if not _has_limit(subject) else (_plain_length(subject),)
    options = [
        Option(name="soft", standing="standard", says="soft overlong penalty", source="DAPO, arXiv:2503.14476"),
        Option(name="uncapped", says="overlong penalty without a floor", source="verl dapo.py"),
        probing.as_pitfall("floor only", LENGTH_UNBOUNDED),
        probing.as_pitfall("unclipped", LENGTH_UNBOUNDED),
        probing.as_pitfall("soft plus", LENGTH_SIGN),
        probing.as_pitfall("uncapped plus", LENGTH_SIGN),
        probing.as_pitfall("mirrored", LENGTH_SIGN),
        probing.as_pitfall("mirrored start", LENGTH_SIGN),
        probing.as_pitfall("late edge", LENGTH_EDGE),
        probing.as_pitfall("buffer edge", LENGTH_EDGE),
        probing.as_pitfall("one early", LENGTH_EDGE),
        probing.as_pitfall("one late", LENGTH_EDGE),
        probing.as_pitfall("over limit", LENGTH_SCALE),
        probing.as_pitfall("over start", LENGTH_SCALE),
        probing.as_pitfall("tokens", LENGTH_SCALE),
        probing.as_pitfall("step", LENGTH_SCALE),
        probing.as_pitfall("padded", LENGTH_PADDED),
        *([probing.as_pitfall("none", LENGTH_INERT)] if _has_score(subject) else []),
    ]
    if "penalty_factor" in subject.bound.names:
        options.append(probing.as_pitfall("soft, factor 1", FACTOR_IGNORED))
        options.append(probing.as_pitfall("uncapped, factor 1", FACTOR_IGNORED))
    return (Axis(name="length", options=tuple(options)),)


def _plain_length(subject: Subject) -> Axis:
    """A limit without a buffer: linear in the length, or all at once."""
    none = Option(name="none", standing="standard")
    right = (
        Option(name="linear", says="penalty proportional to the length"),
        Option(name="beyond", says="penalty beyond the limit"),
        Option(name="at limit", says="penalty from the limit on"),
    )
    wrong = tuple(probing.as_pitfall(f"{o.name} plus", LENGTH_SIGN) for o in right)
    return Axis(name="length", options=(none, *right, *wrong))


def _clip(subject: Subject) -> Axis:
    if "reward_clip" not in subject.bound.names and _number(subject, "reward_clip") is None:
        return _only("clip", "none")
    return Axis(
        name="clip",
        options=(
            Option(name="score", standing="standard", says="score clipped"),
            Option(name="total", says="shaped reward clipped"),
            probing.as_pitfall("none", CLIP_IGNORED),
            probing.as_pitfall("upper only", CLIP_ONE_SIDED),
            probing.as_pitfall("lower only", CLIP_ONE_SIDED),
            probing.as_pitfall("swapped", CLIP_SWAPPED),
        ),
    )


def _whiten(subject: Subject, tokens: bool) -> Axis:
    kinds = ("tokens1", "tokens0", "tokens1 zeroed", "tokens0 zeroed") if tokens else ("sample1", "sample0")
    return Axis(
        name="whiten",
        options=(
            Option(name="none", standing="standard"),
            *(Option(name=k, says=f"whitened, ddof={k[6:7]}") for k in kinds),
            *(
                Option(name=f"{k} kept", says=f"scaled to unit variance, ddof={k[6:7]}", source="TRL PPO")
                for k in kinds
            ),
        ),
    )


# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return _case("lengths around the limit", LIMIT, BUFFER)


def cases(subject: Subject) -> tuple[Case, ...]:
    """Lengths on both sides of every edge; tool output inside a response where no length matters."""
    limit, buffer = _limits(subject)
    made = [_case("lengths around the limit", limit, buffer), _case("other numbers", limit, buffer)]
    if not _has_length(subject) and _masked(subject):
        made.append(_case("tool output inside", limit, buffer, holes=True))
    return tuple(made)


def _limits(subject: Subject) -> tuple[int, int]:
    """Limit and buffer: those that the function is stuck with, else the cases' own."""
    names, written = subject.bound.names, _written(subject)
    if written is not None:
        return written
    limit = LIMIT if "max_completion_length" in names else int(_number(subject, "max_completion_length") or LIMIT)
    buffer = BUFFER if "buffer_length" in names else int(_number(subject, "buffer_length") or BUFFER)
    return (limit, buffer) if 2 <= limit <= WIDEST and 1 <= buffer <= limit else (LIMIT, BUFFER)


def _number(subject: Subject, word: str) -> float | None:
    value = subject.bound.settings.get(word)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _case(name: str, limit: int, buffer: int, *, holes: bool = False) -> Case:
    start = limit - buffer
    wanted = [limit + 2 * buffer, limit, limit - 1, start + max(1, buffer // 2), start + 1, start, max(1, start - 1)]
    lengths = torch.tensor([max(1, n) for n in wanted])
    b, t = len(wanted), limit + 2 * buffer + 1
    g = probing.generator(name)
    mask = (torch.arange(t)[None] < lengths[:, None]).float()
    if holes:
        mask[0, 1:3] = 0.0
        mask[1, 2] = 0.0
        mask[2, 0] = 0.0
    rewards = torch.randn(b, generator=g) + torch.tensor([2.0, -2.0, 0.3, 1.5, -0.4, 0.8, -1.6])
    logp = -torch.rand(b, t, generator=g) * 3 - 0.05
    ref = logp + torch.randn(b, t, generator=g) * 0.7
    tokens = torch.zeros(b, t)
    tokens[torch.arange(b), lengths - 1] = rewards
    inputs = {
        "rewards": rewards, "token_rewards": tokens, "logprobs": logp, "old_logprobs": logp, "ref_logprobs": ref,
        "token_kl": (logp - ref) * mask, "completion_mask": mask, "lengths": lengths, "last_index": lengths - 1,
        "beta": BETA, "max_completion_length": limit, "buffer_length": buffer, "penalty_factor": FACTOR,
        "reward_clip": CLIP, "token_ids": torch.randint(3, 50, (b, t), generator=g), "prompt_length": 0,
        "completion_length": t, "texts": list(TEXTS),
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """The shaped reward, [B, T] or [B]."""
    tokens = s.value.dim() == 2
    bonus = s.remember(
        ("length", options["length"], knobs.get("factor")), lambda: _length_penalty(s, options["length"], knobs)
    )
    score = s.remember(("score", options["clip"], knobs.get("clip")), lambda: _score(s, options, knobs))
    key = ("term", options["estimator"], options["penalty"], options["kl on"], knobs.get("beta"))
    kl = s.remember(key, lambda: _kl_term(s, options, knobs))
    if not tokens:
        total = (score if options["score"] != "none" else torch.zeros_like(score)) + bonus + kl.sum(-1)
    else:
        total = _on_tokens(s, options, score, bonus, kl)
    if options["clip"] == "total":
        bound = knobs.get("clip", _given(s, "reward_clip"))
        total = total.clamp(-bound, bound)
    return Result(value=_whitened(total, s, options["whiten"], tokens))


def _tensor(s: Seen, word: str) -> Tensor:
    got = s.inputs[word]
    assert isinstance(got, Tensor)
    return got.double()


def _given(s: Seen, word: str) -> float:
    """A setting as the case has it, for what the convention alone would do."""
    return float(s.inputs[word])  # type: ignore[arg-type]


def _mask(s: Seen) -> Tensor:
    return s.remember(("mask",), lambda: _known_mask(s))


def _known_mask(s: Seen) -> Tensor:
    """1 on the tokens that the function knows to be there."""
    if "uses completion_mask" in s.cache:
        return _tensor(s, "completion_mask")
    full = _tensor(s, "completion_mask")
    ends = _ends(s)
    return (torch.arange(full.shape[1])[None] <= ends[:, None]).double()


def _ends(s: Seen) -> Tensor:
    """Column of the last token of each row."""
    return s.remember(("ends",), lambda: _known_ends(s))


def _known_ends(s: Seen) -> Tensor:
    if "uses completion_mask" not in s.cache and "uses last_index" in s.cache:
        return _tensor(s, "last_index").long()
    if "uses completion_mask" not in s.cache and "uses lengths" in s.cache:
        return _tensor(s, "lengths").long() - 1
    mask = _tensor(s, "completion_mask")
    return mask.shape[1] - 1 - mask.flip(1).argmax(1)


def _score(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """The score [B], clipped where that comes first."""
    bound = knobs.get("clip", _given(s, "reward_clip"))
    score = _tensor(s, "rewards")
    match options["clip"]:
        case "score":
            return score.clamp(-bound, bound)
        case "upper only":
            return score.clamp(max=bound)
        case "swapped":
            return torch.full_like(score, -bound)  # clamp with a minimum above its maximum gives the maximum
        case "lower only":
            return score.clamp(min=-bound)
        case _:
            return score


def _kl_term(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """- β · KL [B, T]."""
    mask = _mask(s)
    kind, how = options["estimator"], options["penalty"]
    if kind == "none" or how == "none":
        return torch.zeros_like(mask)
    kl = s.remember(("kl", kind), lambda: _estimate(s, kind))
    kl = {
        "everywhere": kl, "masked": kl * mask, "inverted": kl * (1 - mask),
        "mean": kl * mask / mask.sum(-1, keepdim=True), "mean everywhere": kl / kl.shape[1],
    }[options["kl on"]]  # fmt: skip
    weight = 1.0 if how.startswith("unweighted") else knobs.get("beta", _given(s, "beta"))
    return kl * (weight if how.endswith("plus") else -weight)


def _estimate(s: Seen, kind: str) -> Tensor:
    if kind == "given":
        return _tensor(s, "token_kl")
    policy, ref = _tensor(s, "logprobs"), _tensor(s, "ref_logprobs")
    name = kind.removesuffix(" reversed")
    made = estimators.reversed_estimate if kind != name else estimators.estimate
    return made(name, policy, ref, lambda: torch.ones_like(policy))


def _length_penalty(s: Seen, kind: str, knobs: Knobs) -> Tensor:
    """p(n) [B]."""
    n = _counts(s)
    if kind == "none":
        return torch.zeros_like(n)
    limit, buffer = float(s.inputs["max_completion_length"]), float(s.inputs["buffer_length"])  # type: ignore[arg-type]
    factor = 1.0 if kind.endswith("factor 1") else knobs.get("factor", _given(s, "penalty_factor"))
    if kind == "padded":
        n = torch.full_like(n, float(_tensor(s, "completion_mask").shape[1]))
    over = n - (limit - buffer)
    made: dict[str, Callable[[], Tensor]] = {
        "soft": lambda: -(over / buffer).clamp(0, 1),
        "uncapped": lambda: -(over / buffer).clamp(min=0),
        "floor only": lambda: -(over / buffer).clamp(max=1),
        "unclipped": lambda: -(over / buffer),
        "mirrored": lambda: -((limit - n) / buffer).clamp(0, 1),
        "mirrored start": lambda: -(-over / buffer).clamp(0, 1),
        "late edge": lambda: -((n - limit) / buffer).clamp(0, 1),
        "buffer edge": lambda: -((n - buffer) / buffer).clamp(0, 1),
        "one early": lambda: -((over + 1) / buffer).clamp(0, 1),
        "one late": lambda: -((over - 1) / buffer).clamp(0, 1),
        "over limit": lambda: -(over / limit).clamp(0, 1),
        "over start": lambda: -(over / max(limit - buffer, 1.0)).clamp(0, 1),
        "tokens": lambda: -over.clamp(min=0).minimum(torch.tensor(buffer, dtype=torch.float64)),
        "step": lambda: -(over > 0).double(),
        "padded": lambda: -(over / buffer).clamp(0, 1),
        "linear": lambda: -n / limit,
        "beyond": lambda: -(n > limit).double(),
        "at limit": lambda: -(n >= limit).double(),
    }
    plain = kind.removesuffix(", factor 1").removesuffix(" plus")
    return made[plain]() * (-factor if kind.endswith(" plus") else factor)


def _counts(s: Seen) -> Tensor:
    """Tokens of each row."""
    if "uses completion_mask" in s.cache:
        return _tensor(s, "completion_mask").sum(-1)
    return _tensor(s, "lengths")


def _on_tokens(s: Seen, options: Options, score: Tensor, bonus: Tensor, kl: Tensor) -> Tensor:
    b, t = kl.shape
    rows, place = torch.arange(b), options["score"]
    last = _ends(s)
    out = kl.clone()
    out[rows, last] += bonus
    if place == "none":
        return out
    if place == "given":
        return out + _tensor(s, "token_rewards")
    if place == "every":
        return out + score[:, None] * _mask(s)
    at = {
        "last": last, "overwrites": last, "last column": torch.full_like(last, t - 1),
        "one early": (last - 1) % t, "one late": (last + 1).clamp(max=t - 1), "first": torch.zeros_like(last),
        "count": (_mask(s).sum(-1).long() - 1).clamp(min=0),
        "count early": (_mask(s).sum(-1).long() - 2) % t,
        "overwrites count": (_mask(s).sum(-1).long() - 1).clamp(min=0),
    }[place]  # fmt: skip
    if place.startswith("overwrites"):
        out[rows, at] = bonus
    out[rows, at] += score
    return out


def _whitened(total: Tensor, s: Seen, kind: str, tokens: bool) -> Tensor:
    if kind == "none":
        return total
    mask = _mask(s) if tokens else torch.ones_like(total)
    n = mask.sum()
    mean = (total * mask).sum() / n
    var = ((total - mean).square() * mask).sum() / (n - (1 if "1" in kind else 0))
    out = (total - mean) * (var + 1e-8).rsqrt() + (mean if kind.endswith("kept") else 0.0)
    return out * mask if "zeroed" in kind else out


# Running


def run(subject: Subject) -> Iterator[Check]:
    if "texts" in subject.bound.names and not subject.bound.names & {"rewards", "token_rewards", "logprobs", "lengths"}:
        yield _repetition(subject)
        return
    found = formula.judge(subject, _formula(subject))
    yield dataclasses.replace(found.check, outcome=_weighed(subject, found))


VARIED = "the old ferry leaves at noon with nine crates of pears while gulls circle above a quiet harbour today"
LOOPING = "so it goes on and " * 3 + "so it goes on"
STUCK = "wait " * 18
TEXTS = (VARIED, LOOPING, STUCK, f"{VARIED} and then home", f"{VARIED} {LOOPING}", "a word", "again " * 30)
"""Texts for terms that read words: without any repetition, with phrases that come back, one word over and over."""


def _repetition(subject: Subject) -> Check:
    """A term on words: does repeated text cost at least what varied text does?"""
    probe, asks = "reward_shaping.repetition", "does text that repeats itself cost more than varied text?"
    if not probing.claims(subject, r"repe(a|t)|\bloop|n-?grams?|duplicat|divers|degenerat"):
        reason = "it takes texts, and nothing says what of them it charges"
        return Check(probe=probe, asks=asks, outcome=NotRun(reason=reason, do="Bind it as a `reward`."))
    given = _case("texts", LIMIT, BUFFER).inputs
    try:
        got = subject.bound.call_raw(given)
    except CallFailed:
        try:  # whether the largest penalty is a negative number or an amount differs
            got = subject.bound.call_raw({**given, "penalty_factor": -FACTOR})
        except CallFailed as e:
            return probing.raised(probe, asks, "texts with and without repetition", e)
    values = texts.rows(got, len(TEXTS))
    if values is None or not all(isinstance(v, (int, float)) for v in values):
        reason = f"{len(TEXTS)} texts do not give {len(TEXTS)} numbers"
        return Check(probe=probe, asks=asks, outcome=NotRun(reason=reason, do="Return one number a text."))
    return _charged(subject, *(float(v) for v in values[:3]))


def _charged(subject: Subject, varied: float, looping: float, stuck: float) -> Check:
    """The judgement on the scores of varied text, of phrases that come back and of one word over and over."""
    probe, asks = "reward_shaping.repetition", "does text that repeats itself cost more than varied text?"
    told = f"varied text gets {varied:g}, repeated phrases {looping:g}, one word over and over {stuck:g}"
    penalty = probing.claims(subject, r"penal|charg|\bcosts?\b")
    bonus = probing.claims(
        subject, r"bonus|divers\w* (reward|score)|(reward|pay)\w* (for )?(divers|varied|variety|unique)"
    )
    if varied == looping == stuck:
        return texts.violates(probe, asks, f"repetition changes nothing: {told}", severity="soft")
    if penalty and not bonus and abs(varied) > max(abs(looping), abs(stuck)):
        return texts.violates(probe, asks, told, REPETITION_SIGN)
    # where the caller hands over the largest penalty, its sign is the caller's
    added = penalty and not bonus and probing.claims(subject, r"\badd(s|ed)?\b|negative|<= ?0|\bminus\b")
    if added and "penalty_factor" not in subject.bound.names and min(looping, stuck) > varied:
        return texts.violates(probe, asks, told, REPETITION_SIGN)
    return texts.agrees(probe, asks, told)


def _formula(subject: Subject) -> Formula:
    return Formula(
        probe="reward_shaping.formula",
        asks=ASKS,
        cases=cases(subject),
        reference=reference,
        observe=observe,
        axes=lambda seen: axes(subject, seen),
        knobs=lambda seen: _knobs(subject),
        nothing_fits="no known shaping gives these rewards",
        hide=lambda knobs: {k: v for k, v in knobs.items() if v != 1.0},
        budget=4_000,
    )


def observe(subject: Subject, case: Case) -> Seen:
    s = probing.observe(subject, case)
    meanings = {slot.meaning for slot in subject.bound.report.slots}
    for word in ("completion_mask", "lengths", "last_index"):
        if word in meanings:
            s.cache["uses " + word] = torch.ones(())
    if "token_rewards" in subject.bound.names:
        ends = case.inputs["lengths"] - 1
        given = case.inputs["token_rewards"]
        s.inputs = {**s.inputs, "rewards": given[torch.arange(len(ends)), ends].double()}
    return s


def _knobs(subject: Subject) -> tuple[Knob, ...]:
    names = subject.bound.names
    words = (("beta", "beta", BETA), ("factor", "penalty_factor", FACTOR), ("clip", "reward_clip", CLIP))
    active: dict[str, Callable[[Options], bool]] = {
        "beta": lambda o: o["penalty"] in ("minus", "plus"),
        "factor": lambda o: o["length"] != "none" and not o["length"].endswith("factor 1"),
        "clip": lambda o: o["clip"] != "none",
    }
    usual = {"beta": (0.05, 0.1, 0.01, 0.2, 1.0), "factor": (1.0, 0.5), "clip": (10.0, 5.0, 1.0)}
    made: list[Knob] = []
    for name, word, given in words:
        if word in names:
            made.append(Knob(name=name, values=(given,), known=True, active=active[name]))
        else:
            found = probing.knob(subject, name, (word,), usual[name], active=active[name])
            # a penalty as large as the buffer is one that was not divided by it
            values = found.values if found.known or name != "factor" else tuple(x for x in found.values if 0 < x <= 1)
            made.append(dataclasses.replace(found, values=values))
    return tuple(made)


def _weighed(subject: Subject, found: Judged) -> Any:
    """Soft where the caller may see to it and nothing promises that the function does."""
    outcome = found.check.outcome
    if not isinstance(outcome, KnownBug):
        return outcome
    soft: set[str] = set()
    if not probing.claims(subject, *MASK_PROMISED):
        soft.add(KL_PADDING.id)
    if not probing.claims(subject, *ADDED_PROMISED):
        soft.add(OVERWRITES.id)
    if SWITCH.search(subject.source) and not probing.claims(subject, *LENGTH_PROMISED):
        soft.add(LENGTH_INERT.id)
    only = {n.pitfall for n in outcome.pitfalls} <= soft
    return dataclasses.replace(outcome, severity="soft") if only else outcome


PITFALLS = (
    KL_SIGN, KL_REVERSED, KL_UNWEIGHTED, KL_MISSING, KL_PADDING, MASK_INVERTED, OVERWRITES, PLACE, EVERY, LOST,
    LENGTH_UNBOUNDED, REPETITION_SIGN, LENGTH_SIGN, LENGTH_EDGE, LENGTH_SCALE, LENGTH_INERT, FACTOR_IGNORED,
    LENGTH_PADDED, CLIP_IGNORED, CLIP_SWAPPED, CLIP_ONE_SIDED,
)  # fmt: skip

ROLE = Role(
    name="reward_shaping",
    stage="reward",
    asks="scores (and KL or lengths) -> rewards [B, T] or [B]",
    takes=(
        "rewards", "token_rewards", "logprobs", "old_logprobs", "ref_logprobs", "token_kl", "completion_mask",
        "lengths", "beta", "max_completion_length", "buffer_length", "penalty_factor", "reward_clip", "last_index",
        "token_ids", "kl_estimator", "eps", "texts",
    ),
    needs=(("rewards", "token_rewards", "token_kl", "lengths", "token_ids", "completion_mask", "texts"),),
    returns="per sample",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)  # fmt: skip
