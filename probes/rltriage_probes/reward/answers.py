"""Answers and the formats in which models give them: where to look for a completion that earns the top score."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rltriage_probes.reading import Markers, Reading, sample, sentences, unescaped

REASONING = "Let me go through it step by step."
NEUTRAL = "That is all there is to say about it."
"""A sentence without a digit, a tag or an option letter."""


_WORDS = (
    "first the sum of both sides then another look at every term because nothing may be lost while we carry it over "
    "so far this holds and it stays true when each part is moved over there again with care"
).split()


def filler(characters: int) -> str:
    """Varied neutral sentences of about so many characters: no digit, no tag, no option letter, no loop."""
    out, at = "", 7
    while len(out) < characters:
        picked = []
        for _ in range(9):
            at = (at * 31 + 11) % 10007
            picked.append(_WORDS[at % len(_WORDS)])
        out += " ".join(picked).capitalize() + ". "
    return out.strip()


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of gold answer. `wrong[0]` shares nothing with `gold`; `other` is a second gold of the kind."""

    name: str
    gold: str
    other: str
    wrong: tuple[str, ...]
    parts: tuple[str, ...] = ()
    """Proper parts of `gold`: wrong, though contained in it."""
    wider: tuple[str, ...] = ()
    """Wrong answers that contain `gold`."""
    anagrams: tuple[str, ...] = ()
    """Wrong answers of the same characters."""
    options: tuple[str, ...] = ()
    """All answers that a question may have; listing them all answers nothing."""


KINDS = (
    Kind(name="number", gold="142", other="57", wrong=("983", "60"), parts=("14", "2"), wider=("51427", "1428"),
         anagrams=("421",), options=("142", "57", "983")),
    Kind(name="word", gold="zebra", other="lion", wrong=("hippo", "cockatoo"), parts=("zeb", "z"), wider=("zebrafish",),
         anagrams=("braze",), options=("zebra", "lion", "hippo", "cockatoo")),
    Kind(name="option letter", gold="B", other="D", wrong=("C", "A"), options=("A", "B", "C", "D")),
    Kind(name="fraction", gold="\\frac{3}{7}", other="\\frac{5}{8}",
         wrong=("\\frac{2}{9}", "12", "\\frac{3}{8}")),
    Kind(name="yes or no", gold="yes", other="no", wrong=("no",), options=("yes", "no")),
)  # fmt: skip


EXPRESSION = Kind(
    name="expression", gold="3*7+4", other="8*6-5",
    wrong=("9*2+1", "3+7*4", "5*5"), parts=("25", "3*7"),
)  # fmt: skip
"""The kind of answer where numbers and their wanted result are given: the gold answer is one that hits it."""


def problem(expression: str) -> tuple[list[int], int]:
    """Numbers to use and the result to reach, of which an arithmetic expression is a solution."""
    parts = re.findall(r"\d+|[-+*]", expression)
    numbers = [int(p) for p in parts if p.isdigit()]
    if not re.fullmatch(r"\d+([-+*]\d+)*", "".join(parts)) or "".join(parts) != re.sub(r"\s", "", expression):
        return (numbers or [3, 7, 4]), sum(numbers) or 25
    terms, signs = [numbers[0]], [1]
    for sign, n in zip(parts[1::2], numbers[1:], strict=True):
        if sign == "*":
            terms[-1] *= n
        else:
            terms.append(n)
            signs.append(1 if sign == "+" else -1)
    return numbers, sum(s * n for s, n in zip(signs, terms, strict=True))


@dataclass(frozen=True)
class Gold:
    """How a dataset writes the gold answer."""

    name: str
    write: Callable[[str], Any] = field(compare=False)


DECIMAL = Gold("a whole number with .0", lambda a: f"{int(a)}.0")
GOLDS = (
    Gold("as it is", lambda a: a),
    Gold("worked solution with ####", lambda a: f"First this, then that.\n#### {a}"),
    Gold("\\boxed{}", lambda a: f"\\boxed{{{a}}}"),
    Gold("<answer> tags", lambda a: f"<answer>{a}</answer>"),
    Gold("<answer> tags on lines", lambda a: f"<answer>\n{a}\n</answer>"),
    Gold("$...$", lambda a: f"${a}$"),
    Gold("number", int),
    Gold("float", float),
    DECIMAL,
    Gold("list", lambda a: [a]),
    Gold("dict with target", lambda a: {"target": [a]}),
    Gold("dict with answer", lambda a: {"answer": a}),
)


