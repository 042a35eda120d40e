"""Calls that wait, are awaited or ended, and requests that are submitted again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conftest import Server
from fake_worker import TRAINER, FakeWorker, header
from test_calls import USER, answer, text, trainer
from test_client import connect
from test_groups import solved
from turngate import Call, CallOverError, Fault, FaultError, NotFoundError, Reply, Request, Result, Task, treatment
from turngate.errors import NotSentError, UnreachableError
from turngate.rollouts.ledger import Ledger, Submitted
from turngate.rollouts.slots import Load, Slots
from turngate.rollouts.submissions import Submissions
from turngate.schema import AgentChoice, Route, SandboxChoice, codec
from turngate.schema import Task as TaskMessage
from turngate.wire.objects import Objects
from turngate.wire.streams import Stored, Streams


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[FakeWorker]:
    async with FakeWorker(server.url, server.creds("admin")) as worker:
        yield worker


async def test_a_hold_waits_for_the_selected_calls(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        chosen, other = worker.rollout(), worker.rollout()
        asked = await worker.ask(chosen, 1, [USER])
        first = await client.next_call()
        await worker.ask(other, 1, [USER])
        second = await client.next_call()
        assert (first.rollout, second.rollout) == (chosen, other)
        holding = asyncio.ensure_future(client.hold([chosen], drain=True))
        waits = await worker.ask(chosen, 2, [USER])
        assert header(await waits.frame("accept"), "Rl-Held") == "1"
        assert not holding.done()
        await first.reply(text("one"))
        await holding
        assert (await asked.final()).message["content"] == "one"
        assert second.wanted  # it is not selected
        await client.hold([chosen], drain=True)  # nothing is in hand
        await client.resume()
        assert (await client.next_call()).key.call == 2


async def test_calls_wait_if_the_function_of_a_hold_raises(server: Server, worker: FakeWorker) -> None:
    def broken(rollout: str) -> bool:
        raise KeyError(rollout)

    async with trainer(server) as client:
        serving = client.serve(answer)
        await client.hold(broken)
        asked = await worker.ask(worker.rollout(), 1, [USER])
        assert header(await asked.frame("accept"), "Rl-Held") == "1"
        await client.resume()
        await asked.final()
        assert not serving.done()


async def test_one_id_is_held_and_aborted(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        rollout = worker.rollout()
        await worker.ask(rollout, 1, [USER])
        await client.next_call()
        assert client.abort(rollout) == 1
        await client.hold(rollout)
        asked = await worker.ask(rollout, 2, [USER])
        assert header(await asked.frame("accept"), "Rl-Held") == "1"


async def test_a_hold_that_nobody_ends_is_named(
    server: Server, worker: FakeWorker, caplog: pytest.LogCaptureFixture
) -> None:
    async def named() -> None:
        while "1 model calls are held" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async with trainer(server) as client:
        client.serve(answer)
        for call in (1, 2):  # the line about the first hold does not hide the one about the second
            caplog.clear()
            await client.hold()
            asked = await worker.ask(f"{TRAINER}-held{call}", 1, [USER])
            await asyncio.wait_for(named(), 8)
            assert "client.resume() hands them out" in caplog.text
            await client.resume()
            await asked.final()


async def test_an_aborted_generation_is_made_again(server: Server, worker: FakeWorker) -> None:
    began: asyncio.Queue[Call] = asyncio.Queue()
    ended: asyncio.Queue[Call] = asyncio.Queue()
    weights = "old"

    async def handler(call: Call) -> Reply:
        began.put_nowait(call)
        if weights == "new":
            return text("new")
        try:
            await asyncio.Event().wait()
        finally:
            ended.put_nowait(call)
        raise AssertionError

    async with trainer(server) as client:
        client.serve(handler)
        rollout = worker.rollout()
        asked = await worker.ask(rollout, 1, [USER])
        old = await began.get()
        await client.hold()
        queued = await worker.ask(rollout, 2, [USER])
        await queued.frame("accept")
        assert client.abort(["alpha-7"]) == 0
        assert client.abort([rollout]) == 1  # the other call was not handed out
        assert await ended.get() is old
        fault = await asked.fault()
        assert (fault.status, fault.code) == (425, "aborted")
        with pytest.raises(CallOverError):
            await old.reply(text("old"))
        again = await worker.ask(rollout, 1, [USER])
        assert header(await again.frame("accept"), "Rl-Held") == "1"
        weights = "new"
        await client.resume()
        final = await again.frame("final")
        assert header(final, "Rl-Gen") != old.gen
        await queued.final()


async def test_calls_that_are_answered_do_not_wait(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        await worker.ask(worker.rollout(), 1, [USER])
        call = await client.next_call()
        await worker.ask(call.rollout, 2, [USER])
        while client.load().calls != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await client.next_call()).key.call == 2
        assert client.load() == Load(0, 0, 0, 0.0, 0, 0.0)


async def test_rollouts_with_an_upstream_are_not_queued_for_ever(server: Server) -> None:
    plain, proxied = Request(id="alpha-q1"), Request(id="alpha-q2", mode="transparent_proxy")
    helped = Request(id="alpha-q4")
    helped.gate.routes = {"aux": Route(upstream="engine")}  # this client answers the agent
    async with await connect(server) as client:
        opened = [Submitted(r, 0, at=1.0) for r in (plain, proxied, helped)]
        client._submissions.restore({s.request.id: s for s in opened})
        assert (client.load().rollouts, client.load().queued) == (3, 2)


async def test_a_request_is_submitted_again(server: Server, tasks: Path) -> None:
    async def refuse(call: Call) -> Reply:
        if call.rollout.endswith("-again"):
            return solved(call, "step-1")
        raise FaultError(Fault(stage="call", code="broken", message="-", who="trainer", status=400))

    async with await connect(server) as client:
        client.serve(refuse)
        task = Task.load(tasks / "hello")
        [first] = await client.submit_group(task, sandbox="local", group="again", labels={"run": "1"})
        seen: list[Result] = []
        async for result in client.results(group="again"):  # it goes on with the new rollout
            seen.append(result)
            if len(seen) == 1:
                assert await client.submit_again(result) == f"{first}-again"
                assert await client.submit_again(result) == f"{first}-again"  # it is one rollout
        assert [r.id for r in seen] == [first, f"{first}-again"]
        last = seen[-1]
        assert (last.group, last.index, last.labels) == ("again", 0, {"run": "1", "turngate_try": "2"})
        assert (last.reward, treatment(last)) == (1.0, "train")
        assert await client.submit_again(last) is None
        assert await client.submit_again(last, tries=3) == f"{first}-again-again"
        await client.cancel()
        assert [r.id async for r in client.results()] == [f"{first}-again-again"]
        with pytest.raises(NotFoundError, match="alpha-none"):
            await client.submit_again(Result(id="alpha-none"))


async def test_a_request_is_read_after_an_outage() -> None:
    """The loop of client.groups submits it again: an error would end all of its groups."""
    errors = [NotSentError("the link is away"), UnreachableError("no answer")]

    asked = Request(
        id="alpha-1", trainer="alpha", task=TaskMessage(name="t", instruction="x"), attempt_floor=3,
        agent=AgentChoice(name="mini"), sandbox=SandboxChoice(backend="local"),
    )  # fmt: skip

    class Away(Streams):
        async def last(self, stream: str, subject: str) -> Stored | None:
            if errors:
                raise errors.pop()
            return Stored(subject, 1, codec.encode(asked))

    streams = Away(None)  # type: ignore[arg-type]
    submissions = Submissions("alpha", "0", "f00d", streams, Objects(streams), Ledger(None), 0, Slots(0))
    request = await submissions.request("alpha-1")
    assert (request.id, request.attempt_floor, errors) == ("alpha-1", 0, [])
