"""Which tokens of a completion are trained: all that the policy sampled, its end token included.

    m[t] = 1  if no end token comes before t, else 0

The decision to stop is an action like any other; with a mask that drops the EOS it is never trained (Huang et al. 2024,
arXiv:2403.17031).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import probing, solver, tolerance
from rltriage_probes.contract import Agrees, Check
from rltriage_probes.loss import spans
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knobs, Options, Result, Seen, Solution
from rltriage_probes.standins import StandInTokenizer

ASKS = "are exactly the sampled tokens trained, the end token among them?"
PROMPT, WIDTH = 3, 7
EOS, PAD = 2, 0

DROPS_EOS = Pitfall(
    id="MASK-DROPS-EOS", family="pad-eos", says="ends before the sampled end token, so stopping is never trained"
)
BY_ID = Pitfall(
    id="MASK-BY-ID", family="pad-eos", says="masks by token id, which removes every end token and keeps what follows it"
)
ALL = Pitfall(id="MASK-ALL-ONES", family="mask-missing", says="trains the padding behind the end token")
ONE_MORE = Pitfall(id="MASK-ONE-LATE", family="shift", says="trains one token behind the end token")
LAST = Pitfall(id="MASK-LAST-EOS", family="pad-eos", says="trains up to the last end token, which may be padding")
NO_EOS = Pitfall(
    id="MASK-NO-EOS-ROW", family="truncation", says="keeps only the first token of a completion that has no end token"
)
STOP_IDS = Pitfall(
    id="MASK-STOP-IDS", family="pad-eos", says="is given several stop ids and looks for one of them only"
)
INVERTED = Pitfall(id="MASK-INVERTED", family="mask-inverted", says="is 1 on the padding and 0 on the sampled tokens")
PROMPT_TOO = Pitfall(id="MASK-PROMPT", family="mask-leak", says="trains tokens of the prompt")


def example(intent: Mapping[str, Any]) -> Case:
    return _case("end token early, late, twice and missing", intent)


def _case(name: str, intent: Mapping[str, Any]) -> Case:
    """Completions: ended early, at the last place, at the first place, with a second end token, cut off."""
    eos, pad = _ids(intent)
    rows = [
        [5, 6, eos, pad, pad, pad, pad],
        [5, 6, 7, 8, 9, 5, eos],
        [eos, pad, pad, pad, pad, pad, pad],
        [5, 6, 7, eos, eos, pad, pad],
        [5, 6, 7, 8, 9, 5, 6],
        [5, eos, 9, 9, eos, pad, pad],
        [6, 5, eos, 9, pad, pad, pad],
    ]
    completion = torch.tensor(rows)
    sampled = torch.stack([_sampled(r, eos, "kept") for r in completion])
    prompt = torch.tensor([[8, 9, 5]]).expand(len(rows), -1)
    inputs = {
        "token_ids": completion, "prompt_length": 0, "eos_token_id": eos, "pad_token_id": pad,
        "attention_mask": ((completion != pad) | (sampled > 0)).long(), "lengths": sampled.sum(-1).long(),
        "completion_length": WIDTH, "prompt_ids": prompt, "tokenizer": _tokenizer(eos, pad), **spans.example(intent),
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


def _with_prompt(case: Case) -> Case:
    """The same completions behind a prompt, for functions that are told its length."""
    ids = torch.cat([case.inputs["prompt_ids"], case.inputs["token_ids"]], 1)
    ones = torch.ones_like(case.inputs["prompt_ids"])
    attention = torch.cat([ones, case.inputs["attention_mask"]], 1)
    inputs = {**case.inputs, "token_ids": ids, "prompt_length": PROMPT, "attention_mask": attention}
    return Case(name=case.name + ", behind a prompt", inputs=inputs)


def _tokenizer(eos: int, pad: int) -> StandInTokenizer:
    tokenizer = StandInTokenizer()
    tokenizer.eos_token_id, tokenizer.pad_token_id = eos, pad
    return tokenizer


def _ids(intent: Mapping[str, Any]) -> tuple[int, int]:
    """The declared ids, which may be one and the same."""
    eos, pad = intent.get("eos_token_id"), intent.get("pad_token_id")
    usable = isinstance(eos, int) and isinstance(pad, int) and not {eos, pad} & set(range(5, 10))
    return (eos, pad) if usable else (EOS, PAD)  # type: ignore[return-value]


def axes(subject: Subject, s: Seen) -> tuple[Axis, ...]:
    named = re.search(r"def\s+\w*(pad|ignor|exclud)\w*\(", subject.source)
    padding = named is not None or probing.claims(
        subject,
        r"true (=|for|at|on|where)?\s*(is\s*)?(the\s*)?pad",
        r"1\s*(=|on|for|where|at)\s*(the\s*)?pad",
        r"padding mask",
    )
    one_id = s.inputs["eos_token_id"] == s.inputs["pad_token_id"]
    # with one id for both, only an attention mask can still tell the sampled end token from padding
    not_pad = Option(name="attended" if one_id else "not pad", says="every token that is not padding")
    inverted = Option(name="inverted", says="1 on padding") if padding else probing.as_pitfall("inverted", INVERTED)
    full = s.value.shape[1] > WIDTH
    return (
        Axis(
            name="end",
            options=(
                Option(name="kept", standing="standard", says="end token included"),
                not_pad,
                probing.as_pitfall("dropped", DROPS_EOS),
                probing.as_pitfall("by id", BY_ID),
                probing.as_pitfall("by both ids", BY_ID),
                probing.as_pitfall("all", ALL),
                probing.as_pitfall("one more", ONE_MORE),
                probing.as_pitfall("last", LAST),
            ),
        ),
        Axis(
            name="cut off",
            options=(
                Option(name="whole row", standing="standard"),
                Option(
                    name="none",
                    says="completions without an end token are left out",
                    source="TRL mask_truncated_completions",
                ),
                probing.as_pitfall("first only", NO_EOS),
            ),
        ),
        Axis(name="polarity", options=(Option(name="sampled", standing="standard"), inverted)),
        Axis(
            name="prompt",
            options=(Option(name="left out", standing="standard"), probing.as_pitfall("trained", PROMPT_TOO))
            if full
            else (Option(name="left out", standing="standard"),),
        ),
    )  # fmt: skip


def _sampled(row: Tensor, eos: int, rule: str, pad: int = PAD) -> Tensor:
    """Mask [T] of one completion under an option of the axis `end`."""
    is_eos = row.eq(eos).long()
    before = is_eos.cumsum(0) - is_eos
    last = int(is_eos.nonzero().flatten()[-1]) if bool(is_eos.any()) else row.numel() - 1
    made = {
        "kept": before == 0, "dropped": is_eos.cumsum(0) == 0, "by id": row.ne(eos),
        "by both ids": row.ne(eos) & row.ne(pad), "all": torch.ones_like(row),
        "one more": torch.cat([torch.zeros(1, dtype=torch.long), before[:-1]]) == 0,
        "last": torch.arange(row.numel()) <= last, "not pad": row.ne(pad), "attended": row.ne(pad) | (before == 0),
    }  # fmt: skip
    return made[rule].double()


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """The mask [B, T] of one case, in the width that the user's function gave."""
    ids = s.inputs["token_ids"]
    words = ("eos_token_id", "pad_token_id", "prompt_length")
    eos, pad, prompt = (int(s.inputs[k]) for k in words)  # type: ignore[call-overload]
    assert isinstance(ids, Tensor)
    completion = ids[:, prompt:]
    rows = []
    for row in completion:
        mask = _sampled(row, eos, options["end"], pad)
        if not bool(row.eq(eos).any()):
            mask = {"whole row": mask, "none": mask * 0, "first only": mask * 0}[options["cut off"]]
            if options["cut off"] == "first only":
                mask[0] = 1.0
        rows.append(mask)
    value = torch.stack(rows)
    if options["polarity"] == "inverted":
        value = 1 - value
    if s.value.shape[1] > completion.shape[1]:
        front = torch.full(
            (value.shape[0], prompt), 1.0 if options["prompt"] == "trained" else 0.0, dtype=torch.float64
        )
        value = torch.cat([front, value], 1)
        if s.value.shape[1] == value.shape[1] - 1:
            value = value[:, 1:]
    return Result(value=value)