@dataclass(frozen=True)
class Format:
    """A way to give an answer. `text` has `@` where the answer goes."""

    name: str
    text: str

    def write(self, answer: str) -> str:
        return self.text.replace("@", answer)


_PLAIN = (
    Format("the bare answer", "@"),
    Format("a sentence", "The answer is @."),
    Format("a sentence without full stop", f"{REASONING} The answer is @"),
    Format("\\boxed{}", f"{REASONING} So we get \\boxed{{@}}"),
    Format("$\\boxed{}$", f"{REASONING}\nThe final answer is $\\boxed{{@}}$."),
    Format("#### answer", f"{REASONING}\n#### @"),
    Format("Answer: ", f"{REASONING}\nAnswer: @"),
    Format("Final Answer: ", f"{REASONING}\nFinal Answer: @"),
    Format("minerva", f"{REASONING}\nFinal Answer: The final answer is $@$. I hope it is correct."),
    Format("**Answer:** ", f"{REASONING}\n**Answer:** @"),
    Format("ANSWER: ", f"{REASONING}\nANSWER: @"),
    Format("(answer)", "The answer is (@)"),
    Format("[[answer]]", f"{REASONING} [[@]]"),
    Format("JSON", '{"answer": "@"}'),
    Format("JSON number", '{"answer": @}'),
    Format("fenced JSON", '```json\n{"answer": "@"}\n```'),
    Format("code fence", "```\n@\n```"),
    Format("<<answer>>", f"{REASONING} <<@>>"),
)


def formats(reading: Reading, markers: Markers) -> tuple[Format, ...]:
    """Formats to try, those that the function's own strings suggest first."""
    own: list[Format] = []
    for pair in markers.answer:
        own += _tagged(pair.open, pair.close, markers)
    for tag in _other_tags(reading):
        own += _tagged(f"<{tag}>", f"</{tag}>", markers)
    own += _matched(reading)
    keys = _json_keys(reading)
    own += [Format("JSON", f'{{"{key}": "@"}}') for key in keys]
    if len(keys) > 1:
        own.append(Format("JSON with all keys", "{" + ", ".join(f'"{key}": "@"' for key in keys) + "}"))
    own += [Format(f"behind {p!r}", f"{REASONING}\n{p} @") for p in _prefixes(reading)]
    usual = [] if any(p.open == "<answer>" for p in markers.answer) else _tagged("<answer>", "</answer>", markers)
    thought = [
        Format(
            f"{f.name} behind a thinking block",
            f"{markers.reasoning.open}\n{REASONING}\n{markers.reasoning.close}\n{f.text}",
        )
        for f in _PLAIN[:7]
    ]
    late = [
        Format(f"{f.name} behind a closed block", f"{REASONING}\n{markers.reasoning.close}\n{f.text}")
        for f in _PLAIN[:7]
    ]
    every = {f.text: f for f in (*own, *_PLAIN, *usual, *thought, *late)}
    return tuple(every.values())


def in_tags(reading: Reading) -> tuple[Format, ...]:
    """The tags that the function's strings name, with the answer between them."""
    return tuple(Format(f"<{tag}>", f"{REASONING}\n<{tag}>\n@\n</{tag}>") for tag in _other_tags(reading))


def _tagged(start: str, stop: str, markers: Markers) -> list[Format]:
    r = markers.reasoning
    return [
        Format(f"{start}...{stop}", f"{start}@{stop}"),
        Format(f"{start} on lines", f"{start}\n@\n{stop}"),
        Format(f"{r.open} and {start}", f"{r.open}{REASONING}{r.close}{start}@{stop}"),
        Format(f"{r.open} and {start} on lines", f"{r.open}\n{REASONING}\n{r.close}\n{start}\n@\n{stop}"),
        Format(
            f"{r.open} and {start} on lines, newline at the end",
            f"{r.open}\n{REASONING}\n{r.close}\n{start}\n@\n{stop}\n",
        ),
        Format(f"{r.open} and {start}, one a line", f"{r.open}{REASONING}{r.close}\n{start}@{stop}"),
        Format(f"{r.close} and {start}", f"{REASONING}{r.close}\n{start}@{stop}"),
        Format(f"\\boxed in {start}", f"{r.open}{REASONING}{r.close}\n{start}\\boxed{{@}}{stop}"),
    ]


