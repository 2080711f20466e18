"""Calling a user's function and reading what it gave: clones in, canonical float64 out.

Whatever the user's code raises becomes `CallFailed` with the innermost frame of a user file.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltriage_probes.aliases import resolve
from rltriage_probes.contract import clip_text
from rltriage_probes.forms import FLOATS, MASKS, Call, Layout, Mode, micro_batches
from rltriage_probes.model import CallFailed, Observation

if TYPE_CHECKING:
    from torch import Tensor

_MAX_ERROR = 400


class NotReached(Exception):
    """Nothing can be measured here, though the user's code is not to blame: `reason` and what to `do`."""

    def __init__(self, reason: str, do: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.do = do


class WrongShape(Exception):
    """The function returned, but not what the role asks for."""


def cotangent(shape: Sequence[int]) -> Tensor:
    """Weights, float64 and fixed for a shape, with which a result that is no scalar is summed before it
    is differentiated.
    """
    import torch

    seed = 7
    for n in shape:
        seed = (seed * 1_000_003 + int(n) + 17) % (2**31 - 1)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(tuple(shape), generator=generator, dtype=torch.float64) + 0.25
    signs = torch.rand(tuple(shape), generator=generator, dtype=torch.float64).sub(0.5).sign()
    return weights * signs


def guarded(function: Callable[[], Any], root: Path, file: Path) -> Any:
    """The function's result; anything that it raises becomes `CallFailed`."""
    try:
        return function()
    except (CallFailed, NotReached):
        raise
    except BaseException as error:  # noqa: BLE001  the user's code may raise SystemExit or KeyboardInterrupt as well
        unreached = _unreached(error)
        if unreached is not None:
            raise unreached from None
        if isinstance(error, ImportError):
            raise NotReached(
                f"the function needs something that this interpreter lacks: {clip_text(str(error), 200)}",
                "Install it there, or name an interpreter that has it under [pipeline] python.",
            ) from None
        raise CallFailed(describe_error(error), innermost(error, root, file)) from None


def awaited(result: Coroutine[Any, Any, Any], root: Path, file: Path) -> Any:
    """What an async function of the user's gives in the end."""
    import asyncio

    return guarded(lambda: asyncio.run(result), root, file)


def _unreached(error: BaseException) -> NotReached | None:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, NotReached):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def describe_error(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  the message itself is user code
        text = "(its message could not be read)"
    return clip_text(f"{type(error).__name__}: {text}" if text else type(error).__name__, _MAX_ERROR)


def innermost(error: BaseException, root: Path, file: Path) -> str:
    """`file:line in function` of the innermost frame that lies in the user's file, else below the root."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if Path(f.filename) == file]
    below = [
        f for f in frames if f.filename.startswith(f"{root}/") and "/site-packages/" not in f.filename[len(str(root)) :]
    ]
    chosen = (below or own)[-1:] or frames[-1:]
    if not chosen:
        return ""
    frame = chosen[0]
    name = frame.filename[len(str(root)) + 1 :] if frame.filename.startswith(f"{root}/") else frame.filename
    return f"{name}:{frame.lineno} in {frame.name}"


# Inputs


def leaves(inputs: Mapping[str, Any], wrt: Sequence[str], dtype: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Clones in the wanted precision, and the leaves that gradients are taken for."""
    import torch

    kind = getattr(torch, dtype)
    values: dict[str, Any] = {}
    roots: dict[str, Tensor] = {}
    for word, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            values[word] = value
            continue
        if value.is_floating_point() and (word in FLOATS or word not in MASKS):
            leaf = value.detach().to(kind)
            if word in wrt:
                leaf = (leaf.clone() if leaf is value else leaf).requires_grad_(True)
                roots[word] = leaf
                # not the leaf itself: autograd forbids in-place changes of leaves, which shipped code makes
                values[word] = leaf.clone()
                continue
            values[word] = leaf.clone()
        elif word in MASKS and value.is_floating_point():
            values[word] = value.detach().to(kind).clone()
        else:
            values[word] = value.detach().clone()
    return values, roots


# Results

_TELLING = {
    "value_loss": (
        "vf_loss",
        "value_loss",
        "critic_loss",
        "v_loss",
        "loss_v",
        "loss",
        "total_loss",
        "values_loss",
        "loss_value",
    ),
    "reward_shaping": (
        "token_level_rewards",
        "token_rewards",
        "rewards",
        "shaped_rewards",
        "total_rewards",
        "total_reward",
        "reward_tensor",
        "reward",
        "scores",
        "score",
    ),
    "policy_loss": ("loss", "pg_loss", "policy_loss", "actor_loss", "total_loss", "losses"),
    "advantages": ("advantages", "advantage", "adv", "advs"),
    "logprobs": ("logprobs", "log_probs", "logps", "per_token_logps", "token_logprobs", "logp"),
    "entropy": ("entropy", "entropies", "token_entropy"),
    "kl": ("kl", "per_token_kl", "kl_div", "kl_loss"),
    "aggregate": ("loss", "total_loss", "mean_loss", "policy_loss", "pg_loss", "mean", "value", "result"),
    "importance_weights": (
        "weights",
        "is_weights",
        "rollout_is_weights",
        "importance_weights",
        "tis_weights",
        "importance_ratio",
        "weight",
        "ratio",
        "is_ratio",
        "tis",
        "w",
    ),
    "completion_mask": ("completion_mask", "mask", "response_mask", "action_mask", "loss_mask"),
    "sft_loss": ("loss", "sft_loss", "nll_loss", "ce_loss", "nll", "ce", "total_loss", "lm_loss"),
    "reward": ("rewards", "scores", "reward", "score"),
    "decode": ("texts", "text", "completions", "completion", "responses", "response"),
    "preference_loss": ("loss", "losses", "total_loss", "preference_loss", "dpo_loss", "loss_per_pair", "pair_losses"),
    "reward_model_loss": ("loss", "losses", "total_loss", "rm_loss", "reward_loss", "ranking_loss", "pair_losses"),
}
_RETURNED = {
    "logprobs": "logprobs",
    "entropy": "entropies",
    "advantages": "advantages",
    "completion_mask": "completion_mask",
}


def telling(role: str) -> tuple[str, ...]:
    """Names under which a result of that role is usually found, the most telling first."""
    return _TELLING.get(role, ())


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """The part of a result that the role is about, and where it was."""

    value: Any
    where: str
    part: int | None = None
    """Index of the part of a returned tuple."""


def extract(
    result: Any,
    role: str,
    returned: Sequence[str] = (),
    echoes: Callable[[Any], bool] = lambda part: False,
    part: int | None = None,
) -> Extracted:
    """The telling part of a tuple, dict or object.

    `returned` are the names of a tuple's parts in the source; `echoes` says whether a part is an input handed back;
    `part` is the one that an earlier call settled on.
    """
    where, chosen = "the result", None
    for _ in range(3):
        if isinstance(result, tuple) and result and not hasattr(result, "_fields"):
            pick = _pick(result, role, returned, echoes) if part is None or part >= len(result) else part
            chosen = pick if chosen is None else chosen
            result = result[pick]
            name = _ORDINALS[pick] if pick < len(_ORDINALS) else f"number {pick + 1}"
            where = f"{name} element of the returned tuple"
            returned, part = (), None
            continue
        if is_record(result):
            found = _named(result, role)
            if found is None:
                break
            result, where = found
            continue
        break
    return Extracted(value=result, where=where, part=chosen)


def _pick(result: tuple[Any, ...], role: str, returned: Sequence[str], echoes: Callable[[Any], bool]) -> int:
    named = _position(role, returned) if len(returned) == len(result) else None
    if named is not None:
        return named
    if role == "entropy" and len(result) > 1:
        return _entropy_of(result)
    return next((i for i, part in enumerate(result) if not echoes(part)), 0)


_ORDINALS = ("first", "second", "third", "fourth")


def _position(role: str, returned: Sequence[str]) -> int | None:
    """Which part of a returned tuple is the one, judged by its name; None where no name says so."""
    for wanted in _TELLING.get(role, ()):
        if wanted in returned:
            return returned.index(wanted)
    word = _RETURNED.get(role)
    for i, name in enumerate(returned):
        match = resolve(name, role, (word,)) if word and name else None
        if match is not None:
            return i
    return None


def _entropy_of(result: tuple[Any, ...]) -> int:
    """A function that returns both gives log-probs first, and those are never positive."""
    return 1 if hasattr(result[1], "shape") and getattr(result[1], "ndim", 0) == getattr(result[0], "ndim", 0) else 0


def is_record(value: Any) -> bool:
    if isinstance(value, Mapping):
        return True
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return True
    if hasattr(value, "_fields") or type(value).__name__ in ("SimpleNamespace", "TensorDict"):
        return True
    foreign = type(value).__module__.split(".")[0] in ("builtins", "torch", "numpy", __name__.split(".")[0])
    return not foreign and bool(getattr(value, "__dict__", None)) and not callable(value)


def _member(result: Any, name: str) -> tuple[Any] | None:
    if isinstance(result, Mapping):
        return (result[name],) if name in result else None
    return (getattr(result, name),) if hasattr(result, name) else None


def _named(result: Any, role: str) -> tuple[Any, str] | None:
    if isinstance(result, Mapping):
        names = [str(k) for k in result]
    elif hasattr(result, "_fields"):
        names = list(result._fields)
    elif dataclasses.is_dataclass(result):
        names = [f.name for f in dataclasses.fields(result)]
    else:
        names = list(vars(result))
    wanted = _TELLING.get(role, ())
    best = next((n for w in wanted for n in names if n == w), None)
    word = _RETURNED.get(role)
    if best is None and word:
        best = next((n for n in names if (m := resolve(n, role, (word,))) is not None and m.word == word), None)
    if best is None:
        best = next((n for w in wanted for n in names if w in n), None)
    if best is None and len(names) > 1 and not isinstance(result, Mapping):
        arrays = [n for n in names if getattr(getattr(result, n, None), "ndim", 0) > 0]
        best = arrays[0] if len(arrays) == 1 else None
    if best is None and len(names) == 1:
        best = names[0]
    if best is None:
        return None
    found = _member(result, best)
    return (found[0], f"`{best}` of the returned {type(result).__name__}") if found else None


@dataclass(frozen=True, kw_only=True)
class Canonical:
    """A result in the role's canonical form."""

    value: Tensor
    says: str


def canonical(
    part: Any, returns: str, call: Call, layout: Layout, mode: Mode, rewards_form: str = "", role: str = ""
) -> Canonical:
    """A tensor of one of the shapes that the role may return; `WrongShape` where it is none of them."""
    spread = _spread_values(part, call) if returns == "per sample" else None
    if spread is not None:
        return Canonical(value=spread, says="[N], spread over the tokens of each sample")
    value = to_tensor(part, call, layout, returns)
    if role in ("preference_loss", "reward_model_loss"):
        return _loss_of_pairs(value)
    rows, columns = _frame(call)
    shape = tuple(value.shape)
    if role == "aggregate" and layout == "micro" and shape == (len(micro_batches(rows)),):
        return Canonical(value=value.sum(), says="one number a micro-batch, which are added")
    if role == "aggregate" and len(shape) == 1 and shape != (rows,) and shape[0] in columns:
        return Canonical(value=value, says="one value a position [T]")
    if role == "importance_weights" and shape in ((rows,), (rows, 1)):
        return Canonical(value=value, says=f"one value a sequence [B{', 1' if len(shape) == 2 else ''}]")
    if returns == "scalar":
        return _scalar(value, shape, rows, columns, layout, call)
    if returns == "per sample":
        return _per_sample(value, shape, rows, columns, rewards_form, call)
    if returns in ("per token", "mask"):
        if role == "logprobs" and shape in ((rows,), (rows, 1)):
            return Canonical(value=value.reshape(-1), says="one value a sequence [B]")
        if role == "entropy" and shape in ((), (1,)):
            return Canonical(value=value.reshape(()), says="one number for all tokens")
        if role == "entropy" and shape in ((rows,), (rows, 1)):
            return Canonical(value=value.reshape(-1), says="one value a sequence [B]")
        return _per_token(value, shape, rows, columns, layout, call)
    return Canonical(value=value, says=_shape(shape))


def _loss_of_pairs(value: Tensor) -> Canonical:
    """A scalar, or one number for each of whatever the function compares."""
    if value.numel() == 1:
        return Canonical(value=value.reshape(()), says="scalar")
    if value.dim() == 2 and value.shape[1] == 1:
        return Canonical(value=value.squeeze(1), says="one value a pair [B, 1]")
    if value.dim() != 1 or not value.is_floating_point():
        raise WrongShape(f"{_shape(value.shape)} where a scalar or one loss a pair is expected")
    return Canonical(value=value, says=f"one value a pair {_shape(value.shape)}")


def _spread_values(part: Any, call: Call) -> Tensor | None:
    """[N] from a list of 1-D tensors, one value in each, as long as the case says."""
    import torch

    if not isinstance(part, list) or "lengths" not in call.inputs:
        return None
    rows: list[Any] = part  # pyright: ignore[reportUnknownVariableType]
    plain = all(isinstance(p, torch.Tensor) and p.dim() == 1 and p.numel() > 0 for p in rows)
    if len(rows) != call.samples() or not plain or [len(p) for p in rows] != call.lengths():
        return None
    return torch.stack([p[0] for p in rows]) if all(bool((p == p[0]).all()) for p in rows) else None


def _scalar(
    value: Tensor, shape: tuple[int, ...], rows: int, columns: set[int], layout: Layout, call: Call
) -> Canonical:
    if shape in ((), (1,), (1, 1)):
        return Canonical(value=value.reshape(()), says="scalar")
    if len(shape) == 2 and shape[0] == rows and shape[1] in columns | {1}:
        return Canonical(
            value=value, says="per-token matrix [B, T]" if shape[1] != 1 else "one value a sequence [B, 1]"
        )
    if layout == "packed" and len(shape) == 1 and shape[0] == sum(call.lengths()):
        return Canonical(value=_unpack(value, call), says="per-token matrix, packed [sum T]")
    if shape == (rows,):
        return Canonical(value=value, says="one value a sequence [B]")
    raise WrongShape(f"{_shape(shape)} where a scalar or [B, T] = [{rows}, {_names(columns)}] is expected")


def _per_sample(
    value: Tensor, shape: tuple[int, ...], rows: int, columns: set[int], rewards_form: str, call: Call
) -> Canonical:
    if shape == (rows,):
        return Canonical(value=value, says="[N]")
    if shape == (rows, 1) and "1]" in rewards_form:
        return Canonical(value=value.squeeze(1), says="[N, 1]")
    if len(shape) == 2 and shape[0] == rows and shape[1] in columns:
        return Canonical(value=value, says="per token [N, T]")
    groups = len(call.groups())
    if len(shape) == 2 and shape[0] == groups and shape[0] * shape[1] == rows:
        return Canonical(value=value.reshape(-1), says="[P, G], read as [N]")
    raise WrongShape(f"{_shape(shape)} where [N] = [{rows}] or [N, T] is expected")


def _per_token(
    value: Tensor, shape: tuple[int, ...], rows: int, columns: set[int], layout: Layout, call: Call
) -> Canonical:
    if len(shape) == 2 and shape[0] == rows and shape[1] in columns:
        return Canonical(value=value, says="[B, T]")
    if layout == "packed":
        total = sum(call.lengths())
        if shape in ((total,), (1, total), (total, 1)):
            return Canonical(value=_unpack(value.reshape(-1), call), says="packed [sum T]")
    if shape == (rows,) and "completion_length" not in call.inputs:
        raise WrongShape(f"one value a sequence, {_shape(shape)}, where one a token is expected")
    raise WrongShape(f"{_shape(shape)} where [B, T] = [{rows}, {_names(columns)}] is expected")


def _unpack(value: Tensor, call: Call) -> Tensor:
    import torch

    widths = call.lengths()
    width = _width(call) or max(widths)
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in value.split(widths)])


