"""Advantages from outcome rewards: a baseline and a scale, over the samples of each prompt.

    A_i = (r_i - mean(r_group)) / (std(r_group) + eps)

GRPO: Shao et al. 2024, section 4.1.2 (arXiv:2402.03300). Without the division: Dr. GRPO, Liu et al. 2025
(arXiv:2503.20783). Leave-one-out baseline: RLOO, Ahmadian et al. 2024 (arXiv:2402.14740).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rltriage_probes import probing, solver
from rltriage_probes.advantages import claims, narrowing
from rltriage_probes.contract import Agrees, Check, Named, Number, Severity
from rltriage_probes.model import Axis, CallFailed, Case, Observation, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen, Solution

ASKS = "which baseline and scale turns the rewards into these advantages?"
GROUPED = frozenset({"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo"})
"""Algorithms whose baseline is the prompt's own group."""
EPS_USUAL = (1e-4, 1e-6, 1e-8, 1e-5, 1e-9, 0.0)
EPS_SUSPECT = 1e-3
EPS_WRONG = 1e-2
"""Sources of the usual range: 1e-4 TRL, 1e-5 AReaL, 1e-6 verl, 1e-8 open-instruct, 1e-9 OpenRLHF."""

# Pitfalls

EPSILON = Pitfall(id="ADV-EPSILON", family="epsilon", says="adds a constant to the std that dwarfs it")
NO_EPSILON = Pitfall(
    id="ADV-NO-EPSILON", family="degenerate-group", says="divides by a std of 0 when all rewards of a group are equal"
)
SIGN = Pitfall(id="ADV-SIGN", family="sign", says="takes the reward from the baseline instead of the baseline from it")
NO_BASELINE = Pitfall(
    id="ADV-NO-GROUP", family="grouping", says="gives every sample a group of its own, so nothing is subtracted"
)
BATCH_BASELINE = Pitfall(
    id="ADV-BATCH-BASELINE", family="grouping", says="compares a sample with the whole batch instead of its own prompt"
)
INTERLEAVED = Pitfall(
    id="ADV-INTERLEAVED", family="grouping", says="groups samples of different prompts as if prompts alternated"
)
AXIS = Pitfall(
    id="ADV-AXIS", family="axis", says="takes the statistics across prompts instead of across the samples of a prompt"
)
RESHAPED = Pitfall(
    id="ADV-RESHAPE", family="grouping", says="cuts the batch into blocks of the number of prompts, not the group size"
)
TILED = Pitfall(
    id="ADV-TILED", family="grouping", says="repeats the group statistics end to end, so they meet other groups"
)
VARIANCE = Pitfall(
    id="ADV-VARIANCE", family="normalisation", says="divides by the variance instead of the standard deviation"
)
UNEVEN = Pitfall(
    id="ADV-UNEVEN-GROUPS", family="grouping", says="falls back to the whole batch when groups have unequal sizes"
)
SINGLETON = Pitfall(
    id="ADV-SINGLETON-NAN", family="degenerate-group", says="gives NaN for a prompt with one sample left"
)
UNMASKED_SCORE = Pitfall(
    id="ADV-SCORE-UNMASKED", family="mask-missing", says="adds up token rewards on positions that the mask excludes"
)
STEP_MASK = Pitfall(
    id="ADV-STEP-MASK", family="mask-leak", says="copies the last turn's masked row onto the other turns"
)
IDS_IGNORED = Pitfall(
    id="ADV-IDS-IGNORED", family="grouping", says="ignores the group ids and takes neighbours for a group"
)
LOO_DIVISOR = Pitfall(
    id="ADV-LOO-DIVISOR", family="baseline", says="divides the sum of a leave-one-out baseline by the wrong count"
)
EPS_MISPLACED = Pitfall(
    id="ADV-EPS-MISPLACED", family="epsilon", says="adds eps to the quotient, so that a std of 0 still divides"
)
SCALE_FLAG = Pitfall(
    id="ADV-SCALE-FLAG", family="inert-option", says="divides by the std although its own option says not to"
)
SCALE_UNDECLARED = Pitfall(
    id="ADV-SCALE-UNDECLARED",
    family="normalisation",
    says="scales by the std where the declared algorithm does not, or the reverse",
)
GROUP_COUNT = Pitfall(
    id="ADV-GROUP-COUNT",
    family="denominator",
    says="divides the sum of a group by the average group size, not by its own",
)
WHITEN_PADDING = Pitfall(
    id="ADV-WHITEN-PADDING", family="mask-missing", says="counts padding in the statistics with which it whitens"
)
MUTATES = Pitfall(
    id="ADV-MUTATES-REWARDS",
    family="aliasing",
    says="overwrites the rewards of its caller, who logs or uses them afterwards",
)
MASK_INVERTED = Pitfall(
    id="ADV-MASK-INVERTED",
    family="mask-inverted",
    says="keeps the advantages on padding and zeroes them on trained tokens",
)
NOT_MONOTONE = Pitfall(
    id="ADV-ORDER", family="baseline", says="gives a better sample of a group a lower advantage than a worse one"
)

# Axes


