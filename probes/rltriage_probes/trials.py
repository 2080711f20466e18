"""Which forms the inputs take, found by calling the function on the role's example."""

from __future__ import annotations

import ast
import heapq
import inspect
import re
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rltriage_probes import reports, source, trajectories
from rltriage_probes.bound import Bound
from rltriage_probes.filling import WordSource
from rltriage_probes.forms import ROW_WORDS, SAMPLE_WORDS, Form, Layout, Missing, forms_for
from rltriage_probes.invoke import NotReached, WrongShape
from rltriage_probes.model import CallFailed
from rltriage_probes.reports import BindingFailed

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder

MAX_TRIALS = 64
_A_LAYOUT = 14
"""Trials of one layout, where there are several that fit a function about as well."""


def settle(b: Binder) -> Bound:  # noqa: C901  one loop over trials
    first: Exception | None = None
    wrong: WrongShape | None = None
    trials = 0
    function = _function(b)
    for make_self in b.plan.selfs or [None]:
        for layout in _layouts(b):
            fallback: Bound | None = None
            last = min(MAX_TRIALS, trials + _A_LAYOUT) if b.role.name == "gae" else MAX_TRIALS
            for forms in _combinations(b, layout):
                trials += 1
                if trials > last:
                    break
                bound = Bound(b, function, make_self, layout, forms)
                try:
                    bound.try_out()
                except WrongShape as e:
                    wrong = wrong or e
                    b.tried.append(f"{bound.describe()}: {e}")
                except Missing as e:
                    first = first or _missing(b, e)
                except (CallFailed, NotReached) as e:
                    first = first or e
                    b.tried.append(f"{bound.describe()}: {e}")
                else:
                    _refuse_a_loss_without_gradient(b, layout)
                    if bound.rows_apart():
                        return (bound.one_a_sequence() or bound).finish()
                    fallback = fallback or bound
            if fallback is not None:
                return fallback.finish()
    if wrong is not None:
        report = reports.report_open(b, [])
        raise BindingFailed(f"{b.loaded.qualname} returns {wrong}", report)
    assert first is not None
    opened = [d for d in b.plan.doubtful if isinstance(first, CallFailed) and _says_missing(first.error, d)]
    if opened:
        b.plan.open = opened
        raise BindingFailed(reports.open_reason(b), reports.report_open(b, opened))
    if b.role.name in ("reward", "extract_answer") and isinstance(first, CallFailed) and wrong is None:
        # the example may be what it can't take: its own battery knows many more formats, and judges exceptions
        layout = _layouts(b)[0]
        forms = next(iter(_combinations(b, layout)))
        return Bound(b, function, (b.plan.selfs or [None])[0], layout, forms).untried().finish()
    raise first


def _refuse_a_loss_without_gradient(b: Binder, layout: Layout) -> None:
    if layout == "arrays" and b.role.name == "policy_loss":
        raise NotReached(
            f"{b.loaded.qualname} computes in numpy, through which no gradient flows",
            "Name the function that training differentiates.",
        )


def _missing(b: Binder, e: Missing) -> BindingFailed:
    path = next((w.path for w in b.plan.words() if w.word == e.word), e.word)
    return BindingFailed(
        f"{path} is bound to {e.word}, which {b.role.name} cases do not have", reports.report_open(b, [path])
    )


def function_of(b: Binder) -> Callable[..., Any]:
    """The user's function, its helpers replaced where a case gives their result."""
    return _function(b)


def _function(b: Binder) -> Callable[..., Any]:
    function = b.loaded.function
    plain = {k: s for k, s in b.seams.items() if not k.startswith("self.")}
    target = inspect.unwrap(function)
    if plain and isinstance(target, types.FunctionType):
        scope = {**target.__globals__, **plain}
        made = types.FunctionType(target.__code__, scope, target.__name__, target.__defaults__, target.__closure__)
        made.__kwdefaults__ = target.__kwdefaults__
        return made
    return function


