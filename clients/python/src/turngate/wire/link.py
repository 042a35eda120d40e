"""One connection to NATS."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg

from ..errors import ClosedError, InvalidError, NotSentError, UnreachableError
from . import private_files as owned

log = logging.getLogger("turngate")

Handler = Callable[[Msg], Awaitable[None]]

OP_TIMEOUT = 5.0
"""Seconds that a request to the server may take."""

PENDING_MESSAGES = 1 << 20
PENDING_BYTES = 512 << 20


TELL_AFTER = 2.0
"""Seconds after which a wait is logged for the first time. Each further line comes after three times as many."""


@contextlib.contextmanager
def waiting(text: Callable[[], str]) -> Iterator[None]:
    """Log what the block waits for, at growing intervals, until it ends."""

    async def tell() -> None:
        seconds = TELL_AFTER
        while True:
            await asyncio.sleep(seconds)
            log.warning("%s", text())
            seconds *= 3

    telling = asyncio.ensure_future(tell())
    try:
        yield
    finally:
        telling.cancel()


class Link:
    """Link is a connection that comes back by itself, also after the server refused it for a while.

    While it is lost, publishing fails at once and nothing is buffered.
    """

    def __init__(self, url: str, options: dict[str, Any], file: str) -> None:
        self._url = url
        self._file = file
        self._options = options
        self._nc = NATS()
        self._subscriptions: dict[str, Handler] = {}
        self._closed = False
        self._again: asyncio.Task[None] | None = None
        self._lost: float | None = None  # the time of the loop, while the connection is lost
        self._level = logging.WARNING
        self.violation = ""
        """The last message of the server that the credentials do not allow a subject."""
        self.violated = asyncio.Event()

    @classmethod
    async def open(
        cls,
        url: str,
        creds: str | None,
        name: str,
        inbox: str,
        within: float = OP_TIMEOUT,
        file: str = "trainer-NAME.nk",
        quiet: bool = False,
    ) -> Link:
        """Connect. file is the name of the right credential's file, for errors. A quiet link does not warn of its
        losses, as another one of the process does.

        Raises:
            UnreachableError: No server took the connection within that many seconds.
            InvalidError: The credentials are not usable.
        """
        options = {"name": name, "inbox_prefix": inbox, **credentials(creds)}
        link = cls(url, options, file)
        if quiet:
            link._level = logging.DEBUG
        with waiting(lambda: f"waiting for NATS at {_redacted(url)}, for up to {within:g} s"):
            await link._dial(within)
        return link

    async def _dial(self, within: float) -> None:
        nc, refused = NATS(), asyncio.get_running_loop().create_future()
        last: list[Exception] = []

        async def on_error(e: Exception) -> None:
            last.append(e)
            del last[:-1]
            if "permissions violation" in str(e).lower():
                self.violation = str(e)
                self.violated.set()
            if self._nc is nc and isinstance(e, (OSError, nats.errors.UnexpectedEOF, nats.errors.StaleConnectionError)):
                self._gone("the NATS connection is lost")
            elif self._nc is nc:
                log.log(self._level, "NATS error: %s", e)
            elif "uthorization" in str(e) and not refused.done():
                refused.set_result(None)

        async def on_closed() -> None:
            if self._nc is nc and not self._closed:
                self._gone("the server has closed the NATS connection")
                self._again = asyncio.get_running_loop().create_task(self._redial())

        async def on_disconnect() -> None:
            if self._nc is nc and not self._closed:
                self._gone("the NATS connection is lost")

        async def on_reconnect() -> None:
            self._back()

        connecting = asyncio.ensure_future(
            nc.connect(
                servers=[u.strip() for u in self._url.split(",")],
                error_cb=on_error,
                closed_cb=on_closed,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_reconnect,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # type: ignore[arg-type]  # seconds
                ping_interval=10,
                max_outstanding_pings=2,
                connect_timeout=5,
                **self._options,
            )
        )
        try:
            await asyncio.wait({connecting, refused}, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not connecting.done():
                connecting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            try:
                await connecting
                self._nc = nc
                return
            except (OSError, nats.errors.Error, asyncio.TimeoutError) as e:
                last.append(e)
        with contextlib.suppress(Exception):
            await nc.close()
        reason = str(last[-1]) if last else f"no answer within {within:g} s"
        if refused.done():
            given = "the credentials are not those of this server" if len(self._options) > 2 else "it wants credentials"
            reason = f"{given} (creds=); turngate up writes creds/{self._file} below its state: {reason}"
        raise UnreachableError(f"connect to NATS at {_redacted(self._url)}: {reason}")

    def _gone(self, what: str) -> None:
        """Tell of the loss of the connection, once."""
        if self._lost is None:
            self._lost = asyncio.get_running_loop().time()
            log.log(self._level, "%s; it is opened again", what)

    def _back(self) -> None:
        if self._lost is not None:
            seconds, self._lost = asyncio.get_running_loop().time() - self._lost, None
            log.log(self._level, "the NATS connection is back after %.1f s", seconds)

    async def _redial(self) -> None:
        wait = 0.25
        while not self._closed:
            try:
                await self._dial(OP_TIMEOUT)
                for subject, handler in self._subscriptions.items():
                    await self._subscribe(subject, handler)
                self._back()
                return
            except (UnreachableError, nats.errors.Error, OSError) as e:
                log.debug("NATS: %s", e)
                await asyncio.sleep(wait)
                wait = min(2 * wait, 5.0)

    @property
    def max_payload(self) -> int:
        """Largest message in bytes that the server takes."""
        return self._nc.max_payload

    @property
    def connected(self) -> bool:
        return self._nc.is_connected

    def _check(self) -> None:
        if self._closed:
            raise ClosedError("the connection is closed")
        if not self._nc.is_connected:
            raise NotSentError("NATS cannot be reached at this moment")

    async def publish(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, reply: str = ""
    ) -> None:
        """Publish a message.

        Raises:
            NotSentError: There is no connection now.
        """
        self._check()
        try:
            await self._nc.publish(subject, data, reply=reply, headers=headers)
        except (nats.errors.Error, OSError) as e:
            raise NotSentError(f"publish to {subject}: {e}") from e

    async def request(
        self, subject: str, data: bytes = b"", headers: dict[str, str] | None = None, timeout: float = OP_TIMEOUT
    ) -> Msg:
        """Publish a message and wait for one answer.

        Raises:
            NotSentError: There is no connection now, or nothing takes such messages.
            UnreachableError: There was no answer in time. It is not known whether the message arrived.
        """
        self._check()
        try:
            return await self._nc.request(subject, data, timeout=timeout, headers=headers)
        except nats.errors.NoRespondersError:
            raise NotSentError(f"nothing answers on {subject}") from None
        except (nats.errors.Error, asyncio.TimeoutError, OSError) as e:
            raise UnreachableError(f"request to {subject}: {e or type(e).__name__}") from e

    async def subscribe(self, subject: str, handler: Handler) -> None:
        """Call handler for every message, one after the other, until unsubscribe or close.

        Raises:
            UnreachableError: There is no connection now, or the server did not answer. There is no subscription.
        """
        self._check()
        self._subscriptions[subject] = handler
        try:
            await self._subscribe(subject, handler)
            await self.flush()
        except BaseException:
            await self.unsubscribe(subject)
            raise

    async def _subscribe(self, subject: str, handler: Handler) -> None:
        await self._nc.subscribe(
            subject, cb=handler, pending_msgs_limit=PENDING_MESSAGES, pending_bytes_limit=PENDING_BYTES
        )

    async def unsubscribe(self, subject: str) -> None:
        """End a subscription."""
        self._subscriptions.pop(subject, None)
        for sub in list(self._nc._subs.values()):
            if sub.subject == subject:
                with contextlib.suppress(nats.errors.Error):
                    await sub.unsubscribe()

    async def flush(self) -> None:
        """Wait until the server has everything that was published."""
        try:
            while self._nc.is_connected and self._nc.pending_data_size:  # noqa: ASYNC110 - the library has no event
                await asyncio.sleep(0)  # the ping of the library overtakes commands that are not written yet
            await self._nc.flush(timeout=OP_TIMEOUT)  # type: ignore[arg-type]  # seconds
        except (nats.errors.Error, asyncio.TimeoutError, OSError) as e:
            raise UnreachableError(f"flush: {e or type(e).__name__}") from e

    async def close(self) -> None:
        """Send what was published, for up to 2 s, and close the connection."""
        self._closed = True
        if self._again is not None:
            self._again.cancel()
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.flush(), 2)
        with contextlib.suppress(Exception):
            await self._nc.close()


def credentials(creds: str | None) -> dict[str, Any]:
    """Return the options of nats-py for a .creds file, or a file with an nkey seed.

    Raises:
        InvalidError: The file is neither.
    """
    if creds is None:
        return {}
    try:
        owned.check(creds)
        text = Path(creds).read_text()
    except OSError as e:
        raise InvalidError("creds", creds, f"want a readable file of this user: {e.strerror}") from None
    if "BEGIN NATS USER JWT" in text:
        return {"user_credentials": creds}
    if text.strip().startswith("S"):
        return {"nkeys_seed": creds}
    raise InvalidError("creds", creds, "want a .creds file or a file with an nkey seed")


def _redacted(url: str) -> str:
    scheme, found, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if found else url
