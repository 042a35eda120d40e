"""The client without async, asked by a worker of the test."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

import turngate
from conftest import Server
from fake_engine import OK, Answer, Asked, FakeEngine
from fake_worker import TRAINER, FakeWorker, header, kind_of
from test_client import solve
from turngate import Call, Client, Delta, InvalidError, Reply, Task, ToolUse
from turngate.client.sync import SyncClient
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
    client = await asyncio.to_thread(SyncClient.connect, server.url, creds, TRAINER, answer_all=True, **options)
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


def test_both_clients_have_the_same_methods() -> None:
    def public(of: type) -> set[str]:
        return {name for name in dir(of) if not name.startswith("_")}

    assert public(Client) - public(SyncClient) == set()
    assert public(SyncClient) - public(Client) == {"delta", "fault", "hold_upstream", "reply"}


async def test_hold_around_new_weights(server: Server, worker: FakeWorker) -> None:
    async def engine_says(asked: Asked) -> Answer:
        return 200, OK

    async with FakeEngine(engine_says) as engine, trainer(server) as client:
        upstream = Upstream(engine.url, key="", version="v1", stream=False)
        await asyncio.to_thread(client.serve, upstream)
        with pytest.raises(InvalidError, match="hold_upstream"):
            async with upstream.hold(client):  # type: ignore[arg-type]
                pass

        def load() -> None:
            with client.hold_upstream(upstream, version="v2"):
                held.set()
                loaded.wait()

        def fail() -> None:
            with client.hold_upstream(upstream, version="v3"):
                raise KeyboardInterrupt

        held, loaded = threading.Event(), threading.Event()
        loading = asyncio.ensure_future(asyncio.to_thread(load))
        await asyncio.to_thread(held.wait)
        asked = await worker.ask(worker.rollout(), 1, [USER])
        assert header(await asked.frame("accept"), "Rl-Held") == "1"
        assert engine.completions == []
        loaded.set()
        await loading
        assert (await asked.final()).versions[0].version == "v2"
        thread = threading.Thread(target=lambda: interrupted.append(isinstance(_raised(fail), KeyboardInterrupt)))
        interrupted: list[bool] = []
        thread.start()
        await asyncio.to_thread(thread.join)
        assert interrupted == [True]
        asked = await worker.ask(worker.rollout(), 1, [USER])
        assert header(await asked.frame("accept"), "Rl-Held") == "1"
        await asyncio.to_thread(client.resume)
        assert (await asked.final()).versions[0].version == "v2"
        await asyncio.to_thread(client._run, upstream.close())


def _raised(f: Callable[[], None]) -> BaseException | None:
    try:
        f()
    except BaseException as e:
        return e
    return None


def test_an_interrupt_of_a_loop_is_raised_after_its_work_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = threading.Event(), threading.Event()

    async def items() -> AsyncGenerator[int, None]:
        try:
            began.set()
            await asyncio.Event().wait()
            yield 1
        finally:
            for _ in range(1000):
                await asyncio.sleep(0)
            ended.set()

    def interrupted(*_: object) -> None:
        began.wait()
        raise KeyboardInterrupt

    client = SyncClient()
    with monkeypatch.context() as patch:
        patch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(client._each(items()))
    assert ended.is_set()
    client._thread.stop()


FORK = """
import os, sys
from turngate import ClosedError, SyncClient
with SyncClient.connect(*sys.argv[1:]) as client:
    child = os.fork()
    if not child:
        try:
            client.fleet()
        except ClosedError as e:
            print(e, flush=True)
        client.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert client.fleet().workers
"""


async def test_a_fork_cannot_use_the_client(server: Server) -> None:
    args = [sys.executable, "-W", "ignore", "-c", FORK, server.url, server.creds(f"trainer-{TRAINER}"), TRAINER]
    process = await asyncio.create_subprocess_exec(*args, stdout=subprocess.PIPE)
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 0
    assert "of which this is a fork: connect in this one" in out.decode()


async def test_what_a_client_knows(server: Server, tasks: Path) -> None:
    def read() -> None:
        with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel") as client:
            client.serve(solve)
            assert client.new_id("x") == "alpha-x"
            assert client.opened().error == ""
            [rollout] = client.submit_group(Task.load(tasks / "hello"), sandbox="local")
            [result] = client.results()
            assert client.result(rollout).id == result.id
            artifact = next(a for a in result.artifacts if a.name == result.transcript)
            assert b"".join(client.artifact(artifact)) == client.read_artifact(artifact)
            assert next(iter(client.artifact(artifact)))  # it is closed early
            assert client.refusals == 0
            assert client.abort() == 0

    await asyncio.to_thread(read)


def test_the_names_of_the_package() -> None:
    assert turngate.SyncClient is SyncClient
    assert turngate.Upstream is Upstream
    with pytest.raises(AttributeError, match="no attribute 'Downstream'"):
        _ = turngate.Downstream
    without = "import sys; sys.modules['httpx'] = None; import turngate; turngate.Upstream"
    said = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert "pip install turngate[upstream]" in said.stderr
