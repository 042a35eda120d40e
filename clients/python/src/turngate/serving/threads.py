"""Threads for handlers, tools and policies that are ordinary functions."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class Threads(Executor):
    """Threads runs functions in at most so many threads, which do not keep the process from ending.

    A function has the context variables of its caller, such as the current span.
    A function cannot be stopped from outside. After Ctrl-C the process would else wait for each one that still runs.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._changing = threading.Lock()
        self._started = 0
        self._open = 0  # functions that wait or run

    def submit(self, function: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def run() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(context.run(function, *args, **named))
            except StopIteration as e:  # a future of asyncio takes none before Python 3.12
                error = RuntimeError("the function raised StopIteration")
                error.__cause__ = e
                future.set_exception(error)
            except BaseException as e:  # the caller gets it
                future.set_exception(e)
            finally:
                with self._changing:
                    self._open -= 1

        with self._changing:
            self._open += 1
            if self._open > self._started and self._started < self._most:
                self._started += 1
                threading.Thread(target=self._run, name=f"{self._name} {self._started}", daemon=True).start()
        self._work.put(run)
        return future

    def _run(self) -> None:
        while (run := self._work.get()) is not None:
            run()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End each thread when its function returns. It never waits."""
        with self._changing:
            for _ in range(self._started):
                self._work.put(None)
            self._started = self._most  # none is started any more
