"""Conversations to ids in the idioms of real code; `EXPECTED` holds words of what is recognised."""

import torch

EXPECTED = {
    "encode_prompt": "opens the assistant's turn",
    "template_ids": "opens the assistant's turn",
    "template_tensor": "opens the assistant's turn",
    "template_dict": "opens the assistant's turn",
    "prompt_text": "opens the assistant's turn",
    "with_switch": "opens the assistant's turn where it is asked to",
    "training_ids": "the last answer is closed",
    "by_hand": "more turns go on the ids of fewer",
    "by_hand_per_message": "more turns go on the ids of fewer",
    "drops_reasoning": "drops the reasoning of earlier turns, as documented",
    "truncates_left": "keeps the end of a conversation that is too long",
    "with_system": "leave the messages alone",
    "Rollout.encode": "opens the assistant's turn",
    "batch_left": "each conversation has its own ids",
    "batch_lists": "each conversation has its own ids",
    "of_record": "opens the assistant's turn",
    "with_mask": "the last answer is closed",
    "escaped": "markers inside a user's text stay plain text",
    "vllm_request": "opens the assistant's turn",
    "thoughts_of_last_turn": "drops the reasoning of earlier turns, as documented",
}


def encode_prompt(tokenizer, messages, max_prompt_length=None):
    """Token ids of a conversation, ready for generation of the next assistant turn."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if max_prompt_length is not None and len(ids) > max_prompt_length:
        ids = ids[-max_prompt_length:]
    return ids


def template_ids(messages, tokenizer):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def template_tensor(messages, tokenizer, device="cpu"):
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").to(device)


def template_dict(messages, tokenizer):
    return tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )


def prompt_text(messages, tokenizer):
    """The prompt as the inference engine gets it."""
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def with_switch(messages, tokenizer, add_generation_prompt=False):
    out = tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=add_generation_prompt)
    return torch.tensor(out)


def training_ids(messages, tokenizer):
    """Ids of a finished conversation, for training."""
    return tokenizer.apply_chat_template(messages, tokenize=True, add_generation_prompt=False)


def by_hand(messages, tokenizer, add_generation_prompt=False):
    """Ids of a rollout for the trainer's forward pass; the whole history is kept, as the engine saw it."""
    parts = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    if add_generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return tokenizer.encode("".join(parts), add_special_tokens=False)


def by_hand_per_message(messages, tokenizer):
    ids = []
    for m in messages:
        ids += tokenizer.encode(f"<|im_start|>{m['role']}\n", add_special_tokens=False)
        ids += tokenizer.encode(m["content"], add_special_tokens=False)
        ids += tokenizer.encode("<|im_end|>\n", add_special_tokens=False)
    if messages[-1]["role"] != "assistant":
        ids += tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    return ids


def drops_reasoning(messages, tokenizer):
    """Prompt ids for the next turn; the reasoning of earlier turns is dropped, as the template of the model does."""
    text = ""
    for m in messages:
        content = m["content"]
        if m["role"] == "assistant":
            content = content.split("</think>")[-1]
        text += f"<|im_start|>{m['role']}\n{content}<|im_end|>\n"
    return tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False)


def truncates_left(messages, tokenizer, max_length):
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return list(ids)[-max_length:]


def with_system(messages, tokenizer, system_prompt="You row."):
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system_prompt}] + list(messages)
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


class Rollout:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    def encode(self, conversation):
        prompt = self.tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        return self.tokenizer.encode(prompt, add_special_tokens=False)


def batch_left(conversations, tokenizer):
    """Left-padded prompts for generation."""
    texts = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in conversations]
    tokenizer.padding_side = "left"
    return tokenizer(texts, padding=True, return_tensors="pt", add_special_tokens=False)


def batch_lists(prompts, processing_class):
    return [processing_class.apply_chat_template(p, add_generation_prompt=True) for p in prompts]


def of_record(example, tokenizer):
    ids = tokenizer.apply_chat_template(example["messages"], add_generation_prompt=True, tokenize=True)
    return {"prompt_ids": list(ids), "length": len(ids)}


def with_mask(messages, tokenizer):
    """Ids and assistant mask of a finished conversation that is trained."""
    out = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    return out["input_ids"], out["assistant_masks"]


def escaped(messages, tokenizer):
    """Prompt ids; special tokens in a user's text are split, so that nobody can inject a turn."""
    ids = []
    for m in messages:
        ids += tokenizer.encode(f"<|im_start|>{m['role']}\n", add_special_tokens=False)
        for piece in m["content"].replace("<|", "<\0|").split("\0"):
            ids += tokenizer.encode(piece, add_special_tokens=False)
        ids += tokenizer.encode("<|im_end|>\n", add_special_tokens=False)
    return ids + tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)


def vllm_request(messages, tokenizer, max_tokens=4096):
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return {"prompt_token_ids": list(ids)}


def thoughts_of_last_turn(tok, conversation):
    """What the sampler goes on from, rendered as the policy was trained: past turns hold just the visible reply."""
    shown = []
    for turn in conversation:
        text = turn["content"]
        shown.append(
            {"role": turn["role"], "content": text.split("</think>")[-1] if turn["role"] == "assistant" else text}
        )
    return tok.apply_chat_template(shown, add_generation_prompt=True)
