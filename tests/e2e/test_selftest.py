"""`rltriage selftest`: its figures are counted from what was really said of each specimen."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from rltriage import selftest
from rltriage_probes.contract import ROLE_STAGES


def specimen(kind: selftest.Kind, role: str = "kl") -> selftest.Specimen:
    pitfall = "KL-SIGN" if kind == "planted" else ""
    return selftest.Specimen(
        name=f"a {kind}", kind=kind, role=role, target="f", code="", pitfall=pitfall, intent={}, bind={}, settings={}
    )


def verdict(kind: selftest.Kind, *, named: tuple[str, ...] = (), hard=False, soft=False, ran=True) -> selftest.Verdict:
    return selftest.Verdict(specimen=specimen(kind), named=named, hard=hard, soft=soft, ran=ran)


def test_what_is_missed_misnamed_accused_or_not_run_is_counted_as_such() -> None:
    verdicts = [
        verdict("planted", named=("KL-SIGN",), hard=True),
        verdict("planted", named=("KL-REVERSED",), hard=True),
        verdict("planted"),
        verdict("repaired"),
        verdict("repaired", named=("KL-SIGN",), hard=True),
        verdict("right stranger", soft=True),
        verdict("right stranger", ran=False),
        verdict("wrong stranger", soft=True),
        verdict("wrong stranger"),
    ]

    kl, everything = selftest.table(verdicts)

    assert (kl.planted, kl.detected, kl.named) == (3, 2, 1)
    assert (kl.wrong_strangers, kl.noticed) == (2, 1)
    assert (kl.right, kl.accused, kl.not_run) == (4, 1, 1)
    assert everything == selftest.Row(**{**vars(kl), "role": "all"})
    assert [v.passed for v in verdicts] == [True, False, False, True, False, True, False, True, False]


def test_the_specimens_that_ship_cover_every_role_with_wrong_and_right_ones() -> None:
    chosen = selftest.specimens()

    assert {s.role for s in chosen if s.kind == "planted"} == set(ROLE_STAGES)
    assert {s.role for s in chosen if s.kind == "repaired"} == set(ROLE_STAGES)
    assert len({s.role for s in chosen if s.kind == "wrong stranger"}) >= 15
    assert len([s for s in chosen if s.kind == "wrong stranger"]) >= 50
    assert len([s for s in chosen if s.kind == "right stranger"]) >= 50
    assert all(f"def {s.target.split('.')[-1]}" in s.code or f"class {s.target}" in s.code for s in chosen)


def run(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "rltriage", "selftest", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_the_figures_of_one_role(as_json: bool) -> None:
    code, out, err = run("--role", "kl", *(["--json"] if as_json else []))

    assert code == 0, out + err
    if as_json:
        data: dict[str, Any] = json.loads(out)
        (kl, everything) = data["roles"]
        assert kl["role"] == "kl" and everything["role"] == "all"
        assert kl["planted"] == kl["detected"] == kl["named"] > 3
        assert kl["accused"] == 0 and data["failed"] == []
    else:
        assert [line.split()[0] for line in out.splitlines()] == ["role", "kl", "all"]


def test_a_role_that_does_not_exist_is_named_with_the_nearest_one() -> None:
    code, _, err = run("--role", "advantage")

    assert code == 2
    assert "advantages" in err
