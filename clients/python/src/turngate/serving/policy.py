"""The answers of handlers, of which some are ordinary functions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor

from ..errors import InvalidError
from ..schema import Delta, Reply
from .call import Call

Handler = Callable[[Call], "Awaitable[Reply] | AsyncIterator[Delta | Reply]"]
Policy = Callable[[Call], Awaitable[Reply] | AsyncIterator[Delta | Reply] | Reply]
"""A policy answers a model call as a handler of Client.serve does. An ordinary function runs in a thread."""


def awaits(f: object) -> bool:
    """Report whether a function, or an object that is called as one, is async or an async generator."""
    tests = inspect.iscoroutinefunction, inspect.isasyncgenfunction
    return any(test(g) for test in tests for g in (f, type(f).__call__))


async def answers(policy: Policy, call: Call, threads: Executor) -> AsyncIterator[Delta | Reply]:
    """Yield the pieces of a policy's answer. An ordinary function runs in one of the threads."""
    if awaits(policy):
        answer = policy(call)
    else:
        answer = await asyncio.get_running_loop().run_in_executor(threads, policy, call)
    if isinstance(answer, AsyncIterator):
        async for piece in answer:
            yield piece
    else:
        whole = await answer if inspect.isawaitable(answer) else answer
        if not isinstance(whole, Reply):
            raise InvalidError("reply", type(whole).__name__, "want a Reply")
        yield whole
