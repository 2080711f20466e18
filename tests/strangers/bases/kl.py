"""Right per-token KL estimates."""

import torch

ROLE = "kl"
BASES = {
    "k3": {"kl_estimator": "k3"},
    "k3_mean": {"kl_estimator": "k3", "aggregation": "token-mean", "beta": 0.04},
    "k1": {"kl_estimator": "k1"},
    "k2": {"kl_estimator": "k2"},
}


def k3(logprobs, ref_logprobs):
    """Schulman's k3 estimate of KL(policy || reference) at every token, [B, T]."""
    delta = ref_logprobs - logprobs
    return torch.exp(delta) - delta - 1


def k3_mean(per_token_logps, ref_per_token_logps, completion_mask, beta=0.04):
    """The KL term of the loss: beta times the k3 estimate averaged over all completion tokens of the batch."""
    delta = ref_per_token_logps - per_token_logps
    kl = torch.exp(delta) - delta - 1
    return beta * (kl * completion_mask).sum() / completion_mask.sum()


def k1(logprobs, ref_logprobs):
    """The k1 estimate of KL(policy || reference) at every token, [B, T]."""
    return logprobs - ref_logprobs


def k2(logprobs, ref_logprobs):
    """The k2 estimate of KL(policy || reference) at every token, [B, T]: half the squared log-ratio."""
    return 0.5 * (logprobs - ref_logprobs).pow(2)
