"""The forms in which functions want an input: canonical value in, the user's form out.

Forms are differentiable where the value is: a gradient with respect to the canonical leaf goes through
them. Which form is right is found by trial, in an order led by hints (`Hints`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Layout = Literal[
    "padded", "ragged", "packed", "arrays", "micro",
    "time first", "alone", "lists alone", "arrays time first", "arrays alone",
]  # fmt: skip
"""How rows of unequal length are handed over; `arrays` is `padded` in numpy, `micro` a list of micro-batches,
`time first` is [T, B], `alone` one row a call.
"""
Mode = Literal["batch", "per group", "per row"]

ROW_WORDS = frozenset(
    "logits hidden_states token_ids labels attention_mask completion_mask logprobs old_logprobs ref_logprobs "
    "rollout_logprobs ratio log_ratio negative_log_ratio entropies advantages token_rewards values old_values "
    "returns token_losses second_mask ref_logits token_weights next_values dones alive token_kl".split()
)
"""Words with one row a sequence."""
PAIR_WORDS = frozenset(
    "chosen_logprobs rejected_logprobs ref_chosen_logprobs ref_rejected_logprobs chosen_lengths rejected_lengths "
    "chosen_rewards rejected_rewards margin chosen_logratios rejected_logratios policy_logratios ref_logratios "
    "preference_logits chosen_mask rejected_mask chosen_token_logprobs rejected_token_logprobs "
    "ref_chosen_token_logprobs ref_rejected_token_logprobs chosen_token_rewards rejected_token_rewards "
    "chosen_labels rejected_labels chosen_logits rejected_logits ref_chosen_logits ref_rejected_logits "
    "chosen_ids rejected_ids".split()
)
"""Words with one entry a pair of answers."""
SAMPLE_WORDS = (
    ROW_WORDS
    | PAIR_WORDS
    | frozenset(
        "rewards group_ids is_last_step trajectory_ids lengths prompts completions answers texts "
        "operand_lists prompt_ids is_truncated kept_rows last_value last_done last_index prompt_values "
        "sample_ids prompt_id_lists completion_id_lists label_lists mask_lists prompt_lengths answer_spans "
        "conversations attention_lists sample_lengths".split()
    )
)
"""Words with one entry a sample."""
MASKS = frozenset(("attention_mask", "completion_mask", "is_last_step", "second_mask"))
FLOATS = ROW_WORDS - {"token_ids", "labels", "attention_mask"} | {"rewards"}
SINGLES = {
    "completion": "completions",
    "prompt": "prompts",
    "answer": "answers",
    "text": "texts",
    "operands": "operand_lists",
}


def micro_batches(rows: int) -> list[range]:
    """Rows of each micro-batch, of unequal sizes, where a function gets a list of them."""
    ends = [0, min(3, rows), min(4, rows), rows]
    return [range(a, b) for a, b in pairwise(ends) if b > a]


class Missing(Exception):
    """An input that a form needs is not in the case."""

    def __init__(self, word: str) -> None:
        super().__init__(f"the case has no {word}")
        self.word = word


@dataclass
class Call:
    """The inputs of one call, as leaf tensors and plain objects, with what forms derive from them."""

    inputs: Mapping[str, Any]
    layout: Layout = "padded"

    def get(self, word: str) -> Any:
        if word in self.inputs:
            return self.inputs[word]
        raise Missing(word)

    def lengths(self) -> list[int]:
        """Tokens of each row: as many as are said, and no fewer than up to the last one that the mask keeps."""
        said = self.inputs.get("lengths")
        mask = self.inputs.get("completion_mask")
        if mask is None:
            mask = self.inputs.get("attention_mask") if said is None else None
        if mask is not None and mask.dim() == 2:
            columns = mask.shape[1]
            kept = [next((n for n in range(columns, 0, -1) if row[n - 1]), 1) for row in mask.detach().bool().tolist()]
            return kept if said is None else [max(int(n), k) for n, k in zip(said, kept, strict=False)]
        if said is not None:
            return [int(n) for n in said]
        some = next(v for k, v in self.inputs.items() if k in ROW_WORDS and getattr(v, "ndim", 0) >= 2)
        return [int(some.shape[1])] * int(some.shape[0])

    def groups(self) -> list[list[int]]:
        """Positions of the samples of each group, groups in order of appearance."""
        ids = self.inputs.get("group_ids")
        if ids is not None:
            out: dict[Any, list[int]] = {}
            for i, g in enumerate(ids.tolist() if hasattr(ids, "tolist") else ids):
                out.setdefault(g, []).append(i)
            return list(out.values())
        n = self.samples()
        size = int(self.inputs.get("group_size") or n)
        return [list(range(at, min(at + size, n))) for at in range(0, n, size)]

    def samples(self) -> int:
        for word in ("rewards", "completions", "texts", "advantages", "group_ids"):
            if word in self.inputs:
                return len(self.inputs[word])
        return next(len(v) for k, v in self.inputs.items() if k in SAMPLE_WORDS)


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way to hand a word over."""

    name: str
    word: str
    apply: Callable[[Any, Call], Any]
    mode: Mode = "batch"


