"""Decoders that are right, each in the style of another project. None may be called a bug."""

import re
from dataclasses import dataclass

THINK_END = "</think>"
_BLOCK = re.compile(r"<think>.*?</think>", re.DOTALL)
_LEADING = re.compile(r"^\s*(?:<reasoning>)?.*?</reasoning>\s*", re.S)


def passes_through(text):
    return text


def trims(completion: str) -> str:
    """Completion without surrounding blanks."""
    return completion.strip()


def takes_part_behind_marker(text):
    return text.split("</think>")[-1].strip()


def takes_part_behind_last_marker(response: str) -> str:
    head, found, tail = response.rpartition(THINK_END)
    return tail.lstrip() if found else response


def removes_blocks(text: str) -> str:
    """Drop finished reasoning blocks and return what is left."""
    return _BLOCK.sub("", text).strip()


def removes_open_block_too(text: str) -> str:
    """Visible part of the completion. Reasoning that never ends gives an empty string."""
    text = _BLOCK.sub("", text)
    return text.split("<think>")[0].strip()


def strips_other_spelling(output: str) -> str:
    """Remove the reasoning (opening tag optional, the prompt has it); plain text is returned unchanged."""
    return _LEADING.sub("", output) if "</reasoning>" in output else output


def bracket_tags(text, open_tag="[THINK]", close_tag="[/THINK]"):
    """Answer of a Magistral-style completion. Unfinished thinking has no answer: empty string."""
    if close_tag in text:
        return text.split(close_tag, 1)[1].strip()
    return "" if open_tag in text else text.strip()


