"""Reward of the adder run: is the sum right?"""

import re

ANSWER = re.compile(r"<answer>\s*(-?\d+(?:\.\d+)?)\s*</answer>")


def correctness_reward(prompts, completions, answers):
    """1.0 where the last <answer>...</answer> of a completion holds the right number, else 0.0.

    Args:
        prompts: list of questions, one a completion.
        completions: list of scored texts.
        answers: list of right numbers, as text.

    Returns:
        List of rewards in the order of the completions.
    """
    rewards = []
    for completion, answer in zip(completions, answers, strict=True):
        found = ANSWER.findall(completion)
        rewards.append(1.0 if found and float(found[-1]) == float(answer) else 0.0)
    return rewards
