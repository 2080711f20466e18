"""Averages of token losses that are no known mean and no known mistake."""

# ruff: noqa: B905, E741  written as users write

import torch


def weighted_by_length(losses, mask):
    counts = mask.sum(-1)
    rows = (losses * mask).sum(-1) / counts
    return (rows * counts.sqrt()).sum() / counts.sqrt().sum()


def first_token_only(losses, mask):
    return losses[:, 0].mean()


def median_of_rows(losses, mask):
    return ((losses * mask).sum(-1) / mask.sum(-1)).median()


def squared(losses, mask):
    return (losses.square() * mask).sum() / mask.sum()


def without_the_last_row(losses, mask):
    return (losses[:-1] * mask[:-1]).sum() / mask[:-1].sum()


def last_micro_batch(losses, mask, micro_batch_size):
    for l, m in zip(losses.split(micro_batch_size), mask.split(micro_batch_size)):
        loss = (l * m).sum() / m.sum()
    return loss


def half(losses, mask):
    return 0.5 * (losses * mask).sum() / mask.sum()


def clamped_high(losses, mask):
    return ((losses * mask).sum(-1) / mask.sum(-1).clamp(min=4)).mean()


def largest(losses, mask):
    return torch.where(mask > 0, losses, torch.full_like(losses, -1e9)).max(-1).values.mean()
