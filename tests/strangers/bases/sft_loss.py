"""Right losses of supervised warm-up."""

import torch
import torch.nn.functional as F

ROLE = "sft_loss"
BASES = {"shifted": {"algorithm": "sft"}, "by_hand": {"algorithm": "sft"}}


def shifted(logits, labels):
    """Mean cross-entropy of the next token over the labels that are not -100; shifts inside."""
    z = logits[:, :-1, :].contiguous()
    y = labels[:, 1:].contiguous()
    return F.cross_entropy(z.view(-1, z.size(-1)), y.view(-1), ignore_index=-100)


def by_hand(logits, labels):
    """Mean negative log-likelihood of the next token over the labels that are not -100; shifts inside."""
    logp = torch.log_softmax(logits[:, :-1].float(), dim=-1)
    y = labels[:, 1:]
    keep = y != -100
    picked = logp.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return -(picked * keep).sum() / keep.sum()
