"""The engine: which combination of options equals the user's function.

A role's *reference* is one float64 function whose keyword arguments are its axes and knobs. `solve`
walks the product of the axes in the order of suspicion (no pitfall, one, two; within that, the
standard options first) and returns the first combinations whose values and gradients equal what was observed
on every case. Knobs (eps, clip bounds, beta, temperature) are taken from what is known about the
function, then from the numbers written in it, then fitted.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import tolerance, traces
from rltriage_probes.contract import Choice, Convention, Gap, Named, Number
from rltriage_probes.model import Axis, Option

Options = dict[str, str]
Knobs = dict[str, float]
Reference = Callable[["Seen", Options, Knobs], "Result"]
Quick = Callable[["Seen", Options, Knobs], "float | None"]
"""The value of a scalar reference as a plain number, None where it is no scalar: what most combinations fail by."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Value of the reference, and how to get its gradients by input name; float64."""

    value: Tensor
    grads: Callable[[], Mapping[str, Tensor]] = dict
    """Computed only where the value fits."""
    noise: Callable[[], Tensor] | None = None
    """By element, what correct code of the user's precision loses on this combination. Asked for only where the
    value is off by more than the tolerance."""


@dataclass(kw_only=True)
class Seen:
    """One case and what the user's function gave on it."""

    case: str
    inputs: Mapping[str, object]
    """Canonical inputs in float64."""
    value: Tensor
    grads: Mapping[str, Tensor]
    dtype: str
    mutated: tuple[str, ...] = ()
    """Inputs that the function changed in place."""
    where: Tensor | None = None
    """Elements that are compared; None: all. Elsewhere any value is right (padding, junk columns)."""
    cache: dict[str, Tensor] = field(default_factory=dict)
    memo: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    """Intermediate results of the reference, which the combinations share."""
    listed: dict[tuple[object, ...], list[float]] = field(default_factory=dict)
    """The same as plain numbers."""
    grad_where: Mapping[str, Tensor] = field(default_factory=dict)
    """The same for gradients, by input."""
    quick: tuple[list[tuple[int, float]], float] | None = None
    """A few elements of the value, and a bound on the tolerance: most combinations fail here."""
    again: Callable[[Mapping[str, Any]], Seen] | None = None
    """Observes the function in the same way on other inputs; what a reproduction is made with."""

    shadow: Seen | None = None

    def plain(self) -> Seen:
        """The same case with nothing that records gradients: what the search runs on."""
        if self.shadow is None:
            cache = {k: v.detach() for k, v in self.cache.items()}
            self.shadow = dataclasses.replace(self, cache=cache, memo={}, listed={}, shadow=None)
        return self.shadow

    def remember(self, key: tuple[object, ...], compute: Callable[[], Tensor]) -> Tensor:
        """`compute()`, once."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A continuous setting of the reference."""

    name: str
    values: tuple[float, ...]
    """Tried in this order: the known value alone, or guesses."""
    known: bool = False
    """Whether `values` is what the function surely runs with, so that nothing is fitted."""
    active: Callable[[Options], bool] = lambda options: True
    fit: tuple[float, float] | None = None
    """Range of a logarithmic search where no guess fits."""
    monotone: tuple[float, float] | None = None
    """Range in which every element of the result only rises or only falls: two values rule out those between them."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A combination that equals the user's function."""

    options: Options
    knobs: Knobs
    pitfalls: tuple[Option, ...]


MAX_PITFALLS = 2
FIT_POINTS = 17
FIT_TRIED = 60
CROSSED = 0.8
"""Share of the elements that have to pass what was observed within one step of the grid."""
NOTHING_EXPLAINED = 0.97
HOPELESS = 0.1
"""A relative distance that is still this large when the knob is known to a thousandth: another formula."""
GOLDEN_STEPS = 45
GOLDEN_GLANCE = 16
MAX_EVALUATIONS = 120_000
"""A worst case of a few seconds: right functions are found within the first hundred."""


def solve(
    seen: Sequence[Seen],
    reference: Reference,
    axes: Sequence[Axis],
    knobs: Sequence[Knob] = (),
    *,
    max_pitfalls: int = MAX_PITFALLS,
    budget: int = MAX_EVALUATIONS,
    quick: Quick | None = None,
) -> Solution | None:
    """The combination with the fewest pitfalls that fits, of several the most usual one; None where none does.

    That no second combination fits as well is a property of the cases, and tested for every pair of options.
    """
    if not seen:
        raise ValueError("nothing was observed")
    found = _search(seen, _Tested(reference, quick), axes, knobs, max_pitfalls, budget)
    if found is not None:
        traces.solved(reference, found)
    return found


