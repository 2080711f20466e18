"""Right losses of reward models."""

import torch
import torch.nn.functional as F

ROLE = "reward_model_loss"
BASES = {"bradley_terry": {"algorithm": "rm"}, "with_margin": {"algorithm": "rm"}}


def bradley_terry(chosen_rewards, rejected_rewards):
    """Bradley-Terry loss, mean over the pairs."""
    return -F.logsigmoid(chosen_rewards - rejected_rewards).mean()


def with_margin(chosen_rewards, rejected_rewards, margin):
    """Bradley-Terry loss in which the chosen answer must lead by the annotated margin; mean over the pairs."""
    return -F.logsigmoid(chosen_rewards - rejected_rewards - margin).mean()
