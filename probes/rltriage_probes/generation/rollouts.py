"""What a generating function returned, as rows of token ids with what came beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltriage_probes.standins import StandInTokenizer
from rltriage_probes.texts import fields

_IDS = (
    "completion_ids", "response_ids", "generated_ids", "output_ids", "completion_tokens", "response_tokens",
    "generated_tokens", "sequences", "query_responses", "token_ids", "tokens", "ids", "samples", "actions", "input_ids",
)  # fmt: skip
_TEXTS = ("completions", "responses", "texts", "outputs", "generated_texts", "completion", "response", "text", "output")
_LOGPROBS = re.compile(r"log_?p", re.I)
_MASK = re.compile(r"mask", re.I)
_RANDOM_ID = 3


class Unreadable(Exception):
    """The result has no rows of tokens or texts in it."""


@dataclass
class Rollout:
    """Completions as they came back, one row a sample."""

    rows: list[list[int]]
    logprobs: list[list[float]] | None = None
    mask: list[list[int]] | None = None
    texts: bool = False
    """Whether the function returned texts; `rows` are then their tokens."""
    where: str = "the result"
    graded: bool = False
    """Whether returned log-probs hang on the model's graph."""
    prompts_too: bool = False
    """Whether the prompts came back in a part of their own."""


def read(result: Any, tokenizer: StandInTokenizer, prompts: Sequence[Sequence[int]] = ()) -> Rollout:
    """Raises `Unreadable`. `prompts` are ids that may come back beside those of the completions."""
    if result is None:
        raise Unreadable("it returns None")
    if isinstance(result, list) and result and all(_record(r) is not None for r in result) and not _is_chat(result):
        return _joined([read(r, tokenizer) for r in result])
    record = _record(result)
    if record is not None:
        return _from_record(record, tokenizer)
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return _from_tuple(result, tokenizer, prompts)
    rows = as_rows(result, tokenizer)
    if rows is None:
        raise Unreadable(f"a {type(result).__name__} is returned, no tokens and no texts")
    return Rollout(rows, texts=_textual(result))


def _is_chat(result: Sequence[Any]) -> bool:
    return all(isinstance(r, dict) and {"role", "content"} <= set(r) for r in result)


def _record(value: Any) -> dict[str, Any] | None:
    if isinstance(value, (str, Tensor, list, int, float)) or (
        isinstance(value, tuple) and not hasattr(value, "_fields")
    ):
        return None
    return fields(value)


def _from_record(record: Mapping[str, Any], tokenizer: StandInTokenizer) -> Rollout:
    for key in (*_IDS, *_TEXTS):
        rows = as_rows(record[key], tokenizer) if key in record else None
        if rows is not None:
            got = Rollout(rows, texts=_textual(record[key]), where=f'"{key}"')
            _beside(got, {k: v for k, v in record.items() if k != key})
            got.prompts_too = any(k.startswith(("prompt", "query")) for k in record)
            return got
    inner = next((v for v in record.values() if _record(v) is not None), None)
    if inner is None:
        raise Unreadable(f"its entries are {', '.join(map(str, list(record)[:8]))}, none of them tokens or texts")
    return read(inner, tokenizer)


def _echoes(rows: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]], pad: int) -> bool:
    """Whether these are the prompts themselves, padded or not."""
    bare = [[t for t in row if t != pad] for row in rows]
    return len(bare) == len(prompts) and all(a == [t for t in b if t != pad] for a, b in zip(bare, prompts))  # noqa: B905


def _from_tuple(parts: tuple[Any, ...], tokenizer: StandInTokenizer, prompts: Sequence[Sequence[int]] = ()) -> Rollout:
    readable = [(i, as_rows(p, tokenizer)) for i, p in enumerate(parts)]
    wanted = [(i, r) for i, r in readable if r is not None and not _is_mask(parts[i])]
    if not wanted:
        record = next((p for p in parts if _record(p) is not None), None)
        if record is None:
            raise Unreadable("none of the returned parts has tokens or texts")
        return read(record, tokenizer)
    wanted = [(i, r) for i, r in wanted if not _echoes(r, prompts, tokenizer.pad_token_id)] or wanted
    ids = [(i, r) for i, r in wanted if not _textual(parts[i])] or wanted
    at, rows = ids[0]
    got = Rollout(rows, texts=_textual(parts[at]), where=f"part {at + 1} of the result")
    for i, part in enumerate(parts):
        if i == at:
            continue
        if _floats(part) is not None and got.logprobs is None:
            _beside(got, {"logprobs": part})
        elif _is_mask(part) and got.mask is None:
            _beside(got, {"mask": part})
    return got


