"""Targets that make the function to be examined: `make_reward(...)` returns `reward(prompts, completions, answer)`."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from rltriage_probes import invoke, reports, source
from rltriage_probes.filling import Source, WordSource
from rltriage_probes.forms import Call, Missing
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import Loaded
from rltriage_probes.model import CallFailed
from rltriage_probes.reports import PLAIN_VALUE, BindingFailed
from rltriage_probes.selfs import NOTHING

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder


def returns_a_function(loaded: Loaded) -> bool:
    """Whether the source hands back something callable: an inner function, a lambda, a partial, an object."""
    inner = {n.name for n in source.definitions(loaded.node) if not isinstance(n, ast.ClassDef)}
    return loaded.kind in ("function", "static") and any(
        isinstance(value, ast.Lambda)
        or (isinstance(value, ast.Name) and value.id in inner)
        or (isinstance(value, ast.Call) and _constructs(value, loaded))
        for value in _returned(loaded.node)
    )


def unfold(b: Binder) -> Loaded | None:
    """What the factory makes with its defaults and the declared settings; None where it can't be called.

    The settings that it was called with stay in `b.known`. Raises `BindingFailed` where one is not known.
    """
    sources: dict[str, Source] = {}
    opened: list[str] = []
    for p in b.signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        default = NOTHING if p.default is p.empty else p.default
        got = b.place(p.name, p.name, (), "" if p.annotation is p.empty else str(p.annotation), default)
        if got is not None:
            sources[p.name] = got
        elif default is NOTHING:
            opened.append(p.name)
    if opened:
        reason = f"{b.loaded.qualname} makes the function, and nothing is known of its settings {', '.join(opened)}"
        raise BindingFailed(reason, reports.report_open(b, opened, PLAIN_VALUE))
    call = Call(dict(b.example.inputs))
    given: dict[str, Any] = {}
    try:
        given = {k: s.give(call) for k, s in sources.items()}
        made = invoke.guarded(lambda: b.loaded.function(**given), b.loaded.root, b.loaded.path)
    except (CallFailed, NotReached, Missing):
        return None
    for k, s in sources.items():
        if isinstance(s, WordSource) and s.word in b.example.inputs and isinstance(given[k], (int, float)):
            b.known[s.word] = given[k]
    found = _as_loaded(made, b.loaded) if callable(made) else None
    return None if found is None else dataclasses.replace(found, made_with=given)


def _as_loaded(made: Callable[..., Any], outer: Loaded) -> Loaded | None:
    plain = made.func if isinstance(made, functools.partial) else made
    method = None if inspect.isroutine(plain) else _method_of(type(plain))
    name = method or getattr(plain, "__name__", "")
    node = _node(outer, plain, name, method is not None)
    if node is None:
        return None
    doc = "\n\n".join(d for d in (outer.doc, ast.get_docstring(node) or "") if d)
    function = getattr(plain, method) if method else made
    return dataclasses.replace(
        outer, qualname=f"{outer.qualname}(...)", function=function, owner=None, kind="function", node=node, doc=doc
    )


def _method_of(cls: type) -> str:
    return "forward" if hasattr(cls, "forward") else "__call__"


def _node(outer: Loaded, plain: Any, name: str, method: bool) -> source.FunctionNode | None:
    if method:
        found = source.find_definition(outer.tree, f"{type(plain).__name__}.{name}")
    elif name == "<lambda>":
        found = _as_function(next((v for v in _returned(outer.node) if isinstance(v, ast.Lambda)), None))
    else:
        inside = [n for n in source.definitions(outer.node) if n.name == name]
        found = inside[-1] if inside else source.find_definition(outer.tree, name)
    return None if found is None or isinstance(found, ast.ClassDef) else found


def _as_function(node: ast.Lambda | None) -> ast.FunctionDef | None:
    if node is None:
        return None
    made = ast.parse("def made(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = node.args, [ast.copy_location(ast.Return(value=node.body), node)]
    return ast.copy_location(made, node)


def _returned(node: source.FunctionNode) -> Iterator[ast.expr]:
    """Values of the function's own `return` statements, not of those of functions inside it."""
    queue: list[ast.AST] = list(node.body)
    while queue:
        part = queue.pop(0)
        if isinstance(part, ast.Return) and part.value is not None:
            yield part.value
        if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            queue += ast.iter_child_nodes(part)


def _constructs(value: ast.Call, loaded: Loaded) -> bool:
    name = ast.unparse(value.func)
    return (
        name.endswith("partial")
        or (
            isinstance(loaded.namespace.get(name), type)
            and callable(getattr(loaded.namespace[name], "__call__", None))  # noqa: B004
            and any("__call__" in vars(c) or "forward" in vars(c) for c in loaded.namespace[name].__mro__[:-1])
        )
    )
