"""Right rewards."""

import re

ROLE = "reward"
BASES = {"boxed": {}, "hashes": {}, "tagged": {}, "single": {}}


def boxed(completions, answers, **kwargs):
    r"""1.0 where the last \boxed{...} of a completion holds the answer, else 0.0."""
    scores = []
    for completion, answer in zip(completions, answers):
        found = re.findall(r"\\boxed\{([^{}]*)\}", completion)
        scores.append(1.0 if found and found[-1].strip() == answer.strip() else 0.0)
    return scores


def hashes(completions, answers, **kwargs):
    """1.0 where the number behind the last `####` is the answer, else 0.0."""
    scores = []
    for completion, answer in zip(completions, answers):
        found = re.findall(r"####\s*(-?[\d.,]+)", completion)
        guess = found[-1].replace(",", "").rstrip(".") if found else None
        scores.append(1.0 if guess is not None and guess == answer.strip() else 0.0)
    return scores


def tagged(prompts, completions, answer, **kwargs):
    """1.0 for a right answer in <answer> tags, 0.1 for the tags alone, 0.0 otherwise."""
    out = []
    for text, gold in zip(completions, answer):
        match = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
        if match is None:
            out.append(0.0)
        elif match.group(1).strip() == gold.strip():
            out.append(1.0)
        else:
            out.append(0.1)
    return out


def single(solution_str, ground_truth):
    """1.0 when the last number of the solution equals the ground truth, else 0.0."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", solution_str.replace(",", ""))
    if not numbers:
        return 0.0
    return 1.0 if float(numbers[-1]) == float(ground_truth) else 0.0
