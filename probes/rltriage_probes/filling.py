"""What fills the places of a call: words, fixed values, and objects built for each call."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.forms import Call, Form, Hints, derived
from rltriage_probes.invoke import NotReached
from rltriage_probes.selfs import NOTHING, Box
from rltriage_probes.source import Path
from rltriage_probes.vocabulary import WORDS

SCALARS = frozenset(w for w, word in WORDS.items() if word.kind == "scalar")


@dataclass(kw_only=True)
class WordSource:
    """A place that gets a word."""

    path: str
    word: str
    how: str
    hints: Hints
    fallback: Any = NOTHING
    """What is handed over where the case has no such word: the user's default or a setting."""
    form: Form | None = None
    per_row: bool = False
    """Inside a list of records: the record gets its own entry."""

    def give(self, call: Call) -> Any:
        word = self.form.word if self.form else self.word
        value = call.inputs.get(word, NOTHING)
        if value is NOTHING:
            if self.fallback is not NOTHING:
                return self.fallback
            value = derived(word, call)
        return self.form.apply(value, call) if self.form else value


@dataclass(kw_only=True)
class FixedSource:
    """A place with one value for all calls."""

    path: str
    value: Any
    meaning: str
    how: str
    word: str = ""

    def give(self, call: Call) -> Any:
        return self.value


@dataclass(kw_only=True)
class MadeSource:
    """A place whose value is built for each call: a container, a config."""

    path: str
    build: Callable[[Call], Any]
    inner: list[Any] = field(default_factory=list)
    how: str = "source"
    meaning: str = ""
    """What it is, where no word inside says so."""

    def give(self, call: Call) -> Any:
        return self.build(call)


Source = WordSource | FixedSource | MadeSource


@dataclass(kw_only=True)
class Plan:
    """How each parameter is filled."""

    positional: list[Source] = field(default_factory=list)
    keywords: dict[str, Source] = field(default_factory=dict)
    selfs: list[Callable[[Call], Any]] = field(default_factory=list)
    """Ways to get a `self`, the likeliest first; empty where the function takes none."""
    self_source: list[Source] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    """Entries of containers that have no word: open only if a call really reads them."""
    left: list[tuple[str, Any, str]] = field(default_factory=list)
    """Parameters left at their default: name, value, word it would have."""

    def words(self) -> Iterator[WordSource]:
        queue: list[Any] = [*self.positional, *self.keywords.values(), *self.self_source]
        while queue:
            s = queue.pop(0)
            if isinstance(s, WordSource):
                yield s
            elif isinstance(s, MadeSource):
                queue = [*s.inner, *queue]

    def asides(self) -> Iterator[MadeSource]:
        """Values that come along and mean nothing to the role."""
        return (s for s in (*self.positional, *self.keywords.values()) if isinstance(s, MadeSource) and s.meaning)

    def fixed(self) -> Iterator[FixedSource]:
        queue: list[Any] = [*self.positional, *self.keywords.values(), *self.self_source]
        while queue:
            s = queue.pop(0)
            if isinstance(s, FixedSource):
                yield s
            elif isinstance(s, MadeSource):
                queue = [*s.inner, *queue]


def evaluate(text: str, namespace: Mapping[str, Any]) -> Any:
    """A Python literal of the manifest; an expression over the user's module where it is no literal."""
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        pass
    try:
        return eval(text, dict(namespace))  # noqa: S307  written by the user in their own manifest
    except Exception as e:  # noqa: BLE001  runs code of the user
        raise NotReached(f"the bind value ={text} can't be evaluated: {type(e).__name__}: {e}") from None


def fill(box: Any, path: Path, value: Any, shown: str, kind: type[Box] = Box) -> None:
    """Puts a value behind a path, making the boxes on the way."""
    steps = [s for s in path if s[0] != "each"]
    here: Any = box
    for step_kind, name in steps[:-1]:
        inner: Any = here.get(name) if isinstance(here, dict) else None  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(inner, Box):
            inner = kind(f"{shown}.{name}", here.__dict__["_box"][1] if isinstance(here, Box) else None)
            here.put(step_kind, name, inner)  # pyright: ignore[reportAttributeAccessIssue]
        here = inner
    if steps:
        here.put(steps[-1][0], steps[-1][1], value)


def as_class(cls: type, box: Box) -> Any:
    """The user's own dataclass made of a box's entries, else the box."""
    if not dataclasses.is_dataclass(cls):
        return box
    values: dict[str, Any] = {}
    for f in dataclasses.fields(cls):
        if f.name in box and f.init:
            values[f.name] = dict.__getitem__(box, f.name)
        elif f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            values[f.name] = None
    try:
        return cls(**values)
    except Exception:  # noqa: BLE001  the user's class
        return box


def walk(value: Any, path: Path) -> Any:
    for kind, name in path:
        try:
            value = getattr(value, name) if kind == "attr" else value[name]
        except Exception:  # noqa: BLE001  properties of the user's may raise anything
            return NOTHING
    return value
