"""Descriptions of the fields of messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Wire:
    """Wire is the form of a field on the wire, and its bounds."""

    name: str = ""  # its name on the wire, if that is a keyword of Python
    form: str = ""  # json, ids or logprobs: packed in a msgpack bin
    keep: bool = False  # sent even with its zero value
    required: bool = False
    low: float | None = None
    high: float | None = None
    most: int = 0  # bytes of a text, entries of a list
    each: int = 0  # bytes of each text of a list or map
    one_of: tuple[str, ...] = ()


def wire(**description: Any) -> Mapping[str, Any]:
    """Describe a field for dataclasses.field(metadata=...)."""
    return {"wire": Wire(**description)}
