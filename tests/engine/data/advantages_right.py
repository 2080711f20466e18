"""Advantages that are right, each in the style of another project. None may be called a bug."""

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass

import torch


def view_mean_std(rewards, num_generations, eps=1e-4):
    grouped = rewards.view(-1, num_generations)
    mean = grouped.mean(dim=1).repeat_interleave(num_generations, dim=0)
    std = grouped.std(dim=1).repeat_interleave(num_generations, dim=0)
    return (rewards - mean) / (std + eps)


def keepdim_and_flatten(rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    r = rewards.reshape(-1, group_size)
    return ((r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True) + 1e-6)).flatten()


def population_std(rewards, n_samples_per_prompt):
    r = rewards.view(-1, n_samples_per_prompt)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True, unbiased=False) + 1e-8)
    return adv.view(-1)


def tiny_eps(rewards, n_samples_per_prompt):
    rewards = rewards.reshape(-1, n_samples_per_prompt)
    return ((rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-9)).reshape(-1)


def dr_grpo(rewards, num_generations):
    r = rewards.unflatten(0, (-1, num_generations))
    return (r - r.mean(1, keepdim=True)).flatten(0, 1)


def rloo_rest_mean(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    rest = (r.sum(1, keepdim=True) - r) / (num_generations - 1)
    return (r - rest).view(-1)


def rloo_factor(scores, k):
    grouped = scores.view(-1, k)
    return ((grouped - grouped.mean(1, keepdim=True)) * (k / (k - 1))).flatten()


def rloo_python(rewards: list[float], group_size: int) -> list[float]:
    out = []
    for start in range(0, len(rewards), group_size):
        block = rewards[start : start + group_size]
        for i, r in enumerate(block):
            others = block[:i] + block[i + 1 :]
            out.append(r - sum(others) / len(others))
    return out


def numpy_groups(rewards, group_size):
    import numpy as np

    r = np.asarray(rewards, dtype=np.float32).reshape(-1, group_size)
    return ((r - r.mean(axis=1, keepdims=True)) / (r.std(axis=1, keepdims=True) + 1e-6)).ravel()


def numpy_sample_std(rewards, group_size):
    import numpy as np

    r = np.asarray(rewards, dtype=np.float64).reshape(-1, group_size)
    std = r.std(axis=1, ddof=1, keepdims=True)
    return ((r - r.mean(axis=1, keepdims=True)) / (std + 1e-5)).reshape(-1)


def by_uid(token_level_rewards, response_mask, index, epsilon: float = 1e-6):
    """Outcome advantages by prompt uid, [B, T]."""
    scores = (token_level_rewards * response_mask).sum(dim=-1)
    pool = defaultdict(list)
    for i, uid in enumerate(index):
        pool[uid].append(scores[i])
    mean, std = {}, {}
    for uid, group in pool.items():
        stacked = torch.stack(group)
        mean[uid] = stacked.mean() if len(group) > 1 else torch.tensor(0.0)
        std[uid] = stacked.std() if len(group) > 1 else torch.tensor(1.0)
    out = torch.stack([(scores[i] - mean[uid]) / (std[uid] + epsilon) for i, uid in enumerate(index)])
    return out.unsqueeze(-1) * response_mask


def by_uid_without_std(rewards, uids):
    sums, counts = defaultdict(float), defaultdict(int)
    for r, uid in zip(rewards.tolist(), uids):
        sums[uid] += r
        counts[uid] += 1
    return torch.tensor([r - sums[u] / counts[u] for r, u in zip(rewards.tolist(), uids)])


def scatter_mean(rewards: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    n = int(group_ids.max()) + 1
    count = torch.zeros(n).index_add_(0, group_ids, torch.ones_like(rewards))
    mean = torch.zeros(n).index_add_(0, group_ids, rewards) / count
    centred = rewards - mean[group_ids]
    var = torch.zeros(n).index_add_(0, group_ids, centred**2) / (count - 1).clamp(min=1)
    return centred / (var.sqrt()[group_ids] + 1e-6)


def scatter_population(rewards, group_ids):
    _, inverse, counts = torch.unique(group_ids, return_inverse=True, return_counts=True)
    total = torch.zeros(counts.numel()).scatter_add(0, inverse, rewards)
    mean = (total / counts)[inverse]
    square = torch.zeros(counts.numel()).scatter_add(0, inverse, (rewards - mean).square())
    return (rewards - mean) / ((square / counts).sqrt()[inverse] + 1e-8)


def by_einsum(rewards, group_size):
    r = rewards.reshape(-1, group_size)
    mean = torch.einsum("pg->p", r) / group_size
    centred = r - mean[:, None]
    var = torch.einsum("pg,pg->p", centred, centred) / (group_size - 1)
    return (centred / (var.sqrt()[:, None] + 1e-4)).reshape(-1)


def by_membership_matrix(rewards, group_ids):
    same = (group_ids[:, None] == group_ids[None, :]).float()
    mean = same @ rewards / same.sum(1)
    return rewards - mean


def nested_lists(grouped_rewards: list[list[float]]) -> list[list[float]]:
    """One inner list a prompt."""
    result = []
    for rewards in grouped_rewards:
        mu = sum(rewards) / len(rewards)
        sd = math.sqrt(sum((r - mu) ** 2 for r in rewards) / len(rewards))
        result.append([(r - mu) / (sd + 1e-8) for r in rewards])
    return result


def statistics_module(rewards, group_size):
    out = []
    for i in range(0, len(rewards), group_size):
        block = [float(r) for r in rewards[i : i + group_size]]
        mu, sd = statistics.fmean(block), statistics.stdev(block)
        out += [(r - mu) / (sd + 1e-6) for r in block]
    return out


def one_group(rewards, eps=1e-6):
    """Advantages of the samples of one prompt."""
    rewards = torch.as_tensor(rewards, dtype=torch.float32)
    return (rewards - rewards.mean()) / (rewards.std() + eps)


def batch_std(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    centred = (r - r.mean(dim=1, keepdim=True)).flatten()
    return centred / (rewards.std() + 1e-4)


def centred_then_whitened(rewards, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)).reshape(-1)
    return (adv - adv.mean()) * torch.rsqrt(adv.var() + 1e-8)


def whiten_batch(rewards):
    """Global batch normalisation, no groups."""
    mean, var = rewards.mean(), rewards.var(unbiased=False)
    return (rewards - mean) * torch.rsqrt(var + 1e-8)


def clamped_std(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True).clamp_min(1e-6)).view(-1)


def maximum_of_std_and_eps(rewards, group_size, eps=1e-6):
    r = rewards.view(-1, group_size)
    std = torch.maximum(r.std(1, keepdim=True, correction=0), torch.full((1,), eps))
    return ((r - r.mean(1, keepdim=True)) / std).reshape(-1)


def root_of_var_plus_eps(rewards, group_size):
    r = rewards.view(-1, group_size)
    var, mean = torch.var_mean(r, dim=1, keepdim=True)
    return ((r - mean) * torch.rsqrt(var + 1e-5)).flatten()


def only_where_spread(rewards, group_size):
    r = rewards.view(-1, group_size)
    centred = r - r.mean(1, keepdim=True)
    std = r.std(1, keepdim=True)
    return torch.where(std > 0, centred / (std + 1e-6), centred).flatten()


def aware_of_nan(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    mean = torch.nanmean(r, dim=1, keepdim=True)
    scored = (~torch.isnan(r)).sum(1, keepdim=True)
    var = torch.nansum((r - mean) ** 2, dim=1, keepdim=True) / (scored - 1).clamp(min=1)
    adv = (r - mean) / (var.sqrt() + 1e-4)
    return torch.nan_to_num(adv, nan=0.0).view(-1)


def in_double(rewards, group_size):
    r = rewards.double().view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-8)).view(-1)


