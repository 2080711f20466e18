"""The supervisor: takes requests on stdin, has each answered by a process of its own, and outlives them all.

    server ── JSON lines ── supervisor ─┬─ zygote (torch imported) ── fork ── run, run     checks, on Linux
                                        ├─ nursery (and a framework) ── fork ── run, run   the framework's functions
                                        └─ run, run                                        all else, and elsewhere

It never imports torch, so that a broken torch can't take it along, and answers about source files while
the zygote is still importing. One thread decides (`Supervisor.serve`); the others only read pipes. When
stdin ends, because the server closed it or was killed, everything that was started here is killed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rltriage_probes import inspecting, nurseries, processes, sandbox, wire
from rltriage_probes.contract import (
    MAX_TEXT,
    PROTOCOL,
    ROLE_STAGES,
    TRAINING_ROLES,
    CancelRequest,
    CheckRequest,
    Failed,
    Hello,
    Limits,
    Request,
    clip_text,
    decode_request,
)

GPU_AT_ONCE = 2
"""Checks on a GPU that run at the same time: they share its memory."""
TORCH_S = 300.0
"""Longest time that `import torch` may take, e.g. from a cold network disk."""
SOURCE_LIMITS = Limits(timeout_s=120.0, memory_gb=4.0)
"""For requests that only read source files."""
CLOSED_S = 1.0
"""A run whose pipe has ended without an answer gets this long to exit, so that its exit code can be told."""
GRACE_S = 0.3
"""A run that is over its time gets this long to write its traceback."""
LOOK_S = 0.05
"""How often running processes are weighed: at 5 GB/s, 0.25 GB too late."""
NURSERIES = 2
"""Each keeps a framework in memory, half a gigabyte."""
IDLE_S = 600.0
"""A nursery that nobody has used for this long ends."""
TAIL_BYTES = 16_384
SPAWN_VARIABLE = "RLTRIAGE_SPAWN"
"""Set to start each run in a fresh interpreter where a fork would do: to test that way, or around a fork that hangs."""

_NOISE = (f'  File "{Path(__file__).parent}', "Extension modules:")
"""Lines of a dumped stack that tell nothing about the user's code."""
_USER_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>\S+)')


class Tail:
    """The last bytes of what a process has printed. One thread fills it while another may look."""

    def __init__(self) -> None:
        self._bytes = b""

    def fill_from(self, stream: IO[bytes]) -> None:
        """Read until everybody has closed the other end."""
        with contextlib.suppress(OSError, ValueError), stream:
            while chunk := os.read(stream.fileno(), 65_536):
                self._bytes = (self._bytes + chunk)[-TAIL_BYTES:]

    def text(self) -> str:
        return self._bytes.decode("utf-8", "replace")


