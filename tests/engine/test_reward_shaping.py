"""Reward shaping that is right, wrong and strange, loaded and bound as a user's is."""

# ruff: noqa: E501  rows of a table, one a mutant

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.reward import reward_shaping
from rltriage_probes.solver import Seen

DATA = Path(__file__).parent / "data"
Swaps = tuple[tuple[str, str], ...]


def examine(name: str, root: Path = DATA, module: str = "reward_shaping_right") -> TargetResult:
    target = TargetSpec(name="reward_shaping", role="reward_shaping", ref=f"{module}.py:{name}")
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent={"algorithm": "ppo"}, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the right functions in which texts inside one definition are exchanged."""
    text = (DATA / "reward_shaping_right.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name.split(".", maxsplit=1)[0])
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / "reward_shaping_right.py").write_text(before + code + after, encoding="utf-8")
    return folder


def named(result: TargetResult, severity: str = "hard") -> set[str]:
    """Pitfalls of known bugs and violations of a severity."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug() as bug if bug.severity == severity:
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates() as broken if broken.severity == severity:
                found |= {n.pitfall for n in broken.candidates}
            case _:
                pass
    return found


CHARGED, SOFTLY = "KL charged in the reward", "soft overlong penalty"
RIGHT = [
    ("compute_reward", f"{CHARGED}, score on the last token, score clipped, beta=0.3, clip=1.2"),
    ("compute_rewards", f"KL estimator k1 (plain log-ratio), {CHARGED}, beta=0.3"),
    ("get_rewards_ppo", "score on the last token"),
    ("Trainer.shape", f"KL estimator k3, {CHARGED}, score on the last token"),
    ("per_sequence", f"KL estimator k1 (plain log-ratio), {CHARGED}"),
    ("apply_kl_penalty", f"KL estimator k1 (plain log-ratio), {CHARGED}"),
    ("overlong", f"{SOFTLY}, factor=0.8"),
    ("with_overlong", SOFTLY),
    ("one_length", f"{SOFTLY}, factor=0.8"),
    ("get_soft_overlong_punishment", SOFTLY),
    ("OverlongManager.__call__", "overlong penalty without a floor"),
    ("of_rollout", f"{CHARGED}, score on the last token"),
    ("clipped_scores", "score at the index of the token count, score clipped"),
    ("whitened", "scaled to unit variance, ddof=1"),
    ("numpy_penalty", SOFTLY),
    ("fixed", SOFTLY),
    ("in_half", CHARGED),
    ("list_rewards", f"{SOFTLY}, factor=0.8"),
    ("loop_term", "varied text gets"),
    ("repeated_words", "varied text gets"),
]


@pytest.mark.parametrize(("name", "words"), RIGHT)
def test_a_right_function_is_recognised(name: str, words: str) -> None:
    result = examine(name)

    outcomes = [c.outcome for c in result.checks]
    assert all(isinstance(o, Agrees) for o in outcomes), outcomes
    assert isinstance(outcomes[0], Agrees)
    assert words in outcomes[0].convention.summary


