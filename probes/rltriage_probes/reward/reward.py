"""Role `reward`: completions (and gold answers, prompts) to one score each.

What a right answer looks like differs from reward to reward, so the probe first searches for a *golden*
completion: a format in which the gold answer earns more than a wrong one. With it in hand it asks what every
sane reward obeys: one finite score a completion, whatever stands beside it or came before; and no full marks
for an empty answer, a part of the answer, or a list of all options.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rltriage_probes.contract import Check, Diverges, NotRun, Raised, Severity
from rltriage_probes.model import CallFailed, Case, Role, Subject
from rltriage_probes.reading import Markers, Reading, markers, prose, read
from rltriage_probes.reward import answers, holes, infrastructure, memory, programs, promises, sight
from rltriage_probes.reward.answers import EXPRESSION, GOLDS, KINDS, NEUTRAL, Format, Gold, Kind
from rltriage_probes.reward.exam import (
    CONSTANT,
    FORMAT,
    HOLE,
    INVERTED,
    LENGTH,
    NONFINITE,
    OPEN_TAG,
    ORDER,
    PITFALLS,
    RAISES,
    STATE,
    WINDOW,
    Exam,
    Win,
)
from rltriage_probes.reward.scoring import PROMPTS, Item, Scorer, same
from rltriage_probes.texts import accidental, agrees, quote, violates

_RELATIVE = re.compile(
    r"\bgroups?\b|\bbatch|relative|\brank|\bmean\b|\bstd\b|normali[sz]ed? (over|by|within|across)|"
    r"divers|duplicat|uniq|novel|peers?\b|"
    r"siblings?|others\b|compared (to|with)|pairwise",
    re.I,
)
_RELATIVE_CODE = re.compile(
    r"\b(max|min|sum|mean|std|median|stdev|Counter)\((len|lengths|lens|map\(len|completions|texts|"
    r"responses|rewards|scores)|\.(mean|std|max|min)\(|"
    r"num_generations|group_size"
)
_RANDOM = re.compile(r"random|noise|stochastic|sampled reward|coin|jitter", re.I)
_PROMISES_SCORE = re.compile(
    r"\b(0(\.0)?|zero|-1(\.0)?)\b[^.;]{0,60}\b(otherwise|else)\b|\b(otherwise|else)\b[^.;]{0,30}(0(\.0)?\b|zero|-1)|"
    r"\bscor(e|es|ed|ing)\b[^.;]{0,20}\b(0|zero)|never raise|\bone (float|score|reward|number)\b|"
    r"\b(get|earn|receive|give)s?\b[^.;]{0,10}\b(0|zero)|not a number|malformed|unparse?able|(can't|"
    r"cannot|fails? to) (be )?parse",
    re.I,
)
_SEES_ALL = re.compile(
    r"\b(whole|entire|full|anywhere|all of)\b[^.;]{0,40}\b(response|completion|text|output)|"
    r"\blast\b[^.;]{0,60}\b(of|in) the (response|completion|text|output|solution)|"
    r"\b(text|anything|whatever)\b[^.;]{0,30}\b(after|behind|follow)[^.;]{0,40}(ignored|allowed|doesn't|"
    r"does not|no effect)",
    re.I,
)
_LIMITED = re.compile(
    r"length|\blong|char|token|limit|window|truncat|\bfirst\b|\btail\b|\bhead\b|\bend of\b|brev|concise|short", re.I
)
_ABSTAINS = re.compile(r"\bnan\b|\bnone\b|abstain|skip", re.I)
_PENALTY = re.compile(r"penalt|distance|error|loss|cost", re.I)


def run(subject: Subject) -> Iterator[Check]:
    """All checks of one reward function. Nothing is called on the network meanwhile."""
    reading = read(subject)
    if not infrastructure.needs_network(reading):
        yield from _examined(subject, reading)
        return
    with infrastructure.no_network():
        yield from _examined(subject, reading)


def _examined(subject: Subject, reading: Reading) -> Iterator[Check]:
    exam = Exam(Scorer(subject), reading, markers(reading), unread_gold=_unread(subject, reading))
    scorer = exam.scorer
    if (
        scorer.graded
        and exam.unread_gold
        and not re.search("right|correct|accura|answer|gold|truth|match", exam.doc + reading.name, re.I)
    ):
        scorer.graded = False  # a column that comes along and isn't used
    if scorer.graded:
        _search(exam)
    if infrastructure.needs_network(reading) and not exam.wins and (_refused(exam) or _flat(exam)):
        yield from infrastructure.check(exam)
        yield _outside(exam)
        return
    malformed = _score_malformed(exam)
    if not scorer.log.scored and not scorer.log.nonfinite and not scorer.log.uneven:
        yield _no_number(exam)
        return
    yield from _lengths(exam)
    yield _finite(exam)
    yield _raising(exam, malformed)
    yield from _independence(exam)
    if scorer.graded:
        yield from _golden(exam)
    yield from promises.amounts(exam)
    yield from infrastructure.check(exam)
    yield from sight.check(exam, subject)
    if exam.wins and exam.wins[0].kind.name in ("function", "program"):
        yield from holes.canaries(exam)
    if exam.wins:
        yield from holes.check(exam)
        yield from holes.two_answers(exam)
        yield from holes.draft(exam)
        yield from holes.decoys(exam)
        yield from promises.forms(exam)
        yield from promises.tolerance(exam)
        yield from promises.golds(exam)
        yield from _appended(exam)
        yield from _window(exam)
    yield from _format(exam)
    yield from promises.length(exam)
    yield from memory.reseeds(exam)
    if scorer.log.cut:
        reason = f"{scorer.log.cut} completions were not scored, because the function is slow"
        do = "Bind the part that grades a text, without the judge, the sandbox or the network behind it."
        yield Check(probe="reward.time", asks="was all of it scored?", outcome=NotRun(reason=reason, do=do))


def _flat(exam: Exam) -> bool:
    """Whether the network that is shut off decides all scores."""
    for text in ("So it is 4.", "I do not know.", "<think>\nLet me see.\n</think>\n<answer>4</answer>"):
        exam.scorer.one(Item(text, exam.default_gold()))
    return len(exam.scorer.log.values) <= 1


def _refused(exam: Exam) -> bool:
    """Whether scores are missing because the network is shut off."""
    return any("refused" in e.error.lower() for _, _, e in exam.scorer.log.failures)


def _outside(exam: Exam) -> Check:
    judge = infrastructure.is_judge(exam.reading)
    what = "a language model behind a client" if judge else "a service on the network"
    reason = f"the score comes from {what}, which is not called here"
    do = "Bind the part that turns its reply into a score, or an adapter whose replies are canned."
    return Check(probe="reward.scores", asks="does it give scores?", outcome=NotRun(reason=reason, do=do))


def _no_number(exam: Exam) -> Check:
    log = exam.scorer.log
    probe, asks = "reward.scores", "does it give scores?"
    if log.failures and not log.odd:
        name, item, e = log.failures[0]
        return Check(
            probe=probe, asks=asks, outcome=Raised(error=e.error, where=e.where, case=f"{name}: {quote(item.text)}")
        )
    got = quote(log.odd[0]) if log.odd else "None for every completion"
    reason = f"the function returns {got}, in which there is no number"
    return Check(
        probe=probe,
        asks=asks,
        outcome=NotRun(reason=reason, do="bind another function, or an adapter that returns floats"),
    )


# The golden completion


def _search(exam: Exam) -> None:
    """Fill `exam.wins`: for the first way of writing golds that works, every kind and format."""
    tried = answers.formats(exam.reading, exam.markers)
    if exam.scorer.puzzle:
        exam.wins += _wins(exam, EXPRESSION, GOLDS[0], tried)
        return
    if _special(exam):
        return
    for gold in GOLDS:
        for kind in KINDS:
            if exam.scorer.late:
                return
            if gold is not GOLDS[0] and kind not in KINDS[:2]:
                continue  # other ways of writing show with any kind
            exam.wins += _wins(exam, kind, gold, tried)
        if exam.wins or exam.losses:
            return


def _special(exam: Exam) -> bool:
    """Programs with tests, and tool calls, where the code speaks of them."""
    kinds: list[tuple[Kind, Sequence[Gold], Sequence[Format]]] = []
    if programs.runs_code(exam.reading):
        kinds.append((programs.FUNCTION, programs.FUNCTION_GOLDS, programs.FORMATS))
        kinds.append((programs.PROGRAM, programs.PROGRAM_GOLDS, programs.FORMATS))
    if programs.takes_calls(exam.reading):
        kinds.append((programs.CALL, programs.CALL_GOLDS, programs.CALL_FORMATS))
    for kind, golds, formats in kinds:
        for gold in golds:
            for f in (*formats, *answers.in_tags(exam.reading)):
                if exam.scorer.late:
                    return False
                exam.wins += _wins(exam, kind, gold, [f])
                if exam.wins:  # each of them may take a process of its own
                    return True
    return False


def _wins(exam: Exam, kind: Kind, gold: Gold, tried: Sequence[Format]) -> Iterator[Win]:
    try:
        written, other = gold.write(kind.gold), gold.write(kind.other)
    except ValueError:
        return  # no number of this kind
    failed = 0
    for f in tried:
        right, swapped = Item(f.write(kind.gold), written), Item(f.write(kind.other), written)
        before = len(exam.scorer.log.failures)
        top, low = exam.scorer.one(right, "search"), exam.scorer.one(swapped, "search")
        failed = failed + 1 if len(exam.scorer.log.failures) > before else 0
        if failed > 5 or exam.scorer.late:
            return
        if top == low or math.isnan(top) or math.isnan(low):
            continue
        # with the gold answers exchanged the order has to turn, or the text itself is what is scored
        top2 = exam.scorer.one(Item(f.write(kind.other), other), "search")
        low2 = exam.scorer.one(Item(f.write(kind.gold), other), "search")
        if top > low and top2 > low2:
            yield Win(kind, gold, f, top, low)
        elif top > low and same(top2, low) and same(low2, top):
            exam.suspects.append(Win(kind, gold, f, top, low))
        elif top < low and top2 < low2:
            exam.losses.append((right, top, swapped, low))


def _golden(exam: Exam) -> Iterator[Check]:
    probe, asks = "reward.golden", "does a right answer earn more than a wrong one?"
    if exam.wins:
        yield agrees(probe, asks, _convention(exam))
        return
    if exam.losses:
        right, top, wrong, low = exam.losses[0]
        says = (
            f"a wrong answer earns more than the right one: {quote(wrong.text)} earns {low:g}, "
            f"{quote(right.text)} earns {top:g}, the gold answer is {quote(right.gold)}"
        )
        soft = _PENALTY.search(exam.reading.name + " " + exam.doc)
        yield violates(probe, asks, says, INVERTED, severity="soft" if soft else "hard")
        return
    values = exam.scorer.log.values
    if len(values) == 1 and not exam.scorer.log.abstained:
        yield _constant(exam, probe, asks, next(iter(values)))
        return
    late = ", and the search was cut short because the function is slow" if exam.scorer.late else ""
    says = (
        f"no completion was found in which a right answer earns more than a wrong one "
        f"({exam.scorer.log.scored} scores of "
        f"{len(KINDS)} kinds of answer{late}); "
        "quote a well-formed completion in the docstring, and what lies behind it can be checked"
    )
    yield _unknown(probe, asks, says, exam)


def _constant(exam: Exam, probe: str, asks: str, value: float) -> Check:
    says = f"every one of {exam.scorer.log.scored} completions, right, wrong and empty, earns {value:g}"
    if value > 0 and not _PENALTY.search(exam.reading.name + " " + exam.doc):
        return violates(probe, asks, says, CONSTANT, HOLE)
    if _reads_nothing(exam) or exam.unread_gold:
        return violates(probe, asks, f"{says}: the code never looks at {exam.unread_gold or 'them'}", CONSTANT)
    says += "; either no format that was tried is its own, or an error is swallowed"
    return _unknown(probe, asks, says, exam)


def _unknown(probe: str, asks: str, says: str, exam: Exam) -> Check:
    return Check(probe=probe, asks=asks, outcome=Diverges(says=says, numbers={"scores": float(exam.scorer.log.scored)}))


def _reads_nothing(exam: Exam) -> bool:
    """Whether the function uses its parameters for nothing but their number."""
    try:
        tree = ast.parse(exam.reading.code)
    except SyntaxError:
        return False
    counted = {id(c.args[0]) for c in ast.walk(tree) if isinstance(c, ast.Call) and _name(c.func) == "len" and c.args}
    loads = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and id(n) not in counted
    }
    loads |= {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    # `for _ in completions` reads their number, too
    over = {
        n.iter.id
        for n in ast.walk(tree)
        if isinstance(n, (ast.For, ast.comprehension)) and isinstance(n.iter, ast.Name) and _name(n.target) == "_"
    }
    texts = [p for p in exam.reading.parameters if p not in ("self", "kwargs")]
    return bool(texts) and not (loads - over) & set(texts)


def _unread(subject: Subject, reading: Reading) -> str:
    golds = [s.path for s in subject.bound.report.slots if s.meaning in ("answers", "answer")]
    return next((g for g in golds if g in reading.parameters and g not in reading.reads), "")


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _convention(exam: Exam) -> str:
    best = exam.best
    kinds = ", ".join(dict.fromkeys(w.kind.name for w in best))
    named = list(dict.fromkeys(w.format.name for w in best))
    shown = ", ".join(named[:4]) + (f" and {len(named) - 4} more formats" if len(named) > 4 else "")
    gold = "" if best[0].gold is GOLDS[0] else f"; gold answers written as {best[0].gold.name}"
    return f"a right answer ({kinds}) earns {best[0].top:g}, a wrong one {best[0].low:g}; full marks in: {shown}{gold}"


# Structure


def _score_malformed(exam: Exam) -> list[tuple[str, Item]]:
    best = exam.best[0].format if exam.wins else None
    items = [(name, Item(text, exam.default_gold())) for name, text in answers.wrapped_malformed(best)]
    if exam.costly:
        items = items[: answers.ORDINARY]
    for name, item in items:
        exam.scorer.one(item, name)
    return items


def _lengths(exam: Exam) -> Iterator[Check]:
    probe, asks = "reward.length", "one reward for each completion?"
    log = exam.scorer.log
    uneven = [*log.uneven, *(log.scalars if log.lists else [])]
    if not exam.scorer.many:
        return
    if uneven:
        items, value = uneven[0]
        got = len(value) if hasattr(value, "__len__") else 1
        if isinstance(value, (int, float)):
            says = f"one number where other completions give a list: {quote(items[0].text)} gives {quote(value)}"
            yield violates(probe, asks, says, LENGTH)
            return
        says = (
            f"{len(items)} completion{'s' if len(items) > 1 else ''} give {got} "
            f"rewards: {quote(items[0].text)} gives {quote(value)}"
        )
        yield violates(probe, asks, says, LENGTH, numbers={"completions": float(len(items)), "rewards": float(got)})
        return
    items = _mixed(exam)
    if exam.scorer.over:
        return
    try:
        scores = exam.scorer.batch(items)
    except CallFailed:
        return  # told by the check on batches
    if scores is None:
        yield violates(probe, asks, f"{len(items)} completions do not give {len(items)} rewards", LENGTH)
    elif (got := _without_gold(exam, items)) is not None:
        says = (
            f"{len(items)} completions, one of which has no gold answer (None), give {got} rewards: the rest moves up"
        )
        numbers = {"completions": float(len(items)), "rewards": float(got)}
        yield violates(probe, asks, says, LENGTH, numbers=numbers)
    elif (got := _odd_number(exam, items[:13])) is not None:
        says = f"13 completions give {got} rewards, {len(items)} give {len(items)}: a remainder is dropped or made up"
        yield violates(probe, asks, says, LENGTH, numbers={"completions": 13.0, "rewards": float(got)})
    else:
        yield agrees(probe, asks, f"{len(items)} completions give {len(items)} rewards")


def _without_gold(exam: Exam, items: Sequence[Item]) -> int | None:
    """How many rewards come back where the gold answer of one row is missing; None: as many, or it raises."""
    if not exam.scorer.graded or exam.scorer.puzzle or exam.scorer.one_a_prompt or len(items) < 2:
        return None
    return exam.scorer.count([items[0], Item(items[1].text, None, items[1].prompt), *items[2:]])


def _odd_number(exam: Exam, items: Sequence[Item]) -> int | None:
    """How many rewards a number of completions gets that no chunk size divides; None: as many, or not to be asked."""
    grouped = re.search(r"num_generations|group_size|n_samples|num_samples", exam.reading.code)
    if len(items) < 13 or grouped or _RELATIVE.search(exam.reading.prose):
        return None
    return exam.scorer.count(items)


def _finite(exam: Exam) -> Check:
    probe, asks = "reward.finite", "is every reward a finite number?"
    log = exam.scorer.log
    if log.nonfinite:
        item, value = log.nonfinite[0]
        says = f"{quote(item.text)} earns {value}"
        documented = math.isnan(value) and _ABSTAINS.search(exam.doc)
        numbers = {"share of all scores": len(log.nonfinite) / (len(log.nonfinite) + log.scored)}
        severity: Severity = "soft" if documented else "hard"
        return violates(probe, asks, says, NONFINITE, severity=severity, numbers=numbers)
    abstains = f"; abstains (None) on {log.abstained} completions" if log.abstained else ""
    return agrees(probe, asks, f"finite{abstains}")


def _raising(exam: Exam, malformed: Sequence[tuple[str, Item]]) -> Check:
    probe, asks = "reward.raises", "does a malformed completion get a score, not an exception?"
    names = {name for name, _ in malformed}
    failed = [f for f in exam.scorer.log.failures if f[0] in names]
    if not failed:
        return agrees(probe, asks, f"no exception on {len(names)} malformed completions")
    everyday = {name for name, _ in answers.MALFORMED[: answers.ORDINARY]}
    # an exception may come from a gold answer of a form that this reward never meets
    sure = bool(exam.wins) or not exam.scorer.graded
    promised = bool(_PROMISES_SCORE.search(exam.doc))
    hard = [
        f
        for f in failed
        if sure and (promised or (accidental(f[2]) and (f[0] in everyday or "where the answer" in f[0])))
    ]
    name, item, e = (hard or failed)[0]
    says = f"raises on {name}: {quote(item.text)} gives {e.error} at {e.where}"
    says += "; the docstring promises a score" if promised and hard else ""
    return violates(
        probe,
        asks,
        says,
        RAISES,
        severity="hard" if hard else "soft",
        numbers={"completions that raise": float(len(failed))},
    )


def _mixed(exam: Exam) -> list[Item]:
    """A batch of right, wrong and malformed completions: two prompts, each with one gold answer."""
    items: list[Item] = []
    if exam.wins:
        for win in exam.picks[:3]:
            k = win.kind
            items += [win.item(k.gold), win.item(k.wrong[0]), win.item(k.gold), win.item(k.other)]
            items += [win.item(a, k.other, PROMPTS[1]) for a in (k.other, k.gold, k.wrong[0], k.other)]
    gold = exam.default_gold()
    items += [Item(s, gold) for s in answers.laid_out(exam.markers)[:6]]
    for at, (_, text) in enumerate(answers.MALFORMED):
        if exam.wins and at % 2 == 0:  # what a right answer leaves behind must not reach the next one
            items.append(Item(exam.wins[0].format.write(exam.wins[0].kind.gold), gold, PROMPTS[2]))
        items.append(Item(text, gold, PROMPTS[2]))
    bad = {f[1].text for f in exam.scorer.log.failures} | {u[0][0].text for u in exam.scorer.log.uneven}
    items = [i for i in items if i.text not in bad]
    if bad and not exam.scorer.late:  # others may raise in the same way
        items = [i for i in items if exam.scorer.failure(i) is None]
    if exam.scorer.late or exam.costly:  # a slow function: what is left of the time is for two small batches
        items = items[: 2 * exam.scorer.group]
    return items[: len(items) - len(items) % exam.scorer.group] or items


def _independence(exam: Exam) -> Iterator[Check]:
    scorer, items = exam.scorer, _mixed(exam)
    alone = [scorer.one(i, "mixed") for i in items]
    raising = {f[1] for f in scorer.log.failures if isinstance(f[1].gold, str)}
    kept = [(i, a) for i, a in zip(items, alone, strict=True) if i not in raising]
    if len(kept) < len(items):  # told by the check on raising
        kept = kept[: len(kept) - len(kept) % scorer.group] or kept
        items, alone = [i for i, _ in kept], [a for _, a in kept]
    if not items:
        return
    again = [scorer.one(i, "mixed") for i in reversed(items)][::-1]
    yield _repeat(exam, items, alone, again, memory.carried_over(exam))
    if not scorer.many or scorer.log.uneven or scorer.over:
        return
    try:
        together, turned = scorer.batch(items), scorer.batch(items[::-1])
        later = scorer.batch(items)
    except CallFailed as e:
        says = f"raises on {len(items)} completions that it scores one by one: {e.error} at {e.where}"
        yield violates(
            "reward.order",
            "does a reward depend on the rest of the batch?",
            says,
            ORDER,
            severity="hard" if accidental(e) else "soft",
        )
        return
    if together is None or turned is None or later is None:
        return  # told by the check on lengths
    yield _order(exam, items, alone, together, turned[::-1], later)


def _repeat(exam: Exam, items: Sequence[Item], alone: Sequence[float], again: Sequence[float], carried: str) -> Check:
    probe, asks = "reward.state", "does a completion earn the same in every call?"
    worse = _difference(items, alone, again) or carried
    if not worse:
        return agrees(probe, asks, "the same reward in every call")
    meant = bool(_RANDOM.search(exam.doc + " " + exam.reading.name))
    return violates(
        probe,
        asks,
        f"the same completion earns two rewards in two calls: {worse}",
        STATE,
        severity="soft" if meant else "hard",
    )


def _order(
    exam: Exam,
    items: Sequence[Item],
    alone: Sequence[float],
    together: Sequence[float],
    turned: Sequence[float],
    later: Sequence[float],
) -> Check:
    probe, asks = "reward.order", "does a reward depend on the rest of the batch?"
    said = exam.reading.prose + " " + exam.reading.name
    excused = bool(_RELATIVE.search(said) or _RELATIVE_CODE.search(exam.reading.code) or _RANDOM.search(said))
    severity: Severity = "soft" if excused else "hard"
    worse = _difference(items, together, later)
    if worse:
        return violates(
            probe, asks, f"the same batch earns other rewards the second time: {worse}", STATE, severity=severity
        )
    worse = _difference(items, together, turned)
    if worse and (kept := memory.first_in_batch(exam)):
        return violates(probe, asks, kept, STATE, ORDER, severity=severity)
    if worse:
        return violates(
            probe, asks, f"in reversed order the batch earns other rewards: {worse}", ORDER, severity=severity
        )
    worse = _difference(items, alone, together)
    if worse:
        says = f"alone and in a batch a completion earns two rewards: {worse}"
        if excused:
            return agrees(probe, asks, f"relative to the rest of the batch ({worse})")
        return violates(probe, asks, says, ORDER, severity=severity)
    return agrees(probe, asks, "independent of the order and of the rest of the batch")


def _difference(items: Sequence[Item], before: Sequence[float], after: Sequence[float]) -> str:
    for item, a, b in zip(items, before, after, strict=True):
        if not same(a, b):
            return f"{quote(item.text)} earns {a:g} and {b:g}"
    return ""


# Window and format


def _window(exam: Exam) -> Iterator[Check]:
    probe, asks = "reward.window", "is the answer found wherever it stands?"
    for win in exam.picks[:4]:
        right = win.item(win.kind.gold)
        near, far = NEUTRAL, answers.filler(500)
        if _falls(exam, win, right, f"\n{near}", f"\n{far}", behind=True):
            says = (
                f"the right answer {quote(right.text)} earns {win.top:g} with {len(near)} "
                f"characters behind it and {win.low:g} with {len(far)}"
            )
            hard = bool(_SEES_ALL.search(exam.doc))
            yield violates(
                probe, asks, says, WINDOW, severity="hard" if hard else "soft", numbers={"characters": float(len(far))}
            )
            return
        before = answers.filler(2200)
        if _falls(exam, win, right, f"{near}\n", f"{before}\n", behind=False):
            says = (
                f"the right answer {quote(right.text)} earns {win.top:g} behind {len(near)} "
                f"characters of reasoning and {win.low:g} behind {len(before)}"
            )
            soft = bool(_LIMITED.search(exam.reading.prose))
            yield violates(
                probe,
                asks,
                says,
                WINDOW,
                severity="soft" if soft else "hard",
                numbers={"characters": float(len(before))},
            )
            return
    if exam.wins:
        yield agrees(probe, asks, "text in front of the answer or behind it opens no window")


def _appended(exam: Exam) -> Iterator[Check]:
    """A sentence behind a right answer: allowed in some format, or not at all."""
    probe, asks = "reward.appended", "does a sentence behind the right answer change its reward?"
    marked = [w for w in exam.picks if w.format.text != "@" and w.kind.name in ("number", "word", "option letter")]
    if not marked:
        return
    items = [Item(f"{w.item(w.kind.gold).text}\n{NEUTRAL}", w.item(w.kind.gold).gold) for w in marked]
    kept = [exam.accepts(w, i) for w, i in zip(marked, items, strict=True)]
    if any(kept):
        yield agrees(probe, asks, "a sentence behind the answer is allowed")
    elif _IGNORES.search(exam.doc):
        says = (
            f"the docstring lets text follow the answer, and {quote(items[0].text)} earns no more than a wrong answer"
        )
        yield violates(probe, asks, says, FORMAT)
    else:
        yield agrees(probe, asks, "the answer has to end the completion")


_IGNORES = re.compile(
    r"\b(text|anything|whatever|everything)\b[^.;]{0,30}\b(after|behind|follow\w*)\b[^.;]{0,40}"
    r"\b(ignored|allowed|doesn't|does not|no effect|not matter)",
    re.I,
)


def _falls(exam: Exam, win: Win, right: Item, short: str, long: str, behind: bool) -> bool:
    """Whether a little neutral text is allowed and a lot of it costs everything."""

    def score(extra: str) -> float:
        text = right.text + extra if behind else extra + right.text
        return exam.scorer.one(Item(text, right.gold), "window")

    return same(score(short), win.top) and same(score(long), win.low)


def _format(exam: Exam) -> Iterator[Check]:
    probe, asks = "reward.format", "does it accept what the rollout decodes?"
    shapes = answers.laid_out(exam.markers, exam.reading)
    gold = exam.default_gold()
    opened = [(s, exam.scorer.one(Item(s, gold), "format")) for s in shapes]
    if exam.scorer.graded:
        yield from _open_tag_of_wins(exam, probe, asks)
        return
    finite = [v for _, v in opened if math.isfinite(v)]
    if not finite:
        return
    yield from _lines(exam, opened)
    top = max([*finite, *exam.scorer.log.values])
    promised = [(t, exam.scorer.one(Item(t, gold), "documented")) for t in answers.well_formed_examples(exam.doc)]
    refused = [(t, v) for t, v in promised if v < top - 1e-9]
    good = [(s, v) for s, v in opened if same(v, top) and top > min(exam.scorer.log.values)]
    bare = [(s, exam.scorer.one(Item(_without_open(s, exam.markers), gold), "format")) for s, _ in good]
    needs_open = bool(bare) and all(v < top - 1e-9 for _, v in bare)
    if refused:
        text, value = refused[0]
        says = f"the docstring calls {quote(text)} well-formed, and it earns {value:g} where {top:g} can be earned"
        yield violates(
            probe, asks, says, OPEN_TAG if needs_open and exam.markers.reasoning.open not in text else FORMAT
        )
    elif needs_open:
        yield _needs_open(exam, probe, asks, good[0][0], top, bare[0][1])
    elif good:
        yield agrees(probe, asks, f"{quote(good[0][0])} earns {top:g}, with and without its opening marker")
    elif len(exam.scorer.log.values) == 1 and not exam.scorer.prompted:
        value = next(iter(exam.scorer.log.values)) + 0.0
        says = (
            f"every one of {exam.scorer.log.scored} completions earns {value:g}; if it asks for a format "
            "of its own, quote a well-formed completion in the docstring"
        )
        yield violates(probe, asks, says, CONSTANT) if _reads_nothing(exam) else _unknown(probe, asks, says, exam)


_SEVERAL_LINES = prose(
    r"\b(any|every|arbitrary|several|multiple|many)\b[^.;]{0,14}\blines?\b|\bmulti-?line|\bfree[- ](form |)text\b|"
    r"\b(line ?breaks?|newlines?|paragraphs?)\b[^.;]{0,30}\b(allowed|accept\w*|fine|ok(ay)?|count|may|can)\b|"
    r"\b(may|can) (span|contain|have|include|cover)\b[^.;]{0,20}\b(lines|line ?breaks?|newlines?|paragraphs?)\b"
)


def _lines(exam: Exam, opened: Sequence[tuple[str, float]]) -> Iterator[Check]:
    """Reasoning of several lines where reasoning of one line is paid: models write paragraphs."""
    probe, asks = "reward.lines", "is reasoning of several lines accepted, too?"
    r = exam.markers.reasoning
    top = max([v for _, v in opened if math.isfinite(v)] + list(exam.scorer.log.values))
    if top <= min(exam.scorer.log.values):
        return
    paid = [s for s, v in opened if same(v, top) and s.startswith(r.open) and r.close in s]
    broken = [s.replace(r.close, f"\nNext line.{r.close}", 1) for s in paid]
    control = [s.replace(r.close, f" Next line.{r.close}", 1) for s in paid]
    gold = exam.default_gold()
    for one, several in zip(control, broken, strict=True):
        if not same(exam.scorer.one(Item(one, gold), "format"), top):
            continue
        value = exam.scorer.one(Item(several, gold), "format")
        if value < top - 1e-9:
            says = f"{quote(one)} earns {top:g}, and with a line break inside {quote(several)} earns {value:g}"
            promised = _SEVERAL_LINES.search(exam.doc)
            yield violates(probe, asks, says, FORMAT, severity="hard" if promised else "soft")
        else:
            yield agrees(probe, asks, "reasoning may have several lines")
        return


def _without_open(shape: str, mk: Markers) -> str:
    return shape.removeprefix(mk.reasoning.open).lstrip("\n ")


def _needs_open(exam: Exam, probe: str, asks: str, shape: str, top: float, value: float) -> Check:
    tag = exam.markers.reasoning.open
    says = f"{quote(shape)} earns {top:g}, the same completion without {tag!r} earns {value:g}"
    if answers.template_opens(exam.reading.prose):
        return violates(
            probe,
            asks,
            f"{says}, and by the docstring the prompt ends in the opening tag, so no completion can have it",
            OPEN_TAG,
        )
    return violates(
        probe, asks, f"{says}. Does your chat template put {tag!r} into the prompt?", OPEN_TAG, severity="soft"
    )


def _open_tag_of_wins(exam: Exam, probe: str, asks: str) -> Iterator[Check]:
    """Graded rewards: full marks only behind an opening marker?"""
    tag = exam.markers.reasoning.open
    best = exam.best
    if not best or not all(w.format.text.startswith(tag) for w in best):
        return
    win = best[0]
    right = win.item(win.kind.gold)
    bare = exam.scorer.one(Item(_without_open(right.text, exam.markers), right.gold), "format")
    if bare < win.top - 1e-9:
        yield _needs_open(exam, probe, asks, right.text, win.top, bare)


def example(intent: Mapping[str, Any]) -> Case:
    """A plain case for the binder."""
    # every usual format in one text: the binder needs a call that works, the battery looks for the right one
    usual = "<think>\nLet me see.\n</think>\n<answer>\n{0}\n</answer>\nSo \\boxed{{{0}}}\nAnswer: {0}\n#### {0}"
    texts = [usual.format(a) for a in ("42", "17", "42", "17")]
    golds = ["42", "42", "17", "17"]
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[1], PROMPTS[1]]
    inputs = {
        "completions": texts,
        "texts": texts,
        "answers": golds,
        "prompts": prompts,
        "operand_lists": [[6, 7], [6, 7], [9, 8], [9, 8]],
        "operands": [6, 7],
        "completion": texts[0],
        "text": texts[0],
        "answer": golds[0],
        "prompt": prompts[0],
        "group_size": intent.get("group_size", 2),
    }
    from rltriage_probes.generation.tokens import example_inputs

    return Case(name="plain", inputs={**example_inputs(texts), **inputs})


ROLE = Role(
    name="reward",
    stage="reward",
    asks="completions with gold answers or prompts -> one score for each",
    takes=(
        "completions",
        "completion",
        "texts",
        "text",
        "answers",
        "answer",
        "prompts",
        "prompt",
        "operand_lists",
        "operands",
        "token_ids",
        "completion_mask",
        "attention_mask",
        "lengths",
        "prompt_ids",
        "prompt_length",
        "tokenizer",
        "group_size",
        "eos_token_id",
        "pad_token_id",
    ),
    needs=(("completions", "completion", "texts", "text", "token_ids"),),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)
