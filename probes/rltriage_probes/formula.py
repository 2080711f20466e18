"""The question that every formula role asks: which combination of options is the user's function?

A role declares a `Formula`; `judge` observes the function on its cases, solves, and words the outcome.
What a role asks beyond the formula (relations, effects) it asks itself, knowing the solution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rltriage_probes import probing, solver
from rltriage_probes.contract import Agrees, Check, Number
from rltriage_probes.model import Axis, CallFailed, Case, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Reference, Seen, Solution

Observe = Callable[[Subject, Case], Seen]


@dataclass(frozen=True, kw_only=True)
class Formula:
    """A reference with its axes and knobs, and the cases on which the user's function is compared with it."""

    probe: str
    """Id of the check: `gae.formula`."""
    asks: str
    cases: tuple[Case, ...]
    reference: Reference
    observe: Observe
    """Calls the function on a case and says which elements count."""
    axes: Callable[[Sequence[Seen]], tuple[Axis, ...]]
    """The axes that concern this function, which may hang on the shape of what it gave."""
    knobs: Callable[[Sequence[Seen]], tuple[Knob, ...]] = lambda seen: ()
    nothing_fits: str
    """`Diverges` in words: `no known estimator gives these advantages`."""
    hide: Callable[[Knobs], Mapping[str, Number]] = dict
    """Knobs as the convention shows them, neutral ones left out."""
    max_pitfalls: int = solver.MAX_PITFALLS
    budget: int = solver.MAX_EVALUATIONS


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The outcome of a formula, and what later checks of the role may build on."""

    check: Check
    solution: Solution | None = None
    """None where the function raised or nothing fits."""
    seen: tuple[Seen, ...] = ()
    axes: tuple[Axis, ...] = field(default=())

    @property
    def right(self) -> bool:
        """Whether the formula is right, so that relations can be asked of it."""
        return self.solution is not None and not self.solution.pitfalls


def judge(subject: Subject, formula: Formula) -> Judged:
    """Observe, solve, and say what was found."""
    seen: list[Seen] = []
    for case in formula.cases:
        try:
            seen.append(probing.repeatable(formula.observe, subject, case))
        except CallFailed as e:
            return Judged(check=probing.raised(formula.probe, formula.asks, case.name, e))
    axes, knobs = formula.axes(seen), formula.knobs(seen)
    found = solver.solve(
        seen, formula.reference, axes, knobs, max_pitfalls=formula.max_pitfalls, budget=formula.budget
    )  # fmt: skip
    check = _worded(formula, seen, axes, knobs, found)
    return Judged(check=check, solution=found, seen=tuple(seen), axes=axes)


def _worded(
    formula: Formula, seen: Sequence[Seen], axes: tuple[Axis, ...], knobs: Sequence[Knob], found: Solution | None
) -> Check:
    if found is None:
        options, values = standard(axes, knobs)
        gap = probing.distance(seen, formula.reference, options, values)
        return Check(probe=formula.probe, asks=formula.asks, outcome=probing.diverges(formula.nothing_fits, gap))
    convention = solver.convention(axes, found, formula.hide(found.knobs))
    if not found.pitfalls:
        return Check(probe=formula.probe, asks=formula.asks, outcome=Agrees(convention=convention))
    twin = probing.right_twin(axes, found)
    # the twin may need a knob that the solution has no use for
    needed = {k.name: k.values[0] for k in knobs if k.values and k.active(twin)}
    gap = probing.distance(seen, formula.reference, twin, {**needed, **found.knobs})
    outcome = probing.known_bug(solver.named(found.pitfalls, {}), convention, gap)
    return Check(probe=formula.probe, asks=formula.asks, outcome=outcome)


def standard(axes: Sequence[Axis], knobs: Sequence[Knob]) -> tuple[Options, Knobs]:
    """First option of every axis, first value of every knob: what a function that fits nothing is held against."""
    return {a.name: a.options[0].name for a in axes}, {k.name: k.values[0] for k in knobs if k.values}