def axes(subject: Subject) -> tuple[Axis, ...]:
    """The axes as they concern this function under the declared intent."""
    grouped = str(subject.intent.get("algorithm", "")).lower() in GROUPED
    on_tokens = "completion_mask" in subject.bound.names and "is_last_step" not in subject.bound.names
    every = (_groups(subject, grouped), *_statistics(on_tokens), *_bookkeeping(subject))
    return tuple(probing.keep(a, subject) for a in every)


SAMPLE_MAJOR = (
    r"sample-major", r"first one sample of (each|every)", r"prompts? (are|is) (repeated|tiled) as a block",
    r"interleaved|alternat|round.robin", r"sample \d of (every|each|all) prompt",
)  # fmt: skip
ADJACENT = (
    r"adjacent|contiguous|consecutive|neighbou?r|prompt-major|next to each other|side by side|in a row|in blocks?",
)
"""What documentation says of the order of the rows. TRL's RLOO was sample-major, its GRPO is prompt-major."""


def sample_major(subject: Subject) -> bool:
    """Whether the function documents that prompts alternate."""
    return probing.claims(subject, *SAMPLE_MAJOR) and not probing.claims(subject, *ADJACENT)


def _groups(subject: Subject, grouped: bool) -> Axis:
    own = Option(name="own", standing="standard", says="group statistics")
    alternating = probing.as_pitfall("alternating", INTERLEAVED)
    if sample_major(subject):
        own = Option(name="alternating", standing="standard", says="group statistics, prompts alternating")
        alternating = probing.as_pitfall("own", INTERLEAVED)
    return Axis(
        name="groups",
        options=(
            own,
            probing.wrong_here(
                Option(name="batch", says="statistics of the whole batch", source="OpenRLHF flash_reinforce"),
                BATCH_BASELINE, grouped,
            ),
            probing.wrong_here(
                Option(name="single", says="no baseline", source="REINFORCE; NeMo-RL raw rewards"), NO_BASELINE, grouped
            ),
            alternating,
            probing.as_pitfall("across", AXIS),
            probing.as_pitfall("blocks", RESHAPED),
        ),
    )  # fmt: skip


def _uses_eps(options: Mapping[str, str]) -> bool:
    divided = options["scale"] == "mean" or options["scale"] not in UNSCALED
    return (_baselined(options) and divided) or options["after"] == "normalised"


UNSCALED = ("none", "mean", "over tokens", "over samples")
"""Scales that are no std."""


def _baselined(options: Mapping[str, str]) -> bool:
    """Whether baseline and scale show: whitening the batch undoes whatever was subtracted and divided batch-wide."""
    return options["groups"] != "single" and not (options["groups"] == "batch" and options["after"] != "none")


def _statistics(on_tokens: bool) -> tuple[Axis, ...]:
    return (
        Axis(
            name="repeat",
            options=(Option(name="own", standing="standard"), probing.as_pitfall("tiled", TILED)),
            when=lambda o: o["groups"] == "own" and o["baseline"] == "mean",
        ),
        Axis(
            name="baseline",
            when=_baselined,
            options=(
                Option(name="mean", standing="standard", says="mean baseline"),
                Option(name="loo", says="leave-one-out baseline", source="RLOO, arXiv:2402.14740"),
                Option(name="median", says="median baseline"),
                probing.as_pitfall("mean across", AXIS),
                probing.as_pitfall("siblings by n", LOO_DIVISOR),
                probing.as_pitfall("all by n-1", LOO_DIVISOR),
            ),
        ),
        Axis(
            name="scale",
            when=_baselined,
            options=(
                Option(name="std1", standing="standard", says="std ddof=1"),
                Option(name="none", says="no division by the std", source="Dr. GRPO, arXiv:2503.20783"),
                Option(name="std0", says="std ddof=0", source="open-instruct, rllm, GRPO-Zero"),
                Option(name="batch1", says="std of the batch, ddof=1", source="TRL scale_rewards=batch"),
                Option(name="batch0", says="std of the batch, ddof=0", source="AReaL std_level=batch"),
                Option(name="loo", says="leave-one-out std", source="NeMo-RL"),
                Option(name="mean", says="divided by the group mean", source="MaxRL; SkyRL"),
                Option(name="over tokens", says="divided by the trained tokens of the batch", source="SkyRL"),
                Option(name="over samples", says="divided by the number of samples"),
                probing.as_pitfall("variance", VARIANCE),
                probing.as_pitfall("std1 across", AXIS),
                probing.as_pitfall("std0 across", AXIS),
            ),
        ),
        Axis(
            name="guard",
            when=lambda o: _baselined(o) and o["scale"] not in UNSCALED,
            options=(
                Option(name="add", standing="standard", says="std + eps"),
                Option(name="inside", says="sqrt(var + eps)", source="whiten in verl, torchtune"),
                Option(name="clamp", says="max(std, eps)"),
                Option(name="where", says="divided only where std > 0", source="NeMo-RL"),
                probing.as_pitfall("behind", EPS_MISPLACED),
                probing.as_pitfall("none", NO_EPSILON),
            ),
        ),
        Axis(name="sign", options=(Option(name="plus", standing="standard"), probing.as_pitfall("minus", SIGN))),
        Axis(
            name="after",
            options=(
                Option(name="none", standing="standard"),
                Option(name="whiten1", says="whitened over the batch, ddof=1", source="REINFORCE++-baseline"),
                Option(name="whiten0", says="whitened over the batch, ddof=0", source="OpenRLHF, rllm"),
                Option(
                    name="normalised", says="normalised over the batch, std ddof=1, + eps",
                    source="TRL: RLOOTrainer normalize_advantages, GRPOTrainer normalize_then_sum",
                ),
                *(_TOKEN_WHITENING if on_tokens else ()),
            ),
        ),
    )  # fmt: skip


