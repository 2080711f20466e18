"""The processes in which user code runs, as seen from inside: one run, and the zygote that forks runs.

A run gets three descriptors: the line with its request, the pipe for its replies, and the pipe that
takes all it prints. Who starts it, watches it and kills it is the supervisor in `serve.py`. The run
itself only adds what must be done from inside: its own process group, the second line of the memory
limit, and a traceback at the time limit.

The zygote has imported torch and run no operation of it, so that neither an OpenMP pool nor a CUDA
context exists that a fork would break.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import signal
import socket
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from rltriage_probes import processes, wire
from rltriage_probes.contract import (
    Checked,
    CheckRequest,
    DescribeRequest,
    DiscoverRequest,
    Failed,
    InspectRequest,
    Limits,
    LocateRequest,
    Progress,
    Reply,
    Request,
    TargetResult,
    clip_text,
    decode_request,
)

BEGUN = b'{"op":"begun"}\n'
"""Private message of a run: torch is there, the time limit counts from now."""
_ROOM = 4 * 2**30
"""Private data that CUDA and the stacks of its threads may take, in bytes."""
OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "can't allocate memory", "Cannot allocate memory")
"""Signs in an exception's text that the limit was met and not a bug of the function."""


# One run


def run_one_main() -> NoReturn:
    """A run in an interpreter of its own: request on stdin, replies on stdout, prints on stderr."""
    requests, replies = wire.take_stdio()
    processes.adopt_orphans()
    line = wire.read_line(stream := os.fdopen(requests, "rb", buffering=0))
    if line is None:
        sys.exit(1)
    threading.Thread(target=_die_at_end_of, args=(stream,), daemon=True).start()
    run(line, replies)


def _die_at_end_of(stream: Any) -> None:
    """The supervisor holds the other end: when that is closed, nobody waits for this run any more."""
    with contextlib.suppress(OSError, ValueError):
        while stream.read(4096):
            pass
        processes.kill_tree(os.getpid())


def run(line: bytes, replies: int) -> NoReturn:
    """Answer the request and leave the process, whatever happens in between."""
    out = wire.Wire(replies)
    try:
        request = decode_request(json.loads(line))
    except (ValueError, TypeError) as e:
        bad = Failed(id=0, kind="bad_request", happened=f"The request can't be read: {e}.", do="Correct that field.")
        out.send(bad)
        os._exit(0)
    _settle()
    out.send(_answered(request, out))
    _flush()
    os._exit(0)


def _settle() -> None:
    """What holds for every run: traces of crashes, prints that are not lost, no files left in the project."""
    faulthandler.enable(file=2, all_threads=False)
    sys.stdout, sys.stderr = _lines_to(1), _lines_to(2)
    sys.argv[:] = ["rltriage"]
    sys.dont_write_bytecode = True


