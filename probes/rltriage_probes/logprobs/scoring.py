"""Functions that run the model themselves: what a row scores is a property of the row, not of its padding."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rltriage_probes import probing, tolerance
from rltriage_probes.contract import Check
from rltriage_probes.model import CallFailed, Case, Pitfall, Subject
from rltriage_probes.standins import TinyCausalModel

VOCABULARY = 11
LEFT = 3
"""Columns of padding that the padding relation adds in front."""


def model() -> TinyCausalModel:
    """A model that sees distances, not places, as most current ones do: padding alone moves nothing."""
    return TinyCausalModel(VOCABULARY, relative=True)


def with_model(case: Case) -> Case:
    """The case with the logits that the stand-in model gives for its ids."""
    scorer = model()
    with torch.no_grad():
        logits = scorer(case.inputs["token_ids"], attention_mask=case.inputs["attention_mask"]).logits
    return Case(name=case.name, inputs={**case.inputs, "model": scorer, "logits": logits})


def left_padded(subject: Subject, case: Case, wrong: Pitfall) -> Iterator[Check]:
    """The same rows behind padding, masked: every score stays."""
    if "attention_mask" not in subject.bound.names:
        return
    asks = "does left padding leave the log-probs of the real tokens alone?"
    ids, attention, completion = (case.inputs[k] for k in ("token_ids", "attention_mask", "completion_mask"))
    front = torch.zeros(ids.shape[0], LEFT, dtype=torch.long)
    moved = {
        **case.inputs, "token_ids": torch.cat([front, ids], 1), "attention_mask": torch.cat([front, attention], 1),
        "completion_mask": torch.cat([front.float(), completion], 1),
        "prompt_length": case.inputs["prompt_length"] + LEFT,
    }  # fmt: skip
    try:
        plain = probing.observe(subject, case).value
        again = probing.observe(subject, Case(name=f"{LEFT} columns of left padding", inputs=moved)).value
    except CallFailed as e:
        yield probing.raised("logprobs.padding", asks, f"{LEFT} columns of left padding", e)
        return
    if plain.dim() != 2 or again.shape[1] - plain.shape[1] not in (0, LEFT):
        return
    width = min(plain.shape[1], ids.shape[1] - 1)
    inside = (attention > 0)[:, -width:]
    inside[:, -1] = False
    found = tolerance.gap("value", "left padding", again[:, -width:][inside], plain[:, -width:][inside], "float32")
    if found is None:
        yield probing.holds("logprobs.padding", asks, "padding in front changes nothing")
    else:
        says = "the same rows behind masked padding get other log-probs"
        yield probing.violation("logprobs.padding", asks, says, wrong, gap=found)