_TOKEN_WHITENING = (
    Option(name="tokens1", says="whitened over the trained tokens, ddof=1", source="verl REINFORCE++-baseline"),
    Option(name="tokens0", says="whitened over the trained tokens, ddof=0", source="OpenRLHF"),
    probing.as_pitfall("padded1", WHITEN_PADDING),
    probing.as_pitfall("padded0", WHITEN_PADDING),
)
MASK_PROMISED = (
    r"nothing .{0,40}(part of|counts?)", r"mask\w*.{0,120}(not (a )?part|not count|excluded|ignored|rejected)",
    r"(masked|padded|padding).{0,60}(ignored|excluded|not counted|do(es)? not count|never read)",
    r"only (the )?(trained|valid|response|unmasked|generated|real|policy) tokens",
)  # fmt: skip
"""What documentation says that promises a masked sum. Else an unmasked one is usual: rewards are 0 there (verl)."""


def _bookkeeping(subject: Subject) -> tuple[Axis, ...]:
    unmasked = Option(name="unmasked", says="adds up token rewards, which are 0 behind the mask", source="verl, SkyRL")
    return (
        Axis(
            name="score",
            options=(
                Option(name="masked", standing="standard"),
                probing.wrong_here(unmasked, UNMASKED_SCORE, probing.claims(subject, *MASK_PROMISED)),
            ),
            needs=("token_rewards", "completion_mask"),
        ),
        Axis(
            name="spread",
            options=(
                Option(name="own", standing="standard"),
                Option(name="everywhere", says="untrained positions carry the advantage too"),
                probing.as_pitfall("last", STEP_MASK),
            ),
            needs=("is_last_step", "completion_mask"),
        ),
    )


UNEVEN_AXIS = Axis(
    name="uneven",
    options=(
        Option(name="own", standing="standard"),
        probing.as_pitfall("batch", UNEVEN),
        probing.as_pitfall("average", GROUP_COUNT),
    ),
)
SINGLE_AXIS = Axis(
    name="single",
    options=(
        Option(name="zero", standing="standard", says="a lone sample gets 0", source="TRL, SkyRL rloo, NeMo-RL"),
        Option(name="reward", says="a lone sample keeps its reward", source="verl grpo and rloo"),
        probing.as_pitfall("nan", SINGLETON),
    ),
)

# Cases


def example(intent: Mapping[str, Any]) -> Case:
    """Even groups, all of them with a signal."""
    return _case("even groups", intent, constant=False)


def cases(intent: Mapping[str, Any]) -> tuple[Case, ...]:
    """Binary, wide, narrow and (second case) constant groups; more prompts than samples of a prompt."""
    return (example(intent), _case("one constant group", intent, constant=True))


def _sizes(intent: Mapping[str, Any]) -> tuple[int, int]:
    size = intent.get("group_size")
    group = size if isinstance(size, int) and size >= 2 else 4
    return (5 if group != 5 else 7), group


def _case(name: str, intent: Mapping[str, Any], *, constant: bool) -> Case:
    prompts, group = _sizes(intent)
    g = probing.generator(name)
    rows = [torch.rand(group, generator=g, dtype=torch.float64) for _ in range(prompts)]
    rows[0] = torch.zeros(group, dtype=torch.float64)
    rows[0][1] = 1.0
    rows[1] = rows[1] * 6 - 2
    rows[2] = 0.5 + 0.004 * rows[2]
    if constant:
        rows[3] = torch.full((group,), 0.5, dtype=torch.float64)
    return _filled(name, torch.cat(rows).float(), torch.arange(prompts).repeat_interleave(group), group)


def _alike(intent: Mapping[str, Any]) -> Case:
    """Samples that differ in nothing but their rewards: the same length, the same mask."""
    inputs = example(intent).inputs
    rewards = inputs["rewards"]
    return _filled(
        "equal lengths", rewards, inputs["group_ids"], inputs["group_size"], torch.full((rewards.numel(),), 4)
    )


