"""Right corrections for a sampler that isn't the trained policy."""

import torch

ROLE = "importance_weights"
BASES = {"truncated": {}, "sequence_level": {}}


def truncated(old_log_prob, rollout_log_prob, response_mask, cap=2.0):
    """Truncated importance weights [B, T]: min(pi_old / pi_rollout, cap) on response tokens, 0 elsewhere."""
    log_ratio = old_log_prob - rollout_log_prob
    weights = torch.exp(log_ratio).clamp(max=cap)
    return (weights * response_mask).detach()


def sequence_level(old_log_prob, rollout_log_prob, response_mask, cap=2.0):
    """One truncated weight a sequence, from the summed log-ratio of its response tokens, spread over them [B, T]."""
    log_ratio = ((old_log_prob - rollout_log_prob) * response_mask).sum(dim=-1, keepdim=True)
    weights = torch.exp(log_ratio).clamp(max=cap)
    return (weights * response_mask).detach()