def _width(call: Call) -> int:
    from rltriage_probes.forms import ROW_WORDS

    return max(
        (int(v.shape[1]) for k, v in call.inputs.items() if k in ROW_WORDS and getattr(v, "ndim", 0) >= 2), default=0
    )


def _frame(call: Call) -> tuple[int, set[int]]:
    """Rows, and the numbers of columns that a per-token result may have."""
    width = _width(call)
    columns = {width, width - 1} if width else set()
    for word in ("completion_length", "prompt_length"):
        if word in call.inputs:
            n = int(call.inputs[word])
            columns.add(n if word == "completion_length" else width - n)
    mask = call.inputs.get("completion_mask")
    if mask is not None and getattr(mask, "ndim", 0) == 2:
        columns.add(int(mask.shape[1]))
    elif "lengths" in call.inputs:
        columns.add(max(call.lengths()))
    return call.samples(), columns


def to_tensor(part: Any, call: Call, layout: Layout, returns: str) -> Tensor:
    """Tensors, numbers, numpy arrays and (nested, ragged) lists of them as one tensor."""
    import torch

    if isinstance(part, torch.Tensor):
        return part
    if isinstance(part, (bool, int, float)):
        return torch.tensor(float(part))
    if hasattr(part, "__array__"):
        return torch.as_tensor(part.__array__())
    if isinstance(part, (list, tuple)) and part:
        pieces = [to_tensor(p, call, layout, returns) for p in part]
        if all(p.dim() == 0 for p in pieces):
            return torch.stack([p.reshape(()).to(pieces[0].dtype) for p in pieces])
        if returns == "per sample" and all(p.dim() == 1 for p in pieces) and sum(map(len, pieces)) == call.samples():
            return torch.cat(pieces)
        if layout == "ragged" and [p.numel() for p in pieces] == call.lengths():
            return _unpack(torch.cat([p.reshape(-1) for p in pieces]), call)
        if len({p.shape for p in pieces}) == 1:
            return torch.stack(pieces)
        if all(p.dim() == 1 for p in pieces) and len(pieces) == call.samples():
            width = max(_ragged_width(pieces, call), *(len(p) for p in pieces))
            return torch.stack([torch.nn.functional.pad(p, (0, width - len(p))) for p in pieces])
    raise WrongShape(f"a {type(part).__name__} where numbers are expected")


