"""Which Python is chosen for a project, and what the user is told about it."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import anyio
import pytest

from rltriage import interpreter
from rltriage.errors import InterpreterError
from rltriage.interpreter import Interpreter

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT"):
        monkeypatch.delenv(name, raising=False)


def find(root: Path, named: str | None = None, env: dict[str, str] | None = None) -> Interpreter:
    async def main() -> Interpreter:
        with anyio.fail_after(WAIT_S):
            return await interpreter.find(root, named=named, env=env)

    return anyio.run(main)


def environment(folder: Path, *, torch: bool = False) -> str:
    """A virtual environment; with a folder that looks like torch, since nothing imports it here."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
    if torch:
        (site,) = folder.glob("lib/python3*/site-packages")
        (site / "torch").mkdir()
        (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    return str(folder / "bin" / "python")


def test_the_projects_own_environment_comes_first(tmp_path):
    own = environment(tmp_path / ".venv", torch=True)
    other = environment(tmp_path / "elsewhere", torch=True)

    chosen = find(tmp_path, env={"VIRTUAL_ENV": str(Path(other).parents[1])})

    assert (chosen.path, chosen.why) == (own, "the project's .venv")


def test_an_environment_with_torch_is_preferred_and_the_passed_one_is_named(tmp_path):
    environment(tmp_path / ".venv")
    conda = environment(tmp_path / "conda", torch=True)

    chosen = find(tmp_path, env={"CONDA_PREFIX": str(tmp_path / "conda")})

    assert chosen.path == conda
    assert chosen.why == "$CONDA_PREFIX; the project's .venv has no torch"
    assert [t.found for t in chosen.tried] == ["no torch", "has torch"]


def test_where_no_environment_has_torch_the_first_one_is_taken_and_that_is_said(tmp_path, monkeypatch):
    first = environment(tmp_path / "venv")
    monkeypatch.setattr(sys, "executable", environment(tmp_path / "server"))

    chosen = find(tmp_path)

    assert chosen.path == first
    assert "no interpreter that was found has torch" in chosen.why


def test_without_any_environment_the_python_of_rltriage_itself_is_taken(tmp_path):
    chosen = find(tmp_path)

    assert (chosen.path, chosen.why) == (sys.executable, "the Python that runs rltriage")


def test_installing_torch_is_noticed_although_answers_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", environment(tmp_path / "server"))
    own = environment(tmp_path / ".venv")
    assert "no interpreter" in find(tmp_path).why

    (site,) = (tmp_path / ".venv").glob("lib/python3*/site-packages")
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("")

    assert (find(tmp_path).path, find(tmp_path).why) == (own, "the project's .venv")


def test_a_broken_environment_is_passed_over(tmp_path):
    environment(tmp_path / ".venv")
    (tmp_path / ".venv" / "bin" / "python").unlink()
    (tmp_path / ".venv" / "bin" / "python").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)

    chosen = find(tmp_path)

    assert chosen.path == sys.executable
    assert chosen.tried[0].found == "does not run"


def test_an_environment_of_uv_is_found_at_the_top_of_its_workspace(tmp_path):
    member = tmp_path / "packages" / "trainer"
    member.mkdir(parents=True)
    (tmp_path / "uv.lock").write_text("")
    own = environment(tmp_path / ".venv", torch=True)

    assert find(member).path == own


@pytest.mark.parametrize("has_project", [True, False], ids=["poetry project", "another project"])
def test_poetry_is_asked_only_for_a_project_of_its_own(tmp_path, has_project):
    kept = environment(tmp_path / "cache" / "env", torch=True)
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "poetry").write_text(f"#!/bin/sh\necho {Path(kept).parents[1]}\n")
    (tools / "poetry").chmod(0o755)
    table = "[tool.poetry]\nname = 'x'\n" if has_project else "[project]\nname = 'x'\n"
    (tmp_path / "pyproject.toml").write_text(table)

    chosen = find(tmp_path, env={"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"})

    assert chosen.path == (kept if has_project else sys.executable)


def test_a_named_interpreter_is_read_from_the_project_folder_and_is_final(tmp_path):
    environment(tmp_path / ".venv", torch=True)
    named = environment(tmp_path / "envs" / "train")

    for name in ("envs/train/bin/python", "envs/train", named):
        assert find(tmp_path, named=name).path == named


def test_a_command_on_the_path_can_be_named(tmp_path):
    environment(tmp_path / "env")

    chosen = find(tmp_path, named="python", env={"PATH": str(tmp_path / "env" / "bin")})

    assert chosen.path == str(tmp_path / "env" / "bin" / "python")


@pytest.mark.parametrize(
    ("name", "what"), [("gone/python", "doesn't exist"), ("data", "without a Python"), ("notes", "can't be run")]
)
def test_a_named_interpreter_that_cannot_be_used_is_an_error_that_says_what_to_write(tmp_path, name, what):
    own = environment(tmp_path / ".venv")
    (tmp_path / "data").mkdir()
    (tmp_path / "notes").write_text("")

    with pytest.raises(InterpreterError) as caught:
        find(tmp_path, named=name)

    assert what in caught.value.happened
    assert own in caught.value.do
