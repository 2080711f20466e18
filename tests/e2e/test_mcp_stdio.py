"""The server as a process: what is on the wire, how it ends, and what it leaves behind."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, StdioServerParameters

DECLARED = {"algorithm": "grpo", "group_size": 4}


def endless(python: str) -> dict[str, Any]:
    return {"name": "check_advantages", "arguments": {"target": "algos.py:endless_advantages", "python": python}}


@pytest.mark.anyio
@pytest.mark.parametrize("era", ["legacy", "auto"])
async def test_the_sdk_s_client_gets_a_finding_over_stdio(era: str, grpo: Path, user_python: str) -> None:
    server = StdioServerParameters(command=sys.executable, args=["-m", "rltriage", "serve"], cwd=grpo)
    async with Client(server, mode=era) as c:
        assert c.server_info.name == "rltriage"
        result = await c.call_tool(
            "check_advantages", {"target": "algos.py:damped_advantages", "intent": DECLARED, "python": user_python}
        )
    assert result.structured_content["findings"][0]["families"] == ["epsilon"]


def test_whatever_user_code_prints_the_wire_carries_only_the_protocol(raw_server: Any, user_python: str) -> None:
    raw_server.initialize()
    arguments = {"target": "algos.py:loud_advantages", "intent": DECLARED, "python": user_python}
    answer = raw_server.request("tools/call", {"name": "check_advantages", "arguments": arguments})
    assert answer["result"]["structuredContent"]["verdict"] == "clean"
    assert [line["id"] for line in raw_server.lines if "id" in line] == [1, 2]
    assert all(isinstance(line["result"], dict) for line in raw_server.lines if "id" in line)
    assert raw_server.hang_up() == 0
    assert raw_server.process.stdout.read() == ""


def test_the_end_of_stdin_is_an_orderly_end(
    raw_server: Any, user_python: str, endless_pids: Callable[[], list[int]], deaths: Any
) -> None:
    raw_server.initialize()
    raw_server.ask("tools/call", endless(user_python))
    endless_pids()
    everybody = deaths(raw_server.everybody())
    assert raw_server.hang_up() == 0
    assert everybody.survivors(5.0) == []


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_signal_ends_the_server_and_everything_it_started(
    number: signal.Signals,
    code: int,
    raw_server: Any,
    user_python: str,
    endless_pids: Callable[[], list[int]],
    deaths: Any,
) -> None:
    raw_server.initialize()
    raw_server.ask("tools/call", endless(user_python))
    running = endless_pids()
    everybody = deaths([*raw_server.everybody(), *running])
    assert len(everybody.pids) >= 4
    assert raw_server.signal(number) == code
    assert everybody.survivors(5.0) == []


def test_a_line_that_is_no_message_does_not_stop_the_server(raw_server: Any) -> None:
    raw_server.initialize()
    raw_server.process.stdin.write("hello?\n")
    raw_server.process.stdin.flush()
    assert raw_server.request("tools/list", {})["result"]["tools"]


def test_an_idle_server_is_small(raw_server: Any) -> None:
    raw_server.initialize()
    raw_server.request("tools/list", {})
    process = psutil.Process(raw_server.process.pid)
    assert process.memory_info().rss <= 120e6
    assert process.children() == []
