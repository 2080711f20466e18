"""The reward battery on rewards that are right and rewards that are not, loaded and bound as a user's are."""

from __future__ import annotations

import itertools
import random
import socket
from pathlib import Path

import pytest
from specimens import DATA, expected, functions, violations

from rltriage_probes import checking
from rltriage_probes.contract import Agrees, CheckRequest, Diverges, NotRun, TargetResult, TargetSpec, Violates
from rltriage_probes.reading import sample
from rltriage_probes.reward import answers
from rltriage_probes.reward.scoring import number


def examine(ref: str, root: Path = DATA) -> TargetResult:
    return checking.check(CheckRequest(id=1, root=str(root), target=TargetSpec(name="r", role="reward", ref=ref)))


def written(folder: Path, code: str, name: str = "reward") -> TargetResult:
    (folder / "module.py").write_text(code, encoding="utf-8")
    return examine(f"module.py:{name}", folder)


def says(result: TargetResult, probe: str) -> str:
    """What the check of that name says."""
    (outcome,) = [c.outcome for c in result.checks if c.probe == probe]
    assert isinstance(outcome, Agrees | Violates | Diverges)
    return outcome.convention.summary if isinstance(outcome, Agrees) else outcome.says


@pytest.mark.parametrize(
    ("module", "name"),
    [(m, n) for m in ("rewards_right", "rewards_more_right", "rewards_shapes_right") for n in functions(m)],
)
def test_a_right_reward_is_not_called_a_bug_and_is_recognised(module: str, name: str) -> None:
    result = examine(f"{module}.py:{name}")

    assert violations(result, "hard") == {}
    assert [c.outcome for c in result.checks if c.outcome.kind in ("raised", "not_run")] == []
    assert any(isinstance(c.outcome, Agrees) for c in result.checks)


@pytest.mark.parametrize(
    ("module", "name", "pitfall"),
    [
        (m, n, p)
        for m in ("rewards_wrong", "rewards_more_wrong", "rewards_shapes_wrong")
        for n, p in expected(m).items()
    ],
)
def test_a_wrong_reward_is_named(module: str, name: str, pitfall: str) -> None:
    found = violations(examine(f"{module}.py:{name}"), "hard")

    assert pitfall in {p for ids in found.values() for p in ids}


@pytest.mark.parametrize("module", ["rewards_wrong", "rewards_more_wrong", "rewards_shapes_wrong"])
def test_every_wrong_reward_has_an_expectation(module: str) -> None:
    assert set(functions(module)) == set(expected(module))


def test_every_further_wrong_reward_has_a_repaired_twin() -> None:
    assert set(functions("rewards_more_wrong")) <= set(functions("rewards_more_right"))


def test_a_hole_is_shown_with_the_text_that_earns_too_much() -> None:
    text = says(examine("rewards_wrong.py:either_way"), "reward.holes")

    assert "an empty answer" in text
    assert "earns 1 for gold" in text


def test_the_convention_says_which_format_earns_what() -> None:
    text = says(examine("rewards_right.py:plus_minus_one"), "reward.golden")

    assert "earns 1, a wrong one -1" in text


def test_a_format_that_nobody_knows_is_admitted(tmp_path: Path) -> None:
    code = (
        "def reward(completion, answer):\n"
        "    return len(completion) * 1e-6 + float(completion == '@@' + answer[::-1] + '@@')\n"
    )
    result = written(tmp_path, code)

    assert violations(result, "hard") == {}
    assert "no completion was found" in says(result, "reward.golden")


def test_a_documented_template_decides_whether_the_opening_tag_may_be_asked_for(tmp_path: Path) -> None:
    code = (
        "import re\n\n\n"
        "def reward(completions, **kwargs):\n"
        '    """{}"""\n'
        "    return [1.0 if re.match('<think>.*?</think>', c, re.S) else 0.0 for c in completions]\n"
    )
    undecided = written(tmp_path, code.format("Format reward."))
    broken = written(tmp_path, code.format("The prompt template already ends in <think>."))

    assert violations(undecided, "hard") == {}
    assert violations(undecided, "soft")["reward.format"] == ["REW-FORMAT-OPEN-TAG"]
    assert violations(broken, "hard")["reward.format"] == ["REW-FORMAT-OPEN-TAG"]


def test_a_tail_window_is_asked_about_unless_the_docstring_promises_the_whole_response(tmp_path: Path) -> None:
    code = (
        "import re\n\n\n"
        "def reward(completion, answer):\n"
        '    """{}"""\n'
        "    found = re.findall(r'#### (\\S+)', completion[-300:])\n"
        "    return float(bool(found) and found[-1] == answer)\n"
    )
    silent = written(tmp_path, code.format("GSM8K."))
    promised = written(tmp_path, code.format("The last #### of the whole response counts."))

    assert violations(silent, "soft")["reward.window"] == ["REW-TAIL-WINDOW"]
    assert violations(promised, "hard")["reward.window"] == ["REW-TAIL-WINDOW"]


