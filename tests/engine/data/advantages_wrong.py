"""Advantages with one or two real faults each; the test says which."""

import math
from collections import defaultdict

import torch

# epsilon


def eps_of_one(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1.0)).flatten()


def eps_in_signature(rewards, group_size, eps: float = 1e2):
    mean = rewards.view(-1, group_size).mean(1).repeat_interleave(group_size)
    std = rewards.view(-1, group_size).std(1).repeat_interleave(group_size)
    return (rewards - mean) / (std + eps)


def eps_under_the_root(rewards, group_size):
    r = rewards.view(-1, group_size)
    var, mean = torch.var_mean(r, dim=1, keepdim=True)
    return ((r - mean) * torch.rsqrt(var + 0.5)).flatten()


def eps_as_floor(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True).clamp(min=0.5)).flatten()


def eps_in_python(grouped_rewards: list[list[float]]) -> list[list[float]]:
    out = []
    for group in grouped_rewards:
        mu = sum(group) / len(group)
        sd = math.sqrt(sum((x - mu) ** 2 for x in group) / len(group))
        out.append([(x - mu) / (sd + 0.1) for x in group])
    return out


def eps_by_uid(token_level_rewards, response_mask, index, epsilon=1.0):
    scores = (token_level_rewards * response_mask).sum(-1)
    groups = defaultdict(list)
    for i, uid in enumerate(index):
        groups[uid].append(i)
    adv = torch.zeros_like(scores)
    for rows in groups.values():
        adv[rows] = (scores[rows] - scores[rows].mean()) / (scores[rows].std() + epsilon)
    return adv[:, None] * response_mask


# no epsilon


def no_eps(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True)).flatten()


def no_eps_numpy(rewards, group_size):
    import numpy as np

    r = np.asarray(rewards).reshape(-1, group_size)
    with np.errstate(all="ignore"):
        return ((r - r.mean(1, keepdims=True)) / r.std(1, keepdims=True)).reshape(-1)


# sign


def baseline_minus_reward(rewards, group_size, eps=1e-6):
    r = rewards.view(-1, group_size)
    return ((r.mean(1, keepdim=True) - r) / (r.std(1, keepdim=True) + eps)).flatten()


