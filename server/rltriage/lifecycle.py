"""How the server ends: at once, and without leaving a process behind.

The end of stdin is an orderly end: the SDK's loop returns, and with it the lifespan that closes the
workers. A signal is not: the SDK reads stdin in a thread that can't be interrupted, so that a cancelled
server would wait for its client. Here a signal closes the workers and then leaves the process.
SIGKILL can't be caught; the workers watch their own stdin for it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable

import anyio

EXIT_BY_SIGNAL = 128
"""A process ended by signal N exits with this plus N, as shells have it."""
CLOSE_WITHIN_S = 3.0
"""Longest time that closing the workers may take before the process leaves anyway."""


async def run_until_signal(serve: Callable[[], Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
    """Run `serve`; on SIGTERM, SIGINT or SIGHUP call `close` and leave with 128 + the signal's number.

    Returns when `serve` does. On Windows, where a loop can't receive signals, only `serve` is run.
    """
    if sys.platform == "win32":
        await serve()
        return
    async with anyio.create_task_group() as tg:
        tg.start_soon(_leave_on_signal, close)
        await serve()
        tg.cancel_scope.cancel()


async def _leave_on_signal(close: Callable[[], Awaitable[None]]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for number in signals:
            code = EXIT_BY_SIGNAL + number
            _leave_after(CLOSE_WITHIN_S, code)
            with anyio.CancelScope(shield=True):
                await close()
            os._exit(code)


def _leave_after(seconds: float, code: int) -> None:
    """Leave the process in `seconds`, whatever the event loop is doing then."""
    timer = threading.Timer(seconds, os._exit, args=(code,))
    timer.daemon = True
    timer.start()
