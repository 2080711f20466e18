"""Advantages that are no listed bug and not wrong: formulas that nobody has written down yet."""

import math
from collections import defaultdict

import torch


def squashed(rewards, group_size):
    r = rewards.view(-1, group_size)
    return torch.tanh(r - r.mean(1, keepdim=True)).flatten()


def ranks(rewards, group_size):
    r = rewards.view(-1, group_size)
    rank = r.argsort(1).argsort(1).float()
    return ((rank - rank.mean(1, keepdim=True)) / group_size).flatten()


def softmax_weights(rewards, group_size, tau=1.0):
    r = rewards.view(-1, group_size)
    return (torch.softmax(r, dim=1) - 1.0 / group_size).flatten()


def mean_absolute_deviation(rewards, group_size):
    r = rewards.view(-1, group_size)
    centred = r - r.mean(1, keepdim=True)
    return (centred / (centred.abs().mean(1, keepdim=True) + 1e-6)).flatten()


def by_range(rewards, group_size):
    r = rewards.view(-1, group_size)
    span = r.max(1, keepdim=True).values - r.min(1, keepdim=True).values
    return ((r - r.mean(1, keepdim=True)) / (span + 1e-6)).flatten()


def best_of_the_rest(rewards, group_size):
    r = rewards.view(-1, group_size)
    top, where = r.topk(2, dim=1)
    adv = torch.zeros_like(r)
    adv.scatter_(1, where[:, :1], top[:, :1] - top[:, 1:2])
    return (adv / (r.std(1, keepdim=True) + 1e-6)).flatten()


def clipped(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).clamp(-1.0, 1.0).flatten()


def positive_part(rewards, group_size):
    r = rewards.view(-1, group_size)
    return (r - r.mean(1, keepdim=True)).clamp(min=0).flatten()


def asymmetric(rewards, group_size):
    r = rewards.view(-1, group_size)
    a = r - r.mean(1, keepdim=True)
    return torch.where(a > 0, a, 0.3 * a).flatten()


def shrunk_to_the_batch(rewards, group_size):
    r = rewards.view(-1, group_size)
    baseline = 0.8 * r.mean(1, keepdim=True) + 0.2 * rewards.mean()
    return (r - baseline).flatten()


def longer_is_worse(rewards, completion_mask, group_size):
    """Group advantage of the reward after a length penalty of 0.3 a token."""
    shaped = (rewards - 0.3 * completion_mask.sum(1)).view(-1, group_size)
    adv = shaped - shaped.mean(1, keepdim=True)
    return adv.flatten()[:, None] * completion_mask


def length_weighted_baseline(rewards, completion_mask, group_ids):
    """The variance-minimal baseline under equal gradient norms a token."""
    length = completion_mask.sum(1)
    out = torch.zeros_like(rewards)
    for g in group_ids.unique():
        rows = group_ids == g
        out[rows] = rewards[rows] - (length[rows] * rewards[rows]).sum() / length[rows].sum()
    return out[:, None] * completion_mask


def per_token_share(rewards, completion_mask, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)).flatten()
    return adv[:, None] * completion_mask / completion_mask.sum(1, keepdim=True)


def damped_by_length(rewards, lengths, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)).flatten()
    return adv / lengths.float().sqrt()


def half_sized(rewards, group_size):
    r = rewards.view(-1, group_size)
    return 0.5 * ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).flatten()


def shifted_up(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).flatten() + 0.1


def pass_at_2(rewards, group_size):
    r = rewards.view(-1, group_size)
    best_with = torch.stack(
        [torch.maximum(r[:, i : i + 1], r).sum(1) / group_size for i in range(group_size)], dim=1
    )
    return (best_with - best_with.mean(1, keepdim=True)).flatten()


def exponential(rewards: list[float], group_size: int) -> list[float]:
    out = []
    for i in range(0, len(rewards), group_size):
        w = [math.exp(r) for r in rewards[i : i + group_size]]
        total = sum(w)
        out += [x / total * group_size - 1.0 for x in w]
    return out


def discount_common_prompts(prompts, rewards):
    seen = defaultdict(list)
    for p, r in zip(prompts, rewards):
        seen[p].append(r)
    return [(r - min(seen[p])) / math.sqrt(len(seen[p])) for p, r in zip(prompts, rewards)]


def logit_of_success(rewards, group_size):
    r = rewards.view(-1, group_size)
    p = torch.sigmoid(r.mean(1, keepdim=True))
    return ((r - r.mean(1, keepdim=True)) / (p * (1 - p)).sqrt()).flatten()


def blend_of_two_scales(rewards, group_size):
    r = rewards.view(-1, group_size)
    a = r - r.mean(1, keepdim=True)
    return (0.5 * a + 0.5 * a / (r.std(1, keepdim=True) + 1e-6)).flatten()


def geometric_mean_baseline(rewards, group_size):
    r = rewards.view(-1, group_size)
    top = r.max(1, keepdim=True).values
    return (r - (r.mean(1, keepdim=True) + top) / 2).flatten()
