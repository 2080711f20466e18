"""Objects that stand in for what a function reads besides its tensors: batches, configs, `self`.

They answer lazily: what the source didn't show is looked up when it is read. Something whose value is
not known may be passed around, logged and gathered, but as soon as a number or a decision depends on it
the call ends with `NotReached` and its name.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, ClassVar

from rltriage_probes.aliases import CONFIG_NAMES, INERT, is_flag
from rltriage_probes.invoke import NotReached

Lookup = Callable[..., Any]
"""(name, path as the user would write it, whether a documented default will do) -> value, or `NOTHING`."""


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Any = _Nothing()

LEARNING_ROLES = frozenset(("train_step", "model_factory"))
"""Roles whose functions take a model itself, bound by `learning`."""


def surroundings(name: str) -> Any:
    """What a single process on the CPU has under this name, else `NOTHING`."""
    plain = name.strip("_")
    if plain in ("accelerator", "strategy", "fabric"):
        return SingleProcess()
    if plain == "device":
        import torch

        return torch.device("cpu")
    if plain in INERT:
        return INERT[plain]
    if plain in ("logger", "writer", "wandb", "tracker"):
        return Silent()
    return NOTHING


class Silent:
    """A logger: takes every call and gives nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class SingleProcess:
    """The part of `accelerate.Accelerator` that a loss uses, for one process."""

    num_processes = 1
    process_index = 0
    local_process_index = 0
    is_main_process = True
    is_local_main_process = True
    sync_gradients = True
    gradient_accumulation_steps = 1
    state = types.SimpleNamespace(deepspeed_plugin=None, fsdp_plugin=None, num_processes=1, process_index=0)

    @property
    def device(self) -> Any:
        return surroundings("device")

    def gather(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return value

    gather_for_metrics = reduce = pad_across_processes = unwrap_model = prepare = all_reduce = gather

    @contextlib.contextmanager
    def autocast(self, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
        yield

    no_sync = accumulate = autocast

    def print(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        """What else the user's launcher carries, e.g. its arguments (OpenRLHF)."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(name)


_GATHERING = ("gather", "gather_for_metrics", "reduce", "all_reduce", "unwrap", "unwrap_model", "pad_across_processes")


notes: dict[str, Any] | None = None
"""What is read from stand-ins, by path, while somebody wants to know; see `literals.noted`."""


def _noting(path: str, value: Any) -> Any:
    """`value`, which was read at that path."""
    if notes is not None and value is not NOTHING:
        notes[path] = value
    return value


class Unknown:
    """A value that nothing is known of. Can be read on and called, but not computed with."""

    def __init__(self, path: str) -> None:
        object.__setattr__(self, "_path", path)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}.{name}"
        if name == "training":
            return _noting(path, True)
        known = surroundings(name)
        if known is not NOTHING:
            return _noting(path, known)
        return _noting(path, None if is_flag(name) else Unknown(path))

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return Unknown(f"{self._path}[{key!r}]")

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and self._path.rsplit(".", 1)[-1] in _GATHERING:
            return args[0]
        return Unknown(f"{self._path}(...)")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def __repr__(self) -> str:
        return f"<unknown {self._path}>"


def _used(self: Unknown, *args: Any, **kwargs: Any) -> Any:
    path = self._path
    raise NotReached(
        f"the function uses {path}, whose value is not known",
        f'Say what it is in the target\'s bind table: "{path}" = "<word>", or "{path}" = "=<Python literal>".',
    )


for _op in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod pow rpow neg pos abs lt le gt ge eq ne bool "
    "int float index len iter contains and rand or ror xor invert round matmul rmatmul"
).split():
    setattr(Unknown, f"__{_op}__", _used)
Unknown.__hash__ = object.__hash__  # type: ignore[assignment]


class Box(dict[str, Any]):
    """A dict whose entries can be read as attributes too, and which looks up what it lacks."""

    def __init__(self, path: str, lookup: Lookup | None = None) -> None:
        super().__init__()
        self.__dict__["_box"] = (path, lookup)

    def put(self, kind: str, name: str, value: Any) -> None:
        dict.__setitem__(self, name, value)
        if kind == "attr":
            self.__dict__[name] = value  # wins over methods of dict: `experience.values`

    def __missing__(self, key: str) -> Any:
        path, lookup = self.__dict__["_box"]
        value = lookup(key, f'{path}["{key}"]') if lookup else NOTHING
        if value is NOTHING:
            raise KeyError(key)
        return _noting(f'{path}["{key}"]', value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self:
            return dict.__getitem__(self, name)
        path, lookup = self.__dict__["_box"]
        value = lookup(name, f"{path}.{name}") if lookup else NOTHING
        if value is NOTHING:
            raise AttributeError(f"{path} stands in for an object of yours and has no {name}")
        return _noting(f"{path}.{name}", value)

    def __setattr__(self, name: str, value: Any) -> None:
        self.put("attr", name, value)

    def to(self, *args: Any, **kwargs: Any) -> Box:
        return self

    cuda = cpu = contiguous = to


class ConfigBox(Box):
    """A config object: unknown switches are off, other unknown entries can't be computed with.

    `optional` entries are those that the reader has a default for: absent unless they are declared.
    """

    def __init__(self, path: str, lookup: Lookup | None = None, optional: Collection[str] = ()) -> None:
        super().__init__(path, lookup)
        self.__dict__["_optional"] = optional

    def get(self, key: str, default: Any = None) -> Any:
        if key in self:
            return dict.__getitem__(self, key)
        path, lookup = self.__dict__["_box"]
        value = lookup(key, f'{path}["{key}"]', False) if lookup else NOTHING
        return default if value is NOTHING or isinstance(value, Unknown) else _noting(f'{path}["{key}"]', value)

    def __missing__(self, key: str) -> Any:
        try:
            return super().__missing__(key)
        except KeyError:
            return _unset(key, f'{self.__dict__["_box"][0]}["{key}"]')

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.__dict__["_optional"] and name not in self:
            value = self.get(name, NOTHING)
            if value is NOTHING:
                raise AttributeError(name)
            return value
        try:
            return super().__getattr__(name)
        except AttributeError:
            return _unset(name, f"{self.__dict__['_box'][0]}.{name}")


def _unset(name: str, path: str) -> Any:
    known = surroundings(name)
    if known is not NOTHING:
        return _noting(path, known)
    return _noting(path, False if is_flag(name) else Unknown(path))


# Config classes of the user


def default_config(cls: type, known: Callable[[str], Any]) -> Any:
    """An instance of a config class made of its defaults and the known words; `NOTHING` where it can't be made.

    `known` gives the value of a field by its name, or `NOTHING`. A config that checks itself against its
    surroundings (`__post_init__`) is filled without running that.
    """
    values: dict[str, Any] = {}
    if not dataclasses.is_dataclass(cls):
        return _plain_config(cls, known)
    for f in dataclasses.fields(cls):
        value = known(f.name)
        if value is NOTHING and f.default is None and INERT.get(f.name) is not None:
            value = INERT[f.name]  # what the trainer works out for one process
        if value is not NOTHING:
            values[f.name] = value
    try:
        return cls(**{k: v for k, v in values.items() if _is_init(cls, k)})
    except Exception:  # noqa: BLE001  the user's class
        return _unchecked(cls, values)


def _is_init(cls: type, name: str) -> bool:
    return next((f.init for f in dataclasses.fields(cls) if f.name == name), False)


def _unchecked(cls: type, values: Mapping[str, Any]) -> Any:
    """The class's defaults on an object that never ran `__init__`."""
    try:
        made = object.__new__(cls)
    except TypeError:
        return NOTHING
    for f in dataclasses.fields(cls):
        value = values.get(f.name, NOTHING)
        if value is NOTHING and f.default is not dataclasses.MISSING:
            value = f.default
        if value is NOTHING and f.default_factory is not dataclasses.MISSING:
            try:
                value = f.default_factory()
            except Exception:  # noqa: BLE001, S112  the user's factory
                continue
        if value is not NOTHING:
            with contextlib.suppress(Exception):
                object.__setattr__(made, f.name, value)
    return made


def _plain_config(cls: type, known: Callable[[str], Any]) -> Any:
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        return NOTHING
    values: dict[str, Any] = {}
    for p in parameters:
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        value = known(p.name)
        if value is not NOTHING:
            values[p.name] = value
        elif p.default is p.empty:
            return NOTHING
    try:
        return cls(**values)
    except Exception:  # noqa: BLE001  the user's class
        return NOTHING


# A stand-in for self


def stand_in(owner: type, lookup: Lookup) -> Any:
    """An object of the user's class that never ran `__init__`: its own methods and properties, looked-up attributes."""

    def missing(self: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = lookup(name, f"self.{name}")
        if value is NOTHING:
            raise AttributeError(f"self.{name} is not known")
        return _noting(f"self.{name}", value)

    body: dict[str, Any] = {
        "__getattr__": missing,
        "__init__": lambda self, *a, **k: None,
        "__module__": owner.__module__,
    }
    try:
        cls = type(owner)(owner.__name__, (owner,), body)
        made = object.__new__(cls)
    except TypeError:
        cls = type(
            owner.__name__,
            (),
            {**{k: v for k, v in vars(owner).items() if k not in ("__dict__", "__weakref__")}, **body},
        )
        made = object.__new__(cls)
    if _is_module(owner):
        _init_module(made)
    return made


def _is_module(cls: type) -> bool:
    return any(c.__module__.startswith("torch.nn") and c.__name__ == "Module" for c in cls.__mro__)


def _init_module(made: Any) -> None:
    from torch import nn

    with contextlib.suppress(Exception):
        nn.Module.__init__(made)


class InitReader:
    """What `__init__` would have given an attribute, read from its source without running it.

    Only expressions over parameters, config objects, constants and a few builtins are evaluated.
    """

    _CALLS: ClassVar[dict[str, Callable[..., Any]]] = {
        "float": float, "int": int, "bool": bool, "str": str, "max": max, "min": min, "abs": abs, "len": len,
        "dict": dict, "list": list, "set": set, "tuple": tuple, "defaultdict": defaultdict, "deque": deque,
        "getattr": getattr, "collections.defaultdict": defaultdict,
    }  # fmt: skip
    _ALLOWED = (
        ast.Expression, ast.Name, ast.Attribute, ast.Constant, ast.IfExp, ast.Compare, ast.BoolOp,
        ast.UnaryOp, ast.BinOp,
        ast.Subscript, ast.Dict, ast.List, ast.Tuple, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
        ast.Call, ast.keyword, ast.Set,
    )  # fmt: skip

    def __init__(
        self, nodes: list[ast.FunctionDef], namespace: Mapping[str, Any], parameter: Callable[[str], Any]
    ) -> None:
        self.namespace = namespace
        self.parameter = parameter
        self.found: dict[str, list[ast.expr]] = {}
        self.parameters: set[str] = set()
        self._made: dict[str, Any] = {}
        for node in nodes:
            self.parameters |= {a.arg for a in (*node.args.args, *node.args.kwonlyargs)} - {"self"}
            for statement in ast.walk(node):
                self._note(statement)

    def _note(self, statement: ast.AST) -> None:
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets, value = [statement.target], statement.value
        else:
            return
        for t in targets:
            if isinstance(t, ast.Attribute) and isinstance(t.value, ast.Name) and t.value.id == "self":
                self.found.setdefault(t.attr, []).append(value)

    def read(self, name: str) -> Any:
        """The first value that one of the assignments gives, else `NOTHING`."""
        for value in self.found.get(name, ()):
            if all(isinstance(n, self._ALLOWED) for n in ast.walk(value)) and self._calls_ok(value):
                try:
                    got = self._evaluate(value)
                except Exception:  # noqa: BLE001, S112  whatever evaluating the user's expression raises
                    continue
                if not isinstance(got, Unknown):
                    return got
        return NOTHING

    def _calls_ok(self, value: ast.expr) -> bool:
        calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)]
        return all(ast.unparse(c.func) in self._CALLS for c in calls)

    def _evaluate(self, value: ast.expr) -> Any:
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        scope: dict[str, Any] = {"__builtins__": {}, **self._CALLS}
        for name in names - set(self._CALLS):
            if name in self.parameters:
                if name not in self._made:
                    self._made[name] = self.parameter(name)
                got = self._made[name]
                if got is NOTHING:
                    raise LookupError(name)
                scope[name] = got
            elif name == "self":
                scope[name] = _Reread(self)
            elif name in self.namespace:
                scope[name] = self.namespace[name]
        return eval(compile(ast.Expression(value), "<init>", "eval"), scope)  # noqa: S307  own user's source, like importing it


class _Reread:
    """`self` inside an expression of `__init__`."""

    def __init__(self, reader: InitReader) -> None:
        self._reader = reader

    def __getattr__(self, name: str) -> Any:
        value = self._reader.read(name)
        if value is NOTHING:
            raise LookupError(name)
        return value


def is_config(name: str, annotation: str = "") -> bool:
    return name.strip("_") in CONFIG_NAMES or annotation.rstrip("]\"' ").endswith(
        ("Config", "Arguments", "Args", "Cfg")
    )


# Seams: calls whose result a case gives


class Seam:
    """Replaces a helper that computes something which the case gives: what it returns depends on the calling line."""

    def __init__(self, sites: Mapping[int, Callable[[], Any]], original: Any, words: frozenset[str]) -> None:
        self.sites = sites
        self.words = words
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        for _ in range(3):
            if frame.f_lineno in self.sites:
                return self.sites[frame.f_lineno]()
            if frame.f_back is None:
                break
            frame = frame.f_back
        return self.original(*args, **kwargs)
