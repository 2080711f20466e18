"""Stand-in problems for environments that are made from a data set: rows with the keys that the source reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

PROBLEMS = (("7 + 5", 12), ("9 - 2", 7), ("6 * 4", 24), ("15 + 16", 31), ("8 * 3 - 1", 23), ("40 - 11", 29))
"""Expression and answer of each stand-in problem."""
NOT_KEYS = frozenset("role content name type tool_calls tool_call_id function arguments".split())
"""Keys of chat messages and tool calls, which no data set has at its top."""
_ANSWER = re.compile(r"answer|solution|gold|target|label|ground_?truth|expected|reference|result|secret|correct", re.I)
_QUESTION = re.compile(r"question|problem|prompt|query|instruction|task|text|input|goal|story|context|passage", re.I)
_CHAT = re.compile(r"messages?|chat|conversation|history|dialog", re.I)
_NUMBER = re.compile(r"^(id|idx|index|n|seed|num_\w+|max_\w+|min_\w+|difficulty|level|step|turns?|size|count)$", re.I)


def keys_read(tree: ast.AST, *, optional: bool = True) -> list[str]:
    """Constant keys that code reads from mappings: `row["x"]`, `row.get("x")`.

    Not `optional`: without those that have a default, as `row.get("x", 0)`.
    """
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        key: Any = None
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            wanted = optional or len(node.args) == 1
            if node.func.attr in ("get", "pop") and isinstance(first, ast.Constant) and wanted:
                key = first.value
        if isinstance(key, str) and key.isidentifier():
            found[key] = None
    return list(found)


def attributes_of(tree: ast.AST, names: Iterable[str]) -> list[str]:
    """Attributes read of these names: `task.question`, `self.task.question`."""
    wanted = set(names)
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            base = node.value
            name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
            if name in wanted and not node.attr.startswith("__"):
                found[node.attr] = None
    return list(found)


def value_of(key: str, index: int, *, chat: bool = False) -> Any:
    """What a stand-in row holds under a key; `chat`: prompts are message lists."""
    expression, answer = PROBLEMS[index % len(PROBLEMS)]
    question = f"What is {expression}? Answer with a number."
    if _CHAT.search(key) or (chat and key in ("prompt", "prompts", "input")):
        return [{"role": "system", "content": "You are careful."}, {"role": "user", "content": question}]
    if key.endswith("s") and _ANSWER.search(key):
        return [str(answer)]
    if _ANSWER.search(key):
        return str(answer)
    if _NUMBER.search(key):
        return index
    if re.search(r"choices|options|candidates", key, re.I):
        return [str(answer), str(answer + 1), str(answer - 1), "0"]
    if re.search(r"numbers|nums|values|operands", key, re.I):
        return [int(n) for n in re.findall(r"\d+", expression)]
    if re.search(r"documents|docs|passages|facts|hints|tests|test_cases|steps", key, re.I):
        return [f"{expression} = {answer}"]
    if re.search(r"info|metadata|extra|kwargs|state", key, re.I):
        return {"answer": str(answer), "ground_truth": str(answer), "index": index}
    if re.search(r"reward_model", key, re.I):
        return {"ground_truth": str(answer), "style": "rule"}
    if _QUESTION.search(key):
        return question
    if key in ("a", "b", "x", "y", "lhs", "rhs", "left", "right"):
        return int(re.findall(r"\d+", expression)[0 if key in "axlhsleft" else 1])
    return f"{key} {index}"


def row(keys: Iterable[str], index: int, *, chat: bool = False) -> dict[str, Any]:
    """One stand-in problem."""
    usual = ["question", "prompt", "answer"]
    return {k: value_of(k, index, chat=chat) for k in dict.fromkeys([*usual, *(k for k in keys if k not in NOT_KEYS)])}


def as_object(keys: Iterable[str], index: int) -> SimpleNamespace:
    return SimpleNamespace(**row(keys, index))


def rows(keys: Iterable[str], first: int, make: Callable[[int], Any] | None = None) -> list[Any]:
    """A data set of four problems, beginning with another one for another `first`."""
    wanted = list(keys)
    build = make or (lambda i: row(wanted, i))
    return [build(first + i) for i in range(4)]


def exact(*values: Any, **named: Any) -> float:
    """A scorer: 1 where the first two texts that it is given are equal."""
    texts = [str(v).strip() for v in (*values, *named.values()) if isinstance(v, (str, int, float))]
    return float(len(texts) > 1 and texts[0] == texts[1])


def add(a: int = 0, b: int = 0) -> int:
    """A tool: the sum of two numbers."""
    return int(a) + int(b)
