"""The pitfalls of answer extractors, which the checks of several files name."""

from __future__ import annotations

from rltriage_probes.model import Pitfall

CUT = Pitfall(
    id="EXT-CUT", family="reward-format", says="gives the answer with characters missing, which is another answer"
)
FALLBACK = Pitfall(id="EXT-NOT-AN-ANSWER", family="reward-hole", says="gives text as the answer that is none")
MISALIGNED = Pitfall(id="EXT-ORDER", family="reward-order", says="gives a completion the answer of another one")
MISSED = Pitfall(id="EXT-MISSED", family="reward-format", says="does not find an answer in a form that it documents")
RAISES = Pitfall(id="EXT-RAISES", family="reward-exception", says="raises on a completion that models do write")
STATE = Pitfall(id="EXT-STATE", family="reward-state", says="gives the same completion another answer in another call")
WINDOW = Pitfall(id="EXT-WINDOW", family="truncation", says="looks for the answer in a part of the completion only")
WRONG_ONE = Pitfall(
    id="EXT-WRONG-ONE", family="reward-hole", says="gives another part of the completion than the answer that counts"
)
