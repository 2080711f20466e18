"""The file descriptors of the protocol, out of reach of whatever the user's code prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import IO, Any

from rltriage_probes.contract import MAX_MESSAGE_BYTES, Failed, Hello, Reply, clip_text, encode

EXIT_WIRE_LOST = 97
"""Exit code of a run whose reply can't be sent because its descriptor is gone."""
_FIRST_FD = 200
"""Own descriptors are moved up here, where user code that closes or reuses small numbers misses them."""


def out_of_reach(fd: int) -> int:
    """A copy of `fd` with a high number, not inherited by programs that are started."""
    if sys.platform == "win32":
        return os.dup(fd)
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD)


def take_stdio() -> tuple[int, int]:
    """Descriptors of the real stdin and stdout; 0 reads nothing and 1 writes to stderr from now on."""
    incoming, outgoing = out_of_reach(0), out_of_reach(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return incoming, outgoing


def read_line(stream: IO[bytes]) -> bytes | None:
    """One line without its end; None at the end of the stream. `ValueError`: it was longer than allowed."""
    line = stream.readline(MAX_MESSAGE_BYTES + 1)
    if line.endswith(b"\n"):
        return line[:-1]
    if len(line) <= MAX_MESSAGE_BYTES:
        return None
    while not line.endswith(b"\n"):
        line = stream.readline(MAX_MESSAGE_BYTES)
        if not line:
            break
    raise ValueError(f"a message is longer than {MAX_MESSAGE_BYTES} bytes")


def to_line(reply: Any, id: int) -> bytes:
    """The reply as one line of JSON; one that can't travel becomes a `Failed` with the reason."""
    try:
        line = _dump(encode(reply))
    except (TypeError, ValueError) as e:
        return _dump(encode(_untransportable(id, f"The result can't be written as JSON: {e}.")))
    if len(line) > MAX_MESSAGE_BYTES:
        happened = f"The result has {len(line)} bytes; {MAX_MESSAGE_BYTES} are allowed in one message."
        return _dump(encode(_untransportable(id, happened)))
    return line


def _untransportable(id: int, happened: str) -> Failed:
    do = "Report this as a bug of rltriage, with the target; ask for fewer files or targets at once meanwhile."
    return Failed(id=id, kind="crash", happened=clip_text(happened), do=do)


def _dump(data: Any) -> bytes:
    return json.dumps(data, allow_nan=False, separators=(",", ":")).encode() + b"\n"


class Wire:
    """The sending end. Safe from several threads, and mute in a copy of the process that user code forked."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._owner = os.getpid()
        self._is = _identity(fd)
        self._lock = threading.Lock()

    def send(self, reply: Reply) -> None:
        self.send_line(to_line(reply, 0 if isinstance(reply, Hello) else reply.id))

    def send_line(self, line: bytes) -> None:
        """Leaves the process where the descriptor is gone: there is nobody left to tell."""
        if os.getpid() != self._owner:
            os._exit(0)
        with self._lock:
            if _identity(self._fd) != self._is:
                os._exit(EXIT_WIRE_LOST)
            rest = memoryview(line)
            try:
                while rest:
                    rest = rest[os.write(self._fd, rest) :]
            except OSError:
                os._exit(EXIT_WIRE_LOST)

    def fileno(self) -> int:
        return self._fd


def _identity(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.fstat(fd)
        return status.st_dev, status.st_ino
    return None
