"""The place of this process: one process at a time answers the calls of a trainer's shard."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from nats.aio.msg import Msg

from ..errors import InUseError, NotSentError, ReplacedError, TurngateError, UnreachableError
from ..schema import Attach, Attached, Process, codec
from ..wire import names
from ..wire.link import Link, log

ATTACH_EVERY = 5.0
"""Seconds after which this process asks again for the calls of its shard."""

ATTACH_SOON = 1.0
"""The same while it does not have them."""

SILENT_WITHIN = 60.0
"""Seconds to wait for a process that does not answer: after 40 s of silence, workers give its calls to another one."""

ANSWER_WITHIN = 2.0
"""Seconds in which a process that runs answers another one."""


class Attachment:
    """Attachment asks workers for the calls of a shard, and hears other processes of the trainer."""

    def __init__(self, trainer: str, link: Link, instance: str, shard: str, owner: str, take_over: bool) -> None:
        self.attached = False
        self._trainer, self._link, self._take_over = trainer, link, take_over
        name = f"{Path(sys.argv[0] or 'python').name}, process {os.getpid()} on {socket.gethostname()}"
        self._process = Process(
            instance=instance, owner=owner, shard=shard, name=name[:100], since=int(time.time() * 1000)
        )  # fmt: skip
        self._displaced = asyncio.Event()

    def _inbox_of(self, instance: str) -> str:
        return f"{names.inbox(self._trainer)}.process.{instance}"

    async def listen(self) -> None:
        """Hear other processes from now on."""
        await self._link.subscribe(self._inbox_of(self._process.instance), self._on_message)

    async def _on_message(self, msg: Msg) -> None:
        if msg.reply:
            with contextlib.suppress(TurngateError):
                await self._link.publish(msg.reply)
        self._displaced.set()

    async def attach(self) -> None:
        """Ask for the calls of the shard. Without a worker there are no calls: then keep asks later.

        Raises:
            InUseError: Another process has them.
        """
        give_up, told = time.monotonic() + SILENT_WITHIN, False
        while True:
            try:
                await self._try()
                return
            except InUseError as e:
                if not e.silent or time.monotonic() > give_up:
                    raise
                if not told:
                    log.warning("%s; waiting until a worker takes it for dead", e)
                    told = True
            except TurngateError as e:
                log.info("this process does not have the calls of its shard yet: %s", e)
                return
            await asyncio.sleep(ATTACH_SOON)

    async def _try(self) -> None:
        ask = Attach(process=self._process)
        while True:
            got = await self._ask(ask)
            other = got.process
            if other.instance == self._process.instance:
                self.attached = True
                if ask.replace:
                    log.warning("this process has the place of another one of trainer %s", self._trainer)
                    await self._link.publish(self._inbox_of(ask.replace))
                return
            if not self._take_over:
                runs = await self._runs(other.instance)
                if runs is not False:
                    raise InUseError(
                        self._trainer, other.shard, _described(other), 0.0 if runs else got.silent_ms / 1000 + 0.001
                    )
            log.info("taking the place of %s", _described(other))
            ask.replace = other.instance

    async def _ask(self, ask: Attach) -> Attached:
        answer = await self._link.request(names.trainer_subject(self._trainer, "attach"), codec.encode(ask))
        got = codec.decode(Attached, answer.data)
        if got.error:
            raise UnreachableError(f"ask for the calls of shard {self._process.shard}: {got.error}")
        return got

    async def _runs(self, instance: str) -> bool | None:
        """Report whether another process runs; None: it does not answer."""
        try:
            await self._link.request(self._inbox_of(instance), timeout=ANSWER_WITHIN)
        except NotSentError:
            return False
        except UnreachableError:
            return None
        return True

    async def keep(self, began: Callable[[], Awaitable[None]]) -> ReplacedError | InUseError:
        """Ask again and again. Return when another process has the place of this one.

        Args:
            began: Called when this process has got its place.
        """
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._displaced.wait(), ATTACH_EVERY if self.attached else ATTACH_SOON)
            self._displaced.clear()
            try:
                if not self.attached:
                    await self._try()
                    await began()
                    continue
                got = await self._ask(Attach(process=self._process))
            except InUseError as e:
                if not e.silent:
                    return e
            except TurngateError as e:  # no worker, or no server: nobody else can have them
                log.debug("this process could not ask for its calls: %s", e)
            else:
                if got.process.instance != self._process.instance:
                    return ReplacedError(self._trainer, got.process.shard, _described(got.process))


def _described(p: Process) -> str:
    name = p.name or f"process {p.instance}"
    return f"{name}, since {datetime.datetime.fromtimestamp(p.since / 1000):%Y-%m-%d %H:%M:%S}" if p.since else name
