"""A report as text: stages in order, and in each the lines `ok`, `!!` (a hard violation) and `?` (look at it).

Colours and a progress bar are for terminals; elsewhere, and under NO_COLOR, the text is plain ASCII. What
comes from the user's program is stripped of control characters, clipped and quoted, and no markup is
ever parsed, so it can neither move the cursor nor pass for a line of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TextIO

from rltriage_probes.contract import STAGES, Agrees, BindingReport, Number, Slot, clip_text

from rltriage.report import Finding, Missing, Problem, Report, TargetReport

if TYPE_CHECKING:
    from rltriage.verify import OnProgress

QUOTED: Final = 300
"""Longest piece of the user's text in one line."""
PROGRAM_LINES: Final = 16
PROGRAM_WIDTH: Final = 400
"""Bounds of a reproduction as it is printed; in the JSON it stands in full."""
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-_]")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")
_STYLES: Final = {"ok": "green", "!!": "bold red", "?": "yellow", "head": "bold", "dim": "dim", "": ""}
_ASCII: Final = str.maketrans(
    {"–": "-", "—": "-", "‘": "'", "’": "'", "“": '"', "”": '"', "→": "->", "≤": "<=", "≥": ">="}
)
_STATUS: Final = {"passed": "passed", "failed": "FAILED", "not_covered": "not covered"}


@dataclass(frozen=True)
class Line:
    """One line of output; `mark` gives the colour of its first word."""

    text: str
    mark: str = ""


def clean(text: str) -> str:
    """`text` on one line, without escape sequences, control characters and direction overrides."""
    return _CONTROLS.sub(" ", _ESCAPES.sub("", text)).strip()


def quote(text: str) -> str:
    """The user's text as data: clean, clipped, between double quotes."""
    return '"' + clip_text(clean(text), QUOTED).replace('"', "'") + '"'


def report_lines(report: Report) -> list[Line]:
    """The whole report; its last line is the verdict with the next step."""
    lines = [Line(f"rltriage {report.version}: {clean(report.manifest)}", "head")]
    if report.python:
        lines.append(Line(f"  runs in {clean(report.python)}, torch {clean(report.torch) or 'missing'}", "dim"))
    lines += [Line(f"  {clean(n)}", "dim") for n in report.notes]
    lines += [Line(f"  warning: {clean(w)}", "?") for w in report.warnings]
    for stage in report.stages:
        if report.asked and stage not in report.asked:
            continue
        lines += [Line(""), Line(f"{stage}: {_status(report, stage)}", "head")]
        mine = [t for t in report.targets if t.stage == stage]
        lines += [line for t in mine for line in _target(report, t)]
        if not mine:
            lines.append(Line("   ?  no function is bound to this stage", "?"))
    lines.append(Line(""))
    lines += [line for e in report.errors for line in problem_lines(e)]
    return [*lines, verdict_line(report)]


def _status(report: Report, stage: str) -> str:
    """The stage's state in words. A function in which nothing was recognised is evidence, but no pass."""
    status = report.stages[stage].status
    mine = {t.ref for t in report.targets if t.stage == stage}
    known = mine & {r.target for r in report.recognised}
    unknown = mine & {f.target for f in report.findings if f.certainty == "diverges"} - known
    if status == "passed" and unknown:
        return f"no bug found, but {len(unknown)} of {len(mine)} not recognised"
    if status == "not_covered" and known:
        return "partly covered"
    return _STATUS[status]


def problem_lines(problem: Problem) -> list[Line]:
    """What happened and what to do about it, as errors are printed."""
    happened = [clean(row) for row in problem.happened.splitlines()]
    do = [clean(row) for row in problem.do.splitlines()]
    rows = [f"rltriage: {happened[0] if happened else 'failed'}", *(f"  {row}" for row in happened[1:])]
    if do:
        rows += [f"  do: {do[0]}" if len(do) == 1 else "  do:", *(f"  {row}" for row in do if len(do) > 1)]
    return [Line(rows[0], "!!"), *map(Line, rows[1:])]


def _target(report: Report, target: TargetReport) -> Iterator[Line]:
    mine = (target.ref, target.role, target.name)
    shared = sum((t.ref, t.role) == mine[:2] for t in report.targets) > 1
    name = f"{clean(target.ref)} [{target.role}{f', {clean(target.name)}' if shared else ''}]"
    findings = [f for f in report.findings if (f.target, f.role, f.name) == mine]
    missing = [m for m in report.not_run if (m.target, m.role, m.name) == mine]
    agreed = sum(isinstance(c.outcome, Agrees) for c in target.checks)
    computes = "; ".join(clean(r.convention) for r in report.recognised if (r.target, r.role, r.name) == mine)
    for f in findings:
        yield from _finding(name, f)
    if agreed and not findings:
        yield Line(f"  ok  {name} {agreed} check{'s agree' if agreed > 1 else ' agrees'}", "ok")
    if computes:
        yield Line(f"      computes: {computes}")
    yield from _bound(target.binding)
    for m in missing:
        yield from _missing(name, m, target)
    if not target.checks:
        yield Line(f"   ?  {name} gave no result", "?")


