"""Answers that differ in one respect only: the plain one survives, so the other one has to.

A decoder may cut the header of the chat template, a stop string, a marker. It may not eat letters of the answer
because they occur in one of these, nor cut at a word that the answer happens to contain. Each pair holds the
surroundings fixed: where the control comes through whole and its twin does not, no convention explains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rltriage_probes.generation.shapes import LINE, survival
from rltriage_probes.reading import Markers, Reading, unescaped

MAX_LITERALS = 8
_CORE = "9Q7"
_ROLES = ("assistant", "user", "system", "model", "human", "bot", "ai", "tool", "response", "output")


@dataclass(frozen=True)
class Twin:
    """A control and an answer that differs from it in `what`, both inside `wrapper` (`@` is the answer's place)."""

    what: str
    wrapper: str
    control: str
    answer: str

    def raw(self, answer: str) -> str:
        return self.wrapper.replace("@", answer)


def literals(reading: Reading, markers: Markers, prompt: str) -> list[str]:
    """Strings that the function may cut off or strip: headers, stop strings, markers, the prompt."""
    pairs = (*(() if markers.assumed else (markers.reasoning,)), *markers.answer)
    texts = [*([prompt] if prompt else []), *markers.stops, *(m for p in pairs for m in (p.open, p.close))]
    plain = [unescaped(t).replace("\\n", "\n") for t in texts if 2 <= len(t) <= 80]
    # a regular expression is not a text that stands in a completion
    return [t for t in dict.fromkeys(plain) if not re.search(r"\.[*+?]|\(\?|\[\^|\\[sdwb]", t)][:MAX_LITERALS]


def twins(reading: Reading, markers: Markers, prompt: str) -> Iterator[Twin]:
    """Pairs for every literal: letters of its own, bare and beside it; role words; the prompt quoted."""
    found = literals(reading, markers, prompt)
    closed = f"{markers.reasoning.open}{LINE}{markers.reasoning.close}@"
    for literal in found:
        for wrapper in dict.fromkeys(("@", closed, f"{literal}@", f"@{literal}", *_between(found, literal))):
            yield from _letters(literal, wrapper)
    for literal in found:
        word = literal.strip("\n :<>|").lower()
        if word in _ROLES:
            for wrapper in dict.fromkeys(("@", f"{literal}@", f"{literal}\n@")):
                twin = f"As the {word} said, it is Lima."
                yield Twin(f"the word {word!r}", wrapper, "As the waiter said, it is Lima.", twin)
    if prompt:
        quoted = f"You ask: {prompt}It is Lima."
        yield Twin("a quotation of the prompt", f"{prompt}@", "You ask: Which one?\nIt is Lima.", quoted)


def _between(found: Sequence[str], literal: str) -> Iterator[str]:
    """The literal in front with another one behind, as header and footer."""
    for other in found:
        if other != literal and not other.startswith("\n"):
            yield f"{literal}@{other}"


def _letters(literal: str, wrapper: str) -> Iterator[Twin]:
    """An answer that starts and ends with letters of the literal, and one that does with others."""
    own = [c for c in dict.fromkeys(literal) if c.isalnum()]
    strange = [c for c in "vxzkqwjy" if c not in literal.lower() and c not in wrapper.replace("@", "").lower()]
    if len(own) < 2 or len(strange) < 2:
        return
    edge = "".join(own[::-1][:4])
    other = "".join(strange[:4])
    if edge in literal or edge[::-1] in literal:
        edge = edge[1:] + edge[0] + edge[1]
    what = f"letters of {literal!r}"
    yield Twin(what, wrapper, f"{other}{_CORE}{other}", f"{edge}{_CORE}{edge}")


def harmed(twin: Twin, control: str, text: str) -> bool:
    """Whether the control came through and its twin did not; both as they came out."""
    fine = survival(twin.control, control) in ("exact", "spacing")
    return fine and survival(twin.answer, text) in ("damaged", "gone")
