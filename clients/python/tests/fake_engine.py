"""An HTTP server in the place of an engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

MODELS = '{"data":[{"id":"served"}]}'
OK = (
    '{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[5],'
    '"logprobs":{"content":[{"logprob":-1}]}}],"prompt_token_ids":[1],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
)


@dataclass
class Asked:
    """Asked is a request, and its connection."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    writer: asyncio.StreamWriter = field(repr=False)

    async def send(self, text: str) -> None:
        """Send a piece of an answer that ends with the connection."""
        self.writer.write(text.encode())
        await self.writer.drain()


Answer = tuple[int, str] | tuple[int, str, dict[str, str]]
Handler = Callable[[Asked], Awaitable[Answer | None]]


class FakeEngine:
    """FakeEngine lists a model, and answers completions with a handler.

    The handler returns a status, a body and headers, or None if it wrote the answer itself.
    """

    def __init__(self, handler: Handler, models: str = MODELS) -> None:
        self.handler = handler
        self.models: str | None = models
        self.asked: list[Asked] = []
        self.left = asyncio.Event()  # a client closed its connection during an answer
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def completions(self) -> list[Any]:
        return [a.body for a in self.asked if a.method == "POST"]

    async def __aenter__(self) -> FakeEngine:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        data = await reader.readexactly(int(headers.get("content-length", "0")))
        asked = Asked(method, path, headers, json.loads(data) if data else None, writer)
        self.asked.append(asked)
        if path == "/v1/models" and self.models is not None:
            answer: Answer | None = (200, self.models)
        else:
            gone = asyncio.ensure_future(reader.read(1))
            answering = asyncio.ensure_future(self.handler(asked))
            done, _ = await asyncio.wait({gone, answering}, return_when=asyncio.FIRST_COMPLETED)
            if answering not in done:
                answering.cancel()
                self.left.set()
                return False
            gone.cancel()
            answer = await answering
        if answer is None:
            return False
        status, text, *more = answer
        extra = "".join(f"{name}: {value}\r\n" for name, value in (more[0] if more else {}).items())
        body = text.encode()
        writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{extra}\r\n".encode() + body
        )
        await writer.drain()
        return False


STREAM_HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def events(*data: str) -> str:
    return "".join(f"data: {d}\n\n" for d in data)
