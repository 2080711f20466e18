"""Time of the first check and of a check after an edit, against `import torch` in the same interpreter.

    python tests/benchmarks/bench_worker.py

Exits non-zero when a target is missed: the first check, the start of the worker included, at most 1.5
times `python -c "import torch"`; a check after an edit at most 0.15 s (median).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

import rltriage_probes.contract as c
from rltriage.worker import Worker

ROUNDS = 3
EDITS = 10
MAX_COLD_RATIO = 1.5
MAX_WARM_S = 0.15
SOURCE = """
def advantages(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + {eps})).flatten()
"""
TARGET = c.TargetSpec(name="advantages", role="advantages", ref="algo.py:advantages", settings={"group_size": 4})


def import_time() -> float:
    """Seconds of an interpreter that does nothing but import torch."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begun


async def check_times(root: Path) -> tuple[float, list[float]]:
    """Seconds from nothing to the first result, and of each check after an edit, which the result must show."""
    file = root / "algo.py"
    file.write_text(SOURCE.format(eps=1e-8))
    begun = time.perf_counter()
    async with Worker(sys.executable) as worker:
        await worker.check(root=root, target=TARGET)
        cold = time.perf_counter() - begun
        warm: list[float] = []
        for i in range(EDITS):
            file.write_text(SOURCE.format(eps=(i + 1) * 1e-4))
            begun = time.perf_counter()
            result = await worker.check(root=root, target=TARGET)
            warm.append(time.perf_counter() - begun)
            assert f"{(i + 1) * 1e-4:g}" in str(result), "the edit is not in the result"
    return cold, warm


def main() -> int:
    imports: list[float] = []
    colds: list[float] = []
    warms: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            imports.append(import_time())
            cold, warm = anyio.run(check_times, Path(folder))
            colds.append(cold)
            warms += warm
    ratio = statistics.median(colds) / statistics.median(imports)
    warm_s = statistics.median(warms)
    print(
        f"import torch {statistics.median(imports):.2f} s; first check {statistics.median(colds):.2f} s: {ratio:.2f} x"
    )
    print(f"check after an edit: median {warm_s * 1000:.0f} ms, slowest {max(warms) * 1000:.0f} ms")
    return int(ratio > MAX_COLD_RATIO or warm_s > MAX_WARM_S)


if __name__ == "__main__":
    sys.exit(main())
