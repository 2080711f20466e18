"""The five roles on real functions of released frameworks, named in a manifest with nothing bound by hand.

Each must be recognised by its convention, or honestly diverge or not run. None may be called a bug.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]


class Row(NamedTuple):
    """A function and what is expected of it: words of its convention, or `diverges` or `not run`."""

    ref: str
    role: str
    expected: str
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        return " ".join([self.ref, *map(str, self.settings.values())])


UTILS, GRPO = "trl.trainer.utils:", "trl.trainer.grpo_trainer:GRPOTrainer."
CORE, TORCH, SCORE = "verl.trainer.ppo.core_algos:", "verl.utils.torch_functional:", "verl.utils.reward_score."
MODELS, MAKER = "openrlhf.models.", "openrlhf.trainer.ppo_utils.experience_maker:RemoteExperienceMaker."

TABLE = {
    "trl": (
        Row("trl.rewards.format_rewards:think_format_reward", "reward", "independent of the order"),
        Row(UTILS + "selective_log_softmax", "logprobs", "logits already aligned with the tokens"),
        Row(UTILS + "selective_log_softmax_and_entropy", "logprobs", "logits already aligned with the tokens"),
        Row(UTILS + "entropy_from_logits", "entropy", "entropy in nats"),
        Row("trl.experimental.orpo.orpo_trainer:ORPOTrainer.get_batch_logps", "logprobs", "summed over the tokens"),
        Row(GRPO + "_compute_loss", "policy_loss", "clipped surrogate, sum over the given token count"),
        Row(GRPO + "_compute_loss", "policy_loss", "sum over B times a constant", {"loss_type": "dr_grpo"}),
        Row("trl.trainer.rloo_trainer:RLOOTrainer._compute_loss", "policy_loss", "one ratio a sequence, of summed"),
    ),
    "verl": (
        Row(SCORE + "gsm8k:compute_score", "reward", "#### answer"),
        Row(SCORE + "math_dapo:compute_score", "reward", "earns 1, a wrong one -1"),
        Row(SCORE + "math_reward:compute_score", "reward", "earns 1, a wrong one 0"),
        Row(CORE + "compute_grpo_outcome_advantage", "advantages", "std ddof=1"),
        Row(CORE + "compute_grpo_vectorized_outcome_advantage", "advantages", "std ddof=1"),
        Row(CORE + "compute_rloo_outcome_advantage", "advantages", "leave-one-out baseline"),
        Row(CORE + "compute_rloo_vectorized_outcome_advantage", "advantages", "leave-one-out baseline"),
        Row(CORE + "compute_reinforce_plus_plus_baseline_outcome_advantage", "advantages", "whitened over the trained"),
        Row(CORE + "compute_reinforce_plus_plus_outcome_advantage", "advantages", "statistics of the whole batch"),
        Row(CORE + "compute_gpg_outcome_advantage", "advantages", "no division by the std"),
        Row(CORE + "compute_opo_outcome_advantage", "advantages", "diverges"),
        Row(CORE + "compute_remax_outcome_advantage", "advantages", "not run"),
        Row(TORCH + "logprobs_from_logits", "logprobs", "logits already aligned"),
        Row(TORCH + "logprobs_from_logits_v2", "logprobs", "logits already aligned"),
        Row(TORCH + "log_probs_from_logits_response", "logprobs", "shifts inside, keeps the completion"),
        Row(TORCH + "entropy_from_logits", "entropy", "entropy in nats"),
        Row(TORCH + "get_response_mask", "completion_mask", "end token included"),
        Row(CORE + "compute_policy_loss_vanilla", "policy_loss", "clipped surrogate with a dual clip"),
        Row(CORE + "compute_policy_loss_gspo", "policy_loss", "one length-normalised ratio a sequence"),
        Row(CORE + "compute_policy_loss_cispo", "policy_loss", "CISPO weight, clipped on both sides"),
        Row(CORE + "compute_policy_loss_geo_mean", "policy_loss", "geometric mean of ratios"),
        Row(CORE + "compute_policy_loss_gpg", "policy_loss", "advantage times log-prob, no ratio"),
        Row(CORE + "compute_policy_loss_sapo", "policy_loss", "diverges"),
        Row(CORE + "kl_penalty", "kl", "KL estimator k3, clamped", {"kl_estimator": "low_var_kl"}),
    ),
    "openrlhf": (
        Row(MODELS + "utils:log_probs_from_logits", "logprobs", "logits divided by the temperature"),
        Row(MODELS + "utils:compute_entropy", "entropy", "entropy in nats"),
        Row(MODELS + "utils:compute_approx_kl", "kl", "KL estimator k1"),
        Row(MODELS + "loss:PolicyLoss.forward", "policy_loss", "token-level ratio, clipped surrogate"),
        Row(MAKER + "compute_advantages_and_returns", "advantages", "not run"),
    ),
}
ROWS = [(framework, row) for framework, rows in TABLE.items() for row in rows]


@pytest.fixture(scope="module")
def reports(python, verify, tmp_path_factory):
    """One report a framework."""
    out = {}
    for framework, rows in TABLE.items():
        folder = tmp_path_factory.mktemp(framework)
        (folder / "rltriage.toml").write_text(manifest(rows, python))
        out[framework] = verify(cwd=folder)
    return out


def manifest(rows: tuple[Row, ...], python: str) -> str:
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 120"]
    for row in rows:
        settings = ", ".join(f"{k} = {json.dumps(v)}" for k, v in row.settings.items())
        lines += [f"[targets.{json.dumps(row.name)}]", f'role = "{row.role}"', f'ref = "{row.ref}"']
        lines += [f"settings = {{ {settings} }}"] if settings else []
    return "\n".join(lines)


def test_the_table_has_the_five_roles_on_enough_functions() -> None:
    assert len({row.ref for _, row in ROWS}) >= 30
    assert {"reward", "advantages", "logprobs", "policy_loss", "completion_mask"} <= {row.role for _, row in ROWS}


@pytest.mark.parametrize("framework", TABLE)
def test_no_function_of_a_release_is_called_a_bug(reports, framework: str) -> None:
    assert reports[framework].hard() == []


@pytest.mark.parametrize(("framework", "row"), ROWS, ids=[row.name for _, row in ROWS])
def test_a_function_is_recognised_or_honestly_not(reports, framework: str, row: Row) -> None:
    report = reports[framework]
    found = report.kinds(row.name)

    if row.expected == "diverges":
        assert "diverges" in found
    elif row.expected == "not run":
        assert found == {"not_run"}
        assert all(m["reason"] for m in report.report["not_run"] if m["name"] == row.name)
    else:
        assert "diverges" not in found
        assert row.expected in report.recognised(row.name)
