"""The report: its JSON core, findings from outcomes, and text that can't be forged."""

from __future__ import annotations

import io
import json

import pytest

from rltriage import render
from rltriage.coverage import stages_of, verdict_of
from rltriage.report import Finding, Problem, Report, TargetReport, findings_of, missing_of, recognised_of
from rltriage_probes.contract import (
    Agrees,
    BindingReport,
    Check,
    Convention,
    Diverges,
    Gap,
    KnownBug,
    Named,
    NotRun,
    Outcome,
    Raised,
    Reproduction,
    Slot,
    Violates,
)

EPS = Named(pitfall="ADV-EPSILON", family="epsilon", says="adds 1.00 to the std", numbers={"eps": 1.0})
STD = Named(pitfall="ADV-STD", family="baseline", says="divides by the batch std", numbers={"eps": 2.0})
GAP = Gap(
    quantity="value", case="c1", index=(0, 1), actual=float("nan"), expected=1.0, allowed=1e-6, mismatched=3, total=4
)
CONVENTION = Convention(summary="group mean, std ddof=1, eps=1.00", knobs={"eps": 1.0})
BUG = KnownBug(pitfalls=(EPS,), convention=CONVENTION, gap=GAP)


def target(*outcomes: Outcome, binding: BindingReport | None = None, printed: str = "") -> TargetReport:
    checks = tuple(Check(probe=f"advantages.{i}", asks="?", outcome=o) for i, o in enumerate(outcomes))
    return TargetReport(
        name="advantages",
        role="advantages",
        stage="advantages",
        ref="algos.py:adv",
        checks=checks,
        binding=binding,
        printed=printed,
    )


def report(*targets: TargetReport) -> Report:
    findings = tuple(f for t in targets for f in findings_of(t))
    stages = stages_of(targets, findings)
    return Report(
        manifest="./rltriage.toml",
        verdict=verdict_of(stages, findings),
        stages=stages,
        findings=findings,
        recognised=tuple(r for t in targets for r in recognised_of(t)),
        not_run=tuple(m for t in targets for m in missing_of(t)),
        targets=targets,
    )


def only(*outcomes: Outcome) -> Finding:
    (finding,) = findings_of(target(*outcomes))
    return finding


def text(r: Report) -> list[str]:
    stream = io.StringIO()
    render.write(render.report_lines(r), stream)
    return stream.getvalue().splitlines()


def test_the_json_core_has_its_names_and_order() -> None:
    data = json.loads(report(target(BUG)).json_line())
    assert list(data)[:6] == ["schema", "manifest", "verdict", "stages", "findings", "recognised"]
    assert data["schema"] == 1 and data["manifest"] == "./rltriage.toml" and data["verdict"] == "findings"
    assert data["stages"]["advantages"] == {"status": "failed", "targets": ["algos.py:adv"]}
    (finding,) = data["findings"]
    core = {
        "role",
        "target",
        "stage",
        "severity",
        "pitfalls",
        "families",
        "certainty",
        "message",
        "numbers",
        "pages",
        "next",
    }
    assert core <= set(finding)
    assert (finding["pitfalls"], finding["families"]) == (["ADV-EPSILON"], ["epsilon"])
    assert data["recognised"][0]["convention"] == CONVENTION.summary


def test_numbers_that_json_lacks_are_strings_on_one_line() -> None:
    line = report(target(BUG)).json_line()
    assert "\n" not in line
    assert json.loads(line, parse_constant=pytest.fail)["findings"][0]["gap"]["actual"] == "nan"


def test_two_pitfalls_in_one_function_are_one_finding_that_names_both() -> None:
    finding = only(KnownBug(pitfalls=(EPS, STD), convention=CONVENTION, gap=None))
    assert finding.pitfalls == ("ADV-EPSILON", "ADV-STD")
    assert finding.families == ("epsilon", "baseline")
    assert finding.numbers == {"eps": 1.0, "ADV-STD.eps": 2.0}
    assert finding.certainty == "identified" and finding.counts


