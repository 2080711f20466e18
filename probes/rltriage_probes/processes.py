"""Process trees: finding, weighing and killing everything that a run has started.

A process group isn't enough: user code that starts a helper in a session of its own leaves the group.
On Linux each run is therefore a *child subreaper*: whatever below it loses its parent becomes its own
child, so that its tree is complete until it dies, and then passes to the process that forked it.
Elsewhere only the group is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

LINUX = sys.platform == "linux"
MOST_AT_ONCE = 16
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS = 400
"""Looks at a tree that is being killed, a few ms apart: enough for a tree that still forks."""


def at_once() -> int:
    """Runs that this machine has room for: one a core that this process may use, and a gigabyte for each."""
    return max(2, min(MOST_AT_ONCE, cores(), int(free_memory() / 2**30)))


def cores() -> int:
    """Cores that this process may use: those it is bound to, and what its container's quota gives."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = (_read("/sys/fs/cgroup/cpu.max") or "").split()
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit():
        count = min(count, max(1, round(int(quota[0]) / int(quota[1]))))
    return count


def free_memory() -> float:
    """Bytes that may still be taken; infinite where the system can't tell."""
    free = math.inf
    for line in (_read("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            free = float(line.split()[1]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max") or "", _read("/sys/fs/cgroup/memory.current") or ""
    if limit.strip().isdigit() and used.strip().isdigit():
        free = min(free, float(limit) - float(used))
    return free


def adopt_orphans() -> None:
    """Make this process the new parent of every orphan below it (Linux)."""
    if LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when `parent`, which has forked it, dies (Linux)."""
    if not LINUX:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def children_of(pid: int) -> list[int]:
    """Direct children, dead but unreaped ones included; empty where the system can't tell."""
    if not LINUX:
        return []
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            text = _read(f"{task}/children")
            if text is None and task.exists():
                return _children_by_scan(pid)
            found += [int(p) for p in (text or "").split()]
    return found


def _children_by_scan(pid: int) -> list[int]:
    """For kernels that are built without the list of children."""
    everyone = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    return [p for p in everyone if (stat := _stat(p)) and int(stat[1]) == pid]


def descendants(pid: int) -> list[int]:
    """Everything below `pid`, parents before their children."""
    found: list[int] = []
    todo = [pid]
    while todo:
        below = [p for p in children_of(todo.pop()) if p not in found]
        found += below
        todo += below
    return found


def is_running(pid: int) -> bool:
    """Whether it exists and is more than an exit status that nobody has fetched (Linux)."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in ("Z", "X")


def exit_code(status: os.waitid_result) -> int:
    """Exit code, or minus the number of the signal."""
    return status.si_status if status.si_code == os.CLD_EXITED else -status.si_status


def kill_tree(pid: int) -> None:
    """Kill `pid`, its process group and everything below it, wherever that has moved to; dead on return (Linux)."""
    if sys.platform == "win32":
        command = ["taskkill", "/T", "/F", "/PID", str(pid)]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return
    _signal(pid, signal.SIGSTOP)  # so that it starts nothing more, and keeps adopting what gets orphaned
    for _ in range(_ROUNDS):
        living = [p for p in descendants(pid) if is_running(p)]
        if not living:
            break
        for p in living:
            _signal(p, signal.SIGKILL)
        time.sleep(0.002)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)
    for _ in range(_ROUNDS if LINUX else 0):
        if not is_running(pid):
            break
        time.sleep(0.001)


def kill_strays(known: Collection[int]) -> None:
    """Kill and reap the children of this process that are none of `known`: orphans of a run that is over."""
    for _ in range(_ROUNDS):
        strays = [p for p in children_of(os.getpid()) if p not in known]
        if not strays:
            return
        for p in strays:
            kill_tree(p)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(p, 0)


def memory_of(pids: Collection[int], shared: int = 0) -> int:
    """Bytes that these processes keep in memory and that can't be read back from a file.

    `shared` is what each of them has in common with the process that forked it. File mappings (a
    checkpoint, torch's libraries) are left out: the kernel drops them when it needs the room.
    """
    return sum(max(0, _anonymous(p) - shared) for p in pids)


def _anonymous(pid: int) -> int:
    text = _read(f"/proc/{pid}/status") or ""
    lines = [line.split() for line in text.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(int(fields[1]) * 1024 for fields in lines)


def private_data_of(pid: int) -> int:
    """Bytes of private writable address space, which is what RLIMIT_DATA counts."""
    for line in (_read(f"/proc/{pid}/status") or "").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0


def _stat(pid: int) -> list[str] | None:
    """State, parent, ... of /proc/PID/stat; None where there is no such process."""
    text = _read(f"/proc/{pid}/stat")
    return text.rpartition(")")[2].split() if text else None


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return None


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
