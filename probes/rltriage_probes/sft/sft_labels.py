"""Labels of supervised fine-tuning: which tokens are trained.

There is no one right format, so the result is judged by meaning: every token of the result is traced back to the turn
that it comes from. An assistant's turn is trained with its end token, and nothing else is: no prompt, no tool output,
no padding. Labels name the token at their own place, since models shift inside. What the function documents otherwise
(the last turn only, prompts too, shifted targets) is right where it says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes import probing, texts
from rltriage_probes.contract import Check, Violates
from rltriage_probes.model import CallFailed, Case, Pitfall, Role, Subject
from rltriage_probes.sft import batches, promises, samples
from rltriage_probes.sft.batches import IGNORE, Batch, Row, Unreadable
from rltriage_probes.sft.samples import Sample, Segment
from rltriage_probes.standins import CHATML, HEADERS, ChatTokenizer
from rltriage_probes.texts import agrees, quote, violates

ASKS = "is each answer trained with its end token, and nothing but the answers?"

PROMPT = Pitfall(id="SFT-PROMPT-TRAINED", family="mask-leak", says="trains tokens of the prompt")
TOOL = Pitfall(id="SFT-TOOL-TRAINED", family="mask-leak", says="trains the output of tools as if the model had said it")
PADDING = Pitfall(id="SFT-PAD-TRAINED", family="loss-masking", says="trains padding")
END = Pitfall(id="SFT-EOS-MASKED", family="pad-eos", says="leaves the end token out, so stopping is never trained")
BY_ID = Pitfall(
    id="SFT-EOS-BY-PAD-ID",
    family="pad-eos",
    says="masks by the id of the padding, which is the end token's where a tokenizer has one for both",
)
NO_END = Pitfall(
    id="SFT-EOS-MISSING", family="pad-eos", says="puts no end token behind the answer, so stopping is never seen"
)
TWICE = Pitfall(
    id="SFT-EOS-TWICE", family="special-tokens", says="adds an end token behind the one that is there already"
)
BOS = Pitfall(id="SFT-DOUBLE-BOS", family="special-tokens", says="starts with two first tokens")
BOUNDARY = Pitfall(
    id="SFT-BOUNDARY", family="shift", says="starts or ends the trained tokens beside the borders of the answer"
)
TURN = Pitfall(id="SFT-TURN-LOST", family="loss-masking", says="leaves assistant turns untrained")
INVERTED = Pitfall(
    id="SFT-INVERTED", family="mask-inverted", says="trains everything but the answers, and the answers not"
)
SHIFTED = Pitfall(
    id="SFT-LABELS-SHIFTED", family="shift", says="shifts the labels, which the model or the loss shifts once more"
)
MISALIGNED = Pitfall(
    id="SFT-LABELS-MISALIGNED", family="shift", says="gives labels that are not the tokens at their places"
)
LOST = Pitfall(id="SFT-TEXT-LOST", family="truncation", says="loses text of the conversation")
ATTENTION = Pitfall(
    id="SFT-ATTENTION", family="mask-missing", says="gives an attention mask that does not mark the real tokens"
)
BORDERS = Pitfall(
    id="SFT-PACK-BORDERS", family="mask-leak", says="marks the borders of packed samples at other places than theirs"
)
PITFALLS = (
    PROMPT, TOOL, PADDING, END, BY_ID, NO_END, TWICE, BOS, BOUNDARY, TURN, INVERTED, SHIFTED, MISALIGNED, LOST,
    ATTENTION, BORDERS,
)  # fmt: skip

TEXT_WORDS = frozenset("messages conversations prompt prompts completion completions text texts".split())
SINGLE_WORDS = frozenset("messages prompt completion text".split())
EOS, PAD = 2, 0

# Inputs


def example(intent: Mapping[str, Any]) -> Case:
    tokenizer = ChatTokenizer(markers=("<|begin_of_text|>",))
    tokenizer.bos_token = "<|begin_of_text|>"  # noqa: S105  no password
    pairs = [samples.templated(i, tokenizer, samples.INSTRUCTION, samples.RESPONSE) for i in range(3)]
    eos, pad = (intent.get(k) for k in ("eos_token_id", "pad_token_id"))
    eos, pad = (eos, pad) if isinstance(eos, int) and isinstance(pad, int) else (EOS, PAD)
    settings = _settings(eos, pad, tokenizer)
    inputs = {**samples.columns(samples.with_marker(settings["response_template_ids"], eos)), **settings}
    inputs |= _texts([s for s, _ in pairs], [t for _, t in pairs])
    return Case(name="three samples", inputs=inputs)


def _settings(eos: int, pad: int, tokenizer: ChatTokenizer) -> dict[str, Any]:
    return {
        "tokenizer": tokenizer, "eos_token_id": eos, "pad_token_id": pad, "max_length": 512,
        "response_template": samples.RESPONSE,
        "response_template_ids": tokenizer.encode(samples.RESPONSE, add_special_tokens=False),
        "instruction_template": samples.INSTRUCTION,
    }  # fmt: skip


def _texts(given: Sequence[Sample], rendered: Sequence[str]) -> dict[str, Any]:
    pairs = [(str(s.messages[0]["content"]), str(s.messages[-1]["content"])) for s in given]
    chats = [list(s.messages) for s in given]
    return {
        "messages": chats[0], "conversations": chats, "prompt": pairs[0][0], "completion": pairs[0][1],
        "prompts": [p for p, _ in pairs], "completions": [c for _, c in pairs], "text": rendered[0],
        "texts": list(rendered),
    }  # fmt: skip


def _refuses(result: Any, inputs: Mapping[str, Any]) -> str:
    """Why a result of the example can't be read."""
    try:
        if _each(result):
            batches.read_all(result, inputs["sample_ids"][: len(result)])
        else:
            batches.read(result, inputs["sample_ids"] if not _flat(result) else inputs["sample_ids"][:1])
    except Unreadable as e:
        return str(e)
    return ""


