"""The solver on references of its own, and the cases of each role: they must keep every pitfall apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rltriage_probes import binding, loading, registry, solver, tolerance
from rltriage_probes.advantages import advantages
from rltriage_probes.contract import TargetSpec
from rltriage_probes.logprobs import entropy, logprobs
from rltriage_probes.model import Axis, Option, Pitfall, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

# A small reference: y = (x - base) * gain + offset, with two axes that have pitfalls.

TURNED = Pitfall(id="X-SIGN", family="sign", says="has the wrong sign")
DOUBLED = Pitfall(id="X-TWICE", family="denominator", says="counts twice")
CUBED = Pitfall(id="X-CUBED", family="normalisation", says="cubes")
X = torch.tensor([0.3, -1.2, 2.5, 0.7, -0.4], dtype=torch.float64)
AXES = (
    Axis(
        name="base",
        options=(
            Option(name="mean", standing="standard", says="mean"),
            Option(name="median", says="median"),
            Option(name="none", says="nothing subtracted"),
        ),
    ),
    Axis(
        name="sign",
        options=(
            Option(name="plus", standing="standard"),
            Option(name="minus", standing="pitfall", says=TURNED.says, pitfall=TURNED),
        ),
    ),
    Axis(
        name="gain",
        options=(
            Option(name="once", standing="standard"),
            Option(name="twice", standing="pitfall", says=DOUBLED.says, pitfall=DOUBLED),
            Option(name="cubed", standing="pitfall", says=CUBED.says, pitfall=CUBED),
        ),
    ),
    Axis(
        name="offset",
        when=lambda o: o["base"] != "none",
        options=(Option(name="none", standing="standard"), Option(name="knob", says="an offset")),
    ),
)
OFFSET = Knob(name="offset", values=(1.0,), fit=(1e-3, 1e3), active=lambda o: o["offset"] == "knob")


def small(s: Seen, options: Options, knobs: Knobs) -> Result:
    x = s.inputs["x"]
    assert isinstance(x, Tensor)
    base = {"mean": x.mean(), "median": x.median(), "none": x.new_zeros(())}[options["base"]]
    y = x - base
    y = {"once": y, "twice": 2 * y, "cubed": y**3}[options["gain"]]
    y = -y if options["sign"] == "minus" else y
    return Result(value=y + knobs.get("offset", 0.0), grads=lambda: {"x": _slope(x, options)})


def _slope(x: Tensor, options: Options) -> Tensor:
    """Only its sign matters to these tests: 1 or -1 for each element."""
    return -torch.ones_like(x) if options["sign"] == "minus" else torch.ones_like(x)


def seen(value: Tensor, grad: Tensor | None = None, **more: Any) -> Seen:
    grads = {"x": torch.ones_like(X) if grad is None else grad}
    return Seen(case="five numbers", inputs={"x": X}, value=value, grads=grads, dtype="float32", **more)


def solve(value: Tensor, grad: Tensor | None = None, **more: Any) -> solver.Solution | None:
    return solver.solve([seen(value, grad)], small, AXES, (OFFSET,), **more)


def test_a_right_function_is_found_without_a_pitfall() -> None:
    found = solve(X - X.mean())

    assert found is not None
    assert found.pitfalls == ()
    assert found.options == {"base": "mean", "sign": "plus", "gain": "once", "offset": "none"}


def test_a_convention_is_preferred_to_a_pitfall() -> None:
    found = solve(X - X.median())

    assert found is not None
    assert found.pitfalls == ()
    assert found.options["base"] == "median"


def test_two_pitfalls_at_once_are_both_found() -> None:
    found = solve(-2 * (X - X.mean()), -torch.ones_like(X))

    assert found is not None
    assert [o.pitfall for o in found.pitfalls] == [TURNED, DOUBLED]


def test_the_second_pitfall_is_not_looked_for_where_one_is_allowed() -> None:
    assert solve(-2 * (X - X.mean()), -torch.ones_like(X), max_pitfalls=1) is None


def test_what_no_combination_gives_has_no_solution() -> None:
    assert solve(X.sin()) is None


def test_a_right_value_with_another_gradient_does_not_fit() -> None:
    assert solve(X - X.mean(), torch.full_like(X, 3.0)) is None


def test_a_gradient_that_the_function_lacks_counts_as_zero() -> None:
    s = Seen(case="no gradient", inputs={"x": X}, value=X - X.mean(), grads={}, dtype="float32")

    assert solver.solve([s], small, AXES, (OFFSET,)) is None


def test_a_solution_must_fit_every_case() -> None:
    good, bad = seen(X - X.mean()), seen(X - X.mean() + 0.1)

    assert solver.solve([good, bad], small, AXES) is None


def test_only_the_compared_elements_count() -> None:
    junk = (X - X.mean()).clone()
    junk[2] = 99.0

    where = torch.tensor([True, True, False, True, True])
    found = solver.solve([seen(junk, where=where)], small, AXES)

    assert found is not None and found.pitfalls == ()


def test_nan_fits_nan_alone() -> None:
    def broken(s: Seen, options: Options, knobs: Knobs) -> Result:
        value = small(s, options, knobs).value.clone()
        value[0] = torch.nan
        return Result(value=value)

    expected = broken(seen(X), {"base": "mean", "sign": "plus", "gain": "once", "offset": "none"}, {}).value

    assert solver.solve([seen(expected)], broken, AXES) is not None
    assert solver.solve([seen(X - X.mean())], broken, AXES) is None


@pytest.mark.parametrize("value", [0.0123, 0.37, 7.0, 251.5])
def test_a_knob_that_is_written_nowhere_is_fitted_within_one_percent(value: float) -> None:
    found = solve(X - X.mean() + value)

    assert found is not None
    assert found.options["offset"] == "knob"
    assert found.knobs["offset"] == pytest.approx(value, rel=0.01)


def test_a_knob_is_fitted_beside_a_pitfall() -> None:
    found = solve(-(X - X.mean()) + 0.37, -torch.ones_like(X))

    assert found is not None
    assert [o.pitfall for o in found.pitfalls] == [TURNED]
    assert found.knobs["offset"] == pytest.approx(0.37, rel=0.01)


def test_a_known_knob_is_never_fitted() -> None:
    known = Knob(name="offset", values=(1.0,), known=True, fit=(1e-3, 1e3), active=OFFSET.active)

    assert solver.solve([seen(X - X.mean() + 0.37)], small, AXES, (known,)) is None
    assert solver.solve([seen(X - X.mean() + 1.0)], small, AXES, (known,)) is not None


def test_values_of_a_monotone_knob_are_found_and_those_out_of_reach_are_not_tried() -> None:
    tried: list[float] = []

    def counting(s: Seen, options: Options, knobs: Knobs) -> Result:
        tried.extend(knobs.values())
        return small(s, options, knobs)

    ladder = tuple(float(v) for v in range(20))
    knob = Knob(name="offset", values=ladder, monotone=(0.0, 19.0), active=OFFSET.active)
    found = solver.solve([seen(X - X.mean() + 13.0)], counting, AXES, (knob,))
    assert found is not None and found.knobs == {"offset": 13.0}

    tried.clear()
    assert solver.solve([seen(X.sin() - 50.0)], counting, AXES, (knob,)) is None
    assert set(tried) == {0.0, 19.0}


def test_nothing_observed_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="nothing was observed"):
        solver.solve([], small, AXES)


def test_the_search_stops_when_its_budget_is_spent() -> None:
    count = 0

    def counting(s: Seen, options: Options, knobs: Knobs) -> Result:
        nonlocal count
        count += 1
        return small(s, options, knobs)

    assert solver.solve([seen(X.sin())], counting, AXES, budget=3) is None
    assert count < 40


def test_combinations_come_with_the_standard_ones_first_and_each_once() -> None:
    listed = [tuple(o.items()) for n in range(3) for o, _ in solver.combinations(AXES, n)]

    assert len(listed) == len(set(listed))
    assert listed[0] == (("base", "mean"), ("sign", "plus"), ("gain", "once"), ("offset", "none"))
    assert [len(bad) for n in range(3) for _, bad in solver.combinations(AXES, n)] == sorted(
        len(bad) for n in range(3) for _, bad in solver.combinations(AXES, n)
    )


def test_an_axis_without_effect_stays_at_its_first_option() -> None:
    offsets = {o["offset"] for o, _ in solver.combinations(AXES, 0) if o["base"] == "none"}

    assert offsets == {"none"}


def test_a_convention_names_no_pitfall_and_no_axis_without_effect() -> None:
    idle = Axis(
        name="idle",
        when=lambda o: o["base"] != "none",
        options=(Option(name="x", standing="standard", says="something that makes no difference"),),
    )
    found = solver.solve([seen(-X, -torch.ones_like(X))], small, (*AXES, idle))

    assert found is not None
    told = solver.convention((*AXES, idle), found)
    assert told.summary == "nothing subtracted"
    assert [c.axis for c in told.choices] == ["base"]
    assert [n.pitfall for n in solver.named(found.pitfalls, {})] == ["X-SIGN"]


def test_noise_that_a_reference_declares_widens_its_own_tolerance_only() -> None:
    def noisy(s: Seen, options: Options, knobs: Knobs) -> Result:
        value = small(s, options, knobs).value
        return Result(value=value, noise=lambda: torch.full_like(value, 1e-3 if options["base"] == "mean" else 0.0))

    off = torch.full_like(X, 1.5e-4)
    only_mean, only_median = AXES[0].options[:1], AXES[0].options[1:2]
    for options, base, fits in ((only_mean, X.mean(), True), (only_median, X.median(), False)):
        axes = (Axis(name="base", options=options), *AXES[1:])
        found = solver.solve([seen(X - base + off, cache={"conditioning": torch.tensor(1e-3)})], noisy, axes)
        assert (found is not None) == fits


# The cases of the roles keep every pitfall apart from every right function, and from each other.

FUNCTIONS = {
    "rewards": (
        "advantages",
        (
            "def f(rewards, group_size):\n"
            "    r = rewards.view(-1, group_size)\n"
            "    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()\n"
        ),
    ),
    "rewards on tokens": (
        "advantages",
        (
            "def f(rewards, completion_mask, group_size):\n"
            "    r = rewards.view(-1, group_size)\n"
            "    return (r - r.mean(1, keepdim=True)).flatten()[:, None] * completion_mask\n"
        ),
    ),
    "token rewards": (
        "advantages",
        (
            "def f(token_level_rewards, response_mask, group_size):\n"
            '    """What the mask hides is not part of the score."""\n'
            "    r = (token_level_rewards * response_mask).sum(-1).view(-1, group_size)\n"
            "    return (r - r.mean(1, keepdim=True)).flatten()[:, None] * response_mask\n"
        ),
    ),
    "turns": (
        "advantages",
        (
            "import torch\n"
            "def f(step_rewards, response_mask, trajectory_ids, is_last_step, uids):\n"
            "    of = {}\n"
            "    for u in sorted(set(uids)):\n"
            "        rows = [i for i, x in enumerate(uids) if x == u and is_last_step[i]]\n"
            "        for i in rows:\n"
            "            of[trajectory_ids[i]] = step_rewards[i] - step_rewards[rows].mean()\n"
            "    return torch.stack([of[t] for t in trajectory_ids])[:, None] * response_mask\n"
        ),
    ),
    "aligned": ("logprobs", "def f(logits, labels):\n    return -_ce(logits, labels)\n"),
    "aligned, T": ("logprobs", "def f(logits, labels, temperature):\n    return -_ce(logits / temperature, labels)\n"),
    "inside": ("logprobs", "def f(logits, input_ids):\n    return -_ce(logits[:, :-1], input_ids[:, 1:])\n"),
    "inside, T": (
        "logprobs",
        "def f(logits, input_ids, temperature):\n    return -_ce(logits[:, :-1] / temperature, input_ids[:, 1:])\n",
    ),
    "completion": (
        "logprobs",
        (
            "def f(logits, input_ids, logits_to_keep):\n"
            "    return -_ce(logits[:, :-1][:, -logits_to_keep:], input_ids[:, -logits_to_keep:])\n"
        ),
    ),
    "entropy": ("entropy", "def f(logits):\n    p = logits.softmax(-1)\n    return -(p * p.log()).sum(-1)\n"),
    "entropy, T": (
        "entropy",
        "def f(logits, temperature):\n    p = (logits / temperature).softmax(-1)\n    return -(p * p.log()).sum(-1)\n",
    ),
}
HELPER = (
    "\nimport torch.nn.functional as F\n"
    'def _ce(z, y):\n    return F.cross_entropy(z.transpose(1, 2), y, reduction="none")\n'
)
INTENT: dict[str, Any] = {"algorithm": "grpo", "group_size": 4}


def subject_of(kind: str, folder: Path) -> Subject:
    """A right function of that kind, bound as a user's is."""
    role, code = FUNCTIONS[kind]
    (folder / "module.py").write_text(code + HELPER)
    spec = TargetSpec(name=role, role=role, ref="module.py:f")
    loaded = loading.load(str(folder), spec)
    bound = binding.bind(loaded, registry.role(role), {}, {}, INTENT, role)
    return Subject(bound=bound, intent=INTENT, loaded=loaded.report, source=loaded.source, doc=loaded.doc)


