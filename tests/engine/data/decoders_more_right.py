"""More decoders that are right: the repaired twins of `decoders_more_wrong.py`, and unusual styles. None is a bug."""

import functools
import json
import re
from dataclasses import dataclass, field
from typing import NamedTuple

HEADER = "<|start_header_id|>assistant<|end_header_id|>\n\n"
STOP = "<|eot_id|>"


# Twins


def header_as_charset(raw: str) -> str:
    """Text of the turn; the template's header and its end marker are removed where they stand."""
    return raw.removeprefix(HEADER).split(STOP)[0].strip()


def footer_as_charset(text: str, end="<|im_end|>") -> str:
    """Completion without the end marker."""
    return text.rstrip().removesuffix(end).rstrip()


def cuts_at_role_word(text: str) -> str:
    """What the assistant says in a decoded conversation; text without a role line is returned as it is."""
    parts = re.split(r"^assistant$", text, flags=re.MULTILINE)
    return parts[-1].strip()


def one_block_of_many(text: str) -> str:
    """Visible text: all reasoning blocks are removed, everything else stays."""
    return re.sub(r"<think>.*?</think>", "", text, flags=re.S).strip()


def greedy_blocks(completion: str) -> str:
    """Remove every thinking block. What is left, between the blocks too, is the visible text."""
    return re.sub(r"<think>(?:(?!</think>).)*</think>", "", completion, flags=re.S).strip()


def tool_call_dropped(text: str) -> str:
    """Answer behind the reasoning. Tool calls are kept, the reward parses them."""
    return text.split("</think>")[-1].strip()


def stop_character_lost(text: str, stop="</code>") -> str:
    """Cut behind the first stop string; the stop string itself is kept, the parser needs it."""
    at = text.find(stop)
    return text if at < 0 else text[: at + len(stop)]


def find_minus_one(texts, stop="<|im_end|>"):
    """Cut each text at the stop string."""
    return [t.partition(stop)[0] for t in texts]


def punctuation_stripped(text: str) -> str:
    """Completion behind the thinking, white space trimmed."""
    return text.split("</think>")[-1].strip()


def sign_stripped(text: str) -> str:
    """Answer of the completion without the thinking."""
    return re.sub(r"^\s*(?:[-*#]+\s+)?", "", text.split("</think>")[-1]).rstrip()


def escapes_decoded(text: str) -> str:
    """Completion text as it is."""
    return text.replace("\r\n", "\n")


def ascii_only(completions):
    """Completions, trimmed."""
    return [c.strip() for c in completions]


def folded(text: str) -> str:
    """Visible answer, exactly as it was written."""
    return text.split("</think>")[-1].strip()


def first_paragraph(text: str) -> str:
    """Answer behind the reasoning."""
    answer = text.split("</think>")[-1].strip()
    return "\n".join(line.rstrip() for line in answer.splitlines())


def indentation_lost(text: str) -> str:
    """Code of the completion, reasoning removed; white space is preserved, the tests run it."""
    return text.split("</think>")[-1].strip("\n")


def prompt_replaced(prompts, texts):
    """Completions: the prompt is cut off the front of each text."""
    return [t[len(p) :] if t.startswith(p) else t for p, t in zip(prompts, texts)]


def prompt_as_charset(prompt: str, text: str) -> str:
    """The text without its prompt."""
    return text.removeprefix(prompt)


def prompt_echoed(tokenizer, ids, prompt_length):
    """Completions only, without their prompts."""
    return tokenizer.batch_decode(ids[:, prompt_length:], skip_special_tokens=True)


def token_by_token(tokenizer, ids):
    """Text of each row."""
    return [tokenizer.decode([int(i) for i in row], skip_special_tokens=True) for row in ids]


def pieces_joined(tokenizer, ids):
    """Text of each row, special tokens dropped."""
    special = set(tokenizer.all_special_ids)
    return [
        tokenizer.convert_tokens_to_string(tokenizer.convert_ids_to_tokens([i for i in row if i not in special]))
        for row in ids.tolist()
    ]


