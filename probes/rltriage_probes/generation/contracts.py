"""What a decoder's docstring promises, branch by branch.

A decoder that strips reasoning, one that keeps it and one that lays it out are all legitimate, so nothing
is assumed: a branch that the docstring doesn't speak of has the contract `None`, and the probe asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rltriage_probes.reading import Reading, prose, sentences

Promise = Literal["text", "empty"]

_BLANK = re.compile(
    r"\bempty\b|\bblank\b|\"\"|''|``''``|\bNone\b|\bnothing\b|\bno (final )?answer\b|\bdropp?(s|ed)?\b", re.I
)
_WHOLE = re.compile(
    r"\bunchanged\b|\bas[- ]is\b|\bwhole\b|\bentire\b|\bitself\b|\bfull text\b|\bkept\b|\bpass(es|ed)? through\b|"
    r"\bverbatim\b|\buntouched\b|\breturned\b|\ball of it\b|(->|→|=>)\s*(the )?(stripped )?text",
    re.I,
)
_MARKER = r"(marker|tag|block|delimiter|think|reasoning|answer|boxed|box\b|section|close[rd]?|wrapper|match)"
_ABSENT = re.compile(
    rf"\b(no|without( any| a| an)?|lack(s|ing)?|missing|neither|absent|unmarked|if not|isn't|"
    rf"not)\b[^.;]{{0,40}}{_MARKER}|"
    rf"{_MARKER}[^.;]{{0,40}}\b(missing|absent|not (there|present|found)|lacking)|\bunmarked\b|"
    rf"\bplain (text|completion)",
    re.I,
)
_UNFINISHED = re.compile(
    r"unclosed|unfinished|truncat|cut (off|short)|never clos|not closed|isn't closed|still (thinking|"
    r"reasoning)|incomplete|"
    r"unterminated|out of (tokens|budget)|length limit|opened (but|and)|without (a |the |its )?(closing|end)|"
    r"no (closing|end)|(closing|end)[- ]?(tag|marker)?[^.;]{0,20}(missing|absent|not)",
    re.I,
)
_STRIPS = re.compile(
    r"\b(strip|remov|drop|discard|delet|cut|hide|clean)\w*\b[^.;]{0,60}\b(think|thought|reason|"
    r"scratchpad|cot\b|analysis|block)|"
    r"\b(without|minus|excluding|after|behind|follow\w*|past)\b[^.;]{0,40}\b(think|thought|reason|"
    r"scratchpad|closing|close|block)|"
    r"\b(final|visible) answer\b|\banswer (part|only)\b|\bonly the answer\b|counts as the answer",
    re.I,
)
_REMOVES = re.compile(
    r"\b(strip|remov|drop|discard|delet|hid|cut)\w*\b[^.;]{0,40}?\b(reasoning|thoughts?|scratchpad|"
    r"thinking|think block|chain of thought|block)\b"
    r"(?! ?(tags?|markers?|tokens?))|\b(without|minus|no) (the |any )?(reasoning|thinking|think|"
    r"scratchpad)\b(?! ?(tags?|markers?|tokens?))",
    re.I,
)
"""Says in so many words that the reasoning itself, not only its tags, is taken out."""
_SHOWS = re.compile(
    r"\b(under|section|lay|lays|show|shown|see|sees|keep|keeps|kept|split|splits|separate|separates|"
    r"both|pair|tuple|dict|return\w*)\b"
    r"[^.;]{0,80}\b(reasoning|thinking|thoughts?|chain of thought|think tags?)\b|"
    r"\b(reasoning|thinking|thoughts?)\b[^.;]{0,60}\b(is|are|stays?|kept|under|section|shown|"
    r"and (the )?(answer|content|response))\b",
    re.I,
)
_ONLY_REASONING = re.compile(
    r"^\W*(return|extract|get|pull|the|take|text of)\w*\s+(out )?(the |a |only |just )*"
    r"(model's |completion's )?(reasoning|thinking|thoughts?|chain of thought|scratchpad)\b",
    re.I,
)
_NO_OPEN = re.compile(
    r"open(ing)?( think| reasoning)?[- ]?(tag|marker|delimiter|one)?[^.;]{0,60}(missing|optional|absent|"
    r"part of the prompt|in the prompt|"
    r"supplied|already|prefill|added by|from the (prompt|template))|"
    r"(prompt|template)[^.;]{0,80}(ends? (in|with)|already|prefill|opens|contains|adds|appends|supplies|"
    r"inserts)[^.;]{0,60}"
    r"(<|\[|open|think)|only (the |a )?clos",
    re.I,
)
_RAW = re.compile(
    r"special tokens?[^.;]{0,30}(kept|keep|included|remain|visible|stay)|keep\w*[^.;]{0,30}special|"
    r"\braw\b|\bincluding (eos|pad|special)|"
    r"nothing is (removed|stripped)|\bdebug",
    re.I,
)
_POLICY = re.compile(
    r"\b(policy|model|agent|assistant)(?:'s)?\s+(itself|own|alone|only|wrote|turns)\b|"
    r"\b(only|just)\b[^.;]{0,40}\b(policy|model|agent|assistant)\b|"
    r"\b(not|never|without|exclud\w*|skip\w*|drop\w*|no|minus)\b[^.;]{0,30}\b(tool|observations?|environment|env)\b",
    re.I,
)
_MARKUP = re.compile(
    r"(all|any|every|other|html|xml)\b[^.;]{0,20}\b(tags?|markup|markers|tokens)|special tokens?|angle|"
    r"<\.\.\.>|sanitiz|"
    r"\bascii|punctuation|normali[sz]|\bemoji|\bclean\w*|html|markdown",
    re.I,
)
_EOS = re.compile(
    r"(stop|end|cut|trunc|up to|until|before|through)\w*[^.;]{0,40}(eos|end[- ]of[- ](text|sequence|turn)|stop token)",
    re.I,
)


_VERBATIM = prose(
    r"\bverbatim\b|\bcharacter (by|for) character\b|\b(all|every) other characters?\b[^.;]{0,12}\bkept|"
    r"\bnothing else (is |was )?(changed|removed|touched|altered)|\bwhite ?-?space[^.;]{0,30}\b(kept|preserved|"
    r"survives?|intact)|"
    r"\bindentation\b[^.;]{0,30}\b(kept|preserved|survives?|intact|stays?)|\bexactly as (it was )?(written|"
    r"generated|produced)"
)
_ALL_BLOCKS = prose(
    r"\b(all|every|each|any)\b[^.;]{0,30}\b(blocks?|reasoning|thinking|think\w* \w+|thoughts?)\b|"
    r"\b(reasoning|thinking|think|thought)\w*[ -]?(blocks|sections|segments|spans)\b|\binterleaved\b"
)
_EACH_BLOCK = prose(
    r"\b(strip|remov|drop|delet|cut|tak)\w*[^.;]{0,12}\b(every|each)\b[^.;]{0,30}\b(blocks?|spans?|sections?|"
    r"segments?)\b|"
    r"\b(every|each)\b[^.;]{0,30}\b(block|span|section|segment)\b[^.;]{0,20}\b(removed|stripped|dropped|"
    r"deleted|cut|taken) ?"
)
_LAST_CLOSE = prose(
    r"\b(last|final)\b[^.;]{0,20}(</?\W?\w+|\bclos\w*|\btags?\b|\bmarkers?\b|\bblocks?\b|\bdelimiters?\b)|"
    r"\bclos\w*[^.;]{0,40}\b(several times|more than once|twice|again)\b"
)
_REST = prose(
    r"\bwhat is left\b|\brest\b|\bremain\w*|\beverything else\b|\boutside\b|\bbetween (the|two|them)\b|"
    r"\bvisible text\b|"
    r"\ball (the )?visible\b|\bother text\b"
)
_KEEPS_CALLS = prose(
    r"\btool[ _-]?calls?\b[^.;]{0,60}\b(kept|keeps?|survives?|stays?|remains?|unchanged|preserved|intact|included)\b|"
    r"\b(keep|preserv)\w*[^.;]{0,40}\btool[ _-]?calls?\b"
)
_KEEPS_STOP = prose(
    r"\b(stop|end|closing)[ -]?(string|word|marker|tag|sequence|character)s?( itself)?[^.;]{0,40}\b(kept|"
    r"remains?|stays?|"
    r"preserved)\b(?! out)|\bkeep\w* the (stop|end|closing)[ -]?(string|word|marker|tag|sequence|character)"
)
_KEEPS_END = prose(
    r"\b(end[ -]of[ -]\w+|eos|end|stop)[ -]?(token|marker)s?( itself)?[^.;]{0,30}\b(is |are )?(kept|stays?|"
    r"remains?|visible)\b|"
    r"\bkeep\w* (the )?(end[ -]of[ -]\w+|eos|end|stop)[ -]?(token|marker)"
)
_NO_SPECIALS = prose(
    r"\b(without|no|minus|skip\w*|strip\w*|remov\w*|drop\w*|exclud\w*)\b[^.;]{0,30}\b(special tokens?|eos|"
    r"end[- ]of[- ]\w+|end tokens?)|\b(special tokens?|eos|end tokens?)\b[^.;]{0,30}\b(skipped|stripped|"
    r"removed|dropped)"
)
_KEEPS_TAGS = prose(
    r"\b(tags?|markers?|delimiters?)\b[^.;]{0,40}\b(surviv\w*|kept|keeps?|stays?|remains?|preserved|visible|needed)\b|"
    r"\bkeep\w*[^.;]{0,30}\b(tags?|markers?|delimiters?)\b|\bformat reward (needs|sees|looks|checks)"
)
_LOOKED_FOR = prose(
    r"(</?\w+>|\btags?\b|\bmarkers?\b|\bdelimiters?\b)[^.;]{0,80}\b(rewards?|graders?|parsers?|verifiers?|scorers?|"
    r"scoring|grading|format checks?)\b[^.;]{0,30}\b(search\w*|looks?|need\w*|see\w*|check\w*|pars\w+|read\w*|"
    r"expect\w*|match\w*|split\w*|find\w*|rel(y|ies))\b"
)
"""What the reward does with the tags, for which they have to be there."""
_LEFT = prose(r"\bleft[- ]?padd|\bpadd\w+ (on|at|to) the left|\bpadding_side\b[^.;]{0,10}left|\bpads? in front")
_COMPLETION_ONLY = prose(
    r"\b(without|minus|not|no|drop\w*|cut\w*|strip\w*|remov\w*|exclud\w*|behind|after)\b[^.;]{0,20}\b(its |the |"
    r"their |a )?prompts?\b|"
    r"\b(completion|response|generated|generation|answer|new tokens?)\b[^.;]{0,12}\b(only|alone|part)\b|"
    r"\bonly (the |its |their )?(completion|response|generated|generation|answer|new tokens?)"
)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Promises of one decoder. `None` and `False`: not a word about it."""

    unmarked: Promise | None
    """What a completion without any marker gives."""
    unfinished: Promise | None
    """What a completion gives that opens its reasoning and never closes it."""
    strips: bool
    """It may take the reasoning out, by some reading."""
    removes: bool
    """It takes the reasoning out, by any reading."""
    shows: bool
    """The reasoning is to be seen in the output."""
    only_reasoning: bool
    no_open: bool
    """The opening marker can be missing, because the prompt had it."""
    raw: bool
    policy_only: bool
    markup: bool
    """Tags or special tokens in general are removed."""
    stops_at_eos: bool
    verbatim: bool
    """White space counts, too."""
    all_blocks: bool
    """Several blocks of reasoning are spoken of."""
    each_block: bool
    """Blocks are taken out one by one, so that what stands between them stays."""
    last_close: bool
    """The answer stands behind the last marker."""
    rest: bool
    """Whatever stands outside the blocks is spoken of."""
    keeps_calls: bool
    keeps_stop: bool
    keeps_end: bool
    keeps_tags: bool
    no_specials: bool
    """Special tokens, the end token among them, are kept out of the text."""
    left: bool
    """Rows are padded in front."""
    completion_only: bool
    extracts: bool
    """By name or words an extractor: text without its marker may have no answer."""


