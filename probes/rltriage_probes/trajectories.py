"""How functions over trajectories (GAE, reward shaping, value losses) get their inputs, and what GAE gives back.

Besides [B, T] there are [T, B] (CleanRL, SB3), one trajectory a call, and values with one column more than there are
rewards. A GAE function gives advantages, returns, or both in either order.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, invoke
from rltriage_probes.forms import MASKS, ROW_WORDS, SAMPLE_WORDS, Call, Form, Hints, Layout, Mode
from rltriage_probes.invoke import WrongShape
from rltriage_probes.selfs import Box

if TYPE_CHECKING:
    from torch import Tensor

    from rltriage_probes.binder import Binder
    from rltriage_probes.filling import WordSource

BY_NAME = "by name"
"""In the report where names, not the order, say which result is which."""
_COLUMNS = ("last_value", "last_done", "last_index")
"""Words with one number a sequence that a function may want as a number, where it gets one row."""
_FLAGS = ("dones", "alive", "last_done")


# Forms


def forms(word: str, hints: Hints, layout: Layout) -> tuple[Form, ...] | None:
    """Forms that only these roles have; None where the usual ones do."""
    if layout in ("time first", "arrays time first", "alone", "lists alone", "arrays alone"):
        return _turned(word, hints, layout) if word in SAMPLE_WORDS or word == "rewards" else None
    if layout not in ("padded", "arrays"):
        return None
    made = _padded(word, hints)
    if made is not None and layout == "arrays":
        return tuple(_converted(f, _numpy) for f in made)
    return made


def _padded(word: str, hints: Hints) -> tuple[Form, ...] | None:
    shape = hints.shape()
    if word in _FLAGS:
        return _flags(word, hints)
    if word in ("last_value", "last_index"):
        flat, column = _form(word, "[B]", _same), _form(word, "[B, 1]", lambda v, c: v[:, None])
        return (column, flat) if shape is not None and len(shape) == 2 else (flat, column)
    if word == "values" and hints.role == "gae":
        plain, longer = _form(word, "[B, T]", _same), _form(word, "[B, T + 1]", _with_last)
        return (longer, plain) if shape is not None and "+" in shape[-1] else (plain, longer)
    if word == "values" and hints.role == "value_loss":
        return _sliced(hints)
    if word == "token_rewards":
        return _token_rewards(hints)
    if word == "rewards" and hints.role == "reward_shaping":
        return _scores(hints)
    if word == "reward_clip":
        return _bounds(hints)
    if word == "lengths" and hints.role == "reward_shaping":
        return _counts(hints)
    return None


def _counts(hints: Hints) -> tuple[Form, ...]:
    tensor = _form("lengths", "[B] long", lambda v, c: v.long())
    listed = _form("lengths", "list of int", lambda v, c: [int(n) for n in v])
    one = _form("lengths", "one int", lambda v, c: int(v.reshape(-1)[0]), "per row")
    if re.fullmatch(r"\s*(int|float)\s*", hints.annotation):
        return (one,)
    if hints.says(r"list|sequence|iterable") or "iterated" in hints.signs:
        return (listed, tensor)
    singular = not hints.name.lower().rstrip("_").endswith(("s", "lens")) and hints.annotation == ""
    return (tensor, one, listed) if singular else (tensor, listed)


def _form(word: str, name: str, apply: Callable[[Any, Call], Any], mode: Mode = "batch") -> Form:
    return Form(name=name, word=word, apply=apply, mode=mode)


def _same(value: Any, call: Call) -> Any:
    return value


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _converted(form: Form, convert: Callable[[Any], Any]) -> Form:
    return Form(name=f"numpy {form.name}", word=form.word, apply=lambda v, c: convert(form.apply(v, c)), mode=form.mode)


def _flags(word: str, hints: Hints) -> tuple[Form, ...]:
    shape = "[B]" if word == "last_done" else "[B, T]"
    as_float, as_bool = _form(word, f"{shape} float", _same), _form(word, f"{shape} bool", lambda v, c: v > 0.5)
    as_long = _form(word, f"{shape} long", lambda v, c: v.long())
    wants_bool = "inverted" in hints.signs or hints.says(r"\bbool")
    return (as_bool, as_float, as_long) if wants_bool else (as_float, as_bool, as_long)


def _with_last(value: Any, call: Call) -> Any:
    import torch

    return torch.cat([value, call.get("last_value")[:, None].to(value.dtype)], 1)


def _sliced(hints: Hints) -> tuple[Form, ...]:
    """The critic's output on prompt and completion: as long as the shifted log-probs, or as long as the sequence."""

    def longer(extra: int) -> Callable[[Any, Call], Any]:
        def apply(value: Any, call: Call) -> Any:
            import torch

            front = call.get("prompt_values").to(value.dtype)[:, : int(call.get("prompt_length")) - 1]
            back = front.flip(1)[:, :extra]
            return torch.cat([front, value, back], 1)

        return apply

    plain = _form("values", "[B, T]", _same)
    shifted = _form("values", "[B, P + T - 1]", longer(0))
    whole = _form("values", "[B, P + T]", longer(1))
    last = _form("values", "[B, T, 1]", lambda v, c: v[..., None])
    shape = hints.shape()
    if shape is None or len(shape) < 2:
        return (plain, shifted, whole, last)
    if len(shape) == 3 and shape[-1] == "1":
        return (last, plain, shifted, whole)
    if re.search(r"-\s*1$", shape[1]):
        return (shifted,)
    longer_than = re.search(r"[+]", shape[1]) or re.fullmatch(r"S|L|seq\w*|full\w*|total\w*", shape[1])
    return (whole,) if longer_than else (plain, shifted, whole, last)


