"""How token losses become one number: with which weight each token counts.

    L = Σ_bt w_bt · l_bt

    token-mean       w = m_bt / Σ m                       DAPO, Yu et al. 2025, arXiv:2503.14476, eq. 8
    sequence-mean    w = m_bt / (B · n_b)                 GRPO, Shao et al. 2024, arXiv:2402.03300, eq. 3
    sequence-sum     w = m_bt / B                         REINFORCE with one return a sequence
    constant         w = m_bt / (B · L)                   Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, eq. 1

m is the mask, n_b its count in row b, L a constant length. A batch that is cut into micro-batches must give what the
whole batch gives, so a mean over tokens needs the count of the whole batch in every part.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, invoke, probing
from rltriage_probes.contract import Check, KnownBug
from rltriage_probes.forms import Missing, micro_batches
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "with which weight does each token's loss count?"
WRT = ("token_losses",)

COUNT_BEFORE = Pitfall(
    id="AGG-COUNT-BEFORE-MASK",
    family="denominator",
    says="counts the tokens before a later mask takes some of them away, so the mean is too small",
)
IGNORED = Pitfall(
    id="AGG-MASK-IGNORED", family="mask-missing", says="is given a further mask and sums over what it excludes"
)
MEAN_OF_MEANS = Pitfall(
    id="AGG-MEAN-OF-MEANS",
    family="denominator",
    says="combines the means of micro-batches with weights that are not their counts",
)
MEANS_ADDED = Pitfall(
    id="AGG-MEANS-ADDED",
    family="denominator",
    says="adds the means of micro-batches, so the loss grows with their number",
)
TWICE = Pitfall(
    id="AGG-DIVIDED-TWICE", family="denominator", says="divides a mean once more, by a count that is already in it"
)
SCALE = Pitfall(
    id="AGG-SCALE",
    family="denominator",
    says="scales with the number of ranks or accumulation steps in the wrong direction, or not where it must",
)
COUNT_IGNORED = Pitfall(
    id="AGG-COUNT-IGNORED",
    family="denominator",
    says="is given the count of the whole batch and divides by that of its own part",
)
EPSILON = Pitfall(
    id="AGG-EPSILON", family="epsilon", says="adds a constant to the count that is no longer small beside it"
)
AXIS = Pitfall(id="AGG-AXIS", family="axis", says="reduces over the batch where it should over the tokens of a row")
EMPTY_ROW = Pitfall(
    id="AGG-EMPTY-ROW", family="nonfinite", says="gives NaN as soon as one row has no trained token (0 / 0)"
)
DETACHED = Pitfall(id="AGG-DETACHED", family="gradient-cut", says="returns a loss through which no gradient flows")
FILLER = Pitfall(
    id="AGG-FILLER-NAN", family="nonfinite", says="lets a NaN at a masked position into the sum (NaN * 0 is NaN)"
)


# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return _case("ragged rows")


_SIZES = {"ragged rows": (6, 5, 4, 2), "other rows": (8, 7, 5, 4)}
"""Rows, tokens (in the second case one more than the longest row has), rows a micro-batch, samples a prompt."""
DP_SIZE, STEPS = 3, 4
_LENGTHS = {"ragged rows": (5, 2, 4, 1, 3, 5), "other rows": (3, 6, 6, 5, 1, 2, 4, 5)}


def _case(name: str) -> Case:
    rows, width, chunk, group = _SIZES[name]
    g = probing.generator("token losses, " + name)
    lengths = torch.tensor(_LENGTHS[name])
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    mask[0, 1] = 0.0  # a hole, as tool output leaves one
    mask[2, 0] = 0.0
    second = (torch.rand(rows, width, generator=g) > 0.3).float()
    second[:, 0] = 1.0
    second[2, 1] = second[0, 0] = 1.0
    truncated = torch.zeros(rows, dtype=torch.bool)
    truncated[1] = truncated[rows - 1] = True
    inputs = {
        "token_losses": torch.randn(rows, width, generator=g) + 0.7, "completion_mask": mask,
        "labels": torch.full((rows, width), 5).where(mask > 0, torch.tensor(-100)), "lengths": lengths,
        "second_mask": second, "is_truncated": truncated, "kept_rows": (~truncated).float(),
        "token_count": 1.5 * float(mask.sum()) + 2, "row_count": 2.0 * rows + 1, "chunk_size": chunk,
        "group_size": group, "group_ids": torch.arange(rows) // group, "dp_size": DP_SIZE,
        "accumulation_steps": STEPS, "max_completion_length": surrogate.PASSED_LENGTH,
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


COUNTS = ("token_count", "row_count", "dp_size", "accumulation_steps")
"""What a caller may leave out, whereupon the function counts for itself."""


# Axes


def axes(subject: Subject, seen: Sequence[Seen]) -> tuple[Axis, ...]:
    """The weights as they concern this function."""
    s = seen[0]
    shape = _shape(s)
    have = frozenset(s.inputs) & subject.bound.names
    return (
        _sign(subject), _mode(subject, have, shape), _masking(have, shape), _later(subject, have),
        _rows(have), _empty(have), _parts(subject, have, shape), _ranks(have), _steps(have), _eps(shape),
    )  # fmt: skip


def _shape(s: Seen) -> str:
    """What the value is: `scalar`, `rows`, `columns`, `tokens`."""
    if s.value.dim() == 0:
        return "scalar"
    if s.value.dim() == 2:
        return "tokens"
    losses = s.inputs["token_losses"]
    assert isinstance(losses, Tensor)
    return "rows" if s.value.shape[0] == losses.shape[0] else "columns"


def _sign(subject: Subject) -> Axis:
    """A mean of objectives or log-probs is rightly negated, one of losses is not."""
    objective = any(
        re.search(r"obj|logp|log_p|surr|reward|adv", s.path)
        for s in subject.bound.report.slots
        if s.meaning == "token_losses"
    )
    negated = objective or probing.claims(subject, r"negat|minus|objective|log-?\s?(prob|likelihood)")
    minus = (
        Option(name="minus", says="negated, as an objective is")
        if negated
        else probing.as_pitfall("minus", surrogate.SIGN)
    )
    return Axis(name="sign", options=(Option(name="plus", standing="standard"), minus))


MODES: dict[str, tuple[str, str, str, str]] = {
    "token-mean": ("all", "one", "mean over the tokens of the batch", "DAPO, arXiv:2503.14476"),
    "sequence-mean": ("row", "rows", "mean over tokens, then over sequences", "GRPO, arXiv:2402.03300"),
    "sequence-sum": ("one", "rows", "sum over tokens, mean over sequences", "verl seq-mean-token-sum"),
    "sum": ("one", "one", "sum over all tokens", "prime-rl; SkyRL"),
    "sequence means summed": ("row", "one", "sum of the sequences' token means", "slime sum_of_sample_mean"),
    "padded": ("width", "rows", "sum over B times the padded width", "verl seq-mean-token-sum-norm"),
    "constant": ("constant", "rows", "sum over B times a constant", "Dr. GRPO, arXiv:2503.20783"),
    "over constant": ("constant", "one", "sum over a constant", "nano-aha-moment"),
    "group-mean": ("group", "groups", "mean over the tokens of each prompt, then over prompts", "SkyRL prompt mean"),
    "given count": ("count", "one", "sum over the given token count", "TRL dapo; NeMo-RL"),
    "given rows": ("row", "counted", "token means over the given number of sequences", "verl; NeMo-RL"),
    "given rows sum": ("one", "counted", "sum over the given number of sequences", "verl"),
    "given rows padded": (
        "width", "counted", "sum over the given number of sequences times the padded width",
        "verl seq-mean-token-sum-norm",
    ),
    "given rows constant": ("constant", "counted", "sum over the given number of sequences times a constant", "verl"),
    "by rows again": ("all", "rows", "", ""),
    "given count by rows": ("count", "rows", "", ""),
    "over width": ("width", "one", "", ""),
}  # fmt: skip
"""Mode -> what a token's weight is divided by, what the total is divided by, words, source."""
GIVEN = frozenset(m for m, (per, row, _, _) in MODES.items() if per == "count" or row == "counted")
_OWN_COUNTS = {"token-mean": "token_count", "by rows again": "token_count"}
_OWN_ROWS = frozenset({"sequence-mean", "sequence-sum", "padded", "constant"})
ACCEPTS = {
    "token-mean": {"token-mean", "given count"},
    "sequence-mean": {"sequence-mean", "given rows", "sequence means summed"},
    "sequence-sum": {"sequence-sum", "given rows sum"},
    "constant": {"constant", "padded", "over constant", "given rows constant", "given rows padded"},
    "promised constant": {"constant", "over constant", "given rows constant"},
    "sum": {"sum"},
}
"""Modes that fit what is asked for. A sum fits all: its caller divides."""


