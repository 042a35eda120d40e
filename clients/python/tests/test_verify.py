"""Verifications, with a worker that only asks and with a real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from nats.aio.msg import Msg

from conftest import Server
from fake_worker import TRAINER, Asking, FakeWorker, header, kind_of
from turngate import (
    CallOverError,
    Client,
    ClosedError,
    Fault,
    FaultError,
    Handle,
    InvalidError,
    Request,
    Verdict,
    Verify,
)
from turngate.client.sync import SyncClient
from turngate.errors import NotSentError
from turngate.schema import AgentChoice, Entry, Exit, OperationResult, SandboxChoice, Task, codec


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[FakeWorker]:
    async with FakeWorker(server.url, server.creds("admin")) as worker:
        yield worker


def trainer(server: Server, name: str = TRAINER, **options: Any) -> asyncio.Future[Client]:
    options.setdefault("answer_all", name == TRAINER)
    return asyncio.ensure_future(Client.connect(server.url, server.creds(f"trainer-{name}"), name, **options))


async def ask(worker: FakeWorker, rollout: str, asking: Asking | None = None, attempt: int = 1) -> Asking:
    body = {"v": 1, "key": f"{rollout}/{attempt}/1", "workdir": "/w", "limit_ms": 1000, "task": "t", "group": "g"}
    return await worker.send(rollout, 1, msgpack.packb(body), attempt=attempt, what="verify", asking=asking)


async def answer(worker: FakeWorker, msg: Msg, kind: str, message: Any = None) -> None:
    data = codec.encode(message) if message is not None else b""
    await worker.nc.publish(msg.reply, data, headers={"Rl-Kind": kind})


async def accepted(
    worker: FakeWorker, rollout: str, asked: Asking, also: Callable[[], Awaitable[object]] | None = None
) -> None:
    """Ask until the trainer accepts, as a worker does."""
    while True:
        if also is not None:
            await also()
        await ask(worker, rollout, asked)
        with contextlib.suppress(asyncio.TimeoutError):
            await asked.frame("accept", within=0.5)
            return


async def operation(asked: Asking) -> tuple[Msg, dict[str, Any]]:
    msg = await asked.frame("operation")
    return msg, msgpack.unpackb(msg.data)


async def test_operations(server: Server, worker: FakeWorker) -> None:
    done: asyncio.Future[Handle] = asyncio.get_running_loop().create_future()

    async def verify(handle: Handle) -> Verdict:
        assert handle.verification.task == "t"
        assert handle.verification.group == "g"
        out = await handle.exec(["a", "b c"], env={"A": "1"}, cwd="d", stdin=b"in", timeout=1.5)
        assert (out.exit.code, out.stdout, out.truncated) == (3, b"out", True)
        assert await handle.read("x") == b"data"
        await handle.write("y", b"\0\xff", mode=0o600)
        assert [e.name for e in await handle.list()] == ["f"]
        with pytest.raises(FileNotFoundError, match="none"):
            await handle.read("none")
        with pytest.raises(FaultError, match="too_large"):
            await handle.read("big")
        with pytest.raises(InvalidError, match="data"):
            await handle.write("z", bytes((8 << 20) + 1))
        done.set_result(handle)
        return Verdict(reward=0.5, metrics={"n": 2}, messages=["seen"])

    async with await trainer(server, verify=verify):
        rollout = worker.rollout()
        asked = await ask(worker, rollout)
        first = await asked.frame("accept")
        gen = header(first, "Rl-Gen")
        msg, op = await operation(asked)
        assert (header(msg, "Rl-Gen"), header(msg, "Rl-Seq")) == (gen, "1")
        assert op == {"v": 1, "do": "exec", "path": "d", "data": b"in", "args": ["a", "b c"], "env": {"A": "1"},
                      "timeout_ms": 1500}  # fmt: skip
        await answer(worker, msg, "beat")  # it runs: the same operation is requested again
        msg, again = await operation(asked)
        assert again == op
        assert header(msg, "Rl-Seq") == "1"
        await answer(worker, msg, "final", OperationResult(exit=Exit(code=3), stdout=b"out", truncated=True))
        msg, op = await operation(asked)
        assert (op, header(msg, "Rl-Seq")) == ({"v": 1, "do": "read", "path": "x"}, "2")
        await answer(worker, msg, "final", OperationResult(data=b"data"))
        msg, op = await operation(asked)
        assert op == {"v": 1, "do": "write", "path": "y", "data": b"\0\xff", "mode": 0o600}
        await answer(worker, msg, "final", OperationResult())
        msg, _ = await operation(asked)
        await answer(worker, msg, "final", OperationResult(files=[Entry(name="f", kind="file")]))
        msg, _ = await operation(asked)
        await answer(worker, msg, "fault", Fault(code="missing", message="none", status=404))
        msg, _ = await operation(asked)
        await answer(worker, msg, "fault", Fault(code="too_large", message="big", status=413))
        final = await asked.frame("final")
        assert codec.decode(Verdict, final.data) == Verdict(reward=0.5, metrics={"n": 2.0}, messages=["seen"])
        await ask(worker, rollout, asked)  # a worker that asks again gets the same verdict
        assert (await asked.frame("final")).data == final.data
        with pytest.raises(CallOverError):
            await (await done).read("x")


async def test_ends_of_a_verification(server: Server, worker: FakeWorker) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()

    async def verify(handle: Handle) -> Verdict:
        try:
            await handle.read("x")
        except asyncio.CancelledError:
            ended.put_nowait("cancelled")
            raise
        except CallOverError:
            ended.put_nowait("over")
            raise
        raise ValueError("no such model")

    async with await trainer(server, verify=verify):
        rollout = worker.rollout()
        asked = await ask(worker, rollout)
        msg, _ = await operation(asked)
        await answer(worker, msg, "final", OperationResult())
        fault = await asked.fault()
        assert (fault.code, fault.status, fault.who) == (
            "no_reward",
            422,
            "trainer",
        )
        assert "no such model" in fault.message

        rollout = worker.rollout()
        asked = await ask(worker, rollout)
        await operation(asked)
        subject = f"rollout.{rollout}.verify.{TRAINER}.0.1.1"
        await worker.nc.publish(subject, headers={"Rl-Kind": "cancel"})
        assert await asyncio.wait_for(ended.get(), 120) == "cancelled"

        asked = await ask(worker, rollout, attempt=2)
        msg, _ = await operation(asked)
        await answer(worker, msg, "fault", Fault(code="over", message="late", status=410))
        assert await asyncio.wait_for(ended.get(), 120) == "over"

        asked = await ask(worker, rollout, attempt=3)  # another attempt ends the one before
        await operation(asked)
        late = await ask(worker, rollout, attempt=2)
        assert (await late.fault()).status == 409


async def test_a_fault_that_is_not_valid_is_replaced(server: Server, worker: FakeWorker) -> None:
    runs = 0

    async def verify(handle: Handle) -> Verdict:
        nonlocal runs
        runs += 1
        raise FaultError(Fault(code="x" * 65, message="-", status=503))

    async with await trainer(server, verify=verify):
        rollout = worker.rollout()
        for _ in range(2):
            fault = await (await ask(worker, rollout)).fault()
            assert (fault.code, fault.status) == ("invalid", 422)
            assert "code: '65 bytes'" in fault.message
        assert runs == 1


async def test_a_handle_for_one_rollout(server: Server, worker: FakeWorker) -> None:
    async with await trainer(server) as client:
        rollout, other = worker.rollout(), worker.rollout()

        async def act() -> None:
            async with client.handle(rollout) as handle:
                assert await handle.read("x") == b"1"
                await handle.verdict(Verdict(reward=None))

        acting = asyncio.ensure_future(act())
        foreign, asked = Asking(worker), Asking(worker)
        await accepted(worker, rollout, asked, lambda: ask(worker, other, foreign))
        msg, _ = await operation(asked)
        await answer(worker, msg, "final", OperationResult(data=b"1"))
        assert codec.decode(Verdict, (await asked.frame("final")).data).reward is None
        await acting
        while not foreign.frames.empty():  # no trainer here wants it: its worker waits
            assert kind_of(foreign.frames.get_nowait()) == ""  # the server's answer that nothing listens
        waiting = asyncio.ensure_future(_divide(client, other, asyncio.Event()))
        await accepted(worker, other, foreign)
        waiting.cancel()  # another try gets the verification
        assert (await foreign.fault()).status == 503
        go = asyncio.Event()
        go.set()
        waiting = asyncio.ensure_future(_divide(client, other, go))
        await accepted(worker, other, foreign)
        with pytest.raises(ZeroDivisionError):
            await waiting
        never = asyncio.ensure_future(_divide(client, worker.rollout(), go))
        await asyncio.sleep(0)
        assert (await foreign.fault()).code == "no_reward"
    with pytest.raises(ClosedError):
        await never


async def test_a_handle_after_one_that_could_not_listen(
    server: Server, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise NotSentError("the link is away")

    async with await trainer(server) as client:
        rollout, go = worker.rollout(), asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(client._calls_link, "_check", away)
            with pytest.raises(NotSentError):
                await client.handle(rollout).__aenter__()
        assert not any(".verify." in subject for subject in client._calls_link._subscriptions)
        go.set()
        both = [asyncio.ensure_future(_divide(client, r, go)) for r in (rollout, worker.rollout())]
        await accepted(worker, rollout, Asking(worker))
        with pytest.raises(ZeroDivisionError):
            await both[0]
        assert sum(".verify." in sub.subject for sub in client._calls_link._nc._subs.values()) == 1
    with pytest.raises(ClosedError):
        await both[1]


async def _divide(client: Client, rollout: str, go: asyncio.Event) -> None:
    async with client.handle(rollout):
        await go.wait()
        raise ZeroDivisionError


def request(client: Client, script: str) -> Request:
    return Request(
        id=client.new_id(), trainer="alpha", task=Task(name="t", instruction="x"), sandbox=SandboxChoice(backend="local"),
        agent=AgentChoice(name="command", args=["sh", "-c", script]), verify=Verify(by="trainer"),
    )  # fmt: skip


async def test_a_real_sandbox(server: Server) -> None:
    async def verify(handle: Handle) -> Verdict:
        text = await handle.read("out.txt")
        await handle.write("sub/large.bin", text * 600_000)
        out = await handle.exec(run="wc -c < sub/large.bin; cat nothing", timeout=120)
        large = await handle.read("sub/large.bin")
        names = [e.name for e in await handle.list()]
        ok = int(out.stdout) == len(large) == 3_000_000 and b"nothing" in out.stderr and names == ["out.txt", "sub"]
        return Verdict(reward=float(ok), rewards={"style": 0.25}, metrics={"n": 1}, messages=["seen"])

    async with await trainer(server, "alpha", verify=verify) as client:
        await client.submit(request(client, "echo done > out.txt"))
        result = await asyncio.wait_for(client.next_result(), 120)
        assert (result.status, result.reward, result.fault) == ("done", 1.0, None)
        assert result.rewards == {"reward": 1.0, "style": 0.25}
        assert result.metrics == {"n": 1.0}
        assert "seen" in result.notes


def test_without_async(server: Server) -> None:
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel") as client:
        [rollout] = client.submit(request(client.client, "echo done > out.txt"))
        with contextlib.suppress(KeyboardInterrupt), client.handle(rollout) as handle:
            assert (handle.rollout, handle.verification.task, handle.wanted) == (rollout, "t", True)
            raise KeyboardInterrupt  # its worker asks again
        with client.handle(rollout, timeout=120) as handle:
            assert handle.read("out.txt") == b"done\n"
            handle.write("sub/x", b"1", mode=0o600)
            assert [e.name for e in handle.list("sub")] == ["x"]
            out = handle.exec(["cat"], stdin=b"in", timeout=120)
            assert (out.exit.code, out.stdout) == (0, b"in")
            with pytest.raises(FileNotFoundError):
                handle.read("none")
            handle.verdict(Verdict(reward=0.5))
            with pytest.raises(CallOverError):
                handle.read("out.txt")
        assert client.next_result(timeout=120).reward == 0.5
        for end in (ZeroDivisionError("by the verifier"), FaultError(Fault(code="no", message="-", status=422)), None):
            [rollout] = client.submit(request(client.client, "true"))
            with contextlib.suppress(ZeroDivisionError, FaultError), client.handle(rollout, timeout=120):
                if end is not None:
                    raise end
            result = client.next_result(timeout=120)
            assert result.fault is not None
            assert (result.status, result.reward) == ("failed", None)
            text = {ZeroDivisionError: "by the verifier", FaultError: "-", type(None): "without a verdict"}[type(end)]
            assert text in result.fault.message
        with pytest.raises(TimeoutError), client.handle(rollout, timeout=0.1):
            pass


PROCESS = """
import asyncio, sys
from turngate import Client, Handle, Verdict

