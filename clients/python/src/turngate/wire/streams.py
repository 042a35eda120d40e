"""JetStream as far as a trainer may use it: read and write messages of its own streams."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nats.nuid import NUID

from ..errors import (
    InvalidError,
    NotOpenedError,
    NotSentError,
    QueueFullError,
    ServerError,
    TooLargeError,
    TurngateError,
    UnreachableError,
)
from .link import OP_TIMEOUT, Link, log

T = TypeVar("T")

MAX_BATCH = 1000
"""Most messages in one atomic batch."""

HEADER_ROOM = 4096
"""Bytes of max_payload that are kept for headers and the subject."""

MSG_ID = "Nats-Msg-Id"
EXPECT = "Nats-Expected-Last-Subject-Sequence"

# Error codes of the server.
NO_MESSAGE = 10037
NO_STREAM = 10059
WRONG_LAST = (10071, 10164)
DUPLICATE = 10201
IN_PROCESS = 10158
"""An equal message is being stored."""
STREAM_FULL = 10077
FULL = (STREAM_FULL, 10023)
PASSING = (10210, 10176, IN_PROCESS, *FULL)


@dataclass(slots=True)
class Message:
    """Message is to be stored in a stream."""

    subject: str
    data: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Stored:
    """Stored is a message of a stream."""

    subject: str
    seq: int
    data: bytes
    expires: bool = False  # the server deletes it after a while
    time: str = ""  # when it was stored


class Streams:
    """Streams reads and writes messages, through the leader of each stream.

    If a stream is missing, it asks for it with reopen, once for each operation.
    """

    def __init__(
        self, link: Link, timeout: float = OP_TIMEOUT, reopen: Callable[[], Awaitable[object]] | None = None
    ) -> None:
        self.link = link
        self._reopen = reopen
        self._timeout = timeout
        self._nuid = NUID()

    def nuid(self) -> str:
        """Return a new unique token."""
        return self._nuid.next().decode()

    def check_size(self, what: str, size: int) -> None:
        """Check that a message fits.

        Raises:
            TooLargeError: It does not.
        """
        if size + HEADER_ROOM > self.link.max_payload:
            raise TooLargeError(what, size, self.link.max_payload - HEADER_ROOM)

    async def _ask(self, what: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self._opened(lambda: self._ask_once(what, request))

    async def _ask_once(self, what: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        body = json.dumps(request).encode() if request else b""
        answer = await self.link.request(f"$JS.API.{what}", body, timeout=self._timeout)
        return _answer(what, answer.data)

    async def _opened(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Do an operation, and again if it failed because of a missing stream that then was made."""
        try:
            return await operation()
        except NotSentError as e:
            if self._reopen is None or not self.link.connected:
                raise
            try:
                await self._reopen()
            except TurngateError as no:
                raise NotOpenedError(f"{e}; a worker must make it: {no}") from None
        return await operation()

    async def last_sequence(self, stream: str) -> int:
        """Return the sequence of a stream's last message.

        Raises:
            NotOpenedError: There is no such stream.
        """
        info = await self._ask(f"STREAM.INFO.{stream}")
        return int(info["state"]["last_seq"])

    async def created(self, stream: str) -> str:
        """Return the time at which a stream was made.

        Raises:
            NotOpenedError: There is no such stream.
        """
        return str((await self._ask(f"STREAM.INFO.{stream}"))["created"])

    async def exists(self, stream: str) -> bool:
        """Report whether there is such a stream."""
        try:
            await self._ask_once(f"STREAM.INFO.{stream}")
        except NotOpenedError:
            return False
        return True

    async def _get(self, stream: str, request: dict[str, Any]) -> Stored | None:
        try:
            found = (await self._ask(f"STREAM.MSG.GET.{stream}", request))["message"]
        except ServerError as e:
            if e.err_code == NO_MESSAGE:
                return None
            raise
        expires = b"\r\nNats-TTL:" in base64.b64decode(found.get("hdrs", ""))
        return Stored(
            found["subject"],
            int(found["seq"]),
            base64.b64decode(found.get("data", "")),
            expires,
            found.get("time", "")[:19],
        )

    async def last(self, stream: str, subject: str) -> Stored | None:
        """Return the last message of a subject."""
        return await self._get(stream, {"last_by_subj": subject})

    async def next(self, stream: str, subject: str, seq: int) -> Stored | None:
        """Return the first message of a subject, which may have wildcards, at sequence seq or later."""
        return await self._get(stream, {"seq": seq, "next_by_subj": subject})

    async def at(self, stream: str, seq: int) -> Stored | None:
        """Return the message at a sequence."""
        return await self._get(stream, {"seq": seq})

    async def store(self, message: Message) -> int:
        """Store a message and return its sequence.

        Raises:
            ServerError: The server refused it.
            QueueFullError: The stream is full.
            NotSentError: It is not stored.
            UnreachableError: It is not known whether it is stored.
        """
        return (await self.store_once(message))[0]

    async def store_once(self, message: Message) -> tuple[int, bool]:
        """Store a message as store does. It reports also whether the stream had it, by its Nats-Msg-Id."""
        self.check_size(message.subject, len(message.data))

        async def store() -> tuple[int, bool]:
            answer = await self.link.request(message.subject, message.data, message.headers or None)
            stored = _answer(message.subject, answer.data)
            return int(stored["seq"]), bool(stored.get("duplicate"))

        return await self._opened(store)

    async def store_batch(self, messages: Sequence[Message]) -> int:
        """Store all messages or none (NATS ADR-50) and return the sequence of the last one.

        Errors are those of store.
        """
        for m in messages:
            self.check_size(m.subject, len(m.data))
        return await self._opened(lambda: self._batch(messages))

    async def _batch(self, messages: Sequence[Message]) -> int:
        name = self.nuid()
        for i, m in enumerate(messages[:-1]):
            await self.link.publish(
                m.subject, m.data, {**m.headers, "Nats-Batch-Id": name, "Nats-Batch-Sequence": str(i + 1)}
            )
        last = messages[-1]
        headers = {**last.headers, "Nats-Batch-Id": name, "Nats-Batch-Sequence": str(len(messages))}
        answer = await self.link.request(last.subject, last.data, {**headers, "Nats-Batch-Commit": "1"})
        return int(_answer(last.subject, answer.data)["seq"])


