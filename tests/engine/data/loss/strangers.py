"""Policy losses that are right, or at least nobody's bug, and that no reference of ours describes."""

import torch


def sapo(log_prob, old_log_prob, advantages, response_mask, tau_pos=1.0, tau_neg=1.05):
    ratio = (log_prob - old_log_prob).exp()
    tau = torch.where(advantages > 0, tau_pos, tau_neg)
    gate = torch.sigmoid(tau * (ratio - 1)) * 4 / tau
    loss = -gate * advantages
    return ((loss * response_mask).sum(-1) / response_mask.sum(-1)).mean()


def sapo_per_token(log_prob, old_log_prob, advantages):
    ratio = (log_prob - old_log_prob).exp()
    tau = torch.where(advantages > 0, 1.0, 1.05)
    return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages


def sapo_per_sequence(log_prob, old_log_prob, advantages, response_mask):
    ratio = (log_prob - old_log_prob).exp()
    gate = 4 * torch.sigmoid(ratio - 1) * advantages.unsqueeze(-1)
    return -(gate * response_mask).sum(-1) / response_mask.sum(-1)


def vespo(logps, old_logps, advantages, mask, k_pos=2.0, lambda_pos=3.0, k_neg=3.0, lambda_neg=2.0):
    """Sequence weights w^k exp(lambda (1 - w)), constant under differentiation, on REINFORCE."""
    log_w = ((logps - old_logps) * mask).sum(-1, keepdim=True).clamp(-20, 20)
    w = log_w.exp()
    positive = advantages.unsqueeze(1) >= 0
    phi = torch.where(positive, k_pos * log_w + lambda_pos * (1 - w), k_neg * log_w + lambda_neg * (1 - w)).exp().detach()
    return (-phi * advantages.unsqueeze(1) * logps * mask).sum() / mask.sum()


def kl_cov(log_prob, old_log_prob, advantages, response_mask, k_ratio=0.1, ppo_kl_coef=1.0):
    """KL to the old policy on the tokens whose advantage and log-prob go together most."""
    diff = log_prob - old_log_prob
    base = -advantages * diff.exp()
    penalised = base + ppo_kl_coef * diff.abs()
    keep = response_mask > 0
    centred = (advantages[keep] - advantages[keep].mean()) * (log_prob[keep] - log_prob[keep].mean())
    top = torch.topk(centred.detach(), max(1, int(k_ratio * centred.numel()))).indices
    losses = base[keep].clone()
    losses[top] = penalised[keep][top]
    return losses.mean()


