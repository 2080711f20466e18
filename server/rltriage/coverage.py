"""The gate: what counts as evidence that a stage was looked at.

A stage is `passed` only when every target bound to it gave at least one conclusive outcome of its role's
main probe and nothing hard was found; `failed` when a conclusive outcome is hard; else `not_covered`. A
target that raised or did not run covers nothing, and neither does a stage without targets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rltriage_probes.contract import CONCLUSIVE, STAGES, Check, Raised

from rltriage.report import Finding, StageReport, Status, TargetReport, Verdict


def is_measured(target: TargetReport) -> bool:
    """Whether the role's main probe said something conclusive about the target."""
    return any(_is_main(target.role, c) and c.outcome.kind in CONCLUSIVE for c in target.checks)


def _is_main(role: str, check: Check) -> bool:
    return check.probe == role or check.probe.startswith(f"{role}.")


def _status(targets: Sequence[TargetReport], findings: Sequence[Finding]) -> Status:
    if any(f.counts for f in findings):
        return "failed"
    raised = any(isinstance(c.outcome, Raised) for t in targets for c in t.checks)
    return "passed" if targets and not raised and all(map(is_measured, targets)) else "not_covered"


def stages_of(targets: Sequence[TargetReport], findings: Sequence[Finding]) -> dict[str, StageReport]:
    """Status of the five stages in order, then of the stages beside them that have targets."""
    beside = dict.fromkeys(t.stage for t in targets if t.stage not in STAGES)
    stages: dict[str, StageReport] = {}
    for stage in (*STAGES, *beside):
        mine = [t for t in targets if t.stage == stage]
        status = _status(mine, [f for f in findings if f.stage == stage])
        stages[stage] = StageReport(status=status, targets=tuple(dict.fromkeys(t.ref for t in mine)))
    return stages


def verdict_of(stages: Mapping[str, StageReport], findings: Sequence[Finding]) -> Verdict:
    """`findings` when anything hard was measured; `clean` only when every stage passed, those beside the five too."""
    if any(f.counts for f in findings):
        return "findings"
    covered = all(stages[s].status == "passed" for s in STAGES) and all(s.status == "passed" for s in stages.values())
    return "clean" if covered else "incomplete"
