"""Supervised losses, label builders and chat rendering of released packages, with nothing bound by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]


class Row(NamedTuple):
    """A function and words of what it is recognised as."""

    ref: str
    role: str
    expected: str
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        return " ".join([self.ref, *map(str, self.settings.values())])


SHIFTS = "shifts inside, sum over the given token count"
COLLATOR = "transformers.data.data_collator:"
SMOOTHER = "transformers.trainer_pt_utils:LabelSmoother.__call__"
TRL = "trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call"
EVERY = "trains every assistant turn with the end token"
ROWS = (
    Row("openrlhf.models.loss:GPTLMLoss.forward", "sft_loss", "shifts inside, mean over the labels of the batch"),
    Row("openrlhf.models.loss:SFTLoss.forward", "sft_loss", "sum over the given token count"),
    Row("transformers.loss.loss_utils:ForCausalLMLoss", "sft_loss", SHIFTS),
    Row("transformers.loss.loss_utils:fixed_cross_entropy", "sft_loss", "logits already aligned with the labels"),
    Row(SMOOTHER, "sft_loss", "already aligned with the labels, label smoothing"),
    Row(SMOOTHER, "sft_loss", "shifts inside, label smoothing", {"shift_labels": True}),
    Row(TRL, "sft_labels", EVERY),
    Row(COLLATOR + "DataCollatorForSeq2Seq.__call__", "sft_labels", EVERY),
    Row(COLLATOR + "DataCollatorWithFlattening.__call__", "sft_labels", "borders of packed samples are where"),
    Row("trl.data_utils:apply_chat_template", "chat_tokens", "keeps every turn with its text"),
)  # fmt: skip


@pytest.fixture(scope="module")
def report(python, verify, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sft")
    lines = ["[pipeline]", f"python = {json.dumps(python)}", "timeout_s = 120"]
    for row in ROWS:
        settings = ", ".join(f"{k} = {json.dumps(v)}" for k, v in row.settings.items())
        lines += [f"[targets.{json.dumps(row.name)}]", f'role = "{row.role}"', f'ref = "{row.ref}"']
        lines += [f"settings = {{ {settings} }}"] if settings else []
    (folder / "rltriage.toml").write_text("\n".join(lines))
    return verify(cwd=folder)


def test_no_released_function_is_called_a_bug(report) -> None:
    assert report.hard() == []


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_released_function_is_recognised(report, row: Row) -> None:
    assert row.expected in report.recognised(row.name)
