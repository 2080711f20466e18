"""Right policy losses that live in classes or take records."""

from dataclasses import dataclass, field

import torch
from torch import nn


class PolicyLoss(nn.Module):
    """PPO policy loss with an upper bound of its own."""

    def __init__(self, clip_eps_low=0.2, clip_eps_high=0.28, token_level_loss=True):
        super().__init__()
        self.clip_eps_low = clip_eps_low
        self.clip_eps_high = clip_eps_high
        self.token_level_loss = token_level_loss

    def forward(self, log_probs, old_log_probs, advantages, action_mask=None):
        log_ratio = (log_probs - old_log_probs).clamp(-20.0, 20.0)
        ratio = log_ratio.exp()
        surr1 = ratio * advantages
        surr2 = ratio.clamp(1 - self.clip_eps_low, 1 + self.clip_eps_high) * advantages
        loss = -torch.min(surr1, surr2)
        if self.token_level_loss:
            total = (loss * action_mask).sum() / action_mask.sum()
        else:
            total = ((loss * action_mask).sum(-1) / action_mask.sum(-1)).mean()
        clip_ratio = ((surr2 < surr1).float() * action_mask).sum() / action_mask.sum()
        return total, clip_ratio.detach(), (-log_ratio.detach() * action_mask).sum() / action_mask.sum()


@dataclass
class Rollout:
    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    response_mask: torch.Tensor


def loss_of_rollout(rollout: Rollout, clip_eps: float = 0.2):
    ratio = torch.exp(rollout.log_probs - rollout.old_log_probs)
    adv = rollout.advantages
    loss = -torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv)
    return (loss * rollout.response_mask).sum() / rollout.response_mask.sum()


def loss_of_dict(batch, clip_eps=0.2):
    ratio = torch.exp(batch["log_probs"] - batch["old_log_probs"])
    adv = batch["advantages"].unsqueeze(-1)
    mask = batch["response_mask"]
    loss = -torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv)
    return {"loss": (loss * mask).sum() / mask.sum(), "ratio": ratio.mean().detach()}


def loss_of_namespace(logprobs, batch, cfg):
    ratio = torch.exp(logprobs - batch.old_logprobs)
    adv, mask = batch.advantages, batch.loss_mask
    loss = -torch.min(ratio * adv, ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high) * adv)
    return (loss * mask).sum() / mask.sum()


@dataclass
class Args:
    epsilon: float = 0.2
    epsilon_high: float = 0.28
    beta: float = 0.04
    loss_type: str = "grpo"
    max_completion_length: int = 256


@dataclass
class Trainer:
    args: Args = field(default_factory=Args)

    def compute_loss(self, per_token_logps, inputs):
        """Group-relative policy loss; inputs holds old_per_token_logps, ref_per_token_logps, advantages [B], completion_mask."""
        mask = inputs["completion_mask"]
        advantages = inputs["advantages"].unsqueeze(1)
        old = inputs.get("old_per_token_logps")
        if old is None:
            old = per_token_logps.detach()
        ratio = torch.exp(per_token_logps - old)
        clipped = torch.clamp(ratio, 1 - self.args.epsilon, 1 + self.args.epsilon_high)
        loss = -torch.min(ratio * advantages, clipped * advantages)
        if self.args.beta != 0.0:
            diff = inputs["ref_per_token_logps"] - per_token_logps
            loss = loss + self.args.beta * (torch.exp(diff) - diff - 1)
        if self.args.loss_type == "grpo":
            return ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
        if self.args.loss_type == "bnpo":
            return (loss * mask).sum() / mask.sum().clamp(min=1.0)
        if self.args.loss_type == "dr_grpo":
            return (loss * mask).sum() / (loss.size(0) * self.args.max_completion_length)
        raise ValueError(self.args.loss_type)


@dataclass
class Bnpo(Trainer):
    args: Args = field(default_factory=lambda: Args(loss_type="bnpo"))

    def loss(self, per_token_logps, inputs):
        return self.compute_loss(per_token_logps, inputs)


class Algorithm:
    """Keeps its settings as plain attributes."""

    def __init__(self, eps_clip=0.2, beta=0.0):
        self.eps_clip = eps_clip
        self.beta = beta

    def actor_loss(self, logprobs, old_logprobs, ref_logprobs, advantages, mask):
        ratio = torch.exp(logprobs - old_logprobs)
        loss = -torch.min(ratio * advantages, ratio.clamp(1 - self.eps_clip, 1 + self.eps_clip) * advantages)
        if self.beta > 0:
            diff = ref_logprobs - logprobs
            loss = loss + self.beta * (diff.exp() - diff - 1)
        return (loss * mask).sum() / mask.sum()

    @staticmethod
    def reinforce(logprobs, advantages, mask):
        return -(logprobs * advantages * mask).sum() / mask.sum()


class Config:
    clip_ratio = 0.2
    clip_ratio_low = 0.2
    clip_ratio_high = 0.28
    clip_ratio_c = 3.0
    loss_agg_mode = "token-mean"


def agg_loss(loss_mat, loss_mask, loss_agg_mode):
    if loss_agg_mode == "token-mean":
        return (loss_mat * loss_mask).sum() / loss_mask.sum()
    if loss_agg_mode == "seq-mean-token-sum":
        return (loss_mat * loss_mask).sum(-1).mean()
    if loss_agg_mode == "seq-mean-token-mean":
        return ((loss_mat * loss_mask).sum(-1) / loss_mask.sum(-1)).mean()
    if loss_agg_mode == "seq-mean-token-sum-norm":
        return (loss_mat * loss_mask).sum(-1).sum() / (loss_mask.shape[0] * loss_mask.shape[-1])
    raise ValueError(f"Invalid loss_agg_mode: {loss_agg_mode}")


def switchable(old_log_prob, log_prob, advantages, response_mask, loss_agg_mode="token-mean", config: Config = None):
    ratio = torch.exp(torch.clamp(log_prob - old_log_prob, -20.0, 20.0))
    losses = torch.maximum(
        -advantages * ratio, -advantages * torch.clamp(ratio, 1 - config.clip_ratio_low, 1 + config.clip_ratio_high)
    )
    losses = torch.where(advantages < 0, torch.min(-advantages * config.clip_ratio_c, losses), losses)
    return agg_loss(losses, response_mask, loss_agg_mode), {"actor/ratio": ratio.mean().item()}
