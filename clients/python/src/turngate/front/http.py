"""Requests to a front."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from ..errors import InvalidError, NotFoundError, TurngateError, UnreachableError
from ..wire import traces

AGAIN_AFTER = 0.5
"""Seconds before a request whose answer was lost is sent again."""

PASSING = (429, 502, 503, 504)
"""Statuses after which the same request may succeed."""


class FrontError(TurngateError):
    """The front refused a request. A retry does not help, unless its status is 429 or 503."""

    def __init__(self, status: int, code: str, detail: str, field: str = "") -> None:
        super().__init__(detail or f"status {status}")
        self.status = status
        self.code = code
        self.field = field
        """Path of the wrong field; empty: there is none."""


def problem(status: int, body: bytes) -> Exception:
    """Return the error that an answer describes."""
    try:
        values = httpx.Response(status, content=body).json()
    except ValueError:
        values = None
    if not isinstance(values, dict):
        return FrontError(status, "", body[:200].decode(errors="replace"))
    detail = str(values.get("detail", ""))
    if status == 404:
        return NotFoundError(detail)
    return FrontError(status, str(values.get("code", "")), detail, str(values.get("field", "")))


class Http:
    """Http sends requests to a front, again while the front cannot be reached."""

    def __init__(self, url: str, token: str, within: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
            raise InvalidError("url", parts.hostname or url, "want a URL such as http://127.0.0.1:8420")
        if not token:
            raise InvalidError("token", "", "want a token of the front")
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {token}"}
        self.within = within
        limits, timeout = httpx.Limits(max_connections=None), httpx.Timeout(150, connect=30)
        self.client = httpx.AsyncClient(base_url=self.url, headers=self.headers, limits=limits, timeout=timeout)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a request that may be sent twice.

        Raises:
            FrontError: The front refused it.
            NotFoundError: There is no such rollout or file.
            UnreachableError: No front answered in time.
        """
        until = time.monotonic() + self.within
        headers = {**(headers or {}), **traces.current()}
        while True:
            pause = AGAIN_AFTER
            try:
                r = await self.client.request(method, path, params=params, json=json, content=content, headers=headers)
            except httpx.TransportError as e:
                reason: Exception = UnreachableError(f"{self.url}: {type(e).__name__}: {e}")
            else:
                if r.is_success:
                    return r
                reason = problem(r.status_code, r.content)
                if r.status_code not in PASSING:
                    raise reason
                after = r.headers.get("Retry-After", "")
                pause = float(after) if after.isdecimal() else pause
            if time.monotonic() + pause > until:
                raise reason
            await asyncio.sleep(pause)
