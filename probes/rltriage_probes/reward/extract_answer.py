"""Role `extract_answer`: a completion to the answer in it, which is then compared with the gold answer.

In which format an extractor expects the answer differs from one to the next, so the probe first searches a
catalogue for formats whose answer comes out. Then it asks what no convention explains away: characters of the
answer that are lost, an answer that is missed because of where it stands, text that comes out where there is no
answer; and whatever the docstring promises.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rltriage_probes.contract import Check, Diverges, Raised, Severity, Violates
from rltriage_probes.model import CallFailed, Case, Role, Subject
from rltriage_probes.reading import markers, prose, read, sentences
from rltriage_probes.reward import answers, forms
from rltriage_probes.reward.answers import NEUTRAL, filler
from rltriage_probes.reward.extraction import Exam, Extractor, Found, Win, search, variants
from rltriage_probes.reward.holes import BEHIND, BEHIND_TOO, DECOYS, FIRST, LAST
from rltriage_probes.reward.pitfalls import CUT, FALLBACK, MISALIGNED, MISSED, RAISES, STATE, WINDOW, WRONG_ONE
from rltriage_probes.texts import accidental, agrees, quote, violates

PITFALLS = (CUT, FALLBACK, MISALIGNED, MISSED, RAISES, STATE, WINDOW, WRONG_ONE)

_PROMISES_NONE = prose(
    r"\b(or|else|otherwise|gives?|returns?|yields?|is|->) (an? )?((?-i:None)\b|empty\b|blank\b|\"\"|''|"
    r"``\"\"``|``''``)|"
    r"(\b(?-i:None)\b|\bempty string\b|\"\"|'')[^.;]{0,30}\b(if|when|where|for|unless|otherwise)\b|"
    r"\b(if|when|where|no|without|otherwise|else)\b[^.;]{0,60}(\b(?-i:None)\b|\bempty string\b|\"\"|'')"
)
_FALLS_BACK = prose(
    r"\bfall(s|ing)? ?back|\bbackup\b|\b(else|otherwise|if not|or|without|no)\b[^.;]{0,60}\b(whole|full|"
    r"entire|raw|last "
    r"(number|line|word|sentence|integer)|unchanged|as[- ]is|(stripped )?(text|completion|response|input) itself)\b|"
    r"\b(whole|full|entire|raw) (text|completion|response|output|string|input)\b[^.;]{0,40}\b(if|when|where|otherwise)"
)
_PROMISES_RESULT = prose(
    r"never raise|does not raise|doesn't raise|without raising|\bmalformed|unparse?able|(can't|cannot|"
    r"fails? to) (be )?parse"
)
_RAISES = prose(r"\braises?\b(?! (no|nothing))|:raises|\bValueError\b|\berror (if|when)\b")
_SEES_ALL = prose(
    r"\b(whole|entire|full|anywhere|wherever|all of)\b[^.;]{0,40}\b(response|completion|text|output|solution|string)?|"
    r"\blast\b[^.;]{0,60}\b(of|in) (the|a) (response|completion|text|output|solution|string)|"
    r"\b(text|anything|whatever)\b[^.;]{0,30}\b(after|behind|follow)[^.;]{0,40}(ignored|allowed|doesn't|"
    r"does not|no effect)"
)
_IGNORES = prose(
    r"\b(text|anything|whatever|everything)\b[^.;]{0,30}\b(after|behind|follow)[^.;]{0,40}(ignored|dropped|"
    r"cut|allowed|doesn't)"
)
_LIMITED = prose(r"\b(last|first|final|trailing) \W?\d+|window|\btail\b|\bhead\b|truncat|\d+ (characters|chars|tokens)")
_AT_END = prose(
    r"\b(at the (very )?end|ends? (in|with)|last line|final line|end of the (response|completion|text|output|"
    r"string))\b|"
    r"\bfirst line\b|\bstarts? with\b|\bbegin\w* (of|with)\b"
)
_ABOUT_MARKER = prose(
    r"last|final|behind|after|follow|inside|within|between|in the|tag|marker|box|####|hash|prefix|label|answer"
)
_ANY = prose(
    r"\ball (of )?(the )?(answers|matches|boxes|numbers|candidates)\b|\bevery (answer|match|box|number)|\blist of"
)
_LAST_ANSWER = prose(
    r"\b(last|final) (option |capital |single )?(letter|option|choice|boxed|occurrence|mention|number|integer)\b"
)
_FIRST_ANSWER = prose(
    r"\bfirst (option |capital |single )?(letter|option|choice|boxed|occurrence|mention|number|integer)\b"
)
_NOTHING = ("I do not know.", NEUTRAL, "", "  \n ")


def run(subject: Subject) -> Iterator[Check]:
    """All checks of one extractor, and the hard ones for each other way of extracting that a parameter chooses."""
    reading = read(subject)
    exam = Exam(Extractor(subject), reading, markers(reading))
    yield from _examined(exam)
    other = getattr(subject.bound, "variant", None)
    if other is None:
        return
    for keywords in variants(reading):
        bound = other(keywords)
        again = Exam(Extractor(subject, bound.call_raw), reading, markers(reading))
        said = ", ".join(f"{k}={v!r}" for k, v in keywords.items())
        # the docstring may speak of one way only, so only what breaks a rule outright is told
        for check in _examined(again):
            if isinstance(check.outcome, Violates) and check.outcome.severity == "hard":
                outcome = dataclasses.replace(check.outcome, says=f"with {said}, {check.outcome.says}")
                yield dataclasses.replace(check, outcome=outcome)


def _examined(exam: Exam) -> Iterator[Check]:
    search(exam)
    extractor = exam.extractor
    if not exam.wins and extractor.failures and len({f[2].error for f in extractor.failures}) == 1 and _all_fail(exam):
        _, text, e = extractor.failures[0]
        outcome = Raised(error=e.error, where=e.where, case=quote(text))
        yield Check(probe="extract_answer.call", asks="does it take text?", outcome=outcome)
        return
    yield _finds(exam)
    yield from _examples(exam)
    yield _raising(exam)
    yield from _repeats(exam)
    if not exam.picks:
        return
    yield from _nothing(exam)
    yield from _unclosed(exam)
    yield from forms.check(exam)
    yield from _letters(exam)
    yield from _two(exam)
    yield from _draft(exam)
    yield from _decoys(exam)
    yield from _behind(exam)
    yield from _window(exam)
    yield from _prompt(exam)
    yield from _rows(exam)


def _all_fail(exam: Exam) -> bool:
    return all(
        exam.extractor.peek(t) is None for t in ("The answer is 4.", "4", "<answer>4</answer>", "\\boxed{4}", "A")
    )


# What it finds


def _finds(exam: Exam) -> Check:
    probe, asks = "extract_answer.finds", "in which formats does it find the answer?"
    wins = exam.wins
    if any(w.format.text != "@" for w in wins):
        kinds = ", ".join(dict.fromkeys(w.kind.name for w in wins))
        named = list(dict.fromkeys(w.format.name for w in wins))
        more = f" and {len(named) - 4} more formats" if len(named) > 4 else ""
        got = exam.extractor.peek(wins[0].format.write(wins[0].kind.gold))
        kind = type(got.value).__name__ if got else "?"
        return agrees(probe, asks, f"gives the answer ({kinds}) as {kind} from: {', '.join(named[:4])}{more}")
    if not wins and (text := _promised_number(exam)) is not None:
        got = exam.extractor.peek(text)
        says = (
            f"the docstring promises a number of the text, and {quote(text)} gives {quote(got.value if got else None)}"
        )
        return violates(probe, asks, says, MISSED)
    says = (
        "the text comes back as it is; if it is to find an answer in a format"
        if wins
        else "no completion was found from which the answer comes out"
    )
    says += ", quote a well-formed completion in the docstring"
    return Check(probe=probe, asks=asks, outcome=Diverges(says=says))


_ANY_NUMBER = prose(
    r"\b(last|first|final|only) (number|integer|numeric value|numerical value|decimal|float)s?\b(?=[^.;]{0,12}"
    r"\b(of|in|from|found in|appearing in|mentioned in)\b[^.;]{0,12}\b(text|response|completion|output|string|reply|"
    r"solution)\b)"
)
_NUMBER_IN_PLACE = prose(
    r"\b(tags?|markers?|box\w*|####|braces|inside|between|enclosed|line|behind|prefix|suffix)\b|[<{`]"
)


def _promised_number(exam: Exam) -> str | None:
    """A sentence with a number that does not come out, though the docstring says that the number of a text does."""
    said = next((s for s in sentences(exam.doc) if _ANY_NUMBER.search(s)), None)
    if said is None or _NUMBER_IN_PLACE.search(exam.doc):
        return None
    tried = ("The result is 142", "The result is 142.", "142", "It is 142 in all")
    got = [exam.extractor.peek(t) for t in tried]
    missed = all(g is not None and not g.holds("142") for g in got)
    return tried[0] if missed else None


_ARROW = re.compile(
    r"(?P<q1>[\"'])(?P<text>(?:(?!(?P=q1)).){2,200})(?P=q1)[)`]*\s*(?:->|→|=>|==|gives|returns|becomes|yields)\s*"
    r"(?P<result>None\b|(?P<q2>[\"'])(?P<out>(?:(?!(?P=q2)).){0,100})(?P=q2)|-?\d+(?:\.\d+)?)"
)
_DOCTEST = re.compile(r">>> *\w+\((?P<call>.+)\)[ \t]*\n[ \t]*(?P<result>\S.*)?")


def documented(doc: str) -> Iterator[tuple[str, str | None]]:
    """Inputs with the answers that the docstring says they give; None: no answer."""
    for found in _ARROW.finditer(doc):
        result = found["result"]
        yield found["text"], None if result == "None" else found["out"] if found["q2"] else result
    for found in _DOCTEST.finditer(doc):
        try:
            text = ast.literal_eval(found["call"])
            result = ast.literal_eval((found["result"] or "None").strip())
        except (ValueError, SyntaxError):
            continue
        if isinstance(text, str) and (result is None or isinstance(result, (str, int, float))):
            yield text, None if result is None else str(result)


def _examples(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.examples", "does it give what the docstring shows?"
    shown = [(t, a) for t, a in documented(exam.doc) if not re.search(r"[\x00-\x08\x0b\x0c]|\.\.\.|…", t)]
    right = 0
    for text, answer in shown:
        escaped = text.replace("\\n", "\n").replace("\\\\", "\\")
        got = [f for t in dict.fromkeys((text, escaped)) if (f := exam.extractor.peek(t)) is not None]
        if any(f.nothing if answer is None else f.holds(answer) or (not answer and f.nothing) for f in got):
            right += 1
        elif got:
            says = f"the docstring shows {quote(text)} giving {quote(answer)}, and it gives {quote(got[0].value)}"
            yield violates(probe, asks, says, MISSED if answer else FALLBACK)
            return
    if right:
        yield agrees(probe, asks, f"{right} of {len(shown)} examples of the docstring come out as shown")


# What it must never do


def _malformed(exam: Exam) -> list[tuple[str, str]]:
    found = list(answers.MALFORMED)
    for win in exam.picks[:3]:
        found += [(f"{n} where the answer goes", win.format.write(a)) for n, a in _ODD_ANSWERS]
    found += [(f"the start of {w.format.name} and nothing else", w.parts[0]) for w in exam.picks[:3]]
    return [*found, ("many digits", "#### " + "9" * 5000), ("deep nesting", "\\boxed{" * 300)]


_ODD_ANSWERS = (
    ("nothing", ""),
    ("words", "five or so"),
    ("1/0", "1/0"),
    ("²", "²"),
    ("a lone sign", "-"),
    ("a comma", ","),
)


def _raising(exam: Exam) -> Check:
    probe, asks = "extract_answer.raises", "does a malformed completion give a result, not an exception?"
    items = _malformed(exam)
    before = len(exam.extractor.failures)
    for name, text in items:
        exam.extractor.peek(text, name)
    failed = exam.extractor.failures[before:]
    if not failed:
        return agrees(probe, asks, f"no exception on {len(items)} malformed completions")
    everyday = {name for name, _ in answers.MALFORMED[: answers.ORDINARY]}
    promised = bool(_PROMISES_RESULT.search(exam.doc))
    meant = bool(_RAISES.search(exam.doc)) and not promised

    def usual(what: str) -> bool:
        return what in everyday or "where the answer" in what or what.startswith("the start")

    sure = bool(exam.picks) and not meant
    hard = [f for f in failed if sure and (promised or (accidental(f[2]) and usual(f[0])))]
    name, text, e = (hard or failed)[0]
    if meant and all(not accidental(f[2]) for f in failed):
        return agrees(probe, asks, f"raises where there is no answer, as documented: {e.error}")
    says = f"raises on {name}: {quote(text)} gives {e.error} at {e.where}"
    numbers = {"completions that raise": float(len(failed))}
    return violates(probe, asks, says, RAISES, severity="hard" if hard else "soft", numbers=numbers)


_FRESH = {"number": ("8675", "8765"), "word": ("walrus", "falcon"), "option letter": ("A", "C")}


def _repeats(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.state", "does a completion give the same answer in every call?"
    texts = [w.format.write(a) for w in exam.picks[:6] for a in (w.kind.gold, w.kind.wrong[0], w.kind.other)]
    texts += [t for _, t in answers.MALFORMED[:20]]
    for win in exam.picks:
        # one length and one beginning, for caches with a short key
        texts += [f"{filler(400)}\n{win.format.write(a)}" for a in _FRESH.get(win.kind.name, ())]
    failed = {f[1] for f in exam.extractor.failures}
    texts = [t for t in dict.fromkeys(texts) if t not in failed]
    first = [exam.extractor.peek(t) for t in texts]
    again = [exam.extractor.peek(t) for t in reversed(texts)][::-1]
    for text, a, b in zip(texts, first, again, strict=True):
        if a is not None and b is not None and repr(a.atoms) != repr(b.atoms):
            given = f"{quote(text)} gives {quote(a.value)} and {quote(b.value)}"
            says = f"the same completion gives two answers in two calls: {given}"
            yield violates(probe, asks, says, STATE)
            return
    stale = next((s for w in exam.picks if (s := _stale(exam, w))), "")
    if stale:
        yield violates(probe, asks, stale, STATE)
        return
    yield agrees(probe, asks, "the same answer in every call")


def _stale(exam: Exam, win: Win) -> str:
    """Whether two completions that share beginning and length give one answer, though each has its own."""
    pair = _FRESH.get(win.kind.name)
    if pair is None:
        return ""
    texts = [f"{filler(400)}\n{win.format.write(a)}" for a in pair]
    got = [exam.extractor.peek(t) for t in texts]
    if any(g is None for g in got):
        return ""
    first, second = (g for g in got if g is not None)
    own = first.holds(pair[0]), second.holds(pair[1])
    others = first.holds(pair[1]), second.holds(pair[0])
    if sorted(own) == sorted(others) == [False, True]:
        ends = f"{quote(texts[0][-40:])} and {quote(texts[1][-40:])}"
        return f"of two completions that end in {ends} one gives the other one's answer"
    return ""


# No answer


def _sentinel(found: Found, text: str) -> bool:
    """A value that stands for 'no answer' and isn't part of the text: -1, `[invalid]`."""
    return bool(found.atoms) and all(
        (isinstance(a, str) and a.strip() not in text and not re.fullmatch(r"[\d.]+|None|null", a.strip())) or a == -1
        for a in found.atoms
        if a != ""
    )


