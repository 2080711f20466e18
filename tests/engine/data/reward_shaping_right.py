"""Right reward shaping, each in another idiom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch


def compute_reward(r, kl_coef, kl, action_mask=None, reward_clip_range=None):
    if reward_clip_range:
        r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])
    kl_reward = -kl_coef * kl
    eos_indices = action_mask.size(1) - 1 - action_mask.long().fliplr().argmax(dim=1, keepdim=True)
    last_reward = torch.zeros_like(kl).scatter_(dim=1, index=eos_indices, src=r.unsqueeze(1).to(kl.dtype))
    return last_reward + kl_reward


def compute_rewards(token_level_scores, old_log_prob, ref_log_prob, kl_ratio):
    kl = old_log_prob - ref_log_prob
    return token_level_scores - kl * kl_ratio


def get_rewards_ppo(scores, logprobs, ref_logprobs, kl_coeff, valid_score_idxs=None):
    kl = logprobs - ref_logprobs
    kl_reward = -kl_coeff * kl
    total_reward = kl_reward.clone()
    if valid_score_idxs is not None:
        total_reward[torch.arange(scores.shape[0]), valid_score_idxs] += scores
    else:
        total_reward[:, -1] += scores
    return total_reward, kl, kl_reward


class Controller:
    def __init__(self, init_kl_coef=0.2):
        self.value = init_kl_coef


class Trainer:
    """Token rewards [B, T]."""

    def __init__(self, beta=0.1, kl_estimator="k3"):
        self.kl_ctl = Controller(beta)
        self.kl_estimator = kl_estimator

    def shape(self, scores, logprobs, ref_logprobs, response_mask, kl_coef):
        d = ref_logprobs - logprobs
        kl = (d.exp() - d - 1) * response_mask
        out = -kl_coef * kl
        for i in range(scores.shape[0]):
            last = response_mask[i].nonzero()[-1, 0]
            out[i, last] = out[i, last] + scores[i]
        return out


def per_sequence(rewards, per_token_logps, ref_per_token_logps, completion_mask, beta):
    kl = ((per_token_logps - ref_per_token_logps) * completion_mask).sum(-1)
    return rewards - beta * kl


def apply_kl_penalty(batch, kl_coef):
    """Stores token_rewards; returns the mean KL."""
    mask = batch.tensors["response_mask"]
    kl = (batch.tensors["old_log_probs"] - batch.tensors["ref_log_probs"]) * mask
    batch.tensors["token_rewards"] = batch.tensors["token_level_scores"] - kl_coef * kl
    return (kl.sum() / mask.sum()).item()


def overlong(lengths, max_response_length, overlong_buffer_len, penalty_factor=1.0):
    exceed = lengths - (max_response_length - overlong_buffer_len)
    return -(exceed / overlong_buffer_len).clamp(0, 1) * penalty_factor


def with_overlong(rewards, response_mask, max_len, cache_len):
    n = response_mask.sum(-1)
    start = max_len - cache_len
    soft = (start - n) / cache_len
    extra = torch.where(n <= start, torch.zeros_like(soft), torch.where(n <= max_len, soft, -torch.ones_like(soft)))
    return rewards + extra


def one_length(length: int, max_length: int, buffer: int, factor: float) -> float:
    """Penalty of one response."""
    if length <= max_length - buffer:
        return 0.0
    return -factor * min(length - (max_length - buffer), buffer) / buffer


def get_soft_overlong_punishment(max_completion_len: int, soft_punish_cache: int):
    def soft_overlong_punishment_reward(completion_ids: list[list[int]], **kwargs) -> list[float]:
        out = []
        for ids in completion_ids:
            n = len(ids)
            if n <= max_completion_len - soft_punish_cache:
                out.append(0.0)
            elif n <= max_completion_len:
                out.append((max_completion_len - soft_punish_cache - n) / soft_punish_cache)
            else:
                out.append(-1.0)
        return out

    return soft_overlong_punishment_reward


class OverlongManager:
    """As verl's DAPO manager: scores come with the batch."""

    def __init__(self, max_resp_len=20, overlong_buffer_len=8, penalty_factor=1.0):
        self.max_resp_len = max_resp_len
        self.overlong_buffer_len = overlong_buffer_len
        self.penalty_factor = penalty_factor

    def __call__(self, batch):
        mask = batch["response_mask"]
        lengths = mask.sum(-1).long()
        rewards = batch["token_level_scores"].clone()
        for i, n in enumerate(lengths.tolist()):
            exceed = n - (self.max_resp_len - self.overlong_buffer_len)
            rewards[i, n - 1] += min(-exceed / self.overlong_buffer_len * self.penalty_factor, 0)
        return {"reward_tensor": rewards, "lengths": lengths}


