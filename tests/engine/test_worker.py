"""The worker against everything that user code does to a process. Real processes, real files."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import psutil
import pytest

import rltriage_probes.contract as c
from rltriage.errors import RunFailed, WorkerError
from rltriage.worker import Worker, WorkerPool

pytestmark = pytest.mark.anyio

WAIT_S = 40.0
"""Longest time for one test: the machine may be busy, and torch takes seconds to be imported."""
RIGHT = """
    import torch
    def advantages(rewards, group_size):
        r = rewards.view(-1, group_size)
        return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
"""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def forking() -> AsyncIterator[Worker]:
    async with Worker(sys.executable) as worker:
        yield worker


@pytest.fixture(scope="module")
async def spawning() -> AsyncIterator[Worker]:
    async with Worker(sys.executable, {"RLTRIAGE_SPAWN": "1"}) as worker:
        yield worker


@pytest.fixture(params=["forked", "spawned"])
def worker(request: pytest.FixtureRequest, forking: Worker, spawning: Worker) -> Worker:
    return forking if request.param == "forked" else spawning


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(source: str) -> Path:
        (tmp_path / "algo.py").write_text(textwrap.dedent(source))
        return tmp_path

    return write


TARGET = c.TargetSpec(name="advantages", role="advantages", ref="algo.py:advantages", settings={"group_size": 4})


async def check(worker: Worker, root: Path, *, timeout_s: float = 20.0, memory_gb: float = 8.0) -> c.TargetResult:
    with anyio.fail_after(WAIT_S):
        return await worker.check(root=root, target=TARGET, limits=c.Limits(timeout_s=timeout_s, memory_gb=memory_gb))


async def failure(worker: Worker, root: Path, *, timeout_s: float = 20.0, memory_gb: float = 8.0) -> c.Failed:
    """The failure of a run; and the proof that the next request works."""
    with pytest.raises(RunFailed) as caught:
        await check(worker, root, timeout_s=timeout_s, memory_gb=memory_gb)
    await next_request_works(worker, root)
    assert caught.value.failed.do
    return caught.value.failed


async def next_request_works(worker: Worker, root: Path) -> None:
    if worker.env:  # spawned: an answer that needs no torch shows the same, seconds earlier
        with pytest.raises(RunFailed, match="doesn't exist"):
            await check(worker, root / "nowhere")
        return
    (root / "algo.py").write_text(textwrap.dedent(RIGHT))
    assert "agrees" in kinds(await check(worker, root))


def kinds(result: c.TargetResult) -> set[str]:
    return {check.outcome.kind for check in result.checks}


def said(result: c.TargetResult) -> str:
    """All texts of a result, to look for a word in."""
    return json.dumps(c.encode(result))


def pipe_in(folder: Path) -> Path:
    """A named pipe through which user code tells process ids: reading waits until they are there."""
    os.mkfifo(folder / "pids")
    return folder / "pids"


async def pids_from(pipe: Path) -> list[int]:
    with anyio.fail_after(WAIT_S):
        text = await anyio.to_thread.run_sync(pipe.read_text, abandon_on_cancel=True)
    return [int(p) for p in text.split()]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# What ends a run, and what the caller reads


async def test_a_segmentation_fault_is_a_crash_that_names_the_users_line(worker, write):
    root = write("""
        import ctypes
        def advantages(rewards, group_size):
            return ctypes.string_at(0)
    """)

    failed = await failure(worker, root)

    assert failed.kind == "crash"
    assert "SIGSEGV" in failed.happened
    assert "algo.py line 4, advantages" in failed.happened
    assert "Segmentation fault" in failed.last_words


async def test_an_exit_past_all_handlers_is_a_crash_with_its_exit_code(forking, write):
    root = write("""
        import os
        def advantages(rewards, group_size):
            os._exit(3)
    """)

    failed = await failure(forking, root)

    assert (failed.kind, "exit code 3" in failed.happened) == ("crash", True)


async def test_an_endless_loop_ends_at_the_time_limit_and_names_its_line(worker, write):
    root = write("""
        def advantages(rewards, group_size):
            while True:
                pass
    """)

    failed = await failure(worker, root, timeout_s=1.0)

    assert failed.kind == "timeout"
    assert "within 1 s" in failed.happened
    assert "algo.py line" in failed.happened


async def test_a_loop_that_ignores_sigterm_ends_at_the_time_limit(forking, write):
    root = write("""
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        def advantages(rewards, group_size):
            while True:
                pass
    """)

    assert (await failure(forking, root, timeout_s=0.5)).kind == "timeout"


async def test_a_function_that_needs_too_much_memory_is_stopped_at_the_limit(worker, write):
    root = write("""
        def advantages(rewards, group_size):
            kept = []
            while True:
                kept.append(bytearray(b"x") * 20_000_000)
    """)

    failed = await failure(worker, root, memory_gb=0.6)

    assert failed.kind == "memory"
    assert "memory" in failed.happened


async def test_one_allocation_that_is_far_too_big_fails_at_once(forking, write):
    root = write("""
        import torch
        def advantages(rewards, group_size):
            return torch.empty(10**13)
    """)

    assert (await failure(forking, root)).kind == "memory"


@pytest.mark.parametrize("exit", ["sys.exit(2)", "raise KeyboardInterrupt", "raise SystemExit"])
async def test_code_that_leaves_by_an_exit_exception_gives_an_answer_all_the_same(forking, write, exit):
    root = write(f"""
        import sys
        def advantages(rewards, group_size):
            {exit}
    """)

    try:
        told = said(await check(forking, root))
    except RunFailed as e:
        told = str(e)

    assert "SystemExit" in told or "KeyboardInterrupt" in told
    await next_request_works(forking, root)


async def test_code_that_closes_all_descriptors_gives_a_failure_that_says_so(forking, write):
    root = write("""
        import os
        def advantages(rewards, group_size):
            os.closerange(0, 1024)
            return rewards
    """)

    failed = await failure(forking, root)

    assert (failed.kind, "closed the file descriptors" in failed.happened) == ("crash", True)


async def test_a_function_killed_from_outside_is_reported_as_lack_of_memory(forking, write):
    root = write("""
        import os
        def advantages(rewards, group_size):
            os.kill(os.getpid(), 9)
    """)

    failed = await failure(forking, root)

    assert (failed.kind, "killed from outside" in failed.happened) == ("memory", True)


async def test_a_file_that_cannot_be_imported_gives_a_reason(forking, write):
    root = write("""
        def advantages(rewards, group_size):
            return rewards -
    """)

    result = await check(forking, root)

    assert kinds(result) == {"not_run"}
    assert "line 3" in said(result)


async def test_a_project_folder_that_is_not_there_is_a_bad_request(forking, tmp_path):
    with pytest.raises(RunFailed) as caught:
        await check(forking, tmp_path / "nowhere")

    assert caught.value.failed.kind == "bad_request"


# What user code leaves behind


async def test_ten_megabytes_of_prints_from_python_and_from_the_system_do_not_disturb_the_answer(worker, write):
    root = write(
        RIGHT
        + """
    import os, sys
    for i in range(25_000):
        print("x" * 99)
        print("y" * 99, file=sys.stderr)
        os.write(1, b"z" * 99 + bytes([10]))
        os.write(2, b"{\\"op\\": \\"checked\\", \\"id\\": 1}" + bytes([10]))
    print("the last line")
    """
    )

    result = await check(worker, root)

    assert "agrees" in kinds(result)
    assert "the last line" in result.printed
    assert len(result.printed) <= c.MAX_TEXT


async def test_an_answer_can_be_forged_on_no_descriptor_that_prints_use(forking, write):
    root = write(
        RIGHT
        + """
    import os
    for fd in (0, 1, 2):
        try:
            os.write(fd, b'{"op":"failed","id":1,"happened":"forged","do":"","kind":"crash"}' + bytes([10]))
        except OSError:
            pass
    """
    )

    assert "agrees" in kinds(await check(forking, root))


async def test_a_child_that_user_code_forks_neither_answers_twice_nor_outlives_the_run(forking, write, tmp_path):
    root = write(
        RIGHT
        + """
    import os, time
    if os.fork() == 0:
        open("child", "w").write(str(os.getpid()))
        time.sleep(300)
    while not os.path.exists("child") or not open("child").read():
        pass
    """
    )

    assert "agrees" in kinds(await check(forking, root))
    assert not alive(int((tmp_path / "child").read_text()))


async def test_a_forked_copy_that_runs_on_through_the_probe_gives_no_second_answer(forking, write):
    root = write(
        """
    import os
    def advantages(rewards, group_size):
        if not os.path.exists("once"):
            open("once", "w").close()
            os.fork()
        r = rewards.view(-1, group_size)
        return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
    """
    )

    await check(forking, root, timeout_s=30.0)
    await next_request_works(forking, root)


async def test_a_helper_in_a_session_of_its_own_does_not_outlive_the_run(forking, write, tmp_path):
    root = write(
        RIGHT
        + """
    import subprocess, sys
    code = "import os, time; os.fork() and os._exit(0); open('pid', 'w').write(str(os.getpid())); time.sleep(300)"
    subprocess.run([sys.executable, "-c", code], start_new_session=True)
    import os
    while not os.path.exists("pid") or not open("pid").read():
        pass
    """
    )

    assert "agrees" in kinds(await check(forking, root))
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_a_helper_that_holds_the_pipes_of_a_crashed_run_does_not_delay_the_answer(forking, write, tmp_path):
    root = write("""
        import os, subprocess
        def advantages(rewards, group_size):
            helper = subprocess.Popen(["sleep", "300"], start_new_session=True, close_fds=False)
            open("pid", "w").write(str(helper.pid))
            os._exit(4)
    """)
    begun = time.monotonic()

    failed = await failure(forking, root)

    assert "exit code 4" in failed.happened
    assert time.monotonic() - begun < 10
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_threads_that_never_end_do_not_keep_the_run(forking, write):
    root = write(
        RIGHT
        + """
    import threading, time
    for daemon in (True, False):
        threading.Thread(target=time.sleep, args=(300,), daemon=daemon).start()
    """
    )

    assert "agrees" in kinds(await check(forking, root))


async def test_an_edit_is_seen_by_the_next_run_and_leaves_no_bytecode_in_the_project(forking, write):
    root = write('def advantages(rewards, group_size):\n    raise ValueError("first version")\n')
    assert "first version" in said(await check(forking, root))

    write('def advantages(rewards, group_size):\n    raise ValueError("2ndly version")\n')

    assert "2ndly version" in said(await check(forking, root))
    assert [p.name for p in root.iterdir()] == ["algo.py"]


# Concurrency, cancellation, progress


async def test_runs_answer_in_the_order_in_which_they_end_and_each_to_its_own_caller(forking, tmp_path):
    results: dict[str, c.TargetResult] = {}

    async def one(name: str) -> None:
        root = tmp_path / name
        root.mkdir()
        (root / "algo.py").write_text(f'def advantages(rewards, group_size):\n    raise ValueError("I am {name}")\n')
        results[name] = await check(forking, root)

    async with anyio.create_task_group() as tg:
        for i in range(5):
            tg.start_soon(one, f"number-{i}")

    assert all(f"I am {name}" in said(result) for name, result in results.items())
    assert len(results) == 5


LOOPS = """
    import os, subprocess
    def advantages(rewards, group_size):
        helper = subprocess.Popen(["sleep", "300"])
        escaped = subprocess.Popen(["sleep", "300"], start_new_session=True)
        with open("pids", "w") as pipe:
            pipe.write(f"{os.getpid()} {os.getppid()} {helper.pid} {escaped.pid}")
        while True:
            pass