@dataclass(frozen=True)
class _Tested:
    """A reference with the cheapest way to its value."""

    reference: Reference
    quick: Quick | None = None

    def __call__(self, s: Seen, options: Options, knobs: Knobs) -> Result:
        return self.reference(s, options, knobs)

    def flat(self, s: Seen, options: Options, knobs: Knobs) -> list[float] | None:
        """The value as a flat list; None where its shape is another."""
        if self.quick is not None and s.value.dim() == 0:
            value = self.quick(s.plain(), options, knobs)
            if value is not None:
                return [value]
        want = self.reference(s.plain(), options, knobs).value
        return want.flatten().tolist() if want.shape == s.value.shape else None


def _search(
    seen: Sequence[Seen],
    reference: _Tested,
    axes: Sequence[Axis],
    knobs: Sequence[Knob],
    max_pitfalls: int,
    budget: int,
) -> Solution | None:
    left = budget
    for count in range(max_pitfalls + 1):
        for options, bad in combinations(axes, count):
            for values in _worth_trying(seen[0], reference, options, knobs):
                left -= 1
                if fits(seen, reference, options, values):
                    return Solution(options=options, knobs=values, pitfalls=bad)
            if left < 0:
                break
        # A knob that is neither known nor written in the source is rarer than a pitfall: fit only one step later.
        found = _fitted(seen, reference, axes, knobs, count - 1) if count else None
        if found is not None:
            return found
    return None


def combinations(axes: Sequence[Axis], pitfalls: int) -> Iterator[tuple[Options, tuple[Option, ...]]]:
    """Every choice of one option an axis with exactly that many pitfalls, the most standard ones first."""
    good = [[o for o in a.options if o.standing != "pitfall"] for a in axes]
    bad = [[o for o in a.options if o.standing == "pitfall"] for a in axes]
    pairs = [p for p in itertools.combinations(range(len(axes)), pitfalls) if all(bad[i] for i in p)]
    for deviations in range(len(axes) + 1 - pitfalls):
        for places in pairs:
            rest = [i for i in range(len(axes)) if i not in places and len(good[i]) > 1]
            for moved in itertools.combinations(rest, deviations):
                pools = [
                    bad[i] if i in places else good[i][1:] if i in moved else good[i][:1] for i in range(len(axes))
                ]
                for picked in itertools.product(*pools):
                    options = {a.name: o.name for a, o in zip(axes, picked, strict=True)}
                    if _makes_sense(axes, picked, options):
                        yield options, tuple(picked[i] for i in places)


def _makes_sense(axes: Sequence[Axis], picked: Sequence[Option], options: Options) -> bool:
    """Whether no axis departs from its first option where it makes no difference."""
    return all(a.when is None or o is a.options[0] or a.when(options) for a, o in zip(axes, picked, strict=True))


def fits(seen: Sequence[Seen], reference: Reference, options: Options, knobs: Knobs) -> bool:
    """Whether value and gradients agree on every case."""
    tested = reference if isinstance(reference, _Tested) else _Tested(reference)
    return all(_plausible(s, tested, options, knobs) for s in seen[:1]) and all(
        difference(s, reference, options, knobs) is None for s in seen
    )


def _plausible(s: Seen, reference: _Tested, options: Options, knobs: Knobs) -> bool:
    """Whether the first elements of the value agree, with a tolerance that is generous: cheap, and rarely true."""
    expected = reference.flat(s, options, knobs)
    if expected is None:
        return False
    points, bound = _points(s)
    for i, actual in points:
        e = expected[i]
        if not (abs(actual - e) <= bound * (1.0 + abs(e)) or actual == e or (actual != actual and e != e)):
            return False
    return True


def _points(s: Seen) -> tuple[list[tuple[int, float]], float]:
    if s.quick is None:
        s.quick = _quick(s)
    return s.quick


def _worth_trying(s: Seen, reference: _Tested, options: Options, knobs: Sequence[Knob]) -> Iterator[Knobs]:
    """The knobs' values for these options, but not those that their neighbours in a monotone range rule out."""
    active = [k for k in knobs if k.active(options)]
    if len(active) != 1 or active[0].monotone is None:
        yield from _knob_values(knobs, options)
        return
    name, (low, high) = active[0].name, active[0].monotone
    between = [v for v in active[0].values if low <= v <= high]
    ruled_out = len(between) > 2 and not _bracketed(s, reference, options, name, min(between), max(between))
    yield from ({name: v} for v in active[0].values if not (ruled_out and low <= v <= high))


def _bracketed(s: Seen, reference: _Tested, options: Options, knob: str, low: float, high: float) -> bool:
    """Whether each element of the value lies between those that the two values of a knob give."""
    one, other = reference.flat(s, options, {knob: low}), reference.flat(s, options, {knob: high})
    if one is None or other is None:
        return False
    points, bound = _points(s)
    for i, actual in points:
        a, b = min(one[i], other[i]), max(one[i], other[i])
        if actual < a - bound * (1.0 + abs(a)) or actual > b + bound * (1.0 + abs(b)):
            return False
    return True


