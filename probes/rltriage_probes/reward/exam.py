"""What the checks of a reward share: the function, its own words, the formats in which it pays, the pitfalls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.model import Pitfall
from rltriage_probes.reading import Markers, Reading
from rltriage_probes.reward.answers import KINDS, Format, Gold, Kind
from rltriage_probes.reward.scoring import PROMPTS, Item, Scorer, same

LENGTH = Pitfall(id="REW-LENGTH", family="reward-order", says="returns another number of rewards than completions")
ORDER = Pitfall(id="REW-ORDER", family="reward-order", says="gives a completion the reward that belongs to another one")
STATE = Pitfall(id="REW-STATE", family="reward-state", says="gives the same completion another reward in another call")
RAISES = Pitfall(id="REW-RAISES", family="reward-exception", says="raises on a completion that models do write")
NONFINITE = Pitfall(
    id="REW-NONFINITE", family="nonfinite", says="returns NaN or infinity, which poisons the whole group"
)
HOLE = Pitfall(id="REW-HOLE", family="reward-hole", says="gives full marks to answers that are not right")
CONSTANT = Pitfall(id="REW-CONSTANT", family="reward-hole", says="gives every completion the same reward")
INVERTED = Pitfall(id="REW-INVERTED", family="sign", says="pays more for a wrong answer than for the right one")
OPEN_TAG = Pitfall(
    id="REW-FORMAT-OPEN-TAG",
    family="reward-format",
    says="asks for an opening tag that the template has put into the prompt",
)
FORMAT = Pitfall(id="REW-FORMAT", family="reward-format", says="does not accept answers in a form that it documents")
WINDOW = Pitfall(
    id="REW-TAIL-WINDOW", family="truncation", says="looks for the answer in a part of the completion only"
)
SEES = Pitfall(
    id="REW-SEES-TOOLS", family="mask-leak", says="grades text that the policy did not write, such as tool output"
)
OUTAGE = Pitfall(
    id="REW-OUTAGE",
    family="reward-exception",
    says="gives the score of a wrong answer where the grader itself has failed",
)
RANGE = Pitfall(id="REW-RANGE", family="reward-hole", says="pays amounts that its own documentation rules out")
PITFALLS = (
    LENGTH,
    ORDER,
    STATE,
    RAISES,
    NONFINITE,
    HOLE,
    CONSTANT,
    INVERTED,
    OPEN_TAG,
    FORMAT,
    WINDOW,
    RANGE,
    OUTAGE,
    SEES,
)

_LENIENT = re.compile(
    r"contain|substring|sub_?em\b|\bmention|\bappear|\bincludes?\b|overlap|\bf1\b|fuzz|similar|partial|"
    r"recall|rouge|bleu|distance|"
    r"\bin the (completion|response|text|output)\b|any of",
    re.I,
)


@dataclass(frozen=True)
class Win:
    """A format in which the gold answer earns more than a wrong one."""

    kind: Kind
    gold: Gold
    format: Format
    top: float
    low: float

    def item(self, answer: str, gold: str | None = None, prompt: str = PROMPTS[0]) -> Item:
        return Item(self.format.write(answer), self.gold.write(gold or self.kind.gold), prompt)


@dataclass
class Exam:
    """One reward function under examination."""

    scorer: Scorer
    reading: Reading
    markers: Markers
    wins: list[Win] = field(default_factory=list)
    suspects: list[Win] = field(default_factory=list)
    """Formats in which the second gold answer changes nothing any more."""
    unread_gold: str = ""
    """Parameter that brings the gold answers and that the code never reads."""
    losses: list[tuple[Item, float, Item, float]] = field(default_factory=list)
    """Pairs (right, its score, wrong, its score) in which the wrong one earns more."""

    @property
    def best(self) -> list[Win]:
        """Of each kind, the formats that earn the most."""
        tops = {w.kind.name: max(x.top for x in self.wins if x.kind is w.kind) for w in self.wins}
        return [w for w in self.wins if same(w.top, tops[w.kind.name])]

    @property
    def picks(self) -> list[Win]:
        """Two formats of each kind: the first, and the plainest."""
        picks: dict[tuple[str, str], Win] = {}
        best = self.best
        for kind in dict.fromkeys(w.kind.name for w in best):
            own = [w for w in best if w.kind.name == kind]
            for w in (own[0], min(own, key=lambda w: len(w.format.text))):
                picks[kind, w.format.text] = w
        return list(picks.values())

    @property
    def costly(self) -> bool:
        """Whether each score takes a process of its own, so that only few can be asked for."""
        runs = bool(self.wins) and self.wins[0].kind.name in ("function", "program")
        return runs and bool(re.search(r"subprocess|Popen|Process\(|create_subprocess", self.reading.code))

    @property
    def lenient(self) -> bool:
        """Whether the function says of itself that it doesn't ask for the exact answer."""
        return bool(_LENIENT.search(self.reading.prose + " " + self.reading.name))

    def accepts(self, win: Win, item: Item) -> bool:
        """Whether an item earns rather what a right answer earns than what a wrong one does."""
        return self.scorer.peek(item) > (win.top + win.low) / 2

    @property
    def doc(self) -> str:
        return self.reading.doc

    def default_gold(self) -> Any:
        win = self.wins[0] if self.wins else None
        return win.gold.write(win.kind.gold) if win else KINDS[0].gold
