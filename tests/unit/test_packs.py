"""Packs: their files are right, and they find a framework's functions in whatever copy there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltriage import packs
from rltriage.manifest import Expectation, Manifest
from rltriage.packs import Copy, PackError
from rltriage.report import Finding, Recognised

PACK = """
package = "frame"
versions = ["2.1"]

[targets.loss]
role = "policy_loss"
refs = ["frame.new:Trainer.loss", "frame.old:loss"]
[[targets.loss.variants]]
name = "plain"
settings = { loss_type = "plain" }
expect = ["token-level ratio"]
[[targets.loss.variants]]
name = "fancy"
settings = { loss_type = "fancy" }
needs = ['"fancy"']

[targets.mask]
role = "completion_mask"
refs = ["frame.new:Trainer.generate"]
[[targets.mask.blocks]]
start = "ends = "
stop = "mask = ("
output = "mask"
inputs = { ids = "token_ids" }

[targets.math]
role = "reward"
refs = ["frame.old:score"]
requires = "verifier"
"""
OLD = """
def loss(logprobs, loss_type="plain"):
    return logprobs

def score(completions):
    return [0.0 for _ in completions]
"""
NEW = """
class Trainer:
    def loss(self, logprobs):
        return logprobs if self.loss_type == "fancy" else 2 * logprobs

    def generate(self, ids):
        ends = ids == 2
        mask = (ends.cumsum(-1) - ends.int() == 0)
        return mask
"""


@pytest.fixture
def pack() -> packs.Pack:
    return packs.parse(PACK, "frame.toml")


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """A copy that lies in the project, with the files of both releases."""
    folder = tmp_path / "third_party" / "frame"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "old.py").write_text(OLD)
    (folder / "new.py").write_text(NEW)
    return Copy(package="frame", version="2.1.3", folder=folder, root=tmp_path)


def refs(manifest: Manifest) -> dict[str, str]:
    return {t.name: t.ref for t in manifest.targets if t.name not in manifest.absent}


@pytest.mark.parametrize("name", packs.names())
def test_a_pack_that_ships_is_valid_and_expects_something_of_almost_every_target(name: str) -> None:
    expected = packs.pack(name).expectations()

    unsaid = [full for full, v in expected.items() if not v.expect and not v.unknown]
    assert len(expected) >= 10
    assert len(unsaid) <= 1


def test_there_are_packs_for_the_three_frameworks() -> None:
    assert packs.names() == ("openrlhf", "trl", "verl")


def test_an_unknown_framework_is_an_error_that_names_the_packs() -> None:
    with pytest.raises(PackError, match="no pack for 'trll'; did you mean trl") as caught:
        packs.pack("trll")

    assert "openrlhf, trl, verl" in caught.value.do


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("versions = [", "not valid TOML"),
        (PACK.replace('"policy_loss"', '"policy_los"'), "did you mean policy_loss"),
        (PACK.replace("requires =", "require ="), "targets.math.require"),
        (PACK.replace('expect = ["token-level ratio"]', 'expect = ["x"]\nunknown = "y"'), "can't be both"),
    ],
)
def test_a_wrong_pack_says_what_is_wrong(wrong: str, says: str) -> None:
    with pytest.raises(PackError, match=says):
        packs.parse(wrong, "frame.toml")


def test_the_first_alternative_that_the_copy_has_is_taken(pack: packs.Pack, copy: Copy) -> None:
    newest = refs(packs.manifest_for(pack, copy))
    (copy.folder / "new.py").unlink()
    packs._spans.cache_clear()
    oldest = refs(packs.manifest_for(pack, copy))

    assert newest["loss-plain"] == "third_party/frame/new.py:Trainer.loss"
    assert oldest["loss-plain"] == "third_party/frame/old.py:loss"


def test_what_a_copy_lacks_is_absent_with_the_reason(pack: packs.Pack, copy: Copy) -> None:
    (copy.folder / "new.py").unlink()
    packs._spans.cache_clear()

    absent = packs.manifest_for(pack, copy).absent

    assert absent["loss-fancy"] == 'not in this copy (frame 2.1.3): "fancy"'
    assert "frame.new:Trainer.generate, lines from 'ends =' to 'mask = ('" in absent["mask"]
    assert absent["math"] == "it needs verifier, which this interpreter doesn't have"


def test_an_installed_copy_is_named_by_module(pack: packs.Pack, copy: Copy, tmp_path: Path) -> None:
    elsewhere = tmp_path / "project"
    installed = Copy(package="frame", version="2.1", folder=copy.folder, root=elsewhere, beside=frozenset({"verifier"}))

    manifest = packs.manifest_for(pack, installed)

    assert refs(manifest)["math"] == "frame.old:score"
    assert manifest.notes == (f"frame 2.1, installed in {copy.folder}",)


def test_an_environment_inside_the_project_is_no_vendored_copy(copy: Copy, tmp_path: Path) -> None:
    folder = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "frame"

    assert copy.vendored
    assert not Copy(package="frame", version="2.1", folder=folder, root=tmp_path).vendored


def test_the_report_says_which_copy_it_was(pack: packs.Pack, copy: Copy) -> None:
    manifest = packs.manifest_for(pack, copy)

    assert manifest.name == "frame 2.1.3"
    assert manifest.notes == ("frame 2.1.3, the copy in third_party/frame; it wins over an installed one",)


def test_another_release_than_the_packs_is_measured_without_expectations(pack: packs.Pack, copy: Copy) -> None:
    other = Copy(package="frame", version="2.10.0", folder=copy.folder, root=copy.root)

    manifest = packs.manifest_for(pack, other)

    assert manifest.expected == {}
    assert "written for frame 2.1" in manifest.notes[1]


def test_a_settings_variant_and_a_block_reach_the_targets(pack: packs.Pack, copy: Copy) -> None:
    targets = {t.name: t for t in packs.manifest_for(pack, copy).targets}

    assert targets["loss-fancy"].settings == {"loss_type": "fancy"}
    assert targets["mask"].bind == {"ids": "token_ids"}
    assert targets["mask"].block is not None
    assert targets["mask"].block.output == "mask"


def test_a_target_that_computes_something_else_than_the_release_is_noted(pack: packs.Pack, copy: Copy) -> None:
    manifest = packs.manifest_for(pack, copy)

    def found(convention: str) -> Recognised:
        return Recognised(role="policy_loss", target="x", name="loss-plain", convention=convention)

    assert list(packs.differences(manifest, [found("token-level ratio, clipped")])) == []
    assert list(packs.differences(manifest, [found("one ratio a sequence")])) == [
        "loss-plain differs from frame 2.1, where it is: token-level ratio"
    ]
    assert list(packs.differences(manifest, [])) == []


def test_a_formula_without_a_reference_asks_for_nothing(pack: packs.Pack, copy: Copy) -> None:
    expected = {"loss-fancy": Expectation(release="frame 2.1", unknown="nobody has written its reference")}
    manifest = packs.manifest_for(pack, copy).model_copy(update={"expected": expected})
    finding = Finding(
        role="policy_loss", target="x", name="loss-fancy", stage="loss", severity="soft", pitfalls=(), families=(),
        certainty="diverges", message="no known surrogate", numbers={}, pages=(), next="Compare it.",
    )  # fmt: skip

    assert "nobody has written its reference" in packs.explained(finding, manifest).next
    assert packs.explained(finding.model_copy(update={"name": "loss-plain"}), manifest).next == "Compare it."
