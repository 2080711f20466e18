"""Parameters that carry several inputs: batches, records, configs, `**kwargs`."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, source
from rltriage_probes.filling import SCALARS, FixedSource, MadeSource, Source, WordSource, as_class, evaluate, fill, walk
from rltriage_probes.forms import Call, Missing, micro_batches
from rltriage_probes.invoke import NotReached
from rltriage_probes.selfs import LEARNING_ROLES, NOTHING, Box, ConfigBox, default_config, is_config
from rltriage_probes.source import Path, Step
from rltriage_probes.vocabulary import WORDS

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder


def record_keys(b: Binder, root: str, path: Path) -> list[Path]:
    """Paths behind this place that name an entry of a container."""
    out: list[Path] = []
    for full in list(b.facts.reads.get(root, {})):
        behind = full[len(path) :]
        if full[: len(path)] == path and behind and _names_entry(behind):
            out.append(full)
    return _as_a_whole(b, root, path, out) if b.role.name in ("sft_labels", "chat_tokens") else out


_WHOLE = frozenset(
    "messages conversations answer_spans sample_ids label_lists mask_lists prompt_id_lists completion_id_lists "
    "attention_lists prompt_lengths".split()
)
"""Words whose parts are no entries of their own."""


def _as_a_whole(b: Binder, root: str, path: Path, found: Sequence[Path]) -> list[Path]:
    """The paths, cut behind an entry that is handed over in one piece; none where the place itself is one."""
    name = path[-1][1] if path else root
    if name and b.meaning(root, name, path, "", NOTHING)[0] in _WHOLE:
        return []
    out: dict[Path, None] = {}
    for full in found:
        ends = (n for n in range(len(path) + 1, len(full) + 1) if full[n - 1][1])
        end = next((n for n in ends if b.meaning(root, full[n - 1][1], full[:n], "", NOTHING)[0] in _WHOLE), len(full))
        b.facts.reads[root].setdefault(full[:end], b.facts.reads[root][full])
        out[full[:end]] = None
    return list(out)


def _names_entry(behind: Path) -> bool:
    named = [s for s in behind if s[0] != "each"]
    return bool(named) and named[0][1] not in ("content", "role", "message")


def is_container(b: Binder, root: str, path: Path) -> bool:
    keys = record_keys(b, root, path)
    named = (path[-1][1] if path else root).lower()
    if b.role.name == "reward" and named in aliases.WHOLE_GOLDS:
        return False
    return any(not b.facts.reads[root][k].tested for k in keys) or bool(
        keys and named in aliases.CONTAINER_NAMES | aliases.CONFIG_NAMES
    )


def container(  # noqa: C901  one question after the other
    b: Binder, root: str, name: str, path: Path, annotation: str, default: Any
) -> Source | None:
    shown = source.render(root, path)
    own = _own_default(b, shown, root, path, default)
    if own is not None:
        return own
    configured = is_config(name, annotation)
    keys = record_keys(b, root, path)
    objects = [k for k in keys if _holds_object(b, root, k)]
    keys = [k for k in keys if not any(k != o and k[: len(o)] == o for o in objects)]
    leaves = [k for k in keys if not any(o != k and o[: len(k)] == k for o in keys)]
    rows = all(k[len(path)][0] == "each" for k in leaves)
    filled: list[tuple[Path, Source]] = []
    for full in leaves:
        read = b.facts.reads[root][full]
        entry = full[-1][1] or next((s[1] for s in reversed(full) if s[1]), "")
        got = place_entry(b, root, entry, full)
        if got is None and not read.optional:
            got = _gold_entry(b, root, name, path, entry, full)
        if got is not None:
            if isinstance(got, WordSource):
                got.per_row = rows
            filled.append((full[len(path) :], got))
        elif not read.optional and not configured:
            if default is not NOTHING and not filled:
                return None
            b.plan.doubtful.append(source.render(root, full))
    filled = _without_doubles(b, root, filled)
    if b.role.name == "sft_labels" and _copied_blindly(b, name, filled):
        return b.records(shown)
    if configured:
        return config(b, shown, name, annotation, root, path, [s for _, s in filled])
    if not filled and default is not NOTHING and not b.generous:
        return None
    inner = [s for _, s in filled]
    each = [(p, s) for p, s in filled if p[0][0] == "each"]
    if each and not rows and b.role.name == "reward":
        whole = [(p, s) for p, s in filled if p[0][0] != "each"]
        return MadeSource(path=shown, build=lambda call: _both(b, shown, whole, each, call), inner=inner)
    cls = _class(b, annotation)
    if rows:
        return MadeSource(path=shown, build=lambda call: _rows(b, shown, filled, call), inner=inner)
    return MadeSource(path=shown, build=lambda call: _box(b, shown, filled, call, cls), inner=inner)


def _copied_blindly(b: Binder, name: str, filled: Sequence[tuple[Path, Source]]) -> bool:
    """Whether code gets training samples and copies their entries without spelling the keys."""
    words = {s.word for _, s in filled if isinstance(s, WordSource)}
    return b.is_records(name) and words <= {"label_lists"}


def _holds_object(b: Binder, root: str, path: Path) -> bool:
    """Whether an entry is a tokenizer or a model as a whole, whatever is read from it."""
    entry = path[-1][1]
    return bool(entry) and b.meaning(root, entry, path, "", NOTHING)[0] in ("tokenizer", "model")


def _gold_entry(b: Binder, root: str, name: str, path: Path, entry: str, full: Path) -> Source | None:
    """An entry of a reward's gold answers, where each is a record with fields of the task's own: the answer itself."""
    if b.role.name != "reward":
        return None
    word, how, _ = b.meaning(root, name, path, "", NOTHING)
    return b.word_source(source.render(root, full), entry, word, how, False, "", NOTHING) if word in _GOLDS else None


_GOLDS = ("answers", "answer")


def _without_doubles(b: Binder, root: str, filled: list[tuple[Path, Source]]) -> list[tuple[Path, Source]]:
    """Leaves out optional entries whose word comes through another entry: `tool_mask` beside `completion_mask`."""

    def optional(s: Source) -> bool:
        at, path = source.parse_path(s.path)
        return b.facts.read(at, path).optional and s.path not in b.explicit

    if b.role.name in ("sft_labels", "chat_tokens"):
        filled = _one_shape(filled, optional)
    sure = {s.word for _, s in filled if isinstance(s, WordSource) and not optional(s)}
    return [(p, s) for p, s in filled if not (isinstance(s, WordSource) and s.word in sure and optional(s))]


def _one_shape(filled: list[tuple[Path, Source]], optional: Callable[[WordSource], bool]) -> list[tuple[Path, Source]]:
    """A training sample in one of the shapes that a function knows: as messages, or as prompt and completion."""
    words = {s.word for _, s in filled if isinstance(s, WordSource)}
    other = {"prompt", "prompts", "completion", "completions"} if words & {"messages", "conversations"} else set[str]()
    out: list[tuple[Path, Source]] = []
    seen: set[str] = set()
    for path, s in filled:
        spare = isinstance(s, WordSource) and optional(s) and (s.word in other or s.word in seen)
        if not spare:
            out.append((path, s))
        if isinstance(s, WordSource):
            seen.add(s.word)
    return out


def place_entry(b: Binder, root: str, entry: str, full: Path) -> Source | None:
    """An entry of a container; the meaning of its last name, else of the one before (`batch.tensors["x"]`)."""
    shown = source.render(root, full)
    if shown in b.explicit:
        return b.said(shown, entry, "", NOTHING)
    short = f"{root}.{entry}"
    if short in b.explicit:
        b.explicit[shown] = b.explicit[short]
        return b.said(shown, entry, "", NOTHING)
    word, how, inverted = b.meaning(root, entry, full, "", NOTHING)
    optional = b.facts.reads[root][full].optional
    if optional and how == "similar name":
        return None
    if word and (word not in SCALARS or not optional or word in b.settings or word in b.example.inputs):
        return b.word_source(shown, entry, word, how, inverted, "", NOTHING)
    if word and word in b.intent:
        return b.word_source(shown, entry, word, how, inverted, "", NOTHING)
    return None if optional else b.constant(shown, entry, NOTHING)


def _rows(b: Binder, shown: str, filled: Sequence[tuple[Path, Source]], call: Call) -> list[Any]:
    columns = [(path, s.give(call)) for path, s in filled]
    n = len(micro_batches(call.samples())) if call.layout == "micro" else call.samples()
    out: list[Any] = []
    golds = bool(filled) and all(isinstance(s, WordSource) and s.word in _GOLDS for _, s in filled)
    for i in range(n):
        box = Box(f"{shown}[*]", b.look_up)
        if golds and all(_entry(values, i, n, shown) is None for _, values in columns):
            out.append(None)  # a row without a gold answer has no record
            continue
        for path, values in columns:
            value = _entry(values, i, n, f"{shown}[*]{source.render('', path[1:])}")
            if getattr(value, "ndim", None) == 0 and not getattr(value, "requires_grad", False):
                value = _number(value.item(), f"{shown}[*]{source.render('', path[1:])}")  # pyright: ignore[reportAttributeAccessIssue]
            fill(box, path[1:], value, shown)
        out.append(box)
    return out


class _Batch(Box):
    """A batch that is read as a whole and row by row, as verl's `DataProto`."""

    def __len__(self) -> int:
        return len(self.__dict__["_items"])

    def __iter__(self) -> Any:
        return iter(self.__dict__["_items"])

    def __getitem__(self, key: Any) -> Any:
        return self.__dict__["_items"][key] if isinstance(key, (int, slice)) else super().__getitem__(key)


