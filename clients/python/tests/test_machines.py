"""Work on a machine: a real server and a real machine, with sandboxes on this host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Server, free_port
from cutting import Proxy
from turngate import ClosedError, InvalidError, MachineError, OperationError, SandboxLostError, UnreachableError
from turngate.machines import Machines, SyncMachines
from workshop import MACHINE, workshop


@pytest.fixture(scope="module")
def folder(server: Server) -> Iterator[Path]:
    with workshop(server) as (folder, _):
        yield folder


async def connect(server: Server, url: str = "") -> Machines:
    return await Machines.connect(url or server.url, server.creds("admin"))


async def test_commands_and_files(server: Server, folder: Path) -> None:
    async with await connect(server) as machines:
        build = machines[MACHINE]
        made = await build.exec(run="cat; echo err >&2; pwd; exit 7", stdin=b"in\n")
        assert (made.exit.code, made.stdout, made.stderr, made.truncated) == (7, b"in\n/workspace\n", b"err\n", False)

        async with build.sandbox(env={"A": "sandbox", "B": "sandbox"}) as sandbox:
            data = bytes(range(256)) * 8192
            await sandbox.write("src/data.bin", data, mode=0o600)
            assert await sandbox.read("/workspace/src/data.bin") == data
            assert (folder / "src/data.bin").read_bytes() == data
            assert [(e.name, e.kind, e.size, e.mode) for e in await sandbox.list("src")] == [
                ("data.bin", "file", len(data), 0o600)
            ]
            await sandbox.mkdir("empty")
            assert [(e.name, e.kind) for e in await sandbox.list()] == [("empty", "folder"), ("src", "folder")]
            await sandbox.remove("empty")
            assert [await sandbox.exists(path) for path in ("src", "empty", "src/data.bin/x")] == [True, False, False]
            with pytest.raises(FileNotFoundError):
                await sandbox.read("missing")
            with pytest.raises(OperationError) as large:
                await sandbox.read("src/data.bin", most=10)
            assert large.value.code == "too_large"

            got = await sandbox.exec(run='echo "$A $B"; pwd', env={"B": "command"}, cwd="src")
            assert got.stdout == b"sandbox command\n/workspace/src\n"
            many = await sandbox.exec(["sh", "-c", "cat >copy; cat copy copy"], stdin=data, most=len(data))
            assert (many.stdout, many.truncated, many.exit.stdout_bytes) == (data, True, 2 * len(data))
            slow = await sandbox.exec(["sleep", "1000"], timeout=0.2)
            assert slow.exit.timed_out
            with pytest.raises(FileNotFoundError, match="no-such-program"):
                await sandbox.exec(["no-such-program"])
            with pytest.raises(FileNotFoundError, match="no-such-user"):
                await sandbox.exec(["true"], user="no-such-user")
            with pytest.raises(InvalidError, match="user"):
                await sandbox.write("b.txt", b"", user="no-such-user")
            with pytest.raises(InvalidError, match="args"):
                await sandbox.exec()


async def test_a_command_that_runs(server: Server, folder: Path) -> None:
    async with await connect(server) as machines, machines[MACHINE].sandbox() as sandbox:
        async with sandbox.start(["cat"]) as process:
            await process.write(b"one\n")
            assert await anext(aiter(process)) == ("stdout", b"one\n")
            with pytest.raises(TimeoutError):
                await process.wait(0.05)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(process._next(), 0.05)  # a cancelled read loses nothing
            await process.write(b"two\n")
            assert await process._next() == ("stdout", b"two\n")
            await process.close_stdin()
            assert (await process.wait()).code == 0
            await process.kill()  # it has ended
        async with sandbox.start(run="trap 'echo term; exit 3' TERM; echo up; while :; do sleep 0.1; done") as process:
            assert await process._next() == ("stdout", b"up\n")
            await process.kill(15)
            assert ("stdout", b"term\n") in [part async for part in process]  # the shell may tell of its sleep
            assert process.exit is not None
            assert process.exit.code == 3
        async with sandbox.start(run="echo $$; exec sleep 1000") as process:
            name, pid = await process._next() or ("", b"")
        gone = await sandbox.exec(run=f"while kill -0 {int(pid)}; do sleep 0.1; done", timeout=240)
        assert (name, gone.exit.code) == ("stdout", 0)


async def test_a_stream_goes_on_through_cuts(server: Server, folder: Path) -> None:
    """Each byte arrives once and in order in both directions, and the command runs once."""
    (folder / "runs").unlink(missing_ok=True)
    async with Proxy(server.port) as proxy, await connect(server, proxy.url) as machines:
        async with machines[MACHINE].start(run="echo run >>runs; exec cat") as process:
            data = bytes(range(256)) * 16384
            got = bytearray()
            feeding = asyncio.ensure_future(process.write(data))
            cuts = 0
            async for name, part in process:
                assert name == "stdout"
                got += part
                if len(got) > (cuts + 1) << 20:
                    cuts += 1
                    await proxy.cut()
                if len(got) == len(data):
                    break
            await feeding
            await process.close_stdin()
            assert (await process.wait()).code == 0
        assert bytes(got) == data
        assert proxy.made > cuts > 1
    assert (folder / "runs").read_text() == "run\n"


async def test_a_port_that_leads_out(server: Server, folder: Path) -> None:
    """Programs in the sandbox reach a server beside this process, with any number of bytes in both directions."""
    data = bytes(range(256)) * 8192

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.readexactly(len(data))
        writer.write(got[::-1])
        await writer.drain()
        writer.close()

    client = ["bash", "-c", "exec 4<&0 3<>/dev/tcp/127.0.0.1/$1; cat <&4 >&3 & cat <&3", "bash"]
    echo = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with await connect(server) as machines, machines[MACHINE].sandbox() as sandbox:
        await sandbox.forward(8123, *echo.sockets[0].getsockname())
        runs = [sandbox.exec([*client, "8123"], stdin=data) for _ in range(2)]
        for done in await asyncio.gather(*runs):
            assert (done.exit.code, done.stderr) == (0, b"")
            assert done.stdout == data[::-1]
        with pytest.raises(OperationError, match="in use"):
            await sandbox.forward(8123, "127.0.0.1", 1)
        await sandbox.forward(8124, "127.0.0.1", free_port())
        refused = await sandbox.exec([*client, "8124"])
        assert refused.stdout == b""
    echo.close()


async def test_refusals(server: Server, folder: Path) -> None:
    async with await connect(server) as machines:
        there = await machines.list()
        assert [(m.machine, m.protocol, m.slots) for m in there] == [(MACHINE, 1, 2)]
        async with machines[MACHINE].sandbox(), machines[MACHINE].sandbox():
            with pytest.raises(MachineError, match="all slots are taken") as full:
                await machines[MACHINE].open()
            assert full.value.reason == "full"
        with pytest.raises(InvalidError, match="machine"):
            machines["a.b"]
    with pytest.raises(InvalidError, match="want the admin's"):
        await Machines.connect(server.url, server.creds("trainer-alpha"))
    with pytest.raises(UnreachableError, match=r"creds/admin\.nk"):
        await Machines.connect(server.url)


def test_without_async(server: Server, folder: Path) -> None:
    with SyncMachines.connect(server.url, server.creds("admin")) as machines:
        assert [m.machine for m in machines.list()] == [MACHINE]
        with machines[MACHINE].sandbox(env={"A": "b"}) as sandbox:
            sandbox.write("sync/a.txt", b"text")
            sandbox.mkdir("sync/sub")
            assert [e.name for e in sandbox.list("sync")] == ["a.txt", "sub"]
            sandbox.remove("sync/sub")
            assert [sandbox.exists(path) for path in ("sync/a.txt", "sync/sub")] == [True, False]
            assert sandbox.exec(run="echo $A; cat", stdin=sandbox.read("sync/a.txt")).stdout == b"b\ntext"
            sandbox.forward(8125, "127.0.0.1", 1)
        assert machines[MACHINE].exec(["cat", "sync/a.txt"]).stdout == b"text"
    with pytest.raises(ClosedError):
        sandbox.read("sync/a.txt")


async def test_a_machine_that_is_not_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.machines.workspace.HERE_WITHIN", 0.05)
    async with await connect(server) as machines:
        with pytest.raises(MachineError, match="machine other: it is not there") as offline:
            await machines["other"].exec(["true"])
        assert offline.value.reason == "offline"
        assert not isinstance(offline.value, SandboxLostError)


async def test_a_machine_that_ends(server: Server) -> None:
    """Its sandbox is lost, and the error says so."""
    with workshop(server) as (_, process):
        async with await connect(server) as machines:
            sandbox = await machines[MACHINE].open()
            sleeping = await sandbox.begin(["sleep", "1000"])
            process.terminate()
            with pytest.raises(SandboxLostError, match=f"machine {MACHINE}: the sandbox is lost"):
                await sleeping.wait()
            with pytest.raises(SandboxLostError):
                await sandbox.read("a.txt")
            await sandbox.close()
