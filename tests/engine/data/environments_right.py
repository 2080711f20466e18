"""Environments as people write them, all of them right."""

import asyncio
import copy
import dataclasses
import functools
import json
import random
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any

WORDS = ["crane", "slate", "pilot", "mango", "ember", "thumb"]
PROBLEMS = [("2 + 2", 4), ("3 * 5", 15), ("10 - 7", 3)]


class GuessNumber:
    """Guess a number between 1 and 20. The episode ends after max_turns guesses at the latest."""

    def __init__(self, max_turns=5):
        self.max_turns = max_turns
        self.rng = random.Random()

    def reset(self, seed=None):
        if seed is not None:
            self.rng = random.Random(seed)
        self.secret = self.rng.randint(1, 20)
        self.turns = 0
        self.done = False
        return "Guess a number between 1 and 20."

    def step(self, action: str):
        if self.done:
            raise RuntimeError("the episode is over, call reset")
        self.turns += 1
        match = re.search(r"\d+", action)
        if match is None:
            reply, reward = "Please say a number.", -0.1
        else:
            guess = int(match.group())
            reward = float(guess == self.secret)
            reply = "right" if reward else ("higher" if guess < self.secret else "lower")
        self.done = reward == 1.0 or self.turns >= self.max_turns
        return reply, reward, self.done, {"turns": self.turns}


class GridWorld:
    """Gymnasium style: `reset(seed, options) -> (obs, info)`, five values from step.

    Reaching the corner terminates; the step limit truncates.
    """

    SIZE = 4
    MOVES = {0: (0, 1), 1: (0, -1), 2: (1, 0), 3: (-1, 0)}

    def __init__(self, max_steps: int = 8):
        self.max_steps = max_steps
        self._rng = random.Random(0)

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._rng.seed(seed)
        self._pos = [self._rng.randrange(self.SIZE - 1), self._rng.randrange(self.SIZE - 1)]
        self._steps = 0
        return list(self._pos), {}

    def step(self, action: int):
        dx, dy = self.MOVES[action]
        self._pos[0] = min(max(self._pos[0] + dx, 0), self.SIZE - 1)
        self._pos[1] = min(max(self._pos[1] + dy, 0), self.SIZE - 1)
        self._steps += 1
        terminated = self._pos == [self.SIZE - 1, self.SIZE - 1]
        truncated = not terminated and self._steps >= self.max_steps
        return list(self._pos), 1.0 if terminated else -0.01, terminated, truncated, {}


class ArrayWorld:
    """A walk on a line; observations are numpy arrays, a new one for each step."""

    def __init__(self, length=6, seed=0):
        import numpy as np

        self.np = np
        self.length = length
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.state = self.np.zeros(self.length)
        self.at = int(self.rng.integers(0, self.length))
        self.state[self.at] = 1.0
        return self.state.copy()

    def step(self, action: int):
        self.state[self.at] = 0.0
        self.at = max(0, min(self.length - 1, self.at + (1 if action % 2 else -1)))
        self.state[self.at] = 1.0
        return self.state.copy(), float(self.at == self.length - 1), self.at == self.length - 1, {}


@dataclass
class StepResult:
    observation: str
    reward: float
    done: bool
    info: dict = field(default_factory=dict)


class AsyncMath:
    """One question of a data set; async, as a server would offer it."""

    def __init__(self, dataset, judge=None):
        self.dataset = dataset
        self.judge = judge or (lambda a, b: a.strip() == b.strip())

    async def reset(self, index: int = 0) -> StepResult:
        self.row = self.dataset[index % len(self.dataset)]
        await asyncio.sleep(0)
        return StepResult(self.row["question"], 0.0, False)

    async def step(self, action: str) -> StepResult:
        await asyncio.sleep(0)
        return StepResult("", float(self.judge(action, self.row["answer"])), True)


class DictMath:
    """Sums, results as a dict."""

    def __init__(self, seed: int):
        self.seed = seed

    def reset(self):
        rng = random.Random(self.seed)
        self.a, self.b = rng.randint(1, 50), rng.randint(1, 50)
        return {"prompt": f"{self.a} + {self.b} = ?"}

    def step(self, completion):
        found = re.findall(r"-?\d+", completion)
        right = bool(found) and int(found[-1]) == self.a + self.b
        return {"observation": "correct" if right else "wrong", "reward": 1.0 if right else 0.0, "done": True}


class ToolChat:
    """A multi-turn chat with a `lookup` tool.

    The message history is returned as a new list each time. Malformed calls get an error message and no reward.
    """

    def __init__(self, store, max_turns=4):
        self.store = dict(store)
        self.max_turns = max_turns

    def reset(self, example):
        self.turn = 0
        self.answer = str(example["answer"])
        self.messages = copy.deepcopy(example["prompt"]) if isinstance(example["prompt"], list) else [
            {"role": "user", "content": example["prompt"]}
        ]
        return list(self.messages)

    def step(self, action):
        self.turn += 1
        self.messages = self.messages + [{"role": "assistant", "content": action}]
        try:
            call = json.loads(action)
            name = call["name"]
        except (ValueError, KeyError, TypeError):
            return self._observe("error: not a call", 0.0)
        if name == "answer":
            return self._observe("", float(str(call.get("value")) == self.answer), done=True)
        if name == "lookup":
            return self._observe(self.store.get(str(call.get("key")), "not found"), 0.0)
        return self._observe("error: no such tool", 0.0)

    def _observe(self, text, reward, done=False):
        self.messages = self.messages + [{"role": "tool", "content": text}]
        return list(self.messages), reward, done or self.turn >= self.max_turns, {}


