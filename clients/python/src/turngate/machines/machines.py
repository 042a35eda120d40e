"""The machines of a server."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType

from ..client.client import URL
from ..errors import InvalidError
from ..schema import Machine
from ..wire import contexts, names
from ..wire.link import Link
from .fleet import Fleet
from .line import Timing
from .workspace import Workspace

LIST_WITHIN = 3.0
"""Seconds that list listens. A machine announces itself every 2 s."""

CONNECT_WITHIN = 30.0


class Machines:
    """Machines is a connection to the machines of a server, with the admin's credential. Use connect."""

    def __init__(self, link: Link, timing: Timing | None = None) -> None:
        self._link = link
        self._fleet = Fleet(link, timing)

    @classmethod
    async def connect(
        cls,
        url: str = URL,
        creds: str | os.PathLike[str] | None = None,
        *,
        context: str = "",
        within: float = CONNECT_WITHIN,
        timing: Timing | None = None,
    ) -> Machines:
        """Connect.

        Args:
            url: URL of the NATS server; several separated by commas.
            creds: A file with the seed of the admin's nkey: admin.nk.
            context: Name of a context (`turngate context ls`), which has the URL and the credential.
            within: Seconds to wait for the server.
            timing: Times of the lines to machines, which should have the same.

        Raises:
            UnreachableError: The server did not answer in time.
            InvalidError: An argument is not valid, or the credential is not that of the admin.
        """
        path = os.fspath(creds) if creds is not None else None
        if context:
            if path is not None or url != URL:
                raise InvalidError("context", context, "want it without url and creds")
            url, path = await asyncio.to_thread(contexts.read, context, "admin")
        link = await Link.open(url, path, "machines", names.ADMIN_INBOX, within, "admin.nk")
        self = cls(link, timing)
        try:
            await self._fleet.listen()
            if link.violation:
                raise InvalidError("creds", path, f"want the admin's: {link.violation}")
        except BaseException:
            await link.close()
            raise
        return self

    def __getitem__(self, name: str) -> Workspace:
        """Return the workspace of a machine, which need not be there yet."""
        return Workspace(names.check_token("machine", name), self._fleet)

    async def list(self) -> list[Machine]:
        """Listen for 3 s, and return the machines that are there, sorted by name."""
        await asyncio.sleep(LIST_WITHIN)
        return self._fleet.there()

    async def close(self) -> None:
        """End all sandboxes, and disconnect."""
        await self._fleet.close()
        await self._link.close()

    async def __aenter__(self) -> Machines:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
