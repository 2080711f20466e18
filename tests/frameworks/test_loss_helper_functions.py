"""Loss aggregation, sampler correction, KL, entropy and masks of released frameworks, with nothing bound by hand."""

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
        return " ".join([self.role, self.ref, *map(str, self.settings.values())])


CORE, TORCH = "verl.trainer.ppo.core_algos:", "verl.utils.torch_functional:"
CORR = "verl.trainer.ppo.rollout_corr_helper:"
MODELS = "openrlhf.models."

TABLE = {
    "trl": (
        Row("trl.trainer.utils:entropy_from_logits", "entropy", "entropy in nats"),
        Row("trl.trainer.utils:selective_log_softmax_and_entropy", "entropy", "entropy in nats"),
        Row("trl.experimental.sdpo.loss_utils:apply_importance_sampling_clipping", "importance_weights", "capped"),
        Row("trl.experimental.sdft.loss_utils:apply_importance_sampling_clipping", "importance_weights", "capped"),
    ),
    "verl": (
        Row(CORE + "agg_loss", "aggregate", "sum over the given token count", {"aggregation": "token-mean"}),
        Row(CORE + "agg_loss", "aggregate", "token means over the given number", {"aggregation": "sequence-mean"}),
        Row(CORE + "agg_loss", "aggregate", "sum over the given number of sequences", {"aggregation": "sequence-sum"}),
        Row(CORE + "agg_loss", "aggregate", "times a constant", {"loss_agg_mode": "seq-mean-token-sum-norm"}),
        Row(TORCH + "masked_mean", "aggregate", "mean over the tokens of the batch"),
        Row(TORCH + "masked_sum", "aggregate", "sum over all tokens"),
        Row(CORR + "compute_rollout_correction_weights", "importance_weights", "token weight, capped"),
        Row(CORR + "compute_rollout_correction_weights", "importance_weights", "product", {"ratio_level": "sequence"}),
        Row(
            CORR + "compute_rollout_rejection_mask", "importance_weights", "1 inside [1/cap, cap], 0 outside",
        ),
        Row(TORCH + "entropy_from_logits", "entropy", "entropy in nats"),
        Row(TORCH + "entropy_from_logits_with_chunking", "entropy", "entropy in nats"),
        Row(CORE + "compute_entropy_loss", "entropy", "mean over the tokens of the batch"),
        Row(CORE + "kl_penalty", "kl", "KL estimator k1", {"kl_estimator": "k1"}),
        Row(CORE + "kl_penalty", "kl", "KL estimator k2", {"kl_estimator": "k2"}),
        Row(CORE + "kl_penalty", "kl", "absolute log-ratio", {"kl_estimator": "abs"}),
    ),
    "openrlhf": (
        Row(MODELS + "loss:aggregate_loss", "aggregate", "sum over the given token count"),
        Row(MODELS + "utils:masked_mean", "aggregate", "mean over the tokens of the batch"),
        Row(MODELS + "utils:compute_entropy", "entropy", "entropy in nats"),
    ),
}  # fmt: skip
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
    else:
        assert "diverges" not in found
        assert row.expected in report.recognised(row.name)
