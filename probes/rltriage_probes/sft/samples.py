"""Training samples whose every token is known, and the words in which functions take them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rltriage_probes.standins import CHATML, ChatTokenizer

Part = Literal["prompt", "tool", "answer", "tail"]


class Message(dict[str, Any]):
    """A chat message that also answers to ShareGPT's names, `from` and `value`."""

    def __missing__(self, key: str) -> Any:
        if key == "from":
            return {"user": "human", "assistant": "gpt"}.get(self["role"], self["role"])
        if key == "value":
            return self["content"]
        raise KeyError(key)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A stretch of tokens that has to be found again in the result."""

    part: Part
    ids: tuple[int, ...]
    shown: str
    """For messages."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One training sample: the segments in their order, and what is known of the whole."""

    name: str
    segments: tuple[Segment, ...]
    messages: tuple[Message, ...] = ()
    ends: bool = True
    """Whether the sample as given has an end token behind its answers."""

    @property
    def answers(self) -> list[Segment]:
        return [s for s in self.segments if s.part == "answer"]

    @property
    def ids(self) -> list[int]:
        """All ids of a sample that comes as ids."""
        return [i for s in self.segments for i in s.ids]


TURNS: dict[str, tuple[tuple[str, str], ...]] = {
    "one turn": (("user", "Name the capital of Peru."), ("assistant", "Lima is the capital.")),
    "three turns": (
        ("user", "Add two and five."), ("assistant", "The sum is seven."),
        ("user", "Double that now."), ("assistant", "Twice it makes fourteen."),
        ("user", "And the square?"), ("assistant", "Squared it gives 196 in all."),
    ),
    "a system prompt": (
        ("system", "Answer in brief, as a clerk would."), ("user", "When does the office open?"),
        ("assistant", "At nine on weekdays."), ("user", "Whom may I ask?"), ("assistant", "Mrs Quill at desk four."),
    ),
    "a tool": (
        ("user", "Look up the weather."), ("assistant", "I will query the station."),
        ("tool", "wind 12, rain 0, sky overcast"), ("assistant", "Dry but cloudy, with a breeze."),
    ),
}  # fmt: skip
PAIRS = (
    ("Name the capital of Peru.", "Lima is the capital."),
    ("Add two and five.", "The sum is seven, as every child knows by heart."),
    ("Who wrote Emma?", "Jane Austen did."),
)


def conversation(name: str, tokenizer: ChatTokenizer) -> Sample:
    turns = TURNS[name]
    parts: dict[str, Part] = {"assistant": "answer", "tool": "tool"}
    return Sample(
        name=name,
        segments=tuple(_segment(parts.get(role, "prompt"), text, tokenizer) for role, text in turns),
        messages=tuple(Message(role=role, content=text) for role, text in turns),
    )


def pair(i: int, tokenizer: ChatTokenizer) -> Sample:
    prompt, completion = PAIRS[i]
    return Sample(
        name=f"prompt and completion {i + 1}",
        segments=(_segment("prompt", prompt, tokenizer), _segment("answer", completion, tokenizer)),
        messages=(Message(role="user", content=prompt), Message(role="assistant", content=completion)),
        ends=False,
    )


def _segment(part: Part, text: str, tokenizer: ChatTokenizer) -> Segment:
    return Segment(part=part, ids=tuple(tokenizer.encode(text, add_special_tokens=False)), shown=text)


FIRST_ID = 1000
"""Ids of samples that come as ids: each occurs once, so that a token tells where it comes from."""


def numbered(shape: Sequence[Sequence[tuple[Part, int]]], eos: int) -> list[Sample]:
    """Samples of unique ids; each answer ends with the end token."""
    out: list[Sample] = []
    at = FIRST_ID
    for n, parts in enumerate(shape):
        segments: list[Segment] = []
        for part, count in parts:
            own = tuple(range(at, at + count))
            at += count
            shown = f"{part} tokens of sample {n + 1}"
            segments.append(Segment(part=part, ids=(*own, eos) if part == "answer" else own, shown=shown))
        out.append(Sample(name=f"sample {n + 1}", segments=tuple(segments)))
    return out


