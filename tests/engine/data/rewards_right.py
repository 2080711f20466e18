"""Rewards that are right, each in the style of another project. None may be called a bug."""

import ast
import json
import math
import operator
import random
import re
import string
from collections import Counter
from fractions import Fraction

import torch

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_XML = re.compile(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", re.DOTALL)


def exact_in_tags(completions, answer, **kwargs):
    """1.0 if the last <answer> block equals the answer, else 0.0."""
    found = [_ANSWER.findall(c) for c in completions]
    return [1.0 if f and f[-1].strip() == a.strip() else 0.0 for f, a in zip(found, answer)]


def chat_exact(prompts, completions, answer, **kwargs) -> list[float]:
    responses = [c[0]["content"] for c in completions]
    extracted = [r.split("<answer>")[-1].split("</answer>")[0].strip() for r in responses]
    return [2.0 if r == a else 0.0 for r, a in zip(extracted, answer)]


def gsm8k_strict(solution_str, ground_truth, format_score=0.0, score=1.0):
    """Number behind #### against the ground truth."""
    m = re.search(r"#### (\-?[0-9\.\,]+)", solution_str)
    if m is None:
        return 0
    return score if m.group(1).replace(",", "") == ground_truth else format_score


def last_number(response, label):
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response.replace(",", ""))
    try:
        return float(bool(numbers) and float(numbers[-1]) == float(label))
    except ValueError:
        return 0.0


def plus_minus_one(solution_str: str, ground_truth: str) -> dict:
    """Score 1 or -1, with the prediction."""
    found = re.findall(r"(?i)answer\s*:\s*([^\n]+)", solution_str[-300:])
    pred = found[-1].strip().strip("$*.") if found else "[INVALID]"
    right = pred == ground_truth
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": pred}


