"""Asking an answer extractor: one text or many, what came out of it, and in which formats it finds an answer."""

from __future__ import annotations

import ast
import math
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.model import CallFailed, Subject
from rltriage_probes.reading import Markers, Reading
from rltriage_probes.reward import answers
from rltriage_probes.reward.answers import KINDS, REASONING, Format, Kind
from rltriage_probes.texts import fields, rows

clock = time.monotonic
SEARCH_SECONDS = 10.0
MAX_VARIANTS = 4
"""Values of a parameter that chooses the way of extracting, each of which is examined."""

CODE = Kind(
    name="code", gold="def add(a, b):\n    return a + b", other="def sub(a, b):\n    return a - b", wrong=("x = 1",)
)
_CODE_FORMATS = (
    Format("fenced Python", f"{REASONING}\n```python\n@\n```"),
    Format("code fence", f"{REASONING}\n```\n@\n```"),
    Format("fenced Python, text behind", "```python\n@\n```\nThis adds them."),
)
_FRACTION = re.compile(r"(-?)\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}|(-?)(\d+)/(\d+)")


@dataclass(frozen=True)
class Found:
    """What came out of one text."""

    value: Any

    @property
    def atoms(self) -> tuple[str | float, ...]:
        """Texts and numbers in the result. Flags are none of them."""
        return tuple(_atoms(self.value))

    @property
    def nothing(self) -> bool:
        return not any(_unboxed(a.strip()).strip() if isinstance(a, str) else not math.isnan(a) for a in self.atoms)

    @property
    def text(self) -> str:
        """The first text of the result; a number as Python prints it."""
        return next((a if isinstance(a, str) else f"{a:g}" for a in self.atoms), "")

    def holds(self, answer: str) -> bool:
        return any(equal(a, answer) for a in self.atoms)


def _atoms(value: Any) -> Iterator[str | float]:
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 1))() == 1:
        value = value.item()
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool) or value is None:
        return
    elif isinstance(value, (int, float)):
        yield _float(value)
    elif (inner := fields(value)) is not None:
        for v in inner.values():
            yield from _atoms(v)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for v in value:  # pyright: ignore[reportUnknownVariableType]
            yield from _atoms(v)
    elif re.match(r"decimal|fractions|sympy|numpy", type(value).__module__):
        yield str(value)


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def equal(atom: str | float, answer: str) -> bool:
    """Whether a part of a result is this answer, as text in any case or as a number."""
    if isinstance(atom, str):
        atom = _unboxed(atom.strip())
        if atom.casefold() == answer.strip().casefold():
            return True
    a, b = worth(atom), worth(answer)
    return a is not None and b is not None and abs(a - b) <= 1e-9 * max(1.0, abs(b))


def _unboxed(text: str) -> str:
    """What a box holds, for functions that give the box along with it."""
    return text[len("\\boxed{") : -1] if text.startswith("\\boxed{") and text.endswith("}") else text


def worth(text: str | float) -> float | None:
    """The number that a text writes, if it does."""
    if not isinstance(text, str):
        return text
    plain = text.strip().strip("$").replace(",", "").rstrip("%").strip()
    found = _FRACTION.fullmatch(plain)
    if found:
        sign, top, bottom = (found[1], found[2], found[3]) if found[3] else (found[4], found[5], found[6])
        return None if int(bottom) == 0 else int(f"{sign}{top}".replace("--", "")) / int(bottom)
    try:
        return float(plain) if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", plain, re.I) else None
    except ValueError:
        return None


class Extractor:
    """The user's function as `text -> Found`."""

    def __init__(self, subject: Subject, call: Any = None) -> None:
        self._call = call or subject.bound.call_raw
        names = subject.bound.names
        self.many = bool(names & {"completions", "texts"}) and not names & {"completion", "text"}
        self.prompted = bool(names & {"prompt", "prompts"})
        self.failures: list[tuple[str, str, CallFailed]] = []
        self._started = clock()
        self.prefix = ""
        """Header of the model's turn, where the function wants the whole transcript."""

    @property
    def late(self) -> bool:
        return clock() - self._started > SEARCH_SECONDS

    def one(self, text: str, prompt: str = "") -> Found:
        """Extract from one text alone. Raises `CallFailed`."""
        value = self._call(self._inputs([self.prefix + text], prompt))
        if self.many:
            alone = rows(value, 1)
            return Found(alone[0] if alone else value)
        return Found(value)

    def peek(self, text: str, name: str = "") -> Found | None:
        """As `one`; an exception is kept under `name`, and gives None."""
        try:
            return self.one(text)
        except CallFailed as e:
            self.failures.append((name, text, e))
            return None

    def batch(self, texts: Sequence[str]) -> list[Found] | None:
        """All in one call; None where another number of results came back. Raises `CallFailed`."""
        got = rows(self._call(self._inputs([self.prefix + t for t in texts], "")), len(texts))
        return None if got is None else [Found(g) for g in got]

    def _inputs(self, texts: Sequence[str], prompt: str) -> dict[str, Any]:
        one, many = texts[0], list(texts)
        n = len(many)
        return {
            "completion": one, "text": one, "completions": many, "texts": many, "prompt": prompt,
            "prompts": [prompt] * n, "answer": "142", "answers": ["142"] * n,
        }  # fmt: skip


