"""From a class, a factory or a builder of groups to environments that can be driven: found by trying.

What is settled on is in the binding report: with which values the user's classes were made, how `reset` and the step
method are called and in which form they take an action.
"""

from __future__ import annotations

import functools
import inspect
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.contract import BindingReport, Slot
from rltriage_probes.environment import actions, world
from rltriage_probes.environment.building import Place, Places, Situation, Sources, Unfilled, fill
from rltriage_probes.environment.driving import (
    BATCHES,
    BUILDERS,
    RESETS,
    STATES,
    STEPS,
    Calls,
    Lab,
    Session,
    is_builder,
    is_environment,
    method_of,
    short,
    step_method,
)
from rltriage_probes.environment.snapshots import frozen
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import Loaded
from rltriage_probes.model import CallFailed, Observation, Role
from rltriage_probes.reports import BindingFailed

MAX_TRIALS = 400
LONGEST_SEARCH_S = 15.0
NOISE = 7
"""Seed of the process's generators in a run that nothing else is asked of."""


@dataclass
class Made:
    """What one call of the user's builder gave."""

    members: list[Any]
    grouped: bool = False
    """A builder or factory of groups made them."""
    given: list[tuple[Place, Any]] = field(default_factory=list[tuple[Place, Any]])
    """Every argument, the very object, with the place that made it."""
    maker: Any = None
    """The builder, where there was one."""


Stage = Callable[[Any, Situation, Made], Any]
"""One step on the way: from an object to what it makes."""


@dataclass(frozen=True)
class Recipe:
    """How environments are made."""

    stages: tuple[Stage, ...]
    places: tuple[tuple[str, Places], ...]
    """What was called and with which values, for the report."""

    def make(self, at: Situation) -> Made:
        made = Made([])
        value: Any = None
        for stage in self.stages:
            value = stage(value, at, made)
        made.members = list(value) if isinstance(value, (list, tuple)) else [value]
        return made


class EnvironmentTarget:
    """A user's environment that can be made and driven again and again. Implements `model.BoundFunction`."""

    names: frozenset[str] = frozenset()

    def __init__(self, lab: Lab, sources: Sources, recipe: Recipe, calls: Calls, scene: world.World) -> None:
        self.lab = lab
        self.sources = sources
        self.recipe = recipe
        self.calls = calls
        self.world = scene
        self.settings: Mapping[str, Any] = dict(sources.settings)
        self.report = _report(recipe, calls)
        self.draws = True
        """Whether it may draw from the process's generators, so that runs have to be given states of their own."""

    def session(
        self, at: Situation, noise: int | None = NOISE, *, restore: bool = True, threaded: bool = False
    ) -> tuple[Session, Made]:
        """A new environment in a world as it was at the beginning. `noise` None: with the process's own generators."""
        if restore:
            self.world.restore()
        if threaded or noise is None or not self.draws:
            made = self.recipe.make(at)
            return Session(self.lab, made.members[0], self.calls, at, threaded=threaded), made
        with world.kept_globals():
            world.seed_globals(noise)
            made = self.recipe.make(at)
            states = world.global_states()
        return Session(self.lab, made.members[0], self.calls, at, states), made

    def places(self) -> Iterator[Place]:
        for _, places in self.recipe.places:
            yield from places
        yield from self.calls.reset_places

    @property
    def seeded_by(self) -> str:
        """Which parameter takes the seed: `reset(seed)`, the constructor's name, or empty."""
        for p in self.calls.reset_places:
            if p.kind == "seed":
                return f"{self.calls.reset}({p.name})"
        return next((f"{of}({p.name})" for of, places in self.recipe.places for p in places if p.kind == "seed"), "")

    def call(self, inputs: Mapping[str, Any], wrt: Sequence[str] = (), dtype: str = "float32") -> Observation:
        raise NotReached("an environment is no function of tensors")

    def call_raw(self, inputs: Mapping[str, Any]) -> Any:
        raise NotReached("an environment is no function of texts")


def _report(recipe: Recipe, calls: Calls) -> BindingReport:
    slots: list[Slot] = []
    for of, places in (*recipe.places, (calls.reset, calls.reset_places), (calls.step, calls.extra)):
        for p in places:
            if p.kind != "default":
                slots.append(Slot(path=f"{of}({p.name})", meaning=p.candidate.says, how=p.kind))
    slots.append(Slot(path=f"{calls.step}({calls.action_name})", meaning="an action", how="name", form=calls.wrap_says))
    return BindingReport(slots=tuple(slots), returns=f"driven through {calls.reset} and {calls.step}")


# The search


def bind(
    loaded: Loaded,
    role: Role,
    explicit: Mapping[str, str],
    settings: Mapping[str, Any],
    intent: Mapping[str, Any],
    name: str = "",
) -> EnvironmentTarget:
    """The target as something that can be driven. Raises `BindingFailed`, `CallFailed` or `NotReached`."""
    sources = Sources(loaded, explicit, settings, intent)
    return _Search(sources).run()


