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


def whole_blocks_only(logits, chunk_size=4):
    out = torch.zeros(logits.shape[:2])
    for k in range(logits.shape[1] // chunk_size):
        z = logits[:, k * chunk_size : (k + 1) * chunk_size]
        out[:, k * chunk_size : (k + 1) * chunk_size] = torch.distributions.Categorical(logits=z).entropy()
    return out


def stops_before_the_rest(logits):
    out = torch.full(logits.shape[:2], 0.0)
    for start in range(0, max(logits.shape[1] - 15, 1), 16):
        logp = logits[:, start : start + 16].log_softmax(-1)
        out[:, start : start + 16] = -(logp.exp() * logp).sum(-1)
    return out


def top_k_of_the_whole(logits, top_k):
    """Entropy of the k best tokens, renormalised over them."""
    p = logits.softmax(-1).topk(top_k, dim=-1).values
    return -(p * p.log()).sum(-1)


def top_k_gathered(logits, k):
    """Entropy of the proper distribution over the k kept tokens."""
    logp = logits - logits.logsumexp(-1, keepdim=True)
    kept = logp.gather(-1, logits.argsort(-1, descending=True)[..., :k])
    return -(kept.exp() * kept).sum(-1)
