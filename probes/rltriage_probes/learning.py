"""Binding of functions that take a model itself: training steps and model factories.

Their inputs are objects with a history (a model, its optimizer, a trainer that keeps both), so nothing is
cloned or tried out here: the probe makes the objects, and this module says through which place each one enters.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, invoke, reports
from rltriage_probes.bound import Bound
from rltriage_probes.filling import SCALARS, FixedSource, MadeSource, Source, WordSource, as_class
from rltriage_probes.forms import Call, Hints, Missing
from rltriage_probes.invoke import NotReached
from rltriage_probes.selfs import NOTHING, Box, is_config
from rltriage_probes.vocabulary import WORDS

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder
    from rltriage_probes.loading import Loaded
    from rltriage_probes.source import Path

FALLBACKS: dict[str, Any] = {
    "lr": 1e-2, "max_grad_norm": 1e9, "accumulation_steps": 1, "micro_batch_size": 8, "lora_r": 4, "lora_alpha": 8,
    "lora_dropout": 0.0, "use_rslora": False, "beta": 0.0, "clip": 0.2, "clip_low": 0.2, "clip_high": 0.2,
    "temperature": 1.0, "pad_token_id": 0, "eos_token_id": 2, "entropy_coef": 0.0, "group_size": 4, "eps": 1e-6,
}  # fmt: skip
"""What a function demands and nobody says."""


# Names


def meaning(b: Binder, name: str, annotation: str, default: Any) -> tuple[str, str, bool]:
    """Word, rule and whether a mask is inverted, of a name in a function that takes a model."""
    plain = aliases.snake(name)
    takes = b.takes | {"logprobs"} if b.role.name == "train_step" else b.takes
    match = aliases.resolve(name, b.role.name, takes, b.docs.get(name, ""), annotation)
    if match is None or (match.how in ("docstring", "annotation") and match.word != "model"):
        return _by_ending(b, plain, default)
    if match.how == "similar name" and match.word in ("rewards", "token_rewards", "completion", "text"):
        return "", "", False
    word = "old_logprobs" if match.word == "logprobs" else match.word  # the policy's own come from the model
    if word == "batches" and match.how != "name":
        return "", "", False
    if WORDS[word].kind == "tensor" and isinstance(default, (bool, int, float, str)):
        return "", "", False
    if word in ("clip", "eps") and isinstance(default, float) and default <= 1e-5:
        word = "eps"
    return word, match.how, match.inverted


def _by_ending(b: Binder, plain: str, default: Any) -> tuple[str, str, bool]:
    """A model or optimizer by the last part of its name: `student_model`, `actor_optim`."""
    parts = plain.split("_")
    for ending, word in (("optimizer", "optimizer"), ("optim", "optimizer"), ("scheduler", "scheduler")):
        if parts[-1] == ending and word in b.takes:
            return word, "similar name", False
    if (
        parts[-1] in ("model", "policy", "module", "network", "net", "lm", "llm", "actor", "engine")
        and "model" in b.takes
        and default is NOTHING
    ):
        if set(parts) & {"critic", "value", "reward", "teacher", "judge", "embedding"}:
            return "", "", False
        word = "ref_model" if set(parts) & {"ref", "reference", "frozen", "initial", "sft"} else "model"
        return word, "similar name", False
    return "", "", False


# Places


def place(b: Binder, root: str, name: str, path: Path, annotation: str, default: Any, shown: str) -> Source | None:
    """The source of a place that holds a batch or an object; None where the usual rules decide."""
    if shown in b.explicit or shown in b.settings or (name in b.settings and name not in WORDS):
        return None
    word, how, inverted = meaning(b, name, annotation, default)
    if b.role.name == "model_factory" and word in ("model", "ref_model") and default is None and _reference(name):
        # the function makes one; ours would be the policy's own weights
        return FixedSource(path=shown, value=None, meaning="default", how="default")
    if b.role.name == "train_step" and not path and _is_batch(b, root, name, word, annotation):
        return _batch_source(b, root, shown, annotation)
    if word == "lora_config" and any(s[0] == "key" for p in b.facts.reads.get(root, {}) for s in p[len(path) :]):
        return None
    if word and word not in SCALARS and (word == "lora_config" or not is_config(name, annotation)):
        b.dynamic.add(word)
        if word == "batches":
            _note(b)
            return MadeSource(path=shown, build=lambda call: _batches(b, call, shown, annotation), meaning="batches")
        return WordSource(path=shown, word=word, how=how, hints=Hints(name=name, inverted=inverted), fallback=default)
    if word in SCALARS and default is NOTHING:
        value, by = b.scalar(word, NOTHING, generous=False)
        if value is NOTHING:
            value, by = FALLBACKS.get(word, NOTHING), "documented default"
        if value is not NOTHING:
            b.know(word, value, by)
            return WordSource(path=shown, word=word, how=how, hints=Hints(name=name), fallback=value)
    return constant(shown, name) if default is NOTHING and not word else None


def _reference(name: str) -> bool:
    return bool({"ref", "reference", "frozen", "initial"} & set(aliases.snake(name).split("_")))


_BATCH_PARTS = frozenset(("batch", "minibatch", "microbatch", "experience", "rollout", "rollouts", "samples"))


def _is_batch(b: Binder, root: str, name: str, word: str, annotation: str) -> bool:
    if is_config(name, annotation) or "called" in b.facts.signs.get(root, ()):
        return False
    plain = aliases.snake(name)
    if word in ("batches", "model", "ref_model", "optimizer", "accelerator", "scaler", "scheduler", "tokenizer"):
        return False
    if plain in aliases.CONTAINER_NAMES or set(plain.split("_")) & _BATCH_PARTS:
        return word not in SCALARS
    reads = b.facts.reads.get(root, {})
    keyed = [p for p in reads if p and p[-1][0] == "key" and meaning(b, p[-1][1], "", NOTHING)[0]]
    return bool(keyed) and not (word and WORDS[word].kind == "tensor")


def _batch_source(b: Binder, root: str, shown: str, annotation: str) -> Source:
    listed = "iterated" in b.facts.signs.get(root, ()) and not re.search(r"\b[Dd]ict\b|Mapping", annotation)
    if listed or root.endswith("batches"):
        _note(b)
        b.dynamic.add("batches")
        return MadeSource(path=shown, build=lambda call: _batches(b, call, shown, annotation), meaning="batches")
    _note(b)
    names = _unpacked(b, root)
    if names:
        b.dynamic |= {w for n in names if (w := meaning(b, n, "", NOTHING)[0])}
        return MadeSource(
            path=shown, build=lambda call: tuple(_entry(b, call, n) for n in names), meaning="tuple of the batch"
        )
    return MadeSource(path=shown, build=lambda call: _batch(b, call.inputs, shown, annotation), meaning="batch")


def _unpacked(b: Binder, root: str) -> list[str]:
    """Names of the parts of a batch that is a tuple: `ids, mask, advantages = batch`."""
    for node in ast.walk(b.loaded.node):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and len(node.targets) == 1:
            value = node.value
            if isinstance(value, ast.Name) and value.id == root:
                names = [e.id for e in node.targets[0].elts if isinstance(e, ast.Name)]
                if len(names) == len(node.targets[0].elts):
                    return names
    return []


def _entry(b: Binder, call: Call, name: str) -> Any:
    word = meaning(b, name, "", NOTHING)[0]
    if word not in call.inputs:
        raise NotReached(f"{name} of the batch has no meaning that is known", "Name a step that takes a batch by keys.")
    return call.inputs[word]


def _note(b: Binder) -> None:
    """Words that the batch's entries have, so that the probe knows what the step works with."""
    for name in _keys(b):
        word = meaning(b, name, "", NOTHING)[0]
        if word and word not in ("model", "optimizer", "ref_model"):
            b.dynamic.add(word)


