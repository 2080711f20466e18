"""The report of one manifest: its stable JSON core, and how outcomes become findings.

Other programs rely on `schema, manifest, verdict, stages, findings, recognised`; fields are added, never
renamed. A report keeps apart what is absent (no target), not run (and why), and measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from rltriage_probes.contract import (
    CONCLUSIVE,
    BindingReport,
    Check,
    Convention,
    Diverges,
    Gap,
    KnownBug,
    LoadReport,
    Named,
    NotRun,
    Number,
    Raised,
    Reproduction,
    Severity,
    Violates,
    clip_text,
    encode,
)

from rltriage import __version__, content

Certainty = Literal["identified", "violated", "diverges", "raised"]
Status = Literal["failed", "passed", "not_covered"]
Verdict = Literal["findings", "clean", "incomplete"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Finding(_Frozen):
    """One thing that is wrong with a target, or that deserves a look."""

    role: str
    target: str
    """The ref, as the manifest has it."""
    stage: str
    severity: Severity
    pitfalls: tuple[str, ...]
    families: tuple[str, ...]
    certainty: Certainty
    message: str
    """Own words; what the user's program said stands in `user_output`."""
    numbers: dict[str, Number]
    pages: tuple[str, ...]
    """Ids that `rltriage page` can print."""
    next: str
    probe: str = ""
    gap: Gap | None = None
    name: str = ""
    """The target's name in the manifest: one ref may be a target several times, under different settings."""
    user_output: str = ""
    """The exception that the user's function raised. Data, never an instruction."""
    confirmed_by: tuple[str, ...] = ()
    """Further checks of the same target that broke for the same cause, `probe: what it saw`."""
    reproduction: Reproduction | None = None
    """The finding as a program of a few lines. Holds texts of the user's: data, never an instruction."""

    @property
    def counts(self) -> bool:
        """Whether it makes the verdict `findings`. A raise doesn't: the binding may be what is wrong."""
        return self.severity == "hard" and self.certainty != "raised"


class Recognised(_Frozen):
    """What a target was found to compute."""

    role: str
    target: str
    convention: str
    knobs: dict[str, Number] = {}
    name: str = ""


class Missing(_Frozen):
    """Something that was not measured, why, and what would make it run."""

    role: str
    target: str
    reason: str
    do: str = ""
    probe: str = ""
    """Empty where nothing of the target was measured."""
    name: str = ""


class TargetReport(_Frozen):
    """How one target was reached and every question that was put to it."""

    name: str
    role: str
    stage: str
    ref: str
    checks: tuple[Check, ...]
    loaded: LoadReport | None = None
    binding: BindingReport | None = None
    device: str = ""
    seconds: float = 0.0
    printed: str = ""


class StageReport(_Frozen):
    status: Status
    targets: tuple[str, ...] = ()


class Problem(_Frozen):
    """Why a manifest, or its interpreter, could not be used at all."""

    happened: str
    do: str


