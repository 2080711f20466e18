"""One target from its name to its checks: load, bind, run the role."""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from rltriage_probes import binding, loading, registry, traces
from rltriage_probes.contract import (
    ROLE_STAGES,
    Agrees,
    BindingReport,
    Check,
    CheckRequest,
    KnownBug,
    LoadReport,
    NotRun,
    Outcome,
    Raised,
    TargetResult,
    Violates,
    clip_text,
)
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import LoadFailed
from rltriage_probes.model import CallFailed, Role, Subject

Progress = Callable[[int, int, str], None]
RECORDINGS = (".pt", ".pth")
"""Endings of files with saved tensors, which can be a target in place of a function."""


def check(request: CheckRequest, progress: Progress | None = None) -> TargetResult:
    """The checks of one target. What the user's code does wrong is an outcome, never an exception."""
    started = time.perf_counter()
    with warnings.catch_warnings():
        # A warning is no failure, whatever filter the interpreter was started with.
        warnings.simplefilter("ignore")
        checks, loaded, bound = _checks(request, progress or (lambda done, total, says: None))
    spec = request.target
    return TargetResult(
        name=spec.name,
        role=spec.role,
        stage=ROLE_STAGES.get(spec.role, "reward"),
        ref=spec.ref,
        checks=tuple(checks),
        loaded=loaded,
        binding=bound,
        seconds=time.perf_counter() - started,
    )


def _checks(request: CheckRequest, progress: Progress) -> tuple[list[Check], LoadReport | None, BindingReport | None]:
    spec = request.target
    try:
        role = registry.role(spec.role)
    except LookupError as e:
        known = ", ".join(registry.names())
        return [_single(spec.role, "", NotRun(reason=str(e.args[0]), do=f"The roles are {known}."))], None, None
    if spec.ref.endswith(RECORDINGS):
        return list(_recorded(request)), None, None
    try:
        loaded = loading.load(request.root, spec)
    except LoadFailed as e:
        return [_single(role.name, role.asks, NotRun(reason=clip_text(e.reason, 600), do=e.do))], None, None
    except NotReached as e:
        return [_single(role.name, role.asks, NotRun(reason=clip_text(e.reason, 600), do=e.do))], None, None
    try:
        _pin_dtype()
        bind = {**(spec.block.inputs if spec.block else {}), **spec.bind}
        bound = (role.bind or binding.bind)(loaded, role, bind, spec.settings, request.intent, spec.name)
    except binding.BindingFailed as e:
        do = f"Bind it in the manifest:\n{e.report.example}" if e.report.example else "Name a function that returns it."
        return [_single(role.name, role.asks, NotRun(reason=e.reason, do=do))], loaded.report, e.report
    except (CallFailed, NotReached) as e:
        return [_single(role.name, role.asks, _failure(e, "example"))], loaded.report, None
    subject = Subject(
        bound=bound, intent=request.intent, loaded=loaded.report, source=loaded.source, doc=loaded.doc,
        literals=loaded.literals, file=str(loaded.path), namespace=loaded.namespace, progress=progress,
    )  # fmt: skip
    with traces.listening() as trace:
        checks: list[Check] = []
        for c in _run(role, subject):
            trace.checked(c)
            checks.append(c)
    checks = _reproduced(checks, subject, trace)
    doubtful = _taken_twice(bound.report, role.name)
    return [_softened(c) for c in checks] if doubtful else checks, loaded.report, bound.report


def _reproduced(checks: list[Check], subject: Subject, trace: traces.Trace) -> list[Check]:
    """The checks, each finding with its reproduction. After all of them, since a call may leave something behind."""
    if all(isinstance(c.outcome, (Agrees, NotRun)) for c in checks):
        return checks
    from rltriage_probes import reproduction

    return [reproduction.added(c, subject, trace) for c in checks]


def _pin_dtype() -> None:
    """Cases are made in float32, whatever default the user's module has set."""
    import torch

    torch.set_default_dtype(torch.float32)


ONCE = frozenset({"logits", "logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "advantages", "rewards"})
"""Inputs of which a function has one. Where two places were taken for the same, one of them is something else."""


def _taken_twice(report: BindingReport, role: str) -> bool:
    once = ONCE | {"token_ids"} if role == "decode" else ONCE
    seen = [s.meaning for s in report.slots if s.meaning in once and "columns" not in s.form]
    return len(seen) > len(set(seen))


def _softened(check: Check) -> Check:
    """The check with nothing hard in it: an accusation needs a binding without doubt."""
    outcome = check.outcome
    if isinstance(outcome, (KnownBug, Violates)) and outcome.severity == "hard":
        return dataclasses.replace(check, outcome=dataclasses.replace(outcome, severity="soft"))
    return check


def _recorded(request: CheckRequest) -> Iterator[Check]:
    """Tensors that a run has saved, in place of a function."""
    from rltriage_probes.logprobs import recorded

    spec, root = request.target, Path(request.root).resolve()
    path = (root / spec.ref).resolve()
    if spec.role != "logprobs":
        do = f"Name a function for the role {spec.role}."
        yield _single(spec.role, "", NotRun(reason="saved tensors can be checked for the role logprobs only", do=do))
    elif not path.is_relative_to(root):
        yield _single(
            spec.role, "", NotRun(reason=f"{spec.ref} lies outside the project", do="Move it under the project folder.")
        )
    else:
        yield from recorded.check(path, {**request.intent, **spec.settings})


def _run(role: Role, subject: Subject) -> Iterator[Check]:
    """The role's checks; a failure half-way keeps those before it."""
    steps = role.run(subject)
    while True:
        try:
            step = next(steps)
        except StopIteration:
            return
        except (CallFailed, NotReached) as e:
            yield _single(role.name, role.asks, _failure(e, "a later case"))
            return
        yield step


def _failure(e: CallFailed | NotReached, case: str) -> Outcome:
    if isinstance(e, CallFailed):
        return Raised(error=clip_text(e.error, 600), where=e.where, case=case)
    return NotRun(reason=clip_text(e.reason, 600), do=e.do)


def _single(role: str, asks: str, outcome: Outcome) -> Check:
    return Check(probe=f"{role}.call", asks=asks or "can the function be called?", outcome=outcome)
