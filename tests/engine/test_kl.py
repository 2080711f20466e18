"""KL estimates that are right and wrong, loaded and bound as a user's are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, KnownBug, TargetResult, TargetSpec, Violates
from rltriage_probes.loss import kl

DATA = Path(__file__).parent / "data" / "loss"
Swaps = tuple[tuple[str, str], ...]
Intent = dict[str, Any]


def examine(name: str, root: Path = DATA, intent: Intent | None = None, settings: Intent | None = None) -> TargetResult:
    target = TargetSpec(name="kl", role="kl", ref=f"kls.py:{name}", settings=settings or {})
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent or {}, device="cpu"))


def mutated(folder: Path, name: str, swaps: Swaps) -> Path:
    """A copy of the specimens in which texts inside one definition are exchanged."""
    text = (DATA / "kls.py").read_text("utf-8")
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == name)
    assert node.end_lineno is not None
    lines = text.splitlines(keepends=True)
    code = "".join(lines[node.lineno - 1 : node.end_lineno])
    for old, new in swaps:
        assert old in code, f"{name} has no {old!r}"
        code = code.replace(old, new)
    before, after = "".join(lines[: node.lineno - 1]), "".join(lines[node.end_lineno :])
    (folder / "kls.py").write_text(before + code + after, encoding="utf-8")
    return folder


def named(result: TargetResult) -> set[str]:
    """Pitfalls of hard known bugs and the first candidate of each hard violation."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case KnownBug(severity="hard") as bug:
                found |= {n.pitfall for n in bug.pitfalls}
            case Violates(severity="hard") as broken:
                found |= {n.pitfall for n in broken.candidates[:1]}
            case _:
                pass
    return found


RIGHT: list[tuple[str, Intent, Intent, str]] = [
    ("k3", {"kl_estimator": "k3"}, {}, "KL estimator k3"),
    ("k3_expm1", {}, {}, "KL estimator k3"),
    ("k3_by_ratio", {}, {}, "KL estimator k3"),
    ("k1", {"kl_estimator": "kl"}, {}, "KL estimator k1 (plain log-ratio)"),
    ("k1_masked", {}, {}, "KL estimator k1 (plain log-ratio)"),
    ("k2", {"kl_estimator": "mse"}, {}, "KL estimator k2 (half the squared log-ratio)"),
    ("absolute", {}, {}, "absolute log-ratio"),
    ("squared", {}, {}, "squared log-ratio"),
    ("low_variance", {"kl_estimator": "low_var_kl"}, {}, "KL estimator k3, clamped"),
    ("approx_kl", {"kl_estimator": "k3"}, {}, "KL estimator k3, clamped"),
    ("approx_kl", {}, {"kl_estimator": "k2"}, "KL estimator k2 (half the squared log-ratio)"),  # its clamp never acts
    ("kl_penalty", {"kl_estimator": "k3"}, {}, "KL estimator k3"),
    ("kl_penalty", {"kl_estimator": "k1"}, {}, "KL estimator k1 (plain log-ratio)"),
    ("straight_through", {"kl_estimator": "k3+"}, {}, "value k3 with the gradient of k2"),
    ("token_mean", {"aggregation": "token-mean"}, {}, "KL estimator k3, mean over the tokens of the batch"),
    ("sequence_mean", {}, {}, "KL estimator k3, mean over tokens, then over sequences"),
    ("per_sequence", {}, {}, "KL estimator k1 (plain log-ratio), sum over the tokens of each sequence"),
    ("weighted_by_ratio", {}, {}, "k3 times the ratio"),
    ("weighted_by_given_ratio", {}, {}, "k3 times the ratio"),
    ("filler_safe", {}, {}, "KL estimator k3"),
    ("weighted", {}, {}, "KL estimator k3, mean over the tokens of the batch, beta=0.05"),
    ("KLEstimator", {"kl_estimator": "k3"}, {}, "KL estimator k3"),
    ("of_batch", {}, {}, "KL estimator k3"),
    ("loops", {}, {}, "KL estimator k3"),
    ("logged_only", {}, {}, "KL estimator k3"),
    ("full_kl", {}, {}, "KL over the whole vocabulary"),
    (
        "full_kl_mean",
        {"aggregation": "token-mean"},
        {},
        "KL over the whole vocabulary, mean over the tokens of the batch",
    ),
    ("full_kl_tempered", {}, {}, "KL over the whole vocabulary, logits divided by the temperature"),
    ("jensen_shannon", {}, {}, "Jensen-Shannon divergence, beta=0.5"),
    ("loss_term", {}, {}, "KL estimator k3"),
    ("infinite_filler", {}, {}, "KL estimator k3, mean over the tokens of the batch"),
    ("kept_graph", {}, {}, "KL estimator k2 (half the squared log-ratio)"),
]


