"""The time for which an upstream has answered nothing."""

from __future__ import annotations

import time

from ..serving.open_calls import FaultError
from ..serving.refusal import ABORTED, Refusal, bad_answer, retryable

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
        if fault.code == "bad_answer":
            return e
        if not self._ever and _other_server(e):
            other = bad_answer(f"the server at {url} does not answer as an upstream does: {fault.message}")
            other.fault.retry_after_ms = OTHER_PAUSE_MS
            return other
        if _away(e):
            fault.retry_after_ms = max(fault.retry_after_ms, int(self.pause(time.monotonic()) * 1000))
        return e


def _away(e: FaultError) -> bool:
    """Report whether a failure may be that of an upstream which answers no call.

    It cannot be reached, does not answer, or says that it is overloaded or broken. A refusal of one request, or of a
    key, is no outage.
    """
    if isinstance(e, Refusal):
        return retryable(e.status) and e.status not in (501, 505)
    return e.fault.code == "upstream" and retryable(e.fault.status)


def _other_server(e: FaultError) -> bool:
    """Report whether a server has no route of an upstream, or does not speak HTTP."""
    if isinstance(e, Refusal):
        no_route = e.status == 404 and e.param != "model" and "model" not in e.message.lower()
        return no_route or e.status in (405, 501)
    return "illegal status line" in e.fault.message or "wrong version number" in e.fault.message.lower()
