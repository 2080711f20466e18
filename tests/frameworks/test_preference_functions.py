"""Preference and reward-model losses of released frameworks, named in a manifest with nothing bound by hand.

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
    """A function and what is expected of it: words of its convention."""

    ref: str
    role: str
    expected: str
    settings: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        return " ".join([self.ref, *map(str, self.settings.values())])


PREFERENCE, REWARD = "preference_loss", "reward_model_loss"
ORPO = "trl.experimental.orpo.orpo_trainer:ORPOTrainer.odds_ratio_loss"
CPO = "trl.experimental.cpo.cpo_trainer:CPOTrainer.cpo_loss"
LIGER = "liger_kernel.chunked_loss."
LIGER_DPO = LIGER + "dpo_loss:LigerFusedLinearDPOFunction.preference_loss_fn"
TUNE = "torchtune.rlhf.loss.dpo:"


def kind(name: str) -> Mapping[str, Any]:
    return {"preference_type": name}


TABLE = {
    "trl": (
        Row(ORPO, PREFERENCE, "log sigmoid of the odds ratio"),
        Row(CPO, PREFERENCE, "-log sigmoid of the margin, no reference model", kind("sigmoid")),
        Row(CPO, PREFERENCE, "hinge, no reference model", kind("hinge")),
        Row(CPO, PREFERENCE, "squared distance to 1/(2 beta), no reference model", kind("ipo")),
        Row(CPO, PREFERENCE, "target margin", kind("simpo")),
    ),
    "openrlhf": (
        Row("openrlhf.models.loss:DPOLoss.forward", PREFERENCE, "conservative label smoothing, mean over the pairs"),
        Row("openrlhf.models.loss:PairWiseLoss.forward", REWARD, "Bradley-Terry, -log sigmoid, margin of each pair"),
        Row("openrlhf.models.loss:LogExpLoss.forward", REWARD, "Bradley-Terry, -log sigmoid"),
    ),
    "torchtune": (
        Row(TUNE + "DPOLoss.forward", PREFERENCE, "conservative label smoothing, one loss a pair"),
        Row(TUNE + "RSOLoss.forward", PREFERENCE, "hinge, log-ratios to the reference, one loss a pair"),
    ),
    "liger": (
        *(
            Row(LIGER_DPO, PREFERENCE, says, kind(name))
            for name, says in (
                ("sigmoid", "-log sigmoid of the margin"), ("hinge", "hinge"), ("exo_pair", "EXO"), ("nca_pair", "NCA"),
                ("robust", "robust label smoothing"), ("bco_pair", "BCO"), ("sppo_hard", "SPPO"),
                ("apo_zero", "APO-zero"), ("apo_down", "APO-down"), ("discopop", "DiscoPOP"),
            )
        ),
        Row(LIGER + "cpo_loss:LigerFusedLinearCPOFunction.preference_loss_fn", PREFERENCE, "no reference model"),
        Row(LIGER + "orpo_loss:LigerFusedLinearORPOFunction.preference_loss_fn", PREFERENCE, "odds ratio"),
        Row(LIGER + "simpo_loss:LigerFusedLinearSimPOFunction.preference_loss_fn", PREFERENCE, "target margin"),
        Row(LIGER + "kto_loss:LigerFusedLinearKTOFunction.preference_loss_fn", PREFERENCE, "KTO value"),
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
def test_a_function_is_recognised_by_its_convention(reports, framework: str, row: Row) -> None:
    report = reports[framework]

    assert "diverges" not in report.kinds(row.name)
    assert row.expected in report.recognised(row.name)
