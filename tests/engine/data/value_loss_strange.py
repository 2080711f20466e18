"""Losses on values and returns that are no known value loss and no known mistake in one."""

from __future__ import annotations

import torch


def fourth_power(values, returns, mask):
    return (((values - returns) ** 4) * mask).sum() / mask.sum()


def log_cosh(values, old_values, returns, mask, clip_value):
    return (torch.log(torch.cosh(values - returns)) * mask).sum() / mask.sum()


def between(values, old_values, returns, mask, clip_value):
    target = 0.5 * (returns + old_values)
    return 0.5 * (((values - target) ** 2) * mask).sum() / mask.sum()


def scaled(values, returns, mask):
    return 0.5 * (((values - 0.9 * returns) ** 2) * mask).sum() / mask.sum()
