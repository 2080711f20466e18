"""Which runs share a process that has their framework imported already.

Importing a framework takes seconds, a probe milliseconds. So the runs whose targets lie in the same large package
are forked from a *nursery*: a zygote that has imported the modules in question. It lives as long as no source file
that it may have imported changes, so that every run still sees the files as they are.

Needs no torch: the supervisor decides this from file names and times alone.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rltriage_probes import loading
from rltriage_probes.contract import CheckRequest

LARGE = 50
"""Python files from which on a package in the user's project counts as a framework that was vendored."""
MOST_FILES = 5_000
"""Files whose times are compared before each run: 10 microseconds each. A larger tree gets no nursery."""
_LONGEST_REF = 1_000


@dataclass(frozen=True, kw_only=True)
class Nursery:
    """A package that runs may have imported beforehand, and the state of the files that this may read."""

    root: str
    folder: str
    """Of the package."""
    stamp: int

    @property
    def key(self) -> tuple[str, str]:
        return self.root, self.folder


def nursery_of(request: CheckRequest) -> Nursery | None:
    """The nursery that a run can be forked from; None where its target is imported fresh each time."""
    root = Path(request.root).resolve()
    ref = request.target.ref
    if ":" not in ref or len(ref) > _LONGEST_REF:
        return None
    try:
        place = loading.find(root, ref)
    except (loading.LoadFailed, OSError, ValueError):
        return None
    if not place.packages:
        return None
    folder = place.packages[0][1]
    files = _states(folder)
    if files is None or not (place.distribution or len(files) >= LARGE):
        return None
    if not place.distribution and not folder.is_relative_to(root):
        return None
    beside = () if folder == root else _states(root)
    if beside is None:
        return None
    return Nursery(root=str(root), folder=str(folder), stamp=hash((*files, *beside)))


def _states(folder: Path) -> tuple[tuple[str, int, int], ...] | None:
    """Name, time and size of every Python file below; None where there are too many to look at each time."""
    found: list[tuple[str, int, int]] = []
    for entry in _python_files(str(folder)):
        with contextlib.suppress(OSError):
            status = entry.stat()
            found.append((entry.path, status.st_mtime_ns, status.st_size))
        if len(found) > MOST_FILES:
            return None
    return tuple(sorted(found))


def _python_files(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.name.endswith(".py"):
            yield entry
        elif _is_searched(entry.path, entry.name) and entry.is_dir(follow_symlinks=False):
            yield from _python_files(entry.path)


@functools.lru_cache(maxsize=10_000)
def _is_searched(path: str, name: str) -> bool:
    """Not environments, caches and hidden folders."""
    return not (
        name.startswith(".")
        or name in ("__pycache__", "node_modules", "site-packages")
        or Path(path, "pyvenv.cfg").exists()
    )