def test_a_relation_broken_for_a_cause_that_is_named_already_only_confirms_it() -> None:
    finding = only(Violates(relation="scale", says="scaling rewards changes advantages", candidates=(STD, EPS)), BUG)
    assert finding.certainty == "identified"
    assert finding.confirmed_by == ("advantages.0: scaling rewards changes advantages",)


def test_two_relations_broken_for_one_cause_are_one_finding() -> None:
    broken = [Violates(relation=r, says=r, candidates=(EPS,)) for r in ("first", "second")]
    assert only(*broken).confirmed_by == ("advantages.1: second",)
    soft = Violates(relation="r", says="r", candidates=(EPS,), severity="soft")
    assert [f.severity for f in findings_of(target(soft, broken[0]))] == ["soft", "hard"]


def test_a_relation_broken_for_another_cause_stands_for_itself() -> None:
    found = findings_of(
        target(BUG, Violates(relation="r", says="reads padding", candidates=(STD,)), Violates(relation="s", says="x"))
    )
    assert [f.certainty for f in found] == ["identified", "violated", "violated"]
    assert found[1].families == ("baseline",)


def test_diverges_is_soft_and_a_raise_is_hard_but_does_not_count() -> None:
    diverges, raised = (
        only(Diverges(says="no formula fits")),
        only(Raised(error="ValueError: no", where="a.py:3 in f", case="c")),
    )
    assert (diverges.severity, diverges.certainty, diverges.counts) == ("soft", "diverges", False)
    assert (raised.severity, raised.certainty, raised.counts) == ("hard", "raised", False)
    assert raised.user_output == "ValueError: no" and "ValueError" not in raised.message


def test_what_agrees_and_what_did_not_run_are_no_findings() -> None:
    t = target(Agrees(convention=CONVENTION), NotRun(reason="no torch", do="install it"))
    assert findings_of(t) == ()
    (missing,) = missing_of(t)
    assert (missing.reason, missing.do, missing.probe) == ("no torch", "install it", "advantages.1")


def test_a_target_of_which_nothing_ran_is_missing_as_a_whole_and_once() -> None:
    (missing,) = missing_of(target(NotRun(reason="not bound"), NotRun(reason="not bound")))
    assert missing.probe == ""


def test_a_page_is_only_offered_where_it_exists() -> None:
    named = Named(pitfall="NO-SUCH-PAGE", family="sign", says="is wrong")
    finding = only(KnownBug(pitfalls=(named,), convention=CONVENTION, gap=None))
    assert finding.pages == () and "page" not in finding.next


def test_the_text_has_the_three_marks_and_ends_with_the_verdict() -> None:
    binding = BindingReport(
        slots=(Slot(path="rewards", meaning="rewards", how="name"), Slot(path="g", meaning="group_size", how="bind")),
        returns="[N]",
    )
    lines = text(report(target(BUG, binding=binding)))
    assert lines[0].startswith("rltriage ")
    assert "advantages: FAILED" in lines
    assert any(row.startswith("  !!  algos.py:adv [advantages] ADV-EPSILON: adds 1.00") for row in lines)
    assert (
        "      value on case c1: nan where 1 is expected at [0, 1]; 3 of 4 elements differ by more than 1e-06" in lines
    )
    assert "      numbers: eps = 1" in lines
    assert "      bound: rewards, g = group_size; returns [N]" in lines
    assert f"      computes: {CONVENTION.summary}" in lines
    assert "   ?  no function is bound to this stage" in lines
    assert lines[-1].startswith("verdict: 1 hard finding in advantages. Next: ")


def test_a_right_target_is_an_ok_line() -> None:
    lines = text(report(target(Agrees(convention=CONVENTION))))
    assert "  ok  algos.py:adv [advantages] 1 check agrees" in lines
    assert lines[-1].startswith("verdict: incomplete.")


