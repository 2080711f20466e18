"""The episodes that the checks compare: which actions do something, and what a run of them gives."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.contract import Agrees, Check, Convention, Number
from rltriage_probes.environment import actions, world
from rltriage_probes.environment.building import LIMITS, Situation
from rltriage_probes.environment.driving import Session, Step, Trace, as_number
from rltriage_probes.environment.snapshots import frozen
from rltriage_probes.environment.target import NOISE, EnvironmentTarget, Made
from rltriage_probes.model import CallFailed
from rltriage_probes.reading import flat

LONGEST_LOOK_S = 6.0
"""Time for trying actions out; slow environments are examined with fewer."""
LONG = 5


@dataclass(frozen=True)
class Play:
    """Actions, and what kind of episode they make."""

    says: str
    actions: tuple[Any, ...]


@dataclass
class Tried:
    """One first action and what it gave."""

    action: Any
    kind: str
    step: Step


def plain_session(target: EnvironmentTarget, made: Made) -> Session:
    """A session with the process's own generators."""
    return Session(target.lab, made.members[0], target.calls, Situation())


@dataclass
class Exam:
    """An environment under examination."""

    target: EnvironmentTarget
    doc: str
    source: str
    tried: list[Tried] = field(default_factory=list[Tried])
    plays: list[Play] = field(default_factory=list[Play])
    waiting: list[Any] = field(default_factory=list[Any])
    """Actions after which the episode goes on."""
    later: list[tuple[Any, Step]] = field(default_factory=list[tuple[Any, Step]])
    uses_process: bool = False
    sure_of_gold: bool = False
    seconds: list[tuple[str, float]] = field(default_factory=list[tuple[str, float]])

    def __post_init__(self) -> None:
        self._malformed: list[tuple[Any, CallFailed]] | None = None
        self.code = self.target.sources.text
        self.prose = ""

    # Runs

    def session(
        self, at: Situation | None = None, noise: int | None = NOISE, *, restore: bool = True
    ) -> tuple[Session, Made]:
        session, made = self.target.session(at or Situation(), noise, restore=restore)
        session.seconds = self.seconds
        return session, made

    def trace(self, play: Play, at: Situation | None = None, noise: int = NOISE) -> Trace:
        """An episode of a fresh instance. Raises `CallFailed`."""
        session, _ = self.session(at, noise)
        try:
            return session.episode(play.actions)
        finally:
            session.close()

    def start(self, at: Situation, noise: int = NOISE) -> Any:
        session, _ = self.session(at, noise)
        try:
            return session.reset()
        finally:
            session.close()

    def beginning(self, at: Situation, noise: int) -> str:
        """All that an episode begins with: the observation and what the environment holds."""
        session, _ = self.session(at, noise)
        try:
            first = session.reset()
            held = frozen(getattr(session.env, "__dict__", None))
            return repr((first, held, [s.frozen for s in session.play(self.plays[0].actions)]))
        except CallFailed as e:
            return e.error
        finally:
            session.close()

    def attempt(self, taken: Sequence[Any]) -> list[Step] | None:
        """The steps of these actions in a fresh instance; None where one raises."""
        session, _ = self.session()
        try:
            session.reset()
            return session.play(taken)
        except CallFailed:
            return None
        finally:
            session.close()

    # Looking round

    def explore(self) -> None:
        """Tries actions and makes episodes of them. Raises `CallFailed` where no episode begins."""
        session, _ = self.session()
        session.reset()
        env = session.env
        self.prose = flat(" ".join(filter(None, _docs(env, self))))
        todo = actions.candidates(env, session.last, self.target.sources, getattr(env, self.target.calls.step))
        session.close()
        until = time.monotonic() + LONGEST_LOOK_S
        for action in todo:
            steps = self.attempt([action.value])
            if steps:
                self.tried.append(Tried(action.value, action.kind, steps[0]))
            if time.monotonic() > until and self.tried:
                break
        if not self.tried:
            self.tried = [Tried(*self._any(todo))]
        self._arrange()
        self.target.draws = any(self._draws(play) for play in self.plays)

    def _draws(self, play: Play) -> bool:
        """Whether making an environment and playing this changes the process's generators."""
        self.target.world.restore()
        with world.kept_globals():
            world.seed_globals(NOISE)
            before = world.fingerprints()
            session = plain_session(self.target, self.target.recipe.make(Situation()))
            try:
                session.episode(play.actions)
                session.reset()
            finally:
                session.close()
            return world.fingerprints() != before

    def _any(self, todo: Sequence[actions.Action]) -> tuple[Any, str, Step]:
        """An action that raises nothing, however often it is tried. Raises `CallFailed`."""
        session, _ = self.session()
        session.reset()
        step = session.step(todo[0].value)
        session.close()
        return todo[0].value, todo[0].kind, step

    def _arrange(self) -> None:
        seen: dict[str, Any] = {}
        for t in self.tried:
            if not t.step.done:
                seen.setdefault(repr(t.step.frozen), t.action)
        others = [t.action for t in self.tried if not t.step.done and t.action not in seen.values()]
        self.waiting = [*seen.values(), *others][:6]
        ends = sorted((t for t in self.tried if t.step.done), key=lambda t: -_order(t.step))
        waits = sorted((t for t in self.tried if not t.step.done), key=lambda t: -_order(t.step))
        plays: list[Play] = []
        if self.waiting:
            walk = [self.waiting[i % len(self.waiting)] for i in range(LONG)]
            plays.append(Play(f"{LONG} actions", tuple(walk)))
            best = (ends or waits)[0].action
            plays.append(Play("two actions and the one that earns the most", (*walk[:2], best)))
            plays.append(Play(f"one action {2 * LONG} times", (waits[0].action,) * (2 * LONG)))
        if ends:
            plays.append(Play("the action that earns the most", (ends[0].action,)))
            plays.append(Play("the action that earns the least", (ends[-1].action,)))
        elif waits:
            plays.append(Play("the action that earns the most", (waits[0].action,)))
        kept: dict[str, Play] = {}
        for play in plays:
            steps = self.attempt(play.actions)
            if steps is not None:
                self.later += list(zip(play.actions, steps, strict=False))
                kept.setdefault(repr(play.actions), play)
        self.plays = list(kept.values()) or [Play("no action", ())]

    def plays_for(self, session: Session) -> list[Play]:
        """The episodes, and those that may be right for the problem of this session."""
        todo = actions.candidates(
            session.env, session.last, self.target.sources, getattr(session.env, self.target.calls.step)
        )
        golds = [a.value for a in todo if a.kind == "gold"][:6]
        best = self._best_position()
        chosen = [golds[best]] if best is not None and best < len(golds) else golds[:1]
        own = [Play("an answer", (a,)) for a in chosen if self.attempt([a]) is not None]
        return [*self.plays, *own]

    def _best_position(self) -> int | None:
        golds = [t for t in self.tried if t.kind == "gold"]
        return max(range(len(golds)), key=lambda i: _order(golds[i].step)) if golds else None

    def other_actions(self, at: Situation) -> list[Any]:
        """Actions that an instance with another problem takes."""
        wanted = [*self.waiting[:LONG], *(t.action for t in self.tried if t.step.done)]
        good: list[Any] = []
        for action in wanted[:LONG]:
            session, _ = self.session(at)
            try:
                session.reset()
                session.step(action)
                good.append(action)
            except CallFailed:
                pass
            finally:
                session.close()
        return good

    def malformed(self) -> list[tuple[Any, CallFailed]] | None:
        """Malformed texts that raise; None where actions are no texts."""
        if not any(isinstance(t.action, str) for t in self.tried) or any(t.kind == "space" for t in self.tried):
            return None
        if self._malformed is not None:
            return self._malformed
        failed: list[tuple[Any, CallFailed]] = []
        for text in actions.MALFORMED:
            session, _ = self.session()
            try:
                session.reset()
                self.later.append((text, session.step(text)))
            except CallFailed as e:
                failed.append((text, e))
            finally:
                session.close()
        self._malformed = failed
        return failed

    def endless(self, action: Any, longest: int) -> tuple[Step | None, int, Session]:
        """One action until the episode ends: the last step and how many there were."""
        session, _ = self.session()
        session.reset()
        last: Step | None = None
        n = 0
        try:
            while n < longest and not (last and last.done):
                last = session.step(action)
                n += 1
        except CallFailed:
            pass
        finally:
            session.close()
        return last, n, session

    # What was found

    def all_steps(self) -> list[tuple[Any, Step]]:
        return [*((t.action, t.step) for t in self.tried), *self.later]

    @property
    def pays_nowhere(self) -> bool:
        """Whether no step returns a reward: it is kept elsewhere, or given by another function."""
        return all(s.reward is None for _, s in self.all_steps())

    def standing(self) -> tuple[tuple[float, float] | None, tuple[Any, float] | None, tuple[Any, float] | None]:
        """Lowest and highest first reward, the best-paid right answer, and the best-paid other one."""
        paid = [(t, as_number(t.step.reward)) for t in self.tried]
        paid = [(t, v) for t, v in paid if v == v]
        if not paid:
            return None, None, None
        golds = [(t, v) for t, v in paid if t.kind == "gold"]
        wrong = [(t, v) for t, v in paid if t.kind == "plain"]
        values = [v for _, v in paid]
        gold = max(golds, key=lambda x: x[1]) if golds else None
        other = max(wrong, key=lambda x: x[1]) if wrong else None
        self.sure_of_gold = bool(golds) and all(t.step.done for t, _ in golds) and all(t.step.done for t, _ in wrong)
        return (
            (min(values), max(values)),
            (gold[0].action, gold[1]) if gold else None,
            (other[0].action, other[1]) if other else None,
        )

    def limit(self) -> tuple[str, int]:
        """Name and value of what bounds an episode; empty and 0 where nothing says so."""
        session, _ = self.session()
        session.close()
        held: dict[str, Any] = dict(vars(session.env)) if hasattr(session.env, "__dict__") else {}
        for inner in ("config", "cfg", "args"):
            held |= getattr(held.get(inner), "__dict__", {})
        for name, value in held.items():
            if name.strip("_") in LIMITS and isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 40:
                return name, value
        return "", 0

    def compares(self, name: str) -> bool:
        """Whether the source compares something with this limit."""
        plain = re.escape(name)
        return re.search(rf"[<>=!]=?\s*[\w.]*\b{plain}\b|\b{plain}\b\s*(-\s*\d+\s*)?[<>=!]=?", self.code) is not None

    def single_problem(self) -> bool:
        """Whether the problem is handed over, so that nothing is to be drawn."""
        return any(p.kind == "row" for p in self.target.places())

    def reset_sources(self) -> list[str]:
        session, _ = self.session()
        session.close()
        found: list[str] = []
        for name in (self.target.calls.reset, "__init__"):
            try:
                found.append(inspect.getsource(getattr(type(session.env), name)))
            except (OSError, TypeError):
                continue
        return found[:1]

    def latency(self) -> Check:
        """Median and 95th percentile of the calls so far, in milliseconds."""
        knobs: dict[str, Number] = {}
        for what in ("reset", "step"):
            times = sorted(s for w, s in self.seconds if w == what)
            if times:
                knobs[f"{what}_median_ms"] = round(1000 * times[len(times) // 2], 4)
                knobs[f"{what}_p95_ms"] = round(1000 * times[min(len(times) - 1, int(0.95 * len(times)))], 4)
                knobs[f"{what}_calls"] = float(len(times))
        says = ", ".join(
            f"{w} {knobs[f'{w}_median_ms']:.3g} ms" for w in ("reset", "step") if f"{w}_median_ms" in knobs
        )
        convention = Convention(summary=f"median {says}", knobs=dict(knobs))
        return Check(
            probe="environment.latency", asks="how long do its calls take?", outcome=Agrees(convention=convention)
        )


def _order(step: Step) -> float:
    value = as_number(step.reward)
    return value if value == value else 0.0


def _docs(env: Any, exam: Exam) -> list[str]:
    """Docstrings of the class, its methods and of what makes it."""
    found = [exam.doc]
    owner = exam.target.sources.loaded.owner
    for cls in dict.fromkeys([owner, *type(env).__mro__[:-1]]):
        if cls is None or cls.__module__ in ("abc", "typing"):
            continue
        found.append(cls.__doc__ or "")
        found += [inspect.getdoc(v) or "" for v in vars(cls).values() if inspect.isfunction(v)]
    return found
