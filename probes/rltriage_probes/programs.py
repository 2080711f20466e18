"""The few lines of a reproduction: how the function is loaded, called, and which number is printed."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import keyword
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch

from rltriage_probes import invoke, loading, tolerance
from rltriage_probes.bound import Bound
from rltriage_probes.contract import Number
from rltriage_probes.invoke import NotReached
from rltriage_probes.literals import Unwritable, Writer
from rltriage_probes.loading import Loaded
from rltriage_probes.model import CallFailed

WIDTH = 110
MAX_CODE = 4_000
_INLINE = 28
"""Longest literal that stays inside a call which is too long for one line."""
_SHORT = 10
"""The same where two calls share their inputs."""
_RECORD = 'Record = type("Record", (dict,), {"__getattr__": dict.__getitem__})'

Me = Literal["none", "constructed", "namespace", "filled"]
"""How `self` is made: not at all, by the class, as a plain object, or as an object of the class that is filled."""


@dataclass(frozen=True, kw_only=True)
class Style:
    """A way to write the arguments."""

    me: Me = "none"
    record: bool = False
    differentiate: bool = False


def styles(bound: Bound, *, differentiate: bool = False) -> Iterator[Style]:
    """The simplest first."""
    method = bound.loaded.kind == "method"
    made: tuple[Me, ...] = ("constructed", "namespace", "filled") if method else ("none",)
    for record in (False, True):
        for me in made:
            if me != "constructed" or bound.constructor() is not None:
                yield Style(me=me, record=record, differentiate=differentiate)


@dataclass(kw_only=True)
class Taken:
    """One call as it reached the function."""

    arguments: tuple[tuple[str, str, bool], ...] = ()
    """Name, expression, whether it is handed over by its name."""
    me: str = ""
    """Expression of `self`, or of its attributes as a keyword list."""
    writer: Writer
    result: Any = None
    problem: Unwritable | None = None


class _Listener:
    """Writes down the arguments of each call before the function can change them."""

    def __init__(self, bound: Bound, notes: Mapping[str, Any], style: Style) -> None:
        self.bound, self.notes, self.style = bound, notes, style
        self.taken: list[Taken] = []

    def called(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
        loaded = self.bound.loaded
        writer = Writer(
            notes=self.notes, importable=lambda cls: importable(loaded, cls), record=self.style.record,
            differentiate=self.style.differentiate,
        )  # fmt: skip
        taken = Taken(writer=writer)
        self.taken.append(taken)
        try:
            rest = list(positional)
            if loaded.kind == "method" and rest:
                taken.me = self._me(rest.pop(0), writer)
            parameters = [n for n in loaded.signature().parameters if n != "self"]
            written = [(n, v, False) for n, v in zip(parameters, rest, strict=False)]
            written += [(n, v, True) for n, v in keywords.items()]
            taken.arguments = tuple((n, writer.write(v, variable(loaded, n)), named) for n, v, named in written)
        except Unwritable as e:
            taken.problem = e

    def _me(self, me: Any, writer: Writer) -> str:
        if self.style.me == "constructed":
            given = self.bound.constructor() or {}
            return ", ".join(f"{k}={writer.write(v, '')}" for k, v in given.items())
        pairs = writer.attributes(me, "me")
        return ", ".join(f"{k}={v}" for k, v in pairs.items())

    def returned(self, result: Any) -> None:
        self.taken[-1].result = result


def listened(bound: Bound, run: Callable[[], Any], notes: Mapping[str, Any], style: Style) -> list[Taken]:
    """The calls that `run` makes of the user's function. Raises what `run` raises."""
    listener = _Listener(bound, notes, style)
    bound.tap = listener
    try:
        run()
    finally:
        bound.tap = None
    return listener.taken


def importable(loaded: Loaded, cls: type) -> str:
    """Name of a class in the module of the function; empty where the module does not have it."""
    return cls.__name__ if loaded.namespace.get(cls.__name__) is cls else ""


def variable(loaded: Loaded, name: str) -> str:
    """A name for an argument that hides nothing which the program uses."""
    taken = {"torch", "numpy", "out", "me", "weights", "space", loaded.qualname.split(".")[0].split("(")[0]}
    name = name if name.isidentifier() and not keyword.iskeyword(name) else "given"
    return f"{name}_" if name in taken or (name in loaded.namespace and name in _HEADS) else name


