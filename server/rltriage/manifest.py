"""The manifest: what the user means to do, and which functions do it.

    [pipeline]                  what is declared (algorithm, group_size, ...), and how to run it (python, device, ...)
    [env]                       environment variables of the interpreter that runs the probes
    [targets.<role>]            ref, and where needed bind, settings, role; for lines of a file inputs and output

The same content is accepted as a file (`load`) and as a dict (`from_mapping`). What can't be understood
is an error that lists every problem at once; a key that nobody knows is a warning, never an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel, ConfigDict
from rltriage_probes.contract import ROLE_STAGES, Block, Limits, TargetSpec

from rltriage.errors import TriageError

FILE_NAME: Final = "rltriage.toml"

ALGORITHMS: Final = "grpo dr_grpo dapo gspo cispo rloo reinforce reinforce_pp ppo dpo ipo kto orpo simpo rm sft".split()
WORDS: Final[dict[str, tuple[str, ...]]] = {
    "algorithm": tuple(ALGORITHMS),
    "aggregation": ("token-mean", "sequence-mean", "sequence-sum", "constant"),
    "kl_estimator": ("k1", "k2", "k3"),
}
"""Declared words and what is usual for them; another word is passed on, with a warning."""

INTENT_KEYS: Final = (
    *WORDS,
    *"group_size beta clip_low clip_high temperature gamma lam clip_value scale_rewards rpo_alpha".split(),
    *"label_smoothing lora_r lora_alpha use_rslora model_type dtype train_on_inputs model".split(),
    *"max_completion_length eos_token_id pad_token_id".split(),
)
RUN_KEYS: Final = ("python", "device", "timeout_s", "memory_gb")
"""Keys of `[pipeline]` that say how to run, not what is meant; the worker doesn't get them as intent."""
TARGET_KEYS: Final = (*(f.name for f in dataclasses.fields(TargetSpec) if f.name != "name"), "inputs", "output")
TABLES: Final = ("pipeline", "env", "targets")


class ManifestError(TriageError):
    """The manifest can't be used; `happened` lists every problem found in it."""


class Expectation(BaseModel):
    """What a framework's released function was found to compute."""

    model_config = ConfigDict(frozen=True)

    release: str
    words: tuple[str, ...] = ()
    """Each stands in what is recognised."""
    unknown: str = ""
    """Why no convention fits."""


class Manifest(BaseModel):
    """A manifest that was understood."""

    model_config = ConfigDict(frozen=True)

    path: str | None
    """As the user gave it; None for one that was handed over inline."""
    root: str
    """Absolute project folder, against which refs are read."""
    pipeline: dict[str, Any]
    """What is declared about the pipeline: the intent."""
    env: dict[str, str]
    python: str | None
    device: str
    timeout_s: float
    memory_gb: float
    targets: tuple[TargetSpec, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Where a manifest that was made from a pack found the framework."""
    absent: dict[str, str] = {}
    """Targets (by name) that a pack names and this copy of the framework lacks, with the reason."""
    expected: dict[str, Expectation] = {}
    """What the release that a pack was written for computes, by target."""

    @property
    def name(self) -> str:
        """The manifest as reports call it."""
        return self.path if self.path is not None else "(inline)"

    @property
    def limits(self) -> Limits:
        return Limits(timeout_s=self.timeout_s, memory_gb=self.memory_gb)


def stage_of(role: str) -> str:
    """Stage of a role: one of the five, or `sft`, `lora`, `environment` beside them. KeyError: no such role."""
    return ROLE_STAGES[role]


def known_roles() -> tuple[str, ...]:
    return tuple(ROLE_STAGES)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def load(path: str | Path, *, python: str | None = None) -> Manifest:
    """Read a manifest file, or the `rltriage.toml` of a folder.

    `python` overrides the manifest's interpreter. Raises `ManifestError`.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ManifestError(
            f"There is no manifest {path}.",
            do="Run `rltriage init` in the project to write one, or pass --manifest FILE.",
        ) from None
    except UnicodeDecodeError as e:
        raise ManifestError(f"{path} is not UTF-8 text (byte {e.start}).", do="Save the manifest as UTF-8.") from None
    except OSError as e:
        raise ManifestError(
            f"{path} can't be read: {e.strerror}.", do="Pass a readable file with --manifest."
        ) from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ManifestError(f"{path} is not valid TOML: {e}.", do="Correct that line and run again.") from None
    return from_mapping(data, root=file.resolve().parent, path=str(path), python=python)