def _mode(subject: Subject, have: frozenset[str], shape: str) -> Axis:
    if shape == "tokens":
        return Axis(name="mode", options=(Option(name="sum", standing="standard", says="no reduction"),))
    if shape == "rows":
        return Axis(name="mode", options=_row_modes())
    if shape == "columns":
        along = ("sum", "column mean", "column mean, 0 where empty")
        return Axis(name="mode", options=tuple(probing.as_pitfall(name, AXIS) for name in along))
    asked = wanted(subject)
    modes = [m for m in MODES if _possible(m, have, subject)]
    options = [_option(m, asked, have) for m in modes]
    good = [o for o in options if o.standing != "pitfall"]
    fitting = [o for a in asked for o in good if o.name in ACCEPTS[a]]
    first = (fitting or good or options)[0]
    standard = dataclasses.replace(first, standing=first.standing if first.standing == "pitfall" else "standard")
    return Axis(name="mode", options=(standard, *(o for o in options if o is not first)))


def _row_modes() -> tuple[Option, ...]:
    return (
        Option(name="sequence means summed", standing="standard", says="mean over the tokens of each sequence"),
        Option(name="sum", says="sum over the tokens of each sequence"),
        Option(name="constant", says="sum over the tokens of each sequence, over a constant"),
        probing.as_pitfall("over width", surrogate.PADDED_DENOMINATOR),
        probing.as_pitfall("token-mean", surrogate.AGGREGATION),
    )


