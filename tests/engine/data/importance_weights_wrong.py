"""Wrong weights between trainer and sampler, with the pitfalls that each shows."""

# ruff: noqa: B905  written as users write

from __future__ import annotations

import torch

EXPECTED = {
    "inverted": "LOSS-SAMPLER-INVERTED",
    "inverted_jagged": "LOSS-SAMPLER-INVERTED",
    "floored": "LOSS-SAMPLER-BOUND",
    "floored_sequence": "LOSS-SAMPLER-BOUND",
    "log_ratio_returned": "IW-NO-EXP",
    "log_ratio_capped": "IW-NO-EXP",
    "mean_where_product_is_said": "IW-MODE",
    "token_where_sequence_is_told": "IW-MODE",
    "truncates_where_told_to_mask": "IW-MODE",
    "padding_in_the_product": "IW-PADDED",
    "padding_in_the_mean": "IW-PADDED",
    "mean_over_the_width": "IW-WIDTH",
    "rejects_by_the_width": "IW-WIDTH",
    "averaged_over_padding": "LOSS-MASK-MISSING",
    "averaged_over_padding_in_rows": "LOSS-MASK-MISSING",
    "sums_padding_over_tokens": "LOSS-MASK-NUMERATOR",
    "sums_padding_over_lengths": "LOSS-MASK-NUMERATOR",
    "loss_moves_its_weight": "IW-GRADIENT",
    "infinite_filler": "IW-NAN",
    "normalised_by_padded_mean": "IW-PADDED",
    "vetoed_by_padding": "IW-PADDED",
    "cap_forgotten": "IW-BOUND-IGNORED",
    "floor_forgotten": "IW-BOUND-IGNORED",
    "veto_forgotten": "IW-BOUND-IGNORED",
    "cap_before_exp": "IW-CAP-IN-LOG",
    "bounds_before_exp": "IW-CAP-IN-LOG",
    "keeps_the_outside": "IW-OUTSIDE",
    "outside_becomes_one": "IW-OUTSIDE",
    "keep_mask_inverted": "IW-OUTSIDE",
    "not_detached": "IW-GRADIENT",
    "not_detached_sequence": "IW-GRADIENT",
    "nan_times_zero": "IW-NAN",
    "nan_in_the_sum": "IW-NAN",
    "not_masked": "IW-MASK-IGNORED",
    "not_masked_sequence": "IW-MASK-IGNORED",
    "mask_upside_down": "LOSS-MASK-INVERTED",
    "mask_filled_the_wrong_way": "LOSS-MASK-INVERTED",
    "inverted_and_uncapped": "LOSS-SAMPLER-INVERTED IW-BOUND-IGNORED",
    "padded_and_floored": "IW-PADDED LOSS-SAMPLER-BOUND",
}


def inverted(old_log_prob, rollout_log_prob, mask, cap=2.0):
    return (torch.exp(rollout_log_prob - old_log_prob).clamp(max=cap) * mask).detach()


def inverted_jagged(train_log_probs: list[torch.Tensor], rollout_log_probs: list[torch.Tensor], tis_clip=2.0):
    return [(b - a.detach()).exp().clamp(max=tis_clip) for a, b in zip(train_log_probs, rollout_log_probs)]


def floored(old_logprobs, rollout_logprobs, cap=2.0):
    return torch.exp(old_logprobs - rollout_logprobs).clamp(min=cap).detach()


def floored_sequence(log_ratio, mask, threshold=2.0):
    w = (log_ratio * mask).sum(-1, keepdim=True).exp()
    return (torch.maximum(w, torch.full_like(w, threshold)) * mask).detach()


def log_ratio_returned(old_logprobs, rollout_logprobs, mask):
    return ((old_logprobs - rollout_logprobs) * mask).detach()


def log_ratio_capped(old_logprobs, rollout_logprobs, cap=2.0):
    return (old_logprobs - rollout_logprobs).clamp(max=cap).detach()


