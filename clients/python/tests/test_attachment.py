"""One process answers the calls of a shard."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from conftest import Server
from fake_worker import TRAINER, FakeWorker
from test_client import connect, policy
from turngate import (
    Call,
    Client,
    FaultError,
    GroupExistsError,
    InUseError,
    InvalidError,
    ReplacedError,
    Reply,
    Request,
    Task,
    UnreachableError,
)
from turngate.errors import NotSentError
from turngate.rollouts.ledger import Submitted, submit_entry
from turngate.rollouts.orphans import Orphans
from turngate.schema import Attach, Attached, Fault, Process, codec
from turngate.wire import names
from turngate.wire.link import Link


async def test_a_second_client_is_refused_or_takes_over(server: Server, tasks: Path) -> None:
    async with await connect(server) as first:
        with pytest.raises(
            InUseError, match=r"shard 0 of trainer alpha is in use by .*process \d+ on .*take_over=True"
        ):
            await connect(server)
        async with await connect(server, shard="other") as apart, await connect(server, take_over=True) as second:
            with pytest.raises(ReplacedError, match=r"was replaced by .*, which answers the calls of shard 0 now"):
                await asyncio.wait_for(first.next_call(), 120)
            with pytest.raises(ReplacedError):
                await first.submit_group(Task.load(tasks / "hello"), sandbox="local")
            for client in (second, apart):
                client.serve(policy)
                await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
            assert {(await c.next_result()).reward for c in (second, apart)} == {1.0}
    async with await connect(server):
        pass  # a process that has ended needs no answer


async def test_each_client_answers_its_own_rollouts(server: Server, tasks: Path) -> None:
    seen: dict[str, set[str]] = {"a": set(), "b": set()}

    async def run(name: str, client: Client) -> set[str]:
        async def handler(call: Call) -> Reply:
            seen[name].add(call.rollout)
            return await policy(call)

        client.serve(handler)
        ids = await client.submit_group(Task.load(tasks / "hello"), n=4, sandbox="local")
        assert {r.id async for r in client.results()} == set(ids)
        return set(ids)

    async with await connect(server, shard="a") as a, await connect(server, shard="b") as b:
        of_a, of_b = await asyncio.gather(run("a", a), run("b", b))
        assert (of_a, of_b) == (seen["a"], seen["b"])


@pytest.mark.parametrize(("orphans", "status"), [("cancel", "cancelled"), ("adopt", "done")])
async def test_rollouts_of_a_process_that_is_gone(server: Server, tasks: Path, orphans: str, status: str) -> None:
    asked = asyncio.Event()

    async def waits(call: Call) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        return await policy(call)

    async with await connect(server, shard=orphans) as first:
        first.serve(waits)
        [rollout] = await first.submit_group(Task.load(tasks / "hello"), sandbox="local")
        await asked.wait()
    async with await connect(server, shard=orphans, orphans=orphans) as second:
        second.serve(policy)
        if orphans == "adopt":
            assert (await second.next_result()).id == rollout
        while True:
            try:
                assert (await second.result(rollout)).status == status
                break
            except LookupError:
                await asyncio.sleep(0.1)


async def hang(server: Server, tasks: Path, n: int = 1, **options: Any) -> list[str]:
    """Leave rollouts that wait for an answer, as a process that is gone does."""
    asked = asyncio.Queue[str]()

    async def waits(call: Call) -> Reply:
        asked.put_nowait(call.rollout)
        await asyncio.Event().wait()
        return await policy(call)

    async with await connect(server, **options) as client:
        client.serve(waits)
        ids = await client.submit_group(Task.load(tasks / "hello"), n=n, sandbox="local")
        assert {await asked.get() for _ in range(n)} == set(ids)
    return ids


async def status_of(client: Client, rollout: str) -> str:
    """Wait for the result of a rollout."""
    while True:
        with contextlib.suppress(LookupError):
            return (await client.result(rollout)).status
        await asyncio.sleep(0.1)


async def test_the_next_process_ends_rollouts_without_a_state_file(
    server: Server, tasks: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = await hang(server, tasks, shard="next", orphans="replace", state=tmp_path / "state")
    apart = await hang(server, tasks, shard="apart")
    lost = await hang(server, tasks, shard="next", orphans="leave")
    async with await connect(server, shard="next", orphans="replace"):
        pass  # it submits nothing, and ends nothing
    async with await connect(server, shard="next", orphans="replace") as client:
        client.serve(policy)
        await client.submit_group(Task.load(tasks / "hello"), n=2, sandbox="local")
        assert [r.status async for r in client.results()] == ["done", "done"]
        assert await status_of(client, lost[0]) == "cancelled"
        assert "1 open rollouts of processes that are gone are ended" in caplog.text
        assert "1 open rollouts that this process did not submit are left alone" in caplog.text
        for rollout in (*kept, *apart):
            with pytest.raises(LookupError):
                await client.result(rollout)
    assert "has the place of another one" not in caplog.text
    async with await connect(server, shard="next", orphans="replace", state=tmp_path / "state") as client:
        client.serve(policy)
        assert [(r.id, r.status) async for r in client.results()] == [(kept[0], "done")]
    async with await connect(server, shard="apart", orphans="cancel") as client:
        assert await status_of(client, apart[0]) == "cancelled"


async def test_rollouts_that_hold_all_slots_are_named(
    server: Server, tasks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ids = await hang(server, tasks, n=4, shard="unnamed")
    async with await connect(server, shard="waits") as client:
        await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
        while "no rollout of this client runs: no slot is free" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert "4 rollouts of shard unnamed of this trainer run, and no process answers them:" in caplog.text
        assert f"turngate rollout cancel {ids[0]}" in caplog.text
        async with await connect(server, shard="unnamed", orphans="cancel") as other:
            for rollout in ids:
                assert await status_of(other, rollout) == "cancelled"
        while "model calls wait for an answer" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert "call client.serve(handler), or answer those of client.next_call()" in caplog.text
        client.serve(policy)
        assert [r.status async for r in client.results()] == ["done"]


async def test_only_a_process_that_runs_or_died_has_its_place_taken(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with await connect(server, shard="place") as first:
        assert first._attachment is not None
        ended = first._attachment
    async with await connect(server, shard="place") as second:
        assert "has the place of another one" not in caplog.text
        late = Attach(process=dataclasses.replace(ended._process, ended=True))  # it comes after its successor
        got = await second._bulk_link.request(names.trainer_subject("alpha", "attach"), codec.encode(late))
        assert codec.decode(Attached, got.data).process.instance != ended._process.instance
    link = await Link.open(server.url, server.creds("trainer-alpha"), "dies", names.inbox("alpha"))
    ask = Attach(process=Process(instance="f00d", shard="place", name="train.py"))
    await link.request(names.trainer_subject("alpha", "attach"), codec.encode(ask))
    await link.close()
    async with await connect(server, shard="place"):
        assert "has the place of another one of trainer alpha, which ran or did not end by itself: train" in caplog.text


@pytest.mark.parametrize("orphans", ["leave", "cancel", "adopt"])
async def test_a_call_that_is_routed_to_another_shard_is_no_orphans(
    server: Server, tasks: Path, orphans: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked, go_on, judge = asyncio.Event(), asyncio.Event(), f"judge-{orphans}"

    async def waits(call: Call) -> Reply:
        asked.set()
        await go_on.wait()
        return await policy(call)

    async with await connect(server, TRAINER, shard="first") as first:
        first.serve(waits)
        [rollout] = await first.submit_group(Task.load(tasks / "hello"), sandbox="local")
        await asked.wait()
        async with FakeWorker(server.url, server.creds("admin")) as worker:
            async with await connect(server, TRAINER, shard=judge, orphans=orphans) as second:
                call = await worker.ask(rollout, 9, [{"role": "user", "content": "x"}], shard=judge)
                while f"{rollout} was not submitted by this process" not in caplog.text:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert "answer_all=True" in caplog.text
                assert second.outstanding == 0
                assert call.frames.empty()
            async with await connect(server, TRAINER, shard=judge, answer_all=True) as third:
                third.serve(policy)
                call = await worker.ask(rollout, 9, [{"role": "user", "content": "x"}], shard=judge)
                await call.final()
        go_on.set()
        assert (await first.next_result()).status == "done"


async def test_a_process_keeps_its_shard_while_workers_are_away(own_server: Server) -> None:
    async with await connect(own_server):
        worker = own_server.processes[-1]
        worker.send_signal(signal.SIGTERM)
        await asyncio.to_thread(worker.wait, 60)
        with pytest.raises(InUseError, match=r"shard 0 of trainer alpha is in use by .*process \d+ on"):
            await connect(own_server)


async def test_a_process_without_its_calls_says_why(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    async with await connect(own_server):
        pass  # its streams are made
    worker = own_server.processes[-1]
    worker.send_signal(signal.SIGTERM)
    await asyncio.to_thread(worker.wait, 60)
    async with await connect(own_server):
        while "does not have the calls of its shard, and answers none" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_a_process_that_reconnects_keeps_its_shard(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.rollouts.attachment.HEARD_LATELY", 300.0)  # the machine may be busy
    inbox = names.inbox("alpha")
    link = await Link.open(server.url, server.creds("trainer-alpha"), "other", inbox)
    ask = Attach(process=Process(instance="f00d", shard="again", name="train.py"))
    await link.request(names.trainer_subject("alpha", "attach"), codec.encode(ask))

    async def answer(msg: Msg) -> None:
        await link.publish(msg.reply)

    there, request = f"{inbox}.process.f00d", Link.request

    async def come_back(self: Link, subject: str, *args: Any, **more: Any) -> Msg:
        """Reconnect when the first question has found nobody."""
        try:
            return await request(self, subject, *args, **more)
        except NotSentError:
            if subject == there and there not in link._subscriptions:
                await link.subscribe(there, answer)
            raise

    monkeypatch.setattr(Link, "request", come_back)
    with pytest.raises(InUseError, match=r"in use by train.py: end that one"):
        await connect(server, shard="again")
    assert there in link._subscriptions
    await link.close()


async def test_a_copied_state_file(server: Server, tmp_path: Path) -> None:
    async with await connect(server, shard="copied", state=tmp_path / "a") as first:
        shutil.copy(tmp_path / "a", tmp_path / "b")
        with pytest.raises(InUseError, match="has a copy of this process's state file"):
            await connect(server, shard="copied", state=tmp_path / "b")
        async with await connect(server, shard="copied", state=tmp_path / "b", take_over=True):
            with pytest.raises(ReplacedError, match="has a copy of this process's state file"):
                await asyncio.wait_for(first.next_call(), 120)


async def test_a_look_for_orphans_is_repeated(
    server: Server, tasks: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with await connect(server, shard="looked") as first:
        [rollout] = await first.submit_group(Task.load(tasks / "hello"), sandbox="local")
    find, tries = Orphans._find, 0

    async def fails_once(self: Orphans, adopted: Callable[[list[str]], Awaitable[None]]) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise UnreachableError("no answer")
        await find(self, adopted)

    monkeypatch.setattr(Orphans, "_find", fails_once)
    async with await connect(server, shard="looked", orphans="adopt") as second:
        second.serve(policy)
        assert [r.id async for r in second.results()] == [rollout]
    assert "the open rollouts of other processes are not known" in caplog.text


async def test_a_result_is_returned_once(server: Server, tasks: Path) -> None:
    async with await connect(server, shard="once", orphans="adopt") as client:
        client.serve(policy)
        [rollout] = await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
        assert (await client.next_result()).id == rollout
        await client._submissions.adopt(Submitted(await client._submissions.request(rollout)))
        assert client.outstanding == 0


async def test_a_rollout_has_the_shard_of_the_process_that_has_it(
    server: Server, tasks: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(call: Call) -> Reply:
        raise FaultError(Fault(stage="call", code="broken", message="-", who="trainer", status=400))

    async with await connect(server, shard="before", state=tmp_path / "state") as first:
        first.serve(refuse)
        await first.submit_group(Task.load(tasks / "hello"), sandbox="local")
        failed = await first.next_result()
        other = Request(id=first.new_id(), shard="judge")
        first._submissions.restore({"a": Submitted(Request(id="alpha-a", shard="before")), "b": Submitted(other)})
        first._ledger.write(map(submit_entry, first._submissions.open.values()))
    async with await connect(server, shard="after", state=tmp_path / "state") as second:
        opened = second._submissions.open
        assert (opened["alpha-a"].request.shard, opened[other.id].request.shard) == ("after", "judge")
        assert "send their calls to that shard" in caplog.text
    async with await connect(server, shard="third") as third:
        third.serve(policy)
        again = await third.submit_again(failed)
        assert (await third.next_result()).id == again


async def test_a_group_that_exists_is_an_error(server: Server, tasks: Path) -> None:
    task = Task.load(tasks / "hello")
    async with await connect(server) as client:
        client.serve(policy)
        await client.submit_group(task, n=2, group="exists", sandbox="local")
        with pytest.raises(GroupExistsError, match="in use since rollouts of this process"):
            await client.submit_group(task, group="exists", sandbox="local")
        assert len([r async for r in client.results()]) == 2
    async with await connect(server) as client:
        with pytest.raises(GroupExistsError, match=r"group: 'exists' .* in use since 20\d\d-"):
            await client.submit_group(task, group="exists", sandbox="local")
        assert client.outstanding == 0
        with pytest.raises(InvalidError, match="orphans: 'keep'"):
            await connect(server, shard="x", orphans="keep")