def test_nan_is_an_abstention_where_the_docstring_says_so(tmp_path: Path) -> None:
    code = (
        "def reward(completions, **kwargs):\n"
        '    """{}"""\n'
        "    return [float('nan') if not c.strip() else len(c) / 100 for c in completions]\n"
    )
    assert violations(written(tmp_path, code.format("Length.")), "hard") == {"reward.finite": ["REW-NONFINITE"]}
    assert violations(written(tmp_path, code.format("Length; NaN for empty completions.")), "hard") == {}


def test_a_function_that_never_gives_a_number_is_not_run(tmp_path: Path) -> None:
    result = written(tmp_path, "def reward(completions, answer):\n    return ['good' for _ in completions]\n")

    assert [c.outcome.kind for c in result.checks] == ["not_run"]


def test_an_import_that_fails_inside_the_function_is_raised_not_judged(tmp_path: Path) -> None:
    code = "def reward(completions, answer):\n    import no_such_grader\n    return [0.0 for _ in completions]\n"
    result = written(tmp_path, code)

    assert {c.outcome.kind for c in result.checks} <= {"raised", "not_run"}


@pytest.mark.parametrize(
    "doc",
    [
        'A well-formed completion is "<think>\nTwo.\n</think>\nThe answer is 4."',
        "Completions look like ``Let me see. </think> The answer is 4.``",
    ],
)
def test_examples_are_read_from_docstrings(doc: str) -> None:
    assert len(list(answers.well_formed_examples(doc))) == 1


@pytest.mark.parametrize(
    "doc",
    [
        'A completion without a block, e.g. "The answer is 4." scores 0.',
        'Prompts are e.g. "What is two and two? Answer:"',
        'Use it as "reward_fn(completions, answers)"',
    ],
)
def test_other_quotations_are_not_taken_for_good_completions(doc: str) -> None:
    assert list(answers.well_formed_examples(doc)) == []


@pytest.mark.parametrize(
    ("said", "opens"),
    [
        ("The chat template already ends in <think>.", True),
        ("Generation starts behind the opening tag, which is part of the prompt.", True),
        ("The system prompt asks for <think> and <answer> tags.", False),
        ("1.0 if the reasoning stands between <think> and </think>.", False),
        ("The prompt contains the question.", False),
    ],
)
def test_what_the_template_opens_is_read_from_prose(said: str, opens: bool) -> None:
    assert answers.template_opens(said) is opens


@pytest.mark.parametrize(
    ("value", "found"),
    [(True, 1.0), ({"score": -1.0, "pred": "4"}, -1.0), ((0.5, {"a": 1}), 0.5), ("4", None), (None, None)],
)
def test_a_number_is_found_in_what_rewards_return(value: object, found: float | None) -> None:
    assert number(value) == found


def test_a_callable_object_is_scored() -> None:
    result = examine("rewards_right.py:Grader.__call__")

    assert violations(result, "hard") == {}
    assert "a wrong one -0.5" in says(result, "reward.golden")


def test_gold_answers_that_come_one_a_prompt_are_handed_over_as_documented() -> None:
    wrong = violations(examine("rewards_more_wrong.py:GroupedGolds.__call__"), "hard")
    right = violations(examine("rewards_more_right.py:GroupedGolds.__call__"), "hard")

    assert wrong == {"reward.order": ["REW-ORDER"]}
    assert right == {}


def test_a_cache_behind_a_factory_is_found_by_its_first_answer(tmp_path: Path) -> None:
    code = (
        "def reward():\n"
        "    known = {}\n\n"
        "    def inner(prompts, completions, answer, **kwargs):\n"
        "        rows = zip(prompts, completions, answer)\n"
        "        return [known.setdefault(%s, float(c.strip() == a)) for p, c, a in rows]\n\n"
        "    return inner\n"
    )
    by_prompt = written(tmp_path, code % "p")
    by_all = written(tmp_path, code % "(p, c, a)")

    assert violations(by_prompt, "hard")["reward.state"] == ["REW-STATE"]
    assert violations(by_all, "hard") == {}


@pytest.mark.parametrize(
    ("doc", "answer", "hard"),
    [
        ("Numbers may be negative.", r"(\d+)", True),
        ("Numbers are compared.", r"(\d+)", False),
        ("Numbers are never negative.", r"(\d+)", False),
        ("Numbers may be negative.", r"(-?\d+)", False),
        ("2.0 equals 2.", r"(-?\d+)", True),
        ('Answers are numbers such as "0.25".', r"(-?\d+)", True),
        ("Thousands separators are removed.", r"(-?\d+)", True),
    ],
)
def test_a_form_of_the_answer_is_demanded_only_where_the_docstring_promises_it(
    tmp_path: Path, doc: str, answer: str, hard: bool
) -> None:
    code = (
        "import re\n\n\ndef reward(completion, answer):\n"
        f'    """1.0 for the right number behind ####, else 0.0. {doc}"""\n'
        f"    m = re.search(r'#### {answer}$', completion)\n"
        "    return float(m is not None and float(m.group(1)) == float(answer))\n"
    )
    found = violations(written(tmp_path, code), "hard")

    assert found == ({"reward.forms": ["REW-FORMAT"]} if hard else {})