_HEADS = frozenset(("SimpleNamespace", "Record", "asyncio", "sys", "runpy"))


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program in two halves: lines that make the function available, and lines that call it."""

    loaded: Loaded
    loading: tuple[str, ...]
    body: tuple[str, ...]
    printed: str
    """Expression of the last line."""
    names: frozenset[str]
    count: int
    space: Mapping[str, Any]
    """What the loading lines define, as it is here."""

    @staticmethod
    def of(
        bound: Bound, taken: Sequence[Taken], style: Style, printed: str, setup: Sequence[tuple[str, str]] = ()
    ) -> Program:
        """`printed` has `{0}`, `{1}` where the results of the calls stand. Raises `Unwritable`."""
        for t in taken:
            if t.problem is not None:
                raise t.problem
        loaded = bound.loaded
        names = {n for t in taken for n in t.writer.names}
        first = _Call(loaded, taken[0], style, several=len(taken) > 1)
        calls = [first, *(_Call(loaded, t, style, first) for t in taken[1:])]
        body = [line for c in calls for line in c.setup]
        body += [f"{name} = {text}" for name, text in setup]
        outs = ["out"] if len(calls) == 1 else ["one", "other"]
        body += [line for out, c in zip(outs, calls, strict=True) for line in c.lines(out)]
        results = [c.result(out) for out, c in zip(outs, calls, strict=True)]
        if printed in ("{0}", "repr({0})") and not calls[0].block:
            body.pop()
            results = [calls[0].expression]
        space: dict[str, Any] = {**_helpers(), **_space(loaded)}
        lines = loading_lines(loaded, {n for n in names if n in loaded.namespace})
        return Program(
            loaded=loaded, loading=tuple(lines), body=tuple(body),
            printed=printed.format(*results), names=frozenset(names),
            count=sum(t.writer.count for t in taken), space=space,
        )  # fmt: skip

    def run(self) -> Number | None:
        """The number that it prints; None where it fails. Raises `Unwritable` where chance decides on it."""
        before = _chance()
        value = self._value()
        if value is not None and _chance() != before:
            raise Unwritable("a function that draws random numbers")
        return tolerance.number(value) if isinstance(value, (int, float)) else None

    def run_pair(self) -> tuple[Number, Number] | None:
        value = self._value()
        return (tolerance.number(value[0]), tolerance.number(value[1])) if isinstance(value, tuple) else None

    def raises(self) -> str:
        """The exception that it ends with, or nothing."""
        try:
            invoke.guarded(self._evaluated, self.loaded.root, self.loaded.path)
        except CallFailed as e:
            return e.error
        except NotReached as e:
            return e.reason
        return ""

    def _value(self) -> Any:
        try:
            return invoke.guarded(self._evaluated, self.loaded.root, self.loaded.path)
        except (CallFailed, NotReached):
            return None

    def _evaluated(self) -> Any:
        space = dict(self.space)
        exec("\n".join(self.body), space)  # noqa: S102  the user's function on arguments of ours
        return eval(self.printed, space)  # noqa: S307

    def text(self, comment: str) -> str:
        """The whole program. Raises `Unwritable` where it is too long to print."""
        rest = "\n".join((*self.body, self.printed, *self.loading))
        imports = [n for n in ("asyncio", "numpy", "textwrap", "torch") if f"{n}." in rest]
        lines = [f"import {', '.join(imports)}"] if imports else []
        lines += ["from types import SimpleNamespace"] if "SimpleNamespace" in self.names else []
        lines += self.loading
        lines += [_RECORD] if "Record" in self.names else []
        note = " ".join(comment.split())
        code = "\n".join([*lines, "", *self.body, f"print({self.printed})  # {note}"])
        if len(code) > MAX_CODE:
            raise Unwritable(f"a program of {len(code)} characters")
        return code


class _Call:
    """The lines of one call."""

    def __init__(
        self, loaded: Loaded, taken: Taken, style: Style, first: _Call | None = None, *, several: bool = False
    ) -> None:
        self.loaded = loaded
        self.taken = taken
        self.setup: list[str] = []
        self.block = loaded.kind == "block"
        self.values: dict[str, tuple[str, str]] = {}
        """Argument -> its text, and the variable that holds it."""
        function = self._function(style)
        self.expression = self._call(function, {})
        leaves = {path.split("[")[0].split(".")[0] for path, _ in taken.writer.leaves}
        several = several or first is not None
        long = len(self.expression) + 14 > WIDTH or several or self.block
        if leaves or long:
            self._name_arguments(leaves, _SHORT if several else _INLINE if long else WIDTH, first)
            self.expression = self._call(function, {n: v for n, (_, v) in self.values.items()})

    def _name_arguments(self, leaves: set[str], longest: int, first: _Call | None) -> None:
        for name, text, _ in self.taken.arguments:
            known = first.values.get(name) if first is not None else None
            if known is not None and known[0] == text:
                self.values[name] = known
                continue
            mine = variable(self.loaded, name)
            if mine in leaves or len(text) > longest:
                mine = f"{mine}_2" if first is not None else mine
                self.values[name] = (text, mine)
                self.setup.append(f"{mine} = {text}")

    def _call(self, function: str, variables: Mapping[str, str]) -> str:
        if self.block:
            return self._block(variables)
        given = [
            f"{name}={variables.get(name, text)}" if named else variables.get(name, text)
            for name, text, named in self.taken.arguments
        ]
        if self.me:
            given.insert(0, self.me)
        called = f"{function}({', '.join(given)})"
        return f"asyncio.run({called})" if inspect.iscoroutinefunction(self.loaded.function) else called

    def _function(self, style: Style) -> str:
        self.me = ""
        loaded = self.loaded
        name = loaded.qualname
        if loaded.made_with is not None:
            writer = self.taken.writer
            given = ", ".join(f"{k}={writer.write(v, '')}" for k, v in loaded.made_with.items())
            return f"{name.removesuffix('(...)')}({given})"
        if loaded.kind != "method":
            return name
        owner, _, method = name.rpartition(".")
        if style.me == "constructed":
            return f"{owner}({self.taken.me}).{method}"
        if style.me == "namespace":
            self.taken.writer.names.add("SimpleNamespace")
            self.me = f"SimpleNamespace({self.taken.me})"
            return name
        self.setup.append(f"me = object.__new__({owner})")
        if loaded.owner is not None and issubclass(loaded.owner, torch.nn.Module):
            self.setup.append("torch.nn.Module.__init__(me)")
        if self.taken.me:
            self.setup.append(f"vars(me).update({self.taken.me})")
        return f"me.{method}"

    # Lines that are no function

    def _block(self, variables: Mapping[str, str]) -> str:
        pairs = ", ".join(f"{n!r}: {variables.get(n, text)}" for n, text, _ in self.taken.arguments)
        return f"{{**module, {pairs}}}"

    def lines(self, out: str) -> list[str]:
        """The lines after which `out` is the result."""
        if not self.block:
            return [f"{out} = {self.expression}"]
        start, stop, output = block_lines(self.loaded)
        got = f"{out} = {out}[{output!r}]" if output.isidentifier() else f"{out} = eval({output!r}, {out})"
        return [
            f"{out} = {self.expression}",
            f"lines = open({loading.shown(self.loaded.root, self.loaded.path)!r}).read().splitlines()[{start}:{stop}]",
            f'exec(textwrap.dedent("\\n".join(lines)), {out})',
            got,
        ]

    def result(self, out: str) -> str:
        return out


def block_lines(loaded: Loaded) -> tuple[int, int, str]:
    """Slice of the file's lines that a block runs, and the expression of its result."""
    *body, result = loaded.node.body
    assert isinstance(result, ast.Return) and result.value is not None
    if body and isinstance(body[-1], ast.Return):
        body.pop()
    if any(isinstance(n, ast.Return) for s in body for n in ast.walk(s)) or not body:
        raise Unwritable("a block that returns")
    return body[0].lineno - 1, body[-1].end_lineno or body[-1].lineno, ast.unparse(result.value)


