"""Targets beyond a function, from the command line: lines of a file, and adapters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).resolve().parents[1] / "engine" / "data"
ALGOS = """\
from dataclasses import dataclass

import torch


@dataclass
class Config:
    beta: float = 0.5


class KL:
    def __init__(self, cfg: Config, model):
        model.eval()
        self.cfg = cfg

    def penalty(self, batch):
        return self.cfg.beta * (batch["logprobs"] - batch["ref_logprobs"])


def losses(new, old, a, m, eps=0.2):
    ratio = (new - old).exp()
    per_token = -torch.min(ratio * a[:, None], ratio.clamp(1 - eps, 1 + eps) * a[:, None])
    return {"clip": ratio.mean(), "loss": (per_token * m).sum() / m.sum()}


def step(self, scores):
    g = scores.view(-1, self.n)
    adv = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1.0)
    adv = adv.flatten()
    self.log(adv)
"""


def rltriage(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rltriage", *args], cwd=cwd, env={**os.environ}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def verified(folder: Path, targets: str) -> dict[str, Any]:
    (folder / "rltriage.toml").write_text(f"[pipeline]\npython = {json.dumps(sys.executable)}\n{targets}")
    run = rltriage("verify", "--json", cwd=folder)
    assert run.stdout, run.stderr
    report: dict[str, Any] = json.loads(run.stdout)
    return report


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "algos.py").write_text(ALGOS)
    return tmp_path


def table(ran: subprocess.CompletedProcess[str]) -> str:
    """The manifest lines that a command printed."""
    rows = ran.stdout.splitlines()
    start = rows.index("In the manifest:") + 1
    return "\n".join(row.strip() for row in rows[start:-1])


# Lines


def test_lines_are_verified_with_their_inputs_and_output(project: Path) -> None:
    report = verified(
        project,
        '[targets.advantages]\nref = "algos.py#L27-L29"\noutput = "adv"\n'
        'inputs = { scores = "rewards", "self.n" = "group_size" }\n',
    )
    (finding,) = report["findings"]
    assert finding["pitfalls"] == ["ADV-EPSILON"]
    run = subprocess.run(
        [sys.executable, "-c", finding["reproduction"]["code"]], cwd=project, capture_output=True, text=True, check=True
    )
    assert float(run.stdout) == pytest.approx(finding["reproduction"]["actual"], rel=1e-5)


def test_what_to_write_for_lines_is_printed(project: Path) -> None:
    run = rltriage("adapter", "advantages", "--ref", "algos.py#L27-L29", "--python", sys.executable, cwd=project)
    assert run.returncode == 0, run.stderr
    said = table(run)
    assert 'ref = "algos.py#L27-L29"' in said
    assert """inputs = { scores = "rewards", 'self.n' = "group_size" }""" in said
    report = verified(project, said.replace('output = "<expression>"', 'output = "adv"'))
    assert [f["pitfalls"] for f in report["findings"]] == [["ADV-EPSILON"]]


# Adapters


@pytest.mark.parametrize(
    ("role", "ref", "recognised"),
    [
        ("kl", "algos.py:KL.penalty", "KL estimator k1 (plain log-ratio), beta=0.5"),
        ("policy_loss", "algos.py:losses", "mean over the tokens of the batch"),
    ],
)
def test_an_adapter_verifies_what_it_wraps(project: Path, role: str, ref: str, recognised: str) -> None:
    run = rltriage("adapter", role, "--ref", ref, "--python", sys.executable, cwd=project)
    assert run.returncode == 0, run.stderr
    text = (project / "adapter.py").read_text()
    if "TODO" in text:  # what the names a and m left open, as a user completes it
        assert "? open: a, m" in run.stdout
        text = text.replace("a=TODO, m=TODO", "a=advantages, m=completion_mask")
        text = text.replace("advantages, old_logprobs, ", "advantages, old_logprobs, completion_mask, ")
        (project / "adapter.py").write_text(text)
    report = verified(project, table(run))
    assert not report["findings"], report["findings"]
    assert any(recognised in r["convention"] for r in report["recognised"]), (report["recognised"], text)


def test_an_adapter_is_never_replaced_without_a_word(project: Path) -> None:
    (project / "adapter.py").write_text("# mine\n")
    run = rltriage("adapter", "kl", "--ref", "algos.py:KL.penalty", "--python", sys.executable, cwd=project)
    assert run.returncode == 2
    assert "exists already" in run.stderr and "--force" in run.stderr
    assert (project / "adapter.py").read_text() == "# mine\n"
    forced = rltriage("adapter", "kl", "--force", "--python", sys.executable, cwd=project)
    assert forced.returncode == 0, forced.stderr
    assert "def kl(logprobs, ref_logprobs):" in (project / "adapter.py").read_text()


def test_an_empty_adapter_is_python_and_says_what_each_input_is(project: Path) -> None:
    run = rltriage("adapter", "advantages", "--out", "mine.py", "--python", sys.executable, cwd=project)
    assert run.returncode == 0, run.stderr
    text = (project / "mine.py").read_text()
    compile(text, "mine.py", "exec")
    assert "rewards: [N] float, one a sample" in text
    assert 'ref = "mine.py:advantages"' in run.stdout


def test_an_unknown_role_and_a_function_that_is_not_there_are_errors_with_a_next_step(project: Path) -> None:
    unknown = rltriage("adapter", "advantage", cwd=project)
    assert unknown.returncode == 2 and "did you mean advantages?" in unknown.stderr
    absent = rltriage("adapter", "kl", "--ref", "algos.py:nope", "--python", sys.executable, cwd=project)
    assert absent.returncode == 2 and "defines no nope" in absent.stderr
    assert not (project / "adapter.py").exists()


def test_roles_are_listed_with_their_signatures(project: Path) -> None:
    run = rltriage("adapter", "kl", "--list", "--python", sys.executable, cwd=project)
    assert run.returncode == 0, run.stderr
    assert "def kl(logprobs, ref_logprobs) -> KL estimates [B, T], or their mean" in run.stdout