def space_of(kind: str, subject: Subject) -> tuple[Sequence[Seen], Sequence[Axis], solver.Reference, Sequence[Knob]]:
    """The cases that the role uses, its axes, its reference and its knobs."""
    role = FUNCTIONS[kind][0]
    if role == "advantages":
        cases = [*advantages.cases(INTENT), *([advantages._turns(INTENT)] if kind == "turns" else [])]
        observed = [advantages._observed(subject, c) for c in cases]
        usual = Knob(name="eps", values=advantages.EPS_USUAL, active=lambda o: o["scale"] != "none")
        return observed, advantages.axes(subject), advantages.reference, (usual,)
    module = logprobs if role == "logprobs" else entropy
    cases = [logprobs.logits_case(n, scale=s) for n, s in (("random logits", 2.0), ("peaked logits", 6.0))]
    observed = [module._observed(subject, c) for c in cases]
    t = logprobs.temperature_of(subject)
    temperature = Knob(name="temperature", values=(t or 1.0,), known=True)
    floor = Knob(name="floor", values=(1e-8,), active=lambda o: o.get("normal") == "floored")
    axes = logprobs.axes(subject, observed[0].value.shape, 7) if role == "logprobs" else entropy.axes(subject)
    return observed, axes, module.reference, (temperature, floor)


