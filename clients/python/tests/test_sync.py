"""The client without async, asked by a worker of the test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from conftest import Server
from fake_engine import OK, Answer, Asked, FakeEngine
from fake_worker import TRAINER, FakeWorker, kind_of
from turngate import Call, Delta, Reply, ToolUse
from turngate.sync import SyncClient
from turngate.upstream import Upstream

USER = {"role": "user", "content": "hi"}
MANY = 48
"""More calls than the default executor of asyncio has threads."""


def text(content: str) -> Reply:
    return Reply(message={"role": "assistant", "content": content}, finish_reason="stop")


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[FakeWorker]:
    async with FakeWorker(server.url, server.creds("admin")) as worker:
        yield worker


@contextlib.asynccontextmanager
async def trainer(server: Server, **options: Any) -> AsyncIterator[SyncClient]:
    creds = server.creds(f"trainer-{TRAINER}")
    client = await asyncio.to_thread(SyncClient.connect, server.url, creds, TRAINER, **options)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)


class Whole:
    async def __call__(self, call: Call) -> Reply:
        return text("whole")


class Pieces:
    async def __call__(self, call: Call) -> AsyncIterator[Delta | Reply]:
        yield Delta(delta={"content": "pie"})
        yield Delta(delta={"content": "ces"})


class Blocking:
    def __call__(self, call: Call) -> Reply:
        assert threading.current_thread().name != "turngate"
        return text("blocking")


@pytest.mark.parametrize(("handler", "want"), [(Whole(), "whole"), (Pieces(), "pieces"), (Blocking(), "blocking")])
async def test_objects_answer(server: Server, worker: FakeWorker, handler: Any, want: str) -> None:
    async with trainer(server) as client:
        await asyncio.to_thread(client.serve, handler)
        assert (await (await worker.ask(worker.rollout(), 1, [USER])).final()).message["content"] == want


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_answers(server: Server, worker: FakeWorker, stream: bool) -> None:
    async def engine_says(asked: Asked) -> Answer:
        return 200, OK

    async with FakeEngine(engine_says) as engine, trainer(server) as client:
        upstream = Upstream(engine.url, key="", stream=False)
        await asyncio.to_thread(client.serve, upstream)
        asked = await worker.ask(worker.rollout(), 1, [USER], stream=stream)
        assert (await asked.final()).message["content"] == "ok"
        await asyncio.to_thread(client._run, upstream.close())


async def test_blocking_handlers_have_threads_of_their_own(server: Server, worker: FakeWorker) -> None:
    together = threading.Barrier(MANY)

    def handler(call: Call) -> Reply:
        together.wait()
        return text("ok")

    async with trainer(server) as client:
        await asyncio.to_thread(client.serve, handler, concurrency=MANY)
        rollout = worker.rollout()
        asked = [await worker.ask(rollout, 1 + i, [USER]) for i in range(MANY)]
        try:
            for one in asked:
                await one.final()
        finally:
            together.abort()


async def test_blocking_tools_have_threads_of_their_own(server: Server, worker: FakeWorker) -> None:
    together = threading.Barrier(MANY)

    def tool(use: ToolUse) -> str:
        together.wait()
        return "ok"

    async with trainer(server, tools={"tool": tool}):
        rollout = worker.rollout()
        asked = []
        for i in range(MANY):
            body = {"v": 1, "key": f"{rollout}/1/{1 + i}", "name": "tool", "arguments": b"{}"}
            asked.append(await worker.send(rollout, 1 + i, msgpack.packb(body), what="tool"))
        try:
            for one in asked:
                while kind_of(frame := await one.frame()) != "final":
                    pass
                assert msgpack.unpackb(frame.data) == {"v": 1, "text": "ok"}
        finally:
            together.abort()
