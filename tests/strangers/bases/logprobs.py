"""Right log-probs of chosen tokens."""

import torch
import torch.nn.functional as F

ROLE = "logprobs"
BASES = {
    "gathered": {"temperature": 0.7},
    "by_logsumexp": {"temperature": 1.3},
    "cross_entropy_of": {"temperature": 1.0},
    "in_chunks": {"temperature": 0.9},
    "row_by_row": {"temperature": 0.8},
}


def gathered(logits, input_ids, temperature=1.0):
    """Log-probs [B, T-1] of input_ids [B, T] under softmax(logits / temperature); position t is predicted at t-1."""
    scaled = logits[:, :-1] / temperature
    logp = torch.log_softmax(scaled, dim=-1)
    return torch.gather(logp, dim=-1, index=input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def by_logsumexp(logits, input_ids, temperature):
    """Log-probs [B, T-1] of the next tokens at the sampling temperature, without a full log-softmax."""
    shifted = logits[:, :-1, :].float() / temperature
    labels = input_ids[:, 1:]
    chosen = shifted.gather(2, labels[..., None])[..., 0]
    return chosen - torch.logsumexp(shifted, dim=-1)


def cross_entropy_of(logits, labels):
    """Per-token log-probs [B, T]; logits [B, T, V] at position t belong to labels [B, T] at position t."""
    flat = F.cross_entropy(logits.reshape(-1, logits.size(-1)), labels.reshape(-1), reduction="none")
    return -flat.view(labels.shape)


def in_chunks(logits, input_ids, temperature=1.0, chunk_size=2):
    """Next-token log-probs [B, T-1], rows handled `chunk_size` at a time to save memory."""
    parts = []
    for start in range(0, logits.shape[0], chunk_size):
        z = logits[start : start + chunk_size, :-1] / temperature
        ids = input_ids[start : start + chunk_size, 1:]
        lse = z.logsumexp(-1)
        parts.append(z.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - lse)
    return torch.cat(parts, dim=0)


def row_by_row(logits, input_ids, temperature):
    """Next-token log-probs [B, T-1] at the sampling temperature."""
    rows = []
    for z, ids in zip(logits, input_ids):
        logp = F.log_softmax(z[:-1] / temperature, dim=-1)
        rows.append(logp[torch.arange(ids.numel() - 1), ids[1:]])
    return torch.stack(rows)
