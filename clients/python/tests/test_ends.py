"""Ends: a client that is closed, and an interrupt while handlers run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Server
from test_client import connect
from turngate import Call, ClosedError, Reply, SyncClient, Task, TurngateError

BLOCKED = """
import asyncio, signal, sys, time
from turngate import Client, SyncClient, Task

def blocked(call):
    print("asked", flush=True)
    time.sleep(600)

async def waiting(call):
    print("asked", flush=True)
    await asyncio.sleep(600)

async def interrupted(call):
    print("asked", flush=True)
    signal.raise_signal(signal.SIGINT)
    await asyncio.sleep(600)

async def main(handler):
    async with await Client.connect(url, creds, "alpha") as client:
        client.serve(handler)
        await client.submit_group(Task.load(task), sandbox="local")
        async for _ in client.results():
            pass

_, url, creds, task, kind = sys.argv
if kind == "sync":
    with SyncClient.connect(url, creds, "alpha") as client:
        client.serve(blocked)
        client.submit_group(Task.load(task), sandbox="local")
        for _ in client.results():
            pass
elif kind == "groups":
    with SyncClient.connect(url, creds, "alpha") as client:
        client.serve(blocked)
        for _ in client.groups(task, 1, sandbox="local"):
            pass
else:
    asyncio.run(main({"threads": blocked, "async": waiting, "inside": interrupted}[kind]))
"""


@pytest.mark.parametrize("kind", ["sync", "groups", "async", "threads", "inside"])
def test_an_interrupt_ends_a_trainer_whose_handler_runs(own_server: Server, tasks: Path, kind: str) -> None:
    argv = [
        sys.executable,
        "-c",
        BLOCKED,
        own_server.url,
        own_server.creds("trainer-alpha"),
        str(tasks / "hello"),
        kind,
    ]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        if kind != "inside":  # Python 3.10 raises KeyboardInterrupt in the task that runs, here the handler's
            process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0
    assert said.rstrip().endswith("KeyboardInterrupt"), said
    assert said.count("Traceback") <= 2, said
    assert "never" not in said


async def never(call: Call) -> Reply:
    raise NotImplementedError


async def test_a_closed_client_says_so(server: Server, tasks: Path) -> None:
    client = await asyncio.to_thread(SyncClient.connect, server.url, server.creds("trainer-alpha"), "alpha")
    loop = client.groups([tasks / "hello"], sandbox="local")
    await asyncio.to_thread(client.close)
    await asyncio.to_thread(client.close)
    task = Task.load(tasks / "hello")
    for method in (
        lambda: client.submit_group(task), client.next_result, client.fleet, client.resume, lambda: list(client.results()),
        lambda: client.serve(never), lambda: next(loop), lambda: client.evaluate([task]), client.load,
    ):  # fmt: skip
        with pytest.raises(ClosedError, match="the client is closed"):
            method()


async def test_a_close_that_is_cancelled_goes_on(server: Server) -> None:
    client = await connect(server)
    closing = asyncio.ensure_future(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await client.close()
    assert not client._bulk_link.connected


async def test_a_handler_that_closes_the_client_goes_on(server: Server) -> None:
    client = await connect(server)
    await client._calls.background.run(client.close())
    assert not client._bulk_link.connected


async def test_the_loop_of_the_client_does_not_wait_for_itself(server: Server) -> None:
    def work() -> str:
        with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:

            async def inside() -> str:
                with pytest.raises(TurngateError) as e:
                    client.fleet()
                return str(e.value)

            return client._run(inside())

    assert "must not wait" in await asyncio.to_thread(work)