def values_of(observed: Sequence[Seen], reference: solver.Reference, options: Options, knobs: Knobs) -> Tensor:
    """What a combination gives on all cases, element by element, and the tolerance of float32 there: [2, elements]."""
    out: list[Tensor] = []
    for s in observed:
        value = reference(s.plain(), options, knobs).value
        value = value.flatten() if s.where is None else value[s.where]
        out.append(torch.stack([value, tolerance.allowed(value, "float32")]))
    return torch.cat(out, dim=1)


def apart(a: Tensor, b: Tensor) -> Tensor:
    """The largest distance of results in tolerances, by row; infinite where only one of them is finite."""
    one, other = a[..., 0, :], b[..., 0, :]
    same = (one == other) | (one.isnan() & other.isnan())
    distance = (one - other).abs() / torch.maximum(a[..., 1, :].nan_to_num(0.0), b[..., 1, :].nan_to_num(0.0))
    return distance.nan_to_num(math.inf, math.inf, math.inf).masked_fill(same, 0.0).amax(-1)


def right_ones(axes: Sequence[Axis], knobs: Sequence[Knob]) -> Iterator[tuple[Options, Knobs]]:
    """Every combination without a pitfall, at every usual value of its knobs; no eps at all is a pitfall."""
    for options, _ in solver.combinations(axes, 0):
        for values in solver._knob_values(knobs, options):
            if values.get("eps") != 0.0:
                yield options, values


