"""Whether a changed function is really wrong: it and the original are run on fresh inputs, and compared.

The inputs are not those on which rltriage judges: other numbers, other orders of the rows, and for texts a list of
their own. What is not told apart here is no mutant (an equivalent one), and what raises is none either: that is seen.
"""

from __future__ import annotations

import inspect
import math
import random
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import binding, loading, registry
from rltriage_probes.contract import TargetSpec
from rltriage_probes.model import CallFailed
from rltriage_probes.standins import StandInTokenizer

TEXT_ROLES = ("reward", "extract_answer", "decode")
VISIBLE = 1e-3
"""A relative difference that counts: far above float32 noise, below that of bfloat16."""
NO_GRADIENT = ("gae", "advantages", "importance_weights", "reward_shaping", "completion_mask")
"""Roles whose results training treats as constants."""
WRT = ("logprobs", "values", "logits", "chosen_logprobs", "rejected_logprobs", "chosen_rewards", "rejected_rewards")
GOLDS = ("42", "-7", "3.5", "1200")
ROUNDS = 4


def load_module(code: str) -> types.ModuleType:
    module = types.ModuleType("stranger")
    exec(compile(code, "stranger.py", "exec"), module.__dict__)
    return module


class Original:
    """A right function with what it gives on fresh inputs."""

    def __init__(self, role: str, intent: Mapping[str, Any], folder: str, file: str, name: str) -> None:
        self.role, self.intent, self.folder, self.name = role, dict(intent), folder, name
        self.inputs = [] if role in TEXT_ROLES else list(self._fresh())
        self.expected = self._results(file)

    def wrong(self, file: str) -> bool | None:
        """Whether the function of that name in `file` gives something else; None where it raises."""
        try:
            got = self._results(file)
        except (CallFailed, binding.BindingFailed, loading.LoadFailed, _Broken):
            return None
        return any(_differ(a, b) for a, b in zip(got, self.expected, strict=True))

    def _results(self, file: str) -> list[Any]:
        if self.role in TEXT_ROLES:
            from pathlib import Path

            function = getattr(load_module(Path(self.folder, file).read_text("utf-8")), self.name)
            return [_called(function, kwargs) for kwargs in _text_calls(function)]
        spec = TargetSpec(name=self.role, role=self.role, ref=f"{file}:{self.name}")
        loaded = loading.load(self.folder, spec)
        bound = binding.bind(loaded, registry.role(self.role), {}, {}, self.intent, self.role)
        out: list[Any] = []
        for inputs in self.inputs:
            torch.manual_seed(0)
            wrt = [w for w in WRT if w in bound.names and self.role not in NO_GRADIENT]
            got = bound.call({k: v for k, v in inputs.items() if k in bound.names}, wrt)
            out += [got.value, *(got.grads.get(w, torch.zeros(())) for w in WRT)]
        return out

    def _fresh(self) -> Iterator[dict[str, Any]]:
        example = registry.role(self.role).example(self.intent).inputs
        for seed in range(ROUNDS):
            g = torch.Generator().manual_seed(1000 + seed)
            yield {word: _resampled(word, value, g) for word, value in example.items()}


class _Broken(Exception):
    """The function raised."""


def _called(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        return function(**kwargs)
    except Exception as e:  # noqa: BLE001  a mutant may do anything
        raise _Broken(str(e)) from None


def _resampled(word: str, value: Any, g: torch.Generator) -> Any:
    """Other numbers of the same kind; ids, masks and settings stay."""
    if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() == 0 or "mask" in word:
        return value
    noise = torch.randn(value.shape, generator=g)
    if "logprob" in word and "ratio" not in word:
        return -(value.abs() * (0.6 + 0.8 * torch.rand(value.shape, generator=g))) - 0.01
    if word == "ratio":
        return value * (0.3 * noise).exp()
    return torch.where(value == 0, value, value + 0.4 * noise) if "reward" not in word else value + 0.4 * noise


def _differ(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return True
        if not a.numel():
            return False
        same = (a - b).abs() <= VISIBLE * (b.abs() + 0.1 * b.abs().nan_to_num(0, 0, 0).max())
        return not bool((same | (a.isnan() & b.isnan()) | (a == b)).all())
    if isinstance(a, float) and isinstance(b, float):
        return not (math.isclose(a, b, rel_tol=VISIBLE, abs_tol=1e-9) or (a != a and b != b))
    return bool(a != b)


# Texts


def texts(gold: str) -> list[str]:
    """Completions that people and models write about a question whose answer is `gold`."""
    other = {"42": "17", "-7": "7", "3.5": "35", "1200": "120"}[gold]
    grouped = f"{int(gold):,}" if gold.lstrip("-").isdigit() else gold
    made = []
    for x in (gold, other, grouped, f" {gold} ", f"{gold}.", f"about {gold}", ""):
        made += [
            f"So the result is \\boxed{{{x}}}.", f"We add them up.\n#### {x}", f"<think>hm</think><answer>{x}</answer>",
            f"<think>first I get {other}</think>The answer is {x}", f"The answer is {x}", f"{x}", f"**{x}**",
            f"<answer>{x}</answer> and then some more words follow", f"#### {x}\nDone.",
        ]  # fmt: skip
    made += [
        f"First \\boxed{{{other}}}, no: \\boxed{{{gold}}}", f"\\boxed{{{gold}}} is wrong, so \\boxed{{{other}}}",
        f"<answer>{other}</answer> wait <answer>{gold}</answer>", f"<answer>{gold}</answer><answer>{other}</answer>",
        f"#### {other}\n#### {gold}", f"<answer>\n{gold}\n</answer>", f"<answer>{gold}", f"{gold}</answer>", "\\boxed{",
        "\\boxed{\\frac{1}{2}} and \\boxed{" + gold + "}", "\\boxed{\\sqrt{" + gold + "}}", "<think>never closed",
        "a </think> b </think> c", "</think>", "   padded   ", "x", "", "####", "no number at all",
    ]  # fmt: skip
    return made


def _text_calls(function: Callable[..., Any]) -> list[dict[str, Any]]:
    """Keyword arguments for a text function, by the names of its parameters."""
    names = [n for n, p in inspect.signature(function).parameters.items() if p.kind is not p.VAR_KEYWORD]
    out: list[dict[str, Any]] = []
    if "completion_ids" in names:
        tokenizer = StandInTokenizer()
        rng = random.Random(5)
        ids = [[rng.randrange(5, 60) for _ in range(9)] for _ in range(6)]
        for row, at in zip(ids, (2, 4, 8, 0, None, 5), strict=True):
            if at is not None:
                row[at:] = [tokenizer.eos_token_id, *([tokenizer.pad_token_id] * (8 - at))]
        return [{"completion_ids": torch.tensor(ids), "tokenizer": tokenizer}]
    for gold in GOLDS:
        made = texts(gold)
        if "completions" in names:
            one = {
                "completions": made, "answers": [gold] * len(made), "answer": [gold] * len(made),
                "prompts": ["What is it?"] * len(made),
            }  # fmt: skip
            out.append({n: one[n] for n in names})
        else:
            out += [{n: gold if n == "ground_truth" else t for n in names} for t in made]
    return out