def answer_or_nothing(text: str):
    """Text between <answer> and </answer>, or None if the completion has no answer block."""
    m = re.search(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return m.group(1).strip() if m else None


def extract_answer_block(text):
    m = re.search(r"<answer>(.*?)</answer>", text, flags=re.S)
    return m.group(1) if m else ""


def answer_or_everything(text: str) -> str:
    """Last <answer> block; a completion without one counts as a whole."""
    found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
    return found[-1].strip() if found else text.strip()


def cuts_at_stop_strings(texts, stop=("\nUser:", "<|im_end|>")):
    cleaned = []
    for t in texts:
        for s in stop:
            t = t.split(s)[0]
        cleaned.append(t.rstrip())
    return cleaned


def reasoning_and_answer(text: str) -> tuple[str, str]:
    """Split a completion into (reasoning, answer); the reasoning is empty if no block was closed."""
    before, found, after = text.partition("</think>")
    if not found:
        return "", text.strip()
    return before.replace("<think>", "").strip(), after.strip()


def message_fields(text: str) -> dict:
    """Message as the chat API returns it: reasoning_content and content."""
    if "</think>" not in text:
        return {"reasoning_content": None, "content": text}
    thoughts, content = text.split("</think>", 1)
    return {"reasoning_content": thoughts.split("<think>")[-1].strip("\n"), "content": content.lstrip("\n")}


@dataclass
class Parsed:
    thinking: str
    answer: str


def parsed(completion: str) -> Parsed:
    """Thinking and answer of a completion."""
    thinking, _, answer = completion.partition("</think>") if "</think>" in completion else ("", "", completion)
    return Parsed(thinking=thinking.removeprefix("<think>").strip(), answer=answer.strip())


def for_the_judge(text: str) -> str:
    """Layout for the judge: the thinking is quoted under a header, the answer follows under its own."""
    thinking, found, answer = text.partition("</think>")
    if not found:
        return "## Answer\n" + text.strip()
    return "## Thinking\n" + thinking.replace("<think>", "").strip() + "\n## Answer\n" + answer.strip()


def harmony_final(text: str) -> str:
    """Final channel of a harmony-formatted completion; text without channels is taken as it is."""
    marker = "<|channel|>final<|message|>"
    if marker in text:
        text = text.split(marker)[-1]
    return text.removesuffix("<|return|>").removesuffix("<|end|>").strip()


def extract_thinking(text):
    """Reasoning of the completion, for the length statistics. Empty if there is none."""
    m = re.search(r"<think>(.*?)</think>", text, re.DOTALL)
    return m.group(1).strip() if m else ""


def removes_all_tags(text: str) -> str:
    """Remove all angle-bracket tags and special tokens; what stands between them is kept."""
    return re.sub(r"<[^>]*>", "", text).strip()


def one_space(text: str) -> str:
    """Normalise runs of white space, the reward compares words."""
    return " ".join(text.split())


def behind_marker_documented(text: str) -> str:
    """What follows "### Response:"; an empty string if the marker is missing."""
    return text.partition("### Response:")[2].strip()


def many_texts(completions: list[str]) -> list[str]:
    out = []
    for c in completions:
        if "<thought>" in c and "</thought>" not in c:
            out.append("")  # still thinking when the budget ran out
        else:
            out.append(c.split("</thought>")[-1].strip())
    return out


def batch_decode(tokenizer, completion_ids):
    return tokenizer.batch_decode(completion_ids, skip_special_tokens=True)


def decode_each(tokenizer, ids):
    """Text of each row up to its EOS, padding dropped."""
    texts = []
    for row in ids.tolist():
        if tokenizer.eos_token_id in row:
            row = row[: row.index(tokenizer.eos_token_id)]
        texts.append(tokenizer.decode([t for t in row if t != tokenizer.pad_token_id]))
    return texts


def decode_masked(tokenizer, ids, response_mask):
    """Only what the policy wrote; tool results are left out."""
    return [tokenizer.decode(r[m.bool()], skip_special_tokens=True) for r, m in zip(ids, response_mask)]


def decode_attended(tokenizer, ids, attention_mask):
    lengths = attention_mask.sum(-1)
    return [tokenizer.decode(row[:n], skip_special_tokens=True) for row, n in zip(ids, lengths.tolist())]


def decode_and_strip(tokenizer, ids):
    """Answers: decoded, special tokens skipped, the thinking removed."""
    return [t.split("</think>")[-1].strip() for t in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def decode_raw(tokenizer, ids):
    """Raw text for the debug log, special tokens kept."""
    return tokenizer.batch_decode(ids, skip_special_tokens=False)


def splits_once(text: str) -> str:
    return re.split(r"</think>", text, maxsplit=1)[-1].strip()


def as_message(text):
    """Chat message without the reasoning."""
    return [{"role": "assistant", "content": text.split("</think>")[-1].strip()}]


def limited(text: str, max_chars: int = 4000) -> str:
    """Answer behind the reasoning, at most max_chars characters."""
    return text.split("</think>")[-1].strip()[:max_chars]


def solution_tags(text, start="<solution>", end="</solution>"):
    """Solution block; the empty string when the completion has none."""
    if start not in text or end not in text:
        return ""
    return text.split(start)[-1].split(end)[0].strip()


class Decoder:
    """Decoder of a trainer, with its settings."""

    def __init__(self, tokenizer, think_end="</think>", keep_reasoning=False):
        self.tokenizer = tokenizer
        self.think_end = think_end
        self.keep_reasoning = keep_reasoning

    def decode(self, completion_ids):
        texts = self.tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        return texts if self.keep_reasoning else [self._answer(t) for t in texts]

    def _answer(self, text):
        return text.split(self.think_end)[-1].strip()


def nested_ok(text: str) -> str:
    """Answer after the outermost reasoning block. Unclosed reasoning gives ""."""
    depth, out, rest = 0, [], text
    while rest:
        if rest.startswith("<think>"):
            depth, rest = depth + 1, rest[7:]
        elif rest.startswith("</think>"):
            if depth == 0:
                out = []
            depth, rest = max(0, depth - 1), rest[8:]
        else:
            if depth == 0:
                out.append(rest[0])
            rest = rest[1:]
    return "".join(out).strip()


def think_tokens(tokenizer, output_ids):
    """Content behind the last closing token, as in a model card."""
    close = tokenizer.convert_tokens_to_ids("</think>")
    texts = []
    for row in output_ids.tolist():
        start = len(row) - row[::-1].index(close) if close in row else 0
        texts.append(tokenizer.decode(row[start:], skip_special_tokens=True).strip("\n"))
    return texts
