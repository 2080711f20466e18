"""Generalised advantage estimation, and discounted returns as its case without a critic.

    δ_t = r_t + γ V_{t+1} - V_t                  Schulman et al. 2016, arXiv:1506.02438, eq. 10-12
    A_t = Σ_l (γλ)^l δ_{t+l} = δ_t + γλ A_{t+1}              eq. 16
    R_t = A_t + V_t                              the critic's target (λ-return)

V is 0 behind the last action of an episode. In a rollout with tool output the steps are the sampled tokens alone.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rltriage_probes import formula, probing, tolerance, trajectories
from rltriage_probes.contract import Check, KnownBug
from rltriage_probes.formula import Formula, Judged
from rltriage_probes.model import Axis, CallFailed, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "are these the advantages (and returns) of eq. 16 of arXiv:1506.02438?"

# Pitfalls

PADDING = Pitfall(
    id="GAE-PADDING", family="mask-leak", says="lets what the critic says on masked positions into the advantages"
)
HOLES = Pitfall(id="GAE-HOLES", family="mask-leak", says="takes a time step on every masked token between two turns")
MASK_INVERTED = Pitfall(
    id="GAE-MASK-INVERTED", family="mask-inverted", says="runs over the masked positions and skips the actions"
)
OUTPUT = Pitfall(
    id="GAE-MASKED-OUTPUT", family="mask-leak", says="leaves values on masked positions that it promises to be 0"
)
NEXT = Pitfall(id="GAE-NEXT-VALUE", family="shift", says="pairs a step with the value of another state than the next")
TAIL = Pitfall(
    id="GAE-TAIL", family="shift", says="bootstraps the last column from a value that does not belong behind it"
)
DELTA_SIGN = Pitfall(id="GAE-DELTA-SIGN", family="sign", says="has the wrong sign in front of a value of the TD error")
NO_BASELINE = Pitfall(
    id="GAE-NO-BASELINE", family="baseline", says="leaves the value of the state itself out of the TD error"
)
GAMMA = Pitfall(id="GAE-GAMMA-MISSING", family="inert-option", says="leaves the discount out where it belongs")
LAMBDA = Pitfall(id="GAE-LAMBDA-MISSING", family="inert-option", says="leaves lambda out of the decay")
LAMBDA_MISPLACED = Pitfall(
    id="GAE-LAMBDA-MISPLACED", family="config", says="multiplies the next value with lambda, which belongs to the decay"
)
TIME = Pitfall(
    id="GAE-TIME-REVERSED", family="axis", says="runs the recursion from the first step, or leaves its result reversed"
)
ABSOLUTE = Pitfall(
    id="GAE-ABSOLUTE-DISCOUNT",
    family="normalisation",
    says="discounts by the position in the sequence instead of by the distance",
)
AXIS = Pitfall(id="GAE-AXIS", family="axis", says="runs the recursion along the batch instead of along time")
DONE_SHIFT = Pitfall(
    id="GAE-DONE-SHIFT", family="shift", says="cuts the recursion one step beside the end of the episode"
)
DONE_IGNORED = Pitfall(
    id="GAE-DONE-IGNORED", family="mask-missing", says="lets the next episode into the advantages of the one before"
)
DONE_INVERTED = Pitfall(
    id="GAE-DONE-INVERTED", family="mask-inverted", says="goes on where an episode ends and stops everywhere else"
)
PLACE = Pitfall(
    id="GAE-REWARD-PLACE", family="shift", says="puts the outcome reward on another token than the last action"
)
RETURNS = Pitfall(id="GAE-RETURNS", family="baseline", says="does not add the values back to get the returns")
RETURNS_WHITENED = Pitfall(
    id="GAE-RETURNS-WHITENED", family="normalisation", says="builds the returns from whitened advantages"
)
WHITEN_PADDING = Pitfall(
    id="GAE-WHITEN-PADDING", family="mask-missing", says="counts masked positions in the statistics of the whitening"
)
NOT_CENTRED = Pitfall(
    id="GAE-WHITEN-NOT-CENTRED", family="normalisation", says="scales the advantages but leaves their mean"
)
SWAPPED = Pitfall(
    id="GAE-SWAPPED-RESULT", family="config", says="returns advantages where returns are promised, and the reverse"
)

# What documentation promises

PADDING_PROMISED = (
    r"no bootstrap|not bootstrap|never bootstrap|without bootstrap|bootstrap\w*[^.]{0,40}\b(0|zero)\b",
    r"(pad|mask)\w*[^.]{0,60}(noise|junk|garbage|arbitrary|ignored|never|excluded|no (time )?step)",
    r"(pad|mask)\w*[^.]{0,60}not (be )?(read|used|counted)",
    r"(noise|junk|garbage|arbitrary|undefined|meaningless|anything)[^.]{0,60}(pad|mask)",
    r"(episode|trajectory|response|sequence)s?\s+(ends?|terminates?|stops?)\s+(with|at|after|on)\s+(its|the|their|every)",
    r"(behind|after|beyond|past) the (last|final|end)[^.]{0,40}(0|zero|nothing|no value|terminal)",
    r"terminal state|value of the terminal|terminates",
)
HOLES_PROMISED = (
    r"(tool|observation|environment|mask|untrained|retriev)\w*[^.]{0,120}(no|not|never)\s+(a\s+)?(time\s*)?(step|action|decision)",
    r"(skip|skipped|skips|jump|jumps|bridge|bridged|carried|carry|pass(es|ed)? over|compress)\w*[^.]{0,60}",
    r"(actions|steps|time steps) are the (tokens|positions|sampled)",
    r"only (the )?(policy|model|generated|trained|action|assistant|sampled|unmasked)[^.]{0,30}(count|step|act)",
    r"(length|number) of (the )?(tool|observation|environment)[^.]{0,60}(change|matter|depend|influence|affect)",
)
ZERO_PROMISED = (
    r"\b(0|zero|zeros|zeroed)\s+(on|at|for|behind|in|where|elsewhere|outside)\b[^.]{0,60}(pad|mask|them|else|observation)",
    r"(mask|pad)\w*[^.]{0,50}\b(are|is|get|gets|stay|become|set to|hold)\s+(0|zero)",
    r"\b(0|zero|zeroed) (elsewhere|outside)",
)
SHAPE_PROMISED = (r"[\[(]\s*(b|bs|batch\w*|n|t|steps?|num_steps|time)\s*,\s*\w", r"\bbatch")
TWO_DIMENSIONS = re.compile(r"\w,\s*\w+\s*=\s*\w+\.(shape|size)|shape\[1\]|size\(1\)|dim=1|\[:, (?!None)")
BEFORE_PROMISED = (r"episode_?starts?\b|before (that|the) step|starts? (a|the|with a) new episode|first step of",)

# Axes


def axes(subject: Subject) -> tuple[Axis, ...]:
    """The axes as they concern this function."""
    names = subject.bound.names
    critic = "values" in names
    every = (
        _gives(subject, critic),
        _masks(subject),
        _behind(subject, critic),
        *_deltas(critic),
        *_decays(names),
        _dones(subject),
        _places(names),
        _returns(critic),
        _whitening("completion_mask" in names or "lengths" in names),
    )
    return tuple(a for a in every)


def _masked(subject: Subject) -> bool:
    """Whether the function is told which tokens of a row are actions, not only how many there are."""
    return any(slot.meaning == "completion_mask" for slot in subject.bound.report.slots)


def _only(name: str, option: str) -> Axis:
    return Axis(name=name, options=(Option(name=option, standing="standard"),))


def _gives(subject: Subject, critic: bool) -> Axis:
    """Which results come in which place."""
    report = subject.bound.report.returns
    if "and" not in report.split("[")[0]:
        wanted = _wanted(subject)
        options = [
            Option(name="advantages", standing="standard", says="advantages"),
            Option(name="returns", says="returns"),
        ]
        if not critic:
            return Axis(name="gives", options=(Option(name="returns", standing="standard", says="discounted returns"),))
        if wanted == "returns":
            return Axis(name="gives", options=(options[1], options[0]))
        returns = probing.wrong_here(options[1], NO_BASELINE, wanted == "advantages")
        return Axis(name="gives", options=(options[0], returns))
    sure = trajectories.BY_NAME in report or probing.claims(
        subject, r"advantages?\b[^.]{0,20}(and|,)[^.]{0,12}returns?\b"
    )
    both = Option(name="both", standing="standard", says="advantages and returns")
    other = Option(name="returns first", says="returns and advantages")
    swapped = probing.wrong_here(other, SWAPPED, sure)
    return Axis(name="gives", options=(both, swapped) if critic else (both,))


def _wanted(subject: Subject) -> str:
    """What a function with one result should give, by its name; empty where that is open."""
    name = re.search(r"def\s+(\w+)", subject.source)
    plain = name[1].lower() if name else ""
    if re.search(r"adv", plain) and not re.search(r"return", plain):
        return "advantages"
    if re.search(r"return|target|discount|reward_?to_?go|cumulative", plain) and "adv" not in plain:
        return "returns"
    if probing.claims(subject, r"(returns?|gives?|->)\s*(the\s*)?(token\s*|per-token\s*)?advantages?\b(?!.{0,15}and)"):
        return "advantages"
    return ""


def _masks(subject: Subject) -> Axis:
    if not subject.bound.names & {"completion_mask", "lengths"}:
        return _only("mask", "none")
    if not _masked(subject):
        return _only("mask", "carry")
    holes = probing.claims(subject, *HOLES_PROMISED)
    leak = HOLES if holes else PADDING
    stepping = (
        Option(name="zeroed", says="masked tokens are steps of value 0", source="OpenRLHF experience_maker.py"),
        Option(name="cut", says="a masked token ends the recursion"),
        Option(name="deltas", says="TD errors of masked tokens are 0"),
    )
    return Axis(
        name="mask",
        options=(
            Option(name="carry", standing="standard", says="masked tokens are skipped", source="verl, NeMo-RL, AReaL"),
            *(probing.wrong_here(o, HOLES, holes) for o in stepping),
            probing.as_pitfall("raw", leak),
            probing.as_pitfall("next raw", leak),
            probing.as_pitfall("carry raw", leak),
            probing.as_pitfall("cut late", DONE_SHIFT),
            probing.as_pitfall("inverted", MASK_INVERTED),
        ),
    )  # fmt: skip


def _behind(subject: Subject, critic: bool) -> Axis:
    """The value behind the last column."""
    if not critic:
        return _only("behind", "zero")
    names = subject.bound.names
    zero = Option(name="zero", standing="standard")
    wrap, own = probing.as_pitfall("wrap", TAIL), probing.as_pitfall("own", TAIL)
    if {"last_value", "last_done"} <= names and not names & {"dones", "alive"}:
        says = "bootstraps from the given value unless the episode has ended"
        return Axis(
            name="behind",
            options=(
                Option(name="given unless done", standing="standard", says=says),
                probing.as_pitfall("given", DONE_IGNORED),
                probing.as_pitfall("given where done", DONE_INVERTED),
                probing.as_pitfall("zero", TAIL), wrap, own,
            ),
        )  # fmt: skip
    if names & {"last_value", "next_values"}:
        given = Option(name="given", standing="standard", says="bootstraps from the given value")
        return Axis(name="behind", options=(given, probing.as_pitfall("zero", TAIL), wrap, own))
    return Axis(name="behind", options=(zero, wrap, own))


def _deltas(critic: bool) -> tuple[Axis, ...]:
    if not critic:
        return (_only("next", "own"), _only("delta", "plain"), _only("bootstrap", "gamma"))
    return (
        Axis(
            name="next",
            options=(
                Option(name="own", standing="standard"),
                probing.as_pitfall("same", NEXT),
                probing.as_pitfall("two ahead", NEXT),
                probing.as_pitfall("before", NEXT),
            ),
        ),
        Axis(
            name="delta",
            options=(
                Option(name="plain", standing="standard"),
                probing.as_pitfall("no value", NO_BASELINE),
                probing.as_pitfall("value added", DELTA_SIGN),
                probing.as_pitfall("next subtracted", DELTA_SIGN),
                probing.as_pitfall("negative", DELTA_SIGN),
                probing.as_pitfall("both turned", DELTA_SIGN),
            ),
        ),
        Axis(
            name="bootstrap",
            options=(
                Option(name="gamma", standing="standard"),
                probing.as_pitfall("one", GAMMA),
                probing.as_pitfall("lambda", LAMBDA_MISPLACED),
                probing.as_pitfall("gamma lambda", LAMBDA_MISPLACED),
            ),
        ),
    )  # fmt: skip


def _decays(names: frozenset[str]) -> tuple[Axis, ...]:
    decay = [Option(name="gamma lambda", standing="standard")]
    if "gamma" in names:
        decay.append(probing.as_pitfall("lambda", GAMMA))
    if "lam" in names:
        decay.append(probing.as_pitfall("gamma", LAMBDA))
        decay.append(probing.as_pitfall("one", LAMBDA))
    decay += [probing.as_pitfall("none", LAMBDA), probing.as_pitfall("lambda twice", LAMBDA_MISPLACED)]
    discount = [Option(name="own", standing="standard")]
    if "gamma" in names:
        discount.append(probing.as_pitfall("one", GAMMA))
    return (
        Axis(name="discount", options=tuple(discount)),
        Axis(name="decay", options=tuple(decay)),
        Axis(
            name="direction",
            options=(
                Option(name="backward", standing="standard"),
                probing.as_pitfall("forward", TIME),
                probing.as_pitfall("unflipped", TIME),
                probing.as_pitfall("absolute", ABSOLUTE),
                probing.as_pitfall("batch", AXIS),
            ),
        ),
    )


def _dones(subject: Subject) -> Axis:
    if not subject.bound.names & {"dones", "alive"}:
        return _only("dones", "none")
    starts = any(s.meaning == "dones" and "start" in s.path for s in subject.bound.report.slots)
    before = starts or "last_done" in subject.bound.names or probing.claims(subject, *BEFORE_PROMISED)
    after_step = Option(name="after", says="an episode ends with its marked step")
    before_step = Option(name="before", says="a marked step starts an episode", source="CleanRL")
    right, other = (before_step, after_step) if before else (after_step, before_step)
    return Axis(
        name="dones",
        options=(
            Option(name=right.name, standing="standard", says=right.says, source=right.source),
            probing.as_pitfall(other.name, DONE_SHIFT),
            probing.as_pitfall("mixed", DONE_SHIFT),
            probing.as_pitfall("ignored", DONE_IGNORED),
            probing.as_pitfall("bootstrap only", DONE_IGNORED),
            probing.as_pitfall("recursion only", DONE_IGNORED),
            probing.as_pitfall("inverted", DONE_INVERTED),
        ),
    )


def _places(names: frozenset[str]) -> Axis:
    """Where an outcome reward [B] goes."""
    if "token_rewards" in names or "rewards" not in names:
        return _only("place", "given")
    return Axis(
        name="place",
        options=(
            Option(name="last", standing="standard", says="outcome reward on the last action"),
            probing.as_pitfall("last column", PLACE),
            probing.as_pitfall("one early", PLACE),
            probing.as_pitfall("one late", PLACE),
            probing.as_pitfall("first", PLACE),
            probing.as_pitfall("every", PLACE),
        ),
    )


def _returns(critic: bool) -> Axis:
    if not critic:
        return _only("returns", "sum")
    return Axis(
        name="returns",
        options=(
            Option(name="sum", standing="standard"),
            Option(name="monte carlo", says="returns with lambda 1", source="VAPO, arXiv:2504.05118"),
            probing.as_pitfall("advantages", RETURNS),
            probing.as_pitfall("difference", RETURNS),
            probing.as_pitfall("rewards", RETURNS),
            probing.as_pitfall("whitened", RETURNS_WHITENED),
        ),
        when=lambda o: o["gives"] != "advantages",
    )


def _whitening(masked: bool) -> Axis:
    where = "the trained tokens" if masked else "all tokens"
    padded = (
        tuple(probing.as_pitfall(n, WHITEN_PADDING) for n in ("padded1", "padded0", "padded raw1", "padded raw0"))
        if masked
        else ()
    )
    return Axis(
        name="whiten",
        options=(
            Option(name="none", standing="standard"),
            Option(name="tokens1", says=f"whitened over {where}, ddof=1", source="verl, SkyRL, trlx"),
            Option(name="tokens0", says=f"whitened over {where}, ddof=0", source="OpenRLHF, AReaL"),
            Option(name="centred", says=f"mean over {where} taken off", source="OpenRLHF no_std_norm"),
            Option(name="rows1", says="whitened within each row, ddof=1"),
            Option(name="rows0", says="whitened within each row, ddof=0"),
            probing.as_pitfall("mean kept1", NOT_CENTRED),
            probing.as_pitfall("mean kept0", NOT_CENTRED),
            probing.as_pitfall("divided1", NOT_CENTRED),
            probing.as_pitfall("divided0", NOT_CENTRED),
            *padded,
        ),
    )


# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return _case("rows of unequal length", holes=False, gamma=0.9, lam=0.8)


def cases(subject: Subject) -> tuple[Case, ...]:
    """Padding of every length; tool output between actions; a second pair of discounts."""
    made = [_case("rows of unequal length", holes=False, gamma=0.9, lam=0.8)]
    if _masked(subject):
        made.append(_case("tool output between actions", holes=True, gamma=0.9, lam=0.8))
    return (*made, _case("other discounts", holes=False, gamma=0.97, lam=0.6))


def _case(name: str, *, holes: bool, gamma: float, lam: float) -> Case:
    b, t = 5, 7
    g = probing.generator(name)
    lengths = torch.tensor([7, 4, 6, 2, 5])
    mask = (torch.arange(t)[None] < lengths[:, None]).float()
    if holes:
        mask[0, 2:4] = 0.0
        mask[2, 3] = 0.0
        mask[4, 1:3] = 0.0
    rewards = torch.randn(b, t, generator=g)
    values = torch.randn(b, t, generator=g) + 0.4
    dones = torch.zeros(b, t)
    dones[0, 3] = dones[1, 1] = dones[2, 5] = dones[4, 0] = dones[0, 6] = 1.0
    # what the critic says on masked positions is large, so that it can't hide in the tolerance
    values = values + (1 - mask) * 3.0 * torch.randn(b, t, generator=g)
    inputs = {
        "token_rewards": rewards * mask, "rewards": torch.randn(b, generator=g) + 0.5, "values": values,
        "next_values": torch.randn(b, t, generator=g), "last_value": torch.randn(b, generator=g) + 0.7,
        "completion_mask": mask, "lengths": lengths, "dones": dones, "alive": 1 - dones,
        "last_done": torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0]), "gamma": gamma, "lam": lam, "group_ids": torch.arange(b),
        "last_index": lengths - 1, "completion_length": t,
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


# Reference


class _Row(NamedTuple):
    """One trajectory as plain numbers."""

    rewards: list[float]
    values: list[float]
    mask: list[bool]
    dones: list[float]
    next_values: list[float] | None
    tail: float
    last_done: float


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """Advantages and returns [2, B, T], or one of them [1, B, T]."""
    gamma, lam = _discounts(s, options, knobs)
    raw = _advantages(s, options, gamma, lam)
    values = _tensor(s, "values") if "uses values" in s.cache else torch.zeros_like(raw)
    key = ("whitened", gamma, lam, options["whiten"], knobs.get("eps"), *(options[k] for k in _RECURSION))
    advantages = s.remember(key, lambda: _whitened(raw, s, options, knobs.get("eps", 1e-8)))
    returns = raw
    match options["returns"]:
        case "sum":
            returns = raw + values
        case "monte carlo":
            returns = _advantages(s, {**options, "decay": "gamma lambda"}, gamma, 1.0) + values
        case "difference":
            returns = raw - values
        case "rewards":
            returns = raw + _tensor(s, "token_rewards")
        case "whitened":
            returns = advantages + values
        case _:
            pass
    gives = options["gives"]
    if gives in ("advantages", "returns"):
        return Result(value=(advantages if gives == "advantages" else returns)[None])
    pair = [returns, advantages] if gives == "returns first" else [advantages, returns]
    return Result(value=torch.stack(pair))


def _discounts(s: Seen, options: Options, knobs: Knobs) -> tuple[float, float]:
    gamma = float(s.inputs["gamma"]) if "gamma given" in s.cache else knobs["gamma"]  # type: ignore[arg-type]
    lam = float(s.inputs["lam"]) if "lam given" in s.cache else knobs["lam"]  # type: ignore[arg-type]
    return (1.0 if options["discount"] == "one" else gamma), lam


def _tensor(s: Seen, word: str) -> Tensor:
    got = s.inputs[word]
    assert isinstance(got, Tensor)
    return got.double()


_RECURSION = ("mask", "behind", "next", "delta", "bootstrap", "decay", "direction", "dones", "place")


def _advantages(s: Seen, options: Mapping[str, str], gamma: float, lam: float) -> Tensor:
    """A [B, T] before any whitening."""
    key = ("advantages", gamma, lam, *(options[k] for k in _RECURSION))
    return s.remember(key, lambda: _made(s, options, gamma, lam))


def _made(s: Seen, options: Mapping[str, str], gamma: float, lam: float) -> Tensor:
    rows = _rows(s, options["place"])
    if options["direction"] == "batch":
        rows = _turned(rows)
        return torch.tensor([_row(r, options, gamma, lam) for r in rows], dtype=torch.float64).T.contiguous()
    return torch.tensor([_row(r, options, gamma, lam) for r in rows], dtype=torch.float64)


def _rows(s: Seen, place: str) -> list[_Row]:
    mask = _mask(s)
    b, t = mask.shape
    rewards = _tensor(s, "token_rewards") if place == "given" else _placed(s, place, mask)
    values = _tensor(s, "values") if "uses values" in s.cache else torch.zeros(b, t)
    following = _tensor(s, "next_values").tolist() if "uses next_values" in s.cache else [None] * b
    tail = _tensor(s, "last_value") if "uses last_value" in s.cache else torch.zeros(b)
    columns = (rewards, values, mask > 0, _tensor(s, "dones"))
    ended = _tensor(s, "last_done") if "uses last_done" in s.cache else torch.zeros(b)
    lists = zip(*(c.tolist() for c in columns), following, tail.tolist(), ended.tolist(), strict=True)
    return [_Row(*row) for row in lists]


def _turned(rows: Sequence[_Row]) -> list[_Row]:
    """Rows and columns exchanged: time runs along the batch."""
    out: list[_Row] = []
    for i in range(len(rows[0].rewards)):
        following = None if rows[0].next_values is None else [r.next_values[i] for r in rows if r.next_values]
        out.append(
            _Row(
                [r.rewards[i] for r in rows], [r.values[i] for r in rows], [r.mask[i] for r in rows],
                [r.dones[i] for r in rows], following, 0.0, 0.0,
            )
        )  # fmt: skip
    return out


def _mask(s: Seen) -> Tensor:
    """1 on the steps that the function knows to be steps."""
    shape = _tensor(s, "values")
    if "uses completion_mask" in s.cache:
        return _tensor(s, "completion_mask")
    if "uses lengths" in s.cache:
        return (torch.arange(shape.shape[1])[None] < _tensor(s, "lengths")[:, None]).double()
    return torch.ones_like(shape)


def _placed(s: Seen, place: str, mask: Tensor) -> Tensor:
    score = _tensor(s, "rewards")
    b, t = mask.shape
    if place == "every":
        return score[:, None] * mask
    last = t - 1 - mask.flip(1).argmax(1)
    at = {
        "last": last, "last column": torch.full_like(last, t - 1), "one early": (last - 1).clamp(min=0),
        "one late": (last + 1).clamp(max=t - 1), "first": torch.zeros_like(last),
    }[place]  # fmt: skip
    out = torch.zeros(b, t, dtype=torch.float64)
    out[torch.arange(b), at] = score
    return out


def _row(row: _Row, options: Mapping[str, str], gamma: float, lam: float) -> list[float]:
    """A of one trajectory."""
    mode, width = options["mask"], len(row.rewards)
    keep = [not m for m in row.mask] if mode == "inverted" else row.mask
    steps = [i for i in range(width) if keep[i]] if mode in ("carry", "carry raw", "inverted") else list(range(width))
    if not steps:
        return [0.0] * width
    zeroed = mode == "zeroed"
    v = [row.values[i] if row.mask[i] or not zeroed else 0.0 for i in steps]
    r = [row.rewards[i] for i in steps]
    following = _next(v, row, steps, options)
    alive_v, alive_a = _alive(row, steps, options)
    bootstrap = {"gamma": gamma, "one": 1.0, "lambda": lam, "gamma lambda": gamma * lam}[options["bootstrap"]]
    deltas: list[float] = []
    for k, i in enumerate(steps):
        ahead = bootstrap * alive_v[k] * following[k]
        if mode == "deltas" and k + 1 < len(steps) and not row.mask[steps[k + 1]]:
            ahead = 0.0
        delta = _delta(options["delta"], r[k], ahead, v[k])
        deltas.append(0.0 if mode in ("deltas", "next raw") and not row.mask[i] else delta)
    decay = {
        "gamma lambda": gamma * lam, "lambda": lam, "gamma": gamma, "one": 1.0, "none": 0.0,
        "lambda twice": gamma * lam * lam,
    }[options["decay"]]  # fmt: skip
    return _spread(_summed(deltas, alive_a, decay, options["direction"]), steps, width)


def _next(v: list[float], row: _Row, steps: list[int], options: Mapping[str, str]) -> list[float]:
    tail = {
        "zero": 0.0, "given": row.tail, "own": v[-1], "wrap": v[0],
        "given unless done": row.tail * (1.0 - row.last_done), "given where done": row.tail * row.last_done,
    }[options["behind"]]  # fmt: skip
    match options["next"]:
        case "same":
            return v
        case "two ahead":
            return ([*v, tail, tail])[2 : 2 + len(v)]
        case "before":
            return [tail, *v[:-1]]
        case _:
            pass
    if options["mask"] == "carry raw":
        return [row.values[i + 1] if i + 1 < len(row.values) else tail for i in steps]
    return [*v[1:], tail] if row.next_values is None else [row.next_values[i] for i in steps]


def _alive(row: _Row, steps: list[int], options: Mapping[str, str]) -> tuple[list[float], list[float]]:
    """Factors of the next value and of the next advantage: 0 where an episode ends."""
    width = len(row.rewards)
    mode, done = options["mask"], options["dones"]
    base = [1.0] * len(steps)
    if mode in ("cut", "cut late"):
        look = 1 if mode == "cut" else 0
        base = [1.0 if i + look >= width or row.mask[i + look] else 0.0 for i in steps]
    if done in ("none", "ignored"):
        return base, base
    starts = [*row.dones[1:], row.last_done]
    ends = row.dones
    mixed = [*row.dones[:-1], row.last_done]
    by = {"before": starts, "after": ends, "mixed": mixed}.get(
        done, starts if options.get("done kind") == "before" else ends
    )
    kept = [b * (by[i] if done == "inverted" else 1.0 - by[i]) for b, i in zip(base, steps, strict=True)]
    return (base if done == "recursion only" else kept), (base if done == "bootstrap only" else kept)


def _delta(kind: str, r: float, ahead: float, v: float) -> float:
    match kind:
        case "no value":
            return r + ahead
        case "value added":
            return r + ahead + v
        case "next subtracted":
            return r - ahead - v
        case "negative":
            return v - ahead - r
        case "both turned":
            return r - ahead + v
        case _:
            return r + ahead - v


def _summed(deltas: list[float], alive: list[float], decay: float, direction: str) -> list[float]:
    out = [0.0] * len(deltas)
    run = 0.0
    if direction == "forward":
        for k, d in enumerate(deltas):
            run = d + decay * alive[k] * run
            out[k] = run
        return out
    for k in range(len(deltas) - 1, -1, -1):
        run = deltas[k] + decay * alive[k] * run
        out[k] = run
    if direction == "unflipped":
        return out[::-1]
    return [a * decay**k for k, a in enumerate(out)] if direction == "absolute" else out


def _spread(found: list[float], steps: list[int], width: int) -> list[float]:
    """Back to [T]; a skipped step has what was carried over it."""
    out = [0.0] * width
    run, at = 0.0, len(steps) - 1
    for i in range(width - 1, -1, -1):
        if at >= 0 and steps[at] == i:
            run, at = found[at], at - 1
        out[i] = run
    return out


def _whitened(a: Tensor, s: Seen, options: Options, eps: float) -> Tensor:
    kind = options["whiten"]
    if kind == "none":
        return a
    mask = _mask(s)
    ddof = int(kind[-1]) if kind[-1].isdigit() else 0
    if kind.startswith("rows"):
        n = mask.sum(1, keepdim=True)
        mean = (a * mask).sum(1, keepdim=True) / n
        var = ((a - mean).square() * mask).sum(1, keepdim=True) / (n - ddof)
        return (a - mean) * (var + eps).rsqrt()
    if kind.startswith("padded"):
        a = a if "raw" in kind else a * mask
        mask = torch.ones_like(mask)
    n = mask.sum()
    mean = (a * mask).sum() / n
    if kind == "centred":
        return a - mean
    scale = (((a - mean).square() * mask).sum() / (n - ddof) + eps).rsqrt()
    if kind.startswith("divided"):
        return a * scale
    return (a - mean) * scale + (mean if kind.startswith("mean kept") else 0.0)


# Running


def run(subject: Subject) -> Iterator[Check]:
    found = formula.judge(subject, _formula(subject))
    yield dataclasses.replace(found.check, outcome=_weighed(subject, found))
    if found.solution is None and found.seen:
        yield from _masked_values(subject)
    if found.right:
        yield from _zero(subject, found.seen[0])


def _formula(subject: Subject) -> Formula:
    return Formula(
        probe="gae.formula",
        asks=ASKS,
        cases=cases(subject),
        reference=_reference_of(subject),
        observe=observe,
        axes=lambda seen: axes(subject),
        knobs=lambda seen: _knobs(subject),
        nothing_fits="no known variant of GAE gives these values",
        hide=lambda knobs: {k: v for k, v in knobs.items() if k != "eps" and not (k in ("gamma", "lam") and v == 1.0)},
        budget=7_000,
    )


def _reference_of(subject: Subject) -> Any:
    kind = "before" if _dones(subject).options[0].name == "before" else "after"

    def of(s: Seen, options: Options, knobs: Knobs) -> Result:
        return reference(s, {**options, "done kind": kind}, knobs)

    return of


def observe(subject: Subject, case: Case) -> Seen:
    s = probing.observe(subject, case)
    names = subject.bound.names
    masked = _masked(subject)
    for word in ("values", "next_values", "last_value", "last_done", "completion_mask", "lengths"):
        if word in names and (word != "completion_mask" or masked):
            s.cache["uses " + word] = torch.ones(())
    for word in ("gamma", "lam"):
        if word in names:
            s.cache[word + " given"] = torch.ones(())
    if names & {"completion_mask", "lengths"}:
        s.where = (_mask(s) > 0).expand(s.value.shape)
    return s


def _knobs(subject: Subject) -> tuple[Knob, ...]:
    names = subject.bound.names
    made: list[Knob] = []
    if "gamma" not in names:
        made.append(probing.knob(subject, "gamma", ("gamma",), (1.0, 0.99), within=(0.5, 1.0)))
    if "lam" not in names:
        lam = probing.knob(subject, "lam", ("lam",), (1.0, 0.95), within=(0.0, 1.0))
        critic = "values" in names
        made.append(lam if critic else Knob(name="lam", values=(1.0,), known=True))
    eps = probing.knob(subject, "eps", ("eps",), (1e-8,), within=(1e-12, 0.1), active=lambda o: o["whiten"] != "none")
    return (*made, eps)


_SOFT = {PADDING.id, HOLES.id, NOT_CENTRED.id, TAIL.id}
"""Said softly where nothing promises the opposite: the caller may see to it."""


def _weighed(subject: Subject, found: Judged) -> Any:
    outcome = found.check.outcome
    if not isinstance(outcome, KnownBug) or found.solution is None:
        return outcome
    ids = {n.pitfall for n in outcome.pitfalls}
    promised = probing.claims(subject, *PADDING_PROMISED, *HOLES_PROMISED)
    unsure = _SOFT - ({PADDING.id, HOLES.id, TAIL.id} if promised else set[str]())
    if not probing.claims(subject, *SHAPE_PROMISED) and not TWO_DIMENSIONS.search(subject.source):
        unsure = unsure | {AXIS.id}  # perhaps a function of one trajectory
    cut_late = found.solution.options["mask"] == "cut late"
    if cut_late and not probing.claims(subject, r"pad|response|token|completion|action"):
        unsure = unsure | {DONE_SHIFT.id}  # perhaps flags of running episodes
    soft = ids <= unsure
    if soft and TAIL.id in ids and found.solution.options["behind"] in ("wrap", "zero"):
        soft = False
    return dataclasses.replace(outcome, severity="soft") if soft else outcome


def _masked_values(subject: Subject) -> Iterator[Check]:
    """Asked where no formula fits: does the critic's output on masked positions reach the actions?"""
    if "completion_mask" not in subject.bound.names or "values" not in subject.bound.names:
        return
    if not probing.claims(subject, *PADDING_PROMISED, *HOLES_PROMISED):
        return
    asks = "does what the critic says on masked positions stay out of the advantages?"
    case = example({})
    mask = case.inputs["completion_mask"]
    other = {**case.inputs, "values": case.inputs["values"] + 5.0 * (1 - mask)}
    try:
        plain = observe(subject, case)
        again = observe(subject, Case(name="other values behind the mask", inputs=other))
    except CallFailed as e:
        yield probing.raised("gae.masked", asks, "other values behind the mask", e)
        return
    where = plain.where
    assert where is not None
    gap = tolerance.gap("value", "other values behind the mask", again.value[where], plain.value[where], "float32")
    if gap is not None:
        says = "advantages of actions move when the critic's values on masked positions do"
        yield probing.violation("gae.masked", asks, says, PADDING, gap=gap)


