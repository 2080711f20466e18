"""Builders of supervised samples: right in many idioms, planted faults, and what hangs on documentation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from specimens import DATA, expected, findings, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, TargetResult, TargetSpec, Violates
from rltriage_probes.sft import sft_labels
from rltriage_probes.standins import ChatTokenizer

RIGHT, WRONG = expected("sft_labels_right"), expected("sft_labels_wrong")
# Warnings of the functions under examination are not errors of ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def examine(ref: str, root: Path = DATA, intent: Mapping[str, Any] | None = None) -> TargetResult:
    target = TargetSpec(name="sft_labels", role="sft_labels", ref=ref)
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=dict(intent or {}), device="cpu"))


def named(result: TargetResult) -> set[str]:
    """First candidates of what is hard, or of what is soft where nothing is hard."""
    for severity in ("hard", "soft"):
        found = {ids[0] for ids in violations(result, severity).values() if ids}
        if found:
            return found
    return set()


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_builder_is_recognised_in_its_idiom(name: str) -> None:
    result = examine(f"sft_labels_right.py:{name}")

    assert findings(result) == []
    said = [c.outcome.convention.summary for c in result.checks if isinstance(c.outcome, Agrees)]
    assert any(RIGHT[name] in s for s in said), said


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_named(name: str) -> None:
    assert named(examine(f"sft_labels_wrong.py:{name}")) == set(WRONG[name].split())


def test_every_pitfall_is_planted_twice() -> None:
    planted = list(WRONG.values())

    assert {p.id for p in sft_labels.PITFALLS} == set(planted)
    assert [p for p in set(planted) if planted.count(p) < 2] == []


def swapped(tmp_path: Path, module: str, name: str, *swaps: tuple[str, str]) -> TargetResult:
    text = (DATA / f"{module}.py").read_text("utf-8")
    start = text.index(f"def {name}(")
    end = text.find("\n\n\n", start)
    code = text[start:end]
    for old, new in swaps:
        assert old in code
        code = code.replace(old, new)
    (tmp_path / "module.py").write_text(text[:start] + code + text[end:])
    return examine(f"module.py:{name}", tmp_path)


def test_training_the_last_turn_is_a_question_without_a_word_about_it(tmp_path: Path) -> None:
    doc = '    """Only the last assistant message is trained."""\n'
    result = swapped(tmp_path, "sft_labels_right", "last_turn", (doc, ""))

    assert violations(result, "hard") == {}
    assert violations(result, "soft") == {"sft_labels.trained": ["SFT-TURN-LOST"]}


def test_training_the_last_turn_is_wrong_where_every_turn_is_promised(tmp_path: Path) -> None:
    swap = ("Only the last assistant message is trained.", "Every assistant turn is trained.")
    result = swapped(tmp_path, "sft_labels_right", "last_turn", swap)

    assert violations(result, "hard") == {"sft_labels.trained": ["SFT-TURN-LOST"]}


def test_prompts_may_be_trained_where_that_is_declared() -> None:
    result = examine("sft_labels_wrong.py:prompt_trained", intent={"train_on_inputs": True})

    assert violations(result, "hard") == {}


def test_masking_by_the_pad_id_is_right_where_the_declared_ids_differ() -> None:
    apart = examine("sft_labels_wrong.py:by_pad_id", intent={"eos_token_id": 2, "pad_token_id": 0})
    same = examine("sft_labels_wrong.py:by_pad_id", intent={"eos_token_id": 2, "pad_token_id": 2})

    assert findings(apart) == []
    assert named(same) == {"SFT-EOS-BY-PAD-ID"}


def test_the_attention_mask_of_the_last_end_token_is_nobodys_business() -> None:
    result = examine("sft_labels_right.py:PadSequence.collate")

    assert violations(result, "hard") == {}


def test_a_result_without_labels_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("def count(prompt_ids, completion_ids):\n    return 'nothing'\n")

    assert [c.outcome.kind for c in examine("module.py:count", tmp_path).checks] == ["not_run"]


def test_findings_quote_what_they_are_about() -> None:
    result = examine("sft_labels_wrong.py:stops_at_end")
    (found,) = (c.outcome for c in result.checks if isinstance(c.outcome, Violates))

    assert "Lima is the capital." in found.says


@pytest.mark.parametrize("style", ["chatml", "headers"])
def test_the_stand_in_tokenizer_reads_back_what_it_wrote(style: str) -> None:
    tokenizer = ChatTokenizer(style)
    chat = [{"role": "user", "content": "Größe <|im_end|>?"}, {"role": "assistant", "content": "Zwei."}]
    text = tokenizer.apply_chat_template(chat, tokenize=False)

    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    assert tokenizer.apply_chat_template(chat) == tokenizer.encode(text, add_special_tokens=False)


def test_the_stand_in_tokenizer_marks_what_the_assistant_says() -> None:
    tokenizer = ChatTokenizer()
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"}]
    out = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    trained = [i for i, m in zip(out["input_ids"], out["assistant_masks"], strict=True) if m]

    assert tokenizer.decode(trained) == "bc<|im_end|>"


def test_the_stand_in_tokenizers_offsets_cut_the_text_into_its_tokens() -> None:
    tokenizer = ChatTokenizer("headers")
    text = "ab<|eot_id|>c"
    out = tokenizer(text, return_offsets_mapping=True)
    pieces = [text[a:b] for a, b in out["offset_mapping"]]

    assert pieces == ["", "a", "b", "<|eot_id|>", "c"]
    assert len(out["input_ids"]) == len(pieces)


def test_setting_the_padding_of_the_stand_in_tokenizer_sets_its_id() -> None:
    tokenizer = ChatTokenizer()
    tokenizer.pad_token = tokenizer.eos_token

    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_declared_ids_reach_the_attributes_of_a_collator(tmp_path: Path) -> None:
    """Its own default for the padding is another id than the declared one."""
    text = (DATA / "sft_labels_right.py").read_text("utf-8")
    by_id = '            labels[i, f["prompt_length"] : k] = ids[i, f["prompt_length"] : k]\n'
    assert by_id in text
    wrong = by_id + "        labels[ids == self.pad_token_id] = self.ignore_index\n"
    (tmp_path / "module.py").write_text(
        text.replace(by_id, wrong).replace("pad_token_id=2, ignore", "pad_token_id=0, ignore")
    )
    apart = {"eos_token_id": 5, "pad_token_id": 7}
    same = {"eos_token_id": 7, "pad_token_id": 7}

    assert findings(examine("module.py:Collator.__call__", tmp_path, apart)) == []
    assert named(examine("module.py:Collator.__call__", tmp_path, same)) == {"SFT-EOS-BY-PAD-ID"}
