"""Canonical signatures: an adapter's parameters bind by their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltriage_probes import binding, describing, loading, registry
from rltriage_probes.contract import DescribeRequest, TargetSpec
from rltriage_probes.vocabulary import WORDS

FORMULAS = (
    "advantages", "gae", "logprobs", "entropy", "kl", "policy_loss", "completion_mask", "value_loss", "aggregate",
    "importance_weights", "preference_loss", "reward_model_loss", "sft_loss", "reward_shaping",
)  # fmt: skip


def bound(name: str, words: list[str], root: Path) -> dict[str, str]:
    """What the parameters of an adapter are taken for, by their names."""
    result = f"    return {words[0]}\n" if words else "    return 0\n"
    (root / "adapter.py").write_text(f"RLTRIAGE_ADAPTER = 1\ndef {name}({', '.join(words)}):\n{result}")
    target = TargetSpec(name=name, role=name, ref=f"adapter.py:{name}")
    role = registry.role(name)
    try:
        report = binding.bind(loading.load(root, target), role, {}, {}, {}, name).report
    except binding.BindingFailed as e:
        report = e.report
    return {s.path: s.meaning for s in report.slots}


@pytest.mark.parametrize("name", FORMULAS)
def test_the_parameters_of_an_adapter_are_what_they_are_called(name: str, tmp_path: Path) -> None:
    given = registry.role(name).example({}).inputs
    words = [i.name for i in describing.of_role(registry.role(name)).inputs if i.name in given]
    for word in words:
        assert bound(name, [word], tmp_path).get(word) == word
    together = bound(name, words, tmp_path)
    assert {w: together.get(w) for w in words} == {w: w for w in words}


@pytest.mark.parametrize("name", registry.names())
def test_a_description_says_what_is_needed_first(name: str) -> None:
    (said,) = describing.describe(DescribeRequest(id=1, roles=(name,))).roles
    assert said.name == name and said.asks
    needed = [i.needed for i in said.inputs]
    assert needed == sorted(needed, reverse=True)
    assert all(i.says and i.kind == WORDS[i.name].kind for i in said.inputs)


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_needs_at_least_one_input_and_says_what_it_returns(name: str) -> None:
    (said,) = describing.describe(DescribeRequest(id=1, roles=(name,))).roles
    assert [i.name for i in said.inputs if i.needed]
    assert said.returns