def _zero(subject: Subject, s: Seen) -> Iterator[Check]:
    """Zeros on masked positions: asked only where they are promised."""
    if s.where is None:
        return
    left = s.value[~s.where]
    if not bool(left.isfinite().all()):
        asks = "are the results finite on masked positions?"
        says = "masked positions hold NaN or infinity, which survives a multiplication by the mask"
        yield probing.violation("gae.zero", asks, says, OUTPUT, numbers={"not finite": int((~left.isfinite()).sum())})
        return
    if not probing.claims(subject, *ZERO_PROMISED):
        return
    asks = "are the results 0 on masked positions, as documented?"
    gap = tolerance.gap("value on masked positions", s.case, left, torch.zeros_like(left), "float32")
    if gap is None:
        yield probing.holds("gae.zero", asks, "masked positions are 0")
    else:
        says = "the documentation says that masked positions are 0, and they are not"
        yield probing.violation("gae.zero", asks, says, OUTPUT, gap=gap)


PITFALLS = (
    PADDING, HOLES, MASK_INVERTED, OUTPUT, NEXT, TAIL, DELTA_SIGN, NO_BASELINE, GAMMA, LAMBDA, LAMBDA_MISPLACED, TIME,
    ABSOLUTE, AXIS, DONE_SHIFT, DONE_IGNORED, DONE_INVERTED, PLACE, RETURNS, RETURNS_WHITENED, WHITEN_PADDING,
    NOT_CENTRED, SWAPPED,
)  # fmt: skip

ROLE = Role(
    name="gae",
    stage="advantages",
    asks="token rewards and values -> advantages and returns [B, T]",
    takes=(
        "token_rewards", "values", "completion_mask", "rewards", "gamma", "lam", "dones", "last_value", "next_values",
        "last_done", "alive", "lengths", "eps", "last_index", "completion_length",
    ),
    needs=(("token_rewards", "rewards"),),
    returns="estimates",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)  # fmt: skip
