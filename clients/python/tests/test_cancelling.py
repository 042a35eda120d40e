"""Tasks end, also when a cancellation is lost."""

from __future__ import annotations

import asyncio

import pytest

from turngate.wire import cancelling


async def test_a_lost_cancellation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancelling, "CANCEL_AGAIN", 0.01)
    lost = 0

    async def deaf() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1
                if lost == 3:
                    raise

    async def fails() -> None:
        raise ValueError("fails")

    tasks = [asyncio.create_task(deaf()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    await cancelling.cancelled(tasks)
    assert lost == 3
    assert all(task.done() for task in tasks)
