"""The battery of environments on classes that are right and classes that are not, loaded as a user's are."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from specimens import DATA, expected, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, NotRun, TargetResult, TargetSpec
from rltriage_probes.environment import rows, world
from rltriage_probes.environment.snapshots import frozen, shaken

HELPERS = {"StepResult", "Move", "GameConfig"}
"""Classes of the specimens that are no environments."""
MAY_BE_ASKED = {
    "Curriculum": {"ENV-RESET-LEAK"},
    "WordChain": {"ENV-PAYS-AFTER-DONE"},
    "Counted": {"ENV-PAYS-AFTER-DONE"},
    "ConnectLine": {"ENV-PAYS-AFTER-DONE"},
    "History": {"ENV-PAYS-AFTER-DONE"},
}
"""What is asked of right environments that document nothing about it."""


def public(module: str) -> list[str]:
    tree = ast.parse((DATA / f"{module}.py").read_text("utf-8"))
    kinds = (ast.ClassDef, ast.FunctionDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_") and n.name not in HELPERS]


def examine(ref: str, root: Path = DATA, bind: dict[str, str] | None = None, **intent: Any) -> TargetResult:
    target = TargetSpec(name="e", role="environment", ref=ref, bind=bind or {})
    return checking.check(CheckRequest(id=1, root=str(root), target=target, intent=intent))


def summary(result: TargetResult, probe: str) -> str:
    (outcome,) = [c.outcome for c in result.checks if c.probe == probe]
    assert isinstance(outcome, Agrees), outcome
    return outcome.convention.summary


@pytest.mark.parametrize("name", public("environments_right"))
def test_a_right_environment_is_not_called_a_bug(name: str) -> None:
    result = examine(f"environments_right.py:{name}")

    assert violations(result, "hard") == {}
    assert [c.outcome for c in result.checks if c.outcome.kind in ("raised", "not_run")] == []
    assert {p for ids in violations(result, "soft").values() for p in ids} <= MAY_BE_ASKED.get(name, set())
    assert any(isinstance(c.outcome, Agrees) for c in result.checks)


@pytest.mark.parametrize(("name", "pitfall"), expected("environments_wrong").items())
def test_a_wrong_environment_is_named(name: str, pitfall: str) -> None:
    found = violations(examine(f"environments_wrong.py:{name}"), "hard")

    assert pitfall in {p for ids in found.values() for p in ids}


def test_a_constant_seed_in_reset_is_asked_about() -> None:
    found = violations(examine("environments_wrong.py:SameProblemForEver"), "soft")

    assert found == {"environment.seed": ["ENV-SEED-STUCK"]}


def test_what_instances_share_is_named_with_the_place() -> None:
    result = examine("environments_wrong.py:ModuleGlobal")
    (says,) = [c.outcome.says for c in result.checks if c.probe == "environment.instances"]  # type: ignore[union-attr]

    assert "_SESSION" in says


def test_a_leak_through_a_class_attribute_is_told_as_shared_state_alone() -> None:
    found = violations(examine("environments_wrong.py:ClassLevelHistory"), "hard")

    assert {p for ids in found.values() for p in ids} == {"ENV-SHARED-STATE"}


def test_the_group_of_a_data_set_is_reached_through_its_batches() -> None:
    result = examine("environments_right.py:GroupsOfDataset")

    assert summary(result, "environment.group_size") == "4 members, as declared"
    assert "one problem for all members" in summary(result, "environment.group")


def test_the_declared_group_size_is_used() -> None:
    result = examine("environments_right.py:SharedProblem", group_size=6)

    assert "members" in summary(result, "environment.group_size")


def test_latencies_are_reported_as_numbers() -> None:
    result = examine("environments_right.py:OneShot")
    (outcome,) = [c.outcome for c in result.checks if c.probe == "environment.latency"]

    assert isinstance(outcome, Agrees)
    assert outcome.convention.knobs["step_p95_ms"] >= outcome.convention.knobs["step_median_ms"]  # type: ignore[operator]


def test_a_parameter_of_which_nothing_is_known_can_be_bound(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "class E:\n"
        "    def __init__(self, engine):\n"
        "        self.engine = engine\n        self.limit = engine['limits']['steps']\n"
        "    def reset(self):\n        self.t = 0\n        return 'go'\n"
        "    def step(self, action):\n        self.t += 1\n        return '', 0.0, self.t >= self.limit, {}\n"
    )
    refused = examine("m.py:E", tmp_path)
    taken = examine("m.py:E", tmp_path, {"engine": "={'limits': {'steps': 3}}"})

    (outcome,) = [c.outcome for c in refused.checks]
    assert isinstance(outcome, NotRun) and "bind" in outcome.do
    assert "ends at step 3" in summary(taken, "environment.limit")


def test_an_action_can_be_bound(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "class E:\n    def reset(self):\n        return 'say the word'\n"
        "    def step(self, action):\n"
        "        if action['word'] != 'xyzzy':\n            raise LookupError(action)\n"
        "        return '', 1.0, True, {}\n"
    )
    result = examine("m.py:E", tmp_path, {"action": "={'word': 'xyzzy'}"})

    assert "rewards from 1 to 1" in summary(result, "environment.answer")


def test_the_world_puts_back_what_a_run_changed() -> None:
    scope: dict[str, Any] = {"__name__": "m", "COUNT": 0, "SEEN": ["a"]}
    seen = scope["SEEN"]
    before = world.World(scope)
    scope["COUNT"] += 1
    seen.append("b")

    assert before.changed() == ["COUNT", "SEEN"]
    before.restore()
    assert scope["COUNT"] == 0
    assert seen == ["a"]
    assert before.changed() == []


def test_the_process_generators_are_kept() -> None:
    import random

    random.seed(3)
    with world.kept_globals():
        random.seed(99)
    first = random.random()
    random.seed(3)

    assert random.random() == first


def test_ids_and_times_are_left_out_of_a_comparison() -> None:
    assert frozen({"text": "a", "episode_id": 1}) == frozen({"text": "a", "episode_id": 2})
    assert frozen({"text": "a", "episode_id": 1}, exact=True) != frozen({"text": "a", "episode_id": 2}, exact=True)


def test_an_observation_is_shaken_in_place() -> None:
    chat = [{"role": "user", "content": "a"}]

    assert shaken(chat)
    assert len(chat) == 2
    assert not shaken("a text")


def test_a_row_has_the_keys_that_the_source_reads() -> None:
    tree = ast.parse("q = row['question']\nt = row.get('tests')\nrow['out'] = 1")

    assert rows.keys_read(tree) == ["question", "tests"]
    assert rows.row(["tests"], 0)["tests"] == ["7 + 5 = 12"]
