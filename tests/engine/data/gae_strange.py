"""Functions that give numbers of the right shape and are neither GAE nor a known mistake in it."""

from __future__ import annotations

import torch


def squared(rewards, values, mask, gamma, lam):
    adv = torch.zeros_like(rewards)
    run = nxt = torch.zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        m = mask[:, t] > 0
        run = torch.where(m, rewards[:, t] ** 2 + gamma * nxt - values[:, t] + gamma * lam * run, run)
        nxt = torch.where(m, values[:, t], nxt)
        adv[:, t] = run
    return adv, adv + values


def averaged(rewards, values, gamma, lam):
    T = rewards.shape[1]
    adv = torch.zeros_like(rewards)
    for t in range(T):
        adv[:, t] = rewards[:, t:].mean(1) - values[:, t]
    return adv


def halved(rewards, values, gamma, lam):
    adv = torch.zeros_like(rewards)
    run = 0
    for t in reversed(range(rewards.shape[1])):
        nxt = values[:, t + 1] if t + 1 < rewards.shape[1] else 0
        run = rewards[:, t] + gamma * nxt - 0.5 * values[:, t] + gamma * lam * run
        adv[:, t] = run
    return adv, adv + values


def clipped(rewards, values, mask, gamma, lam):
    v = values * mask
    run = 0
    cols = []
    for t in reversed(range(rewards.shape[1])):
        nxt = v[:, t + 1] if t + 1 < v.shape[1] else 0
        run = (rewards[:, t] + gamma * nxt - v[:, t]).clamp(-0.5, 0.5) + gamma * lam * run
        cols.append(run)
    return torch.stack(cols[::-1], 1)
