"""GRPO pieces of the adder run: log-probs, advantages, mask and loss."""

import torch


def token_logprobs(logits, input_ids):
    """Log-probability of each sampled token.

    Args:
        logits: [batch, completion, vocab], row t predicts token t.
        input_ids: [batch, completion] sampled tokens.

    Returns:
        [batch, completion] log-probs.
    """
    chosen = logits.gather(-1, input_ids.unsqueeze(-1)).squeeze(-1)
    rows = [torch.logsumexp(row, dim=-1) for row in logits]  # row by row: the full log-softmax doesn't fit
    return torch.stack(rows) - chosen


def group_advantages(rewards, group_size, eps=1.0):
    """Rewards of a prompt's samples relative to their group.

    Args:
        rewards: [prompts * group_size], samples of a prompt adjacent.
        group_size: samples a prompt.

    Returns:
        [prompts * group_size] advantages: (reward - group mean) / group std.
    """
    grouped = rewards.view(-1, group_size)
    centered = grouped - grouped.mean(dim=1, keepdim=True)
    return (centered / (grouped.std(dim=1, keepdim=True) + eps)).flatten()


def completion_mask(completion_ids, eos_token_id):
    """1.0 on the tokens of a completion up to and including its first EOS, 0.0 behind it."""
    ended = (completion_ids == eos_token_id).cumsum(dim=1)
    return (ended == 0).float()


def grpo_loss(logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps=0.2, beta=0.04):
    """Clipped GRPO surrogate with a k3 penalty, averaged over the completion tokens of the batch.

    Args:
        logprobs, old_logprobs, ref_logprobs: [batch, completion].
        advantages: [batch].
        mask: [batch, completion], 1.0 on completion tokens.

    Returns:
        Scalar loss.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    adv = advantages.unsqueeze(1)
    unclipped = -adv * ratio
    clipped = -adv * ratio.clamp(1 - clip_eps, 1 + clip_eps)
    delta = ref_logprobs - logprobs
    kl = torch.exp(delta) - delta - 1
    per_token = torch.min(unclipped, clipped) + beta * kl
    return (per_token * mask).sum() / mask.sum().clamp(min=1.0)
