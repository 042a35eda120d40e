"""Frames on their way to workers."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from ..errors import ClosedError, UnreachableError
from .body import Body
from .cancelling import cancelled
from .link import Link, log

MOST_BYTES = 64 << 20
"""Bytes of waiting frames from which senders wait."""


@dataclass(slots=True)
class Frame:
    """Frame is one message of the answer to a call."""

    kind: str  # accept, beat, delta, final, fault or need_full
    gen: str = ""
    seq: int = 0  # of a delta; of a final: the number of deltas
    held: bool = False  # of an accept or a beat
    body: Body = field(default_factory=lambda: Body(b""))

    def headers(self) -> dict[str, str]:
        h = {"Rl-Kind": self.kind}
        if self.gen:
            h["Rl-Gen"] = self.gen
        if self.held:
            h["Rl-Held"] = "1"
        if self.kind in ("delta", "final"):
            h["Rl-Seq"] = str(self.seq)
        if self.body.headers:
            h |= self.body.headers
        return h


class Outbox:
    """Outbox publishes frames in the order of send, which does not block.

    A frame that cannot be sent is dropped: its worker asks for it again.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._waiting: deque[tuple[str, Frame]] = deque()
        self._bytes = 0
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="turngate outbox")

    def send(self, reply: str, frame: Frame) -> None:
        """Publish a frame on a worker's inbox."""
        self._waiting.append((reply, frame))
        self._bytes += len(frame.body.data)
        if self._bytes > MOST_BYTES:
            self._room.clear()
        self._some.set()

    async def room(self) -> None:
        """Wait while too many bytes are on their way."""
        if not self._room.is_set():
            await self._room.wait()

    async def _run(self) -> None:
        while True:
            await self._some.wait()
            self._some.clear()
            while self._waiting:
                reply, frame = self._waiting.popleft()
                self._bytes -= len(frame.body.data)
                if self._bytes <= MOST_BYTES:
                    self._room.set()
                try:
                    await self._link.publish(reply, frame.body.data, frame.headers())
                except (UnreachableError, ClosedError) as e:
                    log.debug("a frame was not sent: %s", e)

    async def close(self) -> None:
        """Drop the frames that wait."""
        await cancelled([self._task])
