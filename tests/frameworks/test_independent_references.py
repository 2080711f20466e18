"""Our references against those that others have published: polgrad's and rlax's functions, verified as a user's are.

`agrees` means that value and gradient of their code equal our reference under the convention that is named.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(600)]
DATA = Path(__file__).parent / "data"


class Row(NamedTuple):
    """A function, its role, and words of the convention under which it must agree."""

    function: str
    role: str
    words: str


TABLE = (
    Row("ppo", "policy_loss", "clipped surrogate, mean over the tokens of the batch"),
    Row("grpo", "policy_loss", "clipped surrogate, mean over tokens, then over sequences"),
    Row("dual_clip", "policy_loss", "dual clip"),
    Row("gspo", "policy_loss", "one length-normalised ratio a sequence"),
    Row("cispo", "policy_loss", "CISPO weight capped at 1 + "),
    Row("rlax_surrogate", "policy_loss", "clipped surrogate, mean over the tokens of the batch"),
    Row("k1", "kl", "KL estimator k1"),
    Row("k2", "kl", "KL estimator k2"),
    Row("k3", "kl", "KL estimator k3"),
    Row("group_normalised", "advantages", "std ddof=1"),
    Row("leave_one_out", "advantages", "leave-one-out baseline"),
    Row("rlax_gae", "gae", ""),
    Row("value_loss", "value_loss", ""),
    Row("token_mean", "aggregate", ""),
    Row("rlax_entropy", "entropy", "entropy in nats"),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, python: str, verify: Callable[..., Any]) -> Any:
    folder = tmp_path_factory.mktemp("independent")
    shutil.copy(DATA / "independent.py", folder / "independent.py")
    lines = [f"[pipeline]\npython = {json.dumps(python)}\n"]
    for i, row in enumerate(TABLE):
        lines.append(f'[targets.t{i}]\nrole = "{row.role}"\nref = "independent.py:{row.function}"\n')
    (folder / "rltriage.toml").write_text("\n".join(lines), encoding="utf-8")
    return verify(cwd=folder)


@pytest.mark.parametrize("i", range(len(TABLE)), ids=lambda i: TABLE[i].function)
def test_our_reference_equals_a_published_one(report: Any, i: int) -> None:
    row = TABLE[i]

    soft = {"violates"} if row.function == "rlax_entropy" else set()  # jax hands no gradient on, which is asked about
    kinds = report.kinds(f"t{i}")
    assert "agrees" in kinds and kinds <= {"agrees"} | soft, [
        f for f in report.report["findings"] if f["name"] == f"t{i}"
    ]
    assert report.hard() == []
    assert row.words in report.recognised(f"t{i}")
