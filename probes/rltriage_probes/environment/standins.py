"""Things that builders of environments are made from, for builders that make none themselves."""

from __future__ import annotations

from typing import Any

from rltriage_probes.environment import rows
from rltriage_probes.standins import StandInTokenizer


class StandInEnv:
    """One question, one answer, one step."""

    def __init__(self, problem: Any = 0, *_: Any, **__: Any) -> None:
        self.problem = problem if isinstance(problem, int) else 0
        self.question = rows.value_of("question", self.problem)
        self.answer = rows.value_of("answer", self.problem)

    def reset(self, *_: Any, **__: Any) -> str:
        return self.question

    def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        return "", float(str(action).strip() == self.answer), True, {}


class StandInRenderer:
    """Turns chats into token ids and back, as a renderer of a training service does."""

    def __init__(self) -> None:
        self.tokenizer = StandInTokenizer()

    def build_generation_prompt(self, messages: Any, **_: Any) -> list[int]:
        return self.tokenizer.encode("\n".join(str(m["content"]) for m in messages))

    def parse_response(self, response: Any) -> tuple[dict[str, str], bool]:
        text = response if isinstance(response, str) else self.tokenizer.decode(response, skip_special_tokens=True)
        return {"role": "assistant", "content": text}, True

    def get_stop_sequences(self) -> list[int]:
        return [self.tokenizer.eos_token_id]
