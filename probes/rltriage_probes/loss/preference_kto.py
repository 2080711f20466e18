"""Losses of answers that are judged alone.

    L(x, y) = λ_y · (1 - σ(±β (r(y) - z0)))      + for good answers, - for bad ones
    r(y) = log π(y) - log π_ref(y)               z0 = max(0, mean of r over answers to other prompts), no gradient

Ethayarajh et al. 2024, KTO, arXiv:2402.01306, eq. 7 and 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rltriage_probes import probing
from rltriage_probes.loss import preference_axes, preference_pairs, surrogate
from rltriage_probes.loss import preference_pitfalls as pitfalls
from rltriage_probes.loss.preference_scores import Given
from rltriage_probes.model import Axis, Option, Subject
from rltriage_probes.solver import Knobs, Options, Result, Seen

MARKS = frozenset(("desirable", "kl_logprobs", "kl_estimate", "desirable_weight", "undesirable_weight"))
"""Inputs that only a loss of single answers takes."""


def axes(subject: Subject, given: Given, seen: Sequence[Seen]) -> tuple[Axis, ...]:
    weighted = bool(given.have & {"desirable_weight", "undesirable_weight"})
    weights = Axis(
        name="weights",
        options=(
            Option(name="own", standing="standard", says="weights of good and bad answers"),
            *(probing.as_pitfall(n, pitfalls.KTO_WEIGHTS) for n in ("exchanged", "ignored")),
        ) if weighted else (Option(name="ignored", standing="standard"),),
    )  # fmt: skip
    return (
        _form(), _side(), weights, _kl(given), _kl_gradient(given), _reference(given),
        preference_axes.beta_axis(subject, given), _sign(), _order(given), _reduction(subject, seen), _gradient(),
    )  # fmt: skip


def _form() -> Axis:
    return Axis(
        name="form",
        options=(
            Option(name="1 - sigmoid", standing="standard", says="KTO value", source="KTO, arXiv:2402.01306 eq. 7"),
            Option(name="-sigmoid", says="KTO value without its constant", source="KTO, arXiv:2402.01306 eq. 8"),
            Option(name="-log sigmoid", says="BCO, log sigmoid of the value", source="BCO, arXiv:2404.04656"),
        ),
    )


def _side() -> Axis:
    return Axis(
        name="side",
        options=(
            Option(name="right", standing="standard"),
            probing.as_pitfall("labels exchanged", pitfalls.KTO_SIDE),
            probing.as_pitfall("bad ones up", pitfalls.KTO_SIDE),
            probing.as_pitfall("good ones down", pitfalls.KTO_SIDE),
        ),
    )


def _kl(given: Given) -> Axis:
    if "kl_logprobs" in given.have:
        options = (
            Option(name="given", standing="standard", says="KL from mismatched answers, at least 0"),
            *(
                probing.as_pitfall(n, pitfalls.KTO_KL)
                for n in ("unclamped", "turned round", "summed", "none", "clamped first", "added", "at most 0")
            ),
        )
    elif "kl_estimate" in given.have:
        options = (
            Option(name="estimate", standing="standard", says="KL estimate given"),
            *(
                probing.as_pitfall(n, pitfalls.KTO_KL)
                for n in ("none", "estimate added", "good ones only", "bad ones only")
            ),
        )
    else:
        options = (
            Option(
                name="none", standing="standard", says="no KL estimate", source="APO-zero unpaired, arXiv:2408.06266"
            ),
            Option(name="batch", says="KL from the batch itself"),
            Option(name="of the other side", says="KL of the other side's answers", source="TRL kto_pair"),
            Option(name="batch, unclamped", standing="pitfall", says=pitfalls.KTO_KL.says, pitfall=pitfalls.KTO_KL),
            probing.as_pitfall("of the other side, unclamped", pitfalls.KTO_KL),
            probing.as_pitfall("own side", pitfalls.KTO_KL),
        )
    return Axis(name="kl", options=options)


def _kl_gradient(given: Given) -> Axis:
    options = (Option(name="detached", standing="standard"), probing.as_pitfall("flows", pitfalls.KTO_KL_GRADIENT))
    return Axis(
        name="kl gradient", options=options, when=lambda o: o["kl"] != "none" and not o["kl"].startswith("estimate")
    )


def _reference(given: Given) -> Axis:
    bound = given.has("ref_") or "ref_example_logprobs" in given.have
    options = (
        Option(name="subtracted", standing="standard"),
        *(probing.as_pitfall(n, p) for n, p in (("absent", pitfalls.REF_MISSING), ("added", pitfalls.REF_SIGN))),
    )
    return Axis(name="reference", options=options if bound else options[:1])


def _sign() -> Axis:
    options = (Option(name="plus", standing="standard"), probing.as_pitfall("minus", pitfalls.LOSS_SIGN))
    return Axis(name="sign", options=options)


def _order(given: Given) -> Axis:
    if "desirable" not in given.have:
        return Axis(name="order", options=(Option(name="good first", standing="standard"),))
    return Axis(
        name="order",
        options=(Option(name="as given", standing="standard"), Option(name="good first", says="good answers first")),
        when=lambda o: o["reduction"] == "none",
    )


def _reduction(subject: Subject, seen: Sequence[Seen]) -> Axis:
    if seen[0].value.dim() > 0:
        return Axis(name="reduction", options=(Option(name="none", standing="standard", says="one loss an answer"),))
    return Axis(
        name="reduction",
        options=(
            Option(name="mean", standing="standard", says="mean over the answers"),
            preference_axes.summed(subject),
            Option(name="sides", says="mean of good answers plus mean of bad ones"),
            probing.as_pitfall("half", pitfalls.REDUCTION),
            probing.as_pitfall("good only", pitfalls.REDUCTION),
            probing.as_pitfall("bad only", pitfalls.REDUCTION),
            Option(name="sides, halved", says="mean of the two sides' means"),
        ),
    )


def _gradient() -> Axis:
    wrong = ("both", "chosen", "rejected")
    return Axis(
        name="gradient",
        options=(Option(name="flows", standing="standard"), *(probing.as_pitfall(n, pitfalls.DETACHED) for n in wrong)),
    )


@dataclass(frozen=True)
class Reference:
    """The losses of single answers, float64."""

    given: Given

    def __call__(self, s: Seen, o: Options, k: Knobs) -> Result:
        good, bad, order = self._log_ratios(s, o)
        if o["gradient"] in ("both", "chosen"):
            good = good.detach()
        if o["gradient"] in ("both", "rejected"):
            bad = bad.detach()
        kl_good, kl_bad = self._kl(s, o, good, bad)
        beta = self._setting(s, k, "beta")
        b = {"none": 1.0, "twice": beta * beta, "divided": 1.0 / beta}.get(o["beta"], beta)
        up, down = b * (good - kl_good), b * (kl_bad - bad)
        if o["beta"] in ("chosen only", "rejected only"):
            up, down = (up, down / beta) if o["beta"] == "chosen only" else (up / beta, down)
        if o["side"] in ("labels exchanged", "good ones down"):
            up = -up
        if o["side"] in ("labels exchanged", "bad ones up"):
            down = -down
        w_good, w_bad = self._weights(s, o["weights"])
        of_good, of_bad = w_good * _value(up, o["form"]), w_bad * _value(down, o["form"])
        value = _reduced(of_good, of_bad, order if o["order"] == "as given" else None, o["reduction"])
        value = -value if o["sign"] == "minus" else value
        return Result(value=value, grads=lambda: surrogate.gradients(value, s))

    def _log_ratios(self, s: Seen, o: Options) -> tuple[Tensor, Tensor, Tensor | None]:
        """Of good and of bad answers, and where each lies in the batch (None: good ones first)."""
        have = self.given.have
        if "example_logprobs" in have:
            flags = s.inputs["desirable"]
            assert isinstance(flags, Tensor)
            good = flags.bool()
            x = surrogate.tensor(s, "example_logprobs")
            if "ref_example_logprobs" in have:
                ref = surrogate.tensor(s, "ref_example_logprobs")
                x = {"subtracted": x - ref, "added": x + ref}.get(o["reference"], x)
            return x[good], x[~good], torch.cat([good.nonzero().flatten(), (~good).nonzero().flatten()]).argsort()
        if "chosen_logratios" in have:
            return surrogate.tensor(s, "chosen_logratios"), surrogate.tensor(s, "rejected_logratios"), None
        policy, ref = self.given.scores(s, "", o), self.given.scores(s, "ref_", o)
        assert policy is not None
        c, r = policy if ref is None else preference_pairs.compared(policy, ref, o["reference"])
        return c, r, None

    def _kl(self, s: Seen, o: Options, good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
        """The estimates that good and bad answers are held against."""
        how, zero = o["kl"], torch.zeros((), dtype=torch.float64)
        if "kl_logprobs" in self.given.have:
            x = surrogate.tensor(s, "kl_logprobs")
            ref = surrogate.tensor(s, "ref_kl_logprobs") if "ref_kl_logprobs" in self.given.have else zero
            kl = _from_mismatched(x - ref, how)
            kl_good = kl_bad = kl
        elif how.startswith(("estimate", "good", "bad")):
            kl = surrogate.tensor(s, "kl_estimate")
            kl = -kl if how == "estimate added" else kl
            kl_good, kl_bad = (zero if how == "bad ones only" else kl), (zero if how == "good ones only" else kl)
        elif how.startswith("batch"):
            kl_good = kl_bad = torch.cat([good, bad]).mean()
        elif how.startswith("of the other side"):
            kl_good, kl_bad = bad.mean(), good.mean()
        elif how == "own side":
            kl_good, kl_bad = good.mean(), bad.mean()
        else:
            kl_good = kl_bad = zero
        if how in ("batch", "of the other side", "own side"):
            kl_good, kl_bad = kl_good.clamp(min=0), kl_bad.clamp(min=0)
        return (kl_good, kl_bad) if o["kl gradient"] == "flows" else (kl_good.detach(), kl_bad.detach())

    def _weights(self, s: Seen, how: str) -> tuple[float, float]:
        words = ("desirable_weight", "undesirable_weight")
        found = [self._setting(s, {}, w) if w in self.given.have else 1.0 for w in words]
        if how == "ignored":
            return 1.0, 1.0
        return (found[1], found[0]) if how == "exchanged" else (found[0], found[1])

    def _setting(self, s: Seen, k: Knobs, word: str) -> float:
        got = s.inputs[word] if word in self.given.have else k.get(word, 0.0)
        assert isinstance(got, (int, float))
        return float(got)


def _from_mismatched(ratios: Tensor, how: str) -> Tensor:
    mean = ratios.mean()
    return {
        "given": lambda: mean.clamp(min=0), "unclamped": lambda: mean, "turned round": lambda: (-mean).clamp(min=0),
        "summed": lambda: ratios.sum().clamp(min=0), "none": lambda: mean * 0,
        "clamped first": lambda: ratios.clamp(min=0).mean(),
        "added": lambda: -mean.clamp(min=0), "at most 0": lambda: mean.clamp(max=0),
    }[how]()  # fmt: skip


def _value(x: Tensor, form: str) -> Tensor:
    if form == "-log sigmoid":
        return -functional.logsigmoid(x)
    return -x.sigmoid() if form == "-sigmoid" else 1 - x.sigmoid()


def _reduced(good: Tensor, bad: Tensor, order: Tensor | None, how: str) -> Tensor:
    both = torch.cat([good, bad])
    return {
        "none": lambda: both if order is None else both[order], "mean": both.mean, "sum": both.sum,
        "half": lambda: both.mean() / 2, "sides": lambda: good.mean() + bad.mean(), "good only": good.mean,
        "sides, halved": lambda: (good.mean() + bad.mean()) / 2, "bad only": bad.mean,
    }[how]()  # fmt: skip
