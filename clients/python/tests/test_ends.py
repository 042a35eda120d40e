"""Ends: a client that is closed, and an interrupt while handlers run."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Server
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
else:
    asyncio.run(main({"threads": blocked, "async": waiting, "inside": interrupted}[kind]))
"""


@pytest.mark.parametrize("kind", ["sync", "async", "threads", "inside"])
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
        _, said = process.communicate(timeout=20)
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


async def test_the_loop_of_the_client_does_not_wait_for_itself(server: Server) -> None:
    def work() -> str:
        with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:

            async def inside() -> str:
                with pytest.raises(TurngateError) as e:
                    client.fleet()
                return str(e.value)

            return client._run(inside())

    assert "must not wait" in await asyncio.to_thread(work)
