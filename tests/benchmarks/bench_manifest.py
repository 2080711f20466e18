"""Time of `verify` on a manifest of 20 targets, warm, against `import torch` in the same interpreter.

    python tests/benchmarks/bench_manifest.py

The targets are specimens of the tests, three of them wrong and three that no formula fits. Exits non-zero when a
warm run (median) takes more than 1.5 times `python -c "import torch"`, which is about 3 s on two idle cores.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import anyio

from rltriage.manifest import Manifest, from_mapping
from rltriage.verify import verify
from rltriage.worker import WorkerPool

DATA = Path(__file__).resolve().parents[1] / "engine" / "data"
ROUNDS = 5
MAX_RATIO = 1.5
TARGETS = (
    ("advantages", "advantages_right.py:view_mean_std"),
    ("advantages", "advantages_right.py:by_uid"),
    ("advantages", "advantages_right.py:rloo_rest_mean"),
    ("advantages", "advantages_wrong.py:eps_of_one"),
    ("advantages", "advantages_strange.py:logit_of_success"),
    ("logprobs", "logprobs_right.py:log_softmax_gather"),
    ("logprobs", "logprobs_wrong.py:lse_minus_logit"),
    ("entropy", "entropy_right.py:p_times_logp"),
    ("kl", "kls.py:k3"),
    ("kl", "kls.py:token_mean"),
    ("kl", "kls.py:strange"),
    ("completion_mask", "masks.py:by_cumsum"),
    ("completion_mask", "masks.py:row_by_row"),
    ("policy_loss", "plain.py:ppo_clip"),
    ("policy_loss", "plain.py:grpo_k3"),
    ("policy_loss", "plain.py:dapo"),
    ("policy_loss", "plain.py:gspo"),
    ("policy_loss", "strangers.py:sapo"),
    ("reward", "rewards_right.py:gsm8k_strict"),
    ("decode", "decoders_right.py:removes_blocks"),
)


def import_time() -> float:
    """Seconds of an interpreter that does nothing but import torch."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - begun


def manifest(root: Path) -> Manifest:
    for folder in (DATA, DATA / "loss"):
        for file in folder.glob("*.py"):
            shutil.copy(file, root / file.name)
    counts: dict[str, int] = {}
    targets: dict[str, dict[str, str]] = {}
    for role, ref in TARGETS:
        counts[role] = counts.get(role, 0) + 1
        targets[f"{role}-{counts[role]}"] = {"ref": ref}
    return from_mapping({"targets": targets}, root=root)


async def run_times(made: Manifest) -> list[float]:
    """Seconds of each warm run; the first one, which starts the interpreter, is left out."""
    seconds: list[float] = []
    async with WorkerPool() as pool:
        for _ in range(ROUNDS + 1):
            begun = time.perf_counter()
            report = await verify(made, pool=pool)
            seconds.append(time.perf_counter() - begun)
            missing = [f"{m.target}: {m.reason}" for m in report.not_run if not m.probe]
            assert len(report.targets) == len(TARGETS) and not missing, f"not run: {missing}"
        slowest = sorted(report.targets, key=lambda t: -t.seconds)[:4]
        print("slowest:", ", ".join(f"{t.ref} {t.seconds:.2f} s" for t in slowest))
    return seconds[1:]


def main() -> int:
    baseline = statistics.median(import_time() for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        warm = anyio.run(run_times, manifest(Path(folder)))
    median = statistics.median(warm)
    ratio = median / baseline
    print(f"import torch          {baseline:6.2f} s")
    spread = f"median of {len(warm)}, {min(warm):.2f} to {max(warm):.2f} s"
    print(f"verify of {len(TARGETS)} targets  {median:6.2f} s warm ({spread})")
    print(f"ratio                 {ratio:6.2f} x (<= {MAX_RATIO:g})")
    return 0 if ratio <= MAX_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
