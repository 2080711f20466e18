"""Environments written against the contracts of released frameworks, as their documentation shows them."""

import random
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase


class OpenRLHFAgent(AgentInstanceBase):
    """OpenRLHF: dicts in, dicts out, rewards as tensors."""

    def __init__(self, *args, **kwargs):
        self.turn = 0

    async def reset(self, states: dict, **kwargs):
        self.turn = 0
        return {"observation": states["observation"]}

    async def step(self, states: dict, **kwargs) -> dict[str, Any]:
        self.turn += 1
        right = states["action_text"].strip() == str(states["label"])
        done = right or self.turn >= 3
        return {
            "rewards": torch.tensor(float(right)),
            "scores": torch.tensor(float(right)),
            "environment_feedback": "" if done else "\nHuman: once more\nAssistant:",
            "done": done,
            "sampling_params": states.get("sampling_params", None),
            "extra_logs": {"turns": torch.tensor(self.turn)},
        }


class VerlTool:
    """verl's `BaseTool`: one tool object, an instance id for each trajectory."""

    def __init__(self, config: dict, tool_schema=None):
        self.config = config
        self._instances = {}

    async def create(self, instance_id: str = "a", ground_truth: str = "12", **kwargs):
        self._instances[instance_id] = {"truth": ground_truth, "answer": ""}
        return instance_id, None

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs):
        state = self._instances[instance_id]
        state["answer"] = str(parameters.get("answer", ""))
        reward = float(state["answer"] == state["truth"])
        return f"you said {state['answer']}", reward, {}

    async def release(self, instance_id: str, **kwargs):
        del self._instances[instance_id]


class TRLGame:
    """TRL: `environment_factory`, whose public methods are tools and whose reward is read when all is done."""

    def __init__(self):
        self.reward = 0.0
        self.done = False

    def reset(self, **kwargs) -> str | None:
        self.reward = 0.0
        self.done = False
        self.word = str(kwargs.get("answer", "12"))
        return "Guess the word."

    def guess(self, word: str) -> str:
        """
        Guess the word.

        Args:
            word: The word.

        Returns:
            What the game says.
        """
        if self.done:
            raise ValueError("Game over.")
        self.done = word == self.word
        self.reward = float(self.done)
        return "yes" if self.done else "no"


class TinkerEnv:
    """tinker-cookbook: token ids in, a step result out."""

    def __init__(self, problem: str, answer: str, renderer):
        self.problem, self.answer, self.renderer = problem, answer, renderer

    async def initial_observation(self):
        messages = [{"role": "user", "content": self.problem}]
        return self.renderer.build_generation_prompt(messages), self.renderer.get_stop_sequences()

    async def step(self, action: list[int]):
        message, parsed = self.renderer.parse_response(action)
        reward = float(parsed and message["content"].strip() == self.answer)
        return {"reward": reward, "episode_done": True, "next_observation": None, "metrics": {"correct": reward}}


class TinkerGroup:
    """tinker-cookbook: `EnvGroupBuilder.make_envs`, one problem for the group."""

    def __init__(self, seed: int, renderer, num_envs: int = 4):
        rng = random.Random(seed)
        self.a, self.b = rng.randint(1, 99), rng.randint(1, 99)
        self.renderer, self.num_envs = renderer, num_envs

    async def make_envs(self):
        question = f"What is {self.a} + {self.b}?"
        return [TinkerEnv(question, str(self.a + self.b), self.renderer) for _ in range(self.num_envs)]