def _possible(mode: str, have: frozenset[str], subject: Subject) -> bool:
    per, row, _, _ = MODES[mode]
    if per == "group":
        return bool(have & {"group_size", "group_ids"})
    if per == "constant" and not surrogate.length_guesses(subject):
        return False
    if per == "count" and "token_count" not in have:
        return False
    return row != "counted" or "row_count" in have


def _option(mode: str, asked: tuple[str, ...], have: frozenset[str]) -> Option:
    _, _, says, source = MODES[mode]
    if mode in ("by rows again", "given count by rows"):
        return probing.as_pitfall(mode, TWICE)
    if mode == "over width":
        return probing.as_pitfall(mode, surrogate.PADDED_DENOMINATOR)
    option = Option(name=mode, says=says, source=source)
    counted = "token_count" if mode == "token-mean" else "row_count" if mode in _OWN_ROWS else ""
    if counted in have and mode != "padded":
        return probing.wrong_here(option, COUNT_IGNORED, wrong=True)
    wrong = bool(asked) and mode != "sum" and not any(mode in ACCEPTS[a] for a in asked)
    return probing.wrong_here(
        option, surrogate.PADDED_DENOMINATOR if mode == "padded" else surrogate.AGGREGATION, wrong
    )


_TOKENS = (
    r"(mean|average[ds]?|averaging)\s+(loss\s+|value\s+)?(over|of|across|per|on)\s+(the\s+|all\s+|every\s+|only\s+|each\s+)*"
    r"(\w+\s+)?(tokens?|positions|entries|elements)\b|masked[ _-](mean|average)"
    r"|(?<!seq-mean-)\btoken[- _](level[- ])?mean"
    r"|global[ _-]token|(number|count) of (\w+ ){0,2}tokens|per[- ]token (mean|average)|mean of \w+ where"
)
_SEQUENCES = (
    r"(sequence|sample|seq|row|response|completion)s?[- _](level[- ])?mean"
    r"|(mean|average)s? (over|of|across) (the |all )?"
    r"(sequences|samples|rows|responses|completions)"
    r"|(sequence|sample|row|response|completion)s? (counts?|weigh\w*) (the same|equal)"
)


_ROWS = r"(rows|sequences|samples|batch|responses|completions|trajectories)\b"
_TWO_STEPS = rf"then\s+(a\s+|the\s+)?(mean\s+|average\s+|averaged\s+)?(over|across|of)\s+(the\s+|all\s+)?{_ROWS}"
_ONE_ROW = r"(of|in|for|per|within)\s+(each|every|a|its|one)\s+(row|sequence|sample|response|completion|trajectory)\b"


def promised(subject: Subject) -> str:
    """The mean that the function's name and documentation speak of; empty where they name none, or both."""
    name = re.search(r"def\s+(\w+)", subject.source)
    text = f"{name[1] if name else ''} {subject.doc}"

    def says(pattern: str) -> bool:
        return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None

    if says(_TWO_STEPS):
        return "sequence-mean"
    if says(_ONE_ROW) or says(_TOKENS) == says(_SEQUENCES):
        return ""
    return "token-mean" if says(_TOKENS) else "sequence-mean"