def said(value: Number | str) -> str:
    """A number as a comment has it."""
    return value if isinstance(value, str) else f"{value:.6g}"


def _chance() -> tuple[object, ...]:
    """State of the generators of random numbers that everybody shares."""
    shared = sys.modules.get("numpy.random")
    drawn = repr(shared.get_state()) if shared is not None else ""
    return bytes(torch.get_rng_state().tolist()), random.getstate(), drawn


# Loading


def _helpers() -> dict[str, Any]:
    import textwrap

    found: dict[str, Any] = {
        "torch": torch, "asyncio": asyncio, "SimpleNamespace": SimpleNamespace, "textwrap": textwrap,
        "Record": type("Record", (dict,), {"__getattr__": dict.__getitem__}),
    }  # fmt: skip
    with contextlib.suppress(ImportError):
        import numpy as np

        found["numpy"] = np
    return found


def _space(loaded: Loaded) -> dict[str, Any]:
    """What the loading lines give, taken from the module as it was loaded here."""
    if loaded.kind == "block":
        return {"module": {k: v for k, v in loaded.namespace.items() if k != "_block"}, "open": _opener(loaded)}
    return {k: v for k, v in loaded.namespace.items() if not k.startswith("__")}


def _opener(loaded: Loaded) -> Callable[[str], Any]:
    """`open` as it works in the project's folder."""
    return lambda name: (loaded.root / name).open(encoding="utf-8")