def _both(
    b: Binder,
    shown: str,
    whole: Sequence[tuple[Path, Source]],
    each: Sequence[tuple[Path, Source]],
    call: Call,
) -> Any:
    batch = _Batch(shown, b.look_up)
    batch.__dict__["_items"] = _rows(b, shown, each, call)
    for path, s in whole:
        fill(batch, path, s.give(call), shown)
    return batch


class _NoTensor(NotReached, AttributeError):
    """Also an `AttributeError`, since the user's code may ask with `hasattr`."""


class _Number(float):
    """A record's number. Where the function takes it for a tensor, the records are not what it works on."""

    path: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _NoTensor(
            f"{self.path} is one number in each record, but the function uses its .{name}: its records hold tensors",
            "Name a function that takes the batch, or the lines inside this one, with their inputs.",
        )


def _number(value: Any, shown: str) -> Any:
    if not isinstance(value, float):
        return value
    number = _Number(value)
    number.path = shown
    return number


def _entry(values: Any, i: int, n: int, shown: str) -> Any:
    """What record `i` of `n` gets of a column; a scalar goes to all."""
    if not hasattr(values, "__getitem__") or isinstance(values, str) or getattr(values, "ndim", 1) == 0:
        return values
    if len(values) != n:
        raise NotReached(
            f"{shown} would get one of {len(values)} values in each of {n} records",
            "Name a function that takes the batch, or the lines inside this one, with their inputs.",
        )
    return values[i]


