"""Losses of reward models as people write them: all of them right."""

# ruff: noqa: B905, N812  code of users
# pyright: basic

import itertools

import torch
import torch.nn.functional as F
from torch import nn


def pairwise(chosen_rewards, rejected_rewards):
    """Mean over the pairs."""
    return -F.logsigmoid(chosen_rewards - rejected_rewards).mean()


def pairwise_softplus(r_chosen, r_rejected):
    return F.softplus(r_rejected - r_chosen).mean()


def pairwise_bce(scores_w, scores_l):
    gap = scores_w - scores_l
    return F.binary_cross_entropy_with_logits(gap, torch.ones_like(gap))


def of_letters(r_w, r_l):
    return -F.logsigmoid(r_w - r_l).mean()


class PairLoss(nn.Module):
    """With an optional margin."""

    def forward(
        self, chosen_reward: torch.Tensor, reject_reward: torch.Tensor, margin: torch.Tensor = None
    ) -> torch.Tensor:
        gap = chosen_reward - reject_reward
        if margin is not None:
            gap = gap - margin
        return -F.logsigmoid(gap).mean()


class LogExp(nn.Module):
    def forward(self, chosen_reward: torch.Tensor, reject_reward: torch.Tensor):
        return torch.log(1 + torch.exp(reject_reward - chosen_reward)).mean()


def concatenated(rewards, margin=None, center_rewards_coefficient=None):
    """rewards [2B]: chosen answers first."""
    chosen, rejected = rewards.chunk(2)
    z = chosen - rejected if margin is None else chosen - rejected - margin
    loss = -F.logsigmoid(z).mean()
    if center_rewards_coefficient is not None:
        loss = loss + center_rewards_coefficient * ((chosen + rejected) ** 2).mean()
    return loss, {"accuracy": (chosen > rejected).float().mean()}


def centred(chosen_scores, rejected_scores, center_coef=0.01):
    """Bradley-Terry loss, scores centred."""
    return (
        -F.logsigmoid(chosen_scores - rejected_scores) + center_coef * (chosen_scores + rejected_scores).pow(2)
    ).mean()


def at_last_token(chosen_values, rejected_values, chosen_mask, rejected_mask):
    """values [B, T] at every token; the score is that of the last real token."""

    def score(values, mask):
        last = mask.long().cumsum(-1).argmax(-1)
        return values.gather(1, last.unsqueeze(1)).squeeze(1)

    return -F.logsigmoid(score(chosen_values, chosen_mask) - score(rejected_values, rejected_mask)).mean()


def at_length(chosen_token_scores, rejected_token_scores, chosen_lengths, rejected_lengths):
    rows = torch.arange(len(chosen_token_scores))
    c = chosen_token_scores[rows, chosen_lengths - 1]
    r = rejected_token_scores[rows, rejected_lengths - 1]
    return F.softplus(r - c).mean()


def at_last_id(chosen_token_rewards, rejected_token_rewards, chosen_input_ids, rejected_input_ids, pad_token_id=0):
    def pick(x, ids):
        return torch.stack([row[(i != pad_token_id).nonzero().max()] for row, i in zip(x, ids)])

    return -F.logsigmoid(
        pick(chosen_token_rewards, chosen_input_ids) - pick(rejected_token_rewards, rejected_input_ids)
    ).mean()


def one_a_pair(batch):
    """Losses [B]."""
    return {"loss": -F.logsigmoid(batch["chosen_rewards"] - batch["rejected_rewards"])}


def ranked(scores):
    """scores [P, K]: K answers to each prompt, best first; all pairs of a ranking."""
    losses = [-F.logsigmoid(scores[:, i] - scores[:, j]) for i, j in itertools.combinations(range(scores.shape[1]), 2)]
    return torch.stack(losses).mean()


def ranked_matrix(rewards):
    """Rewards [P, K], ranked best first: all pairs."""
    gap = rewards.unsqueeze(2) - rewards.unsqueeze(1)
    better = torch.triu(torch.ones_like(gap[0], dtype=torch.bool), diagonal=1)
    return -F.logsigmoid(gap[:, better]).mean()


def column(chosen_rewards, rejected_rewards):
    """chosen_rewards, rejected_rewards: [B, 1]."""
    return -F.logsigmoid(chosen_rewards.squeeze(-1) - rejected_rewards.squeeze(-1)).mean()


def step_loss(logits, labels):
    """Process reward model: logits [B, T, C], labels [B, T], -100 where no step ends."""
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1), ignore_index=-100)


def step_loss_of_tokens(logits, labels, reward_token_ids=(5, 6)):
    """Process reward: the two judgement tokens compete; position t of logits judges position t of labels."""
    at = labels != -100
    ids = torch.as_tensor(reward_token_ids)
    two = logits[at][:, ids]
    target = (labels[at].unsqueeze(-1) == ids).long().argmax(-1)
    return F.cross_entropy(two, target), (two.argmax(-1) == target).float().mean()


class StepLoss(nn.Module):
    """Process reward model with a placeholder token at the end of each step."""

    def __init__(self, placeholder_token_id: int, reward_token_ids=None):
        super().__init__()
        self.placeholder_token_id = placeholder_token_id
        self.reward_token_ids = reward_token_ids
        self.loss = nn.CrossEntropyLoss(ignore_index=-100)

    def forward(self, inputs: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor):
        where = inputs == self.placeholder_token_id
        logits, labels = logits[where], labels[where]
        if self.reward_token_ids is not None:
            logits = logits[..., self.reward_token_ids]
            for i, token in enumerate(self.reward_token_ids):
                labels = torch.where(labels == token, i + 100, labels)
            labels = labels - 100
        return self.loss(logits, labels)


def step_bce(step_scores, step_labels):
    """Process reward: one logit a position, label 1 (good) or 0, -100 elsewhere."""
    keep = step_labels != -100
    return F.binary_cross_entropy_with_logits(step_scores[keep], step_labels[keep].float())


def step_loop(step_logits, step_labels):
    """Process reward, step by step; next-token style: the logits of position t judge label t + 1."""
    total, count = 0.0, 0
    for row, judged in zip(step_logits, step_labels):
        for t in range(len(judged) - 1):
            if judged[t + 1] != -100:
                total = total - torch.log_softmax(row[t], -1)[judged[t + 1]]
                count += 1
    return total / count
