"""Runs programs in processes that have imported torch and nothing of ours, each in one of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_RUNNER = r"""
import contextlib, io, json, os, sys
import torch

def run(job):
    os.chdir(job["root"])
    sys.path.insert(0, "")
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(job["code"], "<program>", "exec"), {"__name__": "__main__"})
    except BaseException as e:
        return {"printed": printed.getvalue(), "error": f"{type(e).__name__}: {e}"}
    return {"printed": printed.getvalue(), "error": ""}

for line in sys.stdin:
    reads, writes = os.pipe()
    if os.fork() == 0:
        with os.fdopen(writes, "w") as pipe:
            pipe.write(json.dumps(run(json.loads(line))))
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        print(pipe.read(), flush=True)
    os.wait()
"""


@dataclass(frozen=True)
class Ran:
    """What a program printed, and the exception that ended it."""

    printed: str
    error: str

    @property
    def last(self) -> str:
        return self.printed.strip().splitlines()[-1] if self.printed.strip() else ""


def run(programs: Sequence[tuple[Path, str]]) -> list[Ran]:
    """Each program in its folder, with the module path of `python -c`."""
    jobs = "".join(json.dumps({"root": str(root), "code": code}) + "\n" for root, code in programs)
    done = subprocess.run(
        [sys.executable, "-I", "-c", _RUNNER], input=jobs, capture_output=True, text=True, timeout=170, check=True
    )
    return [Ran(**json.loads(line)) for line in done.stdout.splitlines()]
