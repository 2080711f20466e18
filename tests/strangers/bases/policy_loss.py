"""Right policy losses."""

import torch

ROLE = "policy_loss"
TOKEN = {"aggregation": "token-mean", "clip_low": 0.2, "clip_high": 0.2, "algorithm": "ppo"}
BASES = {
    "clipped": TOKEN,
    "grpo_with_kl": {
        "algorithm": "grpo", "aggregation": "sequence-mean", "clip_low": 0.2, "clip_high": 0.2, "beta": 0.04,
        "kl_estimator": "k3",
    },
    "clip_higher": {"algorithm": "dapo", "aggregation": "token-mean", "clip_low": 0.2, "clip_high": 0.28},
    "gspo": {"algorithm": "gspo", "aggregation": "sequence-mean", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"algorithm": "cispo", "aggregation": "token-mean", "clip_high": 0.28},
    "reinforce": {"algorithm": "reinforce", "aggregation": "token-mean"},
}  # fmt: skip


def clipped(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """PPO's clipped surrogate, averaged over the response tokens of the batch. advantages [B, T]."""
    ratio = torch.exp(logprobs - old_logprobs)
    unclipped = ratio * advantages
    bounded = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps) * advantages
    losses = -torch.min(unclipped, bounded)
    return (losses * mask).sum() / mask.sum()


def grpo_with_kl(per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask, epsilon=0.2,
                 beta=0.04):  # fmt: skip
    """GRPO loss: clipped surrogate plus beta times k3, mean over tokens, then over sequences. advantages [B]."""
    coef = torch.exp(per_token_logps - old_per_token_logps)
    adv = advantages.unsqueeze(1)
    surrogate = torch.min(coef * adv, torch.clamp(coef, 1 - epsilon, 1 + epsilon) * adv)
    delta = ref_per_token_logps - per_token_logps
    kl = torch.exp(delta) - delta - 1
    loss = -(surrogate - beta * kl)
    return ((loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()


def clip_higher(log_prob, old_log_prob, advantages, response_mask, clip_ratio_low=0.2, clip_ratio_high=0.28):
    """DAPO: decoupled clip distances, mean over all response tokens. advantages [B, T]."""
    ratio = (log_prob - old_log_prob).exp()
    first = -advantages * ratio
    second = -advantages * ratio.clamp(1 - clip_ratio_low, 1 + clip_ratio_high)
    return (torch.maximum(first, second) * response_mask).sum() / response_mask.sum()


def gspo(logprobs, old_logprobs, advantages, mask, clip_low=3e-4, clip_high=4e-4):
    """GSPO: one length-normalised ratio a sequence, mean over sequences. advantages [B]."""
    lengths = mask.sum(dim=1)
    log_ratio = ((logprobs - old_logprobs) * mask).sum(dim=1) / lengths
    ratio = torch.exp(log_ratio)
    bounded = torch.clamp(ratio, 1 - clip_low, 1 + clip_high)
    return -torch.min(ratio * advantages, bounded * advantages).mean()


def cispo(logprobs, old_logprobs, advantages, mask, clip_high=0.28):
    """CISPO: a capped, constant importance weight times the log-prob, mean over response tokens. advantages [B, T]."""
    weight = torch.clamp(torch.exp(logprobs - old_logprobs), max=1 + clip_high).detach()
    return -(weight * advantages * logprobs * mask).sum() / mask.sum()


def reinforce(logprobs, advantages, mask):
    """REINFORCE loss, mean over response tokens. advantages [B, T]."""
    return -(logprobs * advantages * mask).sum() / mask.sum()
