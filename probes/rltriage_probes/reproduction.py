"""A finding as a program of a few lines: the smallest input on which the user's function is not what is expected.

It is made after the checks, from what they left behind (`traces`): the case is shrunk while the difference stays and,
where a bug was named, while that bug still explains it; the arguments that then reach the function are
written down; and the program is run once, so that what it prints is known and not hoped for.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import invoke, literals, programs, shrinking, solver, tolerance
from rltriage_probes.bound import Bound
from rltriage_probes.contract import (
    Check,
    Diverges,
    Gap,
    KnownBug,
    Number,
    Raised,
    Reproduction,
    Violates,
    clip_text,
)
from rltriage_probes.forms import Missing
from rltriage_probes.invoke import NotReached, WrongShape
from rltriage_probes.literals import Unwritable
from rltriage_probes.model import CallFailed, Subject
from rltriage_probes.programs import Program, Style, Taken
from rltriage_probes.shrinking import Budget, Inputs, Several
from rltriage_probes.solver import Seen
from rltriage_probes.texts import quote
from rltriage_probes.traces import Asked, Trace, Twin

PLACES = 1_000
"""Numbers of a result among which the one in question is looked for."""
VISIBLE = 1e-3
"""A smaller relative difference is not worth showing while a larger one can be had."""
_UNFIT = (
    CallFailed, NotReached, WrongShape, Missing,
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What a case raises that is too small for the function, for a form of its inputs, or for the reference."""


class _None(Exception):
    """There is no reproduction; the message says why."""


def added(check: Check, subject: Subject, trace: Trace) -> Check:
    """The check with the reproduction of its finding; as it is where it found nothing."""
    outcome = check.outcome
    if not isinstance(outcome, (KnownBug, Diverges, Violates, Raised)) or not isinstance(subject.bound, Bound):
        return check
    try:
        made = _made(check, outcome, subject.bound, trace)
    except (_None, Unwritable) as e:
        says = str(e) if isinstance(e, _None) else f"{e} can't be written as a literal"
        made = _of_calls(check, outcome, subject.bound, trace) or _absent(check, outcome, says)
    return dataclasses.replace(check, reproduction=made)


def _absent(check: Check, outcome: KnownBug | Diverges | Violates | Raised, why: str) -> Reproduction:
    gap = None if isinstance(outcome, Raised) else outcome.gap
    actual: Number | str = outcome.error if isinstance(outcome, Raised) else gap.actual if gap else ""
    return Reproduction(code="", actual=actual, expected=gap.expected if gap else check.asks, why_not=why)


def _made(check: Check, outcome: KnownBug | Diverges | Violates | Raised, bound: Bound, trace: Trace) -> Reproduction:
    if bound.replaced:
        raise _None(f"the case gives what {', '.join(bound.replaced[:3])} computes inside the function")
    if isinstance(outcome, Raised):
        return _raising(outcome, bound, trace)
    if outcome.gap is not None:
        twin = trace.twin_of(outcome.gap)
        if twin is not None and twin.seen.again is not None:
            made = _of_twin(bound, twin, trace)
            return _unaccused(made) if isinstance(outcome, Diverges) else made
        return _of_pair(bound, outcome.gap, trace)
    if isinstance(outcome, Violates) and any(a.raw for a in trace.asked):
        return _of_text(check, outcome, bound, trace)
    raise _None("what was seen concerns the whole result, not one number of it")


def _unaccused(made: Reproduction) -> Reproduction:
    """Where no formula is known to be meant, the other number is that of the usual one."""
    code, _, comment = made.code.rpartition("  # ")
    said = comment.replace(" where ", " where the usual formula gives ").removesuffix(" is expected")
    return dataclasses.replace(made, code=f"{code}  # {said}")


# A formula: user and reference on one case


@dataclass(frozen=True, kw_only=True)
class _Measured:
    seen: Seen
    gap: Gap


