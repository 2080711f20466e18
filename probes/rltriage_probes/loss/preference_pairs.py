"""Losses of pairs of answers.

    h(z),   z = β · ([log π(y_w) - log π_ref(y_w)] - [log π(y_l) - log π_ref(y_l)]) - γ

    DPO     -log σ(z)                              Rafailov et al. 2023, arXiv:2305.18290, eq. 7
    cDPO    -(1-ε) log σ(z) - ε log σ(-z)          Mitchell 2023, ericmitchell.ai/cdpo.pdf, eq. 3
    robust  [-(1-ε) log σ(z) + ε log σ(-z)]/(1-2ε) Chowdhury et al. 2024, arXiv:2403.00409
    IPO     (z/β - 1/(2β))²                        Azar et al. 2023, arXiv:2310.12036, eq. 17
    SLiC    max(0, 1 - z)                          Zhao et al. 2023, arXiv:2305.10425
    SimPO   -log σ(z), no reference, averages      Meng et al. 2024, arXiv:2405.14734, eq. 6
    ORPO    -λ log σ(log odds(y_w) - log odds(y_l)), odds(y) = p / (1 - p)    Hong et al. 2024, arXiv:2403.07691

and the variants that trainers offer beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from rltriage_probes.loss import surrogate
from rltriage_probes.loss.preference_scores import Given, Scores
from rltriage_probes.solver import Knobs, Options, Result, Seen

logsigmoid = functional.logsigmoid
TO_SUBTRACT = "odds ratio, to be subtracted"
"""A term of ORPO that the caller takes from the likelihood term."""


@dataclass(frozen=True)
class Reference:
    """The losses of pairs, float64."""

    given: Given

    def __call__(self, s: Seen, o: Options, k: Knobs) -> Result:
        scores = self.log_ratios(s, o)
        per_pair = self._losses(s, o, k, *scores)
        if o["likelihood"] != "none" and o["loss"] != "kto pair":
            per_pair = per_pair + self._likelihood_term(s, o, k)
        if o["reduction"] == "tokens":
            per_pair = per_pair / torch.cat(self.given.counts(s, o) or (torch.ones(1),)).sum()
        value = _reduced(per_pair, "sum" if o["reduction"] == "tokens" else o["reduction"])
        value = -value if o["sign"] == "minus" else value
        return Result(value=value, grads=lambda: surrogate.gradients(value, s))

    def _setting(self, s: Seen, k: Knobs, word: str) -> float:
        if word in self.given.have:
            got = s.inputs[word]
            assert isinstance(got, (int, float))
            return float(got)
        return k.get(word, 0.0)

    def log_ratios(self, s: Seen, o: Options) -> Scores:
        """Of the chosen and of the rejected answer, [B]; only their difference counts where only that is given."""
        parts = ("reference", "direction", "tokens", "shift", "average", "layout", "divergence", "gradient")
        key = ("log-ratios", *(o[p] for p in parts))
        both = s.remember(key, lambda: torch.stack(self._unremembered(s, o)))
        return both[0], both[1]

    def _unremembered(self, s: Seen, o: Options) -> Scores:
        have = self.given.have
        policy = self._averaged(s, o, self.given.scores(s, "", o))
        if policy is not None:
            c, r = _cut(policy, o["gradient"])
            ref = self._averaged(s, o, self.given.scores(s, "ref_", o), ref=True)
            c, r = (c, r) if ref is None else compared((c, r), ref, o["reference"])
        elif "chosen_logratios" in have:
            c, r = _cut(
                (surrogate.tensor(s, "chosen_logratios"), surrogate.tensor(s, "rejected_logratios")), o["gradient"]
            )
        elif "policy_logratios" in have:
            c, r = _cut((surrogate.tensor(s, "policy_logratios"), torch.zeros(())), o["gradient"])
            ref_gap = surrogate.tensor(s, "ref_logratios") if "ref_logratios" in have else torch.zeros(())
            c = {"subtracted": c - ref_gap, "added": c + ref_gap}.get(o["reference"], c)
        else:
            c, r = _cut((surrogate.tensor(s, "preference_logits"), torch.zeros(())), o["gradient"])
        alpha = self._setting(s, {}, "nll_weight")
        c, r = _diverging(c, o["divergence"], alpha), _diverging(r, o["divergence"], alpha)
        c, r = torch.broadcast_tensors(c, r)
        return {"chosen": (c, r), "rejected": (r, c), "both": (c, -r), "neither": (-c, r)}[o["direction"]]

    def _averaged(self, s: Seen, o: Options, scores: Scores | None, ref: bool = False) -> Scores | None:
        how = o["average"]
        if scores is None or how == "none" or (ref and how == "policy only"):
            return scores
        counts = self.given.counts(s, o)
        if counts is None:
            return scores
        (c, r), (n, m) = scores, counts
        return {
            "both": lambda: (c / n, r / m), "policy only": lambda: (c / n, r / m), "exchanged": lambda: (c / m, r / n),
            "chosen only": lambda: (c / n, r), "rejected only": lambda: (c, r / m), "times": lambda: (c * n, r * m),
            "total": lambda: (c / (n + m), r / (n + m)), "squared": lambda: (c / n**2, r / m**2),
        }[how]()  # fmt: skip

    def _losses(self, s: Seen, o: Options, k: Knobs, c: Tensor, r: Tensor) -> Tensor:
        beta = self._setting(s, k, "beta")
        if o["beta"] in ("chosen only", "rejected only"):
            c, r = (c, r / beta) if o["beta"] == "chosen only" else (c / beta, r)
        b = {"none": 1.0, "twice": beta * beta, "divided": 1.0 / beta if beta else math.inf}.get(o["beta"], beta)
        gap = c - r
        if o["penalty"] != "none":
            gap = gap - self._setting(s, k, "penalty_weight") * self._dpop(s, o)
        z = b * gap - self._margin(s, k, o["margin"], beta)
        epsilon = self._setting(s, k, "label_smoothing")
        loss = o["loss"]
        if loss.startswith("ipo"):
            return _ipo(gap, beta, loss)
        if loss == TO_SUBTRACT:
            return -_odds(c, r, b, loss)
        if loss.startswith("odds"):
            return _odds(c, r, b, loss)
        if loss.startswith("aot"):
            z = b * self._sorted(s, o, c, r)
            return _smoothed(z, epsilon, o["smoothing"])
        if loss == "sigmoid":
            return _smoothed(z, epsilon, o["smoothing"])
        return _FORMS[loss](_Inputs(z=z, c=b * c, r=b * r, gap=gap, beta=beta, epsilon=epsilon, tau=k.get("tau", 0.05)))

    def _margin(self, s: Seen, k: Knobs, how: str, beta: float) -> Tensor | float:
        if how == "none":
            return 0.0
        word = next((w for w in ("target_margin", "margin_ratio") if w in self.given.have), "")
        if not word and "margin" in self.given.have:
            m: Tensor | float = surrogate.tensor(s, "margin")
        else:
            m = self._setting(s, k, word or "target_margin")
        factor = {
            "times beta": beta,
            "over beta": 1 / beta,
            "plus": -1.0,
            "plus, times beta": -beta,
            "times beta twice": beta**2,
        }
        return m * factor.get(how, 1.0)

    def _dpop(self, s: Seen, o: Options) -> Tensor:
        """max(0, log π_ref(y_w) - log π(y_w))."""
        policy, ref = self.given.scores(s, "", o), self.given.scores(s, "ref_", o)
        assert policy is not None
        assert ref is not None
        policy = _cut(policy, o["gradient"])
        fallen = ref[0] - policy[0]
        return {
            "dpop": lambda: fallen.clamp(min=0), "turned round": lambda: (-fallen).clamp(min=0),
            "added": lambda: -fallen.clamp(min=0), "unclamped": lambda: fallen,
            "rejected": lambda: (ref[1] - policy[1]).clamp(min=0),
        }[o["penalty"]]()  # fmt: skip

    def _sorted(self, s: Seen, o: Options, c: Tensor, r: Tensor) -> Tensor:
        """Differences of sorted log-ratios; c and r are already compared with the reference."""
        if o["loss"] == "aot unpaired":
            return c.sort().values - r.sort().values
        policy, ref = self.given.scores(s, "", o), self.given.scores(s, "ref_", o)
        if policy is None or ref is None:
            return c.sort().values - r.sort().values
        policy = _cut(policy, o["gradient"])
        sign = -1.0 if o["direction"] == "rejected" else 1.0
        return (sign * (policy[0] - policy[1])).sort().values - (sign * (ref[0] - ref[1])).sort().values

    def _likelihood_term(self, s: Seen, o: Options, k: Knobs) -> Tensor | float:
        how = o["likelihood"]
        if how == "none":
            return 0.0
        if how.startswith("given"):
            nll = surrogate.tensor(s, "chosen_nll")
            weight = self._setting(s, k, "nll_weight") if "weighted" in how else 1.0
            return -weight * nll if how.endswith("minus") else weight * nll
        weight = self._setting(s, k, "nll_weight")
        scores = self.given.scores(s, "", o)
        assert scores is not None
        c, r = _cut(scores, o["gradient"])
        if how == "chosen, averaged":
            counts = self.given.counts(s, o)
            c = c if counts is None or o["tokens"] == "mean" else c / counts[0]
        return weight * {"minus chosen": c, "rejected": -r}.get(how, -c)


@dataclass(frozen=True)
class _Inputs:
    """What a form of the loss may be made of."""

    z: Tensor
    c: Tensor
    """β times the log-ratio of the chosen answer."""
    r: Tensor
    gap: Tensor
    beta: float
    epsilon: float
    tau: float


def _exo(i: _Inputs) -> Tensor:
    e = torch.tensor(i.epsilon, dtype=torch.float64)
    return i.z.sigmoid() * (logsigmoid(i.z) - (-e).log1p()) + (-i.z).sigmoid() * (logsigmoid(-i.z) - e.log())


def _sppo(i: _Inputs) -> Tensor:
    return (i.c / i.beta - 0.5 / i.beta) ** 2 + (i.r / i.beta + 0.5 / i.beta) ** 2


def _kto_pair(i: _Inputs) -> Tensor:
    """Each answer against the other side's KL estimate, max(0, mean log-ratio), which gets no gradient."""
    kl_c, kl_r = i.c.detach().mean().clamp(min=0), i.r.detach().mean().clamp(min=0)
    return torch.cat([1 - (i.c - kl_r).sigmoid(), 1 - (kl_c - i.r).sigmoid()])


