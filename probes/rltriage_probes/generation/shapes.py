"""Completions as models write them: the shapes that a decoder has to survive."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from rltriage_probes.reading import Markers, Pair

INNER = "quokka"
"""Word that occurs in the reasoning and nowhere else."""
THOUGHTS = f"The {INNER} adds them up.\nTwo and two make four."
LINE = f"The {INNER} adds two and two."


@dataclass(frozen=True)
class Shape:
    """A completion and the part of it that a person would call the answer."""

    name: str
    raw: str
    answer: str
    inner: str = ""
    """A word of the reasoning, where there is reasoning."""


ANSWERS = (
    "The capital is Lima.",
    "42",
    "3+5",
    "hint of a kin",
    "Sí, naïve 日本語 ✓",
    "First line.\nSecond line.",
    "if a < b and c > d: swap(a, b)",
    "3 < 5 and 7 > 2",
    '{"value": [1, 2]}',
    "  padded answer \n",
    "-17",
    "x² is ½",
    "\\frac{1}{2} \\neq \\text{one}",
    "Part one.\n\nPart two.",
    "def f(x):\n    return x + 1",
)
"""Answers without any marker. `hint of a kin` starts and ends with letters that a tag is made of."""


def _from_letters(markers: Markers) -> Iterator[str]:
    """Answers that start and end with the letters of the markers, for decoders that strip sets of characters."""
    for pair in (markers.reasoning, *markers.answer[:1]):
        letters = "".join(dict.fromkeys(c for c in pair.close if c.isalpha()))[::-1]
        if letters:
            yield f"{letters[:3]} and {letters[-3:]}"


def unmarked(markers: Markers) -> Iterator[Shape]:
    for answer in (*ANSWERS, *_from_letters(markers)):
        yield Shape("text without markers", answer, answer.strip())


def closed(markers: Markers, wrap: Pair | None = None) -> Iterator[Shape]:
    """Reasoning, closed, then an answer (inside `wrap` where the decoder extracts a block)."""
    p = markers.reasoning
    for answer in (*ANSWERS, *_from_letters(markers)):
        body = f"{wrap.open}{answer}{wrap.close}" if wrap else answer
        yield Shape(
            "closed block, then the answer", f"{p.open}\n{THOUGHTS}\n{p.close}\n\n{body}", answer.strip(), INNER
        )


def closed_on_one_line(markers: Markers, wrap: Pair | None = None) -> Shape:
    p = markers.reasoning
    body = f"{wrap.open}{ANSWERS[0]}{wrap.close}" if wrap else ANSWERS[0]
    return Shape("closed block on one line", f"{p.open}{LINE}{p.close}{body}", ANSWERS[0], INNER)


def close_only(markers: Markers, wrap: Pair | None = None) -> Shape:
    """The opening marker was the end of the prompt, so the model didn't write it."""
    p = markers.reasoning
    body = f"{wrap.open}{ANSWERS[0]}{wrap.close}" if wrap else ANSWERS[0]
    return Shape("close marker only", f"{THOUGHTS}\n{p.close}\n\n{body}", ANSWERS[0], INNER)


def unfinished(markers: Markers) -> Shape:
    return Shape("opened and never closed", f"{markers.reasoning.open}\n{THOUGHTS}", "", INNER)


def degenerate(markers: Markers) -> Iterator[Shape]:
    """Shapes of which only 'does not raise' is asked."""
    p = markers.reasoning
    yield Shape("empty", "", "")
    yield Shape("blanks only", " \n\t ", "")
    yield Shape("open marker only", p.open, "")
    yield Shape("close marker only, nothing else", p.close, "")
    yield Shape("closed block and nothing behind it", f"{p.open}{LINE}{p.close}", "")
    yield Shape("empty block", f"{p.open}{p.close}", "")
    yield Shape("close before open", f"{p.close}{LINE}{p.open}", "")
    yield Shape("two blocks", f"{p.open}{LINE}{p.close}One.{p.open}{LINE}{p.close}Two.", "")
    yield Shape("nested block", f"{p.open}a{p.open}b{p.close}c{p.close}Done.", "")
    yield Shape("half a marker", p.open[: max(1, len(p.open) // 2)], "")
    yield Shape("code fence", "```python\nprint('<b>1</b>')\n```", "")
    for pair in markers.answer:
        yield Shape("answer block opened only", f"{pair.open}Lima", "")
        yield Shape("empty answer block", f"{pair.open}{pair.close}", "")
        yield Shape("answer block closed only", f"Lima{pair.close}", "")


def fair(answer: str, markers: Markers) -> bool:
    """Whether the decoder has no business with this answer: no string that it looks for occurs in it."""
    for stop in markers.stops:
        plain = stop.replace("\\n", "\n").replace("\\r", "\r")
        if plain.strip("\n\r \t") and plain.strip() in answer:
            return False
        if "\n" in plain and "\n" in answer:
            return False
    return True


def two_blocks(markers: Markers, wrap: Pair | None = None) -> Shape:
    """Reasoning, a visible part, reasoning again, and the answer."""
    p = markers.reasoning
    body = f"{wrap.open}{ANSWERS[0]}{wrap.close}" if wrap else ANSWERS[0]
    raw = f"{p.open}First think.{p.close}{BETWEEN}{p.open}{LINE}{p.close}{body}"
    return Shape("two blocks with text between them", raw, ANSWERS[0], INNER)


BETWEEN = "\nA first part.\n"
CALL = '{"name": "add", "arguments": {"a": 2, "b": [3]}}'
"""A tool call as the usual templates write it."""


def tool_call(markers: Markers) -> Shape:
    p = markers.reasoning
    return Shape("a tool call", f"{p.open}{LINE}{p.close}\n<tool_call>\n{CALL}\n</tool_call>", CALL, INNER)


def survival(answer: str, text: str) -> str:
    """How `answer` came through: `exact`, `spacing`, `case`, `form` (Unicode), `damaged` or `gone`."""
    if answer in text:
        return "exact"
    tight, wanted = re.sub(r"\s+", "", text), re.sub(r"\s+", "", answer)
    if wanted in tight:
        return "spacing"
    if wanted.casefold() in tight.casefold():
        return "case"
    if unicodedata.normalize("NFKC", wanted) in unicodedata.normalize("NFKC", tight):
        return "form"
    return "damaged" if text.strip() else "gone"