def from_mapping(
    data: Mapping[str, Any], *, root: str | Path, path: str | None = None, python: str | None = None
) -> Manifest:
    """Understand a manifest that was parsed already. Raises `ManifestError` with all its problems."""
    reader = _Reader()
    pipeline = reader.table(data.get("pipeline", {}), "[pipeline]")
    env = reader.env(data.get("env", {}))
    targets = reader.targets(data.get("targets", {}))
    reader.warn_unknown(data, TABLES, "the manifest", "tables")
    reader.warn_unknown(pipeline, (*INTENT_KEYS, *RUN_KEYS), "[pipeline]", "keys")
    reader.warn_words(pipeline)
    run = {
        "python": python or reader.text(pipeline, "python", None),
        "device": reader.device(pipeline),
        "timeout_s": reader.positive(pipeline, "timeout_s", Limits().timeout_s),
        "memory_gb": reader.positive(pipeline, "memory_gb", Limits().memory_gb),
    }
    intent = {k: v for k, v in pipeline.items() if k not in RUN_KEYS}
    reader.plain(intent, "[pipeline]")
    where = path if path is not None else "the manifest"
    if reader.problems:
        raise ManifestError(*_said(where, reader.problems))
    return Manifest.model_validate(
        {
            "path": path,
            "root": str(Path(root).resolve()),
            "pipeline": intent,
            "env": env,
            "targets": tuple(targets),
            "warnings": tuple(reader.warnings),
            **run,
        }
    )


def _said(where: str, problems: list[tuple[str, str]]) -> tuple[str, str]:
    """`happened` and `do` for one problem or for several."""
    if len(problems) == 1:
        return f"{where}: {problems[0][0]}", problems[0][1]
    listed = "\n".join(f"  - {what}" for what, _ in problems)
    todo = "\n".join(f"  - {do}" for do in dict.fromkeys(do for _, do in problems))
    return f"{where} has {len(problems)} problems:\n{listed}", todo


