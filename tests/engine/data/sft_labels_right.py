"""Builders of supervised samples in the idioms of real code; `EXPECTED` holds words of what is recognised."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

IGNORE_INDEX = -100

EXPECTED = {
    "collate_prompt_completion": "trains the answers with the end token",
    "collate_with_lengths": "trains the answers with the end token",
    "collate_left": "trains the answers with the end token",
    "collate_given_labels": "trains every assistant turn with the end token",
    "collate_masks": "trains every assistant turn with the end token",
    "collate_language_model": "trains every token of a sample",
    "Collator.__call__": "trains the answers with the end token",
    "pack": "trains every assistant turn with the end token",
    "pack_positions": "trains the answers with the end token",
    "labels_of_tensors": "trains the answers with the end token",
    "labels_of_row": "trains the answers with the end token",
    "spans_to_labels": "trains every assistant turn with the end token",
    "mask_of_prompt": "trains the answers with the end token",
    "in_numpy": "trains the answers with the end token",
    "preprocess_pair": "trains the answers with the end token",
    "preprocess_sample": "trains the answers with the end token",
    "preprocess_columns": "trains the answers with the end token",
    "tokenize_with_template": "trains the answers with the end token",
    "by_turns": "trains every assistant turn with the end token",
    "by_assistant_mask": "trains every assistant turn with the end token",
    "by_offsets": "trains every assistant turn with the end token",
    "by_prefixes": "trains every assistant turn with the end token",
    "by_markers": "trains every assistant turn with the end token",
    "last_turn": "trains the last assistant turn only",
    "sharegpt": "trains every assistant turn with the end token",
    "to_mask": "trains every assistant turn with the end token",
    "batch_of_chats": "trains every assistant turn with the end token",
    "by_response_template": "trains the answers with the end token",
    "whole_text": "trains every token of a sample",
    "shifted_targets": "labels are shifted by one place",
    "as_record": "trains the answers with the end token",
    "weighted_pair": "labels are shifted by one place",
    "batch_of_pairs": "ids and labels are cut at the same places",
}


def collate_prompt_completion(examples, pad_token_id):
    """Right-padded batch; labels cover the completion and its end token."""
    width = max(len(e["prompt_ids"]) + len(e["completion_ids"]) for e in examples)
    input_ids, labels, attention = [], [], []
    for e in examples:
        ids = e["prompt_ids"] + e["completion_ids"]
        n = width - len(ids)
        input_ids.append(ids + [pad_token_id] * n)
        labels.append([-100] * len(e["prompt_ids"]) + e["completion_ids"] + [-100] * n)
        attention.append([1] * len(ids) + [0] * n)
    return {
        "input_ids": torch.tensor(input_ids),
        "labels": torch.tensor(labels),
        "attention_mask": torch.tensor(attention),
    }


def collate_with_lengths(features, pad_id=0):
    longest = max(len(f["input_ids"]) for f in features)
    ids = torch.full((len(features), longest), pad_id)
    labels = torch.full((len(features), longest), IGNORE_INDEX)
    for row, f in enumerate(features):
        seq = torch.tensor(f["input_ids"])
        ids[row, : len(seq)] = seq
        labels[row, f["prompt_len"] : len(seq)] = seq[f["prompt_len"] :]
    return ids, labels


def collate_left(features, pad_token_id):
    longest = max(len(f["input_ids"]) for f in features)
    batch = {"input_ids": [], "labels": [], "attention_mask": []}
    for f in features:
        fill = longest - len(f["input_ids"])
        n = f["prompt_length"]
        batch["input_ids"].append([pad_token_id] * fill + f["input_ids"])
        batch["labels"].append([-100] * (fill + n) + f["input_ids"][n:])
        batch["attention_mask"].append([0] * fill + [1] * len(f["input_ids"]))
    return {k: torch.tensor(v) for k, v in batch.items()}


def collate_given_labels(features, tokenizer):
    longest = max(len(f["input_ids"]) for f in features)
    pad = tokenizer.pad_token_id
    return {
        "input_ids": torch.tensor([f["input_ids"] + [pad] * (longest - len(f["input_ids"])) for f in features]),
        "labels": torch.tensor([f["labels"] + [-100] * (longest - len(f["labels"])) for f in features]),
        "attention_mask": torch.tensor(
            [[1] * len(f["input_ids"]) + [0] * (longest - len(f["input_ids"])) for f in features]
        ),
    }


def collate_masks(examples):
    ids = pad_sequence([torch.tensor(e["input_ids"]) for e in examples], batch_first=True)
    mask = pad_sequence([torch.tensor(e["assistant_masks"]) for e in examples], batch_first=True)
    return {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100)}


def collate_language_model(features, pad_token_id=0):
    width = max(len(f["input_ids"]) for f in features)
    ids = torch.tensor([f["input_ids"] + [pad_token_id] * (width - len(f["input_ids"])) for f in features])
    lengths = torch.tensor([len(f["input_ids"]) for f in features])
    real = torch.arange(width)[None] < lengths[:, None]
    return {"input_ids": ids, "labels": torch.where(real, ids, -100), "attention_mask": real.long()}


class Collator:
    """Right-pads; the pad id is the end token's."""

    def __init__(self, pad_token_id=2, ignore_index=-100):
        self.pad_token_id = pad_token_id
        self.ignore_index = ignore_index

    def __call__(self, features):
        n = max(len(f["input_ids"]) for f in features)
        ids = torch.full((len(features), n), self.pad_token_id)
        labels = torch.full((len(features), n), self.ignore_index)
        mask = torch.zeros(len(features), n, dtype=torch.long)
        for i, f in enumerate(features):
            k = len(f["input_ids"])
            ids[i, :k] = torch.tensor(f["input_ids"])
            mask[i, :k] = 1
            labels[i, f["prompt_length"] : k] = ids[i, f["prompt_length"] : k]
        return dict(input_ids=ids, attention_mask=mask, labels=labels)


