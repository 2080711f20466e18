"""Actions that an environment may take: what its source, its docstring and its problems suggest."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rltriage_probes import reading
from rltriage_probes.environment import rows
from rltriage_probes.environment.building import Sources
from rltriage_probes.environment.snapshots import texts

MAX_ACTIONS = 40
MALFORMED = ("", " ", "I am not sure.", "<answer>", "{", "\x00", "42" * 40)
"""What a policy says early in training."""
_SUM = re.compile(r"(-?\d+)\s*([-+*x×·/])\s*(-?\d+)")
_GOLD = re.compile(
    r"answer|solution|gold|target|secret|truth|expected|label|goal|hidden|password|result|word|number", re.I
)
_VERBS = frozenset("strip lower upper casefold split startswith endswith find rfind partition splitlines".split())


@dataclass(frozen=True)
class Action:
    """Something to do, and where it comes from: `gold`, `source`, `space` or `plain`."""

    value: Any
    kind: str


def candidates(env: Any, first: Any, sources: Sources, step: Any) -> list[Action]:
    """Actions for the problem that is on the table, those that may well be right first."""
    found: dict[str, Action] = {}
    for action in _all(env, first, sources, step):
        found.setdefault(repr(action.value), action)
        if len(found) >= MAX_ACTIONS:
            break
    return list(found.values())


def _all(env: Any, first: Any, sources: Sources, step: Any) -> Iterator[Action]:
    bound = sources.explicit.get("action", "")
    if bound.startswith("="):
        from rltriage_probes import filling

        value = filling.evaluate(bound[1:], sources.loaded.namespace)
        yield from (Action(v, "bound") for v in (value if isinstance(value, list) else [value]))
    yield from _of_space(env)
    golds = golden(env, first)
    hint = _hint(step)
    if hint in ("int", "float"):
        yield from (Action(_as(hint, g), "gold") for g in golds if re.fullmatch(r"-?\d+(\.\d+)?", g))
        yield from (Action(_as(hint, str(n)), "plain") for n in range(8))
        return
    wrong = [str(int(g) + 3) for g in golds if re.fullmatch(r"-?\d+", g)]
    forms = list(_formats(sources))
    compared = list(_compared(sources))
    for gold in golds:
        yield from (Action(w(gold), "gold") for w in forms)
    for text in wrong[:2]:
        yield from (Action(w(text), "plain") for w in forms)
    yield from (Action(t, "source") for t in compared[:12])
    if ".split(" in sources.text:
        commands = [t for t in compared if re.fullmatch(r"[a-z]\w*", t)][:6]
        yield from (Action(f"{t} {rest}", "source") for t in commands for rest in ("alpha beta", "alpha"))
    yield Action("I am not sure.", "plain")
    yield Action("3", "plain")


def _of_space(env: Any) -> Iterator[Action]:
    space = getattr(env, "action_space", None)
    n: Any = getattr(space, "n", None)
    if n is not None and (isinstance(n, int) or hasattr(n, "item")):
        yield from (Action(i, "space") for i in range(min(int(n), 12)))
    elif isinstance(space, (list, tuple, range)):
        yield from (Action(v, "space") for v in list(space)[:12])
    for name in ("actions", "ACTIONS", "legal_actions", "valid_actions", "action_names", "MOVES", "moves"):
        value = getattr(env, name, None)
        if callable(value):
            try:
                value = value()
            except Exception:  # noqa: BLE001, S112  the user's method
                continue
        if isinstance(value, (list, tuple, dict, set, frozenset)):
            yield from (Action(v, "space") for v in list(value)[:12] if isinstance(v, (str, int)))


def golden(env: Any, first: Any) -> list[str]:
    """Texts that may be the right answer: what the environment holds under such a name, sums of the question."""
    found: dict[str, None] = {}
    for name, value in _held(env):
        if _GOLD.search(name) and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            found[str(value)] = None
    for text in texts(first):
        for a, op, b in _SUM.findall(text):
            result = {"+": int(a) + int(b), "-": int(a) - int(b), "/": int(a) // (int(b) or 1)}.get(op, int(a) * int(b))
            found[str(result)] = None
    held = dict(_held(env))
    if isinstance(held.get("a"), int) and isinstance(held.get("b"), int):
        found |= dict.fromkeys((str(held["a"] + held["b"]), str(held["a"] * held["b"])))
    return list(found)[:4]


def _held(value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    inner: dict[str, Any] = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for name, part in list(inner.items())[:60]:
        yield str(name), part
        if depth < 2 and not isinstance(part, (str, int, float, list, tuple)) and not callable(part):
            yield from _held(part, depth + 1)


def _formats(sources: Sources) -> Iterator[Callable[[str], Any]]:
    """Ways to write an answer that the source may look for."""
    text = sources.text
    keys = [k for k in sources.keys if k.isidentifier()]
    if "json.loads" in text or "JSONDecoder" in text:
        yield from _calls(sources, keys)
    for pattern in _patterns(sources.tree):

        def filled(answer: str, pattern: str = pattern) -> str:
            return reading.sample(pattern, answer, "x") or answer

        if filled("7") != "7":
            yield filled
    yield lambda answer: answer
    if "<answer>" in text or "answer>" in text:
        yield lambda answer: f"<answer>{answer}</answer>"
    if "boxed" in text:
        yield lambda answer: f"\\boxed{{{answer}}}"
    for prefix in _prefixes(sources):
        yield lambda answer, prefix=prefix: f"{prefix}{answer}"


def _calls(sources: Sources, keys: list[str]) -> Iterator[Callable[[str], Any]]:
    """JSON objects with the keys that are read, and the names of tools that the source compares with."""
    names = list(_compared(sources)) or ["answer"]
    wanted = [k for k in keys if k not in ("content", "role")]
    store = ("alpha", "beta")
    for name in [*names[:5], "submit", "answer", "final"]:

        def call(answer: str, name: str = name) -> str:
            record: dict[str, Any] = {}
            for key in wanted:
                if key in ("name", "tool", "action", "type", "function", "command", "op", "tool_name"):
                    record[key] = name
                elif key in ("arguments", "args", "parameters", "params", "kwargs", "input"):
                    record[key] = {k: answer for k in wanted if k != key} | {"answer": answer, "value": answer}
                elif key == "key":
                    record[key] = store[0]
                else:
                    record[key] = answer
            return json.dumps(record)

        yield call


def _patterns(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            if node.func.attr in ("search", "match", "fullmatch", "findall", "compile", "finditer"):
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value


def _compared(sources: Sources) -> Iterator[str]:
    """Texts that the code compares something with: names of moves and commands."""
    found: dict[str, None] = {}
    for node in ast.walk(sources.tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _VERBS:
            parts = list(node.args)
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        elif isinstance(node, ast.Dict):
            parts = [k for k in node.keys if isinstance(k, ast.Constant)]
        for part in parts:
            inner = part.elts if isinstance(part, (ast.Tuple, ast.List, ast.Set)) else [part]
            for e in inner:
                if isinstance(e, ast.Constant) and isinstance(e.value, str) and 0 < len(e.value.strip()) <= 30:
                    found[e.value] = None
    yield from found


def _prefixes(sources: Sources) -> Iterator[str]:
    for node in ast.walk(sources.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            starts = node.func.attr in ("startswith", "removeprefix", "split", "partition", "rpartition", "rsplit")
            if starts and isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.strip():
                yield first.value if first.value[-1:] in " :=" else f"{first.value} "
    for word in re.findall(r"[`'\"](\w+) <\w+>[`'\"]", sources.text):
        yield f"{word} "


def _hint(step: Any) -> str:
    try:
        parameters = [p for p in inspect.signature(step).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        return ""
    if not parameters or parameters[0].annotation is inspect.Parameter.empty:
        return ""
    annotation = parameters[0].annotation
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _as(hint: str, text: str) -> Any:
    return int(float(text)) if hint == "int" else float(text)


# What the step method wants an action to be


Wrap = tuple[str, Callable[[Any], Any]]


def wraps(name: str, annotation: str, sources: Sources) -> Iterator[Wrap]:
    """Forms of an action, the likeliest first."""
    from rltriage_probes.standins import StandInTokenizer

    tokenizer = StandInTokenizer()

    def chat(action: Any) -> Any:
        return [{"role": "user", "content": "Go on."}, {"role": "assistant", "content": str(action)}]

    def record(action: Any) -> Any:
        made = {k: str(action) for k in sources.keys if re.search("action|response|completion", k)}
        label = {k: rows.value_of("answer", 0) for k in sources.keys if re.search("label|answer|truth", k)}
        shown = {k: "" for k in sources.keys if re.search("observation", k)}
        return {**shown, **label, **made, "action": str(action)}

    def arguments(action: Any) -> Any:
        return action if isinstance(action, dict) else {k: str(action) for k in sources.keys}  # as JSON would bring it

    tool: Wrap = ("a tool call's arguments", arguments)
    plain: Wrap = ("as it is", lambda action: action)
    message: Wrap = ("a chat message", lambda action: {"role": "assistant", "content": str(action)})
    chats: Wrap = ("a chat", chat)
    ids: Wrap = ("token ids", lambda action: tokenizer.encode(str(action)))
    states: Wrap = ("a dict with the action's text", record)
    cls = sources.loaded.namespace.get(annotation.strip("'\""))
    if isinstance(cls, type) and (dataclasses.is_dataclass(cls) or hasattr(cls, "__annotations__")):
        yield f"a {cls.__name__}", _instance(cls)
    number: Wrap = ("a number", lambda action: int(re.sub(r"\D", "", str(action)) or 1) % 5)
    low = annotation.lower()
    if name in ("messages", "history", "conversation") or "list[dict" in low:
        yield from (chats, plain)
    elif name in ("parameters", "arguments", "args", "tool_args", "params"):
        yield from (tool, plain)
    elif name in ("state_dict", "states"):
        yield from (states, plain)
    elif "list[int" in low or re.search(r"ids|tokens", name):
        yield from (ids, plain)
    elif low.startswith("dict") or name == "message":
        yield from (message, states, plain)
    else:
        yield from (plain, message, chats, ids, number, states)


def _instance(cls: type) -> Callable[[Any], Any]:
    def make(action: Any) -> Any:
        hints = {k: v for c in reversed(cls.__mro__) for k, v in getattr(c, "__annotations__", {}).items()}
        values: dict[str, Any] = {}
        for key, kind in hints.items():
            if hasattr(cls, key) and values:
                continue
            numeric = "int" in str(kind) or "float" in str(kind)
            values[key] = int(re.sub(r"\D", "", str(action)) or 1) if numeric else str(action)
        return cls(**values)

    return make
