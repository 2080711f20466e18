"""Entropies with one or two real faults each; the test says which."""

import torch
import torch.nn.functional as F


def without_the_minus(logits):
    logp = F.log_softmax(logits, dim=-1)
    return (logp.exp() * logp).sum(-1)


def mean_logit_minus_lse(logits, chunk_size=2):
    out = []
    for piece in logits.split(chunk_size, dim=1):
        out.append((piece.softmax(-1) * piece).sum(-1) - piece.logsumexp(-1))
    return torch.cat(out, dim=1)


def raw_logits(logits):
    return -(F.softmax(logits, -1) * logits).sum(-1)


def raw_logits_einsum(logits, temperature):
    z = logits / temperature
    return -torch.einsum("btv,btv->bt", z.softmax(-1), z)


def over_time(logits):
    logp = F.log_softmax(logits, dim=1)
    return -(logp.exp() * logp).sum(-1)


def over_time_entr(logits):
    return torch.special.entr(torch.softmax(logits, dim=-2)).sum(-1)


def nan_on_banned(logits):
    """Entropy in nats; banned tokens have a logit of -inf."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def nan_on_masked(logits):
    """Entropy of the policy over the tokens that the grammar allows: those masked out have logit -inf."""
    p = logits.softmax(-1)
    return torch.logsumexp(logits, -1) - (p * logits).sum(-1)


def temperature_ignored(logits, temperature):
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def temperature_ignored_chunked(logits, temperature, chunk_size=2):
    return torch.cat([torch.special.entr(x.softmax(-1)).sum(-1) for x in logits.split(chunk_size, 1)], 1)


def temperature_after(logits, temperature):
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1) / temperature


def temperature_after_lse(logits, temperature):
    return (logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)) / temperature


def temperature_times(logits, temperature):
    logp = (logits * temperature).log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def temperature_times_entr(logits, temperature):
    return torch.special.entr((temperature * logits).softmax(-1)).sum(-1)


def temperature_twice(logits, temperature):
    logits = logits / temperature
    return torch.special.entr((logits / temperature).softmax(-1)).sum(-1)


def temperature_twice_squared(logits, temperature):
    logp = (logits / temperature**2).log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def sign_and_temperature(logits, temperature):
    logp = logits.log_softmax(-1)
    return (logp.exp() * logp).sum(-1)


def axis_and_inverse(logits, temperature):
    logp = (logits * temperature).log_softmax(1)
    return -(logp.exp() * logp).sum(-1)


def raw_and_ignored(logits, temperature):
    return -(logits.softmax(-1) * logits).sum(-1)
