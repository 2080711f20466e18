"""Factories and training steps of released frameworks, named in a manifest with nothing bound by hand.

A factory must be recognised. A step of a framework runs its own kind of model and batch, and is honestly not run.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]


class Row(NamedTuple):
    """A function and what is expected of it: words of its convention, or `not run`."""

    ref: str
    role: str
    expected: str


UTILS, ADAPTED = "trl.experimental.utils:", "adapters in q_proj, v_proj"
ROWS = (
    Row("trl.models.utils:create_reference_model", "model_factory", "the reference is a copy of the policy"),
    Row(UTILS + "create_reference_model", "model_factory", "the reference is a copy of the policy"),
    Row(UTILS + "prepare_peft_model", "model_factory", ADAPTED),
    Row("trl.trainer.utils:create_model_from_path", "model_factory", "trainable tensors have a gradient"),
    Row("peft.mapping_func:get_peft_model", "model_factory", "scale alpha / r = 3"),
    Row("transformers.trainer:Trainer.training_step", "train_step", "not run"),
    Row("trl.trainer.grpo_trainer:GRPOTrainer._compute_loss", "train_step", "not run"),
    Row("openrlhf.trainer.ray.ppo_actor:ActorPPOTrainer.training_step", "train_step", "not run"),
)


@pytest.fixture(scope="module")
def report(python, verify, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 120"]
    for row in ROWS:
        lines += [f"[targets.{json.dumps(row.ref)}]", f'role = "{row.role}"', f'ref = "{row.ref}"']
    (folder / "rltriage.toml").write_text("\n".join(lines))
    return verify(cwd=folder)


def test_no_function_of_a_release_is_called_a_bug(report) -> None:
    assert report.hard() == []


@pytest.mark.parametrize("row", ROWS, ids=[row.ref for row in ROWS])
def test_a_function_is_recognised_or_honestly_not_run(report, row: Row) -> None:
    if row.expected == "not run":
        assert report.kinds(row.ref) == {"not_run"}
    else:
        assert row.expected in report.recognised(row.ref)
