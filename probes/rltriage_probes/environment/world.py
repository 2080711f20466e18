"""What environments share behind their backs: random generators of the process, module globals, class attributes.

Runs are compared with each other, so each begins in the same world: what the user's modules and classes held when
they were imported is put back first, and the process's generators are set. What had to be put back is evidence.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_PLACES = 400
"""Globals and class attributes that are watched; a bound, not a measure."""
_SIMPLE = (int, float, str, bytes, bool, type(None), tuple, frozenset)
_CONTAINERS = (list, dict, set, deque, bytearray)


# Generators of the process


def global_states() -> list[Any]:
    """States of the generators of `random`, numpy and torch, where those are imported."""
    return [get() for _, get, _, _ in _generators()]


def set_global_states(states: Iterable[Any]) -> None:
    for (_, _, put, _), state in zip(_generators(), states, strict=False):
        put(state)


def seed_globals(seed: int) -> None:
    for _, _, _, reseed in _generators():
        reseed(seed)


def global_names() -> list[str]:
    return [name for name, *_ in _generators()]


def fingerprints() -> list[str]:
    """A short text for each state, equal where the states are."""
    return [repr(s.tolist() if hasattr(s, "tolist") else s) for s in global_states()]


@contextlib.contextmanager
def kept_globals() -> Generator[None, None, None]:
    """The process's generators as they were, whatever runs inside."""
    states = global_states()
    try:
        yield
    finally:
        set_global_states(states)


_Generator = tuple[str, Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]


def _generators() -> list[_Generator]:
    found: list[_Generator] = [("random", random.getstate, random.setstate, random.seed)]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        found.append(("numpy", numpy.random.get_state, numpy.random.set_state, numpy.random.seed))
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "random"):
        # not `torch.manual_seed`: it goes through every kind of device, which takes a millisecond
        own = torch.random.default_generator
        found.append(("torch", own.get_state, own.set_state, own.manual_seed))
    return found


# Generators that an object owns


def own_generators(value: Any, depth: int = 0) -> list[Any]:
    """Random generators that hang on an object, outermost first."""
    found: list[Any] = []
    if is_generator(value):
        return [value]
    if depth > 3:
        return found
    if isinstance(value, Mapping):
        inner: Iterable[Any] = list(value.values())
    elif isinstance(value, (list, tuple)):
        inner = list(value)[:64]
    elif isinstance(value, (_SIMPLE, type, types.ModuleType)) or callable(value):
        return found
    else:
        inner = list(getattr(value, "__dict__", {}).values())
    for part in inner:
        found += own_generators(part, depth + 1)
    return found


def is_generator(value: Any) -> bool:
    kind = type(value)
    return isinstance(value, random.Random) or (
        kind.__name__ in ("Generator", "RandomState") and kind.__module__.split(".")[0] in ("numpy", "torch", "mtrand")
    )


def generator_state(value: Any) -> Any:
    if isinstance(value, random.Random):
        return value.getstate()
    if hasattr(value, "bit_generator"):
        return copy.deepcopy(value.bit_generator.state)
    return value.get_state()


