"""Preference losses as people write them: all of them right."""


# ruff: noqa: B905, C901, N812  code of users
# pyright: basic

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


def preference_loss(
    policy_chosen_logps, policy_rejected_logps, reference_chosen_logps, reference_rejected_logps,
    beta, label_smoothing=0.0, ipo=False, reference_free=False,
):  # fmt: skip
    """The signature of the DPO authors."""
    pi_logratios = policy_chosen_logps - policy_rejected_logps
    ref_logratios = reference_chosen_logps - reference_rejected_logps
    if reference_free:
        ref_logratios = 0
    logits = pi_logratios - ref_logratios
    if ipo:
        losses = (logits - 1 / (2 * beta)) ** 2
    else:
        losses = -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    chosen_rewards = beta * (policy_chosen_logps - reference_chosen_logps).detach()
    rejected_rewards = beta * (policy_rejected_logps - reference_rejected_logps).detach()
    return losses, chosen_rewards, rejected_rewards


def dpo_mean(pi_w, pi_l, ref_w, ref_l, beta=0.1):
    """DPO, mean over pairs."""
    delta = (pi_w - ref_w) - (pi_l - ref_l)
    return F.softplus(-beta * delta).mean()


def dpo_in_numpy_style(logp_chosen, logp_rejected, ref_logp_chosen, ref_logp_rejected, beta: float = 0.1):
    margin = beta * ((logp_chosen - ref_logp_chosen) - (logp_rejected - ref_logp_rejected))
    return torch.logaddexp(torch.zeros_like(margin), -margin).mean()


def dpo_as_bce(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.1):
    logits = beta * (chosen_logps - rejected_logps - ref_chosen_logps + ref_rejected_logps)
    return F.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))


class DPOLoss(nn.Module):
    """DPO with its options as attributes."""

    def __init__(self, beta: float = 0.1, label_smoothing: float = 0.0):
        super().__init__()
        self.beta = beta
        self.label_smoothing = label_smoothing

    def forward(self, policy_chosen_logps, policy_rejected_logps, ref_chosen_logps, ref_rejected_logps):
        logits = (policy_chosen_logps - policy_rejected_logps) - (ref_chosen_logps - ref_rejected_logps)
        kept, flipped = F.logsigmoid(self.beta * logits), F.logsigmoid(-self.beta * logits)
        losses = -(1 - self.label_smoothing) * kept - self.label_smoothing * flipped
        return losses.mean(), {
            "chosen_rewards": self.beta * (policy_chosen_logps - ref_chosen_logps).detach(),
            "rejected_rewards": self.beta * (policy_rejected_logps - ref_rejected_logps).detach(),
        }


def dpo_by_token(policy_chosen, policy_rejected, ref_chosen, ref_rejected, chosen_mask, rejected_mask, beta=0.1):
    """Per-token log-probs [B, T] and masks; summed here. Mean over the batch."""
    chosen = ((policy_chosen - ref_chosen) * chosen_mask).sum(-1)
    rejected = ((policy_rejected - ref_rejected) * rejected_mask).sum(-1)
    return -F.logsigmoid(beta * (chosen - rejected)).mean()


def dpo_concatenated(logps, ref_logps, beta=0.1):
    """logps, ref_logps [2B]: chosen answers in the first half."""
    chosen, rejected = logps.chunk(2)
    ref_chosen, ref_rejected = ref_logps.chunk(2)
    return -F.logsigmoid(beta * ((chosen - ref_chosen) - (rejected - ref_rejected))).mean()


def dpo_halves_smoothed(policy_logps, reference_logps, *, beta=0.1, label_smoothing=0.0):
    """Log-probs of the pairs, [2B]: chosen first, then rejected."""
    n = policy_logps.size(0) // 2
    ratios = policy_logps - reference_logps
    z = beta * (ratios[:n] - ratios[n:])
    loss = (1 - label_smoothing) * F.softplus(-z) + label_smoothing * F.softplus(z)
    return {
        "loss": loss.mean(),
        "rewards/chosen": (beta * ratios[:n]).detach().mean(),
        "rewards/rejected": (beta * ratios[n:]).detach().mean(),
    }


