"""Asking a reward function: one text or many, and reading a number out of what it returns."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.model import CallFailed, Subject
from rltriage_probes.reward.answers import problem
from rltriage_probes.texts import fields, rows

clock = time.monotonic
SEARCH_SECONDS = 12.0
"""A reward that calls a judge or a sandbox is slow: the battery then stops early and says so."""
BATTERY_SECONDS = 40.0
"""Behind it nothing is called any more: less than the usual time limit of a target, so that what was found is told."""
_KEYS = (
    "reward",
    "rewards",
    "score",
    "scores",
    "total",
    "total_reward",
    "value",
    "accuracy",
    "acc",
    "correct",
    "is_correct",
)
_ONE_A_PROMPT = re.compile(
    r"\b(gold\w*|answers?|ground[_ ]truths?|labels?|targets?|references?|solutions?)\b[^.;\n]{0,40}"
    r"\b(one|1) (a|per|for each|for every|of each) (prompt|question|problem|group)\b",
    re.I,
)
PROMPTS = ("Which animal is it?", "How many are there?", "What comes out in the end?")
"""Prompts without any answer in them."""


@dataclass(frozen=True)
class Item:
    """One sample to be scored."""

    text: str
    gold: Any
    prompt: str = PROMPTS[0]

    def __hash__(self) -> int:
        return hash((self.text, self.prompt))  # a gold answer may be a list


@dataclass
class Log:
    """What went wrong while scoring, for the checks that ask for it."""

    failures: list[tuple[str, Item, CallFailed]] = field(default_factory=list)
    uneven: list[tuple[list[Item], Any]] = field(default_factory=list)
    """Calls that gave another number of scores than items."""
    nonfinite: list[tuple[Item, float]] = field(default_factory=list)
    abstained: int = 0
    scored: int = 0
    values: set[float] = field(default_factory=set)
    lists: int = 0
    scalars: list[tuple[list[Item], Any]] = field(default_factory=list)
    """Calls with a list of completions that gave one number."""
    cut: int = 0
    """Scores that were not asked for because the time was up."""
    odd: list[Any] = field(default_factory=list)
    """Results without a number in them."""


def number(value: Any) -> float | None:
    """The reward in a result: a number, or the likeliest field of a dict, tuple or object; else `None`."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 1))() == 1:
        value = value.item()
    if isinstance(value, (bool, int, float)):
        return float(value)
    if hasattr(value, "tolist") and not isinstance(value, str):
        value = value.tolist()
    if isinstance(value, list) and value and all(type(v) is float for v in value):
        return math.fsum(value) if all(map(math.isfinite, value)) else math.nan  # of tokens or steps
    if isinstance(value, (list, tuple)) and not hasattr(value, "_asdict"):
        return next((n for v in value if (n := number(v)) is not None), None)
    inner = fields(value)
    if inner is None:
        return None
    for key in (*(k for k in _KEYS if k in inner), *inner):
        if isinstance(inner[key], (bool, int, float)) or hasattr(inner[key], "item"):
            found = number(inner[key])
            if found is not None:
                return found
    return None


def column(value: Any) -> Any:
    """The list of rewards in a batch result that is a dict or an object."""
    inner = fields(value)
    if inner is not None:
        for key in (*(k for k in _KEYS if k in inner), *inner):
            if isinstance(inner[key], (list, tuple)) or hasattr(inner[key], "tolist"):
                return inner[key]
    if isinstance(value, tuple) and value and all(isinstance(v, (list, dict)) or hasattr(v, "tolist") for v in value):
        return value[0]
    return value