class _Search:
    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.lab = Lab(sources.loaded.root, sources.loaded.path)
        owner = sources.loaded.owner
        self.world = world.World(sources.loaded.namespace, [owner] if owner else [])
        self.trials = 0
        self.until = time.monotonic() + LONGEST_SEARCH_S
        self.failure: tuple[int, Exception] | None = None
        """How far the best attempt came, and what stopped it."""
        self.unfilled: Unfilled | None = None

    def run(self) -> EnvironmentTarget:
        for recipe in self._recipes(None, (), ()):
            for calls in self._calls(recipe):
                self.world.restore()
                return EnvironmentTarget(self.lab, self.sources, recipe, calls, self.world)
        self.world.restore()
        raise self._why()

    def _why(self) -> Exception:
        loaded = self.sources.loaded
        if self.unfilled is not None:
            return self._open(self.unfilled)
        if self.failure is None:
            return BindingFailed(
                f"{loaded.qualname} makes nothing with a reset and a step method",
                BindingReport(tried=(f"reset: {', '.join(RESETS[:4])}, ...", f"step: {', '.join(STEPS[:4])}, ...")),
            )
        depth, error = self.failure
        if isinstance(error, NotReached):
            return error
        if isinstance(error, CallFailed):
            what = ("can't be made", "raises in reset", "raises on every action that was tried")[min(depth, 2)]
            example = (
                'bind = { "<parameter>" = "=<Python literal>" }' if depth < 2 else 'bind = { action = "=<an action>" }'
            )
            report = BindingReport(tried=(f"{error.error} at {error.where}",), example=example)
            return BindingFailed(f"{loaded.qualname} {what}: {error.error} at {error.where}", report)
        return error

    def _open(self, e: Unfilled) -> BindingFailed:
        lines = ", ".join(f'{n} = "=<Python literal>"' for n in e.names)
        report = BindingReport(open=e.names, tried=("names and annotations",), example=f"bind = {{ {lines} }}")
        return BindingFailed(str(e), report)

    def _attempt(self, depth: int, function: Callable[[], Any]) -> tuple[bool, Any]:
        """Whether the user's code ran, and what it gave."""
        self.trials += 1
        try:
            with world.kept_globals():
                world.seed_globals(NOISE)
                return True, self.lab.call(function)
        except (CallFailed, NotReached) as e:
            if self.failure is None or depth > self.failure[0]:
                self.failure = (depth, e)
            return False, None

    def _spent(self) -> bool:
        return self.trials > MAX_TRIALS or time.monotonic() > self.until

    # Making

    def _recipes(
        self, value: Any, stages: tuple[Stage, ...], places: tuple[tuple[str, Places], ...]
    ) -> Iterator[Recipe]:
        """Every way from the target to environments, the likeliest first."""
        if stages and (is_environment(value) and not isinstance(value, type)):
            yield Recipe(stages, places)
            return
        if stages and _members(value) is not None:
            yield Recipe((*stages, lambda v, at, made: _note_group(made, v)), places)
            return
        if len(stages) > 5:
            return
        function, of = self._next(value, stages)
        if function is None:
            return
        try:
            options = list(self._options(function(value), of))
        except Unfilled as e:
            self.unfilled = self.unfilled or e
            return
        for filled in options:
            if self._spent():
                return
            stage = self._stage(function, filled, of)
            self.world.restore()
            made = Made([])
            worked, result = self._attempt(0, functools.partial(stage, value, Situation(), made))
            if worked:
                yield from self._recipes(_first(result), (*stages, _stage_of(stage)), (*places, (of, filled)))

    def _options(self, function: Any, of: str) -> Iterator[Places]:
        return self.sources.combinations(function, of)

    def _stage(self, function: Callable[[Any], Any], filled: Places, of: str) -> Stage:
        lab = self.lab

        def stage(value: Any, at: Situation, made: Made) -> Any:
            positional, named = fill(filled, at)
            given = [p for p in filled if p.kind != "default"]
            values = iter([*positional, *named.values()])
            ordered = [p for p in given if p.positional] + [p for p in given if not p.positional]
            made.given += [(p, v) for p, v in zip(ordered, values, strict=True)]
            target = function(value)
            if is_builder(value) and not isinstance(value, type):
                made.maker = value
            got = lab.call(lambda: target(*positional, **named))
            if is_builder(got) and not isinstance(got, type):
                made.maker = got
            return got

        return stage

    def _next(self, value: Any, stages: tuple[Stage, ...]) -> tuple[Callable[[Any], Any] | None, str]:
        """What is called next, as a function of the object at hand, and its name."""
        loaded = self.sources.loaded
        if not stages:
            owner, method = loaded.owner, loaded.qualname.rpartition(".")[2]
            if owner is not None and loaded.kind == "method":
                return (lambda _: owner), owner.__name__
            return (lambda _: loaded.function), method
        if isinstance(value, type):
            return (lambda v: v), value.__name__
        wanted = loaded.qualname.rpartition(".")[2] if len(stages) == 1 and loaded.kind == "method" else ""
        if wanted and wanted not in (*RESETS, *STEPS, "__call__") and callable(getattr(value, wanted, None)):
            return (lambda v: getattr(v, wanted)), wanted
        for names in (BUILDERS, BATCHES):
            method = method_of(type(value), names)
            if method:
                return operator.attrgetter(method), method
        if (
            hasattr(value, "__getitem__")
            and hasattr(value, "__len__")
            and not isinstance(value, (str, list, tuple, dict))
        ):
            return (lambda v: lambda: v[0]), "[0]"
        if callable(value):
            return (lambda v: v), getattr(value, "__name__", type(value).__name__)
        return None, ""

    # Driving

    def _calls(self, recipe: Recipe) -> Iterator[Calls]:
        ok, made = self._attempt(0, lambda: recipe.make(Situation()))
        if not ok or not made.members:
            return
        env = made.members[0]
        reset, step = method_of(type(env), RESETS), step_method(type(env))
        try:
            ways = list(self.sources.combinations(getattr(env, reset), reset))
        except Unfilled as e:
            self.unfilled = self.unfilled or e
            return
        for reset_places in ways:
            for calls in self._actions(recipe, reset, step, reset_places):
                if self._spent():
                    return
                if self._runs(recipe, calls):
                    yield calls

    def _actions(self, recipe: Recipe, reset: str, step: str, places: Places) -> Iterator[Calls]:
        ok, made = self._attempt(0, lambda: recipe.make(Situation()))
        if not ok:
            return
        method = getattr(made.members[0], step)
        parameters = [p for p in _signature(method) if p.kind != p.VAR_KEYWORD]
        if not parameters:
            yield Calls(reset, step, places, "*", lambda action: action, "as it is")
            return
        others = (i for i, p in enumerate(parameters) if p.name not in STATES)
        at = next((i for i, p in enumerate(parameters) if _is_action(p.name)), next(others, 0))
        chosen = parameters[at]
        free = [p for i, p in enumerate(parameters) if i != at and p.kind is not p.VAR_POSITIONAL]
        function = _with_parameters(free)
        try:
            extras = next(self.sources.combinations(function, step), ())
        except Unfilled as e:
            self.unfilled = self.unfilled or e
            return
        name = "*" if chosen.kind in (chosen.VAR_POSITIONAL, chosen.POSITIONAL_ONLY) else chosen.name
        annotation = chosen.annotation if isinstance(chosen.annotation, str) else getattr(
            chosen.annotation, "__name__", str(chosen.annotation)
        )  # fmt: skip
        annotation = "" if chosen.annotation is chosen.empty else str(annotation).replace("typing.", "")
        for says, wrap in actions.wraps(chosen.name.lower(), annotation, self.sources):
            yield Calls(reset, step, places, name, wrap, says, extras)

    def _runs(self, recipe: Recipe, calls: Calls) -> bool:
        """Whether an episode begins and at least one action is taken."""
        session = self._begun(recipe, calls)
        if session is None:
            return False
        todo = actions.candidates(session.env, session.last, self.sources, getattr(session.env, calls.step))
        for action in todo[:12]:
            if self._spent():
                return False
            session = self._begun(recipe, calls)
            if session is None:
                return False
            ok, _ = self._attempt(2, lambda session=session, action=action: session.step(action.value))
            session.close()
            if ok:
                return True
        return False

    def _begun(self, recipe: Recipe, calls: Calls) -> Session | None:
        self.world.restore()
        ok, made = self._attempt(0, lambda: recipe.make(Situation()))
        if not ok:
            return None
        session = Session(self.lab, made.members[0], calls, Situation(), world.global_states())
        ok, _ = self._attempt(1, session.reset)
        session.close()
        return session if ok else None


