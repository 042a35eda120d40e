"""A bound of the log lines about a failure that repeats."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

FIRST_INTERVAL = 10.0
MOST_INTERVAL = 600.0
MOST_KNOWN = 256

_DIGITS = re.compile(r"\d+")


@dataclass(slots=True)
class _Repetition:
    every: float
    logged: float
    last: float
    skipped: int = 0


class Lines:
    """Lines lets the first line about a failure through at once, and then one after each of growing intervals."""

    def __init__(self) -> None:
        self._all: dict[str, _Repetition] = {}

    def speak(self, text: str, now: float | None = None) -> int | None:
        """Note a failure. Texts that differ in digits alone, for example in a port, are one failure.

        Returns:
            How many were not logged since the last time; None: this one is not to be logged either.
        """
        now, text = time.monotonic() if now is None else now, _DIGITS.sub("", text)
        r = self._all.get(text)
        if r is None or now - r.last > MOST_INTERVAL:
            if len(self._all) >= MOST_KNOWN:
                self._all.clear()
            self._all[text] = _Repetition(FIRST_INTERVAL, now, now)
            return 0
        r.last = now
        if now - r.logged < r.every:
            r.skipped += 1
            return None
        skipped, r.skipped = r.skipped, 0
        r.every, r.logged = min(2 * r.every, MOST_INTERVAL), now
        return skipped
