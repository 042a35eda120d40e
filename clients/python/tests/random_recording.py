"""Random recordings of rollouts with everything that agents, templates and engines do to a conversation."""

from __future__ import annotations

import json
from random import Random
from typing import Any


class Recording:
    """Recording makes the lines of one transcript."""

    def __init__(self, rollout: str, seed: int) -> None:
        self._rollout = rollout
        self._random = Random(seed)
        self._calls: list[dict[str, Any]] = []  # number, messages, tokens with the answer's, answer
        self.lines: list[dict[str, Any]] = []
        for number in range(1, self._random.randrange(2, 14)):
            self._turn(number)
        for _ in range(self._random.choice([0, 0, 1, 3])):
            self._delay()
        if self._odds(0.05):
            self.lines.append({"left_out": 3})

    def _odds(self, of_one: float) -> bool:
        return self._random.random() < of_one

    def _delay(self) -> None:
        """Move the end of a call behind later lines. The first call ends at once."""
        at = self._random.randrange(len(self.lines))
        if at > 1 and "request" not in self.lines[at]:
            line = self.lines.pop(at)
            self.lines.insert(at + self._random.randrange(1, 6), line)

    def _ids(self, least: int, most: int) -> list[int]:
        return [self._random.randrange(1, 30) for _ in range(self._random.randrange(least, most))]

    def _message(self, role: str, number: int) -> dict[str, Any]:
        if role == "assistant" and self._odds(0.3):
            function = {"name": self._random.choice(["bash", "edit"]), "arguments": "{}"}
            call = {"id": f"c{number}", "type": "function", "function": function}
            return {"role": role, "content": None, "tool_calls": [call]}
        text = f"m{self._random.randrange(6)}"
        if self._odds(0.1):
            return {"role": role, "content": [{"type": "text", "text": text}, {"type": "text", "text": "x"}]}
        return {"role": role, "content": text}

    def _echo(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return an answer as an agent sends it back: often in another form, sometimes changed."""
        m: dict[str, Any] = json.loads(json.dumps(message))
        if self._odds(0.15):
            m["content"] = "" if m.get("tool_calls") else f"{m['content']} "
        elif self._odds(0.1):
            m["content"] = "changed"
        elif self._odds(0.1):
            m = {"content": m.pop("content"), **m}
        return m

    def _turn(self, number: int) -> None:
        before = self._random.choice(self._calls[-3:]) if self._calls and self._odds(0.85) else None
        keep = 0
        if before is None:
            messages, tokens = [self._message("system", 0), self._message("user", number)], self._ids(0, 5)
        else:
            keep = len(before["messages"]) if self._odds(0.9) else self._random.randrange(len(before["messages"]) + 1)
            more = [self._echo(before["answer"])] if before["answer"] else []
            more.append(self._message(self._random.choice(["user", "tool"]), number))
            messages, tokens = before["messages"][:keep] + more, self._drifted(before["tokens"])
        tag = self._random.choices(["agent", "subagent", "aux"], [8, 2, 1])[0]
        request: dict[str, Any] = {"v": 1, "key": f"{self._rollout}/1/{number}", "tag": tag, "dialect": "chat"}
        if before is not None and self._odds(0.7):
            request |= {"messages": messages[keep:], "base": before["number"], "keep": keep}
        else:
            request["messages"] = messages
        if self._odds(0.3):
            request["tools"] = self._random.choice([[], [{"type": "function", "function": {"name": "bash"}}]])
        asked = {"at": 1795373045737 + number, "call": number, "request": request}
        answer, reply = self._message("assistant", number), self._reply(tokens)
        reply["message"] = answer
        ended: list[dict[str, Any]] = [{"call": number, "gen": f"g{number}", "ms": 3, "reply": reply}]
        if self._odds(0.06):
            ended = [{"call": number, "gen": f"g{number}", "fault": {"code": "x", "message": "no"}}]
        elif self._odds(0.05):
            ended = []
        if self.lines and self._odds(0.1):  # asked before the earlier call had its answer
            self.lines = [*self.lines[:-1], asked, self.lines[-1], *ended]
        else:
            self.lines += [asked, *ended]
        got = bool(ended) and "reply" in ended[0]
        tokens = tokens + reply["completion_ids"]
        self._calls.append(
            {"number": number, "messages": messages, "tokens": tokens, "answer": answer if got else None}
        )

    def _drifted(self, given: list[int]) -> list[int]:
        tokens = list(given)
        kind = self._random.random()
        if kind < 0.15:
            tokens = tokens[: -self._random.randrange(1, 4)] + self._ids(1, 3)
        elif kind < 0.22 and tokens:
            tokens[self._random.randrange(len(tokens))] = 99
        elif kind < 0.26:
            tokens = self._ids(3, 4)
        return tokens + self._ids(0, 4)

    def _reply(self, tokens: list[int]) -> dict[str, Any]:
        completion = self._ids(0 if self._odds(0.1) else 1, 5)
        if completion and self._odds(0.02):
            completion[0] = -5
        size = len(completion)
        logprobs: list[float | None] = [
            round(-self._random.random() * 3, self._random.randrange(1, 9)) for _ in completion
        ]
        kind = self._random.random()
        if kind < 0.03:
            logprobs = logprobs[:-1]
        elif kind < 0.08 and size:
            logprobs[0] = self._random.choice([None, 0.5, -0.0, -1.1754943508222875e-38, -3e21])
        used = {"prompt_tokens": len(tokens) if self._odds(0.9) else 3, "completion_tokens": size}
        ids = tokens if self._odds(0.93) else []
        reply = {"v": 1, "finish_reason": self._random.choice(["stop", "length"]), "usage": used, "prompt_ids": ids}
        if self._odds(0.8):
            cut = self._random.randrange(size + 1)
            first = {"version": self._random.choice(["v7", "v7", "v8", "step"]), "start": 0, "end": cut}
            reply["versions"] = [first, {"version": "v9", "start": cut, "end": size if self._odds(0.9) else 50}]
        return {**reply, "completion_ids": completion, "logprobs": logprobs}
