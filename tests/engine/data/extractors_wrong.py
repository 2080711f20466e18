"""Answer extractors with one mistake each, and the pitfall that has to be named."""

import json
import re

EXPECTED = {
    "only_the_tail": "EXT-WINDOW",
    "only_the_head": "EXT-WINDOW",
    "flexible_only_looks_at_the_tail": "EXT-WINDOW",
    "box_until_the_first_brace": "EXT-CUT",
    "find_without_a_check": "EXT-CUT",
    "sign_lost": "EXT-MISSED",
    "decimals_lost": "EXT-MISSED",
    "zeros_lost": "EXT-CUT",
    "zero_is_falsy": "EXT-CUT",
    "strip_takes_a_set": "EXT-CUT",
    "index_of_nothing": "EXT-RAISES",
    "group_of_nothing": "EXT-RAISES",
    "float_of_words": "EXT-RAISES",
    "json_unguarded": "EXT-RAISES",
    "first_for_last": "EXT-WRONG-ONE",
    "last_for_first": "EXT-WRONG-ONE",
    "greedy_over_two": "EXT-WRONG-ONE",
    "draft_in_the_thinking": "EXT-WRONG-ONE",
    "any_capital_letter": "EXT-WRONG-ONE",
    "first_number_of_all": "EXT-WRONG-ONE",
    "whole_text_where_none_is_promised": "EXT-NOT-AN-ANSWER",
    "zero_where_none_is_promised": "EXT-NOT-AN-ANSWER",
    "trailing_text_comes_along": "EXT-NOT-AN-ANSWER",
    "commas_stay": "EXT-MISSED",
    "blanks_stay": "EXT-MISSED",
    "case_sensitive": "EXT-MISSED",
    "no_line_breaks": "EXT-MISSED",
    "docstring_example": "EXT-MISSED",
    "cache_by_length": "EXT-STATE",
    "cache_by_prefix": "EXT-STATE",
    "remembers_the_last_answer": "EXT-STATE",
    "skips_those_without": "EXT-ORDER",
    "sorted_by_length": "EXT-ORDER",
    "example_of_the_prompt": "EXT-WRONG-ONE",
    "trailing_number": "EXT-MISSED",
}


def only_the_tail(response):
    """Answer in the last <answer> block of the whole response, or None."""
    found = re.findall(r"<answer>(.*?)</answer>", response[-250:], re.S)
    return found[-1].strip() if found else None


def only_the_head(completion):
    """Boxed answer of the completion, or None."""
    found = re.findall(r"\\boxed\{([^{}]*)\}", completion[:1000])
    return found[-1] if found else None


def flexible_only_looks_at_the_tail(solution_str, method="strict"):
    """Number behind the last #### (strict) or the last number (flexible) in the response; None if there is none."""
    if method == "strict":
        found = re.findall(r"#### (-?[0-9.,]*[0-9])", solution_str)
    elif method == "flexible":
        found = re.findall(r"-?[0-9.,]*[0-9]", solution_str[-300:])
    else:
        raise ValueError(method)
    return found[-1].replace(",", "") if found else None


def box_until_the_first_brace(text):
    r"""What stands in the last \boxed{}."""
    found = re.findall(r"\\boxed\{(.*?)\}", text)
    return found[-1] if found else None


def find_without_a_check(text):
    """What stands between the answer tags."""
    start = text.find("<answer>") + len("<answer>")
    return text[start : text.find("</answer>")].strip()


def sign_lost(text):
    """The number behind ####, None if there is none."""
    found = re.findall(r"####\D*(\d+(?:\.\d+)?)", text)
    return found[-1] if found else None


def decimals_lost(text):
    """The last number in the text as a float, None if there is none."""
    found = re.findall(r"-?\d+", text)
    return float(found[-1]) if found else None


def zeros_lost(text):
    """The number behind ####, without trailing zeros of its decimals."""
    m = re.search(r"####\s*(-?[\d.]+)", text)
    return m.group(1).rstrip("0").rstrip(".") if m else ""


def zero_is_falsy(text):
    m = re.search(r"<answer>\s*(-?\d+(?:\.\d+)?)\s*</answer>", text)
    value = float(m.group(1)) if m else None
    return value or None


def strip_takes_a_set(text):
    m = re.search(r"<answer>.*?</answer>", text, re.S)
    return m.group(0).strip("</answer>").strip() if m else None


def index_of_nothing(text):
    return re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)[-1]


def group_of_nothing(text):
    return re.search(r"Answer:\s*(\S+)", text).group(1)


