"""Role `decode`: raw completion, or token ids, to the text that the reward sees.

There is no one right decoder: some strip the reasoning, some keep it, some lay it out. So the probe sends
every shape that a model can emit and judges by what the docstring promises for that branch, and by the few
rules that hold for all of them: text that a person would read doesn't come out blank, and the characters of
the visible answer survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.contract import Check, Raised, Severity
from rltriage_probes.generation import edges, shapes, tokens, turns
from rltriage_probes.generation.contracts import Contract, contract_of
from rltriage_probes.generation.shapes import Shape
from rltriage_probes.model import CallFailed, Case, Pitfall, Role, Subject
from rltriage_probes.reading import Markers, Pair, Reading, markers, read, unescaped
from rltriage_probes.texts import Text, accidental, agrees, moved, quote, rows, strings, violates

BLANK = Pitfall(
    id="DEC-BLANK",
    family="decode-blank",
    says="turns completions that a person can read into empty text, so that their reward is that of silence",
)
STRIP = Pitfall(
    id="DEC-STRIP",
    family="decode-strip",
    says="removes or changes characters of the visible answer along with the markers",
)
LOST = Pitfall(
    id="DEC-REASONING-LOST", family="decode-strip", says="puts something else where the reasoning or the answer belongs"
)
LEAK = Pitfall(
    id="DEC-LEAK", family="decode-strip", says="leaves reasoning in the text that it says it takes the reasoning out of"
)
RAISES = Pitfall(id="DEC-RAISES", family="reward-exception", says="raises on a shape that models do emit")
ORDER = tokens.ORDER
TOOL = tokens.TOOL
PITFALLS = (BLANK, STRIP, LOST, LEAK, RAISES, ORDER, *tokens.PITFALLS)

_TEXT_WORDS = ("text", "completion")
_LIST_WORDS = ("texts", "completions")
_PROMPT = "Name the capital of Peru.\n"


class Decoder:
    """The user's function as `list of raw texts -> list of decoded texts`."""

    def __init__(self, subject: Subject, mk: Markers) -> None:
        self._call = subject.bound.call_raw
        names = subject.bound.names
        self.many = bool(names & set(_LIST_WORDS)) and not names & set(_TEXT_WORDS)
        self._tokenizer = tokens.Tokenizer(mk)
        self._prefix = self.prompt = ""
        if names & {"prompt", "prompts"}:
            self._look_for_prompt()

    def _look_for_prompt(self) -> None:
        """Whether the function cuts the prompt off the front itself, and whether it has to stand there."""
        answer = shapes.ANSWERS[0]
        try:
            whole, bare = self.one(_PROMPT + answer), self.one(answer)
        except CallFailed:
            self._prefix = self.prompt = _PROMPT
            return
        if whole.text.strip() == answer:
            self.prompt = _PROMPT
            self._prefix = _PROMPT if bare.text.strip() != answer else ""

    def exactly(self, raw: str) -> Text:
        """Decode a text that has the prompt in front of it already. Raises `CallFailed`."""
        kept = self._prefix
        self._prefix = "" if raw.startswith(kept) else kept
        try:
            return self.one(raw)
        finally:
            self._prefix = kept

    def one(self, raw: str) -> Text:
        """Decode one completion alone. Raises `CallFailed`."""
        got = self._call(self._inputs([raw]))
        if self.many:
            alone = rows(got, 1)
            return Text(alone[0] if alone else got)
        return Text(got)

    def batch(self, raws: Sequence[str]) -> list[Text] | None:
        """Decode several in one call; `None` where another number of texts came back."""
        got = rows(self._call(self._inputs(raws)), len(raws))
        return None if got is None else [Text(g) for g in got]

    def _inputs(self, raws: Sequence[str]) -> dict[str, Any]:
        full = [self._prefix + r for r in raws]
        return {
            "text": full[0], "completion": full[0], "texts": full, "completions": full,
            "prompt": _PROMPT, "prompts": [_PROMPT] * len(full), "tokenizer": self._tokenizer,
        }  # fmt: skip