def others_minus_reward(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    rest = (r.sum(1, keepdim=True) - r) / (num_generations - 1)
    return (rest - r).flatten()


def negative_by_prompt(prompts, rewards):
    total, count = defaultdict(float), defaultdict(int)
    for p, r in zip(prompts, rewards):
        total[p] += r
        count[p] += 1
    return [total[p] / count[p] - r for p, r in zip(prompts, rewards)]


# no group


def uid_by_row(rewards, num_generations):
    uids = [str(i) for i in range(len(rewards))]
    groups = defaultdict(list)
    for u, r in zip(uids, rewards):
        groups[u].append(r)
    out = []
    for u, r in zip(uids, rewards):
        g = torch.stack(groups[u])
        mean = g.mean() if len(g) > 1 else torch.tensor(0.0)
        std = g.std() if len(g) > 1 else torch.tensor(1.0)
        out.append((r - mean) / (std + 1e-6))
    return torch.stack(out)


def rewards_as_they_are(rewards, completion_mask):
    return rewards[:, None] * completion_mask


# the batch as baseline


def global_mean(rewards, num_generations):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def global_mean_on_tokens(token_level_rewards, response_mask, index, epsilon=1e-6):
    scores = (token_level_rewards * response_mask).sum(-1)
    adv = scores - scores.mean()
    return adv.unsqueeze(-1) * response_mask


# interleaved


def view_the_other_way(rewards, num_generations):
    """rewards [N]: the completions of a prompt are adjacent."""
    num_prompts = rewards.numel() // num_generations
    r = rewards.view(num_generations, num_prompts)
    return ((r - r.mean(0, keepdim=True)) / (r.std(0, keepdim=True) + 1e-4)).flatten()


def strided_slices(rewards, group_size):
    """One advantage a sample; samples of a prompt lie next to each other."""
    n = len(rewards) // group_size
    out = torch.zeros_like(rewards)
    for p in range(n):
        g = rewards[p::n]
        out[p::n] = g - g.mean()
    return out


# axis


def over_prompts(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    return ((r - r.mean(0, keepdim=True)) / (r.std(0, keepdim=True) + 1e-4)).flatten()


def over_prompts_numpy(rewards, group_size):
    import numpy as np

    r = np.asarray(rewards).reshape(-1, group_size)
    return (r - r.mean(axis=0)).reshape(-1)


# reshape


def blocks_of_prompts(rewards, num_generations):
    num_prompts = len(rewards) // num_generations
    r = rewards.reshape(num_generations, num_prompts)
    return ((r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True) + 1e-6)).flatten()


def chunked_by_group_size(rewards, group_size):
    parts = torch.chunk(rewards, group_size)
    return torch.cat([(p - p.mean()) / (p.std() + 1e-8) for p in parts])


# tiled


def repeat_for_interleave(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    mean = r.mean(1).repeat(num_generations)
    std = r.std(1).repeat(num_generations)
    return (rewards - mean) / (std + 1e-4)


def tile_in_numpy(rewards, group_size):
    import numpy as np

    x = np.asarray(rewards)
    r = x.reshape(-1, group_size)
    return x - np.tile(r.mean(1), group_size)


# variance


def over_the_variance(rewards, group_size):
    r = rewards.view(-1, group_size)
    var, mean = torch.var_mean(r, dim=1, keepdim=True)
    return ((r - mean) / (var + 1e-6)).flatten()


def forgot_the_root(rewards: list[float], group_size: int) -> list[float]:
    out = []
    for i in range(0, len(rewards), group_size):
        g = rewards[i : i + group_size]
        mu = sum(g) / len(g)
        var = sum((x - mu) ** 2 for x in g) / (len(g) - 1)
        out.extend((x - mu) / (var + 1e-4) for x in g)
    return out


# uneven groups


def whole_batch_when_uneven(rewards, group_ids, group_size):
    _, counts = torch.unique(group_ids, return_counts=True)
    r = rewards.view(-1, group_size) if bool((counts == group_size).all()) else rewards.view(1, -1)
    return (r - r.mean(dim=-1, keepdim=True)).flatten()


def whole_batch_when_uneven_scaled(rewards, uids, n_samples_per_prompt, eps=1e-6):
    sizes = defaultdict(int)
    for u in uids:
        sizes[u] += 1
    if set(sizes.values()) == {n_samples_per_prompt}:
        r = rewards.reshape(-1, n_samples_per_prompt)
    else:
        r = rewards.reshape(1, -1)
    adv = (r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True) + eps)
    return adv.reshape(-1)


# a lone sample


def lone_sample_std(rewards, group_ids, eps=1e-6):
    out = torch.empty_like(rewards)
    for g in group_ids.unique():
        rows = group_ids == g
        out[rows] = (rewards[rows] - rewards[rows].mean()) / (rewards[rows].std() + eps)
    return out


def lone_sample_divided(rewards, uids):
    by = defaultdict(list)
    for i, u in enumerate(uids):
        by[u].append(i)
    out = torch.zeros(len(rewards))
    for rows in by.values():
        g = rewards[rows]
        rest = (g.sum() - g) / torch.tensor(len(rows) - 1.0)
        out[rows] = g - rest
    return out


# score


def sum_over_all_positions(token_level_rewards, response_mask, index, epsilon=1e-6):
    """Outcome advantages by prompt. Positions outside the mask are excluded from the score."""
    scores = token_level_rewards.sum(dim=-1)
    groups = defaultdict(list)
    for i, u in enumerate(index):
        groups[u].append(i)
    adv = torch.zeros_like(scores)
    for rows in groups.values():
        adv[rows] = (scores[rows] - scores[rows].mean()) / (scores[rows].std() + epsilon)
    return adv.unsqueeze(-1) * response_mask


def sum_in_groups(token_level_scores, completion_mask, num_generations):
    """The score of a row is the sum over its trained tokens; what the mask hides is not part of it."""
    score = torch.einsum("nt->n", token_level_scores).view(-1, num_generations)
    adv = (score - score.mean(1, keepdim=True)).flatten()
    return adv[:, None] * completion_mask


# turns


def last_row_copied(step_rewards, response_mask, trajectory_ids, is_last_step, uids, eps=1e-6):
    last = torch.nonzero(is_last_step).flatten().tolist()
    groups = defaultdict(list)
    for row in last:
        groups[uids[row]].append(row)
    rows_of = {}
    for rows in groups.values():
        r = step_rewards[rows]
        adv = (r - r.mean()) / (r.std() + eps)
        for row, a in zip(rows, adv):
            rows_of[trajectory_ids[row]] = a * response_mask[row]
    return torch.stack([rows_of[t] for t in trajectory_ids])


def last_row_gathered(step_rewards, loss_mask, traj_ids, is_last_step, group_ids):
    at = {int(t): i for i, t in enumerate(traj_ids) if is_last_step[i]}
    out = torch.zeros_like(loss_mask)
    mean = {}
    for g in group_ids.unique():
        rows = (group_ids == g) & is_last_step
        mean[int(g)] = step_rewards[rows].mean()
    for i, t in enumerate(traj_ids):
        j = at[int(t)]
        out[i] = (step_rewards[j] - mean[int(group_ids[j])]) * loss_mask[j]
    return out


# group ids


def neighbours(rewards, group_ids, num_generations):
    """Group advantages; rows of a group need not be adjacent."""
    r = rewards.view(-1, num_generations)
    return (r - r.mean(1, keepdim=True)).flatten()


def neighbours_by_count(rewards, group_ids):
    """Centred over each prompt's samples, which may arrive in any order."""
    n = int(group_ids.unique().numel())
    r = rewards.reshape(n, -1)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).flatten()


