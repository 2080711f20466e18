"""Right decoders."""

ROLE = "decode"
BASES = {"after_thinking": {}, "cut_at_eos": {}}


def after_thinking(text):
    """The answer behind the last </think>; a text without the marker is returned whole, stripped."""
    if "</think>" in text:
        text = text.rsplit("</think>", 1)[1]
    return text.strip()


def cut_at_eos(completion_ids, tokenizer):
    """Texts of the completions up to their first end token, special tokens left out."""
    texts = []
    for row in completion_ids.tolist():
        if tokenizer.eos_token_id in row:
            row = row[: row.index(tokenizer.eos_token_id)]
        texts.append(tokenizer.decode(row, skip_special_tokens=True))
    return texts