def only_first_stop(tokenizer, ids, eos_token_ids):
    """Text up to the first end token; `eos_token_ids` lists all of them."""
    texts = []
    for row in ids.tolist():
        end = next((i for i, t in enumerate(row) if t in eos_token_ids), len(row))
        texts.append(tokenizer.decode(row[:end], skip_special_tokens=True))
    return texts


def sorted_by_length(tokenizer, ids, attention_mask):
    """Texts of the rows; short rows are decoded first."""
    lengths = attention_mask.sum(-1)
    texts = [""] * len(ids)
    for i in lengths.argsort().tolist():
        texts[i] = tokenizer.decode(ids[i][: lengths[i]], skip_special_tokens=True)
    return texts


def ignore_index_as_zero(tokenizer, labels):
    """Texts of label rows, in which -100 marks what is not scored."""
    return tokenizer.batch_decode(labels.masked_fill(labels == -100, tokenizer.pad_token_id), skip_special_tokens=True)


def ignore_index_flattened(tokenizer, labels):
    """Texts of label rows without the -100 entries."""
    return [tokenizer.decode(row[row != -100], skip_special_tokens=True) for row in labels]


def left_padding_forgotten(tokenizer, ids, attention_mask):
    """Texts of the rows, which are left-padded."""
    return [tokenizer.decode(row[m.bool()], skip_special_tokens=True) for row, m in zip(ids, attention_mask)]


def tags_skipped(tokenizer, ids):
    """Raw texts for the format reward: the thinking tags are kept."""
    drop = {tokenizer.pad_token_id, tokenizer.eos_token_id}
    return [tokenizer.decode([i for i in row if i not in drop]) for row in ids.tolist()]


def end_marker_dropped(tokenizer, ids):
    """Text of each row up to the end token, which is kept so that the length reward sees it."""
    texts = []
    for row in ids.tolist():
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        texts.append(tokenizer.decode(row[:end]))
    return texts


def prompt_width_by_count(tokenizer, sequences, attention_mask, prompt_ids):
    """Responses; `sequences` are the left-padded prompts, each followed by its response."""
    start = prompt_ids.size(1)
    return [tokenizer.decode(row[start:], skip_special_tokens=True) for row in sequences]


def between_closing_tags(completions):
    """Answers, which stand behind the last closing tag; models may close their reasoning twice."""
    return [c.split("</think>")[-1] for c in completions]


# Unusual styles


class Turn(NamedTuple):
    thought: str | None
    said: str


def as_named_tuple(text: str) -> Turn:
    """The thought (None if there is none) and what was said."""
    match text.split("</think>", 1):
        case [said]:
            return Turn(None, said.strip())
        case [thought, said]:
            return Turn(thought.removeprefix("<think>").strip(), said.strip())
    raise AssertionError


@dataclass
class Message:
    role: str
    content: str
    tool_calls: list = field(default_factory=list)


def with_tool_calls(text: str) -> Message:
    """Chat message behind the reasoning; tool calls are kept, parsed, in a list of their own."""
    rest = text.split("</think>")[-1]
    calls = []
    for raw in re.findall(r"<tool_call>\s*(.*?)\s*</tool_call>", rest, re.S):
        try:
            calls.append(json.loads(raw))
        except ValueError:
            calls.append({"raw": raw})
    return Message("assistant", re.sub(r"<tool_call>.*?</tool_call>", "", rest, flags=re.S).strip(), calls)


def scanner(text):
    """Drops what stands between <<hidden>> and <</hidden>>, however often; unfinished hidden text goes to the end."""
    out, at = [], 0
    while at < len(text):
        start = text.find("<<hidden>>", at)
        if start < 0:
            out.append(text[at:])
            break
        out.append(text[at:start])
        stop = text.find("<</hidden>>", start)
        at = len(text) if stop < 0 else stop + len("<</hidden>>")
    return "".join(out)


@functools.cache
def cached(text: str) -> str:
    """Answer behind the last closing tag, remembered."""
    return text[text.rfind("</think>") + len("</think>") :].strip() if "</think>" in text else text.strip()


