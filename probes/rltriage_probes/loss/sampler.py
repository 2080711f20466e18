"""The weight that corrects for a sampler which is not the trainer's policy.

    w = min(π_old / π_rollout, C)           constant under differentiation

Truncated importance sampling (TIS): Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
training"; C = 2 is usual. A token outside the bounds may be dropped instead (IcePop, MIS), and the ratio may be one a
sequence. All cases of the other checks have π_rollout = π_old, so that w = 1 there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rltriage_probes import probing, solver
from rltriage_probes.contract import Agrees, Check
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Subject
from rltriage_probes.solver import Knobs, Options, Result, Seen, Solution

ASKS = "how is the difference between sampler and trainer corrected?"
PROBE = "policy_loss.sampler"

INVERTED = Pitfall(
    id="LOSS-SAMPLER-INVERTED",
    family="ratio",
    says="weights tokens with sampler over trainer instead of trainer over sampler",
)

BOUND = Pitfall(
    id="LOSS-SAMPLER-BOUND",
    family="clip-direction",
    says="bounds the sampler's weight from below where it should from above",
)

_AXIS = Axis(
    name="weight",
    options=(
        Option(name="none", standing="standard", says="no correction for the sampler"),
        Option(name="capped", says="token weight, capped", source="TIS; verl, slime"),
        Option(name="plain", says="token weight, not capped"),
        Option(name="dropped", says="tokens above the cap are dropped", source="MIS; verl, TRL"),
        Option(name="sequence capped", says="sequence weight, capped", source="TRL sequence_truncate"),
        Option(name="sequence dropped", says="sequences above the cap are dropped", source="TRL sequence_mask"),
        Option(name="sequence plain", says="sequence weight, not capped"),
        Option(name="geometric capped", says="geometric mean weight of a sequence, capped"),
        probing.as_pitfall("inverted capped", INVERTED),
        probing.as_pitfall("inverted plain", INVERTED),
        probing.as_pitfall("inverted dropped", INVERTED),
        probing.as_pitfall("floored", BOUND),
    ),
)


def check(
    subject: Subject, case: Case, policy: Solution, observe: Callable[[Subject, Case], tuple[Seen, Seen, bool]]
) -> Iterator[Check]:
    """Repeat a case with another sampler; the surrogate that was found stays fixed."""
    old = case.inputs["old_logprobs"]
    noise = torch.randn(old.shape, generator=probing.generator("another sampler")) * 0.6
    moved = Case(name="another sampler", inputs={**case.inputs, "rollout_logprobs": old + noise})
    try:
        seen, _, _ = observe(subject, moved)
    except CallFailed as e:
        yield probing.raised(PROBE, ASKS, moved.name, e)
        return
    caps = probing.knob(
        subject, "cap", (), (2.0, 3.0, 5.0, 10.0),
        active=lambda o: o["weight"].split()[-1] in ("capped", "dropped", "floored"),
        within=(1.0, 1e4),
    )  # fmt: skip
    found = solver.solve([seen], lambda s, o, k: _reference(s, o, k, policy), (_AXIS,), (caps,), max_pitfalls=1)
    if found is None:
        return  # many corrections exist that are not known here, and none of them is a fault
    convention = solver.convention((_AXIS,), found)
    if found.pitfalls:
        right = {"weight": found.options["weight"].removeprefix("inverted ").replace("floored", "capped")}
        gap = probing.distance([seen], lambda s, o, k: _reference(s, o, k, policy), right, {"cap": 2.0, **found.knobs})
        outcome = probing.known_bug(solver.named(found.pitfalls, dict(found.knobs)), convention, gap)
        yield Check(probe=PROBE, asks=ASKS, outcome=outcome)
    else:
        yield Check(probe=PROBE, asks=ASKS, outcome=Agrees(convention=convention))


def _reference(s: Seen, options: Options, knobs: Knobs, policy: Solution) -> Result:
    """The policy-gradient part with every token's objective weighted."""
    tokens = surrogate.tokens(s, policy.options, policy.knobs)
    weighted = tokens * _weight(s, options["weight"], knobs.get("cap", 0.0))
    key = ("sampler", options["weight"], knobs.get("cap", 0.0))
    value = surrogate.aggregated(weighted, s, policy.options, policy.knobs, key)
    value = value if policy.options["sign"] == "plus" else -value
    return Result(value=value, grads=lambda: surrogate.gradients(value, s))


def _weight(s: Seen, choice: str, cap: float) -> Tensor:
    mask = surrogate.tensor(s, "completion_mask")
    d = (surrogate.tensor(s, "old_logprobs") - surrogate.tensor(s, "rollout_logprobs")).detach() * mask
    if choice.startswith("inverted"):
        d = -d
    if choice.startswith("sequence"):
        d = d.sum(-1, keepdim=True).expand_as(mask)
    if choice.startswith("geometric"):
        d = (d.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)).expand_as(mask)
    w = d.exp()
    return {
        "none": lambda: torch.ones_like(w), "plain": lambda: w, "capped": lambda: w.clamp(max=cap),
        "floored": lambda: w.clamp(min=cap),
        "dropped": lambda: torch.where(w <= cap, w, torch.zeros_like(w)),
    }[choice.rsplit(maxsplit=1)[-1]]()  # fmt: skip
