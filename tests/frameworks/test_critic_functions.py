"""GAE, value losses and reward shaping of released frameworks, named in a manifest with nothing bound by hand.

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
    """A function and what is expected of it: words of its convention, or `not run`."""

    ref: str
    role: str
    expected: str
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        return " ".join([self.role, self.ref, *map(str, self.settings.values())])


CORE, RAY = "verl.trainer.ppo.core_algos:", "verl.trainer.ppo.ray_trainer:"
MAKER = "openrlhf.trainer.ppo_utils.experience_maker:RemoteExperienceMaker."
CLIPPED = "clipped around the old values, half the error"
ROWS = (
    Row(
        CORE + "compute_gae_advantage_return",
        "gae",
        "masked tokens are skipped, whitened over the trained tokens, ddof=1",
    ),
    Row(CORE + "compute_reinforce_plus_plus_outcome_advantage", "gae", "masked tokens are skipped, whitened over"),
    Row(MAKER + "get_advantages_and_returns", "gae", "advantages and returns, masked tokens are steps of value 0"),
    Row(MAKER + "get_cumulative_returns", "gae", "discounted returns, masked tokens are steps of value 0"),
    Row(CORE + "compute_value_loss", "value_loss", CLIPPED),
    Row(CORE + "compute_value_loss", "value_loss", CLIPPED, {"aggregation": "sequence-mean"}),
    Row("openrlhf.models.loss:ValueLoss.forward", "value_loss", CLIPPED),
    Row("openrlhf.models.loss:ValueLoss.forward", "value_loss", CLIPPED, {"clip_value": 0.5}),
    Row(CORE + "compute_rewards", "reward_shaping", "KL estimator k1 (plain log-ratio), KL charged in the reward"),
    Row(RAY + "apply_kl_penalty", "reward_shaping", "KL estimator k1 (plain log-ratio), KL charged in the reward"),
    Row(
        "openrlhf.models.utils:compute_reward",
        "reward_shaping",
        "KL charged in the reward, score on the last token, score",
    ),
    Row("openrlhf.trainer.ppo_utils.length_penalty:apply_overlong_penalty", "reward_shaping", "soft overlong penalty"),
    Row("trl.rewards.other_rewards:get_soft_overlong_punishment", "reward_shaping", "soft overlong penalty"),
    Row("verl.workers.reward_manager.dapo:DAPORewardManager.__call__", "reward_shaping", "not run"),
)


@pytest.fixture(scope="module")
def report(python, verify, tmp_path_factory):
    folder = tmp_path_factory.mktemp("critic")
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 300", 'algorithm = "ppo"']
    for row in ROWS:
        settings = ", ".join(f"{k} = {json.dumps(v)}" for k, v in row.settings.items())
        lines += [f"[targets.{json.dumps(row.name)}]", f'role = "{row.role}"', f'ref = "{row.ref}"']
        lines += [f"settings = {{ {settings} }}"] if settings else []
    (folder / "rltriage.toml").write_text("\n".join(lines))
    return verify(cwd=folder)


def test_no_function_of_a_release_is_called_a_bug(report) -> None:
    assert report.hard() == []


def test_four_of_five_functions_are_recognised() -> None:
    assert sum(row.expected != "not run" for row in ROWS) >= 0.8 * len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_function_is_recognised_or_honestly_not(report, row: Row) -> None:
    if row.expected == "not run":
        assert report.kinds(row.name) == {"not_run"}
    else:
        assert report.kinds(row.name) == {"agrees"}
        assert row.expected in report.recognised(row.name)
