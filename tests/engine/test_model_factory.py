"""Factories of policies that are right and wrong, loaded and bound as a user's are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import violations
from torch import nn

from rltriage_probes import checking, tiny, tiny_hub
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, NotRun, Raised, TargetResult, TargetSpec, Violates
from rltriage_probes.lora import building, model_factory

DATA = Path(__file__).parent / "data" / "steps"
FILE = "model_factory_right.py"
Swaps = tuple[tuple[str, str], ...]
TEXT = (DATA / FILE).read_text("utf-8")


def table(file: str, name: str) -> Any:
    """A literal of a file of specimens."""
    body = ast.parse((DATA / file).read_text("utf-8")).body
    found = next(n.value for n in body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == name)
    return ast.literal_eval(found)


TREE = ast.parse((DATA / FILE).read_text("utf-8"))
EXPECTED: dict[str, str] = table(FILE, "EXPECTED")


def examine(name: str, root: Path = DATA, intent: dict[str, Any] | None = None) -> TargetResult:
    target = TargetSpec(name="model_factory", role="model_factory", ref=f"{FILE}:{name}")
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent or {}, device="cpu"))


def mutated(folder: Path, swaps: Swaps) -> Path:
    text = TEXT
    for old, new in swaps:
        assert old in text, old
        text = text.replace(old, new)
    (folder / FILE).write_text(text, encoding="utf-8")
    return folder


def hard(result: TargetResult) -> set[str]:
    return {ids[0] for ids in violations(result, "hard").values() if ids}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_right_factory_passes(name: str) -> None:
    result = examine(name)

    outcomes = [c.outcome for c in result.checks]
    assert [o for o in outcomes if isinstance(o, (Violates, Diverges, Raised, NotRun))] == []
    assert any(isinstance(o, Agrees) and EXPECTED[name] in o.convention.summary for o in outcomes), outcomes


MUTANTS: list[tuple[str, str, Swaps]] = table("model_factory_mutants.py", "MUTANTS")


@pytest.mark.parametrize(("pitfall", "name", "swaps"), MUTANTS)
def test_a_wrong_factory_is_named(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    result = examine(name, mutated(tmp_path, swaps))

    assert hard(result) == {pitfall}, [c.outcome for c in result.checks]


def test_dropout_of_a_reference_in_training_mode_is_named(tmp_path: Path) -> None:
    swaps = (
        ("self.dropout = nn.Dropout(dropout)", "self.dropout = nn.Dropout(0.1)"),
        ("    ref.eval()\n    for p in ref", "    ref.train()\n    for p in ref"),
    )

    assert hard(examine("policy_and_reference", mutated(tmp_path, swaps))) == {"REF-DROPOUT"}


def test_a_reference_in_another_precision_is_asked_about(tmp_path: Path) -> None:
    swaps = (("    ref.requires_grad_(False)\n", "    ref.to(torch.bfloat16).requires_grad_(False)\n"),)

    result = examine("load_models", mutated(tmp_path, swaps))

    assert hard(result) == set()
    assert {i for ids in violations(result, "soft").values() for i in ids} == {"REF-PRECISION"}


def test_a_declared_rank_stabilised_scale_is_wanted_and_a_plain_one_is_then_wrong() -> None:
    assert hard(examine("add_lora", intent={"use_rslora": True})) == {"LORA-SCALE"}
    assert hard(examine("rank_stabilised", intent={"use_rslora": True})) == set()
    assert hard(examine("rank_stabilised", intent={"use_rslora": False})) == {"LORA-SCALE"}


def test_a_documented_base_model_as_reference_is_right(tmp_path: Path) -> None:
    swaps = (
        ("the reference is its frozen copy.", "the reference is the base model."),
        ("ref = copy.deepcopy(policy)", "ref = copy.deepcopy(base_model)"),
    )

    assert hard(examine("policy_and_reference", mutated(tmp_path, swaps))) == set()


# The stand-ins do what the libraries document


def test_a_stand_in_adapter_starts_at_zero_and_alone_is_trainable() -> None:
    base = tiny.base_model()
    tokens = building.ids(base, None)
    before = building.scored(base, tokens)
    model = tiny_hub.get_peft_model(base, tiny_hub.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj"]))

    torch.testing.assert_close(building.scored(model, tokens), before)
    assert {n.rsplit(".", 2)[0].rsplit(".", 1)[-1] for n, p in model.named_parameters() if p.requires_grad} == {
        "lora_A", "lora_B",
    }  # fmt: skip


def test_merging_a_stand_in_adapter_gives_the_same_logits() -> None:
    base = tiny.base_model()
    model = tiny_hub.get_peft_model(base, tiny_hub.LoraConfig(r=2, lora_alpha=8, target_modules="all-linear"))
    building.nudge(model)
    tokens = building.ids(base, None)
    before = building.scored(model, tokens)
    with model.disable_adapter():
        without = building.scored(model, tokens)

    torch.testing.assert_close(building.scored(model.merge_and_unload(), tokens), before, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(without, before)


def test_low_rank_pairs_are_found_by_shape_in_either_layout() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Linear(6, 10)
            self.down = nn.Parameter(torch.randn(6, 2))
            self.up = nn.Parameter(torch.randn(2, 10))

    (found,) = building.adapters(nn.Sequential(Pair()))

    assert (found.rank, found.transposed, tuple(found.product().shape)) == (2, True, (10, 6))


def test_each_pitfall_is_named_by_a_test() -> None:
    assert {p.id for p in model_factory.PITFALLS} == {m[0] for m in MUTANTS} | {"REF-DROPOUT", "REF-PRECISION"}