def _matched(reading: Reading) -> Iterator[Format]:
    """What the function's regular expressions match, with the answer in their last group."""
    for s in reading.strings:
        if "(" not in s or len(s) > 300:
            continue
        text = sample(s, "@", "")
        if text is not None and text.count("@") == 1:
            yield Format("what its pattern matches", text)
            yield Format("what its pattern matches, behind reasoning", f"{REASONING}\n{text}")
            spread = sample(s, "@", REASONING)
            if spread is not None and spread != text:
                yield Format("what its pattern matches, with reasoning", spread)


def _json_keys(reading: Reading) -> list[str]:
    """Keys that the function may look up in parsed JSON, where it parses any."""
    if "json" not in reading.code:
        return []
    return [s for s in dict.fromkeys(reading.strings) if re.fullmatch(r"[a-z][a-z_]{2,20}", s) and s != "answer"][:5]


def _other_tags(reading: Reading) -> list[str]:
    texts = "\n".join(unescaped(s) for s in reading.strings)
    return list(dict.fromkeys(re.findall(r"</([A-Za-z][\w.-]{0,30})>", texts)))[:6]


def _prefixes(reading: Reading) -> list[str]:
    """Literals that announce an answer: `Answer:`, `The answer is`, `Result =`."""
    found: list[str] = []
    for s in reading.strings:
        plain = re.sub(r"\\[sdwnSDW][*+?]*|\(\?[a-z:]+\)?|\\?[\^$]|\(.*|\[.*", " ", s)
        plain = re.sub(r"\s+", " ", unescaped(plain)).strip("*+? ")
        if (
            2 <= len(plain) <= 40
            and re.search(r"[:=#>]$|\bis$|answer$|result$", plain, re.I)
            and not plain.startswith("<")
        ):
            found.append(plain)
    return list(dict.fromkeys(found))[:6]


# Shapes of a format reward


def laid_out(markers: Markers, reading: Reading | None = None) -> tuple[str, ...]:
    """Complete, well-formed completions, each beginning with the opening marker of the reasoning.

    With a `reading` also what its regular expressions match.
    """
    r = markers.reasoning
    blocks = [(p.open, p.close) for p in markers.answer] or [("<answer>", "</answer>")]
    shapes = [f"{r.open}\n{REASONING}\n{r.close}\nThe answer is 4.", f"{r.open}{REASONING}{r.close}The answer is 4."]
    shapes += [f"{r.open}\n{REASONING}\n{r.close}\n\n#### 4", f"{r.open}\n{REASONING}\n{r.close}\n\\boxed{{4}}"]
    for start, stop in blocks:
        shapes += [
            f"{r.open}{REASONING}{r.close}{start}4{stop}",
            f"{r.open}{REASONING}{r.close}\n{start}4{stop}",
            f"{r.open}\n{REASONING}\n{r.close}\n{start}\n4\n{stop}",
            f"{r.open}\n{REASONING}\n{r.close}\n{start}\n4\n{stop}\n",
            f"{r.open}\n{REASONING}\n{r.close}\n\n{start}4{stop}",
            f"{r.open} {REASONING} {r.close} {start} 4 {stop}",
        ]
    for s in reading.strings if reading else ():
        text = sample(s, "", "So it is 4.") if len(s) <= 300 and re.search(r"\.[*+]|\[\^|\\s", s) else None
        if text is not None:
            shapes.append(text)
    return tuple(dict.fromkeys(shapes))


_PRAISE = re.compile(
    r"well[- ]formed|\bvalid\b|\bideal\b|\baccepted\b|\bcorrectly formatted\b|\bright (format|layout)\b|"
    r"\b(completion|response|output)s?\b[^.;]{0,60}(\be\.g\.|for (example|instance)|looks? like)",
    re.I,
)
_BLAME = re.compile(
    r"\b(not|never|no|in?valid|malformed|ill[- ]formed|wrong|reject\w*|instead of|rather than|unlike|"
    r"without|missing|bad|fail\w*|zero|0\.0|0)\b",
    re.I,
)
_QUOTED = re.compile(r"\"([^\"]{6,400})\"|``([^`]{6,400})``|`([^`]{6,400})`", re.S)


