"""Requests to an upstream."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from urllib.parse import urlsplit

import httpx

from ..errors import InvalidError
from ..serving.refusal import bad_answer, fail, refused

MOST_ANSWER = 64 << 20
"""Longest answer that is read, in bytes."""

_MOST_REFUSAL = 64 << 10


class Connection:
    """Connection sends requests. Their errors are faults."""

    def __init__(self, url: str, key: str, client: httpx.AsyncClient | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidError("url", url, "want a URL such as http://127.0.0.1:8000")
        if parts.username or parts.password:
            raise InvalidError("url", parts.hostname, "put the key into TURNGATE_UPSTREAM_KEY, not into the URL")
        self.host = parts.netloc
        self.root = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        # An answer takes as long as the generation; the call ends it.
        limits, timeout = (
            httpx.Limits(max_connections=None, max_keepalive_connections=256),
            httpx.Timeout(None, connect=30),
        )
        self._client = client or httpx.AsyncClient(limits=limits, timeout=timeout)
        self._owned = client is None

    async def close(self) -> None:
        if self._owned:
            await self._client.aclose()

    @contextlib.asynccontextmanager
    async def _open(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        content = {"Content-Type": "application/json"} if body is not None else {}
        try:
            async with self._client.stream(
                method, self.root + path, content=body, headers={**self._headers, **content, **headers}
            ) as response:
                if response.status_code != 200:
                    data = await _read(response, _MOST_REFUSAL)
                    raise refused(response.status_code, response.reason_phrase, response.headers, data)
                yield response
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as e:
            raise fail(503, f"it cannot be reached: {e}") from None
        except httpx.HTTPError as e:
            raise fail(502, f"the answer broke off: {e or type(e).__name__}") from None

    async def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
        """Return the body of an answer.

        Raises:
            FaultError: There is none, or a Refusal came.
        """
        async with self._open(method, path, body, headers) as response:
            return await _read(response, MOST_ANSWER)

    async def events(self, path: str, body: bytes, headers: Mapping[str, str]) -> AsyncGenerator[str, None]:
        """Yield the data of the events of a stream, up to [DONE].

        Raises:
            FaultError: The stream broke off, or a Refusal came instead.
        """
        async with self._open("POST", path, body, headers) as response:
            size, rest, first = 0, b"", b""
            async for piece in response.aiter_bytes():
                size += len(piece)
                if size > MOST_ANSWER:
                    break
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    first = first or line.strip()
                    if not line.startswith(b"data:"):
                        continue
                    data = line[len(b"data:") :].strip().decode(errors="replace")
                    if data == "[DONE]":
                        return
                    yield data
            first = first or rest.strip()
            if first[:1] in (b"<", b"{", b"["):
                text = first[:200].decode(errors="replace")
                raise bad_answer(f"it is no stream of events; it begins with {text!r}")
            raise fail(502, "the stream broke off")


async def _read(response: httpx.Response, most: int) -> bytes:
    out = bytearray()
    async for piece in response.aiter_bytes():
        out += piece
        if len(out) > most:
            break
    return bytes(out[:most])
