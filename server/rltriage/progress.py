"""Progress of a call: strictly increasing, often enough that a client keeps waiting, seldom enough to be cheap."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

import anyio
from mcp.server.mcpserver import Context

from rltriage.render import clean

SELDOM_S = 0.1
"""At least this long between two notifications."""
WHOLE = 100.0


class Progress:
    """Sends `update`s to the client while the block runs, and a sign of life where there are none.

    The protocol wants a growing number. So a step back is not shown, and a sign of life moves a small
    part of what is left.
    """

    def __init__(self, ctx: Context[Any], every_s: float) -> None:
        self._ctx = ctx
        self._every_s = every_s
        self._begun = time.monotonic()
        self._sent = 0.0
        self._at = 0.0
        self._says = "starting the interpreter"
        self._news = anyio.Event()

    def update(self, done: float, total: float, says: str) -> None:
        """Note how far the work is; the client hears of it soon."""
        self._at = WHOLE * done / total if total else 0.0
        self._says = clean(says)[:200]
        self._news.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _send(self) -> None:
        while True:
            ahead = self._at if self._at > self._sent else self._sent + (WHOLE - self._sent) / 50
            self._sent = min(ahead, WHOLE - (WHOLE - self._sent) / 2)
            elapsed = time.monotonic() - self._begun
            await self._ctx.report_progress(round(self._sent, 6), WHOLE, f"{self._says} ({elapsed:.0f} s)")
            await anyio.sleep(SELDOM_S)
            with anyio.move_on_after(self._every_s):
                await self._news.wait()
            self._news = anyio.Event()