@dataclass(kw_only=True)
class Hints:
    """What annotation, docstring and source say about one input."""

    annotation: str = ""
    doc: str = ""
    signs: set[str] = field(default_factory=set)
    inverted: bool = False
    name: str = ""
    split: bool = False
    """The function gets prompt and completion in separate arguments."""
    role: str = ""
    reads_ids: bool = False
    """The function has a tokenizer, so what it calls responses are ids."""

    @property
    def text(self) -> str:
        return f"{self.annotation} {self.doc}"

    def says(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.I) is not None

    def shape(self) -> tuple[str, ...] | None:
        """Dimensions written in the docstring, e.g. `("B", "T")`; None where there are none.

        In a sentence about several inputs the shape that follows this one's name counts.
        """
        doc = _without_result(self.doc.replace("**", " "))
        own = re.search(rf"\b{re.escape(self.name)}[`'\"]{{0,2}}\s*(?=[\[(])", doc) if self.name else None
        found = _shape_in(doc[own.end() :]) if own else None
        if found or not self.name or re.match(r"\s*(?:[(:\[=–-]|is\b|are\b)", doc):
            return found or _shape_in(doc)
        mention = re.search(rf"\b{re.escape(self.name)}\b", doc)
        if mention is None:
            return _shape_in(doc)
        doc = doc[mention.end() :] if _shape_in(doc[mention.end() :]) else doc
        return _shape_in(re.sub(r"\b(?:advantages?|baselines?)\s*[(\[][^)\]]*[)\]]", " ", doc))

    def isinstance_str(self) -> bool:
        return bool(self.signs & {"isinstance str", "each isinstance str"})

    def takes_both(self, many: bool) -> bool:
        """Whether the source tells a text from a message list, so that plain texts do."""
        kind = r"each isinstance .*\b(str|list|dict|Mapping|Sequence)\b" if many else r"isinstance .*\b(str|list)\b"
        return any(re.fullmatch(kind, s) for s in self.signs) or self.isinstance_str()


_DIMENSION = re.compile(r"[A-Za-z_]\w{0,24}(?:\s*[-+*/]\s*\w+)*|\d+|\.\.\.")
_NO_SHAPE = frozenset("optional default str int float bool tensor list".split())


def _shape_in(doc: str) -> tuple[str, ...] | None:
    for found in re.finditer(r"[\[(]([^\[\]()]*)[\])]", doc):
        parts = [p for p in (p.strip() for p in found[1].split(",")) if p]
        if not parts or not all(map(_DIMENSION.fullmatch, parts)):
            continue
        several = len(parts) > 1 or found[1].rstrip().endswith(",")
        lone = found[0][0] == "[" or re.fullmatch(r"[A-Z][A-Za-z]?|batch\w*|bs\w*|b|n", parts[0])
        if several or (lone and parts[0].lower() not in _NO_SHAPE):
            return tuple(parts)
    return None


_SHAPE = r"\[\s*\w+\s*(?:,\s*\w+\s*)*\]|\(\s*\w+\s*(?:,\s*\w+\s*)+\)"
_COMMON = re.compile(
    rf"({_SHAPE})\s*(?:,?\s*(?:each|both|throughout|all of them)\b|(?:\w+ )?(?:tensors|arrays|inputs)\b)"
    rf"|\b(?:all|every|both|each|everything|tensors|arrays|inputs|arguments)\b[^.;:\n\[(]{{0,40}}?({_SHAPE})",
    re.I,
)


_RESULT = re.compile(
    r"(?:\b(?:returns?|returning|yields?|gives?|giving|produces?|computes?|outputs?|results?|adds?|writes?|makes?)\b|->|=>)"
    r"[^.;\n]*",
    re.I,
)


def _without_result(doc: str) -> str:
    """A docstring without what it says of the result: `returns advantages [N, T]` gives an input no shape."""
    return _RESULT.sub(" ", doc)


def common_shape(doc: str) -> str:
    """The shape that a docstring gives for all inputs at once, e.g. `[B, T] each`; empty where it gives none."""
    found = _COMMON.search(_without_result(doc))
    return (found[1] or found[2]) if found else ""


_TIME = re.compile(
    r"^(t|l|s|r|c|tokens?|time|len\w*|seq\w*|\w*len|\w*length|response\w*|completion\w*|width|\w*tokens?|a|actions?)\b",
    re.I,
)


def derived(word: str, call: Call) -> Any:
    """A word that follows from others of the case; `Missing` where it doesn't."""
    import torch

    if word == "lengths":
        return torch.tensor(call.lengths())
    if word == "cu_seqlens":
        return None
    if word == "model" and "logits" in call.inputs and "token_ids" in call.inputs:
        from rltriage_probes.standins import EchoModel

        return EchoModel(call.inputs["logits"], call.inputs["token_ids"])
    if word in ("hidden_states", "lm_head_weight", "lm_head_bias") and "logits" in call.inputs:
        return _head(word, call.inputs["logits"])
    if word == "labels" and "token_ids" in call.inputs:
        return call.inputs["token_ids"]
    if word == "token_count" and "completion_mask" in call.inputs:
        return call.inputs["completion_mask"].sum()
    if word == "row_count":
        return call.samples()
    if word in ("max_completion_length", "completion_length") and "completion_mask" in call.inputs:
        return int(call.inputs["completion_mask"].shape[1])
    raise Missing(word)