def clip_cov(log_prob, old_log_prob, advantages, response_mask, clip_ratio=0.2):
    """Drops a few random tokens of high covariance besides clipping."""
    ratio = (log_prob - old_log_prob).exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_ratio, 1 + clip_ratio))
    cov = ((advantages - advantages.mean()) * (log_prob - log_prob.mean())).detach()
    candidates = (cov > cov.median()) & (response_mask > 0)
    index = candidates.nonzero()
    chosen = index[torch.randperm(len(index))[: max(1, len(index) // 4)]]
    keep = torch.ones_like(response_mask)
    keep[chosen[:, 0], chosen[:, 1]] = 0
    return (loss * keep * response_mask).sum() / response_mask.sum()


def random_token_drop(logprobs, old_logprobs, advantages, mask, keep_rate=0.5):
    ratio = torch.exp(logprobs - old_logprobs)
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    kept = mask * (torch.rand_like(mask) < keep_rate)
    return (loss * kept).sum() / kept.sum().clamp(min=1)


def gpg_scaled(log_prob, advantages, response_mask, alpha=1.37):
    return -alpha * (log_prob * advantages * response_mask).sum() / response_mask.sum()


def dro(log_prob, old_log_prob, advantages, response_mask, beta_dro=0.3):
    """Quadratic penalty on the log-ratio."""
    log_ratio = log_prob - old_log_prob
    loss = -(log_prob * advantages - 0.5 * beta_dro * log_ratio**2)
    return (loss * response_mask).sum() / response_mask.sum()


def tanh_gate(log_prob, old_log_prob, advantages, response_mask):
    """Smooth bound that is tighter on the way up than on the way down."""
    x = (log_prob - old_log_prob).exp() - 1
    bounded = torch.where(x > 0, 0.3 * torch.tanh(x / 0.3), 0.7 * torch.tanh(x / 0.7))
    return -((1 + bounded) * advantages * response_mask).sum() / response_mask.sum()


def normalises_inside(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """Whitens the advantages over the trained tokens first."""
    n = mask.sum()
    mean = (advantages * mask).sum() / n
    var = ((advantages - mean) ** 2 * mask).sum() / n
    adv = (advantages - mean) * torch.rsqrt(var + 1e-8)
    ratio = torch.exp(logprobs - old_logprobs)
    return -(torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv) * mask).sum() / n


def mini_batch_normalised(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """advantages: [B]"""
    adv = ((advantages - advantages.mean()) / (advantages.std() + 1e-8)).unsqueeze(1)
    ratio = torch.exp(logprobs - old_logprobs)
    return -(torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv) * mask).sum() / mask.sum()


def shifted_baseline(logprobs, old_logprobs, advantages, mask):
    """Subtracts the mean of the batch from what it gets."""
    adv = (advantages - advantages.mean() + 0.5).unsqueeze(1)
    gate = torch.sigmoid((logprobs - old_logprobs).exp() - 1)
    return -4 * (gate * adv * mask).sum() / mask.sum()


def dppo(log_prob, old_log_prob, advantages, response_mask, delta=0.15):
    """Masks tokens whose probability moved too far in the direction of the update."""
    p, q = log_prob.exp(), old_log_prob.exp()
    moved = (p - q).detach()
    blocked = ((advantages > 0) & (moved > delta)) | ((advantages < 0) & (moved < -delta))
    weight = (log_prob - old_log_prob).exp().clamp(max=20).detach() * (~blocked)
    return -(weight * advantages * log_prob * response_mask).sum() / response_mask.sum()


def soft_two_sided(ratio, advantages, mask):
    bounded = 1 + 0.2 * torch.tanh((ratio - 1) / 0.2)
    return -(bounded * advantages * mask).sum() / mask.sum()


def positive_only(log_probs, advantages, mask):
    weights = advantages.clamp(min=0).unsqueeze(1)
    return -(log_probs * weights * mask).sum() / mask.sum()


def advantage_weighted(log_probs, advantages, mask, temperature=1.0):
    weights = (advantages / temperature).exp().clamp(max=20.0).unsqueeze(1)
    return -(log_probs * weights * mask).sum() / mask.sum()


def entropy_selected(log_probs, old_log_probs, advantages, entropy, mask, share=0.2):
    """Trains the tokens of high entropy alone."""
    level = torch.quantile(entropy[mask > 0].detach(), 1 - share)
    chosen = mask * (entropy >= level)
    ratio = (log_probs - old_log_probs).exp()
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return (loss * chosen).sum() / chosen.sum().clamp(min=1)


def entropy_shaped(log_probs, old_log_probs, advantages, entropy, mask, alpha=0.4, kappa=2.0):
    """Adds a bounded share of the entropy to each token's advantage."""
    shaped = advantages + torch.min(alpha * entropy.detach(), advantages.abs() / kappa)
    ratio = (log_probs - old_log_probs).exp()
    loss = -torch.min(ratio * shaped, ratio.clamp(0.8, 1.2) * shaped)
    return (loss * mask).sum() / mask.sum()


def truncated_is(logprobs, old_logprobs, rollout_logprobs, advantages, mask, cap=2.0):
    """PPO against the recomputed policy, weighted by the truncated ratio to the sampler."""
    ratio = torch.exp(logprobs - old_logprobs)
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    weight = torch.exp(old_logprobs - rollout_logprobs).clamp(max=cap).detach()
    return (loss * weight * mask).sum() / mask.sum()


def kl_behind_a_switch(logps, old_logps, ref_logps, advantages, mask, kl_coef=0.001, use_kl_loss=False):
    ratio = torch.exp(logps - old_logps)
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    if use_kl_loss:
        diff = ref_logps - logps
        loss = loss + kl_coef * (diff.exp() - diff - 1)
    return (loss * mask).sum() / mask.sum()


def unmasked_mean_of_masked_advantages(logprobs, old_logprobs, advantages, mask):
    """advantages: [B, T], 0 on padding."""
    ratio = torch.exp(logprobs - old_logprobs)
    loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return loss.sum() / mask.sum()