def _quick(s: Seen) -> tuple[list[tuple[int, float]], float]:
    flat = s.value.flatten().tolist()
    where = [True] * len(flat) if s.where is None else s.where.flatten().tolist()
    points = [(i, x) for i, (x, compared) in enumerate(zip(flat, where, strict=True)) if compared][:48]
    finite = [abs(x) for _, x in points if math.isfinite(x)]
    conditioning = s.cache.get("conditioning")
    extra = 0.0 if conditioning is None else 8.0 * float(conditioning.max())
    p = tolerance.PRECISIONS[s.dtype]
    return points, 2.0 * (p.rtol + p.atol * max([1.0, *finite])) + 2.0 * extra


def difference(s: Seen, reference: Reference, options: Options, knobs: Knobs) -> Gap | None:
    """What the user's function and this combination differ in most on one case, or None."""
    want = reference(s, options, knobs)
    if want.value.shape != s.value.shape:
        return tolerance.gap("value", s.case, s.value, want.value, s.dtype)
    actual, expected = s.value, want.value.detach()
    if s.where is not None:
        actual, expected = actual[s.where], expected[s.where]
    found = tolerance.gap("value", s.case, actual, expected, s.dtype)
    if found is not None:
        noise = _noise(s, want)
        found = found if noise is None else tolerance.gap("value", s.case, actual, expected, s.dtype, noise)
    if found is not None:
        return found
    for name, g in want.grads().items():
        have = s.grads.get(name)
        have = torch.zeros_like(g) if have is None else have
        if name in s.grad_where:
            have, g = have[s.grad_where[name]], g[s.grad_where[name]]
        found = tolerance.gap(f"gradient of {name}", s.case, have, g, s.dtype)
        if found is not None:
            return found
    return None


def _noise(s: Seen, want: Result) -> Tensor | None:
    """The noise of the compared elements: the combination's own, else that of the case."""
    if want.noise is None:
        return s.cache.get("conditioning")
    noise = want.noise()
    return noise if s.where is None else noise[s.where]


def _knob_values(knobs: Sequence[Knob], options: Options) -> Iterator[Knobs]:
    active = [k for k in knobs if k.active(options)]
    for values in itertools.product(*(k.values for k in active)):
        yield {k.name: v for k, v in zip(active, values, strict=True)}


# Fitting


def _fitted(
    seen: Sequence[Seen], reference: _Tested, axes: Sequence[Axis], knobs: Sequence[Knob], count: int
) -> Solution | None:
    """A solution with one knob fitted, the others at their first guess: on a grid first, then between its points."""
    for knob in knobs:
        if knob.known or knob.fit is None:
            continue
        for options, bad in itertools.islice((c for c in combinations(axes, count) if knob.active(c[0])), FIT_TRIED):
            first = {k.name: k.values[0] for k in knobs if k.active(options) and k.values}
            # gradients cost a hundred times the value, and are compared once the knob is found
            plain = [x.plain() for x in seen[:2]]
            if not all(_crossed(x, reference, options, first, knob) for x in seen[:2]):
                continue
            at = _coarse(plain, reference, options, first, knob)
            value = None if at is None else _fine(seen, plain, reference, options, first, knob, at)
            if value is not None:
                return Solution(options=options, knobs={**first, knob.name: value}, pitfalls=bad)
    return None


def _grid(knob: Knob) -> list[float]:
    """Logarithms of values over the knob's range."""
    assert knob.fit is not None
    lo, hi = math.log(knob.fit[0]), math.log(knob.fit[1])
    return [lo + (hi - lo) * i / (FIT_POINTS - 1) for i in range(FIT_POINTS)]


def _crossed(s: Seen, reference: _Tested, options: Options, knobs: Knobs, knob: Knob) -> bool:
    """Whether between two neighbours of the grid nearly all elements of the value pass what was observed.

    Where that happens nowhere, no value of the knob fits; an element at an extremum may be an exception, most are not.
    """
    points, bound = _points(s)
    known = [(i, x) for i, x in points if math.isfinite(x)]
    before: list[float] | None = None
    for x in _grid(knob):
        flat = reference.flat(s, options, {**knobs, knob.name: math.exp(x)})
        if flat is None:
            return False
        if before is not None:
            passed = sum(_passes(before[i], flat[i], actual, bound) for i, actual in known)
            if passed >= CROSSED * len(known):
                return True
        before = flat
    return False


def _passes(a: float, b: float, actual: float, bound: float) -> bool:
    """Whether a number lies between two others, give or take the tolerance."""
    low, high = (a, b) if a <= b else (b, a)
    return low - bound * (1.0 + abs(low)) <= actual <= high + bound * (1.0 + abs(high))


