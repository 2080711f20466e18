"""Right policy losses as plain functions."""

import torch
import torch.nn.functional as F


def masked_mean(values, mask, dim=None):
    return (values * mask).sum(dim) / mask.sum(dim)


def ppo_clip(log_probs, old_log_probs, advantages, mask, clip_eps=0.2):
    ratio = torch.exp(log_probs - old_log_probs)
    surr1 = ratio * advantages
    surr2 = torch.clamp(ratio, 1.0 - clip_eps, 1.0 + clip_eps) * advantages
    return masked_mean(-torch.min(surr1, surr2), mask)


def ppo_clip_column(logprobs, old_logprobs, advantages, completion_mask, epsilon=0.2):
    """advantages: [B], one a sequence."""
    adv = advantages.unsqueeze(-1)
    ratio = (logprobs - old_logprobs).exp()
    loss = torch.maximum(-ratio * adv, -ratio.clamp(1 - epsilon, 1 + epsilon) * adv)
    return (loss * completion_mask).sum() / completion_mask.sum().clamp(min=1)


def grpo_k3(per_token_logps, old_per_token_logps, ref_per_token_logps, advantages, completion_mask, beta=0.04, epsilon=0.2):
    diff = ref_per_token_logps - per_token_logps
    per_token_kl = torch.exp(diff) - diff - 1
    coef = torch.exp(per_token_logps - old_per_token_logps)
    clipped = torch.clamp(coef, 1 - epsilon, 1 + epsilon)
    per_token_loss = -torch.min(coef * advantages.unsqueeze(1), clipped * advantages.unsqueeze(1))
    per_token_loss = per_token_loss + beta * per_token_kl
    return ((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()


def grpo_k2(logps, old_logps, ref_logps, advantages, mask, beta=0.01, eps_clip=0.2):
    rho = torch.exp(logps - old_logps)
    pg = -torch.minimum(rho * advantages[:, None], rho.clip(1 - eps_clip, 1 + eps_clip) * advantages[:, None])
    kl = 0.5 * (logps - ref_logps) ** 2
    lengths = mask.sum(-1) + 1e-8
    return (((pg + beta * kl) * mask).sum(-1) / lengths).mean()


def grpo_k1(logps, old_logps, ref_logps, advantages, mask, beta=0.01, eps_clip=0.2):
    rho = torch.exp(logps - old_logps)
    pg = -torch.minimum(rho * advantages[:, None], rho.clip(1 - eps_clip, 1 + eps_clip) * advantages[:, None])
    kl = logps - ref_logps
    return ((pg + beta * kl) * mask).sum() / mask.sum()


def grpo_kl_separate_means(logps, old_logps, ref_logps, advantages, mask, kl_coef=0.001):
    ratio = (logps - old_logps).exp()
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    log_r = ref_logps - logps
    kl = log_r.exp() - 1 - log_r
    n = mask.sum()
    return (policy * mask).sum() / n + kl_coef * (kl * mask).sum() / n


def grpo_unbiased_kl(logps, old_logps, ref_logps, advantages, mask, beta=0.04):
    ratio = (logps - old_logps).exp()
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    log_r = ref_logps - logps
    kl = ratio * (log_r.exp() - 1 - log_r)
    return ((policy + beta * kl) * mask).sum() / mask.sum()


def grpo_low_var_kl(logps, old_logps, ref_logps, advantages, mask, beta=0.04):
    ratio = (logps - old_logps).exp()
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    log_r = torch.clamp(ref_logps - logps, min=-20, max=20)
    kl = torch.clamp(log_r.exp() - 1 - log_r, min=-10, max=10)
    return ((policy + beta * kl) * mask).sum() / mask.sum()


def grpo_straight_through_kl(logps, old_logps, ref_logps, advantages, mask, beta=0.04):
    ratio = (logps - old_logps).exp()
    policy = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    log_r = ref_logps - logps
    k3 = log_r.exp() - 1 - log_r
    k2 = 0.5 * log_r.square()
    kl = k2 - k2.detach() + k3.detach()
    return ((policy + beta * kl) * mask).sum() / mask.sum()


def dapo(log_probs, old_log_probs, advantages, response_mask, clip_ratio_low=0.2, clip_ratio_high=0.28):
    ratio = torch.exp(log_probs - old_log_probs)
    losses1 = -advantages * ratio
    losses2 = -advantages * torch.clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)
    losses = torch.max(losses1, losses2)
    return torch.sum(losses * response_mask) / (torch.sum(response_mask) + 1e-8)


def verl_style(old_log_prob, log_prob, advantages, response_mask, cliprange=None, cliprange_low=None, cliprange_high=None,
               clip_ratio_c=3.0, loss_agg_mode="token-mean"):
    negative_approx_kl = torch.clamp(log_prob - old_log_prob, min=-20.0, max=20.0)
    ratio = torch.exp(negative_approx_kl)
    ppo_kl = masked_mean(-negative_approx_kl, response_mask)
    if cliprange_low is None:
        cliprange_low = cliprange
    if cliprange_high is None:
        cliprange_high = cliprange
    losses1 = -advantages * ratio
    losses2 = -advantages * torch.clamp(ratio, 1 - cliprange_low, 1 + cliprange_high)
    clipped1 = torch.maximum(losses1, losses2)
    clipfrac = masked_mean(torch.gt(losses2, losses1).float(), response_mask)
    losses3 = -advantages * clip_ratio_c
    clipped2 = torch.min(losses3, clipped1)
    losses = torch.where(advantages < 0, clipped2, clipped1)
    if loss_agg_mode == "token-mean":
        loss = masked_mean(losses, response_mask)
    elif loss_agg_mode == "seq-mean-token-sum":
        loss = torch.mean(torch.sum(losses * response_mask, dim=-1))
    elif loss_agg_mode == "seq-mean-token-mean":
        loss = torch.mean(torch.sum(losses * response_mask, dim=-1) / torch.sum(response_mask, dim=-1))
    else:
        raise ValueError(loss_agg_mode)
    return loss, clipfrac, ppo_kl


def trl_delta(per_token_logps, old_per_token_logps, advantages, completion_mask, epsilon_low=0.2, epsilon_high=0.2, delta=4.0):
    coef_1 = torch.exp(per_token_logps - old_per_token_logps)
    coef_2 = torch.clamp(coef_1, 1 - epsilon_low, 1 + epsilon_high)
    if delta is not None:
        coef_1 = torch.clamp(coef_1, max=delta)
    loss1 = coef_1 * advantages.unsqueeze(1)
    loss2 = coef_2 * advantages.unsqueeze(1)
    per_token_loss = -torch.min(loss1, loss2)
    return (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1.0)


def gspo(log_probs, old_log_probs, advantages, mask, clip_low=3e-4, clip_high=4e-4):
    log_ratio = ((log_probs - old_log_probs) * mask).sum(-1) / mask.sum(-1)
    s = torch.exp(log_ratio)
    loss = -torch.min(s * advantages, torch.clamp(s, 1 - clip_low, 1 + clip_high) * advantages)
    return loss.mean()


def gspo_token(log_prob, old_log_prob, advantages, response_mask, clip_ratio_low=3e-4, clip_ratio_high=4e-4):
    """Sequence-level ratio whose gradient goes through each token's own log-prob."""
    negative_approx_kl = log_prob - old_log_prob
    seq_lengths = torch.sum(response_mask, dim=-1).clamp(min=1)
    kl_seq = torch.sum(negative_approx_kl * response_mask, dim=-1) / seq_lengths
    log_ratio = log_prob - log_prob.detach() + kl_seq.detach().unsqueeze(-1)
    ratio = torch.exp(torch.clamp(log_ratio, max=10.0))
    losses = torch.maximum(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high))
    seq = torch.sum(losses * response_mask, dim=-1) / (torch.sum(response_mask, dim=-1) + 1e-8)
    return seq.mean(), {"ratio": ratio.mean().item()}


