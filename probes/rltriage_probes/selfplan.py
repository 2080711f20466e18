"""Where a method's `self` comes from: the class's own constructor where it can be called, else a stand-in."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, containers, seams, source
from rltriage_probes.filling import SCALARS, FixedSource, Source, WordSource
from rltriage_probes.forms import Call, Hints
from rltriage_probes.loading import StandInBase
from rltriage_probes.selfs import LEARNING_ROLES, NOTHING, InitReader, Unknown, is_config, stand_in, surroundings
from rltriage_probes.source import Path
from rltriage_probes.vocabulary import WORDS

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder


def plan_self(b: Binder) -> None:
    owner = b.loaded.owner
    assert owner is not None
    made = _construct(b, owner)
    if made is not None:
        b.plan.selfs.append(made)
    b.plan.selfs.append(_stand_in_self(b, owner))
    if not b.known_from_self:
        _know_stand_in(b)


def _construct(b: Binder, owner: type) -> Callable[[Call], Any] | None:
    if any(c is StandInBase for c in owner.__mro__):
        return None
    try:
        parameters = [
            p for p in inspect.signature(owner).parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        ]
    except (TypeError, ValueError):
        return None
    opened, left = list(b.plan.open), list(b.plan.left)
    sources: dict[str, Source] = {}
    for p in parameters:
        got = _init_parameter(b, p)
        if got is not None:
            sources[p.name] = got
    failed = len(b.plan.open) > len(opened)
    b.plan.open, b.plan.left = opened, left
    if failed:
        return None
    b.plan.self_source = [s for s in sources.values()]

    def build(call: Call) -> Any:
        made = owner(**{k: s.give(call) for k, s in sources.items()})
        containers.adjust(b, made, "self", (), {s.word for s in sources.values() if isinstance(s, WordSource)})
        seams.plug(b, made)
        return made

    try:
        probe = build(Call(dict(b.example.inputs)))
    except Exception:  # noqa: BLE001  the user's constructor
        b.plan.self_source = []
        return None
    b.known_from_self = True
    for word in [w.word for w in sources.values() if isinstance(w, WordSource)]:
        if word in b.known and b.hows.get(word) == "documented default":
            b.hows[word] = "default"
    containers.read_known(b, probe, "self", ())
    return build


def _init_parameter(b: Binder, p: inspect.Parameter) -> Source | None:
    annotation = annotation_of(p)
    default = NOTHING if p.default is p.empty else p.default
    shown = f"self.{p.name}"
    if shown in b.explicit:
        return b.said(shown, p.name, annotation, default)
    if p.name in b.settings and p.name not in WORDS:
        return FixedSource(path=shown, value=b.settings[p.name], meaning="constant", how="settings")
    word, how, inverted = b.meaning("self", p.name, (("attr", p.name),), annotation, default)
    if b.role.name in LEARNING_ROLES:
        return _learners_parameter(b, p, shown, annotation, default, word)
    if word and (word in SCALARS or word in ("tokenizer", "model")):
        if word == "model" and default is NOTHING and b.role.name not in ("logprobs", "entropy"):
            return FixedSource(path=shown, value=Unknown(shown), meaning="constant", how="name")
        return b.word_source(shown, p.name, word, how, inverted, annotation, default)
    if is_config(p.name, annotation) and default is NOTHING:
        return containers.config(b, shown, p.name, annotation, "self", (("attr", p.name),))
    got = b.constant(shown, p.name, default)
    if got is None and default is NOTHING:
        b.plan.open.append(shown)
    return got


def _learners_parameter(
    b: Binder, p: inspect.Parameter, shown: str, annotation: str, default: Any, word: str
) -> Source | None:
    """A parameter of the class of a training step: objects go in as the probe makes them."""
    from rltriage_probes import learning

    if is_config(p.name, annotation):
        made = containers.config(b, shown, p.name, annotation, "self", (("attr", p.name),))
        return made if default is NOTHING else None
    got = learning.place(b, "self", p.name, (("attr", p.name),), annotation, default, shown)
    if got is None and word in SCALARS:
        got = b.word_source(shown, p.name, word, "name", False, annotation, default)
    got = got or b.constant(shown, p.name, default)
    if got is None and default is NOTHING:
        b.plan.open.append(shown)
    return got


def _stand_in_self(b: Binder, owner: type) -> Callable[[Call], Any]:
    reader = InitReader(_inits(b, owner), b.loaded.namespace, lambda name: _init_value(b, name))

    def lookup(name: str, shown: str) -> Any:
        if shown in b.explicit:
            return b.look_up(name, shown)
        full: Path = (("attr", name),)
        word, _, _ = b.meaning("self", name, full, "", NOTHING)
        declared = word in b.settings or b.scalar(word, NOTHING, False)[1] == "intent"
        if word and (declared or word not in SCALARS or word in b.example.inputs):
            value = b.look_up(name, shown)
            if value is not NOTHING:
                return value
        if name in b.settings and name not in WORDS:
            return b.settings[name]
        value = reader.read(name)
        if value is not NOTHING:
            return value
        if is_config(name):
            return _self_config(b, name, reader)
        if b.is_head(aliases.snake(name)) and b.current is not None and "logits" in b.current.inputs:
            return b.head(b.current)
        for found in (b.look_up(name, shown), surroundings(name)):
            if found is not NOTHING:
                return found
        return False if aliases.is_flag(name) else Unknown(shown)

    def build(call: Call) -> Any:
        made = stand_in(owner, lookup)
        seams.plug(b, made)
        return made

    return build


def _inits(b: Binder, owner: type) -> list[Any]:
    nodes: list[Any] = []
    for cls in owner.__mro__[:-1]:
        node = source.find_definition(b.loaded.tree, f"{cls.__name__}.__init__")
        if node is not None:
            nodes.append(node)
    return nodes


def _init_value(b: Binder, name: str) -> Any:
    """The value of a parameter of `__init__` for reading what it would have set."""
    for node in _inits(b, b.loaded.owner or object):
        for arg in (*node.args.args, *node.args.kwonlyargs):
            if arg.arg != name:
                continue
            annotation = source.ast.unparse(arg.annotation) if arg.annotation else ""
            if is_config(name, annotation):
                return _self_config(b, name, None, annotation)
            found = b.look_up(name, f"self.{name}")
            if found is not NOTHING and not isinstance(found, Unknown):
                return found
            default = _default_of(node, name)
            return default
    return NOTHING


def _self_config(b: Binder, name: str, reader: InitReader | None, annotation: str = "") -> Any:
    if not annotation:
        for node in _inits(b, b.loaded.owner or object):
            for arg in (*node.args.args, *node.args.kwonlyargs):
                if arg.arg == name and arg.annotation:
                    annotation = source.ast.unparse(arg.annotation)
    source_ = containers.config(b, f"self.{name}", name, annotation, "self", (("attr", name),))
    return source_.give(b.current or Call(dict(b.example.inputs)))


def _know_stand_in(b: Binder) -> None:
    """Settings under which the function runs with the stand-in."""
    for path in b.facts.reads.get("self", {}):
        word, how, _ = b.meaning("self", path[-1][1], path, "", NOTHING) if path else ("", "", False)
        if word in SCALARS and word in b.example.inputs and word not in aliases.CHOICES:
            value, _ = b.scalar(word, NOTHING, generous=False)
            shown = source.render("self", path)
            b.plan.self_source.append(WordSource(path=shown, word=word, how=how, hints=Hints(), fallback=value))
    b.current = Call({k: v for k, v in b.example.inputs.items() if k not in SCALARS})
    try:
        made = b.plan.selfs[-1](b.current)
        containers.read_known(b, made, "self", ())
    finally:
        b.current = None


def annotation_of(p: inspect.Parameter) -> str:
    if p.annotation is p.empty:
        return ""
    if isinstance(p.annotation, str):
        return p.annotation
    if isinstance(p.annotation, type):
        return p.annotation.__name__ if p.annotation.__module__ != "numpy" else f"np.{p.annotation.__name__}"
    return str(p.annotation).replace("typing.", "")


def _default_of(node: Any, name: str) -> Any:
    arguments = [*node.args.posonlyargs, *node.args.args]
    pairs = dict(zip([a.arg for a in arguments][::-1], list(node.args.defaults)[::-1], strict=False))
    pairs.update({a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=False) if d is not None})
    if name not in pairs:
        return NOTHING
    try:
        return source.ast.literal_eval(pairs[name])
    except ValueError:
        return NOTHING