def _coarse(seen: Sequence[Seen], reference: Reference, options: Options, knobs: Knobs, knob: Knob) -> float | None:
    """Logarithm of the knob at the best point of a grid; None where that is an end of it or explains nothing."""
    grid = _grid(knob)
    losses = [residual(seen, reference, options, {**knobs, knob.name: math.exp(x)}) for x in grid]
    best = min(range(FIT_POINTS), key=losses.__getitem__)
    inside = 0 < best < FIT_POINTS - 1 and losses[0] > losses[best] * 1.0001 and losses[-1] > losses[best] * 1.0001
    return grid[best] if inside and (_single(seen) or losses[best] < NOTHING_EXPLAINED) else None


def _single(seen: Sequence[Seen]) -> bool:
    """Whether the value is one number, which may be near 0: then its relative distance says little."""
    return all(s.value.dim() == 0 for s in seen)


def _fine(
    seen: Sequence[Seen],
    plain: Sequence[Seen],
    reference: Reference,
    options: Options,
    knobs: Knobs,
    knob: Knob,
    at: float,
) -> float | None:
    """The value of the knob near a grid point at which the reference equals the observation, if there is one."""
    assert knob.fit is not None
    step = (math.log(knob.fit[1]) - math.log(knob.fit[0])) / (FIT_POINTS - 1)

    def loss(x: float) -> float:
        return residual(plain, reference, options, {**knobs, knob.name: math.exp(x)})

    x = _golden(loss, at - step, at + step, math.inf if _single(plain) else HOPELESS)
    if x is None:
        return None
    for digits in (1, 2, 3, 6, 12):
        value = float(f"{math.exp(x):.{digits}g}")
        if fits(seen, reference, options, {**knobs, knob.name: value}):
            return value
    return None


def residual(seen: Sequence[Seen], reference: Reference, options: Options, knobs: Knobs) -> float:
    """Relative distance of value and gradients, the mean over all of them; 1 is what zeros would score."""
    total, count = 0.0, 0
    for s in seen:
        want = reference(s, options, knobs)
        pairs = [(s.value, want.value.detach())] + [
            (s.grads.get(n, torch.zeros_like(g)), g) for n, g in want.grads().items()
        ]
        for actual, expected in pairs:
            if actual.shape != expected.shape:
                return math.inf
            if s.where is not None and actual.shape == s.where.shape:
                actual, expected = actual[s.where], expected[s.where]
            total += float((actual - expected).norm() / (actual.norm() + 1e-12))
            count += 1
    return total / count if math.isfinite(total) else math.inf


def _golden(f: Callable[[float], float], lo: float, hi: float, hopeless: float) -> float | None:
    """Where `f` is least between two points; None where it is still above `hopeless` after a glance."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = hi - ratio * (hi - lo), lo + ratio * (hi - lo)
    fa, fb = f(a), f(b)
    for step in range(GOLDEN_STEPS):
        if step == GOLDEN_GLANCE and min(fa, fb) > hopeless:
            return None
        if fa < fb:
            hi, b, fb = b, a, fa
            a = hi - ratio * (hi - lo)
            fa = f(a)
        else:
            lo, a, fa = a, b, fb
            b = lo + ratio * (hi - lo)
            fb = f(b)
    return (lo + hi) / 2


# Telling


def convention(axes: Sequence[Axis], solution: Solution, knobs: Mapping[str, Number] | None = None) -> Convention:
    """The solution in plain words: what the function computes, pitfalls left out."""
    choices: list[Choice] = []
    for axis in axes:
        option = option_of(axis, solution.options[axis.name])
        if axis.when is not None and not axis.when(solution.options):
            continue
        if option.standing != "pitfall" and option.says:
            choices.append(Choice(axis=axis.name, option=option.name, says=option.says, source=option.source))
    shown: dict[str, Number] = {**(solution.knobs if knobs is None else knobs)}
    summary = ", ".join([c.says for c in choices] + [f"{k}={_short(v)}" for k, v in shown.items()])
    return Convention(summary=summary or "the standard formula", choices=tuple(choices), knobs=shown)


def option_of(axis: Axis, name: str) -> Option:
    return next(o for o in axis.options if o.name == name)


def named(options: Sequence[Option], numbers: Mapping[str, Number]) -> tuple[Named, ...]:
    """The pitfalls of a solution as findings name them."""
    out: list[Named] = []
    for o in options:
        assert o.pitfall is not None
        out.append(Named(pitfall=o.pitfall.id, family=o.pitfall.family, says=o.pitfall.says, numbers=dict(numbers)))
    return tuple(out)


def _short(v: Number) -> str:
    return v if isinstance(v, str) else f"{v:.6g}"