def cispo_two_sided(log_prob, old_log_prob, advantages, response_mask, clip_low=0.2, clip_high=0.28):
    ratio = (log_prob - old_log_prob).exp()
    weight = torch.clamp(ratio, 1 - clip_low, 1 + clip_high).detach()
    return -(weight * advantages * log_prob * response_mask).sum() / response_mask.sum()


def cispo_upper(log_prob, old_log_prob, advantages, response_mask, clip_high=0.28):
    with torch.no_grad():
        weight = (log_prob - old_log_prob).exp().clamp(max=1 + clip_high)
    return -(weight * advantages * log_prob * response_mask).sum() / response_mask.sum()


def cispo_absolute(per_token_logps, old_per_token_logps, advantages, completion_mask, epsilon_high=5.0):
    coef = torch.exp(per_token_logps - old_per_token_logps)
    clamped = torch.clamp(coef, max=epsilon_high).detach()
    loss = -clamped * advantages.unsqueeze(1) * per_token_logps
    return (loss * completion_mask).sum() / completion_mask.sum()


def reinforce(logprobs, advantages, mask):
    return -(logprobs * advantages.unsqueeze(1) * mask).sum() / mask.sum()


def reinforce_sequence(logprobs, advantages, mask):
    seq_logp = (logprobs * mask).sum(dim=1)
    return -(seq_logp * advantages).mean()


