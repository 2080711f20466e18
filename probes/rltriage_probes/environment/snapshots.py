"""Observations, rewards and inputs of any type as plain values that can be compared later."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from typing import Any

from rltriage_probes.environment import world

MAX_DEPTH = 8
MAX_ITEMS = 4_000
_VOLATILE = re.compile(r"(^|_)(uu)?ids?$|^uid|time|timestamp|session|latency|elapsed|created|duration|nonce", re.I)
"""Keys whose values differ from run to run in right environments."""


def frozen(value: Any, *, exact: bool = False, depth: int = 0) -> Any:  # noqa: C901  a flat table of types
    """A value as nested tuples, equal for equal contents. `exact`: keys that name ids and times count too."""
    if depth > MAX_DEPTH:
        return "..."
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if value is None or isinstance(value, (str, int, bool, bytes)):
        return value
    if isinstance(value, Mapping):
        items = [(str(k), v) for k, v in list(value.items())[:MAX_ITEMS] if exact or not _VOLATILE.search(str(k))]
        return ("dict", tuple((k, frozen(v, exact=exact, depth=depth + 1)) for k, v in sorted(items, key=_by_key)))
    if hasattr(value, "_asdict"):
        return frozen(value._asdict(), exact=exact, depth=depth)
    if isinstance(value, (list, tuple)):
        return ("list", tuple(frozen(v, exact=exact, depth=depth + 1) for v in value[:MAX_ITEMS]))
    if isinstance(value, (set, frozenset)):
        return ("set", tuple(sorted(repr(frozen(v, exact=exact, depth=depth + 1)) for v in value)))
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return ("array", tuple(value.shape), frozen(value.tolist(), exact=exact, depth=depth + 1))
    if world.is_generator(value) or isinstance(value, (type, types.ModuleType)) or callable(value):
        return f"<{getattr(value, '__qualname__', type(value).__name__)}>"
    if dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return (type(value).__name__, frozen(fields, exact=exact, depth=depth))
    if hasattr(value, "__dict__"):
        return (type(value).__name__, frozen(vars(value), exact=exact, depth=depth + 1))
    if type(value).__name__ == "deque":
        return ("list", tuple(frozen(v, exact=exact, depth=depth + 1) for v in value))
    return f"<{type(value).__name__}>"


def _by_key(item: tuple[str, Any]) -> str:
    return item[0]


def shaken(value: Any) -> bool:
    """Changes a container in place, as a rollout loop may that appends to what it got. False: it can't be changed."""
    if isinstance(value, list):
        value.append({"role": "user", "content": "x"} if value and isinstance(value[0], dict) else "x")
    elif isinstance(value, dict):
        inner = next((v for v in value.values() if isinstance(v, (list, dict))), None)
        if inner is not None and shaken(inner):
            return True
        value["_added_by_the_caller"] = "x"
    elif hasattr(value, "tolist") and hasattr(value, "shape") and getattr(value, "size", 0):
        return _shaken_array(value)
    elif isinstance(value, tuple):
        return _any_shaken(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _any_shaken([getattr(value, f.name, None) for f in dataclasses.fields(value)])
    else:
        return False
    return True


def _any_shaken(values: Sequence[Any]) -> bool:
    """Changes every one of them; whether one could be."""
    changed = [shaken(v) for v in values]
    return any(changed)


def _shaken_array(value: Any) -> bool:
    try:
        if str(value.dtype).endswith("bool"):
            value[...] = ~value
        else:
            value[...] = value + 1
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def texts(value: Any, depth: int = 0) -> list[str]:
    """Every text inside an observation, in reading order."""
    if isinstance(value, str):
        return [value]
    if depth > MAX_DEPTH:
        return []
    if isinstance(value, Mapping):
        return [t for v in value.values() for t in texts(v, depth + 1)]
    if isinstance(value, (list, tuple)):
        return [t for v in value[:200] for t in texts(v, depth + 1)]
    if hasattr(value, "__dict__") and not callable(value):
        return texts(vars(value), depth + 1)
    return []
