"""Supervised losses in the idioms of real code; `EXPECTED` holds words of each convention."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

EXPECTED = {
    "hugging_face": "shifts inside, mean over the labels of the batch",
    "per_token_then_mask": "shifts inside, mean over the labels of the batch",
    "log_softmax_gather": "shifts inside, mean over the labels of the batch",
    "minus_logsumexp": "shifts inside, mean over the labels of the batch",
    "loops": "shifts inside, mean over the labels of the batch",
    "flat_index": "shifts inside, mean over the labels of the batch",
    "padded_labels": "shifts inside, mean over the labels of the batch",
    "rolled": "the last place predicts the first label of its row",
    "shifted_after_flattening": "of a row predicts the first label of the next",
    "aligned": "logits already aligned with the labels",
    "with_mask": "shifts inside, mean over the labels of the batch",
    "with_attention_mask": "shifts inside, mean over the labels of the batch",
    "in_chunks": "shifts inside, mean over the labels of the batch",
    "over_count": "sum over the given token count",
    "count_or_mean": "sum over the given token count",
    "outputs_and_count": "sum over the given token count",
    "summed": "sum over all labels",
    "sequence_mean": "mean over labels, then over sequences",
    "sequence_sum": "sum over labels, mean over sequences",
    "one_a_sequence": "mean over the labels of each sequence",
    "unreduced": "one loss a token",
    "smoothed": "label smoothing",
    "smoothed_by_hand": "label smoothing",
    "with_z_loss": "z-loss",
    "dft": "weighted with the detached probability (DFT)",
    "chord": "weighted with the detached p(1 - p)",
    "token_weighted": "weighted with the given weights",
    "weighted_mean": "mean weighted with the given weights",
    "of_logprobs": "mean over the labels of the batch",
    "of_batch": "shifts inside, mean over the labels of the batch",
    "of_record": "shifts inside, mean over the labels of the batch",
    "softmaxed_twice_in_logs": "shifts inside, mean over the labels of the batch",
    "in_low_precision": "shifts inside, mean over the labels of the batch",
    "Loss.forward": "shifts inside, mean over the labels of the batch",
    "Trainer.compute_loss": "shifts inside, mean over the labels of the batch",
    "fused_head": "shifts inside, mean over the labels of the batch",
}


def hugging_face(logits, labels, vocab_size=11):
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, vocab_size), shift_labels.view(-1), ignore_index=-100)


def per_token_then_mask(logits, labels, ignore_index=-100):
    targets = labels[:, 1:]
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, ignore_index=ignore_index, reduction="none")
    valid = targets != ignore_index
    return loss.sum() / valid.sum()


def log_softmax_gather(logits, labels):
    logp = F.log_softmax(logits[:, :-1].float(), dim=-1)
    targets = labels[:, 1:]
    mask = targets.ne(-100)
    picked = logp.gather(-1, targets.masked_fill(~mask, 0).unsqueeze(-1)).squeeze(-1)
    return -(picked * mask).sum() / mask.sum().clamp(min=1)


def minus_logsumexp(logits, labels):
    z, y = logits[:, :-1], labels[:, 1:]
    keep = y != -100
    y = torch.where(keep, y, torch.zeros_like(y))
    nll = z.logsumexp(-1) - torch.take_along_dim(z, y[..., None], dim=-1)[..., 0]
    return nll[keep].mean()


def loops(logits, labels):
    total, count = 0.0, 0
    for row, y in zip(logits, labels):
        for t in range(len(y) - 1):
            if y[t + 1] == -100:
                continue
            total = total - row[t].log_softmax(-1)[y[t + 1]]
            count += 1
    return total / count


def flat_index(logits, labels):
    b, t, v = logits.shape
    z = logits[:, : t - 1].reshape(-1, v)
    y = labels[:, 1:].reshape(-1)
    rows = (y >= 0).nonzero().flatten()
    return -torch.log_softmax(z[rows], -1)[torch.arange(len(rows)), y[rows]].sum() / len(rows)


def padded_labels(logits, labels):
    labels = F.pad(labels, (0, 1), value=-100)[..., 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def rolled(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.roll(-1, dims=1).flatten())


def shifted_after_flattening(logits, labels):
    flat = logits.reshape(-1, logits.size(-1))
    return F.cross_entropy(flat[:-1], labels.reshape(-1)[1:])


def aligned(logits, targets):
    """Cross-entropy of next-token targets; targets[t] belongs to logits[t] (the collator shifts)."""
    return F.cross_entropy(logits.permute(0, 2, 1), targets)


def with_mask(logits, input_ids, loss_mask):
    """loss_mask is 1 on the tokens of the answer."""
    logp = logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    mask = loss_mask[:, 1:].float()
    return -(logp * mask).sum() / mask.sum()


def with_attention_mask(logits, input_ids, attention_mask):
    targets = input_ids.masked_fill(attention_mask == 0, -100)[:, 1:]
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), targets.reshape(-1))


def in_chunks(logits, labels, chunk_size=4):
    z = logits[:, :-1].reshape(-1, logits.size(-1))
    y = labels[:, 1:].reshape(-1)
    total = sum(F.cross_entropy(a, b, reduction="sum") for a, b in zip(z.split(chunk_size), y.split(chunk_size)))
    return total / (y != -100).sum()


def over_count(logits, labels, num_items_in_batch):
    """Sum over the labels of this micro-batch, divided by those of the whole batch."""
    loss = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="sum")
    return loss / num_items_in_batch


def count_or_mean(logits, labels, num_items_in_batch=None):
    reduction = "sum" if num_items_in_batch is not None else "mean"
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction)
    return loss / num_items_in_batch if reduction == "sum" else loss


def outputs_and_count(outputs, labels, num_items_in_batch=None):
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
    logits = logits.float()
    labels = F.pad(labels, (0, 1), value=-100)
    shift = labels[..., 1:].contiguous().view(-1)
    nll = F.cross_entropy(logits.view(-1, logits.size(-1)), shift, ignore_index=-100, reduction="none")
    return nll.sum() / num_items_in_batch if num_items_in_batch is not None else nll[shift != -100].mean()


def summed(logits, labels):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="sum")


def sequence_mean(logits, labels):
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    counts = (labels[:, 1:] != -100).sum(-1)
    return (nll.sum(-1) / counts).mean()


def sequence_sum(logits, labels):
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")
    return nll.sum(dim=1).mean()


def one_a_sequence(logits, labels):
    mask = labels[:, 1:] != -100
    logp = logits[:, :-1].log_softmax(-1).gather(2, labels[:, 1:].clamp(min=0).unsqueeze(2)).squeeze(2)
    return -(logp * mask).sum(-1) / mask.sum(-1)


def unreduced(logits, labels):
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), labels[:, 1:], reduction="none")


def smoothed(logits, labels, label_smoothing=0.1):
    return F.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels[:, 1:], ignore_index=-100, label_smoothing=label_smoothing
    )


def smoothed_by_hand(logits, labels, epsilon=0.1):
    logp = -F.log_softmax(logits[..., :-1, :], dim=-1)
    y = labels[..., 1:].unsqueeze(-1)
    ignored = y.eq(-100)
    nll = logp.gather(-1, y.clamp(min=0)).masked_fill(ignored, 0.0)
    flat = logp.sum(-1, keepdim=True).masked_fill(ignored, 0.0)
    n = ignored.numel() - ignored.long().sum()
    return (1 - epsilon) * nll.sum() / n + epsilon * flat.sum() / (n * logp.shape[-1])


def with_z_loss(logits, labels, z_loss_weight=1e-2):
    y = labels[:, 1:]
    z = logits[:, :-1]
    lse = torch.logsumexp(z, -1)
    keep = (y != -100).float()
    nll = lse - z.gather(-1, y.clamp(min=0)[..., None]).squeeze(-1)
    return ((nll + 1e-2 * lse.pow(2)) * keep).sum() / keep.sum()


def dft(logits, labels):
    """Dynamic fine-tuning: each token's loss times its probability, which is a constant."""
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    with torch.no_grad():
        p = torch.exp(-nll)
    return (p * nll).sum() / (y != -100).sum()


