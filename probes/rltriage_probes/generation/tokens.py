"""The half of `decode` that starts from token ids: padding, EOS, masks, and the tokenizer that stands in."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltriage_probes.contract import Check, Raised
from rltriage_probes.generation.contracts import Contract
from rltriage_probes.generation.shapes import ANSWERS, INNER, LINE, survival
from rltriage_probes.model import CallFailed, Pitfall, Subject
from rltriage_probes.reading import Markers, Pair, prose
from rltriage_probes.texts import Text, accidental, agrees, fields, quote, rows, violates

TOOL = Pitfall(
    id="DEC-TOOL-TEXT",
    family="mask-leak",
    says="hands text to the reward that the policy did not write, such as tool output",
)
PAD_TEXT = Pitfall(
    id="DEC-PAD-TEXT", family="special-tokens", says="leaves padding tokens as text in front of the reward"
)
AFTER_EOS = Pitfall(id="DEC-AFTER-EOS", family="pad-eos", says="reads on behind the token that ends the completion")
_BLANK = Pitfall(id="DEC-BLANK", family="decode-blank", says="turns completions that a person can read into empty text")
_STRIP = Pitfall(id="DEC-STRIP", family="decode-strip", says="removes tokens of the visible answer")
_RAISES = Pitfall(id="DEC-RAISES", family="reward-exception", says="raises on rows that a rollout does contain")
PROMPT_EDGE = Pitfall(
    id="DEC-PROMPT-EDGE", family="pad-eos", says="takes the completion to start at another column than it does"
)
ORDER = Pitfall(id="DEC-ORDER", family="reward-order", says="gives a text that depends on the other rows of the batch")
REENCODED = Pitfall(
    id="DEC-REENCODED",
    family="retokenisation",
    says="encodes decoded text again, so that the ids are no longer those that were sampled",
)
PITFALLS = (TOOL, PAD_TEXT, AFTER_EOS, PROMPT_EDGE, REENCODED)

_TOOL_TEXT = "wombat returned 7"
_CALL = "look it up "
_LAST = "So it is Quito."
_JUNK = "zebra junk"
_LONG = "This row was cut off by the length limit and so it has no end token at all, as happens"
_FOREIGN = "Sí, 日本 ✓"
_PROMPT = "Name it: §"
_SHORT_PROMPT = "Go: §"
_PROMPTS = (_PROMPT, _SHORT_PROMPT)
_PROMPT_END = "§"


class Tokenizer:
    """One token a character, the markers as one token each; pad, eos and unknown are special."""

    pad_token, eos_token, unk_token, bos_token = "<pad>", "<eos>", "<unk>", None
    turn_token = "<turn>"  # noqa: S105  a token of text
    bos_token_id = None
    padding_side = "right"
    name_or_path = "stand-in"

    def __init__(self, markers: Markers | None = None, special: bool = False, ordinary_zero: bool = False) -> None:
        """`special`: whether the markers count as special tokens, as some checkpoints have it.

        `ordinary_zero`: id 0 is a character, as in byte-level vocabularies, and padding has another id.
        """
        pair = markers.reasoning if markers else Pair("<think>", "</think>")
        self._pieces = [self.pad_token, self.eos_token, self.unk_token, pair.open, pair.close]
        self._pieces += [chr(c) for c in range(32, 127)] + ["\n", "\t", "§", self.turn_token]
        if ordinary_zero:
            self._pieces.remove("!")
            self._pieces.insert(0, "!")
        self._encoded: dict[str, list[int]] = {}
        self._first_byte = len(self._pieces)
        self._pieces += [f"<0x{b:02X}>" for b in range(256)]
        self._ids = {p: i for i, p in enumerate(self._pieces)}
        self._long = sorted(self._pieces[: self._first_byte], key=len, reverse=True)
        self.pad_token_id, self.eos_token_id, self.unk_token_id, self.turn_token_id = (
            self._ids[p] for p in (self.pad_token, self.eos_token, self.unk_token, self.turn_token)
        )
        self.vocab_size = len(self._pieces)
        tags = [self._ids[p] for p in (pair.open, pair.close)] if special else []
        self.all_special_ids = [self.pad_token_id, self.eos_token_id, self.unk_token_id, self.turn_token_id, *tags]
        self.all_special_tokens = [self._pieces[i] for i in self.all_special_ids]

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, **_: Any) -> list[int]:
        known = self._encoded.get(text)
        if known is None:
            known = self._encoded[text] = self._pieces_of(text)
        return list(known)

    def _pieces_of(self, text: str) -> list[int]:
        ids: list[int] = []
        while text:
            piece = next((p for p in self._long if text.startswith(p)), text[0])
            known = piece in self._ids
            ids += [self._ids[piece]] if known else [self._first_byte + b for b in piece.encode()]
            text = text[len(piece) :]
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        plain = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        flat = [plain] if isinstance(plain, int) else [int(i) for i in plain]
        if min(flat, default=0) < 0:
            raise OverflowError("out of range integral type conversion attempted")  # as the Rust tokenizers put it
        text = self._joined(i for i in flat if not (skip_special_tokens and i in self.all_special_ids))
        return _cleaned(text) if options.get("clean_up_tokenization_spaces") else text

    def batch_decode(self, sequences: Any, skip_special_tokens: bool = False, **options: Any) -> list[str]:
        return [self.decode(s, skip_special_tokens, **options) for s in sequences]

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            return self._ids.get(tokens.replace("▁", " "), self.unk_token_id)
        return [self.convert_tokens_to_ids(t) for t in tokens]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False, **_: Any) -> Any:
        plain = ids.tolist() if hasattr(ids, "tolist") else ids
        if skip_special_tokens and not isinstance(plain, int):
            plain = [i for i in plain if int(i) not in self.all_special_ids]
        # pieces are not text: a blank is a sign of its own in them
        shown = [self._piece(int(i)).replace(" ", "▁") for i in ([plain] if isinstance(plain, int) else plain)]
        return shown[0] if isinstance(plain, int) else shown

    def convert_tokens_to_string(self, tokens: Any) -> str:
        return self._joined(self._ids.get(t.replace("▁", " "), self.unk_token_id) for t in tokens)

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    def __call__(self, text: Any, **_: Any) -> dict[str, Any]:
        many = [text] if isinstance(text, str) else list(text)
        ids = [self.encode(t) for t in many]
        found = {"input_ids": ids, "attention_mask": [[1] * len(i) for i in ids]}
        return {k: v[0] for k, v in found.items()} if isinstance(text, str) else found

    def _joined(self, ids: Iterable[int]) -> str:
        """Text of tokens; a character that is spread over several byte tokens needs them together."""
        data = b"".join(
            bytes([i - self._first_byte]) if i >= self._first_byte and i < self.vocab_size else self._piece(i).encode()
            for i in ids
        )
        return data.decode("utf-8", "replace")

    def _piece(self, i: int) -> str:
        return self._pieces[i] if 0 <= i < len(self._pieces) else self.unk_token


class Words(Tokenizer):
    """As SentencePiece vocabularies have it: a blank is part of the token behind it, and the first one is not shown.

    `encode` takes the longest piece, so that ids which spell a word letter by letter don't come back as they were.
    """

    name_or_path = "stand-in of words"

    def __init__(self, markers: Markers | None = None) -> None:
        super().__init__(markers)
        self._wide = {piece: self.vocab_size + i for i, piece in enumerate(_WIDE)}
        self._wide_of = {i: piece for piece, i in self._wide.items()}
        self.vocab_size += len(_WIDE)

    def letters(self, word: str) -> list[int]:
        """Ids that spell a word one letter at a time, as sampling may and `encode` does not."""
        return [self._ids[c] for c in word]

    def _pieces_of(self, text: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(text):
            marker = next((m for m in self._long if len(m) > 1 and text.startswith(m, at)), "")
            wide = "" if marker else next((w for w in _WIDE if text.startswith(w, at)), "")
            piece = marker or wide or text[at]
            ids += [self._wide[wide]] if wide else super()._pieces_of(piece)
            at += len(piece)
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        return super().decode(token_ids, skip_special_tokens, **options).removeprefix(" ")

    def _joined(self, ids: Iterable[int]) -> str:
        data = b"".join(self._bytes(i) for i in ids)
        return data.decode("utf-8", "replace")

    def _bytes(self, i: int) -> bytes:
        if i in self._wide_of:
            return self._wide_of[i].encode()
        last = self._first_byte + 256
        return bytes([i - self._first_byte]) if self._first_byte <= i < last else self._piece(i).encode()

    def _piece(self, i: int) -> str:
        return self._wide_of[i] if i in self._wide_of else super()._piece(i)


_WIDE = ("Lima", *(f" {chr(c)}" for c in range(33, 127) if chr(c) != "<"))


def _cleaned(text: str) -> str:
    """What transformers' `clean_up_tokenization` does to a text."""
    for before, after in ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't")):
        text = text.replace(before, after)
    for ending in ("m", "s", "ve", "re"):
        text = text.replace(f" '{ending}", f"'{ending}")
    return text