def _token_rewards(hints: Hints) -> tuple[Form, ...]:
    tokens = _form("token_rewards", "[B, T]", _same)
    flat, column = _form("rewards", "[B]", _same), _form("rewards", "[B, 1]", lambda v, c: v[:, None])
    shape = hints.shape()
    if shape is not None and len(shape) == 1:
        return (flat, column, tokens)
    if shape is not None and shape[-1] == "1":
        return (column, flat, tokens)
    return (tokens, flat, column)


def _scores(hints: Hints) -> tuple[Form, ...]:
    flat, column = _form("rewards", "[B]", _same), _form("rewards", "[B, 1]", lambda v, c: v[:, None])
    tokens = _form("token_rewards", "[B, T]", _same)
    floats = _form("rewards", "list of floats", lambda v, c: v.detach().tolist())
    one = _form("rewards", "one float", lambda v, c: float(v.reshape(-1)[0]), "per row")
    shape = hints.shape()
    if shape is not None and len(shape) == 2:
        return (column, flat) if shape[-1] == "1" else (tokens, flat)
    if re.fullmatch(r"\s*(float|int)\s*", hints.annotation):
        return (one, flat)
    if (
        hints.says(r"list\[float|list of (python )?floats?|sequence of floats?|sequence\[float")
        or "to_tensor" in hints.signs
    ):
        return (floats, flat, one)
    return (flat, floats, tokens, column, one)


def _bounds(hints: Hints) -> tuple[Form, ...]:
    number = _form("reward_clip", "number", lambda v, c: float(v))
    pair = _form("reward_clip", "pair of bounds", lambda v, c: (-float(v), float(v)))
    indexed = bool(hints.signs & {"iterated", "[0]", "unpacked"}) or "range" in hints.name.lower()
    return (pair, number) if indexed or hints.says(r"tuple|pair|list|range|low.*high|min.*max") else (number, pair)


def _turned(word: str, hints: Hints, layout: Layout) -> tuple[Form, ...]:
    """[T, B], or one row a call."""
    base = _padded(word, hints)
    forms = base if base is not None else (_form(word, "[B, T]" if word in ROW_WORDS else "[B]", _same),)
    out: list[Form] = []
    for form in forms:
        if form.mode != "batch":
            continue
        if "time first" in layout:
            out.append(_time_first(form, layout))
        else:
            out.append(_one_row(form, layout))
    if word in MASKS and layout in ("alone", "time first"):
        out.append(_cast(out[0], "bool"))
    return tuple(out)


def _time_first(form: Form, layout: Layout) -> Form:
    def apply(value: Any, call: Call) -> Any:
        given = form.apply(value, call)
        given = given.transpose(0, 1) if getattr(given, "ndim", 0) == 2 else given
        return _numpy(given) if layout.startswith("arrays") else given

    name = form.name.replace("[B, T + 1]", "[T + 1, B]").replace("[B, T]", "[T, B]")
    return _form(form.word, f"numpy {name}" if layout.startswith("arrays") else name, apply)