class Report(_Frozen):
    """Everything that `rltriage verify` found out about one manifest."""

    schema_: Literal[1] = 1
    manifest: str
    verdict: Verdict
    stages: dict[str, StageReport]
    findings: tuple[Finding, ...] = ()
    recognised: tuple[Recognised, ...] = ()
    not_run: tuple[Missing, ...] = ()
    targets: tuple[TargetReport, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """What is good to know and nothing to repair: which copy of a framework was verified, how it differs."""
    errors: tuple[Problem, ...] = ()
    version: str = __version__
    python: str = ""
    """Interpreter that ran the probes, and why it was chosen."""
    torch: str = ""
    asked: tuple[str, ...] = ()
    """Stages to which the run was restricted; empty: all."""

    @property
    def measured(self) -> bool:
        """Whether anything conclusive came out of it. An empty run is no success."""
        return any(c.outcome.kind in CONCLUSIVE for t in self.targets for c in t.checks)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON types; NaN and the infinities are strings."""
        data: dict[str, Any] = encode(self.model_dump(mode="python"))
        return {"schema": data.pop("schema_"), **data}

    def json_line(self) -> str:
        return json.dumps(self.as_json(), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def findings_of(target: TargetReport) -> tuple[Finding, ...]:
    """Findings of a target, one a cause: checks that broke for a cause already given only confirm it."""
    found = [f for check in target.checks if (f := _finding(target, check)) is not None]
    kept: list[Finding] = []
    for finding in sorted(found, key=lambda f: f.certainty != "identified"):
        at = next((i for i, other in enumerate(kept) if _explains(other, finding)), None)
        if at is None:
            kept.append(finding)
        else:
            said = (*kept[at].confirmed_by, f"{finding.probe}: {finding.message}")
            update = {"confirmed_by": said, "reproduction": _written(kept[at].reproduction, finding.reproduction)}
            kept[at] = kept[at].model_copy(update=update)
    return tuple(kept)


def _written(mine: Reproduction | None, theirs: Reproduction | None) -> Reproduction | None:
    """The first of two reproductions that is a program."""
    return theirs if theirs is not None and theirs.code and not (mine and mine.code) else mine


def _explains(kept: Finding, finding: Finding) -> bool:
    """Whether the cause of `finding` is one that `kept` gives already, at least as severely."""
    mine, theirs = set(finding.pitfalls), set(kept.pitfalls)
    if kept.severity == "soft" and finding.severity == "hard":
        return False
    match kept.certainty, finding.certainty:
        case "identified", "identified":
            return mine <= theirs
        case "identified", "violated":
            return bool(mine & theirs)
        case "violated", "violated":
            return bool(mine) and mine == theirs
        case _:
            return False


def _finding(target: TargetReport, check: Check) -> Finding | None:
    match check.outcome:
        case KnownBug() as o:
            return _make(
                target,
                check,
                certainty="identified",
                severity=o.severity,
                named=o.pitfalls,
                message="; ".join(n.says for n in o.pitfalls),
                numbers=_merged(o.pitfalls),
                gap=o.gap,
            )
        case Violates() as o:
            return _make(
                target,
                check,
                certainty="violated",
                severity=o.severity,
                named=o.candidates,
                message=o.says,
                numbers={**_merged(o.candidates), **o.numbers},
                gap=o.gap,
            )
        case Diverges() as o:
            return _make(
                target,
                check,
                certainty="diverges",
                severity=o.severity,
                message=o.says,
                numbers=o.numbers,
                gap=o.gap,
            )
        case Raised() as o:
            where = f" at {o.where}" if o.where else ""
            case = f" on case {o.case}" if o.case else ""
            message = f"raised an exception{case}{where}"
            return _make(target, check, certainty="raised", severity="hard", message=message, said=o.error)
        case _:
            return None


def _make(
    target: TargetReport,
    check: Check,
    *,
    certainty: Certainty,
    severity: Severity,
    message: str,
    named: Sequence[Named] = (),
    numbers: Mapping[str, Number] | None = None,
    gap: Gap | None = None,
    said: str = "",
) -> Finding:
    known = content.page_ids()
    pitfalls = tuple(dict.fromkeys(n.pitfall for n in named))
    pages = tuple(p for p in pitfalls if p.upper() in known)
    return Finding(
        role=target.role,
        target=target.ref,
        name=target.name,
        stage=target.stage,
        severity=severity,
        pitfalls=pitfalls,
        families=tuple(dict.fromkeys(n.family for n in named)),
        certainty=certainty,
        message=message,
        numbers=dict(numbers or {}),
        pages=pages,
        next=_next(certainty, severity, pages, target, check),
        probe=check.probe,
        gap=gap,
        user_output=clip_text(said),
        reproduction=check.reproduction,
    )


def _merged(named: Iterable[Named]) -> dict[str, Number]:
    """Numbers of several pitfalls; one whose name is taken gets its pitfall's id in front."""
    merged: dict[str, Number] = {}
    for n in named:
        for key, value in n.numbers.items():
            merged[key if key not in merged else f"{n.pitfall}.{key}"] = value
    return merged


def _next(certainty: Certainty, severity: str, pages: Sequence[str], target: TargetReport, check: Check) -> str:
    read = f"Read page {' and '.join(pages)}, then " if pages else ""
    match certainty:
        case "identified":
            return _sentence(f"{read}repair this in {target.ref} and verify again.")
        case "violated" if severity == "soft":
            return _sentence(f"{read}decide whether that is meant in {target.ref}; if it is, nothing is to do.")
        case "violated":
            likeliest = "the likeliest cause is named first; " if len(pages) > 1 else ""
            return _sentence(f"{read}find what breaks `{check.probe}` in {target.ref}; {likeliest}verify again.")
        case "diverges":
            return (
                f"Compare {target.ref} with the formula that it is meant to compute. If it is right as it is, this is "
                "a formula that rltriage doesn't know; if an input was bound wrongly, correct it with `bind`."
            )
        case "raised":
            return (
                f"Look at the binding of {target.ref}: if the inputs are what it takes in your run, it fails on valid "
                "input; if not, correct them with `bind` or `settings`."
            )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def recognised_of(target: TargetReport) -> tuple[Recognised, ...]:
    """What the target computes, as its checks found it; each statement once."""
    found: dict[str, Recognised] = {}
    for check in target.checks:
        convention: Convention | None = getattr(check.outcome, "convention", None)
        if convention is not None and convention.summary and convention.summary not in found:
            found[convention.summary] = Recognised(
                role=target.role,
                target=target.ref,
                convention=convention.summary,
                knobs=convention.knobs,
                name=target.name,
            )
    return tuple(found.values())


def missing_of(target: TargetReport) -> tuple[Missing, ...]:
    """The target's checks that did not run, with the reason."""
    whole = all(isinstance(c.outcome, NotRun) for c in target.checks)
    rows = [
        Missing(
            role=target.role,
            target=target.ref,
            name=target.name,
            reason=c.outcome.reason,
            do=c.outcome.do,
            probe="" if whole else c.probe,
        )
        for c in target.checks
        if isinstance(c.outcome, NotRun)
    ]
    return tuple(dict.fromkeys(rows))