@dataclass
class _Exam:
    """One decoder under examination: what it was given and what came back."""

    decoder: Decoder
    reading: Reading
    markers: Markers
    contract: Contract
    failures: list[tuple[Shape, CallFailed]] = field(default_factory=list)

    @property
    def wrap(self) -> Pair | None:
        """Block that holds the answer, where the decoder extracts one."""
        return self.markers.answer[0] if self.markers.answer else None

    def give(self, shape: Shape) -> Text | None:
        """Decode a shape; `None` where the function raised (kept for the check on raising)."""
        try:
            return self.decoder.one(shape.raw)
        except CallFailed as e:
            self.failures.append((shape, e))
            return None

    @property
    def extractor(self) -> bool:
        """Whether text without its markers may well have no answer: it takes out what a marker encloses."""
        return bool(self.markers.answer) or (
            self.markers.assumed and (bool(self.markers.stops) or self.contract.extracts)
        )


def run(subject: Subject) -> Iterator[Check]:
    """All checks of a decoder; text decoders by shape, id decoders by token."""
    reading = read(subject)
    mk = markers(reading)
    names = subject.bound.names
    if "messages" in names and not names & {*_TEXT_WORDS, *_LIST_WORDS}:
        yield from turns.run(subject, contract_of(reading))
        return
    if not names & {*_TEXT_WORDS, *_LIST_WORDS}:
        yield from tokens.run(subject, mk, contract_of(reading))
        return
    exam = _Exam(Decoder(subject, mk), reading, mk, contract_of(reading))
    first = exam.give(Shape("text without markers", shapes.ANSWERS[0], shapes.ANSWERS[0]))
    if first is None and all(exam.give(s) is None for s in (shapes.closed_on_one_line(mk), shapes.close_only(mk))):
        yield _nothing_runs(exam)
        return
    yield from _unmarked(exam)
    yield from _answer(exam)
    yield from _close_only(exam)
    yield from _reasoning(exam)
    yield from _two_blocks(exam)
    yield from _unfinished(exam)
    yield from _edges(exam)
    yield from _tool_call(exam)
    yield from _stop(exam)
    yield _raising(exam)
    yield from _repeatable(exam)


def _nothing_runs(exam: _Exam) -> Check:
    shape, e = exam.failures[0]
    return Check(
        probe="decode.raises",
        asks="does it take text?",
        outcome=Raised(error=e.error, where=e.where, case=f"{shape.name}: {quote(shape.raw)}"),
    )


# Branch by branch


def _unmarked(exam: _Exam) -> Iterator[Check]:
    probe, asks = "decode.unmarked", "does text without any marker reach the reward?"
    got = [(s, t) for s in shapes.unmarked(exam.markers) if (t := exam.give(s)) is not None]
    if not got:
        return
    blank = [(s, t) for s, t in got if t.blank and shapes.fair(s.answer, exam.markers)]
    if exam.contract.unmarked == "empty" or exam.contract.only_reasoning:
        yield agrees(
            probe,
            asks,
            "empty or None for text without its markers, as documented" if blank else "keeps text without markers",
        )
        return
    if blank:
        yield _blanked(exam, probe, asks, blank, len(got))
        return
    damage = list(_damage(exam, got))
    if damage:
        yield _damaged(exam, probe, asks, damage)
    else:
        yield agrees(probe, asks, "keeps text without markers")


def _blanked(exam: _Exam, probe: str, asks: str, blank: list[tuple[Shape, Text]], total: int) -> Check:
    shape, text = blank[0]
    says = (
        f"text without any marker comes out blank: {quote(shape.raw)} gives {quote(text.value)} "
        f"({len(blank)} of {total} plain completions)"
    )
    if exam.contract.unmarked == "text":
        return violates(probe, asks, f"{says}; the docstring promises to keep it", BLANK)
    says_none = all(t.value is None for _, t in blank) and exam.contract.extracts
    if exam.extractor or says_none:
        ask = (
            f"{says}. If completions without {_marker(exam)} count as having no answer, say so "
            "in the docstring; else they get the reward of silence"
        )
        return violates(probe, asks, ask, BLANK, severity="soft")
    return violates(probe, asks, f"{says}; a person would read an answer there", BLANK)