@dataclass
class Rollout:
    rewards: torch.Tensor
    logprobs: torch.Tensor
    ref_logprobs: torch.Tensor
    mask: torch.Tensor


def of_rollout(rollout: Rollout, beta: float) -> torch.Tensor:
    """-beta * KL on every response token, plus the score on the last one."""
    kl = torch.where(rollout.mask > 0, rollout.logprobs - rollout.ref_logprobs, torch.zeros(()))
    columns = torch.arange(kl.shape[1])
    last = torch.where(rollout.mask > 0, columns, -1).amax(-1)
    bonus = (columns[None] == last[:, None]) * rollout.rewards[:, None]
    return bonus - beta * kl


def clipped_scores(scores, logprobs, ref_logprobs, attention_mask, kl_coef, score_clip=5.0):
    s = scores.clamp(-score_clip, score_clip)
    kl = (logprobs - ref_logprobs) * attention_mask
    end = attention_mask.sum(1).long() - 1
    return (-kl_coef * kl).index_put((torch.arange(len(s)), end), s, accumulate=True)


def whitened(scores, logprobs, ref_logprobs, padding_mask, kl_coef):
    keep = ~padding_mask.bool()
    r = -kl_coef * (logprobs - ref_logprobs)
    last = keep.long().sum(1) - 1
    r[torch.arange(len(scores)), last] += scores
    r = r.masked_fill(~keep, 0)
    x = r[keep]
    r = (r - x.mean()) * torch.rsqrt(x.var() + 1e-8) + x.mean()
    return r.masked_fill(~keep, 0)


def numpy_penalty(lengths: np.ndarray, max_len: int, cache: int) -> np.ndarray:
    return -np.clip((lengths - (max_len - cache)) / cache, 0.0, 1.0)


def fixed(rewards, response_lengths):
    """Overlong penalty in the last 4 of 10 tokens."""
    MAX_LENGTH, BUFFER = 10, 4
    over = (response_lengths - (MAX_LENGTH - BUFFER)).clamp(min=0, max=BUFFER)
    return rewards - over / BUFFER


def in_half(scores, log_probs, ref_log_probs, mask, beta):
    kl = (log_probs.bfloat16() - ref_log_probs.bfloat16()) * mask.bfloat16()
    out = -beta * kl
    last = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    out[torch.arange(len(scores)), last] += scores.bfloat16()
    return out


def list_rewards(rewards: list[float], lengths: list[int], max_length: int, buffer_length: int, penalty_factor: float):
    """One reward each, the penalty in it."""
    out = []
    for r, n in zip(rewards, lengths):
        x = (n - max_length + buffer_length) / buffer_length
        out.append(r - penalty_factor * max(0.0, min(1.0, x)))
    return out


def loop_term(texts, n=2, scale=0.5):
    """Charges loops: 0 for varied text, at worst -scale; added to the score."""
    out = []
    for text in texts:
        grams = list(zip(*(text.split()[i:] for i in range(n)), strict=False))
        share = 1 - len(set(grams)) / max(1, len(grams))
        out.append(-scale * share)
    return out


def repeated_words(completions):
    """Penalty for duplicate words, a share that the caller subtracts."""
    words = [c.lower().split() for c in completions]
    return torch.tensor([1 - len(set(w)) / max(1, len(w)) for w in words])
