"""Wrong ways to average token losses, with the pitfalls that each shows."""

# ruff: noqa: B905, E741  written as users write

from __future__ import annotations

import torch

EXPECTED = {
    "counts_before_truncation": "AGG-COUNT-BEFORE-MASK",
    "counts_before_tool_mask": "AGG-COUNT-BEFORE-MASK",
    "row_count_before_truncation": "AGG-COUNT-BEFORE-MASK",
    "truncated_forgotten": "AGG-MASK-IGNORED",
    "second_mask_forgotten": "AGG-MASK-IGNORED",
    "truncated_only": "LOSS-MASK-INVERTED",
    "weighted_by_rows": "AGG-MEAN-OF-MEANS",
    "mean_of_means": "AGG-MEAN-OF-MEANS",
    "mean_of_list_means": "AGG-MEAN-OF-MEANS",
    "mean_of_record_means": "AGG-MEAN-OF-MEANS",
    "sequence_means_of_means": "AGG-MEAN-OF-MEANS",
    "means_added": "AGG-MEANS-ADDED",
    "means_of_list_added": "AGG-MEANS-ADDED",
    "count_and_parts": "AGG-DIVIDED-TWICE",
    "mean_by_rows_again": "AGG-DIVIDED-TWICE",
    "count_and_steps": "AGG-DIVIDED-TWICE",
    "ranks_forgotten": "AGG-SCALE",
    "ranks_upside_down": "AGG-SCALE",
    "times_steps": "AGG-SCALE",
    "own_count_instead": "AGG-COUNT-IGNORED",
    "own_rows_instead": "AGG-COUNT-IGNORED",
    "one_added": "AGG-EPSILON",
    "one_added_by_row": "AGG-EPSILON",
    "along_the_batch": "AGG-AXIS",
    "mean_along_the_batch": "AGG-AXIS",
    "empty_rows": "AGG-EMPTY-ROW",
    "empty_rows_promised": "AGG-EMPTY-ROW",
    "detached_loss": "AGG-DETACHED",
    "loss_without_grad": "AGG-DETACHED",
    "nan_times_zero": "AGG-FILLER-NAN",
    "nan_in_rows": "AGG-FILLER-NAN",
    "negated": "LOSS-SIGN",
    "negated_rows": "LOSS-SIGN",
    "another_mode_than_asked": "LOSS-AGGREGATION",
    "another_mean_than_said": "LOSS-AGGREGATION",
    "plain_mean_of_masked": "LOSS-PADDED-DENOMINATOR",
    "by_width": "LOSS-PADDED-DENOMINATOR",
    "unmasked": "LOSS-MASK-MISSING",
    "unmasked_rows": "LOSS-MASK-MISSING",
    "inverted": "LOSS-MASK-INVERTED",
    "shifted": "LOSS-MASK-SHIFT",
    "rolled": "LOSS-MASK-SHIFT",
    "numerator": "LOSS-MASK-NUMERATOR",
    "numerator_rows": "LOSS-MASK-NUMERATOR",
    "unmasked_and_negated": "LOSS-MASK-MISSING LOSS-SIGN",
    "mean_of_means_over_numerator": "AGG-MEAN-OF-MEANS LOSS-MASK-NUMERATOR",
}


def counts_before_truncation(per_token_loss, completion_mask, is_truncated):
    count = completion_mask.sum().clamp(min=1)
    mask = completion_mask * (~is_truncated).unsqueeze(-1).float()
    return (per_token_loss * mask).sum() / count


def counts_before_tool_mask(losses, response_mask, tool_mask):
    n = response_mask.sum(-1).clamp(min=1)
    return ((losses * response_mask * tool_mask).sum(-1) / n).mean()


def row_count_before_truncation(token_loss, mask, overlong):
    """Mean over the tokens of rows that ended by themselves."""
    denominator = mask.sum()
    token_loss = token_loss * (1.0 - overlong.float())[:, None]
    return (token_loss * mask).sum() / denominator


