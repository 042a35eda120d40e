"""Server-sent events of a front."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Generic, TypeVar

import httpx

from ..errors import UnreachableError
from ..schema import Event, Result
from ..schema.codec import from_json
from .http import AGAIN_AFTER, PASSING, Http, problem

T = TypeVar("T", Event, Result)

SILENT = 45.0
"""Seconds without a byte after which a connection is lost. A front sends something every 15."""


class Feed(Generic[T]):
    """Feed is an iterator over events or results. After a lost connection it goes on where it was, at any front.

    A caller that stops before its end calls aclose, or uses contextlib.aclosing.
    """

    cursor: str
    """Place behind the newest one, for the after of another feed, also of another process."""

    def __init__(self, http: Http, path: str, of: type[T], after: str) -> None:
        self._http = http
        self._path = path
        self._of: type[T] = of
        self.cursor = after
        self._until = 0.0  # end of the attempts to connect; 0: it is connected, or was not lost yet
        self._iterator: AsyncGenerator[T, None] = self._iterate()

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        return await anext(self._iterator)

    async def aclose(self) -> None:
        """End the stream."""
        await self._iterator.aclose()

    async def _iterate(self) -> AsyncGenerator[T, None]:
        while True:
            try:
                async with contextlib.aclosing(self._connected()) as items:
                    async for item in items:
                        yield item
                        if isinstance(item, Event) and item.type == "result":
                            return
                reason: Exception = UnreachableError(f"{self._http.url}: the front ended the stream")
            except httpx.TransportError as e:
                reason = UnreachableError(f"{self._http.url}: {type(e).__name__}: {e}")
            except _Passing as e:
                reason = e.reason
            self._until = self._until or time.monotonic() + self._http.within
            if time.monotonic() > self._until:
                raise reason
            await asyncio.sleep(AGAIN_AFTER)

    async def _connected(self) -> AsyncGenerator[T, None]:
        headers = {"Accept": "text/event-stream"}
        params = {}
        if self.cursor == "end":
            params["after"] = "end"
        elif self.cursor:
            headers["Last-Event-ID"] = self.cursor
        timeout = httpx.Timeout(30, read=SILENT)
        async with self._http.client.stream("GET", self._path, params=params, headers=headers, timeout=timeout) as r:
            if not r.is_success:
                reason = problem(r.status_code, await r.aread())
                raise _Passing(reason) if r.status_code in PASSING else reason
            place = data = ""
            async for line in _lines(r):
                self._until = 0.0
                name, _, value = line.partition(": ")
                if name == "id":
                    place = value
                elif name == "data":
                    data = value
                elif not line and data:
                    item = from_json(self._of, json.loads(data))
                    self.cursor = place or self.cursor
                    place = data = ""
                    yield item


async def _lines(r: httpx.Response) -> AsyncIterator[str]:
    """Yield the lines of an answer. Those of httpx end at U+0085, too, which JSON may have in a text."""
    rest = bytearray()
    async for chunk in r.aiter_bytes():
        *ends, last = chunk.split(b"\n")
        for end in ends:
            yield (rest + end).decode()
            rest.clear()
        rest += last


class _Passing(Exception):
    """_Passing has the reason for which a front does not answer at this moment."""

    def __init__(self, reason: Exception) -> None:
        super().__init__()
        self.reason = reason