_LISTED = r"list\[(torch\.)?tensor|list of (\w+ )?(1-?d )?tensors?|one (1-d )?tensor per"
_RAGGED = re.compile(
    r"lists? with one|one 1-?D tensor per|samples differ in length|jagged|ragged|list of 1-?D|"
    r"lists? of per-(sample|sequence) tensors",
    re.I,
)
_PACKED = re.compile(
    r"\bpacked\b|concatenated into one|back to back|\[\s*sum|\[\s*total|one after (another|the other)|padding-free",
    re.I,
)
_NUMPY = r"\bnp\.|ndarray|numpy|NDArray|\barray\b"
_BY_ROW = frozenset(
    "token_losses logprobs token_rewards logits hidden_states advantages token_ids completion_mask returns "
    "token_kl".split()
)


def _layouts(b: Binder) -> tuple[Layout, ...]:
    """Layouts to try, the likeliest first."""
    words = list(b.plan.words())
    rows = [w for w in words if w.word in SAMPLE_WORDS]
    if b.role.name in ("gae", "reward_shaping", "value_loss"):
        return trajectories.layouts(b, rows, _plain_layouts(b, words, rows))
    if b.role.name == "aggregate" and _micro_batched(b, rows):
        return ("micro", *_plain_layouts(b, words, rows))
    return _plain_layouts(b, words, rows)


_MICRO = re.compile(r"(micro|mini)[-_ ]?batch|accumulat|\bshards?\b|per[-_ ]rank|\bmbs?\b", re.I)


def _micro_batched(b: Binder, rows: Sequence[WordSource]) -> bool:
    """Whether the function gets a list of micro-batches: it loops, speaks of them, and of no matrix [B, T] alone."""
    text = " ".join([b.loaded.qualname, b.facts.doc, *(w.path for w in rows)])
    listed = any(w.per_row or w.hints.says(r"\blists?\b|sequence\[|iterable") for w in rows)
    looped = listed or any("iterated" in w.hints.signs for w in rows)
    whole = [len(s) == 2 for w in rows if w.word == "token_losses" and (s := w.hints.shape())]
    return bool(_MICRO.search(text)) and looped and (listed or not any(whole))


def _plain_layouts(b: Binder, words: Sequence[WordSource], rows: Sequence[WordSource]) -> tuple[Layout, ...]:
    if any(w.word == "cu_seqlens" for w in words):
        return ("packed", "padded")
    if not any(w.word in _BY_ROW for w in rows):
        return ("padded",)
    order = _tensor_layouts(b.facts.doc, rows)
    if any("numpy" in w.hints.signs or w.hints.says(_NUMPY) for w in rows if w.word in ROW_WORDS):
        return ("arrays", *order)
    return (*order, "arrays") if _knows_numpy(b) else order


def _tensor_layouts(doc: str, rows: Sequence[WordSource]) -> tuple[Layout, ...]:
    listed = any(w.hints.says(_LISTED) for w in rows)
    if listed or _RAGGED.search(doc):
        return ("ragged", "padded", "packed")
    if _PACKED.search(doc) or _one_dimensional(rows):
        return ("packed", "padded", "ragged")
    iterated = any("iterated" in w.hints.signs for w in rows if w.word != "advantages")
    return ("padded", "ragged", "packed") if iterated else ("padded", "packed", "ragged")


def _one_dimensional(rows: Sequence[WordSource]) -> bool:
    """Lengths, no mask, and log-probs of one dimension: sequences behind one another."""
    have = {w.word for w in rows}
    flat = [len(s) == 1 for w in rows if w.word in ("logprobs", "old_logprobs", "log_ratio") and (s := w.hints.shape())]
    return "lengths" in have and not have & {"completion_mask", "attention_mask"} and bool(flat) and all(flat)


def _knows_numpy(b: Binder) -> bool:
    names = {n for n in ("np", "numpy") if getattr(b.loaded.namespace.get(n), "__name__", "") == "numpy"}
    return bool(names) and any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(b.loaded.node))


