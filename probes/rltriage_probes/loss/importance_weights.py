"""Weights that correct for a sampler which is not the trainer's policy, as functions of their own.

    d_bt = log π_train - log π_sampler        token  w_bt = exp d_bt
    sequence  w_b = exp Σ_t m_bt d_bt         geometric  w_b = exp( Σ_t m_bt d_bt / Σ_t m_bt )

Truncated (TIS): min(w, C), Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training",
after Ionides 2008, "Truncated importance sampling". Masked (IcePop, MIS): w where floor <= w <= C, else 0. The weight
changes the measure, not the objective: no gradient goes through it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, probing, tolerance
from rltriage_probes.contract import Check
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.loss import sampler, surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "which weight between trainer and sampler is this?"
WRT = ("logprobs", "old_logprobs", "log_ratio", "negative_log_ratio", "ratio")

NO_EXP = Pitfall(id="IW-NO-EXP", family="ratio", says="returns the log-ratio where the ratio is wanted")
MODE = Pitfall(
    id="IW-MODE", family="config", says="computes another level or kind of weight than it is told or says that it does"
)
PADDED = Pitfall(
    id="IW-PADDED",
    family="mask-leak",
    says="lets padding into a sequence's weight, or into the mean that normalises it",
)
WIDTH = Pitfall(
    id="IW-WIDTH",
    family="denominator",
    says="divides the log-ratio of a sequence by the padded width, not by the tokens that count",
)
BOUND_IGNORED = Pitfall(
    id="IW-BOUND-IGNORED", family="clip-bounds", says="is given a bound for the weight and does not apply it"
)
CAP_IN_LOG = Pitfall(
    id="IW-CAP-IN-LOG", family="clip-bounds", says="bounds the log-ratio by a cap that is meant for the ratio"
)
OUTSIDE = Pitfall(
    id="IW-OUTSIDE",
    family="clip-direction",
    says="keeps the tokens outside the bounds, which it should drop, or drops those inside",
)
GRADIENT = Pitfall(
    id="IW-GRADIENT", family="gradient-leak", says="lets a gradient through the weight, which is a constant of the loss"
)
NAN = Pitfall(id="IW-NAN", family="nonfinite", says="lets a NaN of a masked token into the weights (NaN * 0 is NaN)")
NOT_ZERO = Pitfall(
    id="IW-MASK-IGNORED", family="mask-missing", says="gives masked tokens a weight although it says that they get 0"
)


# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return _case("ratios around the bounds")


_SCALES = {"ratios around the bounds": (1.0, 1.6, 0.4, 1e-3), "ratios far apart": (3.0, 4.5, 0.15, 1e-5)}
"""Factor on the log-ratios, cap, floor, veto."""


def _case(name: str) -> Case:
    factor, cap, floor, veto = _SCALES[name]
    g = probing.generator("weights, " + name)
    b, t = 6, 7
    lengths = torch.tensor([7, 4, 7, 5, 2, 6])
    mask = (torch.arange(t)[None] < lengths[:, None]).float()
    mask[0, 2] = 0.0
    center = torch.tensor([0.9, -1.1, 0.05, 0.3, -0.3, 0.6])[:, None]
    d = (center + torch.randn(b, t, generator=g) * 0.5) * factor
    d[2] = (d[2] - d[2].mean()) + 0.03 * factor
    mask[2, 3], d[2, 3] = 0.0, 1.5 * factor  # a hole in a row whose weight lies inside the bounds
    d[1, 2], d[3, 6] = -9.0 * factor, -11.0 * factor  # a catastrophic token that counts, and one behind the mask
    old = -torch.rand(b, t, generator=g) * 2 - 12.0 * factor
    old = old.float()
    rollout = old - d
    inputs = {
        "logprobs": old + torch.randn(b, t, generator=g) * 0.4, "old_logprobs": old, "rollout_logprobs": rollout,
        "log_ratio": d, "negative_log_ratio": -d, "ratio": d.exp(), "completion_mask": mask, "lengths": lengths,
        "weight_cap": cap, "weight_floor": floor, "weight_bounds": (floor, cap), "veto_threshold": veto,
        "token_losses": torch.randn(b, t, generator=g) + 0.5,
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


# Axes


def axes(subject: Subject, s: Seen) -> tuple[Axis, ...]:
    names = subject.bound.names
    by_row = s.value.dim() == 1
    return (
        _trainer(names), _ratio(names), _level(subject, by_row), _bound(subject, names), _norm(subject, by_row),
        _veto(names), _times(names), _mask(names), _mean(subject, s),
    )  # fmt: skip


def _mean(subject: Subject, s: Seen) -> Axis:
    """How weighted losses become one number, where the function goes on to average them."""
    names = ("token-mean", "sequence-mean", "sequence-sum", "sum", "padded")
    if s.value.dim():
        return Axis(name="mean", options=(Option(name="none", standing="standard"),))
    wrong = (
        probing.as_pitfall("missing", surrogate.MASK_MISSING), probing.as_pitfall("numerator", surrogate.MASK_NUMERATOR)
    )  # fmt: skip
    return Axis(
        name="mean",
        options=(
            Option(name=names[0], standing="standard", says="mean over the tokens of the batch"),
            *(Option(name=n, says=f"weighted losses averaged as {n}") for n in names[1:]),
            *(wrong if _masked(subject) else ()),
        ),
    )


def _trainer(names: frozenset[str]) -> Axis:
    old = Option(name="old", standing="standard")
    if not {"logprobs", "old_logprobs", "rollout_logprobs"} <= names:
        return Axis(name="trainer", options=(old,))
    current = Option(name="current", says="of the policy that is being trained, not of the old one")
    return Axis(name="trainer", options=(old, current))


def _ratio(names: frozenset[str]) -> Axis:
    own = Option(name="own", standing="standard")
    inverted, bare = probing.as_pitfall("inverted", sampler.INVERTED), probing.as_pitfall("no exp", NO_EXP)
    return Axis(name="ratio", options=(own, inverted, bare))


LEVELS = {
    "token": "token weight",
    "sequence": "one weight a sequence, the product of its tokens' ratios",
    "geometric": "one weight a sequence, the geometric mean of its tokens' ratios",
}
_SAID = {
    "token": r"token[- ]level|per[- ]token|token weights?|each token",
    "sequence": r"sequence[- ]level|per[- ]sequence|product of|sum(med|s)? (of )?(the |over )?(\w+ )?log"
    r"|one (\w+ )?weight (a|per|for each) sequence",
    "geometric": r"geometric",
}


def asked_level(subject: Subject) -> str:
    """The level that the function is told, else the one that its documentation names alone; empty: any."""
    told = str(subject.bound.settings.get("ratio_level") or "")
    if told in LEVELS:
        return told
    mode = str(subject.bound.settings.get("weight_mode") or "").split()
    if mode and mode[0] in LEVELS:
        return mode[0]
    said = [level for level, pattern in _SAID.items() if probing.claims(subject, pattern)]
    if "geometric" in said:
        return "geometric"
    return said[0] if len(said) == 1 else ""


def _level(subject: Subject, by_row: bool) -> Axis:
    asked = asked_level(subject)
    options = [
        probing.wrong_here(Option(name=name, says=says), MODE, wrong=asked not in ("", name))
        for name, says in LEVELS.items()
        if not (by_row and name == "token")
    ]
    options.sort(key=lambda o: o.standing == "pitfall" or o.name != asked)
    wrong = {"sequence padded": PADDED, "geometric padded": PADDED, "geometric over width": WIDTH}
    leaks = wrong if _masked(subject) else {}
    return Axis(name="level", options=(*options, *(probing.as_pitfall(name, p) for name, p in leaks.items())))


def _masked(subject: Subject) -> bool:
    return bool(subject.bound.names & {"completion_mask", "lengths"})


TWO_SIDED = frozenset("clamped dropped kept outside one".split())
_BOUNDS = (
    ("capped", "capped", "TIS; verl, slime, TRL truncate"),
    ("plain", "not bounded", "AReaL"),
    ("clamped", "bounded on both sides", "slime tis_clip_low"),
    ("dropped", "0 outside the bounds", "IcePop; verl, NeMo-RL"),
    ("dropped above", "0 above the cap", "TRL mask; MIS"),
    ("dropped below", "0 below the floor", ""),
    ("dropped reciprocal", "0 outside [1/cap, cap]", ""),
    ("clamped reciprocal", "bounded to [1/cap, cap]", ""),
    ("kept", "1 inside the bounds, 0 outside", "verl rejection sampling"),
    ("kept above", "1 up to the cap, 0 above it", "verl rejection sampling"),
    ("kept reciprocal", "1 inside [1/cap, cap], 0 outside", "verl token_k1"),
)


def _bound(subject: Subject, names: frozenset[str]) -> Axis:
    elsewhere = bool(names & BOUND_WORDS) and _bounds_another_part(subject)
    has_cap = bool(names & {"weight_cap", "weight_bounds"}) and not elsewhere
    has_floor = bool(names & {"weight_floor", "weight_bounds"}) and not elsewhere
    kind = _kind(subject)
    options: list[Option] = []
    for name, says, source in _BOUNDS:
        option = Option(name=name, says=says, source=source)
        without = (has_cap and name in ("plain", "dropped below")) or (has_floor and _one_sided(name))
        told = (kind == "mask" and name in ("capped", "clamped")) or (kind == "truncate" and "dropped" in name)
        option = probing.wrong_here(option, BOUND_IGNORED, without)
        options.append(option if without else probing.wrong_here(option, MODE, told))
    # without a cap of its own a function is likelier to have none than one that never acts
    options.sort(key=lambda o: (o.standing == "pitfall", o.name != "plain" or has_cap))
    wrong = (
        probing.as_pitfall("floored", sampler.BOUND),
        probing.as_pitfall("capped in log", CAP_IN_LOG),
        probing.as_pitfall("clamped in log", CAP_IN_LOG),
        *(
            probing.as_pitfall(n, OUTSIDE)
            for n in ("outside", "outside above", "one", "one above", "rejected", "rejected above")
        ),
    )
    return Axis(name="bound", options=(*options, *wrong))


_DROPS = (
    r"(exceed\w*|above|beyond|outside|over)\b[^.]{0,50}\b(drop|zero|reject|remov|weight 0)",
    r"\b(drop|zero|reject|remov)\w*\b[^.]{0,50}\b(exceed\w*|above|beyond|outside)\b",
)


BOUND_WORDS = frozenset({"weight_cap", "weight_floor", "weight_bounds"})


def _bounds_another_part(subject: Subject) -> bool:
    """Whether a function that returns several things applies its bounds to another one than the weight: a new mask."""
    case = example({})
    wide = {"weight_cap": 1e6, "weight_floor": 1e-9, "weight_bounds": (1e-9, 1e6)}
    try:
        bounded, free = (subject.bound.call_raw(x) for x in (case.inputs, {**case.inputs, **wide}))
    except CallFailed:
        return False
    one, other = (list(x.values()) if isinstance(x, dict) else x for x in (bounded, free))
    if not isinstance(one, (tuple, list)) or not isinstance(other, (tuple, list)) or len(one) != len(other) > 1:
        return False
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if isinstance(a, Tensor) and isinstance(b, Tensor)]
    moved = [a.shape != b.shape or not torch.equal(a, b) for a, b in pairs if a.dim()]
    return any(moved) and not all(moved)


def _kind(subject: Subject) -> str:
    """`mask` or `truncate` where the function is told or says by itself which it does; empty: any."""
    told = str(subject.bound.settings.get("weight_mode") or "").split()[-1:]
    if told in (["mask"], ["truncate"]):
        return told[0]
    drops = probing.claims(subject, *_DROPS)
    return "mask" if drops and not probing.claims(subject, r"truncat", r"\bcapped\b", r"clamp") else ""


def _one_sided(name: str) -> bool:
    return name in ("capped", "dropped above", "kept above", "plain")


def _norm(subject: Subject, by_row: bool) -> Axis:
    none = Option(name="none", standing="standard")
    if not re.search(r"mean|sum|norm", subject.source):
        return Axis(name="norm", options=(none,))
    padded = (probing.as_pitfall("padded mean", PADDED),) if _masked(subject) and not by_row else ()
    return Axis(
        name="norm",
        options=(
            none,
            Option(name="mean", says="divided by the mean over the tokens", source="verl rollout_is_batch_normalize"),
            Option(name="sequence mean", says="divided by the mean over the sequences", source="verl"),
            *padded,
        ),
    )


def _veto(names: frozenset[str]) -> Axis:
    none = Option(name="none", standing="standard")
    if "veto_threshold" not in names:
        return Axis(name="veto", options=(none,))
    return Axis(
        name="veto",
        options=(
            Option(
                name="sequence",
                standing="standard",
                says="a sequence with a catastrophic token is left out",
                source="verl",
            ),
            Option(name="token", says="catastrophic tokens are left out"),
            probing.as_pitfall("none", BOUND_IGNORED),
            probing.as_pitfall("padding", PADDED),
        ),
    )


def _times(names: frozenset[str]) -> Axis:
    if "token_losses" not in names:
        return Axis(name="times", options=(Option(name="weights", standing="standard"),))
    weighted = Option(
        name="losses", standing="standard", says="times the token losses", source="slime vanilla_tis_function"
    )
    return Axis(name="times", options=(weighted, Option(name="weights")))


def _mask(names: frozenset[str]) -> Axis:
    own = Option(name="own", standing="standard")
    if "completion_mask" not in names:
        return Axis(name="mask", options=(own,))
    return Axis(name="mask", options=(own, probing.as_pitfall("inverted", surrogate.MASK_INVERTED)))


def knobs(subject: Subject) -> tuple[Knob, ...]:
    return (
        _bound_knob(subject, "cap", ("weight_cap", "weight_bounds"), (2.0, 3.0, 5.0, 10.0), (1.0, 1e4), _uses_cap),
        _bound_knob(subject, "floor", ("weight_floor", "weight_bounds"), (0.5, 0.1), (0.0, 1.0), _uses_floor),
    )


def _uses_cap(o: Mapping[str, str]) -> bool:
    return o["bound"] not in ("plain", "dropped below")


def _uses_floor(o: Mapping[str, str]) -> bool:
    return o["bound"] in TWO_SIDED | {"dropped below", "clamped in log", "rejected"}


def _bound_knob(
    subject: Subject, name: str, words: Sequence[str], usual: tuple[float, ...], within: tuple[float, float],
    active: Callable[[Mapping[str, str]], bool],
) -> Knob:  # fmt: skip
    """A bound that the case hands over (0 stands for that), or one that is written in the function."""
    if subject.bound.names & set(words):
        return Knob(name=name, values=(0.0,), known=True, active=active)
    guesses = [x for x in subject.literals if within[0] < x < within[1]][:6]
    values = tuple(dict.fromkeys([*guesses, *usual]))
    return Knob(name=name, values=values, active=active, fit=(1.02, 40.0) if name == "cap" else (0.02, 0.98))


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """The weights [B, T] or [B] of the module's docstring."""
    mask = _own(s)
    d = s.remember(("d", options["trainer"]), lambda: log_ratio(s, options["trainer"]))
    if options["ratio"] == "inverted":
        d = -d
    cap = knobs.get("cap", 0.0) or float(s.inputs["weight_cap"])  # type: ignore[arg-type]
    floor = knobs.get("floor", 0.0) or float(s.inputs["weight_floor"])  # type: ignore[arg-type]
    at_level = s.remember(
        ("level", options["trainer"], options["ratio"], options["level"]), lambda: _at_level(d, mask, options["level"])
    )
    w = _bounded(options["bound"], at_level, cap, floor, exp=options["ratio"] != "no exp")
    w = _normalised(options["norm"], w, mask)
    w = _vetoed(options["veto"], w, d, mask, float(s.inputs["veto_threshold"]))  # type: ignore[arg-type]
    if options["mask"] == "inverted":
        w = w * (1 - mask)
    if options["times"] == "losses":
        losses = s.inputs["token_losses"]
        assert isinstance(losses, Tensor)
        w = w * losses
    if s.value.dim() == 0:
        return Result(value=_mean_loss(s, w, mask, options["mean"]))
    return Result(value=w[:, 0] if s.value.dim() == 1 else w)


