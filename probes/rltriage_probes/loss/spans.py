"""Which tokens of a multi-turn completion are trained: none that the environment wrote.

    m[t] = 0  from the marker that opens an inserted passage to the marker that closes it, both included

What a tool or a search engine returned is no action of the policy; training it teaches the model to write such passages
itself (Jin et al. 2025, Search-R1, arXiv:2503.09516, section 3.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, probing
from rltriage_probes.contract import Check
from rltriage_probes.formula import Formula
from rltriage_probes.model import Axis, Case, Option, Pitfall, Subject
from rltriage_probes.solver import Knobs, Options, Result, Seen

ASKS = "are the passages that the environment inserted left out, whole and all of them?"
START, END, EOS, PAD = 3, 4, 2, 0

MARKERS = Pitfall(
    id="MASK-SPAN-MARKERS", family="mask-leak", says="masks the markers of an inserted passage and trains the passage"
)
FIRST = Pitfall(
    id="MASK-SPAN-FIRST", family="mask-leak", says="masks one inserted passage of a row and trains the others"
)
GREEDY = Pitfall(
    id="MASK-SPAN-GREEDY", family="loss-masking", says="masks what the policy wrote between or behind inserted passages"
)
OBSERVATION = Pitfall(
    id="MASK-OBSERVATION", family="mask-leak", says="trains the passages that the environment inserted"
)
EDGE = Pitfall(
    id="MASK-SPAN-EDGE", family="shift", says="trains a marker of an inserted passage, or masks the token beside it"
)
UNCLOSED = Pitfall(
    id="MASK-SPAN-UNCLOSED",
    family="truncation",
    says="trains an inserted passage that the length limit cut before its end",
)
PITFALLS = (MARKERS, FIRST, GREEDY, OBSERVATION, EDGE, UNCLOSED)


def case() -> Case:
    """Rows: no passage, one, two, one without an end, an empty one, one at the front."""
    s, e, x, p = START, END, EOS, PAD
    rows = [
        [5, 6, 7, 8, 9, 6, x, p, p, p, p],
        [5, 6, s, 7, 8, e, 9, 5, x, p, p],
        [5, s, 6, e, 7, 8, s, 9, 5, e, x],
        [5, 6, 7, s, 8, 9, 5, 6, 7, 8, 9],
        [5, 6, s, e, 7, 8, 9, x, p, p, p],
        [s, 7, 9, e, 5, s, 6, e, 8, s, 7],
    ]
    ids = torch.tensor(rows)
    inputs = {
        "token_ids": ids, "span_start_id": s, "span_end_id": e, "attention_mask": (ids != p).long(),
        "completion_mask": (ids != p).float(), "eos_token_id": x, "pad_token_id": p, "lengths": (ids != p).sum(-1),
        "prompt_length": 0, "completion_length": ids.shape[1],
    }  # fmt: skip
    return Case(name="inserted passages: none, one, two, cut off, empty, at the front", inputs=inputs)


def axes(subject: Subject) -> tuple[Axis, ...]:
    from rltriage_probes.loss import completion_mask

    theirs = probing.claims(
        subject, r"insert", r"come[s]? from the environment", r"environment (writes|adds|puts|wraps)",
        r"markers?[^.]{0,30}(masked|too|as well|included)"
    )  # fmt: skip
    inside = Option(name="inside only", says="markers of passages are trained, as where the policy writes them")
    outside_in = probing.claims(subject, r"1\s*(=|on|for|where|at)\s*(the )?(obs|info|tool|inserted|environment)")
    inverted = Option(name="inverted", says="1 on what was inserted")
    return (
        Axis(
            name="spans",
            options=(
                Option(name="whole", standing="standard", says="inserted passages left out with their markers"),
                probing.wrong_here(inside, EDGE, theirs),
                probing.as_pitfall("ignored", OBSERVATION),
                probing.as_pitfall("markers only", MARKERS),
                probing.as_pitfall("first", FIRST),
                probing.as_pitfall("last", FIRST),
                probing.as_pitfall("greedy", GREEDY),
                probing.as_pitfall("to the end", GREEDY),
                probing.as_pitfall("open trained", EDGE),
                probing.as_pitfall("close trained", EDGE),
                probing.as_pitfall("one more", EDGE),
                probing.as_pitfall("unclosed trained", UNCLOSED),
                probing.as_pitfall("unclosed trained, markers masked", UNCLOSED),
            ),
        ),
        Axis(
            name="polarity",
            options=(
                Option(name="sampled", standing="standard"),
                inverted if outside_in else probing.as_pitfall("inverted", completion_mask.INVERTED),
            ),
        ),
    )


def masked(row: list[int], rule: str) -> list[bool]:
    """Which tokens of a row are left out under an option of the axis `spans`."""
    spans = _spans(row)
    n = len(row)
    out = [False] * n

    def fill(a: int, b: int) -> None:
        for i in range(max(a, 0), min(b, n)):
            out[i] = True

    if rule == "ignored":
        return out
    if rule == "greedy" and spans:
        fill(spans[0][0], spans[-1][1])
    elif rule == "to the end" and spans:
        fill(spans[0][0], n)
    elif rule in ("first", "last"):
        for a, b in spans[:1] if rule == "first" else spans[-1:]:
            fill(a, b)
    else:
        for a, b in spans:
            closed = row[b - 1] == END and b - 1 > a
            if rule.startswith("unclosed trained") and not closed:
                if rule.endswith("markers masked"):
                    fill(a, a + 1)
                continue
            if rule == "markers only":
                fill(a, a + 1)
                fill(b - 1, b) if closed else None
                continue
            first = a + 1 if rule in ("inside only", "open trained") else a
            last = b - 1 if rule in ("inside only", "close trained") and closed else b
            fill(first, last + 1 if rule == "one more" and closed else last)
    return out


def _spans(row: list[int]) -> list[tuple[int, int]]:
    """Half-open ranges from each opening marker to behind the closing one, or to the end of the row."""
    out: list[tuple[int, int]] = []
    at = 0
    while START in row[at:]:
        a = row.index(START, at)
        b = row.index(END, a) + 1 if END in row[a:] else len(row)
        out.append((a, b))
        at = b
    return out


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    ids, attention = s.inputs["token_ids"], s.inputs["attention_mask"]
    assert isinstance(ids, Tensor)
    assert isinstance(attention, Tensor)
    real = attention.double() if "padding is known" in s.cache else torch.ones_like(ids, dtype=torch.float64)
    left_out = torch.tensor([masked(row, options["spans"]) for row in ids.tolist()])
    kept = real * (~left_out).double()
    if options["polarity"] == "inverted":
        kept = real * left_out.double()
    return Result(value=kept)


def _observe(subject: Subject, given: Case) -> Seen:
    s = probing.observe(subject, given)
    if subject.bound.names & {"attention_mask", "completion_mask", "pad_token_id", "lengths", "eos_token_id"}:
        s.cache["padding is known"] = torch.ones(())
    else:
        s.where = given.inputs["attention_mask"] > 0
    return s


def run(subject: Subject) -> Iterator[Check]:
    question = Formula(
        probe="completion_mask.spans", asks=ASKS, cases=(case(),), reference=reference, observe=_observe,
        axes=lambda seen: axes(subject), nothing_fits="no known rule gives this mask of inserted passages",
    )  # fmt: skip
    yield formula.judge(subject, question).check


def example(intent: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the example of the role needs besides, so that such functions bind."""
    return {"span_start_id": START, "span_end_id": END}
