"""What every formula role does around the solver: observe, guess knobs, read claims, word the outcome."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import solver, tolerance, traces
from rltriage_probes.contract import (
    Agrees,
    Check,
    Convention,
    Diverges,
    Gap,
    KnownBug,
    Named,
    Number,
    Outcome,
    Raised,
    Severity,
    Violates,
)
from rltriage_probes.model import Axis, CallFailed, Case, Observation, Option, Pitfall, Subject
from rltriage_probes.solver import Knob, Seen, Solution

_LOOSENESS = ("float64", "float32", "float16", "bfloat16")


def loosest(*dtypes: str) -> str:
    """The dtype with the widest tolerance; torch.testing's rule for two dtypes."""
    return max(dtypes, key=_LOOSENESS.index)


def observe(subject: Subject, case: Case, wrt: Sequence[str] = (), overrides: Mapping[str, Any] | None = None) -> Seen:
    """Call the user's function on one case. Raises `CallFailed`."""
    inputs = {**case.inputs, **(overrides or {})}
    reachable = [w for w in wrt if w in subject.bound.names]
    got = subject.bound.call({k: v for k, v in inputs.items() if k in subject.bound.names}, reachable)
    return seen(case.name, inputs, got)


def seen(case: str, inputs: Mapping[str, Any], got: Observation) -> Seen:
    """An observation as the solver takes it: float inputs in float64."""
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}
    dtype = loosest("float32", got.dtype if got.dtype in _LOOSENESS else "float32")
    return Seen(case=case, inputs=wide, value=got.value, grads=got.grads, dtype=dtype, mutated=got.mutated)


def repeatable(observe: Callable[[Subject, Case], Seen], subject: Subject, case: Case) -> Seen:
    """`observe(subject, case)`, which a reproduction can repeat on smaller inputs. Raises `CallFailed`."""
    s = observe(subject, case)
    s.again = lambda inputs: observe(subject, Case(name=case.name, inputs=inputs))
    return s


def raised(probe: str, asks: str, case: str, e: CallFailed) -> Check:
    return Check(probe=probe, asks=asks, outcome=Raised(error=e.error, where=e.where, case=case))


def violation(
    probe: str,
    asks: str,
    says: str,
    *pitfalls: Pitfall,
    gap: Gap | None = None,
    numbers: Mapping[str, Number] | None = None,
    severity: Severity = "hard",
) -> Check:
    """A relation that does not hold, with the pitfalls that break it."""
    candidates = tuple(Named(pitfall=p.id, family=p.family, says=p.says) for p in pitfalls)
    relation = probe.rsplit(".", 1)[-1]
    outcome = Violates(
        relation=relation, says=says, candidates=candidates, gap=gap, numbers=dict(numbers or {}), severity=severity
    )
    return Check(probe=probe, asks=asks, outcome=outcome)


def holds(probe: str, asks: str, says: str) -> Check:
    """A relation that holds."""
    return Check(probe=probe, asks=asks, outcome=Agrees(convention=Convention(summary=says)))


# Knobs


def knob(
    subject: Subject,
    name: str,
    words: Sequence[str],
    usual: Sequence[float],
    *,
    active: Callable[[dict[str, str]], bool] = lambda options: True,
    fit: tuple[float, float] | None = None,
    within: tuple[float, float] = (0.0, float("inf")),
    monotone: tuple[float, float] | None = None,
) -> Knob:
    """A knob whose value is read from the function's settings, else guessed from its literals and usual values."""
    for word in words:
        value = subject.bound.settings.get(word)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return Knob(name=name, values=(float(value),), known=True, active=active)
    guesses = [x for x in subject.literals if within[0] <= x <= within[1]][:12]
    values = tuple(dict.fromkeys([*guesses, *usual]))
    return Knob(name=name, values=values, active=active, fit=fit, monotone=monotone)


def declared(subject: Subject, key: str) -> Any:
    """What `[pipeline]` says about a key, or None."""
    return subject.intent.get(key)


def claims(subject: Subject, *patterns: str) -> bool:
    """Whether the function's own documentation says this (case-insensitive regular expressions)."""
    return any(re.search(p, subject.doc, re.IGNORECASE | re.DOTALL) for p in patterns)


