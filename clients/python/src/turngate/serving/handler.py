"""The handlers that answer a trainer's calls."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Protocol, cast

from ..errors import CallOverError, ClosedError, InvalidError
from ..schema import Delta, Fault, Reply
from ..wire import traces
from ..wire.link import log
from ..wire.names import Key
from ..wire.quiet import Lines
from . import tool
from .background import Background
from .call import Call
from .message import sum_of
from .open_calls import FaultError
from .policy import Handler, Policy, answers, awaits
from .refusal import raised
from .threads import Threads

MOST_FAILURES = 5
"""Exceptions of a handler on one call. Further ones refuse the call: after three of these the rollout fails."""

MOST_CALLS = 10_000
"""Calls whose exceptions are counted."""


class Calls(Protocol):
    """Calls hands out the calls that wait for an answer."""

    @property
    def background(self) -> Background: ...

    @property
    def closed(self) -> ClosedError | None: ...

    async def next_call(self) -> Call: ...


class Failures:
    """Failures counts the exceptions of a handler by call, which the worker sends again after each."""

    def __init__(self) -> None:
        self._counts: OrderedDict[Key, int] = OrderedDict()
        self._lines = Lines()

    def report(self, key: Key, fault: Fault) -> None:
        """Log the fault of a call: the first one at once, equal ones at growing intervals."""
        skipped = self._lines.speak(f"{fault.code}: {fault.message}")
        if skipped is not None:
            more = f" ({skipped} more since the last line)" if skipped else ""
            log.warning("call %s was answered with a fault: %s: %s%s", key, fault.code, fault.message, more)

    def add(self, key: Key) -> int:
        """Count an exception, and return the number of the call's exceptions."""
        self._counts[key] = self._counts.pop(key, 0) + 1
        if len(self._counts) > MOST_CALLS:
            self._counts.popitem(last=False)
        return self._counts[key]


async def serve(calls: Calls, handler: Policy, concurrency: int) -> None:
    """Answer calls with handler until this is cancelled or the client is closed."""
    slots, failures = asyncio.Semaphore(concurrency), Failures()
    with contextlib.ExitStack() as stack:
        answering: Handler
        if awaits(handler):
            answering = cast(Handler, handler)
        else:
            threads = Threads(concurrency, "turngate handler")
            stack.callback(threads.shutdown)
            answering = functools.partial(answers, handler, threads=threads)
        while True:
            await slots.acquire()
            try:
                call = await calls.next_call()
            except ClosedError:
                return
            with traces.under(call.trace):
                task = calls.background.run_while_wanted(call._answer, _handle(calls, call, answering, failures))
            task.add_done_callback(lambda _: slots.release())


async def _handle(calls: Calls, call: Call, handler: Handler, failures: Failures) -> None:
    try:
        answering = handler(call)
        if isinstance(answering, AsyncIterator):
            reply = await _streamed(call, answering)
        else:
            reply = await answering
        if not isinstance(reply, Reply):
            raise InvalidError("reply", type(reply).__name__, "want a Reply")
        await call.reply(reply)
    except CallOverError:
        return
    except asyncio.CancelledError:
        if call.wanted and calls.closed is None:  # else the worker asks this trainer again after a restart
            log.warning("the handler of call %s was cancelled; the worker asks again", call.key)
            text = "the handler was cancelled"
            fault = Fault(stage="call", code="internal", who="trainer", status=500, message=text)
            with contextlib.suppress(CallOverError):
                await call.fault(fault)
        raise
    except Exception as e:
        refusal = e if isinstance(e, FaultError) else raised(e)
        if refusal is not None:
            fault = refusal.fault
            failures.report(call.key, fault)
        elif isinstance(e, InvalidError):  # the worker counts such answers and ends the rollout after three
            log.warning("call %s: its answer is not valid: %s", call.key, e)
            fault = _bad_answer(str(e))
        else:
            n = failures.add(call.key)
            log.warning(
                "call %s: exception %d of the handler: %s: %s", call.key, n, type(e).__name__, e, exc_info=n == 1
            )
            text = tool.clip(f"the handler raised {type(e).__name__}: {e}", 65536)
            code, status = ("internal", 500) if n <= MOST_FAILURES else ("bad_answer", 502)
            fault = Fault(stage="call", code=code, who="trainer", status=status, message=text)
        with contextlib.suppress(CallOverError):
            try:
                await call.fault(fault)
            except ValueError as wrong:  # a field of a FaultError's fault is wrong, or a text is no Unicode
                await call.fault(_bad_answer(f"the fault of the answer: {wrong}"))


def _bad_answer(text: str) -> Fault:
    return Fault(stage="call", code="bad_answer", who="trainer", status=502, message=tool.clip(text, 65536))


async def _streamed(call: Call, pieces: AsyncIterator[Delta | Reply]) -> Reply:
    """Send pieces, and return the whole reply: the last one that is a Reply, or the sum of the deltas."""
    deltas = []
    async for piece in pieces:
        if isinstance(piece, Reply):
            return piece
        deltas.append(piece)
        await call.delta(piece)
    return sum_of(deltas)
