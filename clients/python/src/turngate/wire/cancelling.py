"""Tasks and their event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..errors import ClosedError

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


def check_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Check that a client is used on its event loop: on another one it would wait for ever.

    Raises:
        ClosedError: This is another one.
    """
    if asyncio.get_running_loop() is not loop:
        raise ClosedError(
            "the client works on the event loop on which it was connected, and this is another one: "
            "connect once more in each asyncio.run, or use SyncClient"
        )
