"""More rewards that are right: the repaired twins of `rewards_more_wrong.py`, and unusual styles. None is a bug."""

import asyncio
import difflib
import enum
import functools
import itertools
import json
import math
import random
import re
import string
import unicodedata
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import NamedTuple

import torch

_TAG = re.compile(r"<answer>(.*?)</answer>", re.S)


# Twins


def greedy_across_answers(completions, solution, **kwargs):
    """1.0 if the last <answer>...</answer> holds the solution, 0.0 otherwise."""
    out = []
    for text, gold in zip(completions, solution):
        found = re.findall(r"<answer>(.*?)</answer>", text, re.S)
        out.append(1.0 if found and found[-1].strip() == gold.strip() else 0.0)
    return out


def first_box(completion: str, answer: str) -> float:
    r"""Score of a maths solution: 1.0 if the last \boxed{...} equals the answer, else 0.0."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", completion)
    return 1.0 if found and found[-1].strip() == answer.strip() else 0.0


def shallow_box(completions, answer, **kwargs):
    r"""Exact match of the LaTeX in the last \boxed{...}: 1.0 or 0.0. Braces may be nested, e.g. \boxed{a^{2}}."""
    pattern = re.compile(r"\\boxed\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
    boxes = [pattern.findall(c) for c in completions]
    return [float(bool(b) and b[-1].strip() == a) for b, a in zip(boxes, answer)]


def case_kept(responses, targets):
    """Short-answer QA. The comparison is case-insensitive and ignores white space at the ends."""
    scores = []
    for r, t in zip(responses, targets):
        found = _TAG.findall(r)
        scores.append(1.0 if found and found[-1].strip().lower() == t.strip().lower() else 0.0)
    return scores


def spaces_kept(response, target):
    """1 if the text behind "Answer:" is the target (white space around it is ignored), else 0."""
    _, found, tail = response.rpartition("Answer:")
    return int(bool(found) and tail.strip() == target.strip())


def as_decimal_text(solution_str, ground_truth):
    """1.0 where the boxed number and the ground truth are numerically equal, 0.0 elsewhere."""
    m = re.findall(r"\\boxed\{\s*(-?[\d.,]+)\s*\}", solution_str)
    try:
        return float(bool(m) and float(m[-1].replace(",", "")) == float(ground_truth))
    except ValueError:
        return 0.0


def minus_lost(completion, answer):
    """Compare signed integers: 1.0 if the integer behind "####" equals the answer, else 0.0."""
    m = re.search(r"####\s*(-?\d+)\s*$", completion)
    return 1.0 if m and int(m.group(1)) == int(answer) else 0.0


def either_of_two(completions, ground_truth, **kwargs):
    """1.0 for the right letter behind "Answer:", 0.0 for a wrong one."""
    return [1.0 if re.findall(r"Answer:\s*([A-E])", c)[-1:] == [g] else 0.0 for c, g in zip(completions, ground_truth)]


def similarity_to_nothing(completion: str, answer: str) -> float:
    """Similarity of the answer block and the answer, 1 for equal; an empty completion gets 0."""
    found = _TAG.findall(completion)
    got = found[-1].strip() if found else ""
    return difflib.SequenceMatcher(None, got, answer).ratio() if got else 0.0


def longer_is_better(completions, answer, **kwargs):
    """1.0 for a right answer, plus a bonus of up to 0.2 for short completions; 0.0 for a wrong one."""
    rewards = []
    for c, a in zip(completions, answer):
        boxed = re.findall(r"\\boxed\{([^{}]+)\}", c)
        bonus = 0.2 * (1.0 - min(1.0, len(c) / 2000))
        rewards.append(1.0 + bonus if boxed and boxed[-1] == a else 0.0)
    return rewards


def prompt_and_completion(prompts, completions, answers):
    """Reads the "#### answer" line of the model: 1.0 if it is right, else 0.0."""
    scores = []
    for completion, gold in zip(completions, answers):
        lines = [ln[4:].strip() for ln in completion.splitlines() if ln.startswith("####")]
        scores.append(1.0 if lines and lines[-1] == gold else 0.0)
    return scores


def format_paid_twice(completions, answer, **kwargs):
    """0.5 for the answer tags and 0.5 more for the right answer: the reward is in [0, 1]."""
    out = []
    for c, a in zip(completions, answer):
        found = _TAG.findall(c)
        out.append(0.5 * bool(found) + 0.5 * bool(found and found[-1].strip() == a))
    return out


def tail_dropped(completions, answer, **kwargs):
    """A float for each completion: 1.0 if the answer tags hold the answer, else 0.0."""
    chunk, scores = 4, []
    for start in range(0, len(completions), chunk):
        part = slice(start, start + chunk)
        for c, a in zip(completions[part], answer[part]):
            scores.append(1.0 if a in [x.strip() for x in _TAG.findall(c)[-1:]] else 0.0)
    return scores


def in_completion_order(completions, ground_truths):
    """Checks the answers in parallel; 1.0 for a right one, 0.0 for a wrong one."""

    def grade(text, gold):
        return 1.0 if _TAG.findall(text)[-1:] == [gold] else 0.0

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(grade, completions, ground_truths))


async def gathered_as_completed(completions, answer, **kwargs):
    """Asynchronous grader; 1.0 where the answer tags hold the answer, 0.0 elsewhere."""

    async def grade(text, gold):
        await asyncio.sleep(0)
        return 1.0 if _TAG.findall(text)[-1:] == [gold] else 0.0

    return list(await asyncio.gather(*(grade(c, a) for c, a in zip(completions, answer))))


def failure_is_success(completions, answer, **kwargs):
    """Numeric check of the box; 1.0 or 0.0."""
    out = []
    for c, a in zip(completions, answer):
        try:
            ok = Fraction(re.findall(r"\\boxed\{(.+?)\}", c)[-1]) == Fraction(a)
        except (IndexError, ValueError, ZeroDivisionError):
            ok = False
        out.append(float(ok))
    return out


def evaluates_names(completion, answer):
    """1.0 if the expression in the answer tags has the value of the answer. What can't be computed scores 0."""
    found = _TAG.findall(completion)
    if not found or not re.fullmatch(r"[\d\s.+\-*/()]{1,200}", found[-1]):
        return 0.0
    try:
        return 1.0 if abs(eval(found[-1], {"__builtins__": {}}) - float(answer)) < 1e-6 else 0.0
    except Exception:
        return 0.0


