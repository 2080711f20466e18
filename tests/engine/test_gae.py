"""GAE functions that are right, wrong and strange, loaded and bound as a user's are."""

# ruff: noqa: E501  rows of a table, one a mutant

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from rltriage_probes import checking, trajectories
from rltriage_probes.advantages import gae
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.solver import Seen

DATA = Path(__file__).parent / "data"
Swaps = tuple[tuple[str, str], ...]


def examine(
    name: str, root: Path = DATA, module: str = "gae_right", settings: dict[str, Any] | None = None
) -> TargetResult:
    target = TargetSpec(name="gae", role="gae", ref=f"{module}.py:{name}", settings=settings or {})
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent={"algorithm": "ppo"}, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the right functions in which texts inside one definition are exchanged."""
    text = (DATA / "gae_right.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name.split(".", maxsplit=1)[0])
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / "gae_right.py").write_text(before + code + after, encoding="utf-8")
    return folder


def named(result: TargetResult, *severities: str) -> set[str]:
    """Pitfalls of known bugs and violations of these severities."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug() as bug if bug.severity in (severities or ("hard",)):
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates() as broken if broken.severity in (severities or ("hard",)):
                found |= {n.pitfall for n in broken.candidates}
            case _:
                pass
    return found


RIGHT = [
    ("skipping", "masked tokens are skipped, whitened over the trained tokens, ddof=1"),
    ("Maker.get_advantages_and_returns", "masked tokens are steps of value 0"),
    ("Maker.get_cumulative_returns", "discounted returns, masked tokens are steps of value 0"),
    ("plain", "advantages and returns"),
    ("segments", "advantages and returns, bootstraps from the given value unless the episode has ended"),
    ("one_column_more", "bootstraps from the given value"),
    ("with_last_value", "advantages, bootstraps from the given value"),
    ("cleanrl", "a marked step starts an episode"),
    ("terminal_steps", "an episode ends with its marked step"),
    ("single_episode", "advantages"),
    ("numpy_rows", "advantages and returns"),
    ("flipped", "TD errors of masked tokens are 0"),
    ("chunked", "advantages and returns"),
    ("Estimator.__call__", "masked tokens are skipped, gamma=0.97, lam=0.9"),
    ("named_result", "advantages and returns, masked tokens are skipped"),
    ("outcome", "outcome reward on the last action"),
    ("rewards_to_go", "discounted returns, masked tokens are skipped"),
    ("discounted", "discounted returns"),
    ("undiscounted", "discounted returns"),
    ("separate_lambda", "returns with lambda 1"),
    ("half", "advantages"),
    ("double", "whitened over the trained tokens, ddof=0"),
    ("next_states", "bootstraps from the given value, an episode ends with its marked step"),
    ("jagged", "advantages and returns"),
]


@pytest.mark.parametrize(("name", "words"), RIGHT)
def test_a_right_function_is_recognised(name: str, words: str) -> None:
    result = examine(name)

    outcomes = [c.outcome for c in result.checks]
    assert all(isinstance(o, Agrees) for o in outcomes), outcomes
    assert isinstance(outcomes[0], Agrees)
    assert words in outcomes[0].convention.summary


def test_every_right_function_is_in_the_table() -> None:
    tree = ast.parse((DATA / "gae_right.py").read_text("utf-8"))

    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert functions <= {name for name, _ in RIGHT}