def chord(logits, labels):
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    p = torch.exp(-nll).detach()
    return (p * (1 - p) * nll)[y != -100].mean()


def token_weighted(logits, labels, loss_weights):
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    return (nll * loss_weights[:, 1:]).sum() / (y != -100).sum()


def weighted_mean(logits, labels, loss_weights):
    y = labels[:, 1:]
    nll = F.cross_entropy(logits[:, :-1].transpose(1, 2), y, reduction="none")
    w = loss_weights[:, 1:] * (y != -100)
    return (nll * w).sum() / w.sum()


def of_logprobs(per_token_logps, loss_mask):
    return -(per_token_logps * loss_mask).sum() / loss_mask.sum()


def of_batch(batch, logits):
    labels = batch["labels"][:, 1:].reshape(-1)
    return F.cross_entropy(logits[:, :-1].reshape(labels.numel(), -1), labels)


@dataclass
class Batch:
    logits: torch.Tensor
    labels: torch.Tensor


def of_record(batch: Batch):
    nll = F.nll_loss(batch.logits[:, :-1].log_softmax(-1).transpose(1, 2), batch.labels[:, 1:], ignore_index=-100)
    return nll


def softmaxed_twice_in_logs(logits, labels):
    logp = torch.log_softmax(logits[:, :-1], -1)
    return F.cross_entropy(logp.transpose(1, 2), labels[:, 1:])


def in_low_precision(logits, labels):
    z = logits.to(torch.bfloat16)[:, :-1].transpose(1, 2)
    return F.cross_entropy(z, labels[:, 1:])


class Loss(nn.Module):
    """Next-token loss."""

    def __init__(self):
        super().__init__()
        self.ignore_index = -100
        self.ce = nn.CrossEntropyLoss(ignore_index=self.ignore_index)

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        z = logits[..., :-1, :].contiguous()
        y = labels[..., 1:].contiguous()
        return self.ce(z.view(-1, z.size(-1)), y.view(-1))


class Trainer:
    def compute_loss(self, model, inputs, return_outputs=False):
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        labels = inputs["labels"]
        loss = F.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return (loss, outputs) if return_outputs else loss


def fused_head(hidden_states, lm_head_weight, labels):
    logits = hidden_states[:, :-1] @ lm_head_weight.T
    return F.cross_entropy(logits.transpose(1, 2), labels[:, 1:], ignore_index=-100)