def truncated_forgotten(per_token_loss, completion_mask, is_truncated):
    return (per_token_loss * completion_mask).sum() / completion_mask.sum()


def second_mask_forgotten(pg_losses, response_mask, rejection_mask):
    return ((pg_losses * response_mask).sum(-1) / response_mask.sum(-1)).mean()


def truncated_only(per_token_loss, completion_mask, is_truncated):
    mask = completion_mask * is_truncated.float().unsqueeze(1)
    return (per_token_loss * mask).sum() / mask.sum().clamp(min=1)


def weighted_by_rows(per_token_loss, loss_mask, micro_batch_size):
    """Token mean over the mini-batch, whatever micro_batch_size is."""
    total = 0.0
    for at in range(0, per_token_loss.size(0), micro_batch_size):
        l, m = per_token_loss[at : at + micro_batch_size], loss_mask[at : at + micro_batch_size]
        total = total + (l * m).sum() / m.sum() * l.size(0) / per_token_loss.size(0)
    return total


def mean_of_means(losses, mask, micro_batch_size):
    means = [(l * m).sum() / m.sum() for l, m in zip(losses.split(micro_batch_size), mask.split(micro_batch_size))]
    return torch.stack(means).mean()


def mean_of_list_means(micro_losses: list[torch.Tensor], micro_masks: list[torch.Tensor]):
    """Loss of one step from its micro-batches, each [b, T]."""
    total = 0.0
    for l, m in zip(micro_losses, micro_masks):
        total = total + (l * m).sum() / m.sum()
    return total / len(micro_losses)


def mean_of_record_means(micro_batches):
    """One optimizer step over its micro-batches."""
    total = 0.0
    for mb in micro_batches:
        loss = (mb["loss"] * mb["mask"]).sum() / mb["mask"].sum().clamp(min=1)
        total = total + loss / len(micro_batches)
    return total


def sequence_means_of_means(losses: list[torch.Tensor], masks: list[torch.Tensor]):
    """Sequence mean over all micro-batches of a step. Lists of [b, T]."""
    parts = [((l * m).sum(-1) / m.sum(-1)).mean() for l, m in zip(losses, masks)]
    return sum(parts) / len(parts)


def means_added(losses, mask, micro_batch_size):
    loss = losses.new_zeros(())
    for l, m in zip(losses.split(micro_batch_size), mask.split(micro_batch_size)):
        loss = loss + (l * m).sum() / m.sum()
    return loss


def means_of_list_added(micro_losses: list[torch.Tensor], micro_masks: list[torch.Tensor]):
    """The losses of the micro-batches of one step, each [b, T]."""
    return [(l * m).sum() / m.sum() for l, m in zip(micro_losses, micro_masks)]


def count_and_parts(losses, mask, num_items_in_batch, micro_batch_size):
    parts = losses.split(micro_batch_size)
    total = 0.0
    for l, m in zip(parts, mask.split(micro_batch_size)):
        total = total + (l * m).sum() / num_items_in_batch / len(parts)
    return total


def mean_by_rows_again(losses, mask):
    return (losses * mask).sum() / mask.sum() / losses.shape[0]


def count_and_steps(losses, mask, num_items_in_batch, gradient_accumulation_steps):
    return (losses * mask).sum() / num_items_in_batch / gradient_accumulation_steps


def ranks_forgotten(losses, mask, batch_num_tokens, dp_size):
    """Gradients are averaged over dp_size ranks afterwards; batch_num_tokens counts the tokens of all of them."""
    return (losses * mask).sum() / batch_num_tokens


def ranks_upside_down(losses, mask, batch_num_tokens, world_size):
    return (losses * mask).sum() / batch_num_tokens / world_size


def times_steps(losses, mask, gradient_accumulation_steps):
    return (losses * mask).sum() / mask.sum() * gradient_accumulation_steps


