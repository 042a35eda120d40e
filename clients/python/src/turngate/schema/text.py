"""Short texts of messages, for logs, notebooks and error messages."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .messages_generated import Result

MOST_TEXT = 60
"""Characters of a value."""


class _Values(reprlib.Repr):
    """The values of fields: a few entries of each list, and the beginning and end of each text."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxlist = self.maxdict = self.maxtuple = 3
        self.maxstring = self.maxother = MOST_TEXT

    def repr_bytes(self, value: bytes, _level: int) -> str:
        return repr(value) if len(value) <= MOST_TEXT else f"<{len(value)} bytes>"


def brief(message: Any) -> str:
    """Return the name of a message, and its fields that differ from their defaults, each of them cut."""
    values, parts = _Values(), []
    for f in dataclasses.fields(message):
        value = getattr(message, f.name)
        default = f.default if f.default_factory is dataclasses.MISSING else f.default_factory()
        if value != default:
            parts.append(f"{f.name}={values.repr(value)}")
    return f"{type(message).__name__}({', '.join(parts)})"


def of_result(result: Result) -> str:
    """Return what a person wants to know of a result first."""
    reward = "unknown" if result.reward is None else f"{result.reward:g}"
    calls = sum(c.count for c in result.calls.values())
    fault = f", {result.fault.code}: {reprlib.repr(result.fault.message)}" if result.fault is not None else ""
    task = _Values().repr(result.task)
    return f"<Result {result.id} of {task}: {result.status}, reward {reward}, {calls} calls{fault}>"