def _marker(exam: _Exam) -> str:
    return repr(exam.wrap.open) if exam.wrap else "its marker"


def _damage(exam: _Exam, got: Sequence[tuple[Shape, Text]]) -> Iterator[tuple[Shape, Text, Severity]]:
    for shape, text in got:
        how = shapes.survival(shape.answer, text.text)
        if how in ("damaged", "gone"):
            fair = shapes.fair(shape.answer, exam.markers) and not exam.contract.markup
            yield shape, text, "hard" if fair else "soft"
        elif how in ("case", "form"):
            yield shape, text, "hard" if exam.contract.verbatim else "soft"
        elif how == "spacing" and exam.contract.verbatim:
            yield shape, text, "hard"


def _damaged(exam: _Exam, probe: str, asks: str, damage: list[tuple[Shape, Text, Severity]]) -> Check:
    hard = [d for d in damage if d[2] == "hard"]
    extracts = exam.extractor and probe == "decode.unmarked"
    shape, text, _ = (hard or damage)[0]
    says = (
        f"the answer does not come through whole: {quote(shape.raw)} gives "
        f"{quote(text.value)}, the answer is {quote(shape.answer)}"
    )
    return violates(probe, asks, says, STRIP, severity="hard" if hard and not extracts else "soft")


def _answer(exam: _Exam) -> Iterator[Check]:
    probe, asks = "decode.answer", "does the answer behind a closed block survive?"
    if exam.contract.only_reasoning:
        return
    got = [(s, t) for s in shapes.closed(exam.markers, exam.wrap) if (t := exam.give(s)) is not None]
    unwrapped = exam.wrap is None and exam.extractor
    blank = [(s, t) for s, t in got if t.blank]
    if blank and unwrapped:
        return  # what it extracts is not known; the unmarked branch has asked already
    if blank and shapes.fair(blank[0][0].answer, exam.markers):
        shape, text = blank[0]
        yield violates(
            probe,
            asks,
            f"the answer behind a closed block is gone: {quote(shape.raw)} gives {quote(text.value)}",
            BLANK,
        )
        return
    damage = list(_damage(exam, got))
    if damage:
        check = _damaged(exam, probe, asks, damage)
        yield check
    elif got:
        yield agrees(probe, asks, "the answer behind a closed block comes through whole")


def _close_only(exam: _Exam) -> Iterator[Check]:
    probe, asks = "decode.close_only", "does it cope with an opening marker that was part of the prompt?"
    shape = shapes.close_only(exam.markers, exam.wrap)
    text = exam.give(shape)
    if text is None or exam.contract.only_reasoning or (exam.extractor and exam.wrap is None):
        return
    given = f"{quote(shape.raw)} gives {quote(text.value)}"
    if shapes.survival(shape.answer, text.text) in ("gone", "damaged"):
        yield violates(
            probe, asks, f"the answer behind a close marker is gone: {given}", BLANK if text.blank else STRIP
        )
        return
    usual = exam.give(shapes.closed_on_one_line(exam.markers, exam.wrap))
    leaks = shape.inner in text.text and usual is not None and shape.inner not in usual.text
    if not leaks:
        yield agrees(probe, asks, "a close marker without its opening is handled like a whole block")
    elif exam.contract.no_open:
        yield violates(
            probe,
            asks,
            f"the reasoning stays in when the opening marker is missing, which the docstring allows: {given}",
            LEAK,
        )
    else:
        says = (
            f"the reasoning stays in when the opening marker is missing: {given}. Does your "
            f"chat template end in {exam.markers.reasoning.open!r}?"
        )
        yield violates(probe, asks, says, LEAK, severity="soft")


