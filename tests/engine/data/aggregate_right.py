"""Right ways to average token losses, with what each is recognised as."""

# ruff: noqa: B905, E741  written as users write

from __future__ import annotations

from dataclasses import dataclass

import torch

EXPECTED = {
    "masked_mean": "mean over the tokens of the batch",
    "masked_mean_with_axis": "mean over the tokens of the batch",
    "nan_safe_masked_sum": "sum over all tokens",
    "mean_along_rows": "mean over the tokens of each sequence",
    "by_boolean_index": "mean over the tokens of the batch",
    "by_einsum": "mean over the tokens of the batch",
    "grpo_rows": "mean over tokens, then over sequences",
    "loop_over_rows": "mean over tokens, then over sequences",
    "sequence_token_sum": "sum over tokens, mean over sequences",
    "dr_grpo": "sum over B times a constant, length=16",
    "horizon": "sum over B times the padded width",
    "dapo_over_items": "sum over the given token count",
    "optional_count": "sum over the given token count",
    "agg_loss": "sum over the given token count",
    "global_sequences": "token means over the given number of sequences",
    "jagged_samples": "sum of the sequences' token means",
    "packed_samples": "mean over the tokens of the batch",
    "with_labels": "mean over the tokens of the batch",
    "with_lengths": "mean over the tokens of the batch",
    "truncated_rows": "mean over the tokens of the batch",
    "truncated_rows_by_sequence": "mean over tokens, then over sequences",
    "finished_only": "mean over tokens, then over sequences, rows without a trained token do not count",
    "two_masks": "mean over the tokens of the batch",
    "tool_tokens": "mean over tokens, then over sequences",
    "split_with_global_count": "mean over the tokens of the batch",
    "split_weighted_by_tokens": "mean over the tokens of the batch",
    "split_rows_by_rows": "mean over tokens, then over sequences",
    "accumulate_micro_batches": "mean over the tokens of the batch",
    "accumulate_records": "mean over the tokens of the batch",
    "ratio_of_sums": "mean over the tokens of the batch",
    "for_one_rank": "sum over the given token count",
    "scaled_for_accumulation": "mean over tokens, then over sequences",
    "policy_objective": "negated, as an objective is, mean over the tokens of the batch",
    "of_record": "mean over the tokens of the batch",
    "prompt_means": "mean over the tokens of each prompt, then over prompts",
    "half_precision": "mean over the tokens of the batch",
    "clamped_count": "mean over the tokens of the batch",
    "no_reduction": "no reduction",
    "log_mean": "mean over the tokens of the batch",
}


def masked_mean(tensor, mask):
    return (tensor * mask).sum() / mask.sum()


def masked_mean_with_axis(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """Mean of `values` where `mask` is set, over `axis`."""
    if axis is None:
        return (values * mask).sum() / (mask.sum() + 1e-8)
    return (values * mask).sum(axis) / (mask.sum(axis) + 1e-8)


def nan_safe_masked_sum(values, mask):
    """Sum over the mask; masked positions may hold NaN."""
    return values.masked_fill(mask == 0, 0.0).sum()


def mean_along_rows(x, mask, dim=-1):
    return (x * mask).sum(dim=dim) / mask.sum(dim=dim).clamp(min=1)


def by_boolean_index(per_token_loss, completion_mask):
    return per_token_loss[completion_mask.bool()].mean()


def by_einsum(losses, loss_mask):
    return torch.einsum("bt,bt->", losses, loss_mask) / torch.einsum("bt->", loss_mask)


def grpo_rows(per_token_loss, completion_mask):
    return ((per_token_loss * completion_mask).sum(-1) / completion_mask.sum(-1).clamp(min=1.0)).mean()


def loop_over_rows(loss_mat, response_mask):
    rows = [row[m.bool()].mean() for row, m in zip(loss_mat, response_mask)]
    return torch.stack(rows).mean()


def sequence_token_sum(loss_mat, loss_mask):
    return (loss_mat * loss_mask).sum(dim=-1).mean()


def dr_grpo(per_token_loss, completion_mask, max_completion_length):
    return (per_token_loss * completion_mask).sum() / (per_token_loss.size(0) * max_completion_length)


def horizon(loss_mat, loss_mask):
    """Sum of each sequence over the horizon, so that length carries no bias."""
    sums = (loss_mat * loss_mask).sum(-1) / loss_mask.shape[-1]
    return sums.mean()


def dapo_over_items(per_token_loss, completion_mask, num_items_in_batch):
    return (per_token_loss * completion_mask).sum() / num_items_in_batch


def optional_count(losses, mask, num_items_in_batch=None):
    total = (losses * mask).sum()
    if num_items_in_batch is None:
        num_items_in_batch = mask.sum()
    return total / num_items_in_batch


def agg_loss(loss_mat, loss_mask, loss_agg_mode="token-mean", dp_size=1, batch_num_tokens=None, global_batch_size=None):
    total = (loss_mat * loss_mask).sum()
    if loss_agg_mode == "token-mean":
        if batch_num_tokens is None:
            batch_num_tokens = loss_mask.sum()
        return total / batch_num_tokens * dp_size
    rows = (loss_mat * loss_mask).sum(-1)
    if loss_agg_mode == "seq-mean-token-mean":
        rows = rows / (loss_mask.sum(-1) + 1e-8)
    elif loss_agg_mode != "seq-mean-token-sum":
        raise ValueError(loss_agg_mode)
    if global_batch_size is None:
        global_batch_size = (loss_mask.sum(-1) > 0).sum()
    return rows.sum() / global_batch_size * dp_size


def global_sequences(loss, mask, global_batch_size):
    per_sequence = (loss * mask).sum(-1) / (mask.sum(-1) + 1e-8)
    return per_sequence.sum() / global_batch_size


def jagged_samples(losses: list[torch.Tensor], loss_masks: list[torch.Tensor]):
    """One 1-D tensor a sample in each list; the caller divides by the global batch size."""
    return sum((l * m).sum() / torch.clamp_min(m.sum(), 1) for l, m in zip(losses, loss_masks))


def packed_samples(losses, mask, cu_seqlens):
    """losses, mask: packed, [sum T]."""
    total, count = losses.new_zeros(()), losses.new_zeros(())
    for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist()):
        total = total + (losses[a:b] * mask[a:b]).sum()
        count = count + mask[a:b].sum()
    return total / count


