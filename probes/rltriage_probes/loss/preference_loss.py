"""Preference losses: DPO and its relatives, of pairs of answers or of answers judged alone.

Formulas and their sources: `preference_pairs.py` and `preference_kto.py`.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, probing, solver, source, tolerance
from rltriage_probes.contract import Check, KnownBug, Named
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.loss import preference_axes as axes_of_pairs
from rltriage_probes.loss import preference_cases as cases
from rltriage_probes.loss import preference_kto as kto
from rltriage_probes.loss import preference_pairs as pairs
from rltriage_probes.loss import preference_pitfalls as pitfalls
from rltriage_probes.loss.preference_scores import Given
from rltriage_probes.model import Axis, CallFailed, Case, Role, Subject
from rltriage_probes.solver import Seen, Solution

ASKS = "which preference loss is this, and of which log-probs?"
BUDGET = 5_000
SOFT = frozenset((pitfalls.AVERAGED.id,))
"""What some trainers do on purpose: asked about, not called a bug, where nothing promises otherwise."""


def example(intent: Mapping[str, Any]) -> Case:
    return cases.pairs(cases.NAMES[0])


def run(subject: Subject) -> Iterator[Check]:
    given = Given(cases.takes(subject))
    judged = _judged(subject, given)
    yield _softened(subject, given, judged.check)
    found = judged.solution
    if found is None:
        return
    if judged.right:
        yield from _extremes(subject, given, found)
    yield from _rewards(subject, given, found)


def _judged(subject: Subject, given: Given) -> Judged:
    alone = bool(given.have & kto.MARKS)
    if alone or axes_of_pairs.wanted(subject) == "kto":
        judged = formula.judge(subject, _of_answers(subject, given))
        if judged.solution is not None or (alone and not given.has("")) or "example_logprobs" in given.have:
            return judged
        other = formula.judge(subject, _of_pairs(subject, given)) if given.has("") else judged
        return judged if other.solution is None else other
    judged = formula.judge(subject, _of_pairs(subject, given))
    if judged.solution is not None or not judged.seen:
        return judged
    both = formula.judge(subject, _of_pairs(subject, given, narrow=True))
    return both if both.solution is not None else _in_half(subject, given, judged)


def _in_half(subject: Subject, given: Given, judged: Judged) -> Judged:
    """Whether what fits nothing is a right loss up to the noise of half precision."""
    seen = [dataclasses.replace(s, dtype="bfloat16", quick=None, shadow=None, memo={}) for s in judged.seen]
    if any(s.dtype == "bfloat16" for s in judged.seen):
        return judged
    found = solver.solve(
        seen, pairs.Reference(given), judged.axes, axes_of_pairs.knobs(subject, given), max_pitfalls=0, budget=BUDGET
    )
    if found is None:
        return judged
    gap = probing.distance(judged.seen, pairs.Reference(given), found.options, found.knobs)
    named = Named(pitfall=pitfalls.PRECISION.id, family=pitfalls.PRECISION.family, says=pitfalls.PRECISION.says)
    convention = solver.convention(judged.axes, found, axes_of_pairs.hide(found.knobs, given))
    promised = probing.claims(subject, r"float32|fp32|full precision|float64|upcast|double")
    outcome = probing.known_bug([named], convention, gap, "hard" if promised else "soft")
    return Judged(check=Check(probe=judged.check.probe, asks=ASKS, outcome=outcome), seen=judged.seen, axes=judged.axes)


def _of_pairs(subject: Subject, given: Given, narrow: bool = False) -> Formula:
    """Every convention with one bug at most, or the usual ones with two."""

    def axes(seen: Sequence[Seen]) -> tuple[Axis, ...]:
        made = axes_of_pairs.axes(subject, given, seen)
        return axes_of_pairs.narrowed(made) if narrow else made

    # EXO takes the log of the smoothing
    names = cases.NAMES[:2] if axes_of_pairs.wanted(subject) == "exo" else cases.NAMES

    return Formula(
        probe="preference_loss.formula", asks=ASKS, cases=tuple(cases.pairs(n) for n in names),
        reference=pairs.Reference(given), observe=cases.observe, axes=axes, max_pitfalls=2 if narrow else 1,
        knobs=lambda seen: axes_of_pairs.knobs(subject, given),
        nothing_fits="no known preference loss gives these numbers",
        hide=lambda knobs: axes_of_pairs.hide(knobs, given), budget=BUDGET,
    )  # fmt: skip


def _of_answers(subject: Subject, given: Given) -> Formula:
    made = [cases.pairs(n) for n in cases.NAMES]
    if given.has("") and not given.concatenated and "kl_logprobs" in given.have:
        made[0] = cases.uneven(made[0])
    return Formula(
        probe="preference_loss.formula", asks=ASKS, cases=tuple(made), reference=kto.Reference(given),
        observe=cases.observe, axes=lambda seen: kto.axes(subject, given, seen),
        knobs=lambda seen: axes_of_pairs.knobs(subject, given)[:1],
        nothing_fits="no known loss of single answers gives these numbers",
        hide=lambda knobs: axes_of_pairs.hide(knobs, given), budget=BUDGET,
    )  # fmt: skip


def _softened(subject: Subject, given: Given, check: Check) -> Check:
    outcome = check.outcome
    promised = given.by_token and probing.claims(subject, r"\bsum(s|med)?\b")
    if isinstance(outcome, KnownBug) and {n.pitfall for n in outcome.pitfalls} <= SOFT and not promised:
        return dataclasses.replace(check, outcome=dataclasses.replace(outcome, severity="soft"))
    return check


# Far away from the ordinary


FAR = 400.0
_SATURATES = frozenset(("sigmoid", "bco", "nca", "aot", "aot unpaired"))


def _extremes(subject: Subject, given: Given, found: Solution) -> Iterator[Check]:
    if "form" in found.options:
        return
    if found.options["loss"].startswith("odds"):
        yield from _confident(subject, given, found)
    elif found.options["loss"] in _SATURATES:
        yield from _wide(subject, given, found)


def _wide(subject: Subject, given: Given, found: Solution) -> Iterator[Check]:
    """Answers that the policy has come to like much less, or more, than the reference: the loss grows linearly."""
    asks = "is the loss finite where the two answers are far apart?"
    case = cases.pairs(cases.NAMES[0])
    words = [
        w for w in ("chosen_logprobs", "chosen_logratios", "policy_logratios", "preference_logits") if w in given.have
    ]
    if "pair_logprobs" in given.have:
        words.append("pair_logprobs")
    if not words or "beta" not in given.have:
        return
    moved: dict[str, Any] = {}
    for word in words:
        x = case.inputs[word].clone()
        x[0] -= 1500.0
        x[1] -= 700.0
        moved[word] = x
    yield from _finite(
        subject, given, found, Case(name="a margin of -450", inputs={**case.inputs, **moved}), asks,
        "preference_loss.far_apart", "log(sigmoid(z)) where z = -450: the sigmoid rounds to 0",
    )  # fmt: skip


def _confident(subject: Subject, given: Given, found: Solution) -> Iterator[Check]:
    """Average log-probs next to 0: log(1 - p) must not round to log(0)."""
    asks = "is the loss finite where the model is sure of an answer?"
    case = cases.pairs(cases.NAMES[0])
    words = [w for w in ("chosen_logprobs", "pair_logprobs") if w in given.have]
    if not words:
        return
    sure: dict[str, Any] = {}
    for word in words:
        x = case.inputs[word].clone()
        x[0], x[1] = -1e-8, -3e-5
        sure[word] = x
    promised = probing.claims(
        subject, r"confiden", r"tiny", r"close to (0|zero|1|one)", r"near(ly)? (0|zero|1|one)", r"stable", r"finite",
        r"strictly negative", r"approach", r"saturat", r"probabilit\w* of (nearly|almost) (1|one)",
    )  # fmt: skip
    yield from _finite(
        subject, given, found, Case(name="a log-prob of -1e-8", inputs={**case.inputs, **sure}), asks,
        "preference_loss.confident", "log(1 - exp(x)) where x = -1e-8: exp(x) rounds to 1", promised=promised,
    )  # fmt: skip


def _finite(
    subject: Subject, given: Given, found: Solution, case: Case, asks: str, probe: str, why: str, promised: bool = True
) -> Iterator[Check]:
    try:
        s = cases.observe(subject, case)
    except CallFailed as e:
        yield probing.raised(probe, asks, case.name, e)
        return
    if s.dtype in ("float16", "bfloat16"):
        return
    right = pairs.Reference(given)(s, found.options, found.knobs)
    everything = [("the loss", s.value, right.value.detach())]
    everything += [(f"the gradient of {w}", s.grads.get(w, torch.zeros_like(g)), g) for w, g in right.grads().items()]
    broken = [(w, x) for w, x, r in everything if not bool(x.isfinite().all()) and bool(r.isfinite().all())]
    if not broken:
        yield probing.holds(probe, asks, "finite there")
        return
    where, x = broken[0]
    pitfall = pitfalls.ODDS_OVERFLOW if probe.endswith("confident") else pitfalls.OVERFLOW
    says = f"{where} is {float(x[~x.isfinite()].flatten()[0])} at {case.name} ({why})"
    gap = tolerance.gap(where, case.name, x, next(r for w, _, r in everything if w == where), "float32")
    yield probing.violation(probe, asks, says, pitfall, gap=gap, severity="hard" if promised else "soft")


# What is reported beside the loss


def _rewards(subject: Subject, given: Given, found: Solution) -> Iterator[Check]:
    """Implicit rewards: β times the log-ratio of the answer itself."""
    if "loss" not in found.options or not given.has(""):
        return
    case = cases.pairs(cases.NAMES[0])
    beta = float(case.inputs["beta"]) if "beta" in given.have else found.knobs.get("beta", 0.0)
    try:
        result = subject.bound.call_raw({k: v for k, v in case.inputs.items() if k in subject.bound.names})
    except CallFailed:
        return
    got = reported(result, subject)
    if got is None:
        return
    asks = "are the reported rewards beta times each answer's log-ratio?"
    expected = _implicit(given, found, case, beta)
    wrong = [(side, x, r) for (side, x), r in zip(got.items(), expected, strict=True) if not _same(x, r)]
    if not wrong:
        yield probing.holds("preference_loss.rewards", asks, "implicit rewards beta times the log-ratio")
        return
    side, x, right = wrong[0]
    gap = tolerance.gap(f"{side} rewards", case.name, x, right, "float32") if x.shape == right.shape else None
    named = _explained(x, case, given, found, expected, side, beta)
    says = f"the reported {side} rewards are {named or 'not beta times the log-ratio of the answer'}"
    yield probing.violation(
        "preference_loss.rewards", asks, says, *([pitfalls.REWARDS] if named else []), gap=gap,
        severity="hard" if named else "soft",
    )  # fmt: skip


def reported(result: Any, subject: Subject) -> dict[str, Tensor] | None:
    """Rewards of the two sides as the function returns them beside the loss; None where it doesn't."""
    parts: dict[str, Any] = {}
    if isinstance(result, Mapping):
        parts = {str(k): v for k, v in result.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elif isinstance(result, tuple) and hasattr(result, "_asdict"):
        parts = dict(result._asdict())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType, reportAttributeAccessIssue]
    elif isinstance(result, tuple):
        for part in result:  # pyright: ignore[reportUnknownVariableType]
            if isinstance(part, Mapping):
                parts |= {str(k): v for k, v in part.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        names = _returned_names(subject.source)
        if len(names) == len(result):  # pyright: ignore[reportUnknownArgumentType]
            parts |= {n: v for n, v in zip(names, result, strict=True) if n}  # pyright: ignore[reportUnknownArgumentType]
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        parts = {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    found: dict[str, Tensor] = {}
    for side in cases.SIDES:
        spelled = (f"{side}_rewards", f"reward_{side}", f"rewards_{side}", f"{side}_reward", f"rewards/{side}")
        pattern = next((n for n in spelled if n in parts), "")
        value = parts.get(pattern)
        if isinstance(value, (int, float)):
            value = torch.tensor(float(value))
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return None
        found[side] = value.detach().double()
    return found


def _returned_names(text: str) -> tuple[str, ...]:
    """Names of the parts of the tuple that a function returns."""
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return ()
    node = next((n for n in nodes if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))), None)
    return () if node is None else source.analyse(node, {}).returned


