"""Work on calls that runs in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from ..wire.cancelling import cancelled
from ..wire.link import log
from .kept_answer import Answer


class Background:
    """Background has the tasks of a process that answers calls."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run work in a task. An exception of it is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def run_while_wanted(self, answer: Answer, work: Awaitable[Any]) -> asyncio.Task[Any]:
        """Run work on a call, which ends with the call."""
        task = self.run(work)
        answer.on_over.append(lambda: None if asyncio.current_task() is task else task.cancel())
        return task

    def cancel(self) -> None:
        """Cancel all tasks but the one that calls this."""
        for task in self._but(asyncio.current_task()):
            task.cancel()

    async def close(self, by: asyncio.Task[Any] | None) -> None:
        """Cancel all tasks but one, which waits for this, and wait until they have ended."""
        await cancelled(self._but(by))

    def _but(self, one: asyncio.Task[Any] | None) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if task is not one]

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Read the exception of a task. Before Python 3.11, an interrupt is one of the task that runs then, too."""
        self._tasks.discard(task)
        e = None if task.cancelled() else task.exception()
        if isinstance(e, Exception):
            log.error("work on a call failed: %s: %s", type(e).__name__, e, exc_info=e)
