"""The part of `decode` that starts from a conversation: whose turns reach the grader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rltriage_probes.contract import Check, Raised
from rltriage_probes.generation.contracts import Contract
from rltriage_probes.generation.tokens import TOOL
from rltriage_probes.model import CallFailed, Pitfall, Subject
from rltriage_probes.reading import prose
from rltriage_probes.texts import Text, agrees, quote, violates

_BLANK = Pitfall(
    id="DEC-BLANK", family="decode-blank", says="turns conversations that a person can read into empty text"
)
_RAISES = Pitfall(id="DEC-RAISES", family="reward-exception", says="raises on conversations that agents do have")
_QUESTION, _TOOL_TEXT, _CALL, _LAST = "Which city is it?", "wombat returned 7", "I look it up.", "It is Lima."
_SPEAKS_OF_TOOLS = prose(r"\btools?\b|\bobservations?\b|\benvironment\b")


def example() -> list[dict[str, Any]]:
    """A conversation with a tool call in the middle."""
    return [
        {"role": "user", "content": _QUESTION},
        {"role": "assistant", "content": _CALL},
        {"role": "tool", "content": _TOOL_TEXT},
        {"role": "assistant", "content": _LAST},
    ]


def run(subject: Subject, contract: Contract) -> Iterator[Check]:
    """Checks of a function that takes a conversation."""
    try:
        text = Text(subject.bound.call_raw({"messages": example()}))
    except CallFailed as e:
        outcome = Raised(error=e.error, where=e.where, case="a conversation with a tool call in the middle")
        yield Check(probe="decode.raises", asks="does it take a conversation?", outcome=outcome)
        return
    given = f"a conversation that ends in {_LAST!r} gives {quote(text.value)}"
    probe, asks = "decode.answer", "does the last turn of the assistant reach the grader?"
    if _LAST in text.text:
        yield agrees(probe, asks, "the last turn of the assistant is in the text")
    else:
        says = f"the last turn of the assistant is not in the text: {given}"
        asked = contract.extracts or contract.only_reasoning
        yield violates(probe, asks, says, _BLANK, severity="soft" if asked else "hard")
    yield _whose(text, contract, given, subject)
    yield _odd_turns(subject)


def _whose(text: Text, contract: Contract, given: str, subject: Subject) -> Check:
    probe, asks = "decode.mask", "does only what the policy wrote reach the grader?"
    if _TOOL_TEXT in text.text:
        sure = contract.policy_only and _SPEAKS_OF_TOOLS.search(subject.doc)
        ask = "; the docstring promises what the policy wrote" if sure else ". Is the grader to see it?"
        says = f"tool output is in the text: {given}{ask}"
        return violates(probe, asks, says, TOOL, severity="hard" if sure else "soft")
    if _QUESTION in text.text and contract.completion_only:
        return violates(probe, asks, f"the prompt is in the text: {given}", TOOL)
    return agrees(probe, asks, "tool output is not in the text")


def _odd_turns(subject: Subject) -> Check:
    """Turns without content, as those that only call a tool have it, and conversations that were cut off."""
    probe, asks = "decode.raises", "does every conversation come through without an exception?"
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    silent = {"role": "assistant", "content": None, "tool_calls": [call]}
    user, _, tool, last = example()
    odd: tuple[tuple[str, list[dict[str, Any]]], ...] = (
        ("a turn with a tool call and no content", [user, silent, tool, last]),
        ("a conversation that ends with the tool", example()[:3]),
        ("a conversation without a turn of the assistant", [user]),
        ("an empty conversation", []),
    )
    for what, messages in odd:
        try:
            subject.bound.call_raw({"messages": messages})
        except CallFailed as e:
            says = f"raises on {what}: {e.error} at {e.where}"
            return violates(probe, asks, f"{says}. Can there be such conversations?", _RAISES, severity="soft")
    return agrees(probe, asks, "turns without content and conversations that were cut off come through")