# order


def ranks_from_the_top(rewards, group_size):
    r = rewards.view(-1, group_size)
    rank = r.argsort(dim=1).float()
    return (rank - rank.mean(1, keepdim=True)).flatten()


def far_from_the_mean(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)).abs() / (r.std(1, keepdim=True) + 1e-6)).flatten()


# abstention


def none_becomes_nan(rewards, num_generations):
    """Rewards may be None where the judge abstained."""
    r = torch.tensor([float("nan") if x is None else float(x) for x in rewards]).view(-1, num_generations)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
    return adv.flatten()


def nan_to_zero_too_late(rewards, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
    return torch.nan_to_num(adv, nan=0.0).flatten()


# rejected rows


def rejected_vote(rewards, response_mask, num_generations):
    """Rows whose mask is all zero were rejected and have no say in the group."""
    r = rewards.view(-1, num_generations)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)
    kept = (response_mask.sum(1) > 0).float()
    return adv.flatten() * kept


def discarded_vote(scores, loss_mask, group_ids):
    """A sample with an empty mask has been discarded: it is not a member of its group any more."""
    out = torch.zeros_like(scores)
    for g in group_ids.unique():
        rows = group_ids == g
        out[rows] = scores[rows] - scores[rows].mean()
    return out[:, None] * loss_mask


# the divisor of leave-one-out


def siblings_over_n(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    rest = (r.sum(1, keepdim=True) - r) / num_generations
    return (r - rest).flatten()


def all_over_n_minus_one(rewards: list[float], k: int) -> list[float]:
    out = []
    for i in range(0, len(rewards), k):
        group = rewards[i : i + k]
        out += [r - sum(group) / (k - 1) for r in group]
    return out


# eps behind the quotient


def eps_behind(rewards, group_size, eps=1e-4):
    r = rewards.view(-1, group_size)
    return ((r - r.mean(1, keepdim=True)) / r.std(1, keepdim=True) + eps).flatten()


def eps_behind_numpy(rewards, group_size):
    import numpy as np

    r = np.asarray(rewards, dtype=np.float64).reshape(-1, group_size)
    with np.errstate(all="ignore"):
        return ((r - r.mean(1, keepdims=True)) / r.std(1, keepdims=True) + 1e-3).ravel()


# the switch for the std


def switch_ignored(rewards, num_generations, scale_rewards=False):
    r = rewards.view(-1, num_generations)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()


class Switched:
    def __init__(self, num_generations=4, scale_rewards=False):
        self.num_generations = num_generations
        self.scale_rewards = scale_rewards

    def advantages(self, rewards):
        r = rewards.view(-1, self.num_generations)
        adv = r - r.mean(1, keepdim=True)
        if self.scale_rewards is not None:
            adv = adv / (r.std(1, keepdim=True) + 1e-4)
        return adv.flatten()


# another count than the group's own


def average_group_size(rewards, group_ids):
    """Centred on the mean of each prompt's samples; prompts may have different numbers of them."""
    groups = int(group_ids.max()) + 1
    total = torch.zeros(groups).index_add(0, group_ids, rewards)
    return rewards - (total / (len(rewards) / groups))[group_ids]


def average_count_by_uid(rewards, uids):
    total = defaultdict(float)
    for r, u in zip(rewards.tolist(), uids):
        total[u] += r
    per_group = len(uids) / len(total)
    return torch.tensor([r - total[u] / per_group for r, u in zip(rewards.tolist(), uids)])


# whitening


def whitened_with_padding(rewards, response_mask, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)).flatten()[:, None] * response_mask
    return (adv - adv.mean()) * torch.rsqrt(adv.var() + 1e-8) * response_mask


def whitened_with_padding_by_uid(token_level_rewards, response_mask, index):
    scores = (token_level_rewards * response_mask).sum(-1)
    groups = defaultdict(list)
    for i, u in enumerate(index):
        groups[u].append(i)
    adv = torch.zeros_like(response_mask)
    for rows in groups.values():
        adv[rows] = (scores[rows] - scores[rows].mean())[:, None] * response_mask[rows]
    std = (adv.var(unbiased=False) + 1e-8).sqrt()
    return (adv - adv.mean()) / std * response_mask