def _of_twin(bound: Bound, twin: Twin, trace: Trace) -> Reproduction:
    observe = twin.seen.again
    assert observe is not None
    bug = trace.bug_of(twin.reference)

    def measured(inputs: Inputs) -> _Measured | None:
        try:
            seen = observe(inputs)
            gap = solver.difference(seen, twin.reference, twin.options, twin.knobs)
            if gap is None or not _alike(gap, twin.gap):
                return None
            if bug is not None and solver.difference(seen, twin.reference, bug.options, bug.knobs) is not None:
                return None
        except _UNFIT:
            return None
        return _Measured(seen=seen, gap=gap)

    whole = _narrow(twin.seen.inputs)
    if measured(whole) is None:
        raise _None("the function does not give the same when it is called again")
    if "logits" in whole:
        # ids of special tokens that the function never sees need no place in a smaller vocabulary
        bare = {k: v for k, v in whole.items() if k in bound.names or k not in shrinking.SPECIAL}
        whole = whole if measured(bare) is None else bare
    (small,) = shrinking.shrunk((whole,), lambda several: measured(several[0]) is not None, Budget())
    found = measured(small)
    if found is None:
        raise _None("the function does not give the same when it is called again")
    return _written(bound, lambda: observe(small), found)


def _narrow(inputs: Mapping[str, object]) -> dict[str, Any]:
    """The inputs of an observation as the case had them: float32."""
    return {k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


def _alike(gap: Gap, original: Gap) -> bool:
    """Whether the difference is one of the same kind, and large enough to be seen."""
    if gap.quantity != original.quantity or _finite(gap) != _finite(original):
        return False
    return not _visible(original) or _visible(gap)


def _finite(gap: Gap) -> tuple[bool, bool]:
    return isinstance(gap.actual, float), isinstance(gap.expected, float)


def _visible(gap: Gap) -> bool:
    if not isinstance(gap.actual, float) or not isinstance(gap.expected, float):
        return True
    return abs(gap.actual - gap.expected) > VISIBLE * max(abs(gap.actual), abs(gap.expected))


def _written(bound: Bound, observe: Callable[[], Seen], found: _Measured) -> Reproduction:
    """The program of the first style and calls that prints what was observed."""
    gap, why = found.gap, "its arguments could not be written so that the same comes out"
    notes = literals.noted(observe)
    for style in programs.styles(bound, differentiate=gap.quantity.startswith("gradient of")):
        taken = programs.listened(bound, observe, notes, style)
        try:
            candidates = list(_candidates(bound, taken, found, style))
        except Unwritable as e:
            why = f"{e} can't be written as a literal"
            continue
        for program in candidates:
            try:
                printed = program.run()
            except Unwritable as e:
                raise _None(f"{e} gives something else each time") from None
            if printed is not None and _equal(printed, gap.actual, gap):
                return _shown(program, printed, gap.expected)
    raise _None(why)


def _shown(program: Program, actual: Number | str, expected: Number | str) -> Reproduction:
    code = program.text(f"{programs.said(actual)} where {programs.said(expected)} is expected")
    return Reproduction(code=code, actual=actual, expected=expected, inputs=program.count)


def _equal(printed: Number, actual: Number, gap: Gap) -> bool:
    if not isinstance(printed, float) or not isinstance(actual, float):
        return printed == actual
    apart = abs(actual - gap.expected) if isinstance(gap.expected, float) else abs(actual)
    return abs(printed - actual) <= max(1e-9, 1e-5 * abs(actual), 1e-2 * apart if apart < 1e-3 else 0.0)


def _candidates(bound: Bound, taken: Sequence[Taken], found: _Measured, style: Style) -> Iterator[Program]:
    if found.gap.quantity.startswith("gradient of"):
        yield from _by_gradient(bound, taken, found, style)
        return
    if found.gap.quantity.startswith("shape of"):
        for t in taken:
            yield from (
                Program.of(bound, (t,), style, f"{{0}}{place}.numel()") for place, v in _tensors(t.result)
                if v.numel() == found.gap.actual
            )  # fmt: skip
        return
    index = _index(found.gap, found.seen.where)
    for t in taken:
        for place in _places_of(t.result, found.gap.actual, index):
            yield Program.of(bound, (t,), style, f"float({{0}}{place})")
    for a, b in itertools.islice(itertools.combinations(taken, 2), 4):
        other = dict(_numbers(b.result))
        for place, x in _numbers(a.result):
            if place in other and _same(x - other[place], found.gap.actual):
                yield Program.of(bound, (a, b), style, f"float({{0}}{place}) - float({{1}}{place})")


def _index(gap: Gap, where: Tensor | None) -> tuple[int, ...]:
    """The index of a gap in the whole tensor, where only some of its elements were compared."""
    if where is None or len(gap.index) != 1 or where.dim() < 2:
        return gap.index
    at = where.nonzero()[gap.index[0]].tolist()
    return tuple(at)


def _by_gradient(bound: Bound, taken: Sequence[Taken], found: _Measured, style: Style) -> Iterator[Program]:
    """Programs that differentiate: one call, or the difference of two that share their inputs."""
    word = found.gap.quantity.removeprefix("gradient of ")
    index = _index(found.gap, found.seen.grad_where.get(word))
    for t in taken:
        for place, out in _tensors(t.result):
            yield from _differentiated(bound, (t,), found, style, f"{{0}}{place}", out, index)
    for a, b in itertools.islice(itertools.combinations(taken, 2), 4):
        other = dict(_tensors(b.result))
        for place, out in _tensors(a.result):
            if place in other and other[place].shape == out.shape:
                text = f"{{0}}{place} - {{1}}{place}"
                yield from _differentiated(bound, (a, b), found, style, text, out, index)


def _differentiated(
    bound: Bound, taken: tuple[Taken, ...], found: _Measured, style: Style, text: str, out: Tensor,
    index: tuple[int, ...],
) -> Iterator[Program]:  # fmt: skip
    if not out.requires_grad:
        return
    setup: tuple[tuple[str, str], ...] = ()
    scalar = out
    if out.dim() > 0:
        weights = _weights(out, found.seen)
        if weights is None:
            return
        scalar = (out * weights).sum()
        setup = (("weights", literals.Writer().write(weights, "weights")),)
        text = f"(({text}) * weights).sum()"
    for path, leaf in taken[0].writer.leaves:
        single = len(taken) == 1
        try:
            (found_grad,) = invoke.guarded(
                lambda leaf=leaf: torch.autograd.grad(scalar, [leaf], retain_graph=True, allow_unused=True),
                bound.loaded.root, bound.loaded.path,
            )  # fmt: skip
        except (CallFailed, NotReached):
            return  # a graph that can be walked once only, or a backward pass of the user's own
        grad = torch.zeros_like(leaf) if found_grad is None else found_grad
        places = list(_places_of(grad, found.gap.actual, index)) if single else [_subscript(index)]
        for place in places:
            printed = f"float(torch.autograd.grad({text}, {path})[0]{place})"
            yield Program.of(bound, taken, style, printed, setup)


def _weights(out: Tensor, seen: Seen) -> Tensor | None:
    """Weights of the sum that was differentiated, in the shape of what the function returns; None: not known."""
    if out.numel() != seen.value.numel():
        return None
    return invoke.cotangent(seen.value.shape).reshape(out.shape).to(out.dtype)


# Where a number is in a result


def _numbers(value: Any) -> Iterator[tuple[str, float]]:
    """Numbers of a result in reading order, each with what has to be written behind the result to get it."""
    yield from itertools.islice(_walk(value, "", 0), PLACES)


def _walk(value: Any, path: str, depth: int) -> Iterator[tuple[str, float]]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    if hasattr(value, "tolist") and hasattr(value, "ndim"):
        if value.ndim == 0:
            yield path, _float(value.item())
            return
        for at in itertools.product(*map(range, value.shape)):
            yield f"{path}{_subscript(at)}", _float(value[at].item())
    elif isinstance(value, (int, float)):
        yield path, float(value)
    elif depth < 4:
        for step, inner in _parts(value):
            yield from _walk(inner, f"{path}{step}", depth + 1)


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (bool, int, float)) else math.nan


