"""Promises about what depends on what, beyond the contracts that import-linter keeps."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROBES = ROOT / "probes" / "rltriage_probes"
SERVER = ROOT / "server" / "rltriage"

WITHOUT_TORCH = ("contract", "model", "vocabulary", "aliases", "boot", "serve", "discovery", "loading")
"""Modules that must work where torch is missing: they say so, or find functions by reading."""

MAY_NEED_A_PACKAGE = {"torch", "numpy"}
"""All that a probe may import besides the standard library; numpy only where the user's function wants arrays."""


def imports_of(file: Path, *, top_level_only: bool) -> set[str]:
    """Top names of what a file imports; with `top_level_only` those that run when it is imported."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    nodes = _running_at_import(tree.body) if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def _running_at_import(body: list[ast.stmt]) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)) or _is_type_checking(statement):
            continue
        inner = [s for s in ast.iter_child_nodes(statement) if isinstance(s, ast.stmt)]
        nodes += [statement, *_running_at_import(inner)]
    return nodes


def _is_type_checking(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test)


@pytest.mark.parametrize("file", sorted(PROBES.rglob("*.py")), ids=lambda p: p.relative_to(PROBES).as_posix())
def test_a_probe_file_imports_torch_and_the_standard_library_only(file: Path) -> None:
    allowed = MAY_NEED_A_PACKAGE | {"rltriage_probes"} | set(sys.stdlib_module_names)

    assert imports_of(file, top_level_only=False) - allowed == set()


@pytest.mark.parametrize("file", sorted(PROBES.rglob("*.py")), ids=lambda p: p.relative_to(PROBES).as_posix())
def test_a_probe_file_parses_on_python_3_10_and_needs_no_numpy_to_be_imported(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))

    assert "numpy" not in imports_of(file, top_level_only=True)


def test_the_boot_file_parses_on_an_old_python_so_that_it_can_say_what_is_missing() -> None:
    text = (PROBES / "boot.py").read_text(encoding="utf-8")

    ast.parse(text, feature_version=(3, 7))


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_a_module_that_must_work_without_torch_is_imported_without_it(name: str) -> None:
    script = f"import sys; sys.modules['torch'] = None; import rltriage_probes.{name}"

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert run.returncode == 0, run.stderr


def test_what_crosses_the_pipe_needs_nothing_but_the_standard_library() -> None:
    found = imports_of(PROBES / "contract.py", top_level_only=False)

    assert found <= set(sys.stdlib_module_names)


def test_the_server_is_imported_without_a_tensor_library_or_a_probe() -> None:
    script = (
        "import sys, rltriage.cli, rltriage.app;"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy', 'transformers')"
        " or m.startswith('rltriage_probes.') and m != 'rltriage_probes.contract'])"
    )

    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)

    assert run.stdout.strip() == "[]", run.stderr


def test_every_ignored_lint_rule_has_its_reason_on_its_line() -> None:
    lines = (ROOT / "pyproject.toml").read_text(encoding="utf-8").splitlines()
    start = lines.index("ignore = [")
    ignored = lines[start + 1 : lines.index("]", start)]

    assert [line for line in ignored if "#" not in line] == []


def test_no_file_of_the_package_names_a_path_of_a_developers_machine() -> None:
    files = [*SERVER.rglob("*.py"), *PROBES.rglob("*.py"), *(ROOT / "scripts").glob("*.py")]

    named = [f for f in files if any(p in f.read_text(encoding="utf-8") for p in ("/home/", "/Users/", "/root/"))]

    assert named == []
