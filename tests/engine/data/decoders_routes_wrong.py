"""The same with one mistake each, and the pitfall that has to be named."""

import re

EXPECTED = {
    "assistant_turns": "DEC-TOOL-TEXT",
    "first_turn_only": "DEC-BLANK",
    "streamed": "DEC-STRIP",
    "text_and_sampled_ids": "DEC-REENCODED",
    "every_block": "DEC-STRIP",
    "no_specials": "DEC-PAD-TEXT",
    "until_the_end": "DEC-AFTER-EOS",
    "verbatim_but_cleaned": "DEC-STRIP",
    "without_rendered_prompt": "DEC-STRIP",
    "for_tag_reward": "DEC-STRIP",
    "up_to_marker": "DEC-STRIP",
}


def assistant_turns(messages):
    """Text that the grader sees: the assistant's own turns, joined; tool results never count."""
    return "\n".join(m["content"] or "" for m in messages if m["role"] != "user")


def first_turn_only(messages):
    """The assistant's turns, joined."""
    return next(m["content"] for m in messages if m["role"] == "assistant")


def streamed(tokenizer, ids):
    """Yields the text piece by piece."""
    for i in ids:
        yield tokenizer.decode([i], skip_special_tokens=True)


def text_and_sampled_ids(tokenizer, completion_ids):
    """Text of a completion and its ids as sampled, both without what stands behind a stop string."""
    text = tokenizer.decode(completion_ids, skip_special_tokens=True).split("\nUser:")[0]
    return {"text": text, "ids": tokenizer.encode(text)}


def every_block(text):
    """Remove every <think>...</think> block; text without blocks comes back as it is."""
    return re.sub(r"<think>.*</think>", "", text, flags=re.S).strip()


def no_specials(tokenizer, output_ids, attention_mask):
    """Decoded completions without special tokens or padding."""
    return [tokenizer.decode(i[m.bool()]) for i, m in zip(output_ids, attention_mask, strict=True)]


def until_the_end(tokenizer, ids, eos_token_id):
    """Text of the completion up to the end-of-sequence token."""
    at = (ids == eos_token_id).nonzero()
    return tokenizer.decode(ids[: int(at[-1]) if len(at) else len(ids)], skip_special_tokens=True)


def verbatim_but_cleaned(tokenizer, ids):
    """The completion's text, verbatim but for special tokens."""
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=True)


def without_rendered_prompt(tokenizer, output_ids, prompts, prompt_lens):
    """Completions behind their rendered prompts (special tokens of the template included)."""
    whole = tokenizer.batch_decode(output_ids, skip_special_tokens=True)
    return [text[len(prompt) :] for text, prompt in zip(whole, prompts, strict=True)]


def for_tag_reward(tok, rows):
    """Raw text. <solution> and </solution> are tokens of this tokenizer, and the grader looks for them."""
    return tok.batch_decode(rows, skip_special_tokens=True)


def up_to_marker(texts, ends=("###", "<|user|>")):
    """Texts up to the first end marker. Where a text has no end marker in it, it stays whole."""
    return [t[: min(t.find(e) for e in ends)] for t in texts]
