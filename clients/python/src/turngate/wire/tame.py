"""JSON of an agent that Python cannot read: integers of thousands of digits, and values very deep inside each other."""

from __future__ import annotations

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]

from ..errors import InvalidError

MOST_NESTING = 256
"""Values inside each other. Python reads, and later writes, fewer than 1,000."""

MOST_DIGITS = 1000
"""Length of a number. Python reads integers of at most 4,300 digits."""

_MOST = 10_000
"""Values inside each other that are read at all, as in Go."""

_NEXT = re.compile(r'["\[\]{}0-9]')
_NUMBER = re.compile(r"[0-9][0-9.eE+-]*")


def tame(text: str) -> str:
    """Return JSON text in which each value that is too deep, and each number that is too long, is a string of its text.

    It does not check that the text is JSON.

    Raises:
        ValueError: A string has no end, or values are more than 10,000 deep inside each other.
    """
    out: list[str] = []
    depth = at = done = deep = 0
    while found := _NEXT.search(text, at):
        at, char = found.start(), found[0]
        if char == '"':
            at = scanstring(text, at + 1)[1]
            continue
        if char in "[{":
            depth += 1
            if depth > _MOST:
                raise ValueError(f"values are more than {_MOST} deep inside each other")
            if depth == MOST_NESTING + 1:
                deep = at
            at += 1
        elif char in "]}":
            at += 1
            if depth == MOST_NESTING + 1:
                out += [text[done:deep], json.dumps(text[deep:at])]
                done = at
            depth -= 1
        else:
            number = _NUMBER.match(text, at)
            assert number is not None
            start, at = at - (text[at - 1 : at] == "-"), number.end()
            if at - start > MOST_DIGITS and depth <= MOST_NESTING:
                out += [text[done:start], json.dumps(text[start:at])]
                done = at
    return "".join([*out, text[done:]])


def check(raw: bytes, field: str) -> None:
    """Check that JSON has no value that tame changes.

    Raises:
        InvalidError: It has one.
    """
    text = raw.decode(errors="replace")
    try:
        same = tame(text) == text
    except json.JSONDecodeError:  # its reader tells
        return
    except ValueError:
        same = False
    if not same:
        want = f"numbers of at most {MOST_DIGITS} characters, and values at most {MOST_NESTING} deep inside each other"
        raise InvalidError(field, text[:80], want)