def _each(result: Any) -> bool:
    """Whether a result is a list with one record or tuple a sample."""
    return isinstance(result, list) and bool(result) and not _flat(result) and _one(result[0])


def _one(part: Any) -> bool:
    """Whether something is the result of one sample."""
    if isinstance(part, list):
        return batches.depth(batches.plain(part)) >= 1 and not isinstance(part[0], (int, float))
    return isinstance(part, tuple) or texts.fields(part) is not None


def _flat(result: Any) -> bool:
    return batches.depth(batches.plain(result)) == 1


# The exam


@dataclass(kw_only=True)
class _Exam:
    """A function under examination: what it is given and what it promises."""

    subject: Subject
    tokenizer: ChatTokenizer
    eos: int
    pad: int
    by_text: bool
    whole: bool = False
    """Nothing that it is given says which tokens are the prompt's."""
    failures: list[CallFailed] = field(default_factory=list[CallFailed])

    def says(self, *patterns: str) -> bool:
        return probing.claims(self.subject, *patterns)

    @property
    def trains_all(self) -> bool:
        """Whether training on prompts is what it says it does, or what was declared."""
        declared = self.subject.intent.get("train_on_inputs")
        if isinstance(declared, bool):
            return declared
        source = self.subject.source
        if re.search(r"(train_on_(inputs?|prompts?))\s*(:\s*bool\s*)?=\s*True", source):
            return True
        return self.whole or self.says(*promises.TRAINS_ALL)

    @property
    def last_only(self) -> bool:
        return self.says(*promises.LAST_TURN)

    @property
    def every_turn(self) -> bool:
        return self.says(*promises.EVERY_TURN)


def run(subject: Subject) -> Iterator[Check]:
    names = subject.bound.names
    by_text = bool(names & TEXT_WORDS) or bool(names & {"response_template", "response_template_ids"})
    apart = _exam(subject, by_text, same=False)
    if apart is not None:
        yield from _examined(apart)
        yield from _shortened(apart)
    same = _exam(subject, by_text, same=True)
    if same is None:
        return
    if apart is None:
        yield from _examined(same)
    elif not _found(apart):
        yield from _with_one_id(same)


def _exam(subject: Subject, by_text: bool, *, same: bool) -> _Exam | None:
    """The exam with one id, or two, for end token and padding; None where the other was declared or is fixed."""
    fixed = {k: v for k, v in subject.bound.settings.items() if k not in subject.bound.names}
    known = {k: fixed.get(k, subject.intent.get(k)) for k in ("eos_token_id", "pad_token_id")}
    eos, pad = known["eos_token_id"], known["pad_token_id"]
    both = isinstance(eos, int) and isinstance(pad, int)
    declared = all(isinstance(subject.intent.get(k), int) for k in known)
    if (declared or both) and (eos == pad) != same and not by_text:
        return None
    if by_text and declared and (eos == pad) != same:
        return None
    eos = eos if isinstance(eos, int) else pad if same and isinstance(pad, int) else EOS
    pad = pad if isinstance(pad, int) else eos if same else (PAD if eos != PAD else 1)
    if same != (eos == pad):
        eos, pad = (pad, pad) if same else (eos + 1, pad)
    headers = re.search(r"start_header_id|eot_id|begin_of_text|bos_token", subject.source)
    style = HEADERS if headers and "im_start" not in subject.source else CHATML
    tokenizer = samples.tokenizer_for(subject.source, pad_is_eos=same, style=style)
    exam = _Exam(subject=subject, tokenizer=tokenizer, eos=eos, pad=pad, by_text=by_text)
    if by_text:
        exam.eos, exam.pad = int(tokenizer.eos_token_id or 0), int(tokenizer.pad_token_id or 0)
    elif "tokenizer" in subject.bound.names:
        tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|im_end|>" if same else "<|pad|>"
        exam.eos, exam.pad = int(tokenizer.eos_token_id or 0), int(tokenizer.pad_token_id or 0)
    given = subject.bound.names & (TEXT_WORDS | {"response_template", "response_template_ids", "instruction_template"})
    if by_text:
        exam.whole = given <= {"text", "texts"}
        return exam
    exam.whole = not subject.bound.names & {
        "prompt_id_lists", "completion_id_lists", "label_lists", "mask_lists", "prompt_lengths", "answer_spans",
    }  # fmt: skip
    return exam