def _answer(what: str, data: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except ValueError:
        raise UnreachableError(f"{what}: the server's answer is no JSON") from None
    if not isinstance(answer, dict):
        raise UnreachableError(f"{what}: the server's answer is no object")
    error = answer.get("error")
    if error is None:
        return answer
    code = int(error.get("err_code", 0))
    if code == NO_STREAM:
        raise NotOpenedError(f"{what}: there is no such stream")
    if code in FULL and not what.startswith(("STREAM", "CONSUMER")):
        raise QueueFullError(f"{what}: {error.get('description', 'the stream is full')}", code)
    raise ServerError(what, int(error.get("code", 0)), code, str(error.get("description", "refused")))


def passing(e: Exception) -> bool:
    """Report whether the same operation may succeed later."""
    if isinstance(e, ServerError):
        return e.err_code in PASSING or e.code >= 500
    return isinstance(e, (UnreachableError, QueueFullError))


def refused(e: BaseException) -> bool:
    """Report whether an error means that nothing was stored by that try."""
    if isinstance(e, ServerError):
        return e.err_code != IN_PROCESS
    return isinstance(e, (QueueFullError, NotSentError, InvalidError, TooLargeError))


async def insist(what: str, operation: Callable[[], Awaitable[T]]) -> T:
    """Repeat an operation while the server cannot be reached."""
    wait = 0.05
    while True:
        try:
            return await operation()
        except Exception as e:
            if not passing(e):
                raise
            log.debug("%s: %s; it is tried again", what, e)
        await asyncio.sleep(wait)
        wait = min(2 * wait, 2.0)