def _nothing(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.nothing", "what comes out where there is no answer?"
    promised = _promises_none(exam.doc) and not _FALLS_BACK.search(exam.reading.prose)
    seen: list[str] = []
    for text in (*_NOTHING, *_empty_markers(exam)):
        got = exam.extractor.peek(text)
        if got is None or got.nothing or not re.search(r"\w", got.text):
            seen.append("None" if got is not None and got.value is None else "an empty answer")
            continue
        given = f"{quote(text)} gives {quote(got.value)}"
        if _splits_a_word(got.text, text):
            says = f"a piece of the text comes out where there is no answer, cut inside a word: {given}"
            yield violates(probe, asks, says, CUT, FALLBACK)
            return
        if _sentinel(got, text) and not promised:
            seen.append(quote(got.value))
            continue
        if promised:
            says = f"the docstring promises nothing where there is no answer: {given}"
            yield violates(probe, asks, says, FALLBACK)
            return
        if _FALLS_BACK.search(exam.reading.prose):
            seen.append("other text, as documented")
            continue
        says = f"where there is no answer, something passes for one: {given}. Is that meant?"
        yield violates(probe, asks, says, FALLBACK, severity="soft")
        return
    told = ", ".join(dict.fromkeys(seen)) or "nothing"
    yield agrees(probe, asks, f"without an answer: {told}")


def _promises_none(doc: str) -> bool:
    """Whether text without an answer is to give nothing; what blank text gives is another matter."""
    return any(_PROMISES_NONE.search(s) for s in re.split(r"(?<=[.;])\s", doc) if not _ABOUT_BLANK.search(s))


_ABOUT_BLANK = prose(
    r"\b(for|if|when|on)\b[^.;]{0,20}\b(blank|empty|falsy)\b[^.;]{0,12}\b(text|completion|input|response|string)"
)


def _empty_markers(exam: Exam) -> Iterator[str]:
    for win in exam.picks:
        if win.closed and win.marked:
            yield win.format.write("")
            yield win.format.write(" ")


def _splits_a_word(piece: str, text: str) -> bool:
    """Whether a result is a part of the text that begins or ends inside a word, as slices from a `find` of -1 do."""
    if not piece.strip() or piece not in text or len(piece) < 2 or not re.search(r"[A-Za-z]{2}", piece):
        return False
    at = text.index(piece)
    end = at + len(piece)
    starts = at > 0 and text[at - 1].isalpha() and piece[0].isalpha()
    ends = end < len(text) and piece[-1].isalpha() and text[end].isalpha()
    return starts or ends


def _unclosed(exam: Exam) -> Iterator[Check]:
    """A completion that was cut off behind its answer: half an answer is worse than none."""
    probe, asks = "extract_answer.unclosed", "what does an answer give whose marker was never closed?"
    closed = [w for w in exam.picks if w.closed and w.kind.name in ("number", "word")]
    for win in closed:
        text = win.parts[0] + win.kind.gold
        got = exam.extractor.peek(text)
        if got is None or got.nothing or got.holds(win.kind.gold):
            continue
        part = got.text.strip()
        if part and part != win.kind.gold and win.kind.gold.startswith(part):
            says = f"an answer without its closing marker loses its end: {quote(text)} gives {quote(got.value)}"
            yield violates(probe, asks, says, CUT)
            return
    if closed:
        yield agrees(probe, asks, "gives all of it or nothing")


def _letters(exam: Exam) -> Iterator[Check]:
    """Answers made of the letters of the marker, which `strip` with a set of characters eats."""
    probe, asks = "extract_answer.letters", "do answers survive that are made of the marker's letters?"
    for win in exam.picks:
        fixed = "".join(re.findall(r"[A-Za-z]+", " ".join(win.parts)[-40:]))
        own = "".join(dict.fromkeys(fixed))[::-1][:4]
        strange = "".join(c for c in "vzkqjyw" if c not in fixed.lower())[:4]
        if len(own) < 3 or len(strange) < 3:
            continue
        control, twin = f"{strange}9Q7{strange}", f"{own}9Q7{own}"
        fine, got = exam.extractor.peek(win.format.write(control)), exam.extractor.peek(win.format.write(twin))
        if fine is not None and got is not None and fine.holds(control) and not got.holds(twin):
            says = (
                f"an answer of the marker's own letters loses some of them: {quote(win.format.write(twin))} gives "
                f"{quote(got.value)}, though {quote(win.format.write(control))} gives {quote(fine.value)}"
            )
            yield violates(probe, asks, says, CUT)
            return


# Which answer


def _plain(exam: Exam) -> Iterator[Win]:
    """Formats that may stand anywhere in a text, the plainest first."""
    r = exam.markers.reasoning
    free = [w for w in exam.picks if r.close not in w.format.text and not w.format.text.startswith("{")]
    free = [w for w in free if _anywhere(exam, w)]
    yield from sorted(free, key=lambda w: (not w.marked, len(w.format.text)))


def _anywhere(exam: Exam, win: Win) -> bool:
    """Whether the answer is still found with a sentence in front of it or behind it."""
    right = win.format.write(win.kind.gold)
    got = (exam.extractor.peek(f"{NEUTRAL}\n{right}"), exam.extractor.peek(f"{right}\n{NEUTRAL}"))
    return any(g is not None and g.holds(win.kind.gold) for g in got)


def _two(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.two_answers", "which of two answers comes out?"
    said = exam.reading.prose
    last, first = (
        bool(LAST.search(said) or _LAST_ANSWER.search(said)),
        bool(FIRST.search(said) or _FIRST_ANSWER.search(said)),
    )
    told: list[str] = []
    for win in _plain(exam):
        right, wrong = win.format.write(win.kind.gold), win.format.write(win.kind.wrong[0])
        late, early = exam.extractor.peek(f"{wrong}\n{right}"), exam.extractor.peek(f"{right}\n{wrong}")
        if late is None or early is None:
            continue
        taken = _taken(win, late, early)
        given = f"{quote(wrong + chr(10) + right)} gives {quote(late.value)}"
        if taken == "merged" and not (
            _ANY.search(said) or re.search(r"greedy|first open\w*[^.;]{0,40}last clos", said, re.I)
        ):
            yield violates(
                probe, asks, f"two answers come out as one text, the markers between them included: {given}",
                WRONG_ONE, MISSED,
            )  # fmt: skip
            return
        if last != first and taken in ("last", "first") and taken != ("last" if last else "first"):
            promised = "last" if last else "first"
            yield violates(
                probe,
                asks,
                f"the {promised} answer counts by the docstring, and the {taken} one comes out: {given}",
                WRONG_ONE,
            )
            return
        told.append(taken)
    if told:
        yield agrees(probe, asks, f"of two answers {' or '.join(dict.fromkeys(told))}")


def _taken(win: Win, late: Found, early: Found) -> str:
    gold, wrong = win.kind.gold, win.kind.wrong[0]
    if late.holds(gold) and early.holds(gold):
        return "all of them"
    if late.holds(gold) and early.holds(wrong):
        return "last"
    if late.holds(wrong) and early.holds(gold):
        return "first"
    marker = next((m for m in (p.strip() for p in win.parts[::-1]) if len(m) >= 2), "")
    merged = marker and marker in late.text and gold in late.text and wrong in late.text
    return "merged" if merged and win.closed else "neither alone"


def _draft(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.draft", "which answer comes out, a draft inside the thinking or the one behind it?"
    r = exam.markers.reasoning
    for win in _plain(exam):
        right, wrong = win.format.write(win.kind.gold), win.format.write(win.kind.wrong[0])
        text = f"{r.open}\n{wrong} No.\n{r.close}\n{right}"
        got = exam.extractor.peek(text)
        if got is None or not got.holds(win.kind.wrong[0]) or got.holds(win.kind.gold):
            continue
        promised = BEHIND.search(exam.doc) and not BEHIND_TOO.search(exam.doc)
        says = (
            f"a draft inside the thinking comes out, not the answer behind it: {quote(text)} gives {quote(got.value)}"
        )
        yield violates(probe, asks, says, WRONG_ONE, severity="hard" if promised else "soft")
        return
    yield agrees(probe, asks, "the one behind it, or none")


def _decoys(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.decoy", "does something in the reasoning pass for the answer?"
    for win in _plain(exam):
        decoy = DECOYS.get(win.kind.name)
        if decoy is None or not win.marked:
            continue
        right = win.format.write(win.kind.gold)
        control, got = exam.extractor.peek(f"{NEUTRAL}\n{right}"), exam.extractor.peek(f"{decoy[0]}\n{right}")
        if control is None or got is None or not control.holds(win.kind.gold) or got.holds(win.kind.gold):
            continue
        if any(got.holds(t) for t in decoy[1]):
            given = f"{quote(decoy[0] + chr(10) + right)} gives {quote(got.value)}"
            says = f"something in the reasoning passes for the answer: {given}"
            hard = _ABOUT_MARKER.search(exam.doc) and not (FIRST.search(exam.doc) or _FIRST_ANSWER.search(exam.doc))
            yield violates(probe, asks, says, WRONG_ONE, severity="hard" if hard else "soft")
            return
    yield agrees(probe, asks, "numbers and letters in front of the answer are passed over")


# Where the answer stands


def _behind(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.behind", "does text behind the answer change it?"
    for win in _plain(exam):
        if not win.marked:
            continue
        text = f"{win.format.write(win.kind.gold)}\n{NEUTRAL}"
        got = exam.extractor.peek(text)
        if got is None or got.holds(win.kind.gold):
            continue
        given = f"{quote(text)} gives {quote(got.value)}"
        sure = bool(_SEES_ALL.search(exam.doc)) and not _AT_END.search(exam.doc)
        if got.nothing:
            if sure:
                yield violates(probe, asks, f"a sentence behind the answer makes it vanish: {given}", WINDOW, MISSED)
                return
            continue
        if NEUTRAL[:12] in got.text:
            alone = _IGNORES.search(exam.doc) or (forms.NUMERIC.search(exam.doc) and win.kind.name == "number")
            severity: Severity = "hard" if alone and not _AT_END.search(exam.doc) else "soft"
            yield violates(
                probe, asks, f"text behind the answer comes out with it: {given}", FALLBACK, severity=severity
            )
            return
    yield agrees(probe, asks, "text behind the answer does not come out with it")


def _window(exam: Exam) -> Iterator[Check]:
    probe, asks = "extract_answer.window", "is the answer found wherever it stands?"
    for win in _plain(exam):
        right = win.format.write(win.kind.gold)
        far = filler(700)
        if _falls(exam, win, f"{right}\n{NEUTRAL}", f"{right}\n{far}"):
            says = (
                f"the answer in {quote(right)} is found with {len(NEUTRAL)} characters behind it, not with {len(far)}"
            )
            hard = _SEES_ALL.search(exam.doc) and not _LIMITED.search(exam.doc)
            yield violates(
                probe, asks, says, WINDOW, severity="hard" if hard else "soft", numbers={"characters": float(len(far))}
            )
            return
        before = filler(2600)
        if _falls(exam, win, f"{NEUTRAL}\n{right}", f"{before}\n{right}"):
            says = (
                f"the answer in {quote(right)} is found behind {len(NEUTRAL)} characters of reasoning and not behind "
                f"{len(before)}"
            )
            soft = _LIMITED.search(exam.reading.prose)
            yield violates(
                probe,
                asks,
                says,
                WINDOW,
                severity="soft" if soft else "hard",
                numbers={"characters": float(len(before))},
            )
            return
    yield agrees(probe, asks, "text in front of the answer or behind it opens no window")


def _falls(exam: Exam, win: Win, short: str, long: str) -> bool:
    near, far = exam.extractor.peek(short), exam.extractor.peek(long)
    return near is not None and far is not None and near.holds(win.kind.gold) and not far.holds(win.kind.gold)


def _prompt(exam: Exam) -> Iterator[Check]:
    """An example in the prompt must not pass for the model's answer."""
    prefix = exam.extractor.prefix
    if not (prefix or exam.extractor.prompted):
        return
    probe, asks = "extract_answer.prompt", "is an example in the prompt passed over?"
    for win in exam.picks[:3]:
        shown = win.format.write(win.kind.gold)
        if prefix:
            exam.extractor.prefix = ""
            got = exam.extractor.peek(f"User: Answer like this: {shown}\n{prefix.split(chr(10), 1)[1]}I do not know.")
            exam.extractor.prefix = prefix
        else:
            got = exam.extractor.peek("I do not know.", "prompt") if not shown else _with_prompt(exam, shown)
        if got is not None and got.holds(win.kind.gold):
            says = f"the example {quote(shown)} in the prompt comes out as the answer of a completion that has none"
            yield violates(probe, asks, says, WRONG_ONE)
            return
    yield agrees(probe, asks, "an example in the prompt is passed over")


def _with_prompt(exam: Exam, shown: str) -> Found | None:
    try:
        return exam.extractor.one("I do not know.", f"Which one is it? Answer like this: {shown}\n")
    except CallFailed:
        return None


def _rows(exam: Exam) -> Iterator[Check]:
    if not exam.extractor.many:
        return
    probe, asks = "extract_answer.batch", "does every completion give its own answer?"
    texts = [w.format.write(a) for w in exam.picks for a in (w.kind.gold, w.kind.other)]
    texts = [t for text in texts for t in (text, "I do not know.")]
    try:
        alone = [exam.extractor.one(t) for t in texts]
        together, turned = exam.extractor.batch(texts), exam.extractor.batch(texts[::-1])
    except CallFailed:
        return
    if together is None or turned is None:
        yield violates(probe, asks, f"{len(texts)} completions do not give {len(texts)} answers", MISALIGNED)
        return
    for text, a, b, c in zip(texts, alone, together, turned[::-1], strict=True):
        if not repr(a.atoms) == repr(b.atoms) == repr(c.atoms):
            given = f"{quote(text)} gives {quote(a.value)} and {quote(b.value)}"
            says = f"alone and in a batch a completion gives two answers: {given}"
            yield violates(probe, asks, says, MISALIGNED)
            return
    yield agrees(probe, asks, "one answer for each completion, whatever stands beside it")


def example(intent: Mapping[str, Any]) -> Case:
    """A plain case for the binder."""
    usual = "<think>\nLet me see.\n</think>\n<answer>\n{0}\n</answer>\nSo \\boxed{{{0}}}\nAnswer: {0}\n#### {0}"
    texts = [usual.format(a) for a in ("42", "17")]
    inputs = {
        "completion": texts[0],
        "text": texts[0],
        "completions": texts,
        "texts": texts,
        "prompt": "How many are there?",
        "prompts": ["How many are there?"] * 2,
        "answer": "42",
        "answers": ["42", "17"],
    }
    return Case(name="plain", inputs=inputs)


ROLE = Role(
    name="extract_answer",
    stage="reward",
    asks="a completion -> the answer in it, as it is compared with the gold answer",
    takes=("completion", "text", "completions", "texts", "prompt", "prompts", "answer", "answers"),
    needs=(("completion", "text", "completions", "texts"),),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)