def _head(word: str, logits: Any) -> Any:
    """Hidden states and head whose product is exactly the case's logits: the head is the identity."""
    import torch

    if word == "hidden_states":
        return logits
    size = logits.shape[-1]
    return torch.eye(size, dtype=logits.dtype) if word == "lm_head_weight" else torch.zeros(size, dtype=logits.dtype)


DERIVED: dict[str, tuple[str, ...]] = {
    "lengths": ("completion_mask", "attention_mask"),
    "cu_seqlens": ("lengths", "completion_mask", "attention_mask"),
    "model": ("logits", "token_ids"),
    "labels": ("token_ids",),
    "hidden_states": ("logits",),
    "lm_head_weight": ("logits",),
    "lm_head_bias": ("logits",),
    "token_count": ("completion_mask",),
    "row_count": (),
    "max_completion_length": (),
    "completion_length": (),
}
"""Words that follow from others, with those others."""


def forms_for(word: str, hints: Hints, layout: Layout) -> tuple[Form, ...]:
    """Forms of a word in the order in which they are tried; the first is the likeliest."""
    if hints.role in ("gae", "reward_shaping", "value_loss"):
        from rltriage_probes import trajectories

        own = trajectories.forms(word, hints, layout)
        if own is not None:
            return own
    if layout == "arrays":
        return tuple(_in_numpy(f) for f in forms_for(word, hints, "padded"))
    if layout == "ragged" and word in ROW_WORDS and word != "advantages":
        return _ragged(word, hints)
    if layout == "packed" and word in ROW_WORDS and word != "advantages":
        return (_form(word, "packed [sum T]", lambda v, c: _mask_like(word, _pack(v, c), hints)),)
    if layout == "micro":
        return _by_micro_batch(word, hints)
    maker = _MAKERS.get(word)
    if maker is not None:
        return maker(hints, layout)
    if word in MASKS:
        return _mask(word, hints)
    if word in ("old_logprobs", "ref_logprobs"):
        return (_form(word, "[B, T]", _same), _form(word, "[B], summed over the trained tokens", _summed))
    if word in ROW_WORDS:
        name = {"logits": "[B, T, V]", "hidden_states": "[B, T, H]"}.get(word, "[B, T]")
        return (_form(word, name, _same),)
    return (_form(word, "", _same),)


def _by_micro_batch(word: str, hints: Hints) -> tuple[Form, ...]:
    """What a function that loops over micro-batches gets: a list with the rows of each."""
    forms = forms_for(word, hints, "padded")
    if word not in SAMPLE_WORDS:
        return forms

    def parts(form: Form) -> Callable[[Any, Call], Any]:
        def apply(value: Any, call: Call) -> Any:
            whole = form.apply(value, call)
            return [whole[rows.start : rows.stop] for rows in micro_batches(len(whole))]

        return apply

    return tuple(_form(word, f"list of micro-batches {f.name}", parts(f)) for f in forms if f.mode == "batch")


def _form(word: str, name: str, apply: Callable[[Any, Call], Any], mode: Mode = "batch") -> Form:
    return Form(name=name, word=word, apply=apply, mode=mode)


def _same(value: Any, call: Call) -> Any:
    return value


def _in_numpy(form: Form) -> Form:
    def apply(value: Any, call: Call) -> Any:
        given = form.apply(value, call)
        return _numpy(given) if hasattr(given, "detach") else given

    name = f"numpy {form.name}" if form.name and "numpy" not in form.name else form.name
    return Form(name=name, word=form.word, apply=apply, mode=form.mode)


def _summed(value: Any, call: Call) -> Any:
    mask = call.inputs.get("completion_mask")
    return value.sum(-1) if mask is None else (value * mask).sum(-1)


def _order(forms: Sequence[Form], *first: str) -> tuple[Form, ...]:
    """`forms`, those named in `first` in front, in that order."""
    rank = {name: i for i, name in enumerate(first)}
    return tuple(sorted(forms, key=lambda f: rank.get(f.name, len(first))))


# Masks


def _mask(word: str, hints: Hints) -> tuple[Form, ...]:
    shape = "[N]" if word == "is_last_step" else "[B, T]"
    flip = hints.inverted
    label = ", 1 = left out" if flip else ""

    def to(kind: str) -> Callable[[Any, Call], Any]:
        def apply(value: Any, call: Call) -> Any:
            kept = value == 0 if flip else value
            return kept.bool() if kind == "bool" else kept.long() if kind == "long" else kept.to(_float_type(call))

        return apply

    if "prompt" in hints.name.lower() and word == "attention_mask":
        return (_form(word, "columns of the prompt, long", lambda v, c: v[:, : _prompt(c)].long()),)
    forms = [_form(word, f"{shape} {kind}{label}", to(kind)) for kind in ("float", "bool", "long")]
    if hints.split and word == "completion_mask" and not flip:
        back = _form(word, "columns of the completion, long", lambda v, c: v[:, _prompt(c) :].long())
        return (back, *forms)
    by_kind = {kind: f.name for kind, f in zip(("float", "bool", "long"), forms, strict=False)}
    if "inverted" in hints.signs or hints.says(r"\bbool"):
        return _order(forms, by_kind["bool"])
    if hints.says(r"\b(long|int\d*)\b|LongTensor") or word == "attention_mask":
        return _order(forms, by_kind["long"])
    return _order(forms, by_kind["bool"]) if word == "is_last_step" else tuple(forms)


