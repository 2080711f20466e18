"""A project to examine, and a server that is spoken to without a client library."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

PROJECTS = Path(__file__).parent / "projects"
SERVE = [sys.executable, "-m", "rltriage", "serve"]
PATIENCE_S = 60
"""Longest wait for something that must happen; a failing test should say so and not hang."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def grpo(tmp_path: Path) -> Path:
    """A copy of the small project, with a named pipe on which `endless_advantages` tells its process ids."""
    project = tmp_path / "grpo"
    shutil.copytree(PROJECTS / "grpo", project)
    os.mkfifo(project / "pids")
    return project


@pytest.fixture
def user_python() -> str:
    """The interpreter that has torch; it stands for the user's own."""
    return os.environ.get("RLTRIAGE_TEST_PYTHON", sys.executable)


class Deaths:
    """Waits until processes are dead, a zombie counting as dead."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self._fds: dict[int, int] = {}
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                self._fds[os.pidfd_open(pid)] = pid

    def survivors(self, within_s: float) -> list[int]:
        """Ids of those still alive after `within_s` seconds."""
        alive = dict(self._fds)
        while alive:
            ended, _, _ = select.select(list(alive), [], [], within_s)
            if not ended:
                break
            for fd in ended:
                del alive[fd]
        for fd in self._fds:
            os.close(fd)
        return list(alive.values())


class RawServer:
    """The server over its pipes, line by line, so that a stray line can't hide in a client library."""

    def __init__(self, cwd: Path) -> None:
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONUNBUFFERED", "CLAUDE_PROJECT_DIR")}
        self.process = subprocess.Popen(
            SERVE, cwd=cwd, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.watchdog = threading.Timer(2 * PATIENCE_S, self.process.kill)
        """A server that does not answer ends the test by closing its pipes, not by keeping it waiting."""
        self.watchdog.daemon = True
        self.watchdog.start()
        self._id = 0
        self.lines: list[dict[str, Any]] = []

    def initialize(self) -> dict[str, Any]:
        client = {"name": "raw", "version": "0"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        answer = self.request("initialize", params)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> int:
        """Send a request and don't wait."""
        self._id += 1
        self.send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        return self._id

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request. Every line read on the way must be JSON."""
        wanted = self.ask(method, params)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))
            if self.lines[-1].get("id") == wanted:
                return self.lines[-1]
        raise AssertionError(f"the server closed stdout before it answered {method}")

    def everybody(self) -> list[int]:
        """The server and all its descendants."""
        return [self.process.pid, *(p.pid for p in psutil.Process(self.process.pid).children(recursive=True))]

    def signal(self, number: signal.Signals) -> int:
        """Send a signal and give the exit code."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def hang_up(self) -> int:
        """Close stdin and give the exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def raw_server(grpo: Path) -> Iterator[RawServer]:
    server = RawServer(grpo)
    yield server
    server.watchdog.cancel()
    server.process.kill()
    server.process.wait()
    for pipe in (server.process.stdin, server.process.stdout, server.process.stderr):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()


@pytest.fixture
def endless_pids(grpo: Path) -> Iterator[Callable[[], list[int]]]:
    """Waits until `endless_advantages` runs; ids of its process and of the child that it started."""
    # Open on both ends from the start: the function needn't wait for its reader, nor the reader for ever for it.
    pipe = os.open(grpo / "pids", os.O_RDWR | os.O_NONBLOCK)

    def told() -> list[int]:
        ready, _, _ = select.select([pipe], [], [], PATIENCE_S)
        assert ready, f"endless_advantages was not called within {PATIENCE_S} s"
        return [int(word) for word in os.read(pipe, 100).split()]

    yield told
    os.close(pipe)


@pytest.fixture
def deaths() -> type[Deaths]:
    return Deaths
