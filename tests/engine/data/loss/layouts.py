"""Right policy losses in other layouts: ragged, packed, masks of other types, further inputs and results."""

from typing import List, NamedTuple

import torch


def bool_index(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    adv = advantages.unsqueeze(1).expand_as(logprobs)[mask]
    r = torch.exp(logprobs[mask] - old_logprobs[mask])
    return -torch.min(r * adv, r.clamp(1 - clip_eps, 1 + clip_eps) * adv).mean()


def long_mask(logprobs, old_logprobs, advantages, attention_mask: torch.LongTensor, clip_eps=0.2):
    adv = advantages.view(-1, 1)
    r = torch.exp(logprobs - old_logprobs)
    l = -torch.min(r * adv, r.clamp(1 - clip_eps, 1 + clip_eps) * adv)
    return (l * attention_mask).sum() / attention_mask.sum()


def ragged(log_probs: List[torch.Tensor], old_log_probs: List[torch.Tensor], advantages: List[torch.Tensor], loss_masks: List[torch.Tensor], eps_clip: float = 0.2):
    losses = []
    for lp, old, adv, m in zip(log_probs, old_log_probs, advantages, loss_masks):
        r = (lp - old).exp()
        l = -torch.min(r * adv, r.clamp(1 - eps_clip, 1 + eps_clip) * adv)
        losses.append((l * m).sum() / m.sum().clamp(min=1))
    return torch.stack(losses).mean()


def packed(logprobs, old_logprobs, advantages, loss_mask, cu_seqlens, eps_clip=0.2):
    """All packed [sum T]; cu_seqlens: [B + 1]."""
    r = (logprobs - old_logprobs).exp()
    l = -torch.min(r * advantages, r.clamp(1 - eps_clip, 1 + eps_clip) * advantages) * loss_mask
    out = []
    for a, b in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        out.append(l[a:b].sum() / loss_mask[a:b].sum())
    return torch.stack(out).mean()


def combined(log_probs, old_log_probs, advantages, values, old_values, returns, mask, clip_eps=0.2, vf_coef=0.1):
    r = (log_probs - old_log_probs).exp()
    pg = (torch.max(-advantages * r, -advantages * r.clamp(1 - clip_eps, 1 + clip_eps)) * mask).sum() / mask.sum()
    vf = 0.5 * (((values - returns) ** 2) * mask).sum() / mask.sum()
    return pg + vf_coef * vf


class Out(NamedTuple):
    loss: torch.Tensor
    kl: torch.Tensor


def returns_named(logprobs, old_logprobs, ref_logprobs, advantages, mask, beta: float = 0.1) -> Out:
    r = (logprobs - old_logprobs).exp()
    d = ref_logprobs - logprobs
    kl = d.exp() - d - 1
    l = -torch.min(r * advantages, r.clamp(0.8, 1.2) * advantages) + beta * kl
    return Out(loss=(l * mask).sum() / mask.sum(), kl=((kl * mask).sum() / mask.sum()).detach())


def transposed(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """advantages: [B, 1]"""
    r = torch.exp(logprobs - old_logprobs)
    l = -torch.min(r * advantages, r.clamp(1 - clip_eps, 1 + clip_eps) * advantages)
    return torch.einsum("bt,bt->", l, mask) / mask.sum()


def maximised_objective(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """Objective to be maximised."""
    r = torch.exp(logprobs - old_logprobs)
    return (torch.min(r * advantages, r.clamp(1 - clip_eps, 1 + clip_eps) * advantages) * mask).sum() / mask.sum()


def rollout_ratio(logprobs, rollout_logprobs, advantages, mask, clip_eps=0.2):
    r = torch.exp(logprobs - rollout_logprobs); a = advantages.unsqueeze(-1)
    l = -torch.min(r * a, r.clamp(1 - clip_eps, 1 + clip_eps) * a)
    return (l * mask).sum() / mask.sum()


def decoupled(logprobs, proximal_logprobs, old_logprobs, advantages, loss_mask, eps_clip=0.2):
    r = torch.exp(logprobs - proximal_logprobs)
    l = -torch.min(r * advantages, r.clamp(1 - eps_clip, 1 + eps_clip) * advantages)
    l = l * torch.exp(proximal_logprobs - old_logprobs).detach()
    return torch.where(loss_mask, l, 0).sum() / loss_mask.count_nonzero()
