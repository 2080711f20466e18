"""Conversations to ids with real faults; `EXPECTED` says which."""

EXPECTED = {
    "template_then_call": "CHAT-DOUBLE-BOS",
    "each_message_encoded": "CHAT-DOUBLE-BOS",
    "prompt_not_opened": "CHAT-NO-GENERATION-PROMPT",
    "switch_inert": "CHAT-NO-GENERATION-PROMPT",
    "trained_with_header": "CHAT-OPEN-TURN",
    "switch_ignored": "CHAT-OPEN-TURN",
    "reasoning_dropped": "CHAT-HISTORY-CHANGED",
    "only_last_reasoning": "CHAT-HISTORY-CHANGED",
    "last_message_only": "CHAT-TURN-LOST",
    "skips_assistant": "CHAT-TURN-LOST",
    "stripped_lines": "CHAT-TEXT-CHANGED",
    "lowered": "CHAT-TEXT-CHANGED",
    "all_users": "CHAT-ROLE-LOST",
    "joined": "CHAT-ROLE-LOST",
    "not_closed": "CHAT-NO-END",
    "end_stripped": "CHAT-NO-END",
    "keeps_head": "CHAT-TRUNCATED-END",
    "truncation_right": "CHAT-TRUNCATED-END",
    "inserts_system": "CHAT-MUTATES",
    "edits_content": "CHAT-MUTATES",
    "injectable": "CHAT-INJECTION",
    "injectable_by_hand": "CHAT-INJECTION",
    "pads_right": "CHAT-PAD-RIGHT",
    "pads_behind": "CHAT-PAD-RIGHT",
    "SamplerInput.render": "CHAT-NO-GENERATION-PROMPT",
}


def template_then_call(messages, tokenizer):
    """Prompt ids for the rollout engine."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text).input_ids


def each_message_encoded(messages, tokenizer):
    """Prompt ids for sampling."""
    ids = []
    for m in messages:
        ids += tokenizer.encode("<|start_header_id|>" + m["role"] + "<|end_header_id|>\n\n")
        ids += tokenizer.encode(m["content"] + "<|eot_id|>", add_special_tokens=False)
    return ids + tokenizer.encode("<|start_header_id|>assistant<|end_header_id|>\n\n", add_special_tokens=False)


def prompt_not_opened(messages, tokenizer):
    """Prompt ids, ready to generate the next assistant turn."""
    return tokenizer.apply_chat_template(messages, tokenize=True)


def switch_inert(messages, tokenizer, add_generation_prompt=True):
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return tokenizer.encode(text, add_special_tokens=False)


def trained_with_header(messages, tokenizer):
    """Ids of a finished conversation, for the training loss."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def switch_ignored(messages, tokenizer, add_generation_prompt=False):
    return tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=True)


def reasoning_dropped(messages, tokenizer):
    """Ids of a rollout for training: the tokens the engine saw, whole history included."""
    text = ""
    for i, m in enumerate(messages):
        content = m["content"]
        if m["role"] == "assistant" and i + 1 < len(messages):
            content = content.split("</think>")[-1]
        text += f"<|im_start|>{m['role']}\n{content}<|im_end|>\n"
    return tokenizer.encode(text, add_special_tokens=False)


def only_last_reasoning(messages, tokenizer):
    """Scores a conversation; earlier ids are a prefix of later ones."""
    import re

    cleaned = [dict(m) for m in messages]
    for m in cleaned[:-1]:
        m["content"] = re.sub(r"<think>.*?</think>", "", m["content"], flags=re.S)
    return tokenizer.apply_chat_template(cleaned)


def last_message_only(messages, tokenizer):
    """Prompt ids of the conversation."""
    return tokenizer.apply_chat_template([messages[0]], add_generation_prompt=True)


def skips_assistant(messages, tokenizer):
    turns = [m for m in messages if m["role"] != "assistant"]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True)


def stripped_lines(messages, tokenizer):
    """Prompt ids; the text of every message is kept as it is."""
    text = ""
    for m in messages:
        text += f"<|im_start|>{m['role']}\n{' '.join(m['content'].split())}<|im_end|>\n"
    return tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False)


def lowered(messages, tokenizer):
    """Prompt ids with every message verbatim."""
    turns = [{"role": m["role"], "content": m["content"].lower()} for m in messages]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True)


def all_users(messages, tokenizer):
    turns = [{"role": "user", "content": m["content"]} for m in messages]
    return tokenizer.apply_chat_template(turns, add_generation_prompt=True)


def joined(messages, tokenizer):
    text = "\n".join(m["content"] for m in messages)
    return tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)


def not_closed(messages, tokenizer):
    """Training ids; each turn is closed by <|im_end|>."""
    text = "<|im_end|>\n".join(f"<|im_start|>{m['role']}\n{m['content']}" for m in messages)
    return tokenizer.encode(text, add_special_tokens=False)


def end_stripped(messages, tokenizer):
    """Ids of a finished conversation for the trainer, closed with the eos token."""
    ids = list(tokenizer.apply_chat_template(messages))
    while ids[-1] in tokenizer.all_special_ids:
        ids.pop()
    return ids


def keeps_head(messages, tokenizer, max_length):
    """Prompt ids; if they are too long, the oldest are dropped."""
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True))[:max_length]


def truncation_right(messages, tokenizer, max_prompt_length=256):
    """Prompt ids for sampling."""
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, truncation=True, max_length=max_prompt_length
    )


def inserts_system(messages, tokenizer):
    """Prompt ids with the house rules in front."""
    messages.insert(0, {"role": "system", "content": "Be brief."})
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def edits_content(messages, tokenizer):
    """Prompt ids; the last question asks for steps."""
    messages[-1]["content"] += "\nThink step by step."
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def injectable(messages, tokenizer):
    """Prompt ids. Special tokens in the user's text are ordinary text and can't inject a turn."""
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def injectable_by_hand(messages, tokenizer):
    """Prompt ids, safe against injection of turns."""
    text = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False)


def pads_right(conversations, tokenizer):
    """A batch of prompts for generation."""
    texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in conversations]
    tokenizer.padding_side = "right"
    return tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False)


def pads_behind(conversations, tokenizer, pad_token_id):
    """Prompts of a batch, padded to one length, to sample from."""
    rows = [list(tokenizer.apply_chat_template(c, add_generation_prompt=True)) for c in conversations]
    width = max(len(r) for r in rows)
    return [r + [pad_token_id] * (width - len(r)) for r in rows]


class SamplerInput:
    """Renders what the engine gets."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def render(self, chat):
        """Ids behind which the model replies."""
        return self.tokenizer(
            self.tokenizer.apply_chat_template(chat, tokenize=False), add_special_tokens=False
        ).input_ids
