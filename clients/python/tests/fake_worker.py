"""A worker that only asks."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import msgpack
import nats
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg

from turngate.schema import Delta, Fault, Reply, codec
from turngate.schema.codec import raw_json
from turngate.wire import digest

TRAINER = "asked"


class Asking:
    """Asking is one inbox of a call."""

    def __init__(self, worker: FakeWorker) -> None:
        self.inbox = f"_INBOX.gate.{TRAINER}.fake.i1.{secrets.token_hex(16)}"
        self.frames: asyncio.Queue[Msg] = asyncio.Queue()
        worker.inboxes[self.inbox] = self.frames

    async def frame(self, kind: str = "", within: float = 120) -> Msg:
        """Return the next frame, or the next of a kind."""
        while True:
            msg = await asyncio.wait_for(self.frames.get(), within)
            if not kind or kind == kind_of(msg):
                return msg

    async def final(self, within: float = 120) -> Reply:
        return codec.decode(Reply, (await self.frame("final", within)).data)

    async def fault(self) -> Fault:
        return codec.decode(Fault, (await self.frame("fault")).data)


def kind_of(msg: Msg) -> str:
    return (msg.headers or {}).get("Rl-Kind", "")


def header(msg: Msg, name: str) -> str:
    return (msg.headers or {}).get(name, "")


def delta_of(msg: Msg) -> Any:
    return codec.decode(Delta, msg.data).delta


class FakeWorker:
    nc: NATS

    def __init__(self, url: str, creds: str) -> None:
        self._url, self._creds = url, creds
        self.inboxes: dict[str, asyncio.Queue[Msg]] = {}

    async def __aenter__(self) -> FakeWorker:
        self.nc = await nats.connect(self._url, nkeys_seed=self._creds, inbox_prefix=b"_INBOX.worker.fake")

        async def on_frame(msg: Msg) -> None:
            if msg.subject in self.inboxes:
                self.inboxes[msg.subject].put_nowait(msg)

        await self.nc.subscribe("_INBOX.gate.*.fake.i1.*", cb=on_frame)
        await self.nc.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.nc.close()

    def rollout(self) -> str:
        return f"{TRAINER}-{secrets.token_hex(6)}"

    async def ask(self, rollout: str, call: int, messages: list[Any], *, attempt: int = 1, base: int = 0,
                  keep: int = 0, whole: list[Any] | None = None, headers: Mapping[str, str] | None = None, shard: str = "0",
                  asking: Asking | None = None, **more: Any) -> Asking:  # fmt: skip
        """Publish a call. whole has all its messages, for the digest."""
        raw = [raw_json(m) for m in messages]
        body = {
            "v": 1,
            "key": f"{rollout}/{attempt}/{call}",
            "tag": "agent",
            "dialect": "chat",
            "messages": raw,
            **more,
        }
        if base:
            body |= {"base": base, "keep": keep}
        if whole is not None:
            hashes = [digest.hash_message(raw_json(m)) for m in whole]
            body["digest"] = digest.digest(hashes, digest.hash_tools(b""), digest.hash_params({}))
        return await self.send(
            rollout, call, msgpack.packb(body), attempt=attempt, shard=shard, headers=headers, asking=asking
        )

    async def send(self, rollout: str, call: int, data: bytes, *, attempt: int = 1, what: str = "llm", shard: str = "0",
                   headers: Mapping[str, str] | None = None, asking: Asking | None = None) -> Asking:  # fmt: skip
        asking = asking or Asking(self)
        subject = f"rollout.{rollout}.{what}.{TRAINER}.{shard}.{attempt}.{call}"
        await self.nc.publish(subject, data, reply=asking.inbox, headers=dict(headers or {}) or None)
        return asking

    async def reject(self, rollout: str, call: int, gen: str, fault: Fault) -> None:
        headers = {"Rl-Kind": "reject", "Rl-Gen": gen}
        await self.nc.publish(f"rollout.{rollout}.llm.{TRAINER}.0.1.{call}", codec.encode(fault), headers=headers)

    async def cancel(self, rollout: str, call: int, attempt: int = 1) -> None:
        await self.nc.publish(f"rollout.{rollout}.llm.{TRAINER}.0.{attempt}.{call}", headers={"Rl-Kind": "cancel"})
