"""Lines of a file as a target: what goes in and comes out is named in the manifest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, Block, Check, CheckRequest, KnownBug, NotRun, TargetSpec

TRAIN = """\
import torch

EPS = 1e-6


class Trainer:
    def step(self, rollouts, model):
        scores = self.score(rollouts)
        for epoch in range(2):
            grouped = scores.view(
                -1, self.cfg.group_size
            )
            mean = grouped.mean(1, keepdim=True)
            adv = (grouped - mean) / (
                grouped.std(1, keepdim=True) + EPS
            )
            adv = adv.flatten()
            if adv.isnan().any():
                continue
            loss = model(adv)
            loss.backward()


def standardised(rewards, n):
    r = rewards.view(-1, n)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1.0)).flatten()
"""


def ask(root: Path, lines: str, role: str = "advantages", **block: Any) -> Check:
    (root / "train.py").write_text(TRAIN)
    start, _, stop = lines.partition("-")
    target = TargetSpec(
        name=role, role=role, ref=f"train.py#L{start}-L{stop}", block=Block(start=start, stop=stop, **block)
    )
    return checking.check(CheckRequest(id=1, root=str(root), target=target, device="cpu")).checks[0]


def refused(root: Path, lines: str, **block: Any) -> tuple[str, str]:
    outcome = ask(root, lines, **block).outcome
    assert isinstance(outcome, NotRun), outcome
    return outcome.reason, outcome.do


INPUTS = {"scores": "rewards", "self.cfg.group_size": "group_size"}


def test_lines_inside_a_loop_of_a_method_are_recognised(tmp_path: Path) -> None:
    outcome = ask(tmp_path, "10-17", inputs=INPUTS, output="adv").outcome
    assert isinstance(outcome, Agrees)
    assert "std ddof=1" in outcome.convention.summary


def test_names_that_speak_for_themselves_need_no_inputs_and_the_last_assignment_is_the_result(tmp_path: Path) -> None:
    assert isinstance(ask(tmp_path, "10-17").outcome, Agrees)


def test_an_input_can_be_a_literal(tmp_path: Path) -> None:
    outcome = ask(tmp_path, "25-26", inputs={"rewards": "rewards", "n": "=4"}).outcome
    assert isinstance(outcome, KnownBug)
    assert [n.pitfall for n in outcome.pitfalls] == ["ADV-EPSILON"]


def test_the_result_may_be_an_expression(tmp_path: Path) -> None:
    assert isinstance(ask(tmp_path, "10-13", inputs=INPUTS, output="(grouped - mean).flatten()").outcome, Agrees)


@pytest.mark.parametrize(
    ("lines", "reason", "do"),
    [
        ("11-17", "line 11 lies inside the statement of lines 10 to 12", "Start with L10."),
        ("10-15", "line 15 lies inside the statement of lines 14 to 16", "End with L16."),
        ("10-18", "are no whole statements", "whole are lines L10-L19"),
        ("18-19", "it is not said which value", "They assign nothing"),
        ("17-8", "ends (line 8) before it starts", "Swap"),
        ("4-5", "hold no statement", "Take lines that compute"),
        ("10-99", "there is no line 99", "Give a line of the file"),
        ("20-21", "it is not said which value of these lines is the result", 'add output = "loss"'),
    ],
)
def test_lines_that_can_not_be_run_say_which_would(tmp_path: Path, lines: str, reason: str, do: str) -> None:
    said = refused(tmp_path, lines)
    assert reason in said[0]
    assert do in said[1]


def test_lines_that_leave_a_loop_can_not_stand_alone(tmp_path: Path) -> None:
    reason, do = refused(tmp_path, "10-19", output="adv")
    assert "can't stand alone: 'continue' not properly in loop (line 19)" in reason
    assert "break, continue" in do


def test_an_input_that_the_lines_do_not_read_is_named_with_those_they_do(tmp_path: Path) -> None:
    reason, do = refused(tmp_path, "10-17", inputs={"score": "rewards"})
    assert reason == "lines 10 to 17 do not read score"
    assert do.startswith("They read scores, self;")


def test_an_output_that_the_lines_do_not_compute_is_named_with_what_they_do(tmp_path: Path) -> None:
    reason, do = refused(tmp_path, "10-17", output="advantage")
    assert "reads advantage, which these lines do not compute" in reason
    assert do == "They compute grouped, mean, adv."


def test_names_without_a_meaning_come_with_the_lines_to_add(tmp_path: Path) -> None:
    reason, do = refused(tmp_path, "14-17", output="adv")
    assert "no word of the vocabulary was found for grouped, mean" in reason
    assert "inputs = { grouped = " in do and "bind" not in do.replace("Bind it", "")
