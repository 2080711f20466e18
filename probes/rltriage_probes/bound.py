"""A bound function: calls with words of the vocabulary go in, canonical observations come out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rltriage_probes import aliases, invoke, reports, traces, trajectories
from rltriage_probes.contract import BindingReport
from rltriage_probes.filling import SCALARS, WordSource
from rltriage_probes.forms import DERIVED, ROW_WORDS, SAMPLE_WORDS, Call, Form, Layout, Missing, Mode, forms_for
from rltriage_probes.invoke import NotReached, WrongShape
from rltriage_probes.model import CallFailed, Observation
from rltriage_probes.selfs import Box

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder
    from rltriage_probes.loading import Loaded


class Tap(Protocol):
    """Sees what the user's function itself is given and gives."""

    def called(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None: ...

    def returned(self, result: Any) -> None: ...


class Bound:
    """A user function that can be called with words of the vocabulary. Implements `model.BoundFunction`."""

    def __init__(
        self, binder: Binder, function: Callable[..., Any], make_self: Callable[[Call], Any] | None, layout: Layout,
        forms: Mapping[int, Form],
    ) -> None:  # fmt: skip
        self._binder = binder
        self._function = function
        self._make_self = make_self
        self._layout: Layout = layout
        self._forms = forms
        self._role = binder.role
        self._root = binder.loaded.root
        self._file = binder.loaded.path
        self._stand_ins = binder.loaded.stand_ins
        self._mode: Mode = next((f.mode for f in forms.values() if f.mode != "batch"), "batch")  # pyright: ignore[reportAttributeAccessIssue]
        self._rewards_form = next((f.name for f in forms.values() if f.word == "rewards"), "")
        self._sources = list(binder.plan.words())
        have = {w.word for w in self._sources}
        self._dense = (
            self._role.name in ("policy_loss", "kl", "aggregate", "importance_weights")
            and not have & {"completion_mask", "attention_mask"}
            and (layout in ("packed", "ragged") or "lengths" in have)
        )
        """Lengths in place of a mask: the function gets the trained tokens of a row and no others."""
        shared = self._role.name == "reward" and any("one per group" in f.name for f in forms.values())
        self._copies = int(binder.known.get("group_size") or 4) if shared else 1
        """How often each completion is handed over where one gold answer serves a whole group."""
        self._returns = ""
        self._part: int | None = None
        self._chosen: dict[str, Any] = {}
        self._no_grad = layout == "arrays"
        self.tap: Tap | None = None
        """Told of each call while a reproduction is made."""
        self.report = BindingReport()
        self.names: frozenset[str] = frozenset()
        self.settings: Mapping[str, Any] = {}

    @property
    def loaded(self) -> Loaded:
        return self._binder.loaded

    @property
    def replaced(self) -> tuple[str, ...]:
        """Helpers of the function whose result the cases give."""
        return tuple(self._binder.seams)

    def constructor(self) -> dict[str, Any] | None:
        """Arguments with which the user's own constructor makes `self`; None where a stand-in is one."""
        b = self._binder
        if self._make_self is None or len(b.plan.selfs) < 2 or self._make_self is not b.plan.selfs[0]:
            return None
        call = b.current or Call(dict(b.example.inputs))
        return {s.path.removeprefix("self."): s.give(call) for s in b.plan.self_source}

    # The protocol

    def call(self, inputs: Mapping[str, Any], wrt: Sequence[str] = (), dtype: str = "float32") -> Observation:
        values, roots = invoke.leaves(inputs, () if self._no_grad else wrt, dtype)
        versions = {k: v._version for k, v in values.items() if hasattr(v, "_version")}  # noqa: SLF001  torch has no other
        try:
            value = self._value(values)
        except CallFailed as e:
            if not roots or not self._scores_in_numpy(e):
                traces.asked(inputs, raw=False, wrt=wrt, error=e.error)
                raise
            self._no_grad = True
            return self.call(inputs, (), dtype)
        mutated = tuple(k for k, n in versions.items() if values[k]._version != n)  # noqa: SLF001
        got = invoke.observe(
            value, roots, dtype, mutated, self._root, self._file, keep_graph=self.tap is not None
        )  # fmt: skip
        traces.asked(inputs, raw=False, wrt=wrt, value=got.value)
        return got

    def call_raw(self, inputs: Mapping[str, Any]) -> Any:
        values, _ = invoke.leaves(inputs, (), "float32")
        try:
            result = self._run(Call(values, self._layout))
        except CallFailed as e:
            traces.asked(inputs, raw=True, error=e.error)
            raise
        traces.asked(inputs, raw=True, value=result)
        return result

    def _drained(self, result: Any, call: Call) -> Any:
        """What a generator yields: one entry a sample, or the pieces of one text."""
        parts: list[Any] = invoke.guarded(lambda: list(result), self._root, self._file)
        if len(parts) == call.samples() > 1 or not all(isinstance(p, str) for p in parts):
            return parts
        return "".join(parts)

    def variant(self, keywords: Mapping[str, Any]) -> Bound:
        """The same function with other values for parameters that stay at their defaults."""
        other = copy.copy(self)
        other._chosen = dict(keywords)  # noqa: SLF001  its own class
        return other

    # Inside

    def _scores_in_numpy(self, e: CallFailed) -> bool:
        """Whether a function that nobody differentiates left torch; a loss that does so is broken."""
        return self._role.name != "policy_loss" and "numpy() on Tensor that requires grad" in e.error

    def _value(self, values: Mapping[str, Any]) -> Any:
        order = _kept_first(values) if self._dense else None
        call = Call(values if order is None else _compacted(values, order), self._layout)
        result = self._run(call)
        if self._role.returns == "estimates":
            estimates = trajectories.read(result, self._binder.facts.returned, call, self._layout, self._mode)
            self._last, self._where = estimates.says, "the result"
            return estimates.value
        part = self._extract(result, call)
        try:
            # weights that are multiplied in at once: what comes back is a loss
            summed = self._role.name == "importance_weights" and "token_losses" in self._words()
            got = invoke.canonical(
                part,
                "scalar" if summed else self._role.returns,
                call,
                self._layout,
                self._mode,
                self._rewards_form,
                self._role.name,
            )
        except WrongShape as e:
            if self._returns:
                raise CallFailed(f"returns {e}", "") from None
            raise
        self._last = got.says
        value = self._in_sample_order(got.value, call)
        return value if order is None or value.shape != order.shape else value.gather(1, order.argsort(1))

    def _in_sample_order(self, value: Any, call: Call) -> Any:
        """Undoes the grouping of a form that handed the samples over group by group."""
        import torch

        grouped = self._mode == "per group" or "one per group" in self._rewards_form
        if not grouped or value.shape[:1] != (call.samples(),):
            return value
        order = [i for g in call.groups() for i in g]
        if order == list(range(len(order))):
            return value
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return value[back]

    def _extract(self, result: Any, call: Call) -> Any:
        if isinstance(result, list) and self._mode != "batch":
            return [self._extract_one(r, call) for r in result]
        return self._extract_one(result, call)

    def _extract_one(self, result: Any, call: Call) -> Any:
        def echoes(part: Any) -> bool:
            return any(invoke.same_numbers(part, v) for k, v in call.inputs.items() if k in ROW_WORDS or k == "rewards")

        got = invoke.extract(result, self._role.name, self._binder.facts.returned, echoes, self._part)
        self._part = got.part
        value = got.value
        if isinstance(value, list) and value and isinstance(value[0], (dict, Box)):
            value = [invoke.extract(v, self._role.name).value for v in value]
        self._where = got.where
        return value

    def _run(self, call: Call) -> Any:
        for w in self._sources:
            w.form = self._forms.get(id(w), w.form)
        if self._copies > 1 and len(call.inputs["answers"]) == len(call.inputs["completions"]):
            return _every(self._once(_repeated(call, self._copies)), self._copies)
        if self._mode == "batch":
            return self._once(call)
        if self._mode == "per row" and self._role.returns in ("text", "number", "raw") and call.samples() == 0:
            return []
        return [self._once(part) for part in self._parts(call)]

    def _parts(self, call: Call) -> Iterator[Call]:
        import torch

        rows = call.groups() if self._mode == "per group" else [[i] for i in range(call.samples())]
        for index in rows:
            part: dict[str, Any] = {}
            for word, value in call.inputs.items():
                if word not in SAMPLE_WORDS:
                    part[word] = value
                elif isinstance(value, torch.Tensor):
                    part[word] = value[torch.tensor(index)]
                else:
                    part[word] = [value[i] for i in index]
            yield Call(part, call.layout)

    def _once(self, call: Call) -> Any:
        binder = self._binder
        binder.current = call
        plan = binder.plan
        positional = [s.give(call) for s in plan.positional]
        keywords: dict[str, Any] = {}
        for name, s in plan.keywords.items():
            if isinstance(s, WordSource) and s.word not in call.inputs and name in binder.signature.parameters:
                p = binder.signature.parameters[name]
                if p.default is not p.empty and s.fallback is p.default:
                    continue  # left at the user's own default
            keywords[name] = s.give(call)
        keywords.update(self._chosen)
        if self._make_self is not None:
            maker = self._make_self
            me = invoke.guarded(lambda: maker(call), self._root, self._file)
            positional.insert(0, me)
        if self.tap is not None:
            self.tap.called(positional, keywords)
        function = self._function
        result = invoke.guarded(lambda: function(*positional, **keywords), self._root, self._file)
        if inspect.iscoroutine(result):
            result = invoke.awaited(result, self._root, self._file)
        elif inspect.isgenerator(result):
            result = self._drained(result, call)
        if self._stand_ins is not None:
            self._stand_ins.check()
        if self._role.name in trajectories.WRITERS:
            result = trajectories.written(result, [*positional, *keywords.values()], call, self._role.name)
        if result is None and self._role.name != "extract_answer":  # which says so where there is no answer
            changed = [v for v in keywords.values() if isinstance(v, (Box, list))]
            result = changed[0] if changed else None
        if self.tap is not None:
            self.tap.returned(result)
        return result

    def describe(self) -> str:
        """The forms of this trial, those that differ from function to function."""
        return ", ".join(f"{f.word} {f.name}" for f in self._forms.values() if f.word not in SCALARS)[:200]

    def try_out(self) -> None:
        """One call on the example. Raises what is wrong with this combination of forms."""
        inputs = self._binder.example.inputs
        if self._role.returns in ("text", "number", "raw"):
            result = self.call_raw(inputs)
            refused = self._role.refuses(result, inputs)
            if refused:
                raise WrongShape(refused)
            self._last = _judge_text(result, self._role.returns, self._sources, inputs)
            self._where = "the result"
            return
        values, _ = invoke.leaves(inputs, (), "float32")
        self._value(values)

    def untried(self) -> Bound:
        """The same without a call that worked."""
        self._last, self._where = "nothing on the example, on which it raises", "the result"
        return self

    def _seeded(self, inputs: Mapping[str, Any], wrt: str) -> Observation:
        """A call that can be compared with another one though the function may draw random numbers."""
        import torch

        torch.manual_seed(0)
        return self.call(inputs, (wrt,) if wrt else ())

    def rows_apart(self) -> bool:
        """Whether a sequence's advantage acts on that sequence alone: a form that broadcasts along the wrong
        axis mixes rows.
        """
        advantages = next((f for f in self._forms.values() if f.word == "advantages"), None)
        words = self._words()
        source_ = next((w for w in self._sources if w.word == "advantages"), None)
        if advantages is None or source_ is None or self._role.returns != "scalar":
            return True
        wrt = next((w for w in ("logprobs", "log_ratio", "ratio", "negative_log_ratio") if w in words), None)
        if wrt is None:
            return True
        inputs = _on_policy(self._binder.example.inputs)
        changed = inputs["advantages"].clone()
        changed[0] = changed[0] * 2 + 1
        try:
            before = self._seeded(inputs, wrt).grads.get(wrt)
            after = self._seeded({**inputs, "advantages": changed}, wrt).grads.get(wrt)
        except (CallFailed, NotReached, WrongShape):
            return False
        if before is None or after is None:
            return True
        return bool((before[1:] - after[1:]).abs().max() <= 1e-9 + 1e-5 * before.abs().max())

    def one_a_sequence(self) -> Bound | None:
        """The same with advantages [B, 1], where the function works on whole sequences and [B, T] changes its result.

        A function that never looks at masked positions can't tell the two apart, unless it has one value a
        sequence and averages over the columns that [B, T] adds.
        """
        import torch

        place = next((w for w in self._sources if w.word == "advantages"), None)
        mask = self._binder.example.inputs.get("completion_mask")
        if place is None or mask is None or self._role.returns != "scalar" or self._forms[id(place)].name != "[B, T]":
            return None
        shape = place.hints.shape()
        form = next((f for f in forms_for("advantages", place.hints, "padded") if f.name == "[B, 1]"), None)
        if form is None or (shape is not None and len(shape) == 2 and shape[1] != "1"):
            return None
        other = Bound(self._binder, self._function, self._make_self, self._layout, {**self._forms, id(place): form})
        wrt = next((w for w in ("logprobs", "log_ratio", "ratio", "negative_log_ratio") if w in self._words()), "")
        try:
            mine = self._seeded(self._binder.example.inputs, wrt)
            theirs = other._seeded(self._binder.example.inputs, wrt)
        except (CallFailed, NotReached, WrongShape, Missing):
            return None
        grad = theirs.grads.get(wrt)
        same = mine.value.shape == theirs.value.shape and torch.allclose(mine.value, theirs.value, rtol=1e-5, atol=1e-7)
        leaks = grad is None or bool(grad[mask == 0].abs().sum() > 0)
        return None if same or leaks else other

    def _words(self) -> set[str]:
        return {w.word for w in self._sources} | self._binder.seam_words()

    def finish(self) -> Bound:
        """Fixes names, settings and the report once the forms are settled."""
        binder = self._binder
        for w in self._sources:
            w.form = self._forms.get(id(w), w.form)
        names = {f.word for f in self._forms.values()} | binder.seam_words() | (binder.dynamic & set(self._role.takes))
        inputs = binder.example.inputs
        for word in [w for w in names if w not in inputs]:
            names |= set(DERIVED.get(word, ())) & set(inputs)
            if word not in SCALARS and word != "model":
                names.discard(word)
        for form in self._forms.values():
            names |= _used_by(form, inputs)
        if self._layout in ("packed", "ragged") or self._dense:
            names |= {
                w
                for w in ("completion_mask", "lengths", "attention_mask")
                if w in binder.example.inputs and w in self._role.takes
            }
        self.names = frozenset(names)
        for name, value, _ in binder.plan.left:
            match = aliases.resolve(name, self._role.name, SCALARS & binder.takes)
            switch = isinstance(value, bool) and (match is None or match.word != "scale_rewards")
            if match is not None and isinstance(value, (int, float, str)) and not switch:
                binder.know(match.word, aliases.canonical_choice(match.word, value), "default")
        self.settings = dict(binder.known)
        self._returns = self._last if self._where == "the result" else f"{self._last} ({self._where})"
        if self._mode != "batch":
            self._returns += f", called {self._mode}"
        self.report = BindingReport(slots=reports.slots(binder), returns=self._returns)
        return self


def _on_policy(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs with all ratios at 1, where no clip takes the gradient of a row away."""
    out = dict(inputs)
    for word in ("old_logprobs", "rollout_logprobs"):
        if word in out and "logprobs" in out:
            out[word] = out["logprobs"].clone()
    for word in ("log_ratio", "negative_log_ratio"):
        if word in out:
            out[word] = out[word] * 0
    if "ratio" in out:
        out["ratio"] = out["ratio"] * 0 + 1
    return out


def _repeated(call: Call, copies: int) -> Call:
    """Each sample `copies` times in a row, with one gold answer for all of them."""
    given = {k: v for k, v in call.inputs.items() if k in ("completions", "prompts")}
    several = {k: [x for x in v for _ in range(copies)] for k, v in given.items()}
    return Call({**call.inputs, **several, "group_size": copies}, call.layout)


def _every(result: Any, copies: int) -> Any:
    """The entries of one copy of each sample."""
    if isinstance(result, dict):
        return {k: _every(v, copies) for k, v in result.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(result, tuple) and not hasattr(result, "_fields"):
        return tuple(_every(v, copies) for v in result)  # pyright: ignore[reportUnknownVariableType]
    sliced = isinstance(result, list) or getattr(result, "ndim", 0) > 0
    return result[::copies] if sliced else result


def _kept_first(values: Mapping[str, Any]) -> Any:
    """For each row the columns that the mask keeps, then the others; None without a mask."""
    mask = values.get("completion_mask")
    return None if mask is None else mask.eq(0).long().argsort(dim=1, stable=True)


def _compacted(values: Mapping[str, Any], order: Any) -> dict[str, Any]:
    """The inputs with each row's kept tokens moved to the front."""
    out = dict(values)
    for word, value in values.items():
        if word in ROW_WORDS and getattr(value, "shape", None) == order.shape:
            out[word] = value.gather(1, order)
    if "lengths" in out:
        out["lengths"] = values["completion_mask"].ne(0).sum(1)
    return out


def _used_by(form: Form, inputs: Mapping[str, Any]) -> set[str]:
    """Words that a form needs besides its own."""
    wanted: set[str] = set()
    if "[P, G]" in form.name or form.mode == "per group":
        wanted = {"group_size"} if "group_size" in inputs else {"group_ids"}
    elif "one per group" in form.name:
        wanted = {"group_ids"}
    elif "T + 1" in form.name:
        wanted = {"last_value"}
    elif "P + T" in form.name:
        wanted = {"prompt_values", "prompt_length"}
    elif "columns of" in form.name:
        wanted = {"prompt_length"}
    elif "completion's ids" in form.name:
        wanted = {"prompt_length", "completion_mask", "lengths"}
    return wanted & set(inputs)


def _judge_text(result: Any, returns: str, sources: Sequence[WordSource], inputs: Mapping[str, Any]) -> str:
    """Whether a text function gave one entry a sample; what it gave, in words."""
    many = [w.word for w in sources if w.word in ("completions", "texts", "token_ids") and w.word in inputs]
    part = invoke.extract(result, "reward" if returns == "number" else "decode").value
    if hasattr(part, "tolist"):
        part = part.tolist()
    if not many:
        if result is None and returns != "raw":
            raise WrongShape("None")
        return type(result).__name__
    n = len(inputs[many[0]])
    if isinstance(part, (list, tuple)):
        # a wrong number of entries is a finding of the role, not a wrong form
        return f"list of {len(part)}" if len(part) == n else f"list of {len(part)} for {n} samples"
    if isinstance(result, Mapping) or hasattr(result, "__dataclass_fields__"):
        return type(result).__name__
    raise WrongShape(f"a {type(result).__name__} for {n} samples")