def _shortened(exam: _Exam) -> Iterator[Check]:
    """Samples longer than the limit: ids and labels have to lose the same tokens."""
    if "max_length" not in exam.subject.bound.names:
        return
    probe, asks = "sft_labels.shortened", "does each label still name its token where a sample is too long?"
    given = next(r for r in _rounds(exam) if r.plain)
    try:
        whole, _ = _called(exam, given)
        if _misplaced(exam, whole):
            return  # told without any limit
        longest = max((len(r.ids) for r in whole.rows), default=0)
        for limit in (longest - 2, longest - 3):
            short, _ = _called(exam, dataclasses.replace(given, inputs={**given.inputs, "max_length": limit}))
            if wrong := _misplaced(exam, short):
                says = f"with {longest} tokens and a limit of {limit}, {wrong}: ids and labels are cut at other places"
                yield violates(probe, asks, says, MISALIGNED)
                return
    except (CallFailed, Unreadable):
        return  # refusing, or leaving out, is a choice
    yield agrees(probe, asks, "ids and labels are cut at the same places")


def _misplaced(exam: _Exam, batch: Batch) -> str:
    """What is wrong with the places of labels; empty where nothing is."""
    wrong = [c.outcome for c in _aligned(exam, batch) if isinstance(c.outcome, Violates)]
    named = [o.says for o in wrong if any(n.pitfall == MISALIGNED.id for n in o.candidates)]
    return named[0] if named else ""


def _found(exam: _Exam) -> bool:
    return any(not isinstance(c.outcome, texts.Agrees) for c in _examined(exam))


def _with_one_id(exam: _Exam) -> Iterator[Check]:
    """What is wrong only where padding and end token share an id."""
    probe, asks = "sft_labels.one_id", "does it keep to that where padding and end token are one id?"
    wrong = [c.outcome for c in _examined(exam) if not isinstance(c.outcome, texts.Agrees)]
    if not wrong:
        yield agrees(probe, asks, "the end token is trained where padding has the same id")
        return
    first = wrong[0]
    says = getattr(first, "says", "") or getattr(first, "error", "")
    promised = exam.says(*promises.ONE_ID) or "pad_token" in exam.subject.source
    hard = promised and getattr(first, "severity", "hard") == "hard"
    named = {n.pitfall for n in getattr(first, "candidates", ())}
    of_padding = named & {END.id, NO_END.id, PADDING.id, ATTENTION.id}
    pitfall = BY_ID if of_padding else next((p for p in PITFALLS if p.id in named), BY_ID)
    yield violates(
        probe, asks, f"with one id for padding and end token, as many tokenizers have: {says}", pitfall,
        severity="hard" if hard else "soft",
    )  # fmt: skip


def _examined(exam: _Exam) -> Iterator[Check]:
    """The checks of all rounds; each question is answered by the first round that finds something wrong."""
    answers: dict[str, Check] = {}
    for given in _rounds(exam):
        if any(getattr(c.outcome, "severity", "") == "hard" for c in answers.values()):
            break
        try:
            batch, used = _called(exam, given)
        except Unreadable as e:
            answers.setdefault(
                "sft_labels.call", violates("sft_labels.call", ASKS, str(e), MISALIGNED, severity="soft")
            )
            continue
        except CallFailed as e:
            exam.failures.append(e)
            if given.plain:
                yield probing.raised("sft_labels.trained", ASKS, given.name, e)
                return
            continue
        for check in _judged(exam, batch, used):
            before = answers.get(check.probe)
            if before is None or isinstance(before.outcome, texts.Agrees):
                answers[check.probe] = check
    yield from answers.values()


@dataclass(frozen=True, kw_only=True)
class _Round:
    """One set of samples that is handed over together."""

    name: str
    given: tuple[Sample, ...]
    inputs: Mapping[str, Any]
    plain: bool = True
    """Whether any such function has to take them."""


def _rounds(exam: _Exam) -> Iterator[_Round]:
    names, tokenizer = exam.subject.bound.names, exam.tokenizer
    base = _settings(exam.eos, exam.pad, tokenizer)
    if not exam.by_text:
        several = bool(names & {"answer_spans", "mask_lists", "label_lists"}) and not names & {
            "prompt_lengths", "prompt_id_lists", "completion_id_lists",
        }  # fmt: skip
        for shape in (samples.PLAIN, *((samples.SPANNED,) if several else ())):
            given = samples.numbered(shape, exam.eos)
            inclusive = exam.says(*promises.INCLUSIVE)
            exclusive = exam.says(*promises.EXCLUSIVE)
            columns = samples.columns(given, inclusive=inclusive and not exclusive)
            yield _Round(name="samples as ids", given=tuple(given), inputs={**base, **columns})
        return
    if names & {"messages", "conversations"}:
        for kinds, plain in ((("one turn", "three turns"), True), (("a system prompt",), False), (("a tool",), False)):
            chats = [samples.conversation(k, tokenizer) for k in kinds]
            rendered = [tokenizer.apply_chat_template(list(c.messages), tokenize=False) for c in chats]
            yield _Round(
                name=kinds[-1], given=tuple(chats), inputs={**base, **_texts(chats, rendered)}, plain=plain
            )  # fmt: skip
        return
    response, instruction = _templates(exam)
    made = [samples.templated(i, tokenizer, instruction, response) for i in range(3)]
    ends = bool(names & {"text", "texts", "sample_ids"})
    given = [Sample(name=s.name, segments=s.segments, messages=s.messages, ends=ends) for s, _ in made]
    columns = samples.columns(given)
    columns["sample_ids"] = [tokenizer.encode(t, add_special_tokens=False) for _, t in made]
    columns["attention_lists"] = [[1] * len(x) for x in columns["sample_ids"]]
    columns["sample_lengths"] = [len(x) for x in columns["sample_ids"]]
    base["response_template"] = response
    base["response_template_ids"] = tokenizer.encode(response, add_special_tokens=False)
    yield _Round(
        name="prompts and completions", given=tuple(given),
        inputs={**base, **columns, **_texts(given, [t for _, t in made])},
    )  # fmt: skip


