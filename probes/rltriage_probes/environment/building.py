"""Making environments: values for the parameters of classes, factories and `reset`, found by trying.

A value is made anew for each use, from a seed and the number of a problem, so that two runs share nothing that the
user's code did not make them share.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import heapq
import inspect
import random
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rltriage_probes import filling, selfs
from rltriage_probes.environment import rows
from rltriage_probes.loading import Loaded, bound_names

MAX_COMBINATIONS = 60
_TAKEN_OUT = (ast.Subscript, ast.Call)
SEEDS = frozenset("seed random_seed rng_seed base_seed initial_seed env_seed seed_ rand_seed random_state".split())
GENERATORS = frozenset("rng generator random_state np_random prng rand gen random_generator rs".split())
DATASETS = frozenset(
    "dataset data examples problems tasks rows questions items samples records prompts train_data train_dataset ds "
    "qa_pairs pairs puzzles episodes_data entries dataset_rows problem_set task_list question_bank bank pool".split()
)
ROWS = frozenset(
    "row example sample item problem task data_point datapoint record entry datum instance dataset_row env_args "
    "extras extra_info info metadata states state_dict state question_row env_data task_data".split()
)
LIMITS = frozenset(
    "max_turns max_steps max_episode_steps horizon turn_limit step_limit max_num_turns max_iterations max_tool_calls "
    "max_attempts max_guesses max_moves num_turns time_limit episode_length max_interactions max_rounds".split()
)
"""Names of what bounds an episode."""
LIMIT = 4
GROUP_SIZES = frozenset(
    "group_size num_envs n_envs num_generations n_samples rollouts_per_prompt num_rollouts group_n "
    "rollouts_per_example "
    "samples_per_prompt num_samples group n".split()
)


@dataclass(frozen=True)
class Situation:
    """What a run is made from: the seed and which problem."""

    seed: int = 0
    problem: int = 0


Maker = Callable[[Situation], Any]


@dataclass(frozen=True)
class Candidate:
    """One value that a parameter may take."""

    make: Maker
    says: str
    kind: str = "plain"
    """`seed`, `row`, `rows`, `config`, `default`, `bound`, `guess` or `plain`."""


@dataclass(frozen=True)
class Place:
    """One parameter and the value that was settled on."""

    name: str
    candidate: Candidate
    positional: bool = False

    @property
    def kind(self) -> str:
        return self.candidate.kind


Places = tuple[Place, ...]


def fill(places: Places, at: Situation) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments; places left at their default are not handed over."""
    given = [p for p in places if p.kind != "default"]
    return (
        [p.candidate.make(at) for p in given if p.positional],
        {p.name: p.candidate.make(at) for p in given if not p.positional},
    )


class Unfilled(Exception):
    """No value is known for these parameters."""

    def __init__(self, names: Sequence[str], of: str) -> None:
        super().__init__(f"no value is known for {', '.join(names)} of {of}")
        self.names = tuple(names)
        self.of = of


