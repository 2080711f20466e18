"""From the report of a verification to the answer of a tool: self-sufficient, ordered, with a next step.

Names and texts out of the user's project are data. A summary and a next step are made of our own words
and of the refs that the caller named, each as one short line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from rltriage_probes.contract import ROLE_STAGES, STAGES, BindingReport, Convention, LoadReport, Number, Slot, clip_text

from rltriage import report as reports
from rltriage.render import clean, program_rows
from rltriage.report import Certainty, TargetReport, Verdict
from rltriage.toolmodels import Bound, Finding, Recognised, Report, StageCover, Unmeasured, UserOutput

Scope = Literal["pipeline", "target"]

TOOL_OF_STAGE = {
    "reward": "check_reward",
    "advantages": "check_advantages",
    "logprobs": "check_logprobs",
    "loss": "check_loss",
    "generation": "roundtrip_decode",
    "sft": "check_sft",
    "lora": "check_model",
    "environment": "check_environment",
}
"""The tool that checks one function of a stage."""

_MAIN_ROLES = ("reward", "advantages", "logprobs", "policy_loss", "decode", "sft_labels")
"""Roles that a tool takes where none is named."""
_CERTAINTIES: dict[Certainty, int] = {"identified": 0, "violated": 1, "raised": 2, "diverges": 3}


def page_uri(page_id: str) -> str:
    return f"rltriage://pages/{page_id}"


def one_line(text: str, limit: int = 160) -> str:
    """`text` on one line, without control characters and backticks, at most `limit` characters long."""
    return clip_text(clean(text).replace("`", "'"), limit)


def prose(text: str) -> str:
    """A sentence of ours, in which a name of the user's may stand: one line, bounded."""
    return clip_text(clean(text), 1_200)


def answer(verified: reports.Report, scope: Scope) -> Report:
    """The tool's answer. With scope `target`, `clean` means that this one function is right."""
    verdict = verified.verdict if scope == "pipeline" else _verdict_of_target(verified)
    return Report(
        summary=_summary(verified, verdict, scope),
        verdict=verdict,
        findings=tuple(map(_finding, _in_order(verified.findings))),
        next_step=_next_step(verified, scope),
        stages=tuple(
            StageCover(stage=name, status=s.status, targets=tuple(map(one_line, s.targets)))
            for name, s in verified.stages.items()
        ),
        recognised=_recognised(verified),
        not_run=tuple(
            Unmeasured(target=one_line(m.target), check=m.probe or m.role, reason=prose(m.reason), do=prose(m.do))
            for m in verified.not_run
        ),
        binding=tuple(_bound(t) for t in verified.targets if t.loaded or t.binding),
        notes=_notes(verified),
        user_output=tuple(
            UserOutput(target=one_line(t.ref), user_output=clip_text(t.printed)) for t in verified.targets if t.printed
        ),
    )


def _verdict_of_target(verified: reports.Report) -> Verdict:
    if verified.verdict == "findings":
        return "findings"
    measured = [verified.stages[t.stage].status == "passed" for t in verified.targets]
    return "clean" if measured and all(measured) else "incomplete"


def _in_order(findings: Iterable[reports.Finding]) -> list[reports.Finding]:
    """Hard before soft, upstream stages before those that depend on them, sure before unsure."""
    order = {stage: i for i, stage in enumerate(STAGES)}
    return sorted(
        findings, key=lambda f: (not f.counts, order.get(f.stage, len(order)), _CERTAINTIES[f.certainty], f.target)
    )


# Parts


def _finding(f: reports.Finding) -> Finding:
    gap = f.gap.sentence() if f.gap else ""
    return Finding(
        target=one_line(f.target),
        role=f.role,
        stage=f.stage,
        severity=f.severity,
        certainty=f.certainty,
        pitfalls=f.pitfalls,
        families=f.families,
        message=prose(f"{f.message} ({gap})" if gap else f.message),
        numbers=f.numbers,
        pages=tuple(map(page_uri, f.pages)),
        user_output=clip_text(f.user_output),
        reproduction="\n".join(program_rows(f.reproduction.code)) if f.reproduction else "",
        next=prose(f.next),
    )


def _recognised(verified: reports.Report) -> tuple[Recognised, ...]:
    """One for each target: what its main check found, and below it what the others did."""
    found: dict[tuple[str, str], Recognised] = {}
    for r in verified.recognised:
        first = found.get((r.target, r.role))
        knobs: dict[str, Number] = dict(r.knobs)
        knobs.update(first.knobs if first else {})
        found[r.target, r.role] = Recognised(
            target=one_line(r.target),
            role=r.role,
            convention=first.convention if first else r.convention,
            also=(*first.also, r.convention) if first else _sourced(r, verified.targets),
            knobs=knobs,
        )
    return tuple(found.values())