class WordChain:
    """Draws its word from the process's generators; takes no seed."""

    def reset(self):
        self.word = random.choice(WORDS)
        self.left = 3
        return f"A word of {len(self.word)} letters that begins with {self.word[0]}."

    def step(self, action):
        self.left -= 1
        hit = action.strip().lower() == self.word
        return "yes" if hit else "no", float(hit), hit or self.left == 0


class Curriculum:
    """Sums whose size grows with success: an adaptive curriculum that lasts across episodes."""

    def __init__(self, seed=0):
        self.rng = random.Random(seed)
        self.level = 1

    def reset(self):
        top = 10 ** self.level
        self.a, self.b = self.rng.randrange(top), self.rng.randrange(top)
        return f"{self.a} + {self.b}"

    def step(self, action):
        right = action.strip() == str(self.a + self.b)
        self.level += int(right)
        return "", float(right), True, {"level": self.level}


class RowIterator:
    """Walks through a data set, one row an episode."""

    def __init__(self, rows):
        self.rows = rows
        self.cursor = -1

    def reset(self):
        self.cursor = (self.cursor + 1) % len(self.rows)
        return self.rows[self.cursor]["question"]

    def step(self, action):
        gold = self.rows[self.cursor]["answer"]
        return None, 1.0 if str(gold) in action else 0.0, True, {}


class Counted:
    """Numbers its instances for the log, and caches what parsing costs."""

    instances = 0
    parsed_total = 0

    def __init__(self):
        Counted.instances += 1
        self.episode_id = f"{id(self)}-{Counted.instances}"

    def reset(self):
        self.left = 2
        return {"text": "say stop", "episode_id": self.episode_id}

    def step(self, action):
        Counted.parsed_total += 1
        self.left -= 1
        stop = _parsed(action) == "stop"
        return {"text": "ok", "episode_id": self.episode_id}, float(stop), stop or self.left == 0, {}


@functools.lru_cache(maxsize=256)
def _parsed(text):
    return text.strip().lower()


class TextAdventure:
    """Rooms and a key. Commands: `go north`, `go south`, `take key`, `open door`. Unknown commands cost 0.05."""

    ROOMS = {"hall": {"north": "study"}, "study": {"south": "hall"}}

    def __init__(self, horizon=6):
        self.horizon = horizon
        self.reset()

    def reset(self):
        self.room, self.inventory, self.t = "hall", set(), 0
        return self._look()

    def _look(self):
        return f"You are in the {self.room}. You carry {sorted(self.inventory) or 'nothing'}."

    def step(self, action):
        self.t += 1
        words = action.lower().split()
        reward, done = 0.0, False
        if words[:1] == ["go"] and len(words) > 1 and words[1] in self.ROOMS[self.room]:
            self.room = self.ROOMS[self.room][words[1]]
        elif action == "take key" and self.room == "study":
            self.inventory.add("key")
        elif action == "open door" and "key" in self.inventory:
            reward, done = 1.0, True
        else:
            reward = -0.05
        return self._look(), reward, done or self.t >= self.horizon, {}


@dataclass
class Move:
    column: int


class ConnectLine:
    """Takes a dataclass as action, as a typed client does."""

    def __init__(self, width: int = 5):
        self.width = width

    def reset(self):
        self.board = [0] * self.width
        return StepResult(str(self.board), 0.0, False)

    def step(self, action: Move) -> StepResult:
        if not 0 <= action.column < self.width:
            return StepResult(str(self.board), -1.0, True, {"error": "off the board"})
        self.board[action.column] += 1
        won = self.board[action.column] == 3
        return StepResult(str(self.board), float(won), won)


class Interaction:
    """Several conversations in one object, each under its id."""

    def __init__(self, config: dict):
        self.config = config
        self._episodes = {}

    async def start_interaction(self, instance_id: str, ground_truth: str = "12", **kwargs) -> str:
        self._episodes[instance_id] = {"ground_truth": ground_truth, "turns": 0}
        return instance_id

    async def generate_response(self, instance_id: str, messages: list[dict[str, Any]], **kwargs):
        episode = self._episodes[instance_id]
        episode["turns"] += 1
        said = next((m["content"] for m in reversed(messages) if m["role"] == "assistant"), "")
        right = said.strip() == episode["ground_truth"]
        reply = "Correct." if right else "Try again."
        return right or episode["turns"] >= 3, reply, float(right), {}


class AgentInstance:
    """One agent of a rollout worker that hands over dicts."""

    async def reset(self, states: dict, **kwargs):
        self.step_index = 0
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs):
        self.step_index += 1
        right = states["action_text"].strip() == str(states["label"])
        done = right or self.step_index >= 3
        return {
            "rewards": float(right),
            "scores": float(right),
            "environment_feedback": "" if done else "Once more.",
            "done": done,
            "extra_logs": {},
        }


