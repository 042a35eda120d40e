"""Open rollouts of a trainer that no process has, because the one that submitted them is gone."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from typing import Literal, get_args

from ..errors import InvalidError, NotFoundError, ShapeError, TurngateError
from ..schema import Request, codec
from ..wire import names
from ..wire.link import log
from ..wire.streams import Streams
from .ledger import Submitted
from .submissions import Submissions

Choice = Literal["replace", "leave", "cancel", "adopt"]
"""What is done with orphans.

replace: when this process has submitted its first rollouts, those of processes without a state file are ended, and the
others left; leave: their calls are not answered; cancel: they are ended; adopt: they are answered, and their results
returned.
"""

_TEXTS = {
    "cancel": "%d open rollouts of processes that are gone are ended, and their slots are free then: orphans= has other"
    " rules",
    "adopt": "%d open rollouts that this process did not submit are adopted",
    "leave": "%d open rollouts that this process did not submit are left alone, and may hold slots: start the process"
    " that has their state file, adopt or cancel them with orphans=, or use turngate rollout cancel",
}

FIRST_WAIT = 1.0
MOST_WAIT = 60.0
"""Seconds between two looks for orphans, of which the first failed."""

_LANE = re.compile(r"rollout\.requests\.p(\d)\.|parked\.[^.]+\.(\d)\.")


def check_orphans(choice: Choice) -> None:
    """Check the choice.

    Raises:
        InvalidError: There is no such choice.
    """
    if choice not in get_args(Choice):
        raise InvalidError("orphans", choice, "want replace, leave, cancel or adopt")


class Orphans:
    """Orphans does with open rollouts of other processes as the user chose. They have the shard of this process."""

    def __init__(self, trainer: str, shard: str, choice: Choice, streams: Streams, submissions: Submissions) -> None:
        self._trainer, self._shard, self._choice = trainer, shard, choice
        self._streams, self._submissions = streams, submissions
        self._logged: set[str] = set()

    async def look(self, adopted: Callable[[list[str]], Awaitable[None]]) -> None:
        """Look for orphans when this process has its shard: before, they may be another process's.

        A look that fails is repeated.

        Args:
            adopted: Called with those that are adopted.
        """
        if self._choice == "replace":
            await self._submissions.working.wait()
        wait = FIRST_WAIT
        while True:
            try:
                await self._find(adopted)
                return
            except (TurngateError, ShapeError) as e:
                log.warning("the open rollouts of other processes are not known, and looked for in %g s: %s", wait, e)
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT)

    async def _find(self, adopted: Callable[[list[str]], Awaitable[None]]) -> None:
        """Look for orphans in the queue, which has the requests of all open rollouts."""
        found: dict[str, int] = {}
        seq = 1
        while (m := await self._streams.next(names.queue(self._trainer), ">", seq)) is not None:
            seq = m.seq + 1
            try:
                request = codec.decode(Request, m.data)
            except (ShapeError, InvalidError):  # a worker answers it
                continue
            if (
                not self._is_of_this_shard(request)
                or self._submissions.has(request.id)
                or names.trainer_of(request.id) != self._trainer
            ):
                continue
            rule = self._rule(request)
            found[rule] = found.get(rule, 0) + 1
            lane = _LANE.match(m.subject)
            if await self._take(request, int(lane[1] or lane[2]) if lane else names.DEFAULT_LANE, m.seq):
                await adopted([request.id])
        for rule, n in found.items():
            log.warning(_TEXTS[rule], n)
        await self._submissions.repeat_cancels()  # at once: they have slots

    def _rule(self, request: Request) -> str:
        """Return what is done with one orphan."""
        if self._choice != "replace":
            return self._choice
        return "cancel" if request.process else "leave"

    async def called(self, rollout: str) -> bool:
        """Handle a call of an unknown rollout, and report whether it is answered from now on.

        A gate may send calls of other shards' rollouts here: these are no orphans. With the rule "replace" a rollout
        that came after the look is another process's.
        """
        try:
            request = await self._submissions.request(rollout)
            if not self._is_of_this_shard(request):
                self._log_once(
                    rollout,
                    f"it has the shard {request.shard or names.DEFAULT_SHARD}, and a client to which gate.routes"
                    " sends calls needs answer_all=True",
                )
                return False
            if self._choice in ("cancel", "adopt"):
                return await self._take(request, names.DEFAULT_LANE, 0)
        except (NotFoundError, TurngateError, ShapeError) as e:
            log.warning("rollout %s of another process was not looked at; its worker asks again: %s", rollout, e)
            return False
        if rollout not in self._submissions.orphans:
            self._log_once(rollout, "orphans=")
        return False

    def _log_once(self, rollout: str, reason: str) -> None:
        if rollout not in self._logged:
            self._logged.add(rollout)
            log.warning(
                "rollout %s was not submitted by this process: its calls are not answered (%s)", rollout, reason
            )

    def _is_of_this_shard(self, request: Request) -> bool:
        return (request.shard or names.DEFAULT_SHARD) == self._shard

    async def _take(self, request: Request, lane: int, seq: int) -> bool:
        rule = self._rule(request)
        if rule == "cancel":
            self._submissions.orphans[request.id] = seq or self._submissions.orphans.get(request.id, 0)
        if rule != "adopt":
            return False
        state = await self._submissions.state(request.id)
        s = Submitted(request, lane, seq, state.attempt if state else 0, time.monotonic())
        await self._submissions.adopt(s)
        return True