def wanted(subject: Subject) -> tuple[str, ...]:
    """The means that this function may compute: what it is told, else what it says of itself and what is declared.

    Empty: any.
    """
    told = subject.bound.settings.get("aggregation")
    if told == "constant" and _has_budget(subject):
        return ("promised constant",)
    if isinstance(told, str) and told in ACCEPTS:
        return (told,)
    if isinstance(told, str) and told not in ("mean", "none"):
        return ()
    declared = str(subject.intent.get("aggregation") or "")
    if declared == "constant" and _has_budget(subject):
        declared = "promised constant"
    return tuple(m for m in (promised(subject), declared) if m in ACCEPTS)


def _has_budget(subject: Subject) -> bool:
    """Whether the function speaks of a length that does not hang on the batch, or is given one."""
    given = any(x.meaning == "max_completion_length" for x in subject.bound.report.slots)
    return given or probing.claims(subject, *surrogate.CONSTANT_PROMISED)


MASKS = ("own", "missing", "inverted", "inverted, own count", *surrogate.SHIFTS, "numerator")


def _masking(have: frozenset[str], shape: str) -> Axis:
    own = Option(name="own", standing="standard")
    if not have & {"completion_mask", "labels", "lengths"}:
        return Axis(name="mask", options=(own,))
    if shape == "tokens":
        return Axis(name="mask", options=(own, Option(name="missing", says="not masked"), *_inverted()))
    shifted = (probing.as_pitfall(name, surrogate.MASK_SHIFT) for name in surrogate.SHIFTS)
    missing = probing.as_pitfall("missing", surrogate.MASK_MISSING)
    return Axis(
        name="mask",
        options=(own, missing, *_inverted(), *shifted, probing.as_pitfall("numerator", surrogate.MASK_NUMERATOR)),
    )


def _inverted() -> tuple[Option, ...]:
    return tuple(probing.as_pitfall(name, surrogate.MASK_INVERTED) for name in ("inverted", "inverted, own count"))


LATER = frozenset({"second_mask", "is_truncated", "kept_rows"})


def _later(subject: Subject, have: frozenset[str]) -> Axis:
    applied = Option(name="applied", standing="standard")
    if not have & LATER:
        return Axis(name="later", options=(applied,))
    # a switch that is off by default leaves the mask unused, as it should
    off = re.search(r"\w*(trunc|overlong|mask)\w*\s*(:\s*bool\s*)?=\s*False", subject.source) is not None
    ignored = Option(name="ignored", says="further mask not used") if off else probing.as_pitfall("ignored", IGNORED)
    return Axis(
        name="later",
        options=(
            applied,
            ignored,
            probing.as_pitfall("count before", COUNT_BEFORE),
            probing.as_pitfall("inverted", surrogate.MASK_INVERTED),
            probing.as_pitfall("numerator", surrogate.MASK_NUMERATOR),
        ),
    )


def _rows(have: frozenset[str]) -> Axis:
    every = Option(name="all", standing="standard")
    if not have & LATER:
        return Axis(name="rows", options=(every,))
    kept = Option(name="kept", says="rows without a trained token do not count", source="verl, OpenRLHF")
    return Axis(name="rows", options=(every, kept), when=lambda o: MODES.get(o["mode"], ("", ""))[1] == "rows")


def _empty(have: frozenset[str]) -> Axis:
    zero = Option(name="zero", standing="standard")
    if not have & LATER:
        return Axis(name="empty", options=(zero,))
    nan = probing.as_pitfall("nan", EMPTY_ROW)
    return Axis(name="empty", options=(zero, nan), when=lambda o: MODES.get(o["mode"], ("",))[0] == "row")


CUTS = ("size", "number")
"""How a batch is cut: into parts of so many rows, or into so many parts."""


def _parts(subject: Subject, have: frozenset[str], shape: str) -> Axis:
    whole = Option(name="whole", standing="standard")
    if shape != "scalar":
        return Axis(name="parts", options=(whole,))
    cuts = ("list",) if in_micro_batches(subject) else CUTS if "chunk_size" in have else ()
    wrong: list[Option] = []
    for cut in cuts:
        wrong += [probing.as_pitfall(f"{how}, {cut}", MEAN_OF_MEANS) for how in ("equal", "by rows", "by tokens")]
        wrong.append(probing.as_pitfall(f"added, {cut}", MEANS_ADDED))
        wrong.append(probing.as_pitfall(f"divided again, {cut}", TWICE))
    return Axis(name="parts", options=(whole, *wrong))


