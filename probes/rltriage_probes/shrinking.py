"""Smaller inputs on which something still holds: fewer rows, columns and vocabulary entries, rounder numbers.

A case's inputs belong together (a mask has the log-probs' shape, lengths follow from the mask), so each step changes
all of them at once, along the axes that the vocabulary gives them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes.forms import MASKS
from rltriage_probes.vocabulary import WORDS

Inputs = Mapping[str, Any]
Several = tuple[Inputs, ...]
"""Inputs of one call, or of several that are made smaller in the same way."""
Holds = Callable[[Several], bool]

SECONDS = 0.1
"""Processor time for one finding: a reproduction that could be smaller is better than a slow check."""
TRIALS = 150
SPECIAL = frozenset(("tokenizer", "eos_token_id", "pad_token_id", "prompt_ids"))
"""Inputs that give some ids a meaning, so that they can't be renumbered."""
_ROWS = re.compile(r"list of N\b|N lists\b|list of B\b")
_LETTERS = {"N": "B", "S": "B"}


class Budget:
    """How much may still be tried."""

    def __init__(self, seconds: float = SECONDS, trials: int = TRIALS) -> None:
        self._until = time.process_time() + seconds
        self._left = trials

    def spend(self) -> bool:
        """Whether one more trial may be made."""
        self._left -= 1
        return self._left >= 0 and time.process_time() < self._until


def shrunk(inputs: Several, holds: Holds, budget: Budget) -> Several:
    """The smallest inputs that were reached from these by steps after each of which `holds` is true."""
    now = inputs
    for moves in (_one_row, _first_columns, _members, _all_rounder, _vocabulary, _rows, _columns, _rounder):
        now = _pushed(now, moves, holds, budget)
    return now


def _pushed(
    inputs: Several, moves: Callable[[Inputs], Iterable[Inputs | None]], holds: Holds, budget: Budget
) -> Several:
    """As far as moves of one kind lead, the boldest first."""
    moved = True
    while moved:
        moved = False
        for candidates in zip(*map(moves, inputs), strict=False):
            smaller = tuple(c for c in candidates if c is not None)
            if len(smaller) < len(inputs):
                continue
            if not budget.spend():
                return inputs
            if holds(smaller):
                inputs, moved = smaller, True
                break
    return inputs


# What the inputs have in common


def axes_of(word: str, value: Any) -> tuple[str, ...]:
    """Letters of the axes of a tensor: B rows, T positions, V vocabulary; empty where they are not known."""
    known = WORDS.get(word)
    if known is None or not isinstance(value, Tensor):
        return ()
    said = re.match(r"\[([^\]]*)\]", known.shape)
    letters = [x.strip() for x in said[1].split(",")] if said else []
    found = tuple(_LETTERS.get(x, x) for x in letters[: value.dim()])
    if word == "advantages" and value.dim() == 2:
        found = ("B", "T")
    return found if len(found) == value.dim() else ()


def row_count(inputs: Inputs) -> int:
    sizes = [v.shape[0] for k, v in inputs.items() if axes_of(k, v)[:1] == ("B",)]
    sizes += [len(v) for k, v in inputs.items() if _is_list(k, v)]
    return max(set(sizes), key=sizes.count) if sizes else 0


def widths(inputs: Inputs) -> set[int]:
    return {v.shape[i] for k, v in inputs.items() for i, axis in enumerate(axes_of(k, v)) if axis == "T"}


def _is_list(word: str, value: Any) -> bool:
    return word in WORDS and isinstance(value, list) and _ROWS.search(WORDS[word].shape) is not None


def _groups(inputs: Inputs) -> list[list[int]] | None:
    """Rows of each group, where the case has groups."""
    ids = inputs.get("group_ids")
    n = row_count(inputs)
    if isinstance(ids, Tensor) and len(ids) == n:
        found: dict[int, list[int]] = {}
        for i, g in enumerate(ids.tolist()):
            found.setdefault(g, []).append(i)
        return list(found.values())
    size = inputs.get("group_size")
    if isinstance(size, int) and "rewards" in inputs and size > 0 and n % size == 0:
        return [list(range(at, at + size)) for at in range(0, n, size)]
    return None