def _discopop(i: _Inputs) -> Tensor:
    mix = (i.z / i.tau).sigmoid()
    return -logsigmoid(i.z) * (1 - mix) + (-i.z).exp() * mix


_FORMS: dict[str, Callable[[_Inputs], Tensor]] = {
    "hinge": lambda i: (1 - i.z).clamp(min=0),
    "hinge at 0": lambda i: (-i.z).clamp(min=0),
    "hinge, open": lambda i: 1 - i.z,
    "hinge, other side": lambda i: (i.z - 1).clamp(min=0),
    "exponential": lambda i: (-i.z).exp(),
    "squared": lambda i: (i.z - 1) ** 2,
    "sigmoid, no log": lambda i: -i.z.sigmoid(),
    "1 - sigmoid": lambda i: 1 - i.z.sigmoid(),
    "bco": lambda i: -logsigmoid(i.c) - logsigmoid(-i.r),
    "nca": lambda i: -logsigmoid(i.c) - 0.5 * logsigmoid(-i.c) - 0.5 * logsigmoid(-i.r),
    "apo zero": lambda i: 1 - i.c.sigmoid() + i.r.sigmoid(),
    "apo down": lambda i: i.c.sigmoid() + 1 - (i.c - i.r).sigmoid(),
    "exo": _exo,
    "sppo": _sppo,
    "kto pair": _kto_pair,
    "discopop": _discopop,
}