# aliasing


def centred_in_place(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    r -= r.mean(1, keepdim=True)
    return r.flatten() * 1.0


def scaled_in_place(scores, group_size, eps=1e-6):
    r = scores.reshape(-1, group_size)
    std = r.std(1, keepdim=True)
    r.sub_(r.mean(1, keepdim=True)).div_(std + eps)
    return scores.clone()


# the mask the wrong way round


def filled_where_trained(rewards, response_mask, group_size):
    r = rewards.view(-1, group_size)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).reshape(-1, 1)
    return adv.expand(response_mask.shape).masked_fill(response_mask.bool(), 0.0)


def times_one_minus_mask(rewards, completion_mask, group_size):
    r = rewards.view(-1, group_size)
    adv = (r - r.mean(1, keepdim=True)).flatten()
    return adv.unsqueeze(-1) * (1 - completion_mask)


# two at once


def sign_and_eps(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r.mean(1, keepdim=True) - r) / (r.std(1, keepdim=True) + 1.0)).flatten()


def tiled_and_eps(rewards, num_generations, eps=10.0):
    r = rewards.view(-1, num_generations)
    mean, std = r.mean(1).repeat(num_generations), r.std(1).repeat(num_generations)
    return (rewards - mean) / (std + eps)


def axis_and_sign(rewards, num_generations):
    r = rewards.view(-1, num_generations)
    return ((r.mean(0, keepdim=True) - r) / (r.std(0, keepdim=True) + 1e-4)).flatten()


def variance_and_sign(rewards, group_size):
    r = rewards.view(-1, group_size)
    return ((r.mean(1, keepdim=True) - r) / (r.var(1, keepdim=True) + 1e-6)).flatten()


def batch_and_eps(rewards, num_generations):
    return (rewards - rewards.mean()) / (rewards.std() + 5.0)


def blocks_and_variance(rewards, num_generations):
    r = rewards.view(num_generations, -1)
    return ((r - r.mean(1, keepdim=True)) / (r.var(1, keepdim=True) + 1e-6)).flatten()


def unmasked_and_sign(token_level_rewards, response_mask, num_generations):
    """The score of a row is the sum over its trained tokens; what the mask hides is not part of it."""
    s = token_level_rewards.sum(-1).view(-1, num_generations)
    adv = (s.mean(1, keepdim=True) - s) / (s.std(1, keepdim=True) + 1e-6)
    return adv.flatten()[:, None] * response_mask


def unmasked_and_eps(token_level_rewards, response_mask, num_generations):
    """The score of a row is the sum over its trained tokens; what the mask hides is not part of it."""
    s = token_level_rewards.sum(-1).view(-1, num_generations)
    adv = (s - s.mean(1, keepdim=True)) / (s.std(1, keepdim=True) + 1.0)
    return adv.flatten()[:, None] * response_mask


def interleaved_and_eps(rewards, num_generations):
    """Completions of one prompt are contiguous."""
    r = rewards.view(num_generations, -1)
    return ((r - r.mean(0)) / (r.std(0) + 2.0)).flatten()


def no_baseline_and_sign(rewards, response_mask):
    return -(rewards[:, None] * response_mask)


def unmasked_and_axis(token_level_rewards, response_mask, num_generations):
    """The score of a row is the sum over its trained tokens; what the mask hides is not part of it."""
    s = token_level_rewards.sum(-1).view(-1, num_generations)
    return (s - s.mean(0, keepdim=True)).flatten()[:, None] * response_mask


def steps_and_sign(step_rewards, response_mask, trajectory_ids, is_last_step, uids):
    rows_of = {}
    for u in sorted(set(uids)):
        rows = [i for i, x in enumerate(uids) if x == u and is_last_step[i]]
        mean = step_rewards[rows].mean()
        for row in rows:
            rows_of[trajectory_ids[row]] = (mean - step_rewards[row]) * response_mask[row]
    return torch.stack([rows_of[t] for t in trajectory_ids])


class ByWord:
    """The option is a word, and every word is true."""

    def __init__(self, n=4, scale_rewards="off"):
        self.n, self.scale_rewards = n, scale_rewards

    def __call__(self, rewards):
        blocks = rewards.reshape(-1, self.n)
        centred = blocks - blocks.mean(1, keepdim=True)
        return (centred / (blocks.std(1, keepdim=True) + 1e-6) if self.scale_rewards else centred).flatten()
