"""What this interpreter has: for `rltriage doctor`, and for the question "why isn't my GPU seen?"."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rltriage_probes.contract import Inspected, InspectRequest, clip_text

PACKAGES = (
    *("torch", "numpy", "transformers", "tokenizers", "datasets", "accelerate", "peft", "safetensors", "trl", "verl"),
    *("openrlhf", "vllm", "sglang", "flash-attn", "deepspeed", "bitsandbytes", "liger-kernel", "unsloth", "ray"),
)
"""Distributions whose version decides what a post-training run computes."""

VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TOKENIZERS_PARALLELISM"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "LD_LIBRARY_PATH"),
    *("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
)
"""Variables that change what runs. Only these are shown: others may hold secrets."""


def torch_version() -> str:
    """Version of the torch that would be imported, read from its files; empty where there is none."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    with contextlib.suppress(OSError):
        text = (Path(spec.origin).parent / "version.py").read_text("utf-8", "replace")
        if found := re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE):
            return found[1]
    return "unknown"


def inspect(request: InspectRequest) -> Inspected:
    """Imports torch, and asks it for its devices: to be run in a child of its own."""
    devices, error = _devices()
    return Inspected(
        id=request.id,
        python=platform.python_version(),
        executable=sys.executable,
        torch=torch_version(),
        torch_error=clip_text(error, 1000),
        devices=devices,
        packages=_versions(),
        env={name: clip_text(os.environ[name], 500) for name in VARIABLES if name in os.environ},
    )


def _devices() -> tuple[tuple[str, ...], str]:
    """Devices as `cpu: 8 threads`, `cuda:0: NAME, 80 GiB`; and why torch, or its GPU part, failed."""
    try:
        import torch
    except Exception as e:  # noqa: BLE001  a broken installation can raise anything
        return (), f"{type(e).__name__}: {e}"
    found = [f"cpu: {torch.get_num_threads()} threads"]
    error = ""
    try:
        found += _accelerators(torch)
    except RuntimeError as e:
        error = f"GPUs can't be used: {e}"
    return tuple(found), error


def _accelerators(torch: Any) -> list[str]:
    found: list[str] = []
    for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(i)
        found.append(f"cuda:{i}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        found.append("mps: Apple GPU")
    return found


def _versions() -> dict[str, str]:
    from importlib import metadata  # costs 30 ms, which no other request needs

    found: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
