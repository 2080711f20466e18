"""From a user's parameters to the words of the vocabulary, and back in every call.

`bind` reads names, annotations, docstring and source, settles what can't be read by calling the function
on the role's small example, and gives a `Bound`. Where something stays open it raises `BindingFailed`
with the manifest lines that would bind it.
"""

from __future__ import annotations

import heapq
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rltriage_probes import aliases, source
from rltriage_probes.bound import Bound
from rltriage_probes.contract import BindingReport, Slot
from rltriage_probes.filling import (
    SCALARS,
    FixedSource,
    MadeSource,
    Plan,
    Source,
    WordSource,
    as_class,
    evaluate,
    fill,
    walk,
)
from rltriage_probes.forms import (
    SAMPLE_WORDS,
    SINGLES,
    Call,
    Form,
    Hints,
    Layout,
    Missing,
    forms_for,
)
from rltriage_probes.invoke import NotReached, WrongShape
from rltriage_probes.loading import Loaded, StandInBase
from rltriage_probes.model import CallFailed, Role
from rltriage_probes.selfs import (
    NOTHING,
    Box,
    ConfigBox,
    InitReader,
    Seam,
    Unknown,
    default_config,
    is_config,
    stand_in,
    surroundings,
)
from rltriage_probes.source import Facts, Path
from rltriage_probes.vocabulary import WORDS

