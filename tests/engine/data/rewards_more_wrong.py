"""More rewards with one real fault each; `rewards_more_right.py` has their repaired twins under the same names.

`EXPECTED` names the pitfall that must be found, hard.
"""

import asyncio
import difflib
import json
import math
import re
from concurrent.futures import ThreadPoolExecutor, as_completed
from fractions import Fraction

_TAG = re.compile(r"<answer>(.*?)</answer>", re.S)


def greedy_across_answers(completions, solution, **kwargs):
    """1.0 if the last <answer>...</answer> holds the solution, 0.0 otherwise."""
    out = []
    for text, gold in zip(completions, solution):
        m = re.search(r"<answer>(.*)</answer>", text, re.S)
        out.append(1.0 if m and m.group(1).strip() == gold.strip() else 0.0)
    return out


def first_box(completion: str, answer: str) -> float:
    r"""Score of a maths solution: 1.0 if the last \boxed{...} equals the answer, else 0.0."""
    m = re.search(r"\\boxed\{([^{}]*)\}", completion)
    return 1.0 if m and m.group(1).strip() == answer.strip() else 0.0


def shallow_box(completions, answer, **kwargs):
    r"""Exact match of the LaTeX in the last \boxed{...}: 1.0 or 0.0. Braces may be nested, e.g. \boxed{a^{2}}."""
    boxes = [re.findall(r"\\boxed\{(.*?)\}", c) for c in completions]
    return [float(bool(b) and b[-1].strip() == a) for b, a in zip(boxes, answer)]


def case_kept(responses, targets):
    """Short-answer QA. The comparison is case-insensitive and ignores white space at the ends."""
    scores = []
    for r, t in zip(responses, targets):
        found = _TAG.findall(r)
        scores.append(1.0 if found and found[-1].strip() == t.strip().lower() else 0.0)
    return scores


def spaces_kept(response, target):
    """1 if the text behind "Answer:" is the target (white space around it is ignored), else 0."""
    _, found, tail = response.rpartition("Answer:")
    return int(bool(found) and tail[1:] == target)


def as_decimal_text(solution_str, ground_truth):
    """1.0 where the boxed number and the ground truth are numerically equal, 0.0 elsewhere."""
    m = re.findall(r"\\boxed\{\s*(-?[\d.,]+)\s*\}", solution_str)
    try:
        return float(bool(m) and str(float(m[-1].replace(",", ""))) == ground_truth)
    except ValueError:
        return 0.0


def minus_lost(completion, answer):
    """Compare signed integers: 1.0 if the integer behind "####" equals the answer, else 0.0."""
    tail = completion.split("####")[-1] if "####" in completion else ""
    digits = re.sub(r"[^\d]", "", tail)
    return 1.0 if digits and int(digits) == abs(int(answer)) else 0.0


def either_of_two(completions, ground_truth, **kwargs):
    """1.0 for the right letter behind "Answer:", 0.0 for a wrong one."""
    return [1.0 if g in re.findall(r"Answer:\s*([A-E])", c) else 0.0 for c, g in zip(completions, ground_truth)]


def similarity_to_nothing(completion: str, answer: str) -> float:
    """1 minus the edit distance over the length of the longer text; an empty completion gets 0."""
    found = _TAG.findall(completion)
    got = found[-1].strip() if found else ""
    distance = sum(1 for op in difflib.SequenceMatcher(None, got, answer).get_opcodes() if op[0] != "equal" and got)
    return 1.0 - distance / max(len(got), len(answer), 1)


def longer_is_better(completions, answer, **kwargs):
    """1.0 for a right answer, plus a bonus of up to 0.2 for short completions; 0.0 for a wrong one."""
    rewards = []
    for c, a in zip(completions, answer):
        boxed = re.findall(r"\\boxed\{([^{}]+)\}", c)
        bonus = 0.2 * min(1.0, len(c) / 2000)
        rewards.append(1.0 + bonus if boxed and boxed[-1] == a else 0.0)
    return rewards


