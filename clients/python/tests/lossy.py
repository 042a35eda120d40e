"""Two sides of a line, between which messages are lost."""

from __future__ import annotations

import asyncio
import random

from turngate.machines import message as messages
from turngate.machines.line import Line, Timing
from turngate.schema import LineOpen


class Pair:
    """Pair has a client's line and its other side, which need no server."""

    def __init__(self, loss: float = 0.0, timing: Timing | None = None) -> None:
        self.random = random.Random(7)
        self.loss = loss
        self.lost = 0
        opening = LineOpen(want="workspace")
        self.client = Line(self._to("machine"), opening, timing)
        self.machine = Line(self._to("client"), opening, timing)
        self.machine._open = None  # it is opened
        self.tasks = [asyncio.ensure_future(line.run()) for line in (self.client, self.machine)]

    def _to(self, side: str):  # type: ignore[no-untyped-def]
        async def send(data: bytes) -> None:
            if self.random.random() < self.loss:
                self.lost += 1
                return
            message = messages.decode(data)
            line: Line = getattr(self, side)
            if line.over.is_set() and message.kind != messages.RESET:  # as Fleet answers for a line that has ended
                sender = self.client if side == "machine" else self.machine
                sender.receive(messages.reset("unknown", "the line has ended"))
                return
            if message.kind == messages.OPEN:
                line._credit, line._owe = message.credit, True
            asyncio.get_running_loop().call_soon(line.receive, message)

        return send
