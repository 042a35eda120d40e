"""Failures between the trainer and the server, and mistakes of handlers."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nats
import pytest

from conftest import Server
from fake_worker import TRAINER, FakeWorker
from test_calls import USER, text, trainer
from test_client import connect, policy
from turngate import Call, Client, Delta, NotOpenedError, Reply, Request, StateFileError, Task, UnreachableError
from turngate.client.sync import SyncClient
from turngate.errors import QueueFullError, ServerError
from turngate.rollouts.ledger import Ledger, Submitted, submit_entry
from turngate.schema import Result, codec
from turngate.wire.loop_thread import within
from turngate.wire.streams import Message


async def request_of(client: Client, tasks: Path) -> Request:
    task = Task.load(tasks / "hello")
    request = task.request_for("mini", "local")
    request.task.bundle = await client.put_bundle(task.bundle)
    return request


Store = Callable[[Message], Awaitable[int]]


async def test_a_submit_forgets_only_what_was_surely_refused(
    server: Server, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await connect(server) as client:
        request = await request_of(client, tasks)
        store: Store = client._streams.store
        tries = 0

        async def late(message: Message) -> int:
            nonlocal tries
            tries += 1
            if tries == 1:
                await store(message)
                raise UnreachableError("the answer is lost")
            raise ServerError("store", 400, 10000, "no")

        async def never(message: Message) -> int:
            raise ServerError("store", 400, 10000, "no")

        monkeypatch.setattr(client._streams, "store", late)
        with pytest.raises(ServerError):
            await client.submit(request)
        assert client.outstanding == 1
        monkeypatch.setattr(client._streams, "store", never)
        with pytest.raises(ServerError):
            await client.submit(request)  # it may be on the queue from before
        assert client.outstanding == 1
        with pytest.raises(ServerError):
            await client.submit(Request(task=request.task, agent=request.agent, sandbox=request.sandbox))
        assert client.outstanding == 1
        client.serve(policy)
        assert [r.id async for r in client.results()] == [request.id]


async def test_a_submit_that_ends_while_the_queue_is_full_forgets_its_requests(
    server: Server, tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    async with await connect(server, state=state) as client:
        request = await request_of(client, tasks)

        async def full(messages: Any) -> int:
            submitting.cancel()
            raise QueueFullError("full", 10077)

        monkeypatch.setattr(client._streams, "store_batch", full)
        submitting = asyncio.ensure_future(client.submit_group(request, n=3))
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert client.outstanding == 0
    ledger = Ledger(state)
    assert ledger.open() == {}
    ledger.close()


async def test_a_state_file_that_cannot_be_used(server: Server, tasks: Path, tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "none" / "state"):
        with pytest.raises(StateFileError, match=str(state)):
            await connect(server, state=state)
    state = tmp_path / "state"
    async with await connect(server, state=state) as client:
        client.serve(policy)
        request = await request_of(client, tasks)
        first = await client.submit_group(request)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
        resource.setrlimit(resource.RLIMIT_FSIZE, (state.stat().st_size + 100, hard))
        try:
            with pytest.raises(StateFileError, match="cannot be written"):
                await client.submit_group(request)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert client.outstanding == 1
        second = await client.submit_group(request)
        assert {r.id async for r in client.results()} == {*first, *second}
    ledger = Ledger(state)
    assert ledger.open() == {}
    ledger.close()


def test_a_note_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "state")
    ledger.open()
    syncing, noted = threading.Event(), threading.Event()

    def fails_late(_: int) -> None:
        syncing.set()
        if noted.wait(30):
            raise OSError(errno.EIO, "of the disk")

    monkeypatch.setattr(os, "fsync", fails_late)
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(ledger.write, [submit_entry(Submitted(Request(id="alpha-a")))], True)
        syncing.wait()
        ledger.note([{"id": "alpha-a", "seq": 7}])
        noted.set()
        with pytest.raises(StateFileError, match="cannot be written: of the disk"):
            writing.result()
    monkeypatch.undo()
    ledger.close()
    assert ledger.open()["alpha-a"].seq == 7  # nothing that came after the entry is cut off
    ledger.close()


def test_entries_that_are_not_on_disk_are_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "state")
    ledger.open()

    def fails(_: int) -> None:
        raise OSError(errno.EIO, "of the disk")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(StateFileError, match="cannot be written: of the disk"):
        ledger.write([submit_entry(Submitted(Request(id="alpha-a")))], True)
    monkeypatch.undo()
    ledger.write([submit_entry(Submitted(Request(id="alpha-b")))], True)
    ledger.close()
    assert list(ledger.open()) == ["alpha-b"]
    ledger.close()


async def test_a_result_is_not_lost_with_a_caller_that_gives_up(
    server: Server, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await connect(server) as client:
        client.serve(policy)
        reading = asyncio.Event()

        async def never(rollout: str) -> Result:
            reading.set()
            await asyncio.Event().wait()
            raise AssertionError

        with monkeypatch.context() as patch:
            patch.setattr(client._results, "read", never)
            [rollout] = await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
            waiting = asyncio.ensure_future(client.next_result())
            await reading.wait()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        assert (await asyncio.wait_for(client.next_result(), 120)).id == rollout


async def test_an_outcome_at_the_last_moment_is_not_lost() -> None:
    async def late() -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return 7
        raise AssertionError

    assert await within(late(), 0.01) == 7


def test_a_timeout_without_async(server: Server, tasks: Path) -> None:
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel") as client:
        with pytest.raises(TimeoutError):
            client.next_result(timeout=0.01)
        [rollout] = client.submit_group(Task.load(tasks / "hello"), sandbox="local")
        while client.next_call(timeout=120).rollout != rollout:
            pass
        client.cancel()
        assert client.next_result(timeout=120).id == rollout


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[FakeWorker]:
    async with FakeWorker(server.url, server.creds("admin")) as worker:
        yield worker


async def test_a_cancelled_handler_ends_the_call(server: Server, worker: FakeWorker) -> None:
    tries = 0

    async def policy(call: Call) -> Reply:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise asyncio.CancelledError
        return text("ok")

    async with trainer(server) as client:
        client.serve(policy)
        rollout = worker.rollout()
        fault = await (await worker.ask(rollout, 1, [USER])).fault()
        assert (fault.code, fault.status) == ("internal", 500)
        await (await worker.ask(rollout, 1, [USER])).final()


async def test_an_answer_that_is_not_valid_is_told_as_one(server: Server, worker: FakeWorker) -> None:
    async def wrong(call: Call) -> Reply:
        if call.key.call == 1:
            return Reply(message={"content": "a"}, finish_reason="stop", completion_ids=[1, 2], logprobs=[-1.0])
        return None  # type: ignore[return-value]

    async def pieces(call: Call) -> AsyncIterator[Delta]:
        yield Delta(delta={"content": ["a"]})

    async with trainer(server) as client:
        serving = client.serve(wrong)
        for number, field in ((1, "logprobs"), (2, "reply")):
            fault = await (await worker.ask(worker.rollout(), number, [USER])).fault()
            assert (fault.code, fault.status, fault.who) == ("bad_answer", 502, "trainer")
            assert field in fault.message
        serving.cancel()
        client.serve(pieces)
        fault = await (await worker.ask(worker.rollout(), 1, [USER])).fault()
        assert (fault.code, fault.status) == ("bad_answer", 502)


@pytest.mark.parametrize("poison", ["9" * 5000, "[" * 1500 + "]" * 1500], ids=["digits", "nesting"])
async def test_a_call_that_python_cannot_read_is_refused(server: Server, worker: FakeWorker, poison: str) -> None:
    """It reaches no handler, and the next call is answered."""

    async def policy(call: Call) -> Reply:
        return text(json.dumps([call.params, list(call.messages), list(call.tools)]))

    message = b'{"role":"user","content":"hi","x":' + poison.encode() + b"}"
    async with trainer(server) as client:
        client.serve(policy)
        for field, messages, more in (
            ("params.user", [USER], {"params": {"user": poison.encode()}}),
            ("tools", [USER], {"tools": b'[{"x":' + poison.encode() + b"}]"}),
            ("messages[1]", [USER, message], {}),
        ):
            fault = await (await worker.ask(worker.rollout(), 1, messages, **more)).fault()
            assert (fault.code, fault.status) == ("invalid", 400)
            assert field in fault.message
        await (await worker.ask(worker.rollout(), 1, [USER], params={"user": b"[[1]]"})).final()


async def test_a_process_that_only_answers_keeps_nothing_of_ended_rollouts(
    server: Server, tasks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await connect(server) as client, await connect(server, shard="answers", answer_all=True) as other:
        failed = asyncio.Event()
        has_result = other._submissions.has_result

        async def unreachable(rollout: str) -> bool:
            failed.set()
            monkeypatch.setattr(other._submissions, "has_result", has_result)
            raise UnreachableError("the server is away")

        monkeypatch.setattr(other._submissions, "has_result", unreachable)
        ended: asyncio.Queue[str] = asyncio.Queue()
        end = other._calls.ended

        def on_end(rollout: str) -> None:
            end(rollout)
            ended.put_nowait(rollout)

        monkeypatch.setattr(other._results, "_on_end", on_end)
        other.serve(policy)
        request = Task.load(tasks / "hello").request_for("mini", "local")
        request.shard = "answers"
        [rollout] = await client.submit_group(request)
        assert (await client.next_result()).id == rollout
        await asyncio.wait_for(failed.wait(), 120)
        while await asyncio.wait_for(ended.get(), 120) != rollout:
            pass
        assert rollout not in other._calls._rollouts


async def test_calls_that_come_after_the_hint_of_their_result_end(
    server: Server, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngate.rollouts.results.MOST_RECENT", 3)

    async def unknown(rollout: str) -> None:
        raise UnreachableError("the state cannot be read")

    async with trainer(server) as client:
        monkeypatch.setattr(client._submissions, "state", unknown)
        rollout, going_on = worker.rollout(), worker.rollout()
        for _ in range(5):
            client._results.hint(worker.rollout())
        await worker.nc.jetstream().publish(
            f"record.{TRAINER}.{rollout}.result", codec.encode(Result(id=rollout, status="done"))
        )
        await client._results.look()
        client._results.hint(going_on)  # it has no result
        assert len(client._results._recent) == 3
        for asked in (rollout, going_on):
            await worker.ask(asked, 1, [USER])
        calls = [await client.next_call(), await client.next_call()]
        ended, open_ = sorted(calls, key=lambda call: call.rollout != rollout)
        await asyncio.wait_for(ended.over(), 120)
        assert set(client._calls._rollouts) == {going_on}
        assert open_.wanted


async def test_calls_of_a_forgotten_rollout_end(
    server: Server, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trainer(server) as client:
        await worker.ask(worker.rollout(), 1, [USER])
        call = await client.next_call()
        monkeypatch.setattr("turngate.serving.open_calls.FORGET_AFTER", -1.0)
        client._calls.beat()
        await asyncio.wait_for(call.over(), 120)
        assert client._calls._rollouts == {}


async def test_missing_streams(own_server: Server, tasks: Path) -> None:
    async with await connect(own_server) as client:
        client.serve(policy)
        admin = await nats.connect(own_server.url, nkeys_seed=own_server.creds("admin"))
        streams = ("REQ_alpha", "REC_alpha", "OBJ_tasks_alpha")

        async def drop() -> None:
            for stream in streams:
                await admin.jetstream().delete_stream(stream)

        await drop()
        [rollout] = await client.submit_group(Task.load(tasks / "hello"), sandbox="local")  # a worker makes them
        assert (await client.next_result()).id == rollout
        worker = own_server.processes.pop()
        worker.terminate()
        await asyncio.to_thread(worker.wait)
        await drop()
        for read in (client._streams.last_sequence("REQ_alpha"), client.result(rollout)):
            with pytest.raises(NotOpenedError, match=r"no such stream.*a worker must make it"):
                await read
        with pytest.raises(NotOpenedError, match="a worker must make it"):
            await client._streams.store(Message("rollout.requests.p2.alpha", b""))
        await admin.close()
