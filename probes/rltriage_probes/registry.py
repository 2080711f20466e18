"""Every role, listed by hand. A role's module is imported when it is first asked for."""

from __future__ import annotations

import importlib

from rltriage_probes.contract import ROLE_STAGES
from rltriage_probes.model import Role

_MODULES = {
    "reward": "rltriage_probes.reward.reward",
    "extract_answer": "rltriage_probes.reward.extract_answer",
    "reward_shaping": "rltriage_probes.reward.reward_shaping",
    "reward_model_loss": "rltriage_probes.reward.reward_model_loss",
    "advantages": "rltriage_probes.advantages.advantages",
    "gae": "rltriage_probes.advantages.gae",
    "logprobs": "rltriage_probes.logprobs.logprobs",
    "entropy": "rltriage_probes.logprobs.entropy",
    "policy_loss": "rltriage_probes.loss.policy_loss",
    "kl": "rltriage_probes.loss.kl",
    "completion_mask": "rltriage_probes.loss.completion_mask",
    "value_loss": "rltriage_probes.loss.value_loss",
    "aggregate": "rltriage_probes.loss.aggregate",
    "importance_weights": "rltriage_probes.loss.importance_weights",
    "preference_loss": "rltriage_probes.loss.preference_loss",
    "train_step": "rltriage_probes.loss.train_step",
    "decode": "rltriage_probes.generation.decode",
    "chat_tokens": "rltriage_probes.generation.chat_tokens",
    "generate": "rltriage_probes.generation.generate",
    "sft_labels": "rltriage_probes.sft.sft_labels",
    "sft_loss": "rltriage_probes.sft.sft_loss",
    "model_factory": "rltriage_probes.lora.model_factory",
    "environment": "rltriage_probes.environment.environment",
}


def names() -> tuple[str, ...]:
    return tuple(ROLE_STAGES)


def role(name: str) -> Role:
    """The role of that name; `LookupError` for one that has no probe."""
    if name not in _MODULES:
        raise LookupError(f"there is no probe for the role {name!r}")
    found = importlib.import_module(_MODULES[name]).ROLE
    assert isinstance(found, Role)
    return found