def mean_where_product_is_said(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """Sequence-level weight: the product of the ratios of its tokens, capped."""
    d = ((old_logprobs - rollout_logprobs) * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    return (d.exp().clamp(max=cap) * mask).detach()


def token_where_sequence_is_told(log_ratio, mask, level="sequence", cap=2.0):
    if level in ("token", "sequence"):
        w = log_ratio.exp()
    else:
        w = (log_ratio * mask).sum(-1, keepdim=True).exp()
    return (w.clamp(max=cap) * mask).detach()


def truncates_where_told_to_mask(old_logprobs, rollout_logprobs, mode="token_mask", cap=2.0):
    w = (old_logprobs - rollout_logprobs).exp().detach()
    if mode in ("token_truncate", "token_mask"):
        return w.clamp(max=cap)
    raise ValueError(mode)


def padding_in_the_product(old_logprobs, rollout_logprobs, mask, cap=2.0):
    w = (old_logprobs - rollout_logprobs).sum(-1, keepdim=True).exp().clamp(max=cap)
    return (w * mask).detach()


def padding_in_the_mean(log_ratio, mask, cap=2.0):
    return (log_ratio.mean(-1, keepdim=True).exp().clamp(max=cap) * mask).detach()


def mean_over_the_width(log_ratio, mask, cap=2.0):
    """Geometric mean of the ratios of a sequence."""
    d = (log_ratio * mask).sum(-1) / mask.size(-1)
    return d.exp().clamp(max=cap).detach()


def normalised_by_padded_mean(old_logprobs, rollout_logprobs, mask, cap=2.0):
    w = (old_logprobs - rollout_logprobs).exp().clamp(max=cap).detach() * mask
    return w / w.mean()


def vetoed_by_padding(log_ratio, mask, cap=2.0, veto_threshold=1e-4):
    bad = (log_ratio.exp() < veto_threshold).any(dim=-1, keepdim=True)
    return (log_ratio.exp().clamp(max=cap) * mask * (~bad)).detach()


def cap_forgotten(old_logprobs, rollout_logprobs, mask, tis_clip=2.0):
    return ((old_logprobs - rollout_logprobs).exp() * mask).detach()


def floor_forgotten(old_logprobs, rollout_logprobs, lower=0.5, upper=2.0):
    w = (old_logprobs - rollout_logprobs).exp().detach()
    return w.masked_fill(w > upper, 0.0)


def veto_forgotten(log_ratio, mask, cap=2.0, veto_threshold=1e-4):
    return (log_ratio.exp().clamp(max=cap) * mask).detach()


def cap_before_exp(old_logprobs, rollout_logprobs, cap=2.0):
    return (old_logprobs - rollout_logprobs).clamp(max=cap).exp().detach()


def bounds_before_exp(old_logprobs, rollout_logprobs, tis_clip_low, tis_clip):
    return (old_logprobs - rollout_logprobs).clamp(tis_clip_low, tis_clip).exp().detach()


def keeps_the_outside(old_logprobs, rollout_logprobs, low=0.5, high=2.0):
    w = (old_logprobs - rollout_logprobs).exp().detach()
    return torch.where((w >= low) & (w <= high), torch.zeros_like(w), w)


def outside_becomes_one(old_logprobs, rollout_logprobs, low=0.5, high=2.0):
    w = (old_logprobs - rollout_logprobs).exp().detach()
    return torch.where((w >= low) & (w <= high), w, torch.ones_like(w))


def keep_mask_inverted(log_ratio, mask, lower, upper):
    ratio = log_ratio.exp()
    return mask * ((ratio < lower) | (ratio > upper)).float()


def not_detached(logprobs, rollout_logprobs, mask, cap=2.0):
    """Truncated weights, a constant of the loss."""
    return (logprobs - rollout_logprobs).exp().clamp(max=cap) * mask


def not_detached_sequence(logprobs, rollout_logprobs, mask, cap=2.0):
    """One detached weight a sequence."""
    w = ((logprobs - rollout_logprobs) * mask).sum(-1).exp()
    return w.clamp(max=cap)


def nan_times_zero(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """The engine reports NaN for tokens with mask 0."""
    return ((old_logprobs - rollout_logprobs).exp().clamp(max=cap) * mask).detach()


def nan_in_the_sum(log_ratio, mask, cap=2.0):
    """The log-ratio is NaN where the engine has no log-prob (mask 0)."""
    return (log_ratio * mask).sum(-1, keepdim=True).exp().clamp(max=cap).expand_as(mask).detach()


def not_masked(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """Truncated weights on the trained tokens, 0 elsewhere."""
    return (old_logprobs - rollout_logprobs).exp().clamp(max=cap).detach()


def not_masked_sequence(log_ratio, mask, cap=2.0):
    """One weight a sequence on its tokens, zero on padding. [B, T]"""
    return (log_ratio * mask).sum(-1, keepdim=True).exp().clamp(max=cap).expand_as(mask).detach()


def mask_upside_down(old_logprobs, rollout_logprobs, mask, cap=2.0):
    return ((old_logprobs - rollout_logprobs).exp().clamp(max=cap) * (1 - mask)).detach()


def mask_filled_the_wrong_way(log_ratio, mask, cap=2.0):
    return log_ratio.exp().clamp(max=cap).masked_fill(mask.bool(), 0.0).detach()


def inverted_and_uncapped(old_logprobs, rollout_logprobs, mask, cap=2.0):
    return ((rollout_logprobs - old_logprobs).exp() * mask).detach()


def padded_and_floored(old_logprobs, rollout_logprobs, mask, cap=2.0):
    return (old_logprobs - rollout_logprobs).sum(-1, keepdim=True).exp().clamp(min=cap).detach() * mask


def rejects_by_the_width(old_logprobs, rollout_logprobs, mask, low=0.5, high=2.0):
    """Geometric mean ratio of each sequence, and the mask without those outside [low, high]."""
    score = torch.exp(((old_logprobs - rollout_logprobs) * mask).mean(-1)).detach()
    return {"ratio": score, "kept": mask * ((score >= low) & (score <= high))[:, None]}


def averaged_over_padding(pg_losses, old_logprobs, rollout_logprobs, mask, cap=2.0):
    w = (old_logprobs - rollout_logprobs).exp().clamp(max=cap).detach()
    return (pg_losses * w).mean() + 0.0 * mask.sum()


def averaged_over_padding_in_rows(log_ratio, pg_loss, mask, cap=2.0):
    rows = (log_ratio.exp().clamp(max=cap).detach() * pg_loss).mean(-1)
    return rows.mean() + 0.0 * mask.sum()


def sums_padding_over_tokens(pg_losses, old_logprobs, rollout_logprobs, mask, cap=2.0):
    w = (old_logprobs - rollout_logprobs).exp().clamp(max=cap).detach()
    return (pg_losses * w).sum() / mask.sum()


def sums_padding_over_lengths(log_ratio, pg_loss, mask, cap=2.0):
    total = torch.einsum("bt,bt->", log_ratio.exp().clamp(max=cap).detach(), pg_loss)
    return total / mask.sum()


def loss_moves_its_weight(loss, logprobs, rollout_logprobs, mask, cap=2.0):
    """Token mean of the loss times the capped weight, which is a constant."""
    w = torch.exp(logprobs - rollout_logprobs).clamp(max=cap)
    return (w * loss * mask).sum() / mask.sum()


def infinite_filler(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """Capped weights; log-probs of the engine are -inf where it sampled nothing (mask 0)."""
    return torch.exp((old_logprobs - rollout_logprobs) * mask).clamp(max=cap).detach() * mask
