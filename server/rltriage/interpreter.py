"""Which Python runs the probes, and why: the user's own, because only that one has their packages.

A name that the user gave is final: where it can't be used, that is an error and nothing else is tried.
Otherwise the places below are looked through in order, and the first that has torch wins; where none
has, the first that exists is taken, and a check will say that torch is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio

from rltriage.errors import InterpreterError

PROBE_S: Final = 20.0
"""Longest wait for an interpreter to say whether it has torch."""
POETRY_S: Final = 20.0
_PROBE: Final = (
    "import sys, json, importlib.util as u; s = u.find_spec('torch');"
    "print(json.dumps([list(sys.version_info[:2]), bool(s and s.origin)]))"
)
_OLDEST: Final = (3, 10)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A place that was looked at, and what was found there."""

    path: str
    place: str
    found: str


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """The Python that was chosen."""

    path: str
    why: str
    """One clause, e.g. `the project's .venv`."""
    tried: tuple[Tried, ...] = ()
    """Every place that was looked at, the chosen one included."""


@dataclass(frozen=True, kw_only=True)
class _Has:
    """What an interpreter says of itself."""

    runs: bool
    recent: bool = False
    torch: bool = False

    def words(self) -> str:
        if not self.runs:
            return "does not run"
        if not self.recent:
            return f"older than Python {_OLDEST[0]}.{_OLDEST[1]}"
        return "has torch" if self.torch else "no torch"


_known: dict[tuple[str, int], _Has] = {}
"""Answers by path and change time of the folder with its packages: installing torch makes a new question."""


async def find(
    root: str | Path, *, named: str | Path | None = None, env: Mapping[str, str] | None = None
) -> Interpreter:
    """The interpreter for the project `root`.

    `named` comes from the manifest or the command line and is relative to `root`. `env` is what the
    manifest adds to the environment. Raises `InterpreterError`.
    """
    root = Path(root)
    environ = {**os.environ, **(env or {})}
    if named:
        return Interpreter(path=_named(root, str(named), environ), why="named by the manifest or --python")
    tried: list[Tried] = []
    chosen: tuple[str, str] | None = None
    for path, place in await anyio.to_thread.run_sync(lambda: list(_places(root, environ))):
        has = await _ask(path, environ)
        tried.append(Tried(path=path, place=place, found=has.words()))
        if has.torch and has.recent:
            passed = [t for t in tried[:-1] if t.found == "no torch"]
            why = place + (f"; {', '.join(t.place for t in passed)} has no torch" if passed else "")
            return Interpreter(path=path, why=why, tried=tuple(tried))
        if chosen is None and has.recent:
            chosen = path, f"{place}; no interpreter that was found has torch"
    if chosen is None:
        looked = "; ".join(f"{t.path} {t.found}" for t in tried)
        raise InterpreterError(
            f"No Python for this project was found ({looked}).",
            do="Name the one that trains: `python` in [pipeline] of the manifest, or --python.",
        )
    return Interpreter(path=chosen[0], why=chosen[1], tried=tuple(tried))


def _named(root: Path, named: str, environ: Mapping[str, str]) -> str:
    """Absolute path of the interpreter that was named: a file, an environment's folder, or a command on PATH."""
    path = Path(named).expanduser()
    here = root / path
    if here.is_dir() and (inside := _python_in(here)):
        return inside
    if here.is_file() and os.access(here, os.X_OK):
        return os.path.abspath(here)  # noqa: PTH100  a resolved path would leave the virtual environment
    if path.name == named and (found := shutil.which(named, path=environ.get("PATH"))):
        return found
    what = "is a folder without a Python" if here.is_dir() else "can't be run" if here.exists() else "doesn't exist"
    others = [p for p, _ in _places(root, environ) if p != sys.executable]
    hint = f"e.g. {others[0]}" if others else "an absolute path, or one relative to the project"
    raise InterpreterError(
        f"The interpreter {named} {what} ({here}).",
        do=f"Correct `python` in [pipeline] of the manifest, or --python: {hint}.",
    )


def _places(root: Path, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Interpreters that exist, with the name of the place, the likeliest first; each only once."""
    seen: set[str] = set()
    for folder, place in _folders(root, environ):
        path = _python_in(folder)
        if path is not None and path not in seen:
            seen.add(path)
            yield path, place
    if sys.executable not in seen:
        yield sys.executable, "the Python that runs rltriage"


def _folders(root: Path, environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    for name in (".venv", "venv"):
        yield root / name, f"the project's {name}"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if value := environ.get(variable):
            yield Path(value), f"${variable}"
    if value := environ.get("UV_PROJECT_ENVIRONMENT"):
        yield root / value, "$UV_PROJECT_ENVIRONMENT"
    for parent in root.resolve().parents[:3]:  # a uv workspace has one environment at its top
        if (parent / "uv.lock").is_file():
            yield parent / ".venv", f"the uv workspace {parent.name}"
    if (poetry := _poetry(root, environ)) is not None:
        yield poetry, "poetry's environment"


def _poetry(root: Path, environ: Mapping[str, str]) -> Path | None:
    """The environment that poetry keeps for a project elsewhere, if there is a poetry to ask."""
    command = shutil.which("poetry", path=environ.get("PATH"))
    try:
        project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
        if command is None or "poetry" not in project.get("tool", {}):
            return None
        answer = subprocess.run(
            [command, "env", "info", "-p"],
            cwd=root,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=POETRY_S,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Path(answer.stdout.strip()) if answer.returncode == 0 and answer.stdout.strip() else None


def _python_in(folder: Path) -> str | None:
    """The interpreter of a virtual or conda environment."""
    for inside in ("bin/python", "Scripts/python.exe", "bin/python3", "python.exe"):
        file = folder / inside
        if file.is_file() and os.access(file, os.X_OK):
            return os.path.abspath(file)  # noqa: PTH100  a resolved path would leave the virtual environment
    return None


async def _ask(path: str, environ: Mapping[str, str]) -> _Has:
    """Whether it runs, is recent and has torch, without importing torch; asked once for each state of it."""
    key = (path, _changed(path))
    if key not in _known:
        _known[key] = await _ask_now(path, environ)
    return _known[key]


async def _ask_now(path: str, environ: Mapping[str, str]) -> _Has:
    try:
        with anyio.fail_after(PROBE_S):
            answer = await anyio.run_process(
                [path, "-c", _PROBE], stdin=subprocess.DEVNULL, env=dict(environ), check=False, start_new_session=True
            )
        version, torch = json.loads(answer.stdout)
    except (OSError, ValueError, TimeoutError):
        return _Has(runs=False)
    return _Has(runs=True, recent=tuple(version) >= _OLDEST, torch=torch)


def _changed(path: str) -> int:
    """When packages were last added beside the interpreter, in ns; 0 where that can't be told."""
    folders = Path(path).parent.parent.glob("lib/python3*/site-packages")
    return max((f.stat().st_mtime_ns for f in folders), default=0)