MAX_TRIALS = 64
CHOICE_WORDS = frozenset(aliases.CHOICES)
SETTING_WORDS = frozenset(
    "clip clip_low clip_high dual_clip clip_value beta entropy_coef temperature eps scale_rewards "
    "aggregation loss_type "
    "ratio_level kl_estimator gamma lam group_size max_completion_length eos_token_id pad_token_id "
    "chunk_size token_count "
    "row_count prompt_length completion_length".split()
)
"""Scalars that any function may take, whatever its role lists."""
DOCUMENTED: dict[str, Any] = {
    "clip": 0.2, "clip_low": 0.2, "clip_high": 0.2, "clip_value": 0.2, "beta": 0.04, "temperature": 1.0,
    "group_size": 4,
    "gamma": 1.0, "lam": 0.95, "entropy_coef": 0.0, "eps": 1e-6, "dual_clip": None, "scale_rewards": True,
    "chunk_size": 2,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
"""Values that papers and frameworks document, for what the function demands and nobody says."""
_CLIP = {
    "clip": ("clip", "clip_low", "clip_high"),
    "clip_low": ("clip_low", "clip"),
    "clip_high": ("clip_high", "clip", "clip_low"),
}


class BindingFailed(Exception):
    """The function can't be called as it stands; `report` says what is open and shows the lines that bind it."""

    def __init__(self, reason: str, report: BindingReport) -> None:
        super().__init__(reason)
        self.reason = reason
        self.report = report


def bind(
    loaded: Loaded,
    role: Role,
    explicit: Mapping[str, str],
    settings: Mapping[str, Any],
    intent: Mapping[str, Any],
    name: str = "",
) -> Bound:
    """The user's function as a `BoundFunction`.

    Raises `BindingFailed`, `CallFailed` (the function raises on the role's plainest example in every form
    of it) or `NotReached`.
    """
    failure: Exception | None = None
    bare = any(p.default is None for p in loaded.signature().parameters.values())
    for lists, generous in (
        (m, g) for g in ((False, True) if bare else (False,)) for m in _list_modes(loaded, role, explicit)
    ):
        binder = Binder(loaded, role, explicit, settings, intent, name or role.name, lists, generous)
        try:
            return binder.bound()
        except (BindingFailed, CallFailed, NotReached) as e:
            failure = failure or e
    assert failure is not None
    raise failure


def _list_modes(loaded: Loaded, role: Role, explicit: Mapping[str, str]) -> tuple[bool | None, ...]:
    """Whether texts are handed over as lists (True) or one by one; both where the source leaves it open."""
    if role.name != "reward":
        return (None,)
    said = set(explicit.values())
    if said & {"completion", "prompt", "answer"}:
        return (False,)
    if said & {"completions", "prompts", "answers"}:
        return (True,)
    score = _plurality(loaded)
    return (True, False) if score >= 0 else (False, True)


def _plurality(loaded: Loaded) -> int:
    """How much the main text parameter looks like a list."""
    facts = source.analyse(loaded.node, loaded.helpers)
    annotations = {a.arg: (source.ast.unparse(a.annotation) if a.annotation else "") for a in loaded.node.args.args}
    score = 0
    for name in source.parameter_names(loaded.node):
        match = aliases.resolve(name, "reward", ("completions", "completion"))
        if match is None:
            continue
        signs = facts.signs.get(name, set())
        plain = aliases.snake(name)
        score += 2 if plain.endswith("s") or match.word == "completions" else -2
        score += (
            3 if annotations[name].lower().startswith(("list", "sequence", "typing.list", "tuple", "iterable")) else 0
        )
        score -= 5 if annotations[name] in ("str", "Optional[str]", "str | None") else 0
        score += 1 if "iterated" in signs or "len" in signs else 0
        score -= 3 if signs & {".strip", ".split", ".lower", ".find", ".startswith", ".rfind", ".partition"} else 0
    return score


class Binder:
    """Makes one plan and settles it by trial."""

    def __init__(
        self, loaded: Loaded, role: Role, explicit: Mapping[str, str], settings: Mapping[str, Any],
        intent: Mapping[str, Any],
        name: str, lists: bool | None, generous: bool,
    ) -> None:  # fmt: skip
        self.loaded = loaded
        self.role = role
        self.settings = dict(settings)
        self.intent = dict(intent)
        self.target = name
        self.lists = lists
        self.example = role.example(intent)
        self.takes = frozenset(role.takes) | SETTING_WORDS | {"lengths", "cu_seqlens"}
        self.current: Call | None = None
        self.known: dict[str, Any] = {}
        self.hows: dict[str, str] = {}
        self.plan = Plan()
        self.tried: list[str] = []
        self.seams: dict[str, Seam] = {}
        self.generous = generous
        self.attributes: dict[str, tuple[str, Any]] = {}
        """Attributes that the function reads and whose value is known: path -> word, value."""
        self.facts: Facts = source.analyse(loaded.node, loaded.helpers, loaded.source)
        self.signature = loaded.signature()
        self.docs = self._docs()
        self.explicit = self._explicit(explicit)

    def _docs(self) -> dict[str, str]:
        names = {n for n in self.signature.parameters}
        for root, reads in self.facts.reads.items():
            names.add(root)
            names |= {step[1] for path in reads for step in path if step[1]}
        doc = self.loaded.doc
        owner = self.loaded.owner
        if owner is not None and isinstance(owner.__doc__, str):
            doc = f"{doc}\n\n{inspect.cleandoc(owner.__doc__)}" if owner.__doc__ not in doc else doc
        return source.describe(doc, names)

    def _explicit(self, explicit: Mapping[str, str]) -> dict[str, str]:
        """The user's bind table with paths in one spelling."""
        out: dict[str, str] = {}
        for key, value in explicit.items():
            try:
                root, path = source.parse_path(key)
            except ValueError as e:
                raise BindingFailed(str(e), self._report_open([key])) from None
            if not value.startswith("=") and value not in WORDS:
                near = ", ".join(self.role.takes[:10])
                raise BindingFailed(
                    f"bind: {key} = {value!r} is no word of the vocabulary; {self.role.name} functions take {near}",
                    self._report_open([key]),
                )
            out[source.render(root, path)] = value
        return out

    # Planning

    def bound(self) -> Bound:
        self._make_plan()
        if self.role.returns in ("text", "number", "raw"):
            # a text function that lacks an entry often just scores 0, so that trying it out shows nothing
            self.plan.open += self.plan.doubtful
        if self.plan.open:
            raise BindingFailed(self._open_reason(), self._report_open(self.plan.open))
        missing = [group for group in self.role.needs if not set(group) & self._reachable()]
        if missing:
            words = " or ".join(missing[0])
            raise BindingFailed(
                f"nothing of {self.loaded.qualname} was recognised as {words}", self._report_open(self._unbound_names())
            )
        return self._settle()

    def _reachable(self) -> set[str]:
        return {w.word for w in self.plan.words()} | {w.word for w in self.plan.fixed() if w.word} | self.seam_words()

    def seam_words(self) -> set[str]:
        return {w for seam in self.seams.values() for w in seam.words}

    def _make_plan(self) -> None:
        parameters = list(self.signature.parameters.values())
        if self.loaded.kind == "method" and parameters:
            parameters = parameters[1:]
        sources: dict[str, Source] = {}
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                continue
            if p.kind is p.VAR_KEYWORD:
                sources.update(self._from_kwargs(p.name))
                continue
            got = self._parameter(p)
            if got is not None:
                sources[p.name] = got
        self._plan_seams(sources)
        self._settle_conflicts(sources, {p.name: p for p in parameters})
        for p in parameters:
            if p.name in sources and p.kind is p.POSITIONAL_ONLY:
                self.plan.positional.append(sources.pop(p.name))
        self.plan.keywords = sources
        if self.loaded.kind == "method":
            self._plan_self()

    def _parameter(self, p: inspect.Parameter) -> Source | None:
        annotation = _annotation(p)
        default = NOTHING if p.default is p.empty else p.default
        got = self._place(p.name, p.name, (), annotation, default)
        if got is not None:
            return got
        if default is NOTHING:
            self.plan.open.append(p.name)
        else:
            self.plan.left.append((p.name, default, ""))
        return None

    def _place(self, root: str, name: str, path: Path, annotation: str, default: Any) -> Source | None:
        """The source of one place, None where it stays at its default or open."""
        shown = source.render(root, path)
        if shown in self.explicit:
            return self._said(shown, name, annotation, default)
        for key in (shown, name):
            if key in self.settings and key not in WORDS:
                return FixedSource(path=shown, value=self.settings[key], meaning="constant", how="settings")
        container = self._is_container(root, path)
        word, how, inverted = self._meaning(root, name, path, annotation, default)
        if (
            container
            and word not in ("tokenizer", "model")
            and not (word and how == "name" and not self._record_keys(root, path))
        ):
            made = self._container(root, name, path, annotation, default)
            if made is not None:
                return made
        if word:
            return self._word(shown, name, word, how, inverted, annotation, default)
        if is_config(name, annotation) and default is NOTHING:
            return self._config(shown, name, annotation, root, path)
        return self._constant(shown, name, default)

    def _said(self, shown: str, name: str, annotation: str, default: Any) -> Source:
        value = self.explicit[shown]
        if value.startswith("="):
            return FixedSource(
                path=shown, value=evaluate(value[1:], self.loaded.namespace), meaning="constant", how="bind"
            )
        inverted = aliases.resolve(name, "", ("completion_mask", "attention_mask"), self.docs.get(name, ""))
        flip = bool(inverted and inverted.inverted and value.endswith("_mask"))
        return self._word(shown, name, value, "bind", flip, annotation, default)

    def _meaning(self, root: str, name: str, path: Path, annotation: str, default: Any) -> tuple[str, str, bool]:
        compared = self.facts.compared(root, path)
        choice = aliases.choice_word(compared, self.role.name) if compared else ""
        if choice:
            return choice, "source", False
        if self.role.name in ("policy_loss", "kl") and "prompt" in aliases.tokens(name):
            return "", "", False
        match = aliases.resolve(name, self.role.name, self.takes, self.docs.get(name, ""), annotation)
        if match is None:
            return "", "", False
        word = match.word
        if self.lists is not None:
            word = aliases.as_list(word) if self.lists else aliases.as_single(word)
        if word in ("clip", "eps") and isinstance(default, float) and default <= 1e-5:
            word = "eps"
        if word in ("group_size", "chunk_size", "temperature", "rewards") and isinstance(default, (str, bool)):
            return "", "", False
        if word in ("clip", "beta", "eps") and isinstance(default, str):
            return "", "", False
        return word, match.how, match.inverted

    def _word(
        self, shown: str, name: str, word: str, how: str, inverted: bool, annotation: str, default: Any
    ) -> Source:
        root, path = source.parse_path(shown)
        if word in CHOICE_WORDS:
            return self._choice(shown, word, how, default, self.facts.compared(root, path))
        hints = Hints(
            annotation=annotation, doc=self.docs.get(name, ""), inverted=inverted, name=name, split=self._split(),
            signs=set(self.facts.signs.get(shown, set())),
            reads_ids=self.role.name == "decode" and self._has_tokenizer(),
        )  # fmt: skip
        if word in SCALARS:
            value, known_by = self._scalar(word, default)
            if value is not NOTHING:
                self.know(word, value, known_by)
            return WordSource(path=shown, word=word, how=how, hints=hints, fallback=value)
        return WordSource(path=shown, word=word, how=how, hints=hints, fallback=default)

    def _names(self) -> set[str]:
        """Every name through which an input may come: parameters and entries of containers."""
        out = set(self.signature.parameters)
        for reads in self.facts.reads.values():
            out |= {path[-1][1] for path in reads if path}
        return out

    def _split(self) -> bool:
        return self.role.name not in ("policy_loss", "kl") and any(
            source.re.fullmatch(r"(prompt|query|context)s?_(input_)?(ids|tokens|mask|attention_mask)", n)
            for n in self._names()
        )

    def _has_tokenizer(self) -> bool:
        return any(m is not None for m in (aliases.resolve(n, "decode", ("tokenizer",)) for n in self._names()))

    def _scalar(self, word: str, default: Any, generous: bool = True) -> tuple[Any, str]:
        """The value of a scalar: settings, then intent, then the user's default, then what is documented."""
        if word in self.settings:
            return self.settings[word], "settings"
        if word not in ("scale_rewards", "eps", "chunk_size"):
            for key in _CLIP.get(word, (word,)):
                if key in self.settings:
                    return self.settings[key], "settings"
            for key in _CLIP.get(word, (word,)):
                value = self.intent.get(key)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    return value, "intent"
        if default is not NOTHING and not (default is None and self.generous and DOCUMENTED.get(word) is not None):
            return default, "default"
        if generous and word in DOCUMENTED:
            return DOCUMENTED[word], "documented default"
        return NOTHING, ""

    def _choice(self, shown: str, word: str, how: str, default: Any, compared: set[str]) -> Source:
        if word in self.settings:
            value, by = aliases.spelled(word, self.settings[word], compared), "settings"
        elif default is not NOTHING:
            value, by = default, "default"
        else:
            value, by = self._chosen(word, compared), "intent"
        self.know(word, aliases.canonical_choice(word, value), by)
        return FixedSource(path=shown, value=value, meaning=word, how=how if by != "default" else "default", word="")

    def _chosen(self, word: str, compared: set[str]) -> Any:
        """A value for a choice that the function demands: the declared one, else one that the source knows."""
        wanted = [self.intent.get(word), self.intent.get("algorithm")]
        for value in wanted:
            if value is not None:
                spelled = aliases.spelled(word, value, compared)
                if spelled in compared:
                    return spelled
        order = [n for names in aliases.CHOICES[word].values() for n in names]
        known = sorted(compared, key=lambda x: order.index(x) if x in order else len(order))
        if known:
            return known[0]
        value = self.intent.get(word)
        return value if value is not None else order[0]

    def know(self, word: str, value: Any, how: str) -> None:
        if value is not None and word not in self.known and word in SCALARS and not isinstance(value, Unknown):
            self.known[word] = value
            self.hows[word] = how

    def _constant(self, shown: str, name: str, default: Any) -> Source | None:
        if default is not NOTHING:
            return None
        plain = aliases.snake(name)
        value = surroundings(plain)
        if value is not NOTHING:
            return FixedSource(path=shown, value=value, meaning="constant", how="name")
        if plain in ("reward_weights", "weights") and self.role.name == "advantages":
            import torch

            return FixedSource(path=shown, value=torch.ones(1), meaning="constant", how="name")
        if aliases.is_flag(name):
            return FixedSource(path=shown, value=False, meaning="constant", how="name")
        match = aliases.resolve(name, self.role.name, ("model", "tokenizer"))
        if match is not None and match.word == "model" and self.role.name in ("policy_loss", "kl", "advantages"):
            return FixedSource(path=shown, value=Unknown(shown), meaning="constant", how="name")
        return None

    # Containers

    def _record_keys(self, root: str, path: Path) -> list[Path]:
        """Paths behind this place that name an entry of a container."""
        out: list[Path] = []
        for full in self.facts.reads.get(root, {}):
            behind = full[len(path) :]
            if full[: len(path)] == path and behind and self._names_entry(behind):
                out.append(full)
        return out

    @staticmethod
    def _names_entry(behind: Path) -> bool:
        named = [s for s in behind if s[0] != "each"]
        return bool(named) and named[0][1] not in ("content", "role", "message")

    def _is_container(self, root: str, path: Path) -> bool:
        return bool(self._record_keys(root, path))

    def _container(self, root: str, name: str, path: Path, annotation: str, default: Any) -> Source | None:
        shown = source.render(root, path)
        config = is_config(name, annotation)
        keys = self._record_keys(root, path)
        leaves = [k for k in keys if not any(o != k and o[: len(k)] == k for o in keys)]
        rows = all(k[len(path)][0] == "each" for k in leaves)
        filled: list[tuple[Path, Source]] = []
        for full in leaves:
            read = self.facts.reads[root][full]
            entry = full[-1][1] or next((s[1] for s in reversed(full) if s[1]), "")
            got = self._place_entry(root, entry, full)
            if got is not None:
                if isinstance(got, WordSource):
                    got.per_row = rows
                filled.append((full[len(path) :], got))
            elif not read.optional and not config:
                if default is not NOTHING and not filled:
                    return None
                self.plan.doubtful.append(source.render(root, full))
        filled = self._without_doubles(root, filled)
        if config:
            return self._config(shown, name, annotation, root, path, [s for _, s in filled])
        if not filled and default is not NOTHING and not self.generous:
            return None
        inner = [s for _, s in filled]
        cls = self._class(annotation)
        if rows:
            return MadeSource(path=shown, build=lambda call: self._rows(shown, filled, call), inner=inner)
        return MadeSource(path=shown, build=lambda call: self._box(shown, filled, call, cls), inner=inner)

    def _without_doubles(self, root: str, filled: list[tuple[Path, Source]]) -> list[tuple[Path, Source]]:
        """Leaves out optional entries whose word comes through another entry: `tool_mask` beside `completion_mask`."""

        def optional(s: Source) -> bool:
            at, path = source.parse_path(s.path)
            return self.facts.read(at, path).optional and s.path not in self.explicit

        sure = {s.word for _, s in filled if isinstance(s, WordSource) and not optional(s)}
        return [(p, s) for p, s in filled if not (isinstance(s, WordSource) and s.word in sure and optional(s))]

    def _place_entry(self, root: str, entry: str, full: Path) -> Source | None:
        """An entry of a container; the meaning of its last name, else of the one before (`batch.tensors["x"]`)."""
        shown = source.render(root, full)
        if shown in self.explicit:
            return self._said(shown, entry, "", NOTHING)
        short = f"{root}.{entry}"
        if short in self.explicit:
            self.explicit[shown] = self.explicit[short]
            return self._said(shown, entry, "", NOTHING)
        word, how, inverted = self._meaning(root, entry, full, "", NOTHING)
        optional = self.facts.reads[root][full].optional
        if optional and how == "similar name":
            return None
        if word and (word not in SCALARS or not optional or word in self.settings or word in self.example.inputs):
            return self._word(shown, entry, word, how, inverted, "", NOTHING)
        if word and word in self.intent:
            return self._word(shown, entry, word, how, inverted, "", NOTHING)
        return None if optional else self._constant(shown, entry, NOTHING)

    def _rows(self, shown: str, filled: Sequence[tuple[Path, Source]], call: Call) -> list[Any]:
        columns = [(path, s.give(call)) for path, s in filled]
        n = call.samples()
        out: list[Any] = []
        for i in range(n):
            box = Box(f"{shown}[*]", self._look_up)
            for path, values in columns:
                value = values[i] if hasattr(values, "__getitem__") and not isinstance(values, str) else values
                if getattr(value, "ndim", None) == 0 and not getattr(value, "requires_grad", False):
                    value = value.item()  # pyright: ignore[reportAttributeAccessIssue]
                fill(box, path[1:], value, shown)
            out.append(box)
        return out

    def _box(self, shown: str, filled: Sequence[tuple[Path, Source]], call: Call, cls: type | None) -> Any:
        box = Box(shown, self._look_up)
        for path, s in filled:
            try:
                value = s.give(call)
            except Missing:
                continue
            fill(box, path, value, shown)
        return as_class(cls, box) if cls is not None else box

    def _config(
        self, shown: str, name: str, annotation: str, root: str, path: Path, inner: Sequence[Source] = ()
    ) -> Source:
        cls = self._class(annotation)

        def known(entry: str) -> Any:
            return self._known_entry(root, entry, path)

        def build(call: Call) -> Any:
            if cls is not None:
                made = default_config(cls, known)
                if made is not NOTHING:
                    return made
            box = ConfigBox(shown, self._look_up)
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
                self._read_known(made, root, path)
        return MadeSource(path=shown, build=build, inner=list(inner))

    def _known_entry(self, root: str, entry: str, path: Path) -> Any:
        """A config entry's value by settings or intent, `NOTHING` where its own default shall stay."""
        for step in ("attr", "key"):
            shown = source.render(root, (*path, (step, entry)))
            if shown in self.explicit and self.explicit[shown].startswith("="):
                return evaluate(self.explicit[shown][1:], self.loaded.namespace)
        if entry in self.settings and entry not in WORDS:
            return self.settings[entry]
        full = (*path, ("attr", entry))
        word, _, _ = self._meaning(root, entry, full, "", NOTHING)
        if not word:
            return NOTHING
        if word in CHOICE_WORDS:
            return (
                aliases.spelled(word, self.settings[word], self.facts.compared(root, full))
                if word in self.settings
                else NOTHING
            )
        value, how = self._scalar(word, NOTHING, generous=False)
        return value if how in ("settings", "intent") else NOTHING

    def _class(self, annotation: str) -> type | None:
        """The user's class that an annotation names."""
        for name in source.re.findall(r"[A-Za-z_][\w.]*", annotation)[::-1]:
            value: Any = self.loaded.namespace.get(name.split(".")[0])
            for part in name.split(".")[1:]:
                value = getattr(value, part, None)
            if not isinstance(value, type):
                value = self.loaded.namespace.get(name.split(".")[-1])
            if isinstance(value, type) and value.__module__ not in ("builtins", "typing", "torch", "numpy"):
                return value
        return None

    def _from_kwargs(self, name: str) -> dict[str, Source]:
        """Keyword arguments that the function takes out of its `**kwargs`."""
        out: dict[str, Source] = {}
        for path in self.facts.reads.get(name, {}):
            if len(path) == 1 and path[0][0] == "key":
                got = self._place_entry(name, path[0][1], path)
                if got is not None:
                    out[path[0][1]] = got
                elif not self.facts.reads[name][path].optional:
                    self.plan.open.append(path[0][1])
        for key in self.explicit:
            if source.re.fullmatch(r"\w+", key) and key not in self.signature.parameters and key not in out:
                out[key] = self._said(key, key, "", NOTHING)
        return out

    def _look_up(self, name: str, shown: str, generous: bool = True) -> Any:
        """What a lazy container or `self` gives for a name that the source did not show.

        Not `generous`: only what is declared or in the case, since the reader has a default of its own.
        """
        if shown in self.explicit:
            value = self.explicit[shown]
            if value.startswith("="):
                return evaluate(value[1:], self.loaded.namespace)
            got: Any = WordSource(path=shown, word=value, how="bind", hints=Hints(name=name))
        else:
            if name in self.settings and name not in WORDS:
                return self.settings[name]
            root, path = source.parse_path(shown) if source.re.match(r"\w", shown) else (shown, ())
            word, how, inverted = (
                self._meaning(root, name, path, "", NOTHING) if "[*]" not in shown else ("", "", False)
            )
            if not word:
                return NOTHING
            if word in CHOICE_WORDS:
                if not generous and word not in self.settings:
                    return NOTHING
                fixed = self._choice(shown, word, how, NOTHING, self.facts.compared(root, path))
                return fixed.give(self.current or Call({}))
            if word in SCALARS:
                value, _ = self._scalar(word, NOTHING, generous)
                got = WordSource(path=shown, word=word, how=how, hints=Hints(name=name), fallback=value)
            else:
                got = WordSource(path=shown, word=word, how=how, hints=Hints(name=name, inverted=inverted))
        if self.current is None:
            return got.fallback
        if got.form is None:
            options = forms_for(got.word, got.hints, self.current.layout)
            got.form = options[0] if options else None
        try:
            return got.give(self.current)
        except Missing:
            return NOTHING

    # Conflicts

    def _settle_conflicts(self, sources: dict[str, Source], parameters: Mapping[str, inspect.Parameter]) -> None:
        words = [s for s in sources.values() if isinstance(s, WordSource)]
        self._decoupled(words)
        rank = {
            "bind": 0,
            "name": 1,
            "source": 1,
            "normalised name": 2,
            "annotation": 3,
            "docstring": 4,
            "similar name": 5,
        }
        for word in {w.word for w in words} - {"token_ids", "labels", "model", "tokenizer"}:
            same = sorted((w for w in words if w.word == word), key=lambda w: (rank.get(w.how, 9), _spelling_rank(w)))
            if len(same) < 2 or word.endswith("_mask"):
                continue
            for loser in same[1:]:
                if loser.how == "bind":
                    continue
                self._demote(loser, sources, parameters)

    def _decoupled(self, words: Sequence[WordSource]) -> None:
        """With `proximal_logprobs` beside it, `old_logprobs` is the behaviour policy (decoupled PPO)."""
        proximal = [w for w in words if w.word == "old_logprobs" and "prox" in w.path.lower()]
        if proximal and "rollout_logprobs" in self.takes:
            for w in words:
                if w.word == "old_logprobs" and w not in proximal and w.how != "bind":
                    w.word = "rollout_logprobs"

    def _demote(
        self, loser: WordSource, sources: dict[str, Source], parameters: Mapping[str, inspect.Parameter]
    ) -> None:
        other = {"clip": "eps", "token_rewards": "", "values": "old_values"}.get(loser.word, "")
        p = parameters.get(loser.path)
        if (
            other
            and other in self.takes
            and other not in {s.word for s in sources.values() if isinstance(s, WordSource)}
        ):
            loser.word, loser.form = other, None
            if other in SCALARS and loser.fallback is NOTHING:
                loser.fallback = DOCUMENTED[other]
            return
        if p is not None and p.default is not p.empty:
            del sources[loser.path]
            self.plan.left.append((loser.path, p.default, ""))
        elif p is not None and loser.word not in SCALARS:
            del sources[loser.path]
            self.plan.open.append(loser.path)

    # Seams: calls inside the function whose result the case gives

    def _plan_seams(self, sources: dict[str, Source]) -> None:
        if self.role.name not in ("policy_loss", "kl"):
            return
        have = {s.word for s in sources.values() if isinstance(s, WordSource)}
        for s in sources.values():
            if isinstance(s, MadeSource):
                have |= {w.word for w in s.inner if isinstance(w, WordSource)}
        sites: dict[str, dict[int, tuple[str, ...]]] = {}
        for line, names in self.facts.sites.items():
            callee = self.facts.site_calls[line]
            if self._replaceable(callee) and self._target_word(names[0]) and self._target_word(names[0]) not in have:
                sites.setdefault(callee, {})[line] = names
        for callee, lines in sites.items():
            self._seam(callee, lines)
        if sites:
            self._fill_ids(sources)

    def _replaceable(self, callee: str) -> bool:
        helper = self.loaded.helpers.get(callee)
        known = helper is not None or callee in self.loaded.namespace or callee.startswith("self.")
        return known and source.re.search(r"log_?p|logprob|log_?softmax", callee, source.re.I) is not None

    def _target_word(self, name: str) -> str:
        match = aliases.resolve(name, self.role.name, self.takes) if name else None
        words = ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "entropies")
        return match.word if match is not None and match.word in words else ""

    def _seam(self, callee: str, lines: Mapping[int, tuple[str, ...]]) -> None:
        def result(names: tuple[str, ...]) -> Callable[[], Any]:
            def give() -> Any:
                assert self.current is not None
                values = [self._seam_value(n) for n in names]
                return values[0] if len(values) == 1 else tuple(values)

            return give

        original = self.loaded.namespace.get(callee.rsplit(".", maxsplit=1)[-1])
        words = frozenset(w for names in lines.values() for n in names if (w := self._target_word(n)))
        seam = Seam({line: result(names) for line, names in lines.items()}, original, words)
        self.seams[callee] = seam

    def _seam_value(self, name: str) -> Any:
        assert self.current is not None
        word = self._target_word(name)
        value = self.current.inputs.get(word) if word else None
        if value is None and word == "entropies":
            value = self.current.inputs["logprobs"].detach() * 0 + 1.0
        return value

    def _fill_ids(self, sources: dict[str, Source]) -> None:
        """Ids and prompt parts are only passed to what a seam replaces: zeros and ones of the right shape do."""
        self.plan.open = [o for o in self.plan.open if not self._filler(o, sources)]
        self.plan.doubtful = [o for o in self.plan.doubtful if not self._filler(o, sources)]

    def _filler(self, shown: str, sources: dict[str, Source]) -> bool:
        root, path = source.parse_path(shown)
        name = path[-1][1] if path else root
        ids = aliases.resolve(name, "logprobs", ("token_ids", "attention_mask", "completion_mask"))
        prompt = "prompt" in name.lower()
        if ids is None and not prompt:
            return False
        is_mask = "mask" in name.lower()

        def give(call: Call) -> Any:
            import torch

            rows, width = call.inputs["logprobs"].shape
            shape = (rows, 1 if prompt else width)
            return torch.ones(shape, dtype=torch.long) if is_mask else torch.zeros(shape, dtype=torch.long)

        filler = MadeSource(path=shown, build=give, how="filler")
        if not path:
            sources[root] = filler
            return True
        holder = sources.get(root)
        if isinstance(holder, MadeSource):
            inner = holder.build

            def build(call: Call) -> Any:
                box = inner(call)
                fill(box, path, give(call), root)
                return box

            holder.build = build
            return True
        return False

    # self

    def _plan_self(self) -> None:
        owner = self.loaded.owner
        assert owner is not None
        made = self._construct(owner)
        if made is not None:
            self.plan.selfs.append(made)
        self.plan.selfs.append(self._stand_in_self(owner))
        if not self.known_from_self:
            self._know_stand_in()

    known_from_self = False

    def _construct(self, owner: type) -> Callable[[Call], Any] | None:
        if any(c is StandInBase for c in owner.__mro__):
            return None
        try:
            parameters = [
                p
                for p in inspect.signature(owner).parameters.values()
                if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            ]
        except (TypeError, ValueError):
            return None
        opened, left = list(self.plan.open), list(self.plan.left)
        sources: dict[str, Source] = {}
        for p in parameters:
            got = self._init_parameter(p)
            if got is not None:
                sources[p.name] = got
        failed = len(self.plan.open) > len(opened)
        self.plan.open, self.plan.left = opened, left
        if failed:
            return None
        self.plan.self_source = [s for s in sources.values()]

        def build(call: Call) -> Any:
            made = owner(**{k: s.give(call) for k, s in sources.items()})
            self._adjust(made, sources)
            self._plug(made)
            return made

        try:
            probe = build(Call(dict(self.example.inputs)))
        except Exception:  # noqa: BLE001  the user's constructor
            self.plan.self_source = []
            return None
        self.known_from_self = True
        for word in [w.word for w in sources.values() if isinstance(w, WordSource)]:
            if word in self.known and self.hows.get(word) == "documented default":
                self.hows[word] = "default"
        self._read_known(probe, "self", ())
        return build

    def _init_parameter(self, p: inspect.Parameter) -> Source | None:
        annotation = _annotation(p)
        default = NOTHING if p.default is p.empty else p.default
        shown = f"self.{p.name}"
        if shown in self.explicit:
            return self._said(shown, p.name, annotation, default)
        if p.name in self.settings and p.name not in WORDS:
            return FixedSource(path=shown, value=self.settings[p.name], meaning="constant", how="settings")
        word, how, inverted = self._meaning("self", p.name, (("attr", p.name),), annotation, default)
        if word and (word in SCALARS or word in ("tokenizer", "model")):
            if word == "model" and default is NOTHING and self.role.name not in ("logprobs", "entropy"):
                return FixedSource(path=shown, value=Unknown(shown), meaning="constant", how="name")
            return self._word(shown, p.name, word, how, inverted, annotation, default)
        if is_config(p.name, annotation) and default is NOTHING:
            return self._config(shown, p.name, annotation, "self", (("attr", p.name),))
        got = self._constant(shown, p.name, default)
        if got is None and default is NOTHING:
            self.plan.open.append(shown)
        return got

    def _adjust(self, made: Any, sources: Mapping[str, Source]) -> None:
        """Declared values for what the class keeps in nested config objects of its own."""
        given = {s.word for s in sources.values() if isinstance(s, WordSource)}
        for path in self.facts.reads.get("self", {}):
            if len(path) < 2 or any(s[0] == "each" for s in path):
                continue
            value = self._known_entry("self", path[-1][1], path[:-1])
            word, _, _ = self._meaning("self", path[-1][1], path, "", NOTHING)
            holder = walk(made, path[:-1])
            if value is NOTHING or holder is NOTHING or word in given:
                continue
            try:
                if path[-1][0] == "attr" and hasattr(holder, path[-1][1]):
                    setattr(holder, path[-1][1], value)
                elif isinstance(holder, dict):
                    holder[path[-1][1]] = value
            except Exception:  # noqa: BLE001, S112  frozen configs of the user's keep what they have
                continue

    def _read_known(self, made: Any, root: str, base: Path) -> None:
        """Settings that an object really holds, under the names that the function reads."""
        for path in self.facts.reads.get(root, {}):
            if path[: len(base)] != base or len(path) == len(base) or any(s[0] == "each" for s in path):
                continue
            value = walk(made, path[len(base) :])
            word, _, _ = self._meaning(root, path[-1][1], path, "", NOTHING)
            if word and word in SCALARS and isinstance(value, (int, float, str)):
                self.attributes[source.render(root, path)] = (word, value)
                self.known[word] = aliases.canonical_choice(word, value)
                self.hows[word] = "attribute"

    def _stand_in_self(self, owner: type) -> Callable[[Call], Any]:
        reader = InitReader(self._inits(owner), self.loaded.namespace, self._init_value)

        def lookup(name: str, shown: str) -> Any:
            if shown in self.explicit:
                return self._look_up(name, shown)
            full: Path = (("attr", name),)
            word, _, _ = self._meaning("self", name, full, "", NOTHING)
            declared = word in self.settings or self._scalar(word, NOTHING, False)[1] == "intent"
            if word and (declared or word not in SCALARS or word in self.example.inputs):
                value = self._look_up(name, shown)
                if value is not NOTHING:
                    return value
            if name in self.settings and name not in WORDS:
                return self.settings[name]
            value = reader.read(name)
            if value is not NOTHING:
                return value
            if is_config(name):
                return self._self_config(name, reader)
            for found in (self._look_up(name, shown), surroundings(name)):
                if found is not NOTHING:
                    return found
            return False if aliases.is_flag(name) else Unknown(shown)

        self._lookup_self = lookup

        def build(call: Call) -> Any:
            made = stand_in(owner, lookup)
            self._plug(made)
            return made

        return build

    _lookup_self: Callable[[str, str], Any] | None = None

    def _inits(self, owner: type) -> list[Any]:
        nodes: list[Any] = []
        for cls in owner.__mro__[:-1]:
            node = source.find_definition(self.loaded.tree, f"{cls.__name__}.__init__")
            if node is not None:
                nodes.append(node)
        return nodes

    def _init_value(self, name: str) -> Any:
        """The value of a parameter of `__init__` for reading what it would have set."""
        for node in self._inits(self.loaded.owner or object):
            for arg in (*node.args.args, *node.args.kwonlyargs):
                if arg.arg != name:
                    continue
                annotation = source.ast.unparse(arg.annotation) if arg.annotation else ""
                if is_config(name, annotation):
                    return self._self_config(name, None, annotation)
                found = self._look_up(name, f"self.{name}")
                if found is not NOTHING and not isinstance(found, Unknown):
                    return found
                default = _default_of(node, name)
                return default
        return NOTHING

    def _self_config(self, name: str, reader: InitReader | None, annotation: str = "") -> Any:
        if not annotation:
            for node in self._inits(self.loaded.owner or object):
                for arg in (*node.args.args, *node.args.kwonlyargs):
                    if arg.arg == name and arg.annotation:
                        annotation = source.ast.unparse(arg.annotation)
        source_ = self._config(f"self.{name}", name, annotation, "self", (("attr", name),))
        return source_.give(self.current or Call(dict(self.example.inputs)))

    def _know_stand_in(self) -> None:
        """Settings under which the function runs with the stand-in."""
        for path in self.facts.reads.get("self", {}):
            word, how, _ = self._meaning("self", path[-1][1], path, "", NOTHING) if path else ("", "", False)
            if word in SCALARS and word in self.example.inputs and word not in CHOICE_WORDS:
                value, _ = self._scalar(word, NOTHING, generous=False)
                shown = source.render("self", path)
                self.plan.self_source.append(WordSource(path=shown, word=word, how=how, hints=Hints(), fallback=value))
        self.current = Call({k: v for k, v in self.example.inputs.items() if k not in SCALARS})
        try:
            made = self.plan.selfs[-1](self.current)
            self._read_known(made, "self", ())
        finally:
            self.current = None

    def _plug(self, made: Any) -> None:
        """Puts the seams in place of the methods that they replace, and fills words that the object keeps."""
        for callee, seam in self.seams.items():
            if callee.startswith("self."):
                object.__setattr__(made, callee.removeprefix("self."), seam)

    # Trials

    def _settle(self) -> Bound:  # noqa: C901  one loop over trials
        first: Exception | None = None
        wrong: WrongShape | None = None
        trials = 0
        function = self._function()
        for make_self in self.plan.selfs or [None]:
            for layout in self._layouts():
                fallback: Bound | None = None
                for forms in self._combinations(layout):
                    trials += 1
                    if trials > MAX_TRIALS:
                        break
                    bound = Bound(self, function, make_self, layout, forms)
                    try:
                        bound.try_out()
                    except WrongShape as e:
                        wrong = wrong or e
                        self.tried.append(f"{bound.describe()}: {e}")
                    except Missing as e:
                        first = first or self._missing(e)
                    except (CallFailed, NotReached) as e:
                        first = first or e
                        self.tried.append(f"{bound.describe()}: {e}")
                    else:
                        if bound.rows_apart():
                            return (bound.one_a_sequence() or bound).finish()
                        fallback = fallback or bound
                if fallback is not None:
                    return fallback.finish()
        if wrong is not None:
            report = self._report_open([])
            raise BindingFailed(f"{self.loaded.qualname} returns {wrong}", report)
        assert first is not None
        opened = [d for d in self.plan.doubtful if isinstance(first, CallFailed) and _says_missing(first.error, d)]
        if opened:
            self.plan.open = opened
            raise BindingFailed(self._open_reason(), self._report_open(opened))
        raise first

    def _missing(self, e: Missing) -> BindingFailed:
        path = next((w.path for w in self.plan.words() if w.word == e.word), e.word)
        return BindingFailed(
            f"{path} is bound to {e.word}, which {self.role.name} cases do not have", self._report_open([path])
        )

    def _function(self) -> Callable[..., Any]:
        function = self.loaded.function
        plain = {k: s for k, s in self.seams.items() if not k.startswith("self.")}
        target = inspect.unwrap(function)
        if plain and isinstance(target, types.FunctionType):
            scope = {**target.__globals__, **plain}
            made = types.FunctionType(target.__code__, scope, target.__name__, target.__defaults__, target.__closure__)
            made.__kwdefaults__ = target.__kwdefaults__
            return made
        return function

    def _layouts(self) -> tuple[Layout, ...]:
        doc = self.facts.doc
        rows = [w for w in self.plan.words() if w.word in SAMPLE_WORDS]
        if any(w.word == "cu_seqlens" for w in rows) or any(w.word == "cu_seqlens" for w in self.plan.words()):
            return ("packed", "padded")
        if not any(
            w.word in ("logprobs", "token_rewards", "logits", "advantages", "token_ids", "completion_mask")
            for w in rows
        ):
            return ("padded",)
        listed = sum(
            w.hints.says(r"list\[(torch\.)?tensor|list of (\w+ )?(1-?d )?tensors?|one (1-d )?tensor per") for w in rows
        )
        ragged = source.re.search(
            r"lists? with one|one 1-?D tensor per|samples differ in length|jagged|ragged|list of 1-?D", doc, source.re.I
        )
        iterated = sum("iterated" in w.hints.signs for w in rows if w.word != "advantages")
        if listed or ragged:
            return ("ragged", "padded", "packed")
        if source.re.search(r"\bpacked\b|concatenated into one|back to back|\[\s*sum", doc, source.re.I):
            return ("packed", "padded", "ragged")
        return ("padded", "ragged", "packed") if iterated else ("padded", "packed", "ragged")

    def _combinations(self, layout: Layout) -> Iterator[dict[int, Form]]:
        """Forms for every place, the likeliest combination first."""
        words = list(self.plan.words())
        self._mark_ungrouped(words)
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
            if self._consistent(words, chosen):
                yield {id(w): f for w, f in zip(words, chosen, strict=False)}
            for i, k in enumerate(picks):
                if k + 1 < len(options[i]):
                    heapq.heappush(heap, (cost + weight[i], (*picks[:i], k + 1, *picks[i + 1 :])))

    @staticmethod
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
        return not (modes and any("one per group" in f.name or "[P, G]" in f.name for f in forms))

    def _mark_ungrouped(self, words: Sequence[WordSource]) -> None:
        """Without group ids or sizes, a function that speaks of a group is given one group at a time."""
        have = {w.word for w in words}
        mask = "completion_mask" in have
        for w in words:
            if w.word not in ("rewards", "token_rewards"):
                continue
            if mask and "rows" in w.hints.signs:
                w.hints.signs.add("masked rows")
            grouped = have & {"group_ids", "group_size"} or "rows" in w.hints.signs or "group_size" in self.known
            if grouped or "grouped" in w.hints.signs:
                continue
            text = f"{self.loaded.qualname} {self.loaded.doc} {w.path}".lower()
            shape = w.hints.shape()
            per_group = source.re.search(
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
            algorithm = str(self.intent.get("algorithm", "")).lower()
            grpo = (
                algorithm in ("grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo")
                and shape is None
                and "iterated" not in w.hints.signs
            )
            batch = source.re.search(r"\bbatch\b|whole batch|reinforce", text)
            if letters or ((shape is None or len(shape) == 1) and (per_group or (grpo and not batch))):
                w.hints.signs.add("ungrouped")

    # Reports

    def _other_number(self) -> set[str]:
        """Text words in the number (one, list) that this function does not take, and what stands for bound ones."""
        have = {w.word for w in self.plan.words()}
        twins = {aliases.as_list(w) for w in have} | {aliases.as_single(w) for w in have}
        return twins | (set(SINGLES) if self.lists else set(SINGLES.values()) if self.lists is False else set())

    def _unbound_names(self) -> list[str]:
        taken = {w.path for w in self.plan.words()}
        return [n for n in self.signature.parameters if n not in taken and n not in ("self", "cls")][:4] or list(
            self.signature.parameters
        )[:2]

    def _open_reason(self) -> str:
        names = ", ".join(self.plan.open)
        return f"no word of the vocabulary was found for {names} of {self.loaded.qualname}"

    def _report_open(self, opened: Sequence[str]) -> BindingReport:
        have = {w.word for w in self.plan.words()}
        known = have | self._other_number()
        free = [w for w in self.role.takes if w not in known and w not in SCALARS]
        wanted = [group[0] for group in self.role.needs if not have & set(group)]
        guesses = list(dict.fromkeys([*wanted, *free])) or ["=None"]
        pairs = ", ".join(f'{_toml_key(o)} = "{_guess(o, guesses)}"' for o in opened)
        return BindingReport(
            slots=self.slots(),
            open=tuple(opened),
            tried=("names, annotations and docstring against the alias table", *self.tried[:8]),
            example=f"[targets.{self.target}]\nbind = {{ {pairs} }}" if opened else "",
        )

    def slots(self) -> tuple[Slot, ...]:
        out: list[Slot] = []
        for w in self.plan.words():
            value = w.fallback
            fixed = w.word in SCALARS and w.word not in self.example.inputs
            form = f"{value!r}" if fixed and value is not NOTHING else w.form.name if w.form else ""
            how = self.hows.get(w.word, w.how) if fixed and w.how != "bind" else w.how
            out.append(Slot(path=w.path, meaning=w.word, how=how, form=form))
        for f in self.plan.fixed():
            out.append(Slot(path=f.path, meaning=f.meaning or "constant", how=f.how, form=_brief(f.value)))
        shown = {s.path for s in out}
        for path, (word, value) in self.attributes.items():
            if path not in shown:
                out.append(Slot(path=path, meaning=word, how="attribute", form=_brief(value)))
        for name, value, _ in self.plan.left:
            out.append(Slot(path=name, meaning="default", how="default", form=_brief(value)))
        for callee, seam in self.seams.items():
            out.append(Slot(path=f"{callee}(...)", meaning=", ".join(sorted(seam.words)), how="source", form="[B, T]"))
        return tuple(out)


def _says_missing(error: str, path: str) -> bool:
    """Whether a KeyError or AttributeError is about this entry."""
    _, steps = source.parse_path(path)
    return (
        error.startswith(("KeyError", "AttributeError")) and bool(steps) and any(s[1] and s[1] in error for s in steps)
    )


def _guess(path: str, words: list[str]) -> str:
    """What to show for an open place: a word that is still free, or a Python literal for what looks like a number."""
    last = aliases.tokens(path)[-1:]
    if last and last[0] in (
        "id",
        "size",
        "length",
        "coef",
        "weight",
        "num",
        "threshold",
        "rate",
        "max",
        "min",
        "step",
        "steps",
    ):
        return "=0"
    return words.pop(0) if words and words[0] != "=None" else "=None"


def _annotation(p: inspect.Parameter) -> str:
    if p.annotation is p.empty:
        return ""
    if isinstance(p.annotation, str):
        return p.annotation
    if isinstance(p.annotation, type):
        return p.annotation.__name__ if p.annotation.__module__ != "numpy" else f"np.{p.annotation.__name__}"
    return str(p.annotation).replace("typing.", "")


def _default_of(node: Any, name: str) -> Any:
    arguments = [*node.args.posonlyargs, *node.args.args]
    pairs = dict(zip([a.arg for a in arguments][::-1], list(node.args.defaults)[::-1], strict=False))
    pairs.update({a.arg: d for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=False) if d is not None})
    if name not in pairs:
        return NOTHING
    try:
        return source.ast.literal_eval(pairs[name])
    except ValueError:
        return NOTHING


def _spelling_rank(w: WordSource) -> int:
    names = aliases.spellings(w.word)
    plain = aliases.snake(w.path)
    return names.index(plain) if plain in names else len(names)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _toml_key(path: str) -> str:
    return path if source.re.fullmatch(r"[\w-]+", path) else f"'{path}'"