def in_micro_batches(subject: Subject) -> bool:
    """Whether the function gets a list of micro-batches."""
    return any("micro-batches" in s.form for s in subject.bound.report.slots)


def _given(o: Mapping[str, str]) -> bool:
    return o["mode"] in GIVEN or o["mode"] == "sum"


def _ranks(have: frozenset[str]) -> Axis:
    """Ranks: gradients are averaged over them afterwards: a share of a global count is multiplied by their number."""
    right = Option(name="right", standing="standard")
    if "dp_size" not in have:
        return Axis(name="ranks", options=(right,))
    return Axis(
        name="ranks",
        options=(
            right,
            Option(name="other", says="times the number of ranks"),
            probing.as_pitfall("missing", SCALE),
            probing.as_pitfall("over", SCALE),
        ),
    )


def _steps(have: frozenset[str]) -> Axis:
    """Accumulation steps: a mean of one part is divided by their number, a share of a global count is not."""
    right = Option(name="right", standing="standard")
    if "accumulation_steps" not in have:
        return Axis(name="steps", options=(right,))
    return Axis(
        name="steps",
        options=(
            right,
            Option(name="undivided", says="left to the caller to divide by the accumulation steps"),
            probing.as_pitfall("divided", TWICE),
            probing.as_pitfall("times", SCALE),
        ),
    )


LARGE = 0.02
"""An addition to the count that changes the mean of a short completion by more than a thousandth."""


def _eps(shape: str) -> Axis:
    options = (
        Option(name="none", standing="standard"),
        Option(name="small", says="small constant added to the count"),
        probing.as_pitfall("large", EPSILON),
    )
    return Axis(name="eps", options=options if shape in ("scalar", "rows") else options[:1], when=_counts)


def _counts(o: Mapping[str, str]) -> bool:
    return MODES.get(o["mode"], ("",))[0] in ("all", "row")


def knobs(subject: Subject) -> tuple[Knob, ...]:
    known = subject.bound.settings.get("eps")
    given = (float(known),) if isinstance(known, (int, float)) and not isinstance(known, bool) else ()
    written = tuple(dict.fromkeys((*given, *(x for x in subject.literals if 0.0 < x <= 10.0))))
    small, large = tuple(x for x in written if x < LARGE), tuple(x for x in written if x >= LARGE)
    return (
        surrogate_length(subject),
        Knob(name="eps", values=(*small, 1e-3, 1e-4, 1e-6), active=lambda o: o["eps"] == "small"),
        Knob(name="added", values=(*large, 1.0), active=lambda o: o["eps"] == "large", fit=(LARGE, 50.0)),
    )


def surrogate_length(subject: Subject) -> Knob:
    values = surrogate.length_guesses(subject) or (1.0,)
    return Knob(name="length", values=values, known=True, active=lambda o: MODES.get(o["mode"], ("",))[0] == "constant")


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """Σ w · l and its gradient w, by the rules that the module's docstring gives."""
    losses = s.inputs["token_losses"]
    assert isinstance(losses, Tensor)
    key = ("weights", *(options[a] for a in options if a != "sign"), *knobs.items())
    weights = s.remember(key, lambda: _weights(s, options, knobs))
    weights = -weights if options["sign"] == "minus" else weights
    shape = _shape(s)
    each = losses.where(weights != 0, torch.zeros_like(losses)) * weights
    value = {"scalar": each.sum, "rows": lambda: each.sum(-1), "columns": lambda: each.sum(0), "tokens": lambda: each}[
        shape
    ]()
    if "differentiable" not in s.cache or bool(value.isnan().any()):
        return Result(value=value)
    return Result(value=value, grads=lambda: {"token_losses": _gradient(weights, value)})


def _gradient(weights: Tensor, value: Tensor) -> Tensor:
    if value.dim() == 0:
        return weights
    by = invoke.cotangent(value.shape).double()
    return weights * (by[:, None] if value.dim() == 1 and by.shape[0] == weights.shape[0] else by)


