"""Results of rollouts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from nats.aio.msg import Msg

from ..errors import ClosedError, InvalidError, NotFoundError, ShapeError, TurngateError
from ..schema import Hint, Result, codec
from ..wire import names
from ..wire.link import log
from ..wire.streams import Streams
from .submissions import Submissions

MOST_RECENT = 10_000
"""Hints that are kept for calls which arrive after them."""


class Results:
    """Results finds each result once: by hints, and by reading the stream of records after a lost hint."""

    def __init__(
        self,
        trainer: str,
        streams: Streams,
        submissions: Submissions,
        has_calls: Callable[[str], bool],
        on_end: Callable[[str], None],
    ) -> None:
        self._has_calls = has_calls
        self._on_end = on_end  # called with each rollout that has its result
        self._trainer = trainer
        self._streams = streams
        self._submissions = submissions
        # Results may have arrived while no process was there.
        self._hinted: dict[str, None] = dict.fromkeys(submissions.open)
        self._over: dict[str, None] = {}  # rollouts of other processes that may have a result
        self._recent: dict[str, None] = {}  # newest hints; a call comes on another connection, maybe after its hint
        self._overed = asyncio.Event()
        self._news: dict[str, asyncio.Event] = {}  # of groups with callers that wait; empty name: for any result
        self._from = 0
        self._closed: ClosedError | None = None
        submissions.on_drop = self._wake

    async def listen(self) -> None:
        """Take hints from now on."""
        await self.look()
        await self._streams.link.subscribe(names.trainer_subject(self._trainer, "results"), self._on_hint)

    async def _on_hint(self, msg: Msg) -> None:
        try:
            hint = codec.decode(Hint, msg.data)
        except (ShapeError, InvalidError):
            log.debug("a hint cannot be read")
            return
        if hint.fault is not None:
            log.error("a request in this trainer's name has no result: %s", hint.fault.message)
            return
        self.hint(hint.id)

    def hint(self, rollout: str) -> None:
        """Note that a rollout may have a result. It also ends the calls of a rollout of another process."""
        self._recent.pop(rollout, None)
        self._recent[rollout] = None
        if len(self._recent) > MOST_RECENT:
            del self._recent[next(iter(self._recent))]
        self._submissions.orphans.pop(rollout, None)
        known = self._submissions.open.get(rollout)
        if known is not None:
            self._hinted[rollout] = None
            self._submissions.slots.free(rollout)
            self._wake(known.request.group)
        elif self._has_calls(rollout):
            self._over[rollout] = None
            self._overed.set()

    def began(self, rollout: str) -> None:
        """Note the first call of a rollout. After an earlier hint of its result, its calls end."""
        if rollout in self._recent:
            self.hint(rollout)

    async def look_at(self, rollouts: Iterable[str]) -> None:
        """Look for results of rollouts that ended while no process was there, to free their slots."""
        with contextlib.suppress(TurngateError):  # the audit looks again
            for rollout in rollouts:
                if await self._submissions.has_result(rollout):
                    self.hint(rollout)

    async def look(self) -> None:
        """Look for results after a lost hint. It reads one message a new result."""
        stream = names.records(self._trainer)
        last = await self._streams.last_sequence(stream)
        if not self._from:
            self._from = last + 1
            return
        if last + 1 < self._from:  # the store was wiped
            self._from = 1
        while self._from <= last:
            found = await self._streams.next(stream, names.results_of(self._trainer), self._from)
            if found is None:
                self._from = last + 1
                return
            self.hint(names.rollout_of(found.subject))
            self._from = found.seq + 1

    async def drop_over(self) -> None:
        """End the calls of rollouts of other processes when they have a result, until it is cancelled."""
        while True:
            await self._overed.wait()
            self._overed.clear()
            over, self._over = self._over, {}
            for rollout in over:
                try:
                    ended = await self._submissions.has_result(rollout)
                except TurngateError as e:
                    log.debug("the result of %s could not be read; it is looked for again: %s", rollout, e)
                    self._over[rollout] = None
                    continue
                if ended:
                    self._on_end(rollout)

    def wake(self) -> None:
        """Try again what could not be read."""
        for group in list(self._news):
            self._wake(group)
        self._overed.set()

    def _wake(self, group: str) -> None:
        """Wake the callers that wait for results of a group, and those that wait for any."""
        for of in (group, ""):
            event = self._news.pop(of, None)
            if event is not None:
                event.set()

    async def _wait(self, group: str) -> None:
        """Wait until a group, or with an empty name any rollout, may have a result, or has one open rollout fewer."""
        if self._closed is None:
            await self._news.setdefault(group, asyncio.Event()).wait()

    async def next(self) -> Result:
        """Wait for the next result of a rollout that was submitted here.

        Raises:
            ClosedError: The client is closed.
        """
        while self._closed is None:
            result = await self.next_of("")
            if result is not None:
                return result
            await self._wait("")
        raise self._closed

    async def next_of(self, group: str) -> Result | None:
        """Wait for the next result of a group, or of any rollout if its name is empty; None: none of them is open.

        Raises:
            ClosedError: The client is closed.
        """
        while self._submissions.expected(group):
            if self._closed is not None:
                raise self._closed
            members = self._submissions.members(group)
            # Hints are of open rollouts. A group has few of these.
            rollout = next((r for r in members if r in self._hinted) if group else iter(self._hinted), None)
            if rollout is None:
                await self._wait(group)
                continue
            del self._hinted[rollout]
            try:
                result = await self._take(rollout)
            except BaseException:  # this caller was cancelled: the result is for the next one
                self.hint(rollout)
                raise
            if result is not None:
                return result
        return None

    async def _take(self, rollout: str) -> Result | None:
        try:
            result = await self.read(rollout)
        except NotFoundError:
            if rollout in self._submissions.open:
                self._submissions.slots.take(rollout)
            return None
        except (TurngateError, ShapeError) as e:
            log.warning("the result of %s could not be read; it is looked for again: %s", rollout, e)
            await self._wait("")  # for the next hint or round
            self.hint(rollout)
            return None
        self._on_end(rollout)
        self._hinted.pop(rollout, None)
        return result if self._submissions.ended(rollout) else None

    async def read(self, rollout: str) -> Result:
        """Return the result of a rollout.

        Raises:
            NotFoundError: There is none yet.
        """
        found = await self._streams.last(names.records(self._trainer), names.result(rollout))
        if found is None:
            raise NotFoundError(f"rollout {rollout} has no result")
        return codec.decode(Result, found.data)

    def close(self, reason: ClosedError) -> None:
        self._closed = reason
        self.wake()
