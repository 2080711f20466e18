"""Finding stage functions and settings by reading the source."""

# ruff: noqa: E501  the code under examination is written as users write it

from __future__ import annotations

from pathlib import Path

from rltriage_probes import discovery
from rltriage_probes.contract import Discovered, DiscoverRequest

LOOP = """
import argparse
from algo import token_logps, center, surrogate_loss, keep_mask
from text import to_answer, letter_reward

def main():
    p = argparse.ArgumentParser()
    p.add_argument("--num-generations", type=int, default=6)
    p.add_argument("--kl-coef", type=float, default=0.02)
    lp = token_logps(logits, ids)
    adv = center(rewards, 6)
    loss = surrogate_loss(lp, old, adv, keep_mask(ids, 2))
    letter_reward([to_answer(t) for t in texts], answers)
"""
ALGO = '''
import torch

def token_logps(logits, input_ids):
    return logits.log_softmax(-1).gather(-1, input_ids[..., None]).squeeze(-1)

def center(rewards, num_generations):
    """Group-relative advantage of each reward."""
    g = rewards.view(-1, num_generations)
    return (g - g.mean(1, keepdim=True)).flatten()

def normalize_rewards_batch_advantage(rewards, num_generations):
    return rewards

def surrogate_loss(logps, old_logps, advantages, mask, clip=0.2):
    r = (logps - old_logps).exp()
    return -(torch.min(r * advantages, r.clamp(1 - clip, 1 + clip) * advantages) * mask).sum() / mask.sum()

def keep_mask(completion_ids, eos_token_id):
    e = completion_ids.eq(eos_token_id).long()
    return (e.cumsum(1) - e).eq(0)

def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum()
'''
TEXT = '''
import re

def to_answer(text):
    """Strip the thinking."""
    return text.split("</think>")[-1]

def decode_rows(tokenizer, completion_ids):
    return [to_answer(t) for t in tokenizer.batch_decode(completion_ids)]

def letter_reward(completions, answers):
    return [float(re.findall("x", c) == a) for c, a in zip(completions, answers)]
'''


def find(root: Path, **files: str) -> Discovered:
    for name, text in files.items():
        (root / name.replace("__", "/").replace("_DOT_", ".")).parent.mkdir(parents=True, exist_ok=True)
        (root / name.replace("__", "/").replace("_DOT_", ".")).write_text(text)
    return discovery.discover(DiscoverRequest(id=1, root=str(root)))


def test_every_stage_function_of_a_small_project_is_found(tmp_path: Path) -> None:
    got = find(tmp_path, train_DOT_py=LOOP, algo_DOT_py=ALGO, text_DOT_py=TEXT, tests__test_algo_DOT_py=ALGO)
    found = {(f.role, f.ref) for f in got.found}
    assert found >= {
        ("logprobs", "algo.py:token_logps"), ("policy_loss", "algo.py:surrogate_loss"),
        ("completion_mask", "algo.py:keep_mask"), ("reward", "text.py:letter_reward"), ("decode", "text.py:decode_rows"),
    }  # fmt: skip
    assert not any("masked_mean" in ref or "test" in ref for _, ref in found)
    assert all(f.why for f in got.found)
    assert any(f.role == "advantages" for f in (*got.found, *got.unsure))


def test_settings_are_read_from_options_and_config_files(tmp_path: Path) -> None:
    got = find(
        tmp_path,
        train_DOT_py=LOOP,
        conf__grpo_DOT_yaml="rl:\n  clip_ratio: 0.3  # both sides\n  temperature: '0.9'\n  beta: 0.001\n",
    )
    assert got.settings == {"clip_low": 0.3, "clip_high": 0.3, "beta": 0.001, "group_size": 6, "algorithm": "grpo"}


def test_a_config_dataclass_gives_its_defaults(tmp_path: Path) -> None:
    code = "from dataclasses import dataclass\n@dataclass\nclass TrainConfig:\n    group_size: int = 12\n    epsilon_low: float = 0.2\n    epsilon_high: float = 0.28\n    loss_agg_mode: str = 'seq-mean-token-mean'\n"
    got = find(tmp_path, config_DOT_py=code)
    assert got.settings == {"group_size": 12, "clip_low": 0.2, "clip_high": 0.28, "aggregation": "sequence-mean"}


def test_a_file_that_does_not_parse_is_named_and_passed_over(tmp_path: Path) -> None:
    got = find(tmp_path, bad_DOT_py="def f(:\n", algo_DOT_py=ALGO)
    assert got.files_read == 1
    assert got.skipped[0].startswith("bad.py: SyntaxError")
    assert got.found


def test_an_empty_folder_gives_nothing(tmp_path: Path) -> None:
    got = find(tmp_path)
    assert (got.found, got.settings, got.files_read) == ((), {}, 0)


def test_simple_yaml_reads_nested_scalars_and_passes_over_the_rest() -> None:
    text = "a:\n  b: 1e-4\n  c: 'x # y'\n  d: [1, 2]\nlist:\n  - one\ne: true # yes\nf: null\ng: |\n  text\n"
    assert discovery.simple_yaml(text) == {
        "a": {"b": 1e-4, "c": "x # y", "d": "[1, 2]"}, "list": {}, "e": True, "f": None, "g": {},
    }  # fmt: skip
