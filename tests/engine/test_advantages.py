"""The advantages role: right functions in many idioms, planted faults, two at a time, and unlisted formulas."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from specimens import DATA, findings, functions

from rltriage_probes import checking
from rltriage_probes.advantages import advantages
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

# Warnings of the functions under examination are not errors of ours.
pytestmark = pytest.mark.filterwarnings("ignore")

GROUPED = {"algorithm": "cispo", "group_size": 4}
"""An algorithm with group baselines that leaves the division by the std open."""


def check(ref: str, intent: Mapping[str, Any] | None = None, root: Path = DATA) -> TargetResult:
    target = TargetSpec(name="advantages", role="advantages", ref=ref)
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=dict(intent or {}), device="cpu"))


def outcome_of(result: TargetResult, probe: str) -> Outcome:
    return next(c.outcome for c in result.checks if c.probe == f"advantages.{probe}")


def convention_of(result: TargetResult) -> str:
    outcome = outcome_of(result, "formula")
    assert isinstance(outcome, Agrees), outcome
    return outcome.convention.summary


def hard(result: TargetResult) -> list[Outcome]:
    return [o for o in findings(result) if getattr(o, "severity", "hard") == "hard"]


def named(result: TargetResult) -> set[str]:
    """Pitfalls that the result names: all of a known bug, the likeliest of a broken relation."""
    found: set[str] = set()
    for outcome in findings(result):
        if isinstance(outcome, KnownBug):
            found |= {p.pitfall for p in outcome.pitfalls}
        elif isinstance(outcome, Violates):
            found |= {outcome.candidates[0].pitfall}
    return found


MEAN = "group statistics, mean baseline"
STD1, STD0 = f"{MEAN}, std ddof=1", f"{MEAN}, std ddof=0"
NO_STD = f"{MEAN}, no division by the std"
RLOO = "group statistics, leave-one-out baseline, no division by the std"
RIGHT = {
    "view_mean_std": f"{STD1}, std + eps, eps=0.0001",
    "keepdim_and_flatten": f"{STD1}, std + eps, eps=1e-06",
    "population_std": f"{STD0}, std + eps, eps=1e-08",
    "tiny_eps": f"{STD1}, std + eps, eps=1e-09",
    "dr_grpo": NO_STD,
    "rloo_rest_mean": RLOO,
    "rloo_factor": RLOO,
    "rloo_python": RLOO,
    "numpy_groups": f"{STD0}, std + eps, eps=1e-06",
    "numpy_sample_std": f"{STD1}, std + eps, eps=1e-05",
    "by_uid": f"{STD1}, std + eps, eps=1e-06",
    "by_uid_without_std": NO_STD,
    "scatter_mean": f"{STD1}, std + eps, eps=1e-06",
    "scatter_population": f"{STD0}, std + eps, eps=1e-08",
    "by_einsum": f"{STD1}, std + eps, eps=0.0001",
    "by_membership_matrix": NO_STD,
    "nested_lists": f"{STD0}, std + eps, eps=1e-08",
    "statistics_module": f"{STD1}, std + eps, eps=1e-06",
    "one_group": "statistics of the whole batch, mean baseline, std ddof=1, std + eps, eps=1e-06",
    "batch_std": f"{MEAN}, std of the batch, ddof=1, std + eps, eps=0.0001",
    "centred_then_whitened": f"{NO_STD}, whitened over the batch, ddof=1",
    "whiten_batch": "statistics of the whole batch, mean baseline, std ddof=0, std + eps, eps=1e-08",
    "clamped_std": STD1,
    "maximum_of_std_and_eps": STD0,
    "root_of_var_plus_eps": f"{STD1}, sqrt(var + eps), eps=1e-05",
    "only_where_spread": STD1,
    "aware_of_nan": f"{STD1}, std + eps, eps=0.0001",
    "in_double": f"{STD1}, std + eps, eps=1e-08",
    "on_tokens": f"{STD1}, std + eps, eps=1e-06",
    "plain_reinforce": "no baseline",
    "over_the_mean": f"{MEAN}, divided by the group mean, eps=1e-06",
    "median_baseline": "group statistics, median baseline, no division by the std",
    "switched": f"{STD1}, std + eps, eps=0.0001",
    "expanded": f"{STD1}, std + eps, eps=1e-08",
    "two_returns": NO_STD,
    "leave_one_out_std": "group statistics, leave-one-out baseline, leave-one-out std",
    "by_prompt_text": NO_STD,
    "welford": f"{STD1}, std + eps, eps=1e-08",
    "standardised_with_layer_norm": f"{STD0}, sqrt(var + eps), eps=1e-06",
    "columns_are_samples": f"{STD1}, std + eps, eps=1e-06",
    "rewards_are_zero_elsewhere": f"{NO_STD}, adds up token rewards, which are 0 behind the mask",
    "whitened_over_tokens": f"{NO_STD}, whitened over the trained tokens, ddof=1",
}
"""What each right function is recognised as; the beginning, where the rest can't be told apart."""

