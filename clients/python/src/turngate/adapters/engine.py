"""Policies of engines that take and give token ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ..schema import Reply
from ..serving.call import Call
from ..serving.policy import Policy
from ..serving.refusal import aborted
from .chat import Chat


@dataclass(slots=True)
class Generated:
    """Generated is an engine's answer."""

    ids: Sequence[int]
    """The generated tokens, with the one that ended them."""
    logprobs: Sequence[float] = ()
    """One per token; empty if they are not known."""
    version: str | int | Sequence[int] | None = None
    """Version of the policy, or one for each token."""
    end: str = "stop"
    """Why it ended, in the engine's word: length, at its largest length; abort or aborted, by the engine."""


def policy(chat: Chat, generate: Callable[[Call, list[int]], Awaitable[Generated]]) -> Policy:
    """Return a policy that renders calls to token ids and reads the generated ones."""

    async def answer(call: Call) -> Reply:
        prompt = chat.prompt_ids(call)
        made = await generate(call, prompt)
        if made.end in ("abort", "aborted"):
            raise aborted()
        return chat.reply(call, prompt, made.ids, made.logprobs, version=made.version, cut=made.end == "length")

    return answer
