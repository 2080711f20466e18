"""Scores of tokens that are no listed bug: other distributions, smoothed, floored or scaled. None may be called a bug."""

import torch
import torch.nn.functional as F


def floored(logits, labels):
    return F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).clamp(min=-3.0)


def top_k_renormalised(logits, labels):
    kth = logits.topk(5, dim=-1).values[..., -1:]
    kept = logits.masked_fill(logits < kth, -1e4)
    return F.log_softmax(kept, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def label_smoothed(logits, labels):
    logp = F.log_softmax(logits, -1)
    return 0.9 * logp.gather(-1, labels.unsqueeze(-1)).squeeze(-1) + 0.1 * logp.mean(-1)


def softcapped(logits, labels):
    capped = 5.0 * torch.tanh(logits / 5.0)
    return capped.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - capped.logsumexp(-1)


def without_one_token(logits, labels):
    allowed = logits.clone()
    allowed[..., 0] = -1e9
    return F.log_softmax(allowed, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def mixture_with_uniform(logits, labels):
    p = F.softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return torch.log(0.99 * p + 0.01 / logits.shape[-1])


def running_sum(logits, labels):
    """Log-prob of the prefix up to each token."""
    return F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1).cumsum(1)


def in_bits(logits, labels):
    return F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1) / 0.6931471805599453


def averaged_with_next(logits, labels):
    logp = F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return (logp + logp.roll(-1, 1)) / 2


def bounded_logits(logits, labels):
    z = logits.clamp(-2.5, 2.5)
    return z.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - z.logsumexp(-1)


def sparsemax_like(logits, labels):
    p = F.relu(logits - logits.mean(-1, keepdim=True)) + 1e-3
    return torch.log(p / p.sum(-1, keepdim=True)).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def per_length(logits, labels):
    logp = F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return logp / labels.shape[1]