_MARKER = re.compile(
    r"""["'](?:\\n)*(#+ ?(?:Response|Answer|Output|Assistant):?(?:\\n)?"""
    r"""|<\|im_start\|>assistant(?:\\n)?|(?:Answer|Assistant|ASSISTANT):\s?)["']"""
)
"""A string literal that stands in front of answers."""


def _templates(exam: _Exam) -> tuple[str, str]:
    """Markers in front of answer and prompt: those that the code is written with."""
    names = exam.subject.bound.names
    if "response_template" in names or "response_template_ids" in names:
        return samples.RESPONSE, samples.INSTRUCTION
    source = exam.subject.source + str(exam.subject.namespace.get("RESPONSE_TEMPLATE", ""))
    found = _MARKER.search(source)
    if found is None:
        return samples.RESPONSE, samples.INSTRUCTION
    marker = found[1].replace("\\n", "\n")
    if marker.startswith("<|im_start|>"):
        return "<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>user\n"
    return (marker if marker.endswith(("\n", " ")) else marker + "\n"), samples.INSTRUCTION


def _called(exam: _Exam, given: _Round) -> tuple[Batch, list[Sample]]:
    """The function's result for a round. Raises `CallFailed` and `Unreadable`."""
    call, names, source = exam.subject.bound.call_raw, exam.subject.bound.names, exam.subject.source
    if not names & SINGLE_WORDS:
        result = call(given.inputs)
        ids = given.inputs.get("sample_ids")
        batch = (
            batches.read_all(result, ids, source)
            if _each(result) and len(result) == len(given.given)
            else batches.read(result, ids, source)
        )
        return batch, list(given.given)
    results: list[Any] = []
    for i in range(len(given.given)):
        one = {k: _of_one(k, v, i, len(given.given)) for k, v in given.inputs.items()}
        one |= {
            "messages": list(given.given[i].messages), "prompt": given.inputs["prompts"][i],
            "completion": given.inputs["completions"][i], "text": given.inputs["texts"][i],
        }  # fmt: skip
        results.append(call(one))
    return batches.read_all(results, given.inputs.get("sample_ids"), source), list(given.given)


def _of_one(word: str, value: Any, i: int, n: int) -> Any:
    """What a call with one sample gets of a word that has an entry for each of n."""
    return [value[i]] if isinstance(value, list) and len(value) == n and word not in SINGLE_WORDS else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


# Tracing


@dataclass(kw_only=True)
class _Place:
    """Where a segment stands in a row."""

    segment: Segment
    start: int
    stop: int


@dataclass(kw_only=True)
class _Trace:
    """One sample, found again in a row of the result."""

    sample: Sample
    row: Row
    places: list[_Place]
    lost: list[Segment]
    begin: int
    end: int
    """First token of the sample, and one behind its last."""


def _traced(batch: Batch, given: Sequence[Sample], pad: int, eos: int, by_text: bool) -> list[_Trace]:
    out: list[_Trace] = []
    cursor = dict.fromkeys(range(len(batch.rows)), 0)
    for n, sample in enumerate(given):
        best = max(
            range(len(batch.rows)),
            key=lambda r: (
                len(_located(batch.rows[r], sample, cursor[r])[0]),
                len(batch.rows) == len(given) and r == n,
            ),
        )
        row = batch.rows[best]
        places, lost = _located(row, sample, cursor[best])
        begin = cursor[best] if places else 0
        end = places[-1].stop if places else 0
        if places:
            cursor[best] = end
        out.append(_Trace(sample=sample, row=row, places=places, lost=lost, begin=begin, end=end))
    _settle_ends(out, pad, eos if by_text else None)
    return out


def _settle_ends(traces: Sequence[_Trace], pad: int, eos: int | None) -> None:
    """A sample's tokens reach to the next one in its row, or to the padding."""
    for i, t in enumerate(traces):
        behind = [o.begin for o in traces[i + 1 :] if o.row is t.row and o.places and o.begin >= t.end]
        stop = min(behind, default=len(t.row.ids))
        if not behind:
            tail = t.row.ids[t.end : stop]
            filler = list(tail)
            while tail and tail[-1] in (pad, -1):
                tail.pop()
            # where padding and end token are one, the first of them is the end token, unless that came before
            if not tail and filler[:1] == [pad] == [eos] and t.places and t.places[-1].segment.ids[-1:] != (eos,):
                tail = filler[:1]
            stop = t.end + len(tail)
        t.end = stop


