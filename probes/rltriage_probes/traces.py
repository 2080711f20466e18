"""What the checks of one target leave behind, from which a finding's reproduction is made.

Roles need not know of it: the solver notes what it found, `probing.distance` what it compared, the bound function what
it was called with. Nothing is noted unless somebody listens.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rltriage_probes.contract import Check, Gap
    from rltriage_probes.solver import Knobs, Options, Reference, Seen, Solution

MAX_CALLS = 2_000
"""Calls that are remembered; a battery makes a few hundred."""


MAX_PER_CHECK = 16
"""A check with more calls than this has no pair of them that shows it."""


@dataclass(frozen=True, kw_only=True)
class Twin:
    """An observation, and the combination that it ought to equal and does not."""

    gap: Gap
    seen: Seen
    reference: Reference
    options: Options
    knobs: Knobs


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A call of the user's function, in words of the vocabulary."""

    inputs: Mapping[str, Any]
    raw: bool
    """Whether the object that it returned is what is judged, not a tensor in canonical form."""
    wrt: tuple[str, ...] = ()
    """Inputs for which a gradient was asked."""
    value: Any = None
    error: str = ""


@dataclass(kw_only=True)
class Trace:
    """Everything that was noted while one target was checked."""

    twins: list[Twin] = field(default_factory=list)
    solved: list[tuple[Reference, Solution]] = field(default_factory=list)
    asked: deque[Asked] = field(default_factory=lambda: deque(maxlen=MAX_CALLS))
    by_check: list[tuple[Check, tuple[Asked, ...]]] = field(default_factory=list)
    """The calls that were made for each check, since the one before it."""
    _said: int = 0
    _calls: int = 0

    def note(self, asked: Asked) -> None:
        self.asked.append(asked)
        self._calls += 1

    def checked(self, check: Check) -> None:
        """A check has been answered: what was called since the last one was called for it."""
        new = self._calls - self._said
        self._said = self._calls
        self.by_check.append((check, tuple(self.asked)[-new:] if 0 < new <= MAX_PER_CHECK else ()))

    def calls_of(self, check: Check) -> tuple[Asked, ...]:
        """Empty where there were none, or too many to be told apart."""
        return next((calls for c, calls in self.by_check if c is check), ())

    def twin_of(self, gap: Gap) -> Twin | None:
        return next((t for t in self.twins if t.gap is gap), None)

    def bug_of(self, reference: Reference) -> Solution | None:
        """The combination that equals the user's function, where one with a pitfall was found."""
        return next((s for r, s in reversed(self.solved) if r is reference and s.pitfalls), None)


_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)


@contextlib.contextmanager
def listening() -> Generator[Trace, None, None]:
    """A trace into which is noted what happens inside."""
    trace = Trace()
    token = _CURRENT.set(trace)
    try:
        yield trace
    finally:
        _CURRENT.reset(token)


def compared(gap: Gap, seen: Seen, reference: Reference, options: Options, knobs: Knobs) -> None:
    if (trace := _CURRENT.get()) is not None:
        trace.twins.append(Twin(gap=gap, seen=seen, reference=reference, options=dict(options), knobs=dict(knobs)))


def solved(reference: Reference, solution: Solution) -> None:
    if (trace := _CURRENT.get()) is not None:
        trace.solved.append((reference, solution))


def asked(inputs: Mapping[str, Any], *, raw: bool, wrt: Sequence[str] = (), value: Any = None, error: str = "") -> None:
    if (trace := _CURRENT.get()) is not None:
        trace.note(Asked(inputs=inputs, raw=raw, wrt=tuple(wrt), value=value, error=error))