def _beside(got: Rollout, record: Mapping[str, Any]) -> None:
    for key, value in record.items():
        if _LOGPROBS.search(key) and got.logprobs is None:
            got.logprobs = _floats(value)
            got.graded = _requires_grad(value)
        elif _MASK.search(key) and got.mask is None and not key.startswith(("prompt", "attention")):
            rows = as_rows(value, None)
            got.mask = rows


def _requires_grad(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, (list, tuple)) and any(_requires_grad(v) for v in value)


def _joined(parts: Sequence[Rollout]) -> Rollout:
    out = Rollout([r for p in parts for r in p.rows], texts=parts[0].texts, where=f"{parts[0].where} of each record")
    if all(p.logprobs is not None for p in parts):
        out.logprobs = [r for p in parts for r in p.logprobs or ()]
    out.graded = any(p.graded for p in parts)
    return out


def joined(parts: Sequence[Rollout]) -> Rollout:
    """The rollouts of calls that were made one after another."""
    out = _joined(parts)
    out.where = parts[0].where
    return out


def _textual(value: Any) -> bool:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, (str, dict))


def as_rows(value: Any, tokenizer: StandInTokenizer | None) -> list[list[int]] | None:
    """Tokens or texts as lists of ids; None where the value holds neither."""
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.dim() == 0:
            return [[int(value)]] if value.dim() == 0 and not value.is_floating_point() else None
        if value.dim() > 2:
            value = value.reshape(-1, value.shape[-1])
        plain = value.tolist()
        return [plain] if value.dim() == 1 else plain
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return as_rows(torch.as_tensor(value.__array__()), tokenizer) if str(value.dtype) != "object" else None
    if isinstance(value, str):
        return [tokenizer.encode(value)] if tokenizer is not None else None
    if isinstance(value, dict) and "content" in value and tokenizer is not None:
        return [tokenizer.encode(str(value["content"]))]
    if isinstance(value, int) and not isinstance(value, bool):
        return [[value]]
    if isinstance(value, (list, tuple)) and value:
        return _rows_of_list(value, tokenizer)
    return None


def _rows_of_list(value: Sequence[Any], tokenizer: StandInTokenizer | None) -> list[list[int]] | None:
    if all(isinstance(v, (int, bool)) for v in value):
        return [[int(v) for v in value]]
    if all(isinstance(v, Tensor) and v.dim() == 0 and not v.is_floating_point() for v in value):
        return [[int(v) for v in value]]
    rows: list[list[int]] = []
    for v in value:
        if isinstance(v, (list, tuple)) and not v:
            rows.append([])
            continue
        inner = as_rows(v, tokenizer)
        if inner is None:
            return None
        rows += inner
    return rows


def _is_mask(value: Any) -> bool:
    rows = as_rows(value, None)
    flat = [x for r in rows for x in r] if rows else []
    return bool(flat) and set(flat) <= {0, 1}


def _floats(value: Any) -> list[list[float]] | None:
    """Rows of numbers; None where the value holds none."""
    if isinstance(value, Tensor):
        if not value.is_floating_point() or value.dim() == 0:
            return None
        plain = value.detach().double()
        plain = plain[..., 0] if plain.dim() == 3 and plain.shape[-1] == 1 else plain
        return [plain.tolist()] if plain.dim() == 1 else plain.tolist() if plain.dim() == 2 else None
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return _floats(torch.as_tensor(value.__array__()))
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(v, float) for v in value):
            return [list(value)]
        rows: list[list[float]] = []
        for v in value:
            if isinstance(v, (list, tuple)) and not v:
                rows.append([])
                continue
            inner = _floats(v)
            if inner is None:
                return None
            rows += inner
        return rows
    return None
