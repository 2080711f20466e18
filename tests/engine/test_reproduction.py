"""Every finding as a program: run in a process of its own, it prints the number that was observed."""

from __future__ import annotations

import ast
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs_run
import pytest
import specimens

from rltriage_probes import checking, literals, shrinking
from rltriage_probes.contract import Block, Check, CheckRequest, Raised, Reproduction, TargetResult, TargetSpec

PAGES = Path(__file__).resolve().parents[2] / "references" / "pitfalls"
SPECIMENS = (
    ("advantages", "advantages_wrong.py", 1), ("advantages", "advantages_strange.py", 5),
    ("logprobs", "logprobs_wrong.py", 1), ("logprobs", "logprobs_strange.py", 5), ("entropy", "entropy_wrong.py", 1),
    ("entropy", "entropy_strange.py", 3), ("kl", "loss/kls.py", 1), ("completion_mask", "loss/masks.py", 1),
    ("policy_loss", "loss/strangers.py", 5), ("decode", "decoders_wrong.py", 1), ("reward", "rewards_wrong.py", 4),
)  # fmt: skip
"""Role, file, and of how many functions one is taken: what fits nothing takes the solver longest."""
SOLVED = ("advantages", "logprobs", "entropy", "kl", "completion_mask", "policy_loss")
AT_LEAST = {"advantages": 0.8, "logprobs": 0.7, "entropy": 0.7, "policy_loss": 0.75, "decode": 0.4, "reward": 0.5}
"""Share of a role's findings that are programs; of other roles nearly all. The rest compare more than one call."""


def check(root: Path, role: str, ref: str, **more: Any) -> TargetResult:
    intent = more.pop("intent", {})
    target = TargetSpec(name=role, role=role, ref=ref, **more)
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent, device="cpu"))


def found(result: TargetResult) -> list[Check]:
    return [c for c in result.checks if c.reproduction is not None]


def only(root: Path, code: str, role: str, name: str = "f", **more: Any) -> Reproduction:
    """The reproduction of the one finding of a function."""
    (root / "algos.py").write_text(code)
    (made,) = [c.reproduction for c in found(check(root, role, f"algos.py:{name}", **more))]
    assert made is not None
    return made


def agrees(made: Reproduction, ran: programs_run.Ran) -> bool:
    """Whether a program did what its reproduction says."""
    if isinstance(made.expected, str) and isinstance(made.actual, str) and not _is_number(made.actual):
        return ran.error.split(":")[0] == made.actual.split(":")[0] if ran.error else ran.last != ""
    if ran.error:
        return False
    said = [float(x.strip("(),")) for x in ran.last.replace(",", " ").split()]
    actual = float(made.actual)
    return math.isclose(said[0], actual, rel_tol=1e-4, abs_tol=1e-6) or (math.isnan(said[0]) and math.isnan(actual))


def _is_number(text: str) -> bool:
    return text in ("nan", "inf", "-inf")


def verify(root: Path, checks: list[Check], at_least: float) -> None:
    """Runs the programs; each prints what was observed, which is not what is expected."""
    made = [c.reproduction for c in checks if c.reproduction is not None]
    programs = [m for m in made if m.code]
    assert all(m.why_not for m in made if not m.code)
    assert len(programs) >= at_least * len(made), [(c.probe, c.reproduction) for c in checks]
    for m, ran in zip(programs, programs_run.run([(root, m.code) for m in programs]), strict=True):
        assert agrees(m, ran), f"{m.code}\n{m.actual}: {ran}"
        assert m.actual != m.expected
        assert len([row for row in m.code.splitlines() if row]) <= 14, m.code


@pytest.mark.parametrize(("role", "file", "every"), SPECIMENS, ids=[file for _, file, _ in SPECIMENS])
def test_the_findings_of_specimens_are_programs_that_print_them(role: str, file: str, every: int) -> None:
    path = specimens.DATA / file
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [n.name for n in ast.parse(path.read_text("utf-8")).body if isinstance(n, kinds)]
    public = [n for n in names if not n.startswith("_")][::every]
    checks = [c for n in public for c in found(check(path.parent, role, f"{path.name}:{n}"))]
    verify(path.parent, checks, AT_LEAST.get(role, 0.85))


