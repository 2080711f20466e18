"""Arguments as Python source: tensors, arrays, containers, and the objects that stand in for the user's."""

from __future__ import annotations

import dataclasses
import enum
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import selfs, source
from rltriage_probes.selfs import Box, Unknown

MAX_NUMBERS = 400
"""More than that is no small input."""


class Unwritable(Exception):
    """A value that can't be written as a literal; the message names it."""


@dataclass(kw_only=True)
class Writer:
    """Writes the arguments of one program, and keeps what that program has to import."""

    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What was read from objects that stand in for the user's, by path: `cfg.beta`, `self.args["clip"]`."""
    importable: Callable[[type], str] = lambda cls: ""
    """Name under which a class of the user's can be used in the program; empty where it can't."""
    differentiate: bool = False
    """Whether tensors keep their gradient."""
    record: bool = False
    """Write batches as records whose entries are attributes and keys alike."""
    leaves: list[tuple[str, Tensor]] = field(default_factory=list[tuple[str, Tensor]])
    """Tensors with a gradient, by the expression that names them in the program."""
    names: set[str] = field(default_factory=set[str])
    """Names that the program uses: SimpleNamespace, numpy, Record, classes of the user's."""
    count: int = 0

    def write(self, value: Any, path: str) -> str:
        """`value` as an expression; `path` is how the program can name it."""
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if value is None or isinstance(value, (bool, str, bytes)):
            return self._plain(repr(value))
        if isinstance(value, enum.Enum):
            return f"{self._class(type(value), path)}.{value.name}"
        if isinstance(value, (int, float)):
            return self._plain(number(value))
        if isinstance(value, Box):
            return self._box(value, path)
        if isinstance(value, (torch.device, torch.dtype)):
            return f'torch.device("{value}")' if isinstance(value, torch.device) else str(value)
        if isinstance(value, (list, tuple, set, frozenset)) and type(value) in (list, tuple, set, frozenset):
            return self._sequence(value, path)
        if isinstance(value, dict) and type(value) is dict:
            pairs = [f"{self.write(k, '')}: {self.write(v, f'{path}[{k!r}]')}" for k, v in value.items()]
            return "{" + ", ".join(pairs) + "}"
        if type(value).__module__ == "numpy":
            return self._array(value)
        return self._object(value, path)

    def _plain(self, text: str) -> str:
        self.count += 1
        if len(text) > 600:
            raise Unwritable("a text that is too long to print")
        return text

    def _sequence(self, value: Any, path: str) -> str:
        parts = [self.write(v, f"{path}[{i}]") for i, v in enumerate(value)]
        if isinstance(value, list):
            return f"[{', '.join(parts)}]"
        if isinstance(value, tuple):
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        return "{" + ", ".join(parts) + "}" if parts else "set()"

    def _tensor(self, value: Tensor, path: str) -> str:
        self.count += value.numel()
        if self.count > MAX_NUMBERS:
            raise Unwritable(f"an input of more than {MAX_NUMBERS} numbers")
        if value.is_nested or value.is_sparse or value.is_complex():
            raise Unwritable(f"a {value.layout} tensor")
        text = _tensor_text(value.detach().cpu())
        if not value.requires_grad or not self.differentiate:
            return text
        self.leaves.append((path, value))
        return f"{text}.requires_grad_()"

    def _array(self, value: Any) -> str:
        self.names.add("numpy")
        if not hasattr(value, "tolist"):
            raise Unwritable(f"a {type(value).__name__} of numpy")
        self.count += int(getattr(value, "size", 1))
        if self.count > MAX_NUMBERS:
            raise Unwritable(f"an input of more than {MAX_NUMBERS} numbers")
        kind = str(value.dtype)
        listed = value.tolist()
        text = _nested(listed, short if kind == "float32" else _element)
        if kind.startswith("<U"):
            kind = "str"
        usual = {"float64": float, "int64": int, "bool": bool, "str": str}
        first = listed
        while isinstance(first, list) and first:
            first = first[0]
        plain = kind in usual and type(first) is usual[kind]
        if not getattr(value, "ndim", 0):
            return f"numpy.{kind}({text})" if kind != "str" else text
        return f"numpy.array({text}{'' if plain else f', dtype={_quoted(kind)}'})"

    def _box(self, value: Box, path: str) -> str:
        shown = value.__dict__["_box"][0]
        entries: dict[str, Any] = dict(value)
        attributes = {k for k in entries if k in value.__dict__}
        for kind, name, found in self._noted(shown):
            entries.setdefault(name, found)
            if kind == "attr":
                attributes.add(name)
        parts = {k: self._entry(v, shown, k, path, k in attributes) for k, v in entries.items()}
        return self._record(parts, attributes)

    def _entry(self, value: Any, shown: str, name: str, path: str, attribute: bool) -> str:
        here = f"{path}.{name}" if attribute and not self.record else f"{path}[{name!r}]"
        if isinstance(value, Unknown):
            return self._unknown(value)
        return self.write(value, here)

    def _record(self, parts: Mapping[str, str], attributes: set[str]) -> str:
        if not self.record and attributes == set(parts) and all(k.isidentifier() for k in parts):
            self.names.add("SimpleNamespace")
            return f"SimpleNamespace({', '.join(f'{k}={v}' for k, v in parts.items())})"
        pairs = "{" + ", ".join(f"{k!r}: {v}" for k, v in parts.items()) + "}"
        if not self.record and not attributes:
            return pairs
        self.names.add("Record")
        return f"Record({pairs})"

    def _noted(self, shown: str) -> list[tuple[str, str, Any]]:
        """What was read directly from the object of that path: kind, name, value."""
        root, base = source.parse_path(shown.replace("[*]", ""))
        found: list[tuple[str, str, Any]] = []
        for path, value in self.notes.items():
            try:
                other, steps = source.parse_path(path)
            except ValueError:
                continue
            if other == root and len(steps) == len(base) + 1 and steps[: len(base)] == base:
                found.append((*steps[-1], value))
        return found

    def _unknown(self, value: Unknown) -> str:
        """Something of which nothing is known: what was read from it, or nothing."""
        path = object.__getattribute__(value, "_path")
        inner = self._noted(path)
        if not inner:
            return "None"
        self.names.add("SimpleNamespace")
        parts = [f"{n}={self._entry(v, path, n, '', True)}" for _, n, v in inner]
        return f"SimpleNamespace({', '.join(parts)})"

    def attributes(self, value: Any, path: str) -> dict[str, str]:
        """Attributes of `self` as expressions, without those that can't be written: few are read in one call."""
        entries: dict[str, Any] = {k: v for k, v in vars(value).items() if not k.startswith("_")}
        for _, name, found in self._noted("self"):
            entries.setdefault(name, found)
        written: dict[str, str] = {}
        for name, found in entries.items():
            count = self.count
            try:
                written[name] = self._entry(found, "self", name, path, True)
            except Unwritable:
                self.count = count
        return written

    def _class(self, cls: type, path: str) -> str:
        name = self.importable(cls)
        if not name:
            raise Unwritable(f"a {cls.__name__}")
        self.names.add(name.split(".")[0])
        return name

    def _object(self, value: Any, path: str) -> str:
        cls = type(value)
        if isinstance(value, Unknown):
            return self._unknown(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            fields = {n: getattr(value, n) for n in value._fields}  # pyright: ignore[reportAttributeAccessIssue]
        elif dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init and _set(value, f)}
        elif cls.__name__ == "SimpleNamespace":
            self.names.add("SimpleNamespace")
            parts = [f"{k}={self.write(v, path + '.' + k)}" for k, v in vars(value).items()]
            return f"SimpleNamespace({', '.join(parts)})"
        elif isinstance(value, float):
            return self._plain(number(float(value)))
        else:
            raise Unwritable(f"a {cls.__name__}")
        name = self._class(cls, path)
        parts = [f"{k}={self.write(v, path + '.' + k)}" for k, v in fields.items()]
        return f"{name}({', '.join(parts)})"


