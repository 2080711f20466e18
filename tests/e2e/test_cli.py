"""The command line, as a user or a program calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import psutil
import pytest

from rltriage import cli
from rltriage.init import compose
from rltriage.manifest import from_mapping
from rltriage_probes.contract import STAGES, Discovered, Found

EXAMPLE = cli.example().parent
PLANTED = {
    ("logprobs", "sign"),
    ("advantages", "epsilon"),
    ("completion_mask", "pad-eos"),
    ("policy_loss", "clip-direction"),
    ("decode", "decode-blank"),
}


def rltriage(*args: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rltriage", *map(str, args)],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def project(folder: Path, text: str, code: str = "def f(rewards):\n    return rewards\n") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "a.py").write_text(code)
    (folder / "rltriage.toml").write_text(f"[pipeline]\npython = {json.dumps(sys.executable)}\n{text}")
    return folder / "rltriage.toml"


# What needs no worker


def test_the_version_needs_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, rltriage.cli; print(sorted({'pydantic', 'mcp', 'rich', 'anyio', 'torch'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert loaded.stdout.strip() == "[]"
    assert rltriage("--version", cwd=tmp_path).stdout.startswith("rltriage ")


def test_without_a_manifest_it_says_how_to_get_one(tmp_path: Path) -> None:
    run = rltriage("verify", cwd=tmp_path)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.splitlines()[0] == "rltriage: There is no manifest rltriage.toml."
    assert "  do: Run `rltriage init`" in run.stderr


def test_a_bad_manifest_is_named_with_all_its_problems(tmp_path: Path) -> None:
    project(tmp_path, "device = 'gpu'\n[targets.advantage]\nref = 'a.py:f'\n")
    run = rltriage("verify", cwd=tmp_path)
    assert run.returncode == 2
    assert "2 problems" in run.stderr and "did you mean advantages?" in run.stderr


def test_ways_to_name_the_work_exclude_each_other(tmp_path: Path) -> None:
    assert cli.main(["verify", "--example", "--manifest", "x.toml"]) == 2


def test_an_unknown_page_is_an_error_with_a_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["page", "no-such-page"]) == 2
    assert "do: " in capsys.readouterr().err


def test_every_listed_page_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["page", "--list"]) == 0
    for row in capsys.readouterr().out.splitlines():
        assert cli.main(["page", row.split()[0]]) == 0
        assert capsys.readouterr().out.startswith(f"# {row.split()[0]}: ")


def test_an_unknown_command_prints_the_usage(tmp_path: Path) -> None:
    run = rltriage("verfy", cwd=tmp_path)
    assert run.returncode == 2
    assert "usage: rltriage" in run.stderr


# Manifests from discovery


def test_a_composed_manifest_is_deterministic_valid_and_says_what_is_unsure() -> None:
    nasty = 'a "b" \\ \x7f\n[targets.evil]\x1b[31m'
    found = Discovered(
        id=1,
        found=(
            Found(role="kl", ref="z.py:kl", score=0.5, why=nasty, bind={'batch["x"]': "logprobs"}),
            Found(role="advantages", ref=f"b.py:{nasty}", score=0.4, why="takes rewards"),
            Found(role="advantages", ref="a.py:adv", score=0.9, why="takes rewards"),
        ),
        unsure=(Found(role="decode", ref="c.py:maybe", score=0.2, why=nasty),),
        settings={"group_size": 8, "beta": float("inf"), "model": nasty, "what": object, "dtype": None},
        files_read=3,
        skipped=("bad.py: not Python",),
    )
    text = compose(found)
    assert text == compose(found)
    data = tomllib.loads(text)
    assert data["pipeline"] == {"group_size": 8, "beta": float("inf"), "model": nasty}
    assert list(data["targets"]) == ["advantages", "advantages-2", "kl"]
    assert data["targets"]["advantages"]["ref"] == "a.py:adv"
    assert data["targets"]["kl"]["bind"] == {'batch["x"]': "logprobs"}
    assert [t.role for t in from_mapping(data, root="/x").targets] == ["advantages", "advantages", "kl"]
    unsure = [row for row in text.splitlines() if row.startswith("# unsure: ")]
    assert any("c.py:maybe may be of role decode" in row for row in unsure)
    assert any("stage reward" in row for row in unsure)
    assert any("bad.py" in row for row in unsure)


def test_init_writes_what_verify_can_read_and_never_overwrites(tmp_path: Path) -> None:
    for file in EXAMPLE.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    first = rltriage("init", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    text = (tmp_path / "rltriage.toml").read_text()
    roles = {t.role for t in from_mapping(tomllib.loads(text), root=tmp_path).targets}
    assert {"advantages", "logprobs", "policy_loss", "decode", "reward"} <= roles
    again = rltriage("init", cwd=tmp_path)
    assert again.returncode == 2 and "--force" in again.stderr
    assert rltriage("init", "--force", cwd=tmp_path).returncode == 0
    assert (tmp_path / "rltriage.toml").read_text() == text


def test_init_writes_nothing_where_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("x = 1\n")
    run = rltriage("init", cwd=tmp_path)
    assert run.returncode == 2 and "1 Python files" in run.stderr
    assert not (tmp_path / "rltriage.toml").exists()


def test_files_can_be_verified_without_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "algos.py").write_text((EXAMPLE / "algos.py").read_text())
    run = rltriage("verify", "algos.py", "--json", "--python", sys.executable, cwd=tmp_path)
    report = json.loads(run.stdout)
    assert report["manifest"] == "algos.py"
    assert "algos.py:group_advantages" in report["stages"]["advantages"]["targets"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["algos.py"]


# Verification


def test_the_example_names_each_planted_bug_once_and_nothing_else() -> None:
    before = sorted((p.name, p.stat().st_mtime_ns) for p in EXAMPLE.rglob("*"))
    run = rltriage("verify", "--example", "--json", cwd=EXAMPLE)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in EXAMPLE.rglob("*")) == before
    report = json.loads(run.stdout)
    hard = [f for f in report["findings"] if f["severity"] == "hard"]
    assert sorted(f["role"] for f in hard) == sorted(role for role, _ in PLANTED)
    assert {(f["role"], family) for f in hard for family in f["families"]} >= PLANTED
    assert {s: r["status"] for s, r in report["stages"].items()} == {
        **dict.fromkeys(STAGES, "failed"),
        "reward": "passed",
    }
    assert run.returncode == 1


def test_the_examples_text_has_stages_pages_and_a_verdict(tmp_path: Path) -> None:
    run = rltriage("verify", "--example", cwd=tmp_path)
    rows = run.stdout.splitlines()
    assert [row.split(":")[0] for row in rows if row.split(":")[0] in STAGES] == list(STAGES)
    assert any(row.startswith("  !!  algos.py:group_advantages") for row in rows)
    assert any(row.startswith("  ok  reward.py:correctness_reward") for row in rows)
    assert any(row.startswith("      page: rltriage page ") for row in rows)
    assert rows[-1].startswith("verdict: 5 hard findings in advantages, logprobs, loss, generation.")
    assert run.stdout.isascii() and "\x1b" not in run.stdout
    assert run.stderr == ""


def test_one_json_line_a_manifest_in_the_order_given_though_some_fail(tmp_path: Path) -> None:
    files = [
        project(tmp_path / f"p{i}", f"[targets.{'kl' if i != 1 else 'nonsense'}]\nref='a.py:f'\n") for i in range(4)
    ]
    files.insert(2, tmp_path / "missing.toml")
    run = rltriage("verify", "--json", *(x for f in files for x in ("--manifest", f)), cwd=tmp_path)
    reports = [json.loads(row) for row in run.stdout.splitlines()]
    assert [r["manifest"] for r in reports] == [str(f) for f in files]
    assert [bool(r["errors"]) for r in reports] == [False, True, True, False, False]
    assert all(r["verdict"] == "incomplete" for r in (reports[1], reports[2]))
    assert all(list(r["stages"]) == list(STAGES) for r in reports)
    assert run.returncode == 2


def test_an_interpreter_that_is_missing_is_an_error_of_its_report(tmp_path: Path) -> None:
    file = project(tmp_path, "[targets.kl]\nref = 'a.py:f'\n")
    run = rltriage("verify", "--json", "--python", "./no-python", cwd=tmp_path)
    report = json.loads(run.stdout)
    assert run.returncode == 2 and file.exists()
    assert "no-python" in report["errors"][0]["happened"]
    assert report["not_run"][0]["role"] == "kl"
    assert "rltriage: " in run.stderr


def test_only_the_stages_asked_for_are_run(tmp_path: Path) -> None:
    run = rltriage("verify", "--example", "--json", "--stage", "reward", cwd=tmp_path)
    report = json.loads(run.stdout)
    assert [t["role"] for t in report["targets"]] == ["reward"]
    assert report["asked"] == ["reward"]
    assert report["verdict"] == "incomplete"


def test_an_incomplete_run_is_an_error_only_where_completeness_is_required(tmp_path: Path) -> None:
    args = ("verify", "--example", "--stage", "reward")
    assert rltriage(*args, cwd=tmp_path).returncode == 0
    assert rltriage(*args, "--require-complete", cwd=tmp_path).returncode == 3


def test_code_that_dies_is_an_outcome_and_the_rest_is_measured(tmp_path: Path) -> None:
    code = "import os\n\ndef f(rewards, group_size):\n    os._exit(3)\n\n\n" + (EXAMPLE / "algos.py").read_text()
    project(tmp_path, "[targets.advantages]\nref='a.py:f'\n[targets.logprobs]\nref='a.py:token_logprobs'\n", code)
    report = json.loads(rltriage("verify", "--json", cwd=tmp_path).stdout)
    assert [m["target"] for m in report["not_run"]] == ["a.py:f"]
    assert [f["target"] for f in report["findings"]] == ["a.py:token_logprobs"]


# The process


def started(cwd: Path, *args: str, **kw: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rltriage", *args]
    return subprocess.Popen(command, cwd=cwd, stdout=kw.get("stdout", subprocess.PIPE), stderr=subprocess.PIPE)


def children(process: subprocess.Popen[bytes], deadline: float = 30.0) -> list[psutil.Process]:
    """The worker and its run, once both are there."""
    end = time.monotonic() + deadline
    while time.monotonic() < end:
        found = psutil.Process(process.pid).children(recursive=True)
        if len(found) >= 2:
            return found
    raise AssertionError("no run was started")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_cleanly_with_all_its_children(tmp_path: Path, number: signal.Signals, code: int) -> None:
    endless = "def f(rewards, group_size):\n    while True:\n        pass\n"
    project(tmp_path, "[targets.advantages]\nref='a.py:f'\n", endless)
    process = started(tmp_path, "verify")
    below = children(process)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == code
    assert stderr == b""
    assert psutil.wait_procs(below, timeout=10)[1] == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX pipes")
def test_a_reader_that_leaves_is_no_traceback(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    process = started(tmp_path, "page", "--list", stdout=write)
    os.close(write)
    _, stderr = process.communicate(timeout=30)
    assert b"Traceback" not in stderr and b"Exception ignored" not in stderr


# Doctor


def test_doctor_says_what_would_run_and_what_is_wrong(tmp_path: Path) -> None:
    targets = "".join(
        f"[targets.{role}]\nref = '{ref}'\n"
        for role, ref in {"kl": "a.py:f", "decode": "b.py:f", "logprobs": "no_such_pkg.x:f"}.items()
    )
    project(tmp_path, targets)
    run = rltriage("doctor", cwd=tmp_path)
    assert run.returncode == 2
    assert "  ok  kl: a.py:f (stage loss)" in run.stdout
    assert "  !!  decode: b.py:f: there is no file b.py" in run.stdout
    assert "  !!  logprobs: no_such_pkg.x:f: there is no module no_such_pkg.x" in run.stdout
    assert "torch: " in run.stdout and "named by the manifest" in run.stdout


def test_doctor_is_content_where_nothing_is_wrong(tmp_path: Path) -> None:
    run = rltriage("doctor", "--python", sys.executable, cwd=tmp_path)
    assert run.returncode == 0
    assert run.stdout.splitlines()[-1].startswith("Next: rltriage init")