def rloo_sequence_ratio(logps, old_logps, advantages, completion_mask, epsilon=0.2):
    logps = (logps * completion_mask).sum(1)
    old = (old_logps * completion_mask).sum(1)
    coef = torch.exp(logps - old)
    return -torch.min(coef * advantages, coef.clamp(1 - epsilon, 1 + epsilon) * advantages).mean()


def on_policy(per_token_logps, advantages, completion_mask):
    per_token_loss = -torch.exp(per_token_logps - per_token_logps.detach()) * advantages.unsqueeze(1)
    return ((per_token_loss * completion_mask).sum(dim=1) / completion_mask.sum(dim=1)).mean()


def on_policy_fallback(per_token_logps, advantages, completion_mask, old_per_token_logps=None, epsilon=0.2):
    old = per_token_logps.detach() if old_per_token_logps is None else old_per_token_logps
    ratio = torch.exp(per_token_logps - old)
    loss = -torch.min(ratio * advantages[:, None], ratio.clamp(1 - epsilon, 1 + epsilon) * advantages[:, None])
    return (loss * completion_mask).sum() / completion_mask.sum()


def masked_select_mean(logprobs, old_logprobs, advantages, loss_mask, clip_range=0.2):
    ratio = torch.exp(logprobs - old_logprobs)
    loss = -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip_range, 1 + clip_range))
    return torch.masked_select(loss, loss_mask.bool()).mean()


def boolean_index(logprobs, old_logprobs, advantages, loss_mask, clip_range=0.2):
    keep = loss_mask > 0
    ratio = torch.exp(logprobs[keep] - old_logprobs[keep])
    adv = advantages[:, None].expand_as(logprobs)[keep]
    return -torch.min(adv * ratio, adv * ratio.clamp(1 - clip_range, 1 + clip_range)).mean()


def masked_where(logprobs, old_logprobs, advantages, mask, clip_range=0.2):
    mask = mask.bool()
    log_ratio = torch.where(mask, logprobs - old_logprobs, torch.zeros_like(logprobs))
    ratio = log_ratio.exp()
    loss = -torch.min(advantages * ratio, advantages * ratio.clamp(1 - clip_range, 1 + clip_range))
    loss = torch.where(mask, loss, 0.0)
    return loss.sum() / mask.sum()


def filled(logprobs, old_logprobs, advantages, mask, clip_range=0.2):
    """mask: bool, True where a token is trained."""
    delta = (logprobs - old_logprobs).masked_fill(~mask, 0.0)
    ratio = delta.exp()
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip_range, 1 + clip_range))
    return loss.masked_fill(~mask, 0.0).sum() / mask.sum().clamp(min=1)


def per_token_matrix(logprobs, old_logprobs, advantages, mask, clip_range=0.2):
    ratio = torch.exp(logprobs - old_logprobs)
    return -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip_range, 1 + clip_range)) * mask


def unreduced(logprobs, old_logprobs, advantages, clip_range=0.2):
    ratio = torch.exp(logprobs - old_logprobs)
    return -torch.min(advantages * ratio, advantages * torch.clamp(ratio, 1 - clip_range, 1 + clip_range))


def per_sequence_losses(logprobs, old_logprobs, advantages, mask, clip_range=0.2):
    ratio = torch.exp(logprobs - old_logprobs)
    adv = advantages.unsqueeze(1)
    loss = -torch.min(adv * ratio, adv * torch.clamp(ratio, 1 - clip_range, 1 + clip_range))
    return (loss * mask).sum(1) / mask.sum(1)


def over_items_in_batch(per_token_logps, old_per_token_logps, advantages, completion_mask, num_items_in_batch, epsilon=0.2):
    coef = torch.exp(per_token_logps - old_per_token_logps)
    loss = -torch.min(coef * advantages.unsqueeze(1), coef.clamp(1 - epsilon, 1 + epsilon) * advantages.unsqueeze(1))
    return (loss * completion_mask).sum() / num_items_in_batch


def dr_grpo_constant(per_token_logps, old_per_token_logps, advantages, completion_mask, max_completion_length=512, epsilon=0.2):
    coef = torch.exp(per_token_logps - old_per_token_logps)
    loss = -torch.min(coef * advantages.unsqueeze(1), coef.clamp(1 - epsilon, 1 + epsilon) * advantages.unsqueeze(1))
    return (loss * completion_mask).sum() / (loss.size(0) * max_completion_length)


