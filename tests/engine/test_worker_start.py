"""Interpreters that a user may name, good and bad, and what the worker says of each."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

import rltriage_probes.contract as c
from rltriage.errors import RunFailed, TriageError, WorkerError
from rltriage.worker import Worker

pytestmark = pytest.mark.anyio

WAIT_S = 40.0
PROBES = Path(c.__file__).parent
BOOT = PROBES / "boot.py"
TARGET = c.TargetSpec(name="advantages", role="advantages", ref="algo.py:advantages")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter with the standard library and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
async def without_torch(bare: str) -> AsyncIterator[Worker]:
    async with Worker(bare) as worker:
        yield worker


async def failure(worker: Worker, root: Path) -> c.Failed:
    with anyio.fail_after(WAIT_S), pytest.raises(RunFailed) as caught:
        await worker.check(root=root, target=TARGET)
    return caught.value.failed


# torch


async def test_without_torch_a_check_says_how_to_get_it_and_the_rest_works(without_torch, tmp_path):
    failed = await failure(without_torch, tmp_path)

    assert failed.kind == "no_torch"
    assert "No module named 'torch'" in failed.happened
    assert "pip install torch" in failed.do
    with anyio.fail_after(WAIT_S):
        inspected = await without_torch.inspect()
    assert (inspected.torch, inspected.devices) == ("", ())
    assert "No module named 'torch'" in inspected.torch_error
    assert without_torch.hello is not None and without_torch.hello.torch == ""


async def test_every_check_asks_for_torch_anew_so_that_installing_it_helps(without_torch, tmp_path):
    first = await failure(without_torch, tmp_path)

    assert (await failure(without_torch, tmp_path)).happened == first.happened


async def test_without_torch_a_project_can_be_searched_for_stage_functions(without_torch, tmp_path):
    (tmp_path / "algo.py").write_text(
        "def compute_advantages(rewards, group_size):\n    return rewards - rewards.mean()\n"
    )

    with anyio.fail_after(WAIT_S):
        discovered = await without_torch.discover(tmp_path)

        located = await without_torch.locate(tmp_path, ("json", "no_such_package"))

    assert discovered.files_read == 1
    assert list(located.packages) == ["json"]


@pytest.mark.parametrize("spawn", ["", "1"], ids=["forked", "spawned"])
@pytest.mark.parametrize(
    ("module", "kind", "word"),
    [
        ("raise OSError('libcudart.so.12: cannot open shared object file')", "no_torch", "libcudart.so.12"),
        ("import os; os.abort()", "", ""),
    ],
    ids=["broken library", "crash on import"],
)
async def test_a_broken_torch_is_told_and_leaves_the_worker_alive(bare, tmp_path, module, kind, word, spawn):
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text(module)
    async with Worker(bare, {"PYTHONPATH": str(packages), "RLTRIAGE_SPAWN": spawn}) as worker:
        failed = await failure(worker, tmp_path)

        assert failed.kind == kind or (not kind and failed.kind in ("no_torch", "crash"))
        assert word in failed.happened
        assert "torch" in failed.happened + failed.do + failed.last_words
        first = worker.hello
        assert (await failure(worker, tmp_path)).kind == failed.kind
        assert worker.hello is first


async def test_inspecting_tells_versions_and_devices_and_no_other_variables(tmp_path):
    env = {"HF_HOME": "/models", "SECRET_TOKEN": "hunter2"}
    async with Worker(sys.executable, env) as worker:
        with anyio.fail_after(WAIT_S):
            inspected = await worker.inspect()

    assert inspected.torch == inspected.packages["torch"]
    assert inspected.devices[0].startswith("cpu: ")
    assert inspected.env["HF_HOME"] == "/models"
    assert "hunter2" not in json.dumps(c.encode(inspected))


# Pythons


@pytest.mark.parametrize("version", ["(2, 7, 18)", "(3, 6, 15)", "(3, 8, 20)", "(3, 9, 25)"])
def test_the_entry_refuses_an_old_python_in_one_line(version):
    script = f"import sys, runpy; sys.version_info = {version}; runpy.run_path({str(BOOT)!r}, run_name='__main__')"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S)

    (line,) = run.stdout.splitlines()
    failed = c.Failed(**json.loads(line))
    assert "needs" in failed.happened or "need Python 3.10" in failed.happened
    assert "--python" in failed.do
    assert run.returncode == 1


def test_the_entry_uses_no_syntax_or_module_that_an_old_python_lacks():
    tree = ast.parse(BOOT.read_text(), feature_version=(3, 4))

    assert [n for n in ast.walk(tree) if isinstance(n, ast.JoinedStr)] == []


async def test_an_old_python_that_is_installed_here_is_refused_through_the_worker():
    old = next((p for p in map(shutil.which, ("python3.9", "python3.8", "python3.7")) if p and _runs(p)), None)
    if old is None:
        pytest.skip("no old Python on this machine; the entry is tested with simulated versions")

    with anyio.fail_after(WAIT_S):
        async with Worker(old) as worker:
            with pytest.raises(WorkerError, match=r"need Python 3\.10 or newer"):
                await worker.start()


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, timeout=WAIT_S).returncode == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("#!/bin/sh\necho 'module load cuda first' >&2; exit 1\n", "module load cuda first"),
        ("#!/bin/sh\necho hello\n", "did not start as a worker"),
        ("#!/no/such/program\n", "can't be started"),
    ],
    ids=["fails", "is no Python", "can't be run"],
)
async def test_a_program_that_is_no_python_gives_an_error_with_its_last_words(tmp_path, text, told):
    program = tmp_path / "python"
    program.write_text(text)
    program.chmod(0o755)
    async with Worker(program) as worker:
        with anyio.fail_after(WAIT_S), pytest.raises(TriageError) as caught:
            await worker.start()

    assert told in caught.value.happened
    assert "--python" in caught.value.do


async def test_a_python_that_appears_later_is_used_then(bare, tmp_path):
    async with Worker(tmp_path / "python") as worker:
        with anyio.fail_after(WAIT_S), pytest.raises(WorkerError):
            await worker.start()
        (tmp_path / "python").write_text(f'#!/bin/sh\nexec {bare} "$@"\n')
        (tmp_path / "python").chmod(0o755)

        with anyio.fail_after(WAIT_S):
            assert (await worker.start()).torch == ""


def test_nothing_but_the_probes_becomes_importable(bare, tmp_path):
    """As in a wheel, where the server's dependencies lie beside the probes."""
    package = tmp_path / "rltriage_probes"
    shutil.copytree(PROBES, package)
    for neighbour in ("pydantic", "rltriage"):
        (tmp_path / neighbour).mkdir()
        (tmp_path / neighbour / "__init__.py").write_text("")
    script = (
        f"import sys, runpy; sys.path.insert(0, {str(package)!r});"
        f"runpy.run_path({str(package / 'boot.py')!r})['make_importable']();"
        "from importlib.util import find_spec as f; import rltriage_probes.contract;"
        "print([n for n in ('pydantic', 'rltriage', 'contract', 'model', 'loss', 'boot') if f(n)])"
    )

    run = subprocess.run([bare, "-E", "-c", script], capture_output=True, text=True, timeout=WAIT_S)

    assert run.stdout.strip() == "[]", run.stderr


