"""Relations of advantage functions that no formula covers, judged by what the function's own documentation says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from rltriage_probes import probing, tolerance
from rltriage_probes.contract import Check
from rltriage_probes.model import CallFailed, Case, Pitfall, Subject
from rltriage_probes.solver import Seen

ABSTAINED = Pitfall(
    id="ADV-ABSTAIN", family="nonfinite", says="lets one missing reward wipe out or distort its whole group"
)
REJECTED = Pitfall(
    id="ADV-REJECTED-VOTE",
    family="baseline",
    says="lets rows that were thrown out vote in the mean and std of the rest",
)


def per_sample(value: Tensor, inputs: object) -> Tensor:
    """[N] from [N] or [N, T]: the entry at the row's first trained position."""
    if value.dim() == 1:
        return value
    mask = inputs["completion_mask"]  # type: ignore[index]
    assert isinstance(mask, Tensor)
    return value.gather(1, mask.argmax(dim=1, keepdim=True)).squeeze(1)


def ordering(subject: Subject, case: Case, order: Pitfall, sign: Pitfall) -> Iterator[Check]:
    """Inside a group the better sample must not get the lower advantage, whatever the baseline is.

    The samples of `case` differ in nothing but their rewards: a function may well mark long samples down.
    """
    asks = "does a better sample of a group get the higher advantage?"
    try:
        s = probing.observe(subject, case)
    except CallFailed:
        return
    rewards, ids = s.inputs["rewards"], s.inputs["group_ids"]
    assert isinstance(rewards, Tensor) and isinstance(ids, Tensor)
    a = per_sample(s.value, s.inputs)
    if a.shape != rewards.shape:
        return
    same = ids[:, None] == ids[None]
    better = same & (rewards[:, None] > rewards[None] + 1e-6)
    flipped = better & (a[:, None] < a[None] - 1e-6 * a.abs().max())
    share = float(flipped.sum()) / max(int(better.sum()), 1)
    if share == 0.0:
        yield probing.holds("advantages.order", asks, "a better sample never gets less than a worse one of its group")
        return
    i, j = (int(x) for x in flipped.nonzero()[0])
    says = (
        f"reward {float(rewards[i]):.4g} gets advantage {float(a[i]):.4g}, but reward {float(rewards[j]):.4g} "
        f"of the same group gets {float(a[j]):.4g}; so it is for {share:.0%} of the pairs"
    )
    yield probing.violation(
        "advantages.order", asks, says, *((sign, order) if share > 0.9 else (order,)), numbers={"flipped": share}
    )


def shuffled(subject: Subject, s: Seen, pitfall: Pitfall) -> Iterator[Check]:
    """With group ids at hand, the order of the rows says nothing."""
    documented = probing.claims(subject, r"adjacent|contiguous|consecutive|neighbou?rs|prompt-major|sorted by")
    free = probing.claims(subject, r"need not be (adjacent|contiguous)|any order|not (necessarily )?adjacent")
    nested = any("per group" in slot.form for slot in subject.bound.report.slots)
    if "group_ids" not in subject.bound.names or nested or (documented and not free):
        return
    asks = "are groups taken from the ids rather than from the order of the rows?"
    n = s.value.shape[0]
    order = torch.randperm(n, generator=probing.generator("shuffled"))
    moved = {k: _moved(v, order, n) for k, v in s.inputs.items()}
    if "is_last_step" in subject.bound.names:
        return
    try:
        again = probing.observe(subject, Case(name="shuffled rows", inputs=_narrow(moved)))
    except CallFailed:
        return
    found = probing.gap_of("value", "shuffled rows", again.value, s.value[order], "float16")
    if found is None:
        yield probing.holds("advantages.shuffled", asks, "groups are taken from the ids")
        return
    severity = "hard" if free else "soft"
    says = "the same samples in another order get other advantages although their group ids went with them"
    yield probing.violation("advantages.shuffled", asks, says, pitfall, gap=found, severity=severity)


def _moved(v: object, order: Tensor, n: int) -> object:
    if isinstance(v, Tensor) and v.dim() and v.shape[0] == n:
        return v[order]
    if isinstance(v, list) and len(v) == n:
        return [v[int(i)] for i in order]
    return v


def _narrow(inputs: dict[str, object]) -> dict[str, object]:
    return {k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in inputs.items()}


MISSING = (
    r"\bnan\b", r"abstain", r"unscored|not scored|has no score", r"missing (reward|score)s?",
    r"(reward|score)s? (of|is|are|may be|can be) None", r"None (means|if the (reward|verifier)|for a)",
)  # fmt: skip
"""What documentation says when rewards can be missing."""
NO_VOTE = (
    r"no score|no vote|no part|takes? no|neutral|abstain|unscored|ignored|excluded|left out",
    r"(only|those of) (the |its |their )?(scored|valid|other|remaining)|scored (rollouts|samples|ones)",
)  # fmt: skip
"""What documentation says when a missing reward must not count."""


