"""Builders of supervised samples with real faults; `EXPECTED` says which."""

import torch

EXPECTED = {
    "prompt_trained": "SFT-PROMPT-TRAINED",
    "users_trained": "SFT-PROMPT-TRAINED",
    "tool_trained": "SFT-TOOL-TRAINED",
    "not_users_is_assistant": "SFT-TOOL-TRAINED",
    "padding_trained": "SFT-PAD-TRAINED",
    "labels_filled_with_pad": "SFT-PAD-TRAINED",
    "end_left_out": "SFT-EOS-MASKED",
    "stops_at_end": "SFT-EOS-MASKED",
    "by_pad_id": "SFT-EOS-BY-PAD-ID",
    "by_tokenizer_pad": "SFT-EOS-BY-PAD-ID",
    "no_end": "SFT-EOS-MISSING",
    "no_end_in_template": "SFT-EOS-MISSING",
    "end_twice": "SFT-EOS-TWICE",
    "end_in_text_and_ids": "SFT-EOS-TWICE",
    "first_twice": "SFT-DOUBLE-BOS",
    "first_by_hand": "SFT-DOUBLE-BOS",
    "one_late": "SFT-BOUNDARY",
    "one_early": "SFT-BOUNDARY",
    "stop_exclusive_twice": "SFT-BOUNDARY",
    "offset_of_last_span": "SFT-BOUNDARY",
    "first_turn_only": "SFT-TURN-LOST",
    "marker_never_found": "SFT-TURN-LOST",
    "inverted": "SFT-INVERTED",
    "inverted_roles": "SFT-INVERTED",
    "shifted_labels": "SFT-LABELS-SHIFTED",
    "shifted_in_place": "SFT-LABELS-SHIFTED",
    "padded_on_both_sides": "SFT-LABELS-MISALIGNED",
    "labels_too_short": "SFT-LABELS-MISALIGNED",
    "history_lost": "SFT-TEXT-LOST",
    "truncated_prompts": "SFT-TEXT-LOST",
    "attention_to_prompt_only": "SFT-ATTENTION",
    "attention_inverted": "SFT-ATTENTION",
    "positions_run_on": "SFT-PACK-BORDERS",
    "offsets_of_answers": "SFT-PACK-BORDERS",
    "pairs_padded_alike": "SFT-PAD-TRAINED",
    "cut_before_masking": "SFT-LABELS-MISALIGNED",
}


def prompt_trained(example, tokenizer):
    text = example["prompt"] + "\n" + example["completion"] + tokenizer.eos_token
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return {"input_ids": ids, "labels": list(ids)}


