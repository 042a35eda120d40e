"""Operations of the box: see docs/machine.md."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidError, OperationError, TooLargeError
from .message import plain
from .mux import Stream

CHUNK = 32 << 10
"""Bytes of a frame that this side sends."""

MOST_FRAME = 256 << 10
MOST_HEADER = 4 << 20

ANSWER_WITHIN = 300.0
"""Seconds that an operation may take after the last frame of it that a side sent."""

CLOSE_WITHIN = 1.0
"""Seconds that the end of an operation may take to be sent."""

HEADER, BYTES, EOF, STDOUT, STDERR, STARTED, OK, FAIL = b"h", b"d", b"e", b"o", b"r", b"p", b"k", b"f"

_HEAD = struct.Struct(">cI")


def header(name: str, fields: Mapping[str, Any]) -> bytes:
    """Return the header of an operation. Empty fields are left out."""
    data = json.dumps({"op": name, **{k: v for k, v in fields.items() if v}}).encode()
    if len(data) > MOST_HEADER:
        raise TooLargeError(f"{name}: its arguments and environment, as JSON,", len(data), MOST_HEADER)
    return data


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return a frame of an operation."""
    return _HEAD.pack(kind, len(payload)) + payload


class Operation:
    """Operation is one operation of the box, on a stream of its own."""

    def __init__(self, stream: Stream, name: str) -> None:
        self.name = name
        self._stream = stream
        self._got = bytearray()
        self._sent = 0  # frames
        self._over = False

    async def send(self, kind: bytes, payload: bytes = b"") -> None:
        """Send a frame.

        Raises:
            ConnectionError: The stream broke.
        """
        await self._stream.write(frame(kind, payload))
        self._sent += 1

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as frames."""
        for at in range(0, len(data), CHUNK):
            await self.send(BYTES, data[at : at + CHUNK])

    async def next(self) -> tuple[bytes, bytes]:
        """Return the kind and the payload of the next frame. A cancelled call loses none.

        Raises:
            ConnectionError: The stream broke.
            FileNotFoundError: The file or the command does not exist.
            InvalidError: The user does not exist.
            OperationError: The operation failed.
        """
        while True:
            if len(self._got) >= _HEAD.size:
                kind, size = _HEAD.unpack_from(self._got)
                if size > MOST_FRAME:
                    raise ConnectionError(f"a frame of the box has {size} bytes")
                if len(self._got) >= _HEAD.size + size:
                    payload = bytes(self._got[_HEAD.size : _HEAD.size + size])
                    del self._got[: _HEAD.size + size]
                    if kind == FAIL:
                        self._over = True
                        raise failed(self.name, payload)
                    self._over = kind == OK
                    return kind, payload
            part = await self._stream.read()
            if not part:
                raise ConnectionError("the stream of the operation has ended")
            self._got += part

    async def answer(self) -> tuple[bytes, bytes]:
        """Return the next frame, as next does, of a box that must answer now.

        Raises:
            OperationError: There is none within ANSWER_WITHIN.
        """
        while True:
            sent = self._sent
            try:
                return await asyncio.wait_for(self.next(), ANSWER_WITHIN)
            except asyncio.TimeoutError:
                if self._sent == sent:
                    raise no_answer(self.name) from None

    async def close(self) -> None:
        """End the operation. The box gives it up if it runs."""
        with contextlib.suppress(asyncio.TimeoutError):  # the machine takes no bytes
            await asyncio.wait_for(self._stream.close(self._over), CLOSE_WITHIN)


def no_answer(operation: str) -> OperationError:
    """Return the error of an operation that the box does not answer."""
    return OperationError(operation, "no_answer", f"the machine gave no answer within {ANSWER_WITHIN:g} s")


def parsed(payload: bytes) -> Any:
    """Return JSON of the box.

    Raises:
        ConnectionError: It is none that can be read.
    """
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise ConnectionError("the box's answer cannot be read") from None


def failed(operation: str, payload: bytes) -> Exception:
    """Return the error of an operation that failed."""
    try:
        failure = parsed(payload)
        code, text, what = (plain(str(failure.get(field, ""))) for field in ("code", "message", "arg"))
    except (ConnectionError, AttributeError):
        return OperationError(operation, "other", "the failure cannot be read")
    if code == "not_exist":
        return FileNotFoundError(f"{operation}: {text}")
    if code == "no_command":
        return FileNotFoundError(f"{operation}: {what}: {text}")
    if code == "no_user":
        return InvalidError("user", what, text)
    if code == "too_large":
        return OperationError(operation, code, f"{what} is larger than {plain(str(failure.get('limit')))} bytes")
    return OperationError(operation, code if code == "refused" else "other", text)
