"""A vendored copy of TRL in the user's project, with faults planted into it: each is named, alone and among others."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(900)]


class Fault(NamedTuple):
    file: str
    right: str
    wrong: str
    stage: str
    names: str

    def plant(self, copy: Path) -> None:
        file = copy / self.file
        text = file.read_text()
        assert self.right in text, f"{self.file} of this release has no {self.right!r}"
        file.write_text(text.replace(self.right, self.wrong))


GRPO = "trainer/grpo_trainer.py"
SIGN = Fault(
    "trainer/utils.py",
    "selected_logits - logsumexp_values.unsqueeze(-1)",
    "logsumexp_values.unsqueeze(-1) - selected_logits",
    "logprobs",
    "LOGP-SIGN",
)
EPSILON = Fault(
    GRPO, "advantages / (std_rewards + 1e-4)", "advantages / (std_rewards + 1.0)", "advantages", "ADV-EPSILON"
)
HUGE_EPSILON = EPSILON._replace(wrong="advantages / (std_rewards + 100)")
MASK = Fault(
    GRPO, "(sequence_indices <= eos_idx.unsqueeze(1))", "(sequence_indices < eos_idx.unsqueeze(1))", "loss",
    "MASK-DROPS-EOS",
)  # fmt: skip
KL = Fault(
    GRPO,
    "torch.exp(ref_per_token_logps - per_token_logps) - (ref_per_token_logps - per_token_logps) - 1",
    "torch.exp(per_token_logps - ref_per_token_logps) - (per_token_logps - ref_per_token_logps) - 1",
    "loss",
    "KL-REVERSED",
)
PADDING = Fault(
    GRPO,
    " completions = self.processing_class.batch_decode(completion_ids, skip_special_tokens=True)",
    " completions = self.processing_class.batch_decode(completion_ids, skip_special_tokens=False)",
    "generation",
    "DEC-PAD-TEXT",
)
BASELINE = Fault(
    "trainer/rloo_trainer.py",
    "baselines = (grouped_sum - grouped_rewards) / (scorable_counts - 1)",
    "baselines = (grouped_sum - grouped_rewards) / scorable_counts",
    "advantages",
    "ADV-LOO-DIVISOR",
)
CLIP = Fault(
    GRPO, "-torch.min(per_token_loss1, per_token_loss2)", "-torch.max(per_token_loss1, per_token_loss2)", "loss",
    "LOSS-CLIP-MAX",
)  # fmt: skip
FAULTS = (SIGN, EPSILON, HUGE_EPSILON, MASK, KL, PADDING, BASELINE)


@pytest.fixture(scope="module")
def release(python: str) -> Path:
    """The installed package's folder."""
    code = "import importlib.util as u; print(u.find_spec('trl').submodule_search_locations[0])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return Path(done.stdout.strip())


@pytest.fixture
def copy(release: Path, tmp_path: Path) -> Iterator[Path]:
    """A project with the package as it was released, vendored."""
    folder = tmp_path / "third_party" / "trl"
    shutil.copytree(release, folder, ignore=shutil.ignore_patterns("__pycache__"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.names} {f.wrong[-24:]}")
def test_a_planted_fault_is_named_alone_and_in_the_copys_file(fault: Fault, python, verify, copy: Path) -> None:
    fault.plant(copy)

    report = verify("--framework", "trl", "--python", python, "--stage", fault.stage, cwd=copy.parents[1])

    assert report.named() == {fault.names}, report.hard()
    assert report.report["stages"][fault.stage]["status"] == "failed"
    assert f"third_party/trl/{fault.file}" in {f["target"].partition(":")[0] for f in report.report["findings"]}
    assert "the copy in third_party/trl" in report.report["notes"][0]


def test_the_unchanged_copy_is_clean(python, verify, copy: Path) -> None:
    report = verify("--framework", "trl", "--python", python, cwd=copy.parents[1])

    assert report.hard() == []
    assert not any("differs from" in note for note in report.report["notes"])


def test_the_three_classic_faults_together_are_all_named_and_nothing_else(python, verify, copy: Path) -> None:
    for fault in (SIGN, EPSILON, MASK):
        fault.plant(copy)

    report = verify("--framework", "trl", "--python", python, str(copy.parents[1]), cwd=Path.home())

    assert report.named() == {"LOGP-SIGN", "ADV-EPSILON", "MASK-DROPS-EOS"}, report.hard()
    assert report.report["verdict"] == "findings"


def test_a_clip_without_restraint_is_named_in_every_loss_that_clips(python, verify, copy: Path) -> None:
    CLIP.plant(copy)

    report = verify("--framework", "trl", "--python", python, "--stage", "loss", cwd=copy.parents[1])

    clipped = {f["name"] for f in report.report["findings"] if "LOSS-CLIP-MAX" in f["pitfalls"]}
    assert {"grpo_loss-grpo", "grpo_loss-gspo", "grpo_loss-dapo", "grpo_loss-dr_grpo"} <= clipped
    assert not any("cispo" in f["name"] or "rloo" in f["name"] for f in report.report["findings"])
