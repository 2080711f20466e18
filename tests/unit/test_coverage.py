"""The gate: what counts as evidence, and what never does."""

from __future__ import annotations

import pytest

from rltriage.coverage import is_measured, stages_of, verdict_of
from rltriage.manifest import stage_of
from rltriage.report import Report, TargetReport, findings_of
from rltriage_probes.contract import (
    STAGES,
    Agrees,
    Check,
    Convention,
    Diverges,
    KnownBug,
    Named,
    NotRun,
    Outcome,
    Raised,
    Violates,
)

AGREES = Agrees(convention=Convention(summary="as the paper has it"))
BUG = KnownBug(
    pitfalls=(Named(pitfall="ADV-EPSILON", family="epsilon", says="adds 1.0"),),
    convention=Convention(summary="std, eps=1"),
    gap=None,
)
SOFT_BUG = KnownBug(pitfalls=BUG.pitfalls, convention=BUG.convention, gap=None, severity="soft")
MAIN_ROLE = {
    "reward": "reward",
    "advantages": "advantages",
    "logprobs": "logprobs",
    "loss": "policy_loss",
    "generation": "decode",
}


def target(role: str, *outcomes: Outcome, probe: str = "formula", ref: str = "") -> TargetReport:
    checks = tuple(Check(probe=f"{role}.{probe}", asks="?", outcome=o) for o in outcomes)
    return TargetReport(name=role, role=role, stage=stage_of(role), ref=ref or f"a.py:{role}", checks=checks)


def judged(*targets: TargetReport) -> tuple[dict[str, str], str]:
    findings = tuple(f for t in targets for f in findings_of(t))
    stages = stages_of(targets, findings)
    return {s: r.status for s, r in stages.items()}, verdict_of(stages, findings)


def five(**instead: TargetReport) -> list[TargetReport]:
    return [instead.get(stage, target(role, AGREES)) for stage, role in MAIN_ROLE.items()]


def test_nothing_at_all_is_incomplete() -> None:
    statuses, verdict = judged()
    assert statuses == dict.fromkeys(STAGES, "not_covered")
    assert verdict == "incomplete"


def test_five_stages_with_evidence_are_clean() -> None:
    statuses, verdict = judged(*five())
    assert statuses == dict.fromkeys(STAGES, "passed")
    assert verdict == "clean"


def test_four_stages_are_incomplete() -> None:
    assert judged(*five()[1:])[1] == "incomplete"


@pytest.mark.parametrize("outcome", [NotRun(reason="?"), Raised(error="E", where="", case="c")])
def test_what_was_not_measured_covers_nothing(outcome: Outcome) -> None:
    statuses, verdict = judged(*five(loss=target("policy_loss", outcome)))
    assert statuses["loss"] == "not_covered"
    assert verdict == "incomplete"


def test_a_target_without_checks_covers_nothing() -> None:
    assert judged(*five(loss=target("policy_loss")))[0]["loss"] == "not_covered"


def test_every_target_of_a_stage_must_be_measured() -> None:
    statuses, _ = judged(*five(), target("kl", NotRun(reason="not bound")))
    assert statuses["loss"] == "not_covered"


def test_a_side_check_of_another_role_is_no_evidence_for_the_main_probe() -> None:
    t = TargetReport(
        name="x",
        role="kl",
        stage="loss",
        ref="a.py:f",
        checks=(Check(probe="klaus.formula", asks="?", outcome=AGREES),),
    )
    assert not is_measured(t)


@pytest.mark.parametrize("outcome", [BUG, Violates(relation="r", says="no")])
def test_a_hard_outcome_fails_its_stage(outcome: Outcome) -> None:
    statuses, verdict = judged(*five(advantages=target("advantages", outcome, AGREES)))
    assert statuses["advantages"] == "failed"
    assert verdict == "findings"


def test_a_finding_outweighs_missing_stages() -> None:
    assert judged(target("advantages", BUG))[1] == "findings"


@pytest.mark.parametrize("outcome", [SOFT_BUG, Diverges(says="unknown formula")])
def test_a_soft_outcome_is_evidence(outcome: Outcome) -> None:
    statuses, verdict = judged(*five(advantages=target("advantages", outcome)))
    assert statuses["advantages"] == "passed"
    assert verdict == "clean"


def test_a_raise_beside_evidence_keeps_the_stage_open_without_failing_it() -> None:
    statuses, verdict = judged(*five(reward=target("reward", AGREES, Raised(error="E", where="", case="c"))))
    assert statuses["reward"] == "not_covered"
    assert verdict == "incomplete"


def test_a_stage_beside_the_five_is_shown_and_keeps_the_verdict_incomplete() -> None:
    statuses, verdict = judged(*five(), target("sft_loss", NotRun(reason="no probe for this role yet")))
    assert list(statuses) == [*STAGES, "sft"]
    assert statuses["sft"] == "not_covered"
    assert verdict == "incomplete"


def test_a_report_of_nothing_lists_all_five_stages() -> None:
    report = Report(manifest="m", verdict="incomplete", stages=stages_of((), ()))
    assert list(report.as_json()["stages"]) == list(STAGES)