@dataclass(frozen=True)
class _Row:
    name: str
    ids: tuple[int, ...]
    own: tuple[int, ...]
    """1 on tokens that the policy wrote."""
    real: tuple[int, ...]
    """1 on tokens that are not padding."""
    answer: str


def _row(tok: Tokenizer, name: str, pieces: Iterable[tuple[str, int, int]], answer: str) -> _Row:
    """A row from (text, written by the policy, real) pieces."""
    ids: list[int] = []
    own: list[int] = []
    real: list[int] = []
    for text, mine, there in pieces:
        new = tok.encode(text)
        ids += new
        own += [mine] * len(new)
        real += [there] * len(new)
    return _Row(name, tuple(ids), tuple(own), tuple(real), answer)


def _rollout(tok: Tokenizer, pair: Pair) -> list[_Row]:
    eos = (tok.eos_token, 1, 1)
    return [
        _row(tok, "plain answer, then end token", [(ANSWERS[0], 1, 1), eos], ANSWERS[0]),
        _row(tok, "cut off, no end token", [(_LONG, 1, 1)], _LONG),
        _row(tok, "closed reasoning, then answer", [(f"{pair.open}{LINE}{pair.close}42", 1, 1), eos], "42"),
        _row(tok, "tool output between two turns", [(_CALL, 1, 1), (_TOOL_TEXT, 0, 1), (_LAST, 1, 1), eos], _LAST),
        _row(tok, "text behind the end token", [("It is Lima.", 1, 1), eos, (_JUNK, 0, 0)], "It is Lima."),
        _row(tok, "end token at once", [eos], ""),
        _row(tok, "letters beyond ASCII", [(_FOREIGN, 1, 1), eos], _FOREIGN),
    ]


