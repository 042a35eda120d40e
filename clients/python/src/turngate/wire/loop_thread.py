"""An event loop in a thread of its own, for callers without async."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from ..errors import ClosedError, TurngateError
from .cancelling import cancelled

T = TypeVar("T")


async def within(work: Coroutine[Any, Any, T], timeout: float | None) -> T:
    """Return the outcome of work, which is cancelled after a while. An outcome that came before is not lost.

    Raises:
        TimeoutError: The time is over.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout)
    finally:
        await cancelled([task])
    if task.cancelled() and timeout is not None:
        raise TimeoutError(f"nothing came within {timeout:g} s")
    return task.result()


class LoopThread:
    """LoopThread runs coroutines until stop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._stopped = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()

    @property
    def forked(self) -> bool:
        """Report whether this process is a fork of the one that has the thread. A fork copies no threads."""
        return os.getpid() != self._process

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Return the outcome of work. After an interrupt (Ctrl-C) the work is cancelled, and has ended in most cases.

        Raises:
            TimeoutError: The seconds of timeout are over; the work was cancelled.
            ClosedError: The thread has stopped, or this process is a fork of the one that has it.
        """
        if self.loop.is_closed():
            work.close()
            raise ClosedError("it is closed")
        if self.forked:
            work.close()
            raise ClosedError(f"it belongs to process {self._process}, of which this is a fork: connect in this one")
        if threading.current_thread() is self._thread:
            work.close()
            raise TurngateError("this is the client's event loop, which must not wait: use the methods of .client")
        over = threading.Event()

        async def whole() -> T:
            try:
                return await within(work, timeout)
            finally:
                over.set()

        future = asyncio.run_coroutine_threadsafe(whole(), self.loop)
        try:
            return future.result()
        except BaseException as e:
            future.cancel()
            over.wait(END_WITHIN)
            if isinstance(e, concurrent.futures.CancelledError) and self._stopped:
                raise ClosedError("it was closed") from None
            raise

    def stop(self) -> None:
        """End the loop, with the tasks that are left in it, and its thread."""
        self._stopped = True
        if self.forked:
            return
        with contextlib.suppress(RuntimeError):  # an interrupt has ended it
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()


END_WITHIN = 5.0
"""Seconds that the tasks of a loop may take to end."""


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=END_WITHIN)