def own_count_instead(losses, mask, num_items_in_batch):
    return (losses * mask).sum() / mask.sum()


def own_rows_instead(losses, mask, global_batch_size):
    return ((losses * mask).sum(-1) / mask.sum(-1)).mean()


def one_added(losses, mask):
    return (losses * mask).sum() / (mask.sum() + 1)


def one_added_by_row(losses, mask, eps=0.1):
    return ((losses * mask).sum(-1) / (mask.sum(-1) + eps)).mean()


def along_the_batch(losses, mask):
    """Sum over the tokens of each row."""
    return (losses * mask).sum(0)


def mean_along_the_batch(losses, mask):
    """Mean over the tokens of each row."""
    return (losses * mask).sum(0) / mask.sum(0)


def empty_rows(losses, mask, is_truncated):
    mask = mask * (~is_truncated)[:, None]
    return ((losses * mask).sum(-1) / mask.sum(-1)).mean()


def empty_rows_promised(losses, mask):
    """Mean over sequences of their token means; a row may have no trained token."""
    return ((losses * mask).sum(-1) / mask.sum(-1)).mean()


def detached_loss(losses, mask):
    return ((losses * mask).sum() / mask.sum()).detach()


@torch.no_grad()
def loss_without_grad(per_token_loss, mask):
    """Loss that is back-propagated."""
    return (per_token_loss * mask).sum() / mask.sum()


def nan_times_zero(losses, mask):
    """Mean over the mask; masked positions may hold NaN."""
    return (losses * mask).sum() / mask.sum()


def nan_in_rows(losses, mask):
    """Sequence mean of token means. Whatever masked positions hold (NaN as well) is not read."""
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def negated(losses, mask):
    return -(losses * mask).sum() / mask.sum()


def negated_rows(losses, mask):
    return -((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def another_mode_than_asked(losses, mask, loss_agg_mode="token-mean"):
    rows = (losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    if loss_agg_mode in ("token-mean", "seq-mean-token-mean"):
        return rows.mean()
    return (losses * mask).sum(-1).mean()


def another_mean_than_said(losses, mask):
    """Mean over all trained tokens of the batch."""
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def plain_mean_of_masked(losses, mask):
    """Mean loss over the trained tokens."""
    return (losses * mask).mean()


def by_width(losses, mask):
    return (losses * mask).sum() / losses.size(1)


def unmasked(losses, mask):
    return losses.mean()


def unmasked_rows(losses, mask, dim=-1):
    return losses.mean(dim).mean()


def inverted(losses, mask):
    return losses.masked_fill(mask.bool(), 0.0).sum() / (mask == 0).sum()


def shifted(losses, mask):
    return (losses[:, 1:] * mask[:, :-1]).sum() / mask[:, :-1].sum()


def rolled(losses, mask):
    m = mask.roll(-1, dims=1)
    return ((losses * m).sum(-1) / m.sum(-1).clamp(min=1)).mean()


def numerator(losses, mask):
    return losses.sum() / mask.sum()


def numerator_rows(losses, mask):
    return (losses.sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def unmasked_and_negated(losses, mask):
    return -losses.mean()


def mean_of_means_over_numerator(losses, mask, micro_batch_size):
    means = [l.sum() / m.sum() for l, m in zip(losses.split(micro_batch_size), mask.split(micro_batch_size))]
    return sum(means) / len(means)


class Normaliser:
    """kind: "token_mean" or "fixed"; horizon is the generation budget."""

    def __init__(self, agg_mode="fixed", max_new_tokens=64):
        self.agg_mode = agg_mode
        self.max_new_tokens = max_new_tokens

    def __call__(self, token_loss, loss_mask):
        per_row = torch.einsum("bt,bt->b", token_loss, loss_mask)
        if self.agg_mode == "token_mean":
            return per_row.sum() / loss_mask.sum()
        if self.agg_mode == "fixed":
            return per_row.mean() / loss_mask.shape[1]
        raise ValueError(self.agg_mode)