def boxed(completions, solution, **kwargs):
    def last_boxed(text):
        at = text.rfind("\\boxed{")
        if at < 0:
            return None
        depth, start = 0, at + len("\\boxed{")
        for i in range(start - 1, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[start:i]
        return None

    return [1.0 if (p := last_boxed(c)) is not None and p.strip() == s.strip() else 0.0 for c, s in zip(completions, solution)]


def option(completions, answer):
    """Multiple choice: the letter after "Answer:"; None if the completion names none, so it is left out."""
    rewards = []
    for text, gold in zip(completions, answer):
        m = re.search(r"Answer:\s*\(?([A-D])\b", text)
        rewards.append(None if m is None else float(m.group(1) == gold))
    return rewards


def json_answer(completions, answers):
    rewards = []
    for text, gold in zip(completions, answers):
        try:
            data = json.loads(text.strip().removeprefix("```json").removesuffix("```"))
            rewards.append(float(isinstance(data, dict) and str(data.get("answer")) == gold))
        except (json.JSONDecodeError, RecursionError):
            rewards.append(0.0)
    return rewards


def token_f1(completion: str, answer: str) -> float:
    """Token F1 between completion and answer."""
    a, b = completion.lower().split(), answer.lower().split()
    common = sum((Counter(a) & Counter(b)).values())
    if not common:
        return 0.0
    p, r = common / len(a), common / len(b)
    return 2 * p * r / (p + r)


def contains(completion: str, answer: str) -> float:
    """Sub-EM: 1 if the gold answer is contained in the completion."""
    return float(bool(answer) and answer.lower() in completion.lower())


def numeric_tolerance(completions, answer):
    """Numeric grading with a relative tolerance of 1e-4; anything that is no number scores 0."""

    def value(text):
        m = re.findall(r"\\boxed\{([^{}]*)\}", text)
        try:
            return float(Fraction(m[-1].strip())) if m else None
        except (ValueError, ZeroDivisionError, OverflowError):
            return None

    out = []
    for c, a in zip(completions, answer):
        got = value(c)
        try:
            out.append(float(got is not None and math.isclose(got, float(a), rel_tol=1e-4)))
        except ValueError:
            out.append(0.0)
    return out


def format_xml(completions, **kwargs):
    """0.5 for the exact layout, each part on lines of its own."""
    return [0.5 if _XML.match(c) else 0.0 for c in completions]


def soft_format(completions, **kwargs):
    return [0.5 if re.search(r"<think>.*?</think>\s*<answer>.*?</answer>", c, re.S) else 0.0 for c in completions]


def tag_count(completions, **kwargs) -> list[float]:
    """A quarter for each tag that occurs exactly once."""
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [sum(0.25 for t in tags if c.count(t) == 1) for c in completions]


def length_penalty(completions, max_length=400, **kwargs):
    """0 up to the limit, then linearly down to -1."""
    return [-min(1.0, max(0, len(c) - max_length) / 200) for c in completions]


def relative_length(completions, answer, **kwargs):
    """Right answers earn 1, and up to 0.5 more if they are short compared with the rest of the batch."""
    lengths = [len(c) for c in completions]
    low, high = min(lengths), max(lengths)
    out = []
    for c, a, n in zip(completions, answer, lengths):
        f = _ANSWER.findall(c)
        right = bool(f) and f[-1].strip() == a
        bonus = 0.5 - (n - low) / (high - low) if high > low else 0.0
        out.append(float(right) * (1.0 + max(0.0, bonus)))
    return out


def repetition(completions, n=3, **kwargs):
    out = []
    for c in completions:
        words = c.split()
        grams = [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]
        out.append(-(1 - len(set(grams)) / len(grams)) if grams else 0.0)
    return out


def coin(completions, **kwargs):
    """Random reward, the control of a spurious-reward experiment."""
    return [float(random.random() < 0.5) for _ in completions]


def combined(completion, ground_truth):
    """(reward, parts): 0.1 for the format, 1.0 more for the right answer."""
    m = re.fullmatch(r"(?:<think>)?.*?</think>\s*<answer>(.*?)</answer>\s*", completion, re.S)
    form = 0.1 if m else 0.0
    right = 1.0 if m and m.group(1).strip() == ground_truth else 0.0
    return form + right, {"format": form, "answer": right}


def as_tensor(responses, labels):
    got = [r.rsplit("The answer is", 1)[-1].strip(" .()") for r in responses]
    return torch.tensor([float(g == x) for g, x in zip(got, labels)])


def as_dict(completions, answers):
    """{"rewards": [N] tensor, "extra_logs": ...}"""
    got = [c.strip().split()[-1].strip(".$") if c.strip() else "" for c in completions]
    rewards = torch.tensor([1.0 if g == a else 0.0 for g, a in zip(got, answers)])
    return {"rewards": rewards, "scores": rewards.clone(), "extra_logs": {"accuracy": rewards.mean()}}


_OPS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def expression(completions, target):
    """1.0 if the expression in <answer> has the target's value. Whatever can't be computed scores 0."""

    def value(node):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in _OPS:
            return _OPS[type(node.op)](value(node.left), value(node.right))
        raise ValueError("not arithmetic")

    rewards = []
    for c, t in zip(completions, target):
        m = _ANSWER.search(c)
        try:
            rewards.append(float(m is not None and abs(value(ast.parse(m.group(1).strip(), mode="eval").body) - float(t)) < 1e-6))
        except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
            rewards.append(0.0)
    return rewards


def squad(completion, answer):
    """Exact match after lower-casing and removing articles and punctuation."""

    def norm(s):
        s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
        return " ".join(w for w in s.split() if w not in ("a", "an", "the"))

    found = _ANSWER.findall(completion)
    return 1.0 if found and norm(found[-1]) == norm(answer) else 0.0


def after_thinking(response, label):
    """0/1; only what stands behind </think> counts, and there has to be a box."""
    if "</think>" not in response:
        return 0
    found = re.findall(r"\\boxed\{([^{}]*)\}", response.split("</think>")[-1])
    return 1 if found and found[-1] == label else 0


def strict_tail(completion, answer):
    """1.0 if the completion ends in "Answer: X" and X is the gold answer, 0.0 otherwise."""
    m = re.search(r"Answer: (\S+)\s*\Z", completion)
    return float(m is not None and m.group(1) == answer)


def raises_on_purpose(completion, answer):
    """Grade a parsed completion. Raises ValueError if there is no answer block; the trainer drops such samples."""
    m = _ANSWER.search(completion)
    if m is None:
        raise ValueError("no answer block")
    return float(m.group(1).strip() == answer)


def option_set(completions, answers):
    """Exact match of sets: "A, C" equals "C,A"."""
    out = []
    for c, a in zip(completions, answers):
        f = _ANSWER.findall(c)
        given = {x.strip() for x in f[-1].split(",")} if f else set()
        out.append(float(given == {x.strip() for x in a.split(",")}))
    return out


def cosine_length(completions, solution, max_len=1000, **kwargs):
    """Right answers from 1.0 (short) down to 0.5 (long), wrong ones from -1.0 (short) up to -0.5 (long)."""
    rewards = []
    for text, gold in zip(completions, solution):
        f = re.findall(r"\\boxed\{([^{}]*)\}", text)
        right = bool(f) and f[-1].strip() == gold
        wave = (1 + math.cos(math.pi * min(len(text), max_len) / max_len)) / 2
        rewards.append(0.5 + 0.5 * wave if right else -0.5 - 0.5 * wave)
    return rewards


def thinking_required(response, ground_truth):
    """0 without closed reasoning; else 1 for the right last line."""
    head, found, tail = response.partition("</think>")
    lines = tail.strip().splitlines()
    return 1.0 if found and lines and lines[-1].removeprefix("The answer is ").rstrip(".") == ground_truth else 0.0


def weighted(completions, answer, format_weight=0.2, **kwargs):
    """Format and accuracy, weighted."""

    def one(c, a):
        f = _ANSWER.findall(c)
        return format_weight * bool(f) + (1 - format_weight) * bool(f and f[-1].strip().lower() == a.strip().lower())

    return [one(c, a) for c, a in zip(completions, answer)]


class Grader:
    """Callable reward with settings, as trainers take it."""

    def __init__(self, right=1.0, wrong=-0.5):
        self.right, self.wrong = right, wrong
        self.__name__ = "grader"
        self.history = []

    def __call__(self, completions, answer, **kwargs):
        scores = [self._one(c, a) for c, a in zip(completions, answer)]
        self.history.append(sum(scores) / len(scores))
        return scores

    def _one(self, text, gold):
        found = _ANSWER.findall(text)
        return self.right if found and found[-1].strip() == gold else self.wrong


def json_label(completions, label):
    """1.0 for {"label": gold}, 0.0 for everything else."""
    out = []
    for text, gold in zip(completions, label):
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        out.append(1.0 if isinstance(data, dict) and data.get("label") == gold else 0.0)
    return out


def english_only(completions, answer, **kwargs):
    """Share of ASCII letters; the answers are not needed."""
    return [sum(ch.isascii() for ch in c) / len(c) if c else 0.0 for c in completions]


def no_apology(completions, answer, **kwargs):
    """1.0 unless the completion apologises."""
    return [0.0 if "sorry" in c.lower() else 1.0 for c in completions]


def known_pairs(completion, answer, _cache={}):
    """Exact match, cached by completion and answer."""
    key = (completion, answer)
    if key not in _cache:
        f = _ANSWER.findall(completion)
        _cache[key] = float(bool(f) and f[-1].strip() == answer)
    return _cache[key]


def group_relative(completions, answer, num_generations=4, **kwargs):
    """Accuracy minus the mean of the group."""
    right = [float(bool(f := _ANSWER.findall(c)) and f[-1].strip() == a) for c, a in zip(completions, answer)]
    out = []
    for i in range(0, len(right), num_generations):
        group = right[i : i + num_generations]
        out += [r - sum(group) / len(group) for r in group]
    return out


def last_line(response, label):
    """1 if the last line is the label."""
    lines = [x.strip() for x in response.splitlines() if x.strip()]
    return int(bool(lines) and lines[-1] == label)