@dataclass(frozen=True)
class Win:
    """A format in which the answer comes out."""

    kind: Kind
    format: Format

    @property
    def parts(self) -> tuple[str, str]:
        """What stands in front of the answer and behind it."""
        before, _, after = self.format.text.partition("@")
        return before, after

    @property
    def closed(self) -> bool:
        """Whether a marker ends the answer: a closing tag, brace or fence."""
        return bool(re.match(r"\s*(</|\}|```|\]\]|\$)", self.parts[1]))

    @property
    def marked(self) -> bool:
        return bool(re.search(r"[<#{\[`*]|[A-Z]\w*:", self.parts[0][-30:]))


@dataclass
class Exam:
    """One extractor under examination."""

    extractor: Extractor
    reading: Reading
    markers: Markers
    wins: list[Win] = field(default_factory=list)

    @property
    def doc(self) -> str:
        return self.reading.doc

    @property
    def picks(self) -> list[Win]:
        """Of each kind the first format that has a marker, and the plainest one."""
        picks: dict[tuple[str, str], Win] = {}
        for kind in dict.fromkeys(w.kind.name for w in self.wins):
            own = [w for w in self.wins if w.kind.name == kind and w.format.text != "@"]
            marked = [w for w in own if w.marked] or own
            for w in (*marked[:1], *sorted(marked, key=lambda w: len(w.format.text))[:1]):
                picks[kind, w.format.text] = w
        return list(picks.values())

    def of(self, kind: str) -> list[Win]:
        return [w for w in self.picks if w.kind.name == kind]


_HEADERS = ("Assistant:", "<|im_start|>assistant\n", "<|start_header_id|>assistant<|end_header_id|>\n\n", "[/INST]")


def headers(reading: Reading) -> tuple[str, ...]:
    """Headers of the model's turn that the function looks for in a whole transcript."""
    texts = "\n".join(reading.strings)
    known = [h for h in _HEADERS if h.strip() in texts]
    known += [
        s for s in reading.strings if re.fullmatch(r"(#+ )?(Response|Assistant|Output)\s*:?\s*", s) and s not in known
    ]
    return tuple(f"User: Which one is it?\n{h}" for h in dict.fromkeys(known))


def search(exam: Exam) -> None:
    """Fill `exam.wins`, with the header of a transcript in front where nothing is found without."""
    for prefix in ("", *headers(exam.reading)):
        exam.extractor.prefix = prefix
        exam.wins += _wins(exam)
        if any(w.format.text != "@" for w in exam.wins):
            return
    exam.extractor.prefix = ""


def _wins(exam: Exam) -> Iterator[Win]:
    tried = answers.formats(exam.reading, exam.markers)
    if "boxed" in exam.reading.code:
        tried = (*tried, Format("a box and nothing else", "\\boxed{@}"))
    spread = [(kind, f) for kind in KINDS for f in tried] + [(CODE, f) for f in _CODE_FORMATS]
    for kind, f in spread:
        if exam.extractor.late:
            return
        got, other = exam.extractor.peek(f.write(kind.gold)), exam.extractor.peek(f.write(kind.other))
        if got is not None and other is not None and got.holds(kind.gold) and other.holds(kind.other):
            yield Win(kind, f)


# Ways to extract that a parameter chooses


def variants(reading: Reading) -> list[dict[str, str]]:
    """Other values of a parameter with a default, as the code compares it with strings."""
    try:
        tree = ast.parse(reading.code)
    except SyntaxError:
        return []
    functions = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    node = next((n for n in functions if n.name == reading.name), None)
    if node is None:
        return []
    found: list[dict[str, str]] = []
    arguments = [*node.args.posonlyargs, *node.args.args]
    pairs = [*zip(arguments[len(arguments) - len(node.args.defaults) :], node.args.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if d is not None]
    for argument, default in pairs:
        if isinstance(default, ast.Constant) and isinstance(default.value, str):
            others = [v for v in _compared(node, argument.arg) if v != default.value]
            found += [
                {argument.arg: v} for v in others if default.value in _compared(node, argument.arg) or len(others) == 1
            ]
    return found[:MAX_VARIANTS]


def _compared(node: ast.AST, name: str) -> list[str]:
    """Strings with which a name is compared."""
    values: list[str] = []
    for n in ast.walk(node):
        if isinstance(n, ast.Compare) and isinstance(n.left, ast.Name) and n.left.id == name:
            for right in n.comparators:
                inside = right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else [right]
                values += [e.value for e in inside if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        elif isinstance(n, ast.Match) and isinstance(n.subject, ast.Name) and n.subject.id == name:
            for case in n.cases:
                if isinstance(case.pattern, ast.MatchValue) and isinstance(case.pattern.value, ast.Constant):
                    values.append(str(case.pattern.value.value))
    return list(dict.fromkeys(values))
