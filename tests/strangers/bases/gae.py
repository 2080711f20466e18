"""Right generalised advantage estimates."""

import torch

ROLE = "gae"
PPO = {"algorithm": "ppo", "gamma": 0.9, "lam": 0.8}
BASES = {"backwards": PPO, "masked": PPO, "lists": PPO}


def backwards(rewards, values, mask, gamma=0.9, lam=0.8):
    """GAE advantages and returns, each [B, T]; nothing follows the last response token of a row."""
    rewards, values = rewards * mask, values * mask
    last, columns = 0.0, []
    for t in reversed(range(rewards.size(1))):
        following = values[:, t + 1] if t < rewards.size(1) - 1 else 0.0
        delta = rewards[:, t] + gamma * following - values[:, t]
        last = delta + gamma * lam * last
        columns.append(last)
    advantages = torch.stack(columns[::-1], dim=1)
    returns = advantages + values
    return advantages, returns


def masked(token_level_rewards, values, response_mask, gamma, lam):
    """GAE over the response tokens alone: tokens in between that the policy didn't write are stepped over.

    Returns advantages and returns, [B, T].
    """
    next_value = torch.zeros(values.size(0))
    carried = torch.zeros(values.size(0))
    out = []
    for t in range(values.size(1) - 1, -1, -1):
        m = response_mask[:, t]
        delta = token_level_rewards[:, t] + gamma * next_value - values[:, t]
        now = delta + gamma * lam * carried
        next_value = m * values[:, t] + (1 - m) * next_value
        carried = m * now + (1 - m) * carried
        out.append(carried)
    advantages = torch.stack(list(reversed(out)), dim=1)
    return advantages, advantages + values


def lists(rewards: list[list[float]], values: list[list[float]], gamma: float, lam: float) -> list[list[float]]:
    """GAE advantages of episodes of unequal length, each of which ends at its last step."""
    out = []
    for r, v in zip(rewards, values):
        running, adv = 0.0, [0.0] * len(r)
        for t in range(len(r) - 1, -1, -1):
            after = v[t + 1] if t + 1 < len(r) else 0.0
            running = r[t] + gamma * after - v[t] + gamma * lam * running
            adv[t] = running
        out.append(adv)
    return out
