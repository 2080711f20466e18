"""Right value losses, each in another idiom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F


def masked_mean(x, mask):
    return (x * mask).sum() / mask.sum().clamp(min=1)


def predicted_first(vpreds, returns, values, response_mask, cliprange_value):
    vpredclipped = torch.max(torch.min(vpreds, values + cliprange_value), values - cliprange_value)
    vf_losses1 = (vpreds - returns) ** 2
    vf_losses2 = (vpredclipped - returns) ** 2
    vf_loss = 0.5 * masked_mean(torch.max(vf_losses1, vf_losses2), response_mask)
    vf_clipfrac = masked_mean(torch.gt(vf_losses2, vf_losses1).float(), response_mask)
    return vf_loss, vf_clipfrac


class ValueLoss(torch.nn.Module):
    def __init__(self, clip_eps: float = 0.2, token_level: bool = False):
        super().__init__()
        self.clip_eps = clip_eps
        self.token_level = token_level

    def forward(self, values, old_values, returns, action_mask=None):
        if self.clip_eps is not None:
            clipped = old_values + (values - old_values).clamp(-self.clip_eps, self.clip_eps)
            loss = torch.max((clipped - returns) ** 2, (values - returns) ** 2)
        else:
            loss = (values - returns) ** 2
        if self.token_level:
            return 0.5 * masked_mean(loss, action_mask)
        return 0.5 * ((loss * action_mask).sum(-1) / action_mask.sum(-1)).mean()


def cleanrl(newvalue, b_values, b_returns, clip_coef, clip_vloss: bool = True):
    newvalue = newvalue.view(-1)
    b_values, b_returns = b_values.view(-1), b_returns.view(-1)
    v_loss_unclipped = (newvalue - b_returns) ** 2
    v_clipped = b_values + torch.clamp(newvalue - b_values, -clip_coef, clip_coef)
    v_loss_clipped = (v_clipped - b_returns) ** 2
    v_loss_max = torch.max(v_loss_unclipped, v_loss_clipped)
    return 0.5 * v_loss_max.mean()


def unclipped(values_pred, returns):
    return F.mse_loss(returns, values_pred)


def without_half(value, old_value, target_value, value_eps_clip, loss_mask):
    near = old_value + (value - old_value).clamp(-value_eps_clip, value_eps_clip)
    worst = torch.maximum((value - target_value).square(), (near - target_value).square())
    return worst[loss_mask.bool()].mean()


def huber(values, target_values, mask, delta=1.0):
    each = F.huber_loss(values, target_values, delta=delta, reduction="none")
    return (each * mask).sum() / mask.sum()


def slice_of_sequence(values, old_values, returns, response_mask, prompt_length, cliprange_value=0.2):
    """values: [B, prompt_length + T], one for each token of the sequence; the rest [B, T]."""
    T = returns.shape[1]
    v = values[:, prompt_length - 1 : prompt_length - 1 + T]
    near = torch.clamp(v, old_values - cliprange_value, old_values + cliprange_value)
    each = torch.max((v - returns).pow(2), (near - returns).pow(2))
    return 0.5 * (each * response_mask).sum() / response_mask.sum()


@dataclass
class Args:
    vf_coef: float = 0.1
    cliprange_value: float = 0.25


def of_batch(batch, args: Args):
    m = batch["response_mask"]
    v, old, ret = batch["vpreds"], batch["old_values"], batch["returns"]
    inside = v.clamp(min=old - args.cliprange_value, max=old + args.cliprange_value)
    worst = torch.stack([(v - ret) ** 2, (inside - ret) ** 2]).amax(0)
    return args.vf_coef * 0.5 * masked_mean(worst, m)


class Output(NamedTuple):
    loss: torch.Tensor
    clipfrac: torch.Tensor


def loops(values, old_values, returns, masks, clip_range_vf) -> Output:
    total, count, clipped = values.new_zeros(()), 0, 0
    for v, o, r, m in zip(values, old_values, returns, masks):
        for t in range(len(v)):
            if not m[t]:
                continue
            a = (v[t] - r[t]) ** 2
            near = o[t] + torch.clamp(v[t] - o[t], -clip_range_vf, clip_range_vf)
            b = (near - r[t]) ** 2
            total = total + torch.max(a, b)
            clipped += int(b > a)
            count += 1
    return Output(loss=total / count / 2, clipfrac=torch.tensor(clipped / count))


def advantages_given(values, old_values, advantages, mask):
    target = (advantages + old_values).detach()
    return 0.5 * masked_mean((values - target) ** 2, mask)


def unreduced(values, old_values, returns, clip_value):
    near = old_values + (values - old_values).clamp(-clip_value, clip_value)
    return torch.max((values - returns) ** 2, (near - returns) ** 2)


def in_bfloat16(values, returns, mask):
    v, r = values.bfloat16(), returns.bfloat16()
    d = v - r
    return 0.5 * (d * d * mask.bfloat16()).sum() / mask.bfloat16().sum()


def einsum_form(values, returns, mask):
    d = (values - returns) * mask
    return torch.einsum("bt,bt->", d, d) / (2 * mask.sum())


def sums(values, returns, mask):
    return 0.5 * (((values - returns) ** 2) * mask).sum()


def packed(values: list[torch.Tensor], old_values: list[torch.Tensor], returns: list[torch.Tensor], clip_value: float):
    """One 1-D tensor per response."""
    v, o, r = (torch.cat(x) for x in (values, old_values, returns))
    near = torch.minimum(torch.maximum(v, o - clip_value), o + clip_value)
    return 0.5 * torch.maximum((v - r) ** 2, (near - r) ** 2).mean()


def target_of_the_batch(values, rollout):
    """values [B, T] are those being trained; rollout has raw advantages, values and mask, all [B, T]."""
    target = rollout["advantages"] + rollout["values"]
    return 0.5 * ((values - target).square() * rollout["mask"]).sum() / rollout["mask"].sum()
