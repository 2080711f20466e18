"""Right averages of token losses."""

import torch

ROLE = "aggregate"
BASES = {
    "token_mean": {"aggregation": "token-mean"},
    "sequence_mean": {"aggregation": "sequence-mean"},
    "constant": {"aggregation": "constant", "max_completion_length": 16},
}


def token_mean(loss_mat, loss_mask):
    """Mean of the token losses [B, T] over all tokens that the mask keeps."""
    return torch.sum(loss_mat * loss_mask) / torch.sum(loss_mask)


def sequence_mean(loss_mat, loss_mask):
    """Mean over the kept tokens of each row, then over the rows."""
    per_row = torch.sum(loss_mat * loss_mask, dim=-1) / torch.sum(loss_mask, dim=-1)
    return torch.mean(per_row)


def constant(loss_mat, loss_mask, max_completion_length=16):
    """Dr. GRPO: sum over the kept tokens, divided by the rows times a constant length."""
    return (loss_mat * loss_mask).sum() / (loss_mat.size(0) * max_completion_length)