# The wire


def talk(python: str, *lines: bytes) -> list[c.Reply]:
    """Replies of a worker to raw lines, after which its stdin stays open until as many have come."""
    process = subprocess.Popen([python, str(BOOT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    with process:
        process.stdin.write(b"".join(lines))
        process.stdin.flush()
        replies = [json.loads(process.stdout.readline()) for _ in range(len(lines) + 1)]
        process.stdin.close()
        process.wait(WAIT_S)
    return [c.Hello(**r) if r["op"] == "hello" else c.Failed(**r) for r in replies]


def test_lines_that_are_no_requests_are_answered_and_do_no_harm(bare):
    hello, *failed = talk(
        bare,
        b"nonsense\n",
        b"[1, 2]\n",
        b'{"op": "dance", "id": 7}\n',
        b'{"op": "inspect", "id": 8, "colour": "red"}\n',
        b'{"op": "discover"}\n',
        b'{"op": "inspect", "id": ' + b" " * c.MAX_MESSAGE_BYTES + b"9}\n",
        b'{"op": "check", "id": 10, "root": "/x", "target": {"name": "a", "role": "advantages", "ref": "a.py:f"}}\n',
    )

    assert isinstance(hello, c.Hello)
    assert all(isinstance(f, c.Failed) for f in failed)
    assert [(f.kind, f.id) for f in failed if isinstance(f, c.Failed)] == [
        ("bad_request", 0),
        ("bad_request", 0),
        ("bad_request", 7),
        ("bad_request", 8),
        ("bad_request", 0),
        ("bad_request", 0),
        ("no_torch", 10),
    ]


def test_a_worker_ends_when_its_stdin_ends(bare):
    run = subprocess.run([bare, str(BOOT)], input=b"", stdout=subprocess.PIPE, timeout=WAIT_S)

    assert run.returncode == 0
    assert re.fullmatch(rb'\{.*"op":"hello"\}\n', run.stdout)