class _Reader:
    """Takes values out of parsed TOML and collects what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[tuple[str, str]] = []
        self.warnings: list[str] = []

    def problem(self, what: str, do: str) -> None:
        self.problems.append((what, do))

    def table(self, value: Any, where: str) -> dict[str, Any]:
        if isinstance(value, Mapping):
            return {str(k): v for k, v in cast("Mapping[Any, Any]", value).items()}
        self.problem(f"{where} is {_kind(value)}, not a table.", f"Write {where} as a table of `key = value` lines.")
        return {}

    def text(self, table: Mapping[str, Any], key: str, default: str | None) -> str | None:
        value = table.get(key, default)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        self.problem(f"{key} in [pipeline] is {_kind(value)}.", f'Write it as text, {key} = "...".')
        return default

    def device(self, table: Mapping[str, Any]) -> str:
        value = self.text(table, "device", "auto") or "auto"
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", value):
            self.problem(f"device = {value!r} is not a device.", "Write auto, cpu, cuda or cuda:N.")
        return value

    def positive(self, table: Mapping[str, Any], key: str, default: float) -> float:
        value = table.get(key, default)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf"):
            return float(value)
        self.problem(
            f"{key} = {value!r} is not a positive number.", f"Write {key} as a number, e.g. {key} = {default:g}."
        )
        return default

    def env(self, value: Any) -> dict[str, str]:
        found: dict[str, str] = {}
        for key, v in self.table(value, "[env]").items():
            if isinstance(v, (str, int, float)) and not isinstance(v, bool):
                found[key] = str(v)
            else:
                self.problem(f"{key} in [env] is {_kind(v)}.", f'Write environment variables as text, {key} = "...".')
        return found

    def targets(self, value: Any) -> list[TargetSpec]:
        tables = self.table(value, "[targets]")
        return [t for name, table in tables.items() if (t := self.target(name, table)) is not None]

    def target(self, name: str, value: Any) -> TargetSpec | None:
        where = f"[targets.{name}]"
        before = len(self.problems)
        table = self.table(value, where)
        if len(self.problems) > before:
            return None
        self.warn_unknown(table, TARGET_KEYS, where, "keys")
        role = self.role(where, table.get("role", re.sub(r"-\d+$", "", name)), spelt="role" in table)
        ref = table.get("ref")
        if ref is None:
            self.problem(f"{where} has no ref.", f'Add ref = "file.py:function" to {where}.')
        elif not isinstance(ref, str) or not re.search(r"[^:#]+(:[^\d\W]|#L\d|\.pth?$)", ref):
            self.problem(f"ref = {ref!r} of {where} names no function.", _REF_HELP)
        bind = self.words(table.get("bind", {}), f"bind of {where}")
        settings = self.plain(self.table(table.get("settings", {}), f"settings of {where}"), f"settings of {where}")
        block = self.block(table["block"], where) if "block" in table else self.lines(table, ref, where)
        if len(self.problems) > before:
            return None
        return TargetSpec(name=name, role=role, ref=cast(str, ref), bind=bind, settings=settings, block=block)

    def role(self, where: str, role: Any, *, spelt: bool) -> str:
        known = known_roles()
        if isinstance(role, str) and role in known:
            return role
        hint = nearest(str(role), known)
        how = "Write a known role" if spelt else 'Name the table after its role, or add role = "..."'
        self.problem(f"{where}: there is no role {role!r}{hint}", f"{how}: {', '.join(known)}.")
        return ""

    def words(self, value: Any, where: str) -> dict[str, str]:
        table = self.table(value, where)
        for key, v in table.items():
            if not isinstance(v, str):
                self.problem(
                    f"{key} in {where} is {_kind(v)}.", "In bind, write the meaning of each parameter as text."
                )
        return {k: v for k, v in table.items() if isinstance(v, str)}

    def plain(self, table: dict[str, Any], where: str) -> dict[str, Any]:
        """`table`, after checking that JSON has its values (TOML's dates and times it lacks)."""
        for key, v in table.items():
            if not _is_plain(v):
                self.problem(f"{key} in {where} is {_kind(v)}.", "Write numbers, text, true/false, lists or tables.")
        return table

    def lines(self, table: Mapping[str, Any], ref: Any, where: str) -> Block | None:
        """Lines of a file, `ref = "train.py#L120-L141"`, with what goes into them and what comes out."""
        given = [key for key in ("inputs", "output") if key in table]
        found = re.search(r"#L(\d+)(?:-L?(\d+))?$", ref) if isinstance(ref, str) else None
        if found is None:
            if given:
                self.problem(
                    f"{where} has {' and '.join(given)}, but its ref names no lines.",
                    'Write ref = "file.py#L10-L20", or bind in place of inputs.',
                )
            return None
        output = table.get("output", "")
        if not isinstance(output, str):
            self.problem(f"output of {where} is {_kind(output)}.", "Give output as the expression of the result.")
        inputs = self.words(table.get("inputs", {}), f"inputs of {where}")
        return Block(start=found[1], stop=found[2] or found[1], inputs=inputs, output=str(output))

    def block(self, value: Any, where: str) -> Block | None:
        table = self.table(value, f"block of {where}")
        self.warn_unknown(table, [f.name for f in dataclasses.fields(Block)], f"block of {where}", "keys")
        ends: dict[str, str] = {}
        for key in ("start", "stop"):
            v = table.get(key)
            if not isinstance(v, (str, int)) or isinstance(v, bool) or v == "":
                self.problem(f"block of {where} has no {key}.", f"Give {key} as a line number or as text of that line.")
            ends[key] = str(v)
        output = table.get("output", "")
        if not isinstance(output, str) or not output.strip():
            self.problem(
                f"block of {where} has no output.", "Give output as the name or expression that holds the result."
            )
        inputs = self.words(table.get("inputs", {}), f"block inputs of {where}")
        return Block(start=ends["start"], stop=ends["stop"], inputs=inputs, output=str(output))

    def warn_unknown(self, table: Mapping[str, Any], known: Iterable[str], where: str, what: str) -> None:
        known = tuple(known)
        for key in table:
            if key not in known:
                self.warnings.append(f"{where} has {what[:-1]} {key!r}, which nothing reads{nearest(key, known)}")

    def warn_words(self, pipeline: Mapping[str, Any]) -> None:
        for key, usual in WORDS.items():
            if key in pipeline and pipeline[key] not in usual:
                hint = nearest(str(pipeline[key]), usual)
                self.warnings.append(f"{key} = {pipeline[key]!r} is none of {', '.join(usual)}{hint}")


_REF_HELP: Final = (
    'Write ref = "file.py:function", "file.py:Class.method", "package.module:name", "file.py#L10-L20", or a .pt file '
    "of saved tensors."
)


def _kind(value: Any) -> str:
    kind = cast("type[object]", type(value)).__name__
    names = {
        "bool": "true/false",
        "int": "a number",
        "float": "a number",
        "str": "text",
        "list": "a list",
        "dict": "a table",
    }
    return "empty" if value == "" else names.get(kind, f"a {kind}")


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(_is_plain(v) for v in cast("Mapping[Any, Any]", value).values())
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, cast("Sequence[Any]", value)))
    return value is None or isinstance(value, (str, int, float, bool))