def _mean_loss(s: Seen, weighted: Tensor, mask: Tensor, choice: str) -> Tensor:
    """The weighted token losses as one number."""
    kept, counts = weighted * mask, mask.sum(-1)
    made: dict[str, Callable[[], Tensor]] = {
        "token-mean": lambda: kept.sum() / counts.sum(),
        "sequence-mean": (kept.sum(-1) / counts.clamp(min=1)).mean,
        "sequence-sum": kept.sum(-1).mean,
        "sum": kept.sum,
        "padded": kept.mean,
        "missing": weighted.mean,
        "numerator": lambda: weighted.sum() / counts.sum(),
    }
    return made[choice]()


def log_ratio(s: Seen, trainer: str) -> Tensor:
    """Trainer minus sampler [B, T], through whichever inputs the function gets it."""
    for word, turn in (("log_ratio", torch.positive), ("negative_log_ratio", torch.neg), ("ratio", torch.log)):
        if f"uses {word}" in s.cache:
            return turn(_tensor(s, word))
    if "uses rollout_logprobs" not in s.cache:
        return _tensor(s, "logprobs") - _tensor(s, "old_logprobs")
    mine = "logprobs" if trainer == "current" or "uses old_logprobs" not in s.cache else "old_logprobs"
    return _tensor(s, mine) - _tensor(s, "rollout_logprobs")


