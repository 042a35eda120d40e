"""Random conversations whose chat template and agent change earlier messages, as real ones do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

_USER, _ASSISTANT = 1, 2


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn is a message and its tokens in a prompt."""

    message: dict[str, Any]
    begin: int
    ids: tuple[int, ...]
    thought: int = 0
    """The first ids are its thinking."""
    said: int = 0
    """Those behind are its text, and the rest are arguments of a tool."""


class Talk:
    """Talk makes the lines of a transcript. sampled is the number of tokens that the model wrote."""

    def __init__(self, rollout: str, seed: int) -> None:
        self._rollout, self._random = rollout, Random(seed)
        names = ("strip", "rewrite", "reorder", "truncate", "compact")
        self._kinds = {name for name in names if self._odds(0.5)}
        self._turns: list[Turn] = []
        self.lines: list[dict[str, Any]] = []
        self.sampled = 0
        self._other("user", "go")
        for number in range(1, self._random.randrange(3, 14)):
            self._call(number)
            self._change(number)

    def _odds(self, of_one: float) -> bool:
        return self._random.random() < of_one

    def _ids(self, least: int, most: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(40) for _ in range(self._random.randrange(least, most)))

    def _other(self, role: str, text: str) -> None:
        self._turns.append(Turn({"role": role, "content": text}, _USER, self._ids(1, 4)))

    def _call(self, number: int) -> None:
        prompt = [i for turn in self._turns for i in (turn.begin, *turn.ids)] + [_ASSISTANT]
        thought, said, arguments = self._ids(0, 4), self._ids(0, 3), self._ids(1, 5)
        completion = thought + said + arguments
        message = _answer(number, '{"a": 1}')
        messages = [turn.message for turn in self._turns]
        request = {"v": 1, "key": f"{self._rollout}/1/{number}", "tag": "agent", "messages": messages}
        reply = {
            "v": 1, "message": message, "finish_reason": "tool_calls", "prompt_ids": prompt,
            "completion_ids": list(completion), "logprobs": [-0.5 for _ in completion],
        }  # fmt: skip
        self.lines += [{"call": number, "request": request}, {"call": number, "gen": f"g{number}", "reply": reply}]
        self.sampled += len(completion)
        self._turns.append(Turn(message, _ASSISTANT, completion, len(thought), len(said)))
        self._other("tool", f"result {number}")

    def _change(self, number: int) -> None:
        """Do to the conversation what the template and the agent do."""
        last = self._turns[-2]
        if "strip" in self._kinds:
            last = replace(last, ids=last.ids[last.thought :], thought=0)
        end = last.thought + last.said
        if "rewrite" in self._kinds and self._odds(0.5):
            last = replace(last, ids=last.ids[:end] + self._ids(0, 4), message=_answer(number, '{"a":1}'))
        if "reorder" in self._kinds and self._odds(0.5):
            last = replace(last, ids=last.ids[:end] + last.ids[:end:-1])
        self._turns[-2] = last
        if "truncate" in self._kinds and self._odds(0.25):
            at = self._random.randrange(len(self._turns))
            if self._odds(0.5):
                turn = self._turns[at]
                self._turns[at] = replace(turn, ids=turn.ids[: len(turn.ids) // 2], thought=0, said=0)
            else:
                del self._turns[1 : at + 1]
            self._other("user", "go on")
        if "compact" in self._kinds and self._odds(0.15):
            del self._turns[1:]
            self._other("user", f"summary {number}")


def _answer(number: int, arguments: str) -> dict[str, Any]:
    function = {"name": "bash", "arguments": arguments}
    call = {"id": f"c{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": f"t{number}", "tool_calls": [call]}
