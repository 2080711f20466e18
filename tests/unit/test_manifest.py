"""The manifest: what is understood, what is a warning, and what every error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltriage.manifest import Manifest, ManifestError, from_mapping, known_roles, load, stage_of
from rltriage_probes.contract import ROLE_STAGES, STAGES, Block

WHOLE = """
[pipeline]
algorithm = "grpo"
group_size = 8
python = ".venv/bin/python"
device = "cuda:1"
timeout_s = 5
memory_gb = 2.5

[env]
CUDA_VISIBLE_DEVICES = 0

[targets.advantages]
ref = "src/algos.py:compute_advantages"
bind = { scores = "rewards" }
settings = { beta = 0.1 }

[targets.advantages-2]
ref = "pkg.mod:Trainer.adv"

[targets.inner]
role = "policy_loss"
ref = "train.py:step"
block = { start = "ratio =", stop = 140, inputs = { lp = "logprobs" }, output = "loss" }
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "rltriage.toml"
    file.write_text(text, "utf-8")
    return file


def inline(**tables: object) -> Manifest:
    return from_mapping(tables, root="/nowhere")


def test_a_whole_manifest_is_understood(tmp_path: Path) -> None:
    m = load(written(tmp_path, WHOLE))
    assert m.path == str(tmp_path / "rltriage.toml")
    assert m.root == str(tmp_path.resolve())
    assert m.pipeline == {"algorithm": "grpo", "group_size": 8}
    assert (m.python, m.device, m.timeout_s, m.memory_gb) == (".venv/bin/python", "cuda:1", 5.0, 2.5)
    assert m.env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert [(t.name, t.role) for t in m.targets] == [
        ("advantages", "advantages"),
        ("advantages-2", "advantages"),
        ("inner", "policy_loss"),
    ]
    assert m.targets[0].bind == {"scores": "rewards"} and m.targets[0].settings == {"beta": 0.1}
    assert m.targets[2].block == Block(start="ratio =", stop="140", inputs={"lp": "logprobs"}, output="loss")
    assert m.warnings == ()


def test_a_folder_stands_for_the_manifest_in_it(tmp_path: Path) -> None:
    written(tmp_path, WHOLE)
    m = load(tmp_path)
    assert m.path == str(tmp_path) and len(m.targets) == 3


def test_the_path_is_kept_as_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, WHOLE)
    monkeypatch.chdir(tmp_path)
    assert load("./rltriage.toml").path == "./rltriage.toml"


def test_the_interpreter_of_the_call_outweighs_that_of_the_manifest(tmp_path: Path) -> None:
    assert load(written(tmp_path, WHOLE), python="/opt/py").python == "/opt/py"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "rltriage.toml"
    file.write_bytes(b"\xef\xbb\xbf" + WHOLE.encode())
    assert len(load(file).targets) == 3


def test_an_empty_manifest_is_valid_and_has_no_targets() -> None:
    m = inline()
    assert m.targets == () and m.pipeline == {} and m.name == "(inline)"


def test_an_unknown_key_is_a_warning_with_the_nearest_known_one() -> None:
    m = inline(pipeline={"gruop_size": 8}, targets={"kl": {"ref": "a.py:f", "binds": {}}}, enviroment={})
    assert m.pipeline == {"gruop_size": 8}
    assert len(m.warnings) == 3
    assert any("'gruop_size'" in w and "did you mean group_size?" in w for w in m.warnings)
    assert any("did you mean bind?" in w for w in m.warnings)