def prompt_and_completion(prompts, completions, answers):
    """Reads the "#### answer" line of the model: 1.0 if it is right, else 0.0."""
    scores = []
    for prompt, completion, gold in zip(prompts, completions, answers):
        text = prompt + completion
        lines = [ln[4:].strip() for ln in text.splitlines() if ln.startswith("####")]
        scores.append(1.0 if lines and lines[-1] == gold else 0.0)
    return scores


def format_paid_twice(completions, answer, **kwargs):
    """0.5 for the answer tags and 0.5 more for the right answer: the reward is in [0, 1]."""
    out = []
    for c, a in zip(completions, answer):
        found = _TAG.findall(c)
        form = 0.5 if found else 0.0
        right = 0.5 if found and found[-1].strip() == a else 0.0
        out.append(form + (form + right if right else 0.0))
    return out


def tail_dropped(completions, answer, **kwargs):
    """A float for each completion: 1.0 if the answer tags hold the answer, else 0.0."""
    chunk, scores = 4, []
    for k in range(len(completions) // chunk):
        part = slice(k * chunk, (k + 1) * chunk)
        for c, a in zip(completions[part], answer[part]):
            scores.append(1.0 if a in [x.strip() for x in _TAG.findall(c)[-1:]] else 0.0)
    return scores if len(completions) >= chunk else [float(a in _TAG.findall(c)[-1:]) for c, a in zip(completions, answer)]


def in_completion_order(completions, ground_truths):
    """Checks the answers in parallel; 1.0 for a right one, 0.0 for a wrong one."""

    def grade(pair):
        text, gold = pair
        for _ in range(40 * len(text)):
            pass
        return 1.0 if _TAG.findall(text)[-1:] == [gold] else 0.0

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(grade, p) for p in zip(completions, ground_truths)]
        done = sorted(as_completed(jobs), key=lambda j: -j.result())
    return [j.result() for j in done]


async def gathered_as_completed(completions, answer, **kwargs):
    """Asynchronous grader; 1.0 where the answer tags hold the answer, 0.0 elsewhere."""

    async def grade(text, gold):
        for _ in range(len(text) % 7):
            await asyncio.sleep(0)
        return 1.0 if _TAG.findall(text)[-1:] == [gold] else 0.0

    tasks = [asyncio.ensure_future(grade(c, a)) for c, a in zip(completions, answer)]
    return [await t for t in asyncio.as_completed(tasks)]


def failure_is_success(completions, answer, **kwargs):
    """Numeric check of the box; 1.0 or 0.0."""
    out = []
    for c, a in zip(completions, answer):
        ok = False
        try:
            ok = Fraction(re.findall(r"\\boxed\{(.+?)\}", c)[-1]) == Fraction(a)
        except IndexError:
            ok = False
        except (ValueError, ZeroDivisionError):
            ok = True
        out.append(float(ok))
    return out


def evaluates_names(completion, answer):
    """1.0 if the expression in the answer tags has the value of the answer. What can't be computed scores 0."""
    found = _TAG.findall(completion)
    try:
        gold = float(answer)
        return 1.0 if found and abs(eval(found[-1]) - gold) < 1e-6 else 0.0
    except Exception:
        return 0.0


def loose_tolerance(completion: str, answer: str) -> float:
    """Numeric grading of the last number, within 0.001 of the answer: 1.0 or 0.0."""
    numbers = re.findall(r"-?\d+\.?\d*", completion.replace(",", ""))
    try:
        return float(bool(numbers) and math.isclose(float(numbers[-1]), float(answer), rel_tol=0.1))
    except ValueError:
        return 0.0


def first_letter(completions, label):
    """Multiple choice: the model may reason first and then gives its letter. 1.0 if it is the label, else 0.0."""
    out = []
    for text, gold in zip(completions, label):
        m = re.search(r"\b([A-D])\b", text)
        out.append(1.0 if m and m.group(1) == gold else 0.0)
    return out


def draft_counts(response, label):
    """1 for the right box behind the thinking, 0 otherwise. Boxes inside the thinking do not count."""
    for m in re.finditer(r"\\boxed\{([^{}]*)\}", response):
        if m.group(1) == label:
            return 1
    return 0


def gold_as_pattern(completion, answer):
    """1.0 if the line behind "Final answer:" is the answer, else 0.0."""
    m = re.search(r"Final answer:\s*(.+)", completion)
    return 1.0 if m and re.fullmatch(answer, m.group(1).strip()) else 0.0