def set_generator_state(value: Any, state: Any) -> None:
    if isinstance(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = copy.deepcopy(state)
    else:
        value.set_state(state)


# Module globals and class attributes


@dataclass
class _Place:
    """One name that holds something which can change."""

    shown: str
    owner: Any
    """The namespace or class that holds it; None for a default of a function, which can't be rebound."""
    name: str
    value: Any
    copied: Any

    def changed(self) -> bool:
        now = self._now()
        if now is not self.value:
            return not (isinstance(now, _SIMPLE) and isinstance(self.copied, type(now)) and now == self.copied)
        return not isinstance(now, _SIMPLE) and not _same(now, self.copied)

    def restore(self) -> None:
        if self.owner is not None and self._now() is not self.value:
            if isinstance(self.owner, dict):
                self.owner[self.name] = self.value
            else:
                setattr(self.owner, self.name, self.value)
        _fill(self.value, copy.deepcopy(self.copied))

    def _now(self) -> Any:
        if self.owner is None:
            return self.value
        held = self.owner if isinstance(self.owner, dict) else vars(self.owner)
        return held.get(self.name)


class World:
    """Module globals, class attributes and mutable defaults of the user's code, as they were at the beginning."""

    def __init__(self, namespace: dict[str, Any], classes: Iterable[type] = ()) -> None:
        self._caches: list[Any] = []
        self._places: list[_Place] = []
        self._seen: set[int] = set()
        module = str(namespace.get("__name__", ""))
        for name, value in list(namespace.items()):
            if isinstance(value, type) and value.__module__ == module:
                self._note_class(value)
            elif _is_own_function(value, module):
                self._note_function(value, name)
            elif not name.startswith("__"):
                self._note(name, namespace, name, value)
        for cls in classes:
            for base in cls.__mro__:
                if base.__module__.split(".")[0] not in sys.stdlib_module_names | {"torch", "numpy"}:
                    self._note_class(base)

    def changed(self) -> list[str]:
        """Names of what is no longer as it was."""
        return [p.shown for p in self._places if p.changed()]

    def restore(self) -> None:
        for place in self._places:
            if place.changed():
                place.restore()
        for cache in self._caches:
            cache.cache_clear()

    def _note_class(self, cls: type) -> None:
        if id(cls) in self._seen:
            return
        self._seen.add(id(cls))
        for name, value in list(vars(cls).items()):
            plain = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            if inspect.isfunction(plain) or hasattr(plain, "cache_clear"):
                self._note_function(plain, f"{cls.__name__}.{name}")
            elif not name.startswith("__") and not isinstance(value, property):
                self._note(f"{cls.__name__}.{name}", cls, name, value)

    def _note_function(self, function: Any, shown: str) -> None:
        if hasattr(function, "cache_clear"):
            self._caches.append(function)
        plain = inspect.unwrap(function)
        defaults = {**dict(enumerate(getattr(plain, "__defaults__", None) or ())), **(plain.__kwdefaults__ or {})}
        for value in defaults.values():
            if isinstance(value, _CONTAINERS):
                self._note(f"the default argument of {shown}", None, "", value)

    def _note(self, shown: str, owner: Any, name: str, value: Any) -> None:
        watched = isinstance(value, (*_SIMPLE, *_CONTAINERS)) or is_generator(value) or _is_own_object(value)
        if not watched or len(self._places) >= MAX_PLACES:
            return
        try:
            copied = copy.deepcopy(value)
        except Exception:  # noqa: BLE001  copying runs code of the user
            return
        self._places.append(_Place(shown, owner, name, value, copied))


def _is_own_function(value: Any, module: str) -> bool:
    return (inspect.isfunction(value) or hasattr(value, "cache_clear")) and value.__module__ == module


def _is_own_object(value: Any) -> bool:
    """An instance of a plain class of the user's, e.g. a store at module level."""
    cls = type(value)
    top = cls.__module__.split(".")[0]
    plain = not isinstance(value, (type, types.ModuleType)) and not callable(value)
    return plain and hasattr(value, "__dict__") and top not in sys.stdlib_module_names | {"torch", "numpy"}


def _same(now: Any, copied: Any) -> bool:
    from rltriage_probes.environment.snapshots import frozen

    if is_generator(now):
        return repr(generator_state(now)) == repr(generator_state(copied))
    return frozen(now, exact=True) == frozen(copied, exact=True)


def _fill(value: Any, copied: Any) -> None:
    """Makes a container equal to its copy without making a new one: others hold it too."""
    if isinstance(value, (list, bytearray)):
        value[:] = copied
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(copied)
    elif isinstance(value, deque):
        value.clear()
        value.extend(copied)
    elif is_generator(value):
        set_generator_state(value, generator_state(copied))
    elif not isinstance(value, _SIMPLE):
        vars(value).clear()
        vars(value).update(vars(copied))