def test_rows_without_a_gold_answer_may_not_shorten_the_list(tmp_path: Path) -> None:
    code = (
        "def reward(completions, answer, **kwargs):\n"
        "    return [float(c.strip() == a) for c, a in zip(completions, answer) if a is not None]\n"
    )
    result = written(tmp_path, code)

    assert violations(result, "hard")["reward.length"] == ["REW-LENGTH"]
    assert "no gold answer" in says(result, "reward.length")


def test_a_reward_that_reseeds_the_process_is_asked_about(tmp_path: Path) -> None:
    code = (
        "import random\n\n\ndef reward(completion, answer):\n"
        "    random.seed(0)\n    return float(completion.strip() == answer)\n"
    )
    state = random.getstate()
    result = written(tmp_path, code)

    assert violations(result, "soft")["reward.reseeds"] == ["REW-STATE"]
    assert random.getstate()[0] == state[0]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"result\s*=\s*\{([^{}]+)\}\s*\Z", "result={@}"),
        (r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", "<think></think><answer>@</answer>"),
        (r"\d+", "4"),
        (r"(unclosed", None),
    ],
)
def test_a_regular_expression_shows_what_it_matches(pattern: str, text: str | None) -> None:
    assert sample(pattern, "@", "") == text


def test_a_slow_reward_is_cut_short_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rltriage_probes.reward import scoring

    ticks = itertools.count(0.0, 0.5)  # each look at the clock costs half a second
    monkeypatch.setattr(scoring, "clock", lambda: next(ticks))
    result = written(tmp_path, "def reward(completion, answer):\n    return float(completion == answer)\n")

    assert violations(result, "hard") == {}
    assert ("reward.time", "not_run") in [(c.probe, c.outcome.kind) for c in result.checks]


def test_a_reward_manager_is_scored_through_its_tensor_of_token_rewards() -> None:
    result = examine("rewards_shapes_right.py:RewardManager.__call__")

    assert violations(result, "hard") == {}
    assert "earns 1, a wrong one 0" in says(result, "reward.golden")


_ON_THE_NETWORK = """
import json
import urllib.request


def reward(completion, answer):
    \"\"\"{doc}\"\"\"
    {body}
"""
_ASKS = "return float(json.load(urllib.request.urlopen('http://127.0.0.1:9/score'))['score'])"


def test_a_service_on_the_network_is_not_called_and_the_reason_is_given(tmp_path: Path) -> None:
    result = written(tmp_path, _ON_THE_NETWORK.format(doc="Score of the service.", body=_ASKS))

    (outcome,) = [c.outcome for c in result.checks if isinstance(c.outcome, NotRun)]
    assert "a service on the network" in outcome.reason


def test_a_judge_behind_a_client_is_not_run_and_the_reason_is_given(tmp_path: Path) -> None:
    code = (
        "def reward(prompts, completions, judge_client, **kwargs):\n"
        "    replies = [judge_client.chat.completions.create(\n"
        "                   model='m', messages=[{'role': 'user', 'content': p + c}])\n"
        "               for p, c in zip(prompts, completions)]\n"
        "    return [float(r.choices[0].message.content) for r in replies]\n"
    )
    (outcome,) = [c.outcome for c in written(tmp_path, code).checks if isinstance(c.outcome, NotRun)]

    assert "a language model behind a client" in outcome.reason


@pytest.mark.parametrize(
    ("doc", "severity"),
    [
        ("Score of the service.", "soft"),
        ("Score of the service; None if the service is unreachable.", "hard"),
        ("Score of the service, 0 if it is unreachable.", ""),
    ],
)
def test_an_outage_that_is_scored_is_a_question_unless_the_docstring_answers_it(
    tmp_path: Path, doc: str, severity: str
) -> None:
    body = f"try:\n        {_ASKS}\n    except Exception:\n        return 0.0"
    result = written(tmp_path, _ON_THE_NETWORK.format(doc=doc, body=body))

    found = {s: violations(result, s).get("reward.outage", []) for s in ("hard", "soft")}
    assert found == {s: ["REW-OUTAGE"] if s == severity else [] for s in ("hard", "soft")}


@pytest.mark.parametrize(
    ("value", "found"), [([0.0, 0.0, 1.0], 1.0), ([0.5], 0.5), ([1.0, True, "4"], 1.0), ([0.0, float("inf")], None)]
)
def test_rewards_of_tokens_or_steps_are_summed(value: object, found: float | None) -> None:
    got = number(value)

    assert got == found or (found is None and got is not None and got != got)


def test_the_network_is_there_again_when_the_battery_is_over(tmp_path: Path) -> None:
    before = (socket.create_connection, socket.getaddrinfo, vars(socket.socket).get("connect"))
    written(tmp_path, _ON_THE_NETWORK.format(doc="Score.", body=_ASKS))

    assert before == (socket.create_connection, socket.getaddrinfo, vars(socket.socket).get("connect"))
