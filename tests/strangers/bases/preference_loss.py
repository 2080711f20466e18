"""Right preference losses."""

import torch
import torch.nn.functional as F

ROLE = "preference_loss"
BASES = {
    "dpo": {"algorithm": "dpo", "beta": 0.1},
    "dpo_smoothed": {"algorithm": "dpo", "beta": 0.1, "label_smoothing": 0.1},
    "simpo": {"algorithm": "simpo", "beta": 2.0},
    "orpo": {"algorithm": "orpo", "beta": 0.1},
}


def dpo(policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps, beta=0.1):
    """DPO loss, mean over the pairs. Log-probs are summed over each response, [B]."""
    policy = policy_chosen_logps - policy_rejected_logps
    reference = reference_chosen_logps - reference_rejected_logps
    return -F.logsigmoid(beta * (policy - reference)).mean()


def dpo_smoothed(policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps, beta=0.1,
                 label_smoothing=0.1):  # fmt: skip
    """Conservative DPO: labels are flipped with probability `label_smoothing`. Mean over the pairs."""
    logits = (policy_chosen_logps - reference_chosen_logps) - (policy_rejected_logps - reference_rejected_logps)
    kept = -F.logsigmoid(beta * logits) * (1 - label_smoothing)
    flipped = -F.logsigmoid(-beta * logits) * label_smoothing
    return (kept + flipped).mean()


def simpo(chosen_logps, rejected_logps, chosen_lengths, rejected_lengths, beta=2.0, gamma=1.0):
    """SimPO loss, mean over the pairs; summed log-probs [B] are divided by the lengths here; target margin gamma."""
    margin = chosen_logps / chosen_lengths - rejected_logps / rejected_lengths
    return -F.logsigmoid(beta * margin - gamma).mean()


def orpo(chosen_logps, rejected_logps, beta=0.1):
    """ORPO: NLL of the chosen response plus beta times the odds-ratio loss. Log-probs are means over tokens, [B]."""
    log_odds = (chosen_logps - rejected_logps) - (
        torch.log1p(-torch.exp(chosen_logps)) - torch.log1p(-torch.exp(rejected_logps))
    )
    return (-chosen_logps - beta * F.logsigmoid(log_odds)).mean()
