"""The logprobs and entropy roles: right functions in many idioms, planted faults, two at a time, unlisted scores."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from specimens import DATA, findings, functions

from rltriage_probes import checking
from rltriage_probes.contract import (
    Agrees,
    CheckRequest,
    Diverges,
    KnownBug,
    Outcome,
    TargetResult,
    TargetSpec,
    Violates,
)
from rltriage_probes.logprobs import entropy, logprobs

# Warnings of the functions under examination are not errors of ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def check(role: str, ref: str, intent: Mapping[str, Any] | None = None, root: Path = DATA) -> TargetResult:
    target = TargetSpec(name=role, role=role, ref=ref)
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=dict(intent or {}), device="cpu"))


def formula_of(result: TargetResult) -> Outcome:
    return next(c.outcome for c in result.checks if c.probe.endswith(".formula"))


def convention_of(result: TargetResult) -> str:
    outcome = formula_of(result)
    assert isinstance(outcome, Agrees), outcome
    return outcome.convention.summary


def named(result: TargetResult) -> set[str]:
    """Pitfalls that the result names: all of a known bug, the likeliest of a broken relation."""
    found: set[str] = set()
    for outcome in findings(result):
        if isinstance(outcome, KnownBug):
            found |= {p.pitfall for p in outcome.pitfalls}
        elif isinstance(outcome, Violates):
            found |= {outcome.candidates[0].pitfall}
    return found


T1 = "temperature 1 (division, if any, lies with the caller)"
TEMPERED = "logits divided by the temperature, temperature=0.7"
ALIGNED = "logits already aligned with the tokens"
INSIDE = "shifts inside"
RIGHT = {
    "log_softmax_gather": f"{ALIGNED}, {T1}",
    "minus_logsumexp": f"{ALIGNED}, {T1}",
    "row_by_row": f"{ALIGNED}, {T1}",
    "shifted_inside": f"{INSIDE}, {T1}",
    "cross_entropy_negated": f"{INSIDE}, {T1}",
    "cross_entropy_transposed": f"{ALIGNED}, {T1}",
    "nll_loss": f"{ALIGNED}, {T1}",
    "nll_module": f"{ALIGNED}, {T1}",
    "flattened_index": f"{ALIGNED}, {T1}",
    "rolled_labels": f"{INSIDE}, last column is filler, {T1}",
    "value_at_its_token": f"{INSIDE}, first column is filler, {T1}",
    "completion_columns": f"{INSIDE}, keeps the completion, {T1}",
    "response_slice": f"{INSIDE}, keeps the completion, {T1}",
    "after_the_prompt": f"{INSIDE}, keeps the completion, {T1}",
    "divided_by_temperature": f"{INSIDE}, {TEMPERED}",
    "divided_in_place": f"{ALIGNED}, {TEMPERED}",
    "multiplied_by_inverse": f"{ALIGNED}, {TEMPERED}",
    "in_chunks": f"{ALIGNED}, {T1}",
    "in_vocabulary_chunks": f"{ALIGNED}, {T1}",
    "upcast_first": f"{ALIGNED}, {T1}",
    "bf16_result": f"{ALIGNED}, {T1}",
    "in_double": f"{INSIDE}, {T1}",
    "masked_to_zero": f"{INSIDE}, {T1}",
    "attention_masked": f"{INSIDE}, {T1}",
    "ignored_labels": f"{INSIDE}, {T1}",
    "one_hot_product": f"{ALIGNED}, {T1}",
    "categorical": f"{ALIGNED}, {T1}",
    "stable_by_hand": f"{ALIGNED}, {T1}",
    "softplus_form": f"{ALIGNED}, {T1}",
    "with_entropy": f"{ALIGNED}, {T1}",
    "packed": f"{INSIDE}, last column is filler, {T1}",
    "fixed_temperature": f"{INSIDE}, a temperature written into the function, temperature=0.6",
    "by_sequence": f"{INSIDE}, {T1}",
    "python_loops": f"{ALIGNED}, {T1}",
    "runs_the_model": f"{INSIDE}, keeps the completion, {T1}",
    "runs_the_model_whole": f"{INSIDE}, {T1}",
    "floored_harmlessly": f"{ALIGNED}, log of the probability plus a floor, {T1}, floor=1e-10",
}
NATS = f"entropy in nats, {T1}"
RIGHT_ENTROPY = {
    "p_times_logp": NATS,
    "lse_minus_mean_logit": NATS,
    "in_chunks": NATS,
    "categorical": NATS,
    "at_temperature": f"entropy in nats, {TEMPERED}",
    "masked": NATS,
    "with_entr": NATS,
    "in_bits": f"entropy in bits, {T1}",
    "cross_entropy_with_itself": NATS,
    "row_by_row": NATS,
    "kl_to_uniform": NATS,
    "in_double": NATS,
    "banned_tokens_count_nothing": NATS,
}


def test_every_right_function_has_its_convention_in_the_table() -> None:
    assert sorted(functions("logprobs_right")) == sorted(RIGHT)
    assert sorted(functions("entropy_right")) == sorted(RIGHT_ENTROPY)


@pytest.mark.parametrize("name", RIGHT)
def test_right_logprobs_are_recognised_by_their_convention(name: str) -> None:
    result = check("logprobs", f"logprobs_right.py:{name}")

    assert findings(result) == []
    assert convention_of(result) == RIGHT[name]


@pytest.mark.parametrize("name", RIGHT_ENTROPY)
def test_right_entropies_are_recognised_by_their_convention(name: str) -> None:
    result = check("entropy", f"entropy_right.py:{name}")

    assert findings(result) == []
    assert convention_of(result) == RIGHT_ENTROPY[name]


def test_a_method_is_checked_with_the_temperature_of_its_object() -> None:
    result = check("logprobs", "logprobs_right.py:Policy.token_logprobs")

    assert findings(result) == []
    assert convention_of(result) == f"{INSIDE}, {TEMPERED}"


WRONG = {
    "LOGP-SIGN": ["lse_minus_logit", "cross_entropy_as_is", "minus_on_completion"],
    "LOGP-RAW-LOGIT": ["picked_logit", "picked_logit_shifted"],
    "LOGP-PROBABILITY": ["softmax_gather", "exponentiated"],
    "LOGP-MAX-FOR-LSE": ["minus_peak", "minus_peak_shifted"],
    "LOGP-AXIS": ["softmax_over_time", "lse_over_time"],
    "LOGP-GREEDY": ["best_token", "argmax_gather"],
    "LOGP-SHIFT": [
        "same_position",
        "both_from_the_second",
        "last_columns_of_both",
        "rolled_to_the_right",
        "shifted_twice",
    ],
    "LOGP-TEMPERATURE-IGNORED": ["temperature_unused"],
    "LOGP-TEMPERATURE-AFTER": ["divided_after", "divided_after_negated"],
    "LOGP-TEMPERATURE-INVERTED": ["multiplied", "multiplied_shifted"],
    "LOGP-TEMPERATURE-TWICE": ["divided_twice", "divided_here_and_in_helper"],
    "LOGP-TEMPERATURE-HALF": ["logit_only", "normaliser_only"],
    "LOGP-MASK-SHIFT": ["mask_one_early", "mask_filled_early"],
    "LOGP-FLOOR": ["floor_of_a_percent", "floor_shifted"],
    "LOGP-DOUBLE-SOFTMAX": ["log_softmax_of_probabilities", "categorical_of_probabilities"],
    "LOGP-FLATTEN": ["time_major_logits", "time_major_shifted"],
    "LOGP-NORMALISER-DETACHED": ["normaliser_without_gradient", "detached_normaliser_shifted"],
    "LOGP-NO-GRADIENT": ["of_detached_logits", "of_a_copy"],
    "LOGP-PADDING-INF": ["minus_inf_on_padding", "log_of_zeroed_padding"],
    "LOGP-OVERFLOW": ["naive_lse", "log_of_a_ratio"],
    "LOGP-PACK-CROSS": ["roll_the_pack", "shift_the_pack"],
    "LOGP-NO-ATTENTION-MASK": ["forward_without_mask", "forward_with_a_mask_of_ones"],
    "LOGP-TAIL": ["whole_pieces_only", "fixed_pieces_only"],
    "LOGP-MUTATES-LOGITS": ["divides_shared_logits", "bans_in_place"],
    "LOGP-POSITIVE": ["doubled_and_positive", "log_mean_exp"],
}
PAIRS = {
    "sign_and_shift": {"LOGP-SIGN", "LOGP-SHIFT"},
    "sign_and_temperature": {"LOGP-SIGN", "LOGP-TEMPERATURE-IGNORED"},
    "raw_and_shift": {"LOGP-RAW-LOGIT", "LOGP-SHIFT"},
    "probability_and_temperature_after": {"LOGP-PROBABILITY", "LOGP-TEMPERATURE-AFTER"},
    "maximum_and_inverse_temperature": {"LOGP-MAX-FOR-LSE", "LOGP-TEMPERATURE-INVERTED"},
    "axis_and_shift": {"LOGP-AXIS", "LOGP-SHIFT"},
    "shift_and_temperature": {"LOGP-SHIFT", "LOGP-TEMPERATURE-IGNORED"},
    "sign_and_twice": {"LOGP-SIGN", "LOGP-TEMPERATURE-TWICE"},
    "greedy_and_temperature": {"LOGP-GREEDY", "LOGP-TEMPERATURE-INVERTED"},
    "sign_and_late_completion": {"LOGP-SIGN", "LOGP-SHIFT"},
}
WRONG_ENTROPY = {
    "ENT-SIGN": ["without_the_minus", "mean_logit_minus_lse"],
    "ENT-RAW-LOGITS": ["raw_logits", "raw_logits_einsum"],
    "ENT-AXIS": ["over_time", "over_time_entr"],
    "LOGP-TAIL": ["whole_blocks_only", "stops_before_the_rest"],
    "ENT-TOP-K": ["top_k_of_the_whole", "top_k_gathered"],
    "ENT-BANNED-NAN": ["nan_on_banned", "nan_on_masked"],
    "LOGP-TEMPERATURE-IGNORED": ["temperature_ignored", "temperature_ignored_chunked"],
    "LOGP-TEMPERATURE-AFTER": ["temperature_after", "temperature_after_lse"],
    "LOGP-TEMPERATURE-INVERTED": ["temperature_times", "temperature_times_entr"],
    "LOGP-TEMPERATURE-TWICE": ["temperature_twice", "temperature_twice_squared"],
}
PAIRS_ENTROPY = {
    "sign_and_temperature": {"ENT-SIGN", "LOGP-TEMPERATURE-IGNORED"},
    "axis_and_inverse": {"ENT-AXIS", "LOGP-TEMPERATURE-INVERTED"},
    "raw_and_ignored": {"ENT-RAW-LOGITS", "LOGP-TEMPERATURE-IGNORED"},
}


def test_every_wrong_function_and_every_pitfall_is_in_a_table() -> None:
    undeclared = ["other_temperature"]

    assert sorted(functions("logprobs_wrong")) == sorted(itertools.chain(*WRONG.values(), PAIRS, undeclared))
    assert sorted(functions("entropy_wrong")) == sorted(itertools.chain(*WRONG_ENTROPY.values(), PAIRS_ENTROPY))
    assert sorted(p.id for p in logprobs.ROLE.pitfalls) == sorted(WRONG)
    assert set(WRONG_ENTROPY) < {p.id for p in entropy.ROLE.pitfalls}  # means and gradients: test_entropy_means.py


@pytest.mark.parametrize(("pitfall", "name"), [(p, n) for p, names in WRONG.items() for n in names])
def test_a_fault_planted_in_logprobs_is_named_alone(pitfall: str, name: str) -> None:
    assert named(check("logprobs", f"logprobs_wrong.py:{name}")) == {pitfall}


def test_a_method_that_ignores_its_own_temperature_is_named() -> None:
    assert named(check("logprobs", "logprobs_wrong.py:Scorer.logprobs")) == {"LOGP-TEMPERATURE-IGNORED"}


def test_a_class_that_promises_to_leave_the_logits_alone_is_held_to_it() -> None:
    assert named(check("logprobs", "logprobs_wrong.py:Heads.score")) == {"LOGP-MUTATES-LOGITS"}


@pytest.mark.parametrize(("pitfall", "name"), [(p, n) for p, names in WRONG_ENTROPY.items() for n in names])
def test_a_fault_planted_in_an_entropy_is_named_alone(pitfall: str, name: str) -> None:
    assert named(check("entropy", f"entropy_wrong.py:{name}")) == {pitfall}


@pytest.mark.parametrize("name", PAIRS)
def test_two_faults_in_logprobs_are_both_named(name: str) -> None:
    assert named(check("logprobs", f"logprobs_wrong.py:{name}")) == PAIRS[name]


@pytest.mark.parametrize("name", PAIRS_ENTROPY)
def test_two_faults_in_an_entropy_are_both_named(name: str) -> None:
    assert named(check("entropy", f"entropy_wrong.py:{name}")) == PAIRS_ENTROPY[name]


@pytest.mark.parametrize(
    ("role", "name"),
    [(r, n) for r in ("logprobs", "entropy") for n in functions(f"{r}_strange")],
)
def test_an_unlisted_score_diverges_and_is_never_called_a_bug(role: str, name: str) -> None:
    result = check(role, f"{role}_strange.py:{name}")

    assert findings(result) == []
    assert isinstance(formula_of(result), Diverges)


def test_a_temperature_that_is_not_the_declared_one_is_named_with_both_numbers() -> None:
    bug = formula_of(check("logprobs", "logprobs_wrong.py:other_temperature", {"temperature": 1.0}))

    assert isinstance(bug, KnownBug)
    assert [p.pitfall for p in bug.pitfalls] == ["LOGP-TEMPERATURE-IGNORED"]
    assert bug.pitfalls[0].numbers == {"used": 0.6, "declared": 1.0}


def test_a_written_temperature_is_right_where_it_is_declared_or_nothing_is() -> None:
    assert findings(check("logprobs", "logprobs_wrong.py:other_temperature", {"temperature": 0.6})) == []
    assert findings(check("logprobs", "logprobs_wrong.py:other_temperature")) == []


def test_a_helper_without_a_temperature_is_no_bug_where_one_is_declared() -> None:
    """Its caller may divide."""
    assert findings(check("logprobs", "logprobs_right.py:shifted_inside", {"temperature": 0.6})) == []


@pytest.mark.parametrize(
    ("expression", "value"),
    [("0.37", 0.37), ("37 / 100", 0.37), ("math.sqrt(2)", 1.41421), ("math.exp(-0.2)", 0.81873)],
)
def test_an_odd_temperature_is_solved_for(expression: str, value: float, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(f"""
import math

def logprobs(logits, input_ids):
    scaled = logits[:, :-1] / ({expression})
    return scaled.log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
""")

    outcome = formula_of(check("logprobs", "odd.py:logprobs", root=tmp_path))

    assert isinstance(outcome, Agrees)
    assert outcome.convention.knobs["temperature"] == pytest.approx(value, rel=0.01)


def test_right_values_with_a_gradient_of_another_size_diverge(tmp_path: Path) -> None:
    (tmp_path / "cut.py").write_text("""
def logprobs(logits, input_ids):
    logp = logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return logp.detach() + 0.3 * (logp - logp.detach())
""")

    result = check("logprobs", "cut.py:logprobs", root=tmp_path)

    (gradient,) = [c.outcome for c in result.checks if c.probe == "logprobs.gradient"]
    assert isinstance(formula_of(result), Agrees)
    assert isinstance(gradient, Diverges)