PLAIN: tuple[tuple[tuple[Part, int], ...], ...] = (
    (("prompt", 3), ("answer", 4)),
    (("prompt", 5), ("answer", 1)),
    (("prompt", 2), ("answer", 2)),
)
"""A prompt and an answer each, of unequal lengths."""
SPANNED: tuple[tuple[tuple[Part, int], ...], ...] = (
    (("prompt", 3), ("answer", 2), ("prompt", 4), ("answer", 3), ("tail", 2)),
    (("prompt", 2), ("answer", 4), ("tail", 1)),
    (("prompt", 4), ("answer", 1), ("prompt", 1), ("answer", 2)),
)
"""Several answers a sample, with tokens of the template behind the last one."""


def with_marker(marker: Sequence[int], eos: int) -> list[Sample]:
    """The plain samples with a marker in front of each answer."""
    out: list[Sample] = []
    for s in numbered(PLAIN, eos):
        prompt, answer = s.segments
        longer = Segment(part="prompt", ids=(*prompt.ids, *marker), shown=prompt.shown)
        out.append(Sample(name=s.name, segments=(longer, answer)))
    return out


def spans(sample: Sample, inclusive: bool) -> list[tuple[int, int]]:
    """(start, stop) of each answer; stop is its last token where `inclusive`."""
    out: list[tuple[int, int]] = []
    at = 0
    for s in sample.segments:
        if s.part == "answer":
            out.append((at, at + len(s.ids) - (1 if inclusive else 0)))
        at += len(s.ids)
    return out


def trained(sample: Sample) -> list[int]:
    return [int(s.part == "answer") for s in sample.segments for _ in s.ids]


def columns(samples: Sequence[Sample], *, inclusive: bool = False) -> dict[str, Any]:
    """The words of samples that come as ids."""
    return {
        "sample_ids": [s.ids for s in samples],
        "prompt_id_lists": [_before(s) for s in samples],
        "completion_id_lists": [s.ids[len(_before(s)) :] for s in samples],
        "label_lists": [[i if t else -100 for i, t in zip(s.ids, trained(s), strict=True)] for s in samples],
        "mask_lists": [trained(s) for s in samples],
        "attention_lists": [[1] * len(s.ids) for s in samples],
        "prompt_lengths": [len(_before(s)) for s in samples],
        "sample_lengths": [len(s.ids) for s in samples],
        "answer_spans": [spans(s, inclusive) for s in samples],
    }


def _before(sample: Sample) -> list[int]:
    """Ids in front of the first answer."""
    out: list[int] = []
    for s in sample.segments:
        if s.part == "answer":
            break
        out += s.ids
    return out


RESPONSE = "### Response:\n"
INSTRUCTION = "### Question:\n"


def templated(i: int, tokenizer: ChatTokenizer, instruction: str, response: str) -> tuple[Sample, str]:
    """A prompt and a completion with markers of plain text between them, and the whole text."""
    sample = pair(i, tokenizer)
    prompt, completion = PAIRS[i]
    text = f"{instruction}{prompt}\n\n{response}{completion}{tokenizer.eos_token}"
    return Sample(name=sample.name, segments=sample.segments, messages=sample.messages), text


def tokenizer_for(source: str, *, pad_is_eos: bool, style: str = CHATML) -> ChatTokenizer:
    """A tokenizer whose special tokens are those that the code is written with."""
    import re

    markers = dict.fromkeys(re.findall(r"<\|[A-Za-z_0-9]+\|>|</?(?:s|start_of_turn|end_of_turn|bos|eos|sep)>", source))
    return ChatTokenizer(style, pad_is_eos=pad_is_eos, markers=tuple(markers))