class Run:
    """A request with the process that works on it, from the moment it starts."""

    def __init__(self, request: Request, limits: Limits) -> None:
        self.request = request
        self.limits = limits
        self.pid: int | None = None
        self.process: subprocess.Popen[bytes] | None = None
        """Only where it was spawned; a forked one is a child of the zygote."""
        self.zygote: Zygote | None = None
        """The process that has forked it, or is about to."""
        self.shared = 0
        """Bytes in memory that it has in common with the zygote."""
        self.asked = time.monotonic()
        self.deadline = self.asked + TORCH_S + GRACE_S
        self.prints = Tail()
        self.final: dict[str, Any] | None = None
        self.failed: Failed | None = None
        """Why the supervisor ended it."""
        self.code: int | None = None
        """Exit code, or minus the signal."""
        self.closed = False
        """Its pipe of replies has ended."""
        self.ending = False
        self.over = False
        self.threads: list[threading.Thread] = []
        self.lifeline: IO[bytes] | None = None

    @property
    def id(self) -> int:
        return self.request.id

    def reply(self) -> Any:
        """What the server is told, as JSON or as `Failed`."""
        if self.final is not None and (self.failed is None or self.failed.kind != "cancelled"):
            result = self.final.get("result")
            if self.final["op"] == "checked" and isinstance(result, dict) and not result.get("printed"):
                result["printed"] = clip_text(self.prints.text()[-MAX_TEXT:])
            return self.final
        return self.failed or self._fate()

    def last_words(self) -> str:
        """The tail of its prints; from the stack of its main thread on, without our frames, where it was dumped."""
        text = self.prints.text()
        dump = max(text.rfind(sign) for sign in ("Timeout (", "Fatal Python error"))
        if dump < 0:
            return clip_text(text[-MAX_TEXT:])
        main = text.rfind("Thread 0x", dump) if text.startswith("Timeout", dump) else dump
        lines = text[max(main, dump) :].splitlines()
        return clip_text("\n".join(line for line in lines if not line.startswith(_NOISE)))

    def seen_at(self) -> str:
        """` (in FILE line N, NAME)`: the innermost frame of the user's project in the last stack, or nothing."""
        root = getattr(self.request, "root", "")
        for frame in _USER_FRAME.finditer(self.last_words()) if root else ():
            file = Path(frame["file"])
            if file.is_relative_to(root) and "site-packages" not in file.parts and file.parent != Path(__file__).parent:
                file = file.relative_to(root)
                return f" (in {file} line {frame['line']}, {frame['name']})"
        return ""

    def _fate(self) -> Failed:
        """The failure of a process that has ended, or closed its pipe, without an answer."""
        code = self.code
        kind = "crash"
        do = "Look at the last words and at that line; call the function alone in a script to see it crash."
        if code is None or code == wire.EXIT_WIRE_LOST:
            what = "closed the file descriptors of its process"
            do = "Remove the code that closes descriptors it did not open."
        elif code >= 0:
            what = f"ended its process with exit code {code} before a result was there"
            do = "Remove the exit (os._exit, a launcher's abort) from the path that the function runs through."
        elif -code == getattr(signal, "SIGKILL", 9):
            what, kind = "was killed from outside, most likely by the system for lack of memory", "memory"
            do = "Free memory, lower the sizes that the function builds, or set a smaller memory_gb to find the line."
        else:
            what = f"crashed its process with {_signal_name(-code)}"
        return Failed(
            id=self.id, kind=kind, happened=f"The code {what}{self.seen_at()}.", do=do, last_words=self.last_words()
        )


def _signal_name(number: int) -> str:
    names = {11: "SIGSEGV (segmentation fault)", 6: "SIGABRT (abort)", 8: "SIGFPE", 4: "SIGILL (illegal instruction)"}
    return names.get(number, f"signal {number}")


