"""Processes that have a framework imported already: fast, and never at the price of an old or a lost answer."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import psutil
import pytest

import rltriage_probes.contract as c
from rltriage.errors import RunFailed
from rltriage.worker import Worker
from rltriage_probes import nurseries

WAIT_S = 60.0
ALGO = """
import torch
from frame import settings

def advantages(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + settings.EPS)).flatten()
"""
NOTED = """
import os
with open(os.environ["RLTRIAGE_TEST_IMPORTS"], "a") as f:
    f.write(f"{os.getpid()}\\n")
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports") / "imports.txt"


@pytest.fixture(scope="module")
async def worker(imports: Path) -> AsyncIterator[Worker]:
    async with Worker(sys.executable, {"RLTRIAGE_TEST_IMPORTS": str(imports)}) as worker:
        yield worker


@pytest.fixture
def project(tmp_path: Path, imports: Path) -> Path:
    """A project with a vendored package that is as large as a framework and notes every import."""
    imports.write_text("")
    package = tmp_path / "vendor" / "frame"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(NOTED)
    (package / "settings.py").write_text("EPS = 1e-4\n")
    (package / "algo.py").write_text(ALGO)
    for i in range(nurseries.LARGE):
        (package / f"part_{i}.py").write_text("")
    return tmp_path


def target(module: str = "algo") -> c.TargetSpec:
    ref = f"vendor/frame/{module}.py:advantages"
    return c.TargetSpec(name="advantages", role="advantages", ref=ref, settings={"group_size": 4})


async def eps_found(worker: Worker, project: Path, module: str = "algo") -> c.Number:
    with anyio.fail_after(WAIT_S):
        result = await worker.check(root=project, target=target(module), limits=c.Limits(timeout_s=30.0))
    outcome = result.checks[0].outcome
    assert isinstance(outcome, (c.Agrees, c.KnownBug)), outcome
    return outcome.convention.knobs["eps"]


def times_imported(imports: Path) -> int:
    return len(imports.read_text().split())


pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only"),
]


async def test_a_large_package_is_imported_once_for_several_runs(worker, project, imports):
    found = [await eps_found(worker, project) for _ in range(3)]

    assert found == [pytest.approx(1e-4)] * 3
    assert times_imported(imports) == 1


async def test_an_edit_in_the_package_is_seen_by_the_next_run(worker, project, imports):
    before = await eps_found(worker, project)
    (project / "vendor" / "frame" / "settings.py").write_text("EPS = 1.0\n")

    assert (before, await eps_found(worker, project)) == (pytest.approx(1e-4), pytest.approx(1.0))
    assert times_imported(imports) == 2


async def test_an_edit_of_a_project_file_that_the_package_imports_is_seen_too(worker, project):
    (project / "own.py").write_text("EPS = 1e-4\n")
    (project / "vendor" / "frame" / "settings.py").write_text("from own import EPS\n")
    before = await eps_found(worker, project)
    (project / "own.py").write_text("EPS = 1.0\n")

    assert (before, await eps_found(worker, project)) == (pytest.approx(1e-4), pytest.approx(1.0))


async def test_a_module_whose_import_ends_the_process_fails_alone(worker, project, imports):
    await eps_found(worker, project)
    (project / "vendor" / "frame" / "deadly.py").write_text("import os\nos._exit(7)\n" + ALGO)

    with anyio.fail_after(WAIT_S), pytest.raises(RunFailed) as caught:
        await worker.check(root=project, target=target("deadly"), limits=c.Limits(timeout_s=30.0))

    assert caught.value.failed.kind == "crash"
    assert "exit code 7" in caught.value.failed.happened
    assert await eps_found(worker, project) == pytest.approx(1e-4)


async def test_an_endless_import_is_a_timeout_and_the_next_run_works(worker, project):
    (project / "vendor" / "frame" / "endless.py").write_text("while True: pass\n" + ALGO)

    with anyio.fail_after(WAIT_S), pytest.raises(RunFailed) as caught:
        await worker.check(root=project, target=target("endless"), limits=c.Limits(timeout_s=3.0))

    assert caught.value.failed.kind == "timeout"
    assert await eps_found(worker, project) == pytest.approx(1e-4)


async def test_a_module_that_can_not_be_imported_climbs_the_ladder_as_elsewhere(worker, project):
    (project / "vendor" / "frame" / "broken.py").write_text("raise ValueError('no such device')\n" + ALGO)

    with anyio.fail_after(WAIT_S):
        result = await worker.check(root=project, target=target("broken"), limits=c.Limits(timeout_s=30.0))

    assert result.loaded is not None
    assert result.loaded.rung == "extracted"
    assert result.checks[0].outcome.kind == "agrees"


async def test_nothing_is_left_when_the_worker_is_closed(project, imports):
    async with Worker(sys.executable, {"RLTRIAGE_TEST_IMPORTS": str(imports)}) as own:
        await eps_found(own, project)
        assert own.hello is not None
        below = psutil.Process(own.hello.pid).children(recursive=True)
        assert len(below) >= 2

    _, left = psutil.wait_procs(below, timeout=10)
    assert left == []


def test_a_small_package_and_a_single_file_are_imported_fresh_each_time(project):
    for i in range(nurseries.LARGE):
        (project / "vendor" / "frame" / f"part_{i}.py").unlink()
    (project / "algo.py").write_text(ALGO)

    def nursery_of(ref: str) -> nurseries.Nursery | None:
        spec = c.TargetSpec(name="x", role="advantages", ref=ref)
        return nurseries.nursery_of(c.CheckRequest(id=1, root=str(project), target=spec))

    assert nursery_of("vendor/frame/algo.py:advantages") is None
    assert nursery_of("algo.py:advantages") is None
    assert nursery_of("no/such.py:advantages") is None