# Steps


def _units(inputs: Inputs) -> list[list[int]]:
    """What rows come and go together: groups where there are groups."""
    return _groups(inputs) or [[i] for i in range(row_count(inputs))]


def _one_row(inputs: Inputs) -> Iterator[Inputs]:
    units = _units(inputs)
    if len(units) > 1:
        yield from (with_rows(inputs, unit) for unit in units)


def _rows(inputs: Inputs) -> Iterator[Inputs]:
    """Without some of the rows."""
    units = _units(inputs)
    if len(units) > 3:
        yield from (with_rows(inputs, [*units[0], *unit]) for unit in units[1:])
        half = len(units) // 2
        yield with_rows(inputs, [i for u in units[:half] for i in u])
        yield with_rows(inputs, [i for u in units[half:] for i in u])
    if len(units) > 2:
        for left_out in reversed(range(len(units))):
            yield with_rows(inputs, [i for at, u in enumerate(units) if at != left_out for i in u])


def _members(inputs: Inputs) -> Iterator[Inputs]:
    """With one sample fewer in every group, of those that keep two."""
    groups = _groups(inputs)
    if groups is None:
        return
    largest = max(map(len, groups))
    if largest <= 2:
        return
    for drop in range(largest - 1, -1, -1):
        kept = [[i for at, i in enumerate(g) if at != drop or len(g) <= 2] for g in groups]
        fewer = with_rows(inputs, sorted(i for g in kept for i in g))
        same = {len(g) for g in kept}
        if isinstance(inputs.get("group_size"), int) and len(same) == 1:
            fewer = {**fewer, "group_size": same.pop()}
        yield fewer


