"""What a function that builds training samples returned, whatever its container: ids, and which of them are trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes import texts

IGNORE = -100
_IDS = ("input_ids", "ids", "tokens", "token_ids", "inputs", "x", "sequences", "sequence", "input", "full_ids")
_LABELS = ("labels", "label", "label_ids", "targets", "target", "y", "target_ids")
_MASKS = (
    "loss_mask", "loss_masks", "labels_mask", "label_mask", "completion_mask", "assistant_mask", "assistant_masks",
    "response_mask", "action_mask", "train_mask", "target_mask", "mask", "masks", "trainable", "assistant_tokens_mask",
    "weights", "weight", "loss_weights", "token_weights", "target_weights", "label_weights",
)  # fmt: skip
_ATTENTION = ("attention_mask", "attn_mask", "attention_masks")
_POSITIONS = ("position_ids", "positions", "pos_ids")
_OFFSETS = ("cu_seqlens", "cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens", "seq_offsets")
_SEGMENTS = ("seq_idx", "segment_ids", "sequence_ids", "document_ids", "doc_ids", "seq_ids")


class Unreadable(Exception):
    """The result holds no labels or masks that could be read."""


@dataclass(kw_only=True)
class Row:
    """One sequence of the result."""

    ids: list[int]
    trained: list[bool]
    """Aligned with `ids`."""
    labels: list[int] | None = None
    attention: list[int] | None = None
    positions: list[int] | None = None
    segments: list[int] | None = None


@dataclass(kw_only=True)
class Batch:
    """All sequences of one result."""

    rows: list[Row]
    kind: str
    """`labels` or `mask`."""
    label_name: str = ""
    offsets: list[int] | None = None
    shifted: bool = False
    """Whether labels stand one place before the token that they name."""
    dense_attention: bool = False
    """Whether attention comes as a matrix of its own, which can keep packed samples apart."""
    problems: list[str] = field(default_factory=list[str])
    """Lengths that don't fit together."""


def plain(value: Any) -> Any:
    """Tensors and arrays as nested lists of Python numbers."""
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def depth(value: Any) -> int:
    """Levels of nesting of a list of numbers; -1 for anything else."""
    if isinstance(value, (bool, int, float)):
        return 0
    if isinstance(value, list):
        inner = {depth(v) for v in value}  # pyright: ignore[reportUnknownVariableType]
        return -1 if -1 in inner or len(inner) > 1 else 1 + (inner.pop() if inner else 0)
    return -1


def read(result: Any, given_ids: Sequence[Sequence[int]] | None, source: str = "") -> Batch:
    """The batch in a result. Raises `Unreadable`.

    `given_ids` are the unpadded ids that the function was given, for results without ids of their own.
    """
    entries = _entries(result, source)
    ids = _matrix(entries.get("ids"))
    kind = "labels" if "labels" in entries else "mask"
    marks = _matrix(entries.get(kind))
    if marks is None:
        raise Unreadable("the result holds neither labels nor a mask of the trained tokens")
    if ids is None and "ids" in entries:
        raise Unreadable("what the result holds as ids are no lists of numbers")
    if ids is None:
        ids = _given(given_ids, marks)
    if len(ids) != len(marks):
        raise Unreadable(f"{len(ids)} rows of ids and {len(marks)} of {kind}")
    batch = Batch(rows=[], kind=kind, label_name=str(entries.get("label name", "")))
    raw_attention = plain(entries.get("attention"))
    batch.dense_attention = depth(raw_attention) > 2
    attention, positions = _like(raw_attention, ids), _like(entries.get("positions"), ids)
    segments = _like(entries.get("segments"), ids)
    offsets = plain(entries.get("offsets"))
    if isinstance(offsets, list) and depth(offsets) == 1:
        batch.offsets = [int(x) for x in offsets]
    marks = _weighted(marks, _matrix(entries.get("weights"))) if kind == "labels" else marks
    shifted = kind == "labels" and _one_early(ids, marks)
    batch.shifted = shifted
    for i, (row, mark) in enumerate(zip(ids, marks, strict=True)):
        if len(row) != len(mark):
            batch.problems.append(f"{len(mark)} {kind} for {len(row)} ids")
        trained = [x not in (IGNORE, None) if kind == "labels" else bool(x) for x in mark]
        labels = list(mark) if kind == "labels" else None
        if shifted:
            trained, labels = [False, *trained], [IGNORE, *mark]
        n = len(row)
        batch.rows.append(
            Row(
                ids=list(row), trained=(trained + [False] * n)[:n],
                labels=None if labels is None else (labels + [IGNORE] * n)[:n],
                attention=None if attention is None else attention[i],
                positions=None if positions is None else positions[i],
                segments=None if segments is None else segments[i],
            )
        )  # fmt: skip
    if shifted:
        _close(batch, marks)
    return batch