NOTHING_BEHIND = '    """The episode ends with its last action: no bootstrap."""\n'
TOOLS = '    """Tool observations (mask 0) are no time steps."""\n'
MUTANTS: list[tuple[str, str, Swaps]] = [
    ("GAE-PADDING", "flipped", (("    v = values * mask\n", NOTHING_BEHIND + "    v = values\n"), ("    delta = delta * mask\n", ""))),
    ("GAE-PADDING", "flipped", (("    v = values * mask\n", NOTHING_BEHIND + "    v = values\n"),)),
    ("GAE-PADDING", "double", (('"""Whitened, masked to 0."""', '"""What the critic says on padding is noise."""'), ("    v = v.masked_fill(~keep, 0)\n", ""))),
    ("GAE-HOLES", "flipped", (("    v = values * mask\n", TOOLS + "    v = values * mask\n"),)),
    ("GAE-HOLES", "rewards_to_go", (("    out = torch", TOOLS + "    out = torch"), ("run = new * mask[:, t] + run * (1 - mask[:, t])", "run = new"))),
    ("GAE-MASK-INVERTED", "separate_lambda", (("m = mask[:, t] > 0", "m = mask[:, t] == 0"),)),
    ("GAE-MASK-INVERTED", "Estimator.__call__", (('batch["response_mask"].bool()', '~batch["response_mask"].bool()'), ("adv * m", "adv"), ("(adv + v) * m", "adv + v"))),
    ("GAE-MASKED-OUTPUT", "double", (("return adv.masked_fill(~keep, 0), ret", "return adv, ret"), ("masked to 0", "masked positions are 0"))),
    ("GAE-MASKED-OUTPUT", "flipped", (("    v = values", '    """Zero on padding."""\n    v = values'), ("(adv + values) * mask", "adv + values"))),
    ("GAE-NEXT-VALUE", "plain", (("nxt = values[:, t + 1] if t + 1 < T else 0.0", "nxt = values[:, t]"),)),
    ("GAE-NEXT-VALUE", "plain", (("nxt = values[:, t + 1] if t + 1 < T else 0.0", "nxt = values[:, t + 2] if t + 2 < T else 0.0"),)),
    ("GAE-NEXT-VALUE", "one_column_more", (("values[:, 1:] - values[:, :-1]", "values[:, :-1] - values[:, :-1]"),)),
    ("GAE-TAIL", "plain", (("values[:, t + 1] if t + 1 < T else 0.0", "values[:, (t + 1) % T]"),)),
    ("GAE-TAIL", "with_last_value", (("last_value.unsqueeze(1)", "torch.zeros_like(last_value).unsqueeze(1)"),)),
    ("GAE-TAIL", "terminal_steps", (("following = last_value", "following = torch.zeros_like(last_value)"),)),
    ("GAE-DELTA-SIGN", "plain", (("- values[:, t] +", "+ values[:, t] +"),)),
    ("GAE-DELTA-SIGN", "one_column_more", (("rewards + gamma * values[:, 1:] - values[:, :-1]", "values[:, :-1] - rewards - gamma * values[:, 1:]"),)),
    ("GAE-DELTA-SIGN", "cleanrl", (("rewards[t] + gamma", "rewards[t] - gamma"),)),
    ("GAE-NO-BASELINE", "plain", ((" - values[:, t] +", " +"),)),
    ("GAE-NO-BASELINE", "with_last_value", (("gamma * nxt - values", "gamma * nxt"),)),
    ("GAE-GAMMA-MISSING", "plain", (("+ gamma * nxt", "+ nxt"),)),
    ("GAE-GAMMA-MISSING", "plain", (("gamma * lambd * run", "lambd * run"),)),
    ("GAE-GAMMA-MISSING", "one_column_more", (("gamma * ", ""),)),
    ("GAE-GAMMA-MISSING", "rewards_to_go", (("gamma * run", "run"),)),
    ("GAE-LAMBDA-MISSING", "plain", (("gamma * lambd * run", "gamma * run"),)),
    ("GAE-LAMBDA-MISSING", "cleanrl", (("delta + gamma * gae_lambda * nextnonterminal * lastgaelam", "delta"),)),
    ("GAE-LAMBDA-MISPLACED", "plain", (("gamma * nxt", "lambd * nxt"),)),
    ("GAE-LAMBDA-MISPLACED", "one_column_more", (("rewards + gamma *", "rewards + gamma * lam *"),)),
    ("GAE-TIME-REVERSED", "plain", (("range(T - 1, -1, -1)", "range(T)"),)),
    ("GAE-TIME-REVERSED", "half", (("cols[::-1]", "cols"),)),
    ("GAE-TIME-REVERSED", "single_episode", (("advantages[::-1]", "advantages"),)),
    ("GAE-ABSOLUTE-DISCOUNT", "discounted", (("    kernel = torch.tril(gamma ** (t[:, None] - t[None]).clamp(min=0))\n    return rewards @ kernel", "    return (gamma**t * rewards).flip(-1).cumsum(-1).flip(-1)"),)),
    ("GAE-ABSOLUTE-DISCOUNT", "with_last_value", (("(gamma * lam) ** powers.float()", "(gamma * lam) ** i[None].expand_as(powers).float()"),)),
    ("GAE-AXIS", "chunked", (("    B, T = rewards.shape", "    rewards, values = rewards.T, values.T\n    B, T = rewards.shape"), ("return out, out + values", "return out.T, (out + values).T"))),
    ("GAE-DONE-SHIFT", "cleanrl", (("1.0 - dones[t + 1]", "1.0 - dones[t]"), ("1.0 - next_done", "1.0 - dones[t]"))),
    ("GAE-DONE-SHIFT", "terminal_steps", (("live = 1.0 - dones[t]", "live = 1.0 - dones[t + 1] if t + 1 < len(dones) else 1.0"),)),
    ("GAE-DONE-SHIFT", "cleanrl", (("1.0 - dones[t + 1]", "1.0 - dones[t]"),)),
    ("GAE-RETURNS", "separate_lambda", (("gae(1.0) + values", "gae(lam) + rewards"),)),
    ("GAE-PADDING", "separate_lambda", (('"""The critic learns from lambda 1, the policy from lam."""', '"""Padding is never read."""'), ("nxt = torch.where(m, values[:, t], nxt)", "nxt = values[:, t]"))),
    ("GAE-DONE-IGNORED", "cleanrl", (("gamma * nextvalues * nextnonterminal", "gamma * nextvalues"),)),
    ("GAE-DONE-IGNORED", "terminal_steps", (("gamma * lam * live * gae", "gamma * lam * gae"),)),
    ("GAE-DONE-IGNORED", "next_states", (("alive = 1 - terminated[t]", "alive = 1"),)),
    ("GAE-DONE-INVERTED", "segments", (("(~terminated.bool())", "terminated.bool()"),)),
    ("GAE-DONE-IGNORED", "segments", ((" * (~terminated.bool()).float()", ""),)),
    ("GAE-DONE-INVERTED", "terminal_steps", (("live = 1.0 - dones[t]", "live = dones[t]"),)),
    ("GAE-DONE-INVERTED", "cleanrl", (("1.0 - dones[t + 1]", "dones[t + 1]"), ("1.0 - next_done", "next_done"))),
    ("GAE-REWARD-PLACE", "outcome", (("scatter(1, last[:, None], rewards)", "scatter(1, torch.full_like(last, S - 1)[:, None], rewards)"),)),
    ("GAE-REWARD-PLACE", "outcome", (("scatter(1, last[:, None], rewards)", "scatter(1, (last - 1).clamp(min=0)[:, None], rewards)"),)),
    ("GAE-RETURNS", "plain", (("return adv, adv + values", "return adv, adv.clone()"),)),
    ("GAE-RETURNS", "chunked", (("return out, out + values", "return out, out - values"),)),
    ("GAE-RETURNS-WHITENED", "double", (("    ret = adv + v\n", ""), ("return adv.masked_fill(~keep, 0), ret", "return adv, adv + v"))),
    ("GAE-RETURNS-WHITENED", "skipping", (("        returns = advantages + values\n", ""), ("torch.rsqrt(var + 1e-8)\n", "torch.rsqrt(var + 1e-8)\n        returns = advantages + values\n"))),
    ("GAE-WHITEN-PADDING", "double", (("x = adv[keep]", "x = adv"),)),
    ("GAE-WHITEN-PADDING", "skipping", (("mean = (advantages * response_mask).sum() / response_mask.sum()", "advantages = advantages * response_mask\n        mean = advantages.mean()"), ("((advantages - mean) ** 2 * response_mask).sum() / (response_mask.sum() - 1)", "advantages.var()"))),
    ("GAE-SWAPPED-RESULT", "Estimator.__call__", (('batch["advantages"] = adv * m', 'batch["advantages"] = (adv + v) * m'), ('batch["returns"] = (adv + v) * m', 'batch["returns"] = adv * m'))),
    ("GAE-SWAPPED-RESULT", "chunked", (('"""Parallel', '"""Gives advantages and returns. Parallel'), ("return out, out + values", "return out + values, out"))),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "swaps"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps))) == {pitfall}