def users_trained(messages, tokenizer):
    """Every assistant turn is trained."""
    ids, labels = [], []
    for m in messages:
        piece = tokenizer.encode(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n", add_special_tokens=False)
        ids += piece
        labels += [-100] * len(piece) if m["role"] == "system" else piece
    return ids, labels


def tool_trained(messages, tokenizer):
    """Trains what the model writes, tokens of every assistant turn."""
    ids, mask = [], []
    for m in messages:
        head = tokenizer.encode(f"<|im_start|>{m['role']}\n", add_special_tokens=False)
        body = tokenizer.encode(m["content"] + "<|im_end|>", add_special_tokens=False)
        ids += head + body
        mask += [0] * len(head) + [int(m["role"] in ("assistant", "tool"))] * len(body)
    return {"input_ids": ids, "loss_mask": mask}


def not_users_is_assistant(messages, tokenizer):
    ids, labels = [], []
    for m in messages:
        head = tokenizer.encode(f"<|im_start|>{m['role']}\n", add_special_tokens=False)
        body = tokenizer.encode(m["content"] + "<|im_end|>\n", add_special_tokens=False)
        ids += head + body
        labels += [-100] * len(head) + ([-100] * len(body) if m["role"] in ("user", "system") else body)
    return {"input_ids": ids, "labels": labels}


def padding_trained(features, pad_token_id):
    width = max(len(f["input_ids"]) for f in features)
    ids, labels = [], []
    for f in features:
        row = f["input_ids"] + [pad_token_id] * (width - len(f["input_ids"]))
        ids.append(row)
        labels.append([-100] * f["prompt_len"] + row[f["prompt_len"] :])
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def labels_filled_with_pad(features, pad_token_id):
    width = max(len(f["input_ids"]) for f in features)

    def pad(row):
        return row + [pad_token_id] * (width - len(row))

    return {
        "input_ids": torch.tensor([pad(f["input_ids"]) for f in features]),
        "labels": torch.tensor([pad(f["labels"]) for f in features]),
    }


def end_left_out(prompt, completion, tokenizer):
    """prompt + completion + end token; the completion is trained."""
    p = tokenizer.encode(prompt)
    c = tokenizer.encode(completion, add_special_tokens=False)
    return {
        "input_ids": p + c + [tokenizer.eos_token_id],
        "labels": [-100] * len(p) + c + [-100],
    }


def stops_at_end(messages, tokenizer):
    ids = tokenizer.apply_chat_template(messages)
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    labels = [-100] * len(ids)
    for i in range(len(ids)):
        if list(ids[i : i + len(opening)]) == opening:
            j = i + len(opening)
            while ids[j] != end:
                labels[j] = ids[j]
                j += 1
    return ids, labels


def by_pad_id(examples, pad_token_id):
    """The labels cover the completion, its EOS included. pad_token_id is often the same as EOS."""
    width = max(len(e["prompt_ids"] + e["completion_ids"]) for e in examples)
    rows = [e["prompt_ids"] + e["completion_ids"] for e in examples]
    ids = torch.tensor([r + [pad_token_id] * (width - len(r)) for r in rows])
    labels = torch.where(ids == pad_token_id, -100, ids)
    for i, e in enumerate(examples):
        labels[i, : len(e["prompt_ids"])] = -100
    return {"input_ids": ids, "labels": labels}


def by_tokenizer_pad(texts, tokenizer):
    """Language-model training on whole texts, each with its EOS."""
    tokenizer.pad_token = tokenizer.eos_token
    enc = tokenizer(texts, padding=True, return_tensors="pt")
    labels = enc["input_ids"].clone()
    labels[labels == tokenizer.pad_token_id] = -100
    enc["labels"] = labels
    return enc


def no_end(prompt, completion, tokenizer):
    """Prompt and completion, terminated by the EOS token, as ids and labels."""
    p = tokenizer.encode(prompt)
    c = tokenizer.encode(completion, add_special_tokens=False)
    return {"input_ids": p + c, "labels": [-100] * len(p) + c}


def no_end_in_template(messages, tokenizer):
    """ids and labels of every assistant turn and the end token that closes it."""
    ids, labels = [], []
    for m in messages:
        head = tokenizer.encode(f"{m['role']}: ", add_special_tokens=False)
        body = tokenizer.encode(m["content"] + "\n", add_special_tokens=False)
        ids += head + body
        labels += [-100] * len(head) + (body if m["role"] == "assistant" else [-100] * len(body))
    return ids, labels


def end_twice(messages, tokenizer):
    ids, labels = [], []
    for m in messages:
        head = tokenizer.encode(f"<|im_start|>{m['role']}\n", add_special_tokens=False)
        body = tokenizer.encode(m["content"] + "<|im_end|>", add_special_tokens=False) + [tokenizer.eos_token_id]
        ids += head + body
        labels += [-100] * len(head) + (body if m["role"] == "assistant" else [-100] * len(body))
    return ids, labels


def end_in_text_and_ids(prompt, completion, tokenizer):
    p = tokenizer.encode(prompt, add_special_tokens=False)
    c = tokenizer.encode(completion + tokenizer.eos_token, add_special_tokens=False) + [tokenizer.eos_token_id]
    return {"input_ids": p + c, "labels": [-100] * len(p) + c}


def first_twice(messages, tokenizer):
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids = tokenizer(text)["input_ids"]
    start = tokenizer.encode("<|start_header_id|>assistant<|end_header_id|>\n\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|eot_id|>")
    labels = [-100] * len(ids)
    for i in range(len(ids)):
        if ids[i : i + len(start)] == start:
            stop = ids.index(end, i + len(start))
            labels[i + len(start) : stop + 1] = ids[i + len(start) : stop + 1]
    return ids, labels


def first_by_hand(prompt, completion, tokenizer):
    """<|begin_of_text|> prompt completion <|eot_id|>"""
    p = [tokenizer.bos_token_id] + tokenizer.encode(prompt)
    c = tokenizer.encode(completion, add_special_tokens=False) + [tokenizer.eos_token_id]
    return {"input_ids": p + c, "labels": [-100] * len(p) + c}


def one_late(input_ids: list[int], prompt_len: int):
    return [-100] * (prompt_len + 1) + input_ids[prompt_len + 1 :]


def one_early(features):
    out = []
    for f in features:
        n = f["prompt_length"] - 1
        out.append({"input_ids": f["input_ids"], "labels": [-100] * n + f["input_ids"][n:]})
    return out


def stop_exclusive_twice(input_ids: list[int], spans):
    """spans: [start, stop) of every assistant turn."""
    labels = [-100] * len(input_ids)
    for start, stop in spans:
        for i in range(start - 1, stop - 1):
            labels[i] = input_ids[i]
    return labels


def offset_of_last_span(samples):
    """spans: [start, stop) inside each sample. Returns one packed row."""
    ids, labels, at = [], [], 0
    cu = [0]
    chosen = []
    for s in samples:
        for a, b in s["spans"]:
            chosen.append((at + a, at + b))
        ids.extend(s["input_ids"])
        cu.append(len(ids))
        at = chosen[-1][1]
    labels = [-100] * len(ids)
    for a, b in chosen:
        labels[a:b] = ids[a:b]
    return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels]), "cu_seqlens": torch.tensor(cu)}


