"""The time for which an upstream has answered nothing."""

from __future__ import annotations

import time

from ..serving.open_calls import FaultError
from .refusal import ABORTED, Refusal, bad_answer, retryable

MOST_PAUSE = 15.0
"""Longest time between two tries of a call in seconds, and so the time for which a call waits although the upstream is
back."""

OTHER_PAUSE_MS = 5000
"""Time between two tries of a call to a server that has no route of an upstream, in milliseconds: it may be a proxy
whose upstream starts."""


class Outage:
    """Outage says when a failed call is tried again."""

    def __init__(self) -> None:
        self._ever = False  # it has answered a call
        self._since: float | None = None  # the first failure after the newest answer

    def over(self) -> None:
        """Note an answer."""
        self._ever, self._since = True, None

    def pause(self, now: float) -> float:
        """Note a failure, and return the seconds until the next try, which grow with the outage."""
        if self._since is None:
            self._since = now
        return min((now - self._since) / 4, MOST_PAUSE)

    def paced(self, e: FaultError, url: str) -> FaultError:
        """Return the fault of a failed call with the time until the next try.

        The fault of an upstream that never answered and is a server of another kind is a bad answer.
        """
        fault = e.fault
        if fault.code == ABORTED:
            return e
        pause = self.pause(time.monotonic())
        if fault.code == "bad_answer":
            return e
        if not self._ever and _other_server(e):
            other = bad_answer(f"the server at {url} does not answer as an upstream does: {fault.message}")
            other.fault.retry_after_ms = OTHER_PAUSE_MS
            return other
        if retryable(fault.status):
            fault.retry_after_ms = max(fault.retry_after_ms, int(pause * 1000))
        return e


def _other_server(e: FaultError) -> bool:
    """Report whether a server has no route of an upstream, or does not speak HTTP."""
    if isinstance(e, Refusal):
        no_route = e.status == 404 and e.param != "model" and "model" not in e.message.lower()
        return no_route or e.status in (405, 501)
    return "illegal status line" in e.fault.message or "wrong version number" in e.fault.message.lower()
