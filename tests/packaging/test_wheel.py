"""The built distribution: what it holds, and that it works where nothing of the checkout can be seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(p.name for p in (ROOT / "references" / "pitfalls").glob("*.md"))


def run(*command: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RLTRIAGE", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, timeout=300, cwd=cwd, env={**clean, **env}
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without the network."""
    out = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    assert built.returncode == 0, built.stdout + built.stderr
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment that holds the wheel.

    Its dependencies are lent by a `.pth` line that points to this environment, behind its own packages: so
    the test needs no network. The checkout's own `.pth` is not read from there.
    """
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    done = run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert done.returncode == 0, done.stderr
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_wheel_holds_both_packages_the_pages_and_the_skill(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    tops = {n.partition("/")[0] for n in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"rltriage", "rltriage_probes"}
    pages = {n.rpartition("/")[2] for n in names if n.startswith("rltriage/_content/references/pitfalls/")}
    assert sorted(pages - {".gitkeep"}) == PAGES
    assert "rltriage/_content/skills/rl-triage/SKILL.md" in names
    assert "rltriage_probes/boot.py" in names


def test_the_wheel_holds_every_module_of_the_checkout_and_no_test(wheel: Path) -> None:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".py")}

    sources = {
        p.relative_to(root).as_posix()
        for root in (ROOT / "server", ROOT / "probes")
        for p in root.rglob("*.py")
        if ".venv" not in p.parts
    }
    assert names == sources


def test_the_metadata_names_the_licence_and_no_torch(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    data = Parser().parsestr(archive.read(name).decode())

    assert data["License-Expression"] == "Apache-2.0"
    assert not [r for r in data.get_all("Requires-Dist", []) if "torch" in r]
    assert [n for n in archive.namelist() if n.endswith("licenses/LICENSE")]


def test_the_version_is_the_same_wherever_it_is_written() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

    assert json.loads((ROOT / "server.json").read_text())["version"] == version
    assert json.loads((ROOT / ".claude-plugin" / "plugin.json").read_text())["version"] == version
    assert run(sys.executable, "-c", "import rltriage; print(rltriage.__version__)").stdout.strip() == version
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_an_installed_wheel_finds_its_own_pages(installed: Path, tmp_path: Path) -> None:
    listed = run(installed.parent / "rltriage", "page", "--list", cwd=tmp_path)

    assert listed.returncode == 0, listed.stderr
    where = run(installed, "-c", "import rltriage, rltriage.content as c; print(rltriage.__file__, c.references())")
    assert str(ROOT) not in where.stdout
    assert all(name.partition("-")[0] in listed.stdout for name in PAGES)


def test_an_installed_wheel_diagnoses_the_embedded_example(installed: Path, tmp_path: Path) -> None:
    verified = run(
        installed.parent / "rltriage", "verify", "--example", "--json", "--python", sys.executable, cwd=tmp_path
    )

    assert verified.returncode == 1, verified.stderr
    report = json.loads(verified.stdout.splitlines()[-1])
    assert report["verdict"] == "findings"
    assert report["findings"]


def test_the_worker_sees_nothing_of_the_servers_packages(installed: Path, tmp_path: Path) -> None:
    """In site-packages it is started from a folder that lies beside pydantic and mcp."""
    boot = run(installed, "-c", "import rltriage_probes as p; print(p.__path__[0] + '/boot.py')").stdout.strip()
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "users")
    names = ["rltriage", "mcp", "pydantic", "anyio", "contract", "solver", "json"]
    request = {"op": "locate", "id": 1, "root": str(tmp_path), "packages": names}

    command = [str(tmp_path / "users" / "bin" / "python"), boot]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        worker.stdin.write(json.dumps(request) + "\n")
        worker.stdin.flush()
        lines = [worker.stdout.readline() for _ in ("hello", "located")]
        worker.stdin.close()

    located = json.loads(lines[1])
    assert list(located["packages"]) == ["json"]
