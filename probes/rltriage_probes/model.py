"""What a role is made of: axes, options, relations, cases; and what a probe is given.

A *role* is a kind of user function (`advantages`, `policy_loss`, ...). Each role is one file that
declares one `Role`; `registry.py` lists them by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rltriage_probes.contract import BindingReport, Check, LoadReport, Stage

Standing = Literal["standard", "convention", "pitfall"]


@dataclass(frozen=True, kw_only=True)
class Pitfall:
    """A bug that has a page. `id` is for ever; `family` is its root cause."""

    id: str
    family: str
    says: str
    """What the function does wrong, one clause, present tense."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One value of an axis.

    A `convention` names its source; a `pitfall` is a `Pitfall`.
    """

    name: str
    standing: Standing = "convention"
    says: str = ""
    source: str = ""
    pitfall: Pitfall | None = None


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One way in which right (and wrong) functions of a role differ.

    `name` is a keyword argument of the role's reference; its value is an option's `name`.
    """

    name: str
    options: tuple[Option, ...]
    needs: tuple[str, ...] = ()
    """Inputs without which only the first option makes sense."""
    when: Callable[[Mapping[str, str]], bool] | None = None
    """Under which other options this axis makes a difference; None: always."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Seeded inputs, by word of the vocabulary. The name alone re-creates them."""

    name: str
    inputs: Mapping[str, Any]


@dataclass(kw_only=True)
class Observation:
    """What the user's function gave on one case, brought into canonical form.

    `value` is float64 on the CPU, detached. `grads` has d(out)/d(input) for each input that was asked
    for and that the result depends on; `out` is the scalar result, or its sum weighted with
    `cotangent` where it is not a scalar.
    """

    value: Any
    grads: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    mutated: tuple[str, ...] = ()
    """Inputs that the function changed in place. A note, not a bug: shipped code does it."""


class CallFailed(Exception):
    """The user's function raised; carries what `contract.Raised` needs."""

    def __init__(self, error: str, where: str) -> None:
        super().__init__(error)
        self.error = error
        self.where = where


class BoundFunction(Protocol):
    """A user function that can be called with words of the vocabulary."""

    report: BindingReport
    names: frozenset[str]
    """Words that reach the function as inputs."""
    settings: Mapping[str, Any]
    """Words whose value is fixed for this function and known: from the manifest's settings, from the
    intent, from a parameter's default, from an attribute of its `self`."""

    def call(self, inputs: Mapping[str, Any], wrt: Sequence[str] = (), dtype: str = "float32") -> Observation:
        """Call with clones of the inputs. Raises `CallFailed`."""
        ...

    def call_raw(self, inputs: Mapping[str, Any]) -> Any:
        """Call and hand back the very object that the function returned (text roles)."""
        ...


@dataclass(frozen=True, kw_only=True)
class Subject:
    """All that a probe may look at."""

    bound: BoundFunction
    intent: Mapping[str, Any]
    loaded: LoadReport
    source: str
    """Source text of the function, dedented; empty where there is none."""
    doc: str
    literals: tuple[float, ...] = ()
    """Numbers written in the function, its defaults and the constants it reads: first guesses for knobs."""
    file: str = ""
    """Absolute path of the function's file; empty where it is not known."""
    namespace: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Globals that the function sees."""
    progress: Callable[[int, int, str], None] = lambda done, total, says: None


@dataclass(frozen=True, kw_only=True)
class Role:
    """A kind of user function and how it is examined."""

    name: str
    stage: Stage
    asks: str
    """What the function must be, one line, e.g. `rewards of groups -> advantages [B] or [B, T]`."""
    takes: tuple[str, ...]
    """Words of the vocabulary that such a function may take, the most telling first."""
    needs: tuple[tuple[str, ...], ...]
    """Of each inner tuple at least one word must be bound, or nothing can be measured."""
    returns: Literal["per sample", "per token", "estimates", "scalar", "mask", "text", "number", "raw"]
    example: Callable[[Mapping[str, Any]], Case]
    """A plain valid case for the intent, with which the binder tries forms of the inputs out."""
    run: Callable[[Subject], Iterator[Check]]
    pitfalls: tuple[Pitfall, ...] = ()
    """Every pitfall that it can name."""
    bind: Callable[..., BoundFunction] | None = None
    """How a target that is no function of words is reached (a class of environments); None: `binding.bind`, whose
    parameters it has."""
    refuses: Callable[[Any, Mapping[str, Any]], str] = lambda result, inputs: ""
    """Why a raw result of the example is no answer to it, so that another form of the inputs is tried; empty: it is."""
