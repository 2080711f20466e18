"""Right weights between trainer and sampler, with what each is recognised as."""

# ruff: noqa: B905  written as users write

from __future__ import annotations

from dataclasses import dataclass

import torch

EXPECTED = {
    "truncated": "token weight, capped",
    "truncated_by_minimum": "token weight, capped, cap=2",
    "plain_ratio": "token weight, not bounded",
    "icepop": "token weight, 0 outside the bounds",
    "bounded_pair": "token weight, bounded on both sides",
    "tuple_of_bounds": "token weight, 0 outside the bounds",
    "masked_above": "token weight, 0 above the cap",
    "sequence_truncated": "one weight a sequence, the product of its tokens' ratios, capped",
    "sequence_as_vector": "one weight a sequence, the product of its tokens' ratios, capped",
    "sequence_as_column": "one weight a sequence, the geometric mean of its tokens' ratios, capped",
    "geometric_mask": "one weight a sequence, the geometric mean of its tokens' ratios, 1 inside the bounds, 0 outside",
    "from_log_ratio": "token weight, capped",
    "rollout_correction": "token weight, capped",
    "jagged": "token weight, capped",
    "jagged_loops": "token weight, capped",
    "normalised": "token weight, capped, divided by the mean over the tokens",
    "vetoed": "token weight, capped, a sequence with a catastrophic token is left out",
    "decoupled": "token weight, not bounded",
    "with_current_policy": "token weight, capped",
    "of_batch": "token weight, capped",
    "of_dict": "token weight, capped",
    "Correction.weights": "token weight, capped",
    "in_half_precision": "token weight, capped",
    "weighted_loss": "token weight, bounded on both sides, times the token losses",
    "modes": "one weight a sequence, the product of its tokens' ratios, 0 above the cap",
    "with_numpy": "token weight, capped",
    "without_mask": "token weight, capped",
    "nan_safe": "token weight, capped",
    "ratio_and_new_mask": "one weight a sequence, the geometric mean of its tokens' ratios, not bounded",
    "loss_with_constant_weight": "token weight, capped, times the token losses, mean over the tokens of the batch",
    "infinite_where_nothing_is": "token weight, capped",
    "rejection": "token weight, 1 inside the bounds, 0 outside",
}


def truncated(old_log_prob, rollout_log_prob, response_mask, tis_clip=2.0):
    w = torch.exp(old_log_prob - rollout_log_prob).clamp(max=tis_clip)
    return (w * response_mask).detach()


@torch.no_grad()
def truncated_by_minimum(trainer_logprobs, sampler_logprobs):
    ratio = (trainer_logprobs - sampler_logprobs).exp()
    return torch.minimum(ratio, torch.full_like(ratio, 2.0))


def plain_ratio(old_per_token_logps, sampling_per_token_logps):
    """Importance weight of each token, a constant of the loss."""
    return torch.exp(old_per_token_logps.detach() - sampling_per_token_logps)


def icepop(train_logprobs, infer_logprobs, mask, low=0.5, high=5.0):
    with torch.no_grad():
        ratio = torch.exp(train_logprobs - infer_logprobs)
        inside = (ratio >= low) & (ratio <= high)
        return torch.where(inside, ratio, torch.zeros_like(ratio)) * mask


def bounded_pair(train_log_probs, rollout_log_probs, tis_clip_low, tis_clip):
    return torch.clamp((train_log_probs - rollout_log_probs).detach().exp(), tis_clip_low, tis_clip)


def tuple_of_bounds(old_logprobs, rollout_logprobs, icepop_bounds=(0.5, 2.0)):
    lo, hi = icepop_bounds
    r = (old_logprobs - rollout_logprobs).exp().detach()
    return r * ((r >= lo) & (r <= hi))


def masked_above(old_logps, vllm_logprobs, cap):
    r = torch.exp(old_logps - vllm_logprobs).detach()
    return r.masked_fill(r > cap, 0.0)


def sequence_truncated(old_log_probs, rollout_log_probs, response_mask, cap=2.0):
    """One truncated weight a sequence, spread over its tokens [B, T]."""
    total = ((old_log_probs - rollout_log_probs) * response_mask).sum(-1, keepdim=True)
    return (total.exp().clamp(max=cap) * response_mask).detach()


def sequence_as_vector(old_log_probs, rollout_log_probs, mask, max_weight=2.0):
    log_w = torch.einsum("bt,bt->b", old_log_probs - rollout_log_probs, mask)
    return log_w.exp().clamp(max=max_weight).detach()


