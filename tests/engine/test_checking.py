"""What the user's module does to the process, and what the checks make of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, TargetSpec

DEFAULT_DOUBLE = """
import torch

torch.set_default_dtype(torch.float64)


def group_advantages(rewards, group_size, eps=1e-4):
    \"\"\"rewards [N] float32; group-normalised advantages [N].\"\"\"
    assert rewards.dtype == torch.float32, "rewards must be float32"
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + eps)).view(-1)
"""


@pytest.fixture
def restored() -> Iterator[None]:
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("restored")
def test_cases_are_made_in_float32_whatever_default_the_users_module_sets(tmp_path: Path) -> None:
    (tmp_path / "algos.py").write_text(DEFAULT_DOUBLE, encoding="utf-8")
    target = TargetSpec(name="advantages", role="advantages", ref="algos.py:group_advantages")
    result = checking.check(CheckRequest(id=1, root=str(tmp_path), target=target, intent={}, device="cpu"))
    assert any(isinstance(c.outcome, Agrees) for c in result.checks), [c.outcome for c in result.checks]