class Sources:
    """What the user's source says about the values that it takes."""

    def __init__(
        self, loaded: Loaded, explicit: Mapping[str, str], settings: Mapping[str, Any], intent: Mapping[str, Any]
    ) -> None:
        self.loaded = loaded
        self.explicit = {k.removeprefix("self."): v for k, v in explicit.items()}
        self.settings = settings
        self.intent = intent
        self.tree = _scope(loaded)
        self.text = ast.unparse(self.tree)
        self.keys = rows.keys_read(self.tree)
        self.needed = rows.keys_read(self.tree, optional=False)
        self.chat = bool(re.search(r"\[['\"](content|role)['\"]\]|\.get\(['\"](content|role)['\"]", self.text))

    # One parameter

    def combinations(self, function: Any, of: str) -> Iterator[Places]:
        """Values for all parameters of a callable, the likeliest combination first. Raises `Unfilled`."""
        parameters = _parameters(function)
        options: list[tuple[str, list[Candidate], bool]] = []
        missing: list[str] = []
        for p in parameters:
            if p.kind is p.VAR_POSITIONAL:
                continue
            if p.kind is p.VAR_KEYWORD:
                options += [(k, [_column(k, self.chat)], False) for k in self._entries_of(p.name)]
                continue
            found = list(self.candidates(p))
            if not found:
                if p.default is p.empty:
                    missing.append(p.name)
                continue
            options.append((p.name, found, p.kind is p.POSITIONAL_ONLY))
        if missing:
            raise Unfilled(missing, of)
        heap: list[tuple[int, tuple[int, ...]]] = [(0, (0,) * len(options))]
        seen: set[tuple[int, ...]] = set()
        while heap and len(seen) < MAX_COMBINATIONS:
            cost, picks = heapq.heappop(heap)
            if picks in seen:
                continue
            seen.add(picks)
            yield tuple(Place(n, c[k], pos) for (n, c, pos), k in zip(options, picks, strict=True))
            for i, k in enumerate(picks):
                if k + 1 < len(options[i][1]):
                    heapq.heappush(heap, (cost + k + 1, (*picks[:i], k + 1, *picks[i + 1 :])))

    def candidates(self, p: inspect.Parameter) -> Iterator[Candidate]:
        """Values for a parameter, the likeliest first; the user's own default unless a seed or a limit is wanted."""
        if p.kind is p.VAR_POSITIONAL:
            return
        if p.name in self.explicit and self.explicit[p.name].startswith("="):
            value = filling.evaluate(self.explicit[p.name][1:], self.loaded.namespace)
            yield Candidate(lambda at: copy.deepcopy(value), "the bound value", "bound")
            return
        if p.name in self.settings:
            value = self.settings[p.name]
            yield Candidate(lambda at: copy.deepcopy(value), "the setting", "bound")
            return
        if p.kind is p.VAR_KEYWORD:
            return
        plain = p.name.strip("_").lower()
        hint = _annotation(p)
        optional = p.default is not p.empty
        if plain in SEEDS and not self._draws_from(p.name):
            yield Candidate(lambda at: at.seed, "a seed", "seed")
            return
        if plain in GENERATORS:
            yield from self._generators(p.name, hint)
            if optional:
                yield Candidate(lambda at: None, "its default", "default")
            return
        if optional:
            if plain in LIMITS and isinstance(p.default, int) and not isinstance(p.default, bool) and p.default > 12:
                yield _plain(LIMIT)
            yield Candidate(lambda at: p.default, "its default", "default")
            if p.default is not None and p.default not in ({}, [], ()):
                return
        yield from self._by_name(p.name, plain, hint)
        yield from self._by_annotation(p.name, hint)
        if not optional:
            yield from self._guesses(p.name)

    def _by_name(self, name: str, plain: str, hint: str) -> Iterator[Candidate]:
        if plain in ("config", "cfg", "args", "conf", "params", "opts", "options", "hparams") or hint.endswith(
            ("Config", "Args", "Cfg")
        ):
            yield from self._configs(name, hint)
        elif plain in LIMITS:
            yield _plain(LIMIT)
        elif plain in GROUP_SIZES:
            yield _plain(int(self.intent.get("group_size") or 4))
        elif plain in DATASETS:
            yield from self._datasets(name)
        elif plain in ("instance_id", "episode_id", "uid", "request_id", "env_id", "session_id"):
            yield Candidate(lambda at: f"episode-{at.seed}-{at.problem}", "an id")
        elif plain in ("index", "idx", "problem_index", "task_id", "problem_id", "row_index", "i"):
            yield Candidate(lambda at: at.problem, "the number of a problem", "row")
            yield Candidate(lambda at: str(at.problem), "the number of a problem", "row")
        elif plain in ROWS or hint.lower().startswith("dict"):
            yield from self._rows(name)
        elif re.search(r"messages|history|conversation|chat|dialog", plain):
            yield Candidate(lambda at: rows.value_of("messages", at.problem), "a chat", "row")
        elif re.search(r"answer|solution|gold|target|label|truth|expected|secret|reference", plain):
            yield from self._answers(hint)
        elif re.search(r"question|prompt|query|instruction|goal|text|task|problem|story", plain):
            yield Candidate(lambda at: rows.value_of("question", at.problem), "a question", "row")
            yield Candidate(lambda at: rows.value_of("messages", at.problem), "a chat", "row")
        else:
            yield from self._of_kind(plain)

    def _of_kind(self, plain: str) -> Iterator[Candidate]:  # noqa: C901  a flat table
        if re.search(r"(reward|score|grade|judge|verif|check|rubric|metric|match)\w*(fn|func|function|er|or)?$", plain):
            yield Candidate(lambda at: rows.exact, "a scorer")
            yield _plain(1.0)
        elif re.search(r"(env|environment|base_env|inner)s?_?(fn|factory|cls|class|thunk|ctor|maker|builder)?$", plain):
            from rltriage_probes.environment.standins import StandInEnv

            yield Candidate(
                lambda at: StandInEnv if plain not in ("env", "base_env", "inner") else StandInEnv(at.problem),
                "an environment",
            )
        elif plain in ("tokenizer", "processor", "tok", "processing_class"):
            from rltriage_probes.standins import StandInTokenizer

            yield Candidate(lambda at: StandInTokenizer(), "a tokenizer")
        elif plain == "renderer":
            from rltriage_probes.environment.standins import StandInRenderer

            yield Candidate(lambda at: StandInRenderer(), "a renderer")
        elif re.search(r"tools?$|functions$", plain):
            yield Candidate(lambda at: [rows.add], "a list of functions")
            yield Candidate(lambda at: {"add": rows.add}, "functions by name")
        elif re.search(r"words|vocab", plain):
            yield Candidate(lambda at: ["crane", "slate", "pilot", "mango", "ember"], "words")
        elif re.search(
            r"store|kb|knowledge|database|^db$|documents|docs|corpus|facts|pages|index|inventory|files|mapping|table",
            plain,
        ):
            yield Candidate(lambda at: {"alpha": "12", "beta": "7", "gamma": "24"}, "three entries by key")
            yield Candidate(lambda at: ["alpha is 12", "beta is 7"], "texts")
        elif re.search(r"dir|path|root|folder|workspace", plain):
            yield Candidate(lambda at: tempfile.mkdtemp(prefix="rltriage-"), "an empty folder")
        elif plain in ("a", "b", "x", "y", "lhs", "rhs"):
            yield Candidate(lambda at: int(rows.value_of(plain, at.problem)), "an operand", "row")
        elif re.search(r"^(lo|low|min\w*|start)$", plain):
            yield _plain(1)
        elif re.search(r"^(hi|high|max\w*|upper|limit|bound|stop)$", plain):
            yield _plain(20)
        elif re.search(r"size|width|height|rows|cols|num_?\w*|^n_?\w*|count|length|depth|^k$|batch", plain):
            yield _plain(4)
        elif re.search(
            r"reward|penalty|bonus|cost|prob|gamma|discount|weight|scale|noise|alpha|rate|timeout|delay", plain
        ):
            yield _plain(0.5)
        elif plain.startswith(("use_", "is_", "with_", "enable", "verbose", "debug", "log")):
            yield _plain(False)

    def _answers(self, hint: str) -> Iterator[Candidate]:
        text = Candidate(lambda at: rows.value_of("answer", at.problem), "a gold answer", "row")
        number = Candidate(lambda at: int(rows.value_of("answer", at.problem)), "a gold answer", "row")
        yield from (number, text) if hint in ("int", "float") else (text, number)

    def _by_annotation(self, name: str, hint: str) -> Iterator[Candidate]:
        kind = re.sub(r"^(typing\.)?Optional\[(.*)\]$|\s*\|\s*None", r"\2", hint)
        cls = self.loaded.namespace.get(kind.split("[")[0])
        if isinstance(cls, type) and dataclasses.is_dataclass(cls):
            yield Candidate(lambda at: self._instance(cls, at), f"a {kind}", "row")
        simple: dict[str, Any] = {"int": 3, "float": 0.5, "bool": False, "str": "alpha"}
        if kind in simple:
            yield _plain(simple[kind])
        elif kind.lower().startswith(("list", "sequence", "tuple", "iterable")):
            yield from self._datasets(name)
        elif kind.lower().startswith(("dict", "mapping", "any")) and self.keys:
            yield from self._rows(name)
        elif kind.lower().startswith(("callable", "typing.callable")):
            yield Candidate(lambda at: rows.exact, "a scorer")

    def _guesses(self, name: str) -> Iterator[Candidate]:
        if self._subscripted(name):
            yield from self._rows(name)
        for value in (3, "alpha", ["alpha", "beta"], {"alpha": "12"}):
            yield Candidate(lambda at, value=value: copy.deepcopy(value), f"the guess {value!r}", "guess")

    def _generators(self, name: str, hint: str) -> Iterator[Candidate]:
        import torch

        used = set(re.findall(rf"{re.escape(name)}\.(\w+)", self.text)) | set(
            re.findall(rf"self\._?{re.escape(name.strip('_'))}\.(\w+)", self.text)
        )

        def numpy_generator(at: Situation) -> Any:
            import numpy as np

            return np.random.default_rng(at.seed)

        python = Candidate(lambda at: random.Random(at.seed), "a random.Random", "seed")
        array = Candidate(numpy_generator, "a numpy generator", "seed")
        tensor = Candidate(lambda at: torch.Generator().manual_seed(at.seed), "a torch generator", "seed")
        if ("Generator" in hint and "torch" in hint) or re.search(rf"generator\s*=\s*(self\.)?_?{name}", self.text):
            yield from (tensor, python, array)
        elif used & {"integers", "permutation", "standard_normal", "normal"} or "np." in hint or "numpy" in hint:
            yield from (array, python, tensor)
        else:
            yield from (python, array, tensor)

    def _datasets(self, name: str) -> Iterator[Candidate]:
        def of(make: Callable[[int], Any], says: str) -> Candidate:
            return Candidate(lambda at: [make(at.problem + i) for i in range(4)], says, "rows")

        keyed = of(lambda i: rows.row(self.needed, i, chat=self.chat), "a list of rows")
        other = of(lambda i: rows.row(self.keys, i, chat=not self.chat), "a list of rows")
        pair = of(lambda i: (rows.value_of("question", i), rows.value_of("answer", i)), "a list of pairs")
        text = of(lambda i: rows.value_of("question", i), "a list of texts")
        thing = of(lambda i: rows.as_object(self._attributes(), i), "a list of objects")
        if [k for k in self.keys if k not in rows.NOT_KEYS]:
            yield from (keyed, other, pair, thing, text)
        elif self._unpacked():
            yield from (pair, keyed, text)
        else:
            yield from (text, keyed, pair, thing)

    def _rows(self, name: str) -> Iterator[Candidate]:
        keyed = Candidate(lambda at: rows.row(self.needed, at.problem, chat=self.chat), "a row", "row")
        whole = Candidate(lambda at: rows.row(self.keys, at.problem, chat=self.chat), "a row with all keys", "row")
        other = Candidate(lambda at: rows.row(self.keys, at.problem, chat=not self.chat), "a row", "row")
        wanted = rows.attributes_of(self.tree, {name, name.strip("_")})
        thing = Candidate(lambda at: rows.as_object(wanted, at.problem), "an object with a row's fields", "row")
        text = Candidate(lambda at: rows.value_of("question", at.problem), "a question", "row")
        if self._subscripted(name) or not wanted:
            yield from (keyed, other, whole, text) if self._subscripted(name) else (text, keyed, other, whole)
        else:
            yield from (thing, keyed, whole, text)

    def _configs(self, name: str, hint: str) -> Iterator[Candidate]:
        cls = self.loaded.namespace.get(hint.split("[", maxsplit=1)[0].strip("'\""))
        if isinstance(cls, type):
            yield Candidate(lambda at: self._instance(cls, at), f"a {cls.__name__}", "config")
        attributes = rows.attributes_of(self.tree, {name, name.strip("_")})

        def values(at: Situation, names: Sequence[str]) -> dict[str, Any]:
            return {n: self._setting(n, at) for n in names}

        box = Candidate(lambda at: SimpleNamespace(**values(at, attributes)), "a config object", "config")
        table = Candidate(lambda at: values(at, self.keys), "a config dict", "config")
        yield from (box, table) if attributes and not self._subscripted(name) else (table, box)

    def _setting(self, name: str, at: Situation) -> Any:
        p = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY)
        found = next((c for c in self.candidates(p) if c.kind != "config"), None)
        return found.make(at) if found else None

    def _instance(self, cls: type, at: Situation) -> Any:
        """An instance of a config or row class of the user's, its fields filled by name."""
        made = selfs.default_config(cls, lambda n: self._field(cls, n, at))
        if made is selfs.NOTHING:
            raise TypeError(f"{cls.__name__} can't be made")
        return made

    def _field(self, cls: type, name: str, at: Situation) -> Any:
        hint = str(getattr(cls, "__annotations__", {}).get(name, ""))
        default: Any = getattr(cls, name, inspect.Parameter.empty)
        plain = name.lower()
        if default is not inspect.Parameter.empty and plain not in SEEDS | LIMITS:
            return selfs.NOTHING
        kind = {"<class 'int'>": int, "<class 'str'>": str}.get(hint, hint)
        p = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        found = next(iter(self.candidates(p)), None)
        return found.make(at) if found and found.kind != "default" else selfs.NOTHING

    # Signs in the source

    def _entries_of(self, name: str) -> list[str]:
        """Keys that are read of `**name`."""
        found = re.findall(rf"\b{re.escape(name)}(?:\[|\.get\(|\.pop\()['\"](\w+)['\"]", self.text)
        return list(dict.fromkeys(found))

    def _subscripted(self, name: str) -> bool:
        plain = re.escape(name.strip("_"))
        return re.search(rf"\b_?{plain}(\[['\"]|\.get\(|\.pop\(|\.items\()", self.text) is not None

    def _draws_from(self, name: str) -> bool:
        return re.search(rf"\b{re.escape(name)}\.(rand\w*|choice|sample|shuffle|integers)\(", self.text) is not None

    def _attributes(self) -> list[str]:
        return rows.attributes_of(self.tree, {"row", "example", "item", "problem", "task", "sample", "current"})

    def _unpacked(self) -> bool:
        """Whether a row is taken apart into names: `question, answer = self.data[i]`."""
        return any(
            (isinstance(n, ast.For) and isinstance(n.target, ast.Tuple))
            or (isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Tuple) and isinstance(n.value, _TAKEN_OUT))
            for n in ast.walk(self.tree)
        )


