"""The hold of a trainer: the rollouts with calls that wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ..errors import TurngateError
from ..schema import Hold, codec
from ..wire import names
from ..wire.link import Link, log
from ..wire.quiet import Lines

RELEASES = 3
"""Number of messages about the end of a hold."""


class Holding:
    """Holding selects rollouts, and tells workers that send calls to an upstream."""

    def __init__(self, trainer: str, link: Link, instance: str, upstreamed: Callable[[], Iterable[str]]) -> None:
        self.instance = instance  # of this process
        self.since = 0.0  # monotonic time at which calls began to be held; 0: none are
        self._trainer = trainer
        self._link = link
        self._upstreamed = upstreamed  # the open rollouts with an upstream
        self._select: Callable[[str], bool] | None = None
        self._all = False
        self._serial = 0
        self._sent = RELEASES
        self._raised = Lines()  # by the function that selects

    def holds(self, rollout: str) -> bool:
        """Report whether the calls of a rollout wait. They do if the function that selects raises an exception."""
        if self._select is None:
            return self._all
        try:
            return self._select(rollout)
        except Exception as e:
            text = f"the function of a hold raised {type(e).__name__}: {e}"
            if self._raised.speak(text) is not None:
                log.error("the calls of rollout %s wait: %s", rollout, text, exc_info=e)
            return True

    def set(self, select: Callable[[str], bool] | None, everything: bool = False) -> None:
        """Replace the hold; None ends it, unless everything is held."""
        if select is None and not everything:
            self.since = 0.0
        else:
            self.since = self.since or time.monotonic()
        self._select, self._all, self._sent = select, everything, 0

    async def announce(self) -> None:
        """Send the held rollouts to the workers: during a hold always, after its end three times."""
        held = self._all or self._select is not None
        if not held and self._sent >= RELEASES:
            return
        self._sent += 1
        self._serial += 1
        ids = [] if self._all or not held else sorted(r for r in self._upstreamed() if self.holds(r))
        message = Hold(instance=self.instance, serial=self._serial, all=self._all, ids=ids)
        try:
            await self._link.publish(names.trainer_subject(self._trainer, "hold"), codec.encode(message))
        except TurngateError as e:
            log.warning("workers with an upstream do not hear of a hold; it is sent again: %s", e)