def pages(role: str, root: Path) -> Iterator[Check]:
    """Findings of the solver in the wrong block of each page of a role."""
    for file in sorted(PAGES.glob("*.md")):
        head, body = file.read_text("utf-8").split("+++\n", 2)[1:]
        front: dict[str, Any] = tomllib.loads(head)
        if role not in front["roles"]:
            continue
        (code,) = re.findall(r"^## Bug\n.*?```python\n(.*?)```", body, re.DOTALL | re.MULTILINE)
        name = f"page_{re.sub(r'[^a-z]', '_', front['id'].lower())}"
        (root / f"{name}.py").write_text(code)
        more = {key: front[key] for key in ("intent", "bind", "settings") if key in front}
        result = check(root, role, f"{name}.py:{front['target']}", **more)
        yield from (c for c in found(result) if c.probe == f"{role}.formula")


@pytest.mark.parametrize("role", SOLVED)
def test_the_wrong_block_of_every_page_is_a_program_where_the_solver_finds_it(role: str, tmp_path: Path) -> None:
    verify(tmp_path, list(pages(role, tmp_path)), 0.85)


# What a program looks like

WHITENED = """
def f(rewards, group_size):
    grouped = rewards.view(-1, group_size)
    return ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1.0)).flatten()
"""


def test_a_program_runs_with_the_module_and_torch_alone(tmp_path: Path) -> None:
    made = only(tmp_path, WHITENED, "advantages")
    run = subprocess.run([sys.executable, "-c", made.code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert float(run.stdout) == pytest.approx(float(made.actual), rel=1e-6)
    assert made.code.splitlines()[:2] == ["import torch", "from algos import f"]
    assert made.inputs <= 4


def test_a_formula_that_nobody_knows_is_compared_with_the_usual_one(tmp_path: Path) -> None:
    code = "def f(logprobs, ref_logprobs):\n    return (ref_logprobs - logprobs) ** 4\n"
    made = only(tmp_path, code, "kl")
    assert re.search(r"# \S+ where the usual formula gives \S+$", made.code), made.code


def test_rewards_shrink_to_one_group_of_two(tmp_path: Path) -> None:
    made = only(tmp_path, WHITENED, "advantages")
    assert re.search(r"rewards=torch.tensor\(\[[-\d., ]+, [-\d., ]+\]\), group_size=2", made.code), made.code
    assert made.code.rstrip().endswith("is expected")


def test_a_gradient_that_is_wrong_is_differentiated(tmp_path: Path) -> None:
    code = (
        "import torch\ndef f(log_probs, old_log_probs, advantages, mask, clip_eps=0.2):\n"
        "    ratio = (log_probs - old_log_probs).exp()\n"
        "    a = advantages[:, None]\n"
        "    loss = -torch.min(ratio.detach() * a, ratio.clamp(1 - clip_eps, 1 + clip_eps).detach() * a)\n"
        "    return (loss * mask).sum() / mask.sum() + 0 * log_probs.sum()\n"
    )
    (tmp_path / "algos.py").write_text(code)
    made = next(c.reproduction for c in found(check(tmp_path, "policy_loss", "algos.py:f")) if c.reproduction)
    assert "torch.autograd.grad(out, log_probs)[0]" in made.code
    verify(tmp_path, [c for c in found(check(tmp_path, "policy_loss", "algos.py:f")) if c.reproduction == made], 1.0)


def test_batches_configs_and_self_are_written_as_plain_objects(tmp_path: Path) -> None:
    code = (
        "class Trainer:\n"
        "    def __init__(self, config, model):\n"
        "        model.train()\n"
        "        self.config = config\n"
        "    def kl(self, batch):\n"
        "        return self.config.beta * (batch['ref_logprobs'] - batch['logprobs'])\n"
    )
    made = only(tmp_path, code, "kl", "Trainer.kl")
    assert "Trainer.kl(SimpleNamespace(config=SimpleNamespace(beta=0.04)), batch=" in made.code
    (ran,) = programs_run.run([(tmp_path, made.code)])
    assert agrees(made, ran)


def test_the_user_s_own_constructor_and_dataclass_are_used_where_they_work(tmp_path: Path) -> None:
    code = (
        "from dataclasses import dataclass\nimport torch\n"
        "@dataclass\nclass Batch:\n    logprobs: torch.Tensor\n    ref_logprobs: torch.Tensor\n"
        "class KL:\n    def __init__(self, beta=0.5):\n        self.beta = beta\n"
        "    def __call__(self, batch: Batch):\n"
        "        return self.beta * (batch.ref_logprobs - batch.logprobs)\n"
    )
    made = only(tmp_path, code, "kl", "KL")
    assert "from algos import Batch, KL" in made.code
    assert "batch = Batch(logprobs=" in made.code and "KL(beta=0.5).__call__(batch=batch)" in made.code
    (ran,) = programs_run.run([(tmp_path, made.code)])
    assert agrees(made, ran)


def test_an_exception_is_raised_by_the_program_too(tmp_path: Path) -> None:
    code = (
        "import torch\ndef f(log_probs, old_log_probs, advantages, mask):\n"
        "    if not advantages.any():\n        raise ValueError('no signal')\n"
        "    loss = -(log_probs - old_log_probs).exp() * advantages[:, None]\n"
        "    return (loss * mask).sum() / mask.sum()\n"
    )
    (tmp_path / "algos.py").write_text(code)
    (raised,) = [c for c in check(tmp_path, "policy_loss", "algos.py:f").checks if isinstance(c.outcome, Raised)]
    made = raised.reproduction
    assert made is not None and made.code.rstrip().endswith("# raises ValueError: no signal")
    assert made.inputs <= 8
    (ran,) = programs_run.run([(tmp_path, made.code)])
    assert ran.error == "ValueError: no signal"


def test_lines_of_a_file_are_run_as_they_stand(tmp_path: Path) -> None:
    code = "import torch\n\ndef step(self, scores):\n" + "".join(
        f"    {row}\n"
        for row in ("g = scores.view(-1, self.n)", "g = g - g.mean(0, keepdim=True)", "return g.flatten()")
    )
    (tmp_path / "algos.py").write_text(code)
    block = Block(start="4", stop="5", inputs={"scores": "rewards", "self.n": "group_size"}, output="g.flatten()")
    checks = found(check(tmp_path, "advantages", "algos.py#L4-L5", block=block))
    assert checks and checks[0].reproduction is not None
    assert "splitlines()[3:5]" in checks[0].reproduction.code
    verify(tmp_path, checks[:1], 1.0)


def test_a_file_that_trains_on_import_is_cut_up_by_its_program(tmp_path: Path) -> None:
    code = (
        "import torch\nSCALE = -1.0\n"
        "def f(logprobs, ref_logprobs):\n    d = ref_logprobs - logprobs\n    return SCALE * (d.exp() - d - 1)\n"
        "for step in range(3):\n    raise SystemExit('training')\n"
    )
    made = only(tmp_path, code, "kl")
    assert "tree.body" in made.code
    (ran,) = programs_run.run([(tmp_path, made.code)])
    assert agrees(made, ran)


def test_what_can_not_be_written_says_so(tmp_path: Path) -> None:
    code = (
        "def make(beta=0.1):\n    def inner(logprobs, ref_logprobs):\n"
        "        return beta * (ref_logprobs - logprobs)\n    return inner\n"
    )
    made = only(tmp_path, code, "kl", "make")
    assert made.code == "" or "make(" in made.code
    random = "import torch\ndef f(logprobs, ref_logprobs):\n    return torch.rand_like(logprobs)\n"
    made = only(tmp_path, random, "kl")
    assert made.code == "" and made.why_not
    dropped = (
        "import torch\ndef f(logprobs, ref_logprobs):\n"
        "    keep = torch.rand(()) < 2  # always, but it might not\n"
        "    return (ref_logprobs - logprobs) * keep * 3\n"
    )
    made = only(tmp_path, dropped, "kl")
    assert made.code == "" and "draws random numbers" in made.why_not


# Its parts


def test_numbers_are_written_with_the_fewest_digits() -> None:
    import torch

    assert [literals.short(x) for x in torch.tensor([0.1, -2.5, 1e-8, 3.0]).tolist()] == ["0.1", "-2.5", "1e-08", "3.0"]
    assert literals.short(-0.0) == "0.0"
    assert literals.short(math.inf) == 'float("inf")'


@pytest.mark.parametrize(
    "text",
    [
        "torch.tensor([[1.5, -2.0], [0.1, 3.0]])", "torch.tensor([1, 2, -100])", "torch.tensor([[True], [False]])",
        "torch.zeros(2, 3)", "torch.ones(4)", "torch.tensor([1, 2], dtype=torch.int32)",
        "torch.tensor([1.5], dtype=torch.bfloat16)", "torch.zeros(0, 3, dtype=torch.float32)",
    ],
)  # fmt: skip
def test_tensors_are_written_so_that_the_same_comes_back(text: str) -> None:
    import torch

    value = eval(text, {"torch": torch})
    again = eval(literals.Writer().write(value, "x"), {"torch": torch})
    assert again.dtype == value.dtype and again.shape == value.shape and torch.equal(again, value)


def test_containers_are_written_and_large_inputs_refused() -> None:
    import torch

    written = literals.Writer().write({"a": [1, (2.5,)], "b": None, "c": torch.device("cpu")}, "x")
    assert written == "{'a': [1, (2.5,)], 'b': None, 'c': torch.device(\"cpu\")}"
    with pytest.raises(literals.Unwritable, match="more than 400 numbers"):
        literals.Writer().write(torch.zeros(30, 30), "x")
    with pytest.raises(literals.Unwritable, match="a object"):
        literals.Writer().write(object(), "x")


def test_steps_keep_what_belongs_together() -> None:
    import torch

    inputs = {
        "logits": torch.zeros(3, 4, 7), "token_ids": torch.tensor([[6, 2, 6, 2]] * 3),
        "completion_mask": torch.tensor([[0.0, 1, 1, 1], [0, 1, 1, 0], [0, 1, 0, 0]]),
        "lengths": torch.tensor([4, 3, 2]), "row_count": 3.0, "prompt_length": 1, "completion_length": 3,
    }  # fmt: skip
    rows = shrinking.with_rows(inputs, [2])
    assert rows["logits"].shape == (1, 4, 7) and rows["lengths"].tolist() == [2] and rows["row_count"] == 1.0
    columns = shrinking.with_columns(inputs, [0, 1], 4)
    assert columns is not None and columns["lengths"].tolist() == [2, 2, 2] and columns["completion_length"] == 1
    assert shrinking.with_columns(inputs, [0, 3], 4) is None  # the last row would have no trained token left
    (smallest,) = shrinking.shrunk((inputs,), lambda several: True, shrinking.Budget(seconds=60.0, trials=500))
    assert smallest["logits"].shape[:2] == (1, 2) and smallest["logits"].shape[2] <= 3
    assert int(smallest["token_ids"].max()) < smallest["logits"].shape[2]


def test_groups_stay_whole_and_keep_two_samples() -> None:
    import torch

    inputs = {"rewards": torch.arange(12.0), "group_ids": torch.tensor([0] * 4 + [1] * 4 + [2] * 4), "group_size": 4}
    (smallest,) = shrinking.shrunk((inputs,), lambda several: True, shrinking.Budget(seconds=60.0, trials=500))
    assert smallest["rewards"].shape == (2,) and smallest["group_size"] == 2
    assert len(set(smallest["group_ids"].tolist())) == 1
