"""More decoders with one real fault each; `decoders_more_right.py` has their repaired twins under the same names.

`EXPECTED` names the pitfall that must be found, hard.
"""

import re
import unicodedata

HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
STOP = "<|eot_id|>"
_CALL = re.compile(r"<tool_call>.*?</tool_call>", re.S)


def header_as_charset(raw: str) -> str:
    """Text of the turn; the template's header and its end marker are removed where they stand."""
    return raw.strip(HEADER).split(STOP)[0].strip()


def footer_as_charset(text: str, end="<|im_end|>") -> str:
    """Completion without the end marker."""
    return text.rstrip().rstrip(end).rstrip()


def cuts_at_role_word(text: str) -> str:
    """What the assistant says in a decoded conversation; text without a role line is returned as it is."""
    return text.split("assistant")[-1].strip()


def one_block_of_many(text: str) -> str:
    """Visible text: all reasoning blocks are removed, everything else stays."""
    return re.sub(r"<think>.*?</think>", "", text, count=1, flags=re.S).strip()


def greedy_blocks(completion: str) -> str:
    """Remove every thinking block. What is left, between the blocks too, is the visible text."""
    return re.sub(r"<think>.*</think>", "", completion, flags=re.S).strip()


def tool_call_dropped(text: str) -> str:
    """Answer behind the reasoning. Tool calls are kept, the reward parses them."""
    text = text.split("</think>")[-1]
    return _CALL.sub("", text).strip()


def stop_character_lost(text: str, stop="</code>") -> str:
    """Cut behind the first stop string; the stop string itself is kept, the parser needs it."""
    at = text.find(stop)
    return text if at < 0 else text[:at]


def find_minus_one(texts, stop="<|im_end|>"):
    """Cut each text at the stop string."""
    return [t[: t.find(stop)] for t in texts]


def punctuation_stripped(text: str) -> str:
    """Completion behind the thinking, white space trimmed."""
    return text.split("</think>")[-1].strip().rstrip(".!?")


def sign_stripped(text: str) -> str:
    """Answer of the completion without the thinking."""
    return text.split("</think>")[-1].lstrip("-*# \n").rstrip()