def _one_row(form: Form, layout: Layout) -> Form:
    def apply(value: Any, call: Call) -> Any:
        given = form.apply(value, call)[0]
        if layout == "lists alone":
            return given.detach().tolist() if hasattr(given, "detach") else given
        if layout == "arrays alone":
            return _numpy(given) if given.dim() else float(given)
        return given

    suffix = {"lists alone": ", list of floats", "arrays alone": ", numpy"}.get(layout, "")
    name = form.name.replace("[B, T + 1]", "[T + 1]").replace("[B, T]", "[T]")
    return _form(form.word, f"one row {name}{suffix}", apply, "per row")


def _cast(form: Form, kind: str) -> Form:
    return _form(form.word, f"{form.name} {kind}", lambda v, c: form.apply(v, c) > 0.5, form.mode)


# Layouts

_LISTED = re.compile(r"list\[float|sequence\[float|list of (python )?floats?|iterable\[float|list\[int\]", re.I)
_ALONE = re.compile(r"\b(one|a|single|an?) (\w+ )?(episode|trajectory)\b|\b1-?d\b", re.I)
_NUMPY = re.compile(r"\bnp\.|ndarray|numpy|NDArray")
_ENVS = re.compile(r"^(b|n|e|envs?|num_envs|n_envs|batch\w*|bs\w*|n_\w+|num_\w+)\b", re.I)


@dataclass(frozen=True)
class _Evidence:
    """How a function's source takes its rows apart."""

    columns: int
    """Reads of `x[:, t]`, `x[..., t]` or `x[i, t]`."""
    steps: int
    """Reads of `x[t]`."""
    numbers: bool
    """Appends to a list, or converts to Python numbers."""


def layouts(b: Binder, rows: Sequence[WordSource], usual: tuple[Layout, ...]) -> tuple[Layout, ...]:
    """Layouts to try, the likeliest first."""
    if b.role.name != "gae":
        if b.role.name == "reward_shaping" and any(w.per_row for w in rows):
            return (*usual, "micro")  # records of one sample, or of a micro-batch
        rest: list[Layout] = [x for x in usual[1:] if x != "packed"]
        return ("padded", *rest) if usual[0] == "padded" else usual
    if usual[0] in ("packed", "ragged"):
        return usual
    tokens = [w for w in rows if w.word in ROW_WORDS]
    numpy = any(w.hints.says(_NUMPY.pattern) for w in tokens)
    shapes = [s for w in tokens if w.word != "last_value" and (s := w.hints.shape())]
    order = _order(b, tokens, shapes)
    in_numpy: list[Layout] = [_in_numpy(x) for x in order if x != "lists alone"]
    if numpy:
        return tuple(in_numpy)
    others: list[Layout] = [x for x in usual if x not in order and x != "arrays"]
    return (*order, *others, *(in_numpy if "arrays" in usual else []))


def _in_numpy(layout: Layout) -> Layout:
    match layout:
        case "padded":
            return "arrays"
        case "time first":
            return "arrays time first"
        case "alone":
            return "arrays alone"
        case _:
            return layout


def _order(b: Binder, tokens: Sequence[WordSource], shapes: Sequence[tuple[str, ...]]) -> tuple[Layout, ...]:
    if any(_LISTED.search(w.hints.text) for w in tokens) or _LISTED.search(b.facts.doc):
        return ("lists alone", "alone", "padded")
    if any(len(s) == 2 and _ENVS.match(s[1]) and not _ENVS.match(s[0]) for s in shapes):
        return ("time first", "padded", "alone")
    if shapes and all(len(s) == 1 for s in shapes):
        return ("alone", "lists alone", "padded")
    if any(len(s) == 2 for s in shapes):
        return ("padded", "time first", "alone", "lists alone")
    seen = _evidence(b)
    if _ALONE.search(b.facts.doc) and not seen.columns:
        return ("alone", "lists alone", "time first", "padded")
    if seen.columns or not seen.steps:
        return ("padded", "time first", "alone", "lists alone")
    if seen.numbers:
        return ("alone", "lists alone", "time first", "padded")
    return ("time first", "alone", "padded", "lists alone")