def on_tokens(rewards, completion_mask, group_size, eps=1e-6):
    r = rewards.view(-1, group_size)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + eps)).view(-1)
    return adv[:, None] * completion_mask


def plain_reinforce(rewards, response_mask):
    """REINFORCE without a baseline."""
    return rewards.unsqueeze(-1) * response_mask


def over_the_mean(rewards, group_size):
    r = rewards.view(-1, group_size)
    mean = r.mean(1, keepdim=True)
    return ((r - mean) / (mean + 1e-6)).flatten()


def median_baseline(rewards, group_size):
    r = rewards.view(-1, group_size)
    return (r - r.median(dim=1, keepdim=True).values).flatten()


def switched(rewards, num_generations, scale_rewards=True, eps=1e-4):
    r = rewards.view(-1, num_generations)
    adv = r - r.mean(dim=1, keepdim=True)
    if scale_rewards:
        adv = adv / (r.std(dim=1, keepdim=True) + eps)
    return adv.view(-1)


@dataclass
class GroupConfig:
    num_generations: int = 4
    advantage_eps: float = 1e-6
    normalize_std: bool = True


class Trainer:
    def __init__(self, config: GroupConfig):
        self.config = config
        self.num_generations = config.num_generations

    def compute_advantages(self, inputs: dict) -> torch.Tensor:
        rewards = inputs["rewards"]
        r = rewards.view(-1, self.num_generations)
        adv = r - r.mean(1, keepdim=True)
        return (adv / (r.std(1, keepdim=True) + 1e-6)).flatten()


