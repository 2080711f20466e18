"""Seeded pairs of answers in every form in which preference losses take them, and how they are observed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from rltriage_probes import probing
from rltriage_probes.model import Case, Subject
from rltriage_probes.solver import Seen

PAIRS, CHOSEN_WIDTH, REJECTED_WIDTH, VOCABULARY = 6, 7, 5, 4
EXAMPLES, MISMATCHED = 2 * PAIRS, 5
IGNORE = -100
SIDES = ("chosen", "rejected")

_SETTINGS: dict[str, dict[str, float]] = {
    "pairs on both sides of the reference": {
        "beta": 0.3, "label_smoothing": 0.1, "target_margin": 0.7, "margin_ratio": 0.4, "desirable_weight": 1.3,
        "undesirable_weight": 0.8, "nll_weight": 0.6, "penalty_weight": 3.0,
    },
    "other pairs, larger beta": {
        "beta": 0.8, "label_smoothing": 0.25, "target_margin": 0.3, "margin_ratio": 0.9, "desirable_weight": 0.7,
        "undesirable_weight": 1.6, "nll_weight": 1.7, "penalty_weight": 0.5,
    },
    "options switched off": {
        "beta": 1.5, "label_smoothing": 0.0, "target_margin": 0.0, "margin_ratio": 0.0, "desirable_weight": 1.0,
        "undesirable_weight": 1.0, "nll_weight": 0.0, "penalty_weight": 0.0,
    },
}  # fmt: skip
NAMES = tuple(_SETTINGS)
SETTINGS = frozenset(_SETTINGS[NAMES[0]])
_LENGTHS = {"chosen": (7, 3, 5, 2, 6, 4), "rejected": (2, 5, 3, 4, 5, 3)}
DIFFERENTIATED = (
    *(f"{s}_{k}" for s in (*SIDES, "pair") for k in ("logprobs", "token_logprobs", "logits")),
    "chosen_logratios", "rejected_logratios", "policy_logratios", "preference_logits", "chosen_nll",
    "example_logprobs", "kl_logprobs",
)  # fmt: skip
"""Inputs through which the policy is trained."""


def pairs(name: str) -> Case:
    """All forms of the same pairs: one number an answer, one a token, logits, both answers in one batch."""
    g = probing.generator("pairs, " + name)
    inputs: dict[str, object] = dict(_SETTINGS[name])
    for side, width in (("chosen", CHOSEN_WIDTH), ("rejected", REJECTED_WIDTH)):
        inputs |= _answers(side, width, g)
    inputs |= {f"pair_{kind}": _both(inputs, "", kind) for kind in ("token_logprobs", "logits", "labels", "mask")}
    inputs |= {f"ref_pair_{kind}": _both(inputs, "ref_", kind) for kind in ("token_logprobs", "logits")}
    for front in ("", "ref_"):
        inputs[f"{front}pair_logprobs"] = torch.cat([_tensor(inputs, f"{front}{s}_logprobs") for s in SIDES])
    inputs["pair_lengths"] = torch.cat([_tensor(inputs, f"{s}_lengths") for s in SIDES])
    for s in SIDES:
        inputs[f"{s}_logratios"] = _tensor(inputs, f"{s}_logprobs") - _tensor(inputs, f"ref_{s}_logprobs")
    for front, word in (("", "policy_logratios"), ("ref_", "ref_logratios")):
        inputs[word] = _tensor(inputs, f"{front}chosen_logprobs") - _tensor(inputs, f"{front}rejected_logprobs")
    inputs["preference_logits"] = _tensor(inputs, "policy_logratios") - _tensor(inputs, "ref_logratios")
    inputs["margin"] = torch.rand(PAIRS, generator=g) * 1.5
    inputs["chosen_nll"] = torch.tensor(0.8) + torch.rand((), generator=g)
    inputs |= _examples(name, g)
    return Case(name=name, inputs=inputs)


def _answers(side: str, width: int, g: torch.Generator) -> dict[str, object]:
    lengths = torch.tensor(_LENGTHS[side])
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    mask[0 if side == "chosen" else 1, 1] = 0.0  # a hole, as tool output leaves one
    policy = -torch.rand(PAIRS, width, generator=g).square() * 1.6 - 0.02
    ref = (policy + 0.6 * torch.randn(PAIRS, width, generator=g)).clamp(max=-0.01)
    ids = torch.randint(0, VOCABULARY, (PAIRS, width), generator=g)
    return {
        f"{side}_token_logprobs": policy, f"ref_{side}_token_logprobs": ref, f"{side}_mask": mask,
        f"{side}_logprobs": (policy * mask).sum(-1), f"ref_{side}_logprobs": (ref * mask).sum(-1),
        f"{side}_lengths": mask.sum(-1).long(), f"{side}_labels": ids.where(mask > 0, torch.tensor(IGNORE)),
        f"{side}_logits": torch.randn(PAIRS, width, VOCABULARY, generator=g),
        f"ref_{side}_logits": torch.randn(PAIRS, width, VOCABULARY, generator=g),
    }  # fmt: skip


def _both(inputs: dict[str, object], front: str, kind: str) -> Tensor:
    """Chosen answers before rejected ones, padded to one width."""
    filler = {"labels": IGNORE, "mask": 0.0}.get(kind, -0.7)
    padded: list[Tensor] = []
    for side in SIDES:
        x = _tensor(inputs, f"{front}{side}_{kind}")
        missing = CHOSEN_WIDTH - x.shape[1]
        padding = (0, 0, 0, missing) if kind == "logits" else (0, missing)
        padded.append(functional.pad(x, padding, value=filler))
    return torch.cat(padded)


def _examples(name: str, g: torch.Generator) -> dict[str, object]:
    """Answers that are judged alone, and answers to other prompts whose mean log-ratio has either sign."""
    policy = -torch.rand(EXAMPLES, generator=g) * 4 - 0.3
    other = -torch.rand(MISMATCHED, generator=g) * 3 - 0.6
    drift = -0.3 if name == NAMES[1] else 0.4
    noise = [
        x - x.mean() for x in (1.2 * torch.randn(EXAMPLES, generator=g), 0.6 * torch.randn(MISMATCHED, generator=g))
    ]
    return {
        "example_logprobs": policy, "ref_example_logprobs": policy - drift + noise[0],
        "desirable": torch.arange(EXAMPLES) % 5 % 2 == 0,
        "kl_logprobs": other, "ref_kl_logprobs": other - drift + noise[1],
        "kl_estimate": torch.tensor(0.4 if name == NAMES[0] else 0.15),
    }  # fmt: skip


def uneven(case: Case) -> Case:
    """The same with fewer rejected than chosen answers, as only losses of single answers take it."""
    keep = PAIRS - 2
    inputs = {k: v[:keep] if "rejected" in k and isinstance(v, Tensor) else v for k, v in case.inputs.items()}
    return Case(name=case.name + ", fewer rejected", inputs=inputs)


def _tensor(inputs: dict[str, object], word: str) -> Tensor:
    got = inputs[word]
    assert isinstance(got, Tensor)
    return got


def observe(subject: Subject, case: Case) -> Seen:
    """Value and gradients with respect to everything through which the policy is trained. Raises `CallFailed`."""
    s = probing.observe(subject, case, DIFFERENTIATED)
    if s.value.dim() == 2 and s.value.shape[1] == 1:
        s.value = s.value.squeeze(1)
    for word in DIFFERENTIATED:
        x = s.inputs.get(word)
        if word in subject.bound.names and isinstance(x, Tensor):
            s.cache["leaf:" + word] = x.clone().requires_grad_(True)
    return s


def seen(case: Case) -> Seen:
    """A case as the reference takes it, with nothing observed."""
    inputs = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in case.inputs.items()}
    return Seen(case=case.name, inputs=inputs, value=torch.zeros(()), grads={}, dtype="float32")


def takes(subject: Subject) -> frozenset[str]:
    """Words that reach the function."""
    return frozenset(subject.bound.names)