def _implicit(given: Given, found: Solution, case: Case, beta: float) -> tuple[Tensor, Tensor]:
    s = cases.seen(case)
    options = {**found.options, "direction": "chosen", "gradient": "flows"}
    # what an average is trained on is often still reported as a sum, and the other way round
    c, r = pairs.Reference(given).log_ratios(s, options)
    return beta * c.detach(), beta * r.detach()


def _same(got: Tensor, right: Tensor) -> bool:
    right = right.mean() if got.dim() == 0 else right
    return got.shape == right.shape and tolerance.equal(
        got, right, "bfloat16" if got.dtype == torch.bfloat16 else "float32"
    )


def _explained(
    x: Tensor, case: Case, given: Given, found: Solution, expected: tuple[Tensor, Tensor], side: str, beta: float
) -> str:
    """In which way the rewards are wrong, in words; empty where none of the usual ways fits."""
    own, other = expected if side == "chosen" else expected[::-1]
    ways = {
        "those of the other answer": other, "not multiplied by beta": own / beta,
        "multiplied by beta twice": own * beta,
        "negated": -own, "divided by beta": own / beta**2,
    }  # fmt: skip
    if given.has("ref_") and found.options["reference"] == "subtracted":
        for how, words in (
            ("absent", "beta times the policy's log-prob, without the reference"),
            ("added", "beta times the sum of both models' log-probs"),
            ("exchanged", "compared with the reference's other answer"),
        ):
            options = {**found.options, "reference": how, "direction": "chosen"}
            both = pairs.Reference(given).log_ratios(cases.seen(case), options)
            ways[words] = beta * both[0 if side == "chosen" else 1].detach()
    return next((words for words, y in ways.items() if _same(x, y)), "")


