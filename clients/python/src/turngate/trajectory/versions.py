"""Numbers of policy versions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..schema import VersionSpan

_NUMBER = re.compile(r"[0-9]+\Z", re.ASCII)


def number(version: str) -> int | None:
    """Return the number of at most 31 bits at the end of a version's name; None: there is none."""
    found = _NUMBER.search(version)
    digits = found[0].lstrip("0") if found else "-"
    if len(digits) > 10 or digits == "-":
        return None
    n = int(digits or "0")
    return n if n < 1 << 31 else None


def _numbers(spans: Iterable[VersionSpan]) -> list[int]:
    return [n for span in spans if (n := number(span.version)) is not None]


def oldest(spans: Iterable[VersionSpan]) -> int | None:
    """Return the smallest number of the versions; None: none has a number."""
    return min(_numbers(spans), default=None)


def newest(spans: Iterable[VersionSpan]) -> int | None:
    """Return the largest number of the versions; None: none has a number."""
    return max(_numbers(spans), default=None)