def _located(row: Row, sample: Sample, at: int) -> tuple[list[_Place], list[Segment]]:
    places: list[_Place] = []
    lost: list[Segment] = []
    for segment in sample.segments:
        start = _find(row.ids, segment.ids, at)
        if start < 0:
            lost.append(segment)
            continue
        places.append(_Place(segment=segment, start=start, stop=start + len(segment.ids)))
        at = start + len(segment.ids)
    return places, lost


def _find(ids: Sequence[int], wanted: Sequence[int], at: int) -> int:
    first = wanted[0] if wanted else None
    for i in range(at, len(ids) - len(wanted) + 1):
        if ids[i] == first and tuple(ids[i : i + len(wanted)]) == tuple(wanted):
            return i
    return -1


# Judging


def _judged(exam: _Exam, batch: Batch, given: Sequence[Sample]) -> Iterator[Check]:
    traces = _traced(batch, given, exam.pad, exam.eos, exam.by_text)
    yield from _complete(exam, batch, traces)
    if not any(t.places for t in traces):
        return
    aligned = _aligned(exam, batch)
    yield from aligned
    if any(n.pitfall == MISALIGNED.id for c in aligned for n in getattr(c.outcome, "candidates", ())):
        return
    yield from _marks(exam, batch, traces)
    if _can_tell_padding(exam):
        yield from _padding(exam, batch, traces)
    yield from _attention(exam, batch, traces)
    if len({id(t.row) for t in traces}) < len(traces) and len(traces) > 1:
        yield from _packing(exam, batch, traces)


def _complete(exam: _Exam, batch: Batch, traces: Sequence[_Trace]) -> Iterator[Check]:
    probe, asks = "sft_labels.text", "is the whole conversation there, with each special token once?"
    for t in traces:
        lost = [s for s in t.lost if s.part in ("answer", "prompt")]
        if lost:
            system = t.sample.messages and t.sample.messages[0]["role"] == "system" and lost[0] is t.sample.segments[0]
            hard = not system and not _escaped(exam, t)
            says = f"{quote(lost[0].shown)} of {t.sample.name} is not among the ids"
            yield violates(probe, asks, says, LOST, severity="hard" if hard else "soft")
            return
        if t.lost and t.sample.name == "a tool":
            says = f"the tool's output {quote(t.lost[0].shown)} is not among the ids"
            yield violates(probe, asks, says, LOST, severity="soft")
            return
    if exam.by_text:
        first = exam.tokenizer.bos_token_id
        if any(t.row.ids[:2] == [first, first] for t in traces):
            yield violates(probe, asks, "the ids start with two first tokens", BOS)
            return
        twice = next((t for t in traces if _ends_twice(exam, t)), None)
        if twice is not None:
            says = f"two end tokens stand behind the last answer of {twice.sample.name}"
            yield violates(probe, asks, says, TWICE, severity="soft" if not _adjacent(exam, twice) else "hard")
            return
    yield agrees(probe, asks, "keeps the whole conversation")


def _escaped(exam: _Exam, t: _Trace) -> bool:
    """Whether the answer is there in part, as where texts are changed on the way."""
    return exam.says(r"truncat\w*[^.;]{0,40}(answer|completion|response)") and bool(t.places)


def _tail(t: _Trace) -> list[int]:
    last = t.places[-1]
    return t.row.ids[last.stop : t.end]


def _ends_twice(exam: _Exam, t: _Trace) -> bool:
    if not t.places or t.places[-1].segment.part != "answer":
        return False
    tail = _tail(t)
    special = [i for i in tail if exam.tokenizer.decode([i]) in exam.tokenizer.all_special_tokens and i != exam.pad]
    if exam.pad == exam.eos:
        trained = [
            i for i, by in zip(tail, t.row.trained[t.places[-1].stop : t.end], strict=True) if by and i == exam.eos
        ]
        return len(trained) > 1
    return special.count(exam.eos) > 1


def _adjacent(exam: _Exam, t: _Trace) -> bool:
    tail = _tail(t)
    return any(a == b == exam.eos for a, b in itertools.pairwise(tail))


def _aligned(exam: _Exam, batch: Batch) -> list[Check]:
    """Whether labels name the tokens at their places."""
    probe, asks = "sft_labels.alignment", "does each label name the token at its own place?"
    if batch.problems:
        return [violates(probe, asks, batch.problems[0], MISALIGNED)]
    if batch.kind == "mask":
        return []
    for row in batch.rows:
        for i, (token, label) in enumerate(zip(row.ids, row.labels or (), strict=False)):
            if label not in (IGNORE, token) and token != -1:
                says = f"place {i} has the token {token} and the label {label}"
                return [violates(probe, asks, says, MISALIGNED)]
    if not batch.shifted:
        return [agrees(probe, asks, "labels name the token at their own place")]
    told = exam.says(*promises.SHIFTED)
    inside = exam.says(*promises.SHIFTED_LATER)
    if not inside and (told or batch.label_name in ("targets", "target", "y", "target_ids")):
        return [agrees(probe, asks, "labels are shifted by one place, for a loss that does not shift")]
    says = "each label names the token behind its place; Hugging Face models and most losses shift once more"
    return [violates(probe, asks, says, SHIFTED, severity="hard")]