def _evidence(b: Binder) -> _Evidence:
    columns = steps = 0
    numbers = False
    for node in ast.walk(b.loaded.node):
        if isinstance(node, ast.Subscript):
            index = node.slice
            if isinstance(index, ast.Tuple) and len(index.elts) == 2 and not isinstance(index.elts[1], ast.Slice):
                columns += 1
            elif isinstance(index, (ast.Name, ast.BinOp)) and isinstance(node.ctx, ast.Load):
                steps += 1
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            numbers = numbers or name in ("appendleft", "insert", "float", "item", "append")
    return _Evidence(columns, steps, numbers)


# Results

WRITERS = ("gae", "reward_shaping")
"""Roles whose functions may store their result in the batch and return something else: a metric, the batch."""


def written(result: Any, places: Sequence[Any], call: Call, role: str) -> Any:
    """The result; where it is a number or the batch itself, what the function has put into the batch."""
    if not _beside_the_point(result, places):
        return result
    if call.layout == "micro":
        return _of_records(places, role, result)
    found = {k: v for place in places for k, v in _new_entries(place, call)}
    if role == "gae":
        told = {k: v for k, v in found.items() if kind_of(k)}
        return told or result
    best = next((n for n in invoke.telling(role) for k in found if k == n), None)
    if best is None and len(found) == 1:
        best = next(iter(found))
    return result if best is None else found[best]


def _of_records(places: Sequence[Any], role: str, result: Any) -> Any:
    """The telling entry of each record of a list, one behind the other."""
    import torch

    for place in places:
        if not isinstance(place, list) or not place or not all(isinstance(r, Box) for r in place):  # pyright: ignore[reportUnknownVariableType]
            continue
        records: list[Box] = place  # pyright: ignore[reportUnknownVariableType]
        name = next((n for n in invoke.telling(role) if all(n in r for r in records)), None)
        if name is not None:
            return torch.cat([torch.as_tensor(dict.__getitem__(r, name)).reshape(-1) for r in records])
    return result


def _beside_the_point(result: Any, places: Sequence[Any]) -> bool:
    """Whether a result can hold no rewards or advantages of its own: a number, metrics, or the batch."""
    if result is None or isinstance(result, (bool, int, float, str, Box)) or getattr(result, "ndim", 1) == 0:
        return True
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return all(_beside_the_point(r, places) for r in result)  # pyright: ignore[reportUnknownVariableType]
    if isinstance(result, Mapping):
        return all(_beside_the_point(v, places) for v in result.values())  # pyright: ignore[reportUnknownVariableType]
    return any(result is place for place in places) and not hasattr(result, "ndim")


def _given(value: Any, call: Call) -> bool:
    return any(invoke.same_numbers(value, v) for v in call.inputs.values())


def _new_entries(place: Any, call: Call) -> list[tuple[str, Any]]:
    """Entries of a batch, a stand-in or an object of the user's class, that hold none of the inputs."""
    out: list[tuple[str, Any]] = []
    if isinstance(place, Mapping):
        entries = dict(place)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    elif invoke.is_record(place):
        entries = {k: v for k, v in _entries(place) if isinstance(v, Mapping)}
    else:
        return out
    for key, value in entries.items():  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, Mapping):
            out += _new_entries(value, call)
        elif getattr(value, "ndim", 0) >= 1 and (kind_of(str(key)) or not _given(value, call)):  # pyright: ignore[reportUnknownArgumentType]
            out.append((str(key), value))  # pyright: ignore[reportUnknownArgumentType]
    return out


_ADVANTAGES = re.compile(r"(^|_)(adv|advs|advantage|advantages|gae|gaes|a_t|a)($|_)")
_RETURNS = re.compile(r"(^|_)(ret|rets|return|returns|target|targets|rtg|rewards_to_go|g|value_targets)($|_)")


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """Advantages and returns [2, B, T], or the one of them that there is [1, B, T]."""

    value: Tensor
    says: str


def kind_of(name: str) -> str:
    """`advantages`, `returns` or nothing, by name."""
    plain = aliases.snake(name)
    if _ADVANTAGES.search(plain):
        return "advantages"
    return "returns" if _RETURNS.search(plain) else ""


