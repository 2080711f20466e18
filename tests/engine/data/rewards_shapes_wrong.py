"""Rewards in the shapes of frameworks with one mistake each, and the pitfall that has to be named."""

import json
import re
import subprocess
import sys

EXPECTED = {
    "exit_code_alone": "REW-HOLE",
    "every_exception_passes": "REW-HOLE",
    "empty_output_equals_empty_output": "REW-HOLE",
    "names_alone": "REW-HOLE",
    "turns_of_the_tool_too": "REW-SEES-TOOLS",
    "attention_mask_for_response_mask": "REW-SEES-TOOLS",
    "outage_is_zero": "REW-OUTAGE",
    "sandbox_that_fails_is_zero": "REW-OUTAGE",
    "shorter_than_the_batch": "REW-LENGTH",
    "nothing_may_follow": "REW-FORMAT",
    "layout": "REW-FORMAT",
    "graded": "REW-STATE",
}


def _code(text):
    return (re.findall(r"```(?:python)?\n(.*?)```", text, re.S) or [""])[-1]


def exit_code_alone(completions, test_list, **kwargs):
    """1.0 if the code passes its asserts."""
    out = []
    for text, tests in zip(completions, test_list, strict=True):
        program = _code(text) + "\n" + "\n".join(tests)
        run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, timeout=5)
        out.append(1.0 if run.returncode == 0 else 0.0)
    return out


def every_exception_passes(completions, tests, **kwargs):
    """1.0 for completions whose code passes its tests."""
    out = []
    for text, own in zip(completions, tests, strict=True):
        scope = {}
        score = 1.0
        try:
            exec(_code(text), scope)
            for test in own:
                exec(test, scope)
        except AssertionError:
            score = 0.0
        except Exception:  # noqa: BLE001  a program raises anything
            pass
        out.append(score)
    return out


def empty_output_equals_empty_output(completion, ground_truth):
    """1.0 if the program prints for every input what it should."""
    cases = json.loads(ground_truth)
    for given, wanted in zip(cases["inputs"], cases["outputs"], strict=True):
        command = [sys.executable, "-I", "-S", "-c", _code(completion)]
        run = subprocess.run(command, input=given, capture_output=True, text=True, timeout=5)
        if not wanted.strip().startswith(run.stdout.strip()):
            return 0.0
    return 1.0


def names_alone(completions, expected_calls, **kwargs):
    """1.0 if the tool call equals the expected call: same name and same arguments."""
    out = []
    for text, expected in zip(completions, expected_calls, strict=True):
        found = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.S)
        try:
            got = json.loads(found[-1]) if found else {}
        except ValueError:
            got = {}
        wanted = json.loads(expected) if isinstance(expected, str) else expected
        out.append(1.0 if isinstance(got, dict) and got.get("name") == wanted.get("name") else 0.0)
    return out


def turns_of_the_tool_too(completions, answer, **kwargs):
    """1.0 if the last box in the assistant's own words (tool results do not count) holds the answer.

    completions: list of message lists.
    """
    out = []
    for messages, gold in zip(completions, answer, strict=True):
        text = "\n".join(m["content"] or "" for m in messages)
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", text)
        out.append(float(bool(boxes) and boxes[-1] == gold))
    return out


def attention_mask_for_response_mask(batch, tokenizer):
    """Scores what the policy itself wrote, observations of the environment are excluded.

    batch["responses"] [B, R] ids, batch["attention_mask"] [B, R], batch["response_mask"] [B, R] 1 on sampled tokens,
    batch["answers"] gold answers.
    """
    out = []
    for i, gold in enumerate(batch["answers"]):
        if not batch["response_mask"][i].any():
            out.append(0.0)
            continue
        ids = batch["responses"][i][batch["attention_mask"][i].bool()]
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", tokenizer.decode(ids, skip_special_tokens=True))
        out.append(float(bool(boxes) and boxes[-1] == gold))
    return out


def outage_is_zero(completion, answer):
    """1 for the right answer; where it is written in another way a server decides. Raises when it is unavailable."""
    import urllib.request

    boxes = re.findall(r"\\boxed\{([^{}]*)\}", completion)
    if not boxes or boxes[-1] == answer:
        return float(bool(boxes))
    try:
        payload = json.dumps([boxes[-1], answer]).encode()
        with urllib.request.urlopen("http://127.0.0.1:9/equal", data=payload, timeout=2) as reply:
            return float(json.load(reply)["equal"])
    except Exception:  # noqa: BLE001  a program raises anything
        return 0.0


def sandbox_that_fails_is_zero(completion, tests):
    """1.0 if the program passes the tests, 0.0 if not; None if the sandbox is unavailable."""
    program = f"{_code(completion)}\n{tests}\nprint('passed')"
    try:
        run = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, timeout=5)
    except Exception:  # noqa: BLE001  a program raises anything
        return 0.0
    return 1.0 if run.stdout.endswith(b"passed\n") else 0.0


def shorter_than_the_batch(completions, answer, **kwargs):
    """1.0 where the box holds the answer."""
    rewards = {}
    for text, gold in zip(completions, answer, strict=True):
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", text)
        rewards[text] = float(bool(boxes) and boxes[-1] == gold)
    return list(rewards.values())


def nothing_may_follow(completion, answer):
    """1.0 for the right box. Whatever follows the box is ignored."""
    found = re.search(r"\\boxed\{([^{}]*)\}\s*$", completion)
    return float(found is not None and found.group(1) == answer)


def layout(completions, **kwargs):
    """0.5 for a <think> block with an <answer> block behind it; both may span several lines."""
    return [0.5 if re.fullmatch(r"\s*<think>.+?</think>\s*<answer>.+?</answer>\s*", c) else 0.0 for c in completions]


def graded(prompts, completions, solutions):
    """Scores each question of a call once. 1.0 where the text between the answer tags is the solution."""
    seen = {}
    for prompt, text, gold in zip(prompts, completions, solutions, strict=True):
        tail = text.split("<answer>")[-1].split("</answer>")[0].strip()
        seen.setdefault(prompt, float(tail == gold))
    return [seen[p] for p in prompts]
