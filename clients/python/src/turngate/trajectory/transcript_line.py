"""Lines of a transcript, read as far as training rows need them.

Token ids are most of a transcript. Each prompt has all tokens of the
conversation again: the text of the known ones is compared, not parsed.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import ShapeError
from ..schema import VersionSpan
from ..wire.tame import tame
from .linked_call import no_ids

T = TypeVar("T")


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


_DECODE = json.JSONDecoder(parse_constant=_constant).raw_decode


@dataclass(slots=True)
class IDList:
    """IDList is a list of token ids as JSON text."""

    text: str = ""
    start: int = 0  # behind the bracket
    end: int = 0

    def ids(self) -> array[int]:
        """Return all ids.

        Raises:
            ShapeError: The text is no list of ids.
        """
        return _ids(self.text, self.start, self.end)

    def after(self, known: str) -> array[int] | None:
        """Return the ids behind the known ones; None if the text does not begin with these.

        Raises:
            ShapeError: The rest is no list of ids.
        """
        if not self.text.startswith(known, self.start):
            return None
        at = self.start + len(known)
        if at == self.end:
            return no_ids()
        return _ids(self.text, at + 1, self.end) if self.text[at] == "," else None

    def with_more(self, ids: array[int]) -> str:
        """Return the text of this list and of further ids."""
        own = [self.text[self.start : self.end]] if self.start < self.end else []
        return ",".join(own + [str(i) for i in ids])


def _ids(text: str, start: int, end: int) -> array[int]:
    part = text[start:end]
    try:
        if "e" in part:  # true, false, or a number of another form
            raise ValueError("a value is no whole number")
        return array("i", _DECODE(f"[{part}]")[0])
    except (ValueError, TypeError, OverflowError) as e:
        raise ShapeError(f"token ids: {e}") from None


@dataclass(slots=True)
class Asked:
    """Asked is a recorded request."""

    key: str = ""
    tag: str = ""
    model: str = ""
    base: int = 0
    keep: int = 0
    messages: list[tuple[Any, str]] = field(default_factory=list)  # value and JSON text of each
    tools: str = ""  # JSON text; empty: not named


@dataclass(slots=True)
class Answered:
    """Answered is a recorded answer."""

    message: Any = None
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_ids: IDList = field(default_factory=IDList)
    completion_ids: array[int] = field(default_factory=no_ids)
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: list[VersionSpan] = field(default_factory=list)
    retained: bool = False


@dataclass(slots=True)
class Line:
    """Line is one line of a transcript."""

    at: int = 0
    call: int = 0
    ms: int = 0
    left_out: int = 0
    gen: str = ""
    tool: str = ""
    request: Asked | None = None
    reply: Answered | None = None
    fault: dict[str, Any] | None = None


def read_line(data: bytes) -> Line:
    """Return a line.

    Raises:
        ShapeError: It is none.
    """
    text = data.decode(errors="replace")
    try:
        try:
            return _line(text)
        except json.JSONDecodeError:
            raise
        except (ValueError, RecursionError):
            return _line(tame(text))
    except (ValueError, IndexError, RecursionError) as e:
        raise ShapeError(f"not a line of a transcript: {str(e)[:200]}") from None


def _line(text: str) -> Line:
    line = Line()
    if text.strip() != "null" and _skip(text, _members(text, _skip(text, 0), _of_line(line, text))) != len(text):
        raise ValueError("something follows the object")
    return line


Read = Callable[[str, int], int]
"""Reads the value of a named member at a place of the text, and returns the place behind it."""


def _of_line(line: Line, text: str) -> Read:
    def read(name: str, at: int) -> int:
        if name in ("request", "reply") and text[at] == "{":
            if name == "request":
                line.request = Asked()
                return _members(text, at, _of_request(line.request, text))
            line.reply = Answered()
            return _members(text, at, _of_reply(line.reply, text))
        value, end = _DECODE(text, at)
        if name in ("at", "call", "ms", "left_out"):
            setattr(line, name, _typed(value, int, 0))
        elif name in ("gen", "tool"):
            setattr(line, name, _typed(value, str, ""))
        elif name == "fault":
            line.fault = _typed(value, dict, None)
        elif name in ("request", "reply"):
            _typed(value, dict, None)
        return end

    return read


def _of_request(request: Asked, text: str) -> Read:
    def read(name: str, at: int) -> int:
        if name == "messages" and text[at] == "[":
            return _elements(text, at, request.messages)
        value, end = _DECODE(text, at)
        if name in ("base", "keep"):
            setattr(request, name, _typed(value, int, 0))
        elif name in ("key", "tag", "model"):
            setattr(request, name, _typed(value, str, ""))
        elif name == "messages":
            _typed(value, list, None)
        elif name == "tools":
            request.tools = text[at:end]
        return end

    return read


def _of_reply(reply: Answered, text: str) -> Read:
    def read(name: str, at: int) -> int:
        if name == "prompt_ids" and text[at] == "[":
            end = text.index("]", at)
            reply.prompt_ids = IDList(text, _skip(text, at + 1), end)
            return end + 1
        value, end = _DECODE(text, at)
        if name == "message":
            reply.message = value
        elif name == "finish_reason":
            reply.finish_reason = _typed(value, str, "")
        elif name in ("prompt_ids", "completion_ids"):
            if _typed(value, list, []):
                reply.completion_ids = _ids(text, at + 1, text.index("]", at))
        elif name == "logprobs":
            reply.logprobs = _floats(_typed(value, list, []))
        elif name == "retained":
            reply.retained = _typed(value, bool, False)
        elif name == "usage":
            usage = _typed(value, dict, {})
            reply.prompt_tokens = _typed(usage.get("prompt_tokens"), int, 0)
            reply.completion_tokens = _typed(usage.get("completion_tokens"), int, 0)
        elif name == "versions":
            reply.versions = [_span(_typed(v, dict, {})) for v in _typed(value, list, [])]
        return end

    return read


def _span(value: dict[str, Any]) -> VersionSpan:
    return VersionSpan(
        version=_typed(value.get("version"), str, ""),
        start=_typed(value.get("start"), int, 0),
        end=_typed(value.get("end"), int, 0),
    )


def _floats(values: list[Any]) -> array[float]:
    try:
        return array("f", [-math.inf if v is None else v for v in values])
    except (TypeError, OverflowError) as e:
        raise ShapeError(f"logprobs: {e}") from None


def _typed(value: Any, kind: type[T], default: Any) -> T:
    if value is None:
        return default  # type: ignore[no-any-return]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{type(value).__name__} instead of {kind.__name__}")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} has more than 64 bits")
    return value


def _skip(text: str, at: int) -> int:
    """Return the place of the next character that is no white space."""
    while at < len(text) and text[at] in " \t\n\r":
        at += 1
    return at


def _members(text: str, at: int, read: Read) -> int:
    """Call read with each member of an object, and return the place behind the object."""
    if text[at] != "{":
        raise ValueError("no object")
    at = _skip(text, at + 1)
    if text[at] == "}":
        return at + 1
    while True:
        name, at = _DECODE(text, at)
        at = _skip(text, at)
        if not isinstance(name, str) or text[at] != ":":
            raise ValueError("no member of an object")
        at = _skip(text, read(name, _skip(text, at + 1)))
        if text[at] == "}":
            return at + 1
        if text[at] != ",":
            raise ValueError("no comma between members")
        at = _skip(text, at + 1)


def _elements(text: str, at: int, into: list[tuple[Any, str]]) -> int:
    into.clear()
    at = _skip(text, at + 1)
    if text[at] == "]":
        return at + 1
    while True:
        value, end = _DECODE(text, at)
        into.append((value, text[at:end]))
        at = _skip(text, end)
        if text[at] == "]":
            return at + 1
        if text[at] != ",":
            raise ValueError("no comma between elements")
        at = _skip(text, at + 1)