@dataclass(kw_only=True)
class _Seen:
    """What was found about the trained tokens."""

    untrained: list[_Place] = field(default_factory=list[_Place])
    no_end: list[_Place] = field(default_factory=list[_Place])
    end_masked: list[_Place] = field(default_factory=list[_Place])
    borders: list[str] = field(default_factory=list[str])
    headers: list[str] = field(default_factory=list[str])
    closings: list[str] = field(default_factory=list[str])
    """End tokens of somebody else's turn that are trained."""
    prompts: list[_Place] = field(default_factory=list[_Place])
    tools: list[_Place] = field(default_factory=list[_Place])
    answers: int = 0
    others: int = 0


def _marks(exam: _Exam, batch: Batch, traces: Sequence[_Trace]) -> Iterator[Check]:
    """Which answers are trained, from where to where, and what else is."""
    found = _looked(exam, traces)
    probe = "sft_labels.trained"
    if found.answers and len(found.untrained) == found.answers and found.prompts and found.others == len(found.prompts):
        says = f"{quote(found.prompts[0].segment.shown)} is trained, {quote(found.untrained[0].segment.shown)} is not"
        yield violates(probe, ASKS, says, INVERTED)
        return
    everything = bool(found.prompts) and len(found.prompts) == found.others and not found.untrained
    if everything and exam.trains_all:
        yield agrees(probe, ASKS, "trains every token of a sample, prompts included")
        yield from _ends(exam, found)
        return
    if found.borders:
        yield violates(probe, ASKS, found.borders[0], BOUNDARY)
        return
    if found.untrained:
        yield _turns(exam, found, traces)
    else:
        last = "the answers" if found.answers == len(traces) else "every assistant turn"
        closed = "" if found.end_masked or found.no_end else " with the end token"
        yield agrees(probe, ASKS, f"trains {last}{closed}")
    yield from _leaks(exam, found)
    yield from _ends(exam, found)


def _turns(exam: _Exam, found: _Seen, traces: Sequence[_Trace]) -> Check:
    probe, lost = "sft_labels.trained", found.untrained[0].segment
    says = f"{quote(lost.shown)} is not trained ({len(found.untrained)} of {found.answers} answers)"
    if len(found.untrained) == found.answers:
        return violates(probe, ASKS, f"no answer is trained: {says}", TURN)
    lasts = [[p for p in t.places if p.segment.part == "answer"][-1:] for t in traces]
    kept = {id(p.segment) for ps in lasts for p in ps} - {id(p.segment) for p in found.untrained}
    only_last = len(kept) == len(lasts) == found.answers - len(found.untrained)
    if only_last and exam.last_only and not exam.every_turn:
        return agrees(probe, ASKS, "trains the last assistant turn only")
    if only_last and not exam.every_turn:
        ask = f"only the last turn is trained: {says}. Say so if that is meant"
        return violates(probe, ASKS, ask, TURN, severity="soft")
    return violates(probe, ASKS, says, TURN, severity="soft" if exam.last_only and only_last else "hard")


def _leaks(exam: _Exam, found: _Seen) -> Iterator[Check]:
    probe, asks = "sft_labels.prompt", "are prompts and tool outputs left out?"
    if found.tools:
        yield violates(probe, asks, f"the tool's output {quote(found.tools[0].segment.shown)} is trained", TOOL)
    elif found.prompts and not exam.trains_all:
        says = f"{quote(found.prompts[0].segment.shown)} is trained ({len(found.prompts)} of {found.others} prompts)"
        yield violates(probe, asks, says, PROMPT)
    elif found.closings:
        yield violates(probe, asks, found.closings[0], PROMPT)
    elif found.headers:
        yield violates(probe, asks, found.headers[0], PROMPT, severity="soft")
    else:
        yield agrees(probe, asks, "trains no token of a prompt")


_COMPARES_PAD = re.compile(r"(==|!=|\.eq\(|\.ne\(|isin\()\s*\(?\s*[\w.]*pad", re.I)


def _ends(exam: _Exam, found: _Seen) -> Iterator[Check]:
    probe, asks = "sft_labels.end", "is the end token behind each answer trained?"
    if found.end_masked:
        told = exam.says(*promises.END_LEFT_OUT)
        says = f"the end token behind {quote(found.end_masked[0].segment.shown)} is there and not trained"
        by_id = exam.tokenizer.pad_token_id == exam.tokenizer.eos_token_id if exam.by_text else exam.pad == exam.eos
        kind = BY_ID if by_id and _COMPARES_PAD.search(exam.subject.source) else END
        yield agrees(probe, asks, "leaves end tokens out, as documented") if told else violates(probe, asks, says, kind)
    elif found.no_end:
        promised = exam.says(*promises.END_PROMISED)
        says = f"no end token stands behind {quote(found.no_end[0].segment.shown)}"
        yield violates(probe, asks, says, NO_END, severity="hard" if promised else "soft")
    elif found.answers:
        yield agrees(probe, asks, "the end token is trained")


