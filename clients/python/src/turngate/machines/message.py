"""Messages of a line: see docs/machine.md."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ..errors import ShapeError, TurngateError
from ..schema import LineEnd, codec

MOST_BYTES = 64 << 10
"""Bytes of a message."""

MOST_TEXT = 2 << 10
"""Characters of a machine's text that are kept."""

_HEAD = struct.Struct(">cQQQ")

OPEN, DATA, AGAIN, END, RESET = b"o", b"d", b"a", b"e", b"r"


@dataclass(slots=True)
class Message:
    """Message is one message of a line."""

    kind: bytes
    seq: int = 0
    """Offset of the first byte of data in the sender's stream."""
    ack: int = 0
    """Number of bytes that the sender has received in order, plus 1 after the other side's end."""
    credit: int = 0
    """Offset up to which the receiver may send."""
    data: bytes = b""

    def encode(self) -> bytes:
        return _HEAD.pack(self.kind, self.seq, self.ack, self.credit) + self.data


def decode(data: bytes) -> Message:
    """Return a message of the other side.

    Raises:
        ShapeError: It is none.
    """
    if not _HEAD.size <= len(data) <= _HEAD.size + MOST_BYTES:
        raise ShapeError(f"a message of a line has {len(data)} bytes")
    kind, seq, ack, credit = _HEAD.unpack_from(data)
    if kind not in (OPEN, DATA, AGAIN, END, RESET):
        raise ShapeError(f"a message of a line has the kind {kind!r}")
    return Message(kind, seq, ack, credit, data[_HEAD.size :])


def end_of(data: bytes) -> LineEnd:
    """Return the body of an end or a reset."""
    try:
        end = codec.decode(LineEnd, data)
    except TurngateError:
        return LineEnd(reason="unknown", text="the message cannot be read")
    end.reason, end.text = plain(end.reason), plain(end.text)
    return end


def plain(text: str) -> str:
    """Return a text of a machine as one line that a terminal may show."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:MOST_TEXT].strip())


def reset(reason: str, text: str) -> Message:
    """Return the message that ends a line early."""
    return Message(RESET, data=codec.encode(LineEnd(reason=reason, text=text[:MOST_TEXT])))