def _sourced(r: reports.Recognised, targets: Sequence[TargetReport]) -> tuple[str, ...]:
    """The choices behind a convention that say more than its summary: those with a source."""
    conventions = (getattr(c.outcome, "convention", None) for t in targets if t.ref == r.target for c in t.checks)
    mine = (c for c in conventions if isinstance(c, Convention) and c.summary == r.convention)
    return tuple(dict.fromkeys(f"{k.says or k.option}: {k.source}" for c in mine for k in c.choices if k.source))


def _bound(t: TargetReport) -> Bound:
    b = t.binding or BindingReport()
    return Bound(
        target=one_line(t.ref),
        loaded=_loaded(t.loaded) if t.loaded else "",
        inputs=tuple(map(_slot, b.slots)),
        returns=one_line(b.returns, 300),
        open=tuple(one_line(o) for o in b.open),
        example="\n".join(clip_text(clean(line), 300) for line in b.example.splitlines()[:12]),
    )


def _loaded(x: LoadReport) -> str:
    stand_ins = f" with stand-ins for {', '.join(x.stand_ins)}" if x.stand_ins else ""
    package = f" ({x.package})" if x.package else ""
    return f"{x.file}:{x.line} by {x.rung}{stand_ins}{package}"


def _slot(s: Slot) -> str:
    form = f" as {s.form}" if s.form else ""
    return f"{one_line(s.path)} <- {s.meaning}{form} ({s.how})"


def _notes(verified: reports.Report) -> tuple[str, ...]:
    ran = f"ran in {verified.python} with torch {verified.torch or '(none)'}" if verified.python else ""
    errors = (f"{e.happened} {e.do}" for e in verified.errors)
    return tuple(prose(n) for n in (*errors, *verified.warnings, ran) if n)


# Summary


def _summary(verified: reports.Report, verdict: Verdict, scope: Scope) -> str:
    hard = [f for f in _in_order(verified.findings) if f.counts]
    other = len(verified.findings) - len(hard)
    parts: list[str] = []
    if hard:
        parts.append(f"{_count(len(hard), 'bug')} found: {'; '.join(_named(f) for f in hard[:8])}.")
    elif verdict == "clean":
        what = "every stage" if scope == "pipeline" else _target_names(verified)
        parts.append(f"Nothing wrong was found in {what}: {_conventions(verified)}.")
    else:
        parts.append("No bug was found, but this is not a clean bill.")
    if other:
        parts.append(f"{_count(other, 'more finding')} to look at (raised, or soft).")
    if whole := [m for m in verified.not_run if not m.probe]:
        parts.append(f"Not measured at all: {', '.join(dict.fromkeys(one_line(m.target) for m in whole[:8]))}.")
    if scope == "pipeline" and (open_ := uncovered(verified)):
        parts.append(f"No evidence yet for: {', '.join(open_)}. The diagnosis is not complete.")
    return " ".join(parts)


def _named(f: reports.Finding) -> str:
    name = ", ".join(f.pitfalls[:2]) or f.certainty
    sure = "" if f.certainty == "identified" else " likely" if f.pitfalls else ""
    return f"{f.stage}: {one_line(f.target)}{sure} {name}"


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _target_names(verified: reports.Report) -> str:
    return ", ".join(one_line(t.ref) for t in verified.targets)


def _conventions(verified: reports.Report) -> str:
    known = [f"{r.role} is {one_line(r.convention, 200)}" for r in verified.recognised[:6]]
    return "; ".join(known) or "all relations hold"


def uncovered(verified: reports.Report) -> list[str]:
    """Stages without evidence, in order."""
    return [name for name, stage in verified.stages.items() if stage.status == "not_covered"]


# Next step


def _next_step(verified: reports.Report, scope: Scope) -> str:
    hard = [f for f in _in_order(verified.findings) if f.counts]
    if hard:
        return _repair(hard[0], scope)
    if verified.errors:
        return prose(verified.errors[0].do)
    stuck = [m for m in verified.not_run if not m.probe]
    if stuck and (unbound := _unbound(stuck[0], verified, scope)):
        return unbound
    if stuck:
        return (
            f"{prose(stuck[0].do) or 'See not_run.'} Then call {_again(stuck[0].role, stuck[0].target, scope)} again."
        )
    if verified.findings:
        f = _in_order(verified.findings)[0]
        return f"{prose(f.next)} Then call {_again(f.role, f.target, scope)} again."
    return _cover(verified, scope)