def run(subject: Subject) -> Iterator[Check]:
    if "span_start_id" in subject.bound.names:
        yield from spans.run(subject)
        return
    case = example(subject.intent)
    if "prompt_length" in subject.bound.names:
        case = _with_prompt(case)
    try:
        s = probing.repeatable(probing.observe, subject, case)
    except CallFailed as e:
        yield probing.raised("completion_mask.formula", ASKS, case.name, e)
        return
    base = axes(subject, s)
    found = solver.solve([s], reference, base)
    if found is None:
        gap = probing.distance([s], reference, {a.name: a.options[0].name for a in base}, {})
        says = "no known rule gives this mask"
        yield Check(probe="completion_mask.formula", asks=ASKS, outcome=probing.diverges(says, gap))
        return
    yield Check(probe="completion_mask.formula", asks=ASKS, outcome=_outcome(s, base, found))
    if not found.pitfalls:
        yield from _several_stops(subject, case, found)


OTHER_STOP = 11
"""A second id that ends a completion, as chat models have one for a turn and one for a text."""


def _several_stops(subject: Subject, case: Case, found: Solution) -> Iterator[Check]:
    """A list of stop ids, where the function takes one: generation ends at any of them."""
    if not any(s.meaning == "eos_token_id" and s.form == "list of int" for s in subject.bound.report.slots):
        return
    asks = "does every one of several stop ids end a completion?"
    eos = int(case.inputs["eos_token_id"])
    ids = case.inputs["token_ids"].clone()
    ids[::2] = ids[::2].where(ids[::2] != eos, torch.tensor(OTHER_STOP))
    moved = Case(name="two stop ids", inputs={**case.inputs, "token_ids": ids, "eos_token_id": [eos, OTHER_STOP]})
    try:
        got = probing.observe(subject, moved)
    except CallFailed as e:
        yield probing.raised("completion_mask.stop-ids", asks, moved.name, e)
        return

    def mask(rows: Tensor, stop: int) -> Tensor:
        told = {**case.inputs, "token_ids": rows, "eos_token_id": stop}
        return reference(dataclasses.replace(got, inputs=told, cache={}, memo={}), found.options, {}).value

    want = mask(ids.where(ids != OTHER_STOP, torch.tensor(eos)), eos)
    gap = tolerance.gap("value", moved.name, got.value, want, got.dtype)
    if gap is None:
        yield probing.holds("completion_mask.stop-ids", asks, "each of the stop ids ends a completion")
    elif any(torch.equal(got.value, mask(ids, stop)) for stop in (eos, OTHER_STOP)):
        yield probing.violation("completion_mask.stop-ids", asks, STOP_IDS.says, STOP_IDS, gap=gap)


def _outcome(s: Seen, base: tuple[Axis, ...], found: Solution) -> Any:
    convention = solver.convention(base, found)
    if not found.pitfalls:
        return Agrees(convention=convention)
    gap = probing.distance([s], reference, probing.right_twin(base, found), {})
    return probing.known_bug(solver.named(found.pitfalls, {}), convention, gap)


ROLE = Role(
    name="completion_mask",
    stage="loss",
    asks="token ids of completions -> mask [B, T], 1 on trained tokens",
    takes=(
        "token_ids",
        "eos_token_id",
        "pad_token_id",
        "prompt_length",
        "attention_mask",
        "completion_length",
        "lengths",
        "tokenizer",
        "span_start_id",
        "span_end_id",
    ),
    needs=(("token_ids",),),
    returns="mask",
    example=example,
    run=run,
    pitfalls=(DROPS_EOS, BY_ID, ALL, ONE_MORE, LAST, NO_EOS, STOP_IDS, INVERTED, PROMPT_TOO, *spans.PITFALLS),
)