def _inputs(
    tok: Tokenizer, rollout: Sequence[_Row], prompt: bool, uneven: bool = False, head: str = _PROMPT
) -> dict[str, Any]:
    """The rows right-padded into tensors, behind the prompt's columns where the function cuts those off."""
    import torch

    width = max(len(r.ids) for r in rollout)
    front = tok.encode(head) if prompt else []
    # where the prompts come along as rows of their own, they have different lengths, and are padded in front
    short = tok.encode(_SHORT_PROMPT) if uneven else front
    fronts = [front if i % 2 == 0 else short for i in range(len(rollout))]
    gaps = [len(front) - len(f) for f in fronts]

    def filled(values: Iterable[int], first: Sequence[int], filler: int) -> list[int]:
        row = [*first, *values]
        return row + [filler] * (width + len(first) - len(row))

    heads = [[tok.pad_token_id] * g + f for g, f in zip(gaps, fronts, strict=True)]
    seen = [[0] * g + [1] * len(f) for g, f in zip(gaps, fronts, strict=True)]
    return {
        "prompt_ids": torch.tensor(heads),
        "token_ids": torch.tensor([filled(r.ids, h, tok.pad_token_id) for r, h in zip(rollout, heads, strict=True)]),
        "attention_mask": torch.tensor([filled(r.real, s, 0) for r, s in zip(rollout, seen, strict=True)]),
        "completion_mask": torch.tensor([filled(r.own, [0] * len(front), 0) for r in rollout]).float(),
        "lengths": torch.tensor([sum(r.real) for r in rollout]),
        "prompt_length": len(front),
        "completion_length": width,
        "eos_token_id": tok.eos_token_id,
        "pad_token_id": tok.pad_token_id,
        "tokenizer": tok,
        "prompt": head,
        "prompts": [head] * len(rollout),
    }


def _given(subject: Subject, tok: Tokenizer, rollout: Sequence[_Row], prompt: bool) -> dict[str, Any]:
    return _inputs(tok, rollout, prompt, uneven="prompt_ids" in subject.bound.names)


@functools.lru_cache(maxsize=1)
def _plain() -> Tokenizer:
    return Tokenizer()


def example_inputs(raws: Sequence[str]) -> dict[str, Any]:
    """The same texts as ids, for the binder; without torch only the texts."""
    try:
        tok = _plain()
        rollout = [_row(tok, "plain", [(r, 1, 1), (tok.eos_token, 1, 1)], r) for r in raws]
        inputs = _inputs(tok, rollout, prompt=False)
        return {**inputs, "prompt_ids": inputs["token_ids"][:, :0]}
    except ImportError:
        return {}


def example_beside(own: str, tool: str) -> dict[str, Any]:
    """One row of ids: what the policy wrote, then what a tool put there, which the completion mask leaves out."""
    tok = _plain()
    rollout = [_row(tok, "tool output", [(own, 1, 1), (tool, 0, 1), (tok.eos_token, 1, 1)], own)]
    return {
        **_inputs(tok, rollout, prompt=False),
        "prompt_ids": _inputs(tok, rollout, prompt=False)["token_ids"][:, :0],
    }


