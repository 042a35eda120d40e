"""Groups with enough results, and rollouts and rows of old policy versions."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from test_client import connect, shell
from turngate import Call, Client, ClosedError, Fault, InvalidError, Reply, Result, Row, Span, Task, VersionSpan
from turngate.client.sync import SyncClient
from turngate.rollouts.failures import TREATMENTS
from turngate.rollouts.tally import Tally

ROOT = Path(__file__).parents[3]
GROUPS = json.loads((ROOT / "trainer" / "testdata" / "groups.json").read_text())
OLDEST = json.loads((ROOT / "trajectory" / "testdata" / "oldest.json").read_text())


@pytest.mark.parametrize("vector", GROUPS, ids=lambda vector: str(vector["about"]))
def test_enough(vector: dict[str, Any]) -> None:
    tally = Tally(vector["enough"], vector.get("treatments", TREATMENTS))
    for r in vector["results"]:
        fault = Fault(**r["fault"], message="-") if "fault" in r else None
        fields = {name: r[name] for name in ("group", "status", "reward", "separation") if name in r}
        result = Result(fault=fault, **fields)
        assert tally.add(result) == r["enough"], r


@pytest.mark.parametrize("vector", OLDEST, ids=lambda vector: str(vector["about"]))
def test_oldest(vector: dict[str, Any]) -> None:
    row = Row()
    for n, c in enumerate(vector["calls"], 1):
        spans = [VersionSpan(**v) for v in c["versions"]]
        row.calls.append(Span(n, "agent", f"g{n}", c["start"], c["end"], c["trained"], "stop", spans))
    oldest = row.oldest
    assert oldest == vector["oldest"]
    if oldest is None:
        assert not row.older(1 << 40)
    else:
        assert (row.older(oldest), row.older(oldest + 1)) == (False, True)


def name() -> str:
    """Return the name of a group that no other test has. The ids of its rollouts follow from it."""
    return secrets.token_hex(4)


def solved(call: Call, version: str) -> Reply:
    """Solve the hello task."""
    ids: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5]}
    ids["versions"] = [VersionSpan(version=version, start=0, end=1)]
    if call.messages[-1]["role"] == "tool":
        return Reply(message={"role": "assistant", "content": "Done."}, finish_reason="stop", **ids)
    message = {"role": "assistant", "content": None, "tool_calls": [shell("echo 'Hello, world!' > hello.txt")]}
    return Reply(message=message, finish_reason="tool_calls", **ids)


def policy_without(*silent: str) -> Callable[[Call], AsyncIterator[Reply]]:
    """Return a handler that solves the hello task, but never answers some rollouts."""

    async def handler(call: Call) -> AsyncIterator[Reply]:
        if call.rollout in silent:
            await asyncio.Event().wait()
        yield solved(call, "step-1")

    return handler


async def test_a_group_with_enough_results_is_cancelled(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        task, g, h = Task.load(tasks / "hello"), name(), name()
        slow = [client.new_id(f"{g}-{i}") for i in (1, 2)]
        client.serve(policy_without(*slow, client.new_id(f"{h}-0")))
        ids = await client.submit_group(task, n=4, sandbox="local", group=g)
        [other] = await client.submit_group(task, n=1, sandbox="local", group=h)
        assert slow == ids[1:3]
        results = [r async for r in client.results(group=g, enough=2)]
        assert {r.id: r.status for r in results[:2]} == {ids[0]: "done", ids[3]: "done"}
        assert {r.id: r.status for r in results[2:]} == {ids[1]: "cancelled", ids[2]: "cancelled"}
        assert [r async for r in client.results(group=g)] == []
        assert client.outstanding == 1
        await client.cancel(other)
        assert [(r.group, r.status) async for r in client.results(enough=1)] == [(h, "cancelled")]
        with pytest.raises(InvalidError, match="enough"):
            await anext(client.results(enough=-1))


async def test_a_loop_that_ends_early_leaves_its_other_results(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        g = name()
        client.serve(policy_without(client.new_id(f"{g}-1")))
        ids = await client.submit_group(Task.load(tasks / "hello"), n=2, sandbox="local", group=g)
        async for result in client.results(group=g, enough=1):
            assert result.id == ids[0]
            break
        assert [(r.id, r.status) async for r in client.results()] == [(ids[1], "cancelled")]
        rows = await client.rows(ids[0])
        assert [(row.oldest, row.older(1), row.older(2)) for row in rows] == [(1, False, True)] * 2


async def loop(client: Client, group: str = "") -> list[str]:
    return [r.id async for r in client.results(group=group)]


async def test_loops_over_results_end_together(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        client.serve(policy_without())
        task, g, h = Task.load(tasks / "hello"), name(), name()
        ids = await client.submit_group(task, n=3, sandbox="local", group=g)
        ids += await client.submit_group(task, n=1, sandbox="local", group=h)
        taken = await asyncio.gather(*(loop(client, group) for group in (g, g, "", h, "none")))
        assert sorted(i for some in taken for i in some) == sorted(ids)
        assert set(taken[0] + taken[1]) <= set(ids[:3])
        assert set(taken[3]) <= {ids[3]}
        assert taken[4] == []


async def test_a_closed_client_ends_all_loops(server: Server, tasks: Path) -> None:
    client = await connect(server)
    g = name()
    [rollout] = await client.submit_group(Task.load(tasks / "hello"), n=1, sandbox="local", group=g)
    while (await client.next_call()).rollout != rollout:
        pass  # a rollout that an earlier test left asks again
    work: list[Any] = [loop(client), loop(client, g), client.next_result(), client.next_call()]
    waiting = [asyncio.ensure_future(w) for w in work]
    await asyncio.sleep(0)
    await client.close()
    ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 120)
    assert all(isinstance(e, ClosedError) for e in ended), ended
    with pytest.raises(ClosedError):
        await client.next_result()
    async with await connect(server) as later:
        await later.cancel(rollout)


async def test_rollouts_of_old_versions_are_cancelled(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        g = name()
        ids = await client.submit_group(Task.load(tasks / "hello"), n=2, sandbox="local", group=g)
        asked: list[str] = []
        while len(asked) < 4:  # the second call of each is not answered
            call = await client.next_call()
            if call.rollout in ids:
                if call.rollout not in asked:
                    await call.reply(solved(call, "step-3" if call.rollout == ids[0] else "step-9"))
                asked.append(call.rollout)
        await client.cancel(older=3)
        await client.cancel(ids[1], older=9)
        await client.cancel(group="none", older=9)
        assert {s.cancel for s in client._submissions.open.values()} == {None}
        await client.cancel(older=9)
        result = await client.next_result()
        assert (result.id, result.status) == (ids[0], "cancelled")
        assert {r: s.cancel for r, s in client._submissions.open.items()} == {ids[1]: None}
        await client.cancel(group=g, older=10)
        assert [(r.id, r.status) async for r in client.results(group=g)] == [(ids[1], "cancelled")]


def test_groups_without_async(server: Server, tasks: Path) -> None:
    client = SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel")
    task, g, h = Task.load(tasks / "hello"), name(), name()
    silent = client.client.new_id(f"{h}-0")
    client.serve(policy_without(client.client.new_id(f"{g}-0"), client.client.new_id(f"{g}-2"), silent))
    ids = client.submit_group(task, n=3, sandbox="local", group=g)
    first, *rest = client.results(group=g, enough=1, progress=True)
    assert (first.id, {r.id for r in rest}, {r.status for r in rest}) == (ids[1], {ids[0], ids[2]}, {"cancelled"})
    client.submit_group(task, n=1, sandbox="local", group=h)
    client.cancel(older=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(lambda: list(client.results(group=h)))
        while h not in client.client._results._news:
            assert wait([waiting], timeout=0.01).not_done
        client.close()
        assert isinstance(waiting.exception(120), ClosedError)
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel") as later:
        later.cancel(silent)