def _first_columns(inputs: Inputs) -> Iterator[Inputs | None]:
    width = _width(inputs)
    yield from (with_columns(inputs, range(n), width) for n in (1, 2, 3, width // 2) if 0 < n < width)


def _columns(inputs: Inputs) -> Iterator[Inputs | None]:
    """Without one of the positions; None where a row would have none left."""
    width = _width(inputs)
    if width > 1:
        for out in reversed(range(width)):
            yield with_columns(inputs, [j for j in range(width) if j != out], width)


def _width(inputs: Inputs) -> int:
    """Positions that every input has; 0 where inputs are of different lengths."""
    found = widths(inputs)
    return min(found) if found and max(found) - min(found) <= 1 else 0


def _vocabulary(inputs: Inputs) -> Iterator[Inputs]:
    """With the vocabulary entries that are used as tokens and one or two more; the rest of the ids closes up."""
    logits, ids = inputs.get("logits"), inputs.get("token_ids")
    if not isinstance(logits, Tensor) or not isinstance(ids, Tensor) or axes_of("logits", logits)[-1:] != ("V",):
        return
    if SPECIAL & set(inputs):
        return
    size = int(logits.shape[-1])
    used = sorted({int(i) for i in ids.flatten().tolist() if 0 <= i < size})
    for more in (1, 2):
        spare = [i for i in range(size) if i not in used][:more]
        kept = sorted([*used, *spare])
        if len(kept) < size:
            yield _renumbered(inputs, kept, size)


def _renumbered(inputs: Inputs, kept: Sequence[int], size: int) -> Inputs:
    table = torch.zeros(size, dtype=torch.long)
    table[torch.tensor(kept)] = torch.arange(len(kept))
    out = dict(inputs)
    for word, value in inputs.items():
        axes = axes_of(word, value)
        if "V" in axes and value.shape[axes.index("V")] == size:
            out[word] = value.index_select(axes.index("V"), torch.tensor(kept))
        elif word in ("token_ids", "labels") and isinstance(value, Tensor):
            out[word] = table[value.clamp(0, size - 1)].where(value >= 0, value)
    return out


def _floats(inputs: Inputs) -> list[str]:
    return [k for k, v in inputs.items() if isinstance(v, Tensor) and v.is_floating_point() and k not in MASKS]


def _all_rounder(inputs: Inputs) -> Iterator[Inputs]:
    words = _floats(inputs)
    for digits in (0, 1, 2):
        if any(_is_rounder(inputs[w], digits) for w in words):
            yield _agreeing({**inputs, **{w: inputs[w].round(decimals=digits) for w in words}}, inputs)


def _rounder(inputs: Inputs) -> Iterator[Inputs]:
    """With rounder numbers in one of the words."""
    for word in _floats(inputs):
        for digits in (0, 1, 2):
            if _is_rounder(inputs[word], digits):
                yield _agreeing({**inputs, word: inputs[word].round(decimals=digits)}, inputs)


def _is_rounder(value: Tensor, digits: int) -> bool:
    return not bool((value.round(decimals=digits) == value).all())


def _agreeing(rounded: dict[str, Any], before: Inputs) -> Inputs:
    """Ratios that follow from log-probs, worked out anew."""
    new, old = (rounded.get(k) for k in ("logprobs", "old_logprobs"))
    if not isinstance(new, Tensor) or not isinstance(old, Tensor) or new.shape != old.shape:
        return rounded
    delta = before["logprobs"] - before["old_logprobs"]
    derived = {"log_ratio": new - old, "negative_log_ratio": old - new, "ratio": (new - old).exp()}
    follows = {"log_ratio": delta, "negative_log_ratio": -delta, "ratio": delta.exp()}
    for word, value in derived.items():
        have = before.get(word)
        if isinstance(have, Tensor) and have.shape == delta.shape and torch.allclose(have, follows[word], atol=1e-5):
            rounded[word] = value
    return rounded


# Taking rows and columns out


def with_rows(inputs: Inputs, kept: Sequence[int]) -> Inputs:
    """The rows in `kept`, of every input that has rows."""
    n = row_count(inputs)
    index = torch.tensor(list(kept), dtype=torch.long)
    out = dict(inputs)
    for word, value in inputs.items():
        if axes_of(word, value)[:1] == ("B",) and value.shape[0] == n:
            out[word] = value[index]
        elif _is_list(word, value) and len(value) == n:
            out[word] = [value[i] for i in kept]
        elif word == "row_count" and value == n:
            out[word] = type(value)(len(kept))
    return _with_offsets(out)


def with_columns(inputs: Inputs, kept: Sequence[int], width: int) -> Inputs | None:
    """The positions in `kept`, of every input that has positions; None where a row would have none left."""
    out = dict(inputs)
    for word, value in inputs.items():
        for i, axis in enumerate(axes_of(word, value)):
            if axis == "T":
                index = [*kept, *range(width, value.shape[i])]
                out[word] = out[word].index_select(i, torch.tensor(index))
    lengths = inputs.get("lengths")
    if isinstance(lengths, Tensor):
        fewer = [sum(j < n for j in kept) + max(0, int(n) - width) for n in lengths.tolist()]
        out["lengths"] = torch.tensor(fewer, dtype=lengths.dtype)
        if min(fewer, default=1) < 1:
            return None
    prompt = inputs.get("prompt_length")
    if isinstance(prompt, int):
        out["prompt_length"] = sum(j < prompt for j in kept)
        if out["prompt_length"] == 0:
            return None
    behind = inputs.get("completion_length")
    if isinstance(behind, int):
        out["completion_length"] = sum(j >= width - behind for j in kept)
        if out["completion_length"] == 0:
            return None
    return None if any(_emptied(inputs, out, m) for m in MASKS) else _with_offsets(out)


def _emptied(before: Inputs, after: Inputs, mask: str) -> bool:
    """Whether a row has lost the last position that a mask keeps."""
    old, new = before.get(mask), after.get(mask)
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or old.dim() != 2:
        return False
    return bool(((old != 0).any(1) & ~(new != 0).any(1)).any())


def _with_offsets(out: dict[str, Any]) -> dict[str, Any]:
    offsets, lengths = out.get("cu_seqlens"), out.get("lengths")
    if isinstance(offsets, Tensor) and isinstance(lengths, Tensor):
        out["cu_seqlens"] = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]).to(offsets.dtype)
    return out
