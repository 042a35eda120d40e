"""Tool calls of upstreams in the form that gates read."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

_MOST = 1024
_INDEX_MOST = 99_999


@dataclass(slots=True)
class _Call:
    place: int  # its own index
    index: int  # the upstream's; several calls may have the same
    id: str = ""
    name: str = ""


@dataclass(slots=True)
class PiecesOfCalls:
    """PiecesOfCalls gives each tool call of a stream an index of its own.

    Some upstreams give the same index to all calls, or none, or repeat id and name in every piece.
    """

    calls: list[_Call] = field(default_factory=list)
    last: _Call | None = None

    def add(self, pieces: Any) -> list[dict[str, Any]]:
        """Return the pieces of a chunk in the form that gates read.

        Raises:
            ValueError: They have another form than OpenAI's.
        """
        if not isinstance(pieces, list):
            raise ValueError("tool_calls: want a list")
        return [self._add(piece) for piece in pieces]

    def _add(self, piece: Any) -> dict[str, Any]:
        if not isinstance(piece, dict) or not isinstance(piece.get("function") or {}, dict):
            raise ValueError("tool_calls: want objects with a function")
        said = {k: v for k, v in (piece.get("function") or {}).items() if v is not None}
        index, own, name = piece.get("index"), piece.get("id") or "", said.pop("name", "")
        if not all(isinstance(text, str) for text in (own, name)) or not isinstance(index, (int, type(None))):
            raise ValueError("tool_calls: want a number as index, and texts as id and name")
        said["arguments"] = _text(said.get("arguments", ""))
        call = self._call(index, own, name)
        self.last = call
        call.id = call.id or own
        delta: dict[str, Any] = {"index": call.place, "function": said}
        if own:
            delta["id"] = call.id
        if name and name != call.name:  # otherwise it is repeated
            call.name += name
            said["name"] = name
            delta["type"] = piece.get("type") or "function"
        return delta

    def _call(self, index: int | None, own: str, name: str) -> _Call:
        """Return the call of a piece. One with a name, and an id that its index does not have yet, begins a call."""
        known = self.last if index is None else next((c for c in reversed(self.calls) if c.index == index), None)
        if known is not None:
            other = own != known.id if own and known.id else index is None and not own
            if not (name and other):
                return known
        if index is None:
            index = self.last.index + 1 if self.last is not None else 0
        place, taken = index, {c.place for c in self.calls}
        while place in taken:
            place += 1
        if not 0 <= place <= _INDEX_MOST or len(self.calls) == _MOST:
            raise ValueError(f"tool_calls: want an index of 0 to {_INDEX_MOST}, and at most {_MOST} calls")
        self.calls.append(_Call(place, index))
        return self.calls[-1]


def with_text_arguments(message: Any) -> Any:
    """Return a message with the arguments of its calls as texts.

    Some upstreams send them as objects, and null for none.
    """
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_text(call) for call in calls]}


def _with_text(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or "arguments" not in function:
        return call
    arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": "{}" if arguments is None else _text(arguments)}}


def _text(arguments: Any) -> Any:
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else arguments
