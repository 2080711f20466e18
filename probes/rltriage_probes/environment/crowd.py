"""Many instances at once: in threads, as coroutines of one loop, in processes."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

from rltriage_probes.contract import Check
from rltriage_probes.environment import world
from rltriage_probes.environment.building import Situation
from rltriage_probes.environment.driving import Trace
from rltriage_probes.environment.episodes import Exam, Play
from rltriage_probes.environment.pitfalls import SHARED
from rltriage_probes.environment.target import NOISE
from rltriage_probes.model import CallFailed
from rltriage_probes.texts import agrees, violates

INSTANCES = 128
THREADS = 16
LONGEST_S = 4.0
PROCESSES = 2
PROCESS_S = 10.0


def check(exam: Exam) -> Iterator[Check]:
    """Episodes of many instances at once against the same episodes one by one."""
    probe, asks = "environment.parallel", "do many instances at once have the episodes that they have alone?"
    if exam.uses_process:
        yield agrees(probe, asks, "not compared: it draws from the process's generators, which threads share")
        return
    play = max(exam.plays, key=lambda p: len(p.actions))
    situations = [Situation(seed=i % 4, problem=i % 2) for i in range(4)]
    alone: dict[Situation, Trace] = {}
    started = time.perf_counter()
    for at in situations:
        found = _trace(exam, play, at)
        if found is not None:
            alone[at] = found
    if not alone:
        return
    each = (time.perf_counter() - started) / len(situations)
    count = max(8, min(INSTANCES, int(LONGEST_S * 4 / max(each, 1e-6))))
    difference = _in_threads(exam, play, alone, count)
    if difference:
        says = f"of {count} instances in {THREADS} threads, {difference}"
        yield violates(probe, asks, says, SHARED, numbers={"instances": float(count)})
        return
    if each * PROCESSES < 1.0:
        difference = _in_processes(exam, play, alone)
        if difference:
            yield violates(probe, asks, f"in {PROCESSES} processes at once, {difference}", SHARED)
            return
    yield agrees(probe, asks, f"{count} instances in {THREADS} threads agree with one instance at a time")


def _trace(exam: Exam, play: Play, at: Situation) -> Trace | None:
    try:
        return exam.trace(play, at)
    except CallFailed:
        return None


def _in_threads(exam: Exam, play: Play, alone: dict[Situation, Trace], count: int) -> str:
    """What differs first; empty where nothing does."""
    exam.target.world.restore()
    situations = list(alone)

    def one(i: int) -> str:
        at = situations[i % len(situations)]
        try:
            session, _ = exam.target.session(at, restore=False, threaded=True)
            trace = session.episode(play.actions)
            session.close()
        except CallFailed as e:
            return f"one raises {e.error} at {e.where}, which alone it does not"
        return alone[at].difference(trace, "alone", "among the others")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with world.kept_globals(), concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
            world.seed_globals(NOISE)
            return next((d for d in pool.map(one, range(count)) if d), "")
    finally:
        sys.setswitchinterval(interval)
        exam.target.world.restore()


def _in_processes(exam: Exam, play: Play, alone: dict[Situation, Trace]) -> str:
    """Forked children that each play one episode; what differs first."""
    if not hasattr(os, "fork"):
        return ""
    at, want = next(iter(alone.items()))
    wanted = _digest(want)
    exam.target.world.restore()
    children: list[tuple[int, int]] = []
    for _ in range(PROCESSES):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(exam, play, at, writer)
        os.close(writer)
        children.append((pid, reader))
    answers = [_answer(pid, reader) for pid, reader in children]
    return next((f"the episode of one is another than alone ({a})" for a in answers if a and a != wanted), "")


def _child(exam: Exam, play: Play, at: Situation, writer: int) -> None:
    """Never returns: what the user's code does to this process ends with it."""
    text = ""
    try:
        found = _trace(exam, play, at)
        text = _digest(found) if found is not None else "it raises"
    finally:
        with contextlib.suppress(OSError):
            os.write(writer, text.encode())
        os._exit(0)  # the parent's buffers and exit handlers are not this process's


def _answer(pid: int, reader: int) -> str:
    ready, _, _ = select.select([reader], [], [], PROCESS_S)
    text = os.read(reader, 4096).decode() if ready else ""
    os.close(reader)
    if not ready:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    return text


def _digest(trace: Trace) -> str:
    shown = repr((trace.first, [s.frozen for s in trace.steps]))
    return hashlib.sha256(shown.encode()).hexdigest()[:16]