def dpo_of_kwargs(**kwargs):
    pc, pr = kwargs["policy_chosen_logps"], kwargs["policy_rejected_logps"]
    rc, rr = kwargs["reference_chosen_logps"], kwargs["reference_rejected_logps"]
    beta = kwargs.get("beta", 0.1)
    losses = [-F.logsigmoid(beta * ((pc[i] - pr[i]) - (rc[i] - rr[i]))) for i in range(len(pc))]
    return sum(losses) / len(losses)


def dpo_interleaved(policy_logps, reference_logps, beta=0.1):
    """Rows alternate: chosen, rejected, chosen, ..."""
    ratio = (policy_logps - reference_logps).view(-1, 2)
    return -F.logsigmoid(beta * (ratio[:, 0] - ratio[:, 1])).mean()


def dpo_concatenated_tokens(per_token_logps, ref_per_token_logps, loss_mask, beta=0.1):
    """per_token_logps, ref_per_token_logps, loss_mask: [2B, T]."""
    seq = ((per_token_logps - ref_per_token_logps) * loss_mask).sum(dim=-1)
    half = seq.shape[0] // 2
    return -F.logsigmoid(beta * (seq[:half] - seq[half:])).mean()


def _batch_logps(logits, labels, average_log_prob=False):
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    mask = labels != -100
    labels[~mask] = 0
    per_token = torch.gather(logits.log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (per_token * mask).sum(-1) / mask.sum(-1) if average_log_prob else (per_token * mask).sum(-1)


def dpo_from_logits(logits, ref_logits, labels, beta=0.1):
    """logits, ref_logits [2B, T, V], labels [2B, T] with -100 on the prompt; chosen answers first."""
    c, r = _batch_logps(logits, labels).chunk(2)
    rc, rr = _batch_logps(ref_logits, labels).chunk(2)
    return -F.logsigmoid(beta * (c - rc - r + rr)).mean()


def dpo_of_batch(batch, beta=0.1):
    policy = batch["policy_chosen_logps"] - batch["policy_rejected_logps"]
    reference = batch["reference_chosen_logps"] - batch["reference_rejected_logps"]
    loss = -F.logsigmoid(beta * (policy - reference)).mean()
    return {"loss": loss, "margin": (policy - reference).mean().item()}


@dataclass
class PairBatch:
    chosen_logps: torch.Tensor
    rejected_logps: torch.Tensor
    ref_chosen_logps: torch.Tensor
    ref_rejected_logps: torch.Tensor


def dpo_of_record(pairs: PairBatch, beta: float = 0.1) -> torch.Tensor:
    c, r = pairs.chosen_logps - pairs.ref_chosen_logps, pairs.rejected_logps - pairs.ref_rejected_logps
    return torch.stack([F.softplus(-beta * (a - b)) for a, b in zip(c, r)]).mean()


class Output(NamedTuple):
    loss: torch.Tensor
    chosen_rewards: torch.Tensor
    rejected_rewards: torch.Tensor


def dpo_named_tuple(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.1):
    c, r = beta * (chosen_logps - ref_chosen_logps), beta * (rejected_logps - ref_rejected_logps)
    return Output(-F.logsigmoid(c - r).mean(), c.detach(), r.detach())


def dpo_from_ratios(chosen_logratios, rejected_logratios, beta=0.1):
    return -F.logsigmoid(beta * (chosen_logratios - rejected_logratios))


def dpo_from_model_ratios(pi_logratios, ref_logratios, beta=0.1, label_smoothing=0.0):
    logits = pi_logratios - ref_logratios
    return (
        -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    ).mean()


def preference_of_logits(logits, *, beta, loss_type="sigmoid"):
    if loss_type == "sigmoid":
        return -F.logsigmoid(beta * logits)
    if loss_type == "ipo":
        return (logits - 1 / (2 * beta)) ** 2
    raise ValueError(loss_type)


def dpo_lists(
    chosen_logprobs: list,
    rejected_logprobs: list,
    chosen_ref_logprobs: list,
    rejected_ref_logprobs: list,
    dpo_beta: float,
):
    """Lists of scalars, one a pair."""
    c = torch.stack([a - b for a, b in zip(chosen_logprobs, chosen_ref_logprobs)])
    r = torch.stack([a - b for a, b in zip(rejected_logprobs, rejected_ref_logprobs)])
    losses = -F.logsigmoid(dpo_beta * (c - r))
    return losses.mean(), {
        "dpo_loss": losses.mean().item(),
        "chosen_reward": (dpo_beta * c).mean().item(),
        "rejected_reward": (dpo_beta * r).mean().item(),
    }


def dpo_in_bfloat16(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.1):
    args = [x.bfloat16() for x in (chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps)]
    return -F.logsigmoid(beta * ((args[0] - args[2]) - (args[1] - args[3]))).mean()


def dpo_norm(
    chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, chosen_lengths, rejected_lengths, beta=5.0
):
    """Length-normalised DPO: averages per token."""
    c = (chosen_logps - ref_chosen_logps) / chosen_lengths
    r = (rejected_logps - ref_rejected_logps) / rejected_lengths
    return -F.logsigmoid(beta * (c - r)).mean()


def robust_dpo(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.1, label_smoothing=0.1):
    z = beta * ((chosen_logps - rejected_logps) - (ref_chosen_logps - ref_rejected_logps))
    e = label_smoothing
    return (-(1 - e) * F.logsigmoid(z) + e * F.logsigmoid(-z)) / (1 - 2 * e)


def ipo(pi_chosen_logp, pi_rejected_logp, ref_chosen_logp, ref_rejected_logp, tau=0.1):
    """IPO, eq. 17; log-probs are averages per token."""
    h = (pi_chosen_logp - pi_rejected_logp) - (ref_chosen_logp - ref_rejected_logp)
    return ((h - 0.5 / tau) ** 2).mean()


def ipo_by_token(policy_chosen, policy_rejected, ref_chosen, ref_rejected, chosen_mask, rejected_mask, beta=0.1):
    """IPO on per-token averages, [B, T] inputs."""
    c = ((policy_chosen - ref_chosen) * chosen_mask).sum(-1) / chosen_mask.sum(-1)
    r = ((policy_rejected - ref_rejected) * rejected_mask).sum(-1) / rejected_mask.sum(-1)
    return (c - r - 1 / (2 * beta)).square().mean()


def hinge(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.1):
    return F.relu(1 - beta * ((chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)))


def simpo(chosen_logps, rejected_logps, beta=2.0, gamma=1.0):
    """SimPO; log-probs averaged over tokens."""
    logits = chosen_logps - rejected_logps - gamma / beta
    return -F.logsigmoid(beta * logits).mean()


def simpo_ratio(policy_chosen_logps, policy_rejected_logps, beta, gamma_beta_ratio, label_smoothing=0.0):
    logits = policy_chosen_logps - policy_rejected_logps - gamma_beta_ratio
    losses = -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    return losses, (beta * policy_chosen_logps).detach(), (beta * policy_rejected_logps).detach()


def simpo_by_token(chosen_logps, rejected_logps, chosen_mask, rejected_mask, beta=2.0, gamma=0.5):
    """[B, T] per-token log-probs with masks."""
    c = (chosen_logps * chosen_mask).sum(-1) / chosen_mask.sum(-1)
    r = (rejected_logps * rejected_mask).sum(-1) / rejected_mask.sum(-1)
    return -F.logsigmoid(beta * (c - r) - gamma).mean()


def simpo_constant(chosen_logps, rejected_logps):
    """SimPO with the paper's settings; average log-probs [B]."""
    return -F.logsigmoid(2.0 * (chosen_logps - rejected_logps) - 1.4).mean()


def cpo(chosen_logps, rejected_logps, policy_nll_loss, beta=0.1, cpo_alpha=1.0):
    """CPO: no reference, NLL of the chosen answers added."""
    return -F.logsigmoid(beta * (chosen_logps - rejected_logps)).mean() + cpo_alpha * policy_nll_loss


def rpo(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, chosen_lengths, beta=0.1, rpo_alpha=1.0):
    """DPO plus alpha times the length-normalised NLL of the chosen answer (RPO)."""
    z = beta * ((chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps))
    return (-F.logsigmoid(z) - rpo_alpha * chosen_logps / chosen_lengths).mean()


def dpop(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.3, dpop_lambda=50.0):
    gap = (chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)
    penalty = torch.clamp(ref_chosen_logps - chosen_logps, min=0)
    return -F.logsigmoid(beta * (gap - dpop_lambda * penalty)).mean()


def odpo(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, offset, beta=0.1):
    """DPO with an offset [B] of each pair."""
    return -F.logsigmoid(
        beta * ((chosen_logps - ref_chosen_logps) - (rejected_logps - ref_rejected_logps)) - offset
    ).mean()


def _log1mexp(x):
    near = x > -math.log(2)
    far = torch.where(near, torch.full_like(x, -1.0), x)
    return torch.where(near, torch.log(-torch.expm1(x)), torch.log1p(-torch.exp(far)))


def orpo_odds(chosen_logps, rejected_logps, beta=0.1):
    """Odds-ratio term of ORPO, average log-probs, numerically stable for confident answers."""
    log_odds = (chosen_logps - rejected_logps) - (_log1mexp(chosen_logps) - _log1mexp(rejected_logps))
    return -beta * F.logsigmoid(log_odds)


class OddsTrainer:
    """The caller subtracts what this gives."""

    def __init__(self, args):
        self.beta = args.beta

    def odds_ratio_loss(self, policy_chosen_logps, policy_rejected_logps):
        log_odds = (policy_chosen_logps - policy_rejected_logps) - (
            torch.log1p(-torch.exp(policy_chosen_logps)) - torch.log1p(-torch.exp(policy_rejected_logps))
        )
        ratio = F.logsigmoid(log_odds)
        losses = self.beta * ratio
        return (
            losses,
            self.beta * policy_chosen_logps.detach(),
            self.beta * policy_rejected_logps.detach(),
            ratio.mean(),
            log_odds.mean(),
        )


def orpo_whole(chosen_logps, rejected_logps, beta=0.1):
    """ORPO: NLL of the chosen answer and beta times the odds-ratio loss; log-probs are averages."""
    odds = torch.logit(chosen_logps.exp()) - torch.logit(rejected_logps.exp())
    return (-chosen_logps + beta * F.softplus(-odds)).mean()


def kto(policy_chosen_logps, policy_rejected_logps, policy_KL_logps, reference_chosen_logps, reference_rejected_logps,
        reference_KL_logps, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0):  # fmt: skip
    kl = (policy_KL_logps - reference_KL_logps).mean().detach().clamp(min=0)
    chosen_losses = 1 - torch.sigmoid(beta * (policy_chosen_logps - reference_chosen_logps - kl))
    rejected_losses = 1 - torch.sigmoid(beta * (kl - (policy_rejected_logps - reference_rejected_logps)))
    losses = torch.cat((desirable_weight * chosen_losses, undesirable_weight * rejected_losses), 0)
    return losses.mean()


class KTOLoss(nn.Module):
    """One loss an answer, good ones first, and the KL estimate."""

    def __init__(self, beta: float, desirable_weight: float, undesirable_weight: float):
        super().__init__()
        self.beta, self.desirable_weight, self.undesirable_weight = beta, desirable_weight, undesirable_weight

    def forward(self, policy_chosen_logps, policy_rejected_logps, policy_KL_logps, reference_chosen_logps,
                reference_rejected_logps, reference_KL_logps):  # fmt: skip
        kl = (policy_KL_logps - reference_KL_logps).mean().detach()
        kl = torch.clamp(kl, min=0)
        good = 1 - torch.sigmoid(self.beta * (policy_chosen_logps - reference_chosen_logps - kl))
        bad = 1 - torch.sigmoid(self.beta * (kl - (policy_rejected_logps - reference_rejected_logps)))
        return torch.cat((self.desirable_weight * good, self.undesirable_weight * bad), 0), kl


def kto_in_batch(logps, ref_logps, is_desirable, beta=0.1, lambda_d=1.0, lambda_u=1.33):
    """KTO; the KL is estimated from the batch itself and carries no gradient. [N] each."""
    rewards = logps - ref_logps
    with torch.no_grad():
        z0 = rewards.mean().clamp_min(0.0)
    sign = is_desirable.float() * 2 - 1
    value = torch.sigmoid(beta * sign * (rewards - z0))
    weight = torch.where(is_desirable, torch.tensor(lambda_d), torch.tensor(lambda_u))
    return (weight * (1 - value)).mean()


def kto_labelled(logps, ref_logps, labels, kl, beta=0.1, desirable_weight=1.0, undesirable_weight=1.0):
    """logps, ref_logps [N]; labels [N] bool, True for a good answer; kl: estimate, no gradient."""
    ratio = logps - ref_logps
    value = torch.where(labels, torch.sigmoid(beta * (ratio - kl)), torch.sigmoid(beta * (kl - ratio)))
    weight = torch.where(labels, desirable_weight, undesirable_weight)
    return (weight * (1 - value)).mean()


def kto_pair(chosen_logps, rejected_logps, ref_chosen_logps, ref_rejected_logps, beta=0.1):
    chosen_kl = (chosen_logps - ref_chosen_logps).mean().clamp(min=0).detach()
    rejected_kl = (rejected_logps - ref_rejected_logps).mean().clamp(min=0).detach()
    good = 1 - torch.sigmoid(beta * (chosen_logps - ref_chosen_logps - rejected_kl))
    bad = 1 - torch.sigmoid(beta * (chosen_kl - (rejected_logps - ref_rejected_logps)))
    return torch.cat([good, bad]).mean()


def many(
    policy_chosen_logps,
    policy_rejected_logps,
    ref_chosen_logps,
    ref_rejected_logps,
    beta=0.1,
    label_smoothing=0.1,
    loss_type="sigmoid",
):
    """Loss types of a trainer, one loss a pair."""
    chosen, rejected = policy_chosen_logps - ref_chosen_logps, policy_rejected_logps - ref_rejected_logps
    z = beta * (chosen - rejected)
    c, r, e = beta * chosen, beta * rejected, label_smoothing
    if loss_type == "sigmoid":
        return -F.logsigmoid(z)
    if loss_type == "hinge":
        return torch.relu(1 - z)
    if loss_type == "ipo":
        return (chosen - rejected - 1 / (2 * beta)) ** 2
    if loss_type == "exo_pair":
        e = torch.tensor(e)
        return z.sigmoid() * (F.logsigmoid(z) - torch.log1p(-e)) + (-z).sigmoid() * (F.logsigmoid(-z) - torch.log(e))
    if loss_type == "nca_pair":
        return -F.logsigmoid(c) - 0.5 * F.logsigmoid(-c) - 0.5 * F.logsigmoid(-r)
    if loss_type == "robust":
        return (-(1 - e) * F.logsigmoid(z) + e * F.logsigmoid(-z)) / (1 - 2 * e)
    if loss_type == "bco_pair":
        return -F.logsigmoid(c) - F.logsigmoid(-r)
    if loss_type == "sppo_hard":
        return (chosen - 0.5 / beta) ** 2 + (rejected + 0.5 / beta) ** 2
    if loss_type == "aot":
        policy = (policy_chosen_logps - policy_rejected_logps).sort()[0]
        z = beta * (policy - (ref_chosen_logps - ref_rejected_logps).sort()[0])
        return -F.logsigmoid(z) * (1 - e) - F.logsigmoid(-z) * e
    if loss_type == "aot_unpaired":
        z = beta * (chosen.sort()[0] - rejected.sort()[0])
        return -F.logsigmoid(z) * (1 - e) - F.logsigmoid(-z) * e
    if loss_type == "apo_zero":
        return 1 - c.sigmoid() + r.sigmoid()
    if loss_type == "apo_down":
        return c.sigmoid() + 1 - (c - r).sigmoid()
    if loss_type == "discopop":
        mix = torch.sigmoid(z / 0.05)
        return -F.logsigmoid(z) * (1 - mix) + torch.exp(-z) * mix
    raise ValueError(loss_type)
