"""What a user's text function says about itself: its strings, the helpers it calls, its prose.

Text functions are not formulas: which markers they look for and which answer format they accept stands
in their literals, their regular expressions and their docstring. Nothing here runs the function.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rltriage_probes.model import Subject

try:
    from re import _parser as _regex_parser  # pyright: ignore[reportAttributeAccessIssue]  Python 3.11 and later
except ImportError:
    import sre_parse as _regex_parser  # pyright: ignore[reportMissingImports]

MAX_HELPERS = 40
"""Functions followed from one target; a bound, not a measure."""
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything textual that can be known of a function without calling it."""

    name: str
    doc: str
    code: str
    """Source of the function and of the helpers it reaches in its own file."""
    prose: str
    """Docstring and comments, line breaks flattened."""
    strings: tuple[str, ...]
    """String literals and regular expressions that it can reach, without docstrings."""
    named: dict[str, str]
    """Strings with a name: constants, defaults of parameters."""
    parameters: tuple[str, ...]
    reads: frozenset[str]
    """Names that the function's body loads."""


def read(subject: Subject) -> Reading:
    """Read the function of `subject`; every field may be empty where there is no source."""
    root = _parse(subject.source)
    function = next((n for n in ast.walk(root) if isinstance(n, _Function)), None)
    file = subject.file or subject.loaded.file
    reached, strings, named = _reach(function, _module_tree(file), subject.namespace, Path(file).parent)
    code = "\n".join([subject.source, *(ast.unparse(f) for f in reached)])
    doc = subject.doc or (ast.get_docstring(function) or "" if function else "")
    return Reading(
        name=function.name if function else "",
        doc=doc,
        code=code,
        prose=flat(doc + "\n" + "\n".join(_comments(subject.source))),
        strings=tuple(dict.fromkeys(strings)),
        named=named,
        parameters=_parameters(function),
        reads=frozenset(n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        if function
        else frozenset(),
    )


def flat(text: str) -> str:
    """`text` on one line."""
    return re.sub(r"\s+", " ", text).strip()


def sentences(doc: str) -> tuple[str, ...]:
    """The statements of a docstring: sentences, list items and `a -> b` rows, each on one line."""
    rows = re.split(r"(?<=[.;])\s+|\n\s*\n|\n\s*[-*•]\s+|\n(?=[^\n]*(?:->|→|=>|:\s))", doc)
    return tuple(flat(r) for r in rows if r.strip())


def unescaped(pattern: str) -> str:
    r"""A regular expression as the text it matches, roughly: `\[THINK\]` becomes `[THINK]`."""
    return re.sub(r"\\([^\w\s])", r"\1", pattern)


def prose(pattern: str) -> re.Pattern[str]:
    """A pattern for prose, any case. In it `[^.;]` stays inside a sentence and lets decimal points pass."""
    return re.compile(pattern.replace("[^.;]", r"(?:[^.;]|\.(?=\d))"), re.I)


def _parse(source: str) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(source))
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _module_tree(file: str) -> ast.AST:
    try:
        return _parse(Path(file).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return _parse("")


def _comments(source: str) -> Iterator[str]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(textwrap.dedent(source)).readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")
    except (tokenize.TokenError, IndentationError, SyntaxError):
        return


def _parameters(function: ast.AST | None) -> tuple[str, ...]:
    if not isinstance(function, _Function):
        return ()
    a = function.args
    return tuple(p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs))