class TokenEnv:
    """Acts on token ids, observations are token ids."""

    def __init__(self, question: str, answer: str, renderer):
        self.question, self.answer, self.renderer = question, answer, renderer

    async def initial_observation(self):
        prompt = self.renderer.build_generation_prompt([{"role": "user", "content": self.question}])
        return prompt, self.renderer.get_stop_sequences()

    async def step(self, action: list[int]):
        message, ok = self.renderer.parse_response(action)
        reward = float(ok and message["content"].strip() == self.answer)
        return StepResult("", reward, True)


class TokenGroupBuilder:
    """Builds the environments of one group, all at the same problem."""

    def __init__(self, question: str, answer: str, renderer, num_envs: int = 4):
        self.question, self.answer, self.renderer, self.num_envs = question, answer, renderer, num_envs

    async def make_envs(self):
        return [TokenEnv(self.question, self.answer, self.renderer) for _ in range(self.num_envs)]


class GroupsOfDataset:
    """Batches of group builders over a list of (question, answer) pairs."""

    def __init__(self, pairs, batch_size: int = 2, group_size: int = 4):
        self.pairs, self.batch_size, self.group_size = pairs, batch_size, group_size

    def get_batch(self, index: int):
        chosen = self.pairs[index * self.batch_size : (index + 1) * self.batch_size] or self.pairs[: self.batch_size]
        return [SharedProblem(question, answer, self.group_size) for question, answer in chosen]

    def __len__(self):
        return len(self.pairs) // self.batch_size


class SharedProblem:
    """One problem, attempted group_size times."""

    def __init__(self, question, answer, group_size=4):
        self.question, self.answer, self.group_size = question, answer, group_size

    def make_envs(self):
        return [OneShot(self.question, self.answer) for _ in range(self.group_size)]


class OneShot:
    def __init__(self, question, answer):
        self.question, self.answer = question, answer

    def reset(self):
        return [{"role": "user", "content": self.question}]

    def step(self, action):
        return [], 1.0 if action.strip() == str(self.answer) else 0.0, True, {}


class DrawnGroup:
    """A group of a GRPO batch: the problem is drawn once and shared."""

    def __init__(self, seed=0, group_size=8):
        self.rng = random.Random(seed)
        self.group_size = group_size

    def make_envs(self):
        question, answer = PROBLEMS[self.rng.randrange(len(PROBLEMS))]
        return [OneShot(question, answer) for _ in range(self.group_size)]


def make_env(seed: int = 0, max_turns: int = 4):
    """A guessing game with this seed."""
    env = GuessNumber(max_turns)
    env.rng = random.Random(seed)
    return env


def make_vec_envs(num_envs: int, seed: int = 0):
    """A batch of independent games, one problem each."""
    return [make_env(seed + i) for i in range(num_envs)]


class History:
    """Keeps the last observations in a deque that reset clears, and hands out copies."""

    def __init__(self, window=3):
        self.frames = deque(maxlen=window)

    def reset(self):
        self.frames.clear()
        self.frames.append("start")
        self.n = 0
        return list(self.frames)

    def step(self, action):
        self.n += 1
        self.frames.append(f"{action} {self.n}")
        return list(self.frames), 0.0 if self.n < 4 else 1.0, self.n == 4, {}


@dataclasses.dataclass
class GameConfig:
    low: int = 1
    high: int = 9
    max_steps: int = 3
    bonus: float = 0.5


class Configured:
    """Reads its rules from a config; at most max_steps guesses."""

    def __init__(self, config: GameConfig, seed: int = 0):
        self.config = config
        self.rng = random.Random(seed)

    def reset(self):
        self.target = self.rng.randint(self.config.low, self.config.high)
        self.steps = 0
        return f"A number from {self.config.low} to {self.config.high}."

    def step(self, action):
        self.steps += 1
        value = int(action) if action.strip().isdigit() else -1
        right = value == self.target
        bonus = self.config.bonus if right and self.steps == 1 else 0.0
        return "", float(right) + bonus, right or self.steps >= self.config.max_steps, {}


class Noisy:
    """Slippery moves, drawn from a generator of its own that reset(seed) sets."""

    def reset(self, seed=0):
        self.rng = random.Random(seed)
        self.x = 0
        return self.x

    def step(self, action: int):
        self.x += (1 if action > 1 else -1) * (1 if self.rng.random() < 0.8 else -1)
        return self.x, float(self.x), abs(self.x) >= 3, {}


class Verifier:
    """Multi-turn, with the state handed back and forth."""

    def __init__(self, dataset, max_turns=3):
        self.dataset = dataset
        self.max_turns = max_turns

    def setup_state(self, state):
        return {**state, "turn": 0}

    def env_response(self, messages, state):
        state["turn"] += 1
        right = messages[-1]["content"].strip() == str(state.get("answer"))
        return {"messages": [{"role": "user", "content": "right" if right else "no"}], "reward": float(right),
                "done": right or state["turn"] >= self.max_turns}
