"""Weights between trainer and sampler that are no known weight and no known mistake."""

import torch


def squared(old_logprobs, rollout_logprobs, mask, cap=2.0):
    return ((2 * (old_logprobs - rollout_logprobs)).exp().clamp(max=cap) * mask).detach()


def square_root(old_logprobs, rollout_logprobs, mask, cap=2.0):
    return (((old_logprobs - rollout_logprobs) / 2).exp().clamp(max=cap) * mask).detach()


def one_late(old_logprobs, rollout_logprobs, mask, cap=2.0):
    d = old_logprobs - rollout_logprobs.roll(1, 1)
    return (d.exp().clamp(max=cap) * mask).detach()


def added(old_logprobs, rollout_logprobs, cap=2.0):
    return (old_logprobs + rollout_logprobs).exp().clamp(max=cap).detach()


def cap_of_one_more(old_logprobs, rollout_logprobs, cap=2.0):
    return (old_logprobs - rollout_logprobs).exp().clamp(max=cap + 1).detach()


def product_of_capped(log_ratio, mask, cap=2.0):
    w = log_ratio.exp().clamp(max=cap)
    return torch.where(mask > 0, w, torch.ones_like(w)).prod(-1).detach()


def mean_of_ratios(log_ratio, mask, cap=2.0):
    w = (log_ratio.exp() * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    return w.clamp(max=cap).detach()


def over_the_batch(old_logprobs, rollout_logprobs, mask, cap=2.0):
    d = ((old_logprobs - rollout_logprobs) * mask).sum(0, keepdim=True)
    return (d.exp().clamp(max=cap) * mask).detach()