def run(subject: Subject, markers: Markers, contract: Contract) -> Iterator[Check]:
    """Checks of a decoder that takes ids."""
    tok = Tokenizer(markers)
    rollout = _rollout(tok, markers.reasoning)
    prompt = bool(subject.bound.names & {"prompt_length", "prompt_ids"})
    try:
        texts = _decoded(subject, _given(subject, tok, rollout, prompt), rollout)
    except CallFailed as e:
        yield from _raised(subject, tok, rollout, prompt, e)
        return
    if texts is None:
        says = f"{len(rollout)} rows of ids do not give {len(rollout)} texts"
        yield violates("decode.batch", "does every row give one text?", says)
        return
    got = list(zip(rollout, texts, strict=True))
    if (swapped := _order(subject, tok, rollout, prompt, got)) is not None:
        yield swapped
        return
    yield from _survive(got, markers, contract)
    yield _padding(got, contract)
    yield _ending(subject, got, contract)
    yield from _first_end(subject, tok, prompt, got, contract)
    yield from _second_end(subject, tok, prompt)
    yield _masked(subject, got, contract)
    if prompt:
        yield _echo(got, contract)
        yield from _rendered(subject, tok, rollout, got)
    yield from _special(subject, markers, prompt, got, contract)
    yield from _spaces(subject, tok, markers, prompt, got, contract)
    yield from _reencoded(subject, markers, prompt)
    yield from _ignored(subject, markers, prompt)
    yield from _left(subject, tok, rollout, prompt, contract)


def _decoded(subject: Subject, inputs: Mapping[str, Any], rollout: Sequence[_Row]) -> list[Text] | None:
    """All rows in one call, or a row a call where the function takes one. Raises `CallFailed`."""
    n = len(rollout)
    try:
        value = subject.bound.call_raw(inputs)
    except CallFailed as first:
        alone = _one_by_one(subject, inputs, n)
        if alone is None:
            raise first from None
        return alone
    many = rows(value, n)
    return [Text(v) for v in many] if many is not None else _one_by_one(subject, inputs, n)


def _together(subject: Subject, inputs: Mapping[str, Any], n: int, strict: bool = False) -> list[Text] | None:
    """All rows in one call; `None` where that doesn't work. `strict`: raises `CallFailed` instead."""
    try:
        many = rows(subject.bound.call_raw(inputs), n)
    except CallFailed:
        if strict:
            raise
        return None
    return None if many is None else [Text(v) for v in many]


