"""Conversations to ids: right in many idioms, planted faults, and what hangs on documentation."""

from __future__ import annotations

from pathlib import Path

import pytest
from specimens import DATA, expected, findings, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, TargetResult, TargetSpec
from rltriage_probes.generation import chat_tokens

RIGHT, WRONG = expected("chat_tokens_right"), expected("chat_tokens_wrong")
# Warnings of the functions under examination are not errors of ours.
pytestmark = pytest.mark.filterwarnings("ignore")


def examine(ref: str, root: Path = DATA) -> TargetResult:
    target = TargetSpec(name="chat_tokens", role="chat_tokens", ref=ref)
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent={}, device="cpu"))


@pytest.mark.parametrize("name", RIGHT)
def test_right_ids_are_recognised_in_their_idiom(name: str) -> None:
    result = examine(f"chat_tokens_right.py:{name}")

    assert findings(result) == []
    said = [c.outcome.convention.summary for c in result.checks if isinstance(c.outcome, Agrees)]
    assert any(RIGHT[name] in s for s in said), said


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_named(name: str) -> None:
    result = examine(f"chat_tokens_wrong.py:{name}")

    assert {ids[0] for ids in violations(result, "hard").values()} == {WRONG[name]}


def test_every_pitfall_is_planted_twice() -> None:
    planted = list(WRONG.values())

    assert {p.id for p in chat_tokens.PITFALLS} == set(planted)
    assert [p for p in set(planted) if planted.count(p) < 2] == []


UNSAID = """def ids_of(messages, tokenizer):
    text = ""
    for i, m in enumerate(messages):
        content = m["content"]
        if m["role"] == "assistant" and i + 1 < len(messages):
            content = content.split("</think>")[-1]
        text += f"<|im_start|>{m['role']}\\n{content}<|im_end|>\\n"
    return tokenizer.encode(text, add_special_tokens=False)
"""


def test_dropping_old_reasoning_is_a_question_where_nothing_is_said_of_it(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(UNSAID)
    result = examine("module.py:ids_of", tmp_path)

    assert violations(result, "hard") == {}
    assert violations(result, "soft") == {"chat_tokens.history": ["CHAT-HISTORY-CHANGED"]}


def test_dropping_old_reasoning_is_right_where_it_is_said(tmp_path: Path) -> None:
    doc = ':\n    """Ids of a chat; reasoning of earlier turns is left out."""\n'
    (tmp_path / "module.py").write_text(UNSAID.replace(":\n", doc, 1))

    assert findings(examine("module.py:ids_of", tmp_path)) == []


def test_a_template_that_knows_no_system_turn_is_no_finding(tmp_path: Path) -> None:
    code = '''def prompt_ids(messages, tokenizer):
    """Prompt ids for sampling."""
    if messages[0]["role"] == "system":
        raise ValueError("no system turn")
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)
'''
    (tmp_path / "module.py").write_text(code)

    assert findings(examine("module.py:prompt_ids", tmp_path)) == []
