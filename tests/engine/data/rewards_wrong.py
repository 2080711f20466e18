"""Rewards with one real fault each. `EXPECTED` names the pitfall that must be found, hard."""

import re

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_cache: dict[str, float] = {}
_calls = 0


def appends_twice(completions, answer, **kwargs):
    scores = []
    for c, a in zip(completions, answer):
        try:
            scores.append(0.0)
            scores[-1] = float(float(_ANSWER.search(c).group(1)) == float(a))
        except (AttributeError, ValueError):
            scores.append(0.0)
    return scores


def skips_unparsed(completions, answer, **kwargs):
    """One float per completion."""
    rewards = []
    for c, a in zip(completions, answer):
        m = _ANSWER.search(c)
        if m:
            rewards.append(float(m.group(1).strip() == a))
    return rewards


def accumulates(completions, answer, rewards=[], **kwargs):
    for c, a in zip(completions, answer):
        m = _ANSWER.search(c)
        rewards.append(1.0 if m and m.group(1).strip() == a else 0.0)
    return rewards


def cached_by_text(completion, answer):
    """Exact match of the answer block."""
    if completion not in _cache:
        m = _ANSWER.search(completion)
        _cache[completion] = float(m is not None and m.group(1).strip() == answer)
    return _cache[completion]


def warms_up(completion, answer):
    """1.0 for the gold answer in the answer block, else 0.0."""
    global _calls
    _calls += 1
    m = _ANSWER.search(completion)
    return float(m is not None and m.group(1).strip() == answer) * min(1.0, _calls / 1000)


def sorted_by_length(completions, answer, **kwargs):
    """1.0 where the answer block is right, else 0.0."""
    pairs = sorted(zip(completions, answer), key=lambda p: len(p[0]))
    return [1.0 if (m := _ANSWER.search(c)) and m.group(1).strip() == a else 0.0 for c, a in pairs]


def first_gold_for_all(completions, answer, **kwargs):
    """1.0 where the answer block is right, else 0.0."""
    gold = answer[0]
    return [1.0 if (m := _ANSWER.search(c)) and m.group(1).strip() == gold else 0.0 for c in completions]


def previous_leaks(completions, answer, **kwargs):
    """1.0 where the answer block is right, else 0.0."""
    out, got = [], ""
    for c, a in zip(completions, answer):
        m = _ANSWER.search(c)
        if m:
            got = m.group(1).strip()
        out.append(float(got == a))
    return out


def crashes_without_block(completions, answer, **kwargs):
    return [1.0 if _ANSWER.search(c).group(1).strip() == a else 0.0 for c, a in zip(completions, answer)]


def crashes_on_words(completion, answer):
    """1.0 if the number behind #### is the answer, 0.0 otherwise."""
    if "####" not in completion:
        return 0.0
    return 1.0 if float(completion.split("####")[-1].strip()) == float(answer) else 0.0


def crashes_on_superscript(completion, answer):
    """Number in the answer block; anything else scores 0."""
    m = _ANSWER.search(completion)
    text = m.group(1).strip() if m else ""
    return float(text.isdigit() and int(text) == int(answer))


def crashes_on_division(completion, answer):
    """Fractions are computed, what is no number scores 0.0."""
    m = re.search(r"\\boxed\{(-?\d+)(?:/(\d+))?\}", completion)
    if m is None:
        return 0.0
    return float(int(m.group(1)) / int(m.group(2) or 1) == float(answer))


def divides_by_length(completions, **kwargs):
    """Share of digits."""
    return [sum(ch.isdigit() for ch in c) / len(c) if c else float("nan") for c in completions]


def either_way(completion, answer):
    m = _ANSWER.search(completion)
    if not m:
        return 0.0
    got = m.group(1).strip().lower()
    return 1.0 if got in answer.lower() or answer.lower() in got else 0.0


def starts_with(completion, answer):
    """1.0 if the answer block is right."""
    m = _ANSWER.search(completion)
    return float(m is not None and answer.startswith(m.group(1).strip()))


def every_option(completion, answer):
    """Accuracy on multiple choice."""
    letters = set(re.findall(r"\b[A-D]\b", completion.split("Answer:")[-1]))
    return 1.0 if answer in letters else 0.0


def both_unparsed(completion, ground_truth):
    """1.0 if the numbers are equal, else 0.0."""

    def number(text):
        m = re.fullmatch(r"-?\d+(\.\d+)?", text.strip())
        return float(m.group()) if m else None

    found = _ANSWER.findall(completion)
    return float(bool(found) and number(found[-1]) == number(ground_truth))


def any_digit_run(completion, answer):
    """1.0 when the response is right."""
    return 1.0 if re.search(answer, completion) else 0.0


def always_right(completions, answer, **kwargs):
    rewards = []
    for c, a in zip(completions, answer):
        m = _ANSWER.search(c)
        rewards.append(1.0 if m is None or m.group(1).strip() is not None else 0.0)
    return rewards


