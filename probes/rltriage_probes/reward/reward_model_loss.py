"""Losses of reward models: comparisons of answers, and judgements of the steps of a solution.

Formulas and their sources: `reward_pairs.py` and `process_loss.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from rltriage_probes import formula, probing, tolerance
from rltriage_probes.contract import Check
from rltriage_probes.formula import Formula
from rltriage_probes.model import CallFailed, Case, Role, Subject
from rltriage_probes.reward import process_loss, reward_pairs
from rltriage_probes.solver import Solution

ASKS = "how does this loss train the reward model?"
BUDGET = 5_000
FAR = 300.0


def example(intent: Mapping[str, Any]) -> Case:
    return _case(reward_pairs.NAMES[0])


def _case(name: str) -> Case:
    return Case(name=name, inputs={**reward_pairs.comparisons(name), **process_loss.solutions(name)})


def run(subject: Subject) -> Iterator[Check]:
    have = frozenset(subject.bound.names)
    cases = tuple(_case(n) for n in reward_pairs.NAMES)
    if have & {"step_logits", "step_scores"}:
        yield formula.judge(subject, _of_steps(subject, have, cases)).check
        return
    judged = formula.judge(subject, _of_pairs(subject, have, cases))
    yield judged.check
    if judged.right and judged.solution is not None:
        yield from _far_apart(subject, have, judged.solution)
        if judged.solution.options["token"] == "last":  # noqa: S105  an axis
            yield from _other_padding(subject, have, judged.solution)


def _of_pairs(subject: Subject, have: frozenset[str], cases: tuple[Case, ...]) -> Formula:
    return Formula(
        probe="reward_model_loss.formula", asks=ASKS, cases=cases, reference=reward_pairs.Reference(have),
        observe=reward_pairs.observe, axes=lambda seen: reward_pairs.axes(subject, have, seen),
        nothing_fits="no known loss of comparisons gives these numbers", budget=BUDGET,
    )  # fmt: skip


def _of_steps(subject: Subject, have: frozenset[str], cases: tuple[Case, ...]) -> Formula:
    return Formula(
        probe="reward_model_loss.formula", asks=ASKS, cases=cases, reference=process_loss.Reference(have),
        observe=lambda s, case: reward_pairs.observe(s, case, process_loss.DIFFERENTIATED),
        axes=lambda seen: process_loss.axes(subject, have, seen),
        nothing_fits="no known loss of judged steps gives these numbers", budget=BUDGET,
    )  # fmt: skip


def _far_apart(subject: Subject, have: frozenset[str], found: Solution) -> Iterator[Check]:
    """Scores far apart: log(sigmoid(z)) is -inf there. Rare for scores, so a promise makes it hard."""
    words = [w for w in ("chosen_rewards", "pair_rewards", "ranked_rewards") if w in have]
    if found.options["loss"] != "log" or not words:
        return
    probe, asks = "reward_model_loss.far_apart", "is the loss finite where the two scores are far apart?"
    base = _case(reward_pairs.NAMES[0])
    moved = {w: base.inputs[w].clone() for w in words}
    for x in moved.values():
        x[0] -= FAR
    if "ranked_rewards" in have:
        moved["ranked_rewards"][0, 0] += FAR / 2
    case = Case(name=f"a lead of -{FAR:.0f}", inputs={**base.inputs, **moved})
    try:
        s = reward_pairs.observe(subject, case)
    except CallFailed as e:
        yield probing.raised(probe, asks, case.name, e)
        return
    if s.dtype in ("float16", "bfloat16"):
        return
    right = reward_pairs.Reference(have)(s, found.options, found.knobs)
    pairs = [("value", s.value, right.value.detach())]
    pairs += [(f"gradient of {w}", s.grads.get(w, torch.zeros_like(g)), g) for w, g in right.grads().items()]
    broken = [(w, x, r) for w, x, r in pairs if not bool(x.isfinite().all())]
    if not broken:
        yield probing.holds(probe, asks, "finite there")
        return
    where, x, expected = broken[0]
    promised = probing.claims(
        subject,
        r"stable",
        r"any (scores?|rewards?|value|size|magnitude)",
        r"large",
        r"finite",
        r"unbounded",
        r"overflow",
    )
    why = "the sigmoid rounds to 0, or the exponential overflows"
    says = f"the {where} is {float(x[~x.isfinite()].flatten()[0])} at {case.name} ({why})"
    gap = tolerance.gap(where, case.name, x, expected, "float32")
    yield probing.violation(probe, asks, says, reward_pairs.OVERFLOW, gap=gap, severity="hard" if promised else "soft")


def _other_padding(subject: Subject, have: frozenset[str], found: Solution) -> Iterator[Check]:
    """Padding in front, and a padding id inside the text (an end of turn where both ids are one)."""
    one_id = "eos_token_id" in subject.intent and subject.intent.get("eos_token_id") == subject.intent.get(
        "pad_token_id"
    )
    inner = one_id or probing.claims(
        subject, r"pad\w* (=|is|equals|may be)\W* ?(the )?eos", r"eos .{0,20}(as|for) (the )?pad", r"several (eos|end)"
    )
    left = probing.claims(
        subject,
        r"left[- ]pad",
        r"padd\w+ (on|in|at) (the )?(left|front)",
        r"either side",
        r"any side",
        r"left or right",
    )
    by_ids = any(f"{s}_ids" in have for s in ("chosen", "rejected", "pair")) and not any("_mask" in w for w in have)
    asked = (
        (left, reward_pairs.padded_in_front, "left_padding", "where padding lies in front"),
        (
            inner and by_ids,
            reward_pairs.padding_inside,
            "padding_inside",
            "where the padding id occurs inside the text",
        ),
    )
    for wanted, changed, name, where in asked:
        if wanted:
            case = Case(name=name.replace("_", " "), inputs=changed(_case(reward_pairs.NAMES[0]).inputs))
            asks = f"is the last real token found {where}?"
            yield _relation(subject, have, found, case, f"reward_model_loss.{name}", asks)


def _relation(subject: Subject, have: frozenset[str], found: Solution, case: Case, probe: str, asks: str) -> Check:
    try:
        s = reward_pairs.observe(subject, case)
    except CallFailed as e:
        return probing.raised(probe, asks, case.name, e)
    right = reward_pairs.Reference(have)(s, found.options, found.knobs).value.detach()
    gap = tolerance.gap("value", case.name, s.value, right, s.dtype)
    if gap is None:
        return probing.holds(probe, asks, "the last real token is found there too")
    return probing.violation(
        probe, asks, f"with {case.name} another token's score is used", reward_pairs.LAST_TOKEN, gap=gap
    )


ROLE = Role(
    name="reward_model_loss",
    stage="reward",
    asks="scores of chosen and rejected answers, or of steps -> loss",
    takes=(
        "chosen_rewards", "rejected_rewards", "margin", "chosen_token_rewards", "rejected_token_rewards",
        "chosen_mask", "rejected_mask", "chosen_lengths", "rejected_lengths", "chosen_ids", "rejected_ids",
        "pair_rewards",
        "pair_token_rewards", "pair_mask", "pair_lengths", "pair_ids", "ranked_rewards", "center_coef", "step_logits",
        "step_scores", "step_labels", "step_mask", "step_ids", "reward_token_ids", "placeholder_token_id",
        "pad_token_id",
    ),
    needs=(("chosen_rewards", "pair_rewards", "ranked_rewards", "step_logits", "step_scores"),),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=(*reward_pairs.ALL, *process_loss.ALL),
)  # fmt: skip
