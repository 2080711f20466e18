"""What a reward's docstring promises about the answers that it takes and the amounts that it pays."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rltriage_probes.contract import Check, Severity
from rltriage_probes.model import CallFailed
from rltriage_probes.reading import prose, sentences
from rltriage_probes.reward.answers import DECIMAL, NEUTRAL, filler
from rltriage_probes.reward.exam import FORMAT, HOLE, INVERTED, RAISES, RANGE, Exam
from rltriage_probes.reward.scoring import Item
from rltriage_probes.texts import accidental, agrees, quote, violates

_DENIED = prose(
    r"\b(not|never|cannot|without|reject\w*|refus\w*|nothing|fails?|invalid|wrong|except|instead of|rather than|unlike|"
    r"case-sensitive|exactly as|verbatim|malformed|earns? 0|scores? 0)\b|n't\b",
)
_TOLERATED = (
    r"[^.;]{0,60}\b(ignored?|stripp?(ed)?|removed?|trimm?(ed)?|allowed?|accept(ed|s)?|optional|dropp?(ed)?|permitted|"
    r"fine|ok(ay)?|irrelevant|count(s)? as|tolerated|normali[sz]ed)\b"
)
_TOLERATES = r"\b(ignor|strip|remov|trim|allow|accept|drop|permit|tolerat|normali[sz])\w*\b[^.;]{0,60}"


def _tolerance_of(thing: str) -> str:
    """A pattern for "`thing` is ignored" and for "ignores `thing`"."""
    return rf"({thing}){_TOLERATED}|{_TOLERATES}({thing})"


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form in which the right answer may be written. One of `pairs` (answer, gold) has to be paid."""

    name: str
    kind: str
    pairs: tuple[tuple[str, str], ...]
    promise: str
    """What the docstring says where it promises the form; empty: nothing promises it."""
    unless: str = r"(?!)"
    """In a sentence with these words the promise is another one."""
    asked: bool = False
    """Whether a refusal is worth a question without a promise."""
    box: bool = False
    """Only in a box."""


