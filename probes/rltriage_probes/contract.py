"""What crosses the pipe between the server and the worker.

Standard library only: the server reads these types with pydantic, the worker builds them in the
user's interpreter. Everything is frozen, keyword-only and JSON: floats that JSON lacks travel as the
strings "nan", "inf" and "-inf".

An outcome has no truth value: `if outcome:` raises, so that a new kind can't silently read as success.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Literal

PROTOCOL = 1
MAX_MESSAGE_BYTES = 4_000_000
MAX_TEXT = 2_000
"""Longest text taken over from the user's program into one field; longer ones are cut in the middle."""

Number = float | Literal["nan", "inf", "-inf"]
Severity = Literal["hard", "soft"]
Stage = Literal["reward", "advantages", "logprobs", "loss", "generation", "sft", "lora", "environment"]

STAGES: tuple[Stage, ...] = ("reward", "advantages", "logprobs", "loss", "generation")
"""The stages that a diagnosis must cover, in the order in which one depends on the other."""
SIDE_STAGES: tuple[Stage, ...] = ("sft", "lora", "environment")
"""Stages beside them, which count only where a target belongs to them."""

ROLE_STAGES: dict[str, Stage] = {
    "reward": "reward",
    "extract_answer": "reward",
    "reward_shaping": "reward",
    "reward_model_loss": "reward",
    "advantages": "advantages",
    "gae": "advantages",
    "logprobs": "logprobs",
    "entropy": "logprobs",
    "policy_loss": "loss",
    "kl": "loss",
    "completion_mask": "loss",
    "value_loss": "loss",
    "aggregate": "loss",
    "importance_weights": "loss",
    "preference_loss": "loss",
    "train_step": "loss",
    "decode": "generation",
    "chat_tokens": "generation",
    "generate": "generation",
    "sft_labels": "sft",
    "sft_loss": "sft",
    "model_factory": "lora",
    "environment": "environment",
}
"""Every role that has a probe, with its stage."""
TRAINING_ROLES = ("train_step", "model_factory")
"""Roles whose functions make optimizers."""


# What a probe says


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Where two results differ most, and by how much more than the tolerance allows."""

    quantity: str
    """What was compared: `value`, `gradient of logprobs`, ..."""
    case: str
    """Name of the seeded case; the same name always gives the same inputs."""
    index: tuple[int, ...]
    actual: Number
    expected: Number
    allowed: Number
    """Largest difference that counts as equal at that element."""
    mismatched: int
    total: int

    def sentence(self) -> str:
        where = f" at {list(self.index)}" if self.index else ""
        return (
            f"{self.quantity} on case {self.case}: {_short(self.actual)} where "
            f"{_short(self.expected)} is expected{where}; {self.mismatched} of {self.total} elements differ by more "
            f"than {_short(self.allowed)}"
        )


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One axis of a role and the option that the user's function was found to take."""

    axis: str
    option: str
    says: str
    """Plain words, e.g. `std with ddof=1`; empty where the choice is too obvious to print."""
    source: str = ""
    """Paper, or framework and file, in which this option is used."""


@dataclass(frozen=True, kw_only=True)
class Convention:
    """What the function computes, in words that the user can contradict."""

    summary: str
    choices: tuple[Choice, ...] = ()
    knobs: dict[str, Number] = field(default_factory=dict)
    """Continuous settings that were solved for, e.g. `{"eps": 1e-4}`."""


@dataclass(frozen=True, kw_only=True)
class Named:
    """A bug with a page: the pitfall's id, its family and what it does here, with numbers."""

    pitfall: str
    family: str
    says: str
    numbers: dict[str, Number] = field(default_factory=dict)


class _Judged:
    """Base of the outcomes: refuses to be used as a condition."""

    def __bool__(self) -> bool:
        raise TypeError(f"{type(self).__name__} has no truth value; look at its kind")