def _column(key: str, chat: bool) -> Candidate:
    return Candidate(lambda at: rows.value_of(key, at.problem, chat=chat), "a column of the row", "row")


def _plain(value: Any) -> Candidate:
    return Candidate(lambda at: copy.deepcopy(value), repr(value))


def _annotation(p: inspect.Parameter) -> str:
    if p.annotation is p.empty:
        return ""
    if isinstance(p.annotation, str):
        return p.annotation
    if isinstance(p.annotation, type) and not hasattr(p.annotation, "__args__"):
        return p.annotation.__name__
    return str(p.annotation).replace("typing.", "")


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def _scope(loaded: Loaded) -> ast.Module:
    """The part of the file that concerns the target: what it names, what that names, and so on."""
    providers: dict[str, list[ast.stmt]] = {}
    for statement in loaded.tree.body:
        for bound in bound_names(statement):
            providers.setdefault(bound, []).append(statement)
    chosen: list[ast.stmt] = []
    queue = [loaded.qualname.split(".")[0].split("(")[0]]
    seen: set[str] = set()
    while queue:
        name = queue.pop()
        for statement in providers.get(name, []) if name not in seen else []:
            if statement not in chosen:
                chosen.append(statement)
                queue += [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
        seen.add(name)
    return ast.Module(body=sorted(chosen, key=lambda s: s.lineno), type_ignores=[]) if chosen else loaded.tree