def summed(log_probs, old_log_probs, advantages, loss_mask, eps=0.2):
    r = (log_probs - old_log_probs).exp()
    return -(torch.min(r * advantages, r.clamp(1 - eps, 1 + eps) * advantages) * loss_mask).sum()


def slime_style(ppo_kl, advantages, eps_clip, eps_clip_high, eps_clip_c=None):
    ratio = (-ppo_kl).exp()
    pg1 = -ratio * advantages
    pg2 = -ratio.clamp(1 - eps_clip, 1 + eps_clip_high) * advantages
    clip1 = torch.maximum(pg1, pg2)
    clipfrac = torch.gt(pg2, pg1).float()
    if eps_clip_c is not None:
        clip2 = torch.min(-eps_clip_c * advantages, clip1)
        return torch.where(advantages < 0, clip2, clip1), clipfrac
    return clip1, clipfrac


def from_ratio(ratio, advantages, mask, clip_eps=0.2):
    bounded = ratio.clamp(1 - clip_eps, 1 + clip_eps)
    return -(torch.min(ratio * advantages, bounded * advantages) * mask).sum() / mask.sum()


def from_log_ratio(log_ratio, advantages, mask, clip_eps=0.2):
    ratio = log_ratio.exp()
    bounded = ratio.clamp(1 - clip_eps, 1 + clip_eps)
    return -(torch.min(ratio * advantages, bounded * advantages) * mask).sum() / mask.sum()


def with_entropy(log_probs, old_log_probs, advantages, entropy, mask, clip_eps=0.2, entropy_coef=0.01):
    ratio = (log_probs - old_log_probs).exp()
    pg = -torch.min(ratio * advantages, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantages)
    return masked_mean(pg, mask) - entropy_coef * masked_mean(entropy, mask)


def dual_clip(logp, old_logp, adv, mask, clip_eps=0.2, dual_clip=3.0):
    r = torch.exp(logp - old_logp)
    base = torch.min(r * adv, torch.clamp(r, 1 - clip_eps, 1 + clip_eps) * adv)
    bounded = torch.where(adv < 0, torch.max(base, dual_clip * adv), base)
    return -(bounded * mask).sum() / mask.sum()


def gmpo(logps, old_logps, advantages, mask, eps=0.4):
    """Token ratios clipped in log space, pessimistic side chosen by the advantage's sign."""
    d = logps - old_logps
    sign = torch.where(advantages > 0, 1.0, -1.0).unsqueeze(1)
    chosen = sign * torch.min(sign * d, sign * d.clamp(-eps, eps))
    geometric = ((chosen * mask).sum(1) / mask.sum(1)).exp()
    return -(geometric * advantages).mean()


def double_precision(log_probs, old_log_probs, advantages, mask, clip_eps=0.2):
    log_probs, old_log_probs = log_probs.double(), old_log_probs.double()
    ratio = (log_probs - old_log_probs).exp()
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - clip_eps, 1 + clip_eps) * advantages)
    return ((loss * mask).sum() / mask.sum()).float()


def looped(logprobs, old_logprobs, advantages, completion_mask, clip_eps=0.2):
    total = logprobs.new_zeros(())
    for logp, old, adv, m in zip(logprobs, old_logprobs, advantages, completion_mask):
        ratio = torch.exp(logp - old)
        obj = torch.min(ratio * adv, ratio.clamp(1 - clip_eps, 1 + clip_eps) * adv)
        total = total - (obj * m).sum() / m.sum()
    return total / len(logprobs)


def relu_form(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """min(rA, clip(r)A) written as rA minus what exceeds the bound on the side that the advantage pushes to."""
    ratio = (logprobs - old_logprobs).exp()
    over = F.relu(ratio - (1 + clip_eps)) * (advantages > 0)
    under = F.relu((1 - clip_eps) - ratio) * (advantages < 0)
    objective = (ratio - over + under) * advantages
    return -(objective * mask).sum() / mask.sum()


def where_form(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    ratio = (logprobs - old_logprobs).exp()
    bound = torch.where(advantages >= 0, 1 + clip_eps, 1 - clip_eps)
    pessimistic = torch.where(advantages >= 0, torch.minimum(ratio, bound), torch.maximum(ratio, bound))
    return -(pessimistic * advantages * mask).sum() / mask.sum()


def weighted_reinforce(logprobs, old_logprobs, advantages, mask):
    weight = (logprobs - old_logprobs).exp().detach()
    return -(weight * advantages * logprobs * mask).sum() / mask.sum()


def importance_sampling(logprobs, old_logprobs, advantages, mask):
    return -((logprobs - old_logprobs).exp() * advantages * mask).sum()
