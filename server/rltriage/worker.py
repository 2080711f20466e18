"""The server's side of the workers: starts them, asks them, and never leaves one behind.

A worker is a process of the user's interpreter (`rltriage_probes/boot.py`), spoken to in lines of JSON.
Requests run concurrently, each in a process of its own over there; a task that is cancelled while it
waits kills its run before the cancellation goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Final, Self, TypeVar, cast

import anyio
import anyio.abc
import rltriage_probes.contract as c
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from pydantic import Field, TypeAdapter, ValidationError

from rltriage import interpreter
from rltriage.errors import RunFailed, WorkerError

HELLO_S: Final = 60.0
"""Longest start of an interpreter, e.g. from a cold network disk."""
CLOSE_S: Final = 3.0
"""A worker that is asked to end gets this long before it is killed."""
CANCEL_S: Final = 10.0
"""Longest wait for the word that a cancelled run is dead."""
STDERR_BYTES: Final = 8_192

R = TypeVar("R", bound=c.Reply)
S = TypeVar("S")
OnProgress = Callable[[c.Progress], None]

_REPLY: Final[TypeAdapter[c.Reply]] = TypeAdapter(Annotated[c.Reply, Field(discriminator="op")])


class Worker:
    """One interpreter. Starts with its first request, and anew when it has died.

    Used as an async context manager; leaving it kills everything that it runs.
    """

    def __init__(self, python: str | Path, env: Mapping[str, str] | None = None) -> None:
        """`python` is the interpreter's path, `env` is laid over the server's own environment."""
        self.python = str(python)
        self.env = dict(env or {})
        self.chosen: interpreter.Interpreter | None = None
        """Why this interpreter, where a pool has looked for it."""
        self.hello: c.Hello | None = None
        """What the worker said of itself when it last started; None before its first request."""
        self._connection: _Connection | None = None
        self._closed = False
        self._starting = anyio.Lock()
        self._ids = itertools.count(1)
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        await self.close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # so that an error goes on as it is, not in a group

    async def close(self) -> None:
        """Kill the process and all its runs, for good: whoever waits for one gets a `WorkerError`."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()

    async def start(self) -> c.Hello:
        """Start the process unless it runs, and return what it says of itself. Raises `WorkerError`."""
        await self._connected()
        assert self.hello is not None
        return self.hello

    async def check(
        self,
        *,
        root: str | Path,
        target: c.TargetSpec,
        intent: Mapping[str, Any] | None = None,
        limits: c.Limits | None = None,
        device: str = "auto",
        on_progress: OnProgress | None = None,
    ) -> c.TargetResult:
        """Run the probes of one target. Raises `RunFailed` or `WorkerError`."""
        request = c.CheckRequest(
            id=next(self._ids),
            root=str(root),
            target=target,
            intent=dict(intent or {}),
            limits=limits or c.Limits(),
            device=device,
        )
        return (await self._ask(request, c.Checked, on_progress)).result

    async def discover(self, root: str | Path, files: tuple[str, ...] = ()) -> c.Discovered:
        """Find the stage functions below `root`. Raises `RunFailed` or `WorkerError`."""
        return await self._ask(c.DiscoverRequest(id=next(self._ids), root=str(root), files=files), c.Discovered)

    async def locate(self, root: str | Path, packages: tuple[str, ...]) -> c.Located:
        """Where the interpreter would import these from. Raises `RunFailed` or `WorkerError`."""
        return await self._ask(c.LocateRequest(id=next(self._ids), root=str(root), packages=packages), c.Located)

    async def describe(self, roles: tuple[str, ...] = ()) -> c.Described:
        """What functions of these roles, or of all, take and give. Raises `RunFailed` or `WorkerError`."""
        return await self._ask(c.DescribeRequest(id=next(self._ids), roles=roles), c.Described)

    async def inspect(self) -> c.Inspected:
        """Python, torch, devices and versions. Raises `RunFailed` or `WorkerError`."""
        return await self._ask(c.InspectRequest(id=next(self._ids)), c.Inspected)

    async def _ask(self, request: c.Request, expected: type[R], on_progress: OnProgress | None = None) -> R:
        words = ""
        for _ in range(2):  # a worker that died while idle may be noticed only now; a new one then gets the request
            connection = await self._connected()
            reply = await connection.ask(request, on_progress)
            if isinstance(reply, c.Failed):
                raise RunFailed(reply)
            if isinstance(reply, expected):
                return reply
            words = connection.last_words()
        raise WorkerError(
            f"The worker {self.python} ended while it worked on this request. {words}".strip(),
            do="See whether that interpreter runs in a shell, then ask again: a new worker is started.",
        )

    async def _connected(self) -> _Connection:
        if self._tasks is None:
            raise RuntimeError("a worker is used inside `async with`")
        async with self._starting:
            if self._closed:
                raise WorkerError("The worker was closed.", do="Ask again once the server has started anew.")
            if self._connection is None or self._connection.lost:
                if self._connection is not None:
                    await self._connection.close()
                connection = await _Connection.open(self.python, self.env)
                try:
                    self.hello = await self._greeted(connection)
                except BaseException:
                    await connection.close()
                    raise
                self._connection = connection
                self._tasks.start_soon(connection.read_replies)
            return self._connection

    async def _greeted(self, connection: _Connection) -> c.Hello:
        with anyio.move_on_after(HELLO_S):
            hello = await connection.first_reply()
            if isinstance(hello, c.Failed):
                raise WorkerError(hello.happened, do=hello.do)
            if isinstance(hello, c.Hello) and hello.protocol == c.PROTOCOL:
                return hello
            raise WorkerError(
                f"{self.python} did not start as a worker. {connection.last_words()}".strip(),
                do="Name a Python 3.10 or newer: `python` in [pipeline] of the manifest, or --python.",
            )
        raise WorkerError(
            f"{self.python} gave no sign within {HELLO_S:g} s.",
            do="See whether it starts in a shell, and what it loads then.",
        )