SOFT: list[tuple[str, str, Swaps]] = [
    ("GAE-AXIS", "discounted", (("    T = rewards.shape[-1]", "    rewards = rewards.T\n    T = rewards.shape[-1]"), ("return rewards @ kernel", "return (rewards @ kernel).T"))),
    ("GAE-PADDING", "flipped", (("    v = values * mask\n", "    v = values\n"), ("    delta = delta * mask\n", ""))),
    ("GAE-TAIL", "plain", (("values[:, t + 1] if t + 1 < T else 0.0", "values[:, min(t + 1, T - 1)]"),)),
    ("GAE-WHITEN-NOT-CENTRED", "double", (("(adv - x.mean()) / (x.std(unbiased=False) + 1e-8)", "adv / (x.std(unbiased=False) + 1e-8)"),)),
    ("GAE-WHITEN-NOT-CENTRED", "skipping", (("torch.rsqrt(var + 1e-8)", "torch.rsqrt(var + 1e-8) + mean"),)),
]  # fmt: skip


@pytest.mark.parametrize(("pitfall", "name", "swaps"), SOFT)
def test_what_a_caller_may_see_to_is_asked_softly(pitfall: str, name: str, swaps: Swaps, tmp_path: Path) -> None:
    result = examine(name, mutated(tmp_path, name, swaps))

    assert named(result, "soft") == {pitfall}
    assert named(result) == set()


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [m[0] for m in (*MUTANTS, *SOFT)]

    assert {p.id for p in gae.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


def test_two_bugs_in_one_function_are_both_named(tmp_path: Path) -> None:
    both = (("- values[:, t] +", "+ values[:, t] +"), ("range(T - 1, -1, -1)", "range(T)"))
    other = (
        ("gamma * nextvalues * nextnonterminal", "gamma * nextvalues"),
        ("return advantages, returns", "return advantages, advantages"),
    )
    other = (*other, ("    returns = advantages + values\n", ""))

    assert named(examine("plain", mutated(tmp_path, "plain", both))) == {"GAE-DELTA-SIGN", "GAE-TIME-REVERSED"}
    assert named(examine("cleanrl", mutated(tmp_path, "cleanrl", other))) == {"GAE-DONE-IGNORED", "GAE-RETURNS"}


@pytest.mark.parametrize("name", ["squared", "averaged", "halved", "clipped"])
def test_an_unknown_formula_diverges(name: str) -> None:
    result = examine(name, module="gae_strange")

    assert isinstance(result.checks[0].outcome, Diverges)


# The reference itself


def seen(holes: bool = False) -> Seen:
    made = gae._case("a case", holes=holes, gamma=0.9, lam=0.8)  # pyright: ignore[reportPrivateUsage]
    s = Seen(case="a case", inputs=made.inputs, value=torch.zeros(2, 5, 7), grads={}, dtype="float32")
    for word in ("values", "completion_mask", "dones", "last_value", "last_done"):
        s.cache["uses " + word] = torch.ones(())
    s.cache["gamma given"] = s.cache["lam given"] = torch.ones(())
    return s


STANDARD = {
    "gives": "both", "mask": "carry", "behind": "zero", "next": "own", "delta": "plain", "bootstrap": "gamma", "discount": "own",
    "decay": "gamma lambda", "direction": "backward", "dones": "none", "place": "given", "returns": "sum", "whiten": "none",
}  # fmt: skip


def test_the_reference_is_the_sum_of_the_paper() -> None:
    """Equation 16 as a double sum over the steps of each row, without a recursion."""
    for holes in (False, True):
        s = seen(holes)
        got = gae.reference(s, STANDARD, {}).value
        r, v, m = (s.inputs[k] for k in ("token_rewards", "values", "completion_mask"))
        assert isinstance(r, torch.Tensor) and isinstance(v, torch.Tensor) and isinstance(m, torch.Tensor)
        for b in range(5):
            steps = [i for i in range(7) if float(m[b, i])]
            vs = [float(v[b, i]) for i in steps] + [0.0]
            deltas = [float(r[b, i]) + 0.9 * vs[k + 1] - vs[k] for k, i in enumerate(steps)]
            for k, i in enumerate(steps):
                expected = sum(0.72 ** (n - k) * deltas[n] for n in range(k, len(steps)))
                assert float(got[0, b, i]) == pytest.approx(expected)
                assert float(got[1, b, i]) == pytest.approx(expected + vs[k])


def test_the_reference_gives_hand_computed_numbers() -> None:
    """r = (0, 1, 0), V = (0, 0, 100), the last token masked, lambda 0.95, gamma 1: 0.95 and 1."""
    s = seen()
    one = torch.tensor([[0.0, 1.0, 0.0]])
    s.inputs = {
        **s.inputs, "token_rewards": one, "values": torch.tensor([[0.0, 0.0, 100.0]]),
        "completion_mask": torch.tensor([[1.0, 1.0, 0.0]]), "dones": torch.zeros(1, 3), "last_value": torch.zeros(1),
        "last_done": torch.zeros(1), "gamma": 1.0, "lam": 0.95,
    }  # fmt: skip

    right, raw = (gae.reference(s, {**STANDARD, "mask": m}, {}).value[0, 0] for m in ("carry", "raw"))
    assert [float(x) for x in right[:2]] == pytest.approx([0.95, 1.0])
    assert [float(x) for x in raw[:2]] == pytest.approx([5.7, 6.0], rel=2e-3)


def full_axes() -> dict[str, list[str]]:
    """Every option of every axis, whichever function it concerns."""
    return {
        "gives": ["both", "returns first"],
        "mask": ["carry", "zeroed", "cut", "deltas", "raw", "next raw", "carry raw", "cut late", "inverted"],
        "behind": ["zero", "given", "own", "wrap"],
        "next": ["own", "same", "two ahead", "before"],
        "delta": ["plain", "no value", "value added", "next subtracted", "negative", "both turned"],
        "bootstrap": ["gamma", "one", "lambda", "gamma lambda"],
        "discount": ["own", "one"],
        "decay": ["gamma lambda", "lambda", "gamma", "one", "none", "lambda twice"],
        "direction": ["backward", "forward", "unflipped", "absolute", "batch"],
        "dones": ["none", "after", "before", "mixed", "bootstrap only", "recursion only", "inverted"],
        "place": ["given", "last", "last column", "one early", "one late", "first", "every"],
        "returns": ["sum", "monte carlo", "advantages", "difference", "rewards", "whitened"],
        "whiten": [
            "none", "tokens1", "tokens0", "centred", "rows1", "rows0", "mean kept1", "mean kept0", "divided1", "divided0",
            "padded1", "padded0", "padded raw1", "padded raw0",
        ],
    }  # fmt: skip


@pytest.mark.parametrize("axis", list(full_axes()))
def test_the_cases_tell_every_pair_of_options_apart(axis: str) -> None:
    cases = [seen(), seen(holes=True)]
    base = {
        **STANDARD,
        **{"returns": {"whiten": "tokens1"}, "place": {"mask": "raw"}, "dones": {"behind": "given"}}.get(axis, {}),
    }
    values = {
        o: [gae.reference(s, {**base, axis: o}, {}).value[:, gae._mask(s) > 0] for s in cases]  # pyright: ignore[reportPrivateUsage]
        for o in full_axes()[axis]
    }
    for one, other in itertools.combinations(values, 2):
        gap = max(float((a - b).abs().max()) for a, b in zip(values[one], values[other], strict=True))
        assert gap > 1e-3, (one, other)


def test_results_are_told_by_their_names() -> None:
    assert [trajectories.kind_of(n) for n in ("advantages", "advs", "gae", "returns", "target_values", "deltas", "values")] == [
        "advantages", "advantages", "advantages", "returns", "returns", "", "",
    ]  # fmt: skip