def _subscript(index: Sequence[int]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Entries of a container or record."""
    if isinstance(value, Mapping):
        yield from ((f"[{k!r}]", v) for k, v in value.items())
    elif names := getattr(value, "_fields", ()):
        yield from ((f".{n}", getattr(value, n)) for n in names)
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{i}]", v) for i, v in enumerate(value))
    elif dataclasses.is_dataclass(value) or type(value).__name__ == "SimpleNamespace":
        yield from ((f".{n}", v) for n, v in vars(value).items())


def _tensors(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif depth < 3:
        for step, inner in _parts(value):
            yield from _tensors(inner, f"{path}{step}", depth + 1)


def _places_of(result: Any, number: Number, index: tuple[int, ...]) -> list[str]:
    """Places of a result that hold a number, the one with that index first."""
    found = [place for place, x in _numbers(result) if _same(x, number)]
    wanted = _subscript(index)
    return sorted(found, key=lambda place: not (wanted and place.endswith(wanted)))[:3]


def _same(x: float, number: Number) -> bool:
    have = tolerance.number(x)
    if isinstance(have, float) and isinstance(number, float):
        return abs(have - number) <= 1e-9 + 1e-6 * abs(number)
    return have == number


# A relation: two calls that ought to give the same


def _of_pair(bound: Bound, gap: Gap, trace: Trace) -> Reproduction:
    calls = [a for a in trace.asked if isinstance(a.value, Tensor) and not a.raw]
    one = next((a for a in reversed(calls) if _gave(a, gap.actual, gap.index)), None)
    other = next((a for a in reversed(calls) if a is not one and _gave(a, gap.expected, gap.index)), None)
    if one is None or other is None or not gap.quantity.startswith("value"):
        raise _None("what was compared is worked out from several calls")
    several: Several = (_narrow(one.inputs), _narrow(other.inputs))
    if _same_shapes(*several):
        several = shrinking.shrunk(several, lambda pair: _pair_gap(bound, pair) is not None, Budget())
        gap = _pair_gap(bound, several) or gap
    why = "its arguments could not be written so that the same comes out"
    for style in programs.styles(bound):
        taken: list[Taken] = []
        for inputs in several:
            notes = literals.noted(lambda i=inputs: bound.call(i))
            taken += programs.listened(bound, lambda i=inputs: bound.call(i), notes, style)[-1:]
        try:
            for place in _places_of(taken[0].result, gap.actual, gap.index):
                for second in _places_of(taken[1].result, gap.expected, gap.index):
                    printed = f"float({{0}}{place}), float({{1}}{second})"
                    program = Program.of(bound, tuple(taken), style, printed)
                    if program.run_pair() is not None:
                        code = program.text("both ought to be the same")
                        return Reproduction(code=code, actual=gap.actual, expected=gap.expected, inputs=program.count)
        except Unwritable as e:
            why = f"{e} can't be written as a literal"
    raise _None(why)


def _gave(asked: Asked, number: Number, index: tuple[int, ...]) -> bool:
    value: Tensor = asked.value
    if len(index) == value.dim() and all(i < n for i, n in zip(index, value.shape, strict=True)):
        return tolerance.number(value[index]) == number
    return False


def _same_shapes(a: Inputs, b: Inputs) -> bool:
    def shapes(inputs: Inputs) -> dict[str, Any]:
        return {k: tuple(v.shape) if isinstance(v, Tensor) else None for k, v in inputs.items()}

    return shapes(a) == shapes(b)


def _pair_gap(bound: Bound, pair: Several) -> Gap | None:
    """The difference of two calls where both masks, if any, keep the position."""
    try:
        one, other = (bound.call({k: v for k, v in i.items() if k in bound.names}) for i in pair)
    except _UNFIT:
        return None
    a, b = one.value, other.value
    if a.shape != b.shape:
        return None
    for inputs in pair:
        mask = inputs.get("completion_mask")
        if isinstance(mask, Tensor) and mask.shape == a.shape:
            b = b.where(mask > 0, a)
    gap = tolerance.gap("value", "", a, b, "float32")
    return gap if gap is not None and _visible(gap) else None


# A check that has no number: the calls that it made, where they are few


def _of_calls(
    check: Check, outcome: KnownBug | Diverges | Violates | Raised, bound: Bound, trace: Trace
) -> Reproduction | None:
    """The one or two calls behind a check, with what they give; None where there are more, or they can't be written."""
    calls: list[Asked] = []
    for asked in trace.calls_of(check):
        if not any(_same_inputs(asked.inputs, c.inputs) for c in calls):
            calls.append(asked)
    if bound.replaced or not isinstance(outcome, Violates) or outcome.gap is not None:
        return None  # a gap is one to another call
    if not 1 <= len(calls) <= SHOWN or any(c.error for c in calls):
        return None
    try:
        style = next(iter(programs.styles(bound)))
        taken: list[Taken] = []
        for asked in calls:
            call = _call_again(bound, asked)
            taken += programs.listened(bound, call, literals.noted(call), style)[-1:]
        printed = ", ".join(f"{{{i}}}" for i in range(len(taken)))
        program = Program.of(bound, taken, style, f"repr({printed})" if len(taken) == 1 else printed)
    except (*_UNFIT, Unwritable):
        return None
    if not taken or program.count > SMALL or program.raises():
        return None
    actual = " and ".join(clip_text(" ".join(repr(t.result).split()), 200) for t in taken)
    return Reproduction(
        code=program.text(f"{check.asks} {clip_text(outcome.says, 160)}"), actual=actual, expected=check.asks,
        inputs=program.count,
    )  # fmt: skip


SHOWN = 2
SMALL = 60
"""Numbers that are shown where the input can't be made smaller, since there is no number to watch."""


def _call_again(bound: Bound, asked: Asked) -> Callable[[], Any]:
    inputs = {k: v for k, v in asked.inputs.items()}
    return (lambda: bound.call_raw(inputs)) if asked.raw else (lambda: bound.call(inputs))


def _same_inputs(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    def same(x: Any, y: Any) -> bool:
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            return x.shape == y.shape and bool(torch.equal(x, y))
        return x is y or (type(x) is type(y) and not isinstance(x, Tensor) and bool(x == y))

    return set(a) == set(b) and all(same(v, b[k]) for k, v in a.items())


# Texts and exceptions


def _of_text(check: Check, outcome: Violates, bound: Bound, trace: Trace) -> Reproduction:
    asked = next((a for a in trace.asked if a.raw and _speaks_of(outcome.says, a)), None)
    if asked is None:
        raise _None("this check compares several calls")
    taken, style = _taken_raw(bound, asked)
    if asked.error:
        return _thrown(bound, taken, style, asked.error, check.asks)
    program = Program.of(bound, (taken,), style, "repr({0})")
    if program.raises():
        raise _None("its arguments could not be written so that the same comes out")
    actual = clip_text(repr(taken.result), 200)
    return Reproduction(
        code=program.text(f"{actual}: {check.asks}"), actual=actual, expected=check.asks, inputs=program.count
    )


def _speaks_of(says: str, asked: Asked) -> bool:
    """Whether a message quotes the text that this call was about."""
    for word in ("completions", "texts", "completion", "text"):
        value = asked.inputs.get(word)
        texts: list[Any] = value if isinstance(value, list) else [value]
        if len(set(map(str, texts))) == 1 and isinstance(texts[0], str) and quote(texts[0]) in says:
            return True
    return False


def _taken_raw(bound: Bound, asked: Asked) -> tuple[Taken, Style]:
    def call() -> Any:
        try:
            return bound.call_raw(asked.inputs)
        except CallFailed:
            return None

    style = next(iter(programs.styles(bound)))
    taken = programs.listened(bound, call, literals.noted(call), style)
    if not taken:
        raise _None("this check compares several calls")
    return taken[-1], style


def _raising(outcome: Raised, bound: Bound, trace: Trace) -> Reproduction:
    asked = next((a for a in reversed(trace.asked) if a.error and a.error[:80] == outcome.error[:80]), None)
    if asked is None:
        raise _None("it is raised before the function is reached")
    if asked.raw:
        taken, style = _taken_raw(bound, asked)
        return _thrown(bound, taken, style, outcome.error, "a result")
    kind = outcome.error.split(":")[0]

    def raises(several: Several) -> bool:
        try:
            bound.call(several[0], asked.wrt)
        except CallFailed as e:
            return e.error.split(":")[0] == kind
        except _UNFIT:
            return False
        return False

    small = _narrow(asked.inputs)
    if raises((small,)):
        (small,) = shrinking.shrunk((small,), raises, Budget())

    def call() -> None:
        raises((small,))

    why = "its arguments could not be written so that the same is raised"
    notes = literals.noted(call)
    for style in programs.styles(bound):
        taken = programs.listened(bound, call, notes, style)
        try:
            if taken:
                return _thrown(bound, taken[-1], style, outcome.error, "a result")
        except (Unwritable, _None) as e:
            why = str(e)
    raise _None(why)


def _thrown(bound: Bound, taken: Taken, style: Style, error: str, expected: str) -> Reproduction:
    program = Program.of(bound, (taken,), style, "{0}")
    raised = program.raises()
    if raised.partition(":")[0] != error.partition(":")[0]:
        raise _None("its arguments could not be written so that the same is raised")
    code = program.text(f"raises {clip_text(raised, 160)}")
    return Reproduction(code=code, actual=raised, expected=expected, inputs=program.count)