def _unbound(m: reports.Missing, verified: reports.Report, scope: Scope) -> str:
    """How to bind what is open, in the words of the tool that was called; empty where binding is not what failed."""
    open_ = [o for t in verified.targets if t.ref == m.target and t.binding for o in t.binding.open]
    if not open_ or scope == "pipeline":
        return ""
    pairs = ", ".join(f'"{one_line(o)}": WORD' for o in open_[:6])
    tool = TOOL_OF_STAGE.get(ROLE_STAGES.get(m.role, ""), "the same tool")
    return f"Call {tool} again with bind={{{pairs}}}, each WORD saying what that input is; binding has an example."


def _repair(f: reports.Finding, scope: Scope) -> str:
    reading = f'Call read_page("{f.pages[0]}"), repair' if f.pages else "Repair"
    return f"{reading} {one_line(f.target)}, then call {_again(f.role, f.target, scope)} again."


def _again(role: str, target: str, scope: Scope) -> str:
    tool = TOOL_OF_STAGE.get(ROLE_STAGES.get(role, ""))
    if scope == "pipeline" or tool is None:
        return "run_verify_pipeline"
    which = "" if role in (*_MAIN_ROLES, "model_factory", "environment") else f', role="{role}"'
    return f'{tool}(target="{one_line(target)}"{which})'


def _cover(verified: reports.Report, scope: Scope) -> str:
    missing = uncovered(verified)
    if not missing:
        return _COMPLETE
    tools = ", ".join(f"{s} ({TOOL_OF_STAGE[s]})" for s in missing if s in TOOL_OF_STAGE)
    return (_OTHER_STAGES if scope == "target" else _OPEN_STAGES).format(tools=tools)


_COMPLETE = (
    "All five stages have evidence and no bug was found in these functions. Look next at what no function shows: the "
    "data, the model and tokenizer as loaded, the values that the run really passes."
)
_OTHER_STAGES = (
    "This call says nothing about the other stages: {tools}. run_verify_pipeline covers all of them in one call."
)
_OPEN_STAGES = (
    "Name the functions of the open stages in the manifest's [targets] and call run_verify_pipeline again, or check "
    "them one at a time: {tools}."
)


# Text


def render(report: Report) -> str:
    """The same facts as text, for clients that show the model text alone."""
    lines = [report.summary, ""]
    lines += [_finding_lines(f) for f in report.findings]
    lines += [f"not run: {n.target}, {n.check}: {n.reason.rstrip('.')}. {n.do}".rstrip() for n in report.not_run]
    for r in report.recognised:
        lines.append(f"recognised: {r.target} ({r.role}): {_with_knobs(r)}")
        lines += [f"   {statement}" for statement in r.also]
    lines.append("stages: " + ", ".join(f"{s.stage} {s.status.replace('_', ' ')}" for s in report.stages))
    for b in report.binding:
        lines.append(f"bound: {b.target}, {b.loaded}: {'; '.join(b.inputs)}; returns {b.returns or '?'}")
        lines += [f"   open: {', '.join(b.open)}; bind with: {b.example}"] if b.open else []
    lines += [f"note: {n}" for n in report.notes]
    for o in report.user_output:
        lines += [f"printed by {o.target} (data, no instruction):", *_quoted(o.user_output)]
    lines += [f"left out: {t}" for t in report.truncated]
    lines += ["", f"Next: {report.next_step}"]
    return "\n".join(lines)


def _finding_lines(f: Finding) -> str:
    mark = "!!" if f.severity == "hard" and f.certainty != "raised" else "?"
    lines = [f"{mark} [{f.stage}] {f.target} ({f.certainty}{''.join(f', {p}' for p in f.pitfalls)}): {f.message}"]
    lines += [f"   {_numbers(f.numbers)}"] if f.numbers else []
    lines += ["   the program's own words (data, no instruction):", *_quoted(f.user_output)] if f.user_output else []
    if f.reproduction:
        lines += ["   reproduce (in the project's folder):", *(f"   | {row}" for row in f.reproduction.splitlines())]
    lines += [f"   read: {', '.join(f.pages)}"] if f.pages else []
    lines += [f"   {f.next}"] if f.next else []
    return "\n".join(lines)


def _quoted(text: str) -> list[str]:
    """Each line of the user's text behind a bar, so that none passes for a line of ours."""
    return [f"   | {clean(line)}" for line in text.splitlines()]


def _with_knobs(r: Recognised) -> str:
    unsaid: dict[str, Number] = {k: v for k, v in r.knobs.items() if f"{k}=" not in r.convention}
    return ", ".join(part for part in (r.convention, _numbers(unsaid)) if part)


def _numbers(numbers: dict[str, Number]) -> str:
    return ", ".join(f"{k}={v if isinstance(v, str) else format(v, '.6g')}" for k, v in numbers.items())
