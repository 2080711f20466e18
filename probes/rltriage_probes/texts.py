"""What the text roles share: asking a function that takes one text or many, and wording the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltriage_probes.contract import Agrees, Check, Convention, Named, Number, Severity, Violates, clip_text
from rltriage_probes.model import CallFailed, Pitfall

QUOTE = 160
"""Characters of the user's text that one message quotes."""

ACCIDENTS = (
    "AttributeError", "TypeError", "IndexError", "KeyError", "NameError", "UnboundLocalError", "ZeroDivisionError",
    "SyntaxError", "RecursionError", "OverflowError", "JSONDecodeError", "StopIteration", "UnicodeDecodeError",
    "UnicodeEncodeError", "InvalidOperation",
)  # fmt: skip
"""Exceptions that nobody raises on purpose to say 'this completion has no answer'."""
_CONVERSIONS = (
    "could not convert", "invalid literal", "malformed node", "unpack", "unterminated", "Exceeds the limit",
    "substring not found", "is not in list", "Invalid literal", "cannot convert", "math domain",
)  # fmt: skip


def quote(value: object) -> str:
    """A value of the user's as it stands in a message: one line, clipped."""
    return clip_text(repr(value), QUOTE)


def accidental(e: CallFailed) -> bool:
    """Whether the exception came about by accident, not through a `raise` that means something."""
    kind = e.error.split(":", 1)[0].rsplit(".", 1)[-1]
    return kind in ACCIDENTS or (kind in ("ValueError", "AssertionError") and any(w in e.error for w in _CONVERSIONS))


def agrees(probe: str, asks: str, says: str) -> Check:
    return Check(probe=probe, asks=asks, outcome=Agrees(convention=Convention(summary=says)))


def violates(
    probe: str,
    asks: str,
    says: str,
    *pitfalls: Pitfall,
    severity: Severity = "hard",
    numbers: Mapping[str, Number] | None = None,
) -> Check:
    """A relation that does not hold; `says` quotes the input and the output."""
    named = tuple(Named(pitfall=p.id, family=p.family, says=p.says) for p in pitfalls)
    outcome = Violates(
        relation=probe.rsplit(".", 1)[-1],
        says=clip_text(says),
        candidates=named,
        numbers=dict(numbers or {}),
        severity=severity,
    )
    return Check(probe=probe, asks=asks, outcome=outcome)


def fields(value: Any) -> dict[str, Any] | None:
    """A dict, named tuple, dataclass or plain object as a dict; `None` for anything else."""
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())  # pyright: ignore[reportAttributeAccessIssue]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return fields(dump())
    if type(value).__module__ not in ("builtins", "torch", "numpy") and hasattr(value, "__dict__") and vars(value):
        return dict(vars(value))
    return None


def strings(value: Any) -> Iterator[str]:
    """Every text inside a result, in reading order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "replace")
    elif (inner := fields(value)) is not None:
        for key, v in inner.items():
            if key != "role":  # of a chat message; says who speaks, not what
                yield from strings(v)
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from strings(v)
    elif type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        yield from strings(value.tolist())


@dataclass(frozen=True)
class Text:
    """One decoded completion."""

    value: Any
    """What the function returned for it."""

    @property
    def text(self) -> str:
        """All texts of the result, one a line."""
        return "\n".join(strings(self.value))

    @property
    def blank(self) -> bool:
        return not self.text.strip()

    @property
    def parts(self) -> dict[str, str]:
        """Texts by the name that the result gives them, for dicts and dataclasses."""
        inner = fields(self.value)
        return {k: "\n".join(strings(v)) for k, v in inner.items()} if inner else {}


def rows(value: Any, n: int) -> list[Any] | None:
    """A result for `n` items as a list of n; `None` where it has another length.

    A dict of lists or a tuple of lists (columns) is turned into a list of rows.
    """
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        value = value.tolist()
    inner = fields(value)
    if inner is not None:
        columns = {k: list(v) for k, v in inner.items() if isinstance(v, (list, tuple)) and len(v) == n}
        return [{k: v[i] for k, v in columns.items()} for i in range(n)] if columns else None
    if isinstance(value, tuple) and value and all(isinstance(v, (list, tuple)) and len(v) == n for v in value):
        return [tuple(v[i] for v in value) for i in range(n)] if len(value) != n or n == 1 else list(value)
    if isinstance(value, (list, tuple)):
        return list(value) if len(value) == n else None
    return None


def moved(order: Sequence[int], items: Sequence[Any]) -> list[Any]:
    return [items[i] for i in order]