ONE_AND_THE_SAME = {frozenset({"ADV-EPS-MISPLACED", "ADV-NO-EPSILON"})}
"""A constant in the wrong place and no constant differ by that constant alone."""


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_every_pitfall_is_far_from_every_right_function_and_from_the_other_pitfalls(kind: str, tmp_path: Path) -> None:
    observed, axes, reference, knobs = space_of(kind, subject_of(kind, tmp_path))
    wrong: list[tuple[str, Tensor]] = []
    for options, bad in solver.combinations(axes, 1):
        if _standard_but_one(axes, options):
            assert bad[0].pitfall is not None
            first = next(solver._knob_values(knobs, options))
            wrong.append((bad[0].pitfall.id, values_of(observed, reference, options, first)))
    combinations = list(right_ones(axes, knobs))
    right = torch.stack([values_of(observed, reference, o, k) for o, k in combinations])
    assert wrong

    close = [(id, combinations[int(i)]) for id, value in wrong for i in (apart(value, right) <= 20).nonzero().flatten()]
    alike = {
        frozenset({wrong[i][0], wrong[j][0]})
        for i in range(len(wrong))
        for j in range(i)
        if wrong[i][0] != wrong[j][0] and float(apart(wrong[i][1], wrong[j][1])) <= 20
    }

    assert close == []
    assert alike - ONE_AND_THE_SAME == set()


def _standard_but_one(axes: Sequence[Axis], options: Options) -> bool:
    return sum(options[a.name] != a.options[0].name for a in axes) == 1


@pytest.mark.parametrize("intent", [{}, {"group_size": 2}, {"group_size": 5}, {"group_size": 8}])
def test_the_cases_of_uneven_groups_tell_their_options_apart(intent: Mapping[str, Any]) -> None:
    standard = {a.name: a.options[0].name for a in advantages._statistics(on_tokens=False)} | {"groups": "own"}
    extra = (advantages.UNEVEN_AXIS, advantages.SINGLE_AXIS)
    case = advantages._uneven(intent, lone=True)
    wide = {k: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in case.inputs.items()}
    s = Seen(case=case.name, inputs=wide, value=wide["rewards"], grads={}, dtype="float32")
    first = {**standard, **{a.name: a.options[0].name for a in extra}}
    options = [first, *({**first, a.name: o.name} for a in extra for o in a.options[1:])]

    values = [values_of([s], advantages.reference, o, {"eps": 1e-4}) for o in options]

    for i in range(len(values)):
        for j in range(i):
            assert float(apart(values[i], values[j])) > 20, (options[i], options[j])


def test_cases_are_the_same_each_time() -> None:
    for make in (lambda: advantages.cases({})[0], lambda: logprobs.logits_case("random logits", scale=2.0)):
        one, two = make(), make()
        assert all(torch.equal(v, two.inputs[k]) for k, v in one.inputs.items() if isinstance(v, Tensor))
