"""Environments with one bug each."""

import asyncio
import json
import os
import random
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass

EXPECTED = {
    "ScoreSurvives": "ENV-RESET-LEAK",
    "HistorySurvives": "ENV-RESET-LEAK",
    "TurnsSurvive": "ENV-RESET-LEAK",
    "CacheOfLastAnswer": "ENV-RESET-LEAK",
    "ClassLevelHistory": "ENV-SHARED-STATE",
    "DefaultArgument": "ENV-SHARED-STATE",
    "ModuleGlobal": "ENV-SHARED-STATE",
    "ClassLevelTarget": "ENV-SHARED-STATE",
    "FixedScratchFile": "ENV-SHARED-STATE",
    "SharedByGroup": "ENV-SHARED-STATE",
    "BoardOfGroup": "ENV-SHARED-STATE",
    "SeedNotUsed": "ENV-SEED-IGNORED",
    "HalfSeeded": "ENV-SEED-IGNORED",
    "ClockReward": "ENV-NOT-REPEATABLE",
    "SystemRandomReward": "ENV-NOT-REPEATABLE",
    "SeedsTheProcess": "ENV-GLOBAL-RNG",
    "SeedsTorch": "ENV-GLOBAL-RNG",
    "SeedsFromConstructor": "ENV-GLOBAL-RNG",
    "AppendsToRow": "ENV-ROW-MUTATED",
    "PopsFromRow": "ENV-ROW-MUTATED",
    "SortsChoicesOfRow": "ENV-ROW-MUTATED",
    "GivesItsBoard": "ENV-OBSERVATION-ALIAS",
    "GivesItsMessages": "ENV-OBSERVATION-ALIAS",
    "GivesItsArray": "ENV-OBSERVATION-ALIAS",
    "RedrawsForEachMember": "ENV-GROUP-PROBLEM",
    "RedrawsInReset": "ENV-GROUP-PROBLEM",
    "group_of_different_rows": "ENV-GROUP-PROBLEM",
    "OneMemberShort": "ENV-GROUP-SIZE",
    "MeanOfNothing": "ENV-REWARD-NOT-FINITE",
    "LogOfZero": "ENV-REWARD-NOT-FINITE",
    "ForgetsToReturn": "ENV-REWARD-NOT-FINITE",
    "PaysTheWrong": "ENV-ANSWER-LOSES",
    "OneTurnLate": "ENV-LIMIT-SHIFT",
    "OneTurnEarly": "ENV-LIMIT-SHIFT",
    "NeverCounts": "ENV-NEVER-DONE",
    "TimeLimitAsEnd": "ENV-TRUNCATED-AS-TERMINATED",
    "CrashesOnMalformed": "ENV-RAISES",
    "PaysForEver": "ENV-PAYS-AFTER-DONE",
}
SOFT = {
    "SameProblemForEver": "ENV-SEED-STUCK",
}


class ScoreSurvives:
    def __init__(self):
        self.score = 0.0

    def reset(self):
        self.left = 3
        return "press a or b"

    def step(self, action):
        self.left -= 1
        self.score += 1.0 if action == "a" else 0.0
        return f"score {self.score}", self.score, self.left == 0, {}


class HistorySurvives:
    """Chat environment: the observation is the conversation so far."""

    def __init__(self):
        self.messages = []

    def reset(self, question="What is 7 + 5?"):
        self.messages.append({"role": "user", "content": question})
        self.answer = "12"
        return list(self.messages)

    def step(self, action):
        self.messages.append({"role": "assistant", "content": action})
        done = action.strip() == self.answer
        return list(self.messages), float(done), done, {}


class TurnsSurvive:
    """Ends after max_turns guesses."""

    def __init__(self, seed=0, max_turns=4):
        self.rng = random.Random(seed)
        self.max_turns = max_turns
        self.turn = 0

    def reset(self):
        self.number = self.rng.randint(1, 9)
        return "1 to 9?"

    def step(self, action):
        self.turn += 1
        hit = action.strip() == str(self.number)
        return "", float(hit), hit or self.turn >= self.max_turns, {}