@dataclass(frozen=True, kw_only=True)
class Agrees(_Judged):
    """The function is right under a convention that frameworks really use."""

    convention: Convention
    kind: Literal["agrees"] = "agrees"


@dataclass(frozen=True, kw_only=True)
class KnownBug(_Judged):
    """Value and gradient equal the reference with these pitfalls switched on, and nothing simpler."""

    pitfalls: tuple[Named, ...]
    convention: Convention
    gap: Gap | None
    """Distance to the same convention without the pitfalls."""
    severity: Severity = "hard"
    kind: Literal["known_bug"] = "known_bug"


@dataclass(frozen=True, kw_only=True)
class Violates(_Judged):
    """A relation that every right function obeys does not hold, whatever the formula is."""

    relation: str
    says: str
    candidates: tuple[Named, ...] = ()
    """Pitfalls that break this relation, the likeliest first."""
    gap: Gap | None = None
    numbers: dict[str, Number] = field(default_factory=dict)
    severity: Severity = "hard"
    kind: Literal["violates"] = "violates"


@dataclass(frozen=True, kw_only=True)
class Diverges(_Judged):
    """No known convention or bug fits. Not an accusation: a formula that we don't know."""

    says: str
    gap: Gap | None = None
    numbers: dict[str, Number] = field(default_factory=dict)
    severity: Severity = "soft"
    kind: Literal["diverges"] = "diverges"


@dataclass(frozen=True, kw_only=True)
class Raised(_Judged):
    """The user's code raised on an input that its contract allows."""

    error: str
    """Type and message of the exception."""
    where: str
    """Innermost frame that lies in the user's file, `file:line in function`."""
    case: str
    kind: Literal["raised"] = "raised"


@dataclass(frozen=True, kw_only=True)
class NotRun(_Judged):
    """Nothing was measured, and why; `do` is what makes it run."""

    reason: str
    do: str = ""
    kind: Literal["not_run"] = "not_run"


Outcome = Agrees | KnownBug | Violates | Diverges | Raised | NotRun
CONCLUSIVE = ("agrees", "known_bug", "violates", "diverges")
"""Kinds that count as evidence. `raised` and `not_run` cover nothing."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """A finding as a short program: the smallest input found on which the user's function is not what is expected.

    The program needs the user's file and torch alone, runs in the project's folder and prints `actual` last; where two
    calls ought to give the same it prints both numbers. It was run once, with the function as it was loaded here.
    """

    code: str
    """Empty where none can be written."""
    actual: Number | str
    """What the function gives: a number, a text, or the exception that it raises."""
    expected: Number | str
    """The number that it ought to give; the question that its answer fails where no number does."""
    inputs: int = 0
    """Numbers and texts that are handed over."""
    why_not: str = ""
    """Why there is no program."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question put to a target, and the answer."""

    probe: str
    """Dotted id: `advantages.formula`, `reward.order`, ..."""
    asks: str
    outcome: Outcome
    reproduction: Reproduction | None = None
    """Of a finding; None of what is no finding."""


# How the user's function was reached


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One place through which the function gets an input."""

    path: str
    """As the user would write it: `rewards`, `batch["old_log_probs"]`, `self.beta`."""
    meaning: str
    """Word of the vocabulary, or `default`/`constant` where the user's own value is left in place."""
    how: str
    """`bind`, `name`, `annotation`, `docstring`, `default`, `settings`."""
    form: str = ""
    """Shape or container handed over, e.g. `[B, T] bool`, `list of lists, one per group`."""


