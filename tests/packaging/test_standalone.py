"""`verify_pipeline.py`, in a checkout and exported: what it prints, and what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "verify_pipeline.py"

BROKEN = '''
import torch


def selective_log_softmax(logits, token_ids):
    """Log-probs of the tokens: logits [B, T, V], token_ids [B, T] -> [B, T]."""
    chosen = logits.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return torch.logsumexp(logits, dim=-1) - chosen


def group_advantages(rewards, group_size, eps=1e2):
    """Rewards [N], samples of a prompt adjacent -> (reward - mean) / std of the group, [N]."""
    grouped = rewards.view(-1, group_size)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    return (centred / (grouped.std(dim=1, keepdim=True) + eps)).flatten()


def decode_completion(text):
    """The answer behind the reasoning. A completion without a reasoning block is returned unchanged."""
    if "<think>" not in text:
        text = "<think>" + text
    return text.partition("</think>")[2].strip()
'''
REPAIRS = {
    "torch.logsumexp(logits, dim=-1) - chosen": "chosen - torch.logsumexp(logits, dim=-1)",
    "eps=1e2": "eps=1e-4",
    'if "<think>" not in text:': 'if "</think>" not in text:',
    'text = "<think>" + text': 'return "" if "<think>" in text else text.strip()',
}


def repaired() -> str:
    source = BROKEN
    for wrong, right in REPAIRS.items():
        assert wrong in source
        source = source.replace(wrong, right)
    return source


def run(python: str | Path, *command: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RLTRIAGE", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(python), *map(str, command)], capture_output=True, text=True, timeout=300, cwd=cwd, env=clean
    )


def written(folder: Path, source: str) -> Path:
    file = folder / "pipeline.py"
    file.write_text(source, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def torch_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment that sees torch and what torch needs, and nothing of ours."""
    home = tmp_path_factory.mktemp("torch_only")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    lent = "torch torchgen functorch sympy mpmath networkx jinja2 markupsafe filelock fsspec nvidia triton"
    for name in (*lent.split(), "typing_extensions.py"):
        found = Path(sysconfig.get_path("purelib")) / name
        if found.exists():
            (site / name).symlink_to(found)
    for info in Path(sysconfig.get_path("purelib")).glob("torch-*.dist-info"):
        (site / info.name).symlink_to(info)
    assert run(python, "-c", "import torch").returncode == 0
    return python


def test_it_shows_wrong_values_beside_what_they_must_be_and_exits_with_1(tmp_path: Path) -> None:
    done = run(sys.executable, SCRIPT, written(tmp_path, BROKEN))

    assert done.returncode == 1, done.stdout + done.stderr
    assert "LOGP-SIGN" in done.stdout
    assert "ADV-EPSILON" in done.stdout
    hard = [line for line in done.stdout.splitlines() if line.strip().startswith("!!")]
    assert [line for line in hard if "must be: <= 0" in line]
    assert [line for line in hard if "right minus wrong" in line]
    assert [line for line in hard if "plain text" in line]


def test_it_finds_nothing_hard_in_the_repaired_file_and_exits_with_0(tmp_path: Path) -> None:
    done = run(sys.executable, SCRIPT, written(tmp_path, repaired()))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "!!" not in done.stdout
    assert "equal logits" in done.stdout
    assert "3 of 3 functions checked" in done.stdout


def test_a_manifest_names_the_functions(tmp_path: Path) -> None:
    written(tmp_path, BROKEN)
    manifest = tmp_path / "rltriage.toml"
    manifest.write_text(
        '[pipeline]\nalgorithm = "grpo"\ngroup_size = 4\n[targets.advantages]\nref = "pipeline.py:group_advantages"\n'
    )

    done = run(sys.executable, SCRIPT, "--manifest", manifest)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "ADV-EPSILON" in done.stdout
    assert "declared: algorithm = grpo, group_size = 4" in done.stdout


@pytest.mark.parametrize("source", ["", "import os\n"], ids=["empty", "nothing in it"])
def test_a_file_without_stage_functions_could_not_be_checked(tmp_path: Path, source: str) -> None:
    done = run(sys.executable, SCRIPT, written(tmp_path, source))

    assert done.returncode == 2
    assert "No stage function was found" in done.stderr


def test_a_function_that_ends_the_process_costs_nobody_else_the_result(tmp_path: Path) -> None:
    exits = BROKEN.replace("    grouped = rewards", "    import os\n    os._exit(3)\n    grouped = rewards")

    done = run(sys.executable, SCRIPT, written(tmp_path, exits))

    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 of 3 functions checked" in done.stdout


def test_the_exported_file_runs_where_only_torch_is(tmp_path: Path, torch_only: Path) -> None:
    single = tmp_path / "elsewhere" / "verify_pipeline.py"
    single.parent.mkdir()
    assert run(sys.executable, ROOT / "scripts" / "export_verify_pipeline.py", single).returncode == 0
    unseen = run(torch_only, "-c", "import importlib.util as u; print([m for m in ('mcp', 'pydantic', 'rltriage', "
                 "'rltriage_probes', 'numpy') if u.find_spec(m)])")  # fmt: skip
    assert unseen.stdout.strip() == "[]"

    done = run(torch_only, single, written(tmp_path, BROKEN), cwd=tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "ADV-EPSILON" in done.stdout
    assert "equal logits" in done.stdout


def test_two_exports_of_the_same_sources_are_the_same_file(tmp_path: Path) -> None:
    for name in ("a.py", "b.py"):
        run(sys.executable, ROOT / "scripts" / "export_verify_pipeline.py", tmp_path / name)

    assert (tmp_path / "a.py").read_bytes() == (tmp_path / "b.py").read_bytes()
