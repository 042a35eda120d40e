"""A TCP proxy that a test can cut."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType

from turngate.wire.cancelling import cancelled


class Proxy:
    """Proxy carries connections to a port of this host."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._connections: set[asyncio.Task[None]] = set()
        self.made = 0
        """Number of connections so far."""

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self.cut()

    async def cut(self) -> None:
        """End all connections."""
        await cancelled(list(self._connections))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.made += 1
        there: asyncio.StreamWriter | None = None
        try:
            back, there = await asyncio.open_connection("127.0.0.1", self._target)
            ways = [asyncio.ensure_future(_copy(a, b)) for a, b in ((reader, there), (back, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancelled(ways)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            for side in (writer, there):
                if side is not None:
                    side.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