class CacheOfLastAnswer:
    """A question of the data set; the grade of an answer is cached."""

    def __init__(self, rows):
        self.rows = rows
        self.i = -1
        self.grades = {}

    def reset(self):
        self.i = (self.i + 1) % len(self.rows)
        return self.rows[self.i]["question"]

    def step(self, action):
        if action not in self.grades:
            self.grades[action] = float(action.strip() == str(self.rows[self.i]["answer"]))
        return "", self.grades[action], True, {}


class ClassLevelHistory:
    history = []

    def reset(self):
        return "start"

    def step(self, action):
        self.history.append(action)
        return " ".join(self.history), 0.0, len(self.history) >= 3, {}


class DefaultArgument:
    def __init__(self, seen=set()):
        self.seen = seen

    def reset(self):
        self.n = 0
        return "say something new"

    def step(self, action):
        self.n += 1
        new = action not in self.seen
        self.seen.add(action)
        return "", float(new), self.n == 2, {}


_SESSION = {"answer": None, "turns": 0}


class ModuleGlobal:
    def reset(self, row):
        _SESSION["answer"], _SESSION["turns"] = row["answer"], 0
        return row["question"]

    def step(self, action):
        _SESSION["turns"] += 1
        right = action.strip() == _SESSION["answer"]
        return "", float(right), right or _SESSION["turns"] >= 3, {}


class ClassLevelTarget:
    target = 0

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def reset(self):
        type(self).target = self.rng.randint(1, 100)
        self.left = 4
        return "guess 1 to 100"

    def step(self, action):
        self.left -= 1
        digits = "".join(c for c in action if c.isdigit()) or "0"
        gap = abs(int(digits) - type(self).target)
        return f"off by {gap}", -gap / 100, gap == 0 or self.left == 0, {}


class FixedScratchFile:
    """Writes the code to a file and counts the lines of all attempts."""

    path = os.path.join(tempfile.gettempdir(), "rltriage_specimen_scratch.txt")

    def reset(self, task="write a line"):
        self.n = 0
        with open(self.path, "w") as f:
            f.write("")
        return task

    def step(self, action):
        self.n += 1
        with open(self.path, "a") as f:
            f.write(action.replace("\n", " ") + "\n")
        with open(self.path) as f:
            lines = len(f.readlines())
        return f"{lines} lines", float(lines), self.n == 3, {}


class Attempt:
    def __init__(self, question, answer, board=None):
        self.question, self.answer = question, answer
        self.board = board if board is not None else {}

    def reset(self):
        self.board.clear()
        self.tries = 0
        return self.question

    def step(self, action):
        self.tries += 1
        self.board[action] = self.board.get(action, 0) + 1
        right = action.strip() == self.answer
        return str(self.board), float(right), right or self.tries >= 3, {}


class SharedByGroup:
    """One GRPO group of attempts at a question."""

    def __init__(self, question, answer, group_size=4):
        self.question, self.answer, self.group_size = question, answer, group_size

    def make_envs(self):
        return [Attempt(self.question, self.answer)] * self.group_size


class BoardOfGroup:
    """One GRPO group of attempts at a question."""

    def __init__(self, question, answer, group_size=4):
        self.question, self.answer, self.group_size = question, answer, group_size

    def make_envs(self):
        board = {}
        return [Attempt(self.question, self.answer, board) for _ in range(self.group_size)]


class SeedNotUsed:
    """`reset(seed)` starts a reproducible episode."""

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.a, self.b = random.randint(1, 50), random.randint(1, 50)
        return f"{self.a} + {self.b}"

    def step(self, action):
        return "", float(action.strip() == str(self.a + self.b)), True, {}


class HalfSeeded:
    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def reset(self):
        self.word = self.rng.choice(["tree", "stone", "river"])
        letters = list(self.word)
        random.shuffle(letters)
        return "".join(letters)

    def step(self, action):
        return "", float(action.strip() == self.word), True, {}


class ClockReward:
    """Earns less the longer it takes."""

    def reset(self):
        self.started = time.perf_counter()
        return "go"

    def step(self, action):
        return "", 1.0 / (1.0 + time.perf_counter() - self.started), True, {}


