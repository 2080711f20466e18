"""What a reward that is given token ids gets to see: the policy's own text, or what tools and padding put beside it."""

from __future__ import annotations

from collections.abc import Iterator

from rltriage_probes.contract import Check
from rltriage_probes.model import CallFailed, Subject
from rltriage_probes.reading import prose
from rltriage_probes.reward.exam import SEES, Exam
from rltriage_probes.texts import agrees, quote, violates

_OWN = prose(
    r"\b(policy|model|agent|assistant)(?:'s)?\s+(itself|own|alone|only|wrote|turns)\b|"
    r"\b(not|never|without|exclud\w*|skip\w*|ignor\w*|no)\b[^.;]{0,30}\b(tools?|observations?|environment)\b|"
    r"\b(tools?|observations?|environment)\b[^.;]{0,40}\b(exclud\w*|masked|skipped|ignored|not (count|score|"
    r"grad|seen)\w*)"
)


def check(exam: Exam, subject: Subject) -> Iterator[Check]:
    """Is a right answer paid that stands in a tool's output only?"""
    names = subject.bound.names
    chats = any("message list" in s.form and s.meaning.startswith("completion") for s in subject.bound.report.slots)
    win = next((w for w in exam.picks if w.kind.name in ("number", "word")), None)
    ids = {"token_ids", "completion_mask"} <= names
    if win is None or not (ids or chats):
        return
    probe, asks = "reward.sees", "does it see only what the policy wrote?"
    right = win.item(win.kind.gold)
    try:
        score = exam.scorer.beside("I will look it up.", right, chats)
    except CallFailed:
        return
    if score is None:
        return
    if score >= win.top - 1e-9:
        where = "a tool's turn" if chats else "tool output only, which the mask leaves out,"
        says = f"an answer that stands in {where} earns {score:g}: {quote(right.text)}"
        yield violates(probe, asks, says, SEES, severity="hard" if _OWN.search(exam.doc) else "soft")
        return
    yield agrees(probe, asks, "an answer in tool output is not paid")
