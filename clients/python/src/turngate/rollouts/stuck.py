"""The reasons why the rollouts and calls of this client do not go on."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from ..errors import InvalidError, ShapeError, TurngateError
from ..schema import Fleet, Process, Request, codec
from ..wire import names
from ..wire.link import log
from ..wire.quiet import Lines
from ..wire.streams import Streams
from .attachment import described
from .capable import no_slot, unable
from .ledger import Submitted
from .submissions import Submissions

QUEUED_LONG = 2.0
"""Seconds after which a rollout that no worker has taken is looked at."""

UNANSWERED_LONG = 3.0
"""Seconds after which calls that nobody asks for, or that are held, are reported."""

MOST_LOOKED_AT = 64
"""Rollouts that are looked at, the oldest first; also the number of reasons that are kept."""

MOST_READ = 200
"""Requests of the queue that are read to find the rollouts that have slots."""

MOST_NAMED = 4
"""Rollouts of a shard that a text names."""


class Stuck:
    """Stuck logs why rollouts and calls of this client do not go on, at growing intervals."""

    def __init__(
        self,
        submissions: Submissions,
        streams: Streams,
        fleet: Callable[[], Awaitable[Fleet]],
        holder: Callable[[str], Awaitable[Process | None]],
        unanswered: Callable[[], tuple[int, float]],
        held: Callable[[], tuple[int, float, float]],
        verifies: Callable[[], bool],
    ) -> None:
        """Make one.

        Args:
            submissions: The open rollouts.
            streams: The queue, which has the requests of all open rollouts of the trainer.
            fleet: Asks for the workers.
            holder: Asks for the process that has a shard.
            unanswered: Counts the calls that nobody asks for, and has the monotonic time of the first.
            held: Counts the calls that are held, and has the monotonic times of the first and of the hold.
            verifies: Reports whether this client has a verifier, or has begun a handle.
        """
        self._submissions, self._streams = submissions, streams
        self._fleet, self._holder, self._unanswered, self._verifies = fleet, holder, unanswered, verifies
        self._held = held
        self._logged: set[str] = set()
        self._lines = Lines()
        self._hold = 0.0  # the time of the hold that _hold_lines are about
        self._hold_lines = Lines()

    async def look(self) -> None:
        """Look at the calls that nobody asks for, the held ones, and the oldest rollouts that no worker has taken."""
        self._look_at_calls()
        self._look_at_hold()
        self._look_at_verifiers()
        long_ago = time.monotonic() - QUEUED_LONG
        waiting = [s for s in self._submissions.open.values() if not s.attempt and 0 < s.at < long_ago]
        if not waiting:
            return
        waiting.sort(key=lambda s: s.at)
        fleet = await self._fleet()
        for s in waiting[:MOST_LOOKED_AT]:
            why = unable(fleet, s.request)
            if not why or why in self._logged or not await self._is_queued(s.request.id):
                continue
            if len(self._logged) >= MOST_LOOKED_AT:
                self._logged.clear()
            self._logged.add(why)
            log.warning("rollout %s waits: %s", s.request.id, why)
        await self._look_at_slots(fleet, waiting[0])

    def _say(self, text: str) -> None:
        if self._lines.speak(text) is not None:
            log.warning("%s", text)

    def _look_at_calls(self) -> None:
        n, since = self._unanswered()
        waited = time.monotonic() - since
        if n and waited > UNANSWERED_LONG:
            text = "call client.serve(handler), or answer those of client.next_call()"
            self._say(f"{n} model calls wait for an answer, the first for {waited:.0f} s: {text}")

    def _look_at_hold(self) -> None:
        n, first, began = self._held()
        if began != self._hold:  # the line about another hold says nothing about this one
            self._hold, self._hold_lines = began, Lines()
        waited = time.monotonic() - max(first, began)
        if n and waited > UNANSWERED_LONG:
            text = f"{n} model calls are held, the first for {waited:.0f} s: client.resume() hands them out"
            if self._hold_lines.speak(text) is not None:
                log.warning("%s", text)

    def _look_at_verifiers(self) -> None:
        if self._verifies():
            return
        began = [r for r, s in self._submissions.open.items() if s.attempt and _asks_trainer(s.request)]
        if began:
            text = (
                "wait at their end for a verdict of this trainer: connect with verify=, or use client.handle(rollout)"
            )
            self._say(f"{len(began)} rollouts, such as {began[0]}, {text}")

    async def _look_at_slots(self, fleet: Fleet, waiting: Submitted) -> None:
        """Look for rollouts of other processes that have all slots."""
        full = no_slot(fleet, waiting.request)
        if not full or any(s.attempt for s in self._submissions.open.values()):
            return
        if await self._is_queued(waiting.request.id) and (others := await self._others()):
            self._say(f"no rollout of this client runs: {full}; {others}")

    async def _others(self) -> str:
        """Describe the rollouts of other processes of this trainer that run; empty: none do."""
        shards: dict[str, list[str]] = {}
        seq = 1
        for _ in range(MOST_READ):
            m = await self._streams.next(names.queue(self._submissions.trainer), ">", seq)
            if m is None:
                break
            seq = m.seq + 1
            try:
                request = codec.decode(Request, m.data)
            except (ShapeError, InvalidError):  # a worker answers it
                continue
            if self._submissions.has(request.id) or names.trainer_of(request.id) != self._submissions.trainer:
                continue
            state = await self._submissions.state(request.id)
            if state is not None and state.status in ("running", "cancelling"):
                shards.setdefault(request.shard or names.DEFAULT_SHARD, []).append(request.id)
        lines = []
        for shard, ids in sorted(shards.items()):
            holder = await self._holder(shard)
            if holder is None:
                who = f", and no process answers them: turngate rollout cancel {' '.join(ids[:MOST_NAMED])}"
            else:
                who = f", which belong to {described(holder)}"
            lines.append(f"{len(ids)} rollouts of shard {shard} of this trainer run{who}")
        return "; ".join(lines)

    async def _is_queued(self, rollout: str) -> bool:
        try:
            state = await self._submissions.state(rollout)
        except TurngateError:
            return False
        if state is not None:
            self._submissions.saw_attempt(rollout, state.attempt)
        return state is None or state.status == "queued"


def _asks_trainer(request: Request) -> bool:
    verifiers = [request.verify, *(s.verify for s in request.steps)]
    return any(v is not None and v.by == "trainer" for v in verifiers)
