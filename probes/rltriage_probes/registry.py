"""Every role, listed by hand. A role's module is imported when it is first asked for."""

from __future__ import annotations

import importlib

from rltriage_probes.contract import ROLE_STAGES
from rltriage_probes.model import Role

_MODULES = {
    "reward": "rltriage_probes.reward.reward",
    "advantages": "rltriage_probes.advantages.advantages",
    "logprobs": "rltriage_probes.logprobs.logprobs",
    "entropy": "rltriage_probes.logprobs.entropy",
    "policy_loss": "rltriage_probes.loss.policy_loss",
    "kl": "rltriage_probes.loss.kl",
    "completion_mask": "rltriage_probes.loss.completion_mask",
    "decode": "rltriage_probes.generation.decode",
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
