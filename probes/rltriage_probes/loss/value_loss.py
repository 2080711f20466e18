"""The critic's regression loss, clipped around the values of the rollout or not.

    L = 1/2 · agg_bt( m · max((V - R)², (clip(V, V_old - ε, V_old + ε) - R)²) )

PPO's code (openai/baselines ppo2), described in "The 37 implementation details of PPO" (2022) and for language
models in arXiv:2403.17031. The targets R are constants: λ-returns of the rollout, arXiv:1506.02438, eq. 28.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, probing
from rltriage_probes.contract import Check, KnownBug
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "is this the (clipped) squared error of the values against constant returns?"
PROMPT = 3

# Pitfalls

SIGN = Pitfall(id="VAL-SIGN", family="sign", says="returns minus the error, so that descent makes the critic worse")
CLIP_MIN = Pitfall(
    id="VAL-CLIP-MIN", family="clip-direction", says="takes the smaller of the clipped and the plain error"
)
CLIP_ONLY = Pitfall(
    id="VAL-CLIP-ONLY",
    family="clip-direction",
    says="uses the clipped error alone, so that a value outside the range gets no gradient",
)
CLIP_CENTRE = Pitfall(
    id="VAL-CLIP-CENTRE", family="clip-bounds", says="clips the value around something else than the old value"
)
CLIPS_RETURNS = Pitfall(
    id="VAL-CLIPS-RETURNS", family="clip-bounds", says="clips the return instead of the predicted value"
)
CLIP_ONE_SIDED = Pitfall(id="VAL-CLIP-ONE-SIDED", family="clip-bounds", says="bounds the value on one side only")
CLIP_SWAPPED = Pitfall(
    id="VAL-CLIP-SWAPPED", family="clip-bounds", says="exchanges the lower and the upper bound of the clip"
)
CLIP_IGNORED = Pitfall(
    id="VAL-CLIP-IGNORED", family="inert-option", says="takes a clip range and old values, and clips nothing"
)
NO_SQUARE = Pitfall(id="VAL-NO-SQUARE", family="normalisation", says="takes the absolute error without the square")
TARGET_OLD = Pitfall(
    id="VAL-TARGET-OLD", family="baseline", says="regresses on the old values instead of on the returns"
)
MOVING = Pitfall(
    id="VAL-MOVING-TARGET",
    family="gradient-leak",
    says="builds the target from the values that are being trained, so that it moves with them",
)
TARGET_PART = Pitfall(
    id="VAL-TARGET-PART", family="baseline", says="builds the target without adding the old values to the advantages"
)
DETACHED = Pitfall(id="VAL-DETACHED", family="gradient-cut", says="cuts the gradient of the values")
SHIFT = Pitfall(id="VAL-SHIFT", family="shift", says="compares a return with the value of another position")

# Axes


def axes(subject: Subject, seen: Sequence[Seen]) -> tuple[Axis, ...]:
    """The axes as they concern this function."""
    reduced = surrogate.reduction(seen[0].value)
    plain = dataclasses.replace(subject, intent={})  # what is declared of the policy's loss binds no critic
    return (
        Axis(name="sign", options=(Option(name="plus", standing="standard"), probing.as_pitfall("minus", SIGN))),
        _error(subject),
        _clipping(subject),
        _target(subject),
        _slice(subject),
        Axis(name="gradient", options=(Option(name="own", standing="standard"), probing.as_pitfall("cut", DETACHED))),
        Axis(
            name="factor",
            options=(
                Option(name="half", standing="standard", says="half the error"),
                Option(name="one", says="error without 1/2", source="slime value_loss_function"),
            ),
        ),
        _aggregation(plain, reduced),
        _masking(plain, reduced),
    )


BRANCHES = ("plain branch", "clipped branch")
"""Masks that reach one of the two errors only, before the larger one is taken."""


def _masking(subject: Subject, reduced: surrogate.Reduced) -> Axis:
    axis = surrogate.masking(subject, reduced)
    if len(axis.options) < 2 or "old_values" not in subject.bound.names:
        return axis
    branches = tuple(probing.as_pitfall(name, surrogate.MASK_NUMERATOR) for name in BRANCHES)
    return dataclasses.replace(axis, options=(*axis.options, *branches))


def _error(subject: Subject) -> Axis:
    absolute = Option(name="absolute", says="absolute error")
    promised = probing.claims(subject, r"\b(l1|mae)\b", r"absolute (error|difference)")
    return Axis(
        name="error",
        options=(
            Option(name="square", standing="standard"),
            Option(name="huber", says="Huber error", source="AReaL loss_fn_type=huber"),
            Option(name="smooth", says="smooth L1 error (Huber over its bound)"),
            absolute if promised else probing.as_pitfall("absolute", NO_SQUARE),
        ),
    )


def _clips(subject: Subject) -> bool:
    """Whether a clip range surely acts."""
    given = subject.bound.settings.get("clip_value")
    return "clip_value" in subject.bound.names or (isinstance(given, float) and given > 0)


def _clipping(subject: Subject) -> Axis:
    plain = Option(name="plain", says="unclipped")
    if "old_values" not in subject.bound.names:
        if not _clips(subject):
            return Axis(name="clipping", options=(Option(name="plain", standing="standard", says="unclipped"),))
        wrong = tuple(probing.as_pitfall(n, CLIP_CENTRE) for n in ("around returns", "around zero"))
        return Axis(name="clipping", options=(Option(name="plain", standing="standard", says="unclipped"), *wrong))
    own = Option(name="max", standing="standard", says="clipped around the old values")
    if not _clips(subject):
        own, plain = dataclasses.replace(plain, standing="standard"), dataclasses.replace(own, standing="convention")
    return Axis(
        name="clipping",
        options=(
            own,
            probing.wrong_here(plain, CLIP_IGNORED, _clips(subject)),
            probing.as_pitfall("min", CLIP_MIN),
            probing.as_pitfall("only", CLIP_ONLY),
            probing.as_pitfall("around returns", CLIP_CENTRE),
            probing.as_pitfall("around zero", CLIP_CENTRE),
            probing.as_pitfall("around one", CLIP_CENTRE),
            probing.as_pitfall("old", CLIP_CENTRE),
            probing.as_pitfall("relative", CLIP_CENTRE),
            probing.as_pitfall("swapped", CLIP_SWAPPED),
            probing.as_pitfall("swapped only", CLIP_SWAPPED),
            probing.as_pitfall("returns", CLIPS_RETURNS),
            probing.as_pitfall("returns max", CLIPS_RETURNS),
            probing.as_pitfall("upper only", CLIP_ONE_SIDED),
            probing.as_pitfall("lower only", CLIP_ONE_SIDED),
        ),
    )


def _target(subject: Subject) -> Axis:
    names = subject.bound.names
    if "returns" in names:
        options = [Option(name="returns", standing="standard")]
        if "old_values" in names:
            options.append(probing.as_pitfall("old", TARGET_OLD))
        return Axis(name="target", options=tuple(options))
    return Axis(
        name="target",
        options=(
            Option(name="sum", standing="standard", says="target: advantages + old values"),
            probing.as_pitfall("moving", MOVING),
            probing.as_pitfall("moving detached", MOVING),
            probing.as_pitfall("advantages", TARGET_PART),
            probing.as_pitfall("difference", TARGET_PART),
        ),
    )


def _slice(subject: Subject) -> Axis:
    if "prompt_values" not in subject.bound.names:
        return Axis(name="slice", options=(Option(name="own", standing="standard"),))
    return Axis(
        name="slice",
        options=(
            Option(name="own", standing="standard", says="takes the columns of the states before each token"),
            probing.as_pitfall("one early", SHIFT),
            probing.as_pitfall("one late", SHIFT),
            probing.as_pitfall("first columns", SHIFT),
        ),
    )


_TOKENS = r"(response|trained|valid|unmasked|masked|real|action|completion)"
MEAN_PROMISED = (
    r"mask\w*[- ]mean|token[- ]mean",
    r"(mean|average\w*) (over|of|on) (all |the |every )?(\w+ )?" + _TOKENS,
    r"(padding|padded|mask\w*)[^.]{0,40}(ignored|excluded|not count|does not count|no part|left out)",
)


def _aggregation(subject: Subject, reduced: surrogate.Reduced) -> Axis:
    axis = surrogate.aggregation(subject, reduced)
    if reduced != "scalar" or "completion_mask" not in subject.bound.names:
        return axis
    asked = subject.bound.settings.get("aggregation") == "constant"
    padded = tuple(
        probing.wrong_here(o, surrogate.PADDED_DENOMINATOR, not asked) if o.name == "padded" else o
        for o in axis.options
    )
    return Axis(name=axis.name, options=padded, needs=axis.needs, when=axis.when)


# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return _case("values inside and outside of the clip range")


def _case(name: str, *, outlier: bool = False) -> Case:
    b, t = 4, 6
    g = probing.generator(name)
    lengths = torch.tensor([6, 3, 5, 4])
    mask = (torch.arange(t)[None] < lengths[:, None]).float()
    mask[0, 3] = 0.0  # 17 tokens: no ratio of counts is another one
    old = torch.randn(b, t, generator=g)
    values = old + torch.randn(b, t, generator=g) * 0.5
    returns = old + torch.randn(b, t, generator=g)
    # outside of the clip range, and right
    values[1, 0], returns[1, 0] = old[1, 0] + 0.9, old[1, 0] + 0.95
    values[3, 1], returns[3, 1] = old[3, 1] - 0.8, old[3, 1] - 0.72
    if outlier:
        returns[0, 0], returns[3, 2] = old[0, 0] + 14.0, old[3, 2] - 13.0
    inputs = {
        "values": values, "old_values": old, "returns": returns, "completion_mask": mask, "lengths": lengths,
        "clip_value": 0.3, "prompt_values": torch.randn(b, PROMPT, generator=g), "prompt_length": PROMPT,
        "advantages": returns - old, "token_count": 1.5 * float(mask.sum()), "row_count": float(b),
        "huber_delta": 0.7, "value_coef": 0.3,
        "max_completion_length": float(surrogate.PASSED_LENGTH), "completion_length": t,
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """± factor · agg(error) and its gradient with respect to the values."""
    parts = ("error", "clipping", "target", "slice")
    key = ("value", *(options[k] for k in parts), *(v for k, v in knobs.items() if k not in ("length", "coef")))
    each = s.remember(key, lambda: _errors(s, options, knobs))
    if options["mask"] in BRANCHES:
        branch = options["mask"]
        each = s.remember((*key, branch), lambda: _one_branch(s, options, knobs, branch))
        key, options = (*key, branch), {**options, "mask": "numerator"}
    factor = {"half": 0.5, "one": 1.0}[options["factor"]] * knobs["coef"]
    factor = -factor if options["sign"] == "minus" else factor
    if options["gradient"] == "cut" and each.requires_grad:
        whole = surrogate.aggregated(each, s, options, knobs, key) * factor
        leaf = surrogate.tensor(s, "values")
        return Result(value=whole.detach(), grads=lambda: {"values": torch.zeros_like(leaf)})
    whole = surrogate.aggregated(each, s, options, knobs, key) * factor
    return Result(value=whole, grads=lambda: surrogate.gradients(whole, s))


def _errors(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """Error of each token [B, T] before masking."""
    v = _sliced(s, options["slice"])
    old = surrogate.tensor(s, "old_values").detach()
    target = _targets(s, options["target"], v, old)
    c = knobs.get("clip", 0.0)

    def error(x: Tensor, y: Tensor) -> Tensor:
        return _error_of(options["error"], x - y, knobs.get("delta", 1.0))

    plain = error(v, target)
    made: dict[str, Callable[[], Tensor]] = {
        "plain": lambda: plain,
        "max": lambda: torch.maximum(plain, error(_within(v, old - c, old + c), target)),
        "min": lambda: torch.minimum(plain, error(_within(v, old - c, old + c), target)),
        "only": lambda: error(_within(v, old - c, old + c), target),
        "around returns": lambda: error(_within(v, target - c, target + c), target),
        "around zero": lambda: torch.maximum(plain, error(v.clamp(-c, c), target)),
        "around one": lambda: torch.maximum(plain, error(v.clamp(1 - c, 1 + c), target)),
        "old": lambda: torch.maximum(plain, error(_within(old, v - c, v + c), target)),
        "swapped": lambda: torch.maximum(plain, error(_within(v, old + c, old - c), target)),
        "swapped only": lambda: error(_within(v, old + c, old - c), target),
        "relative": lambda: torch.maximum(plain, error(_within(v, old * (1 - c), old * (1 + c)), target)),
        "returns": lambda: error(v, _within(target, old - c, old + c)),
        "returns max": lambda: torch.maximum(plain, error(v, _within(target, old - c, old + c))),
        "upper only": lambda: torch.maximum(plain, error(torch.minimum(v, old + c), target)),
        "lower only": lambda: torch.maximum(plain, error(torch.maximum(v, old - c), target)),
    }
    return made[options["clipping"]]()


def _one_branch(s: Seen, options: Options, knobs: Knobs, branch: str) -> Tensor:
    """The larger of the two errors [B, T], of which one alone is masked."""
    mask = surrogate.tensor(s, "completion_mask")
    plain = _errors(s, {**options, "clipping": "plain"}, knobs)
    clipped = _errors(s, {**options, "clipping": "only"}, knobs)
    both = (plain * mask, clipped) if branch == "plain branch" else (plain, clipped * mask)
    picked = {"max": torch.maximum, "min": torch.minimum}.get(options["clipping"])
    return picked(*both) if picked is not None else _errors(s, options, knobs)


def _within(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(x, low), high)


def _error_of(kind: str, d: Tensor, delta: float) -> Tensor:
    if kind == "square":
        return d.square()
    if kind == "absolute":
        return d.abs()
    huber = torch.where(
        d.abs() <= delta, d.square(), 2 * delta * d.abs() - delta**2
    )  # twice the usual one, as the square
    return huber / delta if kind == "smooth" else huber


def _sliced(s: Seen, choice: str) -> Tensor:
    """The values that belong to the completion, out of those on prompt and completion."""
    v = surrogate.tensor(s, "values")
    if choice == "own":
        return v
    prompt = s.inputs["prompt_values"]
    assert isinstance(prompt, Tensor)
    front = prompt[:, : PROMPT - 1]
    match choice:
        case "one early":
            return torch.cat([front[:, -1:], v[:, :-1]], 1)
        case "one late":
            return torch.cat([v[:, 1:], front.flip(1)[:, :1]], 1)
        case _:
            return torch.cat([front, v], 1)[:, : v.shape[1]]


def _targets(s: Seen, choice: str, v: Tensor, old: Tensor) -> Tensor:
    match choice:
        case "returns":
            return surrogate.tensor(s, "returns").detach()
        case "old":
            return old
        case _:
            pass
    advantages = surrogate.tensor(s, "advantages").detach()
    return {
        "sum": advantages + old, "moving": advantages + v, "moving detached": advantages + v.detach(),
        "advantages": advantages, "difference": old - advantages,
    }[choice]  # fmt: skip


# Running


def run(subject: Subject) -> Iterator[Check]:
    found = formula.judge(subject, _formula(subject))
    yield dataclasses.replace(found.check, outcome=_weighed(subject, found))


def _formula(subject: Subject) -> Formula:
    return Formula(
        probe="value_loss.formula",
        asks=ASKS,
        cases=(example(subject.intent), _case("two returns far away", outlier=True)),
        reference=reference,
        observe=observe,
        axes=lambda seen: axes(subject, seen),
        knobs=lambda seen: _knobs(subject),
        nothing_fits="no known value loss gives these numbers",
        hide=lambda knobs: {k: v for k, v in knobs.items() if not (k == "coef" and v == 1.0)},
        budget=15_000,
    )


def observe(subject: Subject, case: Case) -> Seen:
    masked = any(slot.meaning == "completion_mask" for slot in subject.bound.report.slots)
    s = surrogate.flat(probing.observe(subject, case, ("values",)))
    if not masked:
        whole = s.inputs["values"]
        assert isinstance(whole, Tensor)
        known = "lengths" in subject.bound.names
        lengths = case.inputs["lengths"][:, None]
        mask = (torch.arange(whole.shape[1])[None] < lengths).double() if known else torch.ones_like(whole)
        s.inputs = {**s.inputs, "completion_mask": mask}
    leaf = s.inputs["values"]
    assert isinstance(leaf, Tensor)
    s.cache["leaf:values"] = leaf.clone().requires_grad_(True)
    if s.value.dim() == 2 and masked:
        where = case.inputs["completion_mask"] > 0
        s.where, s.grad_where = where, {"values": where}
    return s


def _knobs(subject: Subject) -> tuple[Knob, ...]:
    names = subject.bound.names
    case = example({}).inputs
    made = [
        Knob(name="clip", values=(float(case["clip_value"]),), known=True, active=_clipped)
        if "clip_value" in names
        else probing.knob(subject, "clip", ("clip_value",), (0.2, 0.5), active=_clipped, within=(1e-3, 100.0)),
        Knob(name="delta", values=(float(case["huber_delta"]),), known=True, active=_hubered)
        if "huber_delta" in names
        else probing.knob(subject, "delta", ("huber_delta",), (1.0, 10.0), active=_hubered, within=(1e-3, 100.0)),
        Knob(name="coef", values=(float(case["value_coef"]), 1.0), known=True)
        if "value_coef" in names
        else _coef(subject),
    ]
    return (*made, surrogate.length_knob(subject))


def _coef(subject: Subject) -> Knob:
    known = probing.knob(subject, "coef", ("value_coef",), (1.0,))
    if known.known:
        return Knob(name="coef", values=(known.values[0], 1.0), known=True)
    return Knob(name="coef", values=(1.0, *(x for x in subject.literals if 0 < x < 1))[:4])


def _clipped(options: Options) -> bool:
    return options["clipping"] != "plain"


def _hubered(options: Options) -> bool:
    return options["error"] in ("huber", "smooth")


def _weighed(subject: Subject, found: Judged) -> Any:
    """A padded denominator may be what the caller undoes, unless the mean over the tokens is promised."""
    outcome = found.check.outcome
    if not isinstance(outcome, KnownBug):
        return outcome
    lone = {n.pitfall for n in outcome.pitfalls} == {surrogate.PADDED_DENOMINATOR.id}
    declared = subject.intent.get("aggregation") in ("token-mean", "sequence-mean")
    if lone and not declared and not probing.claims(subject, *MEAN_PROMISED):
        return dataclasses.replace(outcome, severity="soft")
    return outcome


PITFALLS = (
    SIGN, CLIP_MIN, CLIP_ONLY, CLIP_CENTRE, CLIPS_RETURNS, CLIP_ONE_SIDED, CLIP_SWAPPED, CLIP_IGNORED, NO_SQUARE,
    TARGET_OLD, MOVING, TARGET_PART, DETACHED, SHIFT, surrogate.MASK_MISSING, surrogate.MASK_INVERTED,
    surrogate.MASK_SHIFT, surrogate.MASK_NUMERATOR, surrogate.PADDED_DENOMINATOR,
)  # fmt: skip

ROLE = Role(
    name="value_loss",
    stage="loss",
    asks="values, old values and returns [B, T] -> loss",
    takes=(
        "values", "returns", "old_values", "completion_mask", "clip_value", "advantages", "prompt_length", "value_coef",
        "huber_delta", "aggregation", "lengths", "token_count", "row_count",
    ),
    needs=(("values",), ("returns", "advantages")),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)  # fmt: skip