def reachable(loaded: Loaded) -> list[ast.AST]:
    """The function and the helpers of its file that it may run, its class's constructor among them."""
    queue: list[Any] = [loaded.node]
    if loaded.kind == "method" and "self.__init__" in loaded.helpers:
        queue.append(loaded.helpers["self.__init__"])
    out: list[ast.AST] = []
    while queue:
        node = queue.pop(0)
        if any(node is o for o in out):
            continue
        out.append(node)
        for inner in ast.walk(node):
            name = ""
            if isinstance(inner, ast.Name):
                name = inner.id
            elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
                name = f"self.{inner.attr}"
            if name in loaded.helpers:
                queue.append(loaded.helpers[name])
    return out


def text_of(loaded: Loaded) -> str:
    """The code that a call may run, without comments."""
    return "\n".join(ast.unparse(n) for n in reachable(loaded))


def _keys(b: Binder) -> list[str]:
    """Names by which the code reads entries of containers, in order of appearance."""
    out: dict[str, None] = {}
    for node in (n for part in reachable(b.loaded) for n in ast.walk(part)):
        found: Any = None
        if isinstance(node, ast.Subscript):
            found = node.slice
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop")
            and node.args
        ):
            found = node.args[0]
        elif isinstance(node, ast.Compare) and any(isinstance(o, (ast.In, ast.NotIn)) for o in node.ops):
            found = node.left
        elif isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.iter, (ast.Tuple, ast.List)):
            out.update(dict.fromkeys(_strings(node.iter.elts)))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and _holds(node.value.id):
            out[node.attr] = None
        if isinstance(found, ast.Constant) and isinstance(found.value, str):
            out[found.value] = None
    return list(out)


def _holds(name: str) -> bool:
    plain = aliases.snake(name)
    return plain in aliases.CONTAINER_NAMES or bool(set(plain.split("_")) & _BATCH_PARTS)