def _close(batch: Batch, marks: Sequence[Sequence[int]]) -> None:
    """Add the last label of x[:-1], y[1:], which names a token that is not among the ids."""
    for row, mark in zip(batch.rows, marks, strict=True):
        if not mark or mark[-1] == IGNORE or len(mark) != len(row.ids):
            continue
        row.ids.append(int(mark[-1]))
        row.trained.append(True)
        for beside in (row.attention, row.segments):
            if beside:
                beside.append(beside[-1])
        if row.positions:
            row.positions.append(row.positions[-1] + 1)


def _weighted(labels: list[list[int]], weights: list[list[int]] | None) -> list[list[int]]:
    """Labels without an ignore index and the weights that take its place, as labels with it."""
    fits = weights is not None and [len(w) for w in weights] == [len(x) for x in labels]
    if weights is None or not fits or any(x == IGNORE for row in labels for x in row):
        return labels
    return [[x if w else IGNORE for x, w in zip(r, ws, strict=True)] for r, ws in zip(labels, weights, strict=True)]


def read_all(results: Sequence[Any], given: Sequence[Sequence[int]] | None, source: str = "") -> Batch:
    """Results of one sample each as one batch."""
    parts = [read(r, None if given is None else [given[i]], source) for i, r in enumerate(results)]
    whole = Batch(rows=[row for p in parts for row in p.rows], kind=parts[0].kind, label_name=parts[0].label_name)
    whole.shifted = any(p.shifted for p in parts)
    whole.problems = [x for p in parts for x in p.problems]
    return whole


def _entries(result: Any, source: str) -> dict[str, Any]:
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return _of_tuple(result, source)
    fields = texts.fields(result)
    if fields is None and isinstance(result, list) and result and texts.fields(result[0]) is not None:
        rows = [texts.fields(r) or {} for r in result]  # pyright: ignore[reportUnknownVariableType]
        fields = {k: [r.get(k) for r in rows] for k in rows[0]}
    if fields is None and isinstance(result, list) and result and isinstance(result[0], tuple):
        columns = list(zip(*result, strict=False))  # pyright: ignore[reportUnknownVariableType]
        return _of_tuple(tuple(list(c) for c in columns), source)
    if fields is not None:
        return _of_fields(fields)
    return _by_value({"0": result})


def _of_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    tables = (
        ("ids", _IDS), ("labels", _LABELS), ("mask", _MASKS), ("attention", _ATTENTION), ("positions", _POSITIONS),
        ("offsets", _OFFSETS), ("segments", _SEGMENTS),
    )  # fmt: skip
    for kind, names in tables:
        name = next((n for n in names if n in fields and fields[n] is not None), None)
        if name is not None:
            out[kind] = fields[name]
            if kind == "labels":
                out["label name"] = name
            # a plain `mask` beside labels may be attention
            if kind == "mask" and "labels" in out and name not in ("mask", "masks"):
                out["weights"] = fields[name]
    return out


def _of_tuple(result: tuple[Any, ...], source: str) -> dict[str, Any]:
    names = _returned(source, len(result))
    named = _of_fields(dict(zip(names, result, strict=False))) if names else {}
    if "labels" in named or "mask" in named:
        by_value = _by_value({str(i): part for i, part in enumerate(result)})
        return {k: v for k, v in by_value.items() if k in ("ids", "offsets")} | named
    return _by_value({str(i): part for i, part in enumerate(result)})