def _is_action(name: str) -> bool:
    return (
        re.search(
            r"action|response|completion|message|text|move|answer|command|output|reply|guess|state_dict|tokens|parameters",
            name,
        )
        is not None
    )


def _with_parameters(parameters: Sequence[inspect.Parameter]) -> Any:
    def function() -> None: ...

    kinds = [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    function.__signature__ = inspect.Signature(kinds)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def _signature(method: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):
        return []


def _members(value: Any) -> list[Any] | None:
    """Environments of a list; None where it is none."""
    if isinstance(value, (list, tuple)) and value and all(is_environment(v) and not isinstance(v, type) for v in value):
        return list(value)
    return None


def _first(value: Any) -> Any:
    """What a factory made, out of a tuple or list with other things."""
    if isinstance(value, (list, tuple)) and value and _members(value) is None:
        return _first(value[0])
    if isinstance(value, dict) and value:
        return next((v for v in value.values() if is_environment(v) or is_builder(v)), value)
    return value


def _stage_of(stage: Stage) -> Stage:
    return lambda value, at, made: _first(stage(value, at, made))


def _note_group(made: Made, value: Any) -> Any:
    made.grouped = True
    return value


def first_observations(target: EnvironmentTarget, made: Made, at: Situation, noise: int = NOISE) -> list[Any]:
    """What each member of a group shows first, frozen. Raises `CallFailed`."""
    out: list[Any] = []
    with world.kept_globals():
        world.seed_globals(noise)
        for member in made.members:
            session = Session(target.lab, member, target.calls, at)
            out.append(session.reset())
            session.close()
    return out


def shown(value: Any) -> str:
    return short(frozen(value))
