"""Rewards that run code: programs with their tests, and programs that solve nothing and must earn nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rltriage_probes.reading import Reading
from rltriage_probes.reward.answers import REASONING, Format, Gold, Kind

_RUNS_CODE = re.compile(
    r"\bexec\(|\bsubprocess\b|\bPopen\(|run_(code|tests?|program|solution)|\bexecute\w*\(|\bcompile\(|run_in_|\bsandbox\b|"
    r"unit_?tests?|test_(cases|list)|\bassert"
)

ADD = "def combine(a, b):\n    return a + b"
TIMES = "def combine(a, b):\n    return a * b + 1"
NOT_THEM = "def combine(a, b):\n    return 7000"
SUM = "a = int(input())\nb = int(input())\nprint(a + b)"
PRODUCT = "a = int(input())\nb = int(input())\nprint(a * b + 1)"
NOT_THOSE = "print(7000)"

FUNCTION = Kind(
    name="function", gold=ADD, other=TIMES, wrong=(NOT_THEM, "def combine(a, b):\n    return None", "x = 1")
)
PROGRAM = Kind(name="program", gold=SUM, other=PRODUCT, wrong=(NOT_THOSE, "a = 1"))

_PAIRS = ((2, 3), (10, 4), (-7, 5))


def _value(program: str, a: int, b: int) -> int:
    return a * b + 1 if program in (TIMES, PRODUCT) else a + b


def _asserts(program: str) -> list[str]:
    return [f"assert combine({a}, {b}) == {_value(program, a, b)}" for a, b in _PAIRS]


def _lines(program: str) -> tuple[list[str], list[str]]:
    return [f"{a}\n{b}\n" for a, b in _PAIRS], [f"{_value(program, a, b)}\n" for a, b in _PAIRS]


def _calls(program: str) -> dict[str, Any]:
    return {"fn_name": "combine", "inputs": [list(p) for p in _PAIRS], "outputs": [_value(program, *p) for p in _PAIRS]}


def _records(program: str, **names: str) -> list[dict[str, str]]:
    return [
        {names["input"]: i, names["output"]: o, **({"type": "stdin_stdout"} if "type" in names else {})}
        for i, o in zip(*_lines(program), strict=True)
    ]


def _io(program: str) -> dict[str, list[str]]:
    inputs, outputs = _lines(program)
    return {"inputs": inputs, "outputs": outputs}


def _verification(program: str) -> dict[str, Any]:
    return {"language": "python", "test_cases": _records(program, input="input", output="output", type="")}


def _gold(name: str, write: Callable[[str], Any]) -> Gold:
    return Gold(name, write)


FUNCTION_GOLDS = (
    _gold("list of asserts", _asserts),
    _gold("asserts, one a line", lambda p: "\n".join(_asserts(p))),
    _gold("JSON list of asserts", lambda p: json.dumps(_asserts(p))),
    _gold("calls with their results", _calls),
    _gold("JSON of calls with their results", lambda p: json.dumps(_calls(p))),
    _gold("dict with asserts", lambda p: {"tests": _asserts(p), "test_list": _asserts(p), "test_cases": _asserts(p)}),
    _gold(
        "a check function",
        lambda p: (
            "def check(candidate):\n" + "".join(f"    {t.replace('combine', 'candidate')}\n" for t in _asserts(p))
        ),
    ),
)
PROGRAM_GOLDS = (
    _gold("inputs and outputs", _io),
    _gold("JSON of inputs and outputs", lambda p: json.dumps(_io(p))),
    _gold("list of input and output", lambda p: _records(p, input="input", output="output")),
    _gold("JSON list of input and output", lambda p: json.dumps(_records(p, input="input", output="output"))),
    _gold("list of input and expected output", lambda p: _records(p, input="input", output="expected_output")),
    _gold("verification record", _verification),
    _gold("JSON of a verification record", lambda p: json.dumps(_verification(p))),
)  # fmt: skip

FORMATS = (
    Format("fenced Python", f"{REASONING}\n```python\n@\n```"),
    Format("fenced Python behind a thinking block", f"<think>\n{REASONING}\n</think>\n```python\n@\n```"),
    Format("fenced Python in <answer>", f"<think>{REASONING}</think>\n<answer>\n```python\n@\n```\n</answer>"),
    Format("<answer> tags", "<answer>\n@\n</answer>"),
    Format("code fence", "```\n@\n```"),
    Format("the bare code", "@"),
)


def runs_code(reading: Reading) -> bool:
    return bool(_RUNS_CODE.search(reading.code))


def in_process(reading: Reading) -> bool:
    """Whether the code runs in this very process, where it could end it."""
    return bool(re.search(r"(?<![\w.])exec\(", reading.code)) and not re.search(
        r"subprocess|Popen|Process\(", reading.code
    )


def canaries(reading: Reading) -> tuple[tuple[str, str], ...]:
    """Programs that solve nothing, by what they do."""
    outright = () if in_process(reading) else (("a program that ends at once, os._exit(0)", "import os\nos._exit(0)"),)
    return (
        ("a program that does nothing", "pass"),
        ("a program that ends at once with exit code 0", "import sys\nsys.exit(0)"),
        ("a program that raises", "raise RuntimeError('no')"),
        ("code that is no Python", "def combine(a, b:\n    return"),
        *outright,
    )


CALL = Kind(
    name="tool call",
    gold='{"name": "add", "arguments": {"a": 2, "b": 3}}',
    other='{"name": "look_up", "arguments": {"word": "zebra"}}',
    wrong=('{"name": "divide", "arguments": {"x": 9}}', '{"name": "add", "arguments": {"a": 9, "b": 8}}'),
)
CALL_GOLDS = (
    _gold("JSON of the call", lambda c: c),
    _gold("the call", json.loads),
    _gold("list of calls", lambda c: [json.loads(c)]),
    _gold("JSON list of calls", lambda c: f"[{c}]"),
)
CALL_FORMATS = (
    Format("<tool_call>", "<tool_call>\n@\n</tool_call>"),
    Format("<tool_call> behind a thinking block", f"<think>\n{REASONING}\n</think>\n<tool_call>\n@\n</tool_call>"),
    Format("the bare call", "@"),
    Format("fenced JSON", "```json\n@\n```"),
    Format("fenced tool_call", "```tool_call\n@\n```"),
    Format("JSON list", "[@]"),
)


def takes_calls(reading: Reading) -> bool:
    return bool(re.search(r"tool_?calls?|function_?calls?|\"arguments\"|'arguments'", reading.code))
