"""Does what was scored before decide what a completion earns?"""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from rltriage_probes.contract import Check
from rltriage_probes.model import CallFailed
from rltriage_probes.reward import answers
from rltriage_probes.reward.answers import GOLDS
from rltriage_probes.reward.exam import STATE, Exam
from rltriage_probes.reward.scoring import Item, same
from rltriage_probes.texts import quote, violates

_FRESH = {"number": ("8675", "8765"), "word": ("walrus", "falcon")}
"""Answers that nothing has been scored with before, two of one length."""


def carried_over(exam: Exam) -> str:
    """Whether a completion that was scored against another gold answer first is scored by what was found then."""
    win = next((w for w in (*exam.best, *exam.suspects) if w.kind.name in _FRESH), None)
    if win is None:
        return _first_wins(exam)
    first, second = _FRESH[win.kind.name]
    usual = exam.scorer.one(win.item(first, first), "fresh")
    other = win.item(second, win.kind.other)
    before = exam.scorer.one(other, "fresh")
    after = exam.scorer.one(win.item(second, second), "fresh")
    if same(after, usual) or math.isnan(after) or not same(usual, win.top):
        return _first_wins(exam)
    return (
        f"{quote(other.text)} earns {before:g} for gold {quote(other.gold)}, and then "
        f"{after:g} for gold {quote(second)}, where {usual:g} is earned"
    )


def _first_wins(exam: Exam) -> str:
    """Whether of two completions for one prompt and gold answer the first one scored decides the second one's reward.

    A cache keyed by the prompt (or by the gold answer) hides behind every prompt that was used before, so each try
    has a prompt and a gold answer of its own.
    """
    if not exam.scorer.graded:
        return ""
    tried = [w.format for w in exam.picks[:2]] or answers.formats(exam.reading, exam.markers)
    unused = itertools.count(3187, 14)
    for f in tried:
        if exam.scorer.late:
            return ""
        right_first = _pair(exam, f, next(unused), right_first=True)
        if right_first is None:
            continue
        wrong_first = _pair(exam, f, next(unused), right_first=False)
        if wrong_first is None:
            continue
        (r, a), (w, b) = right_first
        (w2, c), (r2, d) = wrong_first
        if same(a, b) and same(c, d) and a > c:
            return (
                f"for one prompt {quote(r.text)} earns {a:g} and then the wrong {quote(w.text)} earns {b:g}; for "
                f"another the wrong {quote(w2.text)} earns {c:g} first and then the right {quote(r2.text)} earns {d:g}"
            )
    return ""


def first_in_batch(exam: Exam) -> str:
    """The same inside one batch, for caches that live no longer than a call."""
    if not exam.scorer.graded or not exam.wins:
        return ""
    win, (first, second) = exam.picks[0], (4421, 4463)
    try:
        a = _one_and_others(exam, win.format, first, right_first=True)
        b = _one_and_others(exam, win.format, second, right_first=False)
    except (CallFailed, ValueError):
        return ""
    if not a or not b or len({*a}) > 1 or len({*b}) > 1 or not a[0] > b[0]:
        return ""
    text = win.format.write(str(first))
    return (
        f"completions for one prompt earn what the first of them in a batch does: behind {quote(text)} the wrong "
        f"answers earn {a[-1]:g}, too; with a wrong one in front, right ones behind it earn {b[-1]:g}"
    )


def _one_and_others(exam: Exam, f: answers.Format, number: int, right_first: bool) -> list[float]:
    """Scores of a group whose first completion is right and whose others are wrong, or the other way round."""
    prompt, write = f"How many make up heap {number}?", exam.wins[0].gold.write
    right, wrong = (Item(f.write(str(n)), write(str(number)), prompt) for n in (number, number + 7))
    first, others = (right, wrong) if right_first else (wrong, right)
    scores = exam.scorer.batch([first, *[others] * (max(2, exam.scorer.group) - 1)])
    return [] if scores is None or any(math.isnan(s) for s in scores) else scores


def _pair(
    exam: Exam, f: answers.Format, number: int, right_first: bool
) -> tuple[tuple[Item, float], tuple[Item, float]] | None:
    """A right and a wrong completion for one new prompt and gold answer, scored one after the other."""
    prompt, gold = f"How many make up heap {chr(97 + number % 23)}{number % 19}?", str(number)
    write = exam.wins[0].gold.write if exam.wins else GOLDS[0].write
    try:
        items = [Item(f.write(gold), write(gold), prompt), Item(f.write(str(number + 7)), write(gold), prompt)]
    except ValueError:
        return None
    first, second = items if right_first else items[::-1]
    a = exam.scorer.peek(first)
    b = exam.scorer.peek(second)
    return None if math.isnan(a) or math.isnan(b) else ((first, a), (second, b))


def reseeds(exam: Exam) -> Iterator[Check]:
    """Does a call put the process's random generators into a fixed state?"""
    if not re.search(r"seed", exam.reading.code):
        return
    for name, get, seed, restore in _generators():
        kept = get()
        states: list[Any] = []
        try:
            for start in (1, 2):
                seed(start)
                exam.scorer.peek(Item("So it is 4.", exam.default_gold()))
                states.append(get())
        finally:
            restore(kept)
        if repr(states[0]) == repr(states[1]):
            says = f"a call sets the state of {name}, which the whole process shares: samplers draw the same again"
            asks = "does it leave the random generators of the process alone?"
            yield violates("reward.reseeds", asks, says, STATE, severity="soft")
            return


def _generators() -> Iterator[tuple[str, Callable[[], Any], Callable[[int], Any], Callable[[Any], Any]]]:
    yield "`random`", random.getstate, random.seed, random.setstate
    torch = sys.modules.get("torch")
    if torch is not None:
        yield (
            "torch's generator",
            lambda: torch.get_rng_state().tolist(),
            torch.manual_seed,
            lambda s: torch.set_rng_state(torch.tensor(s, dtype=torch.uint8)),
        )