def with_labels(loss, labels, ignore_index=-100):
    keep = labels != ignore_index
    return torch.where(keep, loss, torch.zeros_like(loss)).sum() / keep.sum()


def with_lengths(token_losses, lengths):
    """token_losses: [B, T], right padded; lengths: [B]."""
    keep = torch.arange(token_losses.shape[1])[None, :] < lengths[:, None]
    return (token_losses * keep).sum() / lengths.sum()


def truncated_rows(per_token_loss, completion_mask, is_truncated):
    mask = completion_mask * (~is_truncated).unsqueeze(1)
    return (per_token_loss * mask).sum() / mask.sum().clamp(min=1)


def truncated_rows_by_sequence(per_token_loss, completion_mask, truncated):
    """Truncated rows add nothing, the mean is still over all rows."""
    mask = completion_mask * (1 - truncated.float())[:, None]
    return ((per_token_loss * mask).sum(1) / mask.sum(1).clamp(min=1)).mean()


def finished_only(loss, mask, finished):
    """Mean over the finished sequences; finished: [B]."""
    keep = finished.bool()
    rows = (loss[keep] * mask[keep]).sum(-1) / mask[keep].sum(-1)
    return rows.mean()


def two_masks(pg_losses, response_mask, trust_mask):
    keep = response_mask * trust_mask
    return (pg_losses * keep).sum() / keep.sum()


def tool_tokens(per_token_loss, completion_mask, tool_mask):
    """tool_mask [B, T]: 0 on tokens that a tool wrote."""
    m = completion_mask * tool_mask
    return ((per_token_loss * m).sum(-1) / m.sum(-1).clamp(min=1)).mean()


def split_with_global_count(per_token_loss, loss_mask, micro_batch_size):
    count = loss_mask.sum()
    total = 0.0
    for l, m in zip(per_token_loss.split(micro_batch_size), loss_mask.split(micro_batch_size)):
        total = total + (l * m).sum() / count
    return total


def split_weighted_by_tokens(losses, mask, micro_batch_size: int):
    loss = losses.new_zeros(())
    for at in range(0, len(losses), micro_batch_size):
        l, m = losses[at : at + micro_batch_size], mask[at : at + micro_batch_size]
        mean = (l * m).sum() / m.sum()
        loss = loss + mean * (m.sum() / mask.sum())
    return loss


def split_rows_by_rows(losses, mask, micro_batch_size):
    """Each sequence counts the same, however the batch is cut."""
    loss = losses.new_zeros(())
    for l, m in zip(losses.split(micro_batch_size), mask.split(micro_batch_size)):
        part = ((l * m).sum(-1) / m.sum(-1)).mean()
        loss = loss + part * len(l) / len(losses)
    return loss


def accumulate_micro_batches(micro_losses: list[torch.Tensor], micro_masks: list[torch.Tensor]) -> torch.Tensor:
    """Loss of one step from its micro-batches, each [b, T]."""
    count = sum(m.sum() for m in micro_masks)
    return sum((l * m).sum() for l, m in zip(micro_losses, micro_masks)) / count


def accumulate_records(micro_batches):
    """One optimizer step over its micro-batches."""
    tokens = sum(mb["loss_mask"].sum() for mb in micro_batches)
    total = 0.0
    for mb in micro_batches:
        total = total + (mb["per_token_loss"] * mb["loss_mask"]).sum() / tokens
    return total


def ratio_of_sums(losses, masks):
    num, den = losses.new_zeros(()), losses.new_zeros(())
    for l, m in zip(losses, masks):
        num, den = num + torch.dot(l, m), den + m.sum()
    return num / den


def for_one_rank(loss, mask, num_items_in_batch, num_processes):
    normalizer = num_items_in_batch / num_processes
    return (loss * mask).sum() / normalizer


def scaled_for_accumulation(per_token_loss, mask, gradient_accumulation_steps):
    loss = ((per_token_loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    return loss / gradient_accumulation_steps


def policy_objective(objective, mask):
    """Objectives are maximised: the loss is the negative of their mean."""
    return -(objective * mask).sum() / mask.sum()


@dataclass
class Batch:
    losses: torch.Tensor
    mask: torch.Tensor


def of_record(batch: Batch):
    return {"loss": (batch.losses * batch.mask).sum() / batch.mask.sum(), "tokens": batch.mask.sum()}


def prompt_means(token_loss, mask, group_size):
    sums = (token_loss * mask).sum(-1).view(-1, group_size).sum(1)
    counts = mask.sum(-1).view(-1, group_size).sum(1)
    return (sums / counts).mean()


def half_precision(losses, mask):
    losses, mask = losses.bfloat16(), mask.bfloat16()
    return (losses * mask).sum() / mask.sum()


def clamped_count(loss_mat, loss_mask, eps=1e-8):
    return (loss_mat * loss_mask.float()).sum().div(loss_mask.sum().clamp(min=eps))


def no_reduction(per_token_loss, mask):
    return per_token_loss * mask


def log_mean(values, mask) -> float:
    """Mean for the log."""
    return ((values * mask).sum() / mask.sum()).item()