class Zygote:
    """The supervisor's side of a process that has imported torch (and as a nursery a framework) and forks."""

    def __init__(self, nursery: nurseries.Nursery | None = None) -> None:
        self.nursery = nursery
        self.used = time.monotonic()
        self.retired = False
        """A file of the framework has changed: its runs go on, no new one is forked from it."""
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = (nursery.root,) if nursery else ()
        self.process = _start("--zygote", *root, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        theirs.close()
        self.words = Tail()
        self.ready = False
        self.why_not = ""
        """Why torch can't be imported, once that is known."""
        self.shared = 0
        self.deadline = time.monotonic() + TORCH_S

    def fork(self, run: Run) -> tuple[IO[bytes], IO[bytes]]:
        """Have a run forked; the pipes of its replies and its prints. Raises OSError where the zygote is gone."""
        theirs: list[int] = []
        ours: list[int] = []
        try:
            for parent_writes in (True, False, False):
                reads, writes = os.pipe()
                theirs.append(reads if parent_writes else writes)
                ours.append(writes if parent_writes else reads)
            target = run.request.target if isinstance(run.request, CheckRequest) else None
            ref = target.ref if self.nursery and target else ""
            said = {"run": run.id, "ref": ref, "trains": bool(target and target.role in TRAINING_ROLES)}
            socket.send_fds(self.socket, [json.dumps(said).encode()], theirs)
        except OSError:
            _close(ours)
            raise
        finally:
            _close(theirs)
        run.zygote, self.used = self, time.monotonic()
        run.shared = self.shared
        run.lifeline = os.fdopen(ours[0], "wb", buffering=0)
        return os.fdopen(ours[1], "rb"), os.fdopen(ours[2], "rb", buffering=0)

    def done_with(self, run: Run) -> None:
        """Let the zygote forget a run of which nothing is left."""
        with contextlib.suppress(OSError):
            self.socket.send(json.dumps({"done": run.id}).encode())


def _bury(zygote: Zygote) -> None:
    """End its process, and with it every run that it has forked."""
    if zygote.process.returncode is not None:
        return
    processes.kill_tree(zygote.process.pid)
    zygote.process.wait()
    zygote.socket.close()


def _is_stuck(run: Run, now: float) -> bool:
    """Whether a nursery has been importing for longer than the run itself may take."""
    return run.pid is None and now >= run.asked + run.limits.timeout_s + GRACE_S


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _start(*arguments: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    """Another process of the worker, in a session of its own; its stderr is a pipe."""
    command = [sys.executable, str(Path(__file__).with_name("boot.py")), *arguments]
    own_session = sys.platform != "win32"
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, start_new_session=own_session)


class Supervisor:
    """All state lives here and is changed by the thread in `serve` alone; other threads post calls to it."""

    def __init__(self, incoming: IO[bytes], out: wire.Wire, *, fork: bool) -> None:
        self._incoming = incoming
        self._out = out
        self._forks = fork
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: deque[CheckRequest] = deque()
        self._at_once = processes.at_once()
        self._runs: dict[int, Run] = {}
        self._zygote: Zygote | None = None
        self._nurseries: list[Zygote] = []
        self._barren: set[tuple[str, str]] = set()
        """Packages whose import has ended its process: their runs import them one by one."""
        self._ending = threading.Event()
        """Set when stdin has ended: from then on deaths are our doing, and nothing is started or told."""

    def serve(self) -> None:
        """Answer until the process is ended by the end of stdin."""
        torch = inspecting.torch_version()
        self._out.send(
            Hello(
                protocol=PROTOCOL,
                python=platform.python_version(),
                executable=sys.executable,
                torch=torch,
                roles=tuple(ROLE_STAGES),
                pid=os.getpid(),
                fork=self._forks,
            )
        )
        processes.adopt_orphans()
        _thread(self._read_requests)
        if self._forks and torch:
            self._zygote = self._start_zygote()  # it imports while the first request is on its way
        while not self._ending.is_set():
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=self._patience())()
            self._look()
        threading.Event().wait()  # for the reading thread, which leaves the process

    def _patience(self) -> float | None:
        """Seconds after which something has to be looked at although nothing was heard."""
        if self._runs or self._waiting or self._zygote_is_late() is not None:
            return LOOK_S
        return IDLE_S / 10 if self._nurseries else None

    # Requests

    def _read_requests(self) -> None:
        try:
            while self._read_request():
                pass
        finally:
            self._end()

    def _read_request(self) -> bool:
        """False at the end of stdin."""
        data: Any = None
        try:
            line = wire.read_line(self._incoming)
            if line is None:
                return False
            data = json.loads(line)
            request = _request_in(data)
        except (ValueError, TypeError) as e:
            self._out.send(_bad(data, e))
        else:
            self._events.put(functools.partial(self._take, request))
        return True

    def _take(self, request: Request) -> None:
        if isinstance(request, CancelRequest):
            self._cancel(request.id)
        elif request.id in self._runs or any(w.id == request.id for w in self._waiting):
            do = "Number requests anew for each."
            self._out.send(Failed(id=request.id, kind="bad_request", happened="This id is in use.", do=do))
        elif isinstance(request, CheckRequest):
            self._waiting.append(request)
            self._start_waiting()
        else:
            self._spawn(Run(request, SOURCE_LIMITS))

    def _cancel(self, id: int) -> None:
        cancelled = Failed(id=id, kind="cancelled", happened="The run was cancelled.", do="Ask again to have it run.")
        if run := self._runs.get(id):
            run.failed = cancelled
            self._finish(run)
            return
        for request in self._waiting:
            if request.id == id:
                self._waiting.remove(request)
                self._out.send(cancelled)
                return

    # Starting runs

    def _start_waiting(self) -> None:
        """Start what may run now; with a zygote, what isn't ready yet stays in the queue."""
        while self._waiting and self._has_room(self._waiting[0]):
            request = self._waiting[0]
            zygote = self._zygote_for(request) if self._forks else None
            if zygote is not None and not zygote.ready:
                return
            self._waiting.popleft()
            run = Run(request, request.limits)
            if zygote is None:
                self._spawn(run)
            else:
                self._fork(run, zygote)

    def _has_room(self, request: CheckRequest) -> bool:
        """Whether one more check may start; the others wait."""
        running = [r.request for r in self._runs.values() if isinstance(r.request, CheckRequest)]
        on_gpu = request.device.startswith("cuda")
        crowded = on_gpu and sum(r.device.startswith("cuda") for r in running) >= GPU_AT_ONCE
        return len(running) < self._at_once and not crowded

    def _zygote_for(self, request: CheckRequest) -> Zygote:
        """The process that forks this run, started where there is none yet."""
        wanted = nurseries.nursery_of(request)
        if wanted is None or wanted.key in self._barren:
            self._zygote = self._zygote or self._start_zygote()
            return self._zygote
        for zygote in list(self._nurseries):
            assert zygote.nursery is not None
            if zygote.nursery == wanted:
                return zygote
            if zygote.nursery.key == wanted.key:
                self._retire(zygote)
        for zygote in sorted(self._nurseries, key=lambda z: z.used)[: len(self._nurseries) + 1 - NURSERIES]:
            self._retire(zygote)
        self._nurseries.append(self._start_zygote(wanted))
        return self._nurseries[-1]

    def _start_zygote(self, nursery: nurseries.Nursery | None = None) -> Zygote:
        zygote = Zygote(nursery)
        assert zygote.process.stderr is not None
        _thread(zygote.words.fill_from, zygote.process.stderr)
        _thread(self._listen_to, zygote)
        return zygote

    def _retire(self, zygote: Zygote) -> None:
        """Take a nursery out of use; it ends with its last run."""
        if zygote in self._nurseries:
            self._nurseries.remove(zygote)
        zygote.retired = True
        if not any(run.zygote is zygote for run in self._runs.values()):
            _bury(zygote)

    def _fork(self, run: Run, zygote: Zygote) -> None:
        self._runs[run.id] = run
        run.zygote = zygote
        try:
            replies, prints = zygote.fork(run)
        except OSError:
            self._zygote_is_gone(zygote)
            return
        self._listen(run, replies, prints)

    def _spawn(self, run: Run) -> None:
        process = run.process = _start("--run-one", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        run.pid = process.pid
        run.lifeline = process.stdin
        self._runs[run.id] = run
        if not isinstance(run.request, CheckRequest):
            imports_torch = run.request.op in ("inspect", "describe")
            run.deadline = time.monotonic() + (TORCH_S if imports_torch else run.limits.timeout_s)
        self._listen(run, process.stdout, process.stderr)
        run.threads.append(_thread(self._await_exit, run, process))

    def _listen(self, run: Run, replies: IO[bytes], prints: IO[bytes]) -> None:
        run.threads += [_thread(run.prints.fill_from, prints), _thread(self._read_replies, run, replies)]

    # Threads that read

    def _read_replies(self, run: Run, replies: IO[bytes]) -> None:
        assert run.lifeline is not None
        with contextlib.suppress(OSError, ValueError), replies:
            run.lifeline.write(wire.to_line(run.request, run.id))
            run.lifeline.flush()
            while run.final is None and (line := wire.read_line(replies)) is not None:
                self._hear(run, line)
        self._events.put(functools.partial(self._closed, run))

    def _hear(self, run: Run, line: bytes) -> None:
        try:
            said: Any = json.loads(line)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        op: Any = said.get("op")
        if op == "begun":
            run.deadline = time.monotonic() + run.limits.timeout_s + GRACE_S
        elif op == "progress":
            if not run.over:
                self._out.send_line(line + b"\n")
        else:
            run.final = {**said, "id": run.id}

    def _await_exit(self, run: Run, process: subprocess.Popen[bytes]) -> None:
        """Posts the exit of a spawned run, which stays a zombie until it is finished, so that its pid isn't reused."""
        if not processes.LINUX or sys.platform == "win32":  # macOS has no waitid before Python 3.13
            code = process.wait()
        else:
            try:
                status = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            except ChildProcessError:  # finished meanwhile
                return
            code = processes.exit_code(status) if status else 0
        self._events.put(functools.partial(self._exited, run.id, code))

    def _listen_to(self, zygote: Zygote) -> None:
        with contextlib.suppress(OSError):
            while message := zygote.socket.recv(65_536):
                self._events.put(functools.partial(self._heard, zygote, json.loads(message)))
        self._events.put(functools.partial(self._zygote_is_gone, zygote))

    # Events

    def _heard(self, zygote: Zygote, said: dict[str, Any]) -> None:
        if "ready" in said:
            zygote.ready, zygote.shared = True, said["ready"]
            self._start_waiting()
        elif "no_torch" in said:
            zygote.why_not = said["no_torch"]
        elif "started" in said:
            if run := self._runs.get(said["started"]):
                run.pid, run.shared = said["pid"], zygote.shared
                if run.ending:
                    self._finish(run)
        else:
            self._exited(said["exited"], said["code"])

    def _exited(self, id: int, code: int) -> None:
        if run := self._runs.get(id):
            run.code = code
            self._finish(run)

    def _closed(self, run: Run) -> None:
        """Nothing more comes through its pipe: done, or about to exit; if not, its code has closed the pipe."""
        run.closed = True
        if run.final is not None:
            self._finish(run)
        else:
            run.deadline = min(run.deadline, time.monotonic() + CLOSED_S)

    def _zygote_is_gone(self, zygote: Zygote) -> None:
        if self._ending.is_set() or (zygote.retired and zygote.process.returncode is not None):
            return
        if zygote.nursery is not None:
            self._nursery_is_gone(zygote, zygote.nursery)
            return
        if self._zygote is not zygote:
            return
        self._zygote = None
        _bury(zygote)
        for run in list(self._runs.values()):
            if run.zygote is zygote:
                run.code = run.code or -9
                self._finish(run)
        if not zygote.ready:
            self._fail_waiting(zygote)
        self._start_waiting()

    def _nursery_is_gone(self, zygote: Zygote, nursery: nurseries.Nursery) -> None:
        """It met something in the framework that ends a process. Its runs start again, each on its own."""
        self._barren.add(nursery.key)
        if zygote in self._nurseries:
            self._nurseries.remove(zygote)
        zygote.retired = True
        _bury(zygote)
        for run in [r for r in self._runs.values() if r.zygote is zygote]:
            if run.final is not None or run.failed is not None:
                self._finish(run)
                continue
            run.over = True
            del self._runs[run.id]
            self._waiting.appendleft(run.request)  # pyright: ignore[reportArgumentType]  only checks are forked
        self._start_waiting()

    def _fail_waiting(self, zygote: Zygote) -> None:
        words = clip_text(zygote.words.text()[-MAX_TEXT:])
        while self._waiting:
            id = self._waiting.popleft().id
            if zygote.why_not:
                self._out.send(sandbox.no_torch(id, zygote.why_not))
                continue
            how = "took too long" if time.monotonic() >= zygote.deadline else "ended the process"
            happened = f"`import torch` {how} in {sys.executable}."
            do = f"Try {sys.executable} -c 'import torch' in a shell: it has to work there first."
            self._out.send(Failed(id=id, kind="no_torch", happened=happened, do=do, last_words=words))

    # Ending runs

    def _look(self) -> None:
        """End what is over its time or its memory."""
        now = time.monotonic()
        for run in list(self._runs.values()):
            if run.zygote is not None and run.zygote.nursery is not None and _is_stuck(run, now):
                self._zygote_is_gone(run.zygote)
            elif now >= run.deadline:
                run.failed = run.failed or (None if run.closed else _late(run))
                self._finish(run)
            elif run.pid is not None and processes.LINUX:
                self._weigh(run, run.pid)
        for zygote in list(self._nurseries):
            if not zygote.ready and now >= zygote.deadline:
                self._zygote_is_gone(zygote)
            elif now - zygote.used > IDLE_S and not any(run.zygote is zygote for run in self._runs.values()):
                self._retire(zygote)
        if self._zygote_is_late():
            assert self._zygote is not None
            self._zygote_is_gone(self._zygote)

    def _zygote_is_late(self) -> bool | None:
        """None where no zygote is being waited for."""
        if self._zygote is None or self._zygote.ready:
            return None
        return time.monotonic() >= self._zygote.deadline

    def _weigh(self, run: Run, pid: int) -> None:
        used = processes.memory_of([pid, *processes.descendants(pid)], run.shared) / 2**30
        if used > run.limits.memory_gb:
            what = f"Its processes held {used:.1f} GB; memory_gb is {run.limits.memory_gb:g}."
            run.failed = sandbox.out_of_memory(run.id, what, run.last_words())
            self._finish(run)

    def _finish(self, run: Run) -> None:
        """Kill what is left of a run, then tell the server; in this order, so that it can rely on it."""
        run.ending = True
        forking = run.pid is None and run.zygote is not None and run.zygote.process.returncode is None
        if self._ending.is_set() or run.over or forking:
            return  # in the last case the zygote's word comes next
        run.over = True
        if run.pid is not None:
            processes.kill_tree(run.pid)
        if run.process is not None:
            run.process.wait()
            processes.kill_strays(self._own_pids() - {run.process.pid})
        elif run.zygote is not None:
            run.zygote.done_with(run)
        for thread in run.threads:
            thread.join(1.0)
        if run.lifeline is not None:
            with contextlib.suppress(OSError):
                run.lifeline.close()
        del self._runs[run.id]
        if run.zygote is not None and run.zygote.retired:
            self._retire(run.zygote)
        self._out.send_line(wire.to_line(run.reply(), run.id))
        self._start_waiting()

    def _own_pids(self) -> set[int]:
        pids = {r.process.pid for r in self._runs.values() if r.process is not None}
        forking = [
            z for z in (self._zygote, *self._nurseries, *(r.zygote for r in self._runs.values())) if z is not None
        ]
        return pids | {z.process.pid for z in forking}

    def _end(self) -> None:
        """The server is gone. Runs in the reading thread, since the deciding one may wait for a full pipe."""
        self._ending.set()
        for zygote in (self._zygote, *self._nurseries):
            if zygote is not None:
                processes.kill_tree(zygote.process.pid)
        for run in list(self._runs.values()):
            if run.pid is not None:
                processes.kill_tree(run.pid)
        processes.kill_strays(())
        os._exit(0)


def _request_in(data: Any) -> Request:
    if not isinstance(data, dict):
        raise TypeError("it is no object")
    return decode_request(data)


def _bad(data: Any, error: Exception) -> Failed:
    id = data.get("id") if isinstance(data, dict) else 0
    return Failed(
        id=id if isinstance(id, int) else 0,
        kind="bad_request",
        happened=clip_text(f"The request can't be read: {error}.", 500),
        do="Use a server and a worker of the same version of rltriage.",
    )


def _late(run: Run) -> Failed:
    return Failed(
        id=run.id,
        kind="timeout",
        happened=f"No result within {run.limits.timeout_s:g} s{run.seen_at()}.",
        do="Look at that line for an endless or slow loop, a download or a lock; if it is only slow, raise timeout_s.",
        last_words=run.last_words(),
    )


def _thread(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def can_fork() -> bool:
    """Linux only: on macOS the system's own libraries don't survive a fork, Windows has none."""
    return processes.LINUX and not os.environ.get(SPAWN_VARIABLE)


def main() -> int:
    incoming, outgoing = wire.take_stdio()
    supervisor = Supervisor(os.fdopen(incoming, "rb"), wire.Wire(outgoing), fork=can_fork())
    supervisor.serve()
    return 0