_OF_NUMBERS = r"(numbers?|integers?|decimals?|answers?|values?|results?|ones)"
_LAYOUT = r"\bbetween\b|\bblocks?\b|\btags\b"
_CASE = (
    r"\bcase-?insensitiv|\bignor\w* (the )?(letter )?case\b|\bregardless of (letter )?case|\bcase (is |are )?"
    r"(ignored|irrelevant|folded)|\bcase[- ]?fold|\bcase (does not|doesn't|never) matter|\birrespective of case|"
    r"(?<!\bin )\b(any|either) case\b"
)
_FORMS = (
    Form(name="a negative number", kind="number", pairs=(("-142", "-142"),), asked=True,
         promise=r"\b(signed|negative)\b(?!\W*(reward|score|penalt|return|bonus|feedback|sample|example))"
                 rf"[^.;]{{0,20}}\b{_OF_NUMBERS}\b|"
                 rf"\b{_OF_NUMBERS}\b[^.;]{{0,20}}\b(signed|negative)\b|"
                 rf"\bminus signs?\b[^.;]{{0,20}}\b(count|matter|kept)"),
    Form(name="a decimal number", kind="number", pairs=(("14.5", "14.5"),), asked=True,
         promise=r"\bdecimals?\b(?! (places? )?(is|are) (dropped|ignored|removed|cut))"),
    Form(name="the answer between blanks", kind="*", pairs=(("  @ ", "@"),), unless=_LAYOUT,
         promise=_tolerance_of(r"\bwhite ?-?space|\bsurrounding (blanks|spaces)|\bblanks\b|\bspaces around")),
    Form(name="the answer on a line of its own", kind="*", pairs=(("\n@\n", "@"),), unless=_LAYOUT,
         promise=_tolerance_of(r"\b(line ?breaks?|newlines?) around|\bsurrounding (line ?breaks|newlines)|"
                               r"\bany white ?-?space")),
    Form(name="a number with thousands separators", kind="number", pairs=(("1,420", "1420"),), unless=r"\bseparated\b",
         promise=_tolerance_of(r"\bcommas?\b|\bthousands?\b")),
    Form(name="a whole number written as a decimal", kind="number", pairs=(("142.0", "142"),),
         promise=r"\bnumerical(ly)?\b[^.;]{0,30}\b(equal|compar|same|match)|\b(equal|compar|match)\w*\b[^.;]{0,30}"
                 r"\bnumerical|\bcompar\w*[^.;]{0,20}\bas (numbers|floats?|values)|\bequal as (numbers|floats?)|"
                 r"\bsame numeric value"),
    Form(name="a fraction", kind="number", pairs=(("3/4", "3/4"), ("3/4", "0.75")),
         promise=r"\bfractions?\b(?! of)[^.;]{0,40}\b(accept|allow|count|comput|evaluat|fine|ok|parsed|understood|"
                 r"supported|works?)\w*|"
                 r"\b(accept|allow|evaluat|comput|support|understand|parse)\w*[^.;]{0,40}\bfractions?\b(?! of)"),
    Form(name="a percentage", kind="number", pairs=(("50%", "50"), ("50%", "0.5"), ("50%", "50%")),
         promise=_tolerance_of(r"\bper ?cent( signs?)?\b(?! of)|\bpercentages?\b(?! of)|%( signs?)?")),
    Form(name="a number with its unit", kind="number", pairs=(("142 cm", "142"),),
         promise=_tolerance_of(r"\bunits?\b(?! test)")),
    Form(name="a number behind a dollar sign", kind="number", pairs=(("$142", "142"), ("$142$", "142")),
         promise=_tolerance_of(r"\bdollars?\b|\bcurrency\b|\$ ?signs?|\"\$\"")),
    Form(name="the answer with a full stop", kind="*", pairs=(("@.", "@"),),
         promise=_tolerance_of(r"\b(trailing|final|closing) (full stops?|periods?|dots?|punctuation)|\bpunctuation\b")),
    Form(name="a number with leading zeros", kind="number", pairs=(("0142", "142"),),
         promise=_tolerance_of(r"\bleading zero(e?s)?")),
    Form(name="scientific notation", kind="number", pairs=(("1.42e2", "142"),),
         promise=r"\bscientific notation|\bexponent(ial)? notation"),
    Form(name="the answer in capitals", kind="word", pairs=(("ZEBRA", "zebra"),), promise=_CASE),
    Form(name="a gold answer in capitals", kind="word", pairs=(("zebra", "ZEBRA"),), promise=_CASE),
    Form(name="a small option letter", kind="option letter", pairs=(("b", "B"),),
         promise=_CASE + r"|\b(upper|capital)\w*[^.;]{0,12} (or|and) (lower|small)"),
    Form(name="the answer with its article", kind="word", pairs=(("the zebra", "zebra"),),
         promise=_tolerance_of(r"\barticles?\b")),
    Form(name="the answer in quotes", kind="word", pairs=(('"zebra"', "zebra"),),
         promise=_tolerance_of(r"\bquotes?\b|\bquotation marks?")),
    Form(name="an answer of two words", kind="word", pairs=(("New York", "New York"),),
         promise=r"\bmulti-?word|\bseveral words"),
    Form(name="an answer with braces in a box", kind="word", pairs=(("\\frac{3}{7}", "\\frac{3}{7}"),), asked=True,
         box=True, promise=r"\blatex (answer|expression|of)|\blatex in\b|"
                           r"\\\\?d?frac\b|\bnested\b|\bbalanced\b|\bbraces\b"),
)  # fmt: skip
"""Forms of an answer that docstrings speak of."""

_NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?"
_EQUALS = prose(
    rf"[\"'`]*({_NUMBER})[\"'`]*\s*(?:equals|is equal to|counts as|is the same as|is as good as|matches|means|==|=)\s*"
    rf"[\"'`]*({_NUMBER})[\"'`]*"
)
_QUOTED_NUMBER = prose(rf"[\"'`]({_NUMBER})[\"'`]")
_ABOUT_ANSWERS = prose(r"\b(answers?|numbers?|values?|results?)\b")


