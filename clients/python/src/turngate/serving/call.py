"""A model call of an agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from ..errors import CallOverError, InvalidError
from ..schema import Delta, Fault, Reply, Usage, VersionSpan
from ..schema.codec import parse_json
from ..wire.names import Key
from .kept_answer import Answer
from .message import check_answer

MERGE_WITHIN = 0.002
"""Seconds within which pieces of text travel in one message."""

MERGE_MOST = 32 << 10

_FINISH_REASONS = ("stop", "length", "tool_calls", "content_filter")

Send = Callable[[Answer, str, Any], Awaitable[None]]


class Call:
    """Call is a model call that waits for its answer, in the form of OpenAI chat completions.

    A handler returns the answer. A loop that pulls calls ends each with exactly one of reply and fault.
    Messages, tools and parameters are shared with other calls of the rollout: do not change them.
    """

    __slots__ = (
        "_answer", "_flushing", "_merged", "_on_reply", "_parsed", "_send", "_tools",
        "base", "dialect", "keep", "key", "model", "raw_messages", "raw_params", "raw_tools", "remaining_ms",
        "stream", "tag", "trace",
    )  # fmt: skip

    key: Key
    """Name of the call; one answer is given per key."""
    tag: str
    """agent, aux (a title, a summary) or subagent."""
    dialect: str
    model: str
    stream: bool
    """The agent asked for a stream."""
    remaining_ms: int
    """How long the worker still waits for a trainer."""
    base: int
    """Number of the earlier call with whose first messages this one begins; 0: none."""
    keep: int
    """Number of these messages."""
    raw_messages: Sequence[bytes]
    """The agent's own JSON, one text a message."""
    raw_tools: bytes
    raw_params: Mapping[str, bytes]
    trace: Mapping[str, str]
    """Headers of the worker's span, traceparent and tracestate, for loops that pull; empty: there is none."""

    def __init__(self, key: Key, answer: Answer, send: Send) -> None:
        self.key = key
        self._answer = answer
        self._send = send
        self._merged: tuple[str, list[Delta]] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._parsed: list[Any] = []
        self._tools: Any = None
        self.trace = {}
        self._on_reply: dict[object, Callable[[Reply], None]] = {}  # called with the answer that was sent

    def __repr__(self) -> str:
        return f"<Call {self.key} {self.tag}, {len(self.raw_messages)} messages>"

    @property
    def rollout(self) -> str:
        return self.key.rollout

    @property
    def gen(self) -> str:
        """Name of the generation that answers the call. A result lists the committed ones."""
        return self._answer.gen

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """The conversation."""
        for i, value in enumerate(self._parsed):
            if value is None:
                self._parsed[i] = parse_json(self.raw_messages[i], f"messages[{i}]")
        return self._parsed

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools that the agent offers to the model."""
        if self._tools is None:
            self._tools = parse_json(self.raw_tools, "tools") if self.raw_tools else []
        tools: Sequence[Mapping[str, Any]] = self._tools
        return tools

    @property
    def params(self) -> dict[str, Any]:
        """Every other field of the agent's request, such as temperature."""
        return {name: parse_json(value, f"params.{name}") for name, value in self.raw_params.items()}

    @property
    def wanted(self) -> bool:
        """Whether the call still needs an answer."""
        return self._answer.wanted

    async def over(self) -> None:
        """Wait until the call needs no answer any more."""
        await self._answer.over.wait()

    async def reply(self, reply: Reply) -> None:
        """Answer the call. After deltas, the reply has all of them again. Its usage is that of its ids if it has none.

        Raises:
            InvalidError: A field of the reply is wrong. Nothing was sent, and the call still waits.
            CallOverError: The call needs no answer.
        """
        check_reply(reply)
        usage = reply.usage
        usage.prompt_tokens = usage.prompt_tokens or len(reply.prompt_ids)
        usage.completion_tokens = usage.completion_tokens or len(reply.completion_ids)
        await self._flush()
        await self._send(self._answer, "final", reply)
        for receive in self._on_reply.values():
            receive(reply)

    async def fault(self, fault: Fault) -> None:
        """Refuse the call. With status 425, 429 or 5xx the worker asks again; any other refusal is final."""
        fault.status = fault.status or 500
        await self._send(self._answer, "fault", fault)

    async def delta(self, delta: Delta) -> None:
        """Send a piece of the answer. Pieces of text within 2 ms of each other travel in one message.

        Raises:
            InvalidError: Agents cannot read the piece. Nothing was sent.
            CallOverError: The call needs no answer.
        """
        check_answer(delta.delta, "delta", whole=False)
        if not self.wanted:
            raise CallOverError(f"call {self.key} needs no answer any more")
        text = _only_text(delta)
        if self._merged is not None:
            member, pieces = self._merged
            size = sum(len(p.delta[member]) for p in pieces)
            same = text == member and bool(delta.logprobs) == bool(pieces[0].logprobs)
            if same and size < MERGE_MOST:
                pieces.append(delta)
                if time.monotonic() - self._answer.sent >= MERGE_WITHIN:
                    await self._flush()
                return
            await self._flush()
        if text and time.monotonic() - self._answer.sent < MERGE_WITHIN:
            self._merged = (text, [delta])
            asyncio.get_running_loop().call_later(MERGE_WITHIN, self._later)
            return
        await self._send(self._answer, "delta", delta)

    def _later(self) -> None:
        if self._merged is not None and self.wanted:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        if self._merged is None:
            return
        (member, pieces), self._merged = self._merged, None
        if len(pieces) == 1:
            await self._send(self._answer, "delta", pieces[0])
            return
        ids = [i for p in pieces for i in p.completion_ids]
        logprobs = [x for p in pieces for x in p.logprobs]
        text = "".join(p.delta[member] for p in pieces)
        await self._send(self._answer, "delta", Delta(delta={member: text}, completion_ids=ids, logprobs=logprobs))


def _only_text(delta: Delta) -> str:
    """Return the member of a delta that is one text; empty if there is more."""
    d = delta.delta
    if isinstance(d, dict) and len(d) == 1:
        for member in ("content", "reasoning_content"):
            if isinstance(d.get(member), str):
                return member
    return ""


def check_reply(reply: Reply) -> None:
    """Check the reply as a worker does.

    Raises:
        InvalidError: A field is wrong.
    """
    check_answer(reply.message, "message", whole=True)
    for name in ("prompt_ids", "completion_ids", "logprobs", "versions"):
        values = getattr(reply, name)
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise InvalidError(name, values, "want a list")
    if reply.finish_reason not in _FINISH_REASONS:
        raise InvalidError("finish_reason", reply.finish_reason, "want one of " + ", ".join(_FINISH_REASONS))
    if len(reply.logprobs) and len(reply.logprobs) != len(reply.completion_ids):
        want = f"as many as completion_ids, which has {len(reply.completion_ids)}"
        raise InvalidError("logprobs", f"{len(reply.logprobs)} values", want)
    for i, span in enumerate(reply.versions):
        if not isinstance(span, VersionSpan):
            raise InvalidError(f"versions[{i}]", span, "want a VersionSpan")
        if not 0 <= span.start <= span.end:
            raise InvalidError(f"versions[{i}]", f"{span.start} to {span.end}", "0 <= start <= end")
    if not isinstance(reply.usage, Usage):
        raise InvalidError("usage", reply.usage, "want a Usage")
    if reply.usage.prompt_tokens < 0 or reply.usage.completion_tokens < 0:
        raise InvalidError("usage", reply.usage, "counts of 0 or more")