LAST = "out[torch.arange(len(scores)), last] += scores.bfloat16()"
MUTANTS: list[tuple[str, str, Swaps]] = [
    ("RSH-KL-SIGN", "compute_rewards", (("old_log_prob - ref_log_prob", "ref_log_prob - old_log_prob"),)),
    ("RSH-KL-SIGN", "compute_reward", (("-kl_coef * kl", "kl_coef * kl"),)),
    ("RSH-KL-SIGN", "per_sequence", (("rewards - beta", "rewards + beta"),)),
    ("RSH-KL-SIGN", "apply_kl_penalty", (("] - kl_coef * kl", "] + kl_coef * kl"),)),
    ("RSH-KL-REVERSED", "Trainer.shape", (("d = ref_logprobs - logprobs", "d = logprobs - ref_logprobs"),)),
    ("RSH-KL-REVERSED", "Trainer.shape", (("(d.exp() - d - 1)", "((-d).exp() + d - 1)"),)),
    ("RSH-KL-UNWEIGHTED", "compute_rewards", (("kl * kl_ratio", "kl"),)),
    ("RSH-KL-UNWEIGHTED", "of_rollout", (("bonus - beta * kl", "bonus - kl"),)),
    ("RSH-KL-MISSING", "compute_rewards", (("token_level_scores - kl * kl_ratio", "token_level_scores.clone()"),)),
    ("RSH-KL-MISSING", "per_sequence", (("rewards - beta * kl", "rewards * 1.0"),)),
    ("RSH-KL-PADDING", "of_rollout", (("torch.where(rollout.mask > 0, rollout.logprobs - rollout.ref_logprobs, torch.zeros(()))", "rollout.logprobs - rollout.ref_logprobs"),)),
    ("RSH-KL-PADDING", "per_sequence", (("    kl", '    """The KL is summed over the response tokens."""\n    kl'), ("((per_token_logps - ref_per_token_logps) * completion_mask).sum(-1)", "(per_token_logps - ref_per_token_logps).sum(-1)"))),
    ("RSH-MASK-INVERTED", "in_half", (("mask.bfloat16()", "(1 - mask.bfloat16())"),)),
    ("RSH-MASK-INVERTED", "per_sequence", (("* completion_mask", "* (1 - completion_mask)"),)),
    ("RSH-SCORE-OVERWRITES", "of_rollout", (("return bonus - beta * kl", "return torch.where(columns[None] == last[:, None], bonus, -beta * kl)"),)),
    ("RSH-SCORE-OVERWRITES", "clipped_scores", (("    s =", '    """Token rewards: the score is added at the end."""\n    s ='), ("accumulate=True", "accumulate=False"))),
    ("RSH-SCORE-PLACE", "in_half", ((LAST, "out[:, -1] += scores.bfloat16()"),)),
    ("RSH-SCORE-PLACE", "compute_reward", (("action_mask.size(1) - 1 -", "action_mask.size(1) - 2 -"), (".argmax(dim=1, keepdim=True)", ".argmax(dim=1, keepdim=True).clamp(max=action_mask.size(1) - 2)"))),
    ("RSH-SCORE-PLACE", "in_half", ((LAST, "out[:, 0] += scores.bfloat16()"),)),
    ("RSH-SCORE-EVERY-TOKEN", "of_rollout", (("(columns[None] == last[:, None])", "rollout.mask"),)),
    ("RSH-SCORE-EVERY-TOKEN", "in_half", ((LAST, "out = out + scores.bfloat16()[:, None] * mask.bfloat16()"),)),
    ("RSH-SCORE-LOST", "in_half", ((LAST, ""),)),
    ("RSH-SCORE-LOST", "with_overlong", (("return rewards + extra", "return extra"),)),
    ("RSH-LENGTH-SIGN", "overlong", (("return -(exceed", "return (exceed"),)),
    ("RSH-LENGTH-SIGN", "list_rewards", (("r - penalty_factor", "r + penalty_factor"),)),
    ("RSH-LENGTH-EDGE", "overlong", (("(max_response_length - overlong_buffer_len)", "max_response_length"),)),
    ("RSH-LENGTH-EDGE", "numpy_penalty", (("(lengths - (max_len - cache))", "(lengths - (max_len - cache) + 1)"),)),
    ("RSH-LENGTH-SCALE", "overlong", (("(exceed / overlong_buffer_len)", "(exceed / max_response_length)"),)),
    ("RSH-LENGTH-SCALE", "fixed", (("over / BUFFER", "over"),)),
    ("RSH-LENGTH-INERT", "with_overlong", (("    n =", '    """Reward with the overlong penalty."""\n    n ='), ("rewards + extra", "rewards.clone()"))),
    ("RSH-LENGTH-INERT", "OverlongManager.__call__", (('rewards = batch["token_level_scores"].clone()', 'return batch["token_level_scores"].clone()'),)),
    ("RSH-FACTOR-IGNORED", "overlong", ((" * penalty_factor", ""),)),
    ("RSH-FACTOR-IGNORED", "one_length", (("-factor * min", "-min"),)),
    ("RSH-LENGTH-PADDED", "with_overlong", (("response_mask.sum(-1)", "torch.full((len(rewards),), float(response_mask.shape[1]))"),)),
    ("RSH-LENGTH-PADDED", "OverlongManager.__call__", (("exceed = n -", "exceed = mask.shape[1] -"), ("min(-exceed / self.overlong_buffer_len * self.penalty_factor, 0)", "-min(exceed / self.overlong_buffer_len, 1) * self.penalty_factor"))),
    ("RSH-CLIP-IGNORED", "clipped_scores", (("scores.clamp(-score_clip, score_clip)", "scores"),)),
    ("RSH-CLIP-IGNORED", "compute_reward", (("r = r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])", "r.clamp(min=reward_clip_range[0], max=reward_clip_range[1])"),)),
    ("RSH-CLIP-SWAPPED", "clipped_scores", (("(-score_clip, score_clip)", "(score_clip, -score_clip)"),)),
    ("RSH-CLIP-SWAPPED", "compute_reward", (("min=reward_clip_range[0], max=reward_clip_range[1]", "min=reward_clip_range[1], max=reward_clip_range[0]"),)),
    ("RSH-SCORE-PLACE", "clipped_scores", (("sum(1).long() - 1", "sum(1).long() - 2"),)),
    ("RSH-LENGTH-SIGN", "with_overlong", (("    n = response_mask.sum(-1)\n    start = max_len - cache_len", "    n = response_mask.sum(-1)\n    return rewards - ((max_len - n) / cache_len).clamp(0, 1)\n    start = 0"),)),
    ("RSH-CLIP-ONE-SIDED", "clipped_scores", (("(-score_clip, score_clip)", "(max=score_clip)"),)),
    ("RSH-CLIP-ONE-SIDED", "compute_reward", (("min=reward_clip_range[0], max=reward_clip_range[1]", "min=reward_clip_range[0]"),)),
    ("RSH-LENGTH-UNBOUNDED", "overlong", (("return -(exceed / overlong_buffer_len).clamp(0, 1)", "return -(exceed / overlong_buffer_len).clamp(max=1)"),)),
    ("RSH-LENGTH-UNBOUNDED", "numpy_penalty", (("/ cache, 0.0, 1.0)", "/ cache, None, 1.0)"),)),
    ("RSH-REPETITION-SIGN", "loop_term", (("1 - len(set(grams)) / max(1, len(grams))", "len(set(grams)) / max(1, len(grams))"),)),
    ("RSH-REPETITION-SIGN", "repeated_words", (("1 - len(set(w))", "1.0 * len(set(w))"),)),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps))) == {pitfall}


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [m[0] for m in MUTANTS]

    assert {p.id for p in reward_shaping.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


def test_a_kl_on_padding_that_nobody_rules_out_is_asked_about_softly(tmp_path: Path) -> None:
    swaps = (
        ("((per_token_logps - ref_per_token_logps) * completion_mask)", "(per_token_logps - ref_per_token_logps)"),
    )
    result = examine("per_sequence", mutated(tmp_path, "per_sequence", swaps))

    assert named(result) == set()
    assert named(result, "soft") == {"RSH-KL-PADDING"}


def test_two_bugs_in_one_function_are_both_named(tmp_path: Path) -> None:
    both = (("-beta * kl", "beta * kl"), (LAST, "out[:, -1] += scores.bfloat16()"))

    assert named(examine("in_half", mutated(tmp_path, "in_half", both))) == {"RSH-KL-SIGN", "RSH-SCORE-PLACE"}


@pytest.mark.parametrize("name", ["squared_penalty", "hellinger", "shared"])
def test_an_unknown_shaping_diverges(name: str) -> None:
    result = examine(name, module="reward_shaping_strange")

    assert isinstance(result.checks[0].outcome, Diverges)


# The reference itself

STANDARD = {
    "estimator": "k1", "penalty": "minus", "kl on": "masked", "score": "last", "length": "soft", "clip": "score", "whiten": "none",
}  # fmt: skip
KNOBS = {"beta": 0.3, "factor": 0.8, "clip": 1.2}


def seen(shape: int = 2, **cases: Any) -> Seen:
    made = reward_shaping._case("a case", cases.pop("limit", 6), cases.pop("buffer", 3), **cases)  # pyright: ignore[reportPrivateUsage]
    s = Seen(case="a case", inputs=made.inputs, value=torch.zeros([7] * shape), grads={}, dtype="float32")
    s.cache["uses completion_mask"] = torch.ones(())
    return s


def test_the_soft_penalty_has_the_numbers_of_the_paper() -> None:
    """Limit 20480, buffer 4096: nothing at 16384, a quarter at 17408, a half at 18432, all of it at the limit and behind."""
    s = seen(1)
    lengths = torch.tensor([16384, 17408, 18432, 20480, 25000])
    s.inputs = {**s.inputs, "lengths": lengths, "max_completion_length": 20480, "buffer_length": 4096}
    s.cache.clear()
    got = reward_shaping._length_penalty(s, "soft", {"factor": 1.0})  # pyright: ignore[reportPrivateUsage]

    assert [float(x) for x in got] == pytest.approx([0.0, -0.25, -0.5, -1.0, -1.0])


def test_the_reference_gives_hand_computed_token_rewards() -> None:
    s = seen()
    one = torch.tensor([[-1.0, -2.0, -0.5, -9.0]])
    s.inputs = {
        **s.inputs, "rewards": torch.tensor([2.0]), "logprobs": one, "ref_logprobs": torch.tensor([[-1.5, -1.0, -0.5, 0.0]]),
        "completion_mask": torch.tensor([[1.0, 1.0, 1.0, 0.0]]), "max_completion_length": 4, "buffer_length": 2,
    }  # fmt: skip
    s.value = torch.zeros(1, 4)

    got = reward_shaping.reference(s, {**STANDARD, "clip": "none"}, {"beta": 0.1, "factor": 1.0})
    assert [float(x) for x in got.value[0]] == pytest.approx([-0.05, 0.1, 2.0 - 0.5, 0.0])


OPTIONS = {
    "estimator": ["k1", "k3", "k2", "abs", "square", "k3 reversed"],
    "penalty": ["minus", "plus", "unweighted", "unweighted plus", "none"],
    "kl on": ["masked", "everywhere", "inverted", "mean"],
    "score": ["last", "count", "last column", "one early", "one late", "first", "count early", "every", "none", "overwrites"],
    "length": [
        "soft", "uncapped", "soft plus", "uncapped plus", "mirrored", "mirrored start", "late edge", "buffer edge", "one early", "one late", "over limit",
        "over start", "tokens", "step", "padded", "none", "soft, factor 1", "uncapped, factor 1",
    ],
    "clip": ["score", "total", "none", "upper only", "lower only", "swapped"],
    "whiten": ["none", "tokens1", "tokens0", "tokens1 kept", "tokens0 kept"],
}  # fmt: skip


@pytest.mark.parametrize("axis", list(OPTIONS))
def test_the_cases_tell_every_pair_of_options_apart(axis: str) -> None:
    # 20 and 8 make the edges fall apart that coincide where the buffer is half of the limit
    cases = [seen(), seen(limit=20, buffer=8), seen(holes=True)]
    base = {**STANDARD, "length": "none"} if axis != "length" else STANDARD
    values = {o: [reward_shaping.reference(s, {**base, axis: o}, KNOBS).value for s in cases] for o in OPTIONS[axis]}
    for one, other in itertools.combinations(values, 2):
        gap = max(float((a - b).abs().max()) for a, b in zip(values[one], values[other], strict=True))
        assert gap > 1e-3, (one, other)