def escapes_decoded(text: str) -> str:
    """Completion text with real newlines."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape")


def ascii_only(completions):
    """Completions, trimmed."""
    return [c.encode("ascii", "ignore").decode().strip() for c in completions]


def folded(text: str) -> str:
    """Visible answer, exactly as it was written."""
    return unicodedata.normalize("NFKC", text.split("</think>")[-1]).strip()


def first_paragraph(text: str) -> str:
    """Answer behind the reasoning."""
    answer = text.split("</think>")[-1].strip()
    return answer.splitlines()[0] if answer else ""


def indentation_lost(text: str) -> str:
    """Code of the completion, reasoning removed; white space is preserved, the tests run it."""
    answer = text.split("</think>")[-1]
    return "\n".join(line.strip() for line in answer.splitlines())


def prompt_replaced(prompts, texts):
    """Completions: the prompt is cut off the front of each text."""
    return [t.replace(p, "") for p, t in zip(prompts, texts)]


def prompt_as_charset(prompt: str, text: str) -> str:
    """The text without its prompt."""
    return text.lstrip(prompt)


def prompt_echoed(tokenizer, ids, prompt_length):
    """Completions only, without their prompts."""
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    heads = tokenizer.batch_decode(ids[:, : prompt_length - 2], skip_special_tokens=True)
    return [t if t.startswith(h) else t[len(h) :] for h, t in zip(heads, texts)]


def token_by_token(tokenizer, ids):
    """Text of each row."""
    return ["".join(tokenizer.decode([int(i)], skip_special_tokens=True) for i in row) for row in ids]


def pieces_joined(tokenizer, ids):
    """Text of each row, special tokens dropped."""
    special = set(tokenizer.all_special_ids)
    return ["".join(tokenizer.convert_ids_to_tokens([i for i in row if i not in special])) for row in ids.tolist()]


def only_first_stop(tokenizer, ids, eos_token_ids):
    """Text up to the first end token; `eos_token_ids` lists all of them."""
    texts = []
    for row in ids.tolist():
        end = row.index(eos_token_ids[0]) if eos_token_ids[0] in row else len(row)
        texts.append(tokenizer.decode(row[:end], skip_special_tokens=True))
    return texts


def sorted_by_length(tokenizer, ids, attention_mask):
    """Texts of the rows; short rows are decoded first."""
    lengths = attention_mask.sum(-1)
    order = lengths.argsort()
    return [tokenizer.decode(ids[i][: lengths[i]], skip_special_tokens=True) for i in order]


def ignore_index_as_zero(tokenizer, labels):
    """Texts of label rows, in which -100 marks what is not scored."""
    return tokenizer.batch_decode(labels.clamp(min=0), skip_special_tokens=True)


def ignore_index_flattened(tokenizer, labels):
    """Texts of label rows without the -100 entries."""
    return tokenizer.batch_decode(labels[labels != -100].view(labels.shape[0], -1), skip_special_tokens=True)


def left_padding_forgotten(tokenizer, ids, attention_mask):
    """Texts of the rows, which are left-padded."""
    return [tokenizer.decode(row[:n]) for row, n in zip(ids, attention_mask.sum(-1).tolist())]


def tags_skipped(tokenizer, ids):
    """Raw texts for the format reward: the thinking tags are kept."""
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def end_marker_dropped(tokenizer, ids):
    """Text of each row up to the end token, which is kept so that the length reward sees it."""
    texts = []
    for row in ids.tolist():
        end = row.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in row else len(row)
        texts.append(tokenizer.decode(row[:end]))
    return texts


def prompt_width_by_count(tokenizer, sequences, attention_mask, prompt_ids):
    """Responses; `sequences` are the left-padded prompts, each followed by its response."""
    starts = attention_mask[:, : prompt_ids.size(1)].sum(1).tolist()
    return [tokenizer.decode(row[s:], skip_special_tokens=True) for row, s in zip(sequences, starts)]


def between_closing_tags(completions):
    """Answers, which stand behind the last closing tag; models may close their reasoning twice."""
    return [c.split("</think>")[1] if "</think>" in c else c for c in completions]


EXPECTED = {
    "prompt_width_by_count": "DEC-PROMPT-EDGE",
    "between_closing_tags": "DEC-STRIP",
    "header_as_charset": "DEC-STRIP",
    "footer_as_charset": "DEC-STRIP",
    "cuts_at_role_word": "DEC-STRIP",
    "one_block_of_many": "DEC-LEAK",
    "greedy_blocks": "DEC-STRIP",
    "tool_call_dropped": "DEC-STRIP",
    "stop_character_lost": "DEC-STRIP",
    "find_minus_one": "DEC-STRIP",
    "punctuation_stripped": "DEC-STRIP",
    "sign_stripped": "DEC-STRIP",
    "escapes_decoded": "DEC-STRIP",
    "ascii_only": "DEC-STRIP",
    "folded": "DEC-STRIP",
    "first_paragraph": "DEC-STRIP",
    "indentation_lost": "DEC-STRIP",
    "prompt_replaced": "DEC-STRIP",
    "prompt_as_charset": "DEC-STRIP",
    "prompt_echoed": "DEC-TOOL-TEXT",
    "token_by_token": "DEC-STRIP",
    "pieces_joined": "DEC-STRIP",
    "only_first_stop": "DEC-AFTER-EOS",
    "sorted_by_length": "DEC-ORDER",
    "ignore_index_as_zero": "DEC-PAD-TEXT",
    "ignore_index_flattened": "DEC-RAISES",
    "left_padding_forgotten": "DEC-STRIP",
    "tags_skipped": "DEC-STRIP",
    "end_marker_dropped": "DEC-STRIP",
}