def _mask_like(word: str, value: Any, hints: Hints) -> Any:
    if word in MASKS and hints.says(r"\bbool"):
        return [v.bool() for v in value] if isinstance(value, list) else value.bool()
    return value


def _float_type(call: Call) -> Any:
    import torch

    for word, value in call.inputs.items():
        if word in FLOATS and isinstance(value, torch.Tensor) and value.is_floating_point() and word not in MASKS:
            return value.dtype
    return torch.float32


# Rows


def _ragged(word: str, hints: Hints) -> tuple[Form, ...]:
    def rows(value: Any, call: Call) -> Any:
        return _mask_like(word, [row[:n] for row, n in zip(value, call.lengths(), strict=False)], hints)

    def plain(value: Any, call: Call) -> Any:
        return [row[:n].tolist() for row, n in zip(value.detach(), call.lengths(), strict=False)]

    tensors = _form(word, "list of [T_i]", rows)
    lists = _form(word, "list of lists", plain)
    return (lists, tensors) if hints.says(r"list\[list") or word == "token_ids" else (tensors, lists)


def _pack(value: Any, call: Call) -> Any:
    import torch

    return torch.cat([row[:n] for row, n in zip(value, call.lengths(), strict=False)])


def _cu_seqlens(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    def ends(kind: str) -> Callable[[Any, Call], Any]:
        def apply(value: Any, call: Call) -> Any:
            import torch

            return torch.tensor([0, *call.lengths()]).cumsum(0).to(getattr(torch, kind))

        return apply

    forms = [_form("cu_seqlens", f"[B + 1] {kind}", ends(kind)) for kind in ("int32", "int64")]
    return tuple(forms[::-1] if hints.says(r"\blong\b|int64|LongTensor") else forms)


def _lengths(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    def counts(value: Any, call: Call) -> list[int]:
        return call.lengths() if layout in ("packed", "ragged") else [int(n) for n in value]

    def tensor(value: Any, call: Call) -> Any:
        import torch

        return torch.tensor(counts(value, call))

    forms = (_form("lengths", "[B] long", tensor), _form("lengths", "list of int", counts))
    return forms[::-1] if hints.says(r"list|sequence") or layout == "ragged" else forms


# Token ids

_TENSOR_LIST = r"list\[(torch\.)?tensor|list of (\w+ )?(1-?d )?tensors?|one (1-?d )?tensor per"


def _token_ids(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    def row_list(value: Any, call: Call) -> Any:
        return row_tensor(value, call).tolist()

    def row_tensor(value: Any, call: Call) -> Any:
        return value[0] if value.dim() == 2 else value

    def tensors(value: Any, call: Call) -> Any:
        return [row[_prompt(call) : n] for row, n in zip(value, call.lengths(), strict=False)]

    def lists(value: Any, call: Call) -> Any:
        return [row.tolist() for row in tensors(value, call)]

    forms = {
        "whole": _form("token_ids", "[B, T] long", _same),
        "rows": _form("token_ids", "list of lists", lambda v, c: v.tolist()),
        "front": _form("token_ids", "columns of the prompt", lambda v, c: v[:, : _prompt(c)]),
        "back": _form("token_ids", "columns of the completion", lambda v, c: v[:, _prompt(c) :]),
        "lists": _form("token_ids", "list of lists, the completion's ids", lists),
        "tensors": _form("token_ids", "list of [C_i], the completion's ids", tensors),
        "one": _form("token_ids", "one row [T]", row_tensor, "per row"),
        "one list": _form("token_ids", "one row, list of int", row_list, "per row"),
    }
    return tuple(forms[name] for name in _id_order(hints))


_LISTS_OF_IDS = r"list\[list|list of lists|lists of (token )?ids"
_OF_COMPLETION = re.compile(r"(response|completion|gen\w*|output|action)s?(_ids|_tokens|_token_ids)?")


def _id_order(hints: Hints) -> list[str]:
    """Names of the forms of token ids, the likeliest first."""
    if "prompt" in hints.name.lower():
        return ["front"]
    names, first = ["whole", "rows", "back", "one", "one list"], []
    shape = hints.shape()
    if hints.split and not re.search("sequence|full|whole", hints.name.lower()):
        first = ["back"]
    elif _OF_COMPLETION.fullmatch(hints.name.lower()):
        names = ["whole", "back", "rows", "lists", "tensors", "one", "one list"]
        first = ["lists", "rows"] if hints.says(_LISTS_OF_IDS) else ["tensors"] if hints.says(_TENSOR_LIST) else []
    elif hints.says(_LISTS_OF_IDS):
        first = ["rows"]
    if not first and hints.says(r"list\[int\]|list of (token )?ids|list of ints?\b"):
        first = ["one list", "one"]
    elif not first and shape is not None and len(shape) == 1:
        first = ["one", "one list"]
    return [*first, *(n for n in names if n not in first)]


def _prompt(call: Call) -> int:
    return int(call.get("prompt_length"))


# Advantages and rewards


def _advantages(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    def column(value: Any, call: Call) -> Any:
        return value.unsqueeze(1) if value.dim() == 1 else value

    def spread(value: Any, call: Call) -> Any:
        return _spread(value, call)

    def rows(value: Any, call: Call) -> Any:
        full = _spread(value, call)
        return [row[:n] for row, n in zip(full, call.lengths(), strict=False)]

    def floats(value: Any, call: Call) -> Any:
        return value.detach().tolist()

    def packed(value: Any, call: Call) -> Any:
        return _pack(_spread(value, call), call)

    flat = _form("advantages", "[B]", _same)
    one = _form("advantages", "[B, 1]", column)
    full = _form("advantages", "[B, T]", spread)
    ragged = _form("advantages", "list of [T_i]", rows)
    numbers = _form("advantages", "list of floats", floats)
    if layout == "packed":
        # one a sequence first: where tokens are wanted, it raises or reaches the wrong rows
        return (flat, _form("advantages", "packed [sum T]", packed), numbers)
    if layout == "ragged":
        return (ragged, flat, numbers)
    forms = [flat, full, one, numbers]
    shape = hints.shape()
    if shape is not None:
        if len(shape) == 1:
            return _order(forms, flat.name)
        return _order(forms, one.name if shape[-1] == "1" else full.name)
    return tuple(forms)


def _spread(value: Tensor, call: Call) -> Tensor:
    """[B] -> [B, T], 0 where the completion mask is 0: frameworks hand advantages over masked."""
    if value.dim() == 2 and value.shape[1] > 1:
        return value
    mask = call.inputs.get("completion_mask")
    if mask is None:
        mask = next(
            v
            for k, v in call.inputs.items()
            if k in ("logprobs", "ratio", "log_ratio", "negative_log_ratio", "old_logprobs")
        )
        return value.reshape(-1, 1).expand(mask.shape)
    return value.reshape(-1, 1) * mask.to(value.dtype)


def _rewards(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    flat = _form("rewards", "[N]", _same)
    floats = _form("rewards", "list of floats", lambda v, c: v.detach().tolist())
    array = _form("rewards", "numpy [N]", lambda v, c: _numpy(v))
    matrix = _form("rewards", "[P, G]", lambda v, c: v.reshape(len(c.groups()), -1))
    column = _form("rewards", "[N, 1]", lambda v, c: v.unsqueeze(1))
    lists = _form(
        "rewards", "list of lists, one per group", lambda v, c: [[float(v[i]) for i in g] for g in c.groups()]
    )
    tensors = _form("rewards", "list of tensors, one per group", lambda v, c: [v[g] for g in c.groups()])
    arrays = _form("rewards", "list of numpy arrays, one per group", lambda v, c: [_numpy(v[g]) for g in c.groups()])
    grid = _form("rewards", "numpy [P, G]", lambda v, c: _numpy(v.reshape(len(c.groups()), -1)))
    group = _form("rewards", "one group [G]", _same, "per group")
    group_column = _form("rewards", "one group [G, 1]", lambda v, c: v.unsqueeze(1), "per group")
    group_list = _form("rewards", "one group, list of floats", lambda v, c: v.detach().tolist(), "per group")
    group_array = _form("rewards", "one group, numpy [G]", lambda v, c: _numpy(v), "per group")
    tokens = _form("token_rewards", "[N, T]", _same)
    padded = [flat, floats, array, matrix, lists, tensors, arrays, column, grid, tokens]
    single = [group, group_list, group_array, group_column]
    return _reward_order(hints, padded, single)


def _reward_order(hints: Hints, batch: list[Form], single: list[Form]) -> tuple[Form, ...]:  # noqa: C901  a flat table
    flat, floats, array, matrix, lists, tensors, arrays, column, grid, tokens = (f.name for f in batch)
    numpy = hints.says(r"\bnp\.|ndarray|numpy|NDArray") or bool(hints.signs & {"numpy"})
    shape = hints.shape()
    first: list[str] = []
    if hints.says(
        r"(list|one list|lists|sequence|array|tensor)s? (per|for each|of each|a) (prompt|group|question"
        r"|problem)|list of (lists|groups)|list\[(list|tuple|sequence)"
    ):
        first = [arrays, lists] if numpy else [lists, tensors]
    elif hints.says(r"list\[(torch\.)?tensor|list of (1-d )?tensors"):
        first = [tensors, lists]
    elif hints.says(r"list\[np|list of (np|numpy|arrays)"):
        first = [arrays]
    elif "ungrouped" in hints.signs:
        order = [f.name for f in single]
        if numpy:
            order = [single[2].name]
        elif shape is not None and len(shape) == 2 and shape[-1] == "1":
            order = [single[3].name]
        elif hints.says(r"list\[float|list of float|sequence of float") or "to_tensor" in hints.signs:
            order = [single[1].name, single[0].name]
        return _order([*single, *batch], *order)
    elif shape is not None and len(shape) == 2:
        last = shape[-1]
        first = (
            [column]
            if last == "1"
            else [tokens]
            if _TIME.match(last) or "masked rows" in hints.signs
            else [matrix, grid]
        )
        if numpy and first == [matrix, grid]:
            first = [grid, matrix]
        if re.match(r"f$|n?_?(num_)?(reward_)?func", last, re.I):
            first = [column]
    elif hints.says(r"list\[float|list of (python )?floats?|sequence of floats?") or "to_tensor" in hints.signs:
        first = [floats, lists] if "iterated" not in hints.signs else [floats]
    elif numpy:
        first = [array, grid]
    elif "masked rows" in hints.signs:
        first = [tokens, flat]
    elif "rows" in hints.signs and "grouped" not in hints.signs:
        first = [matrix, grid, tokens]
    return _order([*batch, *single], *first)


def _token_rewards(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    return (_form("token_rewards", "[N, T]", _same), *(f for f in _rewards(hints, layout) if f.name == "[N]"))


def _group_ids(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    def names(value: Any) -> list[str]:
        return [f"prompt-{int(g)}" for g in value]

    tensor = _form("group_ids", "[N] long", lambda v, c: v)
    objects = _form("group_ids", "numpy object array of str", lambda v, c: _object_array(names(v)))
    strings = _form("group_ids", "list of str", lambda v, c: names(v))
    ints = _form("group_ids", "list of int", lambda v, c: [int(g) for g in v])
    integers = _form("group_ids", "numpy [N] int", lambda v, c: _numpy(v))
    groups = _form(
        "group_ids", "list of str, one per group", lambda v, c: [f"prompt-{i}" for i in range(len(c.groups()))]
    )
    matrix = _form("group_ids", "[N, S] long, the prompt's tokens", lambda v, c: _prompt_tokens(v))
    by_tokens = "compares rows" in hints.signs
    forms = [objects, strings, tensor, ints, integers, *([matrix] if by_tokens else []), groups]
    if hints.says(r"list of [Pp]\b|one (per|for each) prompt\b|\bP prompts"):
        return _order(forms, groups.name)
    shape = hints.shape()
    if by_tokens and shape is not None and len(shape) == 2:
        return _order(forms, matrix.name)
    if hints.says(r"ndarray|np\.|numpy"):
        return _order(forms, objects.name, integers.name)
    if hints.says(r"list\[str|list of (\w+ )?(str|uids|ids|prompt|group|names)|list\[int|sequence of"):
        return _order(forms, ints.name if hints.says(r"list\[int|of ints") else strings.name)
    methods = {
        ".unique",
        ".eq",
        ".long",
        ".to",
        ".view",
        ".max",
        ".unsqueeze",
        ".dim",
        ".device",
        ".size",
        ".numel",
        ".tolist",
        ".shape",
    }
    if hints.says(r"tensor|long\b") or hints.signs & methods or any(s.startswith("torch.") for s in hints.signs):
        return _order(forms, tensor.name)
    return tuple(forms)


def _prompt_tokens(value: Any) -> Any:
    import torch

    return torch.stack([torch.full_like(value, 7), value + 11, torch.full_like(value, 5)], dim=1)


def _trajectory_ids(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    strings = _form("trajectory_ids", "list of str", lambda v, c: [f"trajectory-{int(x)}" for x in v])
    tensor = _form("trajectory_ids", "[N] long", _same)
    return (tensor, strings) if hints.says("tensor") else (strings, tensor)


def _numpy(value: Any) -> Any:
    return value.detach().cpu().numpy()


def _object_array(values: list[str]) -> Any:
    import numpy as np

    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


# Texts


_ONE_A_PROMPT = (
    r"\bP (?:\w+ ){0,3}(?:str\w*|gold\w*|answers?|solutions?|texts?)\b|\[\s*P\s*\]"
    r"|\b(?:one|an answer|a gold\w*|answers?|list) (?:\w+ ){0,2}?(?:a|per|for each|for every|of each|each) "
    r"(?:prompt|question|problem|group)\b"
)


def _turns(role: str, value: Any) -> list[Any]:
    """A text as one turn; a case may give several turns itself."""
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def _texts(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        role = "user" if word == "prompts" else "assistant"
        strings = _form(word, "list of str", lambda v, c: list(v))
        chats = _form(word, "list of message lists", lambda v, c: [_turns(role, x) for x in v])
        message = "message" in hints.signs and not hints.takes_both(many=True)
        if word == "prompts" and hints.role == "sft_labels" and "pair" in hints.name:
            name = "list of (prompt, completion)"
            return (_form(word, name, lambda v, c: list(zip(v, c.get("completions"), strict=False))), strings)
        conversational = hints.says(
            r"message lists?|list of messages|one chat|chats|conversational|list\[list\[dict|list\[dict"
        )
        if word == "answers":
            one = _form(word, "list of str, one per group", lambda v, c: list(v))
            per_prompt = hints.says(_ONE_A_PROMPT) or "a row's group" in hints.signs
            return (one,) if per_prompt else (strings,)
        if hints.reads_ids and word == "texts":
            return (*_token_ids(hints, layout), strings)
        return (chats, strings) if message or (conversational and not hints.says(r"str\b|string")) else (strings, chats)

    return make


def _single(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        string = _form(word, "str", _same)
        role = "user" if word == "prompt" else "assistant"
        chat = _form(word, "message list", lambda v, c: _turns(role, v))
        if hints.reads_ids and word == "text":
            return (*_token_ids(hints, layout), string)
        if word in ("answer", "text"):
            return (string,)
        return (chat, string) if "message" in hints.signs and not hints.takes_both(many=False) else (string, chat)

    return make


def _eos(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    one = _form("eos_token_id", "int", lambda v, c: int(v))
    many = _form("eos_token_id", "list of int", lambda v, c: [int(x) for x in (v if isinstance(v, list) else [v])])
    name = re.sub(r"eos$", "", hints.name.lower())
    plural = name.endswith("s") or hints.says(r"list\[int|list of|tensor")
    return (many, one) if plural else (one, many)


def _number(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    def apply(value: Any, call: Call) -> Any:
        return value.item() if hasattr(value, "item") else value

    def tensor(value: Any, call: Call) -> Any:
        import torch

        return torch.as_tensor(float(value))

    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        if word in ("token_count", "row_count") and ({".clamp", ".item"} & hints.signs or hints.says("tensor")):
            return (_form(word, "0-d tensor", tensor),)
        return (_form(word, "number", apply),)

    return make


def _prompt_length(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    def every(value: Any, call: Call) -> list[int]:
        return [int(value)] * call.samples()

    def tensor(value: Any, call: Call) -> Any:
        import torch

        return torch.tensor(every(value, call))

    one = _number("prompt_length")(hints, layout)
    many = (_form("prompt_length", "[B] long", tensor), _form("prompt_length", "list of int", every))
    shape = hints.shape()
    plural = hints.name.lower().endswith(("s", "starts")) or (shape is not None and len(shape) == 1)
    if hints.says(r"list\[int|list of int"):
        return (*many[::-1], *one)
    return (*many, *one) if plural or hints.signs & {"iterated", ".tolist"} else (*one, *many)


def _row_flags(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    """One flag a row: bool, float, a column, a list."""

    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        forms = (
            _form(word, "[B] bool", lambda v, c: v.bool()),
            _form(word, "[B] float", lambda v, c: v.to(_float_type(c))),
            _form(word, "[B, 1] bool", lambda v, c: v.bool()[:, None]),
            _form(word, "[B, 1] float", lambda v, c: v.to(_float_type(c))[:, None]),
            _form(word, "list of bool", lambda v, c: [bool(x) for x in v]),
            _form(word, "[B] long", lambda v, c: v.long()),
        )
        shape = hints.shape()
        column = shape is not None and shape[-1] == "1"
        if hints.says(r"list\[|list of|sequence of"):
            return _order(forms, "list of bool")
        if column:
            return _order(forms, "[B, 1] float" if word == "kept_rows" else "[B, 1] bool")
        if word == "kept_rows" and not ("inverted" in hints.signs or hints.says(r"\bbool")):
            return _order(forms, "[B] float")
        return _order(forms, "[B] float") if hints.says(r"\bfloat") else forms

    return make


def _id_lists(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    """Ids, labels or masks of samples that differ in length: lists, tensors, one padded tensor, or row by row."""
    filler = -100 if word == "label_lists" else 0

    def tensors(value: Any, call: Call) -> Any:
        import torch

        return [torch.tensor(row) for row in value]

    def padded(value: Any, call: Call) -> Any:
        import torch

        width = max(map(len, value))
        pad = int(call.inputs.get("pad_token_id", 0)) if word.endswith(("ids", "id_lists")) else filler
        return torch.tensor([[*row, *[pad] * (width - len(row))] for row in value])

    def first(value: Any, call: Call) -> Any:
        return list(value[0])

    def row(value: Any, call: Call) -> Any:
        import torch

        return torch.tensor(value[0])

    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        forms = (
            _form(word, "list of lists", lambda v, c: [list(x) for x in v]),
            _form(word, "one row, list of int", first, "per row"),
            _form(word, "list of [T_i]", tensors),
            _form(word, "padded [B, T]", padded),
            _form(word, "one row [T]", row, "per row"),
        )
        shape = hints.shape()
        methods = hints.signs & {".clone", ".shape", ".size", ".ne", ".eq", ".masked_fill", ".dim", ".new_full", ".to"}
        if hints.says(_LISTS_OF_IDS):
            return forms
        if hints.says(r"list\[int|list of (token )?ids?\b|list of ints?\b|sequence\[int"):
            return _order(forms, "one row, list of int")
        if shape is not None and len(shape) == 2:
            return _order(forms, "padded [B, T]")
        if hints.says(r"list\[(torch\.)?tensor|list of (1-?d )?tensors"):
            return _order(forms, "list of [T_i]")
        if methods or hints.says(r"tensor"):
            one = shape is not None and len(shape) == 1
            return _order(forms, *(("one row [T]",) if one else ("padded [B, T]", "list of [T_i]", "one row [T]")))
        return forms

    return make


def _per_sample(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    """One number or one list of spans a sample: all of them, or that of one row."""

    def tensor(value: Any, call: Call) -> Any:
        import torch

        return torch.tensor(value)

    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        every = _form(word, "list", lambda v, c: list(v))
        one = _form(word, "that of one row", lambda v, c: v[0], "per row")
        if word == "answer_spans":
            return (every, one)
        row = _form(word, "[1] long", lambda v, c: tensor(v[:1], c), "per row")
        return (every, one, _form(word, "[B] long", tensor), row)

    return make


def _chats(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    """Conversations as message lists: the case's own objects, so that it shows when they are changed."""

    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        return (_form(word, "message list" if word == "messages" else "list of message lists", _same),)

    return make


def _answer_scores(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    """One number an answer, or one a token of it: `chosen_logprobs` -> `chosen_token_logprobs`."""
    front, kind = word.rsplit("_", 1)
    rows = "[2B]" if "pair" in word else "[B]"

    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        flat = _form(word, rows, _same)
        tokens = _form(f"{front}_token_{kind}", f"{rows[:-1]}, T]", _same)
        column = _form(word, f"{rows[:-1]}, 1]", lambda v, c: v.unsqueeze(-1))
        scalars = _form(word, "list of 0-d tensors", lambda v, c: list(v.unbind()))
        shape = hints.shape()
        by_token = re.search(r"token|\btok\b|per_?pos", hints.name) is not None or "rows" in hints.signs
        forms = [flat, tokens, column, scalars]
        if shape is not None and len(shape) == 2:
            return _order(forms, column.name if shape[-1] == "1" else tokens.name)
        if shape is not None and len(shape) == 1 and not by_token:
            return _order(forms, flat.name)
        if hints.says(r"list\[|list of|sequence of"):
            return _order(forms, scalars.name)
        if kind == "rewards" and hints.says(r"squeeze|\.squeeze") and not by_token:
            return _order(forms, column.name)
        return _order(forms, tokens.name) if by_token else tuple(forms)

    return make


def _answer_lengths(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    def make(hints: Hints, layout: Layout) -> tuple[Form, ...]:
        counts = _form(word, "[2B] long" if "pair" in word else "[B] long", _same)
        ints = _form(word, "list of int", lambda v, c: [int(n) for n in v])
        return (ints, counts) if hints.says(r"list\[int|list of") else (counts, ints)

    return make


def _answer_mask(word: str) -> Callable[[Hints, Layout], tuple[Form, ...]]:
    return lambda hints, layout: _mask(word, hints)


def _reward_tokens(hints: Hints, layout: Layout) -> tuple[Form, ...]:
    ids = _form("reward_token_ids", "list of int", lambda v, c: list(v))

    def tensor(value: Any, call: Call) -> Any:
        import torch

        return torch.tensor(value)

    as_tensor = _form("reward_token_ids", "[2] long", tensor)
    return (as_tensor, ids) if hints.says(r"tensor") else (ids, as_tensor)


_MAKERS: dict[str, Callable[[Hints, Layout], tuple[Form, ...]]] = {
    **{
        f"{front}{side}_{kind}": _answer_scores(f"{front}{side}_{kind}")
        for front in ("", "ref_")
        for side in ("chosen", "rejected", "pair")
        for kind in ("logprobs", "rewards")
    },
    **{f"{side}_lengths": _answer_lengths(f"{side}_lengths") for side in ("chosen", "rejected", "pair")},
    **{f"{side}_mask": _answer_mask(f"{side}_mask") for side in ("chosen", "rejected", "pair", "step")},
    "reward_token_ids": _reward_tokens,
    **{w: _id_lists(w) for w in ("sample_ids", "prompt_id_lists", "completion_id_lists", "label_lists", "mask_lists")},
    "attention_lists": _id_lists("attention_lists"),
    "prompt_lengths": _per_sample("prompt_lengths"),
    "sample_lengths": _per_sample("sample_lengths"),
    "answer_spans": _per_sample("answer_spans"),
    "messages": _chats("messages"),
    "conversations": _chats("conversations"),
    "is_truncated": _row_flags("is_truncated"),
    "kept_rows": _row_flags("kept_rows"),
    "cu_seqlens": _cu_seqlens,
    "lengths": _lengths,
    "token_ids": _token_ids,
    "advantages": _advantages,
    "rewards": _rewards,
    "token_rewards": _token_rewards,
    "group_ids": _group_ids,
    "trajectory_ids": _trajectory_ids,
    "completions": _texts("completions"),
    "prompts": _texts("prompts"),
    "answers": _texts("answers"),
    "texts": _texts("texts"),
    "completion": _single("completion"),
    "prompt": _single("prompt"),
    "answer": _single("answer"),
    "text": _single("text"),
    "eos_token_id": _eos,
    "token_count": _number("token_count"),
    "row_count": _number("row_count"),
    "prompt_length": _prompt_length,
    "completion_length": _number("completion_length"),
    "max_completion_length": _number("max_completion_length"),
    "group_size": _number("group_size"),
}
