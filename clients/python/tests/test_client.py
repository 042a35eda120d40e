"""Rollouts from task to result, with a real worker."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from conftest import Server
from turngate import (
    Call,
    Client,
    ClosedError,
    Delta,
    InvalidError,
    NotFoundError,
    Reply,
    Request,
    StateFileError,
    Task,
    ToolSpec,
    UnreachableError,
    schema,
)
from turngate.client.sync import SyncClient
from turngate.rollouts.ledger import Ledger
from turngate.schema import codec


def shell(command: str) -> dict[str, object]:
    arguments = json.dumps({"command": command})
    return {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}}


def solve(call: Call) -> Reply:
    """Solve the hello task in half of the rollouts of a group."""
    if call.messages[-1]["role"] == "tool":
        return Reply(message={"role": "assistant", "content": "Done."}, finish_reason="stop")
    greeting = "Hello, world!" if int(call.rollout[-1], 16) % 2 == 0 else "Good night!"
    message = {"role": "assistant", "content": None, "tool_calls": [shell(f"echo '{greeting}' > hello.txt")]}
    ids = {"prompt_ids": [1, 2, 3], "completion_ids": [4, 5], "logprobs": [-0.5, -0.25]}
    return Reply(message=message, finish_reason="tool_calls", **ids)  # type: ignore[arg-type]


async def policy(call: Call) -> Reply:
    return solve(call)


def connect(server: Server, name: str = "alpha", **options: object) -> asyncio.Future[Client]:
    options.setdefault("orphans", "cancel")  # rollouts that earlier tests have left
    return asyncio.ensure_future(Client.connect(server.url, server.creds(f"trainer-{name}"), name, **options))  # type: ignore[arg-type]


async def test_a_group_of_rollouts(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        client.serve(policy)
        ids = await client.submit_group(Task.load(tasks / "hello"), n=4, sandbox="local", labels={"run": "1"})
        results = {r.id: r async for r in client.results(progress=True)}
        assert sorted(results) == sorted(ids)
        assert [results[i].reward for i in ids] == [1.0, 0.0, 1.0, 0.0]
        assert client.outstanding == 0
        one = results[ids[0]]
        assert one.labels == {"run": "1"}
        assert await client.result(one.id) == one
        lines = [line async for line in client.transcript(one)]
        calls = [line.request for line in lines if line.request is not None]
        assert [line.call for line in lines] == [1, 1, 2, 2]
        assert calls[1].base == 1
        assert list(lines[1].reply.completion_ids) == [4, 5] if lines[1].reply else False
        assert [c.gen for c in one.committed] == [line.gen for line in lines if line.gen]
        made = await client.rows(one)
        assert [(row.input_ids.tolist(), row.loss_mask.tolist()) for row in made] == [
            ([1, 2, 3, 4, 5], [0, 0, 0, 1, 1])
        ]
        assert (made[0].rollout, made[0].group, made[0].reward) == (one.id, one.group, 1.0)
        assert [row.to_json() for row in await client.rows(one.id)] == [row.to_json() for row in made]
        assert [line async for line in client.transcript(one.id)] == lines
        log = next(a for a in one.artifacts if a.name == "agent.stdout.log")
        assert len(await client.read_artifact(log)) == log.size
        with pytest.raises(NotFoundError):
            await client.result(client.new_id())
        fleet = await client.fleet()
        assert fleet.workers[0].offer.backends == ["local"]


async def test_streamed_answers_pass_to_the_agent(server: Server, tasks: Path) -> None:
    async def streamed(call: Call) -> AsyncIterator[Delta]:
        message = solve(call).message
        if message["content"]:
            for word in ("Do", "ne", "."):
                yield Delta(delta={"content": word})
            return
        [tool] = message["tool_calls"]
        arguments = tool["function"]["arguments"]
        named = {"name": "bash", "arguments": ""}
        yield Delta(delta={"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": named}]})
        for piece in (arguments[:9], arguments[9:]):
            yield Delta(delta={"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})

    async with await connect(server) as client:
        client.serve(streamed)
        request = Task.load(tasks / "hello").request_for("mini", "local")
        request.task.bundle = await client.put_bundle(Task.load(tasks / "hello").bundle)
        request.gate.stream = "pass"
        await client.submit_group(request, n=1)
        [result] = [r async for r in client.results()]
        assert (result.reward, result.fault) == (1.0, None)


async def test_the_note_of_the_default_network_is_for_that_network_only(server: Server, tasks: Path) -> None:
    task = Task.load(tasks / "hello")
    [note] = task.request.task.notes
    assert "network_mode is not set" in note
    async with await connect(server) as client:
        request = task.request_for("mini", "local", "")
        request.sandbox.gpus = 1  # no worker offers one: it stays queued
        request.task.bundle = await client.put_bundle(task.bundle)
        request.task.notes.append("other")
        for network, notes in (("", [note, "other"]), ("none", [note, "other"]), ("open", ["other"])):
            request.sandbox.network = network
            [rollout] = await client.submit_group(request)
            assert client._submissions.open[rollout].request.task.notes == notes
        assert request.task.notes == [note, "other"]
        await client.cancel()
        assert [r.status async for r in client.results()] == 3 * ["cancelled"]


async def test_cancel(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        ids = await client.submit_group(Task.load(tasks / "hello"), n=2, sandbox="local", group="g")
        while (call := await client.next_call()).rollout not in ids:
            pass  # a rollout that an earlier test left asks again
        # The rollout runs, and its call is never answered.
        with pytest.raises(InvalidError, match="reason"):
            await client.cancel(group="g", reason="x" * 1025)
        await client.cancel(group="g", reason="stale")
        results = [r async for r in client.results()]
        assert sorted(r.id for r in results) == ids
        assert {r.status for r in results} == {"cancelled"}
        assert {r.fault.message for r in results if r.fault} == {"cancelled by its trainer: stale"}
        assert not call.wanted


async def test_wrong_requests_are_refused_before_anything_is_sent(server: Server) -> None:
    async with await connect(server) as client:
        for request, field in (
            (Request(id="beta-1"), "id"),
            (Request(sandbox=schema.SandboxChoice(cpus=-1)), "cpus"),
            (Request(gate=schema.GateOptions(stream="maybe")), "stream"),
            (Request(task=schema.Task(name="x" * 300)), "task.name"),
        ):
            if not request.task.name:
                request.task.name = "t"
            request.agent.name, request.sandbox.backend = "mini", "local"
            with pytest.raises(InvalidError, match=field):
                await client.submit(request)
        assert client.outstanding == 0


async def test_a_restarted_trainer_waits_for_its_rollouts(server: Server, tasks: Path, tmp_path: Path) -> None:
    state = tmp_path / "trainer.state"
    first = await connect(server, state=state)
    ids = await first.submit_group(Task.load(tasks / "hello"), n=2, sandbox="local")
    await first.next_call()
    with pytest.raises(StateFileError, match="in use"):
        await connect(server, state=state)
    await first.close()
    second = await connect(server, state=state)
    assert second.outstanding == 2
    second.serve(policy)
    results = {r.id: r.reward async for r in second.results()}
    assert results == {ids[0]: 1.0, ids[1]: 0.0}
    await second.close()
    assert state.read_text().count('"done":true') == 2
    ledger = Ledger(state)
    assert ledger.open() == {}
    ledger.close()


async def test_lost_requests_are_submitted_again(own_server: Server, tasks: Path) -> None:
    async with await connect(own_server, audit_every=0.5) as client:
        task = Task.load(tasks / "hello")
        request = task.request_for("mini", "local", "")
        request.sandbox.gpus = 1  # no worker offers one: it stays queued
        request.task.bundle = await client.put_bundle(task.bundle)
        ids = await client.submit_group(request, n=2, tools=[ToolSpec(name="search")])
        assert [t.name for t in client._submissions.open[ids[1]].request.agent.tools] == ["search"]
        await asyncio.to_thread(own_server.stop)
        own_server.wipe()
        await asyncio.to_thread(own_server.start)
        deadline = asyncio.get_running_loop().time() + 180
        while True:
            try:
                if await client._streams.last_sequence("REQ_alpha") >= 2:
                    break
            except (UnreachableError, NotFoundError):
                pass
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.1)
        assert await client._objects.info("tasks_alpha", request.task.bundle) is not None
        await client.cancel()
        assert {r.status async for r in client.results()} == {"cancelled"}


def test_without_async(server: Server, tasks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel") as client:
        client.serve(solve)
        client.submit_group(Task.load(tasks / "hello"), n=2, sandbox="local")
        results = list(client.results(progress=True))
        bar = capsys.readouterr().err.splitlines()[-1]
        assert "2/2" in bar
        assert "reward=0.500" in bar
        assert sorted(r.reward or 0.0 for r in results) == [0.0, 1.0]
        assert [line.call for line in client.transcript(results[0])] == [1, 1, 2, 2]
        assert [len(row) for row in client.rows(results[0], roles=["agent"])] == [5]


def test_doctor(server: Server) -> None:
    ask = [sys.executable, "-m", "turngate.doctor", "--nats", server.url, "--name", "alpha", "--creds"]
    done = subprocess.run([*ask, server.creds("trainer-alpha")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok   workers: 1," in done.stdout
    assert "ok   packages: Python 3." in done.stdout
    assert f"ok   command: {server.binary}" in done.stdout
    done = subprocess.run([*ask, server.creds("trainer-other")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    alone = {**os.environ, "PATH": "/nowhere", "TURNGATE": ""}
    done = subprocess.run([*ask, server.creds("trainer-alpha")], capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nnone command: Task.load needs it: " in done.stdout


async def test_no_server() -> None:
    with pytest.raises(UnreachableError, match="connect to NATS"):
        await Client.connect("nats://127.0.0.1:1", name="alpha", start_within=0.5)


def test_requests_travel_as_json() -> None:
    request = Request(id="alpha-1", verify=schema.Verify(), labels={"a": "b"})
    assert codec.from_json(Request, json.loads(json.dumps(codec.to_json(request)))) == request


def test_another_event_loop_is_refused(server: Server) -> None:
    async def refused(client: Client) -> None:
        for use in (client.submit(Request()), client.next_call(), client.next_result(), client.hold(), client.resume(),
                    client.cancel(), client.close(), anext(client.results())):  # fmt: skip
            with pytest.raises(ClosedError, match=r"connect once more in each asyncio\.run"):
                await use
        with pytest.raises(ClosedError):
            client.serve(policy)

    async def connected() -> Client:
        return await connect(server)

    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    client = first.run_until_complete(connected())
    second.run_until_complete(refused(client))
    first.run_until_complete(client.close())
    first.close()
    second.close()


def test_the_type_of_a_number_is_named() -> None:
    class Integer(int):
        __module__ = "numpy"

    assert "'1 of numpy.Integer' is not valid" in str(InvalidError("n", Integer(1), "want a number"))