def contract_of(reading: Reading) -> Contract:
    """Read the docstring (comments count only where they tell about the prompt and the mask)."""
    doc = reading.doc
    said = sentences(doc)
    return Contract(
        unmarked=_promise(said, _ABSENT, _UNFINISHED),
        unfinished=_promise(said, _UNFINISHED, None),
        strips=bool(_STRIPS.search(doc)),
        removes=bool(_REMOVES.search(doc)) and not re.search(r"\b(keep|kept|show|judge|under|section)\w*\b", doc, re.I),
        shows=any(_SHOWS.search(s) and not _STRIPS.search(s) for s in said),
        only_reasoning=_named_reasoning(reading.name) or any(_ONLY_REASONING.search(s) for s in said[:1]),
        no_open=bool(_NO_OPEN.search(reading.prose)),
        raw=bool(_RAW.search(doc)),
        policy_only=bool(_POLICY.search(reading.prose)),
        markup=bool(_MARKUP.search(doc)),
        stops_at_eos=bool(_EOS.search(reading.prose)),
        verbatim=bool(_VERBATIM.search(doc)),
        all_blocks=bool(_ALL_BLOCKS.search(doc)),
        each_block=bool(_EACH_BLOCK.search(doc.replace("...", "\u2026"))),
        last_close=bool(_LAST_CLOSE.search(doc)),
        rest=bool(_REST.search(doc)),
        keeps_calls=bool(_KEEPS_CALLS.search(doc)),
        keeps_stop=_keeps(_KEEPS_STOP, said),
        keeps_end=_keeps(_KEEPS_END, said),
        keeps_tags=_keeps(_KEEPS_TAGS, said) or any(_LOOKED_FOR.search(s) for s in _with_next(said)),
        no_specials=bool(_NO_SPECIALS.search(doc)),
        left=bool(_LEFT.search(reading.prose)),
        completion_only=bool(_COMPLETION_ONLY.search(doc)),
        extracts=bool(re.search(r"extract|parse|find|between|pull|match|get_answer|final_answer", reading.name, re.I)),
    )


