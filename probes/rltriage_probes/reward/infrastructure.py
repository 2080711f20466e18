"""Graders that need something outside: a judge on the network, a sandbox, another process.

What fails there says nothing about the completion. A reward that turns it into the score of a wrong answer trains on
outages. Nothing on the network is ever called from here: connections fail while a grader is examined.
"""

from __future__ import annotations

import ast
import contextlib
import math
import re
import socket
import subprocess
from collections.abc import Generator, Iterator
from typing import Any

from rltriage_probes.contract import Check
from rltriage_probes.reading import Reading, prose
from rltriage_probes.reward.exam import OUTAGE, Exam
from rltriage_probes.texts import agrees, quote, violates

_NETWORK = re.compile(
    r"\b(requests|httpx|aiohttp|urllib\.request|urllib3|grpc|websockets?)\b|\burlopen\(|\bsocket\.|"
    r"\.chat\.completions\b|\.responses\.create\(|\.messages\.create\(|\.generate_content\(|\blitellm\b|"
    r"\bacompletion\(|"
    r"\bopenai\b|\banthropic\b|InferenceClient|\b(sandbox|judge|grader|rm|reward_model|verifier|api)_?(client|"
    r"server|url|"
    r"endpoint|service)\b"
)
_PROCESS = re.compile(
    r"\bsubprocess\.|\bPopen\(|\bcheck_output\(|create_subprocess_|\bmultiprocessing\b|\bdocker\b|\bsandbox\b"
)
_JUDGE = re.compile(
    r"\.chat\.completions\b|\.responses\.create\(|\.messages\.create\(|\.generate_content\(|\blitellm\b|\bacompletion\("
)
_OUTSIDE = re.compile(
    r"^(requests|httpx|aiohttp|urllib|session|client|subprocess|openai|litellm|socket|docker|grpc|sandbox)\b|"
    r"\b(post|urlopen|Popen|check_output|create_subprocess_exec|communicate)$|completions\.create$|sandbox|"
    r"judge|_client\b|"
    r"\bclient\."
)
_TRANSPORT = re.compile(r"Connection|Timeout|Request|HTTP|URLError|OSError|IOError|APIError|Transport|Socket|RateLimit")
_SAYS_OTHERWISE = prose(
    r"\b(None|NaN|nan|raises?|abstain\w*|skipp?\w*|mask\w*|excluded?|retr(y|ies))\b[^.;]{0,60}\b(unreachable|"
    r"unavailable|outage|"
    r"infra\w*|time-?outs?|times? out|network|sandbox|judge|server|service|connection)\b|"
    r"\b(unreachable|unavailable|outage|infra\w*|time-?outs?|times? out|network|sandbox|judge|server|service|"
    r"connection)\b[^.;]{0,60}"
    r"\b(None|NaN|nan|raises?|abstain\w*|skipp?\w*|excluded?|never (counts|scored|scores|0|zero)|not (a |"
    r"scored |counted )?(0|zero|wrong))\b"
)
_ADMITS = prose(
    r"\b(unreachable|unavailable|outage|infra\w*|time-?outs?|times? out|fails?|failures?|errors?|"
    r"exceptions?)\b[^.;]{0,50}"
    r"\b(0(\.0)?|zero|-1(\.0)?|wrong|lowest|worst)\b|\b(0(\.0)?|zero)\b[^.;]{0,50}\b(unreachable|time-?out|"
    r"fails?|errors?|exceptions?)"
)


def needs_network(reading: Reading) -> bool:
    return bool(_NETWORK.search(reading.code))


def is_judge(reading: Reading) -> bool:
    """Whether a language model behind a client gives the score."""
    return bool(_JUDGE.search(reading.code))


@contextlib.contextmanager
def no_network() -> Generator[None, None, None]:
    """Every connection is refused."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    with (
        _replaced(socket.socket, "connect", refuse),
        _replaced(socket.socket, "connect_ex", lambda *_: 111),
        _replaced(socket, "create_connection", refuse),
        _replaced(socket, "getaddrinfo", refuse),
    ):
        yield


@contextlib.contextmanager
def no_processes() -> Generator[None, None, None]:
    """No process can be started, as on a machine that is out of them."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with (
        _replaced(subprocess.Popen, "__init__", refuse),
        _replaced(subprocess.Popen, "__del__", lambda _: None),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Generator[None, None, None]:
    missing = object()
    own = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def swallowed(code: str) -> str:
    """A handler around a call to the outside that gives a fixed number, as `except Exception: 0.0`; else empty."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return ""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        called = [ast.unparse(n.func) for s in node.body for n in ast.walk(s) if isinstance(n, ast.Call)]
        if not any(_OUTSIDE.search(c) for c in called):
            continue
        for handler in node.handlers:
            kind = ast.unparse(handler.type) if handler.type else ""
            # a completion that runs for ever times out by its own fault
            own_fault = "TimeoutExpired" in kind
            broad = not kind or re.search(r"\b(Base)?Exception\b", kind) or _TRANSPORT.search(kind)
            given = _constant(handler)
            if broad and given and not own_fault:
                return f"`except{' ' + kind if kind else ''}` gives {given}"
    return ""


def _constant(handler: ast.ExceptHandler) -> str:
    """The number that a handler returns, appends or assigns to a score; empty where it raises or gives None."""
    for node in ast.walk(handler):
        value: ast.AST | None = None
        if isinstance(node, ast.Raise):
            return ""
        if isinstance(node, ast.Return) or (
            isinstance(node, ast.Assign) and re.search(r"score|reward|result|value", ast.unparse(node.targets[0]))
        ):
            value = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "append"
            and node.args
        ):
            value = node.args[0]
        if value is None:
            continue
        with contextlib.suppress(ValueError):
            number = ast.literal_eval(value)
            if isinstance(number, (bool, int, float)) and math.isfinite(number):
                return ast.unparse(value)
    return ""


def check(exam: Exam) -> Iterator[Check]:
    """Does a failure of what the grader calls pass for a wrong answer?"""
    probe, asks = "reward.outage", "does a failure of the grader itself pass for a wrong answer?"
    code = exam.reading.code
    if not (_NETWORK.search(code) or _PROCESS.search(code)):
        return
    otherwise, admits = _SAYS_OTHERWISE.search(exam.doc), _ADMITS.search(exam.doc)
    says = _measured(exam) or _read(exam)
    if says is None:
        return
    if not says:
        yield agrees(probe, asks, "a grader that can't be reached raises or abstains")
        return
    if otherwise:
        yield violates(probe, asks, f"{says}; the docstring says {quote(otherwise.group())}", OUTAGE)
    elif admits:
        yield agrees(probe, asks, f"{says}, as documented")
    else:
        yield violates(
            probe, asks, f"{says}. A group's advantages then reward luck: is that meant?", OUTAGE, severity="soft"
        )


def _measured(exam: Exam) -> str | None:
    """What the right answer earns while no process can be started; None where that can't be asked."""
    win = exam.wins[0] if exam.wins else None
    if win is None or not _PROCESS.search(exam.reading.code):
        return None
    item = win.item(win.kind.gold)
    with no_processes():
        score = exam.scorer.peek(item)
    if math.isnan(score):
        return ""
    if score < win.top - 1e-9:
        return f"if no process can be started, the right answer earns {score:g}, like a wrong one"
    return None


def _read(exam: Exam) -> str | None:
    found = swallowed(exam.reading.code)
    return f"a call to the outside that fails is scored as if the completion had failed: {found}" if found else None