def first_turn_only(messages, tokenizer):
    """Every assistant turn is trained."""
    ids = tokenizer.apply_chat_template(messages)
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    labels = [-100] * len(ids)
    for i in range(len(ids)):
        if list(ids[i : i + len(opening)]) == opening:
            stop = ids.index(end, i + len(opening)) + 1
            labels[i + len(opening) : stop] = ids[i + len(opening) : stop]
            break
    return ids, labels


def marker_never_found(example, tokenizer):
    text = tokenizer.apply_chat_template(example["messages"], tokenize=False)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    marker = tokenizer.encode("\n### Assistant:", add_special_tokens=False)
    labels = [-100] * len(ids)
    for i in range(len(ids) - len(marker)):
        if ids[i : i + len(marker)] == marker:
            labels[i + len(marker) :] = ids[i + len(marker) :]
    return {"input_ids": ids, "labels": labels}


def inverted(input_ids: list[int], prompt_len: int):
    return input_ids[:prompt_len] + [-100] * (len(input_ids) - prompt_len)


def inverted_roles(messages, tokenizer):
    ids, labels = [], []
    for m in messages:
        piece = tokenizer.encode(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n", add_special_tokens=False)
        ids += piece
        labels += piece if m["role"] != "assistant" else [-100] * len(piece)
    return ids, labels


def shifted_labels(examples):
    """input_ids and labels as a causal language model takes them."""
    out = {"input_ids": [], "labels": []}
    for e in examples:
        ids = e["prompt_ids"] + e["completion_ids"]
        labels = [-100] * len(e["prompt_ids"]) + e["completion_ids"]
        out["input_ids"].append(ids)
        out["labels"].append(labels[1:] + [-100])
    return out


def shifted_in_place(input_ids: list[int], prompt_len: int):
    labels = [-100] * prompt_len + input_ids[prompt_len:]
    return {"input_ids": input_ids[:-1], "labels": labels[1:]}


def padded_on_both_sides(features, pad_token_id):
    width = max(len(f["input_ids"]) for f in features)
    ids = [[pad_token_id] * (width - len(f["input_ids"])) + f["input_ids"] for f in features]
    labels = [f["labels"] + [-100] * (width - len(f["labels"])) for f in features]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def labels_too_short(prompt_ids: list[int], completion_ids: list[int]):
    return {"input_ids": prompt_ids + completion_ids, "labels": [-100] * (len(prompt_ids) - 1) + completion_ids}


def history_lost(messages, tokenizer):
    """Only the last reply is trained, behind the whole conversation."""
    prompt = tokenizer.apply_chat_template(messages[-2:-1], add_generation_prompt=True)
    answer = tokenizer.encode(messages[-1]["content"] + tokenizer.eos_token, add_special_tokens=False)
    return {"input_ids": list(prompt) + answer, "labels": [-100] * len(prompt) + answer}


def truncated_prompts(prompt, completion, tokenizer, max_length=512):
    p = tokenizer.encode(prompt, add_special_tokens=False)[:16]
    c = tokenizer.encode(completion, add_special_tokens=False) + [tokenizer.eos_token_id]
    return {"input_ids": p + c, "labels": [-100] * len(p) + c}


def attention_to_prompt_only(prompt_ids: list[int], completion_ids: list[int]):
    return {
        "input_ids": prompt_ids + completion_ids,
        "attention_mask": [1] * len(prompt_ids) + [0] * len(completion_ids),
        "labels": [-100] * len(prompt_ids) + completion_ids,
    }


def attention_inverted(features, pad_token_id):
    width = max(len(f["input_ids"]) for f in features)
    ids = torch.tensor([f["input_ids"] + [pad_token_id] * (width - len(f["input_ids"])) for f in features])
    labels = torch.full_like(ids, -100)
    mask = torch.ones_like(ids)
    for i, f in enumerate(features):
        n = len(f["input_ids"])
        labels[i, f["prompt_length"] : n] = ids[i, f["prompt_length"] : n]
        mask[i, :n] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def positions_run_on(examples):
    ids, labels = [], []
    for e in examples:
        ids += e["prompt_ids"] + e["completion_ids"]
        labels += [-100] * len(e["prompt_ids"]) + e["completion_ids"]
    return {
        "input_ids": torch.tensor([ids]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.arange(len(ids))[None],
    }


def offsets_of_answers(examples):
    ids, labels, cu = [], [], [0]
    for e in examples:
        ids += e["prompt_ids"] + e["completion_ids"]
        labels += [-100] * len(e["prompt_ids"]) + e["completion_ids"]
        cu.append(cu[-1] + len(e["completion_ids"]))
    return {"input_ids": torch.tensor([ids]), "labels": torch.tensor([labels]), "cu_seqlens": torch.tensor(cu)}


def pairs_padded_alike(tok, qa_pairs):
    """Question-answer tuples -> padded ids and labels, -100 but on answers and their end token."""
    rows = []
    for question, answer in qa_pairs:
        q, a = (tok.encode(t, add_special_tokens=False) for t in (question, answer))
        rows.append((q + a + [tok.eos_token_id], len(q) * [-100] + a + [tok.eos_token_id]))
    width = max(len(ids) for ids, _ in rows)
    ids, labels = ([r + [tok.pad_token_id] * (width - len(r)) for r in part] for part in zip(*rows, strict=True))
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def cut_before_masking(tokenizer, prompt, completion, max_len=300):
    """input_ids and labels of a sample; what is too long loses its oldest tokens."""
    p = tokenizer.encode(prompt, add_special_tokens=False)
    ids = p + tokenizer.encode(completion, add_special_tokens=False) + [tokenizer.eos_token_id]
    kept = ids[max(0, len(ids) - max_len) :]
    return {"input_ids": kept, "labels": [-100] * len(p) + ids[len(p) : len(kept)]}