def _lines_to(fd: int) -> io.TextIOWrapper:
    """A text stream in which every line leaves at once and no character is an error."""
    return io.TextIOWrapper(
        io.FileIO(fd, "w", closefd=False), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _answered(request: Request, out: wire.Wire) -> Reply:
    try:
        reply = _answer(request, out)
    except BaseException as e:  # noqa: BLE001  user code may leave by SystemExit, and the probes may have a bug
        reply = _broken(request.id, e)
    faulthandler.cancel_dump_traceback_later()
    _flush()  # before the reply, since nobody listens after it
    return reply


def _broken(id: int, error: BaseException) -> Failed:
    words = "".join(traceback.format_exception(error))
    said = clip_text(f"{type(error).__name__}: {error}", 500)
    if _is_out_of_memory(said):
        return out_of_memory(id, said, words)
    return Failed(
        id=id,
        kind="crash",
        happened=f"The probe itself was stopped by {said}.",
        do="If the function exits at will, hand over a wrapper that doesn't; else report it as a bug of rltriage.",
        last_words=clip_text(words),
    )


def _answer(request: Request, out: wire.Wire) -> Reply:
    if isinstance(request, CheckRequest):
        return _check(request, out)
    if isinstance(request, InspectRequest):
        from rltriage_probes import inspecting

        return inspecting.inspect(request)
    if isinstance(request, DescribeRequest):
        return _describe(request)
    if isinstance(request, DiscoverRequest):
        from rltriage_probes import discovery

        return discovery.discover(request)
    if isinstance(request, LocateRequest):
        from rltriage_probes import discovery

        return discovery.locate(request)
    return Failed(id=request.id, kind="bad_request", happened="A run can't be cancelled by a run.", do="")


def _check(request: CheckRequest, out: wire.Wire) -> Reply:
    if not Path(request.root).is_dir():
        happened = f"The project folder {request.root} doesn't exist on this machine."
        return Failed(id=request.id, kind="bad_request", happened=happened, do="Pass the folder that holds the files.")
    if why := import_torch():
        return no_torch(request.id, why)
    os.chdir(request.root)
    out.send_line(BEGUN)
    limit_allocations(request.limits)
    faulthandler.dump_traceback_later(request.limits.timeout_s, file=2)
    from rltriage_probes import checking

    def progress(done: int, total: int, says: str) -> None:
        out.send(Progress(id=request.id, done=done, total=total, says=clip_text(says, 200)))

    progress(0, 1, f"loading {request.target.ref}")
    result = checking.check(request, progress)
    return _memory_failure(request.id, result) or Checked(id=request.id, result=result)


def _describe(request: DescribeRequest) -> Reply:
    if why := import_torch():
        return no_torch(request.id, why)
    from rltriage_probes import describing

    try:
        return describing.describe(request)
    except LookupError as e:
        return Failed(id=request.id, kind="bad_request", happened=f"{e.args[0]}.", do="Name a role that has one.")


def _memory_failure(id: int, result: TargetResult) -> Failed | None:
    """The failure behind results that only say that memory ran out."""
    for check in result.checks:
        if check.outcome.kind == "raised" and _is_out_of_memory(check.outcome.error):
            return out_of_memory(id, f"{check.outcome.where}: {check.outcome.error}", "")
    return None


def _is_out_of_memory(text: str) -> bool:
    return any(sign in text for sign in OUT_OF_MEMORY)


def out_of_memory(id: int, what: str, last_words: str) -> Failed:
    return Failed(
        id=id,
        kind="memory",
        happened=f"The run met its memory limit. {clip_text(what, 500)}".strip(),
        do="If it really needs that much for small inputs, raise memory_gb; else look at what it builds there.",
        last_words=clip_text(last_words),
    )


def no_torch(id: int, why: str) -> Failed:
    return Failed(
        id=id,
        kind="no_torch",
        happened=f"{sys.executable} can't import torch: {clip_text(why, 500)}",
        do="Name the interpreter that trains (`python` in [pipeline], or --python), "
        f"or run: {sys.executable} -m pip install torch",
    )


def import_torch() -> str:
    """Import torch; an empty string, or why that failed. A broken installation can raise anything."""
    try:
        importlib.import_module("torch")
    except Exception as e:  # noqa: BLE001
        return f"{type(e).__name__}: {e}"
    return ""


def limit_allocations(limits: Limits) -> None:
    """The second line of the memory limit: one allocation that is far too big fails at once.

    The first line is the supervisor, which weighs what the run's processes really keep in memory. This
    one counts address space, which torch and CUDA reserve freely; so it counts private data only
    (RLIMIT_DATA, not RLIMIT_AS) and is generous: twice the limit and `_ROOM` on top of what is there already.
    """
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes.LINUX:
        most = processes.private_data_of(os.getpid()) + int(2 * limits.memory_gb * 2**30) + _ROOM
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


# The zygote


@dataclass(kw_only=True)
class _Forked:
    """A run that was forked. It stays a zombie until the supervisor is done with it, so that its pid isn't reused."""

    id: int
    over: bool = False
    """Its exit was reported."""
    done: bool = False
    """The supervisor has killed what was left of it."""


def zygote_main(root: str = "") -> int:
    """Import torch, then fork a run for each message; stdin is the socket of the supervisor.

    With the folder of a project it is a nursery: it imports each run's module of a framework before it forks.
    """
    control = socket.socket(fileno=wire.take_stdio()[0])
    if why := import_torch():
        control.send(json.dumps({"no_torch": clip_text(why, 1000)}).encode())
        return 1
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)  # threads of BLAS; none of ours
    _preload()
    processes.adopt_orphans()
    if root:
        os.chdir(root)
        # Asking for devices through the driver would leave the runs with one that they can't use.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        sys.argv[:] = ["rltriage"]
        sys.dont_write_bytecode = True
    _Zygote(control, root).serve()
    return 0