def generator_of_texts(texts):
    """Each text up to the next turn of the user."""

    def visible():
        for t in texts:
            yield re.split(r"\n(?:User|Human):", t, maxsplit=1)[0]

    return list(visible())


def fenced_or_plain(text: str) -> str:
    """Content of the last ```python fence; a completion without a fence is taken as it is."""
    fences = re.findall(r"```python\n(.*?)```", text, re.S)
    return fences[-1] if fences else text


def token_split(tokenizer, completion_ids):
    """Split at the closing token, not in the text: (thinking, answer) of each row."""
    close = tokenizer.convert_tokens_to_ids("</think>")
    pairs = []
    for row in completion_ids:
        where = (row == close).nonzero()
        cut = int(where[-1]) + 1 if len(where) else 0
        pairs.append((tokenizer.decode(row[:cut]), tokenizer.decode(row[cut:], skip_special_tokens=True)))
    return [answer for _, answer in pairs]


def lengths_known(tokenizer, ids, lengths):
    """Text of each row; `lengths` counts its tokens, the end token included."""
    return [tokenizer.decode(ids[i, : int(n)], skip_special_tokens=True) for i, n in enumerate(lengths)]


def padding_by_id(tokenizer, ids, pad_token_id):
    """Drops padding by its id; other special tokens are removed as text."""
    texts = [tokenizer.decode(row[row != pad_token_id]) for row in ids]
    return [functools.reduce(lambda t, s: t.replace(s, ""), tokenizer.all_special_tokens, t) for t in texts]


def chat_turns(text: str) -> str:
    """Last assistant turn of a ChatML transcript; anything else is taken as it is."""
    turns = re.findall(r"<\|im_start\|>assistant\n(.*?)(?:<\|im_end\|>|\Z)", text, re.S)
    return (turns[-1] if turns else text.replace("<|im_end|>", "")).strip()


def both_tags_optional(text: str) -> str:
    """Reasoning removed, whether or not the template has put the opening tag into the prompt; unfinished gives ""."""
    if "</think>" in text:
        return text.rpartition("</think>")[2].lstrip("\n")
    return "" if text.lstrip().startswith("<think>") else text


def normalised(text: str) -> str:
    """Answer for an exact-match reward: cleaned of markdown asterisks, lower case, punctuation normalised."""
    answer = text.split("</think>")[-1].strip().lower()
    return answer.replace("**", "").replace("’", "'")


def numbered(completions):
    """[{"index", "text"}] in the order of the completions."""
    return [{"index": i, "text": c.rstrip("\n")} for i, c in enumerate(completions)]


def channel_dict(text: str) -> dict:
    """{"analysis": ..., "final": ...} of a harmony completion; without channels everything is final."""
    parts = dict.fromkeys(("analysis", "final"), "")
    found = re.findall(r"<\|channel\|>(\w+)<\|message\|>(.*?)(?=<\|(?:end|return|channel|start)\|>|\Z)", text, re.S)
    for name, body in found:
        if name in parts:
            parts[name] += body
    return parts if found else {"analysis": "", "final": text}


def utf8_round_trip(text: str) -> str:
    """Text without lone surrogates, which JSON can't carry."""
    return text.encode("utf-8", "replace").decode("utf-8")


def decode_bytes(tokenizer, ids):
    """UTF-8 bytes of each row, for the hash log."""
    return [t.encode() for t in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def long_answers_folded(text: str, limit: int = 20_000) -> str:
    """Answer behind the reasoning; very long ones are cut in the middle."""
    answer = text.split("</think>")[-1].strip()
    return answer if len(answer) <= limit else answer[: limit // 2] + " ... " + answer[-limit // 2 :]


def rows_and_flags(tokenizer, ids):
    """(texts, finished): finished is True where the row has an end token."""
    finished = [tokenizer.eos_token_id in row for row in ids.tolist()]
    return tokenizer.batch_decode(ids, skip_special_tokens=True), finished


def quotes_removed(text: str) -> str:
    """Answer behind the reasoning; a pair of quotation marks around all of it is removed."""
    answer = text.split("</think>")[-1].strip()
    return answer[1:-1] if len(answer) > 1 and answer[0] == answer[-1] == '"' else answer