def well_formed_examples(doc: str) -> Iterator[str]:
    """Completions that a docstring quotes as good ones, e.g. `a well-formed completion is "..."`."""
    for match in _QUOTED.finditer(doc):
        text = next(g for g in match.groups() if g)
        before = re.split(r"(?<=[.;])\s", doc[: match.start()])[-1]
        after = re.split(r"[.;\n]", doc[match.end() :])[0]
        praised = _PRAISE.search(before[-120:])
        blamed = _BLAME.search(before[-120:]) or _BLAME.search(after[:60])
        whole = (
            len(text.split()) >= 4
            and re.search(r"</|\]|\\boxed|####|[:.]", text)
            and not re.search(r"\.\.\.|…|\{\w+\}", text)
        )
        if praised and not blamed and whole:
            yield text.replace("\\n", "\n")


_TEMPLATE_OPENS = re.compile(
    r"(?<!system )\b(prompt|template)s?\b[^.;]{0,60}?\b(already|ends? (in|with)|prefill\w*|appends?|"
    r"supplies|inserts|adds|opens|puts)\b"
    r"[^.;]{0,60}?(<(?!/)\w+>|\[\w+\]|\bopen(ing|s)?\b)|"
    r"\bopen(ing)?\b[^.;]{0,60}\b(in|of|by|from) the (prompt|template)|"
    r"(completion|response)s?[^.;]{0,40}\b(lack|do(es)? not (start|begin) with|never (start|"
    r"begin) with)\b[^.;]{0,40}(open|<(?!/)\w+>)",
    re.I,
)


def template_opens(prose: str) -> bool:
    """Whether docstring or comments say that the prompt already ends in the opening marker."""
    return any(_TEMPLATE_OPENS.search(s) for s in sentences(prose))


# Malformed completions


MALFORMED = (
    ("no marker at all", "I do not know."),
    ("empty", ""),
    ("blanks", "  \n "),
    ("unclosed box", "So we get \\boxed{"),
    ("empty box", "\\boxed{}"),
    ("words in a box", "\\boxed{no idea}"),
    ("division by zero in a box", "\\boxed{1/0}"),
    ("empty tags", "<answer></answer>"),
    ("unclosed tag", "<answer>12"),
    ("close tag only", "12</answer>"),
    ("words in tags", "<think>hm</think>\n<answer>five or so</answer>"),
    ("division by zero in tags", "<answer>1/0</answer>"),
    ("two answers", "<answer>1</answer><answer>2</answer>"),
    ("unfinished thinking", "<think>Let me see"),
    ("hashes and nothing", "#### "),
    ("words behind hashes", "#### unknown"),
    ("hashes with punctuation only", "#### -,."),
    ("Answer: and nothing", "Answer:"),
    ("broken JSON", '{"answer": '),
    ("JSON null", "null"),
    ("JSON list", "[1, 2]"),
    ("superscript digit", "#### ²"),
    ("superscript digit in tags", "<answer>²</answer>"),
    ("nan", "<answer>nan</answer>"),
    ("infinity", "\\boxed{1e999}"),
    ("very long number", "<answer>" + "9" * 400 + "</answer>"),
    ("several points", "The answer is 1.2.3"),
    ("open bracket", "(1 + 2"),
    ("regex characters", "a+b*(c|[d"),
    ("emoji", "🙂"),
    ("a loop", "and then the same again " * 80),
)
"""Completions that models do write, by name."""

ORDINARY = 12
"""So many of `MALFORMED`, the first ones, are everyday: every run has them."""


def wrapped_malformed(best: Format | None) -> Iterator[tuple[str, str]]:
    """Malformed answers in the format that the function likes, after the general ones."""
    yield from MALFORMED
    if best is not None and best.text != "@":
        for name, answer in (
            ("nothing", ""),
            ("words", "five or so"),
            ("1/0", "1/0"),
            ("²", "²"),
            ("nan", "nan"),
            ("a lone sign", "-"),
        ):
            yield f"{name} where the answer goes", best.write(answer)