def _weights(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """Weight [B, T] of every token."""
    top, below = _top_and_below(s, options)
    if options["mode"].startswith("column mean"):
        counts = below.sum(0, keepdim=True)
        return top / (counts.clamp(min=1e-300) if options["mode"].endswith("0 where empty") else counts)
    made = _in_parts(s, top, below, options, knobs)
    ranks, steps = options["ranks"], options["steps"]
    if "dp_size" in s.inputs and "uses dp_size" in s.cache:
        n = float(s.inputs["dp_size"])  # type: ignore[arg-type]
        given = _given(options)
        factor = {
            "right": n if given else 1.0, "other": torch.nan if given else n, "missing": 1.0, "over": 1 / n,
        }[ranks]  # fmt: skip
        made = made * factor
    if "accumulation_steps" in s.inputs and "uses accumulation_steps" in s.cache:
        n = float(s.inputs["accumulation_steps"])  # type: ignore[arg-type]
        given = options["mode"] in GIVEN
        factor = {"right": 1.0 if given else 1 / n, "undivided": 1.0, "divided": 1 / n, "times": n}[steps]
        made = made * factor
    return made


def _top_and_below(s: Seen, options: Options) -> tuple[Tensor, Tensor]:
    """The masks [B, T] of the numerator and of the count."""
    own, later = _own(s), _further(s)
    ones, zero = torch.ones_like(own), torch.zeros_like(own[:, :1])
    late, early = torch.cat([zero, own[:, :-1]], 1), torch.cat([own[:, 1:], zero], 1)
    choice = options["mask"]
    top = {
        "own": own, "missing": ones, "inverted": 1 - own, "inverted, own count": 1 - own, "numerator": ones,
        "one late": late, "one early": early, "late, own count": late, "early, own count": early,
        "rolled late": own.roll(1, 1), "rolled early": own.roll(-1, 1),
    }[choice]  # fmt: skip
    below = own if choice == "numerator" or choice.endswith("own count") else top
    over, under = {
        "applied": (later, later), "ignored": (ones, ones), "count before": (later, ones),
        "inverted": (1 - later, 1 - later), "numerator": (ones, later),
    }[options["later"]]  # fmt: skip
    return top * over, below * under


def _own(s: Seen) -> Tensor:
    mask = s.inputs["completion_mask"]
    assert isinstance(mask, Tensor)
    return mask if "masked" in s.cache else torch.ones_like(mask)


def _further(s: Seen) -> Tensor:
    """The product [B, T] of what else takes tokens away."""
    out = torch.ones_like(_own(s))
    for word in sorted(LATER):
        value = s.inputs.get(word)
        if f"uses {word}" not in s.cache or not isinstance(value, Tensor):
            continue
        kept = (~value.bool()).double() if word == "is_truncated" else value.double()
        out = out * (kept if kept.dim() == 2 else kept[:, None])
    return out


def cut(s: Seen, how: str) -> list[range]:
    """Rows of each micro-batch."""
    rows, size = _own(s).shape[0], int(s.inputs["chunk_size"])  # type: ignore[call-overload]
    if how == "list":
        return micro_batches(rows)
    step = size if how == "size" else -(-rows // size)
    return [range(at, min(at + step, rows)) for at in range(0, rows, step)]


def _in_parts(s: Seen, top: Tensor, below: Tensor, options: Options, knobs: Knobs) -> Tensor:
    how = options["parts"]
    if how == "whole":
        return _of_mode(s, top, below, options, knobs)
    weighted, cut_by = how.split(", ")
    parts = cut(s, cut_by)
    if weighted != "divided again" and _given(options):
        return torch.full_like(top, torch.nan)  # a share of the whole batch's count is no mean of a part
    if weighted == "divided again":
        return _of_mode(s, top, below, options, knobs) / len(parts)
    share: dict[str, Callable[[slice], Any]] = {
        "equal": lambda rows: 1 / len(parts),
        "by rows": lambda rows: (rows.stop - rows.start) / top.shape[0],
        "by tokens": lambda rows: below[rows].sum() / below.sum(),
        "added": lambda rows: 1.0,
    }
    made = []
    for part in parts:
        rows = slice(part.start, part.stop)
        made.append(_of_mode(s, top[rows], below[rows], options, knobs, rows) * share[weighted](rows))
    return torch.cat(made)


def _of_mode(s: Seen, top: Tensor, below: Tensor, options: Options, knobs: Knobs, rows: slice = slice(None)) -> Tensor:
    """Weights of one batch, or of one micro-batch of it."""
    per, row, _, _ = MODES[options["mode"]]
    counts = below.sum(-1, keepdim=True)
    added = knobs.get("eps", knobs.get("added", 0.0))
    filled = (counts > 0).double()
    per_row = counts + added
    per_row = per_row if options["empty"] == "nan" else per_row.where(per_row > 0, torch.ones_like(per_row))
    groups = _groups(s)[rows]
    by_token: dict[str, Callable[[], Any]] = {
        "all": lambda: below.sum() + added,
        "row": lambda: per_row,
        "one": lambda: 1.0,
        "width": lambda: float(top.shape[1]),
        "constant": lambda: knobs["length"],
        "count": lambda: float(s.inputs["token_count"]),  # type: ignore[arg-type]
        "group": lambda: torch.stack([counts[groups == g].sum() for g in groups])[:, None],
    }
    by_row: dict[str, Callable[[], Any]] = {
        "one": lambda: 1.0,
        "rows": lambda: filled.sum() if options["rows"] == "kept" else float(top.shape[0]),
        "counted": lambda: float(s.inputs["row_count"]),  # type: ignore[arg-type]
        "groups": lambda: float(len(groups.unique())),
    }
    return top / by_token[per]() / by_row[row]()


def _groups(s: Seen) -> Tensor:
    ids = s.inputs["group_ids"]
    assert isinstance(ids, Tensor)
    return ids


# Run


def _observe(subject: Subject, case: Case) -> Seen:
    s = surrogate.flat(probing.observe(subject, case, WRT))
    names = subject.bound.names
    flags = [f"uses {w}" for w in (*LATER, "dp_size", "accumulation_steps") if w in names and w in case.inputs]
    if names & {"completion_mask", "labels", "lengths"}:
        flags.append("masked")
    if s.grads:
        flags.append("differentiable")
    s.cache.update({flag: torch.ones(()) for flag in flags})
    return s


def _formula(subject: Subject, probe: str, cases: Sequence[Case]) -> Formula:
    return Formula(
        probe=probe, asks=ASKS, cases=tuple(cases), reference=reference, observe=_observe,
        axes=lambda seen: axes(subject, seen), knobs=lambda seen: knobs(subject),
        nothing_fits="no known way to average gives this number", hide=_shown,
    )  # fmt: skip


def _shown(values: Knobs) -> Mapping[str, float]:
    return {k: v for k, v in values.items() if k != "eps"}


def run(subject: Subject) -> Iterator[Check]:
    cases = [_case(name) for name in _SIZES]
    found = formula.judge(subject, _formula(subject, "aggregate.formula", cases))
    yield _as_intended(subject, found)
    if found.solution is None:
        return
    yield from _gradient_check(subject, found)
    yield from _uncounted(subject, cases)
    yield from _along(subject, cases)
    if found.right:
        yield from _empty_row(subject, found)
        yield from _filler(subject)


def _as_intended(subject: Subject, found: Judged) -> Check:
    """The outcome; softer where a helper keeps what it says of itself and only the declared mean is another."""
    outcome = found.check.outcome
    if not isinstance(outcome, KnownBug) or found.solution is None or subject.bound.settings.get("aggregation"):
        return found.check
    only = {n.pitfall for n in outcome.pitfalls} <= {surrogate.AGGREGATION.id}
    if only and re.search(r"def\s+_?masked_(mean|sum)", subject.source):
        return dataclasses.replace(found.check, outcome=dataclasses.replace(outcome, severity="soft"))
    return found.check


def _gradient_check(subject: Subject, found: Judged) -> Iterator[Check]:
    """A loss must carry a gradient; a number for a log need not."""
    asks = "does a gradient flow through the loss?"
    if any(s.grads for s in found.seen) or subject.bound.report.returns.startswith("numpy"):
        return
    header = re.search(r"def\s+(\w+)\s*\(.*?\)\s*(->\s*([^:]+))?:", subject.source, re.DOTALL)
    name, gives = (header[1], header[3] or "") if header else ("", "")
    cuts = re.search(r"\.detach\(\)|no_grad|\.data\b|inference_mode|\.item\(\)|float\(", subject.source)
    logged = re.search(
        r"metric|log(ged|ging)?\b|stat|report|track|monitor|eval|scalar\b|item", name + " " + subject.doc
    )
    if not cuts or logged or "float" in gives or "numpy" in subject.source or ".item()" in subject.source:
        return
    hard = "loss" in name.lower() or probing.claims(subject, r"backward|back-?prop|gradient|differentia|optimi[sz]")
    says = "the result does not depend on the losses for autograd: backward() raises, or trains nothing"
    yield probing.violation("aggregate.gradient", asks, says, DETACHED, severity="hard" if hard else "soft")


def _again(subject: Subject, probe: str, cases: Sequence[Case]) -> Iterator[Check]:
    """The same question on other inputs; silent where the function does not take them."""
    try:
        for case in cases:
            _observe(subject, case)
    except (CallFailed, Missing, invoke.NotReached, invoke.WrongShape):
        return
    yield formula.judge(subject, _formula(subject, probe, cases)).check


def _uncounted(subject: Subject, cases: Sequence[Case]) -> Iterator[Check]:
    """Global counts left out: the function counts for itself."""
    if not subject.bound.names & {"token_count", "row_count"}:
        return
    less = [
        Case(name=f"{c.name}, no counts given", inputs={k: v for k, v in c.inputs.items() if k not in COUNTS})
        for c in cases
    ]
    yield from _again(subject, "aggregate.own_count", less)


def _along(subject: Subject, cases: Sequence[Case]) -> Iterator[Check]:
    """The same reduction along the tokens of each row, where the function is told a dimension."""
    if "dim" not in subject.bound.names or subject.bound.settings.get("dim") is not None:
        return
    for dim in (1, -1):
        rows = [Case(name=f"{c.name}, dim={dim}", inputs={**c.inputs, "dim": dim}) for c in cases]
        yield from _again(subject, "aggregate.rows", rows)


def _empty_row(subject: Subject, found: Judged) -> Iterator[Check]:
    """A row whose mask is all 0, as masking truncated completions leaves one."""
    assert found.solution is not None
    names = subject.bound.names
    if "completion_mask" not in names or names & LATER or MODES[found.solution.options["mode"]][0] != "row":
        return
    asks = "is a row without a trained token harmless?"
    base = _case("ragged rows")
    mask = base.inputs["completion_mask"].clone()
    mask[1] = 0.0
    case = Case(name="a row without trained tokens", inputs={**base.inputs, "completion_mask": mask})
    try:
        s = _observe(subject, case)
    except CallFailed as e:
        yield probing.raised("aggregate.empty_row", asks, case.name, e)
        return
    value = s.value if s.value.dim() == 0 else s.value[0]
    if bool(value.isfinite().all()) and all(bool(g.isfinite().all()) for g in s.grads.values()):
        yield probing.holds("aggregate.empty_row", asks, "a row without trained tokens leaves the loss finite")
        return
    hard = probing.claims(
        subject, r"empty|no (trained|valid|response|unmasked) tokens?|all[- ]zero|fully masked|truncat"
    )
    says = "one row whose mask is all 0 makes the loss NaN (0 / 0), as when truncated completions are masked"
    yield probing.violation("aggregate.empty_row", asks, says, EMPTY_ROW, severity="hard" if hard else "soft")


_ANY_FILLER = (r"\bnan\b", r"filler", r"sentinel", r"garbage|junk", r"any (value|size)", r"undefined", r"arbitrary")


def _filler(subject: Subject) -> Iterator[Check]:
    """NaN at masked positions: a promise that only some functions make."""
    if "completion_mask" not in subject.bound.names or not probing.claims(subject, *_ANY_FILLER):
        return
    asks = "does a NaN at a masked position stay out of the loss?"
    base = _case("ragged rows")
    losses = base.inputs["token_losses"].where(base.inputs["completion_mask"] > 0, torch.tensor(float("nan")))
    case = Case(name="NaN at masked positions", inputs={**base.inputs, "token_losses": losses})
    try:
        s = _observe(subject, case)
    except CallFailed as e:
        yield probing.raised("aggregate.filler", asks, case.name, e)
        return
    if bool(s.value.isfinite().all()):
        yield probing.holds("aggregate.filler", asks, "masked positions are never read")
        return
    yield probing.violation("aggregate.filler", asks, FILLER.says, FILLER)


ROLE = Role(
    name="aggregate",
    stage="loss",
    asks="token losses [B, T] and mask -> scalar, or one value a row",
    takes=(
        "token_losses", "completion_mask", "labels", "second_mask", "is_truncated", "kept_rows", "lengths",
        "token_count", "row_count", "dp_size", "accumulation_steps", "chunk_size", "group_ids", "group_size",
        "aggregation", "max_completion_length", "dim", "eps",
    ),
    needs=(("token_losses",),),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=(
        COUNT_BEFORE, IGNORED, MEAN_OF_MEANS, MEANS_ADDED, TWICE, SCALE, COUNT_IGNORED, EPSILON, AXIS, EMPTY_ROW,
        DETACHED, FILLER, surrogate.SIGN, surrogate.AGGREGATION, surrogate.PADDED_DENOMINATOR, surrogate.MASK_MISSING,
        surrogate.MASK_INVERTED, surrogate.MASK_SHIFT, surrogate.MASK_NUMERATOR,
    ),
)  # fmt: skip
