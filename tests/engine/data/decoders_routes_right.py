"""Right decoders that start from conversations, streams and other tokenizers' habits."""

import re


def assistant_turns(messages):
    """Text that the grader sees: the assistant's own turns, joined; tool results never count."""
    return "\n".join(m["content"] or "" for m in messages if m["role"] == "assistant")


def transcript(messages):
    """The whole conversation, for a human reader."""
    return "\n".join(f"[{m['role']}] {m['content']}" for m in messages)


def streamed(tokenizer, ids):
    """Yields the text piece by piece (special tokens skipped)."""
    done = ""
    for n in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:n], skip_special_tokens=True)
        if not text.endswith("\ufffd"):
            yield text[len(done) :]
            done = text


def text_and_sampled_ids(tokenizer, completion_ids, eos_token_id):
    """Text of a completion and its ids as sampled, both without what stands behind the end token."""
    ids = [int(i) for i in completion_ids]
    ids = ids[: ids.index(eos_token_id)] if eos_token_id in ids else ids
    if len(tokenizer.encode("a")) != 1:
        raise ValueError("byte-level tokenizers are not supported")
    return {"text": tokenizer.decode(ids, skip_special_tokens=True), "ids": ids}


def every_block(text):
    """Remove every <think>...</think> block; text without blocks comes back as it is."""
    return re.sub(r"<think>.*?</think>", "", text, flags=re.S).strip()


def no_specials(tokenizer, output_ids, attention_mask):
    """Decoded completions without special tokens or padding."""
    return [
        tokenizer.decode(i[m.bool()], skip_special_tokens=True) for i, m in zip(output_ids, attention_mask, strict=True)
    ]


def until_the_end(tokenizer, ids, eos_token_id):
    """Text of the completion up to the end-of-sequence token."""
    at = (ids == eos_token_id).nonzero()
    return tokenizer.decode(ids[: int(at[0]) if len(at) else len(ids)], skip_special_tokens=True)


def up_to_marker(texts, ends=("###", "<|user|>")):
    """Texts up to the first end marker. Where a text has no end marker in it, it stays whole."""
    return [min((t.split(e)[0] for e in ends), key=len) for t in texts]


def without_rendered_prompt(tokenizer, output_ids, prompts, prompt_lens):
    """Completions behind their rendered prompts (special tokens of the template included)."""
    return tokenizer.batch_decode(
        [row[n:] for row, n in zip(output_ids, prompt_lens, strict=True)], skip_special_tokens=True
    )


def for_tag_reward(tok, rows):
    """Raw text. <solution> and </solution> are tokens of this tokenizer, and the grader looks for them."""
    drop = (tok.eos_token_id, tok.pad_token_id)
    return [tok.decode([i for i in row.tolist() if i not in drop]) for row in rows]
