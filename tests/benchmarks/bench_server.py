"""Start-up and size of the server, against a bare server of the same SDK in the same run.

    python tests/benchmarks/bench_server.py

Exits non-zero when a target is missed: `initialize` over stdio at most 1.3 times the bare server's, at
most 120 MB resident, no tensor library loaded.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import psutil

ROUNDS = 9
MAX_RATIO = 1.3
MAX_RSS_MB = 120.0
HEAVY = ("libtorch", "numpy", "libcuda")

BARE = [sys.executable, "-c", "from mcp.server import MCPServer; MCPServer('bare').run('stdio')"]
OURS = [sys.executable, "-m", "rltriage", "serve"]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}},
}


def answer_time(command: list[str]) -> tuple[float, float, list[str]]:
    """Seconds from spawn to the answer to `initialize`; resident MB then; heavy libraries loaded then."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        server.stdin.flush()
        answer = json.loads(server.stdout.readline())
        took = time.perf_counter() - begun
        assert "result" in answer, answer
        process = psutil.Process(server.pid)
        rss = process.memory_info().rss / 1e6
        heavy = [m.path for m in process.memory_maps() if any(word in m.path for word in HEAVY)]
        server.stdin.close()
        server.wait(30)
    return took, rss, heavy


def main() -> int:
    answer_time(BARE), answer_time(OURS)  # so that neither pays for cold files
    bare: list[float] = []
    ours: list[float] = []
    rss = 0.0
    heavy: list[str] = []
    for _ in range(ROUNDS):
        bare.append(answer_time(BARE)[0])
        took, rss, heavy = answer_time(OURS)
        ours.append(took)
    ratio = statistics.median(ours) / statistics.median(bare)
    print(f"initialize: bare {statistics.median(bare) * 1e3:.0f} ms, rltriage {statistics.median(ours) * 1e3:.0f} ms")
    print(f"ratio {ratio:.2f} (at most {MAX_RATIO}); resident {rss:.0f} MB (at most {MAX_RSS_MB:.0f}); heavy: {heavy}")
    return int(ratio > MAX_RATIO or rss > MAX_RSS_MB or bool(heavy))


if __name__ == "__main__":
    sys.exit(main())
