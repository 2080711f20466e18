"""Right changes to rewards before advantages are taken."""

import torch

ROLE = "reward_shaping"
BASES = {"kl_in_reward": {"beta": 0.05}, "soft_overlong": {}}


def kl_in_reward(scores, logprobs, ref_logprobs, response_mask, kl_coef=0.05):
    """Token rewards [B, T]: minus kl_coef times the log-ratio at every response token, score [B] at the last of them."""
    kl = (logprobs - ref_logprobs) * response_mask
    rewards = -kl_coef * kl
    last = response_mask.long().sum(dim=1) - 1
    rewards[torch.arange(scores.size(0)), last] += scores
    return rewards


def soft_overlong(rewards, completion_lengths, max_completion_length=16, buffer=4):
    """DAPO's soft punishment: from `buffer` tokens before the limit the reward falls linearly, by 1 at the limit."""
    start = max_completion_length - buffer
    over = (completion_lengths - start).clamp(min=0) / buffer
    return rewards - over.clamp(max=1.0)
