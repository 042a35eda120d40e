"""Rollouts of the hello task that end in each way, if the engine does its part with the second call."""

from __future__ import annotations

from pathlib import Path

import scripted

from turngate import Call, Reply, Request, Task
from turngate.serving.policy import Policy

WAYS = ("stop", "length", "context", "cap", "timeout", "agent", "fault")
"""length: the engine cuts its first answer, not the second. context, agent: it refuses the second call. timeout: it does
not answer the second call.
"""

TOO_LONG = "The input (3000 tokens) is longer than the model's context length (2048 tokens)."
"""SGLang's words."""


def together(context: int, prompt: int, bound: int) -> str:
    """Return SGLang's words about a prompt and a bound that are too long together."""
    return (
        f"Requested token count exceeds the model's maximum context length of {context} tokens. You requested a total of "
        f"{prompt + bound} tokens: {prompt} tokens from the input messages and {bound} tokens for the completion. Please "
        "reduce the number of tokens in the input messages or the completion to fit within the limit."
    )


class RefusedError(Exception):
    """A client of HTTP has the status and the words of an engine's refusal."""

    def __init__(self, message: str) -> None:
        super().__init__(f"400, {message}")
        self.status, self.message = 400, message


def task(directory: Path, way: str) -> Task | Request:
    """Return the task of a rollout that ends in a way."""
    if way == "fault":
        return Task.load(directory.parent / "broken-setup")
    request = Task.load(directory).request_for("mini", "local")
    if way == "cap":
        request.gate.max_calls = 1
    if way == "timeout":
        request.limits.agent_ms = 4000
    return request


def policy(way: str) -> Policy:
    """Return a policy that does the part of the engine."""

    async def answer(call: Call) -> Reply:
        second = call.messages[-1]["role"] == "tool"
        if second and way in ("context", "agent"):
            raise RefusedError(TOO_LONG if way == "context" else "top_p must be above 0")
        if second and way == "timeout":
            await call.over()
        reply = scripted.answer(call, "Hello, world!")
        if not second and way == "length":
            reply.finish_reason = "length"
        return reply

    return answer