def expanded(batch):
    rewards, size = batch["rewards"], batch["group_size"]
    blocks = rewards.chunk(len(rewards) // size)
    means = torch.cat([b.mean().expand(size) for b in blocks])
    stds = torch.cat([b.std().expand(size) for b in blocks])
    return (rewards - means) / (stds + 1e-8)


def two_returns(token_level_rewards, response_mask, uid):
    with torch.no_grad():
        outcome = (token_level_rewards * response_mask).sum(-1)
        adv = outcome.clone()
        for u in sorted(set(uid)):
            rows = [i for i, x in enumerate(uid) if x == u]
            adv[rows] = outcome[rows] - outcome[rows].mean()
        adv = adv.unsqueeze(1) * response_mask
    return adv, adv


def leave_one_out_std(prompt_ids, rewards, mask):
    """Baseline and spread of a sample come from the other samples of its prompt; prompt_ids [B, S] are tokens."""
    adv = torch.zeros_like(rewards)
    for prompt in torch.unique(prompt_ids, dim=0):
        rows = (prompt_ids == prompt).all(1).nonzero().flatten()
        group = rewards[rows]
        if len(group) < 3:
            adv[rows] = 0.0
            continue
        for i, row in enumerate(rows.tolist()):
            rest = torch.cat([group[:i], group[i + 1 :]])
            std = rest.std()
            adv[row] = (group[i] - rest.mean()) / (std + 1e-6) if std > 0 else group[i] - rest.mean()
    return adv.unsqueeze(-1).expand(mask.shape)


def by_prompt_text(prompts: list[str], rewards: list[float]) -> list[float]:
    seen: dict[str, list[float]] = {}
    for p, r in zip(prompts, rewards):
        seen.setdefault(p, []).append(r)
    return [r - sum(seen[p]) / len(seen[p]) for p, r in zip(prompts, rewards)]


def welford(rewards, group_size, eps=1e-8):
    out = torch.empty_like(rewards)
    for g in range(rewards.numel() // group_size):
        mean, m2 = 0.0, 0.0
        for n in range(group_size):
            x = float(rewards[g * group_size + n])
            delta = x - mean
            mean += delta / (n + 1)
            m2 += delta * (x - mean)
        std = math.sqrt(m2 / (group_size - 1))
        for n in range(group_size):
            out[g * group_size + n] = (rewards[g * group_size + n] - mean) / (std + eps)
    return out


def standardised_with_layer_norm(rewards, group_size):
    r = rewards.view(-1, group_size)
    return torch.nn.functional.layer_norm(r, (group_size,), eps=1e-6).flatten()


def columns_are_samples(rewards, group_size):
    by_sample = rewards.view(-1, group_size).T
    adv = (by_sample - by_sample.mean(0)) / (by_sample.std(0) + 1e-6)
    return adv.T.reshape(-1)


def rewards_are_zero_elsewhere(token_level_rewards, response_mask, index):
    scores = token_level_rewards.sum(-1)
    groups = defaultdict(list)
    for i, u in enumerate(index):
        groups[u].append(i)
    adv = torch.zeros_like(scores)
    for rows in groups.values():
        adv[rows] = scores[rows] - scores[rows].mean()
    return adv[:, None] * response_mask


def whitened_over_tokens(rewards, response_mask, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)).flatten()[:, None] * response_mask
    tokens = adv[response_mask.bool()]
    return (adv - tokens.mean()) * torch.rsqrt(tokens.var() + 1e-8) * response_mask
