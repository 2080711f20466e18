"""Training steps that are right and wrong, loaded and bound as a user's are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import violations

from rltriage_probes import checking, tiny
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, NotRun, Raised, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import stepping, train_step

DATA = Path(__file__).parent / "data" / "steps"
FILE = "train_step_right.py"
Swaps = tuple[tuple[str, str], ...]


def table(file: str, name: str) -> Any:
    """A literal of a file of specimens."""
    body = ast.parse((DATA / file).read_text("utf-8")).body
    found = next(n.value for n in body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == name)
    return ast.literal_eval(found)


TREE = ast.parse((DATA / FILE).read_text("utf-8"))
EXPECTED: dict[str, str] = table(FILE, "EXPECTED")


def examine(name: str, root: Path = DATA, intent: dict[str, Any] | None = None, file: str = FILE) -> TargetResult:
    target = TargetSpec(name="train_step", role="train_step", ref=f"{file}:{name}")
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent or {}, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the specimens in which texts inside one definition are exchanged."""
    text = (DATA / FILE).read_text("utf-8")
    first = name.split(".", maxsplit=1)[0]
    node = next(n for n in TREE.body if getattr(n, "name", "") == first)
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / FILE).write_text(before + code + after, encoding="utf-8")
    return folder


def hard(result: TargetResult) -> set[str]:
    return {ids[0] for ids in violations(result, "hard").values() if ids}


def test_every_specimen_has_its_words() -> None:
    public = {n.name for n in TREE.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")}

    assert public <= set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_right_step_is_recognised_and_nothing_is_found_wrong(name: str) -> None:
    result = examine(name)

    outcomes = [c.outcome for c in result.checks]
    assert [o for o in outcomes if isinstance(o, (Violates, Diverges, Raised, NotRun))] == []
    assert isinstance(outcomes[0], Agrees)
    assert EXPECTED[name] in outcomes[0].convention.summary


MUTANTS: list[tuple[str, str, Swaps, dict[str, Any]]] = table("train_step_mutants.py", "MUTANTS")


@pytest.mark.parametrize(("pitfall", "name", "swaps", "intent"), MUTANTS)
def test_a_wrong_step_is_named(pitfall: str, name: str, swaps: Swaps, intent: dict[str, Any], tmp_path: Path) -> None:
    result = examine(name, mutated(tmp_path, name, swaps), intent)

    assert hard(result) == {pitfall}, [c.outcome for c in result.checks]


def test_a_declared_average_that_is_the_steps_own_is_no_finding() -> None:
    assert hard(examine("reinforce_step", intent={"aggregation": "token-mean"})) == set()


def test_a_mean_by_micro_batch_is_asked_about_where_nobody_promised_otherwise(tmp_path: Path) -> None:
    swaps = (
        ('"""One update over a list of micro-batches, the same as one over their union."""\n', "\n"),
        ("/ n_tokens", '/ mb["completion_mask"][:, 1:].sum() / len(micro_batches)'),
    )

    result = examine("over_micro_batches", mutated(tmp_path, "over_micro_batches", swaps))

    assert hard(result) == set()
    assert violations(result, "soft") == {"train_step.micro_batches": ["STEP-MICRO-MEAN"]}


def test_a_loss_that_is_reported_for_the_last_micro_batch_only_is_asked_about(tmp_path: Path) -> None:
    result = examine("micro_batched", mutated(tmp_path, "micro_batched", (("sum(losses)", "losses[-1]"),)))

    assert violations(result, "soft") == {"train_step.report": ["STEP-LOSS-REPORT"]}


def test_an_optimizer_of_the_head_alone_is_asked_about(tmp_path: Path) -> None:
    swaps = (("AdamW(policy.parameters()", "AdamW(policy.lm_head.parameters()"),)

    result = examine("PPOTrainer.train_step", mutated(tmp_path, "PPOTrainer.train_step", swaps))

    assert hard(result) == set()
    assert violations(result, "soft") == {"train_step.optimizer": ["STEP-OPTIMIZER-PARTIAL"]}


def test_a_step_with_an_entropy_bonus_diverges_and_is_not_accused(tmp_path: Path) -> None:
    swaps = (
        (
            "    optimizer.zero_grad()",
            "    loss = loss - 0.01 * -(logps.exp() * logps).sum()\n    optimizer.zero_grad()",
        ),
    )

    result = examine("reinforce_step", mutated(tmp_path, "reinforce_step", swaps))

    assert hard(result) == set()
    assert isinstance(result.checks[0].outcome, Diverges)


def test_a_step_that_collects_its_own_rollouts_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "rollouts.py").write_text(
        "def train_step(env, agent_factory, rollout_worker):\n    return agent_factory(env).run(rollout_worker)\n"
    )

    result = examine("train_step", tmp_path, file="rollouts.py")

    assert [type(c.outcome) for c in result.checks] == [NotRun]


# The measuring itself


def test_the_weights_of_tokens_are_read_from_a_gradient() -> None:
    batch = stepping.data()
    model = tiny.base_model()
    weights = torch.randn(batch.mask[:, 1:].shape, generator=torch.Generator().manual_seed(4))
    logprobs = tiny.token_logprobs(model, batch.ids, batch.attention)
    (logprobs * weights).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()
    double = tiny.base_model().double()
    rows = tiny.token_logprobs(double, batch.ids, batch.attention).flatten()
    matrix = torch.stack(
        [
            torch.cat([g.flatten() for g in torch.autograd.grad(x, list(double.parameters()), retain_graph=True)])
            for x in rows
        ]
    )

    found = torch.linalg.lstsq(matrix.T, gradient[:, None], driver="gelsd").solution[:, 0]

    torch.testing.assert_close(found.view(weights.shape), weights.double(), rtol=1e-3, atol=1e-3)


def test_the_batch_is_ragged_with_a_hole_and_its_advantages_survive_centring_and_scaling() -> None:
    batch = stepping.data()

    assert len(set(batch.mask.sum(1).tolist())) > 4
    assert bool(((batch.mask[:, 1:-1] == 0) & (batch.mask[:, :-2] == 1) & (batch.mask[:, 2:] == 0)).any())
    for half in (batch.advantages[:4], batch.advantages[4:]):
        assert float(half.mean()) == 0.0
    assert float(batch.advantages[:4].std()) == pytest.approx(float(batch.advantages[4:].std()))


def test_each_pitfall_is_named_by_a_test() -> None:
    soft = {"STEP-LOSS-REPORT", "STEP-OPTIMIZER-PARTIAL"}

    assert {p.id for p in train_step.PITFALLS} == {m[0] for m in MUTANTS} | soft
