"""The box, which is the first process of a sandbox: the proof of its secret, and its operations."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any

from ..errors import OperationError, SandboxLostError
from ..wire.cancelling import cancelled
from . import operation as operations
from .forwards import Forwards
from .line import Line
from .mux import Mux
from .operation import BYTES, EOF, HEADER, OK, Operation, header, parsed

HOLD_EVERY = 10.0
"""Seconds between two signs of life to the box."""

END_WITHIN = 20.0
"""Seconds that the machine may take to end a sandbox."""

NONCE = 32
"""Bytes of a random value of the proof."""


def proof(secret: bytes, role: str, worker_nonce: bytes, box_nonce: bytes) -> bytes:
    """Return the proof that a side, worker or box, knows the secret."""
    return hmac.digest(secret, role.encode() + worker_nonce + box_nonce, hashlib.sha256)


async def prove(line: Line, secret: bytes) -> None:
    """Prove the secret to the box, and have it proved.

    Raises:
        ConnectionError: The line ends, or the other side does not know the secret.
    """
    mine = secrets.token_bytes(NONCE)
    await line.write(mine)
    theirs = await line.exactly(NONCE)
    await line.write(proof(secret, "worker", mine, theirs))
    if not hmac.compare_digest(await line.exactly(hashlib.sha256().digest_size), proof(secret, "box", mine, theirs)):
        raise ConnectionError("the other side does not know the box's secret")


_ENDS = {
    82: "the machine, or the sandbox, had no memory left",
    83: "a process on the machine killed it",
}
"""What the exit statuses of the machine's process mean."""


class Box:
    """Box runs the operations of a box over a line. The line belongs to it."""

    def __init__(self, line: Line, machine: str) -> None:
        self._line = line
        self._forwards = Forwards()
        self._mux = Mux(line, self._forwards.accept)
        self._machine = machine
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, secret: bytes) -> None:
        """Prove the secret and begin.

        Raises:
            ConnectionError: The line ends, or the other side does not know the secret.
        """
        await prove(self._line, secret)
        self._tasks.append(asyncio.ensure_future(self._mux.run()))
        held = Operation(await self._mux.open(), "hold")
        await held.send(HEADER, header("hold", {}))
        self._tasks.append(asyncio.ensure_future(self._hold(held)))

    async def _hold(self, held: Operation) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await asyncio.sleep(HOLD_EVERY)
                await held._stream.write(b"\x01")

    async def close(self) -> None:
        """End the sandbox with everything in it, and wait until the machine has removed it."""
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._end(), END_WITHIN)
        finally:
            self._line.cancel("the client ends")
            await cancelled(self._tasks)

    async def _end(self) -> None:
        await self._forwards.close()
        await self._mux.close()
        self._line.finish()
        await self._line.over.wait()

    async def begin(self, name: str, fields: Mapping[str, Any]) -> Operation:
        """Begin an operation.

        Raises:
            SandboxLostError: The sandbox is gone.
            OperationError: The machine does not take the operation.
        """
        opening = header(name, fields)
        try:
            return await asyncio.wait_for(self._begin(name, opening), operations.ANSWER_WITHIN)
        except asyncio.TimeoutError:
            raise operations.no_answer(name) from None
        except ConnectionError:
            raise await self.lost() from None

    async def _begin(self, name: str, opening: bytes) -> Operation:
        operation = Operation(await self._mux.open(), name)
        try:
            await operation.send(HEADER, opening)
        except BaseException:
            await operation.close()
            raise
        return operation

    async def call(
        self, name: str, fields: Mapping[str, Any], content: bytes | None = None, most: int = 0
    ) -> tuple[Any, bytes]:
        """Run an operation, and return its result and its bytes, at most so many.

        Raises:
            SandboxLostError: The sandbox is gone.
            FileNotFoundError, OperationError: See Operation.answer.
        """
        operation, got = await self.begin(name, fields), bytearray()
        sending = asyncio.ensure_future(_content(operation, content)) if content is not None else None
        try:
            while True:
                kind, payload = await operation.answer()
                if kind == OK:
                    return parsed(payload), bytes(got)
                if kind == BYTES:
                    got += payload
                    if len(got) > most:
                        raise OperationError(name, "too_large", f"the answer has more than {most} bytes")
        except ConnectionError:
            raise await self.lost() from None
        finally:
            if sending is not None:
                await cancelled([sending])
            await operation.close()

    async def forward(self, inside: int, host: str, port: int) -> None:
        """Carry connections to a port of the sandbox to a target.

        Raises:
            SandboxLostError: The sandbox is gone.
            OperationError: The port is in use, or too many lead out.
        """
        self._forwards.add(inside, host, port)
        try:
            await self.call("forward", {"port": inside})
        except BaseException:
            self._forwards.remove(inside)
            raise

    async def lost(self) -> SandboxLostError:
        """Return the error of an operation whose stream broke."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._line.over.wait(), END_WITHIN if self._mux.over else 1)
        reason, text = self.why()
        return SandboxLostError(self._machine, reason, f"the sandbox is lost: {text or 'its box has ended'}")

    def why(self) -> tuple[str, str]:
        """Return the reason for the end of the line, and a text, which is empty while it runs."""
        end = self._line.end
        if not self._line.over.is_set():
            return "failed", ""
        if end.reason:
            return end.reason, end.text or end.reason
        return "failed", _ENDS.get(end.status) or end.text or f"its process ended with exit status {end.status}"


async def _content(operation: Operation, content: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # the answer says it
        await operation.send_bytes(content)
        await operation.send(EOF)