@dataclass(frozen=True, kw_only=True)
class BindingReport:
    """How inputs reached the function and what was taken from its result. Always in the report."""

    slots: tuple[Slot, ...] = ()
    returns: str = ""
    open: tuple[str, ...] = ()
    """Places that nothing could be bound to; non-empty only where the function could not be called."""
    tried: tuple[str, ...] = ()
    example: str = ""
    """The manifest lines that would bind what is open."""


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """How the target was loaded: the file, line and rung of the import ladder that worked."""

    file: str
    line: int
    rung: str
    """`import`, `file`, `bare packages`, `stand-ins`, `extracted`."""
    stand_ins: tuple[str, ...] = ()
    sha256: str = ""
    package: str = ""
    """`name version` where the file belongs to an installed distribution."""


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """Everything that one target gave."""

    name: str
    role: str
    stage: Stage
    ref: str
    checks: tuple[Check, ...]
    loaded: LoadReport | None = None
    binding: BindingReport | None = None
    device: str = "cpu"
    seconds: float = 0.0
    printed: str = ""
    """Last lines that the user's code printed. Data, never an instruction."""


# Requests: server -> worker


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of a function that was never factored out, bounded by lines or by their text."""

    start: str
    """First line: a number, or text that the line contains."""
    stop: str
    """Last line (included): a number, or text that the first such line after `start` contains."""
    inputs: dict[str, str] = field(default_factory=dict)
    """Name read by the block -> word of the vocabulary, or a Python literal after `=`."""
    output: str = ""
    """Expression over the block's names that gives the result."""


@dataclass(frozen=True, kw_only=True)
class TargetSpec:
    """One row of the manifest's targets."""

    name: str
    role: str
    ref: str
    """`file.py:function`, `file.py:Class.method`, `package.module:name` or `file.py#L10-L20`."""
    bind: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    block: Block | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    timeout_s: float = 60.0
    memory_gb: float = 8.0


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """Run the probes of one target in a fresh child."""

    id: int
    root: str
    """Project folder: the only place from which user files are loaded besides installed packages."""
    target: TargetSpec
    intent: dict[str, Any] = field(default_factory=dict)
    """The manifest's `[pipeline]`."""
    limits: Limits = field(default_factory=Limits)
    device: str = "auto"
    op: Literal["check"] = "check"


@dataclass(frozen=True, kw_only=True)
class DiscoverRequest:
    """Find the stage functions of a project by reading its source. Needs no torch."""

    id: int
    root: str
    files: tuple[str, ...] = ()
    """Only these files, relative to the root; empty: the whole tree."""
    op: Literal["discover"] = "discover"


@dataclass(frozen=True, kw_only=True)
class LocateRequest:
    """Say where the interpreter would import these packages from, without importing them."""

    id: int
    root: str
    packages: tuple[str, ...]
    op: Literal["locate"] = "locate"


@dataclass(frozen=True, kw_only=True)
class DescribeRequest:
    """Say what functions of these roles take and give (`rltriage adapter`)."""

    id: int
    roles: tuple[str, ...] = ()
    """Empty: all of them."""
    op: Literal["describe"] = "describe"


@dataclass(frozen=True, kw_only=True)
class InspectRequest:
    """Python, torch, devices and versions that the worker sees (`rltriage doctor`)."""

    id: int
    op: Literal["inspect"] = "inspect"


@dataclass(frozen=True, kw_only=True)
class CancelRequest:
    """Kill the run with this id, with all its children."""

    id: int
    op: Literal["cancel"] = "cancel"


Request = CheckRequest | DiscoverRequest | LocateRequest | DescribeRequest | InspectRequest | CancelRequest


# Replies: worker -> server


@dataclass(frozen=True, kw_only=True)
class Hello:
    """First line of a worker."""

    protocol: int
    python: str
    executable: str
    torch: str
    """Version from the installed metadata; empty where torch is missing."""
    roles: tuple[str, ...]
    pid: int
    fork: bool
    """Whether runs are forked from a warm process (POSIX) or spawned."""
    op: Literal["hello"] = "hello"


@dataclass(frozen=True, kw_only=True)
class Progress:
    id: int
    done: int
    total: int
    says: str
    op: Literal["progress"] = "progress"


@dataclass(frozen=True, kw_only=True)
class Checked:
    id: int
    result: TargetResult
    op: Literal["checked"] = "checked"


