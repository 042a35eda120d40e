"""Tools that the trainer runs for agents."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import InvalidError, TurngateError
from ..schema import Fault, ToolCall, ToolResult
from ..wire.cancelling import cancelled
from ..wire.names import Key
from .policy import awaits

T = TypeVar("T")

THREADS = 256
"""Number of tools that are ordinary functions and run at once."""

MOST_TEXT = 1 << 20
"""Longest text of a tool's result in bytes."""


@dataclass(slots=True)
class ToolUse:
    """ToolUse is a call of a tool by an agent's model."""

    key: Key
    name: str
    arguments: dict[str, Any]

    @property
    def rollout(self) -> str:
        return self.key.rollout


Tool = Callable[[ToolUse], "Awaitable[str] | str"]
"""A tool returns the text that the model reads. The model reads an exception's text as an error of the tool.

An ordinary function runs in a thread of its own.
"""


async def run(tools: dict[str, Tool], key: Key, call: ToolCall, threads: Executor) -> ToolResult | Fault:
    """Run one call of a tool."""
    if call.key != str(key):
        return refusal(InvalidError("key", call.key, f"want the subject's, {key}"))
    tool = tools.get(call.name)
    if tool is None:
        return refusal(InvalidError("name", call.name, "this trainer has no such tool"))
    if not isinstance(call.arguments, dict):
        return ToolResult(text="the arguments are no JSON object", is_error=True)
    try:
        use = ToolUse(key, call.name, call.arguments)
        loop = asyncio.get_running_loop()
        said = tool(use) if awaits(tool) else await _result(loop.run_in_executor(threads, tool, use))
        return ToolResult(text=clip(await _result(said) if inspect.isawaitable(said) else said, MOST_TEXT))
    except Exception as e:  # the model reads it
        return ToolResult(text=clip(str(e) or type(e).__name__, MOST_TEXT), is_error=True)


async def _result(said: Awaitable[T]) -> T:
    """Wait for the result of a tool.

    Raises:
        TurngateError: The tool raised a CancelledError. One that is raised here is a cancellation of the caller.
    """
    running = asyncio.ensure_future(said)
    try:
        await asyncio.wait([running])
    except asyncio.CancelledError:
        await cancelled([running])
        raise
    try:
        return running.result()
    except asyncio.CancelledError:
        raise TurngateError("the tool was cancelled") from None


def refusal(e: Exception) -> Fault:
    """Return the final refusal of a malformed call."""
    return Fault(stage="call", code="invalid", who="worker", status=400, message=clip(str(e), 65536))


def clip(text: str, most: int) -> str:
    """Shorten a text to so many bytes, and replace characters that cannot travel."""
    data = text.replace("\0", "\ufffd").encode(errors="replace")
    if len(data) <= most:
        return data.decode()
    return data[: most - 3].decode(errors="ignore") + "…"
