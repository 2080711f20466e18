"""Says what `rltriage verify` would run here, in which interpreter, and what stands in its way."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rltriage_probes.contract import Hello, Inspected, TargetSpec

from rltriage import __version__, content
from rltriage.errors import TriageError
from rltriage.manifest import FILE_NAME, Manifest, load, stage_of
from rltriage.render import Line, clean

if TYPE_CHECKING:
    from rltriage.worker import Worker, WorkerPool


@dataclass
class Diagnosis:
    """What was found out, line by line, and whether anything would keep `verify` from running."""

    lines: list[Line] = field(default_factory=list[Line])
    healthy: bool = True

    def say(self, what: str, value: str) -> None:
        self.lines.append(Line(f"{what + ':':<13} {clean(value)}"))

    def good(self, text: str) -> None:
        self.lines.append(Line(f"  ok  {clean(text)}", "ok"))

    def doubt(self, text: str) -> None:
        self.lines.append(Line(f"   ?  {clean(text)}", "?"))

    def bad(self, happened: str, do: str) -> None:
        self.healthy = False
        rows = [clean(row) for row in happened.splitlines()] or [""]
        self.lines.append(Line(f"  !!  {rows[0]}", "!!"))
        self.lines += [Line(f"      {row}") for row in rows[1:]]
        self.lines += [Line(f"      do: {clean(row)}") for row in do.splitlines()]


async def examine(manifest: str | None, *, pool: WorkerPool, python: str | None = None) -> Diagnosis:
    """Look at the installation, the interpreter and the manifest. Never raises `TriageError`: it is a line."""
    seen = Diagnosis()
    seen.say("rltriage", f"{__version__} in {sys.executable} (Python {platform.python_version()})")
    seen.say("pages", str(len(content.page_ids())))
    read = _manifest(seen, manifest, python)
    worker = await _interpreter(seen, pool, read, python)
    if read is not None:
        seen.say("manifest", f"{read.name}, {len(read.targets)} targets")
        for warning in read.warnings:
            seen.doubt(warning)
        for target in read.targets:
            await _target(seen, read, target, worker)
    last = "Next: rltriage verify" if read else "Next: rltriage init writes a manifest, then rltriage verify"
    seen.lines.append(Line(last if seen.healthy else "Next: do what is said at !!, then ask again"))
    return seen


def _manifest(seen: Diagnosis, given: str | None, python: str | None) -> Manifest | None:
    if given is None and not Path(FILE_NAME).exists():
        seen.say("manifest", f"none in {Path.cwd()}")
        return None
    try:
        return load(given or FILE_NAME, python=python)
    except TriageError as e:
        seen.bad(e.happened, e.do)
        return None


async def _interpreter(
    seen: Diagnosis, pool: WorkerPool, manifest: Manifest | None, python: str | None
) -> Worker | None:
    named, env, root = (manifest.python, manifest.env, manifest.root) if manifest else (python, {}, str(Path.cwd()))
    try:
        worker = await pool.get(named, env, root=root)
        found = await worker.inspect()
    except TriageError as e:
        seen.bad(e.happened, e.do)
        return None
    why = worker.chosen.why if worker.chosen else ""
    seen.say("interpreter", f"{found.executable} (Python {found.python}){f': {why}' if why else ''}")
    _torch(seen, found, worker.hello)
    seen.say("packages", ", ".join(f"{k} {v}" for k, v in sorted(found.packages.items())) or "none that matter")
    if found.env:
        seen.say("environment", ", ".join(f"{k}={v}" for k, v in sorted(found.env.items())))
    return worker


def _torch(seen: Diagnosis, found: Inspected, hello: Hello | None) -> None:
    if found.torch and not found.torch_error:
        seen.say("torch", f"{found.torch} on {', '.join(found.devices) or 'cpu'}")
        if hello is not None and not hello.fork:
            seen.doubt("this platform can't fork: each run imports torch anew")
        return
    seen.bad(
        f"torch can't be imported there: {found.torch_error or 'not installed'}",
        "Name the interpreter that trains, with `python` in [pipeline] or --python, or install torch in this one.",
    )


async def _target(seen: Diagnosis, manifest: Manifest, target: TargetSpec, worker: Worker | None) -> None:
    name = f"{target.role}: {target.ref}"
    where = re.split(r"[:#](?![\\/])", target.ref, maxsplit=1)[0]
    if where.endswith(".py"):
        exists = (Path(manifest.root) / where).is_file()
    else:
        exists = worker is None or await _locatable(worker, manifest.root, where)
    if exists:
        seen.good(f"{name} (stage {stage_of(target.role)})")
    else:
        kind = "file" if where.endswith(".py") else "module"
        seen.bad(
            f"{name}: there is no {kind} {where}",
            f"Correct ref in [targets.{target.name}]; it is read in {manifest.root}.",
        )


async def _locatable(worker: Worker, root: str, module: str) -> bool:
    """Whether the interpreter would find the module's top package."""
    package = module.partition(".")[0]
    try:
        return package in (await worker.locate(root, (package,))).packages
    except TriageError:
        return True
