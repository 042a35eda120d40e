"""The workers' answers to a trainer: its streams, and the fleet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from ..errors import InvalidError, UnreachableError
from ..schema import Fleet, Opened, codec
from ..wire import names
from ..wire.cancelling import cancelled
from ..wire.link import OP_TIMEOUT, Link
from ..wire.streams import Streams


class Workers:
    """Workers are the methods of a client that ask a worker."""

    name: str
    _bulk_link: Link
    _creds: str | None
    _streams: Streams
    _missing = "no worker answers"

    def _own_streams(self) -> list[str]:
        buckets = names.tasks_bucket(self.name), names.artifacts_bucket(self.name)
        return [names.queue(self.name), names.records(self.name), *map(names.object_stream, buckets)]

    async def _open_streams(self) -> None:
        wait = 0.1
        while True:
            try:
                await self._permitted(self.opened())
                return
            except UnreachableError as e:
                with contextlib.suppress(UnreachableError):
                    if all([await self._streams.exists(s) for s in self._own_streams()]):
                        return
                self._missing = str(e)
            await asyncio.sleep(wait)
            wait = min(2 * wait, 2.0)

    async def _permitted(self, request: Coroutine[Any, Any, Any]) -> None:
        """Wait for a request, which gets no answer if the credentials do not allow it.

        Raises:
            InvalidError: They do not.
        """
        link = self._bulk_link
        asked, refused = asyncio.ensure_future(request), asyncio.ensure_future(link.violated.wait())
        try:
            await asyncio.wait({asked, refused}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                await asyncio.wait({asked}, timeout=1)  # the refusal may be of something else
            if not asked.done():
                want = f"want the credentials of the trainer {self.name}: {link.violation}"
                raise InvalidError("creds", self._creds, want)
            await asked
        finally:
            await cancelled((asked, refused))

    async def opened(self) -> Opened:
        """Ask a worker to make this trainer's streams if they are missing, and return the trainer's bounds.

        Raises:
            UnreachableError: No worker answers, or it cannot make them now.
        """
        answer = await self._bulk_link.request(names.trainer_subject(self.name, "open"), timeout=10)
        opened = codec.decode(Opened, answer.data)
        if opened.error:
            raise UnreachableError(f"the streams of trainer {self.name} cannot be made: {opened.error}")
        return opened

    async def fleet(self, within: float = OP_TIMEOUT) -> Fleet:
        """Return the live workers: what each offers, and its used slots.

        Args:
            within: Seconds to wait for the answer.

        Raises:
            UnreachableError: No worker answers.
        """
        answer = await self._bulk_link.request(names.trainer_subject(self.name, "fleet"), timeout=within)
        return codec.decode(Fleet, answer.data)
