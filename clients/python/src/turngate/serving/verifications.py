"""The rollouts that the trainer verifies."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable

from ..errors import CallOverError, ClosedError, InvalidError, ShapeError, TurngateError
from ..schema import Fault, Verdict, Verification, codec
from ..wire import traces
from ..wire.link import Link, log
from ..wire.objects import Objects
from . import tool
from .handle import Handle, Operations
from .kept_answer import Answer, IncomingCall
from .open_calls import Calls, FaultError

Verifier = Callable[[Handle], "Awaitable[Verdict] | Verdict"]
"""A verifier finds the reward of a step. An exception ends the rollout as failed, without a reward.

An ordinary function gets the reward of the handle's attributes alone, since the handle's methods are awaited.
"""


class Verifications:
    """Verifications gives each verification to the verifier, or to the caller that waits for its rollout."""

    def __init__(self, calls: Calls, link: Link, objects: Objects, shard: str, verifier: Verifier | None) -> None:
        self._calls = calls
        self._link = link
        self._objects = objects
        self._shard = shard
        self._verifier = verifier
        self._waiting: dict[str, asyncio.Future[Handle]] = {}
        self._listening = False
        self.wanted = verifier is not None  # or a caller has waited for a rollout
        self._beginning = asyncio.Lock()  # to listen
        calls.on_verification = self._begin

    async def listen(self) -> None:
        """Take verifications from now on."""
        async with self._beginning:
            if not self._listening:
                await self._calls.listen_verifications(self._shard)
                self._listening = True

    @contextlib.asynccontextmanager
    async def handle(self, rollout: str) -> AsyncIterator[Handle]:
        """Wait until the worker asks to verify a rollout, and end its verification; see Client.handle."""
        handle = await self._next(rollout)
        try:
            yield handle
        except asyncio.CancelledError:
            await self._leave(handle)
            raise
        except Exception as e:
            await fail(handle, e)
            raise
        else:
            if handle.wanted:
                await fail(handle, TurngateError("the handle was left without a verdict"))

    async def _next(self, rollout: str) -> Handle:
        if self._calls.closed is not None:
            raise self._calls.closed
        if rollout in self._waiting:
            raise InvalidError("rollout", rollout, "its verification is awaited already")
        waiting: asyncio.Future[Handle] = asyncio.get_running_loop().create_future()
        self._waiting[rollout] = waiting
        self.wanted = True
        try:
            await self.listen()
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                await self._leave(waiting.result())
            raise
        finally:
            self._waiting.pop(rollout, None)

    def waits_for(self, rollout: str) -> bool:
        """Report whether a caller waits for the verification of a rollout."""
        return rollout in self._waiting

    def close(self, reason: ClosedError) -> None:
        """End the waits."""
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(reason)

    async def _leave(self, handle: Handle) -> None:
        """Leave a verification to another try, unless the client is closed."""
        if self._calls.closed is None:
            await leave(handle)

    def _begin(self, incoming: IncomingCall, open_answer: Callable[[], Answer]) -> None:
        """Begin a new verification, if it is wanted here. Otherwise its worker asks again."""
        waiting = self._waiting.get(incoming.key.rollout)
        if self._verifier is None if waiting is None else waiting.done():
            return
        answer = open_answer()
        answer.open(incoming.reply)
        try:
            verification = codec.decode(Verification, incoming.body)
            if verification.key != str(incoming.key):
                raise InvalidError("key", verification.key, f"want the subject's, {incoming.key}")
        except (ShapeError, InvalidError) as e:
            self._calls.finish_verification(answer, tool.refusal(e))
            return
        answer.sign(held=False)  # before the first operation
        run = Operations(answer, self._link, self._objects).run
        handle = Handle(verification, incoming.key, answer, run, self._calls.finish_verification, incoming.trace)
        if waiting is not None:
            waiting.set_result(handle)
        elif self._verifier is not None:
            with traces.under(incoming.trace):
                self._calls.background.run_while_wanted(answer, self._verify(handle, self._verifier))

    async def _verify(self, handle: Handle, verifier: Verifier) -> None:
        try:
            await verify(handle, verifier)
        except asyncio.CancelledError:
            await self._leave(handle)
            raise


async def verify(handle: Handle, verifier: Verifier) -> None:
    """Run a verifier, and end the verification with its verdict or the fault of its exception."""
    try:
        said = verifier(handle)
        verdict = await said if inspect.isawaitable(said) else said
        if not isinstance(verdict, Verdict):
            raise InvalidError("verdict", type(verdict).__name__, "want a Verdict")
        await handle.verdict(verdict)
    except CallOverError:
        return
    except Exception as e:
        await fail(handle, e)


async def leave(handle: Handle) -> None:
    """Leave a verification whose caller was cancelled to another try, unless it has ended."""
    if handle.wanted:
        log.warning("verification %s was cancelled; the worker asks again", handle.key)
        text = "the verifier was cancelled"
        await handle.fault(Fault(stage="verify", code="internal", who="trainer", status=503, message=text))


async def fail(handle: Handle, e: Exception) -> None:
    """End a verification with the fault of an exception, unless it has ended."""
    if isinstance(e, FaultError):
        fault = e.fault
    else:
        log.warning("verification %s failed", handle.key, exc_info=e)
        text = tool.clip(f"{type(e).__name__}: {e}", 65536)
        fault = Fault(stage="verify", code="no_reward", who="trainer", status=422, message=text)
    if not handle.wanted:
        return
    try:
        await handle.fault(fault)
    except ValueError as wrong:  # a field of a FaultError's fault is wrong, or a text is no Unicode
        text = tool.clip(f"the fault of the verifier: {wrong}", 65536)
        await handle.fault(Fault(stage="verify", code="invalid", who="trainer", status=422, message=text))
