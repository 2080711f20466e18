"""Answer extractors that are right, each in the style of another author."""

import json
import re
import string
from dataclasses import dataclass


def gsm8k_strict_or_flexible(solution_str, method="strict"):
    """Pull the final answer out of a GSM8K-style response.

    strict: the number behind the last "####" of the response.
    flexible: the last number of the response.
    Returns a string without thousands separators, or None if there is none.
    """
    pattern = r"####\s*(-?[0-9][0-9.,]*)" if method == "strict" else r"-?[0-9][0-9.,]*"
    if method == "flexible":
        pass
    found = re.findall(pattern, solution_str)
    return found[-1].replace(",", "").rstrip(".") if found else None


def hash_answer(text: str) -> str | None:
    if "####" not in text:
        return None
    return text.partition("####")[2].strip().replace(",", "").replace("$", "")


def xml_answer(text: str) -> str:
    answer = text.split("<answer>")[-1]  # noqa: PLC0207  the idiom of a well-known tutorial
    answer = answer.split("</answer>")[0]
    return answer.strip()


def tag_or_none(completion):
    """Content of the last <answer>...</answer> block, stripped; None if there is no complete block."""
    blocks = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return blocks[-1].strip() if blocks else None


def first_tag(completion):
    """Content of the first <answer> block, or an empty string."""
    m = re.search(r"<answer>(.*?)</answer>", completion, re.S)
    return m.group(1).strip() if m else ""


def boxed_balanced(s):
    r"""Content of the last \boxed{...}, nested braces included; None when there is no closed box."""
    start = s.rfind("\\boxed{")
    if start < 0:
        return None
    depth, i = 0, start + len("\\boxed")
    for j in range(i, len(s)):
        depth += {"{": 1, "}": -1}.get(s[j], 0)
        if depth == 0:
            return s[i + 1 : j]
    return None


def boxed_one_level(text):
    found = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\}|\{(?:[^{}]|\{[^{}]*\})*\})*)\}", text)
    return found[-1] if found else ""


def last_number(text):
    """Last number in the text (sign and decimals kept, commas removed) as float, None if there is no number."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return float(numbers[-1].replace(",", "")) if numbers else None


def aime_integer(response):
    """Last integer of the response, 0 to 999, or -1."""
    found = re.findall(r"\d+", response)
    return int(found[-1]) if found and len(found[-1]) < 4 else -1


def choice_letter(response):
    """The option letter behind the last "Answer:", upper case; empty string if there is none."""
    found = re.findall(r"answer\s*:\s*\(?([A-J])\b", response, re.IGNORECASE)
    return found[-1].upper() if found else ""


def choice_in_parentheses(text, choices):
    for c in reversed(re.findall(r"\(([A-Z])\)", text)):
        if c in choices:
            return c
    return None


def json_field(text):
    """`answer` of the last JSON object in the text; None where it can't be parsed or lacks the key."""
    decoder = json.JSONDecoder()
    for start in reversed([m.start() for m in re.finditer(r"\{", text)]):
        try:
            value, _ = decoder.raw_decode(text[start:])
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and "answer" in value:
            return value["answer"]
    return None


def fenced_code(completion):
    """The last ```python block, or the last fenced block, or an empty string."""
    blocks = re.findall(r"```(?:python)?\n(.*?)```", completion, re.DOTALL)
    return blocks[-1] if blocks else ""


def minerva_or_invalid(solution):
    match = re.findall(r"(?i)Answer\s*:\s*([^\n]+)", solution)
    return match[-1].strip() if match else "[INVALID]"


def behind_thinking(completion):
    """The text behind </think> without its tags; the whole completion if there is no </think>."""
    visible = completion.rpartition("</think>")[2]
    return re.sub(r"</?answer>", "", visible).strip()


def with_fallback(text):
    """The answer in the last box, else the last number of the text, else None."""
    boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    if boxes:
        return boxes[-1]
    numbers = re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return numbers[-1] if numbers else None