def _filled(name: str, rewards: Tensor, ids: Tensor, group: int, lengths: Tensor | None = None) -> Case:
    """The inputs that go with these rewards: mask with junk behind it, token rewards, turns."""
    n, width = rewards.numel(), 6
    lengths = torch.arange(n) * 3 % (width - 1) + 1 if lengths is None else lengths
    mask = (torch.arange(width)[None] < lengths[:, None]).float()
    mask[lengths == width - 1, 2] = 0.0
    token_rewards = torch.zeros(n, width)
    token_rewards[torch.arange(n), lengths - 1] = rewards
    token_rewards[mask == 0] = 3.0
    return Case(
        name=name,
        inputs={
            "rewards": rewards, "group_ids": ids, "group_size": group, "completion_mask": mask,
            "attention_mask": mask.long(), "token_rewards": token_rewards, "lengths": lengths,
            "prompts": [f"prompt {int(i)}" for i in ids], "token_ids": ids[:, None].expand(n, width).contiguous(),
            "is_last_step": torch.ones(n, dtype=torch.bool), "trajectory_ids": torch.arange(n),
        },
    )  # fmt: skip


def _turns(intent: Mapping[str, Any]) -> Case:
    """Every second trajectory has an earlier turn, which has another mask than the last one."""
    base = _case("turns", intent, constant=False)
    rewards, ids, group = base.inputs["rewards"], base.inputs["group_ids"], base.inputs["group_size"]
    order: list[int] = []
    last: list[bool] = []
    for i in range(rewards.numel()):
        order += [i, i] if i % 2 else [i]
        last += [False, True] if i % 2 else [True]
    picked, is_last = torch.tensor(order), torch.tensor(last)
    case = _filled("turns", torch.where(is_last, rewards[picked], torch.zeros(())), ids[picked], group)
    return Case(name="turns", inputs={**case.inputs, "is_last_step": is_last, "trajectory_ids": picked})


def _uneven(intent: Mapping[str, Any], *, lone: bool) -> Case:
    """The even case after some samples were dropped; with `lone`, one prompt keeps a single sample."""
    base = _case("uneven", intent, constant=False)
    _, group = _sizes(intent)
    keep = torch.ones(base.inputs["rewards"].numel(), dtype=torch.bool)
    if group > 2:
        keep[1], keep[group * 2] = False, False
    else:
        keep[:group] = False
    if lone:
        keep[-group:-1] = False
    name = "a lone sample" if lone else "uneven groups"
    return _filled(name, base.inputs["rewards"][keep], base.inputs["group_ids"][keep], group)


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """The advantages of one case, [N] or [N, T] as the user's function gave them."""
    value = _laid_out(_per_row(s, options, knobs), s, options)
    return Result(value=value, noise=lambda: _noise(s, options, knobs, value))