def _ragged_width(pieces: Sequence[Tensor], call: Call) -> int:
    """Columns of a list of rows put together: those of the completion where every row is as long as its completion."""
    width, prompt = _width(call), call.inputs.get("prompt_length")
    of_completion = prompt is not None and [len(p) for p in pieces] == [n - int(prompt) for n in call.lengths()]
    return width - int(prompt) if prompt is not None and of_completion else width


def observe(
    value: Tensor, roots: Mapping[str, Tensor], dtype: str, mutated: tuple[str, ...], root: Path, file: Path,
    *,
    keep_graph: bool = False,
) -> Observation:  # fmt: skip
    """Detached float64 value and gradients of its (weighted) sum; `keep_graph` for who differentiates once more."""
    import torch

    grads: dict[str, Any] = {}
    if roots and value.requires_grad:
        out = value if value.dim() == 0 else (value.double() * cotangent(value.shape)).sum()
        names = list(roots)
        found = guarded(
            lambda: torch.autograd.grad(out, [roots[n] for n in names], allow_unused=True, retain_graph=keep_graph),
            root,
            file,
        )
        grads = {n: g.detach().double() for n, g in zip(names, found, strict=False) if g is not None}
    shown = str(value.dtype).removeprefix("torch.")
    return Observation(value=value.detach().double().cpu(), grads=grads, dtype=shown, mutated=mutated)


def _shape(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _names(columns: set[int]) -> str:
    return " or ".join(map(str, sorted(columns)))


def same_numbers(part: Any, value: Any) -> bool:
    """Whether a result holds nothing but the numbers of an input."""
    import torch

    if not isinstance(value, torch.Tensor) or part is None or isinstance(part, (str, dict)):
        return False
    if part is value:
        return True
    try:
        got = torch.as_tensor(part).detach().flatten()
    except Exception:  # noqa: BLE001  whatever a result of the user's is made of
        return False
    want = value.detach().flatten()
    return got.numel() == want.numel() > 1 and bool(torch.allclose(got.double(), want.double(), rtol=1e-6))