def _reasoning(exam: _Exam) -> Iterator[Check]:
    probe, asks = "decode.reasoning", "is the reasoning where the docstring puts it?"
    shape = next(iter(shapes.closed(exam.markers, exam.wrap)))
    single = shapes.closed_on_one_line(exam.markers, exam.wrap)
    text, line = exam.give(shape), exam.give(single)
    if text is None or line is None:
        return
    problem = _lost(exam, shape, text) or _misplaced(shape, text)
    given = f"{quote(shape.raw)} gives {quote(text.value)}"
    if problem:
        yield violates(probe, asks, f"{problem}: {given}", LOST)
        return
    inside = shape.inner in text.text
    if inside and single.inner not in line.text and not exam.markers.assumed:
        says = f"reasoning of one line is removed, reasoning of several lines is not: {given}"
        yield violates(probe, asks, says, LEAK)
    elif inside and exam.contract.removes and not exam.markers.assumed:
        yield violates(
            probe, asks, f"the docstring says that the reasoning is taken out, and it is there: {given}", LEAK
        )
    else:
        yield agrees(probe, asks, "keeps the reasoning in its output" if inside else "strips the reasoning")


def _lost(exam: _Exam, shape: Shape, text: Text) -> str:
    """The reasoning is promised or replaced, and isn't there."""
    if shape.inner in text.text:
        return ""
    if text.text.count(shape.answer) > shape.raw.count(shape.answer) and _about_reasoning(exam, text):
        return "the answer stands where the reasoning belongs, and the reasoning is nowhere"
    promised = exam.contract.shows and not exam.contract.strips and not exam.markers.assumed
    sections = len(text.parts) > 1 or isinstance(text.value, tuple) or _headed(exam.reading)
    if promised and sections:
        return "the docstring promises the reasoning, and it is nowhere"
    if exam.contract.only_reasoning and not exam.markers.assumed:
        return "it is to give the reasoning, and the reasoning is not in its output"
    return ""


def _about_reasoning(exam: _Exam, text: Text) -> bool:
    """Whether the result or its docstring has a place for the reasoning."""
    places = (*text.parts, *exam.reading.strings, exam.reading.doc)
    pair = {exam.markers.reasoning.open, exam.markers.reasoning.close}
    return any(re.search("reason|think|thought", p, re.I) for p in places if p not in pair)


def _headed(reading: Reading) -> bool:
    """Whether the function writes section headers of its own."""
    return any(
        s.strip().startswith(("[", "#", "**", "==")) and s.strip().strip("[]#*=: ").isalpha() for s in reading.strings
    )


def _misplaced(shape: Shape, text: Text) -> str:
    """Named parts of the result that hold each other's text."""
    for name, part in text.parts.items():
        if re.search("strip|without|no_|remov|after|clean|raw|full|has_|num|len", name, re.I):
            continue
        about_thoughts = any(w in name.lower() for w in ("think", "reason", "thought", "cot"))
        if about_thoughts and shape.answer in part and shape.inner not in part:
            return f"the part {name!r} holds the answer, not the reasoning"
        about_answer = any(w in name.lower() for w in ("answer", "final", "visible"))
        if about_answer and not about_thoughts and shape.inner in part and shape.answer not in part:
            return f"the part {name!r} holds the reasoning, not the answer"
    return ""


def _two_blocks(exam: _Exam) -> Iterator[Check]:
    """Models that reason between tool calls or in several steps write more than one block."""
    probe, asks = "decode.blocks", "what becomes of a second block of reasoning?"
    if exam.contract.only_reasoning or exam.markers.assumed:
        return
    shape = shapes.two_blocks(exam.markers, exam.wrap)
    text, single = exam.give(shape), exam.give(shapes.closed_on_one_line(exam.markers, exam.wrap))
    if text is None or single is None or shape.inner in single.text:
        return
    given = f"{quote(shape.raw)} gives {quote(text.value)}"
    severity: Severity = "hard" if exam.contract.all_blocks else "soft"
    if shapes.survival(shape.answer, text.text) in ("damaged", "gone"):
        lost: Severity = "hard" if exam.contract.all_blocks or exam.contract.last_close else "soft"
        yield violates(probe, asks, f"the answer behind the second block is gone: {given}", STRIP, severity=lost)
    elif shape.inner in text.text:
        yield violates(probe, asks, f"only the first block of reasoning is taken out: {given}", LEAK, severity=severity)
    elif shapes.BETWEEN.strip() not in text.text and (exam.contract.each_block or exam.contract.all_blocks):
        sure = exam.contract.each_block or exam.contract.rest
        says = f"the visible text between two blocks goes with them: {given}"
        yield violates(probe, asks, says, STRIP, severity="hard" if sure else "soft")
    else:
        yield agrees(probe, asks, "a second block is handled like the first")