def _box(b: Binder, shown: str, filled: Sequence[tuple[Path, Source]], call: Call, cls: type | None) -> Any:
    box = Box(shown, b.look_up)
    for path, s in filled:
        try:
            value = s.give(call)
        except Missing:
            continue
        fill(box, path, value, shown)
    return as_class(cls, box) if cls is not None else box


def config(
    b: Binder, shown: str, name: str, annotation: str, root: str, path: Path, inner: Sequence[Source] = ()
) -> Source:
    cls = _class(b, annotation)
    optional = frozenset(
        steps[len(path)][1]
        for steps, read in b.facts.reads.get(root, {}).items()
        if len(steps) == len(path) + 1 and steps[: len(path)] == path and read.optional
    )
    inner = [s for s in inner if not isinstance(s, WordSource) or s.word in SCALARS or s.how == "bind"]
    _know_fallbacks(b, root, path)
    sections = _sections(b, shown, root, path)

    def known(entry: str) -> Any:
        return known_entry(b, root, entry, path)

    def build(call: Call) -> Any:
        if cls is not None:
            made = default_config(cls, known)
            if made is not NOTHING:
                return made
        box = ConfigBox(shown, b.look_up_setting, optional)
        for step, section in sections:
            box.put(*step, section.give(call))
        for s in inner:
            _, steps = source.parse_path(s.path)
            try:
                fill(box, steps[len(path) :], s.give(call), shown, ConfigBox)
            except Missing:
                continue
        return box

    if cls is not None:
        made = default_config(cls, known)
        if made is not NOTHING:
            inner = [s for s in inner if not isinstance(s, WordSource) or s.word not in SCALARS]
            read_known(b, made, root, path)
    return MadeSource(path=shown, build=build, inner=list(inner))


def _sections(b: Binder, shown: str, root: str, path: Path) -> list[tuple[Step, Source]]:
    """Parts of a config that the function reads on: `config["rollout"]["n"]`."""
    steps = dict.fromkeys(
        full[len(path)]
        for full in b.facts.reads.get(root, {})
        if len(full) > len(path) + 1
        and full[: len(path)] == path
        and "each" not in (full[len(path)][0], full[len(path) + 1][0])
    )
    return [(s, config(b, source.render(shown, (s,)), s[1], "", root, (*path, s))) for s in steps]


def _know_fallbacks(b: Binder, root: str, path: Path) -> None:
    """Settings that the function falls back to where a config lacks them: `cfg.get("eps", 1e-6)`."""
    for steps, read in b.facts.reads.get(root, {}).items():
        if steps[: len(path)] != path or not isinstance(read.fallback, (int, float, str)):
            continue
        word, _, _ = b.meaning(root, steps[-1][1], steps, "", read.fallback)
        if word in SCALARS and b.scalar(word, NOTHING, generous=False)[0] is NOTHING and word not in b.example.inputs:
            b.know(word, aliases.canonical_choice(word, read.fallback), "default")