@pytest.mark.parametrize(("name", "intent", "settings", "words"), RIGHT)
def test_a_right_estimate_is_recognised(name: str, intent: Intent, settings: Intent, words: str) -> None:
    result = examine(name, intent=intent, settings=settings)

    outcomes = [c.outcome for c in result.checks]
    assert all(isinstance(o, Agrees) for o in outcomes), outcomes
    assert isinstance(outcomes[0], Agrees)
    assert outcomes[0].convention.summary == words


def test_the_other_direction_is_right_where_the_function_says_that_it_means_it(tmp_path: Path) -> None:
    doc = ('"""KL(ref || policy) of tokens that the reference sampled."""\n    log_ratio = ', "")
    swaps = (("log_ratio = ref_log_probs - log_probs", f"{doc[0]}log_probs - ref_log_probs"),)

    assert named(examine("k3", mutated(tmp_path, "k3", swaps))) == set()


MASKED = "(per_token_kl * completion_mask).sum() / completion_mask.sum()"

MUTANTS: list[tuple[str, str, Swaps, Intent]] = [
    ("KL-ESTIMATOR", "k3", (), {"kl_estimator": "k2"}),
    ("KL-ESTIMATOR", "k1", (), {"kl_estimator": "k3"}),
    ("KL-ESTIMATOR", "approx_kl", (("(-log_ratio).exp() - 1 + log_ratio", "log_ratio**2 / 2"),), {}),
    ("KL-REVERSED", "k3", (("ref_log_probs - log_probs", "log_probs - ref_log_probs"),), {}),
    ("KL-REVERSED", "of_batch", (('batch["ref_logps"] - batch["logps"]', 'batch["logps"] - batch["ref_logps"]'),), {}),
    (
        "KL-REVERSED",
        "token_mean",
        (("= ref_per_token_logps - per_token_logps", "= per_token_logps - ref_per_token_logps"),),
        {},
    ),
    ("KL-SIGN", "k2", (("return log", "return -log"),), {}),
    ("KL-SIGN", "k3", (("torch.exp(log_ratio) - log_ratio - 1", "1 + log_ratio - torch.exp(log_ratio)"),), {}),
    ("KL-K2-NO-SQUARE", "k2", (("log_ratio**2 / 2.0", "log_ratio.abs() / 2.0"),), {}),
    ("KL-K2-NO-SQUARE", "approx_kl", (("log_ratio**2 / 2.0", "log_ratio.abs() / 2.0"), ('"k3"):', '"k2"):')), {}),
    ("KL-NOT-ZERO", "k3", ((" - log_ratio - 1", " - log_ratio"),), {}),
    ("KL-NOT-ZERO", "k3_expm1", (("torch.expm1(d) - d", "torch.expm1(d)"),), {}),
    (
        "KL-OVERFLOW",
        "filler_safe",
        (
            ("torch.where(mask, ref_logprobs - logprobs, torch.zeros_like(logprobs))", "ref_logprobs - logprobs"),
            ("d.exp() - d - 1", "(d.exp() - d - 1) * mask"),
        ),
        {},
    ),
    (
        "KL-OVERFLOW",
        "filler_safe",
        (
            ("torch.where(mask, ref_logprobs - logprobs, torch.zeros_like(logprobs))", "ref_logprobs - logprobs"),
            ("return d.exp() - d - 1", "k3 = d.exp() - d - 1\n    return k3 * mask.float()"),
        ),
        {},
    ),
    (
        "KL-OVERFLOW",
        "infinite_filler",
        (
            ("gap = reference_logprobs[real] - policy_logprobs[real]", "gap = reference_logprobs - policy_logprobs"),
            ("(gap.exp() - 1 - gap).mean()", "((gap.exp() - 1 - gap) * real).sum() / real.sum()"),
        ),
        {},
    ),
    ("KL-DETACHED", "kept_graph", (("    return 0.5", "    with torch.no_grad():\n        return 0.5"),), {}),
    ("LOSS-MASK-MISSING", "token_mean", ((MASKED, "per_token_kl.mean()"),), {}),
    (
        "LOSS-MASK-MISSING",
        "sequence_mean",
        ((" * completion_mask", ""), (" / completion_mask.sum(-1)", " / d.size(-1)")),
        {},
    ),
    ("LOSS-MASK-NUMERATOR", "token_mean", (("(per_token_kl * completion_mask).sum()", "per_token_kl.sum()"),), {}),
    ("LOSS-MASK-NUMERATOR", "sequence_mean", ((" * completion_mask", ""),), {}),
    ("LOSS-MASK-INVERTED", "token_mean", ((MASKED, "per_token_kl[completion_mask == 0].mean()"),), {}),
    (
        "LOSS-MASK-INVERTED",
        "sequence_mean",
        (("    d =", "    completion_mask = 1 - completion_mask + 1e-9\n    d ="),),
        {},
    ),
    (
        "LOSS-MASK-SHIFT",
        "token_mean",
        (("(per_token_kl * completion_mask)", "(per_token_kl[:, 1:] * completion_mask[:, :-1])"),),
        {},
    ),
    (
        "LOSS-MASK-SHIFT",
        "sequence_mean",
        (("    d =", "    completion_mask = completion_mask.roll(-1, 1)\n    d ="),),
        {},
    ),
    (
        "LOSS-PADDED-DENOMINATOR",
        "token_mean",
        ((MASKED, "(per_token_kl * completion_mask).mean()"),),
        {"aggregation": "token-mean"},
    ),
    (
        "LOSS-PADDED-DENOMINATOR",
        "sequence_mean",
        ((" / completion_mask.sum(-1)", " / d.size(-1)"),),
        {"aggregation": "token-mean"},
    ),
    ("KL-SIGN", "k1", (("log_probs - log_probs_base", "log_probs_base - log_probs"),), {}),
    ("KL-REVERSED", "full_kl", (("log_p.exp() * (log_p - log_q)", "log_q.exp() * (log_q - log_p)"),), {}),
    ("KL-SIGN", "full_kl", (("log_p - log_q)", "log_q - log_p)"),), {}),
    ("KL-RAW-LOGITS", "full_kl", (("(log_p - log_q)", "(logits - ref_logits)"),), {}),
    ("KL-RAW-LOGITS", "full_kl_mean", (("    kl =", "    log_q = log_p + ref_logits - logits\n    kl ="),), {}),
    ("KL-VOCAB-MEAN", "full_kl", ((".sum(-1)", ".mean(-1)"),), {}),
    ("KL-VOCAB-MEAN", "full_kl_mean", ((".sum(-1)", ".mean(-1)"),), {}),
    ("KL-DETACHED", "loss_term", (("ref_log_probs - log_probs", "ref_log_probs - log_probs.detach()"),), {}),
    (
        "KL-DETACHED",
        "loss_term",
        (("return delta.exp() - delta - 1", "return (delta.exp() - delta - 1).detach()"),),
        {},
    ),
    ("LOSS-AGGREGATION", "sequence_mean", (), {"aggregation": "token-mean"}),
    ("LOSS-AGGREGATION", "token_mean", (), {"aggregation": "sequence-mean"}),
]


