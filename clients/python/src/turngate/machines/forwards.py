"""Ports in a sandbox that lead out of it."""

from __future__ import annotations

import asyncio
import contextlib

from ..errors import InvalidError, OperationError, TurngateError
from ..wire.cancelling import cancelled
from .mux import Stream
from .operation import BYTES, CHUNK, EOF, HEADER, Operation, parsed

HEADER_WITHIN = 60.0
"""Seconds within which the box names the port of a connection."""

CONNECT_WITHIN = 10.0
"""Seconds that a connection to a target may take."""


class Forwards:
    """Forwards carries connections to ports of the sandbox, each to its target."""

    def __init__(self) -> None:
        self._targets: dict[int, tuple[str, int]] = {}
        self._carrying: set[asyncio.Task[None]] = set()

    def add(self, inside: int, host: str, port: int) -> None:
        """Set the target of a port.

        Raises:
            InvalidError: It is no port.
            OperationError: It has a target.
        """
        if not 0 < inside < 1 << 16:
            raise InvalidError("inside", inside, "want a port from 1 to 65535")
        if inside in self._targets:
            raise OperationError("forward", "other", f"the port {inside} is in use")
        self._targets[inside] = host, port

    def remove(self, inside: int) -> None:
        """Forget the target of a port."""
        del self._targets[inside]

    def accept(self, stream: Stream) -> None:
        """Carry a connection, whose stream the box has opened."""
        task = asyncio.ensure_future(self._carry(stream))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, stream: Stream) -> None:
        connection = Operation(stream, "forward")
        try:
            kind, payload = await asyncio.wait_for(connection.next(), HEADER_WITHIN)
            target = self._targets.get(parsed(payload).get("port", 0)) if kind == HEADER else None
            if target is not None:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(*target), CONNECT_WITHIN)
                try:
                    await _both(connection, stream, reader, writer)
                finally:
                    writer.close()
        except (OSError, asyncio.TimeoutError, AttributeError, TypeError, TurngateError):
            pass  # the program in the sandbox sees its end
        finally:
            await stream.close(True)

    async def close(self) -> None:
        """End all connections."""
        await cancelled(self._carrying)


async def _both(
    connection: Operation, stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Carry bytes in both directions until the target has ended its own, or the other side is gone."""

    async def out() -> None:
        while True:
            kind, payload = await connection.next()
            if kind == BYTES:
                writer.write(payload)
                await writer.drain()
            elif kind == EOF and writer.can_write_eof():
                writer.write_eof()

    async def back() -> None:
        while data := await reader.read(CHUNK):
            await stream.write(data)

    ways = [asyncio.ensure_future(way()) for way in (out, back)]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        with contextlib.suppress(OSError):
            await cancelled(ways)
