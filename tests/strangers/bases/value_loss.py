"""Right critic losses."""

import torch

ROLE = "value_loss"
BASES = {
    "clipped": {"algorithm": "ppo", "clip_value": 0.2, "aggregation": "token-mean"},
    "plain": {"algorithm": "ppo", "aggregation": "token-mean"},
}


def clipped(values, old_values, returns, mask, cliprange_value=0.2):
    """Half the larger of the squared errors of the values and of the clipped values, mean over response tokens."""
    bounded = old_values + torch.clamp(values - old_values, -cliprange_value, cliprange_value)
    squared = (values - returns) ** 2
    squared_bounded = (bounded - returns) ** 2
    loss = torch.max(squared, squared_bounded)
    return 0.5 * (loss * mask).sum() / mask.sum()


def plain(values, returns, mask):
    """Half the squared error of the values, mean over response tokens."""
    return 0.5 * ((values - returns).pow(2) * mask).sum() / mask.sum()