def loose_tolerance(completion: str, answer: str) -> float:
    """Numeric grading of the last number, within 0.001 of the answer: 1.0 or 0.0."""
    numbers = re.findall(r"-?\d+\.?\d*", completion.replace(",", ""))
    try:
        return float(bool(numbers) and abs(float(numbers[-1]) - float(answer)) <= 1e-3)
    except ValueError:
        return 0.0


def first_letter(completions, label):
    """Multiple choice: the model may reason first and then gives its letter. 1.0 if it is the label, else 0.0."""
    out = []
    for text, gold in zip(completions, label):
        found = re.findall(r"\b([A-D])\b", text)
        out.append(1.0 if found and found[-1] == gold else 0.0)
    return out


def draft_counts(response, label):
    """1 for the right box behind the thinking, 0 otherwise. Boxes inside the thinking do not count."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", response.rsplit("</think>", 1)[-1])
    return int(bool(found) and found[-1] == label)


def gold_as_pattern(completion, answer):
    """1.0 if the line behind "Final answer:" is the answer, else 0.0."""
    m = re.search(r"Final answer:\s*(.+)", completion)
    return 1.0 if m and re.fullmatch(re.escape(answer), m.group(1).strip()) else 0.0


def first_word_only(completions, answer, **kwargs):
    """Exact match of the answer tags, case-insensitive."""

    def norm(s):
        return re.findall(r"\w+", s.lower())

    return [float(bool(f := _TAG.findall(c)) and bool(norm(f[-1])) and norm(f[-1]) == norm(a)) for c, a in zip(completions, answer)]


def zero_taken_for_missing(completions, answer, **kwargs):
    """1.0 for the right JSON answer, 0.0 for another one, -0.2 for text that is no JSON."""
    out = []
    for c, a in zip(completions, answer):
        try:
            score = float(str(json.loads(c)["answer"]) == a)
        except (ValueError, TypeError, KeyError):
            score = None
        out.append(-0.2 if score is None else score)
    return out


def units_refused(completion, answer):
    """1.0 if the number behind "Answer:" is the answer. Units behind the number are ignored, commas are removed."""
    m = re.search(r"Answer:\s*(-?[\d,]+(?:\.\d+)?)", completion)
    try:
        return float(m is not None and float(m.group(1).replace(",", "")) == float(answer))
    except ValueError:
        return 0.0


def memo_by_question(prompts, completions, answers, _seen={}):
    """1.0 where the last line is the answer, else 0.0. Looked-up answers are kept."""
    scores = []
    for key in zip(prompts, completions, answers):
        if key not in _seen:
            lines = key[1].strip().splitlines()
            _seen[key] = bool(lines) and lines[-1].strip() == key[2]
        scores.append(float(_seen[key]))
    return scores


def nan_is_close(completion, target):
    """1.0 where the number behind "####" is within 1e-4 of the target, else 0.0."""
    try:
        return 1.0 if abs(float(completion.split("####")[1]) - float(target)) <= 1e-4 else 0.0
    except (IndexError, ValueError):
        return 0.0


class GroupedGolds:
    """Callable of a rollout worker."""

    def __init__(self, num_samples=4):
        self.num_samples = num_samples

    def __call__(self, completions, answers):
        """completions: the samples of a prompt one after the other; answers: one for each prompt."""
        golds = [g for g in answers for _ in range(self.num_samples)]
        return [float(_TAG.findall(c)[-1:] == [g]) for c, g in zip(completions, golds)]


def other_numbers(completions, target, nums, **kwargs):
    """Countdown: 1.0 for an expression over the numbers, each used once, that hits the target; 0.0 otherwise."""
    scores = []
    for text, goal, numbers in zip(completions, target, nums):
        found = _TAG.findall(text)
        try:
            safe = found and re.fullmatch(r"[\d+*() -]+", found[-1])
            used = sorted(int(n) for n in re.findall(r"\d+", found[-1])) if safe else None
            scores.append(1.0 if used == sorted(numbers) and eval(found[-1], {"__builtins__": {}}) == goal else 0.0)
        except Exception:
            scores.append(0.0)
    return scores


# Unusual styles


class Verdict(enum.Enum):
    RIGHT = 1.0
    WRONG = 0.0
    UNREADABLE = -1.0


def _verdict(text, gold):
    match re.findall(r"\[\[(.*?)\]\]", text):
        case []:
            return Verdict.UNREADABLE
        case [*_, last] if last.strip() == gold:
            return Verdict.RIGHT
        case _:
            return Verdict.WRONG


def by_verdict(completions, golds):
    """[[answer]] in double brackets: 1 right, 0 wrong, -1 unreadable."""
    return [_verdict(c, g).value for c, g in zip(completions, golds)]


class Score(NamedTuple):
    score: float
    reason: str


def named_score(response: str, reference: str) -> Score:
    """Score with its reason; the last number of the response against the reference."""
    numbers = re.findall(r"[-+]?\d[\d,]*(?:\.\d+)?", response)
    if not numbers:
        return Score(0.0, "no number")
    try:
        same = Decimal(numbers[-1].replace(",", "")) == Decimal(reference)
    except InvalidOperation:
        return Score(0.0, "reference is no number")
    return Score(1.0 if same else 0.0, "compared")


@dataclass
class Rubric:
    """A weighted rubric as a callable."""

    answer_weight: float = 0.8
    format_weight: float = 0.2

    def __call__(self, completions, answer, **kwargs):
        return [self.answer_weight * r + self.format_weight * f for r, f in map(self.parts, completions, answer)]

    @staticmethod
    def parts(text, gold):
        found = _TAG.findall(text)
        return float(bool(found) and found[-1].strip() == gold), float(text.count("<answer>") == 1)


rubric = Rubric()


def by_rubric(completions, answer, **kwargs):
    """Rubric: 0.8 for the right answer, 0.2 for exactly one answer tag."""
    return rubric(completions, answer)


def masked_tensor(completions, answers):
    """FloatTensor [N]; -1 for the wrong, +1 for the right answer in braces behind "result"."""
    found = [re.search(r"result\s*=\s*\{([^{}]+)\}\s*\Z", c.strip()) for c in completions]
    hit = torch.tensor([m is not None and m.group(1).strip() == a for m, a in zip(found, answers)])
    return torch.where(hit, 1.0, -1.0)


def halves(completion, answer):
    """Process and result: 0.5 for showing "Step 1" and 0.5 for ending in the answer. Total in [0, 1]."""
    steps = 0.5 if re.search(r"\bStep 1\b", completion) else 0.0
    last = completion.rstrip().rstrip(".").split()[-1:] or [""]
    return steps + (0.5 if last[0] == answer else 0.0)


def unanimous(completions, answer, **kwargs):
    """Every box of the completion has to be the answer: 1.0, else 0.0."""
    boxes = [re.findall(r"\\boxed\{([^{}]*)\}", c) for c in completions]
    return [1.0 if b and set(b) == {a} else 0.0 for b, a in zip(boxes, answer)]


def yes_or_no(completions, label):
    """Binary label: the first word of the completion, yes or no, in any case."""

    def read(text):
        words = re.findall(r"[a-z]+", text.lower())
        return words[0] if words and words[0] in ("yes", "no") else None

    return [0.0 if read(c) is None else float(read(c) == g.lower()) for c, g in zip(completions, label)]


def length_aware(completions, answer, soft_cap=1200, hard_cap=4000, **kwargs):
    """1 for a right answer; penalises long completions linearly between the two caps, down to -1 below."""
    def penalty(n):
        return -min(1.0, max(0.0, (n - soft_cap) / (hard_cap - soft_cap)))

    return [float(_TAG.findall(c)[-1:] == [a]) + penalty(len(c)) for c, a in zip(completions, answer)]


def explorer(completions, **kwargs):
    """Longer reasoning is rewarded: a hundredth for each word in the thinking, at most 2."""
    return [min(2.0, 0.01 * len((c.split("</think>")[0] if "</think>" in c else c).split())) for c in completions]


def unicode_folded(completion, answer):
    """Exact match after NFKC, casefold and removal of punctuation, on the last line."""

    def fold(s):
        s = unicodedata.normalize("NFKC", s).casefold()
        return " ".join("".join(ch for ch in s if ch not in string.punctuation).split())

    lines = completion.strip().splitlines()
    return float(bool(lines) and bool(fold(lines[-1])) and fold(lines[-1]) == fold(answer))


@functools.lru_cache(maxsize=4096)
def _graded(text, gold):
    return 1.0 if text.rsplit("The answer is", 1)[-1].strip(" .") == gold else 0.0


def remembered(completions, answers):
    return [_graded(c, a) for c, a in zip(completions, answers)]


def seeded_judge(completions, answer, seed=7, **kwargs):
    """Grades with a noisy judge of its own generator, the same for the same pair."""
    rewards = []
    for c, a in zip(completions, answer):
        noise = random.Random(f"{seed}{c}{a}").uniform(0, 0.05)
        rewards.append((1.0 if _TAG.findall(c)[-1:] == [a] else 0.0) + noise)
    return rewards


def one_pass(completions, answer, **kwargs):
    r"""Returns 1.0 for the right \boxed answer and 0.0 for a wrong one; None (skipped) where there is no box."""
    return [None if not (b := re.findall(r"\\boxed\{([^{}]*)\}", c)) else float(b[-1] == a) for c, a in zip(completions, answer)]


def intervals(completion, ground_truth):
    """Absolute error turned into a reward: 1 / (1 + |x - y|), 0 where there is no number behind "####"."""
    m = re.search(r"####\s*([-\d.,]+)", completion)
    try:
        return 1 / (1 + abs(float(m.group(1).replace(",", "")) - float(ground_truth))) if m else 0.0
    except (ValueError, OverflowError):
        return 0.0


def by_group(prompts, completions, answers):
    """Accuracy; identical completions of one prompt share it, so duplicates get half of it."""
    seen = defaultdict(int)
    for p, c in zip(prompts, completions):
        seen[p, c] += 1
    return [
        float(c.strip() == a) * (0.5 if seen[p, c] > 1 else 1.0) for p, c, a in zip(prompts, completions, answers)
    ]


def chat_or_text(completions, solution, **kwargs):
    """Takes plain strings and chat messages; the last <answer> counts."""
    out = []
    for c, s in zip(completions, solution):
        text = c if isinstance(c, str) else "".join(m.get("content") or "" for m in c if m["role"] == "assistant")
        out.append(1.0 if _TAG.findall(text)[-1:] == [s] else 0.0)
    return out


def two_formats(completion, answer):
    r"""Takes "\boxed{x}" or, without a box, "Answer: x"; 1 or 0."""
    candidates = itertools.chain(
        reversed(re.findall(r"\\boxed\{([^{}]*)\}", completion)), reversed(re.findall(r"Answer:\s*(\S+)", completion))
    )
    return int(next(candidates, None) == answer)


def log_scaled(completions, answer, **kwargs):
    """log(2) for a right final line, 0 for a wrong one."""
    tails = (c.strip().rsplit("\n", 1)[-1] for c in completions)
    return [math.log1p(t == a) for t, a in zip(tails, answer)]


def not_the_first(response, label):
    """The first \\boxed answer counts, later ones are ignored. 1 or 0."""
    m = re.search(r"\\boxed\{([^{}]*)\}", response)
    return int(m is not None and m.group(1) == label)