class SystemRandomReward:
    def __init__(self, seed=0):
        self.seed = seed
        self.rng = random.SystemRandom(seed)

    def reset(self):
        self.lucky = self.rng.randrange(1_000_000)
        return f"ticket {self.lucky}"

    def step(self, action):
        return "", self.lucky / 1e6, True, {}


class SeedsTheProcess:
    """Every reset is reproducible."""

    def __init__(self, seed=0):
        self.seed = seed
        self.episode = 0

    def reset(self):
        random.seed(self.seed + self.episode)
        self.episode += 1
        self.n = random.randint(1, 9)
        return "1 to 9?"

    def step(self, action):
        return "", float(action.strip() == str(self.n)), True, {}


class SeedsTorch:
    def reset(self, seed: int = 0):
        import torch

        torch.manual_seed(seed)
        self.n = int(torch.randint(1, 10, ()))
        return "1 to 9?"

    def step(self, action):
        return "", float(action.strip() == str(self.n)), True, {}


class SeedsFromConstructor:
    def __init__(self):
        self.items = ["tea", "milk", "salt"]

    def reset(self):
        self.order = random.sample(self.items, 3)
        return ", ".join(self.order)

    def step(self, action):
        random.seed(42)
        return "", random.random(), True, {}


class AppendsToRow:
    def reset(self, row):
        prompt = row["prompt"]
        if isinstance(prompt, str):
            prompt = [{"role": "user", "content": prompt}]
        row.setdefault("hints", []).append("think first")
        self.answer = row["answer"]
        return prompt + [{"role": "user", "content": "; ".join(row["hints"])}]

    def step(self, action):
        return [], float(action.strip() == self.answer), True, {}


class PopsFromRow:
    def __init__(self, dataset):
        self.dataset = dataset
        self.at = 0

    def reset(self):
        row = self.dataset[self.at % len(self.dataset)]
        self.at += 1
        self.answer = row.pop("answer", "")
        return row["question"]

    def step(self, action):
        return "", float(action.strip() == str(self.answer)), True, {}


class SortsChoicesOfRow:
    """Multiple choice; the label is an index into the choices as they are in the row."""

    def reset(self, example):
        example["choices"].sort()
        self.choices = example["choices"]
        self.answer = example["answer"]
        return f"{example['question']} {self.choices}"

    def step(self, action):
        return "", float(action.strip() == self.answer), True, {}


class GivesItsBoard:
    def __init__(self, size=4):
        self.size = size

    def reset(self):
        self.board = [0] * self.size
        self.n = 0
        return self.board

    def step(self, action: int):
        self.board[action % self.size] += 1
        self.n += 1
        return self.board, float(max(self.board)), self.n >= 4, {}


class GivesItsMessages:
    def reset(self, question="What is 7 + 5?"):
        self.messages = [{"role": "user", "content": question}]
        return self.messages

    def step(self, action):
        self.messages.append({"role": "assistant", "content": action})
        self.messages.append({"role": "user", "content": "Are you sure?"})
        return self.messages, float("12" in action), len(self.messages) >= 7, {}


class GivesItsArray:
    def reset(self, seed=0):
        import numpy as np

        self.state = np.random.default_rng(seed).random(4)
        self.t = 0
        return self.state

    def step(self, action: int):
        self.state *= 0.5
        self.state[action % 4] += 1.0
        self.t += 1
        return self.state, float(self.state.sum()), self.t >= 5, {}


class RedrawsForEachMember:
    """The environments of one group."""

    def __init__(self, rows, group_size=4, seed=0):
        self.rows, self.group_size = rows, group_size
        self.rng = random.Random(seed)

    async def make_envs(self):
        envs = []
        for _ in range(self.group_size):
            row = self.rng.choice(self.rows)
            envs.append(Attempt(row["question"], row["answer"]))
        return envs


class Drawing:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.a, self.b = self.rng.randint(1, 99), self.rng.randint(1, 99)
        return f"{self.a} * {self.b} = ?"

    def step(self, action):
        return "", float(action.strip() == str(self.a * self.b)), True, {}


class RedrawsInReset:
    """A group of attempts at the same product."""

    def __init__(self, seed=0, num_envs=4):
        self.seed, self.num_envs = seed, num_envs

    def make_envs(self):
        return [Drawing(random.Random(self.seed + i)) for i in range(self.num_envs)]