_NOT_THERE = prose(
    r"\b(no|none|without|lack\w*|neither|nor|missing|never|absent|not|cannot)\b[^.;]{0,24}$",
)
_NOT_THERE_INSIDE = prose(
    r"\b(missing|absent|(is|are|was|were)(n't| not)|not found|never|lacking|"
    r"(texts?|completions?|responses?|outputs?|rows?) (is|are|stays?|remains?|kept))\b"
)


def _keeps(pattern: re.Pattern[str], said: tuple[str, ...]) -> bool:
    """Whether a sentence says that a marker is kept; "no stop string, so it stays" speaks of the text."""
    return any(
        not _NOT_THERE.search(sentence[: found.start()]) and not _NOT_THERE_INSIDE.search(found.group())
        for sentence in said
        for found in pattern.finditer(sentence)
    )


def _with_next(said: tuple[str, ...]) -> tuple[str, ...]:
    """Sentences, each with the one behind it: "they" are often the markers of the sentence before."""
    return tuple(f"{a.rstrip('.;')}, {b}" for a, b in zip(said, (*said[1:], ""), strict=False))


def _promise(said: tuple[str, ...], about: re.Pattern[str], rather: re.Pattern[str] | None) -> Promise | None:
    """What the first sentence on the subject promises; a sentence that also fits `rather` speaks of that."""
    for sentence in said:
        if not about.search(sentence) or (
            rather and rather.search(sentence) and not re.search(r"\bmarkers?\b", sentence)
        ):
            continue
        # "has no reasoning" says nothing about the answer
        blank, whole = _BLANK.search(sentence), _WHOLE.search(sentence)
        if whole and not blank:
            return "text"
        if blank:
            return "empty"
    return None


def _named_reasoning(name: str) -> bool:
    return bool(
        re.search(
            r"(extract|get|parse|pull)_?(the_)?(think|reason|thought|cot)|^(thinking|reasoning|thoughts)_(of|part)",
            name,
            re.I,
        )
    )