@dataclass
class PadSequence:
    tokenizer: object

    def collate(self, instances):
        input_ids, labels = tuple([torch.tensor(i[key]) for i in instances] for key in ("input_ids", "labels"))
        input_ids = pad_sequence(input_ids, batch_first=True, padding_value=self.tokenizer.pad_token_id)
        labels = pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX)
        return dict(input_ids=input_ids, labels=labels, attention_mask=input_ids.ne(self.tokenizer.pad_token_id))


def pack(samples):
    """One row; spans are (start, stop) positions inside a sample, half-open."""
    ids, labels, positions, cu = [], [], [], [0]
    for s in samples:
        row = [IGNORE_INDEX] * len(s["input_ids"])
        for a, b in s["spans"]:
            row[a:b] = s["input_ids"][a:b]
        ids += s["input_ids"]
        labels += row
        positions += list(range(len(row)))
        cu.append(len(ids))
    return {
        "input_ids": torch.tensor([ids]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.tensor([positions]),
        "cu_seqlens": torch.tensor(cu, dtype=torch.int32),
    }


def pack_positions(examples):
    out = {"input_ids": [], "labels": [], "position_ids": []}
    for e in examples:
        full = e["prompt_ids"] + e["response_ids"]
        out["input_ids"].extend(full)
        out["labels"].extend([-100] * len(e["prompt_ids"]) + e["response_ids"])
        out["position_ids"].extend(range(len(full)))
    return {k: torch.tensor(v)[None] for k, v in out.items()}


def labels_of_tensors(input_ids: torch.Tensor, prompt_lens: torch.Tensor, attention_mask: torch.Tensor):
    """input_ids [B, T] right-padded, prompt_lens [B] -> labels [B, T]."""
    columns = torch.arange(input_ids.size(1))[None]
    drop = (columns < prompt_lens[:, None]) | (attention_mask == 0)
    return input_ids.masked_fill(drop, -100)


def labels_of_row(input_ids: list[int], prompt_len: int) -> list[int]:
    return [-100 if i < prompt_len else t for i, t in enumerate(input_ids)]


def spans_to_labels(input_ids: list[int], assistant_spans):
    """Half-open spans [start, stop) of every assistant turn."""
    labels = [-100] * len(input_ids)
    for start, stop in assistant_spans:
        labels[start:stop] = input_ids[start:stop]
    return labels


def mask_of_prompt(prompt_ids, response_ids):
    ids = prompt_ids + response_ids
    return {"tokens": ids, "loss_mask": [0] * len(prompt_ids) + [1] * len(response_ids)}


def in_numpy(features, pad_token_id):
    width = max(len(f["prompt_ids"] + f["completion_ids"]) for f in features)
    ids = np.full((len(features), width), pad_token_id)
    labels = np.full((len(features), width), -100)
    for i, f in enumerate(features):
        p, c = f["prompt_ids"], f["completion_ids"]
        ids[i, : len(p) + len(c)] = p + c
        labels[i, len(p) : len(p) + len(c)] = c
    return {"input_ids": ids, "labels": labels}


def preprocess_pair(prompt: str, completion: str, tokenizer, max_length=1024):
    p = tokenizer.encode(prompt, add_special_tokens=True)
    c = tokenizer.encode(completion, add_special_tokens=False) + [tokenizer.eos_token_id]
    ids = (p + c)[:max_length]
    return {"input_ids": ids, "labels": ([-100] * len(p) + c)[:max_length], "attention_mask": [1] * len(ids)}


def preprocess_sample(example, tokenizer, max_seq_length=512):
    source = f"### Instruction:\n{example['instruction']}\n\n### Response:\n"
    full = source + example["output"] + tokenizer.eos_token
    ids = tokenizer(full, truncation=True, max_length=max_seq_length)["input_ids"]
    n = len(tokenizer(source)["input_ids"])
    labels = list(ids)
    labels[:n] = [IGNORE_INDEX] * n
    return dict(input_ids=ids, labels=labels)


def preprocess_columns(examples, tokenizer):
    model_inputs = {"input_ids": [], "attention_mask": [], "labels": []}
    for q, a in zip(examples["question"], examples["answer"]):
        p = tokenizer("Q: " + q + "\nA: ", add_special_tokens=False).input_ids
        r = tokenizer(a + tokenizer.eos_token, add_special_tokens=False).input_ids
        model_inputs["input_ids"].append(p + r)
        model_inputs["attention_mask"].append([1] * len(p + r))
        model_inputs["labels"].append([-100] * len(p) + r)
    return model_inputs


def tokenize_with_template(example, tokenizer):
    messages = [{"role": "user", "content": example["prompt"]}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer = tokenizer(example["response"] + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return torch.tensor(ids + answer), torch.tensor([-100] * len(ids) + answer)


def by_turns(messages, tokenizer):
    """ids and labels of a chat; every assistant turn is trained, its <|im_end|> included."""
    ids, labels = [], []
    for m in messages:
        head = tokenizer.encode(f"<|im_start|>{m['role']}\n", add_special_tokens=False)
        body = tokenizer.encode(f"{m['content']}<|im_end|>", add_special_tokens=False)
        tail = tokenizer.encode("\n", add_special_tokens=False)
        ids += head + body + tail
        trained = m["role"] == "assistant"
        labels += [-100] * len(head) + (body if trained else [-100] * len(body)) + [-100] * len(tail)
    return ids, labels


def by_assistant_mask(example, tokenizer):
    out = tokenizer.apply_chat_template(
        example["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    labels = [t if m else -100 for t, m in zip(out["input_ids"], out["assistant_masks"])]
    return {"input_ids": out["input_ids"], "labels": labels, "attention_mask": out["attention_mask"]}


def by_offsets(sample, tokenizer, max_length=2048):
    text = tokenizer.apply_chat_template(sample["messages"], tokenize=False)
    enc = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False, truncation=True, max_length=max_length)
    spans, at = [], 0
    for m in sample["messages"]:
        start = text.index(m["content"], at)
        at = start + len(m["content"])
        if m["role"] == "assistant":
            spans.append((start, at + len("<|im_end|>")))
    labels = [
        t if any(s <= a and b <= e for s, e in spans) else -100
        for t, (a, b) in zip(enc["input_ids"], enc["offset_mapping"])
    ]
    return {"input_ids": enc["input_ids"], "labels": labels}


def by_prefixes(messages, tokenizer):
    ids = tokenizer.apply_chat_template(messages, tokenize=True)
    labels = [-100] * len(ids)
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        start = len(tokenizer.apply_chat_template(messages[:i], tokenize=True, add_generation_prompt=True))
        stop = len(tokenizer.apply_chat_template(messages[: i + 1], tokenize=True))
        labels[start:stop] = ids[start:stop]
    return {"input_ids": torch.tensor(ids), "labels": torch.tensor(labels)}


def by_markers(messages, tokenizer):
    ids = tokenizer.apply_chat_template(messages)
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    labels, i = [-100] * len(ids), 0
    while i < len(ids):
        if list(ids[i : i + len(opening)]) == opening:
            j = i + len(opening)
            while ids[j] != end:
                labels[j] = ids[j]
                j += 1
            labels[j] = ids[j]
            i = j
        i += 1
    return ids, labels


def last_turn(messages, tokenizer):
    """Only the last assistant message is trained."""
    prompt = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True)
    full = tokenizer.apply_chat_template(messages)
    return {"input_ids": list(full), "labels": [-100] * len(prompt) + list(full)[len(prompt) :]}


def sharegpt(source, tokenizer):
    ids, labels = [], []
    for turn in source["conversations"]:
        role = {"human": "user", "gpt": "assistant"}.get(turn["from"], turn["from"])
        head = tokenizer.encode("<|im_start|>" + role + "\n", add_special_tokens=False)
        body = tokenizer.encode(turn["value"] + "<|im_end|>\n", add_special_tokens=False)
        ids.extend(head + body)
        labels.extend([-100] * len(head) + (body if turn["from"] == "gpt" else [-100] * len(body)))
    return {"input_ids": ids, "labels": labels, "attention_mask": [1] * len(ids)}


def to_mask(messages, tokenizer):
    token_ids, loss_mask = [], []
    for m in messages:
        for text, trained in ((f"<|im_start|>{m['role']}\n", 0), (m["content"] + "<|im_end|>", 1), ("\n", 0)):
            piece = tokenizer(text, add_special_tokens=False)["input_ids"]
            token_ids += piece
            loss_mask += [int(trained and m["role"] == "assistant")] * len(piece)
    return token_ids, loss_mask


def batch_of_chats(examples, tokenizer):
    rows = [by_turns(e["messages"], tokenizer) for e in examples]
    width = max(len(i) for i, _ in rows)
    ids = torch.tensor([i + [tokenizer.pad_token_id] * (width - len(i)) for i, _ in rows])
    labels = torch.tensor([lb + [-100] * (width - len(lb)) for _, lb in rows])
    attention = torch.tensor([[1] * len(i) + [0] * (width - len(i)) for i, _ in rows])
    return {"input_ids": ids, "labels": labels, "attention_mask": attention}


def by_response_template(features, response_template_ids, pad_token_id):
    width = max(len(f["input_ids"]) for f in features)
    ids = torch.full((len(features), width), pad_token_id)
    labels = torch.full((len(features), width), -100)
    n = len(response_template_ids)
    for row, f in enumerate(features):
        seq = f["input_ids"]
        ids[row, : len(seq)] = torch.tensor(seq)
        start = next(i + n for i in range(len(seq)) if seq[i : i + n] == response_template_ids)
        labels[row, start : len(seq)] = torch.tensor(seq[start:])
    return {"input_ids": ids, "labels": labels}


def whole_text(texts, tokenizer, max_length=256):
    """Plain language-model training: the whole text is trained."""
    out = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    out["labels"] = out["input_ids"].masked_fill(out["attention_mask"] == 0, -100)
    return out


def shifted_targets(prompt_ids: list[int], completion_ids: list[int]):
    """Inputs and next-token targets, shifted here for a loss that does not shift."""
    ids = prompt_ids + completion_ids
    labels = [-100] * len(prompt_ids) + completion_ids
    return {"input_ids": ids[:-1], "targets": labels[1:]}


@dataclass
class Encoded:
    input_ids: torch.Tensor
    labels: torch.Tensor


def as_record(row, tokenizer) -> Encoded:
    head = tokenizer.encode(row["prompt"] + "\n")
    tail = tokenizer.encode(row["completion"], add_special_tokens=False) + [tokenizer.eos_token_id]
    return Encoded(torch.tensor(head + tail), torch.tensor([-100] * len(head) + tail))


def weighted_pair(tok, question, answer):
    """Next-token training, shifted here: (x, y, loss_weights) of one sample."""
    front = tok.encode(question, add_special_tokens=False)
    ids = front + tok.encode(answer, add_special_tokens=False) + [tok.eos_token_id]
    weights = [float(i >= len(front)) for i in range(len(ids))]
    return torch.tensor(ids[:-1]), torch.tensor(ids[1:]), torch.tensor(weights[1:])


def batch_of_pairs(tok, qa_pairs, cutoff_len=400):
    """Question-answer tuples -> padded ids and labels, -100 but on answers and their end token."""
    ids, labels = [], []
    for question, answer in qa_pairs:
        q, a = (tok.encode(t, add_special_tokens=False) for t in (question, answer))
        ids.append(torch.tensor((q + a + [tok.eos_token_id])[-cutoff_len:]))
        labels.append(torch.tensor((len(q) * [-100] + a + [tok.eos_token_id])[-cutoff_len:]))
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=tok.pad_token_id),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