def _looked(exam: _Exam, traces: Sequence[_Trace]) -> _Seen:
    found = _Seen()
    for t in traces:
        for n, place in enumerate(t.places):
            marks = t.row.trained[place.start : place.stop]
            if place.segment.part != "answer":
                found.others += place.segment.part != "tail"
                if all(marks) and (len(marks) > 1 or _alone(t, place)):
                    kind = found.tools if place.segment.part == "tool" else found.prompts
                    if place.segment.part != "tail":
                        kind.append(place)
                continue
            found.answers += 1
            _look_at_answer(exam, found, t, n)
    return found


def _alone(t: _Trace, place: _Place) -> bool:
    """Whether a trained prompt of one token is no overhang of the answer behind it."""
    behind = t.row.trained[place.stop : place.stop + 1]
    return behind == [False]


def _look_at_answer(exam: _Exam, found: _Seen, t: _Trace, n: int) -> None:
    place = t.places[n]
    body = place.stop - (0 if exam.by_text else 1)
    marks = t.row.trained[place.start : body]
    before = t.places[n - 1] if n else None
    front = before.stop if before is not None else t.begin
    early = _run_before(t.row.trained, place.start)
    untouched = not any(marks) if marks else not any(t.row.trained[place.start : place.stop])
    shown = quote(place.segment.shown)
    if untouched:
        found.untrained.append(place)
        return
    missing = marks.index(True) if not all(marks) else 0
    if not all(marks):
        where = "first" if missing else "last"
        count = missing or len(marks) - max(i for i, m in enumerate(marks) if m) - 1
        what = f"the {where} {count} of {len(marks)} tokens of {shown} are not trained"
        found.borders.append(what if count else f"tokens inside {shown} are not trained")
        return
    gap = place.start - front
    whole_prompt = before is not None and early >= gap + (before.stop - before.start)
    if early and not whole_prompt and not (before is None and early >= gap):
        _look_at_front(exam, found, t, place, early, gap)
    _look_at_end(exam, found, t, n)


def _look_at_front(exam: _Exam, found: _Seen, t: _Trace, place: _Place, early: int, gap: int) -> None:
    """Trained tokens in front of an answer, fewer than a whole prompt."""
    overhang = t.row.ids[place.start - early : place.start]
    shown = quote(place.segment.shown)
    if not exam.by_text:
        found.borders.append(f"{early} token(s) in front of {shown} are trained")
        return
    text = exam.tokenizer.decode(overhang)
    if not text.strip():
        return
    if early > gap:
        found.borders.append(f"{quote(text)} in front of {shown} is trained")
        return
    header = exam.tokenizer.decode(t.row.ids[place.start - gap : place.start])
    starts = [m.start() for m in re.finditer(r"<\||\[|#|(?<=\n)\w|^", header)]
    cut = len(header) - len(text) not in starts and not header[: len(header) - len(text)].endswith(("\n", ">"))
    if cut and early < 3:
        found.borders.append(f"{quote(text)} in front of {shown} is trained")
    elif any(_is_end(exam, i) for i in overhang):
        found.closings.append(f"{quote(text)} in front of {shown} is trained, the end of another's turn with it")
    else:
        found.headers.append(f"the header {quote(text)} in front of {shown} is trained; the sampler never writes it")


def _look_at_end(exam: _Exam, found: _Seen, t: _Trace, n: int) -> None:
    place = t.places[n]
    if not exam.by_text:
        if not t.row.trained[place.stop - 1]:
            found.end_masked.append(place)
        late = _run_from(t.row.trained, place.stop, t.end)
        follower = t.places[n + 1] if n + 1 < len(t.places) else None
        if late and (follower is None or late < follower.stop - follower.start):
            found.borders.append(f"{late} token(s) behind {quote(place.segment.shown)} are trained")
        return
    following = t.places[n + 1].start if n + 1 < len(t.places) else t.end
    behind = t.row.ids[place.stop : following]
    at = next((i for i, x in enumerate(behind) if _is_end(exam, x)), None)
    if at is None or exam.tokenizer.decode(behind[:at]).strip():
        found.no_end.append(place)
        return
    if not t.row.trained[place.stop + at]:
        found.end_masked.append(place)
        return
    late = _run_from(t.row.trained, place.stop + at + 1, following)
    text = exam.tokenizer.decode(t.row.ids[place.stop + at + 1 : place.stop + at + 1 + late])
    whole = late == following - (place.stop + at + 1) and n + 1 < len(t.places)
    behind = exam.tokenizer.encode(text.strip(), add_special_tokens=False)
    plain = bool(behind) and not all(_is_end(exam, i) for i in behind)
    if plain and not whole:
        found.borders.append(f"{quote(text)} behind the end of {quote(place.segment.shown)} is trained")


def _is_end(exam: _Exam, token: int) -> bool:
    piece = exam.tokenizer.decode([token])
    openers = ("<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<|begin_of_text|>")
    return token == exam.eos or (
        piece in exam.tokenizer.all_special_tokens and piece not in openers and token != exam.pad
    )


def _run_before(trained: Sequence[bool], at: int) -> int:
    n = 0
    while at - n - 1 >= 0 and trained[at - n - 1]:
        n += 1
    return n


def _run_from(trained: Sequence[bool], at: int, stop: int) -> int:
    n = 0
    while at + n < stop and trained[at + n]:
        n += 1
    return n


