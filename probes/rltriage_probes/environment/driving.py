"""One way to talk to every environment: whatever it calls its methods and whatever they return."""

from __future__ import annotations

import asyncio
import copy
import inspect
import math
import numbers
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltriage_probes import invoke
from rltriage_probes.environment import world
from rltriage_probes.environment.building import Places, Situation, fill
from rltriage_probes.environment.snapshots import frozen
from rltriage_probes.texts import fields

RESETS = (
    "reset", "initial_observation", "init", "start_interaction", "start_episode", "new_episode", "begin_episode",
    "reset_env", "setup_state", "init_state", "initial_state", "create", "start", "begin",
)  # fmt: skip
STEPS = (
    "step", "act", "take_action", "generate_response", "env_response", "step_env", "execute", "respond", "play",
    "take_turn", "apply_action", "transition", "submit", "guess", "answer",
)  # fmt: skip
BUILDERS = ("make_envs", "build_envs", "create_envs", "make_group", "build_group", "get_envs")
BATCHES = ("get_batch", "get_group_builder", "get_env", "get_group")
_OBSERVATIONS = (
    "observation", "obs", "next_observation", "observations", "next_obs", "environment_feedback", "observation_text",
    "messages", "message", "state", "response", "text", "output", "prompt", "content", "result",
)  # fmt: skip
_REWARDS = ("reward", "rewards", "score", "scores", "step_reward")
_DONES = (
    "done",
    "dones",
    "terminated",
    "episode_done",
    "is_done",
    "finished",
    "is_terminal",
    "terminal",
    "should_terminate",
)
STATES = ("state", "env_state", "instance_id", "episode_id", "state_dict", "states", "session_id")


def method_of(cls: type, names: Sequence[str]) -> str:
    """The first of these methods that a class has, empty where it has none."""
    return next((n for n in names if callable(getattr(cls, n, None))), "")


_NO_TOOLS = frozenset(
    (
        *RESETS,
        *BUILDERS,
        *BATCHES,
        "close",
        "render",
        "seed",
        "copy",
        "clone",
        "release",
        "calc_reward",
        "finalize_interaction",
    )
)


def step_method(cls: type) -> str:
    """The method that takes an action; of environments whose public methods are tools the first one."""
    named = method_of(cls, STEPS)
    if named:
        return named
    for owner in cls.__mro__[:-1]:
        for name, value in vars(owner).items():
            tool = inspect.isfunction(value) and not name.startswith("_") and name not in _NO_TOOLS
            if tool and len(inspect.signature(value).parameters) > 1:
                return name
    return ""


def is_environment(value: Any) -> bool:
    cls = value if isinstance(value, type) else type(value)
    if cls.__module__.split(".")[0] in ("builtins", "torch", "numpy", "random"):
        return False
    return bool(method_of(cls, RESETS[:12]) and step_method(cls)) and not method_of(cls, (*BUILDERS, *BATCHES))


def is_builder(value: Any) -> bool:
    return not is_environment(value) and bool(method_of(value if isinstance(value, type) else type(value), BUILDERS))


@dataclass
class Step:
    """What one action gave."""

    observation: Any
    reward: Any
    done: bool
    terminated: bool | None = None
    truncated: bool | None = None
    """Both None where the environment has one flag."""
    frozen: Any = None
    """Observation, reward and flag as they were when they came back."""

    @property
    def value(self) -> float:
        """The reward as a number; NaN where it is none."""
        return as_number(self.reward)


@dataclass
class Trace:
    """An episode: the first observation and what each action gave."""

    first: Any
    steps: list[Step] = field(default_factory=list)

    def difference(self, other: Trace, here: str = "in one", there: str = "in the other") -> str:
        """Where two episodes differ first, in words; empty where they don't."""
        if self.first != other.first:
            return f"the first observation is {short(self.first)} {here} and {short(other.first)} {there}"
        for i, (a, b) in enumerate(zip(self.steps, other.steps, strict=False), 1):
            for what, x, y in zip(("observation", "reward", "end of the episode"), a.frozen, b.frozen, strict=True):
                if not _equal(x, y):
                    return f"the {what} at step {i} is {short(x)} {here} and {short(y)} {there}"
        if len(self.steps) != len(other.steps):
            return f"the episode has {len(self.steps)} steps {here} and {len(other.steps)} {there}"
        return ""


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):
        return x == y or math.isclose(x, y, rel_tol=1e-9, abs_tol=1e-12)
    return x == y