def read(result: Any, returned: Sequence[str], call: Call, layout: Layout, mode: Mode) -> Estimates:
    """What a GAE function gave. Raises `WrongShape` where that is neither advantages nor returns."""
    import torch

    if mode == "per row":
        rows = [read_one(r, returned, one, layout) for r, one in zip(result, _rows(call), strict=False)]
        if len({len(r) for r, _ in rows}) != 1:
            raise WrongShape("another number of results for each row")
        parts = [torch.cat([r[i] for r, _ in rows]) for i in range(len(rows[0][0]))]
        named = rows[0][1]
    else:
        parts, named = read_one(result, returned, call, layout)
    what = "advantages and returns" if len(parts) == 2 else "advantages or returns"
    shape = {"time first": "[T, B]", "arrays time first": "[T, B]"}.get(layout, "[B, T]")
    one = ", one row a call" if mode == "per row" else ""
    return Estimates(value=torch.stack(list(parts)), says=f"{what} {shape}{one}{', ' + BY_NAME if named else ''}")


def _rows(call: Call) -> list[Call]:
    import torch

    out: list[Call] = []
    for i in range(call.samples()):
        part = {
            k: v[torch.tensor([i])] if k in SAMPLE_WORDS and isinstance(v, torch.Tensor) else v
            for k, v in call.inputs.items()
        }
        out.append(Call(part, call.layout))
    return out


def read_one(result: Any, returned: Sequence[str], call: Call, layout: Layout) -> tuple[list[Tensor], bool]:
    """The parts of one result, [B, T] each, advantages first where names tell; and whether they do."""
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        names = list(returned) if len(returned) == len(result) else [""] * len(result)
        pairs = [(kind_of(n) if n else "", v) for n, v in zip(names, result, strict=True)]
        record = next((v for v in result if invoke.is_record(v)), None)
        if record is not None and not _arrays(pairs, call, layout):
            return read_one(record, (), call, layout)
    elif invoke.is_record(result):
        pairs = [(kind_of(k), v) for k, v in _entries(result) if kind_of(k)]
    else:
        pairs = [(kind_of(returned[0]) if len(returned) == 1 and returned[0] else "", result)]
    found = _arrays(pairs, call, layout)
    if not found:
        raise WrongShape(f"a {type(result).__name__} without advantages or returns [B, T]")
    by_kind = {kind: part for kind, part in reversed(found) if kind}
    if len(by_kind) == 2:
        return [by_kind["advantages"], by_kind["returns"]], True
    parts = [part for _, part in found[:2]]
    if len(found) == 2 and found[1][0] == "advantages":
        parts = [found[1][1], found[0][1]]
    return parts, False


def _entries(result: Any) -> list[tuple[str, Any]]:
    if isinstance(result, Mapping):
        return [(str(k), v) for k, v in result.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    names = getattr(result, "_fields", None) or list(getattr(result, "__dataclass_fields__", None) or vars(result))
    return [(str(n), getattr(result, n, None)) for n in names]


def _arrays(pairs: Sequence[tuple[str, Any]], call: Call, layout: Layout) -> list[tuple[str, Tensor]]:
    """Those parts that are [B, T] in the layout of the call."""
    out: list[tuple[str, Tensor]] = []
    for kind, value in pairs:
        try:
            out.append((kind, _canonical(value, call, layout)))
        except WrongShape:
            continue
    return out


def _canonical(value: Any, call: Call, layout: Layout) -> Tensor:
    """[B, T] float of one part."""
    import torch

    if isinstance(value, (bool, int, float, str)) or value is None:
        raise WrongShape("a number")
    part = invoke.to_tensor(value, call, layout, "per token")
    rows, width = call.samples(), _width(call)
    if "time first" in layout and part.dim() == 2:
        part = part.transpose(0, 1)
    if "alone" in layout:
        if part.dim() == 2 and 1 in part.shape:
            part = part.reshape(-1)
        if tuple(part.shape) != (width,):
            raise WrongShape(f"{list(part.shape)} where [T] = [{width}] is expected")
        return part[None] if part.is_floating_point() else part[None].float()
    if layout == "packed" and part.numel() == sum(call.lengths()):
        lengths = call.lengths()
        split = part.reshape(-1).split(lengths)
        part = torch.stack([torch.nn.functional.pad(p, (0, width - len(p))) for p in split])
    if tuple(part.shape) != (rows, width):
        raise WrongShape(f"{list(part.shape)} where [B, T] = [{rows}, {width}] is expected")
    return part


def _width(call: Call) -> int:
    for word in ("token_rewards", "completion_mask", "values"):
        if word in call.inputs:
            return int(call.inputs[word].shape[1])
    return 0
