"""Right estimates of KL(policy || reference) in the idioms of many projects."""

from dataclasses import dataclass

import torch


def k3(log_probs, ref_log_probs):
    log_ratio = ref_log_probs - log_probs
    return torch.exp(log_ratio) - log_ratio - 1


def k3_expm1(logprobs, ref_logprobs):
    d = ref_logprobs - logprobs
    return torch.expm1(d) - d


def k3_by_ratio(policy_logps, ref_logps):
    r = torch.exp(ref_logps) / torch.exp(policy_logps)
    return (r - 1) - torch.log(r)


def k1(log_probs, log_probs_base):
    return log_probs - log_probs_base


def k1_masked(log_probs, ref_log_probs, action_mask):
    return (log_probs - ref_log_probs) * action_mask


def k2(log_probs, log_probs_base):
    log_ratio = log_probs - log_probs_base
    return log_ratio**2 / 2.0


def absolute(logprob, ref_logprob):
    return (logprob - ref_logprob).abs()


def squared(logprob, ref_logprob):
    return (logprob - ref_logprob).square()


def low_variance(logprob, ref_logprob):
    kl = torch.clamp(ref_logprob - logprob, min=-20.0, max=20.0)
    return torch.clamp(torch.exp(kl) - kl - 1, min=-10.0, max=10.0)


def approx_kl(log_probs, log_probs_base, kl_estimator="k3"):
    log_ratio = log_probs.float() - log_probs_base.float()
    if kl_estimator == "k1":
        kl = log_ratio
    elif kl_estimator == "k2":
        kl = log_ratio**2 / 2.0
    elif kl_estimator == "k3":
        kl = (-log_ratio).exp() - 1 + log_ratio
    else:
        raise ValueError(kl_estimator)
    return kl.clamp(min=-10, max=10)


def kl_penalty(logprob, ref_logprob, kl_penalty):
    if kl_penalty in ("kl", "k1"):
        return logprob - ref_logprob
    if kl_penalty == "abs":
        return (logprob - ref_logprob).abs()
    if kl_penalty in ("mse", "k2"):
        return 0.5 * (logprob - ref_logprob).square()
    if kl_penalty in ("low_var_kl", "k3"):
        diff = ref_logprob - logprob
        return diff.exp() - diff - 1
    raise NotImplementedError(kl_penalty)


def straight_through(logprobs, ref_logprobs):
    d = ref_logprobs - logprobs
    value = d.exp() - d - 1
    surrogate = d.square() / 2
    return surrogate + (value - surrogate).detach()


def token_mean(per_token_logps, ref_per_token_logps, completion_mask):
    d = ref_per_token_logps - per_token_logps
    per_token_kl = d.exp() - d - 1
    return (per_token_kl * completion_mask).sum() / completion_mask.sum()


def sequence_mean(per_token_logps, ref_per_token_logps, completion_mask):
    d = ref_per_token_logps - per_token_logps
    per_token_kl = (d.exp() - d - 1) * completion_mask
    return (per_token_kl.sum(-1) / completion_mask.sum(-1)).mean()


def per_sequence(logprobs, ref_logprobs, mask):
    return ((logprobs - ref_logprobs) * mask).sum(-1)


def weighted_by_ratio(logprobs, ref_logprobs, old_logprobs):
    ratio = torch.exp(logprobs - old_logprobs)
    d = ref_logprobs - logprobs
    return ratio * (d.exp() - d - 1)


def weighted_by_given_ratio(log_probs, log_probs_base, importance_ratio):
    d = log_probs_base - log_probs
    return importance_ratio * (d.exp() - d - 1)


def filler_safe(logprobs, ref_logprobs, mask):
    """mask: bool; what stands behind it is filler of any size."""
    d = torch.where(mask, ref_logprobs - logprobs, torch.zeros_like(logprobs))
    return d.exp() - d - 1


def weighted(logprobs, ref_logprobs, mask, kl_coef=0.05):
    d = ref_logprobs - logprobs
    return kl_coef * ((d.exp() - d - 1) * mask).sum() / mask.sum()


@dataclass
class KLEstimator:
    kl_estimator: str = "k2"
    apply_clamp: bool = False

    def __call__(self, log_probs, log_probs_base):
        d = log_probs - log_probs_base
        if self.kl_estimator == "k1":
            out = d
        elif self.kl_estimator == "k2":
            out = d.square() / 2
        elif self.kl_estimator == "k3":
            out = (-d).exp() - 1 + d
        else:
            raise ValueError(self.kl_estimator)
        return out.clamp(-10, 10) if self.apply_clamp else out


def of_batch(batch):
    d = batch["ref_logps"] - batch["logps"]
    return d.exp() - d - 1


def loops(logprobs, ref_logprobs):
    rows = []
    for logp, ref in zip(logprobs, ref_logprobs):
        rows.append(torch.stack([torch.exp(b - a) - (b - a) - 1 for a, b in zip(logp, ref)]))
    return torch.stack(rows)


def logged_only(logprobs, ref_logprobs, mask):
    with torch.no_grad():
        d = ref_logprobs - logprobs
        return (d.exp() - d - 1) * mask


def strange(logprobs, ref_logprobs):
    """Jeffreys-like score of each token."""
    d = ref_logprobs - logprobs
    return torch.tanh(d) * d


def full_kl(logits, ref_logits):
    log_p, log_q = torch.log_softmax(logits, -1), torch.log_softmax(ref_logits, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def full_kl_mean(logits, ref_logits, mask):
    log_p, log_q = torch.log_softmax(logits, -1), torch.log_softmax(ref_logits, -1)
    kl = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="none").sum(-1)
    return (kl * mask).sum() / mask.sum()


def full_kl_tempered(policy_logits, reference_logits, temperature):
    p = torch.distributions.Categorical(logits=policy_logits / temperature)
    q = torch.distributions.Categorical(logits=reference_logits / temperature)
    return torch.distributions.kl_divergence(p, q)


def jensen_shannon(logits, ref_logits):
    p, q = logits.softmax(-1), ref_logits.softmax(-1)
    m = (p + q) / 2
    return ((p * (p / m).log()).sum(-1) + (q * (q / m).log()).sum(-1)) / 2


def loss_term(log_probs, ref_log_probs):
    """KL term of the loss, back-propagated. [B, T]"""
    delta = ref_log_probs - log_probs
    return delta.exp() - delta - 1


def infinite_filler(policy_logprobs, reference_logprobs, response_mask):
    """Token mean of k3 over the response; positions without a token hold -inf in both inputs."""
    real = response_mask > 0
    gap = reference_logprobs[real] - policy_logprobs[real]
    return (gap.exp() - 1 - gap).mean()


def kept_graph(log_probs, ref_log_probs):
    """k2; gradients flow to log_probs."""
    return 0.5 * (log_probs - ref_log_probs).square()