def _one_by_one(subject: Subject, inputs: Mapping[str, Any], n: int) -> list[Text] | None:
    import torch

    for squeeze in (False, True):
        parts = [
            {k: _slice(v, i, squeeze) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
            for i in range(n)
        ]
        try:
            values = [subject.bound.call_raw(p) for p in parts]
        except (CallFailed, IndexError):  # a form of the ids may need both dimensions
            continue
        alone = [single[0] if isinstance(v, list) and (single := rows(v, 1)) else v for v in values]
        if all(isinstance(v, (str, dict, tuple, type(None))) for v in alone):
            return [Text(v) for v in alone]
    return None


def _slice(tensor: Any, i: int, squeeze: bool) -> Any:
    return tensor[i] if squeeze else tensor[i : i + 1]


def _raised(subject: Subject, tok: Tokenizer, rollout: Sequence[_Row], prompt: bool, e: CallFailed) -> Iterator[Check]:
    """All rows together raised: find the row that does it, if the plain one doesn't."""
    probe, asks = "decode.raises", "does every row come through without an exception?"
    good = rollout[:1]
    try:
        plain = _decoded(subject, _given(subject, tok, good, prompt), good)
    except CallFailed:
        plain = None
    if plain is None or not plain[0].text.strip():
        yield Check(probe=probe, asks=asks, outcome=Raised(error=e.error, where=e.where, case="six rows of ids"))
        return
    for row in rollout[1:]:
        try:
            _decoded(subject, _given(subject, tok, [row], prompt), [row])
        except CallFailed as worse:
            says = f"raises on a row of this kind: {row.name}; {worse.error} at {worse.where}"
            yield violates(probe, asks, says, _RAISES, severity="hard" if accidental(worse) else "soft")
            return
    yield Check(probe=probe, asks=asks, outcome=Raised(error=e.error, where=e.where, case="six rows of ids"))


def _survive(got: Sequence[tuple[_Row, Text]], markers: Markers, contract: Contract) -> Iterator[Check]:
    extracts = bool(markers.answer) or contract.extracts
    for probe, asks, index in (
        ("decode.unmarked", "does text without any marker reach the reward?", 0),
        ("decode.truncated", "does a row without an end token reach the reward?", 1),
        ("decode.answer", "does the answer behind a closed block survive?", 2),
        ("decode.characters", "do letters survive that are spread over several tokens?", 6),
    ):
        row, text = got[index]
        if extracts or (index != 2 and contract.unmarked == "empty") or contract.only_reasoning:
            continue
        given = f"{row.name}: {quote(row.answer)} gives {quote(text.value)}"
        how = survival(row.answer, text.text)
        if how == "gone":
            yield violates(probe, asks, f"comes out blank, {given}", _BLANK)
        elif how == "damaged":
            yield violates(probe, asks, f"does not come through whole, {given}", _STRIP)
        else:
            yield agrees(probe, asks, f"{row.name}: comes through")
    inside = INNER in got[2][1].text
    yield agrees(
        "decode.reasoning",
        "what becomes of the reasoning?",
        "keeps the reasoning" if inside else "strips the reasoning",
    )


def _order(
    subject: Subject, tok: Tokenizer, rollout: Sequence[_Row], prompt: bool, got: Sequence[tuple[_Row, Text]]
) -> Check | None:
    """Does every row get its own text, whatever the order of the rows?"""
    probe, asks = "decode.batch", "does every row get its own text?"
    texts = [t.text for _, t in got]
    for i, (row, text) in enumerate(got):
        elsewhere = [j for j, t in enumerate(texts) if j != i and row.answer in t]
        alone = len(row.answer) > 5 and sum(row.answer in r.answer for r in rollout) == 1
        if alone and row.answer not in text.text and len(elsewhere) == 1:
            says = (
                f"the text of row {i} comes out in place {elsewhere[0]}: {quote(row.answer)} gives {quote(text.value)}"
            )
            return violates(probe, asks, says, ORDER)
    try:
        turned = _decoded(subject, _given(subject, tok, rollout[::-1], prompt), rollout[::-1])
    except CallFailed:
        return None
    for (row, text), other in zip(got, (turned or [])[::-1], strict=False):
        if text.text != other.text:
            says = (
                f"in reversed order a row gives another text, {row.name}: {quote(text.value)} and {quote(other.value)}"
            )
            return violates(probe, asks, says, ORDER)
    return None


def _echo(got: Sequence[tuple[_Row, Text]], contract: Contract) -> Check:
    """Is the prompt in the text of a function that knows where it ends?"""
    probe, asks = "decode.prompt", "is the prompt kept out of the text?"
    leaks = [(row, text) for row, text in got if _PROMPT_END in text.text and isinstance(text.value, str)]
    whole = [text for _, text in leaks if any(p in text.text for p in _PROMPTS)]
    if leaks and len(whole) < len(got):
        row, text = leaks[0]
        says = f"of some rows the end of the prompt stands in front of the completion, {row.name}: {quote(text.value)}"
        return violates(probe, asks, says, PROMPT_EDGE)
    if whole:
        says = f"the prompt stands in front of the completion: {quote(whole[0].value)}"
        return violates(probe, asks, says, TOOL, severity="hard" if contract.completion_only else "soft")
    text = got[0][1]
    return agrees(
        probe, asks, "the prompt is not in the text" if _PROMPT not in text.text else "the prompt is given apart"
    )


_RENDERED = prose(r"\b(rendered|templated?|chat|formatted)\b|special tokens?|<\|")


def _rendered(
    subject: Subject, tok: Tokenizer, rollout: Sequence[_Row], got: Sequence[tuple[_Row, Text]]
) -> Iterator[Check]:
    """A prompt with special tokens, which the decoded text may lack: its characters are not those of its text."""
    if not subject.bound.names & {"prompt", "prompts"}:
        return
    probe, asks = "decode.rendered", "is a prompt with special tokens in it cut off at its end?"
    head = f"{tok.turn_token}{_PROMPT}{tok.turn_token}"
    given = _inputs(tok, rollout, True, uneven="prompt_ids" in subject.bound.names, head=head)
    try:
        texts = _decoded(subject, given, rollout)
    except CallFailed:
        return
    for (row, usual), text in zip(got, texts or [], strict=False):
        whole = survival(row.answer, usual.text) not in ("damaged", "gone")
        if whole and survival(row.answer, text.text) in ("damaged", "gone"):
            says = (
                f"behind the prompt {quote(head)}, which holds special tokens, {quote(row.answer)} comes out as "
                f"{quote(text.value)}, behind a prompt without them whole"
            )
            hard = _RENDERED.search(subject.doc)
            yield violates(probe, asks, says, _STRIP, severity="hard" if hard else "soft")
            return
    yield agrees(probe, asks, "special tokens in the prompt move nothing")


def _first_end(
    subject: Subject, tok: Tokenizer, prompt: bool, got: Sequence[tuple[_Row, Text]], contract: Contract
) -> Iterator[Check]:
    """Of two end tokens in a row, where one alone ends the text."""
    if _JUNK in got[4][1].text or not (contract.stops_at_eos or "eos_token_id" in subject.bound.names):
        return
    probe, asks = "decode.first_end", "does the text stop at the first of two end tokens?"
    eos = (tok.eos_token, 0, 0)
    pieces = [("It is Lima.", 1, 1), (tok.eos_token, 1, 1), (_JUNK, 0, 0), eos]
    rollout = [_row(tok, "two end tokens", pieces, "It is Lima."), got[0][0]]
    try:
        texts = _decoded(subject, _given(subject, tok, rollout, prompt), rollout)
    except CallFailed:
        return
    if texts and _JUNK in texts[0].text:
        says = f"the text runs on to the last of two end tokens: {quote(texts[0].value)}"
        yield violates(probe, asks, says, AFTER_EOS, severity="hard" if contract.stops_at_eos else "soft")


def _second_end(subject: Subject, tok: Tokenizer, prompt: bool) -> Iterator[Check]:
    """A function that takes a list of end tokens has to stop at each of them."""
    slot = next((s for s in subject.bound.report.slots if s.meaning == "eos_token_id" and "list" in s.form), None)
    if slot is None:
        return
    probe, asks = "decode.ends", "does the text stop at every end token that it was given?"
    rollout = [
        _row(tok, f"ends at {end}", [("It is Lima.", 1, 1), (end, 1, 1), (_JUNK, 0, 0)], "It is Lima.")
        for end in (tok.turn_token, tok.eos_token)
    ]
    inputs = {**_given(subject, tok, rollout, prompt), "eos_token_id": [tok.eos_token_id, tok.turn_token_id]}
    try:
        texts = _decoded(subject, inputs, rollout)
    except (CallFailed, TypeError):
        return
    if texts is None or _JUNK in texts[1].text:
        return  # it stops nowhere; told by the check on one end token
    if _JUNK in texts[0].text:
        says = f"of {slot.path} only some end the text: {rollout[0].name} gives {quote(texts[0].value)}"
        yield violates(probe, asks, says, AFTER_EOS)
    else:
        yield agrees(probe, asks, "stops at each of them")


def _ignored(subject: Subject, markers: Markers, prompt: bool) -> Iterator[Check]:
    """Rows padded with -100, for functions that speak of it."""
    if not re.search(r"-\s?100|ignore_index|IGNORE", subject.source + subject.doc):
        return
    probe, asks = "decode.ignored", "does it cope with -100 among the ids?"
    tok = Tokenizer(markers, ordinary_zero=True)
    rollout = _rollout(tok, markers.reasoning)[:2]
    inputs = _given(subject, tok, rollout, prompt)
    ids = inputs["token_ids"].clone()
    ids[ids == tok.pad_token_id] = -100
    try:
        together = _together(subject, inputs, len(rollout))  # with padding instead; None: takes single rows only
        dirty = {**inputs, "token_ids": ids}
        texts = _decoded(subject, dirty, rollout) if together is None else _together(subject, dirty, len(rollout), True)
    except CallFailed as e:
        yield violates(probe, asks, f"raises on -100: {e.error} at {e.where}", _RAISES)
        return
    if texts is None:
        yield violates(probe, asks, f"{len(rollout)} rows with -100 do not give {len(rollout)} texts", ORDER)
        return
    for row, text in zip(rollout, texts, strict=True):
        if survival(row.answer, text.text) in ("damaged", "gone"):
            says = f"the answer does not come through beside -100, {row.name}: {quote(text.value)}"
            yield violates(probe, asks, says, _STRIP)
            return
        if tok.pad_token in text.text or tok.unk_token in text.text or "!!!" in text.text:
            says = f"-100 comes out as text, {row.name}: {quote(text.value)}"
            yield violates(probe, asks, says, PAD_TEXT)
            return
    yield agrees(probe, asks, "-100 leaves no trace")


def _left(
    subject: Subject, tok: Tokenizer, rollout: Sequence[_Row], prompt: bool, contract: Contract
) -> Iterator[Check]:
    """Rows padded in front, for functions that are told by a mask where the row is."""
    if prompt or not subject.bound.names & {"attention_mask"} or not contract.left:
        return
    probe, asks = "decode.left", "does it cope with padding in front?"
    rows_ = [r for r in rollout[:2]]
    inputs = _given(subject, tok, rows_, prompt)
    flipped = {
        k: _shifted(v, [len(r.ids) for r in rows_]) if k in ("token_ids", "attention_mask", "completion_mask") else v
        for k, v in inputs.items()
    }
    try:
        texts = _decoded(subject, flipped, rows_)
    except CallFailed as e:
        yield violates(probe, asks, f"raises on rows that are padded in front: {e.error} at {e.where}", _RAISES)
        return
    for row, text in zip(rows_, texts or [], strict=False):
        if survival(row.answer, text.text) in ("damaged", "gone"):
            says = (
                f"of a row that is padded in front, as documented, {quote(row.answer)} comes out as {quote(text.value)}"
            )
            yield violates(probe, asks, says, _STRIP)
            return
    yield agrees(probe, asks, "padding in front is passed over")


def _shifted(tensor: Any, lengths: Sequence[int]) -> Any:
    import torch

    return torch.stack([torch.cat([row[n:], row[:n]]) for row, n in zip(tensor, lengths, strict=True)])


_SPACED = "print(a , b) ; x !"


def _spaces(
    subject: Subject,
    tok: Tokenizer,
    markers: Markers,
    prompt: bool,
    got: Sequence[tuple[_Row, Text]],
    contract: Contract,
) -> Iterator[Check]:
    """Blanks that a cleaning of the text takes out, and those that a token-by-token decoding loses."""
    probe, asks = "decode.spaces", "do blanks come through as they were written?"
    if contract.extracts or contract.only_reasoning or markers.answer or got[0][1].blank:
        return
    spaced = [_row(tok, "blanks in front of punctuation", [(_SPACED, 1, 1), (tok.eos_token, 1, 1)], _SPACED)]
    words = Words(markers)
    rollout = _rollout(words, markers.reasoning)[:2]
    try:
        cleaned = _decoded(subject, _given(subject, tok, spaced, prompt), spaced)
        joined = _decoded(subject, _given(subject, words, rollout, prompt), rollout)
    except (CallFailed, IndexError):
        return
    if cleaned and _SPACED not in cleaned[0].text and _tight(_SPACED) in _tight(cleaned[0].text):
        says = f"blanks in front of punctuation are taken out: {quote(_SPACED)} gives {quote(cleaned[0].value)}"
        says += "" if contract.verbatim else ". Code and formulas change with it; is that meant?"
        yield violates(probe, asks, says, _STRIP, severity="hard" if contract.verbatim else "soft")
        return
    plain = survival(ANSWERS[0], got[0][1].text) == "exact"
    if joined and plain and survival(ANSWERS[0], joined[0].text) == "spacing":
        says = (
            "if your tokenizer keeps blanks inside its tokens, as SentencePiece does, decoding token by token loses "
            f"them: {quote(ANSWERS[0])} gives {quote(joined[0].value)}"
        )
        yield violates(probe, asks, says, _STRIP, severity="hard" if contract.verbatim else "soft")
        return
    yield agrees(probe, asks, "blanks come through, with either kind of vocabulary")


def _tight(text: str) -> str:
    return re.sub(r"\s", "", text)


def _reencoded(subject: Subject, markers: Markers, prompt: bool) -> Iterator[Check]:
    """Ids that a decoder hands back beside the text have to be those that were sampled."""
    if not re.search(r"\.encode\(|(tokenizer|processing_class|\btok)\(", subject.source):
        return
    probe, asks = "decode.ids", "are the ids that come with the text those that were sampled?"
    words = Words(markers)
    letters = words.letters("Lima")
    row = _Row("a word spelled in letters", (*letters, words.eos_token_id), (1,) * 5, (1,) * 5, "Lima")
    try:
        value = subject.bound.call_raw(_given(subject, words, [row], prompt))
    except CallFailed:
        return
    again = words.encode("Lima")
    found = next((ids for ids in _id_lists(value) if ids[: len(again)] == again or ids[:4] == letters), None)
    if found is None:
        return
    if found[:4] != letters:
        says = (
            "the text is encoded again, and the ids that come with it are not those that were sampled, because a text "
            f"has several spellings in tokens: {list(row.ids)} gives {found}"
        )
        exact = re.search(r"\b(as|were|was|the) sampled\b|token-in|same ids|for training|trained on", subject.doc, re.I)
        yield violates(probe, asks, says, REENCODED, severity="hard" if exact else "soft")
    else:
        yield agrees(probe, asks, "the ids that come with the text are those that were sampled")


def _id_lists(value: Any) -> Iterator[list[int]]:
    """Lists of ids anywhere in a result."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    inner = fields(value)
    if inner is not None:
        value = list(inner.values())
    if isinstance(value, (list, tuple)):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        if items and all(type(v) is int for v in items):
            yield items
        else:
            for v in items:
                yield from _id_lists(v)


def _documented_tags(subject: Subject, markers: Markers, prompt: bool) -> Iterator[Check]:
    """Tags that the docstring names and keeps, with a tokenizer for which they are special tokens."""
    for word in dict.fromkeys(re.findall(r"<(\w+)>", subject.doc)):
        pair = Pair(f"<{word}>", f"</{word}>")
        if pair.close not in subject.doc or pair == markers.reasoning:
            continue
        shown: list[Text] = []
        for special in (False, True):
            tok = Tokenizer(dataclasses.replace(markers, reasoning=pair), special=special)
            row = _row(tok, "an answer in tags", [(f"{pair.open}42{pair.close}", 1, 1), (tok.eos_token, 1, 1)], "42")
            try:
                texts = _decoded(subject, _given(subject, tok, [row, row], prompt), [row, row])
            except CallFailed:
                return
            shown += texts[:1] if texts else []
        if len(shown) == 2 and pair.close in shown[0].text and pair.close not in shown[1].text:
            says = (
                f"the reward needs {pair.open!r} and {pair.close!r}, and as special tokens of a tokenizer "
                f"they are skipped: {quote(pair.open + '42' + pair.close)} gives {quote(shown[1].value)}"
            )
            yield violates("decode.special", "do the markers survive the decoding?", says, _STRIP)
            return


def _special(
    subject: Subject, markers: Markers, prompt: bool, got: Sequence[tuple[_Row, Text]], contract: Contract
) -> Iterator[Check]:
    """With a tokenizer for which markers are special tokens: are they gone before they are looked for?"""
    if contract.keeps_tags:
        found = list(_documented_tags(subject, markers, prompt))
        if found:
            yield from found
            return
    tok = Tokenizer(markers, special=True)
    rollout = _rollout(tok, markers.reasoning)
    try:
        texts = _decoded(subject, _given(subject, tok, rollout, prompt), rollout)
    except CallFailed:
        return
    usual = got[2][1].text
    close = markers.reasoning.close
    if contract.keeps_tags and texts is not None and close in usual and close not in texts[2].text:
        says = (
            f"the docstring keeps the markers, and if {close!r} is a special token of the tokenizer it is skipped: "
            f"{quote(texts[2].value)}"
        )
        yield violates("decode.special", "do the markers survive the decoding?", says, _STRIP)
        return
    if texts is None or INNER in usual or INNER not in texts[2].text:
        return
    says = (
        f"if {markers.reasoning.close!r} is a special token of your tokenizer, it is skipped before it is looked for, "
        f"and the reasoning stays in: {quote(texts[2].value)}"
    )
    yield violates("decode.special", "do the markers survive the decoding?", says, _STRIP, severity="soft")


def _padding(got: Sequence[tuple[_Row, Text]], contract: Contract) -> Check:
    probe, asks = "decode.pads", "is padding kept out of the text?"
    for row, text in got:
        if Tokenizer.pad_token in text.text:
            says = f"padding stands in the text, {row.name}: {quote(text.value)}"
            return violates(probe, asks, says, PAD_TEXT, severity="soft" if contract.raw else "hard")
    ended = next((t for r, t in got if r.answer and Tokenizer.eos_token in t.text), None)
    if ended is not None and contract.no_specials and not contract.keeps_end:
        says = f"the docstring keeps special tokens out, and the end token stands in the text: {quote(ended.value)}"
        return violates(probe, asks, says, PAD_TEXT)
    return agrees(probe, asks, "no padding in the text")


def _ending(subject: Subject, got: Sequence[tuple[_Row, Text]], contract: Contract) -> Check:
    probe, asks = "decode.eos", "does the text stop where the completion does?"
    _, text = got[4]
    if contract.keeps_end and "It is Lima." in text.text and Tokenizer.eos_token not in text.text:
        says = f"the docstring keeps the end token, and it is not in the text: {quote(text.value)}"
        return violates(probe, asks, says, _STRIP)
    if _JUNK not in text.text:
        return agrees(probe, asks, "stops at the end token")
    if contract.stops_at_eos:
        says = f"text behind the end token is in it, though the docstring says that it stops there: {quote(text.value)}"
        return violates(probe, asks, says, AFTER_EOS)
    if subject.bound.names & {"eos_token_id", "completion_mask", "attention_mask", "lengths"}:
        says = f"tokens behind the end token, which the masks exclude, are in the text: {quote(text.value)}"
        return violates(probe, asks, says, AFTER_EOS, severity="soft")
    return agrees(probe, asks, "decodes the whole row and relies on padding behind the end token")


def _masked(subject: Subject, got: Sequence[tuple[_Row, Text]], contract: Contract) -> Check:
    probe, asks = "decode.mask", "does only what the policy wrote reach the reward?"
    _, text = got[3]
    leaks, own = _TOOL_TEXT in text.text, _LAST in text.text
    given = f"a row with {_TOOL_TEXT!r} between two turns of the policy gives {quote(text.value)}"
    masks = bool(subject.bound.names & {"completion_mask", "attention_mask"})
    if "completion_mask" in subject.bound.names and leaks and not own:
        return violates(probe, asks, f"the mask is taken the wrong way round: {given}", TOOL)
    if leaks and contract.policy_only and masks:
        return violates(
            probe, asks, f"the docstring promises what the policy wrote, and tool output is in the text: {given}", TOOL
        )
    if leaks and "completion_mask" in subject.bound.names:
        return violates(
            probe, asks, f"tool output is in the text: {given}. Is the reward to see it?", TOOL, severity="soft"
        )
    return agrees(
        probe, asks, "tool output is part of the text" if leaks else "only what the policy wrote is in the text"
    )
