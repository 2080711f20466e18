"""Adapters: a function of a role's canonical signature that calls the user's own, written as a file to complete.

What the worker knows of a role gives the signature; what a check of the user's function has bound gives the call. For
lines of a file (`train.py#L10-L20`) no file is needed: there the manifest says what goes in and comes out.
"""

from __future__ import annotations

import keyword
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from rltriage_probes.contract import BindingReport, Input, NotRun, RoleDescription, Slot, TargetResult, TargetSpec

from rltriage.errors import TriageError
from rltriage.init import toml_value
from rltriage.manifest import known_roles, nearest
from rltriage.render import clean

if TYPE_CHECKING:
    from rltriage.worker import WorkerPool

FILE_NAME: Final = "adapter.py"
WIDTH: Final = 110
_ORDINALS: Final = ("first", "second", "third", "fourth")
_LINES: Final = re.compile(r"#L\d+(-L?\d+)?$")
_PATH: Final = re.compile(r"\.(?P<attr>\w+)|\[(?P<quote>['\"])(?P<key>[^'\"]*)(?P=quote)\]|(?P<each>\[\*\])")


class AdapterError(TriageError):
    """No adapter was written."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """What `rltriage adapter` did."""

    file: Path | None
    """None where manifest lines are all that is needed."""
    text: str
    """Of the file."""
    manifest: str
    """Lines of the manifest that have it verified."""
    open: tuple[str, ...] = ()
    """What is left to say in it."""


async def make(
    role: str, ref: str, out: Path, *, root: Path, pool: WorkerPool, python: str | None = None, force: bool = False
) -> Made:
    """Write the adapter of a role, filled in for the function `ref` of the project `root` where one is named.

    Raises `AdapterError` where the role is unknown, the function can't be loaded or the file exists already, and what
    the worker raises.
    """
    if role not in known_roles():
        raise AdapterError(
            f"There is no role {role!r}{nearest(role, known_roles())}.", do="`rltriage adapter --list` shows the roles."
        )
    worker = await pool.get(python, {}, root=str(root))
    (described,) = (await worker.describe((role,))).roles
    result = await worker.check(root=root, target=TargetSpec(name=role, role=role, ref=ref)) if ref else None
    if result is not None and _LINES.search(ref):
        return _of_lines(described, result)
    if result is not None and result.loaded is None:
        raise AdapterError(_why(result), do=_do(result) or "Check the spelling of --ref.")
    if out.exists() and not force:
        raise AdapterError(f"{out} exists already.", do="Name another file with --out, or replace it with --force.")
    place = out.resolve()
    name = place.relative_to(root.resolve()).as_posix() if place.is_relative_to(root.resolve()) else out.name
    composed = compose(described, ref, result, name)
    try:
        out.write_text(composed.text, "utf-8")
    except OSError as e:
        raise AdapterError(f"{out} can't be written: {e.strerror}.", do="Name a writable file with --out.") from None
    return Made(
        file=out, text=composed.text, open=composed.open, manifest=f'[targets.{role}]\nref = "{name}:{role}"'
    )  # fmt: skip


def _why(result: TargetResult) -> str:
    return next((c.outcome.reason for c in result.checks if isinstance(c.outcome, NotRun)), "it could not be loaded")


def _do(result: TargetResult) -> str:
    return next((c.outcome.do for c in result.checks if isinstance(c.outcome, NotRun)), "")


# Lines of a file


def _of_lines(described: RoleDescription, result: TargetResult) -> Made:
    """The table of the manifest for lines that were never factored out."""
    binding = result.binding
    if binding is None:
        raise AdapterError(_why(result), do=_do(result) or "Correct the lines in --ref.")
    known = {i.name for i in described.inputs}
    inputs = {s.path: s.meaning for s in binding.slots if s.meaning in known}
    inputs |= {s.path: f"={s.form}" for s in binding.slots if s.meaning == "constant" and s.how == "bind"}
    opened = tuple(clean(o) for o in binding.open)
    pairs = [f"{_toml_key(k)} = {toml_value(v)}" for k, v in inputs.items()]
    pairs += [f'{_toml_key(o)} = "<word>"' for o in opened]
    rows = [f"[targets.{described.name}]", f"ref = {toml_value(result.ref)}", f"inputs = {{ {', '.join(pairs)} }}"]
    rows.append('output = "<expression>"  # which value of these lines is the result; default: the last one assigned')
    if opened:
        words = ", ".join(i.name for i in described.inputs if i.name not in inputs.values())
        rows.append(f'# <word>: one of {words}; or "=<Python literal>"')
    return Made(file=None, text="", manifest="\n".join(rows), open=opened)


def _toml_key(path: str) -> str:
    return path if re.fullmatch(r"[\w-]+", path) else f"'{path}'"


# The file


@dataclass(frozen=True, kw_only=True)
class Composed:
    """An adapter's text, and what is left open in it."""

    text: str
    open: tuple[str, ...] = ()