def _examples(doc: str) -> Iterator[Form]:
    """Forms that the docstring shows: `"2.0 equals 2"`, `answers are numbers such as "-3.5"`."""
    for sentence in sentences(doc):
        if _DENIED.search(sentence):
            continue
        for a, b in _EQUALS.findall(sentence):
            if a != b and _value(a) is not None and _value(b) is not None:
                yield Form(name=f"{a} where the gold answer is {b}", kind="number", pairs=((a, b),), promise=sentence)
        if _ABOUT_ANSWERS.search(sentence):
            for x in _QUOTED_NUMBER.findall(sentence):
                yield Form(name=f"the documented {x}", kind="number", pairs=((x, x),), promise=sentence)


def _value(text: str) -> float | None:
    plain = text.replace(",", "").replace("$", "").rstrip("%")
    top, _, bottom = plain.partition("/")
    try:
        return float(top) / float(bottom or 1)
    except (ValueError, ZeroDivisionError):
        return None


def _promised(form: Form, doc: str) -> bool:
    for sentence in sentences(doc):
        found = prose(form.promise).search(sentence)
        if found is None or prose(form.unless).search(sentence):
            continue
        around = sentence[: found.start()] + sentence[found.end() :]
        denied = _DENIED.search(found.group()) and "matter" not in found.group()
        if not denied and not _DENIED.search(around):
            return True
    return False


def forms(exam: Exam) -> Iterator[Check]:
    """Are all forms of the right answer paid that the docstring speaks of?"""
    probe, asks = "reward.forms", "is the right answer paid in every form that is documented?"
    if not exam.wins:
        return
    broken: list[tuple[Form, Item]] = []
    doubted: list[tuple[Form, Item]] = []
    for form in (*_examples(exam.doc), *_FORMS):
        promised = form.promise not in {f.promise for f in _FORMS} or _promised(form, exam.doc)
        if not (promised or form.asked) or exam.scorer.late:
            continue
        refused = _refused(exam, form)
        if refused is not None:
            (broken if promised else doubted).append((form, refused))
    whole = _whole_refused(exam)
    if whole is not None:
        (broken if _promised(_NUMERICAL, exam.doc) else doubted).append((_NUMERICAL, whole))
    if broken:
        told = "; ".join(f"{f.name}: {quote(i.text)} for gold {quote(i.gold)}" for f, i in broken[:3])
        yield violates(
            probe,
            asks,
            f"the docstring promises to take what earns no more than a wrong answer: {told}",
            FORMAT,
            numbers={"forms refused": float(len(broken))},
        )
        return
    if doubted:
        told = "; ".join(f"{f.name}: {quote(i.text)} for gold {quote(i.gold)}" for f, i in doubted[:3])
        yield violates(
            probe, asks, f"nothing is paid for {told}. Can the data have such answers?", FORMAT, severity="soft"
        )
        return
    yield agrees(probe, asks, "signs, decimals and what the docstring promises are taken")


_NUMERICAL = next(f for f in _FORMS if f.name == "a whole number written as a decimal")


def _whole_refused(exam: Exam) -> Item | None:
    """The plain whole number, where only gold answers that are written with `.0` are ever met."""
    win = exam.best[0]
    if win.gold is not DECIMAL or win.kind.name != "number":
        return None
    return Item(win.format.write(win.kind.gold), win.kind.gold)


def _refused(exam: Exam, form: Form) -> Item | None:
    """The item that is refused in every format that pays this kind of answer; None: taken, or not to be asked."""
    wins = [w for w in exam.picks if form.kind in ("*", w.kind.name)]
    if form.box:
        wins = [w for w in exam.best if w.kind.name == form.kind and "\\boxed{" in w.format.text][:2]
    tried: list[Item] = []
    for win in wins:
        for answer, gold in form.pairs:
            own = win.kind.gold
            try:
                item = Item(win.format.write(answer.replace("@", own)), win.gold.write(gold.replace("@", own)))
            except ValueError:
                continue  # the gold answers of this reward are of another type
            if exam.accepts(win, item):
                return None
            tried.append(item)
    return tried[0] if tried else None


# Amounts