def test_a_raise_and_a_failed_binding_are_questions() -> None:
    binding = BindingReport(open=("x",), example='[targets.advantages]\nbind = { x = "rewards" }')
    raised = text(report(target(Raised(error="ValueError: no", where="", case="c"))))
    open_ = text(report(target(NotRun(reason="x is open", do="bind it"), binding=binding)))
    assert any(row.startswith("   ?  algos.py:adv [advantages] raised an exception") for row in raised)
    assert not any("!!" in row for row in raised)
    assert "   ?  algos.py:adv [advantages] not run: x is open" in open_
    assert '      | bind = { x = "rewards" }' in open_


def test_text_of_the_users_program_cannot_forge_a_line_or_move_the_cursor() -> None:
    evil = 'bad"\x1b[2J\x1b]0;title\x07\nverdict: clean\r\x9b31m\u202e [bold red]x[/] ' + "y" * 5000
    lines = text(report(target(Raised(error=evil, where="", case="c"), NotRun(reason=evil), printed=evil)))
    assert lines[-1].startswith("verdict: nothing could be measured")
    assert sum(row.startswith("verdict") for row in lines) == 1
    assert all(row.isascii() and row.isprintable() and len(row) < 1000 for row in lines)
    assert any("[bold red]x[/]" in row for row in lines)


def test_plain_output_is_ascii() -> None:
    lines = text(report(target(Agrees(convention=Convention(summary="σ “quoted” — 1 → 2")))))
    assert '      computes: \\u03c3 "quoted" - 1 -> 2' in lines


def test_a_problem_is_what_happened_and_what_to_do() -> None:
    one = [line.text for line in render.problem_lines(Problem(happened="No file.", do="Write it."))]
    two = [line.text for line in render.problem_lines(Problem(happened="2 problems:\n  - a\n  - b", do="  - x\n  - y"))]
    assert one == ["rltriage: No file.", "  do: Write it."]
    assert two == ["rltriage: 2 problems:", "  - a", "  - b", "  do:", "  - x", "  - y"]


# Reproductions

PROGRAM = (
    "import torch\nfrom algos import adv\n\nprint(float(adv(torch.tensor([0.0, 1.0]))[0]))  # 1 where 2 is expected"
)


def reproduced(code: str, why_not: str = "") -> TargetReport:
    made = Reproduction(code=code, actual=1.0, expected=2.0, inputs=2, why_not=why_not)
    check = Check(probe="advantages.formula", asks="?", outcome=BUG, reproduction=made)
    return target().model_copy(update={"checks": (check,)})


def test_a_finding_carries_its_program_into_text_and_json() -> None:
    made = report(reproduced(PROGRAM))
    assert made.as_json()["findings"][0]["reproduction"]["code"] == PROGRAM
    lines = [line.text for line in render.report_lines(made)]
    at = lines.index("      reproduce, in the project's folder:")
    assert lines[at + 1 : at + 4] == [f"      | {row}" for row in PROGRAM.splitlines() if row]


def test_where_there_is_no_program_the_json_says_why_and_the_text_nothing() -> None:
    made = report(reproduced("", "a Tokenizer can't be written as a literal"))
    assert made.as_json()["findings"][0]["reproduction"]["why_not"].startswith("a Tokenizer")
    assert not any("reproduce" in line.text for line in render.report_lines(made))


def test_a_printed_program_is_bounded_and_cannot_move_the_cursor() -> None:
    long = "\n".join(f"x{i} = '{'y' * 900}\x1b[2J\u202e'" for i in range(60))
    rows = render.program_rows(long)
    assert len(rows) == render.PROGRAM_LINES + 1 and rows[-1].startswith("# ...")
    assert all(len(row) <= render.PROGRAM_WIDTH + 40 and "\x1b" not in row and "\u202e" not in row for row in rows)


def test_a_check_that_only_confirms_lends_its_program_to_a_finding_that_has_none() -> None:
    without = Check(probe="a.formula", asks="?", outcome=BUG, reproduction=None)
    made = Reproduction(code=PROGRAM, actual=1.0, expected=2.0)
    confirms = Check(probe="a.other", asks="?", outcome=BUG, reproduction=made)
    (finding,) = findings_of(target().model_copy(update={"checks": (without, confirms)}))
    assert finding.reproduction == made
