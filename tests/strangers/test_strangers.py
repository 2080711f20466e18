"""Functions that no role was written for: wrong ones are noticed, right ones are not accused.

A sample on a seed; `python tests/strangers/field.py` prints more, of any size.
"""

from __future__ import annotations

import random
import warnings

import field
import mutations
import pytest
import rewrites
import truth
from reviewed import LEGITIMATE

pytestmark = pytest.mark.filterwarnings("ignore")

WRONG, RIGHT, SEED = 200, 200, 20261201
RECALL = 0.97


@pytest.fixture(scope="module")
def wrong() -> list[field.Verdict]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(field.judge_wrong(field.bases(), SEED, WRONG))


@pytest.fixture(scope="module")
def right() -> list[field.Verdict]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(field.judge_right(field.bases(), SEED, RIGHT))


@pytest.mark.slow
def test_nearly_every_wrong_stranger_is_noticed(wrong: list[field.Verdict]) -> None:
    missed = [f"{v.base.role}: {v.stranger}: {v.detail}" for v in wrong if not v.detected]

    assert len(wrong) == WRONG
    assert len(missed) <= (1 - RECALL) * WRONG, "\n".join(missed)


@pytest.mark.slow
def test_no_right_stranger_is_accused_and_few_can_not_be_run(right: list[field.Verdict]) -> None:
    accused = [f"{v.base.role}: {v.stranger}: {v.said} {v.detail}" for v in right if v.accused]
    silent = [f"{v.base.role}: {v.stranger}: {v.detail}" for v in right if v.said == "not run"]

    assert len(right) == RIGHT
    assert accused == []
    assert len(silent) <= 0.03 * RIGHT, "\n".join(silent)


def test_every_base_is_right_in_the_eyes_of_the_probes(tmp_path) -> None:
    said = {f"{b.role} {b.name}": field.say(b, b.source, b.name, tmp_path) for b in field.bases()}

    assert len(said) == len(field.bases())
    assert {k: v for k, v in said.items() if v[0] not in ("agrees", "asked")} == {}


def test_every_reviewed_mutant_still_exists_and_has_a_reason() -> None:
    made = {
        (b.name, m.operator, m.says) for b in field.bases() for m in mutations.mutants(b.source, b.name)
    }  # fmt: skip

    assert set(LEGITIMATE) - made == set()
    assert all(len(reason) > 20 for reason in LEGITIMATE.values())


def test_every_operator_makes_mutants_and_every_idiom_makes_rewrites() -> None:
    operators = {m.operator for b in field.bases() for m in mutations.mutants(b.source, b.name)}
    rng, recipes = random.Random(0), set()
    tensors = [b for b in field.bases() if b.role not in truth.TEXT_ROLES]
    for i in range(600):
        base = tensors[i % len(tensors)]
        made = rewrites.rewrite(base.source, base.name, rng, tensors=True)
        recipes |= {r.split()[0] for r in made.recipe} if made else set()

    assert operators == {o.__name__ for o in mutations.OPERATORS}
    assert recipes == {*rewrites.IDIOMS, *rewrites.WRAPPERS, "float64", "renamed"}
