"""A stream of bytes over messages that may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..errors import ClosedError, NotSentError, ShapeError
from ..schema import LineEnd, LineOpen, codec
from . import message as messages
from .message import Message

WINDOW = 1 << 20
"""Bytes of a direction that are not acknowledged, or not read."""

FIRST_RETRY = 0.5
MOST_RETRY = 2.0
REWIND_EVERY = 0.2
"""Seconds between two answers to a message that asks again."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing has the times of a line in seconds. Both sides should have the same."""

    beat: float = 5.0
    """Longest time between two messages of a side."""
    silence: float = 90.0
    """A side that hears nothing for this time gives the line up."""


class Line:
    """Line is the client's side of a line. It keeps sent bytes until they are acknowledged.

    One task reads and one writes at a time.
    """

    def __init__(
        self, send: Callable[[bytes], Awaitable[None]], opening: LineOpen, timing: Timing | None = None
    ) -> None:
        self._send = send
        self._timing = timing or Timing()
        self._wake, self._readable, self._writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.over = asyncio.Event()
        self.end = LineEnd()
        """The end of the other side, or the reason for an early one. Valid after over."""
        now = time.monotonic()

        self._open: bytes | None = codec.encode(opening)  # until the other side has answered
        self._aborted: LineEnd | None = None  # by the other side
        self._cancelled: LineEnd | None = None  # by this one

        self._unacked = bytearray()  # bytes from acked on
        self._acked = 0
        self._next = 0  # offset of the next byte to send
        self._sent = 0  # largest value of next
        self._credit = 0  # of the other side
        self._burst = WINDOW  # most bytes without an acknowledgement
        self._final: bytes | None = None
        self._end_under_way = False  # sent since the last rewind
        self._end_sent = False  # ever
        self._end_acked = False
        self._retry = FIRST_RETRY
        self._progress = now  # of acked, or when a byte after it was sent first
        self._tried = now  # when it was sent last
        self._rewound = 0.0

        self._waiting = bytearray()  # received and not read
        self._got = 0
        self._read = 0
        self._offered = 0  # credit of the last message
        self._theirs: LineEnd | None = None
        self._discarding = False
        self._owe = False  # a message with ack and credit
        self._again = False  # bytes are missing
        self._heard = now
        self._said = 0.0

    async def run(self) -> None:
        """Carry the bytes until both directions have ended, or the other side is gone."""
        try:
            while True:
                self._wake.clear()
                due, wait, end = self._step(time.monotonic())
                for one in due:
                    with contextlib.suppress(NotSentError, ClosedError):  # it is sent again
                        await self._send(one.encode())
                if end is not None:
                    self.end = end
                    return
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait)
        except asyncio.CancelledError:
            self.end = LineEnd(reason="closed", text="the client ends")
            raise
        finally:
            self.over.set()
            self._readable.set()
            self._writable.set()

    async def write(self, data: bytes) -> None:
        """Send bytes, all or none. It waits while too many have no acknowledgement.

        Raises:
            ConnectionError: The line is over.
        """
        while len(self._unacked) >= WINDOW and not self.over.is_set():
            self._writable.clear()
            await self._writable.wait()
        if self.over.is_set() or self._final is not None:
            raise ConnectionError("the line is over")
        self._unacked += data
        self._wake.set()

    async def read(self, most: int) -> bytes:
        """Return received bytes, at most so many; none after the end of the other side's bytes, or of the line."""
        while not self._waiting and self._theirs is None and not self.over.is_set():
            self._readable.clear()
            await self._readable.wait()
        data = bytes(self._waiting[:most])
        del self._waiting[:most]
        self._consumed(len(data))
        return data

    async def exactly(self, size: int) -> bytes:
        """Return so many bytes.

        Raises:
            ConnectionError: The line ends before.
        """
        got = bytearray()
        while len(got) < size:
            part = await self.read(size - len(got))
            if not part:
                raise ConnectionError("the line is over")
            got += part
        return bytes(got)

    async def text(self, most: int) -> bytes:
        """Return bytes up to the next newline, without it.

        Raises:
            ConnectionError: The line ends before.
            ShapeError: There is none within that many bytes.
        """
        got = bytearray()
        while not got.endswith(b"\n"):
            if len(got) > most:
                raise ShapeError(f"a line of text has more than {most} bytes")
            got += await self.exactly(1)
        return bytes(got[:-1])

    def finish(self) -> None:
        """Say that no more bytes follow, and drop those that still come."""
        if self._final is None:
            self._final = codec.encode(LineEnd())
        self._discarding = True
        self._consumed(len(self._waiting))
        self._waiting.clear()
        self._wake.set()

    def cancel(self, text: str) -> None:
        """End the line at once."""
        if self._cancelled is None:
            self._cancelled = LineEnd(reason="closed", text=text)
        self._wake.set()

    def receive(self, message: Message) -> None:
        """Take a message of the other side."""
        now = time.monotonic()
        self._heard = now
        self._wake.set()
        if message.kind == messages.RESET:
            end = messages.end_of(message.data)
            if self._theirs is not None and end.reason == "unknown":  # the other side has all and is gone
                self._end_acked = True
            elif self._aborted is None:
                self._aborted = end
            return
        if message.kind == messages.OPEN:
            return
        self._open = None
        self._acknowledge(message, now)
        self._credit = max(self._credit, message.credit)
        if message.kind == messages.END:
            self._owe = True
            if message.seq == self._got and self._theirs is None:
                self._theirs = messages.end_of(message.data)
                self._readable.set()
            else:
                self._again = message.seq > self._got
        elif message.data:
            self._take(message)

    def _acknowledge(self, message: Message, now: float) -> None:
        if self._acked < message.ack <= self._sent + self._end_sent:
            count = message.ack - self._acked
            if count > len(self._unacked):
                count, self._end_acked = len(self._unacked), True
            del self._unacked[:count]
            self._acked += count
            self._next = max(self._next, self._acked)
            self._burst = min(self._burst + count, WINDOW)
            self._retry = min(max(2 * (now - self._progress), FIRST_RETRY), MOST_RETRY)
            self._progress = self._tried = now
            self._writable.set()
        if message.kind == messages.AGAIN and message.ack == self._acked and now - self._rewound > REWIND_EVERY:
            self._next, self._end_under_way, self._rewound = self._acked, False, now

    def _take(self, message: Message) -> None:
        """Keep the bytes that are the next ones. The other side loses those beyond its credit."""
        self._owe = True
        if message.seq > self._got:
            self._again = True
            return
        skip = self._got - message.seq
        if skip >= len(message.data) or self._theirs is not None:
            return
        data = message.data[skip:][: self._read + WINDOW - self._got]
        self._got += len(data)
        if self._discarding:
            self._consumed(len(data))
            return
        self._waiting += data
        self._readable.set()

    def _consumed(self, count: int) -> None:
        self._read += count
        if self._read + WINDOW - self._offered >= WINDOW // 4:
            self._owe = True
        if self._owe or self._theirs is not None:
            self._wake.set()

    def _step(self, now: float) -> tuple[list[Message], float, LineEnd | None]:
        """Return the messages to send now, and the seconds until the next step, or the line's end."""
        due: list[Message] = []
        if self._cancelled is not None:
            return [messages.reset(self._cancelled.reason, self._cancelled.text)], 0, self._cancelled
        if self._aborted is not None:
            if self._open is not None:  # the other side may have taken a later message than the refused one
                due.append(messages.reset("closed", "the line was refused"))
            return due, 0, self._aborted
        if now - self._heard > self._timing.silence:
            end = LineEnd(reason="silent", text=f"nothing was heard for {self._timing.silence:g} s")
            return [messages.reset(end.reason, end.text)], 0, end

        def add(kind: bytes, seq: int, data: bytes = b"") -> None:
            one = Message(kind, seq, self._got + (self._theirs is not None), self._read + WINDOW, data)
            due.append(one)
            self._owe, self._again, self._said, self._offered = False, False, now, one.credit

        if self._open is not None:
            wait = self._retry - (now - self._said)
            if wait <= 0:
                add(messages.OPEN, 0, self._open)
                wait = self._retry
            return due, wait, None
        if self._next == self._acked and not self._end_under_way:
            self._progress = self._tried = now  # nothing is on its way
        if self._pending() and now - self._tried > self._retry:
            self._next, self._end_under_way = self._acked, False
            self._burst, self._tried = messages.MOST_BYTES, now
            self._retry = min(2 * self._retry, MOST_RETRY)
        kind = messages.AGAIN if self._again else messages.DATA
        everything = self._acked + len(self._unacked)
        most = min(everything, self._credit, self._acked + self._burst)
        while self._next < most:
            start = self._next - self._acked
            data = bytes(self._unacked[start : min(start + messages.MOST_BYTES, most - self._acked)])
            add(kind, self._next, data)
            self._next += len(data)
            self._sent = max(self._sent, self._next)
        if self._final is not None and self._next == everything and not self._end_under_way and not self._end_acked:
            add(messages.END, everything, self._final)
            self._end_under_way = self._end_sent = True
        if self._again or self._owe or now - self._said >= self._timing.beat:
            add(kind, self._next)
        if self._end_acked and self._theirs is not None and not self._waiting:
            return due, 0, self._theirs
        wait = min(self._timing.beat - (now - self._said), self._timing.silence - (now - self._heard) + 0.001)
        if self._pending():
            wait = min(wait, self._retry - (now - self._tried) + 0.001)
        return due, max(wait, 0.001), None

    def _pending(self) -> bool:
        """Whether something that was sent has no acknowledgement."""
        return (bool(self._unacked) and self._next > self._acked) or (self._end_under_way and not self._end_acked)
