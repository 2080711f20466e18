"""Losses and estimators of polgrad and rlax, under signatures that users have.

polgrad computes in torch. rlax computes in jax: `in_jax` makes a torch function of it whose gradient is jax's own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import polgrad
import rlax
import torch
from polgrad import Aggregation, ClipConfig, KLEstimator, KLLossConfig, PolicyLossConfig, RatioKind, SurrogateKind

jax.config.update("jax_enable_x64", True)


def in_jax(function, x, *rest):
    """`function(x, *rest)`, a scalar, with d/dx."""
    arrays = [jnp.asarray(v.detach().numpy()) if isinstance(v, torch.Tensor) else v for v in rest]

    class Bridge(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            value, grad = jax.value_and_grad(function)(jnp.asarray(x.detach().numpy()), *arrays)
            ctx.save_for_backward(torch.from_numpy(np.asarray(grad).copy()))
            return torch.tensor(float(value), dtype=x.dtype)

        @staticmethod
        def backward(ctx, upstream):
            (grad,) = ctx.saved_tensors
            return upstream * grad.to(upstream.dtype)

    return Bridge.apply(x)


# polgrad


def _loss(config, logprobs, old_logprobs, advantages, mask, ref_logprobs=None):
    given = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages, "response_mask": mask.bool()}
    return polgrad.policy_loss(config, **given, ref_logprobs=ref_logprobs).loss


def ppo(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """Clipped surrogate, token mean. advantages [B, T]."""
    clip = ClipConfig(clip_eps, clip_eps)
    config = PolicyLossConfig(RatioKind.TOKEN, SurrogateKind.PG_CLIP, clip, Aggregation.TOKEN_MEAN)
    return _loss(config, logprobs, old_logprobs, advantages, mask)


def grpo(logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps=0.2, beta=0.04):
    """Clipped surrogate and k3, mean over tokens, then over sequences. advantages [B, T]."""
    config = PolicyLossConfig(
        RatioKind.TOKEN, SurrogateKind.PG_CLIP, ClipConfig(clip_eps, clip_eps), Aggregation.SEQ_MEAN_TOKEN_MEAN,
        kl=KLLossConfig(KLEstimator.K3, beta),
    )  # fmt: skip
    return _loss(config, logprobs, old_logprobs, advantages, mask, ref_logprobs)


def dual_clip(logprobs, old_logprobs, advantages, mask, clip_low=0.2, clip_high=0.28, clip_ratio_c=3.0):
    """Dual clip with two distances, sum over tokens, mean over sequences. advantages [B, T]."""
    clip = ClipConfig(clip_low, clip_high, clip_ratio_c)
    config = PolicyLossConfig(RatioKind.TOKEN, SurrogateKind.PG_CLIP, clip, Aggregation.SEQ_MEAN_TOKEN_SUM)
    return _loss(config, logprobs, old_logprobs, advantages, mask)


def gspo(logprobs, old_logprobs, advantages, mask, clip_low=3e-4, clip_high=4e-4):
    """GSPO. advantages [B, T]."""
    clip = ClipConfig(clip_low, clip_high)
    config = PolicyLossConfig(RatioKind.SEQUENCE, SurrogateKind.PG_CLIP, clip, Aggregation.SEQ_MEAN_TOKEN_MEAN)
    return _loss(config, logprobs, old_logprobs, advantages, mask)


def cispo(logprobs, old_logprobs, advantages, mask, clip_high=0.28):
    """CISPO with an upper bound, token mean. advantages [B, T]."""
    clip = ClipConfig(None, clip_high)
    config = PolicyLossConfig(RatioKind.TOKEN, SurrogateKind.CISPO, clip, Aggregation.TOKEN_MEAN)
    return _loss(config, logprobs, old_logprobs, advantages, mask)


def k1(logprobs, ref_logprobs, mask):
    return polgrad.kl_estimate(logprobs, ref_logprobs, KLEstimator.K1, response_mask=mask.bool())


def k2(logprobs, ref_logprobs, mask):
    return polgrad.kl_estimate(logprobs, ref_logprobs, KLEstimator.K2, response_mask=mask.bool())


def k3(logprobs, ref_logprobs, mask):
    return polgrad.kl_estimate(logprobs, ref_logprobs, KLEstimator.K3, response_mask=mask.bool())


def group_normalised(rewards, group_ids):
    return polgrad.grpo_advantages(rewards, group_ids, polgrad.GroupNormConfig(eps=1e-4))


def leave_one_out(rewards, group_ids):
    return polgrad.rloo_advantages(rewards, group_ids)


def generalised_advantages(token_level_rewards, values, response_mask, gamma=0.9, lam=0.8):
    """Advantages and returns, [B, T] each."""
    config = polgrad.GAEConfig(gamma=gamma, lam=lam)
    return polgrad.gae(token_level_rewards, values, config=config, response_mask=response_mask.bool())


def value_loss(values, old_values, returns, mask, cliprange_value=0.2):
    """Clipped, token mean."""
    given = {"clip_eps": cliprange_value, "aggregation": Aggregation.TOKEN_MEAN}
    return polgrad.value_loss(values, old_values, returns, mask.bool(), **given).loss


def token_mean(loss_mat, loss_mask):
    return polgrad.aggregate(loss_mat, loss_mask.bool(), Aggregation.TOKEN_MEAN)


def sequence_mean(loss_mat, loss_mask):
    return polgrad.aggregate(loss_mat, loss_mask.bool(), Aggregation.SEQ_MEAN_TOKEN_MEAN)


# rlax


def rlax_surrogate(logprobs, old_logprobs, advantages, mask, clip_eps=0.2):
    """Clipped surrogate over the kept tokens. advantages [B, T]."""

    def loss(new, old, adv, keep):
        chosen = jnp.nonzero(keep.reshape(-1), size=int(mask.sum()))[0]
        ratio = jnp.exp(new - old).reshape(-1)[chosen]
        return rlax.clipped_surrogate_pg_loss(ratio, adv.reshape(-1)[chosen], clip_eps)

    return in_jax(loss, logprobs, old_logprobs, advantages, mask)


def rlax_gae(rewards: list[list[float]], values: list[list[float]], gamma: float, lam: float) -> list[list[float]]:
    """GAE advantages of episodes of unequal length, each of which ends at its last step."""
    out = []
    for r, v in zip(rewards, values):
        discounts = jnp.asarray([gamma] * (len(r) - 1) + [0.0])
        advantages = rlax.truncated_generalized_advantage_estimation(
            jnp.asarray(r), discounts, lam, jnp.asarray([*v, 0.0])
        )
        out.append([float(a) for a in advantages])
    return out


def rlax_entropy(logits):
    """Entropy [B, T] in nats."""
    flat = jnp.asarray(logits.detach().numpy()).reshape(-1, 1, logits.shape[-1])
    one = jax.vmap(lambda z: -rlax.entropy_loss(z, jnp.ones((1,))))
    return torch.from_numpy(np.asarray(one(flat)).copy()).reshape(logits.shape[:-1])