class _Connection:
    """A live worker process and the requests that wait for it."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.lost = False
        """Its stdout has ended: nothing more will be answered."""
        self._process = process
        self._lines = _Lines(_present(process.stdout))
        self._stdin = _present(process.stdin)
        self._sending = anyio.Lock()
        self._waiting: dict[int, MemoryObjectSendStream[c.Reply]] = {}
        self._stderr = b""

    @classmethod
    async def open(cls, python: str, env: Mapping[str, str]) -> _Connection:
        """Start a worker. Raises `WorkerError` where the file can't be run."""
        boot = Path(c.__file__).with_name("boot.py")
        try:
            process = await anyio.open_process(
                [python, str(boot)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **env},
                start_new_session=sys.platform != "win32",
            )
        except OSError as e:
            raise WorkerError(
                f"{python} can't be started: {e.strerror or e}.",
                do="Name the interpreter that has torch: `python` in [pipeline] of the manifest, or --python.",
            ) from None
        return cls(process)

    async def first_reply(self) -> c.Reply | None:
        """The greeting, or None where the process ends without one."""
        line = await self._lines.next()
        if line is None:
            with contextlib.suppress(anyio.EndOfStream, TimeoutError), anyio.fail_after(1.0):
                while True:
                    self._keep(await _present(self._process.stderr).receive())
            return None
        return _parsed(line)

    async def read_replies(self) -> None:
        """Hand each reply to the request that waits for it, until the process ends."""
        try:
            async with anyio.create_task_group() as tg:
                tg.start_soon(self._read_stderr)
                while (line := await self._lines.next()) is not None:
                    self._hand_over(_parsed(line))
                tg.cancel_scope.deadline = anyio.current_time() + 1.0  # for the last words
        finally:
            self.lost = True
            for waiting in self._waiting.values():
                waiting.close()

    def _hand_over(self, reply: c.Reply | None) -> None:
        if reply is None or isinstance(reply, c.Hello):
            return
        if waiting := self._waiting.get(reply.id):
            waiting.send_nowait(reply)

    async def ask(self, request: c.Request, on_progress: OnProgress | None) -> c.Reply | None:
        """The last reply to a request; None where the process ends without one.

        A task that is cancelled here, or whose `on_progress` raises, kills the run first.
        """
        send, receive = anyio.create_memory_object_stream[c.Reply](float("inf"))
        self._waiting[request.id] = send
        try:
            if self.lost:
                return None
            await self._send(request)
            while isinstance(reply := await _received(receive), c.Progress):
                if on_progress is not None:
                    on_progress(reply)
        except BaseException:
            with anyio.move_on_after(CANCEL_S, shield=True):
                await self._send(c.CancelRequest(id=request.id))
                while isinstance(await _received(receive), c.Progress):
                    pass
            raise
        else:
            return reply
        finally:
            del self._waiting[request.id]
            send.close()
            receive.close()

    async def _send(self, request: c.Request) -> None:
        """Write one line whole: half a line would spoil the next request."""
        line = json.dumps(c.encode(request), allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if len(line) > c.MAX_MESSAGE_BYTES:
            raise WorkerError(
                f"The request has {len(line)} bytes; {c.MAX_MESSAGE_BYTES} are allowed.",
                do="Hand over smaller settings.",
            )
        with anyio.CancelScope(shield=True), contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async with self._sending:
                await self._stdin.send(line)

    async def _read_stderr(self) -> None:
        with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                self._keep(await _present(self._process.stderr).receive())

    def _keep(self, chunk: bytes) -> None:
        self._stderr = (self._stderr + chunk)[-STDERR_BYTES:]

    def last_words(self) -> str:
        """`Its last words: ...`, or nothing where it has written nothing."""
        text = self._stderr.decode("utf-8", "replace").strip()
        return f"Its last words: {c.clip_text(text, 1_000)}" if text else ""

    async def close(self) -> None:
        """End stdin, at which the worker kills its runs and leaves; kill it where it doesn't."""
        self.lost = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(CLOSE_S):
                await self._stdin.aclose()
                await self._process.wait()
            if self._process.returncode is None:
                _kill(self._process)
            await self._process.aclose()


def _kill(process: anyio.abc.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)


class _Lines:
    """Lines of a byte stream, each bounded in length."""

    def __init__(self, stream: anyio.abc.ByteReceiveStream) -> None:
        self._stream = stream
        self._rest = bytearray()
        self._looked = 0

    async def next(self) -> bytes | None:
        """One line without its end; None at the end of the stream, or where a line is longer than allowed."""
        while (end := self._rest.find(b"\n", self._looked)) < 0:
            self._looked = len(self._rest)
            if self._looked > c.MAX_MESSAGE_BYTES + 1:
                return None
            try:
                self._rest += await self._stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                return None
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        self._looked = 0
        return line


def _parsed(line: bytes) -> c.Reply | None:
    """The reply, or a `Failed` with the same id where it isn't one; None where it isn't even JSON."""
    try:
        return _REPLY.validate_json(line)
    except ValidationError as e:
        wrong = f"{'.'.join(map(str, e.errors()[0]['loc']))}: {e.errors()[0]['msg']}"
    with contextlib.suppress(ValueError):
        data: Any = json.loads(line)
        if isinstance(data, dict) and isinstance(id := cast("dict[str, Any]", data).get("id"), int):
            happened = f"The worker's answer can't be read ({wrong})."
            return c.Failed(id=id, kind="crash", happened=happened, do="Report this as a bug of rltriage.")
    return None


async def _received(stream: MemoryObjectReceiveStream[c.Reply]) -> c.Reply | None:
    try:
        return await stream.receive()
    except anyio.EndOfStream:
        return None


def _present(stream: S | None) -> S:
    assert stream is not None
    return stream


class WorkerPool:
    """Workers by interpreter and environment, shared by everything that runs in this process.

    An async context manager; leaving it kills them all.
    """

    def __init__(self) -> None:
        self._workers: dict[tuple[str, tuple[tuple[str, str], ...]], Worker] = {}
        self._getting = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        await self.close()
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # so that an error goes on as it is, not in a group

    async def close(self) -> None:
        """Kill all workers and their runs."""
        workers = list(self._workers.values())
        self._workers.clear()
        async with anyio.create_task_group() as tg:
            for worker in workers:
                tg.start_soon(worker.close)

    async def get(
        self,
        python: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        *,
        root: str | Path,
    ) -> Worker:
        """The running worker for the project `root`.

        `python` is the interpreter that was named (relative to `root`); None looks for one. Raises
        `InterpreterError` where there is none, `WorkerError` where it doesn't start.
        """
        if self._tasks is None:
            raise RuntimeError("a pool is used inside `async with`")
        chosen = await interpreter.find(root, named=python, env=env)
        key = (chosen.path, tuple(sorted((env or {}).items())))
        async with self._getting:
            worker = self._workers.get(key)
            if worker is None:
                worker = Worker(chosen.path, env)
                await self._tasks.start(self._host, worker)
                self._workers[key] = worker
        worker.chosen = chosen
        await worker.start()
        return worker

    async def _host(self, worker: Worker, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with worker:
            task_status.started()
            await anyio.sleep_forever()
