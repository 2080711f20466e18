"""Which completions a function returns when nothing is left to chance: rows that are known, against hypotheses.

With a model whose most likely token has all the probability, every right function returns the same tokens. How the
rows look (prompt in front, end token kept, order of the samples) is convention; where they end and what the model
saw is not. Each hypothesis predicts all rows; the first that fits, fewest pitfalls first, says what the function does.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.generation import sampling_pitfalls as pitfalls
from rltriage_probes.generation.rollouts import Rollout
from rltriage_probes.generation.sampling_target import Scene, Stage
from rltriage_probes.generation.tiny_lm import PromptTokenizer, TableModel
from rltriage_probes.model import Pitfall

AXES: dict[str, tuple[str, ...]] = {
    "echo": ("none", "prompt"),
    "eos": ("kept", "dropped"),
    "order": ("adjacent", "tiled"),
    "context": ("masked", "padding", "padding later", "behind", "behind, unmasked"),
    "stop": ("ends", "runs on"),
    "budget": ("new", "one less", "one more", "total", "total of real tokens"),
    "edge": ("exact", "first lost", "prompt's last kept", "real length"),
}
NAMED: dict[tuple[str, str], Pitfall] = {
    ("context", "padding"): pitfalls.PADDING,
    ("context", "padding later"): pitfalls.PADDING,
    ("context", "behind"): pitfalls.PADDING,
    ("context", "behind, unmasked"): pitfalls.PADDING,
    ("stop", "runs on"): pitfalls.NO_STOP,
    ("budget", "one less"): pitfalls.BUDGET_SHIFT,
    ("budget", "one more"): pitfalls.BUDGET_SHIFT,
    ("budget", "total"): pitfalls.BUDGET_TOTAL,
    ("budget", "total of real tokens"): pitfalls.BUDGET_TOTAL,
    ("edge", "first lost"): pitfalls.EDGE,
    ("edge", "prompt's last kept"): pitfalls.EDGE,
    ("edge", "real length"): pitfalls.EDGE,
}
SHORT = 12
"""New tokens of the greedy scene: more than any prompt has, so that counting the prompt shows."""


@dataclass(frozen=True)
class Expected:
    """What is right under every hypothesis: the prompts and the model."""

    stage: Stage
    budget: int
    counts_total: bool = False
    """The function is given the total length, and may count either the padded or the real prompt."""
    knows_end: bool = True
    memory: dict[Any, list[int]] = field(default_factory=dict[Any, list[int]])

    def rows(self, h: Mapping[str, str]) -> list[list[int]]:
        stage = self.stage
        n = stage.scene.n
        single = [self._row(h, i) for i in range(len(stage.ids))]
        if h["order"] == "tiled":
            return single * n
        return [r for r in single for _ in range(n)]

    def _row(self, h: Mapping[str, str], i: int) -> list[int]:
        stage = self.stage
        real, padded = stage.ids[i], stage.padded[i]
        filler = padded[: len(padded) - len(real)]
        context = {"padding": padded, "behind, unmasked": [*real, *filler]}.get(h["context"], real)
        ends = (stage.tokenizer.eos_token_id,) if h["stop"] == "ends" else ()
        behind = h["context"] == "behind" and bool(filler)
        budget = max(0, self._budget(h, i))
        made = self._greedy(context, budget, ends, behind=behind)
        if h["context"] == "padding later" and made and made[0] not in ends:
            made = [made[0], *self._greedy([*padded, made[0]], budget - 1, ends)]
        if h["eos"] == "dropped" and ends:
            made = made[:-1] if made[-1:] == [stage.tokenizer.eos_token_id] else made
        if h["edge"] == "first lost":
            made = made[1:]
        elif h["edge"] == "prompt's last kept":
            made = [*real[-1:], *made]
        elif h["edge"] == "real length":
            made = [*padded, *made][len(real) :]
        return [*real, *made] if h["echo"] == "prompt" else made

    def _budget(self, h: Mapping[str, str], i: int) -> int:
        stage = self.stage
        return {
            "new": self.budget, "one less": self.budget - 1, "one more": self.budget + 1,
            "total": self.budget - stage.width, "total of real tokens": self.budget - len(stage.ids[i]),
        }[h["budget"]]  # fmt: skip

    def _greedy(self, context: Sequence[int], steps: int, ends: tuple[int, ...], *, behind: bool = False) -> list[int]:
        key = (tuple(context), steps, ends, behind)
        if key not in self.memory:
            self.memory[key] = self.stage.model.greedy(context, steps, ends, from_padding=behind)
        return self.memory[key]


def canonical(row: Sequence[int], tokenizer: PromptTokenizer, texts: bool) -> list[int]:
    """A row without its filling: padding at both ends, repeated end tokens; texts without any special token."""
    pad, eos = tokenizer.pad_token_id, tokenizer.eos_token_id
    if texts:
        return [t for t in row if t not in (pad, eos, tokenizer.bos_token_id)]
    out = list(row)
    while out and (out[-1] == pad or out[-1] < 0):
        out.pop()
    while len(out) > 1 and out[-1] == eos and out[-2] == eos:
        out.pop()
    while out and out[0] == pad:
        out.pop(0)
    return out


def solve(got: Rollout, expected: Expected, axes: Mapping[str, Sequence[str]]) -> dict[str, str] | None:
    """The first hypothesis that predicts all rows, fewest pitfalls first; None where none does."""
    tokenizer = expected.stage.tokenizer
    seen = [canonical(r, tokenizer, got.texts) for r in got.rows]
    for h in _ordered(axes):
        rows = expected.rows(h)
        if len(rows) == len(seen) and [canonical(r, tokenizer, got.texts) for r in rows] == seen:
            return h
    return None


def permuted(got: Rollout, expected: Expected, axes: Mapping[str, Sequence[str]]) -> bool:
    """Whether the rows are right and only their order is not."""
    tokenizer = expected.stage.tokenizer
    seen = sorted(canonical(r, tokenizer, got.texts) for r in got.rows)
    right = {k: v[:1] if any((k, o) in NAMED for o in v) else v for k, v in axes.items()}
    return any(sorted(canonical(r, tokenizer, got.texts) for r in expected.rows(h)) == seen for h in _ordered(right))


def bad(h: Mapping[str, str]) -> list[Pitfall]:
    """The pitfalls of a hypothesis."""
    return [NAMED[k, v] for k, v in h.items() if (k, v) in NAMED]


def _ordered(axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    every = [dict(zip(axes, options, strict=True)) for options in itertools.product(*axes.values())]
    every.sort(key=lambda h: len(bad(h)))
    yield from every


# Prompts that tell the hypotheses apart


@functools.lru_cache(maxsize=8)
def prompts(style: str, *, ragged: bool, count: int = 3) -> tuple[str, ...]:
    """Prompts with different greedy completions: one that ends early, one that runs into the limit.

    Where they are of unequal length, completions behind unmasked padding end early as well, so that this and running
    on behind the end can be told apart when both happen.
    """
    first: tuple[str, ...] = ()
    for start in range(0, 4000, 100):
        chosen = _chosen(style, start, ragged=ragged, count=count)
        first = first or chosen
        if len(chosen) == count and (not ragged or _separates(style, chosen)):
            return chosen
    return first


def _separates(style: str, chosen: tuple[str, ...]) -> bool:
    expected = Expected(Stage(Scene(chosen, max_new_tokens=SHORT), style), SHORT)
    plain = {k: v[0] for k, v in AXES.items()}
    return all(
        expected.rows({**plain, "context": c}) != expected.rows({**plain, "context": c, "stop": "runs on"})
        for c in AXES["context"]
    )


def _chosen(style: str, start: int, *, ragged: bool, count: int) -> tuple[str, ...]:
    tokenizer = PromptTokenizer()
    model = TableModel(tokenizer, sharp=True, style=style)
    eos = tokenizer.eos_token_id
    chosen: list[str] = []
    wanted = [lambda n: n == SHORT, lambda n: 2 <= n <= 5, lambda n: 5 < n < SHORT - 1, lambda n: n > 2]
    firsts: set[int] = set()
    for i in range(start, start + 400):
        text = _text(i, len(chosen), ragged=ragged)
        made = model.greedy(tokenizer.encode(text), SHORT, (eos,))
        ended = made[-1] == eos
        fits = wanted[min(len(chosen), 3)](len(made)) and ended == (len(made) < SHORT)
        if fits and made[0] not in firsts and text not in chosen:
            chosen.append(text)
            firsts.add(made[0])
        if len(chosen) == count:
            break
    return tuple(chosen)


def _text(i: int, at: int, *, ragged: bool) -> str:
    letters = "klmnopqrstuvwxyz"
    i = i * 2_654_435_761 % 65_521
    length = (7, 3, 5, 6)[at % 4] if ragged else 5
    return "".join(letters[(i * 7 + j * (3 + i % 5)) % 16] for j in range(length))


def scene(style: str, words: frozenset[str], *, ragged: bool) -> Scene:
    return Scene(prompts(style, ragged=ragged), n=2 if "n" in words else 1, max_new_tokens=SHORT)
