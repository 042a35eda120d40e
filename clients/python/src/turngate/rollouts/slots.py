"""The number of rollouts that a trainer has on the queue or running at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from ..errors import ClosedError, InvalidError


@dataclass(frozen=True, slots=True)
class Load:
    """Load says what a trainer's rollouts and calls wait for. It has what this process knows.

    Attributes:
        rollouts: Submitted rollouts that have no result, as far as is known.
        waiting: Requests whose submit waits for a slot.
        queued: Rollouts that have not made a call here: they wait for a worker, or their sandbox comes up.
        oldest_queued: Seconds since the first of these was submitted, without those of an earlier process; 0 if
            there is none.
        calls: Calls that are not answered and not held.
        oldest_call: Seconds since the first of these came; 0 if there is none.
    """

    rollouts: int
    waiting: int
    queued: int
    oldest_queued: float
    calls: int
    oldest_call: float

    def steer(self, slots: int, *, least: int = 1, most: int = 1024, wait: float = 30.0) -> int:
        """Return the number of slots to set next, for a loop that asks every few seconds.

        A quarter fewer while a call waits longer for its answer; the same while a rollout waits longer for a worker, or
        nothing waits for a slot; otherwise an eighth more.

        Args:
            slots: The number that is set now; 0, which is no limit, counts as most.
            least: Smallest number to return.
            most: Largest number to return.
            wait: Seconds that a call or a rollout may wait.
        """
        slots = slots or most
        if self.oldest_call > wait:
            slots = slots * 3 // 4
        elif self.waiting and self.oldest_queued <= wait:
            slots += max(slots // 8, 1)
        return max(least, min(slots, most))


class Slots:
    """Slots are the rollouts that may be on the queue or running at once."""

    def __init__(self, most: int) -> None:
        self.turn = asyncio.Lock()
        """One submission at a time waits, so that a large group is not passed by small ones."""
        self.waiting: dict[str, int] = {}
        """Number of requests that wait for a slot, by group."""
        self._taken: dict[str, None] = {}
        self._changed = asyncio.Event()
        self._closed: ClosedError | None = None
        self.most = most

    @property
    def most(self) -> int:
        """Largest number of rollouts; 0: no limit."""
        return self._most

    @most.setter
    def most(self, most: int) -> None:
        if most < 0:
            raise InvalidError("slots", most, "want a number of rollouts, or 0 for no limit")
        self._most = most
        self._changed.set()

    @property
    def taken(self) -> int:
        """Number of rollouts that are on the queue or running."""
        return len(self._taken)

    def has(self, rollout: str) -> bool:
        """Report whether a rollout is counted."""
        return rollout in self._taken

    def take(self, rollout: str) -> None:
        """Count a rollout from now on."""
        self._taken[rollout] = None

    def free(self, rollout: str) -> None:
        """Count a rollout no longer: it has a result, or is not on the queue."""
        if rollout in self._taken:
            del self._taken[rollout]
            self._changed.set()

    async def room(self, least: int, most: int) -> int:
        """Wait for free slots, at least for some rollouts, and return their number, at most for others.

        Rollouts that are more than all slots begin when no slot is taken.

        Raises:
            ClosedError: The client is closed.
        """
        while True:
            if self._closed is not None:
                raise self._closed
            if not self._most:
                return most
            free = self._most - self.taken
            if free >= least or not self.taken:
                return min(max(free, least), most)
            self._changed.clear()
            await self._changed.wait()

    def close(self, reason: ClosedError) -> None:
        """End all waits."""
        self._closed = reason
        self._changed.set()