def _can_tell_padding(exam: _Exam) -> bool:
    """Whether a function that gets padded rows is told in some way where the padding begins."""
    padded = any(s.meaning == "sample_ids" and "padded" in s.form for s in exam.subject.bound.report.slots)
    told = {
        "pad_token_id",
        "eos_token_id",
        "attention_lists",
        "sample_lengths",
        "mask_lists",
        "label_lists",
        "tokenizer",
    }
    return not padded or bool(told & exam.subject.bound.names)


def _padding(exam: _Exam, batch: Batch, traces: Sequence[_Trace]) -> Iterator[Check]:
    probe, asks = "sft_labels.padding", "is padding left out?"
    padded = False
    for row in batch.rows:
        own = [t for t in traces if t.row is row and t.places]
        if not own:
            continue
        last = max(t.end for t in own)
        padded = padded or last < len(row.ids)
        first = next((i for i, x in enumerate(row.ids) if x != exam.pad), 0)
        outside = (*range(last, len(row.ids)), *range(first))
        wrong = [i for i in outside if row.trained[i] and row.ids[i] in (exam.pad, -1)]
        if wrong:
            says = f"{len(wrong)} places of padding are trained, the first at place {wrong[0]} of {len(row.ids)}"
            yield violates(probe, asks, says, PADDING)
            return
    if padded:
        yield agrees(probe, asks, "trains no padding")


def _attention(exam: _Exam, batch: Batch, traces: Sequence[_Trace]) -> Iterator[Check]:
    probe, asks = "sft_labels.attention", "does the attention mask mark the real tokens?"
    seen = False
    for row in batch.rows:
        own = [t for t in traces if t.row is row and t.places]
        if row.attention is None or not own:
            continue
        seen = True
        last = max(t.end for t in own)
        first = min(t.places[0].start for t in own)
        hidden = [i for i in range(first, last) if not row.attention[i]]
        if hidden == [last - 1] and row.ids[last - 1] == exam.eos:
            hidden = []  # nothing comes behind the last end token that could look at it
        if hidden:
            only_end = all(row.ids[i] == exam.eos for i in hidden)
            says = f"the attention mask is 0 on {len(hidden)} real tokens, the first at place {hidden[0]}"
            kind = BY_ID if only_end and exam.pad == exam.eos else ATTENTION
            yield violates(probe, asks, says, kind, severity="soft" if only_end else "hard")
            return
        seen_too = [i for i in range(last, len(row.ids)) if row.attention[i]]
        padding = [i for i in seen_too if row.ids[i] == exam.pad and not row.trained[i]]
        if padding:
            says = f"the attention mask is 1 on {len(padding)} places of padding, the first at place {padding[0]}"
            yield violates(probe, asks, says, ATTENTION, severity="soft")
            return
    if seen:
        yield agrees(probe, asks, "attention covers the real tokens")


def _packing(exam: _Exam, batch: Batch, traces: Sequence[_Trace]) -> Iterator[Check]:
    """Borders of samples that lie in one row."""
    probe, asks = "sft_labels.packing", "are the borders of packed samples where the samples meet?"
    row = traces[0].row
    own = [t for t in traces if t.row is row and t.places]
    starts = [own[0].begin, *(t.begin for t in own[1:])]
    if not exam.by_text:
        starts = [t.places[0].start for t in own]
    if batch.offsets is not None:
        wrong = [x for x in starts if x not in batch.offsets] or batch.offsets[0] != 0
        inner = [x for x in batch.offsets[1:-1] if x not in starts and x < own[-1].end]
        if wrong or inner:
            says = f"offsets are {batch.offsets}, the samples start at {starts}"
            yield violates(probe, asks, says, BORDERS, severity="hard" if not exam.by_text else "soft")
            return
    if row.positions is not None:
        resets = [i for i, p in enumerate(row.positions[: own[-1].end]) if p == 0]
        if resets != starts and not exam.by_text:
            says = f"positions start anew at {resets[:8]}, the samples at {starts}"
            yield violates(probe, asks, says, BORDERS)
            return
    kept_apart = batch.offsets is not None or row.positions is not None or row.segments is not None
    kept_apart = kept_apart or batch.dense_attention or (row.attention is not None and len(set(row.attention)) > 2)
    if kept_apart:
        yield agrees(probe, asks, "borders of packed samples are where the samples meet")
        return
    says = (
        "several samples lie in one row and nothing that is returned says where they meet, so each sees those before it"
    )
    yield violates(probe, asks, says, BORDERS, severity="soft")


ROLE = Role(
    name="sft_labels",
    stage="sft",
    asks="chat samples, or their ids -> input_ids and labels (-100 where not trained), or a mask",
    takes=(
        "messages", "conversations", "prompt", "completion", "prompts", "completions", "text", "texts", "sample_ids",
        "prompt_id_lists", "completion_id_lists", "label_lists", "mask_lists", "attention_lists", "prompt_lengths",
        "sample_lengths", "answer_spans", "tokenizer", "max_length", "eos_token_id", "pad_token_id",
        "response_template", "response_template_ids", "instruction_template",
    ),
    needs=((
        "messages", "conversations", "prompt", "prompts", "text", "texts", "sample_ids", "prompt_id_lists",
        "completion_id_lists",
    ),),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
    refuses=_refuses,
)  # fmt: skip