_RANGE = prose(
    r"(?:\bin|\bbetween|\bfrom|\bwithin|\brange)\s*(?:the (?:range|interval) )?[\[(]?\s*(-?\d+(?:\.\d+)?)\s*(?:,|"
    r"to|and|\.\.+|-|–)\s*"
    r"(-?\d+(?:\.\d+)?)\s*[\])]?",
)
_AT_MOST = prose(
    r"\b(?:at most|never (?:more|higher) than|never above|never exceeds?|capped at|not more than|maximum (?:is|of))\s+"
    r"(-?\d+(?:\.\d+)?)",
)
_REWARD_WORD = prose(r"\b(rewards?|scores?|scored|returns?|pays?|earns?|total|sum)\b")
_ANSWER_WORD = prose(r"\b(answers?|numbers?|integers?|letters?|options?|words?|tokens?|characters|steps?|lengths?)\b")
_CLAUSES = prose(
    r"^(?:returns? |gives? |pays? |reward:? |score:? )?(-?\d+(?:\.\d+)?) (?:if|for|when|where)\b.*\b(?:else|"
    r"otherwise)\b"
)
_AMOUNT = prose(r"(?<![\w.\\{\"'`/^-])-?\d+(?:\.\d+)?(?![\w\"'`}/]|\.\d)")


def amounts(exam: Exam) -> Iterator[Check]:
    """Does it pay only amounts that its docstring allows?"""
    probe, asks = "reward.amounts", "does it pay what it says?"
    values = [v for v in exam.scorer.log.values if math.isfinite(v)]
    if not values:
        return
    low, high = min(values), max(values)
    for sentence in sentences(exam.doc):
        bounds = _bounds(sentence)
        if bounds and (high > bounds[1] + 1e-6 or low < bounds[0] - 1e-6):
            out = high if high > bounds[1] + 1e-6 else low
            says = f"a completion earns {out:g}; the docstring says {quote(sentence)}"
            yield violates(probe, asks, says, RANGE, numbers={"reward": out})
            return
        if exam.wins and _CLAUSES.match(sentence) and not _weighted(exam):
            said = [float(x) for x in _AMOUNT.findall(sentence)]
            top = exam.best[0].top
            if top > max(said) + 1e-6:
                says = f"a right answer earns {top:g}; the docstring says {quote(sentence)}"
                yield violates(probe, asks, says, RANGE, numbers={"reward": top})
                return


def _bounds(sentence: str) -> tuple[float, float] | None:
    found = _RANGE.search(sentence)
    if found and _REWARD_WORD.search(sentence) and not _of_answers(sentence[: found.start()]):
        low, high = float(found.group(1)), float(found.group(2))
        return (low, high) if low < high else None
    most = _AT_MOST.search(sentence)
    if most and _REWARD_WORD.search(sentence) and not _ANSWER_WORD.search(sentence[most.start() :]):
        return -math.inf, float(most.group(1))
    return None


def _of_answers(before: str) -> bool:
    """Whether the words in front of a range make it one of answers, not of rewards."""
    near = before[-40:]
    return bool(_ANSWER_WORD.search(near)) and not _REWARD_WORD.search(near)


def _weighted(exam: Exam) -> bool:
    """Whether settings scale the amounts."""
    return bool(re.search(r"weight|scale|coef|self\.", exam.reading.code))


# Length

_SHORT_PAYS = prose(
    r"\b(short\w*|brief|brevity|concise\w*)\b[^.;]{0,40}\b(more|better|higher|bonus|preferred|favou?red|rewarded|"
    r"extra)\b|"
    r"\b(bonus|prefer\w*|favou?r\w*|encourag\w*|rewards?)\b[^.;]{0,25}\b(short\w*|brief|brevity|concise\w*)\b|"
    r"\b(penal\w+|punish\w*|discourag\w*)\b[^.;]{0,25}\b(long\w*|length\w*|verbos\w*|overlong)\b|"
    r"\b(long\w*|verbos\w*)\b[^.;]{0,25}\b(penali[sz]ed|less|lower|worse|punished|costs?)\b",
)
_LONG_PAYS = prose(
    r"\b(long\w*)\b[^.;]{0,25}\b(more|better|higher|bonus|preferred|favou?red|rewarded|extra)\b|"
    r"\b(bonus|prefer\w*|favou?r\w*|encourag\w*|rewards?)\b[^.;]{0,25}\b(long\w*)\b|"
    r"\b(penal\w+|punish\w*|discourag\w*)\b[^.;]{0,25}\b(short\w*|brief)\b",
)
_LENGTHS = (60, 300, 1200, 5000)


