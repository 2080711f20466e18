"""Right extractors."""

import re

ROLE = "extract_answer"
BASES = {"from_box": {}, "from_tags": {}}


def from_box(text):
    r"""Content of the last \boxed{...}, nested braces included; None where there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for i in range(begin, len(text)):
        if text[i] == "{":
            depth += 1
        elif text[i] == "}":
            if depth == 0:
                return text[begin:i].strip()
            depth -= 1
    return None


def from_tags(completion):
    """Text between the last <answer> and </answer>, stripped; None where there is none."""
    found = re.findall(r"<answer>(.*?)</answer>", completion, re.DOTALL)
    return found[-1].strip() if found else None
