"""Requests that fail again and again although their upstream answers others."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..serving.call import Call
from ..serving.open_calls import FaultError
from ..serving.refusal import ABORTED, bad_answer

TRIES = 3
"""Tries after which a request may be broken. The worker counts refusals from then on, and ends the rollout after the
third."""

ABORTED_TRIES = 10
"""The same for a generation that the upstream aborted, as it does when its weights change."""

MOST_FAILING = 4096

FAILING_FOR = 600.0
"""Seconds after which a failing request may be forgotten."""

PROBE_EVERY = 2.0
"""Seconds for which the result of a probe holds."""


@dataclass(slots=True)
class _Failing:
    tries: int = 0
    last: float = 0.0


class Broken:
    """Broken finds requests such as a prompt that ends its own generation.

    A call waits for an upstream that is down; for such a request it would wait in vain.
    """

    def __init__(self, probe: Callable[[], Awaitable[bool]]) -> None:
        """Take a function that reports whether the upstream answers a request for one token."""
        self._probe = probe
        self._failing: dict[tuple[str, bytes], _Failing] = {}
        self._answered = 0.0
        self._probed, self._works = float("-inf"), False

    def succeeded(self, call: Call) -> None:
        """Note that the upstream answered."""
        self._answered = time.monotonic()
        if self._failing:
            self._failing.pop(_identity(call), None)

    async def judge(self, call: Call, e: FaultError) -> FaultError:
        """Return the error of a failed request.

        A request that fails again and again while the upstream works gets the fault of a bad answer.
        """
        fault, most = e.fault, TRIES
        if fault.code == ABORTED:
            most = ABORTED_TRIES
        elif fault.code != "upstream" or fault.status < 500 or fault.status == 503:
            return e
        tries, others = self._failed(call)
        if tries < most or not (others or await self._working()):
            return e
        refused = bad_answer("")
        refused.fault.message = f"this request failed while the upstream answers others: {fault.message}"
        return refused

    def _failed(self, call: Call) -> tuple[int, bool]:
        """Count a failed try. Return the number, and whether another request was answered since the try before."""
        now, key = time.monotonic(), _identity(call)
        if key not in self._failing and len(self._failing) >= MOST_FAILING:
            self._failing = {k: f for k, f in self._failing.items() if now - f.last < FAILING_FOR}
            if len(self._failing) >= MOST_FAILING:
                return 1, False
        failing = self._failing.setdefault(key, _Failing())
        others = failing.tries > 0 and self._answered > failing.last
        failing.tries, failing.last = failing.tries + 1, now
        return failing.tries, others

    async def _working(self) -> bool:
        if time.monotonic() - self._probed >= PROBE_EVERY:
            self._works = await self._probe()
            self._probed = time.monotonic()
        return self._works


def _identity(call: Call) -> tuple[str, bytes]:
    """Return a name of the request. One that the agent itself repeats has a new key."""
    digest = hashlib.sha256(call.raw_tools)
    for message in call.raw_messages:
        digest.update(len(message).to_bytes(8, "big") + message)
    return call.rollout, digest.digest()