def sequence_as_column(logprobs, generator_logprobs, mask, cap=2.0):
    """Geometric mean of the ratios of a sequence, [B, 1]."""
    d = logprobs.detach() - generator_logprobs
    mean = (d * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return mean.exp().clamp(max=cap)


def geometric_mask(old_logprobs, rollout_logprobs, mask, lower, upper):
    d = ((old_logprobs - rollout_logprobs) * mask).sum(1) / mask.sum(1)
    keep = (d.exp() >= lower) & (d.exp() <= upper)
    return keep.float()[:, None].expand_as(mask).detach()


def from_log_ratio(log_ratio, mask, rollout_is_threshold=2.0):
    w = torch.exp(log_ratio.clamp(-20.0, 20.0)) * mask
    return w.clamp(max=rollout_is_threshold).detach()


def rollout_correction(log_ratio, response_mask, rollout_is="token", rollout_is_threshold=2.0):
    """Weights and their metrics."""
    if rollout_is == "token":
        weights = log_ratio.clamp(-20, 20).exp()
    elif rollout_is == "sequence":
        weights = (log_ratio * response_mask).sum(-1, keepdim=True).clamp(-20, 20).exp().expand_as(log_ratio)
    else:
        raise ValueError(rollout_is)
    weights = (weights * response_mask).clamp(max=rollout_is_threshold).detach()
    metrics = {"mean": (weights.sum() / response_mask.sum()).item()}
    return weights, metrics


def jagged(train_log_probs: list[torch.Tensor], rollout_log_probs: list[torch.Tensor], tis_clip: float):
    return [torch.exp(a.detach() - b).clamp(max=tis_clip) for a, b in zip(train_log_probs, rollout_log_probs)]


def jagged_loops(train_log_probs, rollout_log_probs, loss_masks, tis_clip=2.0):
    """Lists with one 1-D tensor per sample."""
    out = []
    for a, b, m in zip(train_log_probs, rollout_log_probs, loss_masks):
        w = torch.stack([(x - y).exp() for x, y in zip(a, b)]).detach()
        out.append(torch.where(w > tis_clip, torch.full_like(w, tis_clip), w) * m)
    return out


def normalised(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """Self-normalised: the weights of the trained tokens have mean 1."""
    w = (old_logprobs - rollout_logprobs).exp().clamp(max=cap).detach() * mask
    return w / (w.sum() / mask.sum())


def vetoed(log_ratio, mask, cap=2.0, veto_threshold=1e-4):
    """Sequences with a catastrophic token are dropped."""
    bad = ((log_ratio.exp() < veto_threshold) & mask.bool()).any(dim=-1, keepdim=True)
    return (log_ratio.exp().clamp(max=cap) * mask * (~bad)).detach()


def decoupled(prox_logp, old_logp):
    """Weight of the proximal policy against the behaviour policy that sampled (old_logp)."""
    return (prox_logp - old_logp).detach().exp()


def with_current_policy(logprobs, old_logprobs, rollout_logprobs, is_cap=2.0):
    ratio = (logprobs - old_logprobs).exp()
    weights = (old_logprobs - rollout_logprobs).exp().clamp(max=is_cap).detach()
    return {"weights": weights, "ratio": ratio}


@dataclass
class Rollout:
    old_logprobs: torch.Tensor
    rollout_logprobs: torch.Tensor
    mask: torch.Tensor


def of_batch(batch: Rollout, cap: float = 2.0):
    return (batch.old_logprobs - batch.rollout_logprobs).exp().clamp(max=cap).mul(batch.mask).detach()


def of_dict(batch, cap=2.0):
    d = batch["old_log_probs"] - batch["rollout_log_probs"]
    return torch.clamp(torch.exp(d), max=cap).detach() * batch["response_mask"]


class Correction:
    def __init__(self, cap=2.0):
        self.cap = cap

    def weights(self, old_log_probs, rollout_log_probs, mask):
        return torch.exp(old_log_probs - rollout_log_probs).clamp_max(self.cap).detach() * mask


def in_half_precision(old_logprobs, rollout_logprobs, cap=2.0):
    return (old_logprobs - rollout_logprobs).bfloat16().exp().clamp(max=cap).detach()


def weighted_loss(pg_loss, train_log_probs, rollout_log_probs, tis_clip, tis_clip_low):
    w = torch.exp(train_log_probs - rollout_log_probs).detach()
    return pg_loss * torch.clamp(w, min=tis_clip_low, max=tis_clip)


def modes(old_logps, sampling_logps, mask, mode="sequence_mask", cap=3.0):
    d = (old_logps - sampling_logps).detach()
    if mode in ("sequence_mask", "sequence_truncate"):
        d = (d * mask).sum(-1, keepdim=True)
    ratio = d.exp()
    if mode in ("token_truncate", "sequence_truncate"):
        return ratio.clamp(max=cap)
    if mode in ("token_mask", "sequence_mask"):
        return ratio.masked_fill(ratio > cap, 0.0)
    raise ValueError(mode)


def with_numpy(old_logprobs, rollout_logprobs, cap=2.0):
    import numpy as np

    w = np.exp(np.asarray(old_logprobs) - np.asarray(rollout_logprobs))
    return np.minimum(w, cap)


def without_mask(logps, engine_logprobs, cap):
    return torch.exp(logps.detach() - engine_logprobs).clamp(max=cap)


def nan_safe(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """The engine reports NaN where mask is 0; the weight is 0 there."""
    d = torch.where(mask.bool(), old_logprobs - rollout_logprobs, torch.zeros_like(old_logprobs))
    return torch.where(mask.bool(), d.exp().clamp(max=cap), torch.zeros_like(d)).detach()


def rejection(log_ratio, response_mask, lower_bound, upper_bound):
    ratio = log_ratio.exp()
    keep = (ratio >= lower_bound) & (ratio <= upper_bound)
    return response_mask * keep


@torch.no_grad()
def ratio_and_new_mask(old_logprobs, rollout_logprobs, mask, lower=0.5, upper=2.0):
    """Geometric mean ratio of each sequence, and a mask without the sequences outside the bounds."""
    mean = ((old_logprobs - rollout_logprobs) * mask).sum(-1) / mask.sum(-1)
    inside = (mean.exp() >= lower) & (mean.exp() <= upper)
    return {"ratio": mean.exp(), "kept": mask * inside[:, None]}


def loss_with_constant_weight(loss, logprobs, rollout_logprobs, mask, cap=2.0):
    """Token mean of the loss times the capped weight, which is a constant."""
    w = torch.exp(logprobs.detach() - rollout_logprobs).clamp(max=cap)
    return (w * loss * mask).sum() / mask.sum()


def infinite_where_nothing_is(old_logprobs, rollout_logprobs, mask, cap=2.0):
    """Capped weights; log-probs of the engine are -inf where it sampled nothing (mask 0)."""
    gap = (old_logprobs - rollout_logprobs).clamp(max=50.0)
    return torch.where(mask > 0, gap.exp().clamp(max=cap), 0.0).detach()