def test_an_unusual_word_is_a_warning_and_passed_on() -> None:
    m = inline(pipeline={"algorithm": "gropo"})
    assert m.pipeline["algorithm"] == "gropo"
    assert "did you mean grpo?" in m.warnings[0]


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"targets": {"advantage": {"ref": "a.py:f"}}}, "did you mean advantages?"),
        ({"targets": {"kl": {"role": "kll", "ref": "a.py:f"}}}, "did you mean kl?"),
        ({"targets": {"kl": {}}}, "[targets.kl] has no ref"),
        ({"targets": {"kl": {"ref": "a.py"}}}, "names no function"),
        ({"targets": {"kl": {"ref": 3}}}, "names no function"),
        ({"targets": {"kl": "a.py:f"}}, "not a table"),
        ({"targets": {"kl": {"ref": "a.py:f", "bind": {"x": 1}}}}, "x in bind of [targets.kl]"),
        ({"targets": {"kl": {"ref": "a.py:f", "block": {"stop": 3, "output": "x"}}}}, "has no start"),
        ({"targets": {"kl": {"ref": "a.py:f", "block": {"start": 1, "stop": 3}}}}, "has no output"),
        ({"targets": []}, "[targets] is a list"),
        ({"pipeline": "grpo"}, "[pipeline] is text"),
        ({"pipeline": {"timeout_s": "60"}}, "timeout_s = '60'"),
        ({"pipeline": {"memory_gb": -1}}, "memory_gb = -1"),
        ({"pipeline": {"timeout_s": True}}, "timeout_s = True"),
        ({"pipeline": {"device": "gpu"}}, "device = 'gpu'"),
        ({"pipeline": {"python": ""}}, "python in [pipeline] is empty"),
        ({"env": {"A": [1]}}, "A in [env] is a list"),
    ],
)
def test_what_cannot_be_understood_is_an_error_that_says_where_and_what_to_do(
    tables: dict[str, object], says: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        from_mapping(tables, root="/nowhere")
    assert says in caught.value.happened
    assert caught.value.do


def test_all_problems_are_listed_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        from_mapping(
            {"pipeline": {"device": "gpu"}, "targets": {"kl": {}, "nonsense": {"ref": "a.py:f"}}},
            root="/x",
            path="m.toml",
        )
    assert caught.value.happened.startswith("m.toml has 3 problems:")
    assert all(part in caught.value.happened for part in ("device", "no ref", "'nonsense'"))
    assert caught.value.do.count("\n") == 2


def test_broken_toml_says_the_line(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="line 2"):
        load(written(tmp_path, "[pipeline]\nalgorithm = grpo\n"))


def test_a_missing_file_points_to_init(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="rltriage init"):
        load(tmp_path / "nothing.toml")


def test_text_in_another_encoding_is_said(tmp_path: Path) -> None:
    file = tmp_path / "rltriage.toml"
    file.write_bytes("# größe".encode("latin-1"))
    with pytest.raises(ManifestError, match="UTF-8"):
        load(file)


def test_a_date_is_no_setting(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="date"):
        load(written(tmp_path, "[targets.kl]\nref = 'a.py:f'\nsettings = { when = 2026-01-01 }\n"))


def test_every_role_has_a_stage_and_probed_ones_have_one_of_the_five() -> None:
    assert all(stage_of(role) in (*STAGES, "sft", "lora", "environment") for role in known_roles())
    assert all(stage_of(role) == ROLE_STAGES[role] for role in ROLE_STAGES)
    assert len(set(known_roles())) == len(known_roles())


def test_line_ranges_and_modules_are_refs() -> None:
    refs = ["a.py#L10-L20", "pkg.mod:name", "a/b.py:Class.method", "C:/x/a.py:f"]
    m = inline(targets={f"kl-{i}": {"ref": ref} for i, ref in enumerate(refs)})
    assert [t.ref for t in m.targets] == refs


def test_lines_have_inputs_and_an_output_of_their_own() -> None:
    row = {"ref": "train.py#L10-L20", "inputs": {"scores": "rewards", "n": "=4"}, "output": "adv"}
    (target,) = inline(targets={"advantages": row}).targets
    assert target.block == Block(start="10", stop="20", inputs={"scores": "rewards", "n": "=4"}, output="adv")
    (single,) = inline(targets={"advantages": {"ref": "train.py#L7"}}).targets
    assert single.block == Block(start="7", stop="7")


def test_inputs_without_lines_are_an_error_that_shows_both_ways() -> None:
    with pytest.raises(ManifestError, match="has inputs and output, but its ref names no lines") as e:
        inline(targets={"advantages": {"ref": "train.py:f", "inputs": {"a": "rewards"}, "output": "b"}})
    assert "bind in place of inputs" in e.value.do


def test_inputs_and_output_are_text() -> None:
    with pytest.raises(ManifestError, match="2 problems"):
        inline(targets={"advantages": {"ref": "train.py#L1-L2", "inputs": {"a": 4}, "output": 4}})