"""


async def test_cancelling_the_caller_kills_the_run_and_what_it_started(worker, write, tmp_path):
    root, pipe = write(LOOPS), pipe_in(tmp_path)

    async with anyio.create_task_group() as tg:
        tg.start_soon(check, worker, root)
        run, parent, helper, escaped = await pids_from(pipe)
        tg.cancel_scope.cancel()

    assert [p for p in (run, helper, escaped) if alive(p)] == []
    assert alive(parent)
    await next_request_works(worker, root)


async def test_a_run_that_waits_for_its_turn_can_be_cancelled(forking, write, tmp_path):
    root, pipe = write(LOOPS), pipe_in(tmp_path)

    async with anyio.create_task_group() as tg:
        tg.start_soon(check, forking, root)
        await pids_from(pipe)
        tg.start_soon(check, forking, root)
        await pids_from(pipe)
        with anyio.move_on_after(0.2) as waiting:
            await check(forking, root)
        assert waiting.cancelled_caught
        tg.cancel_scope.cancel()

    await next_request_works(forking, root)


async def test_progress_arrives_while_the_run_goes_on(forking, write):
    heard: list[c.Progress] = []
    root = write(RIGHT)

    with anyio.fail_after(WAIT_S):
        await forking.check(root=root, target=TARGET, on_progress=heard.append)

    assert heard[0].says == "loading algo.py:advantages"
    assert all(0 <= p.done <= max(p.total, 1) and p.says for p in heard)


async def test_a_callback_that_fails_ends_the_run_and_tells_its_own_error(forking, write):
    def broken(progress: c.Progress) -> None:
        raise LookupError("the client is gone")

    with anyio.fail_after(WAIT_S), pytest.raises(LookupError, match="the client is gone"):
        await forking.check(root=write(RIGHT), target=TARGET, on_progress=broken)
    await next_request_works(forking, write(RIGHT))


# The life of the worker


async def test_the_worker_says_what_it_is_before_it_has_torch(forking):
    with anyio.fail_after(WAIT_S):
        hello = await forking.start()

    assert (hello.protocol, hello.fork) == (c.PROTOCOL, sys.platform == "linux")
    assert hello.executable == sys.executable
    assert hello.torch
    assert set(hello.roles) == set(c.ROLE_STAGES)


async def test_a_worker_that_died_between_two_requests_is_replaced(write):
    async with Worker(sys.executable) as worker:
        root = write(RIGHT)
        first = await worker.start()
        os.kill(first.pid, signal.SIGKILL)

        assert "agrees" in kinds(await check(worker, root))
        assert worker.hello is not None and worker.hello.pid != first.pid


async def test_a_warm_process_that_dies_takes_nothing_but_its_runs_along(write, tmp_path):
    root = write("""
        import os
        def advantages(rewards, group_size):
            open("zygote", "w").write(str(os.getppid()))
            os.kill(os.getppid(), 9)
            while True:
                pass
    """)
    async with Worker(sys.executable) as worker:
        failed = await failure(worker, root)

        assert failed.kind in ("memory", "crash")
        assert not alive(int((tmp_path / "zygote").read_text()))


async def test_closing_the_worker_leaves_nothing_and_tells_whoever_waits(write, tmp_path):
    root, pipe = write(LOOPS), pipe_in(tmp_path)
    told: list[WorkerError] = []

    async def wait_for_it() -> None:
        with pytest.raises(WorkerError) as caught:
            await check(worker, root)
        told.append(caught.value)

    async with Worker(sys.executable) as worker, anyio.create_task_group() as tg:
        tg.start_soon(wait_for_it)
        pids = await pids_from(pipe)
        await worker.close()

    assert [p for p in pids if alive(p)] == []
    assert told and told[0].do


SERVER = """
import sys, anyio
import rltriage_probes.contract as c
from rltriage.worker import Worker