def _edges(exam: _Exam) -> Iterator[Check]:
    """Answers that share letters, a word or a sentence with what the function cuts off."""
    probe, asks = "decode.edges", "is the answer safe from what is cut off around it?"
    prompt = exam.decoder.prompt
    for twin in edges.twins(exam.reading, exam.markers, prompt):
        try:
            control = exam.decoder.exactly(twin.raw(twin.control)).text
            text = exam.decoder.exactly(twin.raw(twin.answer)).text
        except CallFailed:
            continue
        if edges.harmed(twin, control, text):
            says = (
                f"an answer with {twin.what} is damaged: {quote(twin.raw(twin.answer))} gives {quote(text)}, "
                f"though {quote(twin.raw(twin.control))} gives {quote(control)}"
            )
            yield violates(probe, asks, says, STRIP)
            return
    yield agrees(probe, asks, "letters and words of the markers are safe inside an answer")


def _tool_call(exam: _Exam) -> Iterator[Check]:
    if not exam.contract.keeps_calls:
        return
    probe, asks = "decode.tool_call", "do tool calls come through, as documented?"
    shape = shapes.tool_call(exam.markers)
    text = exam.give(shape)
    if text is None:
        return
    if shapes.survival(shape.answer, text.text) in ("exact", "spacing") or "add" in text.parts.get("tool_calls", ""):
        yield agrees(probe, asks, "a tool call comes through")
    else:
        given = f"{quote(shape.raw)} gives {quote(text.value)}"
        yield violates(probe, asks, f"the docstring promises to keep tool calls: {given}", STRIP)


def _stop(exam: _Exam) -> Iterator[Check]:
    """A stop string that the docstring says is kept, though the text behind it is cut off."""
    if not exam.contract.keeps_stop:
        return
    probe, asks = "decode.stop", "is the stop string kept, as documented?"
    stops = [*exam.markers.stops, *(p.close for p in exam.markers.answer)]
    for stop in dict.fromkeys(unescaped(s) for s in stops if 1 <= len(s) <= 40):
        opened = exam.wrap.open if exam.wrap and stop == exam.wrap.close else ""
        raw = f"{opened}It is Lima{stop} wombat"
        text = exam.give(Shape("text behind a stop string", raw, "It is Lima"))
        if text is None or "wombat" in text.text or "It is Lima" not in text.text:
            continue
        if f"It is Lima{stop.rstrip()}" not in text.text:
            says = f"the docstring keeps the stop string, and it is cut off: {quote(raw)} gives {quote(text.value)}"
            yield violates(probe, asks, says, STRIP)
            return
        yield agrees(probe, asks, "the stop string is kept")


def _unfinished(exam: _Exam) -> Iterator[Check]:
    probe, asks = "decode.unfinished", "what does unfinished reasoning give?"
    shape = shapes.unfinished(exam.markers)
    text = exam.give(shape)
    closed = exam.give(shapes.closed_on_one_line(exam.markers, exam.wrap))
    if text is None or closed is None or exam.contract.only_reasoning:
        return
    leaks = shape.inner in text.text
    given = f"{quote(shape.raw)} gives {quote(text.value)}"
    if leaks and exam.contract.unfinished == "empty" and not exam.markers.assumed:
        yield violates(
            probe, asks, f"the docstring promises nothing for reasoning that was cut off, and it leaks: {given}", LEAK
        )
    elif not leaks and text.blank and exam.contract.unfinished == "text":
        yield violates(
            probe,
            asks,
            f"the docstring promises the text of reasoning that was cut off, and it is gone: {given}",
            BLANK,
        )
    elif leaks and shape.inner not in closed.text and exam.contract.unfinished is None and not exam.extractor:
        says = (
            "finished reasoning is stripped, reasoning that was cut off is handed to "
            f"the reward as an answer: {given}. Is that meant?"
        )
        yield violates(probe, asks, says, LEAK, severity="soft")
    else:
        yield agrees(probe, asks, "gives unfinished reasoning as text" if leaks else "empty for unfinished reasoning")


