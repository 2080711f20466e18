"""Shaping that is none of the known kinds and no known mistake in one."""

from __future__ import annotations

import torch


def squared_penalty(lengths, max_len, buffer_len, penalty_factor):
    x = ((lengths - (max_len - buffer_len)) / buffer_len).clamp(0, 1)
    return -penalty_factor * x**2


def hellinger(scores, logprobs, ref_logprobs, mask, kl_coef):
    gap = ((logprobs / 2).exp() - (ref_logprobs / 2).exp()).square() * mask
    out = -kl_coef * gap
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    out[torch.arange(len(scores)), last] += scores
    return out


def shared(scores, logprobs, ref_logprobs, mask, kl_coef):
    """The score is spread evenly over the tokens."""
    return scores[:, None] * mask / mask.sum(1, keepdim=True) - kl_coef * (logprobs - ref_logprobs) * mask
