"""A policy whose answers have ids, for adapters without a model."""

from __future__ import annotations

import json

from turngate import Call, Reply, Task, VersionSpan
from turngate.serving.policy import Policy

PROMPT = [1, 2, 3]
ACT = [4, 5]
SEEN = [6]
DONE = [7]
IDS = [*PROMPT, *ACT, *SEEN, *DONE]
MASK = [0, 0, 0, 1, 1, 0, 1]
LOGPROBS = [0.0, 0.0, 0.0, -0.5, -0.25, 0.0, -0.125]
VERSIONS = [-1, -1, -1, 3, 3, -1, 3]


def act(greeting: str) -> dict[str, object]:
    """Return a message that writes a greeting to hello.txt."""
    arguments = json.dumps({"command": f"echo '{greeting}' > hello.txt"})
    tool = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [tool]}


def answer(call: Call, greeting: str) -> Reply:
    if call.messages[-1]["role"] == "tool":
        done = {"role": "assistant", "content": "Done."}
        return Reply(message=done, finish_reason="stop", prompt_ids=[*PROMPT, *ACT, *SEEN], completion_ids=DONE,
                     logprobs=[-0.125], versions=[VersionSpan(version="3", start=0, end=1)])  # fmt: skip
    return Reply(message=act(greeting), finish_reason="tool_calls", prompt_ids=PROMPT, completion_ids=ACT,
                 logprobs=[-0.5, -0.25], versions=[VersionSpan(version="3", start=0, end=2)])  # fmt: skip


async def solve(call: Call) -> Reply:
    """Solve the hello task in every second rollout of a group."""
    return answer(call, "Hello, world!" if int(call.rollout[-1], 16) % 2 == 0 else "Good night!")


def alternating() -> Policy:
    """Make a policy that solves the hello task in every second rollout."""
    solved: dict[str, bool] = {}

    async def answer_one(call: Call) -> Reply:
        good = solved.setdefault(call.rollout, len(solved) % 2 == 0)
        return answer(call, "Hello, world!" if good else "Good night!")

    return answer_one


def of_prompt(prompt: list[dict[str, str]]) -> Task:
    """Return the task whose path is the prompt."""
    return Task.load(prompt[0]["content"])