def mutation(subject: Subject, s: Seen, pitfall: Pitfall) -> Iterator[Check]:
    """The caller's rewards go on to the log: a function that means to change them says so."""
    if "rewards" not in s.mutated or probing.claims(
        subject, r"in.?place|mutat|overwrit|modif|writes", r"rewards? (is|are) replaced"
    ):
        return
    says = "the caller's rewards are other numbers after the call, so what is logged or used next is not the reward"
    yield probing.violation("advantages.aliasing", "are the caller's rewards left alone?", says, pitfall)


def unscored(subject: Subject, case: Case, expected: Callable[[Case], Tensor | None]) -> Iterator[Check]:
    """A reward that is missing: where the function says that it copes, it must not harm its group.

    `expected` gives the advantages of a case under the convention that the function was found to follow.
    """
    mentions = probing.claims(subject, *MISSING)
    handles = (
        re.search(r"isnan|nan_to_num|nanmean|nansum|nanstd|nanvar|[\"']nan[\"']|\.nan\b", subject.source) is not None
    )
    if not (mentions or handles) or "rewards" not in subject.bound.names:
        return
    asks = "does a missing reward leave the other samples of its group alone?"
    probe = "advantages.unscored"
    size = int(case.inputs["group_size"])
    missing = size + 1
    rewards = case.inputs["rewards"].clone()
    rewards[missing] = torch.nan
    try:
        s = probing.observe(subject, Case(name="one missing reward", inputs={**case.inputs, "rewards": rewards}))
    except CallFailed as e:
        if mentions:
            yield probing.raised(probe, asks, "one missing reward", e)
        return
    rest = [i for i in range(rewards.numel()) if i != missing]
    a = per_sample(s.value, s.inputs)
    others = torch.cat([a[size:missing], a[missing + 1 : 2 * size]])
    if bool(others.isnan().any()) or float(others.abs().max()) == 0.0:
        what = "NaN" if bool(others.isnan().any()) else "0"
        says = f"one missing reward in a group of {size} turns the advantages of all the others into {what}"
        yield probing.violation(probe, asks, says, ABSTAINED, severity="hard" if mentions or handles else "soft")
        return
    found = _without(case, rewards, rest, expected)
    gap = None if found is None else tolerance.gap("value", "one missing reward", a[rest], found[rest], "float16")
    if gap is not None and probing.claims(subject, *NO_VOTE):
        says = "the other samples of the group don't get the advantages that they have without the unscored one"
        yield probing.violation(probe, asks, says, ABSTAINED, gap=gap)
    else:
        words = "the scored samples of the group keep finite advantages"
        yield probing.holds(probe, asks, words if gap is None else "a missing reward still has a say in its group")


def _without(case: Case, rewards: Tensor, rest: list[int], expected: Callable[[Case], Tensor | None]) -> Tensor | None:
    """What the others get in a batch that never had the sample, [N] with 0 in its place."""
    n = rewards.numel()
    kept = {k: v[rest] if isinstance(v, Tensor) and v.dim() and v.shape[0] == n else v for k, v in case.inputs.items()}
    got = expected(Case(name="without the unscored sample", inputs=kept))
    if got is None:
        return None
    out = torch.zeros(n, dtype=got.dtype)
    out[rest] = got
    return out


def rejected(subject: Subject, case: Case) -> Iterator[Check]:
    """Rows whose mask is empty: whether they vote is a choice, which the documentation has to make."""
    said = probing.claims(
        subject, r"thrown out|discard|reject|no say|not a member|excluded? from|dropped|fully masked"
    ) and probing.claims(subject, r"mask")
    if not said or "completion_mask" not in subject.bound.names or "rewards" not in subject.bound.names:
        return
    asks = "do rows without a trained token stay out of their group's statistics?"
    size = int(case.inputs["group_size"])
    mask = case.inputs["completion_mask"].clone()
    mask[size] = 0
    first = {**case.inputs, "completion_mask": mask}
    rewards = case.inputs["rewards"].clone()
    rewards[size] += 5.0
    try:
        a = probing.observe(subject, Case(name="one empty row", inputs=first))
        b = probing.observe(subject, Case(name="one empty row", inputs={**first, "rewards": rewards}))
    except CallFailed as e:
        yield probing.raised("advantages.rejected", asks, "one empty row", e)
        return
    rest = [i for i in range(a.value.shape[0]) if i != size]
    found = probing.gap_of("value", "reward of an empty row + 5", b.value[rest], a.value[rest], "float32")
    if found is None:
        yield probing.holds("advantages.rejected", asks, "rows without a trained token have no vote")
        return
    says = "changing the reward of a row whose mask is empty moves the advantages of the other rows of its group"
    yield probing.violation("advantages.rejected", asks, says, REJECTED, gap=found)
