"""From sampled ids to the text that the reward sees."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"


def visible_text(text):
    """The part of a completion that is scored.

    A reasoning block is cut off; a completion without one is scored as it is. Nothing remains of a block
    that was opened and never closed.
    """
    if THINK_OPEN not in text:
        text = THINK_OPEN + text  # the chat template may have opened the block already
    _, _, answer = text.partition(THINK_CLOSE)
    return answer.strip()


def decode_completions(tokenizer, completion_ids):
    """Scored text of each row of sampled ids."""
    return [visible_text(t) for t in tokenizer.batch_decode(completion_ids, skip_special_tokens=True)]