def _tensor(s: Seen, word: str) -> Tensor:
    value = s.inputs[word]
    assert isinstance(value, Tensor)
    return value


def _own(s: Seen) -> Tensor:
    mask = _tensor(s, "completion_mask")
    return mask if "masked" in s.cache else torch.ones_like(mask)


def _at_level(d: Tensor, mask: Tensor, level: str) -> Tensor:
    total = (d * mask).sum(-1, keepdim=True)
    made: dict[str, Callable[[], Tensor]] = {
        "token": lambda: d,
        "sequence": lambda: total,
        "geometric": lambda: total / mask.sum(-1, keepdim=True).clamp(min=1),
        "sequence padded": lambda: d.sum(-1, keepdim=True),
        "geometric padded": lambda: d.mean(-1, keepdim=True),
        "geometric over width": lambda: total / d.shape[-1],
    }
    return made[level]().expand_as(d)


def _bounded(choice: str, d: Tensor, cap: float, floor: float, *, exp: bool) -> Tensor:
    w = d.exp() if exp else d
    zero, one = torch.zeros_like(w), torch.ones_like(w)
    inside, below = (w >= floor) & (w <= cap), w <= cap
    made: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: w,
        "capped": lambda: w.clamp(max=cap),
        "clamped": lambda: w.clamp(floor, cap),
        "clamped reciprocal": lambda: w.clamp(1 / cap, cap),
        "dropped": lambda: w.where(inside, zero),
        "dropped above": lambda: w.where(below, zero),
        "dropped below": lambda: w.where(w >= floor, zero),
        "dropped reciprocal": lambda: w.where((w >= 1 / cap) & below, zero),
        "kept": lambda: one.where(inside, zero),
        "kept above": lambda: one.where(below, zero),
        "kept reciprocal": lambda: one.where((w >= 1 / cap) & below, zero),
        "floored": lambda: w.clamp(min=cap),
        "capped in log": lambda: d.clamp(max=cap).exp(),
        "clamped in log": lambda: d.clamp(floor, cap).exp(),
        "outside": lambda: w.where(~inside, zero),
        "outside above": lambda: w.where(~below, zero),
        "one": lambda: w.where(inside, one),
        "one above": lambda: w.where(below, one),
        "rejected": lambda: zero.where(inside, one),
        "rejected above": lambda: zero.where(below, one),
    }
    return made[choice]()