def adjust(b: Binder, made: Any, root: str, base: Path, given: Collection[str] = ()) -> None:
    """Puts declared values into an object of the user's, or the config objects that it holds.

    `given` are words whose value the object has already been given.
    """
    for path in b.facts.reads.get(root, {}):
        behind = path[len(base) :]
        if path[: len(base)] != base or not behind or any(s[0] == "each" for s in behind):
            continue
        if root == "self" and len(behind) < 2:
            continue
        value = known_entry(b, root, path[-1][1], path[:-1])
        word, _, _ = b.meaning(root, path[-1][1], path, "", NOTHING)
        holder = walk(made, behind[:-1])
        if value is not NOTHING and holder is not NOTHING and word not in given:
            _put(holder, behind[-1], value)


def _put(holder: Any, step: Step, value: Any) -> None:
    kind, name = step
    with contextlib.suppress(Exception):  # objects of the user's that refuse keep what they have
        if kind == "key" and isinstance(holder, dict):
            holder[name] = value
        elif hasattr(holder, name):
            frozen = dataclasses.is_dataclass(holder) and not isinstance(holder, type)
            (object.__setattr__ if frozen else setattr)(holder, name, value)


def _own_default(b: Binder, shown: str, root: str, path: Path, default: Any) -> Source | None:
    """A config object that the function has as its default: a copy of it, declared values put in."""
    if default is NOTHING or default is None or isinstance(default, (str, int, float, list, tuple, type)):
        return None
    try:
        made = copy.deepcopy(default)
    except Exception:  # noqa: BLE001  the user's object
        return None
    if isinstance(made, dict) and not made:
        return None
    adjust(b, made, root, path)
    read_known(b, made, root, path)
    return FixedSource(path=shown, value=made, meaning="default", how="default")


def known_entry(b: Binder, root: str, entry: str, path: Path) -> Any:
    """A config entry's value by settings or intent, `NOTHING` where its own default shall stay."""
    for step in ("attr", "key"):
        shown = source.render(root, (*path, (step, entry)))
        if shown in b.explicit and b.explicit[shown].startswith("="):
            return evaluate(b.explicit[shown][1:], b.loaded.namespace)
    if entry in b.settings and entry not in WORDS:
        return b.settings[entry]
    full = (*path, ("attr", entry))
    word, _, _ = b.meaning(root, entry, full, "", NOTHING)
    if not word:
        return NOTHING
    if word in aliases.CHOICES:
        return aliases.spelled(word, b.settings[word], b.facts.compared(root, full)) if word in b.settings else NOTHING
    if b.role.name in LEARNING_ROLES and b.current is not None and word in b.current.inputs:
        b.dynamic.add(word)
        return b.current.inputs[word]
    value, how = b.scalar(word, NOTHING, generous=False)
    return value if how in ("settings", "intent") else NOTHING


def read_known(b: Binder, made: Any, root: str, base: Path) -> None:
    """Settings that an object really holds, under the names that the function reads."""
    for path in b.facts.reads.get(root, {}):
        if path[: len(base)] != base or len(path) == len(base) or any(s[0] == "each" for s in path):
            continue
        value = walk(made, path[len(base) :])
        word, _, _ = b.meaning(root, path[-1][1], path, "", NOTHING)
        if word and word in SCALARS and isinstance(value, (int, float, str)):
            b.attributes[source.render(root, path)] = (word, value)
            b.known[word] = aliases.canonical_choice(word, value)
            b.hows[word] = "attribute"


def class_named(b: Binder, annotation: str) -> type | None:
    """The user's class that an annotation names."""
    return _class(b, annotation)


def _class(b: Binder, annotation: str) -> type | None:
    """The user's class that an annotation names."""
    for name in source.re.findall(r"[A-Za-z_][\w.]*", annotation)[::-1]:
        value: Any = b.loaded.namespace.get(name.split(".")[0])
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        if not isinstance(value, type):
            value = b.loaded.namespace.get(name.split(".")[-1])
        if isinstance(value, type) and value.__module__ not in ("builtins", "typing", "torch", "numpy"):
            return value
    return None


def from_kwargs(b: Binder, name: str) -> dict[str, Source]:
    """Keyword arguments that the function takes out of its `**kwargs`."""
    out: dict[str, Source] = {}
    for path in b.facts.reads.get(name, {}):
        if len(path) == 1 and path[0][0] == "key":
            got = place_entry(b, name, path[0][1], path)
            if got is not None:
                out[path[0][1]] = got
            elif not b.facts.reads[name][path].optional:
                b.plan.open.append(path[0][1])
    for key in b.explicit:
        if source.re.fullmatch(r"\w+", key) and key not in b.signature.parameters and key not in out:
            out[key] = b.said(key, key, "", NOTHING)
    return out