def compose(
    described: RoleDescription, ref: str = "", result: TargetResult | None = None, file: str = FILE_NAME
) -> Composed:
    """The text of an adapter. It is Python as it stands; what is open in it is spelt TODO."""
    binding = (result.binding if result is not None else None) or BindingReport()
    bound = [s for s in binding.slots if any(s.meaning == i.name for i in described.inputs)]
    names = [s.meaning for s in bound]
    taken = [i for i in described.inputs if i.name in names or (i.needed and not _served(i, names))]
    call = _call(ref, result, binding, bound) if result is not None else None
    # a number that the function has from its own settings is the parameter's default
    own = {s.meaning: _literal(s.form) for s in bound if s.form and _literal(s.form) != "TODO"}
    taken = sorted(taken, key=lambda i: i.name in own)
    lines = [
        f'"""Adapter of {ref or "a function of yours"} for rltriage.',
        "",
        "The names of the parameters are rltriage's words (`rltriage adapter --list`), so nothing has to be bound.",
        "Verify it with",
        "",
        f"    [targets.{described.name}]",
        f'    ref = "{file}:{described.name}"',
        '"""',
        "",
        *(call.imports if call else ["from typing import Any", "", "TODO: Any = ...  # replace it where it stands"]),
        "",
        f'RLTRIAGE_ADAPTER = "{described.name}"  # its parameters are taken for what they are called',
        "",
        "",
        f"def {described.name}({', '.join(f'{i.name}={own[i.name]}' if i.name in own else i.name for i in taken)}):",
        *_docstring(described, taken),
        *(f"    {line}" for line in (call.body if call else _empty(taken))),
    ]
    return Composed(text="\n".join(lines) + "\n", open=call.open if call else ("the call of your function",))


def _served(needed: Input, names: Sequence[str]) -> bool:
    """Whether another spelling of the input is bound: one text for several, a ratio for two log-probs."""
    return needed.name in names or bool(names and needed.kind != "scalar" and not needed.shape)


def _docstring(described: RoleDescription, taken: Sequence[Input]) -> Iterator[str]:
    yield f'    """{described.asks[:1].upper()}{described.asks[1:]}.'
    yield ""
    for i in taken:
        shape = f"{i.shape}, " if i.shape else ""
        yield from _wrapped(f"{i.name}: {shape}{i.says}")
    more = [i.name for i in described.inputs if i not in taken]
    if more:
        yield from _wrapped(f"Further parameters that it may have: {', '.join(more)}")
    yield from _wrapped(f"Returns {described.returns}." if described.returns else "Returns the result.")
    yield '    """'


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="    ", subsequent_indent="        ")


def _empty(taken: Sequence[Input]) -> list[str]:
    given = ", ".join(i.name for i in taken)
    return [f"return TODO({given})  # the call of your function, with what it takes in its own form"]


@dataclass(frozen=True, kw_only=True)
class _Call:
    imports: list[str]
    body: list[str]
    open: tuple[str, ...]