def _preload() -> None:
    """Import the probes once for all runs. A fault in them is reported by the run that meets it again."""
    from rltriage_probes import loading, registry

    for name in ("checking", "reproduction"):
        importlib.import_module(f"rltriage_probes.{name}")
    for name in registry.names():
        try:
            registry.role(name)
        except Exception:  # noqa: BLE001
            traceback.print_exc()
    loading.installed_roots()
    gc.collect()
    gc.freeze()  # the collector of a run needn't touch, and so copy, what is there already


def _preload_optimizers() -> None:
    """What torch imports with the first optimizer: it takes longer than a run, and no other run needs it."""
    if "torch._dynamo" not in sys.modules:
        with contextlib.suppress(Exception):  # the run meets the same fault, and reports it
            importlib.import_module("torch._dynamo")
            gc.collect()
            gc.freeze()


class _Zygote:
    def __init__(self, control: socket.socket, root: str) -> None:
        self._control = control
        self._root = root
        self._runs: dict[int, _Forked] = {}
        self._woken, self._wakes = socket.socketpair()
        self._woken.setblocking(False)
        self._wakes.setblocking(False)

    def serve(self) -> None:
        """Until the supervisor is gone; then nothing that was forked here stays."""
        import select

        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        self._send({"ready": processes.memory_of([os.getpid()])})
        while True:
            ready = select.select([self._control, self._woken], [], [])[0]
            if self._control in ready and not self._obey():
                break
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            self._look_for_exits()
        for pid in processes.descendants(os.getpid()):
            processes.kill_tree(pid)

    def _obey(self) -> bool:
        """Do what one message says; False at the end of the socket."""
        try:
            message, fds, _, _ = socket.recv_fds(self._control, 8192, 3)
        except ConnectionError:
            return False
        if not message:
            return False
        said: dict[str, Any] = json.loads(message)
        if "run" in said:
            if said["trains"]:
                _preload_optimizers()
            if self._root and said["ref"]:
                self._warm(said["ref"])
            self._fork(said["run"], fds)
        else:
            for forked in self._runs.values():
                forked.done |= forked.id == said["done"]
        return True

    def _warm(self, ref: str) -> None:
        """Import what the run is about. A process that can't be forked afterwards ends: the run goes elsewhere."""
        from rltriage_probes import loading

        before = len(sys.modules)
        with contextlib.suppress(loading.LoadFailed):  # the run itself says so
            loading.warm(self._root, ref)
        if len(sys.modules) == before:
            return
        torch: Any = sys.modules["torch"]
        if threading.active_count() > 1 or torch.cuda.is_initialized():
            os._exit(1)
        gc.collect()
        gc.freeze()
        self._send({"ready": processes.memory_of([os.getpid()])})

    def _fork(self, id: int, fds: list[int]) -> None:
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._become_run(zygote, fds)
            except BaseException:  # noqa: BLE001  nothing may run on into the zygote's loop
                traceback.print_exc()
            finally:
                os._exit(1)
        self._runs[pid] = _Forked(id=id)
        for fd in fds:
            os.close(fd)
        self._send({"started": id, "pid": pid})

    def _become_run(self, zygote: int, fds: list[int]) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        processes.adopt_orphans()
        processes.die_with_parent(zygote)
        requests, replies, prints = fds
        for fd in (1, 2):
            os.dup2(prints, fd)
        out = wire.out_of_reach(replies)
        for fd in (replies, prints):
            os.close(fd)
        for s in (self._control, self._woken, self._wakes):
            s.close()
        with os.fdopen(requests, "rb", buffering=0) as stream:
            line = wire.read_line(stream)
        if line is None:
            os._exit(1)
        run(line, out)

    def _look_for_exits(self) -> None:
        for pid, forked in list(self._runs.items()):
            if not forked.over:
                status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if status is None:
                    continue
                forked.over = True
                processes.kill_strays(self._runs)
                self._send({"exited": forked.id, "code": processes.exit_code(status)})
            if forked.done:
                os.waitpid(pid, 0)
                del self._runs[pid]

    def _send(self, message: dict[str, int]) -> None:
        with contextlib.suppress(ConnectionError):  # the loop sees the end of the socket itself
            self._control.send(json.dumps(message).encode())
