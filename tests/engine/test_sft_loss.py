"""Supervised losses: right in many idioms, planted faults, strangers, and the reference against independent numbers."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  as everybody calls it
from specimens import DATA, expected

from rltriage_probes import checking, solver
from rltriage_probes.contract import Agrees, CheckRequest, KnownBug, Outcome, TargetSpec
from rltriage_probes.model import Axis
from rltriage_probes.sft import sft_loss
from rltriage_probes.solver import Seen

RIGHT, WRONG = expected("sft_loss_right"), expected("sft_loss_wrong")
TOKEN_MEAN = {"aggregation": "token-mean"}


def judge(ref: str, root: Path = DATA, intent: Mapping[str, Any] | None = None) -> Outcome:
    target = TargetSpec(name="sft_loss", role="sft_loss", ref=ref)
    request = CheckRequest(id=1, root=str(root), target=target, intent=dict(intent or {}), device="cpu")
    (check,) = checking.check(request).checks
    return check.outcome


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loss_is_recognised_in_its_idiom(name: str) -> None:
    outcome = judge(f"sft_loss_right.py:{name}")

    assert isinstance(outcome, Agrees), outcome
    assert RIGHT[name] in outcome.convention.summary


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_fault_is_named(name: str) -> None:
    intent = TOKEN_MEAN if WRONG[name] == "SFTL-AGGREGATION" else {}
    outcome = judge(f"sft_loss_wrong.py:{name}", intent=intent)

    assert isinstance(outcome, KnownBug), outcome
    assert {n.pitfall for n in outcome.pitfalls} == set(WRONG[name].split())


def test_every_pitfall_is_planted_twice() -> None:
    planted = [p for names in WRONG.values() for p in names.split()]

    assert {p.id for p in sft_loss.PITFALLS} == set(planted)
    assert [p for p in set(planted) if planted.count(p) < 2] == []


STRANGERS = {
    "floor": "return (nll * keep).clamp(min=0.3).sum() / keep.sum()",
    "root": "return ((nll * keep).sum() / keep.sum()).sqrt()",
    "first row": "return (nll * keep)[0].sum() / keep[0].sum()",
    "maximum": "return (nll * keep).max()",
    "one more in the denominator": "return (nll * keep).sum() / (keep.sum() + 1)",
    "detached": "return (nll * keep).sum().detach() / keep.sum()",
    "squared": "return (nll.pow(2) * keep).sum() / keep.sum()",
    "half of the gradient": "return ((nll + nll.detach()) * keep).sum() / 2 / keep.sum()",
    "entropy instead": "return -((z.softmax(-1) * z.log_softmax(-1)).sum(-1) * keep).sum() / keep.sum()",
    "median": "return nll[keep].median()",
}
HEAD = '''import torch
import torch.nn.functional as F


def loss(logits, labels):
    """Next-token cross-entropy over the labels."""
    z, y = logits[:, :-1], labels[:, 1:]
    keep = y != -100
    nll = -z.log_softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    '''


@pytest.mark.parametrize("name", STRANGERS)
def test_a_wrong_loss_that_nobody_listed_does_not_pass(name: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(HEAD + STRANGERS[name] + "\n")

    assert not isinstance(judge("module.py:loss", tmp_path), Agrees)


def test_aligned_labels_are_a_question_where_nothing_is_said_of_them(tmp_path: Path) -> None:
    body = "    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())\n"
    code = f"import torch.nn.functional as F\n\n\ndef loss(logits, labels):\n{body}"
    (tmp_path / "module.py").write_text(code)
    outcome = judge("module.py:loss", tmp_path)

    assert isinstance(outcome, KnownBug)
    assert outcome.severity == "soft"


def seen(case: int) -> Seen:
    """A case as a function of logits and labels would leave it, without a result."""
    given = sft_loss.cases()[case].inputs
    inputs = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in given.items()}
    s = Seen(case="x", inputs=inputs, value=torch.zeros((), dtype=torch.float64), grads={}, dtype="float64")
    s.cache["leaf:logits"] = inputs["logits"].clone().requires_grad_(True)
    s.cache["uses labels"] = torch.ones(())
    return s


PLAIN = {
    "sign": "minus", "align": "inside", "normal": "log-softmax", "smoothing": "none", "z": "none", "weight": "none",
    "counted": "labelled", "agg": "token-mean",
}  # fmt: skip


def test_the_reference_is_torchs_cross_entropy_in_value_and_gradient() -> None:
    for case in range(len(sft_loss.cases())):
        s = seen(case)
        got = sft_loss.reference(s, PLAIN, {})
        logits = s.inputs["logits"].clone().requires_grad_(True)
        want = F.cross_entropy(logits[:, :-1].transpose(1, 2), s.inputs["labels"][:, 1:])
        (grad,) = torch.autograd.grad(want, logits)

        assert torch.allclose(got.value, want)
        assert torch.allclose(got.grads()["logits"], grad)


def test_smoothing_is_torchs_own() -> None:
    s = seen(0)
    got = sft_loss.reference(s, {**PLAIN, "smoothing": "smoothed"}, {"smoothing": 0.1})
    want = F.cross_entropy(s.inputs["logits"][:, :-1].transpose(1, 2), s.inputs["labels"][:, 1:], label_smoothing=0.1)

    assert torch.allclose(got.value, want)


def test_the_gradient_of_dft_is_minus_the_gradient_of_the_probability() -> None:
    """p is a constant weight: p · ∇(-log p) = -∇p (arXiv:2508.05629, eq. 9)."""
    s = seen(0)
    got = sft_loss.reference(s, {**PLAIN, "weight": "p"}, {}).grads()["logits"]
    logits = s.inputs["logits"].clone().requires_grad_(True)
    y = s.inputs["labels"][:, 1:]
    keep = y != -100
    p = logits[:, :-1].softmax(-1).gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    (grad,) = torch.autograd.grad(-(p * keep).sum() / keep.sum(), logits)

    assert torch.allclose(got, grad)


def test_a_case_by_hand() -> None:
    """Two positions, two tokens: logits 0 and log 3 give p = 3/4 for the labelled one."""
    logits = torch.tensor([[[0.0, 3.0], [0.0, 0.0]]], dtype=torch.float64).log1p() * 0
    logits[0, 0, 1] = torch.tensor(3.0).double().log()
    s = seen(0)
    s.inputs = {**s.inputs, "logits": logits, "labels": torch.tensor([[-100, 1]]), "token_ids": torch.tensor([[0, 1]])}
    s.cache["leaf:logits"] = logits.clone().requires_grad_(True)

    assert torch.allclose(sft_loss.reference(s, PLAIN, {}).value, torch.tensor(4 / 3).double().log())


class _Nobody:
    names = frozenset(("logits", "labels", "completion_mask", "token_count", "row_count"))
    settings: Mapping[str, Any] = {}

    class report:  # noqa: N801
        slots = ()


def axes() -> tuple[Axis, ...]:
    from rltriage_probes.contract import LoadReport
    from rltriage_probes.model import Subject

    loaded = LoadReport(file="x.py", line=1, rung="import")
    subject = Subject(bound=_Nobody(), intent={}, loaded=loaded, source="", doc="")  # type: ignore[arg-type]
    return sft_loss.axes(subject, [seen(0)])


def test_the_cases_tell_every_two_options_of_an_axis_apart() -> None:
    knobs = {"smoothing": 0.1, "z": 0.01}
    same = []
    for axis in axes():
        for a, b in itertools.combinations([o.name for o in axis.options], 2):
            apart = False
            for case in range(len(sft_loss.cases())):
                s = seen(case)
                s.cache["uses completion_mask"] = torch.ones(())
                one, other = ({**PLAIN, axis.name: o} for o in (a, b))
                s.value = sft_loss.reference(s, one, knobs).value.detach()
                s.grads = dict(sft_loss.reference(s, one, knobs).grads())
                s.dtype = "float32"
                apart = apart or solver.difference(s, sft_loss.reference, other, knobs) is not None
            if not apart:
                same.append((axis.name, a, b))

    assert same == []
