"""Right entropies of the next-token distribution."""

import torch

ROLE = "entropy"
BASES = {"from_log_softmax": {"temperature": 0.7}, "from_logsumexp": {"temperature": 1.0}, "categorical": {}}


def from_log_softmax(logits, temperature=1.0):
    """Entropy [B, T] in nats of softmax(logits / temperature)."""
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return -(logp.exp() * logp).sum(dim=-1)


def from_logsumexp(logits):
    """Entropy [B, T] in nats."""
    p = torch.softmax(logits, dim=-1)
    return torch.logsumexp(logits, dim=-1) - (p * logits).sum(dim=-1)


def categorical(logits):
    """Entropy [B, T] in nats of the softmax of the logits."""
    z = logits - logits.max(dim=-1, keepdim=True).values
    weights = z.exp()
    total = weights.sum(dim=-1)
    return total.log() - (weights * z).sum(dim=-1) / total
