"""Right group advantages."""

from collections import defaultdict

import torch

ROLE = "advantages"
GRPO = {"algorithm": "grpo", "group_size": 4, "scale_rewards": "group"}
BASES = {
    "grouped_view": GRPO,
    "without_std": {"algorithm": "dr_grpo", "group_size": 4},
    "leave_one_out": {"algorithm": "rloo", "group_size": 4},
    "by_prompt": {"algorithm": "grpo", "group_size": 4},
    "token_level": {"algorithm": "grpo", "group_size": 4},
    "python_lists": GRPO,
}


def grouped_view(rewards, num_generations):
    """GRPO advantages [N]: (r - group mean) / (group std + eps); samples of a prompt are adjacent."""
    groups = rewards.view(-1, num_generations)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + 1e-4)).view(-1)


def without_std(rewards, num_generations):
    """Dr. GRPO advantages [N]: reward minus the mean of its group, samples of a prompt adjacent."""
    groups = rewards.view(-1, num_generations)
    return (groups - groups.mean(dim=1, keepdim=True)).view(-1)


def leave_one_out(rewards, num_generations):
    """RLOO advantages [N]: reward minus the mean reward of the other samples of the prompt."""
    groups = rewards.view(-1, num_generations)
    others = (groups.sum(dim=1, keepdim=True) - groups) / (num_generations - 1)
    return (groups - others).view(-1)


def by_prompt(rewards, uids):
    """GRPO advantages [N] normalised within the samples that share a uid."""
    members = defaultdict(list)
    for i, uid in enumerate(uids):
        members[uid].append(i)
    out = torch.zeros_like(rewards)
    for rows in members.values():
        r = rewards[rows]
        out[rows] = (r - r.mean()) / (r.std() + 1e-6)
    return out


def token_level(token_level_rewards, response_mask, index, epsilon=1e-6):
    """GRPO outcome advantages [B, T]: the summed reward normalised in its group, spread over the response tokens."""
    scores = (token_level_rewards * response_mask).sum(dim=-1)
    groups = defaultdict(list)
    for i in range(scores.shape[0]):
        groups[index[i]].append(i)
    adv = torch.zeros_like(scores)
    for rows in groups.values():
        r = scores[rows]
        adv[rows] = (r - r.mean()) / (r.std() + epsilon)
    return adv.unsqueeze(-1) * response_mask


def python_lists(rewards: list[float], group_size: int) -> list[float]:
    """GRPO advantages of a flat list of rewards, `group_size` of a prompt behind one another."""
    out = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        mean = sum(group) / len(group)
        variance = sum((r - mean) ** 2 for r in group) / (len(group) - 1)
        out.extend((r - mean) / (variance**0.5 + 1e-6) for r in group)
    return out
