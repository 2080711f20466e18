"""Entropies that are right, each in the style of another project. None may be called a bug."""

import torch
import torch.nn.functional as F


def p_times_logp(logits):
    logp = F.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1)


def lse_minus_mean_logit(logits: torch.Tensor) -> torch.Tensor:
    pd = F.softmax(logits, dim=-1)
    return torch.logsumexp(logits, dim=-1) - torch.sum(pd * logits, dim=-1)


def in_chunks(logits, chunk_size=2):
    flat = logits.reshape(-1, logits.shape[-1])
    parts = []
    for piece in flat.split(chunk_size, dim=0):
        logp = F.log_softmax(piece, -1)
        parts.append(-(logp.exp() * logp).sum(-1))
    return torch.cat(parts).reshape(logits.shape[:-1])


def categorical(logits):
    return torch.distributions.Categorical(logits=logits).entropy()


def at_temperature(logits, temperature):
    logp = (logits / temperature).log_softmax(-1)
    return -(logp.exp() * logp).sum(dim=-1)


def masked(logits, attention_mask):
    logp = logits.float().log_softmax(-1)
    return -(logp.exp() * logp).sum(-1) * attention_mask


def with_entr(logits):
    return torch.special.entr(logits.softmax(-1)).sum(-1)


def in_bits(logits):
    p = logits.softmax(-1)
    return -(p * p.log2()).sum(-1)


def cross_entropy_with_itself(logits):
    p = logits.softmax(-1)
    return F.cross_entropy(logits.flatten(0, 1), p.flatten(0, 1), reduction="none").view(logits.shape[:2])


def row_by_row(logits):
    rows = []
    for row in logits:
        lp = row.log_softmax(-1)
        rows.append(-torch.einsum("tv,tv->t", lp.exp(), lp))
    return torch.stack(rows)


def kl_to_uniform(logits):
    """log V minus the divergence from the uniform distribution."""
    logp = logits.log_softmax(-1)
    size = torch.tensor(float(logits.shape[-1]))
    return size.log() - (logp.exp() * (logp + size.log())).sum(-1)


def in_double(logits):
    z = logits.double()
    p = z.softmax(-1)
    return z.logsumexp(-1) - (p * z).sum(-1)


def banned_tokens_count_nothing(logits):
    """Entropy in nats; banned tokens have a logit of -inf."""
    logp = logits.log_softmax(-1)
    return -torch.where(logp > -torch.inf, logp.exp() * logp, 0.0).sum(-1)