UNGROUPED = {"whiten_batch", "plain_reinforce"}
"""Right for algorithms whose baseline isn't the group's."""


def test_every_right_function_has_its_convention_in_the_table() -> None:
    assert sorted(functions("advantages_right")) == sorted(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_function_is_recognised_by_its_convention(name: str) -> None:
    result = check(f"advantages_right.py:{name}")

    assert findings(result) == []
    assert convention_of(result).startswith(RIGHT[name])


@pytest.mark.parametrize("name", [n for n in RIGHT if n not in UNGROUPED])
def test_declaring_a_grouped_algorithm_makes_no_grouped_function_a_bug(name: str) -> None:
    result = check(f"advantages_right.py:{name}", GROUPED)

    assert findings(result) == []
    assert isinstance(outcome_of(result, "formula"), Agrees)


def test_a_method_is_checked_with_the_settings_of_its_object() -> None:
    result = check("advantages_right.py:Trainer.compute_advantages")

    assert findings(result) == []
    assert convention_of(result) == f"{STD1}, std + eps, eps=1e-06"


@pytest.mark.parametrize("group_size", [2, 5, 16])
@pytest.mark.parametrize("name", ["view_mean_std", "rloo_factor", "by_uid", "numpy_groups"])
def test_the_declared_group_size_changes_no_verdict(name: str, group_size: int) -> None:
    result = check(f"advantages_right.py:{name}", {"algorithm": "cispo", "group_size": group_size})

    assert findings(result) == []
    assert isinstance(outcome_of(result, "formula"), Agrees)


WRONG = {
    "ADV-EPSILON": ["eps_of_one", "eps_in_signature", "eps_under_the_root", "eps_as_floor", "eps_in_python"],
    "ADV-NO-EPSILON": ["no_eps", "no_eps_numpy"],
    "ADV-SIGN": ["baseline_minus_reward", "others_minus_reward", "negative_by_prompt"],
    "ADV-NO-GROUP": ["uid_by_row", "rewards_as_they_are"],
    "ADV-BATCH-BASELINE": ["global_mean", "global_mean_on_tokens"],
    "ADV-INTERLEAVED": ["view_the_other_way", "strided_slices"],
    "ADV-AXIS": ["over_prompts", "over_prompts_numpy"],
    "ADV-RESHAPE": ["blocks_of_prompts", "chunked_by_group_size"],
    "ADV-TILED": ["repeat_for_interleave", "tile_in_numpy"],
    "ADV-VARIANCE": ["over_the_variance", "forgot_the_root"],
    "ADV-SCORE-UNMASKED": ["sum_over_all_positions", "sum_in_groups"],
    "ADV-STEP-MASK": ["last_row_copied", "last_row_gathered"],
    "ADV-IDS-IGNORED": ["neighbours", "neighbours_by_count"],
    "ADV-LOO-DIVISOR": ["siblings_over_n", "all_over_n_minus_one"],
    "ADV-EPS-MISPLACED": ["eps_behind", "eps_behind_numpy"],
    "ADV-SCALE-FLAG": ["switch_ignored", "Switched.advantages", "ByWord.__call__"],
    "ADV-MUTATES-REWARDS": ["centred_in_place", "scaled_in_place"],
    "ADV-MASK-INVERTED": ["filled_where_trained", "times_one_minus_mask"],
    "ADV-GROUP-COUNT": ["average_group_size", "average_count_by_uid"],
    "ADV-WHITEN-PADDING": ["whitened_with_padding", "whitened_with_padding_by_uid"],
    "ADV-ORDER": ["ranks_from_the_top", "far_from_the_mean"],
    "ADV-ABSTAIN": ["none_becomes_nan", "nan_to_zero_too_late"],
    "ADV-REJECTED-VOTE": ["rejected_vote", "discarded_vote"],
}
"""Pitfall -> functions that have it and nothing else."""

BESIDES = {
    "ADV-SINGLETON-NAN": ["lone_sample_std", "lone_sample_divided"],
    "ADV-UNEVEN-GROUPS": ["whole_batch_when_uneven", "whole_batch_when_uneven_scaled"],
}
"""Pitfall -> functions in which it stands beside a softer finding, or is itself a soft one."""

PAIRS = {
    "sign_and_eps": {"ADV-SIGN", "ADV-EPSILON"},
    "tiled_and_eps": {"ADV-TILED", "ADV-EPSILON"},
    "axis_and_sign": {"ADV-AXIS", "ADV-SIGN"},
    "variance_and_sign": {"ADV-VARIANCE", "ADV-SIGN"},
    "batch_and_eps": {"ADV-BATCH-BASELINE", "ADV-EPSILON"},
    "blocks_and_variance": {"ADV-RESHAPE", "ADV-VARIANCE"},
    "unmasked_and_sign": {"ADV-SCORE-UNMASKED", "ADV-SIGN"},
    "unmasked_and_eps": {"ADV-SCORE-UNMASKED", "ADV-EPSILON"},
    "unmasked_and_axis": {"ADV-SCORE-UNMASKED", "ADV-AXIS"},
    "interleaved_and_eps": {"ADV-INTERLEAVED", "ADV-EPSILON"},
    "no_baseline_and_sign": {"ADV-NO-GROUP", "ADV-SIGN"},
    "steps_and_sign": {"ADV-STEP-MASK", "ADV-SIGN"},
    "eps_by_uid": {"ADV-EPSILON", "ADV-SINGLETON-NAN"},
}
"""Function -> the two pitfalls that it has."""


def test_every_wrong_function_and_every_pitfall_is_in_a_table() -> None:
    listed = itertools.chain(*WRONG.values(), *BESIDES.values(), PAIRS)

    assert sorted(functions("advantages_wrong")) == sorted(n for n in listed if "." not in n)
    assert sorted(p.id for p in advantages.ROLE.pitfalls) == sorted({**WRONG, **BESIDES, "ADV-SCALE-UNDECLARED": []})
    assert all(len(names) >= 2 for names in {**WRONG, **BESIDES}.values())


@pytest.mark.parametrize(("pitfall", "name"), [(p, n) for p, names in WRONG.items() for n in names])
def test_a_planted_fault_is_named_alone(pitfall: str, name: str) -> None:
    result = check(f"advantages_wrong.py:{name}", GROUPED)

    assert named(result) == {pitfall}
    assert hard(result)


@pytest.mark.parametrize("name", BESIDES["ADV-UNEVEN-GROUPS"])
def test_falling_back_to_the_batch_is_named_on_uneven_groups(name: str) -> None:
    result = check(f"advantages_wrong.py:{name}", GROUPED)

    assert isinstance(outcome_of(result, "formula"), Agrees)
    bug = outcome_of(result, "uneven-groups")
    assert isinstance(bug, KnownBug) and bug.severity == "hard"
    assert [p.pitfall for p in bug.pitfalls] == ["ADV-UNEVEN-GROUPS"]


@pytest.mark.parametrize("name", BESIDES["ADV-SINGLETON-NAN"])
def test_nan_for_a_lone_sample_is_named_softly(name: str) -> None:
    result = check(f"advantages_wrong.py:{name}", GROUPED)

    assert hard(result) == []
    assert named(result) == {"ADV-SINGLETON-NAN"}


@pytest.mark.parametrize("name", PAIRS)
def test_two_faults_in_one_function_are_both_named(name: str) -> None:
    assert named(check(f"advantages_wrong.py:{name}", GROUPED)) == PAIRS[name]


@pytest.mark.parametrize("name", ["global_mean", "rewards_as_they_are"])
def test_without_a_declared_algorithm_a_baseline_is_recognised_and_not_judged(name: str) -> None:
    assert findings(check(f"advantages_wrong.py:{name}")) == []
    assert findings(check(f"advantages_wrong.py:{name}", {"algorithm": "reinforce_pp"})) == []


@pytest.mark.parametrize("name", functions("advantages_strange"))
def test_an_unknown_formula_diverges_and_is_never_called_a_bug(name: str) -> None:
    """Under a declared grouped algorithm, which makes more options pitfalls than no declaration does."""
    result = check(f"advantages_strange.py:{name}", GROUPED)

    assert findings(result) == []
    assert isinstance(outcome_of(result, "formula"), Diverges)


def test_a_std_that_the_declared_algorithm_lacks_is_named() -> None:
    """Hard where the function always divides, soft where its caller can switch; the reverse is soft as well."""
    declared = {"algorithm": "dr_grpo", "group_size": 4}

    always = check("advantages_right.py:view_mean_std", declared)
    switched = check("advantages_right.py:switched", declared)
    reverse = check("advantages_right.py:dr_grpo", {"algorithm": "grpo", "group_size": 4})

    assert named(always) == named(switched) == named(reverse) == {"ADV-SCALE-UNDECLARED"}
    assert [len(hard(r)) for r in (always, switched, reverse)] == [1, 0, 0]
    assert findings(check("advantages_right.py:dr_grpo", declared)) == []


@pytest.mark.parametrize("name", ["view_the_other_way", "strided_slices"])
def test_an_order_of_the_rows_that_nobody_documents_is_a_question(name: str, tmp_path: Path) -> None:
    source = (DATA / "advantages_wrong.py").read_text("utf-8")
    (tmp_path / "bare.py").write_text(
        source.replace("the completions of a prompt are adjacent", "").replace("lie next to each other", "")
    )

    result = check(f"bare.py:{name}", GROUPED, tmp_path)

    assert named(result) == {"ADV-INTERLEAVED"}
    assert hard(result) == []


KNOB = """
import math

def compute(rewards, group_size):
    small = {expression}
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True{ddof}) + small)).flatten()
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("0.37", 0.37),
        ("37 / 100", 0.37),
        ("math.sqrt(2) - 1", 0.41421),
        ("math.exp(1.5)", 4.4817),
        ("25 * 25 * 1.25", 781.25),
        ("1 / 64", 1 / 64),
    ],
)
@pytest.mark.parametrize("ddof", ["", ", correction=0"])
def test_an_odd_epsilon_is_solved_for(expression: str, value: float, ddof: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(KNOB.format(expression=expression, ddof=ddof))

    bug = outcome_of(check("odd.py:compute", GROUPED, tmp_path), "formula")

    assert isinstance(bug, KnownBug)
    assert [p.pitfall for p in bug.pitfalls] == ["ADV-EPSILON"]
    assert bug.convention.knobs["eps"] == pytest.approx(value, rel=0.01)
    assert bug.pitfalls[0].numbers["eps"] == pytest.approx(value, rel=0.01)


@pytest.mark.parametrize("expression", ["1e-3", "0.005", "3.3e-7", "1e-12", "2 ** -20"])
def test_an_epsilon_that_is_only_unusual_is_no_bug(expression: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(KNOB.format(expression=expression, ddof=""))

    assert findings(check("odd.py:compute", GROUPED, tmp_path)) == []


def test_no_unknown_formula_takes_more_than_a_few_seconds() -> None:
    started = time.process_time()

    check("advantages_strange.py:squashed", GROUPED)

    assert time.process_time() - started < 6.0