def short(value: Any) -> str:
    """A frozen value as a message quotes it."""
    return repr(_thawed(value)) if len(repr(_thawed(value))) <= 120 else repr(_thawed(value))[:117] + "..."


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple) and len(value) == 2 and value[0] in ("list", "dict") and isinstance(value[1], tuple):
        inner = value[1]
        return [_thawed(v) for v in inner] if value[0] == "list" else {k: _thawed(v) for k, v in inner}
    if isinstance(value, tuple) and len(value) == 3 and value[0] == "array":
        return _thawed(value[2])
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str):
        return _thawed(value[1])
    return value


def as_number(reward: Any) -> float:
    if hasattr(reward, "item") and getattr(reward, "size", 1) is not None:
        try:
            reward = reward.item()
        except (ValueError, RuntimeError, TypeError):
            return math.nan
    if isinstance(reward, numbers.Real):
        return float(reward)
    if isinstance(reward, Mapping):
        inner = next((reward[k] for k in ("total", "reward", "score") if k in reward), None)
        return as_number(inner) if inner is not None else math.nan
    return math.nan


@dataclass(frozen=True)
class Calls:
    """How an environment's methods are called."""

    reset: str
    step: str
    reset_places: Places
    action_name: str
    """Parameter that takes the action."""
    wrap: Callable[[Any], Any]
    """Makes of an action what the step method takes: the text itself, a chat message, token ids, a record."""
    wrap_says: str
    extra: Places = ()
    """Further parameters of the step method."""


class Lab:
    """Where the user's code is run: its files, for the place of an exception."""

    def __init__(self, root: Path, file: Path) -> None:
        self.root = root
        self.file = file

    def call(self, function: Callable[[], Any], loop_of: Callable[[], asyncio.AbstractEventLoop] | None = None) -> Any:
        """The result, awaited where that is wanted. Raises `CallFailed`."""

        def run() -> Any:
            got = function()
            if inspect.isawaitable(got):
                runner = loop_of() if loop_of else asyncio.new_event_loop()
                try:
                    return runner.run_until_complete(_as_coroutine(got))
                finally:
                    if loop_of is None:
                        runner.close()
            return got

        return invoke.guarded(run, self.root, self.file)


async def _as_coroutine(awaitable: Any) -> Any:
    return await awaitable


