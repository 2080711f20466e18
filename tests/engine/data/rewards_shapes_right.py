"""Right rewards in the many shapes in which frameworks call them."""

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass, field

_BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def _box(text):
    found = _BOX.findall(text)
    return found[-1].strip() if found else None


@dataclass
class RewardOutput:
    reward: float
    is_correct: bool = False
    metadata: dict = field(default_factory=dict)


def task_info(task_info: dict, action: str) -> RewardOutput:
    """1 if the last box is the ground truth."""
    ok = _box(action) == task_info["ground_truth"]
    return RewardOutput(reward=1.0 if ok else 0.0, is_correct=ok)


def queries_that_hold_the_prompt(queries, prompts, labels, **kwargs):
    import torch

    out = [1.0 if _box(q[len(p) :]) == label else 0.0 for q, p, label in zip(queries, prompts, labels, strict=True)]
    scores = torch.tensor(out)
    return {"rewards": scores, "scores": scores, "extra_logs": {"accuracy": scores.mean()}}


async def async_on_a_sample(args, sample, **kwargs):
    return 1.0 if _box(sample.response) == sample.label else 0.0


def dict_with_details(data_source, solution_str, ground_truth, extra_info=None):
    pred = _box(solution_str)
    return {"score": 1.0 if pred == ground_truth else 0.0, "acc": pred == ground_truth, "pred": pred}


def batch_of_ids(batch, tokenizer):
    """Scores of a batch: batch["responses"] [B, R] ids, batch["response_mask"] [B, R], batch["answers"] golds."""
    out = []
    for i in range(batch["responses"].shape[0]):
        ids = batch["responses"][i][batch["response_mask"][i].bool()]
        out.append(float(_box(tokenizer.decode(ids, skip_special_tokens=True)) == batch["answers"][i]))
    return out


class RewardManager:
    """Token rewards: the score stands on the last token of each response."""

    def __init__(self, tokenizer, num_examine=0):
        self.tokenizer = tokenizer
        self.num_examine = num_examine

    def __call__(self, data, return_dict=False):
        import torch

        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        for i in range(len(data)):
            item = data[i]
            prompt_length = item.batch["prompts"].shape[-1]
            valid = int(item.batch["attention_mask"][prompt_length:].sum())
            text = self.tokenizer.decode(item.batch["responses"][:valid], skip_special_tokens=True)
            rewards[i, valid - 1] = float(_box(text) == item.non_tensor_batch["reward_model"]["ground_truth"])
        return rewards


def scores_of_steps(completion, answer):
    """One score a step (steps are separated by blank lines): 1 for a step whose box is the answer."""
    return [1.0 if _box(step) == answer else 0.0 for step in completion.split("\n\n")]


def scores_of_tokens(completions, answer, completion_ids, **kwargs):
    """Token rewards: 0 except on the last token."""
    out = []
    for text, gold, ids in zip(completions, answer, completion_ids, strict=True):
        row = [0.0] * len(ids)
        row[-1] = 1.0 if _box(text) == gold else 0.0
        out.append(row)
    return out


def with_a_state(prompt, completion, answer, state, **kwargs):
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return 1.0 if _box(text) == answer else 0.0


def own_turns(completions, answer, **kwargs):
    """1.0 if the last box in the assistant's own words (tool results do not count) holds the answer.

    completions: list of message lists.
    """
    out = []
    for messages, gold in zip(completions, answer, strict=True):
        text = "\n".join(m["content"] or "" for m in messages if m["role"] == "assistant")
        out.append(float(_box(text) == gold))
    return out


def asserts(completions, test_list, **kwargs):
    """1.0 if the code in the last fence passes all asserts. The run has to reach its end."""
    out = []
    for text, tests in zip(completions, test_list, strict=True):
        code = (re.findall(r"```(?:python)?\n(.*?)```", text, re.S) or [""])[-1]
        scope = {}
        try:
            exec(code, scope)
            for test in tests:
                exec(test, scope)
        except (Exception, SystemExit):  # noqa: BLE001  a program raises anything
            out.append(0.0)
        else:
            out.append(1.0)
    return out


def inputs_and_outputs(completion, ground_truth):
    """Share of the cases in `ground_truth` (JSON with inputs and outputs) that the program solves."""
    code = re.findall(r"```(?:python)?\n(.*?)```", completion, re.S)
    if not code:
        return 0.0
    cases = json.loads(ground_truth)
    solved = 0
    for given, wanted in zip(cases["inputs"], cases["outputs"], strict=True):
        command = [sys.executable, "-I", "-S", "-c", code[-1]]
        try:
            run = subprocess.run(command, input=given, capture_output=True, text=True, timeout=5)
        except subprocess.TimeoutExpired:
            continue
        solved += run.stdout.strip() == wanted.strip()
    return solved / len(cases["inputs"])


def tool_calls(completions, expected_calls, **kwargs):
    """1.0 if the last tool call equals the expected one, name and arguments."""
    out = []
    for text, expected in zip(completions, expected_calls, strict=True):
        found = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.S)
        try:
            got = json.loads(found[-1]) if found else None
        except ValueError:
            got = None
        wanted = json.loads(expected) if isinstance(expected, str) else expected
        out.append(1.0 if got is not None and got == wanted else 0.0)
    return out


def cosine(completions, solution, max_len=1000, **kwargs):
    """Cosine length reward: short right answers earn more (0.5 to 1), short wrong ones less (-1 to -0.5)."""
    out = []
    for text, gold in zip(completions, solution, strict=True):
        wave = math.cos(min(len(text) / max_len, 1.0) * math.pi)
        low, high = (0.5, 1.0) if _box(text) == gold else (-0.5, -1.0)
        out.append(low + 0.5 * (high - low) * (1 + wave))
    return out


def repetition(completions, ngram_size=3, max_penalty=-1.0, **kwargs):
    """Repetition penalty in [max_penalty, 0]."""
    out = []
    for text in completions:
        words = text.lower().split()
        grams = [tuple(words[i : i + ngram_size]) for i in range(len(words) - ngram_size + 1)]
        out.append((1 - len(set(grams)) / len(grams)) * max_penalty if grams else 0.0)
    return out


def layout(completions, **kwargs):
    """0.5 for a <think> block with an <answer> block behind it; both may span several lines."""
    return [
        0.5 if re.fullmatch(r"\s*<think>[\s\S]+?</think>\s*<answer>[\s\S]+?</answer>\s*", c) else 0.0
        for c in completions
    ]


def graded(prompts, completions, solutions):
    """Scores each different text of a call once. 1.0 where the text between the answer tags is the solution."""
    seen = {}
    for text, gold in zip(completions, solutions, strict=True):
        tail = text.split("<answer>")[-1].split("</answer>")[0].strip()
        seen[text, gold] = float(tail == gold)
    return [seen[key] for key in zip(completions, solutions, strict=True)]
