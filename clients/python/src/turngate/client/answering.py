"""The calls of a trainer: to answer, hold and end them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from ..errors import ClosedError, InvalidError
from ..rollouts.submissions import Submissions
from ..serving.call import Call
from ..serving.handle import Handle
from ..serving.handler import serve
from ..serving.holding import Holding
from ..serving.open_calls import Calls
from ..serving.policy import Policy
from ..serving.verifications import Verifications
from ..wire.cancelling import check_loop

Select = Callable[[str], bool]


class Answering:
    """Answering are the methods of a client that answer, hold and end calls."""

    _loop: asyncio.AbstractEventLoop
    _reason: ClosedError | None
    _serving: set[asyncio.Task[None]]
    _calls: Calls
    _holding: Holding
    _submissions: Submissions
    _verifications: Verifications

    def _check(self) -> None:
        """Check that the client can be used here.

        Raises:
            ClosedError: It is closed, or it was connected on another event loop, on which its tasks are.
        """
        if self._reason is not None:
            raise self._reason
        check_loop(self._loop)

    def serve(self, handler: Policy, *, concurrency: int = 256) -> asyncio.Task[None]:
        """Answer calls with handler in the background.

        The handler returns a Reply, or it is an async generator that yields deltas and may end with the whole Reply;
        without one, the reply is the sum of the deltas. A FaultError refuses the call with its fault. After any other
        exception the worker asks again, so a call has eight tries; after the eighth its rollout fails, as the trainer's
        fault. The handler is cancelled when its answer is no longer wanted.

        Args:
            handler: It is called with each call. An ordinary function runs in one of as many threads as concurrency.
            concurrency: Largest number of calls that it answers at once. Further calls wait.

        Returns:
            The task. Cancel it to stop; it ends when the client is closed.

        Raises:
            InvalidError: An argument is not valid.
            ClosedError: The client is closed.
        """
        if not callable(handler):
            raise InvalidError("handler", type(handler).__name__, "want a function of a Call")
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidError("concurrency", concurrency, "want a number of calls of 1 or more")
        self._check()
        task = asyncio.get_running_loop().create_task(serve(self._calls, handler, concurrency), name="turngate serve")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    async def next_call(self) -> Call:
        """Wait for the next call, for loops that pull. Answer it with its reply or fault.

        Raises:
            ClosedError: The client is closed.
        """
        check_loop(self._loop)
        return await self._calls.next_call()

    def handle(self, rollout: str) -> contextlib.AbstractAsyncContextManager[Handle]:
        """Wait until the worker asks this trainer to verify a rollout, and act in its sandbox.

        End it with the handle's verdict. Without one, or with an exception, the rollout fails without a reward.

            async with client.handle(rollout) as handle:
                await handle.verdict(Verdict(reward=float(b"42" in await handle.read("answer.txt"))))

        Raises:
            InvalidError: Another caller waits for it.
            ClosedError: The client is closed.
        """
        return self._verifications.handle(rollout)

    @property
    def refusals(self) -> int:
        """Number of answers that workers refused."""
        return self._calls.refusals

    async def hold(
        self,
        rollouts: str | Iterable[str] | Select | None = None,
        *,
        group: str = "",
        version: str = "",
        drain: bool = False,
    ) -> None:
        """Make calls wait from now on: all, or a selection. It replaces any earlier hold.

        Calls that a handler has already, or that were sent to an upstream, go on; see abort.

        Args:
            rollouts: An id, ids, or a quick function of an id. If it raises an exception for a rollout, its calls wait.
            group: The rollouts of a group that were submitted here.
            version: The rollouts whose newest answer came from this policy version.
            drain: Wait until the selected calls that were handed out are over. If this is cancelled, the hold stays.
        """
        check_loop(self._loop)
        select = self._selected(rollouts, group, version)
        before = self._calls.in_hand(select or _every) if drain else []
        self._holding.set(select, everything=select is None)
        self._calls.hold_changed()
        await self._holding.announce()
        for answer in before:
            await answer.over.wait()

    async def resume(self) -> None:
        """End any hold and hand out the waiting calls."""
        check_loop(self._loop)
        self._holding.set(None)
        self._calls.hold_changed()
        await self._holding.announce()

    def abort(self, rollouts: str | Iterable[str] | Select | None = None, *, group: str = "", version: str = "") -> int:
        """End the answers that a handler or a caller of next_call has begun: all, or a selection as in hold.

        Their handlers are cancelled, and their workers ask again. With a hold before it, no generation goes on while
        weights are updated, and each call is generated anew after resume. A call of which the agent has read pieces
        fails for the agent instead, which then sends it again.

        Returns:
            The number of ended answers.
        """
        return self._calls.abort(self._selected(rollouts, group, version) or _every)

    def _selected(self, rollouts: str | Iterable[str] | Select | None, group: str, version: str) -> Select | None:
        """Return a function of an id; None selects every rollout."""
        if callable(rollouts):
            return rollouts
        if isinstance(rollouts, str):  # it is iterable, too
            return frozenset([rollouts]).__contains__
        if rollouts is not None:
            return frozenset(rollouts).__contains__
        if group:
            return frozenset(self._submissions.members(group)).__contains__
        if version:
            return lambda rollout: self._calls.version_of(rollout) == version
        return None


def _every(_rollout: str) -> bool:
    return True