ROLE = Role(
    name="preference_loss",
    stage="loss",
    asks="log-probs of chosen and rejected answers -> loss of each pair, or their mean",
    takes=(
        "chosen_logprobs", "rejected_logprobs", "ref_chosen_logprobs", "ref_rejected_logprobs", "chosen_token_logprobs",
        "rejected_token_logprobs", "ref_chosen_token_logprobs", "ref_rejected_token_logprobs", "pair_logprobs",
        "ref_pair_logprobs", "pair_token_logprobs", "ref_pair_token_logprobs", "chosen_logits", "rejected_logits",
        "ref_chosen_logits", "ref_rejected_logits", "pair_logits", "ref_pair_logits", "chosen_labels",
        "rejected_labels",
        "pair_labels", "chosen_mask", "rejected_mask", "pair_mask", "chosen_lengths", "rejected_lengths",
        "pair_lengths",
        "chosen_logratios", "rejected_logratios", "policy_logratios", "ref_logratios", "preference_logits", "margin",
        "chosen_nll", "example_logprobs", "ref_example_logprobs", "desirable", "kl_logprobs", "ref_kl_logprobs",
        "kl_estimate", "beta", "label_smoothing", "target_margin", "margin_ratio", "desirable_weight",
        "undesirable_weight", "nll_weight", "penalty_weight", "preference_type",
    ),
    needs=(
        (
            "chosen_logprobs", "pair_logprobs", "chosen_logits", "pair_logits", "chosen_logratios", "policy_logratios",
            "preference_logits", "example_logprobs", "chosen_token_logprobs", "pair_token_logprobs",
        ),
    ),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=pitfalls.ALL,
)  # fmt: skip
