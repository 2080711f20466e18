"""The KL part of a loss: estimators of KL(policy || reference) on sampled tokens.

With r = ref_logp - logp:   k1 = -r     k2 = r²/2     k3 = exp(r) - r - 1

Schulman 2020, "Approximating KL divergence" (joschu.net/blog/kl-approx). As a loss, the expected gradient of k1 is 0
and that of k2 is the gradient of the reverse KL (Tang and Munos 2025, arXiv:2506.09477).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rltriage_probes import probing
from rltriage_probes.model import Axis, Option, Pitfall, Subject

ESTIMATOR = Pitfall(
    id="KL-ESTIMATOR", family="kl-estimator", says="computes another KL estimator than the declared one"
)
K1_LOSS = Pitfall(
    id="KL-K1-AS-LOSS", family="kl-estimator", says="differentiates the plain log-ratio, whose expected gradient is 0"
)
REVERSED = Pitfall(id="KL-REVERSED", family="kl-direction", says="exchanges policy and reference inside the estimator")
SIGN = Pitfall(id="KL-SIGN", family="sign", says="has the opposite sign, so drifting from the reference is rewarded")
DETACHED = Pitfall(
    id="KL-DETACHED", family="gradient-cut", says="cuts the gradient of the KL term, so it restrains nothing"
)
NO_SQUARE = Pitfall(
    id="KL-K2-NO-SQUARE", family="kl-estimator", says="halves the absolute log-ratio instead of its square"
)
NOT_ZERO = Pitfall(
    id="KL-NOT-ZERO", family="kl-estimator", says="leaves out a term of the k3 estimator, the -1 or the log-ratio"
)
MISSING = Pitfall(
    id="KL-MISSING", family="inert-option", says="takes reference log-probs and a weight, and adds no KL term"
)
OVERFLOW = Pitfall(
    id="KL-OVERFLOW", family="nonfinite", says="exponentiates the log-ratio before it masks, so filler becomes NaN"
)

SYNONYMS = {
    "k1": "k1", "kl": "k1", "k2": "k2", "mse": "k2", "k3": "k3", "low_var_kl": "k3", "abs": "abs", "k3+": "k3+",
    "k2+": "k2", "kl3": "k3", "kl2": "k2", "kl1": "k1",
}  # fmt: skip
"""Spellings that frameworks use, by estimator."""


def wanted(subject: Subject) -> str:
    """The estimator that this function should compute: what its own setting says, else the declared one; empty: any."""
    for value in (subject.bound.settings.get("kl_estimator"), subject.intent.get("kl_estimator")):
        found = SYNONYMS.get(str(value or "").lower(), "")
        if found:
            return found
    return ""


def estimator_axis(*, with_ratio: bool, wanted: str = "", pitfall: Pitfall | None = None) -> Axis:
    """Estimators; the declared one first, the others a pitfall where one is declared."""
    options = [
        Option(name="k3", standing="standard", says="KL estimator k3", source="GRPO, arXiv:2402.03300"),
        Option(name="k1", says="KL estimator k1 (plain log-ratio)", source="PPO in OpenRLHF"),
        Option(name="k2", says="KL estimator k2 (half the squared log-ratio)"),
        Option(name="abs", says="absolute log-ratio", source="verl abs"),
        Option(name="square", says="squared log-ratio", source="prime-rl kl_tau"),
        Option(name="k3 clamped", says="KL estimator k3, clamped", source="verl low_var_kl; OpenRLHF"),
        Option(name="k1 clamped", says="KL estimator k1, clamped", source="OpenRLHF"),
        Option(name="k2 clamped", says="KL estimator k2, clamped", source="OpenRLHF"),
        Option(name="k3+", says="value k3 with the gradient of k2", source="verl k3+"),
        probing.as_pitfall("half abs", NO_SQUARE),
        probing.as_pitfall("k3 without -1", NOT_ZERO),
        probing.as_pitfall("k3 without -r", NOT_ZERO),
    ]
    if with_ratio:
        options.append(Option(name="k3 weighted", says="k3 times the ratio", source="DeepSeek-V3.2, arXiv:2512.02556"))
        options.append(Option(name="k3 weighted detached", says="k3 times the detached ratio"))
    if wanted and pitfall is not None:
        other = [o.standing != "pitfall" and o.name.split()[0].rstrip("+") != wanted.rstrip("+") for o in options]
        options = [probing.wrong_here(o, pitfall, wrong) for o, wrong in zip(options, other, strict=True)]
        options.sort(key=lambda o: o.standing == "pitfall")
    return Axis(name="estimator", options=tuple(options))


def direction_axis(subject: Subject, when: Callable[[Mapping[str, str]], bool] | None = None) -> Axis:
    """Which of the two policies comes first; the other order is right where the function says that it means it."""
    says_so = probing.claims(subject, r"kl\s*\(\s*(p_|pi_|π_)?ref", r"forward[ -]kl")
    other = (
        Option(name="reversed", says="KL(reference || policy)") if says_so else probing.as_pitfall("reversed", REVERSED)
    )
    return Axis(name="direction", options=(Option(name="own", standing="standard"), other), when=when)


def estimate(name: str, logp: Tensor, ref: Tensor, ratio: Callable[[], Tensor]) -> Tensor:
    """Per-token estimate [B, T]."""
    r = ref.detach() - logp
    k3 = r.exp() - r - 1
    made: dict[str, Callable[[], Tensor]] = {
        "k1": lambda: -r,
        "k2": lambda: r.square() / 2,
        "k3": lambda: k3,
        "k3 without -1": lambda: r.exp() - r,
        "k3 without -r": lambda: r.exp() - 1,
        "abs": r.abs,
        "half abs": lambda: r.abs() / 2,
        "square": r.square,
        "k3 clamped": lambda: (r.clamp(-20, 20).exp() - r.clamp(-20, 20) - 1).clamp(-10, 10),
        "k1 clamped": lambda: (-r).clamp(-10, 10),
        "k2 clamped": lambda: (r.square() / 2).clamp(-10, 10),
        "k3+": lambda: (k3 - r.square() / 2).detach() + r.square() / 2,
        "k3 weighted": lambda: k3 * ratio(),
        "k3 weighted detached": lambda: k3 * ratio().detach(),
    }
    return made[name]()


def reversed_estimate(name: str, logp: Tensor, ref: Tensor, ratio: Callable[[], Tensor]) -> Tensor:
    """The same with policy and reference exchanged: r = logp - ref_logp."""
    return estimate(name, ref.detach() - logp, torch.zeros_like(ref), ratio)