def _smoothed(z: Tensor, e: float, how: str) -> Tensor:
    right, flipped = -logsigmoid(z), -logsigmoid(-z)
    return {
        "none": lambda: right,
        "conservative": lambda: (1 - e) * right + e * flipped,
        "robust": lambda: ((1 - e) * right - e * flipped) / (1 - 2 * e),
        "one side": lambda: (1 - e) * right,
        "not renormalised": lambda: (1 - e) * right - e * flipped,
        "full weight": lambda: right + e * flipped,
        "flipped side only": lambda: e * flipped,
    }[how]()


def _ipo(gap: Tensor, beta: float, how: str) -> Tensor:
    if how == "ipo, scaled":
        return (beta * gap - 1 / (2 * beta)) ** 2
    target = {
        "ipo, 1/beta": 1 / beta, "ipo, beta/2": beta / 2, "ipo, 2 beta": 2 * beta, "ipo, 2/beta": 2 / beta,
        "ipo, beta": beta, "ipo, 1/2": 0.5, "ipo, no target": 0.0,
    }.get(how, 1 / (2 * beta))  # fmt: skip
    distance = gap - target
    return distance.abs() if how == "ipo, no square" else distance**2


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(x)) for x < 0; Mächler 2012, cran.r-project.org/package=Rmpfr, log1mexp-note."""
    return torch.where(x > -0.6931471805599453, (-torch.expm1(x)).log(), (-x.exp()).log1p())


def _odds(c: Tensor, r: Tensor, weight: float, how: str) -> Tensor:
    plain = c - r
    other = {
        "odds, 1 + p": lambda: plain - (c.exp().log1p() - r.exp().log1p()),
        "odds, product": lambda: plain + (log1mexp(c) - log1mexp(r)),
        "odds, none": lambda: plain,
        "odds, probabilities": lambda: c.exp() / (1 - c.exp()) - r.exp() / (1 - r.exp()),
        "odds, 1 - log p": lambda: plain - ((1 - c).log() - (1 - r).log()),
        "odds, chosen only": lambda: c - log1mexp(c),
    }.get(how, lambda: plain - (log1mexp(c) - log1mexp(r)))()
    return -logsigmoid(weight * other) if how == "odds, weight inside" else -weight * logsigmoid(other)


def compared(policy: Scores, ref: Scores, how: str) -> Scores:
    (c, r), (rc, rr) = policy, ref
    return {
        "subtracted": lambda: (c - rc, r - rr), "absent": lambda: (c, r), "added": lambda: (c + rc, r + rr),
        "exchanged": lambda: (c - rr, r - rc), "chosen only": lambda: (c - rc, r), "rejected only": lambda: (c, r - rr),
        "the other's": lambda: (c - rc, r + rr),
    }[how]()  # fmt: skip


def _cut(scores: Scores, how: str) -> Scores:
    """The scores, detached on one side or both."""
    c, r = scores
    return (
        c.detach() if how in ("both", "chosen") else c,
        r.detach() if how in ("both", "rejected") else r,
    )


def _diverging(x: Tensor, how: str, alpha: float) -> Tensor:
    if how == "forward":
        return 1 - (-x).exp()
    if how == "alpha":
        return (1 - (-alpha * x).exp()) / alpha if alpha else x
    return math.log(2) + logsigmoid(x) if how == "js" else x


def _reduced(x: Tensor, how: str) -> Tensor:
    return {
        "none": lambda: x, "mean": x.mean, "sum": x.sum, "half": lambda: x.mean() / 2,
        "double": lambda: x.mean() * 2, "first": lambda: x[0], "last": lambda: x[-1], "largest": x.max,
        "smallest": x.min,
    }[how]()  # fmt: skip