def _strings(nodes: list[ast.expr]) -> list[str]:
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def _batch(b: Binder, values: Mapping[str, Any], shown: str, annotation: str) -> Any:
    """The batch as a mapping with every entry that the file reads, or as the user's own dataclass."""

    def lookup(name: str, path: str, generous: bool = True) -> Any:
        word = meaning(b, name, "", NOTHING)[0]
        return values.get(word, NOTHING)

    box = Box(shown, lookup)
    cls = _class(b, annotation)
    names = [f.name for f in dataclasses.fields(cls)] if cls is not None else _keys(b)
    if cls is None and any(
        isinstance(n, ast.keyword) and n.arg is None for p in reachable(b.loaded) for n in ast.walk(p)
    ):
        names += ["input_ids", "attention_mask", "labels"]  # `model(**batch)`
    for name in names:
        word = meaning(b, name, "", NOTHING)[0]
        if word in values and (WORDS[word].kind == "tensor" or cls is not None):
            box.put("attr" if cls is not None else "key", name, values[word])
    return as_class(cls, box) if cls is not None else box


def _batches(b: Binder, call: Call, shown: str, annotation: str) -> list[Any]:
    parts: Any = call.inputs.get("batches", [call.inputs])
    return [_batch(b, part, f"{shown}[*]", annotation) for part in parts]


def _class(b: Binder, annotation: str) -> Any:
    from rltriage_probes import containers

    cls = containers.class_named(b, annotation)
    return cls if cls is not None and dataclasses.is_dataclass(cls) else None


# Calling


class Learner(Bound):
    """A function that takes a model. Objects go in as they are; the `self` of a method can be kept over calls."""

    def __init__(self, binder: Binder) -> None:
        from rltriage_probes import trials

        super().__init__(binder, trials.function_of(binder), None, "padded", {})
        self._makers: list[Any] = list(binder.plan.selfs)
        self._kept: list[Any] | None = None
        self.last_self: Any = None
        """The trainer on which the last call ran."""
        self.names = frozenset({w.word for w in binder.plan.words()} | binder.dynamic)
        self.settings = self._defaults()
        self.report = dataclasses.replace(self.report, slots=reports.slots(binder))

    def _defaults(self) -> dict[str, Any]:
        b = self._binder
        for name, value, _ in b.plan.left:
            word = meaning(b, name, "", value)[0]
            if word in SCALARS and isinstance(value, (int, float, str)):
                b.know(word, value, "default")
        for w in b.plan.words():
            if w.word in SCALARS and isinstance(w.fallback, (int, float, str)):
                b.know(w.word, w.fallback, "default")
        return dict(b.known)

    def fall_back(self) -> bool:
        """Go over to the next way to get a `self`; False where there is none."""
        self._makers = self._makers[1:]
        return bool(self._makers)

    @contextlib.contextmanager
    def session(self) -> Generator[None, None, None]:
        """Calls inside run on one and the same `self`."""
        self._kept = []
        try:
            yield
        finally:
            self._kept = None

    def prepare(self, inputs: Mapping[str, Any]) -> Any:
        """The `self` of this session, made now where it is not there yet; None for a function."""
        if self._binder.loaded.kind != "method":
            return None
        call = Call(inputs)
        self._binder.current = call
        return self._self(call)

    def call_raw(self, inputs: Mapping[str, Any]) -> Any:
        """Raises `CallFailed` or `NotReached`."""
        try:
            return self._call(Call(inputs))
        except Missing as e:
            raise NotReached(
                f"{self._binder.loaded.qualname} wants {WORDS[e.word].says}, which the probe has not",
                "Name a function that takes a batch of token ids, masks and advantages.",
            ) from None

    def _call(self, call: Call) -> Any:
        b = self._binder
        b.current = call
        positional = [s.give(call) for s in b.plan.positional]
        keywords: dict[str, Any] = {}
        for name, s in b.plan.keywords.items():
            p = b.signature.parameters.get(name)
            left = isinstance(s, WordSource) and s.word not in call.inputs and p is not None
            if left and p is not None and p.default is not p.empty:
                continue
            keywords[name] = s.give(call)
        if b.loaded.kind == "method":
            positional.insert(0, self._self(call))
        function = self._function
        result = invoke.guarded(lambda: function(*positional, **keywords), b.loaded.root, b.loaded.path)
        self.names |= b.dynamic
        if b.loaded.stand_ins is not None:
            b.loaded.stand_ins.check()
        return result

    def _self(self, call: Call) -> Any:
        if self._kept:
            return self._kept[0]
        maker = self._makers[0]
        me = invoke.guarded(lambda: maker(call), self._root, self._file)
        if self._kept is not None:
            self._kept.append(me)
        self.last_self = me
        return me


def settle(b: Binder) -> Learner:
    return Learner(b)


def constant(shown: str, name: str) -> Source | None:
    """A value for what such functions demand besides: a kind of device or dtype, a number of epochs."""
    plain = aliases.snake(name)
    import torch

    values: dict[str, Any] = {
        "dtype": torch.float32, "torch_dtype": torch.float32, "epochs": 1, "num_epochs": 1, "ppo_epochs": 1, "epoch": 0,
        "inner_epochs": 1, "num_inner_epochs": 1, "update_epochs": 1, "step_idx": 0, "global_step": 0, "seed": 0,
        "num_iterations": 1, "device_map": None, "i": 0, "it": 0, "iteration": 0, "batch_idx": 0, "batch_index": 0,
    }  # fmt: skip
    if plain in values:
        return FixedSource(path=shown, value=values[plain], meaning="constant", how="name")
    return None