def _docstrings(tree: ast.AST) -> set[int]:
    """Identity of the constant nodes that are docstrings."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (*_Function, ast.ClassDef, ast.Module)) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                found.add(id(first.value))
    return found


def _literals(tree: ast.AST) -> Iterator[str]:
    skip = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in skip and isinstance(node.value, (str, bytes)):
            yield node.value if isinstance(node.value, str) else node.value.decode("utf-8", "replace")


def _defaults(function: ast.AST) -> Iterator[tuple[str, str]]:
    if not isinstance(function, _Function):
        return
    a = function.args
    positional = (*a.posonlyargs, *a.args)
    pairs: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True)
    ]
    pairs += zip(a.kwonlyargs, a.kw_defaults, strict=True)
    for parameter, value in pairs:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield parameter.arg, value.value


def _reach(
    function: ast.AST | None, module: ast.AST, live: Mapping[str, Any], folder: Path
) -> tuple[list[ast.AST], list[str], dict[str, str]]:
    """Helpers, strings and named strings that `function` can reach through names."""
    if function is None:
        return [], [], {}
    functions = {n.name: n for n in ast.walk(module) if isinstance(n, _Function)}
    constants = dict(_assignments(module))
    imports = dict(_imports(module))
    reached: list[ast.AST] = []
    strings = list(_literals(function))
    named = dict(_defaults(function))
    init = functions.get("__init__") if "self" in _parameters(function) else None
    queue: list[ast.AST] = [function, *([init] if init else [])]
    seen: set[str] = {getattr(function, "name", "")}
    while queue and len(reached) < MAX_HELPERS:
        for name in _names(queue.pop(0)):
            if name in seen:
                continue
            seen.add(name)
            if name in functions:
                helper = functions[name]
                reached.append(helper)
                queue.append(helper)
                strings += _literals(helper)
                named.update(_defaults(helper))
            for text in _values(name, constants, imports, live, folder):
                strings.append(text)
                named.setdefault(name, text)
            if name in constants:
                queue.append(constants[name])
    if init:
        strings += _literals(init)
        named.update(_defaults(init))
    return reached, strings, named


def _names(node: ast.AST) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Name):
            yield n.id
        elif isinstance(n, ast.Attribute):
            yield n.attr


def _assignments(module: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef | ast.Module):
            for statement in node.body:
                if isinstance(statement, ast.Assign):
                    for target in statement.targets:
                        names = target.elts if isinstance(target, ast.Tuple) else [target]
                        yield from ((t.id, statement.value) for t in names if isinstance(t, ast.Name))
                elif (
                    isinstance(statement, ast.AnnAssign) and statement.value and isinstance(statement.target, ast.Name)
                ):
                    yield statement.target.id, statement.value


def _imports(module: ast.AST) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, (node.module, alias.name)


def _values(
    name: str, constants: dict[str, ast.AST], imports: dict[str, tuple[str, str]], live: Mapping[str, Any], folder: Path
) -> Iterator[str]:
    """Strings behind a name: as it is in the imported module, else as the text of the files shows it."""
    if name in constants:
        yield from _literals(constants[name])
    if name in live:
        yield from _strings_of(live[name])
    elif name in imports:
        module, original = imports[name]
        beside = _module_tree(str(folder.joinpath(*module.split(".")).with_suffix(".py")))
        value = dict(_assignments(beside)).get(original)
        if value is not None:
            yield from _literals(value)


def _strings_of(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str) and len(value) < 2_000:
        yield value
    elif isinstance(value, re.Pattern) and isinstance(value.pattern, str):
        yield value.pattern
    elif depth < 2 and isinstance(value, (list, tuple, set, frozenset)) and len(value) < 50:
        for v in value:
            yield from _strings_of(v, depth + 1)
    elif depth < 2 and isinstance(value, dict) and len(value) < 50:
        yield from _strings_of([*value.keys(), *value.values()], depth + 1)


# Markers


REASONING = "think thinking thought thoughts reasoning reason scratchpad analysis cot reflection rationale".split()
ANSWER = "answer final final_answer response output solution result conclusion".split()


@dataclass(frozen=True)
class Pair:
    """Opening and closing marker of a block."""

    open: str
    close: str


@dataclass(frozen=True, kw_only=True)
class Markers:
    """Markers that a function looks for. `reasoning` is never empty: the usual tags stand in."""

    reasoning: Pair
    assumed: bool
    """Whether `reasoning` is the usual pair because the function names none."""
    answer: tuple[Pair, ...]
    stops: tuple[str, ...]
    """Other strings that may cut or remove text, e.g. stop strings."""


_SHAPES = (
    ("<{}>", "</{}>"), ("[{}]", "[/{}]"), ("<|{}|>", "<|/{}|>"), ("◁{}▷", "◁/{}▷"),
    ("<|begin_of_{}|>", "<|end_of_{}|>"), ("<|{}_start|>", "<|{}_end|>"), ("<|start_{}|>", "<|end_{}|>"),
    ("<|START_{}|>", "<|END_{}|>"), ("<{}_start>", "<{}_end>"), ("<begin_{}>", "<end_{}>"), ("{{{}}}", "{{/{}}}"),
)  # fmt: skip


def markers(reading: Reading) -> Markers:
    """The markers that the function's literals, constants and defaults spell out."""
    texts = [unescaped(s).replace("/?", "/") for s in reading.strings]
    joined = "\n".join(texts)
    templated = bool(re.search(r"f['\"].*<.*\{|<\{\}>|<%s>", reading.code))
    reasoning = _harmony(joined) or _named_pair(reading) or _spelled(REASONING, joined, texts, templated)
    answer = tuple(p for p in _all_spelled(ANSWER, joined, texts, templated))
    taken = {reasoning.open, reasoning.close} if reasoning else set[str]()
    taken |= {m for p in answer for m in (p.open, p.close)}
    stops = tuple(t for t in texts if t.strip() and not any(t in m or m in t for m in taken))
    return Markers(
        reasoning=reasoning or Pair("<think>", "</think>"), assumed=reasoning is None, answer=answer, stops=stops
    )


