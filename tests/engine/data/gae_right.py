"""Right GAE functions, each in another idiom. Names ending in a number of underscores mean nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


def skipping(token_level_rewards, values, response_mask, gamma, lam):
    """Masked tokens are carried over."""
    with torch.no_grad():
        nextvalues = 0
        lastgaelam = 0
        reversed_ = []
        for t in reversed(range(token_level_rewards.shape[-1])):
            delta = token_level_rewards[:, t] + gamma * nextvalues - values[:, t]
            new = delta + gamma * lam * lastgaelam
            nextvalues = values[:, t] * response_mask[:, t] + (1 - response_mask[:, t]) * nextvalues
            lastgaelam = new * response_mask[:, t] + (1 - response_mask[:, t]) * lastgaelam
            reversed_.append(lastgaelam)
        advantages = torch.stack(reversed_[::-1], dim=1)
        returns = advantages + values
        mean = (advantages * response_mask).sum() / response_mask.sum()
        var = ((advantages - mean) ** 2 * response_mask).sum() / (response_mask.sum() - 1)
        advantages = (advantages - mean) * torch.rsqrt(var + 1e-8)
    return advantages, returns


class Maker:
    """As OpenRLHF does it."""

    def __init__(self, strategy=None, gamma=1.0):
        self.strategy = strategy
        self.gamma = gamma

    @torch.no_grad()
    def get_advantages_and_returns(self, values, rewards, action_mask, gamma: float, lambd: float):
        last = 0
        out = []
        length = rewards.size(1)
        if action_mask is not None:
            values = action_mask * values
            rewards = action_mask * rewards
        for t in reversed(range(length)):
            nextvalues = values[:, t + 1] if t < length - 1 else 0.0
            delta = rewards[:, t] + gamma * nextvalues - values[:, t]
            last = delta + gamma * lambd * last
            out.append(last)
        advantages = torch.stack(out[::-1], dim=1)
        return advantages.detach(), advantages + values

    @torch.no_grad()
    def get_cumulative_returns(self, rewards, action_mask, gamma: float):
        returns = torch.zeros_like(rewards)
        cumulative = torch.zeros(rewards.size(0))
        rewards = rewards * action_mask
        for t in reversed(range(rewards.size(1))):
            cumulative = rewards[:, t] + gamma * cumulative
            returns[:, t] = cumulative
        return returns


def plain(rewards, values, gamma, lambd):
    T = rewards.shape[1]
    adv = torch.zeros_like(rewards)
    run = 0.0
    for t in range(T - 1, -1, -1):
        nxt = values[:, t + 1] if t + 1 < T else 0.0
        run = rewards[:, t] + gamma * nxt - values[:, t] + gamma * lambd * run
        adv[:, t] = run
    return adv, adv + values


def one_column_more(rewards, values, gamma=0.99, lam=0.95):
    """rewards [B, T], values [B, T + 1]."""
    deltas = rewards + gamma * values[:, 1:] - values[:, :-1]
    adv = torch.zeros_like(rewards)
    acc = torch.zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        acc = deltas[:, t] + gamma * lam * acc
        adv[:, t] = acc
    return adv, adv + values[:, :-1]


def with_last_value(rewards, values, last_value, gamma, lam):
    nxt = torch.cat([values[:, 1:], last_value.unsqueeze(1)], dim=1)
    deltas = rewards + gamma * nxt - values
    T = rewards.shape[1]
    i = torch.arange(T)
    powers = (i[None, :] - i[:, None]).clamp(min=0)
    weights = torch.where(i[None, :] >= i[:, None], (gamma * lam) ** powers.float(), torch.zeros(()))
    return torch.einsum("bj,ij->bi", deltas, weights)


def cleanrl(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    """rewards, values, dones: [num_steps, num_envs]."""
    num_steps = rewards.shape[0]
    advantages = torch.zeros_like(rewards)
    lastgaelam = 0
    for t in reversed(range(num_steps)):
        if t == num_steps - 1:
            nextnonterminal = 1.0 - next_done
            nextvalues = next_value
        else:
            nextnonterminal = 1.0 - dones[t + 1]
            nextvalues = values[t + 1]
        delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
        advantages[t] = lastgaelam = delta + gamma * gae_lambda * nextnonterminal * lastgaelam
    returns = advantages + values
    return advantages, returns


def terminal_steps(rewards, values, dones, last_value, gamma, lam):
    adv = []
    gae = 0.0
    following = last_value
    for t in reversed(range(rewards.shape[0])):
        live = 1.0 - dones[t]
        delta = rewards[t] + gamma * following * live - values[t]
        gae = delta + gamma * lam * live * gae
        following = values[t]
        adv.insert(0, gae)
    return torch.stack(adv)


def single_episode(rewards: list[float], values: list[float], gamma: float = 0.99, lam: float = 0.95) -> list[float]:
    """One finished episode."""
    advantages = []
    running = 0.0
    next_value = 0.0
    for r, v in zip(reversed(rewards), reversed(values)):
        running = r + gamma * next_value - v + gamma * lam * running
        next_value = v
        advantages.append(running)
    return advantages[::-1]


def numpy_rows(rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float):
    n = rewards.shape[1]
    out = np.zeros_like(rewards)
    acc = np.zeros(rewards.shape[0])
    for t in reversed(range(n)):
        nxt = values[:, t + 1] if t + 1 < n else 0.0
        acc = rewards[:, t] + gamma * nxt - values[:, t] + gamma * lam * acc
        out[:, t] = acc
    return out, out + values


def flipped(rewards, values, mask, gamma, lam):
    v = values * mask
    r = rewards * mask
    delta = r + gamma * torch.nn.functional.pad(v[:, 1:], (0, 1)) - v
    delta = delta * mask
    rev = delta.flip(1)
    acc = torch.zeros(rev.shape[0])
    cols = []
    for column in rev.unbind(1):
        acc = column + gamma * lam * acc
        cols.append(acc)
    adv = torch.stack(cols, 1).flip(1)
    return adv * mask, (adv + values) * mask


def chunked(rewards, values, gamma, lambd, chunk_size=3):
    """Parallel inside a chunk, a carry between chunks."""
    B, T = rewards.shape
    w = gamma * lambd
    deltas = rewards + gamma * torch.cat([values[:, 1:], values.new_zeros(B, 1)], 1) - values
    out = torch.empty_like(deltas)
    carry = deltas.new_zeros(B)
    for start in range((T - 1) // chunk_size * chunk_size, -1, -chunk_size):
        block = deltas[:, start : start + chunk_size]
        n = block.shape[1]
        k = torch.arange(n)
        tri = torch.triu(torch.ones(n, n)) * (w ** (k[None] - k[:, None]).clamp(min=0).float())
        part = block @ tri.T + carry[:, None] * w ** (n - k).float()
        out[:, start : start + n] = part
        carry = part[:, 0]
    return out, out + values


@dataclass
class Config:
    gamma: float = 0.97
    gae_lambda: float = 0.9


class Estimator:
    def __init__(self, cfg: Config):
        self.cfg = cfg

    def __call__(self, batch):
        r, v, m = batch["token_level_rewards"], batch["values"], batch["response_mask"].bool()
        run = torch.zeros_like(r[:, 0])
        nxt = torch.zeros_like(run)
        adv = torch.zeros_like(r)
        for t in reversed(range(r.shape[1])):
            cand = r[:, t] + self.cfg.gamma * nxt - v[:, t] + self.cfg.gamma * self.cfg.gae_lambda * run
            run = torch.where(m[:, t], cand, run)
            nxt = torch.where(m[:, t], v[:, t], nxt)
            adv[:, t] = run
        batch["advantages"] = adv * m
        batch["returns"] = (adv + v) * m
        return batch


class Result(NamedTuple):
    returns: torch.Tensor
    advantages: torch.Tensor


def named_result(rewards, values, action_mask, gamma, lam) -> Result:
    rows_a, rows_r = torch.zeros_like(values), torch.zeros_like(values)
    for i in range(values.shape[0]):
        idx = action_mask[i].nonzero().flatten().tolist()
        run = nxt = 0.0
        for t in reversed(idx):
            run = float(rewards[i, t]) + gamma * nxt - float(values[i, t]) + gamma * lam * run
            nxt = float(values[i, t])
            rows_a[i, t] = run
            rows_r[i, t] = run + nxt
    return Result(returns=rows_r, advantages=rows_a)


def outcome(rewards, action_mask, values, gamma, lam):
    """rewards: [B, 1], one score a completion, given at its last action."""
    B, S = action_mask.shape
    last = S - 1 - action_mask.long().flip(1).argmax(1)
    tokens = torch.zeros(B, S).scatter(1, last[:, None], rewards)
    done = torch.zeros(B, S).scatter(1, last[:, None], 1.0)
    adv = torch.zeros(B, S)
    run = torch.zeros(B)
    nxt = torch.zeros(B)
    for t in reversed(range(S)):
        m = action_mask[:, t]
        live = 1 - done[:, t]
        cand = tokens[:, t] + gamma * nxt * live - values[:, t] + gamma * lam * run * live
        run = m * cand + (1 - m) * run
        nxt = m * values[:, t] + (1 - m) * nxt
        adv[:, t] = run
    return adv * action_mask


def rewards_to_go(rewards, mask, gamma=0.9):
    out = torch.zeros_like(rewards)
    run = 0
    for t in reversed(range(rewards.shape[1])):
        new = rewards[:, t] + gamma * run
        out[:, t] = new * mask[:, t]
        run = new * mask[:, t] + run * (1 - mask[:, t])
    return out


def discounted(rewards, gamma):
    T = rewards.shape[-1]
    t = torch.arange(T, dtype=rewards.dtype)
    kernel = torch.tril(gamma ** (t[:, None] - t[None]).clamp(min=0))
    return rewards @ kernel


def undiscounted(token_level_rewards, eos_mask):
    return (token_level_rewards * eos_mask).flip(-1).cumsum(-1).flip(-1)


def separate_lambda(rewards, values, mask, gamma, lam):
    """The critic learns from lambda 1, the policy from lam."""

    def gae(weight):
        run = nxt = torch.zeros(rewards.shape[0])
        cols = []
        for t in range(rewards.shape[1] - 1, -1, -1):
            m = mask[:, t] > 0
            run = torch.where(m, rewards[:, t] + gamma * nxt - values[:, t] + gamma * weight * run, run)
            nxt = torch.where(m, values[:, t], nxt)
            cols.append(run)
        return torch.stack(cols[::-1], 1)

    return gae(lam), gae(1.0) + values


def half(rewards, values, gamma, lam):
    r, v = rewards.bfloat16(), values.bfloat16()
    run = torch.zeros_like(r[:, 0])
    cols = []
    for t in range(r.shape[1] - 1, -1, -1):
        nxt = v[:, t + 1] if t + 1 < r.shape[1] else 0
        run = r[:, t] + gamma * nxt - v[:, t] + gamma * lam * run
        cols.append(run)
    return torch.stack(cols[::-1], 1)


def double(rewards, values, masks, gamma, lmbda):
    """Whitened, masked to 0."""
    r, v = rewards.double(), values.double()
    keep = masks.bool()
    v = v.masked_fill(~keep, 0)
    r = r.masked_fill(~keep, 0)
    run = 0.0
    cols = []
    T = r.shape[1]
    for t in range(T - 1, -1, -1):
        run = r[:, t] + gamma * (v[:, t + 1] if t + 1 < T else 0) - v[:, t] + gamma * lmbda * run
        cols.append(run)
    adv = torch.stack(cols[::-1], 1)
    ret = adv + v
    x = adv[keep]
    adv = (adv - x.mean()) / (x.std(unbiased=False) + 1e-8)
    return adv.masked_fill(~keep, 0), ret


def next_states(rewards, values, next_values, terminated, gamma=0.99, lam=0.95):
    """[T, B] each; the value behind a step is given."""
    advantages = torch.zeros_like(rewards)
    carry = torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        alive = 1 - terminated[t]
        carry = rewards[t] + gamma * next_values[t] * alive - values[t] + gamma * lam * alive * carry
        advantages[t] = carry
    return advantages, advantages + values


def jagged(rewards: list[torch.Tensor], values: list[torch.Tensor], gamma: float, lam: float):
    """One 1-D tensor per response."""
    out = []
    for r, v in zip(rewards, values):
        run, nxt, row = 0.0, 0.0, []
        for t in range(len(r) - 1, -1, -1):
            run = r[t] + gamma * nxt - v[t] + gamma * lam * run
            nxt = v[t]
            row.append(run)
        out.append(torch.stack(row[::-1]))
    return out, [a + v for a, v in zip(out, values)]


def segments(rewards, values, next_value, terminated, gamma=0.99, lam=0.95):
    """Segments of one length. rewards, values: [N, S]. next_value [N]: critic behind the segment.

    terminated [N]: whether the episode ended with it, so that nothing follows.
    """
    ahead = next_value * (~terminated.bool()).float()
    running, out = 0.0, []
    for t in range(rewards.size(1) - 1, -1, -1):
        running = rewards[:, t] + gamma * ahead - values[:, t] + gamma * lam * running
        ahead = values[:, t]
        out.insert(0, running)
    adv = torch.stack(out, 1)
    return adv, adv + values