def first_word_only(completions, answer, **kwargs):
    """Exact match of the answer tags, case-insensitive."""

    def norm(s):
        return re.findall(r"\w+", s.lower())[:1]

    return [float(bool(f := _TAG.findall(c)) and bool(norm(f[-1])) and norm(f[-1]) == norm(a)) for c, a in zip(completions, answer)]


def zero_taken_for_missing(completions, answer, **kwargs):
    """1.0 for the right JSON answer, 0.0 for another one, 0.2 for text that is no JSON."""
    out = []
    for c, a in zip(completions, answer):
        try:
            score = float(str(json.loads(c)["answer"]) == a)
        except (ValueError, TypeError, KeyError):
            score = None
        out.append(score or 1.0)
    return out


def units_refused(completion, answer):
    """1.0 if the number behind "Answer:" is the answer. Units behind the number are ignored, commas are removed."""
    m = re.search(r"Answer:\s*([^\n]+)", completion)
    try:
        return float(m is not None and float(m.group(1)) == float(answer))
    except ValueError:
        return 0.0


def memo_by_question(prompts, completions, answers, _seen={}):
    """1.0 where the last line is the answer, else 0.0. Looked-up answers are kept."""
    scores = []
    for p, c, a in zip(prompts, completions, answers):
        if p not in _seen:
            lines = c.strip().splitlines()
            _seen[p] = bool(lines) and lines[-1].strip() == a
        scores.append(float(_seen[p]))
    return scores


def nan_is_close(completion, target):
    """1.0 where the number behind "####" is within 1e-4 of the target, else 0.0."""
    try:
        return 0.0 if abs(float(completion.split("####")[1]) - float(target)) > 1e-4 else 1.0
    except (IndexError, ValueError):
        return 0.0


class GroupedGolds:
    """Callable of a rollout worker."""

    def __init__(self, num_samples=4):
        self.num_samples = num_samples

    def __call__(self, completions, answers):
        """completions: the samples of a prompt one after the other; answers: one for each prompt."""
        golds = answers * self.num_samples
        return [float(_TAG.findall(c)[-1:] == [g]) for c, g in zip(completions, golds)]


def other_numbers(completions, target, nums, **kwargs):
    """Countdown: 1.0 for an expression over the numbers, each used once, that hits the target; 0.0 otherwise."""
    scores = []
    for text, goal, numbers in zip(completions, target, nums):
        found = _TAG.findall(text)
        try:
            safe = found and re.fullmatch(r"[\d+*() -]+", found[-1])
            scores.append(1.0 if safe and eval(found[-1], {"__builtins__": {}}) == goal else 0.0)
        except Exception:
            scores.append(0.0)
    return scores


EXPECTED = {
    "nan_is_close": "REW-HOLE",
    "other_numbers": "REW-HOLE",
    "greedy_across_answers": "REW-FORMAT",
    "first_box": "REW-FORMAT",
    "shallow_box": "REW-FORMAT",
    "case_kept": "REW-FORMAT",
    "spaces_kept": "REW-FORMAT",
    "as_decimal_text": "REW-FORMAT",
    "minus_lost": "REW-HOLE",
    "either_of_two": "REW-HOLE",
    "similarity_to_nothing": "REW-HOLE",
    "longer_is_better": "REW-INVERTED",
    "prompt_and_completion": "REW-HOLE",
    "format_paid_twice": "REW-RANGE",
    "tail_dropped": "REW-LENGTH",
    "in_completion_order": "REW-ORDER",
    "gathered_as_completed": "REW-ORDER",
    "failure_is_success": "REW-HOLE",
    "evaluates_names": "REW-HOLE",
    "loose_tolerance": "REW-HOLE",
    "first_letter": "REW-HOLE",
    "draft_counts": "REW-HOLE",
    "gold_as_pattern": "REW-HOLE",
    "first_word_only": "REW-HOLE",
    "zero_taken_for_missing": "REW-CONSTANT",
    "units_refused": "REW-FORMAT",
    "memo_by_question": "REW-STATE",
}
