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