def group_of_different_rows(rows, group_size=4):
    """The environments of one group: group_size attempts at one question."""
    return [Attempt(r["question"], r["answer"]) for r in rows[:group_size]]


class OneMemberShort:
    """A group of group_size attempts."""

    def __init__(self, question, answer, group_size=4):
        self.question, self.answer, self.group_size = question, answer, group_size

    def make_envs(self):
        return [Attempt(self.question, self.answer) for _ in range(1, self.group_size)]


class MeanOfNothing:
    """Mean score of the tool calls that were made."""

    def reset(self):
        self.scores = []
        return "call a tool or stop"

    def step(self, action):
        if action == "call":
            self.scores.append(1.0)
            return "ok", 0.0, False, {}
        total = sum(self.scores)
        return "", total / len(self.scores) if self.scores else float("nan"), True, {}


class LogOfZero:
    def reset(self):
        return "how sure are you?"

    def step(self, action):
        import math

        digits = "".join(c for c in action if c.isdigit())
        p = min(int(digits or "0") / 100, 1.0)
        return "", math.log(p) if p > 0 else -math.inf, True, {}


class ForgetsToReturn:
    def reset(self, row):
        self.answer = row["answer"]
        return row["question"]

    def _grade(self, text):
        if text.strip() == self.answer:
            return 1.0

    def step(self, action):
        return "", self._grade(action), True, {}


class PaysTheWrong:
    def reset(self, row):
        self.answer = row["answer"]
        return row["question"]

    def step(self, action):
        return "", float(action.strip() != self.answer), True, {}


class OneTurnLate:
    """Twenty questions; the episode ends after at most max_turns turns."""

    def __init__(self, max_turns=5):
        self.max_turns = max_turns

    def reset(self):
        self.turns = 0
        return "ask"

    def step(self, action):
        self.turns += 1
        return "yes" if "alive" in action else "no", 0.0, self.turns > self.max_turns, {}


class OneTurnEarly:
    """The agent gets up to max_steps actions, then the episode ends."""

    def __init__(self, max_steps=5):
        self.max_steps = max_steps

    def reset(self):
        self.t = 0
        return {"t": 0}

    def step(self, action):
        self.t += 1
        return {"t": self.t}, 0.1, self.t + 1 >= self.max_steps, {}


class NeverCounts:
    """Ends after max_turns turns."""

    def __init__(self, max_turns=4):
        self.max_turns = max_turns

    def reset(self):
        self.turn = 0
        return "talk"

    def step(self, action):
        return "go on", 0.0, self.turn >= self.max_turns, {}


class TimeLimitAsEnd:
    """Gymnasium interface. Reaching 3 terminates, running out of max_steps truncates."""

    def __init__(self, max_steps=4):
        self.max_steps = max_steps

    def reset(self, seed=None, options=None):
        self.x, self.t = 0, 0
        return self.x, {}

    def step(self, action: int):
        self.t += 1
        self.x += 1 if action == 1 else -1
        terminated = self.x >= 3 or self.t >= self.max_steps
        return self.x, float(self.x >= 3), terminated, False, {}


class CrashesOnMalformed:
    """Tool calls as JSON; a malformed call gets an error message as observation and a reward of -0.1."""

    def reset(self, row):
        self.answer = row["answer"]
        return row["question"]

    def step(self, action):
        try:
            call = json.loads(action)
        except ValueError:
            return "error: no JSON", -0.1, False, {}
        if call["name"] == "submit":
            return "", float(call["value"] == self.answer), True, {}
        return "error: unknown tool", -0.1, False, {}


class SameProblemForEver:
    def reset(self):
        rng = random.Random(1234)
        self.a, self.b = rng.randint(1, 50), rng.randint(1, 50)
        return f"{self.a} + {self.b}"

    def step(self, action):
        return "", float(action.strip() == str(self.a + self.b)), True, {}


class PaysForEver:
    """Three digs. After the end a step is ignored and earns nothing."""

    def reset(self):
        self.gold = 3
        return "dig"

    def step(self, action):
        self.gold = max(0, self.gold - 1)
        return f"{self.gold} left", 1.0, self.gold == 0, {}