def _harmony(joined: str) -> Pair | None:
    if "<|channel|>" not in joined and "<|message|>" not in joined:
        return None
    return Pair("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>")


def _named_pair(reading: Reading) -> Pair | None:
    """Constants and defaults called `..._open`/`start` and `..._close`/`end`."""
    opens = {k: v for k, v in reading.named.items() if re.search(r"open|start|begin|bot\b|bot_", k, re.I)}
    closes = {k: v for k, v in reading.named.items() if re.search(r"close|end(?!s)|stop|eot\b|eot_", k, re.I)}
    about = re.compile("think|thought|reason|cot|tag|marker|open|close|bot|eot", re.I)
    for name, start in opens.items():
        for other, stop in closes.items():
            plain = start and stop and start != stop and max(len(start), len(stop)) <= 60
            if plain and about.search(name) and about.search(other) and not _is_answer(start):
                return Pair(start, stop)
    return None


def _is_answer(marker: str) -> bool:
    return bool(re.search("answer|final|solution|response|output", marker, re.I))


def _spelled(words: Iterable[str], joined: str, texts: list[str], templated: bool) -> Pair | None:
    return next(_all_spelled(words, joined, texts, templated), None)


def _all_spelled(words: Iterable[str], joined: str, texts: list[str], templated: bool) -> Iterator[Pair]:
    for word in words:
        for spelling in (word, word.upper(), word.capitalize(), f"seed:{word}"):
            for start, stop in _SHAPES:
                pair = Pair(start.format(spelling), stop.format(spelling))
                bracket = start.startswith(("[", "{"))
                if pair.close in joined or (pair.open in joined and not bracket):
                    yield pair
        hidden = re.search(rf"<[^<>\n]{{0,30}}\b{word}\b[^<>\n]{{0,30}}>", joined) and f"<{word}" not in joined
        if (templated and word in texts) or hidden:
            yield Pair(f"<{word}>", f"</{word}>")


# Regular expressions as examples


def sample(pattern: str, hole: str, filler: str) -> str | None:
    """A text that a regular expression matches: `hole` for its last group, `filler` for the other free parts.

    `None` where it is no expression with something fixed in it. What comes out is only a guess: lookarounds and
    back references are passed over.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = _regex_parser.parse(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    last = parsed.state.groups - 1
    text = _sampled(parsed, last, hole, filler)
    fixed = text.replace(hole, "").replace(filler, "") if hole else text.replace(filler, "")
    return text if fixed.strip() and len(text) < 500 else None


def _sampled(parsed: Any, last: int, hole: str, filler: str) -> str:
    return "".join(_piece(str(op), value, last, hole, filler) for op, value in parsed)


def _piece(op: str, value: Any, last: int, hole: str, filler: str) -> str:
    if op == "LITERAL":
        return chr(value)
    if op == "IN":
        return _member(value)
    if op == "BRANCH":
        return _sampled(value[1][0], last, hole, filler)
    if op == "SUBPATTERN":
        return hole if value[0] == last and hole else _sampled(value[3], last, hole, filler)
    if op in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return _repeated(value, last, hole, filler)
    return ""


def _repeated(value: Any, last: int, hole: str, filler: str) -> str:
    least, most, inner = value
    ops = [str(op) for op, _ in inner]
    if ops == ["ANY"] or (ops == ["IN"] and _member(inner[0][1]) == "") or ops == ["NOT_LITERAL"]:
        return filler if most > 1 else ""
    return _sampled(inner, last, hole, filler) * min(least, 20)


def _member(items: Any) -> str:
    """One member of a character class; nothing for a negated one."""
    kinds = {str(op) for op, _ in items}
    if "NEGATE" in kinds:
        return ""
    categories = {str(v) for op, v in items if str(op) == "CATEGORY"}
    if "CATEGORY_SPACE" in categories:
        return "" if "CATEGORY_NOT_SPACE" in categories else " "
    if categories & {"CATEGORY_DIGIT", "CATEGORY_WORD"}:
        return "4"
    ranges = [chr(v[0]) for op, v in items if str(op) == "RANGE"]
    return next(iter(ranges), "") or next((chr(v) for op, v in items if str(op) == "LITERAL"), "")
