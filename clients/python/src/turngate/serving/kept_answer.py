"""The answer to one call, kept until its rollout has a result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import CallOverError
from ..wire.body import Body
from ..wire.names import Key
from ..wire.outbox import Frame

ACCEPT_AFTER = 0.2
"""Seconds before the accept: a call that is answered at once needs none. A worker waits for two seconds."""


class Frames(Protocol):
    """Frames sends the frames of answers to their workers."""

    def send(self, reply: str, frame: Frame) -> None: ...


@dataclass(slots=True)
class IncomingCall:
    """IncomingCall is a worker's request for an answer."""

    key: Key
    reply: str
    kind: str = "llm"  # llm, tool or verify, as in the subject
    resume_gen: str = ""  # the generation of which the worker has deltas already
    resume: int = 0  # the number of these deltas
    received: list[int] = field(default_factory=list)  # earlier calls with an answer that the worker has
    body: bytes = b""
    trace: Mapping[str, str] = field(default_factory=dict)  # headers of the worker's span


@dataclass(slots=True, eq=False)
class Answer:
    """Answer is finished or in progress. A worker that asks again gets it, never a second generation."""

    key: Key
    gen: str
    outbox: Frames
    reply: str = ""
    deltas: list[Body] = field(default_factory=list)
    final: Frame | None = None
    answered: bool = False
    out: bool = False  # the call was handed out
    gone: bool = False  # the worker gave the call up, or its attempt is over
    received: bool = False  # the worker has the answer, which is dropped here
    accepted: bool = False  # the worker got an accept
    read: asyncio.Event = field(default_factory=asyncio.Event)  # the call is usable as a base, or never will be
    over: asyncio.Event = field(default_factory=asyncio.Event)
    on_over: list[Callable[[], object]] = field(default_factory=list)
    sent: float = 0.0  # time of the last delta
    since: float = field(default_factory=time.monotonic)  # time of the call

    @property
    def wanted(self) -> bool:
        """Whether the call still needs an answer."""
        return not self.answered and not self.gone

    def open(self, reply: str) -> None:
        """Take the worker's first request. An accept follows, unless the call is answered first."""
        if not self.reply:
            self.reply = reply
        asyncio.get_running_loop().call_later(ACCEPT_AFTER, self._accept)

    def _accept(self) -> None:
        if not self.accepted:
            self.sign(held=False)

    def sign(self, held: bool) -> None:
        """Send an accept the first time, and beats afterwards."""
        if not self.wanted or not self.reply:
            return
        kind = "beat" if self.accepted else "accept"
        self.accepted = True
        self._send(Frame(kind, self.gen, held=held))

    def attach(self, incoming: IncomingCall, held: bool) -> None:
        """Take a repeated request: send what the worker does not have."""
        if self.received:
            return  # a request that was late
        self.reply = incoming.reply
        have = min(incoming.resume, len(self.deltas)) if incoming.resume_gen == self.gen else 0
        if self.final is None and not self.gone:
            self._send(Frame("accept", self.gen, held=held))
            self.accepted = True
        for i in range(have, len(self.deltas)):
            self._send(Frame("delta", self.gen, seq=i, body=self.deltas[i]))
        if self.final is not None:
            self._send(self.final)

    def add(self, body: Body) -> None:
        """Send one piece of the answer."""
        self._check()
        self.deltas.append(body)
        self.accepted, self.sent = True, time.monotonic()
        self._send(Frame("delta", self.gen, seq=len(self.deltas) - 1, body=body))

    def finish(self, kind: str, body: Body, retain: bool = True) -> None:
        """Send the last frame. If retain, a worker that asks again gets it again."""
        self._check()
        frame = Frame(kind, self.gen, seq=len(self.deltas), body=body)
        self.answered = True
        if retain:
            self.final = frame
        self._send(frame)
        self._end()

    def drop(self) -> None:
        """Drop the answer, since the worker has it. What is left keeps a late request from a second generation."""
        if self.answered:
            self.received, self.deltas, self.final = True, [], None

    def give_up(self) -> None:
        """End the call without an answer."""
        if not self.gone:
            self.gone = True
            self._end()

    def _end(self) -> None:
        self.read.set()
        self.over.set()
        callbacks, self.on_over = self.on_over, []
        for callback in callbacks:
            callback()

    def _check(self) -> None:
        if not self.wanted:
            raise CallOverError(f"call {self.key} needs no answer any more")

    def _send(self, frame: Frame) -> None:
        self.outbox.send(self.reply, frame)