def loading_lines(loaded: Loaded, classes: set[str]) -> list[str]:
    """Lines after which the function's name is there, as far as the rung allows that loaded it here."""
    head = loaded.qualname.split(".")[0].split("(")[0]
    block = loaded.kind == "block"
    names = sorted({*classes} if block else {head, *classes})
    file = loading.shown(loaded.root, loaded.path)
    rung = loaded.report.rung
    module = str(loaded.namespace.get("__name__", ""))
    lines: list[str] = []
    if loaded.report.stand_ins:
        lines.append(f"# needs {', '.join(loaded.report.stand_ins[:6])}, which this interpreter lacks")
    if rung == "extracted":
        return [*lines, *_extracting(loaded, file, names, block)]
    prefix = _prefix(file, module)
    if rung == "file" or prefix is None:
        lines.append(f"import runpy; module = runpy.run_path({file!r})")
        return [*lines, *(f"{n} = module[{n!r}]" for n in names)]
    if prefix:
        lines.append(f"import sys; sys.path.insert(0, {prefix!r})")
    if rung != "import":
        lines += _bare(module, file, prefix)
    if block:
        lines.append(f"import {module}; module = vars({_leaf(module)})")
        return [*lines, *(f"{n} = module[{n!r}]" for n in names)]
    return [*lines, f"from {module} import {', '.join(names)}"]


def _leaf(module: str) -> str:
    return module


def _prefix(file: str, module: str) -> str | None:
    """Folder of the project that has to be on the path; None where the module is no importable name for the file."""
    if not module or module.startswith("_user_") or not all(p.isidentifier() for p in module.split(".")):
        return None
    tail = module.replace(".", "/")
    for end in (f"{tail}.py", f"{tail}/__init__.py"):
        if file == end:
            return ""
        if file.endswith(f"/{end}"):
            folder = file.removesuffix(f"/{end}")
            return "" if folder in sys.path and folder.startswith("/") else folder
    return None


def _bare(module: str, file: str, prefix: str) -> list[str]:
    """Parent packages registered without running their `__init__`."""
    parents = module.split(".")[:-1]
    lines: list[str] = ["import sys, types"] if parents else []
    for i in range(len(parents)):
        name, folder = ".".join(parents[: i + 1]), "/".join(filter(None, (prefix, *parents[: i + 1])))
        lines.append(
            f"sys.modules[{name!r}] = types.ModuleType({name!r}); sys.modules[{name!r}].__path__ = [{folder!r}]"
        )
    return lines


def _extracting(loaded: Loaded, file: str, names: Sequence[str], block: bool) -> list[str]:
    """The statements that the function needs, without the rest of a file that can't be imported."""
    head = loaded.qualname.split(".")[0].split("(")[0]
    wanted = sorted(n.id for s in loaded.node.body for n in ast.walk(s) if isinstance(n, ast.Name)) if block else [head]
    needed = [s.lineno for s in loading._needed(loaded.tree, [*wanted, *names])]  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    lines = [
        f"import ast; module = {{'__name__': 'module'}}; tree = ast.parse(open({file!r}).read())",
        f"tree.body = [s for s in tree.body if s.lineno in {{{', '.join(map(str, needed)) or 'None'}}}]",
        f"exec(compile(tree, {file!r}, 'exec'), module)",
    ]
    return [*lines, *(f"{n} = module[{n!r}]" for n in names)]
