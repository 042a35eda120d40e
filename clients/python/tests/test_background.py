"""Tasks of the processes that answer calls."""

from __future__ import annotations

import asyncio

import pytest

from turngate import Client
from turngate.serving.background import Background
from turngate.serving.threads import Threads
from turngate.wire.cancelling import cancelled


async def fails() -> None:
    raise ValueError("of the work")


async def interrupted() -> None:
    raise KeyboardInterrupt


async def test_a_failure_is_logged_and_others_are_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    waiting = background.run(asyncio.Event().wait())
    with pytest.raises(ValueError, match="of the work"):
        await background.run(fails())
    await background.close(None)
    assert waiting.cancelled()
    assert [r.getMessage() for r in caplog.records] == ["work on a call failed: ValueError: of the work"]


async def test_regular_work_goes_on_after_an_exception(caplog: pytest.LogCaptureFixture) -> None:
    again, tries = asyncio.Event(), 0

    async def work() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise ValueError("of the first time")
        again.set()

    regular = asyncio.ensure_future(Client()._every(0, work))
    await asyncio.wait({regular, waiting := asyncio.ensure_future(again.wait())}, return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done()
    await cancelled([regular])
    assert "ValueError: of the first time" in caplog.text


def test_an_interrupt_is_no_failed_call(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    loop.call_soon(Background().run, interrupted())
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.call_soon(loop.stop)
    loop.run_forever()  # the task's end is noticed
    loop.close()
    assert not caplog.records


async def test_an_ordinary_function_may_raise_a_stop_iteration() -> None:
    """Before Python 3.12, a future of asyncio that gets one never ends."""
    threads = Threads(1, "test")
    failed = threads.submit(next, iter(()))
    assert isinstance(await asyncio.to_thread(failed.exception, 30), RuntimeError)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.get_running_loop().run_in_executor(threads, next, iter(()))
    threads.shutdown()
