"""The place of this process: one process at a time answers the calls of a trainer's shard."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from nats.aio.msg import Msg

from ..errors import InUseError, NotSentError, ReplacedError, TurngateError, UnreachableError
from ..schema import Attach, Attached, Process, codec
from ..wire import names
from ..wire.link import Link, log
from ..wire.quiet import Lines

ATTACH_EVERY = 5.0
"""Seconds after which this process asks again for the calls of its shard."""

ATTACH_SOON = 1.0
"""The same while it does not have them."""

SILENT_WITHIN = 60.0
"""Seconds to wait for a process that does not answer: after 40 s of silence, workers give its calls to another one."""

ANSWER_WITHIN = 2.0
"""Seconds in which a process that runs answers another one."""

HEARD_LATELY = 10.0
"""Seconds of silence after which a process is not reconnecting any more."""

MOST_ASKED = 3
"""Number of times that a process is asked which was heard lately."""

ASK_AGAIN = 0.4
"""Seconds between these. A connection comes back within half a second if it can."""

UNATTACHED_FOR = 3.0
"""Seconds after which a process without its calls says so."""


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

    def _inbox_of_shard(self, shard: str) -> str:
        """Return the subject on which the process that has a shard hears others that ask for it."""
        return f"{names.inbox(self._trainer)}.shard.{shard}"

    async def listen(self) -> None:
        """Hear other processes from now on."""
        await self._link.subscribe(self._inbox_of(self._process.instance), self._on_message)

    async def _on_message(self, msg: Msg) -> None:
        if msg.reply:
            with contextlib.suppress(TurngateError):
                await self._link.publish(msg.reply)
        self._displaced.set()

    async def _on_asked(self, msg: Msg) -> None:
        with contextlib.suppress(TurngateError):
            await self._link.publish(msg.reply, codec.encode(Attached(process=self._process)))

    async def attach(self) -> None:
        """Ask for the calls of the shard. Without a worker there are no calls: then keep asks later.

        Raises:
            InUseError: Another process has them.
        """
        give_up, logged = time.monotonic() + SILENT_WITHIN, False
        while True:
            try:
                await self._try()
                return
            except InUseError as e:
                if not e.silent or time.monotonic() > give_up:
                    raise
                if not logged:
                    log.warning("%s; waiting until a worker takes it for dead", e)
                    logged = True
            except TurngateError as e:
                log.info("this process does not have the calls of its shard yet: %s", e)
                return
            await asyncio.sleep(ATTACH_SOON)

    async def _try(self) -> None:
        ask = Attach(process=self._process)
        before: Process | None = None  # that it replaces
        holder = await self.holder(self._process.shard)
        if holder is not None:
            if not self._take_over:
                raise self._in_use(holder, 0.0)
            ask.replace, before = holder.instance, holder
        while True:
            got = await self._ask(ask)
            other = got.process
            if other.instance == self._process.instance:
                await self._has_attached(before)
                return
            if not self._take_over:
                silent = got.silent_ms / 1000 + 0.001
                runs = await self._runs(other.instance, silent)
                if runs is not False:
                    raise self._in_use(other, 0.0 if runs else silent)
            ask.replace, before = other.instance, other

    async def holder(self, shard: str) -> Process | None:
        """Ask for the process that has a shard; None: none answers.

        Workers do not know it after a restart of the server, or when all of them were away for a while.
        """
        try:
            answer = await self._link.request(self._inbox_of_shard(shard), timeout=ANSWER_WITHIN)
        except (NotSentError, UnreachableError):
            return None
        return codec.decode(Attached, answer.data).process

    def _in_use(self, by: Process, silent: float) -> InUseError:
        return InUseError(self._trainer, by.shard, described(by), silent, self._has_owner_of(by))

    def _has_owner_of(self, other: Process) -> bool:
        """Report whether both have a state file with the same owner."""
        return bool(other.owner) and other.owner == self._process.owner

    async def _has_attached(self, before: Process | None) -> None:
        """Begin the answers of a process that has its shard. It may have the place of another one that ran or died."""
        await self._link.subscribe(self._inbox_of_shard(self._process.shard), self._on_asked)
        self.attached = True
        if before is not None:
            text = "this process has the place of another one of trainer %s, which ran or did not end by itself: %s"
            log.warning(text, self._trainer, described(before))
            with contextlib.suppress(TurngateError):  # it asks again by itself
                await self._link.publish(self._inbox_of(before.instance))

    async def leave(self) -> None:
        """Give the shard up, so that the next process need not ask whether this one runs."""
        if self.attached:
            gone = dataclasses.replace(self._process, ended=True)
            with contextlib.suppress(TurngateError):
                attach = names.trainer_subject(self._trainer, "attach")
                await self._link.publish(attach, codec.encode(Attach(process=gone)))

    async def _ask(self, ask: Attach) -> Attached:
        answer = await self._link.request(names.trainer_subject(self._trainer, "attach"), codec.encode(ask))
        got = codec.decode(Attached, answer.data)
        if got.error:
            raise UnreachableError(f"ask for the calls of shard {self._process.shard}: {got.error}")
        return got

    async def _runs(self, instance: str, silent: float) -> bool | None:
        """Report whether another process runs; None: it does not answer.

        One that was heard a short time ago may be reconnecting: it is asked again.
        """
        for n in range(MOST_ASKED):
            if n:
                await asyncio.sleep(ASK_AGAIN)
            try:
                await self._link.request(self._inbox_of(instance), timeout=ANSWER_WITHIN)
                return True
            except NotSentError:
                if silent >= HEARD_LATELY:
                    return False
            except UnreachableError:
                return None
        return False

    async def keep(self, began: Callable[[], None]) -> ReplacedError | InUseError:
        """Ask again and again. Return when another process has the place of this one.

        Args:
            began: Called when this process has got its place.
        """
        started, lines = time.monotonic(), Lines()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._displaced.wait(), ATTACH_EVERY if self.attached else ATTACH_SOON)
            self._displaced.clear()
            try:
                if not self.attached:
                    await self._try()
                    log.info("this process has the calls of its shard")
                    began()
                    continue
                got = await self._ask(Attach(process=self._process))
            except TurngateError as e:
                if isinstance(e, InUseError) and not e.silent:
                    return e
                if self.attached:  # no worker, or no server: no other process can have them
                    log.debug("this process could not ask again for its calls: %s", e)
                elif time.monotonic() - started >= UNATTACHED_FOR and lines.speak(str(e)) is not None:
                    log.warning("this process does not have the calls of its shard, and answers none: %s", e)
            else:
                if got.process.instance != self._process.instance:
                    copied = self._has_owner_of(got.process)
                    return ReplacedError(self._trainer, got.process.shard, described(got.process), copied)


def described(p: Process) -> str:
    """Name a process for people."""
    name = p.name or f"process {p.instance}"
    return f"{name}, since {datetime.datetime.fromtimestamp(p.since / 1000):%Y-%m-%d %H:%M:%S}" if p.since else name