def float_of_words(text):
    """Number in the answer tag."""
    m = re.search(r"<answer>(.*?)</answer>", text, re.S)
    return float(m.group(1)) if m else None


def json_unguarded(text):
    """The answer of the JSON object in the text; None if it can't be parsed."""
    m = re.search(r"\{.*\}", text, re.S)
    return json.loads(m.group(0))["answer"] if m else None


def first_for_last(text):
    """Content of the last <answer> block, or None."""
    m = re.search(r"<answer>(.*?)</answer>", text, re.S)
    return m.group(1).strip() if m else None


def last_for_first(text):
    r"""The first \boxed{} answer, or None."""
    found = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    return found[-1] if found else None


def greedy_over_two(text):
    m = re.search(r"<answer>(.*)</answer>", text, re.DOTALL)
    return m.group(1).strip() if m else None


def draft_in_the_thinking(text):
    """The boxed answer behind the thinking; boxes inside <think> are drafts and do not count."""
    m = re.search(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    return m.group(1) if m else None


def any_capital_letter(text):
    """The option letter (A-D) given as the final answer, e.g. "Answer: B"; empty if there is none."""
    m = re.search(r"[A-D]", text.replace("Answer", ""))
    return m.group(0) if m else ""


def first_number_of_all(text):
    """The number behind "Answer:" at the end, None if there is none."""
    m = re.search(r"-?\d+(?:\.\d+)?", text)
    return m.group(0) if m else None


def whole_text_where_none_is_promised(text):
    """The answer behind the last ####, None if there is no ####."""
    return text.split("####")[-1].strip()


def zero_where_none_is_promised(text):
    """The last number in the text, None if the text has no number."""
    found = re.findall(r"-?\d+(?:\.\d+)?", text)
    return float(found[-1]) if found else 0.0


def trailing_text_comes_along(text):
    """The number behind the last "####" in the text, whatever follows it is ignored. None if there is none."""
    return text.rsplit("####", 1)[1].strip() if "####" in text else None


def commas_stay(text):
    """The number behind ####, without thousands separators; None if there is none."""
    m = re.search(r"####\s*(-?[\d,.]*\d)", text)
    return m.group(1) if m else None


def blanks_stay(text):
    """Content of the answer tag with surrounding whitespace removed; None if there is no tag."""
    m = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return m.group(1) if m else None


def case_sensitive(text):
    """The option letter in parentheses, case-insensitive, returned in upper case."""
    m = re.search(r"\(([A-D])\)", text)
    return m.group(1).upper() if m else None


def no_line_breaks(text):
    """The content of the answer tag, which may span several lines; None if there is none."""
    m = re.search(r"<answer>(.*?)</answer>", text)
    return m.group(1).strip() if m else None


def docstring_example(text):
    r"""The boxed answer.

    >>> docstring_example("so \\boxed{x=5}")
    '5'
    """
    m = re.search(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    return m.group(1) if m else None


_SEEN = {}


def cache_by_length(text):
    key = len(text)
    if key not in _SEEN:
        m = re.search(r"<answer>(.*?)</answer>", text, re.S)
        _SEEN[key] = m.group(1).strip() if m else None
    return _SEEN[key]


_HEADS = {}


def cache_by_prefix(text):
    """Answer in the box, or None."""
    key = text[:200]
    if key not in _HEADS:
        m = re.search(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
        _HEADS[key] = m.group(1) if m else None
    return _HEADS[key]


_LAST = {"answer": None}


def remembers_the_last_answer(text):
    m = re.search(r"#### (-?[\d.,]*\d)", text)
    if m:
        _LAST["answer"] = m.group(1)
    return _LAST["answer"]


def skips_those_without(completions):
    """The number behind #### of each completion."""
    found = [re.search(r"#### (-?[\d.,]*\d)", c) for c in completions]
    return [m.group(1) for m in found if m]


def sorted_by_length(completions):
    """The number behind #### of each completion, None where there is none."""
    found = [re.search(r"#### (-?[\d.,]*\d)", c) for c in sorted(completions, key=len)]
    return [m.group(1) if m else None for m in found]


def example_of_the_prompt(solution_str):
    """The answer that the assistant gives in a whole transcript; None if it gives none."""
    if "Assistant:" not in solution_str:
        return None
    found = re.findall(r"<answer>(.*?)</answer>", solution_str, re.DOTALL)
    return found[-1].strip() if found else None


def trailing_number(completion):
    """The final number in the completion as a float, None where it has none."""
    found = re.findall(r"\d+([.,]\d+)*", completion)
    return float(found[-1]) if found and found[-1] else None