def _combinations(b: Binder, layout: Layout) -> Iterator[dict[int, Form]]:
    """Forms for every place, the likeliest combination first."""
    words = list(b.plan.words())
    _mark_ungrouped(b, words)
    if any(w.word in ("chosen_mask", "rejected_mask", "pair_mask") for w in words):
        for w in words:
            w.hints.signs.add("rows")  # a mask means one number a token
    options = [forms_for(w.word, w.hints, layout) for w in words]
    seen: set[tuple[int, ...]] = set()
    heap: list[tuple[float, tuple[int, ...]]] = [(0.0, tuple(0 for _ in options))]
    weight = [
        0.9
        if w.word in ("rewards", "advantages", "token_ids", "completions")
        else 1.3
        if w.word.endswith("_mask")
        else 1.0
        for w in words
    ]
    while heap:
        cost, picks = heapq.heappop(heap)
        if picks in seen:
            continue
        seen.add(picks)
        chosen = [options[i][k] for i, k in enumerate(picks)]
        if _consistent(words, chosen):
            yield {id(w): f for w, f in zip(words, chosen, strict=False)}
        for i, k in enumerate(picks):
            if k + 1 < len(options[i]):
                heapq.heappush(heap, (cost + weight[i], (*picks[:i], k + 1, *picks[i + 1 :])))


_OF_SAMPLES = frozenset(
    "sample_ids prompt_id_lists completion_id_lists label_lists mask_lists attention_lists prompt_lengths "
    "sample_lengths answer_spans".split()
)
"""Entries of training samples, which come for all samples or for one."""


def _consistent(words: Sequence[WordSource], forms: Sequence[Form]) -> bool:
    """Masks of one function have one dtype; one call has one mode."""
    kinds = {
        f.name.split()[-1]
        for w, f in zip(words, forms, strict=False)
        if w.word == "completion_mask" and not f.name.startswith("list")
    }
    modes = {f.mode for f in forms} - {"batch"}
    if len(kinds) > 1 or len(modes) > 1:
        return False
    if len({f.mode for w, f in zip(words, forms, strict=False) if w.word in _OF_SAMPLES and not w.per_row}) > 1:
        return False
    return not (modes and any("one per group" in f.name or "[P, G]" in f.name for f in forms))


def _mark_ungrouped(b: Binder, words: Sequence[WordSource]) -> None:
    """Without group ids or sizes, a function that speaks of a group is given one group at a time."""
    have = {w.word for w in words}
    mask = "completion_mask" in have
    for w in words:
        if w.word not in ("rewards", "token_rewards"):
            continue
        if mask and "rows" in w.hints.signs:
            w.hints.signs.add("masked rows")
        grouped = have & {"group_ids", "group_size"} or "rows" in w.hints.signs or "group_size" in b.known
        if grouped or "grouped" in w.hints.signs:
            continue
        text = f"{b.loaded.qualname} {b.loaded.doc} {w.path}".lower()
        shape = w.hints.shape()
        per_group = re.search(
            r"\b(a|one|single|the|its|each) group\b|rewards of (a|one|the) (group|prompt)"
            r"|\bgroup_rewards\b|per_group\b",
            text,
        )
        letters = shape is not None and shape[0] in (
            "G",
            "K",
            "g",
            "k",
            "group_size",
            "n_samples",
            "num_generations",
        )
        algorithm = str(b.intent.get("algorithm", "")).lower()
        grpo = (
            algorithm in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
            and shape is None
            and "iterated" not in w.hints.signs
        )
        batch = re.search(r"\bbatch\b|whole batch|reinforce", text)
        if letters or ((shape is None or len(shape) == 1) and (per_group or (grpo and not batch))):
            w.hints.signs.add("ungrouped")


def _says_missing(error: str, path: str) -> bool:
    """Whether a KeyError or AttributeError is about this entry."""
    _, steps = source.parse_path(path)
    return (
        error.startswith(("KeyError", "AttributeError")) and bool(steps) and any(s[1] and s[1] in error for s in steps)
    )
