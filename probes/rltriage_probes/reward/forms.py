"""Forms in which an answer may be written, and what an extractor must not do to them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rltriage_probes.contract import Check
from rltriage_probes.reading import prose, sentences
from rltriage_probes.reward.extraction import Exam, Found, Win, equal
from rltriage_probes.reward.pitfalls import CUT, MISSED
from rltriage_probes.texts import agrees, quote, violates

NUMERIC = prose(r"\b(numbers?|numeric\w*|numerals?|floats?|decimals?|values?)\b")
_UNSIGNED = prose(
    r"non-?negative|positive|natural|unsigned|magnitude|absolute|\b0\s*(-|–|to|\.\.)\s*\d|\bcount|\baime\b|"
    r"digits? only|\bdigits\b"
)
_WHOLE = prose(r"\bintegers?\b|\bints?\b|\bwhole numbers?\b|\bdigits?\b")
_KEPT = prose(
    r"\b(kept|keeps?|preserv\w*|not (removed|stripped|touched|dropped)|remains?|stays?|verbatim)\b|n't (strip|"
    r"remov|touch|drop)"
)
_ONE_WORD = prose(
    r"\b(one|single|first|last) (word|token|letter|option|choice|character)\b|\bletter\b|\bword\b|\boption\b"
)


def _removes(thing: str) -> re.Pattern[str]:
    """A pattern for "`thing` is removed" and for "without `thing`"."""
    verb = r"remov\w*|stripp?\w*|dropp?\w*|ignor\w*|trimm?\w*|cut off|taken off|delet\w*|discard\w*"
    return prose(
        rf"({thing})[^.;]{{0,40}}\b({verb})\b|\b({verb}|without|minus|no|less|clean\w* of)\b[^.;]{{0,40}}({thing})"
    )


@dataclass(frozen=True, kw_only=True)
class Form:
    """A way to write an answer. One of `right` has to come out; none of `left` may stand in what does."""

    name: str
    kind: str
    answer: str
    right: tuple[str, ...]
    always: bool = False
    """Whether another answer in its place is wrong under every convention."""
    asked: bool = True
    """Whether it is tried without a promise."""
    boxed: bool = False
    """Only in a box."""
    promise: re.Pattern[str] | None = None
    left: str = ""
    """Under the promise this pattern may not be found in the result."""
    unless: re.Pattern[str] | None = None
    """Docstrings under which the form does not occur."""


_FORMS = (
    Form(name="a negative number", kind="number", answer="-142", right=("-142",), unless=_UNSIGNED,
         promise=prose(r"\b(signed|negative|minus)\b|\bnumbers?\b|\bnumeric")),
    Form(name="a decimal number", kind="number", answer="14.5", right=("14.5",), unless=_WHOLE,
         promise=prose(r"\bdecimals?\b|\bfloats?\b|\bnumbers?\b|\bnumeric")),
    Form(name="a number that ends in zeros", kind="number", answer="1400", right=("1400",), always=True,
         unless=prose(r"\b999\b|\bthree digits|\baime\b")),
    Form(name="zero", kind="number", answer="0", right=("0",), always=True),
    Form(name="a number of one digit", kind="number", answer="7", right=("7",), always=True),
    Form(name="a small decimal number", kind="number", answer="0.05", right=("0.05",), unless=_WHOLE,
         promise=prose(r"\bdecimals?\b|\bfloats?\b")),
    Form(name="a number with thousands separators", kind="number", answer="1,420", right=("1420",),
         promise=_removes(r"\bcommas?\b|\bthousands?\b"), left=","),
    Form(name="a number behind a dollar sign", kind="number", answer="$142", right=("142",), asked=False,
         promise=_removes(r"\bdollars?\b|\bcurrenc\w*|\$"), left=r"\$"),
    Form(name="a percentage", kind="number", answer="50%", right=("50", "0.5"), asked=False,
         promise=_removes(r"\bper ?cent\w*|%"), left="%"),
    Form(name="a number with its unit", kind="number", answer="142 cm", right=("142",), asked=False,
         promise=_removes(r"\bunits?\b(?! test)"), left="cm"),
    Form(name="a number with a full stop", kind="number", answer="142.", right=("142",), asked=False,
         promise=_removes(r"\b(trailing|final|closing) (full stops?|periods?|dots?|punctuation)|\bpunctuation\b"),
         left=r"\.$"),
    Form(name="an answer between blanks", kind="number", answer="  142  ", right=("142",), asked=False,
         promise=_removes(r"\bwhite ?-?space|\bblanks?\b|\bspaces\b|\bsurrounding (blanks|spaces)"), left=r"^\s|\s$"),
    Form(name="a word between blanks", kind="word", answer="  zebra  ", right=("zebra",), asked=False,
         promise=_removes(r"\bwhite ?-?space|\bblanks?\b|\bspaces\b|\bsurrounding (blanks|spaces)"), left=r"^\s|\s$"),
    Form(name="an answer in quotes", kind="word", answer='"zebra"', right=("zebra",), asked=False,
         promise=_removes(r"\bquotes?\b|\bquotation marks?"), left='"'),
    Form(name="an answer in bold", kind="number", answer="**142**", right=("142",), asked=False,
         promise=_removes(r"\basterisks?\b|\bbold\b|\bmarkdown\b|\*\*"), left=r"\*"),
    Form(name="an answer in capitals", kind="word", answer="ZEBRA", right=("zebra",), asked=False,
         promise=prose(r"\blower-?cased?\b|\bin lower case\b"), left="[A-Z]"),
    Form(name="a small option letter", kind="option letter", answer="b", right=("B",), asked=False,
         promise=prose(r"\bcase-?insensitiv|\bupper-?cased?\b|\bin upper case\b|\bregardless of (letter )?case|"
                       r"(?<!\bin )\bany case\b")),
    Form(name="a fraction in LaTeX", kind="word", answer="\\frac{3}{7}", right=("\\frac{3}{7}", "3/7"), boxed=True,
         promise=prose(r"\bnested\b|\bbalanced\b|\bbraces\b|\\\\?d?frac\b|\blatex\b")),
    Form(name="braces inside braces", kind="word", answer="x^{\\frac{1}{2}}", boxed=True,
         right=("x^{\\frac{1}{2}}",), promise=prose(r"\bnested\b|\bbalanced\b|\bbraces\b")),
    Form(name="an answer of two words", kind="word", answer="New York", right=("New York",), unless=_ONE_WORD,
         promise=prose(r"\bmulti-?word|\bseveral words|\bphrases?\b")),
    Form(name="an answer on a line of its own", kind="*", answer="\n@\n", right=("@",),
         promise=prose(r"\bmulti-?line|\bseveral lines|\b(line ?breaks?|newlines?)\b|\bspans? lines")),
    Form(name="an answer of two lines", kind="word", answer="red fox\nblue owl", asked=False,
         right=("red fox\nblue owl",),
         promise=prose(r"\bmulti-?line|\bseveral lines|\bspans? (several |many )?lines|\bacross lines")),
    Form(name="a pair in brackets", kind="word", answer="(3, 5)", right=("(3, 5)",), boxed=True,
         promise=prose(r"\btuples?\b|\bpairs?\b|\bintervals?\b|\bcoordinates?\b")),
)  # fmt: skip


def check(exam: Exam) -> Iterator[Check]:
    """Does the answer come out whole in every form that models write, or that is documented?"""
    probe, asks = "extract_answer.forms", "does the answer come out whole, however it is written?"
    broken: list[tuple[Form, str, Found]] = []
    doubted: list[tuple[Form, str, Found]] = []
    lost: list[tuple[Form, str, Found]] = []
    silent = exam.extractor.peek("I do not know.")
    for form in _FORMS:
        promised = _promised(form, exam)
        if not (promised or form.asked) or (form.unless is not None and form.unless.search(exam.reading.prose)):
            continue
        bad = _refused(exam, form, promised)
        if bad is None:
            continue
        text, got = bad
        cut = not got.nothing and (silent is None or got.atoms != silent.atoms)
        short = len(form.answer) == 1
        if (form.always and (cut or short)) or (cut and _unbalanced(got, form)):
            lost.append((form, text, got))
        elif promised and (cut or not _NUMBERS_ONLY.search(form.name)):
            broken.append((form, text, got))
        else:
            doubted.append((form, text, got))
    for found, pitfall, says in (
        (lost, CUT, "characters of the answer are lost"),
        (broken, MISSED, "what comes out is not what the docstring promises"),
    ):
        if found:
            kinds = (CUT, MISSED) if pitfall is MISSED and not found[0][2].nothing else (pitfall,)
            numbers = {"forms": float(len(found))}
            yield violates(probe, asks, f"{says}: {_told(found)}", *kinds, numbers=numbers)
            return
    if doubted:
        cut = any(not got.nothing for _, _, got in doubted)
        says = f"{_told(doubted)}. Can the data have such answers?"
        yield violates(probe, asks, says, CUT if cut else MISSED, severity="soft")
        return
    yield agrees(probe, asks, "signs, decimals, zeros, braces and what the docstring promises come out whole")


_NUMBERS_ONLY = re.compile(r"^a (negative|decimal) number$")
"""Forms that the bare word 'number' promises: another number in their place breaks it, no result only asks."""


def _promised(form: Form, exam: Exam) -> bool:
    if form.promise is None:
        return False
    return any(form.promise.search(s) and (not form.left or not _KEPT.search(s)) for s in sentences(exam.doc))


def _told(found: list[tuple[Form, str, Found]]) -> str:
    return "; ".join(f"{f.name}: {quote(text)} gives {quote(got.value)}" for f, text, got in found[:3])


def _unbalanced(got: Found, form: Form) -> bool:
    """Whether a brace of the answer was taken for the end of the box."""
    return form.boxed and got.text.count("{") > got.text.count("}") and got.text.strip() in form.answer


def _refused(exam: Exam, form: Form, promised: bool) -> tuple[str, Found] | None:
    """The text whose answer does not come out in any format; None: it does, or it is not to be asked."""
    wins = [w for w in exam.picks if form.kind in ("*", w.kind.name)]
    if form.kind == "*":
        wins = [w for w in wins if w.closed]
    if form.boxed:
        wins = [w for w in exam.wins if "\\boxed{" in w.format.text and w.kind.name == "word"][:2]
    bad: list[tuple[str, Found]] = []
    for win in wins:
        if form.answer.endswith(".") and win.parts[1].startswith("."):
            continue  # two full stops are no full stop
        text = win.format.write(form.answer.replace("@", win.kind.gold))
        got = exam.extractor.peek(text)
        if got is None:
            continue
        if _fine(form, win, got, promised):
            return None
        bad.append((text, got))
    return bad[0] if bad else None


def _fine(form: Form, win: Win, got: Found, promised: bool) -> bool:
    wanted = [r.replace("@", win.kind.gold) for r in form.right]
    if not any(got.holds(w) or _loosely(got, w) for w in wanted):
        return False
    return not (promised and form.left) or not any(
        isinstance(a, str) and re.search(form.left, a) and any(equal(a, w) for w in (*wanted, form.answer))
        for a in got.atoms
    )


def _loosely(got: Found, wanted: str) -> bool:
    """Equal but for white space, as normalisers leave it."""
    tight = re.sub(r"\s+|\\[,!;]", "", wanted).casefold()
    return any(isinstance(a, str) and re.sub(r"\s+|\\[,!;]", "", a).casefold() == tight for a in got.atoms)
