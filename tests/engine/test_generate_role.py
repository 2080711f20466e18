"""Generating functions that are right and wrong, the model that is known by heart, and the tests of chance."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from specimens import DATA, expected, functions, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, NotRun, TargetResult, TargetSpec
from rltriage_probes.generation import chance, greedy, rollouts
from rltriage_probes.generation.rollouts import Unreadable
from rltriage_probes.generation.sampling_target import Scene, Stage
from rltriage_probes.generation.tiny_lm import PromptTokenizer, Settings, TableModel, nucleus, warp


def classes(module: str) -> list[str]:
    tree = ast.parse((DATA / f"{module}.py").read_text("utf-8"))
    return [n.name for n in tree.body if isinstance(n, ast.ClassDef) and n.name != "Completion"]


def examine(ref: str, root: Path = DATA, **intent: Any) -> TargetResult:
    target = TargetSpec(name="g", role="generate", ref=ref)
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent))


def summary(result: TargetResult, probe: str) -> str:
    (outcome,) = [c.outcome for c in result.checks if c.probe == probe]
    assert isinstance(outcome, Agrees), outcome
    return outcome.convention.summary


@pytest.mark.parametrize("name", [*functions("generate_right"), *classes("generate_right")])
def test_a_right_function_is_not_called_a_bug(name: str) -> None:
    result = examine(f"generate_right.py:{name}")

    assert violations(result, "hard") == {}
    assert violations(result, "soft") == {}
    assert [c.outcome for c in result.checks if c.outcome.kind in ("raised", "not_run")] == []
    assert any(isinstance(c.outcome, Agrees) for c in result.checks)


@pytest.mark.parametrize(("name", "pitfall"), expected("generate_wrong").items())
def test_a_wrong_function_is_named(name: str, pitfall: str) -> None:
    found = violations(examine(f"generate_wrong.py:{name}"), "hard")

    assert pitfall in {p for ids in found.values() for p in ids}


def test_every_wrong_function_has_an_expectation() -> None:
    assert set(functions("generate_wrong")) == set(expected("generate_wrong"))


def test_conventions_are_stated() -> None:
    assert summary(examine("generate_right.py:sequences_with_prompt"), "generate.tokens").startswith(
        "prompt and completion"
    )
    assert "end token dropped" in summary(examine("generate_right.py:sorted_by_length"), "generate.tokens")
    assert "samples tiled" in summary(examine("generate_right.py:tiled_samples"), "generate.tokens")
    assert "as documented" in summary(examine("generate_right.py:raw_scores"), "generate.logprobs")


def test_two_bugs_at_once_are_both_named(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n\n\n@torch.no_grad()\n"
        "def f(model, tokenizer, prompts, max_new_tokens=8, temperature=1.0):\n"
        "    '''Completions that end with their eos.'''\n"
        "    ids = tokenizer(prompts, return_tensors='pt', padding=True)['input_ids']\n"
        "    start = ids.size(1)\n"
        "    for _ in range(max_new_tokens):\n"
        "        p = (model(ids).logits[:, -1] / temperature).softmax(-1)\n"
        "        ids = torch.cat([ids, torch.multinomial(p, 1)], 1)\n"
        "    return ids[:, start:].tolist()\n"
    )
    found = violations(examine("m.py:f", tmp_path), "hard")

    assert set(found["generate.tokens"]) == {"GEN-PADDING-SEEN", "GEN-NO-STOP"}


def test_the_declared_temperature_is_held_against_a_fixed_one(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "def f(model, tokenizer, prompts, max_new_tokens=8):\n"
        "    enc = tokenizer(prompts, return_tensors='pt', padding=True)\n"
        "    seq = model.generate(**enc, max_new_tokens=max_new_tokens, do_sample=True, temperature=0.7, top_k=0)\n"
        "    return seq[:, enc['input_ids'].size(1):]\n"
    )

    assert "samples at 0.7" in summary(examine("m.py:f", tmp_path, temperature=0.7), "generate.temperature")
    found = violations(examine("m.py:f", tmp_path, temperature=1.0), "hard")
    assert found == {"generate.temperature": ["GEN-TEMPERATURE"]}


def test_what_is_not_recognised_says_how_to_bind_it(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def f(model, wombat):\n    return model(wombat)\n")
    (outcome,) = [c.outcome for c in examine("m.py:f", tmp_path).checks]

    assert isinstance(outcome, NotRun)
    assert "bind" in outcome.do


# The model


def test_padding_that_is_masked_changes_nothing_and_padding_that_is_not_does() -> None:
    model = TableModel(PromptTokenizer())
    ids = torch.tensor([[20, 21, 22]])
    padded, mask = torch.tensor([[0, 0, 20, 21, 22]]), torch.tensor([[0, 0, 1, 1, 1]])

    alone = model(ids).logits[:, -1]
    assert torch.equal(alone, model(padded, attention_mask=mask).logits[:, -1])
    assert not torch.equal(alone, model(padded).logits[:, -1])


def test_a_cache_gives_the_logits_of_the_whole_sequence() -> None:
    model = TableModel(PromptTokenizer())
    ids = torch.tensor([[20, 21, 22, 23]])
    out = model(ids[:, :3], use_cache=True)

    assert torch.equal(model(ids[:, 3:], past_key_values=out.past_key_values).logits[:, -1], model(ids).logits[:, -1])


def test_the_known_distribution_is_that_of_the_forward_pass() -> None:
    model = TableModel(PromptTokenizer())

    torch.testing.assert_close(
        model(torch.tensor([[9, 30, 31]])).logits[0, -1].double(), model.distribution([9, 30, 31])
    )


def test_generate_follows_its_settings() -> None:
    tokenizer = PromptTokenizer()
    model = TableModel(tokenizer, sharp=True)
    enc = tokenizer(["klm", "nopqr"], return_tensors="pt", padding=True)
    want = [model.greedy(tokenizer.encode(p), 6, (tokenizer.eos_token_id,)) for p in ("klm", "nopqr")]
    got = model.generate(**enc, max_new_tokens=6, num_return_sequences=2)[:, 5:].tolist()

    assert [greedy.canonical(r, tokenizer, False) for r in got] == [want[0], want[0], want[1], want[1]]


def test_the_nucleus_is_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()

    assert nucleus(logits, 0.6).tolist() == [True, True, False, False]
    assert nucleus(logits, 0.81).tolist() == [True, True, True, False]
    assert nucleus(logits, 0.6, crossing=False).tolist() == [True, False, False, False]


def test_settings_are_applied_in_the_order_of_transformers() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    warped = warp(logits, Settings(temperature=0.5, top_k=3, top_p=0.9)).softmax(-1)

    squared = torch.tensor([0.25, 0.09, 0.0, 0.0])  # 0.0225 is behind the 0.9 of 0.3625
    torch.testing.assert_close(warped[0], squared / squared.sum())


# Results


def test_rows_are_read_from_whatever_is_returned() -> None:
    tokenizer = PromptTokenizer()
    ids = torch.tensor([[5, 6], [7, 8]])

    assert rollouts.read(ids, tokenizer).rows == [[5, 6], [7, 8]]
    assert rollouts.read([[5], [7, 8]], tokenizer).rows == [[5], [7, 8]]
    assert rollouts.read(["ab"], tokenizer).texts
    assert rollouts.read({"completion_ids": ids, "logprobs": -torch.rand(2, 2)}, tokenizer).logprobs is not None
    assert rollouts.read((ids, -torch.rand(2, 2), torch.ones(2, 2, dtype=torch.long)), tokenizer).mask == [
        [1, 1],
        [1, 1],
    ]
    with pytest.raises(Unreadable):
        rollouts.read(None, tokenizer)


# Chance


def counted(probabilities: torch.Tensor, n: int) -> chance.Sampled:
    g = torch.Generator().manual_seed(4)
    drawn = torch.multinomial(probabilities, n, replacement=True, generator=g).tolist()
    counts: dict[tuple[Any, int], int] = {}
    for token in drawn:
        counts[0, token] = counts.get((0, token), 0) + 1
    return chance.sampled({0: LOGITS}, counts)


LOGITS = torch.tensor([1.5, 0.7, 0.2, -0.4, -1.0, -2.0]).double()
BY_TEMPERATURE = {"as asked": 0.6, "no temperature": 1.0, "multiplied by the temperature": 1 / 0.6,
                  "divided twice by the temperature": 0.36, "divided by its root": 0.6**0.5}  # fmt: skip


@pytest.mark.parametrize("name", BY_TEMPERATURE)
def test_each_way_to_apply_a_temperature_is_told_from_the_others(name: str) -> None:
    verdict = chance.judge(counted((LOGITS / BY_TEMPERATURE[name]).softmax(-1), 2000), chance.temperatures(0.6))

    assert verdict.best.name == name
    assert verdict.fits


@pytest.mark.parametrize(("top_k", "top_p"), [(3, None), (None, 0.7)])
def test_each_way_to_cut_the_vocabulary_is_told_from_the_others(top_k: int | None, top_p: float | None) -> None:
    every = chance.cuts(0.8, top_k, top_p)
    for h in every:
        drawn = counted(h.warp(LOGITS[None]).softmax(-1)[0], 4000)
        found = chance.judge(drawn, every).best
        same = torch.allclose(found.warp(LOGITS[None]).softmax(-1), h.warp(LOGITS[None]).softmax(-1))
        assert same, (h.name, found.name)


def test_a_likelihood_is_the_sum_that_a_hand_gets() -> None:
    tokens = chance.sampled({0: torch.tensor([0.0, math.log(3)])}, {(0, 0): 1, (0, 1): 3})
    verdict = chance.judge(tokens, [chance.Hypothesis("plain", lambda x: x, right=True)])

    # entropy of (1/4, 3/4) is 0.5623, and so is the mean log-loss of one and three
    assert verdict.z == pytest.approx(0.0, abs=1e-6)
    assert verdict.tokens == 4


# Rows


def test_every_pair_of_hypotheses_about_rows_is_told_apart() -> None:
    scene = Scene(greedy.prompts("output", ragged=True), n=2, max_new_tokens=greedy.SHORT)
    expected_rows = greedy.Expected(Stage(scene, "output"), greedy.SHORT)
    base = {k: v[0] for k, v in greedy.AXES.items()}
    seen: dict[str, str] = {}
    for axis, options in greedy.AXES.items():
        for option in options:
            rows = expected_rows.rows({**base, axis: option})
            shown = repr([greedy.canonical(r, PromptTokenizer(), False) for r in rows])
            name = "right" if option == base[axis] else f"{axis}: {option}"
            assert seen.setdefault(shown, name) == name
    assert len(seen) == 1 + sum(len(v) - 1 for v in greedy.AXES.values())


@pytest.mark.parametrize("context", greedy.AXES["context"])
def test_running_on_is_seen_whatever_the_model_reads(context: str) -> None:
    scene = Scene(greedy.prompts("output", ragged=True), max_new_tokens=greedy.SHORT)
    rows = greedy.Expected(Stage(scene, "output"), greedy.SHORT).rows
    base = {k: v[0] for k, v in greedy.AXES.items()} | {"context": context}

    assert rows(base) != rows({**base, "stop": "runs on"})