def _call(ref: str, result: TargetResult, binding: BindingReport, bound: Sequence[Slot]) -> _Call:
    """The call of the user's function with what was bound, and TODO for what was not."""
    module, _, qualname = ref.rpartition(":")
    head, _, method = qualname.partition(".")
    places: dict[str, _Place] = {}
    for slot in bound:
        _put(places, slot.path, slot.meaning)
    for slot in binding.slots:
        if slot.how in ("bind", "settings", "documented default", "intent", "attribute") and slot not in bound:
            _put(places, slot.path, _literal(slot.form))
    for path in binding.open:
        _put(places, path, "TODO")
    me = places.pop("self", None)
    given = [f"{_argument(name)}={place.text()}" for name, place in places.items() if not place.left_out]
    texts = [place.text() for place in (*places.values(), *([me] if me else []))]
    target = qualname
    if method and me is not None:
        target, given = f"{head}.{method}", [me.text(), *given]
    elif method:
        target = f"{head}.{method}"
    imports = [*_import(module, head, result)]
    if any("SimpleNamespace(" in t for t in texts):
        imports.insert(0, "from types import SimpleNamespace")
        imports.insert(1, "")
    if any("TODO" in t for t in texts):
        imports += ["", "TODO = ...  # replace it: what goes there is not known"]
    body = _written(f"{target}({', '.join(given)})", target, given, _part(binding.returns))
    return _Call(imports=imports, body=body, open=tuple(clean(o) for o in binding.open))


def _written(whole: str, target: str, given: Sequence[str], part: str) -> list[str]:
    line = f"return {whole}{part}"
    if len(line) + 4 <= WIDTH:
        return [line]
    return [f"return {target}(", *(f"    {g}," for g in given), f"){part}"]


def _part(returns: str) -> str:
    """Subscript of the telling part where the function returns several."""
    found = re.search(r"(\w+) element of the returned tuple", returns)
    numbered = re.search(r"number (\d+) element of the returned tuple", returns)
    if numbered:
        return f"[{int(numbered[1]) - 1}]"
    return f"[{_ORDINALS.index(found[1])}]" if found and found[1] in _ORDINALS else ""


def _import(module: str, head: str, result: TargetResult) -> Iterator[str]:
    """The line that imports the user's function from a file below the project's folder."""
    assert result.loaded is not None
    if not module.endswith(".py") and "/" not in module:
        yield f"from {module} import {head}"
        return
    path = PurePosixPath(result.loaded.file or module)
    parts = [*path.parts[:-1], path.stem]
    parts = parts[1:] if len(parts) > 1 and parts[0] == "src" else parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    if parts and all(p.isidentifier() and not keyword.iskeyword(p) for p in parts):
        yield f"from {'.'.join(parts)} import {head}"
        return
    yield "import runpy"
    yield ""
    yield f"{head} = runpy.run_path({str(path)!r})[{head!r}]"


def _argument(name: str) -> str:
    return name


class _Place:
    """An argument: a value, or a container of further places."""

    def __init__(self) -> None:
        self.value = ""
        self.inner: dict[tuple[str, str], _Place] = {}

    @property
    def left_out(self) -> bool:
        return not self.value and not self.inner

    def text(self) -> str:
        if not self.inner:
            return self.value
        each = [p for (kind, _), p in self.inner.items() if kind == "each"]
        if each:
            return "TODO"  # a list of records, which only the user can build
        if all(kind == "attr" for kind, _ in self.inner):
            return f"SimpleNamespace({', '.join(f'{n}={p.text()}' for (_, n), p in self.inner.items())})"
        pairs = [f'"{n}": {p.text()}' for (_, n), p in self.inner.items()]
        return "{" + ", ".join(pairs) + "}"


def _put(places: dict[str, _Place], path: str, value: str) -> None:
    root = re.match(r"\w+", path)
    if root is None:
        return
    place = places.setdefault(root[0], _Place())
    for step in _PATH.finditer(path, root.end()):
        name = ("attr", step["attr"]) if step["attr"] else ("each", "") if step["each"] else ("key", step["key"])
        place = place.inner.setdefault(name, _Place())
    place.value = value


def _literal(form: str) -> str:
    """A value as the report shows it, where that is a plain literal."""
    plain = re.fullmatch(r"None|True|False|-?\d+(\.\d*)?(e-?\d+)?|'[^'\\\n]*'", form)
    return form if plain else "TODO"


# The list of roles


def listing(roles: Sequence[RoleDescription]) -> Iterator[str]:
    """Each role's canonical signature in a few lines."""
    for r in roles:
        needed = [i.name for i in r.inputs if i.needed]
        more = [i.name for i in r.inputs if not i.needed]
        yield f"{r.name} ({r.stage}): {r.asks}"
        yield f"    def {r.name}({', '.join(needed)}) -> {r.returns or 'its result'}"
        if more:
            yield from textwrap.wrap(
                f"may also take {', '.join(more)}", WIDTH, initial_indent="    ", subsequent_indent="        "
            )