def _per_row(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """One advantage for each scored row. The sign alone is not worth a second evaluation."""
    what = (
        *(options[name] for name in _VALUE_AXES),
        options.get("score"),
        options.get("uneven"),
        options.get("single"),
    )
    plus = s.remember(("advantages", *what, knobs.get("eps", 0.0)), lambda: _advantages(s, options, knobs))
    return -plus if options["sign"] == "minus" else plus


_SCALED_BY = ("groups", "repeat", "baseline", "scale", "guard", "score", "uneven", "single")
_VALUE_AXES = ("groups", "repeat", "baseline", "scale", "guard", "after")


def _noise(s: Seen, options: Options, knobs: Knobs, value: Tensor) -> Tensor:
    """What the same formula loses when it is evaluated in float32, by row the largest loss in its group."""
    narrow = {k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in s.inputs.items()}
    rounded = Seen(case=s.case, inputs=narrow, value=s.value, grads={}, dtype=s.dtype, cache=s.cache)
    lost = (_laid_out(_per_row(rounded, options, knobs), s, options).double() - value).abs().nan_to_num(0.0, 0.0, 0.0)
    ids = s.inputs["group_ids"]
    assert isinstance(ids, Tensor)
    return torch.stack([lost[ids == i].max() for i in ids]).reshape(-1, *(1,) * (value.dim() - 1)).expand_as(value)


def _scored_rows(s: Seen) -> Tensor:
    """Numbers of the rows that have an outcome of their own."""
    last = s.inputs["is_last_step"]
    assert isinstance(last, Tensor)
    return last.nonzero().flatten() if s.cache.get("turns") is not None else torch.arange(last.numel())


def _scores(s: Seen, options: Options) -> Tensor:
    """Outcome of every scored row."""
    token_rewards = s.inputs["token_rewards"]
    mask = s.inputs["completion_mask"]
    assert isinstance(token_rewards, Tensor) and isinstance(mask, Tensor)
    if s.cache.get("from_tokens") is not None:
        rewards = token_rewards.sum(-1) if options.get("score") == "unmasked" else (token_rewards * mask).sum(-1)
    else:
        got = s.inputs["rewards"]
        assert isinstance(got, Tensor)
        rewards = got
    return rewards[s.remember(("rows",), lambda: _scored_rows(s))]


def _group_of(s: Seen, choice: str) -> Tensor:
    """Group number of every scored row under an option of the axis `groups`."""
    ids = s.inputs["group_ids"]
    assert isinstance(ids, Tensor)
    own = ids[_scored_rows(s)]
    n = own.numel()
    size = int(s.inputs["group_size"])  # type: ignore[call-overload]
    prompts = max(n // size, 1)
    position = torch.arange(n)
    return {
        "own": own, "batch": torch.zeros_like(own), "single": position, "alternating": position % prompts,
        "across": position % size, "blocks": position // prompts,
    }[choice]  # fmt: skip


def _advantages(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    r = s.remember(("scores", options.get("score")), lambda: _scores(s, options))
    key = ("scaled", *(options.get(name) for name in _SCALED_BY), knobs.get("eps", 0.0))
    centred = s.remember(key, lambda: _scaled(r, s, options, knobs)) if _baselined(options) else r
    if options["after"] == "normalised":
        return (centred - centred.mean()) / (centred.std() + knobs.get("eps", 0.0))
    return centred if options["after"] == "none" else _whitened(centred, s, options["after"])


def _whitened(rows: Tensor, s: Seen, after: str) -> Tensor:
    """Zero mean and unit variance over the rows, or over the trained tokens, of which each carries its row's value.

    `padded`: over all positions, padding carrying 0.
    """
    mask = s.inputs["completion_mask"]
    assert isinstance(mask, Tensor)
    by_row = after.startswith("whiten")
    ones, counts = (lambda: torch.ones_like(rows)), (lambda: (mask > 0).sum(1).to(rows.dtype))
    weight = s.remember(("weight", by_row), ones if by_row else counts)
    padding = mask.numel() - float(weight.sum()) if after.startswith("padded") else 0.0
    total = s.remember(("weights", by_row), weight.sum) + padding
    mean = (weight * rows).sum() / total
    deviation = rows - mean
    square = (weight * deviation.square()).sum() + padding * mean.square()
    var = square / (total - (1 if after.endswith("1") else 0))
    return deviation * torch.rsqrt(var + 1e-8)


class _Stats(NamedTuple):
    """Statistics of the group that each row is compared with, by row [N]."""

    mean: Tensor
    square: Tensor
    """Sum of squared deviations."""
    members: Tensor
    deviation: Tensor
    median: Tensor


def _statistics_of(r: Tensor, s: Seen, options: Options) -> _Stats:
    choice = "batch" if options.get("uneven") == "batch" else options["groups"]
    tiled, average = options["repeat"] == "tiled", options.get("uneven") == "average"

    def compute() -> Tensor:
        return torch.stack(_stats(r, _group_of(s, choice), tiled=tiled, average=average))

    return _Stats(*s.remember(("stats", choice, tiled, average, options.get("score")), compute))


def _stats(r: Tensor, groups: Tensor, *, tiled: bool, average: bool = False) -> _Stats:
    onehot = torch.nn.functional.one_hot(groups.unique(return_inverse=True)[1]).to(r.dtype)
    n = onehot.sum(0)
    mean = (onehot.T @ r) / (n.mean() if average else n)
    deviation = r - onehot @ mean
    square = onehot.T @ deviation.square()
    median = torch.stack([r[groups == k].median() for k in groups.unique()])
    if tiled:
        spread = lambda stat: stat.repeat(-(-r.numel() // n.numel()))[: r.numel()]  # noqa: E731
    else:
        spread = lambda stat: onehot @ stat  # noqa: E731
    return _Stats(spread(mean), spread(square), spread(n), deviation, spread(median))


def _scaled(r: Tensor, s: Seen, options: Options, knobs: Knobs) -> Tensor:
    baseline, scale, guard, eps = options["baseline"], options["scale"], options["guard"], knobs.get("eps", 0.0)
    key = (options["groups"], options.get("uneven"), options["repeat"], options.get("score"))
    from_ = {**options, "groups": "across"} if baseline == "mean across" else options
    centred = s.remember(("centred", baseline, *key), lambda: _centred(r, _statistics_of(r, s, from_), baseline))
    if scale == "none":
        out = centred
    elif scale.startswith("over"):
        mask = s.inputs["completion_mask"]
        assert isinstance(mask, Tensor)
        out = centred / (mask.sum() if scale == "over tokens" else r.numel())
    elif scale == "mean":
        out = centred / (_statistics_of(r, s, options).mean + eps)
    else:
        compared = {**options, "groups": "across"} if scale.endswith("across") else options
        var = s.remember(("var", scale, *key), lambda: _variance(r, _statistics_of(r, s, compared), scale))
        spread = var if scale == "variance" or guard == "inside" else s.remember(("std", scale, *key), var.sqrt)
        out = _divided(centred, spread, guard, eps)
    single = options.get("single")
    if single is None:
        return out
    lone = _statistics_of(r, s, options).members == 1
    return torch.where(lone, {"zero": r * 0, "reward": r, "nan": r * torch.nan}[single], out)


def _centred(r: Tensor, stats: _Stats, baseline: str) -> Tensor:
    n = stats.members
    if baseline == "siblings by n":
        return r - (n * stats.mean - r) / n
    if baseline == "all by n-1":
        return r - n * stats.mean / (n - 1)
    centred = r - (stats.median if baseline == "median" else stats.mean)
    return centred * n / (n - 1) if baseline == "loo" else centred


def _variance(r: Tensor, stats: _Stats, scale: str) -> Tensor:
    if scale in ("batch1", "batch0"):
        return r.var(correction=1 if scale == "batch1" else 0).expand_as(r)
    if scale == "loo":
        rest = stats.square - stats.deviation.square() * stats.members / (stats.members - 1)
        return (rest / (stats.members - 2)).clamp(min=0)
    return stats.square / (stats.members if scale.startswith("std0") else stats.members - 1)


def _divided(centred: Tensor, spread: Tensor, guard: str, eps: float) -> Tensor:
    if guard == "inside":
        return centred * torch.rsqrt(spread + eps)
    if guard == "add":
        return centred / (spread + eps)
    if guard == "clamp":
        return centred / spread.clamp(min=eps)
    if guard in ("behind", "none"):
        return centred / spread + (eps if guard == "behind" else 0.0)
    return torch.where(spread > 0, centred / (spread + eps), centred)


def _laid_out(per_row: Tensor, s: Seen, options: Options) -> Tensor:
    """[N] or [N, T] from one advantage for each scored row."""
    mask = s.inputs["completion_mask"]
    assert isinstance(mask, Tensor)
    rows = per_row
    if s.cache.get("turns") is not None:
        source = s.remember(("last turn",), lambda: _last_turn(s))
        rows = per_row[source]
        if options.get("spread") == "last" and s.value.dim() == 2:
            return rows[:, None] * mask[_scored_rows(s)][source]
        if options.get("spread") == "own" and s.value.dim() == 2:
            return rows[:, None] * mask
    return rows if s.value.dim() == 1 else rows[:, None].expand_as(s.value)


def _last_turn(s: Seen) -> Tensor:
    """For every row the place of its trajectory's last turn among the scored rows."""
    trajectory = s.inputs["trajectory_ids"]
    assert isinstance(trajectory, Tensor)
    of = {int(trajectory[row]): k for k, row in enumerate(_scored_rows(s).tolist())}
    return torch.tensor([of[int(t)] for t in trajectory])


# The probe


def run(subject: Subject) -> Iterator[Check]:
    """Even groups first; then what only this function's inputs make possible."""
    base = axes(subject)
    try:
        observed = [probing.repeatable(_observed, subject, c) for c in cases(subject.intent)]
    except CallFailed as e:
        yield probing.raised("advantages.formula", ASKS, "even groups", e)
        return
    if "is_last_step" in subject.bound.names:
        try:
            observed.append(probing.repeatable(_observed, subject, _turns(subject.intent)))
        except CallFailed as e:
            yield probing.raised("advantages.turns", "does every turn get its trajectory's advantage?", "turns", e)
    knobs = (
        probing.knob(
            subject, "eps", ("eps",), EPS_USUAL, fit=(1e-10, 1e5), within=(0.0, 1e6),
            active=_uses_eps,
            monotone=(0.0, EPS_SUSPECT),
        ),
    )  # fmt: skip
    if _keeps_padding(observed[0]):
        says = "every trained token gets 0, and padding carries the advantages"
        asks = "do the trained tokens carry the advantages?"
        yield probing.violation("advantages.mask", asks, says, MASK_INVERTED)
        for s in observed:
            s.where = ~s.where if s.where is not None else None
    rows = [narrowing.by_row(s) for s in observed]
    solved = [s for s in rows if s is not None]
    if len(solved) == len(rows):
        tried = tuple(narrowing.whitening(a, solved[0]) if a.name == "after" else a for a in base)
        best = solver.solve(solved, reference, tried, knobs)
    else:
        best = None
    if best is not None and _divides_by_constant(observed[0], best):
        best = None
    yield _formula_check(subject, observed, base, best)
    yield from claims.mutation(subject, observed[0], MUTATES)
    if best is None:
        if not sample_major(subject):
            yield from claims.ordering(subject, _alike(subject.intent), NOT_MONOTONE, SIGN)
    else:
        yield from _uneven_checks(subject, base, best)
        yield from claims.shuffled(subject, observed[0], IDS_IGNORED)
    yield from claims.unscored(subject, cases(subject.intent)[0], lambda c: _expected(subject, c, best))
    yield from claims.rejected(subject, cases(subject.intent)[0])


def _keeps_padding(s: Seen) -> bool:
    if s.where is None:
        return False
    return not bool(s.value[s.where].any()) and bool(s.value[~s.where].any())


def _divides_by_constant(s: Seen, best: Solution) -> bool:
    """A bound under the std that no group's std reaches: the division is by a constant, and no eps at all."""
    if best.options["guard"] != "clamp" or "eps" not in best.knobs or best.options["scale"] in UNSCALED:
        return False
    rewards = s.inputs["rewards"]
    return isinstance(rewards, Tensor) and best.knobs["eps"] > float(rewards.max() - rewards.min())


def _expected(subject: Subject, case: Case, best: Solution | None) -> Tensor | None:
    """Advantages of a case under the convention that was found, one a sample; None where that has a pitfall."""
    over_batch = best is not None and (
        best.options["after"] != "none" or best.options["scale"].startswith(("batch", "over"))
    )
    if best is None or best.pitfalls or best.options["groups"] != "own" or over_batch:
        return None
    n = case.inputs["rewards"].numel()
    s = probing.seen(case.name, case.inputs, Observation(value=torch.zeros(n, dtype=torch.float64)))
    return reference(s, best.options, best.knobs).value


def _observed(subject: Subject, case: Case) -> Seen:
    s = probing.observe(subject, case)
    names = subject.bound.names
    if "token_rewards" in names and "rewards" not in names:
        s.cache["from_tokens"] = torch.ones(())
    if "is_last_step" in names:
        s.cache["turns"] = torch.ones(())
    if s.value.dim() == 2 and "completion_mask" in names and "is_last_step" not in names:
        s.where = case.inputs["completion_mask"] > 0
    s.cache["conditioning"] = _conditioning(s)
    return s


def _conditioning(s: Seen) -> Tensor:
    """Error of the plain formula when it is evaluated in float32: what no float32 code can avoid."""
    rewards = s.inputs["rewards"]
    ids = s.inputs["group_ids"]
    assert isinstance(rewards, Tensor) and isinstance(ids, Tensor)

    def plain(r: Tensor) -> Tensor:
        stats = _stats(r, ids, tiled=False)
        return (r - stats.mean) / ((stats.square / (stats.members - 1)).sqrt() + 1e-8)

    error = float((plain(rewards) - plain(rewards.float()).double()).abs().nan_to_num(0.0, 0.0, 0.0).max())
    return torch.full((), error, dtype=torch.float64)


def _formula_check(subject: Subject, observed: list[Seen], base: tuple[Axis, ...], best: Solution | None) -> Check:
    probe = "advantages.formula"
    if best is None:
        nearest = {a.name: a.options[0].name for a in base}
        found = probing.distance(observed, reference, nearest, {"eps": 1e-6})
        says = "no known baseline and scale gives these advantages"
        return Check(probe=probe, asks=ASKS, outcome=probing.diverges(says, found))
    convention = solver.convention(base, best)
    named = list(solver.named(best.pitfalls, _numbers(observed[0])))
    named += _eps_named(observed[0], best)
    named += _flag_named(subject, best)
    if named:
        found = probing.distance(observed, reference, probing.right_twin(base, best), {**best.knobs, "eps": 1e-6})
        outcome = probing.known_bug(named, convention, found, _severity(subject, best, named))
        return Check(probe=probe, asks=ASKS, outcome=outcome)
    return Check(probe=probe, asks=ASKS, outcome=Agrees(convention=convention))


def _severity(subject: Subject, best: Solution, named: list[Named]) -> Severity:
    """An order of the rows that nobody documents may be the caller's; so may a scale that the caller can switch."""
    ids = {n.pitfall for n in named}
    if ids == {INTERLEAVED.id} and "group_ids" not in subject.bound.names:
        return "hard" if probing.claims(subject, *ADJACENT, *SAMPLE_MAJOR) else "soft"
    if ids == {SCALE_UNDECLARED.id}:
        switched = "scale_rewards" in subject.bound.names | set(subject.bound.settings)
        return "soft" if switched or best.options["scale"] not in ("mean", "std1", "std0") else "hard"
    return "hard"


def _flag_named(subject: Subject, best: Solution) -> list[Named]:
    """The scale against the function's own option and against the declared algorithm."""
    flag = subject.bound.settings.get("scale_rewards")
    scaled = best.options["groups"] != "single" and best.options["scale"] not in UNSCALED
    algorithm = str(subject.intent.get("algorithm", "")).lower()
    promised = probing.claims(
        subject,
        r"(std|standard deviation) (of )?1\b",
        r"unit (std|variance)",
        r"(divided|scaled) by .{0,12}(std|standard)",
    )
    if best.options["scale"] == "mean" and promised and not probing.claims(subject, r"maxrl", r"by .{0,16}\bmean\b"):
        says = "divides by the mean of the group, where its documentation speaks of the std"
        return [Named(pitfall=SCALE_UNDECLARED.id, family=SCALE_UNDECLARED.family, says=says)]
    told = _told_scale(flag)
    if told and told != "none" and best.options["groups"] == "own" and best.options["after"] == "none":
        does = "batch" if best.options["scale"].startswith("batch") else "group" if scaled else "none"
        if does != told:
            says = f"is told to scale by {told!r} and does {'not scale' if does == 'none' else 'so by ' + repr(does)}"
            return [Named(pitfall=SCALE_FLAG.id, family=SCALE_FLAG.family, says=says)]
    if told == "none" and scaled:
        return [Named(pitfall=SCALE_FLAG.id, family=SCALE_FLAG.family, says=SCALE_FLAG.says)]
    wrong = (algorithm == "dr_grpo" and scaled) or (algorithm == "grpo" and not scaled and flag is None)
    if not wrong or best.pitfalls or best.options["after"] != "none" or best.options["baseline"] == "loo":
        return []
    does = "does not divide" if scaled else "divides"
    says = f"declared as {algorithm}, which {does} by the std of the group; this one does the opposite"
    return [Named(pitfall=SCALE_UNDECLARED.id, family=SCALE_UNDECLARED.family, says=says)]


_SCALES_BY = {
    **dict.fromkeys(("none", "off", "no", "false", "disabled", ""), "none"),
    **dict.fromkeys(("group", "groups", "prompt"), "group"),
    **dict.fromkeys(("batch", "global"), "batch"),
}


def _told_scale(flag: object) -> str:
    """What an option of the function says of the scale: `none`, `group`, `batch`; empty where it says nothing sure."""
    if flag is False:
        return "none"
    return _SCALES_BY.get(flag.lower(), "") if isinstance(flag, str) else ""


def _numbers(s: Seen) -> dict[str, Number]:
    finite = s.value[s.value.isfinite()]
    return {"largest |A|": float(finite.abs().max()) if finite.numel() else "nan"}


def _eps_named(s: Seen, best: Solution) -> list[Named]:
    """An eps out of range is a pitfall however it got there: a constant, a default, a setting."""
    eps = best.knobs.get("eps")
    if eps is None or best.options["scale"] == "mean":
        return []
    if eps == 0.0 and best.options["guard"] in ("add", "inside"):
        return [Named(pitfall=NO_EPSILON.id, family=NO_EPSILON.family, says=NO_EPSILON.says, numbers={"eps": 0.0})]
    effective = eps**0.5 if best.options["guard"] == "inside" else eps
    if effective <= EPS_WRONG:
        return []
    rewards, ids = s.inputs["rewards"], s.inputs["group_ids"]
    assert isinstance(rewards, Tensor) and isinstance(ids, Tensor)
    std = float(rewards[ids == ids[0]].std())
    says = (
        f"adds {eps:.4g} to a group's std (1e-9 to 1e-3 is usual), so that the advantages of a group "
        f"with std {std:.3g} come out {(std + effective) / std:.4g} times too small"
    )
    return [Named(pitfall=EPSILON.id, family=EPSILON.family, says=says, numbers={"eps": eps, "group std": std})]


LONE = (
    r"\b(single|lone|one|1) (sample|rollout|row|member|response|completion)",
    r"any number|uneven|unequal|different numbers",
    r"fewer|dropped|removed|filtered|aborted|from one upwards|rollout left",
)  # fmt: skip
"""What documentation says when prompts may be left with a single sample."""


def _uneven_checks(subject: Subject, base: tuple[Axis, ...], best: Solution) -> Iterator[Check]:
    """Groups of unequal size and a lone sample, where the function is told which sample is whose."""
    if "group_ids" not in subject.bound.names or best.options["groups"] != "own" or best.pitfalls:
        return
    for lone, probe in ((False, "advantages.uneven-groups"), (True, "advantages.lone-sample")):
        asks = "are the statistics still those of the prompt's own group?"
        case = _uneven(subject.intent, lone=lone)
        try:
            s = probing.repeatable(_observed, subject, case)
        except CallFailed:
            continue  # A function may require full groups; the rollout code then has to guarantee them.
        fixed = tuple(Axis(name=a.name, options=(solver.option_of(a, best.options[a.name]),)) for a in base)
        extra = (UNEVEN_AXIS, SINGLE_AXIS) if lone else (UNEVEN_AXIS,)
        knobs = tuple(Knob(name=k, values=(v,), known=True) for k, v in best.knobs.items())
        found = solver.solve([s], reference, (*fixed, *extra), knobs, max_pitfalls=1)
        if found is not None and found.pitfalls:
            gap = probing.distance([s], reference, {**found.options, "uneven": "own", "single": "zero"}, best.knobs)
            named = solver.named(found.pitfalls, {})
            hard = found.pitfalls[0].pitfall is not SINGLETON or probing.claims(subject, *LONE)
            outcome = probing.known_bug(named, solver.convention(extra, found), gap, "hard" if hard else "soft")
            yield Check(probe=probe, asks=asks, outcome=outcome)
        elif found is None:
            gap = probing.distance([s], reference, {**best.options, "uneven": "own", "single": "zero"}, best.knobs)
            says = "with groups of unequal size it computes something else than with equal ones"
            yield Check(probe=probe, asks=asks, outcome=probing.diverges(says, gap))
        else:
            says = ", ".join(c.says for c in solver.convention(extra, found, {}).choices) or "own group statistics"
            yield probing.holds(probe, asks, says)


ROLE = Role(
    name="advantages",
    stage="advantages",
    asks="rewards of the samples of several prompts -> advantages [N] or [N, T]",
    takes=(
        "rewards", "token_rewards", "group_ids", "group_size", "completion_mask", "attention_mask", "prompts",
        "token_ids", "lengths", "is_last_step", "trajectory_ids", "eps", "scale_rewards", "gamma",
    ),
    needs=(("rewards", "token_rewards"),),
    returns="per sample",
    example=example,
    run=run,
    pitfalls=(
        EPSILON, NO_EPSILON, SIGN, NO_BASELINE, BATCH_BASELINE, INTERLEAVED, AXIS, RESHAPED, TILED, VARIANCE,
        UNEVEN, SINGLETON, UNMASKED_SCORE, STEP_MASK, IDS_IGNORED, LOO_DIVISOR, EPS_MISPLACED, SCALE_FLAG,
        SCALE_UNDECLARED, GROUP_COUNT, WHITEN_PADDING, MUTATES, MASK_INVERTED, NOT_MONOTONE,
        claims.ABSTAINED, claims.REJECTED,
    ),
)  # fmt: skip
