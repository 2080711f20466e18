"""Runs the targets of manifests in the users' interpreters and makes one report of each manifest.

Nothing that goes wrong with one target or manifest keeps the others from being measured: a run that
failed becomes `NotRun` of its target, an interpreter that can't be used becomes an error of its report.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import anyio
from rltriage_probes.contract import Check, NotRun, TargetSpec

from rltriage import coverage, packs
from rltriage.errors import RunFailed, TriageError
from rltriage.manifest import Manifest, ManifestError, stage_of
from rltriage.report import Problem, Report, TargetReport, findings_of, missing_of, recognised_of

if TYPE_CHECKING:
    from rltriage.worker import Worker, WorkerPool

OnProgress = Callable[[float, float, str], None]
"""Targets done (with fractions of those that run), targets in all, what is being done."""

TARGETS_AT_ONCE: Final = 16
"""Targets that are handed to the worker; it runs as many at once as it has cores and memory for (`serve.py`)."""
MANIFESTS_AHEAD: Final = TARGETS_AT_ONCE
"""Manifests begun before the report of the first of them is taken: enough to keep the workers busy."""


async def verify(
    manifest: Manifest,
    *,
    stages: Sequence[str] = (),
    pool: WorkerPool,
    on_progress: OnProgress | None = None,
    slots: anyio.CapacityLimiter | None = None,
    within_s: float = math.inf,
) -> Report:
    """Measure every target of the manifest, or those of the given stages.

    `slots` bounds how many targets run at once; several calls can share it. What is not done after
    `within_s` seconds is reported as not run. A failure is part of the report; the call itself raises only
    when it is cancelled.
    """
    targets = [t for t in manifest.targets if not stages or stage_of(t.role) in stages]
    run = _Run(manifest, targets, slots or anyio.CapacityLimiter(TARGETS_AT_ONCE), on_progress)
    with anyio.move_on_after(within_s):
        await run.open(pool)
        async with anyio.create_task_group() as tg:
            for i in range(len(targets)):
                tg.start_soon(run.measure, i)
    run.give_up_on_the_rest(within_s)
    return run.report(stages)


async def verify_many(
    manifests: Iterable[Manifest | ManifestError],
    *,
    names: Sequence[str] = (),
    stages: Sequence[str] = (),
    pool: WorkerPool,
    on_progress: OnProgress | None = None,
) -> AsyncGenerator[Report, None]:
    """One report a manifest, in the order given; interpreters are shared.

    A manifest that could not be read (`ManifestError` in its place, its path in `names`) gets a report
    that says so. Progress counts manifests.
    """
    todo = list(manifests)
    slots = anyio.CapacityLimiter(TARGETS_AT_ONCE)
    started: deque[asyncio.Task[Report]] = deque()

    async def one(i: int) -> Report:
        m = todo[i]
        if isinstance(m, ManifestError):
            return unreadable(names[i] if i < len(names) else "", m)
        return await verify(m, stages=stages, pool=pool, slots=slots, on_progress=_inner(on_progress, len(todo)))

    try:
        begun = 0
        for i in range(len(todo)):
            while begun < min(len(todo), i + MANIFESTS_AHEAD):
                started.append(asyncio.create_task(one(begun)))
                begun += 1
            report = await started[0]
            started.popleft()
            if on_progress is not None and len(todo) > 1:
                on_progress(i + 1.0, float(len(todo)), report.manifest)
            yield report
    finally:
        for task in started:
            task.cancel()
        await asyncio.gather(*started, return_exceptions=True)


def _inner(on_progress: OnProgress | None, manifests: int) -> OnProgress | None:
    """Progress of a manifest among others: only a single one may show its targets."""
    return on_progress if manifests == 1 else None


def unreadable(name: str, error: TriageError) -> Report:
    """Report of a manifest that could not be used at all."""
    stages = coverage.stages_of((), ())
    problem = Problem(happened=error.happened, do=error.do)
    return Report(manifest=name, verdict="incomplete", stages=stages, errors=(problem,))


class _Run:
    """The targets of one manifest while they are being measured."""

    def __init__(
        self,
        manifest: Manifest,
        targets: Sequence[TargetSpec],
        slots: anyio.CapacityLimiter,
        on_progress: OnProgress | None,
    ) -> None:
        self.manifest = manifest
        self.targets = targets
        self.slots = slots
        self.on_progress = on_progress
        self.done = [0.0] * len(targets)
        self.results: dict[int, TargetReport] = {}
        self.worker: Worker | None = None
        self.error: TriageError | None = None

    async def open(self, pool: WorkerPool) -> None:
        """Get the interpreter, if any target needs it."""
        if not self.targets:
            return
        try:
            self.worker = await pool.get(self.manifest.python, self.manifest.env, root=self.manifest.root)
        except TriageError as e:
            self.error = e

    async def measure(self, i: int) -> None:
        target = self.targets[i]
        if lacks := self.manifest.absent.get(target.name):
            self.results[i] = _not_run(target, NotRun(reason=lacks))
        elif self.worker is None:
            error = self.error
            why = NotRun(reason=error.happened if error else "no interpreter", do=error.do if error else "")
            self.results[i] = _not_run(target, why)
        else:
            async with self.slots:
                self.results[i] = await self._check(self.worker, i)
        self._progress(i, 1.0, f"{target.role}: {target.ref}")

    def give_up_on_the_rest(self, within_s: float) -> None:
        """Report as not run what has no result, because its time was used up."""
        for i, target in enumerate(self.targets):
            if i not in self.results:
                why = NotRun(
                    reason=f"the {within_s:g} s that were allowed in all were used up before it was measured",
                    do="Allow more time, or verify fewer stages at once.",
                )
                self.results[i] = _not_run(target, why)

    async def _check(self, worker: Worker, i: int) -> TargetReport:
        m, target = self.manifest, self.targets[i]
        try:
            result = await worker.check(
                root=m.root,
                target=target,
                intent=m.pipeline,
                limits=m.limits,
                device=m.device,
                on_progress=lambda p: self._progress(i, p.done / max(p.total, 1), f"{target.role}: {p.says}"),
            )
        except TriageError as e:
            failed = e.failed if isinstance(e, RunFailed) else None
            if failed is not None and failed.kind == "no_torch":
                self.error = e
            why = NotRun(reason=e.happened, do=e.do)
            return _not_run(target, why, printed=failed.last_words if failed else "")
        return TargetReport(
            name=result.name,
            role=result.role,
            stage=result.stage,
            ref=result.ref,
            checks=result.checks,
            loaded=result.loaded,
            binding=result.binding,
            device=result.device,
            seconds=result.seconds,
            printed=result.printed,
        )

    def _progress(self, i: int, done: float, says: str) -> None:
        self.done[i] = min(1.0, max(self.done[i], done))
        if self.on_progress is not None:
            self.on_progress(sum(self.done), float(len(self.targets)), says)

    def report(self, stages: Sequence[str]) -> Report:
        targets = tuple(self.results[i] for i in range(len(self.targets)))
        found = [packs.explained(f, self.manifest) for t in targets for f in findings_of(t)]
        recognised = tuple(r for t in targets for r in recognised_of(t))
        # what this copy of a framework has none of leaves no stage uncovered
        table = coverage.stages_of([t for t in targets if t.name not in self.manifest.absent], found)
        findings = tuple(sorted(found, key=lambda f: list(table).index(f.stage)))
        hello = self.worker.hello if self.worker else None
        return Report(
            manifest=self.manifest.name,
            verdict=coverage.verdict_of(table, findings),
            stages=table,
            findings=findings,
            recognised=recognised,
            not_run=tuple(m for t in targets for m in missing_of(t)),
            targets=targets,
            warnings=(*self.manifest.warnings, *self._remarks()),
            notes=(*self.manifest.notes, *packs.differences(self.manifest, recognised)),
            errors=(Problem(happened=self.error.happened, do=self.error.do),) if self.error else (),
            python=f"{hello.executable} (Python {hello.python})" if hello else "",
            torch=hello.torch if hello else "",
            asked=tuple(stages),
        )

    def _remarks(self) -> tuple[str, ...]:
        if not self.manifest.targets:
            return ("the manifest names no target; `rltriage init` finds candidates",)
        return () if self.targets else ("no target of the manifest belongs to the stages asked for",)


def _not_run(target: TargetSpec, why: NotRun, printed: str = "") -> TargetReport:
    check = Check(probe=target.role, asks="", outcome=why)
    return TargetReport(
        name=target.name,
        role=target.role,
        stage=stage_of(target.role),
        ref=target.ref,
        checks=(check,),
        printed=printed,
    )