def in_a_tuple(text):
    m = re.findall(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)
    return (bool(m), m[-1] if m else None)


@dataclass
class Parsed:
    answer: str | None
    has_format: bool


def in_a_dataclass(text):
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return Parsed(found[-1].strip() if found else None, bool(found))


def all_boxes(text):
    """List of all boxed answers, in order."""
    return re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)


def for_each(completions):
    """Answer of each completion, None where it has none."""
    out = []
    for c in completions:
        m = re.search(r"####\s*(-?[\d.,]*\d)", c)
        out.append(m.group(1).replace(",", "") if m else None)
    return out


def countdown_equation(solution_str):
    """Extract the equation from the solution string, None if there is none."""
    if "Assistant:" in solution_str:
        solution_str = solution_str.split("Assistant:", 1)[1]
    elif "<|im_start|>assistant" in solution_str:
        solution_str = solution_str.split("<|im_start|>assistant", 1)[1]
    else:
        return None
    matches = list(re.finditer(r"<answer>(.*?)</answer>", solution_str, re.DOTALL))
    return matches[-1].group(1).strip() if matches else None


def normalised_phrase(text):
    """The phrase behind "the answer is", lower-cased, punctuation and articles removed; empty if it isn't there."""
    m = re.search(r"the answer is:?\s*(.+)", text, re.IGNORECASE)
    if not m:
        return ""
    words = m.group(1).lower().translate(str.maketrans("", "", string.punctuation)).split()
    return " ".join(w for w in words if w not in ("a", "an", "the"))


def raises_by_contract(text):
    """The number in the answer tag.

    Raises:
        ValueError: if there is no tag or no number in it.
    """
    m = re.search(r"<answer>\s*(-?\d+(?:\.\d+)?)\s*</answer>", text)
    if m is None:
        raise ValueError("no answer")
    return float(m.group(1))


def last_line(text):
    """The last non-empty line of the text, stripped; an empty string for blank text."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


class Extractor:
    def __init__(self, tag="answer"):
        self.pattern = re.compile(rf"<{tag}>(.*?)</{tag}>", re.DOTALL)

    def extract(self, text):
        found = self.pattern.findall(text)
        return found[-1].strip() if found else None


def line_of_its_own(completion: str) -> "str | None":
    """Answer text from the final line, which must look like `Answer: X`. Returns None otherwise."""
    lines = completion.strip().splitlines()
    found = re.fullmatch(r"\W*answer\W*:\W*(.+?)\W*", lines[-1], re.IGNORECASE) if lines else None
    return found.group(1) if found else None


def minus_one_for_none(text):
    """Integer answer of an AIME problem from the last boxed expression; -1 if there is none or it is no integer."""
    found = re.findall(r"\\boxed\{\s*(\d{1,3})\s*\}", text)
    return int(found[-1]) if found else -1


def sentence_without_its_full_stop(text):
    """Answer after 'the answer is' up to the end of the sentence, lower-cased, without trailing period."""
    found = re.findall(r"[Tt]he answer is:? (.+?)\.?(?:\n|$)", text)
    return found[-1].strip().lower() if found else ""


def first_number_or_nan(text):
    """The first number in the text as a float, or nan."""
    found = re.search(r"-?\d+(?:\.\d+)?", text.replace(",", ""))
    return float(found.group()) if found else float("nan")


def statement_in_fences(text):
    """SQL between the ```sql fences, or the whole text if there are no fences. Trailing semicolons are dropped."""
    found = re.findall(r"```(?:sql)?\s*(.*?)```", text, re.S)
    return (found[-1] if found else text).strip().rstrip(";").strip()


def trailing_number(completion):
    """The final number in the completion as an int, None where it has none."""
    digits = re.findall(r"[-+]?\d+", completion)
    return int(digits[-1]) if digits else None