def _finding(name: str, finding: Finding) -> Iterator[Line]:
    mark = "!!" if finding.counts else " ?"
    what = ", ".join(finding.pitfalls)
    if finding.certainty == "violated" and what:
        what = f"perhaps {what}"
    label = f"{what}: " if what else ""
    yield Line(f"  {mark}  {name} {label}{clean(finding.message)}", mark.strip())
    if finding.user_output:
        yield Line(f"      it said: {quote(finding.user_output)}")
    if finding.gap is not None:
        yield Line(f"      {clean(finding.gap.sentence())}")
    if finding.numbers:
        yield Line("      numbers: " + ", ".join(f"{clean(k)} = {_number(v)}" for k, v in finding.numbers.items()))
    for also in finding.confirmed_by:
        yield Line(f"      also {clean(also)}")
    yield from _program(finding)
    for id in finding.pages:
        yield Line(f"      page: rltriage page {id}")
    yield Line(f"      next: {clean(finding.next)}")


def _program(finding: Finding) -> Iterator[Line]:
    """The reproduction, behind bars: it holds texts of the user's."""
    r = finding.reproduction
    if r is None or not r.code:
        return
    yield Line("      reproduce, in the project's folder:", "dim")
    for row in program_rows(r.code):
        yield Line(f"      | {row}")


def program_rows(code: str) -> list[str]:
    """The lines of a program, cleaned one by one; empty lines and what is beyond the usual length left out."""
    rows = [_CONTROLS.sub(" ", _ESCAPES.sub("", row)).rstrip() for row in code.splitlines()]
    rows = [clip_text(row, PROGRAM_WIDTH) for row in rows if row]
    return rows if len(rows) <= PROGRAM_LINES else [*rows[:PROGRAM_LINES], "# ... (the whole program: --json)"]


def _missing(name: str, missing: Missing, target: TargetReport) -> Iterator[Line]:
    what = f" ({missing.probe})" if missing.probe else ""
    yield Line(f"   ?  {name} not run{what}: {clip_text(clean(missing.reason), 2 * QUOTED)}", "?")
    if missing.do:
        yield Line(f"      do: {clip_text(clean(missing.do), 2 * QUOTED)}")
    if target.binding is not None and target.binding.example and not missing.probe:
        yield from (Line(f"      | {clean(row)}") for row in target.binding.example.splitlines()[:12])
    if target.printed and not missing.probe:
        yield Line(f"      it printed last: {quote(target.printed[-QUOTED:])}")


def _bound(binding: BindingReport | None) -> Iterator[Line]:
    if binding is None or not binding.slots:
        return
    returns = f"; returns {clean(binding.returns)}" if binding.returns else ""
    yield Line(f"      bound: {clip_text(', '.join(map(_slot, binding.slots)), 2 * QUOTED)}{returns}", "dim")


def _slot(slot: Slot) -> str:
    path, meaning = clean(slot.path), clean(slot.meaning)
    return path if path == meaning else f"{path} = {meaning}"


def _number(x: Number) -> str:
    return x if isinstance(x, str) else f"{x:.4g}"


def verdict_line(report: Report) -> Line:
    """What it comes to, and what to do next."""
    hard = [f for f in report.findings if f.counts]
    if (report.errors and not hard) or not report.measured:
        return Line("verdict: nothing could be measured. Next: do what is said above, or ask `rltriage doctor`.", "!!")
    if report.verdict == "findings":
        where = ", ".join(dict.fromkeys(f.stage for f in hard))
        first = hard[0]
        page = f"`rltriage page {first.pages[0]}`" if first.pages else f"look at {clean(first.target)}"
        count = f"{len(hard)} hard finding{'s' if len(hard) > 1 else ''}"
        return Line(f"verdict: {count} in {where}. Next: {page}, repair it, and verify again.", "!!")
    if report.verdict == "clean":
        return Line(
            "verdict: clean. Every stage has evidence and nothing hard was found. Next: look at what the functions "
            "were found to compute; is it what you mean?",
            "ok",
        )
    return Line(_incomplete(report), "?")


def _incomplete(report: Report) -> str:
    empty = [s for s, state in report.stages.items() if state.status == "not_covered"]
    unbound = [s for s in empty if s in STAGES and not report.stages[s].targets]
    if report.asked and not [s for s in empty if s in report.asked]:
        asked = ", ".join(report.asked)
        return f"verdict: nothing hard found in {asked}; other stages were not asked for. Next: verify them too."
    step = f"bind functions for {', '.join(unbound)} in the manifest" if unbound else "see the lines marked ? above"
    return (
        f"verdict: incomplete. Nothing hard was found, but there is no evidence for {', '.join(empty)}. Next: {step}."
    )


def is_plain(stream: TextIO) -> bool:
    """Whether colours and progress bars have no place on this stream."""
    return not stream.isatty() or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def write(lines: Sequence[Line], stream: TextIO) -> None:
    """Write lines: coloured on a terminal, plain elsewhere, in ASCII where the stream can't take more."""
    if is_plain(stream):
        utf8 = (stream.encoding or "").lower().replace("-", "") == "utf8"
        stream.writelines((line.text if utf8 else ascii_only(line.text)) + "\n" for line in lines)
    else:
        _write_rich(lines, stream)
    stream.flush()


def ascii_only(text: str) -> str:
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def _write_rich(lines: Sequence[Line], stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    for line in lines:
        whole = line.mark in ("head", "dim")
        text = Text(line.text, style=_STYLES[line.mark] if whole else "")
        if not whole and line.mark:
            start = len(line.text) - len(line.text.lstrip())
            text.stylize(_STYLES[line.mark], start, start + len(line.text[start:].split(" ")[0]))
        console.print(text, soft_wrap=True)


@contextlib.contextmanager
def progress(stream: TextIO) -> Generator[OnProgress | None]:
    """A bar on `stream` while targets are measured; None where the stream is no terminal."""
    if is_plain(stream):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        task = bar.add_task("starting the interpreter", total=None)
        yield lambda done, total, says: bar.update(task, completed=done, total=total, description=clean(says)[:80])