async def verify(handle: Handle) -> Verdict:
    await handle.write("mark", b"first")
    print("it verifies", flush=True)
    await handle.exec(["sleep", "1000"])
    return Verdict(reward=0)

async def main() -> None:
    async with await Client.connect(sys.argv[1], sys.argv[2], "alpha", shard="v", answer_all=True, verify=verify):
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_killed_while_it_verifies(server: Server, tmp_path: Path) -> None:
    """The next process of a trainer that is killed with -9 verifies in the same sandbox."""
    (tmp_path / "verifier.py").write_text(PROCESS)
    async with await trainer(server, "alpha") as client:
        asked = request(client, "echo done > out.txt")
        asked.shard = "v"
        [rollout] = await client.submit(asked)
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(tmp_path / "verifier.py"), server.url, server.creds("trainer-alpha"),
            stdout=asyncio.subprocess.PIPE, env=os.environ,
        )  # fmt: skip
        assert process.stdout is not None
        assert b"it verifies" in await asyncio.wait_for(process.stdout.readline(), 120)
        process.send_signal(signal.SIGKILL)
        await process.wait()
        next_one = await trainer(server, "alpha", shard="v", answer_all=True)
        async with next_one, next_one.handle(rollout) as handle:
            assert await handle.read("mark") == b"first"
            await handle.verdict(Verdict(reward=1))
        result = await asyncio.wait_for(client.next_result(), 120)
        assert (result.reward, result.attempt, result.fault) == (1.0, 1, None)
