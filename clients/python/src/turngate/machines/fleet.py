"""The machines that are there, and the lines to them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import secrets
import time
from dataclasses import dataclass

from nats.aio.msg import Msg

from ..errors import ClosedError, MachineError, NotSentError, ShapeError, TurngateError
from ..schema import LineOpen, Machine, codec
from ..wire.cancelling import cancelled
from ..wire.link import Link
from . import message as messages
from .line import Line, Timing

CLIENT = "@admin"
"""The client of lines of people with the admin's credential."""

PROTOCOL = 1
"""Version of the bytes of a line that this client knows."""

PRESENT_FOR = 15.0
"""Age in seconds of an announcement above which no line is opened."""

ENDED_FOR = 300.0
"""Seconds for which the name of an ended line is remembered."""

_PRESENCE = re.compile(r"machine\.([A-Za-z0-9_-]{1,40})\.presence", re.ASCII)
_UP = re.compile(r"machine\.([A-Za-z0-9_-]{1,40})\.up\.@admin\.([A-Za-z0-9_-]{1,40})", re.ASCII)


@dataclass(slots=True)
class _Sighting:
    machine: Machine
    at: float


@dataclass(slots=True)
class _Open:
    line: Line
    instance: str


@dataclass(slots=True)
class _Ended:
    subject: str
    at: float


class Fleet:
    """Fleet hears the announcements of machines, and carries the messages of lines."""

    def __init__(self, link: Link, timing: Timing | None = None) -> None:
        self._link = link
        self._timing = timing or Timing()
        self._seen: dict[str, _Sighting] = {}
        self._changed = asyncio.Event()
        self._lines: dict[tuple[str, str], _Open] = {}
        self._ended: dict[tuple[str, str], _Ended] = {}
        self._carrying: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Hear announcements, and the other sides of lines."""
        await self._link.subscribe("machine.*.presence", self._on_presence)
        await self._link.subscribe(f"machine.*.up.{CLIENT}.*", self._on_up)

    async def _on_presence(self, msg: Msg) -> None:
        found = _PRESENCE.fullmatch(msg.subject)
        try:
            machine = codec.decode(Machine, msg.data)
        except TurngateError:
            return
        if found is None or found[1] != machine.machine:
            return
        now, old = time.monotonic(), self._seen.get(machine.machine)
        if (
            old is not None
            and machine.instance != old.machine.instance
            and machine.epoch <= old.machine.epoch
            and now - old.at < self._timing.silence
        ):
            return  # an instance that was fenced
        self._seen[machine.machine] = _Sighting(machine, now)
        for (name, _), opened in list(self._lines.items()):
            if name == machine.machine and (opened.instance != machine.instance or machine.gone):
                opened.line.cancel("the machine's instance has ended")
        self._changed.set()

    def there(self) -> list[Machine]:
        """Return the machines that are there, sorted by name."""
        now = time.monotonic()
        fresh = [s.machine for s in self._seen.values() if now - s.at <= PRESENT_FOR and not s.machine.gone]
        return sorted(fresh, key=lambda machine: machine.machine)

    async def present(self, name: str, capability: str, within: float) -> Machine:
        """Wait for a machine with a capability.

        Raises:
            MachineError: It is not there, or takes no line.
        """
        until = time.monotonic() + within
        while True:
            machine = next((m for m in self.there() if m.machine == name), None)
            if machine is not None:
                break
            self._changed.clear()
            left = until - time.monotonic()
            try:
                await asyncio.wait_for(self._changed.wait(), max(left, 0))
            except asyncio.TimeoutError:
                raise MachineError(name, "offline", "it is not there: start it with turngate machine serve") from None
        if machine.protocol != PROTOCOL:
            version = messages.plain(machine.version)
            text = f"its turngate {version} has version {machine.protocol} of the protocol, want {PROTOCOL}"
            raise MachineError(name, "protocol", text)
        if capability in machine.missing:
            raise MachineError(name, "unsupported", messages.plain(machine.missing[capability]))
        if machine.draining:
            raise MachineError(name, "draining", "it ends, and takes no more work")
        return machine

    def open(self, machine: Machine, capability: str) -> Line:
        """Open a line to an instance of a machine."""
        key = machine.machine, secrets.token_hex(16)
        subject = f"machine.{machine.machine}.down.{machine.instance}.{CLIENT}.{key[1]}"
        line = Line(functools.partial(self._link.publish, subject), LineOpen(want=capability), self._timing)
        self._lines[key] = _Open(line, machine.instance)
        task = asyncio.ensure_future(self._carry(key, subject, line))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return line

    async def _carry(self, key: tuple[str, str], subject: str, line: Line) -> None:
        try:
            await line.run()
        finally:
            del self._lines[key]
            now = time.monotonic()
            self._ended = {k: e for k, e in self._ended.items() if now - e.at < ENDED_FOR}
            self._ended[key] = _Ended(subject, now)

    async def _on_up(self, msg: Msg) -> None:
        found = _UP.fullmatch(msg.subject)
        if found is None:
            return
        try:
            message = messages.decode(msg.data)
        except ShapeError:
            return
        key = found[1], found[2]
        if (opened := self._lines.get(key)) is not None:
            opened.line.receive(message)
        elif (ended := self._ended.get(key)) is not None and message.kind != messages.RESET:
            with contextlib.suppress(NotSentError, ClosedError):  # the last acknowledgement was lost; it comes again
                await self._link.publish(ended.subject, messages.reset("unknown", "the line has ended").encode())

    async def close(self) -> None:
        """End all lines at once."""
        for opened in self._lines.values():
            opened.line.cancel("the client ends")
        if self._carrying:
            await asyncio.wait(set(self._carrying), timeout=1)
        await cancelled(self._carrying)