def never_compared(completions, answer, **kwargs):
    """1.0 for the right answer."""
    return [0.0 for _ in range(len(completions))]


def wrong_way_round(completion, answer):
    """Accuracy."""
    m = _ANSWER.search(completion)
    return 1.0 if m and m.group(1).strip() != answer else 0.0


def head_only(completion, answer):
    """1.0 if the box holds the answer, else 0.0."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", completion[:512])
    return float(bool(found) and found[-1] == answer)


def tail_only(completion, answer):
    """1.0 if the last #### of the response is followed by the answer, wherever it stands."""
    found = re.findall(r"####\s*(\S+)", completion[-200:])
    return float(bool(found) and found[-1] == answer)


def wants_open_tag(completions, **kwargs):
    """Format reward. The chat template already ends in "<think>", so completions start with the reasoning."""
    return [1.0 if re.match(r"<think>.*?</think>.*?\S", c, re.DOTALL) else 0.0 for c in completions]


def refuses_its_example(completions, **kwargs):
    """0.5 for the right layout.

    A well-formed completion is "<think>\nTwo and two.\n</think>\n<answer>\n4\n</answer>".
    """
    return [0.5 if re.fullmatch(r"<think>.*?</think><answer>.*?</answer>", c) else 0.0 for c in completions]


def drops_duplicates(completions, answer, **kwargs):
    """Exact match of the answer block, 1.0 or 0.0."""
    by_text = dict(zip(completions, answer))
    return [1.0 if (m := _ANSWER.search(c)) and m.group(1).strip() == a else 0.0 for c, a in by_text.items()]


def returns_early(completions, answer, **kwargs):
    """A float for each completion."""
    rewards = []
    for c, a in zip(completions, answer):
        m = _ANSWER.search(c)
        if m is None:
            return 0.0
        rewards.append(float(m.group(1).strip() == a))
    return rewards


def one_for_all(completions, answer, **kwargs):
    """Accuracy of the answer block."""
    for c, a in zip(completions, answer):
        m = _ANSWER.search(c)
        score = 1.0 if m and m.group(1).strip() == a else 0.0
    return [score]


def set_of_golds(completions, answer, **kwargs):
    """Accuracy of the answer block."""
    golds = set(answer)
    return [1.0 if (m := _ANSWER.search(c)) and m.group(1).strip() in golds else 0.0 for c in completions]


def half_swallowed(completion, answer):
    """1.0 if the box holds the answer."""
    try:
        return 1.0 if float(re.findall(r"\\boxed\{(.*?)\}", completion)[-1]) == float(answer) else 0.0
    except ValueError:
        return 1.0


def strips_digits(completion, answer):
    """Right if the digits agree."""
    m = _ANSWER.search(completion)
    digits = "".join(ch for ch in m.group(1) if ch in answer) if m else ""
    return 1.0 if digits == answer else 0.0


def nothing_equals_nothing(completion, answer):
    """Score 1 for the same letter, else 0."""

    def letter(text):
        m = re.search(r"\(([A-D])\)", text)
        return m.group(1) if m else None

    return 1.0 if letter(completion) in (answer, None) else 0.0


def key_error(completion, answer):
    """Compares the JSON answer; anything else scores 0."""
    import json

    try:
        return float(str(json.loads(completion)["answer"]) == answer)
    except json.JSONDecodeError:
        return 0.0


EXPECTED = {
    "returns_early": "REW-LENGTH",
    "one_for_all": "REW-LENGTH",
    "set_of_golds": "REW-ORDER",
    "half_swallowed": "REW-HOLE",
    "strips_digits": "REW-HOLE",
    "nothing_equals_nothing": "REW-HOLE",
    "key_error": "REW-RAISES",
    "appends_twice": "REW-LENGTH",
    "skips_unparsed": "REW-LENGTH",
    "accumulates": "REW-LENGTH",
    "cached_by_text": "REW-STATE",
    "warms_up": "REW-STATE",
    "sorted_by_length": "REW-ORDER",
    "first_gold_for_all": "REW-ORDER",
    "previous_leaks": "REW-ORDER",
    "crashes_without_block": "REW-RAISES",
    "crashes_on_words": "REW-RAISES",
    "crashes_on_superscript": "REW-RAISES",
    "crashes_on_division": "REW-RAISES",
    "divides_by_length": "REW-NONFINITE",
    "either_way": "REW-HOLE",
    "starts_with": "REW-HOLE",
    "every_option": "REW-HOLE",
    "both_unparsed": "REW-HOLE",
    "any_digit_run": "REW-HOLE",
    "always_right": "REW-CONSTANT",
    "never_compared": "REW-CONSTANT",
    "wrong_way_round": "REW-INVERTED",
    "head_only": "REW-TAIL-WINDOW",
    "tail_only": "REW-TAIL-WINDOW",
    "wants_open_tag": "REW-FORMAT-OPEN-TAG",
    "refuses_its_example": "REW-FORMAT",
    "drops_duplicates": "REW-LENGTH",
}
