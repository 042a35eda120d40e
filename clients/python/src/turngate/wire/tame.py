"""JSON of an agent that Python cannot read: integers of thousands of digits, values very deep inside each other, and so
many values that reading them would stop the event loop for many seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from json.decoder import scanstring  # type: ignore[attr-defined]

from ..errors import InvalidError

MOST_NESTING = 256
"""Values inside each other. Python reads, and later writes, fewer than 1,000."""

MOST_DIGITS = 1000
"""Length of a number. Python reads integers of at most 4,300 digits."""

MOST_VALUES = 1 << 18
"""Values and names of members in one call. A turn of an agent with one tool has about 25."""

_MOST = 10_000
"""Values inside each other that are read at all, as in Go."""

_NEXT = re.compile(r'["\[\]{}0-9]')
_VALUE = re.compile(r'["\[{0-9tfn]')  # where one begins
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


def check_count(texts: Collection[bytes]) -> None:
    """Check that the JSON texts of a call have at most MOST_VALUES values and names together.

    Raises:
        InvalidError: They have more.
    """
    if len(texts) + sum(map(len, texts)) <= MOST_VALUES:
        return  # each has a byte
    left = MOST_VALUES - len(texts)
    for raw in texts:
        text, at = raw.decode(errors="replace"), 0
        while left >= 0 and (found := _VALUE.search(text, at)):
            left -= 1
            at = found.start()
            if found[0] == '"':
                try:
                    at = scanstring(text, at + 1)[1]
                except json.JSONDecodeError:  # its reader tells
                    break
            elif number := _NUMBER.match(text, at):
                at = number.end()
            else:
                at += 1
    if left < 0:
        raise InvalidError("call", "more values", f"want at most {MOST_VALUES} values and names of members")