def _raising(exam: _Exam) -> Check:
    probe, asks = "decode.raises", "does every shape come through without an exception?"
    for shape in shapes.degenerate(exam.markers):
        exam.give(shape)
    if not exam.failures:
        return agrees(probe, asks, "no shape makes it raise")
    accidents = [f for f in exam.failures if accidental(f[1])]
    shape, e = (accidents or exam.failures)[0]
    says = f"raises on {shape.name}: {quote(shape.raw)} gives {e.error} at {e.where}"
    return violates(probe, asks, says, RAISES, severity="hard" if accidents else "soft")


def _repeatable(exam: _Exam) -> Iterator[Check]:
    probe, asks = "decode.batch", "does a text depend on the call or on the other rows?"
    raws = [
        s.raw
        for s in (
            *shapes.unmarked(exam.markers),
            shapes.closed_on_one_line(exam.markers),
            shapes.close_only(exam.markers),
        )
    ]
    try:
        alone = [exam.decoder.one(r).value for r in raws]
        again = [exam.decoder.one(r).value for r in reversed(raws)][::-1]
        together = exam.decoder.batch(raws) if exam.decoder.many else None
        turned = exam.decoder.batch(raws[::-1]) if exam.decoder.many else None
    except CallFailed:
        return
    worse = _first_difference(raws, alone, again)
    if worse:
        yield violates(probe, asks, f"the same completion gives two texts in two calls: {worse}", ORDER)
        return
    if exam.decoder.many:
        if together is None or turned is None:
            yield violates(probe, asks, f"{len(raws)} completions do not give {len(raws)} texts", ORDER)
            return
        worse = _first_difference(raws, alone, [t.value for t in together])
        worse = worse or _first_difference(raws, alone, moved(range(len(raws) - 1, -1, -1), [t.value for t in turned]))
        if worse:
            yield violates(probe, asks, f"alone and in a batch a completion gives two texts: {worse}", ORDER)
            return
    yield agrees(probe, asks, "the same text for the same completion, whatever stands beside it")


def _first_difference(raws: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> str:
    for raw, a, b in zip(raws, before, after, strict=True):
        # a position or a count may stand beside the text
        if list(strings(a)) != list(strings(b)):
            return f"{quote(raw)} gives {quote(a)} and {quote(b)}"
    return ""


def example(_: Mapping[str, Any]) -> Case:
    """A plain case for the binder: texts and the same as ids."""
    raws = ["<think>\nTwo and two.\n</think>\n<answer>4</answer>\nSo \\boxed{4}\n#### 4", "The capital is Lima."]
    return Case(
        name="plain",
        inputs={
            **tokens.example_inputs(raws),
            "text": raws[0],
            "completion": raws[0],
            "texts": raws,
            "completions": raws,
            "prompt": _PROMPT,
            "prompts": [_PROMPT] * 2,
            "messages": turns.example(),
        },
    )


ROLE = Role(
    name="decode",
    stage="generation",
    asks="raw completion, or token ids with a tokenizer -> the text that the reward sees",
    takes=(
        "texts",
        "text",
        "completions",
        "completion",
        "token_ids",
        "tokenizer",
        "completion_mask",
        "attention_mask",
        "prompt_length",
        "prompt_ids",
        "eos_token_id",
        "pad_token_id",
        "prompts",
        "prompt",
        "lengths",
        "messages",
    ),
    needs=(("texts", "text", "completions", "completion", "token_ids", "messages"),),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)
