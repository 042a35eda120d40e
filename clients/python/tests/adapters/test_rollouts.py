"""Rollouts for frameworks, with a real worker."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
import scripted

from conftest import Server
from turngate import Call, Client, ClosedError, InvalidError, Reply, Request, Task, TaskError, schema
from turngate.adapters.rollouts import Rollouts, Sample
from turngate.errors import NotSentError


async def test_groups_with_policies_of_their_own(server: Server, tasks: Path) -> None:
    def other(call: Call) -> Reply:  # an ordinary function
        return scripted.answer(call, "Good night!")

    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        async with Rollouts(client, Task.load, scripted.solve, sandbox="local", labels={"run": "1"}) as rollouts:
            group, single = await asyncio.gather(
                rollouts.group(tasks / "hello", 2), rollouts.run(tasks / "hello", other)
            )
        assert [e.reward for e in group] == [1.0, 0.0]
        assert single.reward == 0.0
        assert {e.result.group for e in group} == {group[0].result.group}
        assert group[0].result.labels == {"run": "1"}
        [sample] = group[0].samples
        assert sample == group[0].main
        assert sample.prompt_ids == scripted.PROMPT
        assert sample.response_ids == [*scripted.ACT, *scripted.SEEN, *scripted.DONE]
        assert sample.mask == scripted.MASK[3:]
        assert sample.logprobs == scripted.LOGPROBS[3:]
        assert sample.versions == scripted.VERSIONS[3:]
        assert client.outstanding == 0


def test_a_sample_within_lengths() -> None:
    sample = Sample([1, 2, 3], [4, 5, 6], [1, 0, 1], [-0.4, 0.0, -0.6], [7, -1, 8])
    assert sample.within(3, 3) == sample
    assert sample.within(2, 4) == Sample([1, 2], [3, 4, 5, 6], [0, 1, 0, 1], [0.0, -0.4, 0.0, -0.6], [-1, 7, -1, 8])
    assert sample.within(3, 2) == Sample([1, 2, 3], [4, 5], [1, 0], [-0.4, 0.0], [7, -1])
    short = sample.within(1, 2)
    assert short == Sample([1], [2, 3], [0, 0], [0.0, 0.0], [-1, -1])
    assert (sample.trained, short.trained) == (2, 0)


async def test_rows_that_a_framework_leaves_out_are_told(
    server: Server, tasks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def stripped(call: Call) -> Reply:
        reply = scripted.answer(call, "Hello, world!")
        if len(reply.prompt_ids) > len(scripted.PROMPT):
            reply.prompt_ids = [*scripted.PROMPT, scripted.ACT[1], *scripted.SEEN]
        return reply

    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        async with Rollouts(client, Task.load, stripped, sandbox="local") as rollouts:
            episode = await rollouts.run(tasks / "hello")
        assert str(episode.rows.tokens) == "3 of 3 sampled tokens trained (100 %)"
        assert [sum(s.mask) for s in episode.samples] == [2, 1]
        assert episode.main == episode.samples[0]
        assert episode.left_out == 1
        assert "1 of its 3 trained tokens are left out" in caplog.text
        async with Rollouts(client, Task.load, stripped, sandbox="local", max_lost=2) as rollouts:
            joined = await rollouts.run(tasks / "hello")
        assert [s.mask for s in joined.samples] == [[1]]
        assert (joined.main, joined.left_out) == (joined.samples[0], 0)
        assert str(joined.rows.tokens).endswith("(33 %); not trained 2 in 1 call (tokens_lost)")
        with pytest.raises(InvalidError, match="max_lost"):
            Rollouts(client, Task.load, max_lost=-1)


async def test_a_cancelled_run_cancels_its_rollouts(server: Server, tasks: Path) -> None:
    asked = asyncio.Event()

    async def silent(call: Call) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        rollouts = Rollouts(client, Task.load, silent, sandbox="local")
        run = asyncio.ensure_future(rollouts.run(tasks / "hello"))
        await asked.wait()
        [rollout] = rollouts.waiting
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        await rollouts.close()
        assert {r.id: r.status async for r in client.results()} in ({rollout: "cancelled"}, {})
        assert (await client.result(rollout)).status == "cancelled"


async def test_a_cancelled_run_ends_as_one_without_the_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        submitted = asyncio.Event()

        async def submit_group(*args: object, **options: object) -> list[str]:
            submitted.set()
            return []

        async def away(*args: object) -> None:
            raise NotSentError("the server is away")

        monkeypatch.setattr(client, "submit_group", submit_group)
        monkeypatch.setattr(client._submissions, "cancel", away)
        async with Rollouts(client, lambda request: request, scripted.solve) as rollouts:
            run = asyncio.ensure_future(rollouts.run(Request()))
            await submitted.wait()
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run


async def test_a_group_that_does_not_start_cancels_the_others(server: Server, tasks: Path, tmp_path: Path) -> None:
    asked = threading.Event()

    async def silent(call: Call) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    def load(path: Path) -> Task:
        if path == tmp_path:
            asked.wait()
        return Task.load(path)

    async with (
        await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client,
        Rollouts(client, load, silent, sandbox="local") as rollouts,
    ):
        with pytest.raises(TaskError):
            await rollouts.groups([(tmp_path, 1), (tasks / "hello", 1)])
        ended = await asyncio.gather(*rollouts._waiting.values())
        assert [result.status for result in ended] == ["cancelled"]
        assert rollouts.waiting == []


async def test_a_closed_client_ends_a_run(server: Server, tasks: Path) -> None:
    client = await Client.connect(server.url, server.creds("trainer-alpha"), "alpha")
    run = asyncio.ensure_future(Rollouts(client, Task.load, None, sandbox="local").run(tasks / "hello"))
    await client.next_call()
    await client.close()
    with pytest.raises(ClosedError):
        await run


async def test_a_request_that_is_not_queued_is_not_cancelled(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled: list[str] = []

    async def cancel(rollouts: list[str], reason: str) -> None:
        cancelled.extend(rollouts)

    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        monkeypatch.setattr(client._submissions, "cancel", cancel)
        async with Rollouts(client, lambda request: request, scripted.solve) as rollouts:
            with pytest.raises(InvalidError, match=r"task\.name"):
                await rollouts.run(Request(task=schema.Task(name="x" * 300)))
        assert (cancelled, rollouts.waiting) == ([], [])