def _set(value: Any, f: dataclasses.Field[Any]) -> bool:
    """Whether a field differs from its default, so that it has to be written."""
    if f.default is dataclasses.MISSING or isinstance(f.default, Tensor):
        return True
    found = getattr(value, f.name)
    return type(found) is not type(f.default) or bool(found != f.default)


def noted(run: Callable[[], Any]) -> dict[str, Any]:
    """What is read from stand-ins while `run` runs."""
    selfs.notes = {}
    try:
        run()
        return selfs.notes
    finally:
        selfs.notes = None


# Numbers


def number(value: float) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return repr(int(value))
    return repr(float(value)) if math.isfinite(value) else f'float("{value}")'


def short(value: Any) -> str:
    """The fewest digits that give the same float32."""
    if not math.isfinite(value):
        return f'float("{value}")'
    value += 0.0  # no negative zero
    for digits in range(1, 10):
        text = repr(float(f"{value:.{digits}g}"))
        if struct.pack("f", float(text)) == struct.pack("f", value):
            return text
    return repr(value)


def _element(value: Any) -> str:
    return number(value) if isinstance(value, float) else repr(value)


def _nested(value: Any, element: Callable[[Any], str]) -> str:
    if isinstance(value, list):
        items: Sequence[Any] = value
        return f"[{', '.join(_nested(v, element) for v in items)}]"
    return element(value)


_USUAL = (torch.float32, torch.int64, torch.bool)


def _tensor_text(value: Tensor) -> str:
    shape = ", ".join(map(str, value.shape))
    kind = "" if value.dtype in _USUAL else f", dtype={value.dtype}"
    if value.numel() == 0:
        return f"torch.zeros({shape or '()'}, dtype={value.dtype})"
    flat = value.flatten()
    if value.dtype == torch.float32 and value.numel() > 3 and bool((flat == flat[0]).all()):
        first = float(flat[0])
        if first in (0.0, 1.0):
            return f"torch.{'zeros' if first == 0.0 else 'ones'}({shape})"
    element = _element if value.dtype == torch.float64 or not value.is_floating_point() else short
    return f"torch.tensor({_nested(value.tolist(), element)}{kind})"


def _quoted(text: str) -> str:
    return f'"{text}"'