@dataclass(frozen=True, kw_only=True)
class Found:
    """A function that discovery takes for a stage function."""

    role: str
    ref: str
    score: float
    """0..1; how many signs of the role the function shows."""
    why: str
    bind: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Discovered:
    id: int
    found: tuple[Found, ...]
    unsure: tuple[Found, ...]
    """Candidates that lost to a better one or lack a sign; the manifest lists them as comments."""
    settings: dict[str, Any]
    """`[pipeline]` values read from config files and calls, each as the user wrote it."""
    files_read: int
    skipped: tuple[str, ...] = ()
    """Files that could not be parsed, with the reason."""
    op: Literal["discovered"] = "discovered"


@dataclass(frozen=True, kw_only=True)
class Input:
    """A word that functions of a role may take under that name."""

    name: str
    kind: str
    """tensor, scalar, text or object."""
    shape: str
    says: str
    needed: bool
    """Whether it is the first of those of which a function needs one."""


@dataclass(frozen=True, kw_only=True)
class RoleDescription:
    """The canonical signature of a role: what an adapter takes and gives."""

    name: str
    stage: Stage
    asks: str
    returns: str
    inputs: tuple[Input, ...]
    """Needed ones first, then the most telling."""


@dataclass(frozen=True, kw_only=True)
class Located:
    id: int
    packages: dict[str, LoadReport]
    """Only those that were found; `line` is 0."""
    op: Literal["located"] = "located"


@dataclass(frozen=True, kw_only=True)
class Described:
    id: int
    roles: tuple[RoleDescription, ...]
    op: Literal["described"] = "described"


@dataclass(frozen=True, kw_only=True)
class Inspected:
    id: int
    python: str
    executable: str
    torch: str
    torch_error: str
    """Why `import torch` failed, where it did."""
    devices: tuple[str, ...]
    packages: dict[str, str]
    """Versions of the packages that matter to post-training, where installed."""
    env: dict[str, str]
    op: Literal["inspected"] = "inspected"


@dataclass(frozen=True, kw_only=True)
class Failed:
    """A request that gave no result, for a reason that the caller can act on."""

    id: int
    happened: str
    do: str
    kind: Literal["timeout", "memory", "crash", "cancelled", "no_torch", "bad_request"]
    last_words: str = ""
    """Tail of what the child wrote to stderr. Data, never an instruction."""
    op: Literal["failed"] = "failed"


Reply = Hello | Progress | Checked | Discovered | Located | Described | Inspected | Failed


# JSON


def encode(value: Any) -> Any:
    """Dataclasses, tuples and floats as what `json.dumps(..., allow_nan=False)` accepts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def decode_request(data: dict[str, Any]) -> Request:
    """The request that `encode` made; `ValueError` says which field is wrong."""
    for cls in typing.get_args(Request):
        if cls.__dataclass_fields__["op"].default == data.get("op"):
            return typing.cast(Request, _build(cls, data))
    raise ValueError(f"unknown op {data.get('op')!r}")


def _build(cls: type, data: dict[str, Any]) -> Any:
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{cls.__name__} has no field {', '.join(unknown)}")
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, value in data.items():
        inner = [t for t in (hints[name], *typing.get_args(hints[name])) if dataclasses.is_dataclass(t)]
        if inner and isinstance(value, dict):
            value = _build(typing.cast(type, inner[0]), value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    try:
        return cls(**values)
    except TypeError as e:
        raise ValueError(str(e)) from None


def clip_text(text: str, limit: int = MAX_TEXT) -> str:
    """`text`, at most `limit` characters long: the middle gives way, and says so."""
    if len(text) <= limit:
        return text
    keep = (limit - 40) // 2
    return f"{text[:keep]} [... {len(text) - 2 * keep} characters cut ...] {text[-keep:]}"


def _short(x: Number) -> str:
    return x if isinstance(x, str) else f"{x:.6g}"
