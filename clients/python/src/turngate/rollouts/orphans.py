"""Open rollouts of a trainer that no process has, because the one that submitted them is gone."""

from __future__ import annotations

import re
import time
from typing import Literal, get_args

from ..errors import InvalidError, NotFoundError, ShapeError, TurngateError
from ..schema import Request, codec
from ..wire import names
from ..wire.link import log
from ..wire.streams import Streams
from .ledger import Submitted
from .submissions import Submissions

Choice = Literal["leave", "cancel", "adopt"]
"""leave: their calls are not answered; cancel: they are ended; adopt: they are answered, and their results returned."""

_LANE = re.compile(r"rollout\.requests\.p(\d)\.|parked\.[^.]+\.(\d)\.")


def check_orphans(choice: Choice) -> None:
    """Check the choice.

    Raises:
        InvalidError: There is no such choice.
    """
    if choice not in get_args(Choice):
        raise InvalidError("orphans", choice, "want leave, cancel or adopt")


class Orphans:
    """Orphans does with open rollouts of other processes as the user chose. They have the shard of this process."""

    def __init__(self, trainer: str, shard: str, choice: Choice, streams: Streams, submissions: Submissions) -> None:
        self._trainer, self._shard, self._choice = trainer, shard, choice
        self._streams, self._submissions = streams, submissions
        self._told: set[str] = set()

    async def find(self) -> list[str]:
        """Look for orphans in the queue, which has the requests of all open rollouts, and return those adopted."""
        found, adopted, seq = 0, [], 1
        while (m := await self._streams.next(names.queue(self._trainer), ">", seq)) is not None:
            seq = m.seq + 1
            try:
                request = codec.decode(Request, m.data)
            except (ShapeError, InvalidError):  # a worker answers it
                continue
            mine = (request.shard or names.DEFAULT_SHARD) == self._shard
            if not mine or request.id in self._submissions.open or names.trainer_of(request.id) != self._trainer:
                continue
            found += 1
            lane = _LANE.match(m.subject)
            if await self._take(request, int(lane[1] or lane[2]) if lane else names.DEFAULT_LANE, m.seq):
                adopted.append(request.id)
        if found:
            text = {
                "leave": "left alone: adopt or cancel them with orphans=",
                "cancel": "cancelled",
                "adopt": "adopted",
            }
            log.warning("%d open rollouts that this process did not submit are %s", found, text[self._choice])
        return adopted

    async def called(self, rollout: str) -> bool:
        """Handle a call of an unknown rollout, and report whether it is answered from now on."""
        if self._choice == "adopt":
            try:
                return await self._take(await self._submissions.request(rollout), names.DEFAULT_LANE, 0)
            except (NotFoundError, TurngateError) as e:
                log.warning("rollout %s of another process was not adopted; its worker asks again: %s", rollout, e)
                return False
        if self._choice == "cancel":
            self._submissions.orphans.setdefault(rollout, 0)
        elif rollout not in self._told:
            self._told.add(rollout)
            log.warning("rollout %s was not submitted by this process: its calls are not answered (orphans=)", rollout)
        return False

    async def _take(self, request: Request, lane: int, seq: int) -> bool:
        if self._choice == "cancel":
            self._submissions.orphans[request.id] = seq
        if self._choice != "adopt":
            return False
        state = await self._submissions.state(request.id)
        s = Submitted(request, lane, seq, state.attempt if state else 0, time.monotonic())
        await self._submissions.adopt(s)
        return True
