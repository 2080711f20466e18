"""Entropies averaged over a batch, and entropies whose gradient matters: right ones, then wrong ones."""

# ruff: noqa: B905, E501  written as users write

from __future__ import annotations

import torch

T1 = "temperature 1 (division, if any, lies with the caller)"
RIGHT = {
    "token_mean": "entropy in nats, temperature 1 (division, if any, lies with the caller), mean over the tokens of the batch",
    "row_means": "entropy in nats, temperature 1 (division, if any, lies with the caller), mean over the tokens of each sequence",
    "sequence_mean": "entropy in nats, temperature 1 (division, if any, lies with the caller), mean over tokens, then over sequences",
    "with_mode": "entropy in nats, temperature 1 (division, if any, lies with the caller), mean over the tokens of the batch",
    "sampled": "-log p of the sampled token, an estimate of the entropy, logits divided by the temperature, sum over tokens, mean over sequences, temperature=0.7",
    "stable_with_detached_peak": "entropy in nats, temperature 1 (division, if any, lies with the caller)",
}
EXPECTED = {
    "placeholder_summed": "ENT-PADDING",
    "placeholder_in_the_mean": "ENT-PADDING",
    "weights_detached": "ENT-GRADIENT",
    "logs_detached": "ENT-GRADIENT",
    "promised_and_switched_off": "ENT-GRADIENT",
    "mean_over_padding": "LOSS-MASK-MISSING",
    "row_means_over_padding": "LOSS-MASK-MISSING",
    "sum_over_all": "LOSS-MASK-NUMERATOR",
    "row_sums_over_all": "LOSS-MASK-NUMERATOR",
    "padding_only": "LOSS-MASK-INVERTED",
    "padding_only_by_fill": "LOSS-MASK-INVERTED",
    "one_early": "LOSS-MASK-SHIFT",
    "rolled": "LOSS-MASK-SHIFT",
    "negative_mean": "ENT-SIGN",
}


def _entropy(logits):
    logp = torch.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1)


def token_mean(logits, mask):
    return (_entropy(logits) * mask).sum() / mask.sum()


def row_means(logits, attention_mask):
    return (_entropy(logits) * attention_mask).sum(1) / attention_mask.sum(1)


def sequence_mean(logits, response_mask):
    rows = [h[m.bool()].mean() for h, m in zip(_entropy(logits), response_mask)]
    return sum(rows) / len(rows)


def with_mode(logits, response_mask, loss_agg_mode="token-mean"):
    h = torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)
    if loss_agg_mode == "token-mean":
        return (h * response_mask).sum() / response_mask.sum()
    return (h * response_mask).sum(-1).mean()


def sampled(logits, responses, sequence_lengths, temperature):
    """-log p of each response, averaged over the batch."""
    logp = torch.log_softmax(logits / temperature, dim=-1).gather(-1, responses[..., None])[..., 0]
    real = torch.arange(responses.size(1)) < sequence_lengths[:, None]
    return -torch.where(real, logp, torch.zeros_like(logp)).sum(1).mean()


def stable_with_detached_peak(logits):
    """Entropy with gradient."""
    z = logits - logits.max(-1, keepdim=True).values.detach()
    p = z.softmax(-1)
    return z.logsumexp(-1) - (p * z).sum(-1)


def placeholder_summed(logits, responses, sequence_lengths, temperature):
    logp = torch.log_softmax(logits / temperature, dim=-1).gather(-1, responses[..., None])[..., 0]
    padding = torch.arange(responses.size(1)) >= sequence_lengths[:, None]
    logp = logp.masked_fill(padding, 1.0)
    return -logp.sum(1).mean()


def placeholder_in_the_mean(logits, response_mask):
    h = torch.where(response_mask.bool(), _entropy(logits), torch.full_like(response_mask, -2.0))
    return h.sum() / response_mask.sum()


def weights_detached(logits):
    logp = torch.log_softmax(logits, dim=-1)
    return -(logp.detach().exp() * logp).sum(-1)


def logs_detached(logits, mask):
    p = logits.softmax(-1)
    h = -(p * p.log().detach()).sum(-1) - (p.detach() * logits).sum(-1) + (p.detach() * logits).sum(-1).detach()
    return h * mask


def mean_over_padding(logits, mask):
    return _entropy(logits).mean()


def row_means_over_padding(logits, mask):
    return _entropy(logits).mean(1)


def sum_over_all(logits, mask):
    return _entropy(logits).sum() / mask.sum()


def row_sums_over_all(logits, mask):
    return (_entropy(logits).sum(-1) / mask.sum(-1)).mean()


def padding_only(logits, mask):
    return _entropy(logits)[mask == 0].mean()


def padding_only_by_fill(logits, mask):
    return _entropy(logits).masked_fill(mask.bool(), 0.0).sum() / (1 - mask).sum()


def one_early(logits, mask):
    return (_entropy(logits)[:, :-1] * mask[:, 1:]).sum() / mask[:, 1:].sum()


def rolled(logits, mask):
    m = mask.roll(1, dims=1)
    return (_entropy(logits) * m).sum() / m.sum()


def negative_mean(logits, mask):
    return -(_entropy(logits) * mask).sum() / mask.sum()


@torch.inference_mode()
def promised_and_switched_off(logits):
    """Entropy of each position; the gradient flows back into the policy."""
    return torch.distributions.Categorical(logits=logits).entropy()
