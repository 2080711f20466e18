"""Rewards, extractors and decoders of released frameworks, named in a manifest with nothing bound by hand.

None may be called a bug, and at least four of five have to be recognised by their convention.
"""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]

SCORE = "verl.utils.reward_score."
RECOGNISED = {
    "trl.rewards.format_rewards:think_format_reward": ("reward", "independent of the order"),
    "trl.rewards.other_rewards:get_repetition_penalty_reward": ("reward", "independent of the order"),
    SCORE + "gsm8k:extract_solution": ("extract_answer", "as str from: what its pattern matches, #### answer"),
    SCORE + "gsm8k:compute_score": ("reward", "#### answer"),
    SCORE + "math_dapo:compute_score": ("reward", "earns 1, a wrong one -1"),
    SCORE + "math_dapo:is_correct_minerva": ("reward", "earns 1, a wrong one 0"),
    SCORE + "math_dapo:last_boxed_only_string": ("extract_answer", "as str from: \\boxed{}"),
    SCORE + "math_dapo:remove_boxed": ("extract_answer", "a box and nothing else"),
    SCORE + "math_dapo:normalize_final_answer": ("extract_answer", "as str from"),
    SCORE + "math_reward:compute_score": ("reward", "earns 1, a wrong one 0"),
    SCORE + "math_reward:last_boxed_only_string": ("extract_answer", "as str from: \\boxed{}"),
    SCORE + "math_reward:remove_boxed": ("extract_answer", "a box and nothing else"),
    SCORE + "math_batch:compute_score": ("reward", "earns 1, a wrong one 0"),
    SCORE + "geo3k:format_reward": ("reward", "the same reward in every call"),
    SCORE + "search_r1_like_qa_em:extract_solution": ("extract_answer", "as str from"),
    SCORE + "search_r1_like_qa_em:compute_score": ("reward", "earns 1, a wrong one 0"),
    SCORE + "search_r1_like_qa_em:compute_score_subem": ("reward", "earns 1, a wrong one 0"),
    SCORE + "prime_math:match_answer": ("extract_answer", "as tuple from"),
}
NOT_RECOGNISED = {
    "trl.rewards.other_rewards:get_soft_overlong_punishment": "reward",
    SCORE + "math_reward:strip_string": "extract_answer",
    "verl.workers.reward_manager.naive:NaiveRewardManager.__call__": "reward",
}
"""Settings that nobody declares, functions that normalise what was extracted, keys that are chosen at run time."""


@pytest.fixture(scope="module")
def report(python, verify, tmp_path_factory):
    """One report of all of them."""
    folder = tmp_path_factory.mktemp("rewards")
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 120"]
    roles = {**{ref: role for ref, (role, _) in RECOGNISED.items()}, **NOT_RECOGNISED}
    for ref, role in roles.items():
        lines += [f"[targets.{json.dumps(ref)}]", f'role = "{role}"', f'ref = "{ref}"']
    (folder / "rltriage.toml").write_text("\n".join(lines))
    return verify(cwd=folder)


def test_no_function_of_a_release_is_called_a_bug(report) -> None:
    assert report.hard() == []


@pytest.mark.parametrize(("ref", "words"), [(ref, words) for ref, (_, words) in RECOGNISED.items()])
def test_a_function_is_recognised(report, ref: str, words: str) -> None:
    assert "not_run" not in report.kinds(ref)
    assert words in report.recognised(ref)


@pytest.mark.parametrize("ref", NOT_RECOGNISED)
def test_what_is_not_recognised_says_why(report, ref: str) -> None:
    assert report.kinds(ref) & {"not_run", "diverges"}


def test_four_of_five_are_recognised() -> None:
    assert len(RECOGNISED) >= 0.8 * (len(RECOGNISED) + len(NOT_RECOGNISED))
