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
TREE = ast.parse((DATA / FILE).read_text("utf-8"))
EXPECTED: dict[str, str] = ast.literal_eval(
    next(n.value for n in TREE.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "EXPECTED")
)


def examine(name: str, root: Path = DATA, intent: dict[str, Any] | None = None, file: str = FILE) -> TargetResult:
    target = TargetSpec(name="train_step", role="train_step", ref=f"{file}:{name}")
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent or {}, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the specimens in which texts inside one definition are exchanged."""
    text = (DATA / FILE).read_text("utf-8")
    first = name.split(".")[0]
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


_ZERO = "    optimizer.zero_grad()\n"
MUTANTS: list[tuple[str, str, Swaps, dict[str, Any]]] = [
    ("STEP-WRONG-WAY", "reinforce_step", (("loss = -(", "loss = ("),), {}),
    ("STEP-WRONG-WAY", "PPOTrainer.train_step", (("loss = -(torch.min", "loss = (torch.min"),), {}),
    ("STEP-WRONG-WAY", "labels_step", (("(nll * batch", "(-nll * batch"),), {}),
    ("STEP-WRONG-WAY", "sft_step", (("loss = F.cross", "loss = -F.cross"),), {}),
    ("STEP-WRONG-WAY", "rewards_step", (('batch["rewards"] - batch["rewards"].mean()', 'batch["rewards"].mean() - batch["rewards"]'),), {}),
    ("STEP-GRAD-KEPT", "reinforce_step", ((_ZERO, ""),), {}),
    ("STEP-GRAD-KEPT", "PPOTrainer.train_step", (("        self.optimizer.zero_grad(set_to_none=True)\n", ""),), {}),
    ("STEP-GRAD-KEPT", "zero_after_step", (("        p.grad = None\n", "        pass\n"),), {}),
    ("STEP-BEFORE-BACKWARD", "reinforce_step", (("    loss.backward()\n    optimizer.step()\n", "    optimizer.step()\n    loss.backward()\n"),), {}),
    ("STEP-GRAD-ZEROED", "reinforce_step", ((_ZERO, ""), ("    optimizer.step()\n", _ZERO + "    optimizer.step()\n")), {}),
    ("STEP-NOT-TAKEN", "reinforce_step", (("    optimizer.step()\n", ""),), {}),
    ("STEP-NO-GRADIENT", "reinforce_step", (("    loss.backward()", "    loss = loss.detach().requires_grad_()\n    loss.backward()"),), {}),
    ("STEP-NO-GRADIENT", "sft_step", (("    logits = model", "    with torch.no_grad():\n        logits = model"),), {}),
    ("STEP-NO-GRADIENT", "reinforce_step", (("    loss.backward()\n", ""),), {}),
    ("STEP-MASK-LEAK", "reinforce_step", (("mask).sum() / mask.sum()", "attention_mask[:, 1:]).sum() / mask.sum()"),), {}),
    ("STEP-MASK-LEAK", "token_count_step", ((' * mb["completion_mask"][:, 1:]', ""),), {}),
    ("STEP-MASK-LEAK", "micro_batched", (('mask = mb["completion_mask"][:, 1:]', 'mask = 1 - mb["completion_mask"][:, 1:]'),), {}),
    ("STEP-MASK-LEAK", "PPOTrainer.train_step", (('["response_mask"][:, 1:]', '["response_mask"][:, :-1]'),), {}),
    ("STEP-SHIFT", "sft_step", (("logits[:, :-1]", "logits"), ('batch["labels"][:, 1:]', 'batch["labels"]')), {}),
    ("STEP-SHIFT", "labels_step", (("[:, :-1]\n", "\n"), ('batch["labels"][:, 1:]', 'batch["labels"]')), {}),
    ("STEP-ADVANTAGE-IGNORED", "reinforce_step", (("advantages[:, None]", "torch.ones_like(advantages)[:, None]"),), {}),
    ("STEP-TOKEN-LOST", "reinforce_step", (("mask = completion_mask[:, 1:]", "mask = completion_mask[:, 1:] * torch.cat([completion_mask[:, 2:], 0 * completion_mask[:, :1]], 1)"),), {}),
    ("STEP-ACCUM-NOT-DIVIDED", "micro_batched", (("seq.sum() / n", "seq.mean()"),), {}),
    ("STEP-ACCUM-NOT-DIVIDED", "Engine.step", (("(loss / accum)", "loss"),), {}),
    ("STEP-ACCUM-NOT-DIVIDED", "over_micro_batches", (("/ n_tokens", '/ mb["completion_mask"][:, 1:].sum()'),), {}),
    ("STEP-ACCUM-DIVIDED-TWICE", "token_count_step", (("loss.backward()", "(loss / gradient_accumulation_steps).backward()"),), {}),
    ("STEP-MICRO-MEAN", "token_count_step", (("/ total", '/ mb["completion_mask"][:, 1:].sum() / gradient_accumulation_steps'),), {}),
    ("STEP-MICRO-MEAN", "over_micro_batches", (("/ n_tokens", '/ mb["completion_mask"][:, 1:].sum() / len(micro_batches)'),), {}),
    ("STEP-ACCUM-LOST", "micro_batched", (("        loss.backward()", "        optimizer.zero_grad()\n        loss.backward()"),), {}),
    ("STEP-EVERY-MICRO", "token_count_step", (("        reported +=", "        optimizer.step()\n        optimizer.zero_grad()\n        reported +="),), {}),
    ("STEP-CLIP-INERT", "micro_batched", (("    norm = clip_grad_norm_(model.parameters(), max_grad_norm)\n    optimizer.step()", "    optimizer.step()\n    norm = clip_grad_norm_(model.parameters(), max_grad_norm)"),), {}),
    ("STEP-CLIP-SCALED", "scaled_step", (("    scaler.unscale_(optimizer)\n", ""),), {}),
    ("STEP-LOW-PRECISION", "PPOTrainer.train_step", (("self.policy = policy", "self.policy = policy.to(torch.bfloat16)"), ("3e-4", "1e-6")), {}),
    ("STEP-PADDING", "reinforce_step", (("mask.sum()", "mask.numel()"),), {"aggregation": "token-mean"}),
    ("STEP-REF-MOVES", "GRPOLearner.update", (("        self.optimizer.step()", "        for p in self.ref_model.parameters():\n            p.data.add_(0.01)\n        self.optimizer.step()"),), {}),
    ("STEP-NOT-FINITE", "normalised_step", (("(adv.std() + eps)", "adv.std()"),), {}),
    ("STEP-AGGREGATION", "reinforce_step", (), {"aggregation": "sequence-mean"}),
    ("STEP-OPTIMIZER-STALE", "PPOTrainer.train_step", (("self.policy = policy", "self.policy = policy\n        policy = __import__('copy').deepcopy(policy)"),), {}),
]  # fmt: skip


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