def length(exam: Exam) -> Iterator[Check]:
    """Does the length of the text move the reward in the direction that the docstring gives?"""
    probe, asks = "reward.length_sign", "does length move the reward in the documented direction?"
    short, long = _SHORT_PAYS.search(exam.doc), _LONG_PAYS.search(exam.doc)
    if bool(short) == bool(long):
        return
    items = _growing(exam)
    if items is None:
        return
    scores = _together(exam, items)
    if any(math.isnan(s) for s in scores) or len(set(scores)) == 1:
        return
    steps = [b - a for a, b in itertools.pairwise(scores)]
    against = all(s >= -1e-9 for s in steps) if short else all(s <= 1e-9 for s in steps)
    said = quote((short or long).group())  # pyright: ignore[reportOptionalMemberAccess]
    told = ", ".join(f"{len(i.text)} characters earn {s:g}" for i, s in zip(items, scores, strict=True))
    if against:
        subject = "the same right answer" if exam.wins else "ordinary text"
        yield violates(probe, asks, f"the docstring says {said}, and of {subject} {told}", INVERTED)
    else:
        yield agrees(probe, asks, told)


def _growing(exam: Exam) -> list[Item] | None:
    """The same right answer behind more and more text; ordinary text where nothing is compared."""
    if not exam.scorer.graded:
        return [Item(filler(n), exam.default_gold()) for n in _LENGTHS]
    for win in exam.picks:
        right, gold = win.format.write(win.kind.gold), win.gold.write(win.kind.gold)
        if exam.accepts(win, Item(f"{NEUTRAL}\n{right}", gold)):
            return [Item(f"{filler(n)}\n{right}", gold) for n in _LENGTHS]
    return None


def _together(exam: Exam, items: Sequence[Item]) -> list[float]:
    """Scores in one batch, where the function takes one: it may be relative to the others."""
    if exam.scorer.many:
        try:
            found = exam.scorer.batch(items)
        except CallFailed:
            found = None
        if found is not None:
            return found
    return [exam.scorer.peek(i) for i in items]


# Tolerance

_WITHIN = prose(r"\b(?:toleran\w*|within|up to|to)\b[^.;\d]{0,24}?(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(%|per ?cent)?")


def tolerance(exam: Exam) -> Iterator[Check]:
    """Is a number paid that lies well outside the documented tolerance?"""
    win = next((w for w in exam.best if w.kind.name == "number"), None)
    sentence = next((s for s in sentences(exam.doc) if re.search(r"\btoleran|\bwithin\b", s, re.I)), "")
    found = _WITHIN.search(sentence)
    if win is None or found is None:
        return
    allowed = float(found.group(1)) * (0.01 if found.group(2) else 1.0)
    if not 0 < allowed <= 0.1:
        return
    off = 142 + 30 * allowed * 142
    item = win.item(f"{off:.10g}", "142")
    if exam.accepts(win, item):
        says = f"{quote(item.text)} is paid for gold {quote(item.gold)}; the docstring says {quote(sentence)}"
        yield violates("reward.tolerance", "is the documented tolerance kept?", says, HOLE)


# Gold answers


_GOLDS = ("C++", "(3, 5)", "3.5", "$5", "a|b")


def golds(exam: Exam) -> Iterator[Check]:
    """Does it cope with gold answers that hold more than letters and digits?"""
    probe, asks = "reward.golds", "do gold answers with other characters do no harm?"
    win = next((w for w in exam.best if w.kind.name == "word" and w.gold.name == "as it is"), None)
    if win is None:
        return
    for gold in _GOLDS:
        item = Item(win.format.write(gold), gold)
        e = exam.scorer.failure(item)
        if e is not None and (accidental(e) or re.match(r"(re\.)?(error|PatternError)\b", e.error)):
            says = f"raises for the gold answer {quote(gold)}: {quote(item.text)} gives {e.error} at {e.where}"
            severity: Severity = "hard" if "rror: " in e.error and "re." in exam.reading.code else "soft"
            yield violates(probe, asks, says, RAISES, severity=severity)
            return
    yield agrees(probe, asks, "gold answers with brackets, signs and dots do not make it raise")