@pytest.mark.parametrize(("pitfall", "name", "swaps", "intent"), MUTANTS)
def test_a_planted_bug_is_named_and_nothing_else_is(
    pitfall: str, name: str, swaps: Swaps, intent: Intent, tmp_path: Path
) -> None:
    assert named(examine(name, mutated(tmp_path, name, swaps), intent)) == {pitfall}


def test_every_pitfall_of_the_role_is_planted_twice() -> None:
    planted = [m[0] for m in MUTANTS]

    assert {p.id for p in kl.ROLE.pitfalls} == set(planted)
    assert {p for p in planted if planted.count(p) < 2} == set()


def test_two_bugs_in_one_estimate_are_both_named(tmp_path: Path) -> None:
    both = (
        ("= ref_per_token_logps - per_token_logps", "= per_token_logps - ref_per_token_logps"),
        (MASKED, "per_token_kl.mean()"),
    )
    other = (("return log_ratio**2 / 2.0", "return -(log_ratio**2) / 2.0"),)

    assert named(examine("token_mean", mutated(tmp_path, "token_mean", both))) == {"KL-REVERSED", "LOSS-MASK-MISSING"}
    assert named(examine("k2", mutated(tmp_path, "k2", other), {"kl_estimator": "k3"})) == {"KL-SIGN", "KL-ESTIMATOR"}


def test_an_unknown_estimate_diverges() -> None:
    result = examine("strange")

    assert [c.outcome.kind for c in result.checks] == ["diverges"]