class Scorer:
    """The user's reward function over `Item`s. A failed or abstaining score is NaN, and is logged."""

    def __init__(self, subject: Subject) -> None:
        self._call = subject.bound.call_raw
        names = subject.bound.names
        self._names = names
        self.many = bool(names & {"completions", "texts", "token_ids"}) and not names & {"completion", "text"}
        self.puzzle = bool(names & {"operand_lists", "operands"})
        """Whether an answer is an expression over given numbers."""
        self.graded = self.puzzle or bool(names & {"answers", "answer"})
        self.prompted = bool(names & {"prompts", "prompt"})
        self.log = Log()
        self._copies = 1
        known = (subject.bound.settings.get("group_size"), subject.intent.get("group_size"))
        self.group = next((g for g in known if isinstance(g, int) and g > 1), 4)
        self.one_a_prompt = bool(_ONE_A_PROMPT.search(subject.doc))
        """Whether gold answers come one a prompt, not one a completion."""
        slots = {s.path: s.meaning for s in subject.bound.report.slots}
        self._transcripts = any(p in slots for p in ("prompts", "prompt")) and any(
            slots.get(p, "").startswith("completion") for p in ("queries", "query", "sequences", "sequences_str")
        )
        """Whether the prompt stands in front of each completion."""
        self._started = clock()

    @property
    def late(self) -> bool:
        return clock() - self._started > SEARCH_SECONDS

    @property
    def over(self) -> bool:
        return clock() - self._started > BATTERY_SECONDS

    def one(self, item: Item, name: str = "") -> float:
        """Score one item alone."""
        if self.over:
            self.log.cut += 1
            return math.nan
        try:
            value = self._alone(item)
        except CallFailed as e:
            self.log.failures.append((name, item, e))
            return math.nan
        return self._noted(value, item)

    def peek(self, item: Item) -> float:
        """Score one item alone and log nothing; NaN where there is no score."""
        if self.over:
            self.log.cut += 1
            return math.nan
        log, self.log = self.log, Log(scored=self.log.scored)
        try:
            return self.one(item)
        finally:
            log.cut += self.log.cut
            self.log = log

    def failure(self, item: Item) -> CallFailed | None:
        """What the function raises on an item, if it does."""
        try:
            self._alone(item)
        except CallFailed as e:
            return e
        return None

    def batch(self, items: Sequence[Item]) -> list[float] | None:
        """Score all in one call; `None` where the number of scores differs. Raises `CallFailed`."""
        got = rows(column(self._call(self._inputs(items))), len(items))
        return None if got is None else [self._noted(v, i) for v, i in zip(got, items, strict=True)]

    def beside(self, own: str, tool: Item, chats: bool) -> float | None:
        """What a completion earns in which the policy wrote `own` and a tool the other text; None: no number."""
        from rltriage_probes.generation.tokens import example_beside

        if chats:
            turns = [("assistant", own), ("tool", tool.text), ("assistant", "I do not know.")]
            messages = [{"role": role, "content": text} for role, text in turns]
            given = {**self._inputs([tool]), "completions": [messages], "completion": messages}
        else:
            given = {**self._inputs([tool]), **example_beside(own, tool.text)}
        got = rows(column(self._call(given)), 1) if self.many else [self._call(given)]
        return None if not got else number(got[0])

    def count(self, items: Sequence[Item]) -> int | None:
        """How many scores a call with these items gives, where it gives another number; else None."""
        try:
            value = column(self._call(self._inputs(items)))
        except CallFailed:
            return None
        many = isinstance(value, (list, tuple)) or hasattr(value, "tolist")
        return len(value) if many and hasattr(value, "__len__") and len(value) != len(items) else None

    def _alone(self, item: Item) -> Any:
        if not self.many:
            return self._call(self._inputs([item]))
        try:
            return self._first(item, self._copies)
        except CallFailed:
            if self._copies > 1 or self.log.scored:
                raise
        value = self._first(item, self.group)  # some functions only take whole groups
        self._copies = self.group
        return value

    def _first(self, item: Item, copies: int) -> Any:
        items = [item] * copies
        value = column(self._call(self._inputs(items)))
        got = rows(value, copies)
        if got is None:
            if isinstance(value, (list, tuple)) or hasattr(value, "tolist"):
                self.log.uneven.append((items, value))
            elif isinstance(value, (int, float)):
                self.log.scalars.append((items, value))
                return value
            return None
        self.log.lists += 1
        return got[0]

    def _noted(self, value: Any, item: Item) -> float:
        if value is None:
            self.log.abstained += 1
            return math.nan
        score = number(value)
        if score is None:
            self.log.odd.append(value)
            return math.nan
        if not math.isfinite(score):
            self.log.nonfinite.append((item, score))
            return score
        self.log.scored += 1
        self.log.values.add(score)
        return score

    def _inputs(self, items: Sequence[Item]) -> Mapping[str, Any]:
        texts, golds = [i.text for i in items], [i.gold for i in items]
        prompts = [i.prompt for i in items]
        if self._transcripts:
            texts = [p + t for p, t in zip(prompts, texts, strict=True)]
        numbers: list[list[int]] = []
        if self.puzzle:
            numbers, golds = map(list, zip(*(problem(str(g)) for g in golds), strict=True))
        given: dict[str, Any] = {
            "completions": texts, "texts": texts, "answers": golds, "prompts": prompts,
            "completion": texts[0], "text": texts[0], "answer": golds[0], "prompt": prompts[0],
            "group_size": self.group, "operand_lists": numbers, "operands": numbers[0] if numbers else [],
        }  # fmt: skip
        if self.many and self.one_a_prompt:
            given["answers"] = golds = golds[:: self.group]
        if self.many:  # a dataset's column keeps its singular name
            given |= {"answer": golds, "prompt": prompts}
        if self._names & {"token_ids", "completion_mask", "attention_mask", "lengths", "tokenizer"}:
            from rltriage_probes.generation.tokens import example_inputs

            given = {**example_inputs(texts), **given}
        return given


def same(a: float, b: float) -> bool:
    """Equal scores; NaN (abstained, failed) equals NaN."""
    return (math.isnan(a) and math.isnan(b)) or abs(a - b) <= 1e-9 * max(1.0, abs(a), abs(b))