_GRADIENT_SAID = (
    r"back-?prop", r"with (a )?gradient", r"gradients? (goe?s?|flows?|reach(es)?|through|is kept|are kept)\b",
    r"differentia", r"\bwith graph\b",
)  # fmt: skip
_GRADIENT_DENIED = (
    r"\bno[- _]grad", r"without (a )?(gradient|graph)", r"not differentia", r"non-?differentia", r"\bdetached\b",
)  # fmt: skip


def promises_gradient(subject: Subject, *more: str) -> bool:
    """Whether the documentation says that the result is differentiated, and nowhere that it isn't."""
    return claims(subject, *_GRADIENT_SAID, *more) and not claims(subject, *_GRADIENT_DENIED)


_USED_LATER = (
    (
        r"(same|those|these|caller'?s?|the) (logits|inputs?|tensors?|arguments?)\b[^.]{0,60}"
        r"\b(used (again|afterwards?|later|next)|reused|shared|kept|left|unchanged|not (changed|modified|touched))"
    ),
    r"(not|never|without) (chang|modif|mutat|touch|overwrit)\w+[^.]{0,30}(logits|inputs?|arguments?)",
    r"\b(pure|side[- ]effect)", r"(logits|inputs?) (stay|remain|are left)\b",
)  # fmt: skip


def keeps_inputs(subject: Subject) -> bool:
    """Whether the documentation, of the class as well, says that somebody uses the inputs after the call."""
    owner = getattr(getattr(subject.bound, "loaded", None), "owner", None)
    text = f"{subject.doc}\n{getattr(owner, '__doc__', None) or ''}"
    return any(re.search(p, text, re.IGNORECASE | re.DOTALL) for p in _USED_LATER)


# Axes


def keep(axis: Axis, subject: Subject) -> Axis:
    """The axis as it concerns this function: only its first option where its inputs don't reach it."""
    if all(word in subject.bound.names for word in axis.needs):
        return axis
    return Axis(name=axis.name, options=axis.options[:1], needs=axis.needs, when=axis.when)


def wrong_here(option: Option, pitfall: Pitfall, wrong: bool) -> Option:
    """An option that is a convention in general and a pitfall under the declared intent."""
    if not wrong:
        return option
    return Option(name=option.name, standing="pitfall", says=option.says, source=option.source, pitfall=pitfall)


def as_pitfall(name: str, pitfall: Pitfall) -> Option:
    return Option(name=name, standing="pitfall", says=pitfall.says, pitfall=pitfall)


# Wording


def right_twin(axes: Sequence[Axis], solution: Solution) -> dict[str, str]:
    """The solution's options with each pitfall replaced by the first right option of its axis."""
    bad = {o.name for o in solution.pitfalls}
    out: dict[str, str] = {}
    for axis in axes:
        name = solution.options[axis.name]
        option = solver.option_of(axis, name)
        is_bad = option.standing == "pitfall" and name in bad
        out[axis.name] = next((o.name for o in axis.options if o.standing != "pitfall"), name) if is_bad else name
    return out


def distance(
    seen_cases: Iterable[Seen],
    reference: solver.Reference,
    options: dict[str, str],
    knobs: dict[str, float],
) -> Gap | None:
    """How far the observation is from a combination: the first case on which they differ."""
    for s in seen_cases:
        found = solver.difference(s, reference, options, knobs)
        if found is not None:
            traces.compared(found, s, reference, options, knobs)
            return found
    return None


def known_bug(named: Sequence[Named], convention: Convention, gap: Gap | None, severity: Severity = "hard") -> Outcome:
    return KnownBug(pitfalls=tuple(named), convention=convention, gap=gap, severity=severity)


def diverges(says: str, gap: Gap | None, numbers: Mapping[str, Number] | None = None) -> Outcome:
    return Diverges(says=says, gap=gap, numbers=dict(numbers or {}))


def scale_and_cosine(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """Least-squares factor between two tensors and the cosine of their angle."""
    a, e = actual.flatten(), expected.flatten()
    denominator = float(a.norm() * e.norm())
    if denominator == 0.0:
        return 0.0, 0.0
    return float(a @ e / (e @ e)), float(a @ e) / denominator


def generator(name: str) -> torch.Generator:
    """Random numbers that depend on the case's name alone."""
    seed = 0
    for ch in name:
        seed = (seed * 131 + ord(ch)) % (2**31)
    return torch.Generator().manual_seed(seed)


def gap_of(quantity: str, case: str, actual: Tensor, expected: Tensor, dtype: str) -> Gap | None:
    return tolerance.gap(quantity, case, actual, expected, dtype)