async def main():
    async with Worker(sys.executable, eval(sys.argv[2])) as worker:
        await worker.check(root=sys.argv[1], target=c.TargetSpec(
            name="a", role="advantages", ref="algo.py:advantages", settings={"group_size": 4}
        ))

anyio.run(main)
"""


@pytest.mark.parametrize(
    ("number", "env"),
    [(signal.SIGKILL, "{}"), (signal.SIGKILL, "{'RLTRIAGE_SPAWN': '1'}"), (signal.SIGTERM, "{}")],
    ids=["SIGKILL forked", "SIGKILL spawned", "SIGTERM forked"],
)
async def test_nothing_is_left_when_the_server_is_killed(write, tmp_path, number, env):
    root, pipe = write(LOOPS), pipe_in(tmp_path)
    async with await anyio.open_process([sys.executable, "-c", SERVER, str(root), env], stderr=None) as server:
        started = [psutil.Process(p) for p in await pids_from(pipe)]

        server.send_signal(number)

        _, left = await anyio.to_thread.run_sync(lambda: psutil.wait_procs(started, timeout=WAIT_S))
    assert left == []


@pytest.mark.parametrize("context", [lambda: Worker(sys.executable), WorkerPool], ids=["worker", "pool"])
async def test_an_error_leaves_the_context_as_it_is_and_a_cancellation_stays_one(context):
    with pytest.raises(LookupError, match="mine"):
        async with context():
            raise LookupError("mine")

    with anyio.fail_after(WAIT_S), anyio.move_on_after(0.01) as scope:
        async with context():
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_a_pool_shares_a_worker_among_those_with_the_same_interpreter_and_environment(tmp_path):
    async with WorkerPool() as pool:
        with anyio.fail_after(WAIT_S):
            first = await pool.get(sys.executable, {"A": "1", "B": "2"}, root=tmp_path)
            same = await pool.get(sys.executable, {"B": "2", "A": "1"}, root=tmp_path / "other")
            other = await pool.get(sys.executable, {"A": "1"}, root=tmp_path)

        assert first is same
        assert first is not other
        assert first.hello is not None and other.hello is not None
        workers = [first.hello.pid, other.hello.pid]

    assert [p for p in workers if alive(p)] == []
