"""Streams over one line: the client's side of yamux, https://github.com/hashicorp/yamux/blob/master/spec.md."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable

from ..errors import ShapeError
from .line import Line

WINDOW = 256 << 10
"""Bytes that a side may send on a new stream."""

MOST_BYTES = 32 << 10
"""Bytes of a frame that this side sends."""

MOST_STREAMS = 1024

_HEAD = struct.Struct(">BBHII")  # version, type, flags, stream, length

DATA, UPDATE, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8


class Mux:
    """Mux carries streams over a line. run must run. accept gets the streams that the other side opens."""

    def __init__(self, line: Line, accept: Callable[[Stream], None]) -> None:
        self._line = line
        self._accept = accept
        self._streams: dict[int, Stream] = {}
        self._last = -1
        self._sending = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        self.over = False

    async def run(self) -> None:
        """Take frames until the line ends, or is no yamux."""
        try:
            while True:
                version, kind, flags, number, length = _HEAD.unpack(await self._line.exactly(_HEAD.size))
                if version != 0 or kind > GO_AWAY:
                    raise ShapeError(f"a frame has the version {version} and the type {kind}")
                await self._take(kind, flags, number, length)
        except (ConnectionError, ShapeError):
            return
        finally:
            self.over = True
            for stream in list(self._streams.values()):
                stream._break()
            self._line.finish()

    async def _take(self, kind: int, flags: int, number: int, length: int) -> None:
        if kind == PING:
            if flags & SYN:
                await self.send(PING, ACK, 0, length)
            return
        if kind == GO_AWAY:
            raise ConnectionError("the box ends")
        stream = self._streams.get(number)
        if flags & SYN and number % 2:
            raise ShapeError(f"the box opens stream {number}, a number of this side")
        if flags & SYN and stream is None and len(self._streams) < MOST_STREAMS:
            stream = self._streams[number] = Stream(self, number)
            await self.send(UPDATE, ACK, number, 0)
            self._accept(stream)
        if kind == DATA:
            await self._data(stream, length)
        elif stream is not None:
            stream._credit(length)
        if stream is None:
            if flags & SYN:
                await self.send(UPDATE, RST, number, 0)
            return
        if flags & RST:
            stream._break()
        elif flags & FIN:
            stream._ended()

    async def _data(self, stream: Stream | None, length: int) -> None:
        while length > 0:
            part = await self._line.read(length)
            if not part:
                raise ConnectionError("the line is over")
            length -= len(part)
            if stream is not None:
                stream._receive(part)

    async def send(self, kind: int, flags: int, number: int, length: int, data: bytes = b"") -> None:
        """Send a frame, all or nothing of it.

        Raises:
            ConnectionError: The line is over.
        """
        async with self._sending:
            await self._line.write(_HEAD.pack(0, kind, flags, number, length) + data)

    async def open(self) -> Stream:
        """Open a stream.

        Raises:
            ConnectionError: The line is over.
        """
        if self.over:
            raise ConnectionError("the line is over")
        self._last += 2
        stream = Stream(self, self._last)
        await self.send(UPDATE, SYN, stream.number, 0)
        self._streams[stream.number] = stream
        return stream

    async def close(self) -> None:
        """Tell the other side that no stream is used any more."""
        with contextlib.suppress(ConnectionError):
            await self.send(GO_AWAY, 0, 0, 0)

    def _forget(self, number: int) -> None:
        self._streams.pop(number, None)

    async def _leave(self, number: int, flag: int) -> None:
        leaving = asyncio.ensure_future(self._send_last(number, flag))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        await asyncio.shield(leaving)

    async def _send_last(self, number: int, flag: int) -> None:
        with contextlib.suppress(ConnectionError):
            await self.send(UPDATE, flag, number, 0)


class Stream:
    """Stream is a stream of bytes in both directions."""

    def __init__(self, mux: Mux, number: int) -> None:
        self.number = number
        self._mux = mux
        self._waiting = bytearray()
        self._owed = 0  # bytes that were read, and for which the other side has no new room
        self._room = WINDOW  # of the other side
        self._unsent = bytearray()
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._end = self._broken = False
        self._sending = asyncio.Lock()

    async def read(self) -> bytes:
        """Return received bytes; none after their end. A cancelled read loses none.

        Raises:
            ConnectionError: The stream broke.
        """
        if self._owed >= WINDOW // 2 and not self._end and not self._broken:
            await self._mux.send(UPDATE, 0, self.number, self._owed)
            self._owed = 0
        while not self._waiting and not self._end and not self._broken:
            self._readable.clear()
            await self._readable.wait()
        if not self._waiting and not self._end:
            raise ConnectionError("the stream is broken")
        data = bytes(self._waiting)
        self._waiting.clear()
        self._owed += len(data)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes. The rest of a cancelled write is sent by the next one.

        Raises:
            ConnectionError: The stream broke.
        """
        async with self._sending:
            self._unsent += data
            while self._unsent:
                if self._broken:
                    raise ConnectionError("the stream is broken")
                size = min(self._room, MOST_BYTES, len(self._unsent))
                if size == 0:
                    self._writable.clear()
                    await self._writable.wait()
                    continue
                await self._mux.send(DATA, 0, self.number, size, bytes(self._unsent[:size]))
                self._room -= size
                del self._unsent[:size]

    async def close(self, whole: bool) -> None:
        """End the stream. Unless the work is whole, the other side gives it up.

        A cancelled call ends it later.
        """
        self._mux._forget(self.number)
        if not self._broken:
            self._break()
            await self._mux._leave(self.number, FIN if whole else RST)

    def _receive(self, data: bytes) -> None:
        self._waiting += data
        if len(self._waiting) + self._owed > WINDOW:
            raise ShapeError(f"stream {self.number} has more bytes than its window")
        self._readable.set()

    def _credit(self, count: int) -> None:
        self._room += count
        self._writable.set()

    def _ended(self) -> None:
        self._end = True
        self._readable.set()

    def _break(self) -> None:
        self._broken = True
        self._readable.set()
        self._writable.set()
