"""The number of rollouts on the queue or running at once, and the load."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from test_client import connect
from test_groups import ROOT, name, policy_without, solved
from turngate import Client, ClosedError, InvalidError, Request, Task
from turngate.client.sync import SyncClient
from turngate.rollouts.slots import Load, Slots

STEER = json.loads((ROOT / "trainer" / "testdata" / "steer.json").read_text())


async def request(client: Client, tasks: Path) -> Request:
    task = Task.load(tasks / "hello")
    made = task.request_for("mini", "local", "")
    made.task.bundle = await client.put_bundle(task.bundle)
    return made


async def until(client: Client, *, rollouts: int, waiting: int) -> None:
    while (client.load().rollouts, client.load().waiting) != (rollouts, waiting):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("vector", STEER, ids=lambda vector: str(vector["about"]))
def test_steer(vector: dict[str, Any]) -> None:
    load = Load(0, vector["waiting"], 0, vector["oldest_queued"], 0, vector["oldest_call"])
    got = load.steer(vector["slots"], least=vector["least"], most=vector["most"], wait=vector["wait"])
    assert got == vector["want"]


async def test_room() -> None:
    slots = Slots(3)
    assert await slots.room(1, 250) == 3
    slots.take("a")
    assert await slots.room(1, 250) == 2
    assert await slots.room(2, 2) == 2
    whole = asyncio.ensure_future(slots.room(4, 4))
    await asyncio.sleep(0)
    slots.free("none")
    await asyncio.sleep(0)
    assert not whole.done()
    slots.free("a")
    assert await whole == 4
    for rollout in "abc":
        slots.take(rollout)
    more = asyncio.ensure_future(slots.room(1, 250))
    await asyncio.sleep(0)
    slots.most = 5
    assert await more == 2
    slots.most = 0
    assert await slots.room(1, 250) == 250
    slots.most = 1
    last = asyncio.ensure_future(slots.room(1, 1))
    await asyncio.sleep(0)
    slots.close(ClosedError("the client is closed"))
    with pytest.raises(ClosedError):
        await last
    with pytest.raises(InvalidError, match="slots: '-1'"):
        slots.most = -1


async def test_submit_waits_for_slots(server: Server, tasks: Path) -> None:
    async with await connect(server, slots=2) as client:
        one = await request(client, tasks)
        requests = [dataclasses.replace(one) for _ in range(5)]
        submitting = asyncio.ensure_future(client.submit(requests))
        await until(client, rollouts=2, waiting=3)
        calls = [await client.next_call(), await client.next_call()]
        load = client.load()
        assert (load.queued, load.oldest_queued, load.calls) == (0, 0.0, 0)  # they are answered
        client.serve(policy_without())
        for call in calls:
            await call.reply(solved(call, "step-1"))
        results = [r.id async for r in client.results()]  # it does not end while requests wait
        ids = await submitting
        assert sorted(results) == sorted(ids)
        assert len(results) == 5
        await until(client, rollouts=0, waiting=0)


async def test_slots_are_free_without_a_reader_of_results(server: Server, tasks: Path) -> None:
    async with await connect(server, slots=1) as client:
        client.serve(policy_without())
        one = await request(client, tasks)
        ids = await asyncio.wait_for(client.submit([dataclasses.replace(one) for _ in range(3)]), 120)
        assert client.outstanding == 3
        assert sorted([r.id async for r in client.results()]) == sorted(ids)


async def test_groups_wait_as_a_whole_and_in_their_order(server: Server, tasks: Path) -> None:
    async with await connect(server, slots=2) as client:
        task, g = Task.load(tasks / "hello"), name()
        first = await client.submit_group(task, n=1, sandbox="local")
        large = asyncio.ensure_future(client.submit_group(task, n=3, sandbox="local", group=g))
        await until(client, rollouts=1, waiting=3)
        small = asyncio.ensure_future(client.submit_group(task, n=1, sandbox="local"))
        await until(client, rollouts=1, waiting=4)
        load = client.load()
        assert load.queued == 1 or load.calls == 1
        await client.cancel(first)
        await until(client, rollouts=3, waiting=1)
        assert await large == [client.new_id(f"{g}-{i}") for i in range(3)]
        client.slots = 4
        await until(client, rollouts=4, waiting=0)
        await client.cancel()
        assert {r.status async for r in client.results()} == {"cancelled"}
        assert len(await small) == 1


async def test_a_submit_that_waits_ends(server: Server, tasks: Path) -> None:
    client = await connect(server, slots=1)
    one = await request(client, tasks)
    [taken] = await client.submit(dataclasses.replace(one))
    given_up = asyncio.ensure_future(client.submit(dataclasses.replace(one, group="given-up")))
    await until(client, rollouts=1, waiting=1)
    loop = asyncio.ensure_future(anext(client.results(group="given-up"), None))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await loop is None  # none of the group will come
    assert (client.outstanding, client.load().waiting) == (1, 0)
    closed = asyncio.ensure_future(client.submit(dataclasses.replace(one)))
    await until(client, rollouts=1, waiting=1)
    await client.close()
    with pytest.raises(ClosedError):
        await closed
    async with await connect(server) as later:
        await later.cancel(taken)


async def test_slots_after_a_restart(server: Server, tasks: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with await connect(server, state=state) as client:
        one = await request(client, tasks)
        ended, running = await client.submit([dataclasses.replace(one), dataclasses.replace(one)])
        client.serve(policy_without(running))
        async with await connect(server, shard="other", orphans="leave") as other:
            while not await other._submissions.has_result(ended):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    async with await connect(server, state=state, slots=2) as client:
        await until(client, rollouts=1, waiting=0)
        client._submissions.open[running].attempt = 0  # as if no worker had taken it
        assert (client.load().queued, client.load().oldest_queued) == (1, 0.0)  # its age is not known
        [new] = await asyncio.wait_for(client.submit(dataclasses.replace(one)), 120)
        await client.cancel([running, new])
        results = {r.id: r.status async for r in client.results()}
        assert results == {ended: "done", running: "cancelled", new: "cancelled"}


def test_slots_without_async(server: Server) -> None:
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel", slots=3) as client:
        assert client.slots == 3
        client.slots = 0
        assert (client.slots, client.load().rollouts, client.load().oldest_call) == (0, 0, 0.0)
        with pytest.raises(InvalidError, match="slots"):
            client.slots = -1