class Session:
    """One environment with the generators of a process of its own, so that two of them meet only where they share."""

    def __init__(
        self,
        lab: Lab,
        env: Any,
        calls: Calls,
        at: Situation,
        states: list[Any] | None = None,
        *,
        threaded: bool = False,
    ) -> None:
        self.lab = lab
        self.env = env
        self.calls = calls
        self.at = at
        self.states = states
        self.threaded = threaded
        """Generators of the process can't be exchanged while other threads use them."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.state: Any = None
        self.given: list[Any] = []
        """What `reset` was given last."""
        self.seconds: list[tuple[str, float]] = []
        self.last: Any = None

    # The two verbs

    def reset(self, given: tuple[list[Any], dict[str, Any]] | None = None) -> Any:
        """The first observation, frozen; the object itself stays in `last`. Raises `CallFailed`."""
        positional, named = given or fill(self.calls.reset_places, self.at)
        self.given = [*positional, *named.values()]
        result = self._timed("reset", lambda: getattr(self.env, self.calls.reset)(*positional, **named))
        self.state = _state_of(result, named)
        self.last = _first_observation(result)
        return frozen(self.last)

    def step(self, action: Any) -> Step:
        """Raises `CallFailed`."""
        self._raw_action = self.calls.wrap(copy.deepcopy(action))
        positional, named = fill(self.calls.extra, self.at)
        for name in [n for n in named if n in STATES]:
            named[name] = named[name] if self.state is None else self.state
        if self.calls.action_name == "*":
            positional = [self._raw_action]
        else:
            named[self.calls.action_name] = self._raw_action
        result = self._timed("step", lambda: getattr(self.env, self.calls.step)(*positional, **named))
        step = read_step(result, self.env)
        self.last = step.observation
        step.frozen = (frozen(step.observation), _reward_key(step.reward), step.done)
        return step

    def play(self, actions: Sequence[Any]) -> list[Step]:
        """The actions until the episode ends."""
        taken: list[Step] = []
        for action in actions:
            taken.append(self.step(action))
            if taken[-1].done:
                break
        return taken

    def episode(self, actions: Sequence[Any]) -> Trace:
        first = self.reset()
        return Trace(first, self.play(actions))

    def close(self) -> None:
        if self.loop is not None:
            self.loop.close()
            self.loop = None

    def _loop(self) -> asyncio.AbstractEventLoop:
        """One event loop for the session: what an environment keeps may belong to it."""
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop

    def _timed(self, what: str, function: Callable[[], Any]) -> Any:
        if self.threaded or self.states is None:
            return self._clocked(what, function)
        outer = world.global_states()
        world.set_global_states(self.states)
        try:
            return self._clocked(what, function)
        finally:
            self.states = world.global_states()
            world.set_global_states(outer)

    def _clocked(self, what: str, function: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = self.lab.call(function, self._loop)
        self.seconds.append((what, time.perf_counter() - started))
        return result


def _reward_key(reward: Any) -> Any:
    value = as_number(reward)
    return value if not math.isnan(value) else frozen(reward)


def _state_of(result: Any, named: Mapping[str, Any]) -> Any:
    """What later calls identify the episode by: a state that `reset` returned, or the id that it was given."""
    given = next((v for k, v in named.items() if k in STATES), None)
    if isinstance(result, dict) and given is not None and not isinstance(given, str):
        return {**given, **result} if isinstance(given, dict) else result
    if given is None and isinstance(result, tuple) and result and isinstance(result[0], str):
        return result[0]
    return given if given is not None else result


def _first_observation(result: Any) -> Any:
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result[0]
    inner = fields(result) if not isinstance(result, (list, str)) else None
    if inner is not None and not isinstance(result, tuple):
        found = [inner[k] for k in _OBSERVATIONS if k in inner]
        if found and any(k in inner for k in (*_REWARDS, *_DONES)):
            return found[0]
    return result


def read_step(result: Any, env: Any) -> Step:
    """Observation, reward and end of an episode out of whatever a step returned."""
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        n = len(result)
        if n == 5 and _flag(result[2]) and _flag(result[3]):
            o, r, terminated, truncated, _ = result
            return Step(o, r, bool(terminated) or bool(truncated), bool(terminated), bool(truncated))
        if n >= 2:
            return _by_type(result, env)
    inner = fields(result) if not isinstance(result, (str, list)) else None
    if inner is not None:
        reward = next((inner[k] for k in _REWARDS if k in inner), _attribute(env, _REWARDS))
        done_key = next((k for k in _DONES if k in inner), "")
        done = inner[done_key] if done_key else _attribute(env, _DONES)
        observation = next((inner[k] for k in _OBSERVATIONS if k in inner), None)
        split = "truncated" in inner and "terminated" in inner
        truncated = bool(inner.get("truncated"))
        return Step(
            observation, reward, bool(done) or truncated,
            bool(inner["terminated"]) if split else None, truncated if split else None,
        )  # fmt: skip
    return Step(result, _attribute(env, _REWARDS), bool(_attribute(env, _DONES)))


def _by_type(result: tuple[Any, ...], env: Any) -> Step:
    flags = [i for i, v in enumerate(result) if _flag(v)]
    if len(result) in (3, 4) and not flags[:1] and as_number(result[1]) == as_number(result[1]):
        flags = [2]
    done = bool(result[flags[0]]) if flags else bool(_attribute(env, _DONES))
    rest = [i for i in range(len(result)) if i not in flags[:1]]
    values = [i for i in rest if isinstance(result[i], numbers.Real) or getattr(result[i], "ndim", None) == 0]
    reward_at = 1 if len(result) >= 3 and (1 in rest) and (not values or 1 in values) else (values[0] if values else -1)
    if flags and flags[0] == 1 and len(result) >= 3 and not values:
        reward_at = 2
    reward = result[reward_at] if reward_at >= 0 else _attribute(env, _REWARDS)
    others = [i for i in rest if i != reward_at]
    return Step(result[others[0]] if others else None, reward, done)


def _flag(value: Any) -> bool:
    return (
        isinstance(value, bool) or type(value).__name__ == "bool_" or str(getattr(value, "dtype", "")).endswith("bool")
    )


def _attribute(env: Any, names: Sequence[str]) -> Any:
    """What an environment whose step returns no reward or flag says of itself."""
    for name in names:
        value = getattr(env, name, None)
        if value is not None and not callable(value):
            return value
    return None
