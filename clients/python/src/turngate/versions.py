"""Numbers of policy versions."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .schema import VersionSpan

_NUMBER = re.compile(r"[0-9]+\Z", re.ASCII)


def number(version: str) -> int | None:
    """Return the number of at most 31 bits at the end of a version's name; None: there is none."""
    found = _NUMBER.search(version)
    digits = found[0].lstrip("0") if found else "-"
    if len(digits) > 10 or digits == "-":
        return None
    n = int(digits or "0")
    return n if n < 1 << 31 else None


def oldest(spans: Iterable[VersionSpan]) -> int | None:
    """Return the smallest number of the versions; None: none has a number."""
    numbers = (number(span.version) for span in spans)
    return min((n for n in numbers if n is not None), default=None)
