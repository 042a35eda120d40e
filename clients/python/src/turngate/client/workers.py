"""The workers' answers to a trainer: its streams, and the fleet."""

from __future__ import annotations

import asyncio
import contextlib

from ..errors import UnreachableError
from ..schema import Fleet, Opened, codec
from ..wire import names
from ..wire.link import OP_TIMEOUT, Link, log
from ..wire.streams import Streams


class Workers:
    """Workers are the methods of a client that ask a worker."""

    name: str
    _bulk_link: Link
    _streams: Streams
    _missing = "no worker answers"

    def _own_streams(self) -> list[str]:
        buckets = names.tasks_bucket(self.name), names.artifacts_bucket(self.name)
        return [names.queue(self.name), names.records(self.name), *map(names.object_stream, buckets)]

    async def _open_streams(self) -> None:
        wait, logged = 0.1, False
        while True:
            try:
                await self.opened()
                return
            except UnreachableError as e:
                with contextlib.suppress(UnreachableError):
                    if all([await self._streams.exists(s) for s in self._own_streams()]):
                        return
                self._missing = str(e)
                if not logged:
                    log.info("waiting for the first worker: %s", e)
                    logged = True
            await asyncio.sleep(wait)
            wait = min(2 * wait, 2.0)

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
