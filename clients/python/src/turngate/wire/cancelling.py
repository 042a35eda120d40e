"""End tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

CANCEL_AGAIN = 5.0  # seconds


async def cancelled(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended.

    Before Python 3.12, asyncio.wait_for drops a cancellation that comes together with the event that it waits for.
    nats-py calls it, too. So tasks that go on are cancelled again.
    """
    tasks = list(tasks)
    going_on = {task for task in tasks if not task.done()}
    while going_on:
        for task in going_on:
            task.cancel()
        _, going_on = await asyncio.wait(going_on, timeout=CANCEL_AGAIN)
    await asyncio.gather(*tasks, return_exceptions=True)