def _normalised(choice: str, w: Tensor, mask: Tensor) -> Tensor:
    rows = (w * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    made: dict[str, Callable[[], Tensor]] = {
        "none": lambda: w,
        "mean": lambda: w / ((w * mask).sum() / mask.sum()),
        "sequence mean": lambda: w / rows.mean(),
        "padded mean": lambda: w / (w * mask).mean(),
    }
    return made[choice]()


def _vetoed(choice: str, w: Tensor, d: Tensor, mask: Tensor, threshold: float) -> Tensor:
    hit = d.exp() < threshold
    real = hit & (mask > 0)
    made: dict[str, Callable[[], Tensor]] = {
        "none": lambda: w,
        "token": lambda: w * (~real).double(),
        "sequence": lambda: w * (~real.any(-1, keepdim=True)).double(),
        "padding": lambda: w * (~hit.any(-1, keepdim=True)).double(),
    }
    return made[choice]()


# Run


def _observe(subject: Subject, case: Case) -> Seen:
    s = surrogate.flat(probing.observe(subject, case, WRT))
    names = subject.bound.names
    words = ("log_ratio", "negative_log_ratio", "ratio", "old_logprobs", "rollout_logprobs")
    flags = [f"uses {w}" for w in words if w in names]
    if names & {"completion_mask", "lengths"}:
        flags.append("masked")
        if s.value.dim() == 2:
            s.where = case.inputs["completion_mask"] > 0
    s.cache.update({flag: torch.ones(()) for flag in flags})
    return s


def run(subject: Subject) -> Iterator[Check]:
    question = Formula(
        probe="importance_weights.formula", asks=ASKS, cases=tuple(_case(n) for n in _SCALES), reference=reference,
        observe=_observe, axes=lambda seen: axes(subject, seen[0]), knobs=lambda seen: knobs(subject),
        nothing_fits="no known weight between trainer and sampler", hide=lambda k: {n: v for n, v in k.items() if v},
    )  # fmt: skip
    found = formula.judge(subject, question)
    yield found.check
    if found.solution is None:
        return
    yield from _leak(subject, found)
    if found.right:
        yield from _masked_positions(subject, found)
        yield from _nan(subject)


def _leak(subject: Subject, found: Judged) -> Iterator[Check]:
    """A gradient through the weight; harmless where its inputs never carry one."""
    asks = "is the weight a constant of the loss?"
    grads = {k: g for s in found.seen for k, g in s.grads.items() if bool(g.nan_to_num(1.0).abs().max() > 0)}
    promised = probing.claims(subject, r"detach", r"no[- ]grad", r"stop[- ]grad", r"constant", r"without (a )?gradient")
    if "token_losses" in subject.bound.names and not promised:
        return  # whose log-probs carry a graph is the caller's business
    if not grads:
        yield probing.holds("importance_weights.gradient", asks, "no gradient goes through the weight")
        return
    says = f"the gradient with respect to {', '.join(grads)} is not 0: training also moves the weight itself"
    yield probing.violation(
        "importance_weights.gradient", asks, says, GRADIENT, severity="hard" if promised else "soft"
    )


_ZERO_SAID = (
    r"\b0(\.0)?\s+(elsewhere|otherwise|(on|at|for|where) (the )?(pad|mask))", r"weight 0\b",
    r"zero(s|ed)?\s+(out|elsewhere|(on|at|for))",
    r"masked to (0|zero)", r"(padding|masked) (tokens?|positions?) (get|have|are) (weight )?(0|zero)",
)  # fmt: skip


def _masked_positions(subject: Subject, found: Judged) -> Iterator[Check]:
    """Weights behind the mask: finite, and 0 where the function says so."""
    s = found.seen[0]
    if s.where is None or "completion_mask" not in subject.bound.names:
        return
    asks = "are the weights of masked tokens harmless?"
    rest = s.value[~s.where]
    if not bool(rest.isfinite().all()):
        says = "masked tokens get infinite or NaN weights from finite log-probs, and inf * 0 is NaN"
        yield probing.violation("importance_weights.masked", asks, says, NAN)
        return
    gap = tolerance.gap("weights of masked tokens", s.case, rest, torch.zeros_like(rest), s.dtype)
    if gap is None:
        yield probing.holds("importance_weights.masked", asks, "masked tokens have weight 0")
    elif probing.claims(subject, *_ZERO_SAID):
        yield probing.violation("importance_weights.masked", asks, NOT_ZERO.says, NOT_ZERO, gap=gap)
    elif not subject.bound.settings.get("weight_mode"):
        says = "masked tokens keep a weight: the loss has to mask them again"
        yield probing.violation("importance_weights.masked", asks, says, NOT_ZERO, gap=gap, severity="soft")


_NAN_SAID = (
    r"\bnan\b",
    r"no log-?\s?probs?",
    r"undefined",
    r"-\s*inf",
    r"filler|sentinel|garbage|junk",
    r"any (value|size)",
)


def _nan(subject: Subject) -> Iterator[Check]:
    """NaN for tokens that the sampler did not sample: a promise that only some functions make."""
    word = next((w for w in ("rollout_logprobs", "log_ratio") if w in subject.bound.names), "")
    if not word or not _masked(subject) or not probing.claims(subject, *_NAN_SAID):
        return
    asks = "does a NaN of a masked token stay out of the weights?"
    base = example({})
    infinite = probing.claims(subject, r"-\s*inf") and not probing.claims(subject, r"\bnan\b", r"undefined")
    fill = torch.tensor(float("-inf" if infinite else "nan"))
    given = base.inputs[word].where(base.inputs["completion_mask"] > 0, fill)
    case = Case(name="NaN behind the mask", inputs={**base.inputs, word: given})
    try:
        s = _observe(subject, case)
    except CallFailed as e:
        yield probing.raised("importance_weights.nan", asks, case.name, e)
        return
    if bool(s.value.isfinite().all()):
        yield probing.holds("importance_weights.nan", asks, "masked tokens are never read")
        return
    yield probing.violation("importance_weights.nan", asks, NAN.says, NAN)


ROLE = Role(
    name="importance_weights",
    stage="loss",
    asks="log-probs of trainer and sampler -> weights [B, T] or [B]",
    takes=(
        "log_ratio", "rollout_logprobs", "old_logprobs", "logprobs", "negative_log_ratio", "ratio", "completion_mask",
        "lengths", "weight_cap", "weight_floor", "weight_bounds", "veto_threshold", "weight_mode", "ratio_level",
        "token_losses",
    ),
    needs=(("log_ratio", "negative_log_ratio", "ratio", "logprobs", "old_logprobs"),),
    returns="per token",
    example=example,
    run=run,
    pitfalls=(
        NO_EXP, MODE, PADDED, WIDTH, BOUND_IGNORED, CAP_IN_LOG, OUTSIDE, GRADIENT, NAN, NOT_ZERO, sampler.INVERTED,
        sampler.BOUND, surrogate.MASK_INVERTED, surrogate.MASK_MISSING, surrogate.MASK_NUMERATOR,
    ),
)  # fmt: skip
