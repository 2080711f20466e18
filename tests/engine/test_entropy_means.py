"""Entropies averaged over a batch, and the gradient of entropies."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from specimens import DATA, expected

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.logprobs import entropy


def examine(name: str, intent: dict[str, Any] | None = None, module: str = "entropy_means") -> TargetResult:
    target = TargetSpec(name="entropy", role="entropy", ref=f"{module}.py:{name}")
    return checking.check(CheckRequest(id=1, root=str(DATA), target=target, intent=intent or {}, device="cpu"))


def named(result: TargetResult) -> set[str]:
    """Pitfalls of hard known bugs and the first candidate of each hard violation."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug(severity="hard") as bug:
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates(severity="hard") as broken:
                found |= {n.pitfall for n in broken.candidates[:1]}
            case _:
                pass
    return found


def right() -> dict[str, str]:
    tree = ast.parse((DATA / "entropy_means.py").read_text("utf-8"))
    (table,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "RIGHT"]
    found: dict[str, str] = ast.literal_eval(table)
    return found


WRONG = expected("entropy_means")


@pytest.mark.parametrize("name", right())
def test_a_right_mean_of_entropies_is_recognised(name: str) -> None:
    result = examine(name)

    assert all(isinstance(c.outcome, Agrees) for c in result.checks), result.checks
    first = result.checks[0].outcome
    assert isinstance(first, Agrees)
    assert first.convention.summary == right()[name]


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_named_and_nothing_else_is(name: str) -> None:
    assert named(examine(name)) == {WRONG[name]}


@pytest.mark.parametrize(("name", "declared"), [("token_mean", "sequence-mean"), ("sequence_mean", "token-mean")])
def test_another_mean_than_declared_is_named(name: str, declared: str) -> None:
    assert named(examine(name, {"aggregation": declared})) == {"LOSS-AGGREGATION"}


def test_a_detached_entropy_is_only_asked_about(tmp_path: Any) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n\n\ndef entropy(logits):\n    logp = torch.log_softmax(logits, -1).detach()\n"
        "    return -(logp.exp() * logp).sum(-1)\n"
    )
    target = TargetSpec(name="entropy", role="entropy", ref="m.py:entropy")
    result = checking.check(CheckRequest(id=1, root=str(tmp_path), target=target, device="cpu"))

    assert named(result) == set()
    assert [c.outcome.kind for c in result.checks] == ["agrees", "violates", "agrees"]


def test_the_pitfalls_of_means_and_gradients_are_all_planted() -> None:
    planted = {*WRONG.values(), "LOSS-AGGREGATION", "LOSS-PADDED-DENOMINATOR"}
    of_the_role = {p.id for p in entropy.ROLE.pitfalls}

    assert planted <= of_the_role
    assert {p for p in of_the_role if p.startswith("LOSS-")} <= planted
