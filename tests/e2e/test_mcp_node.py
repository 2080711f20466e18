"""The TypeScript SDK's client, which many hosts are built on, drives the server once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.node, pytest.mark.slow]

NODE = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client with its SDK installed."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("Node.js and npm are not on PATH")
    folder = tmp_path_factory.mktemp("node")
    shutil.copytree(NODE, folder, dirs_exist_ok=True)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        pytest.skip(f"npm could not install the SDK: {done.stderr.strip()[-300:]}")
    return folder / "client.mjs"


def test_the_typescript_client_checks_reads_and_cancels(
    client: Path, grpo: Path, user_python: str, endless_pids: Callable[[], list[int]], deaths: Any
) -> None:
    command = ["node", str(client), str(grpo), user_python, sys.executable, "-m", "rltriage", "serve"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["server"]["name"] == "rltriage"
    assert "run_verify_pipeline" in seen["tools"]
    assert seen["good"]["structuredContent"]["verdict"] == "clean"
    assert seen["bad"]["isError"]
    assert "nowhere.py" in seen["bad"]["content"][0]["text"]
    assert seen["page"]["mimeType"] == "text/markdown"
    assert seen["progress"]
    assert seen["progress"] == sorted(set(seen["progress"]))
    assert seen["aborted"] == "aborted"
    running = endless_pids()
    assert len(running) == 2
    assert deaths(running).survivors(5.0) == []