def _returned(source: str, count: int) -> tuple[str, ...]:
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return ()
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == count:
            names = tuple(_name(e) for e in node.value.elts)
            # slices of the same ids have no names of their own; the docstring may tell them apart
            return names if all(names) and len(set(names)) == count else _documented(tree, count) or names
    return _documented(tree, count)


def _documented(tree: ast.Module, count: int) -> tuple[str, ...]:
    """Names of a tuple's parts as the docstring lists them, `(inputs, targets, weights)`."""
    doc = next((ast.get_docstring(n) for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))), None) or ""
    lists = (tuple(re.split(r"\s*,\s*", found[1].strip())) for found in re.finditer(r"\(([\w\s]+(?:,[\w\s]+)+)\)", doc))
    known = {*_IDS, *_LABELS, *_MASKS, *_ATTENTION}
    return next((names for names in lists if len(names) == count and set(names) <= known), ())


def _name(node: ast.expr) -> str:
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return node.id if isinstance(node, ast.Name) else ""


def _by_value(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Which part is what, judged by its numbers: labels hold the ignore index, masks nothing but 0 and 1."""
    out: dict[str, Any] = {}
    read = [plain(part) for part in parts.values()]
    total = max((len(_flat(v)) for v in read if depth(v) > 0), default=0)
    for value in read:
        if depth(value) < 1:
            continue
        numbers = set(_flat(value))
        if depth(value) == 1 and len(value) > 1 and value[0] == 0 and value[-1] == total and value == sorted(numbers):
            out["offsets"] = value
            continue
        if IGNORE in numbers and "labels" not in out:
            out["labels"] = value
        elif numbers <= {0, 1} and numbers:
            out["attention" if "labels" in out or "mask" in out else "mask"] = value
        elif "ids" not in out:
            out["ids"] = value
        elif "labels" not in out:
            out["labels"] = value
    if "labels" in out and "mask" in out:
        out["attention"] = out.pop("mask")
    if "attention" in out and depth(out["attention"]) == 1 and 0 in out["attention"]:
        out["weights"] = out.pop("attention")  # a single sample has no padding that attention could leave out
    if set(out) == {"ids"}:
        out = {"labels": out["ids"]}
    return out


def _flat(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    return [x for v in value for x in _flat(v)]  # pyright: ignore[reportUnknownVariableType]


def _matrix(value: Any) -> list[list[int]] | None:
    value = plain(value)
    if value is None:
        return None
    while depth(value) == 3 and len(value) == 1:
        value = value[0]
    if depth(value) == 3 and all(len(v) == 1 for v in value):
        value = [v[0] for v in value]
    if depth(value) == 1:
        value = [value]
    if depth(value) != 2:
        return None
    return [[int(x) for x in row] for row in value]


def _like(value: Any, ids: Sequence[Sequence[int]]) -> list[list[int]] | None:
    got = _matrix(value)
    return got if got is not None and [len(r) for r in got] == [len(r) for r in ids] else None


def _given(given: Sequence[Sequence[int]] | None, marks: Sequence[Sequence[int]]) -> list[list[int]]:
    """The ids that the function was given, in the shape of the labels."""
    if given is None:
        raise Unreadable("the result holds labels but no ids")
    if len(given) == len(marks):
        return [[*row, *[-1] * (len(mark) - len(row))] for row, mark in zip(given, marks, strict=True)]
    if len(marks) == 1 and len(marks[0]) == sum(map(len, given)):
        return [[i for row in given for i in row]]
    raise Unreadable(f"{len(marks)} rows of labels for {len(given)} samples")


def _one_early(ids: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]) -> bool:
    """Whether labels name the token behind their place, all of them."""
    at = early = total = 0
    for row, mark in zip(ids, labels, strict=True):
        for i, label in enumerate(mark):
            if label == IGNORE:
                continue
            total += 1
            at += i < len(row) and row[i] == label
            early += (i + 1 < len(row) and row[i + 1] == label) or i + 1 == len(row)
    return total > 0 and early >= 0.9 * total and at < 0.7 * total
