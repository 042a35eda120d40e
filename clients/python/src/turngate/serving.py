"""The handlers that answer a trainer's calls."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from . import tool
from .call import Call
from .calls import Calls, FaultError
from .errors import CallOverError, ClosedError, InvalidError
from .link import log
from .message import sum_of
from .schema import Delta, Fault, Reply

Handler = Callable[[Call], "Awaitable[Reply] | AsyncIterator[Delta | Reply]"]


async def serve(calls: Calls, handler: Handler, concurrency: int) -> None:
    """Answer calls with handler until this is cancelled or the client is closed."""
    slots = asyncio.Semaphore(concurrency)
    while True:
        await slots.acquire()
        try:
            call = await calls.next_call()
        except ClosedError:
            return
        task = calls.run_while_wanted(call._answer, _handle(calls, call, handler))
        task.add_done_callback(lambda _: slots.release())


async def _handle(calls: Calls, call: Call, handler: Handler) -> None:
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
        if call.wanted and not calls.closed:  # else the worker asks this trainer again after a restart
            log.warning("the handler of call %s was cancelled; the worker asks again", call.key)
            text = "the handler was cancelled"
            fault = Fault(stage="call", code="internal", who="trainer", status=500, message=text)
            with contextlib.suppress(CallOverError):
                await call.fault(fault)
        raise
    except Exception as e:
        if isinstance(e, FaultError):
            fault = e.fault
        elif isinstance(e, InvalidError):  # the worker counts such answers and ends the rollout after three
            log.warning("call %s: its answer is not valid: %s", call.key, e)
            text = tool.clip(str(e), 65536)
            fault = Fault(stage="call", code="bad_answer", who="trainer", status=502, message=text)
        else:
            log.warning("call %s was answered with a fault", call.key, exc_info=True)
            text = tool.clip(f"{type(e).__name__}: {e}", 65536)
            fault = Fault(stage="call", code="internal", who="trainer", status=500, message=text)
        with contextlib.suppress(CallOverError):
            await call.fault(fault)


async def _streamed(call: Call, pieces: AsyncIterator[Delta | Reply]) -> Reply:
    """Send pieces, and return the whole reply: the last one that is a Reply, or the sum of the deltas."""
    deltas = []
    async for piece in pieces:
        if isinstance(piece, Reply):
            return piece
        deltas.append(piece)
        await call.delta(piece)
    return sum_of(deltas)
