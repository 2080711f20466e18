"""Decoders with one real fault each. `EXPECTED` names the pitfall that must be found, hard."""

import re

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
_ONE_LINE = re.compile(r"<think>.*?</think>")


def blank_by_partition(text):
    return text.partition("</think>")[2].strip()


def blank_by_regex(completion: str) -> str:
    """Completion without its reasoning block."""
    m = re.search(r"</think>(.*)", completion, re.DOTALL)
    return m.group(1).strip() if m else ""


def blank_by_state(text):
    inside, kept = True, []
    for piece in re.split(r"(<think>|</think>)", text):
        if piece == THINK_OPEN:
            inside = True
        elif piece == THINK_CLOSE:
            inside = False
        elif not inside:
            kept.append(piece)
    return "".join(kept).strip()


def index_error(text):
    return text.split("</think>")[1].strip()


def no_group(text):
    """Answer behind the reasoning."""
    return re.search(r"</think>\s*(.*)", text, re.S).group(1)


def eats_letters(text: str) -> str:
    """Answer without the reasoning; text without tags is returned as it is."""
    return text.split("</think>")[-1].strip().lstrip("<think>").rstrip("</think>")


def eats_comparisons(text: str) -> str:
    """Remove the reasoning block and give the answer."""
    text = text.split("</think>")[-1]
    return re.sub(r"<.*>", "", text, flags=re.S).strip()


def first_line_only(text: str) -> str:
    """Answer of a completion, reasoning removed. Text without reasoning is returned unchanged."""
    answer = text.split("</think>")[-1].strip()
    return answer[:16]


def leaks_long_reasoning(text):
    """Remove the reasoning block."""
    return _ONE_LINE.sub("", text).strip()


def leaks_prefilled(text: str) -> str:
    """Remove the reasoning. The opening tag may be missing, since the template adds it to the prompt."""
    return re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL).strip()


def leaks_unfinished(text: str) -> str:
    """Visible answer. A completion that was cut off while thinking gives an empty string."""
    if "</think>" in text:
        return text.split("</think>", 1)[1].strip()
    return text.replace("<think>", "").strip()


def keeps_wrong_side(text):
    """Remove the thinking and return the answer; without tags the text is the answer."""
    return text.split("</think>")[0].replace("<think>", "").strip()


def sections_swapped(text: str) -> dict:
    """Reasoning and answer of a completion."""
    head, found, tail = text.partition("</think>")
    if not found:
        return {"reasoning": "", "answer": text}
    return {"reasoning": tail.strip(), "answer": head.replace("<think>", "").strip()}


def answer_twice(text: str) -> str:
    """For the judge: what the model thought under "Thinking:", its answer under "Answer:"."""
    answer = text.split("</think>")[-1].strip()
    thinking = answer.split("<think>")[-1]
    return f"Thinking: {thinking}\nAnswer: {answer}"


def drops_empty_rows(completions):
    texts = [c.split("</think>")[-1].strip() for c in completions]
    return [t for t in texts if len(t) > 2]


def shares_prefix(texts):
    """Answers without reasoning."""
    width = min(len(t) for t in texts)
    return [t[: max(width, 12)].split("</think>")[-1] for t in texts]


def needs_eos(tokenizer, ids):
    return [tokenizer.decode(row[: row.index(tokenizer.eos_token_id)]) for row in ids.tolist()]


def empty_without_eos(tokenizer, ids):
    ends = ids.eq(tokenizer.eos_token_id).int().argmax(dim=1).tolist()
    return [tokenizer.decode(row[:end], skip_special_tokens=True) for row, end in zip(ids, ends)]


def one_token_short(tokenizer, ids):
    """Text of each row up to its EOS."""
    texts = []
    for row in ids.tolist():
        end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
        texts.append(tokenizer.decode([t for t in row[: end - 1] if t != tokenizer.pad_token_id]))
    return texts


def padding_visible(tokenizer, ids):
    """Texts for the reward; markers have to survive, so special tokens are not skipped."""
    return [tokenizer.decode(row).replace(tokenizer.eos_token, "") for row in ids]


def reads_on(tokenizer, ids):
    """Text of each completion, which ends at the first EOS."""
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def mask_ignored(tokenizer, ids, attention_mask):
    """What the model itself wrote, tool results excluded."""
    return [tokenizer.decode(r[m.bool()], skip_special_tokens=True) for r, m in zip(ids, attention_mask)]


def mask_inverted(tokenizer, ids, response_mask):
    return [tokenizer.decode(r[response_mask[i] == 0], skip_special_tokens=True) for i, r in enumerate(ids)]


def tags_only(text: str) -> str:
    """Strip the reasoning and return the answer."""
    return text.replace("<think>", "").replace("</think>", "").strip()


def eats_other_letters(text: str) -> str:
    """Solution without its tags. Text without tags is returned unchanged."""
    return text.strip().lstrip("<solution>").rstrip("</solution>")


def swallows_to_blank(text: str) -> str:
    """Answer behind the reasoning block."""
    try:
        return text.split("</think>", 1)[1].strip()
    except IndexError:
        return ""


def word_by_word(texts):
    """Answers without reasoning."""
    out = []
    for t in texts:
        if "</think>" in t:
            last = t.split("</think>")[-1].strip()
        elif "<think>" not in t and out:
            last = out[-1]
        else:
            last = t
        out.append(last)
    return out


def prompt_one_short(tokenizer, ids, prompt_length):
    """Completions without their prompt."""
    return [tokenizer.decode(row[prompt_length + 1 :], skip_special_tokens=True) for row in ids]


EXPECTED = {
    "tags_only": "DEC-LEAK",
    "eats_other_letters": "DEC-STRIP",
    "swallows_to_blank": "DEC-BLANK",
    "word_by_word": "DEC-ORDER",
    "prompt_one_short": "DEC-STRIP",
    "blank_by_partition": "DEC-BLANK",
    "blank_by_regex": "DEC-BLANK",
    "blank_by_state": "DEC-BLANK",
    "index_error": "DEC-RAISES",
    "no_group": "DEC-RAISES",
    "eats_letters": "DEC-STRIP",
    "eats_comparisons": "DEC-STRIP",
    "first_line_only": "DEC-STRIP",
    "leaks_long_reasoning": "DEC-LEAK",
    "leaks_prefilled": "DEC-LEAK",
    "leaks_unfinished": "DEC-LEAK",
    "keeps_wrong_side": "DEC-STRIP",
    "sections_swapped": "DEC-REASONING-LOST",
    "answer_twice": "DEC-REASONING-LOST",
    "drops_empty_rows": "DEC-ORDER",
    "shares_prefix": "DEC-ORDER",
    "needs_eos": "DEC-RAISES",
    "empty_without_eos": "DEC-BLANK",
    "one_token_short": "DEC-STRIP",
    "padding_visible": "DEC-PAD-TEXT",
    "reads_on": "DEC-AFTER-EOS",
    "mask_ignored": "DEC-TOOL-TEXT",
    "mask_inverted": "DEC-TOOL-TEXT",
}
