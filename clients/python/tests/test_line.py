"""Lines to machines, without a server."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import struct
import threading
import tracemalloc
from pathlib import Path
from typing import Any, cast

import pytest

from lossy import Pair
from turngate.errors import ClosedError, InvalidError, MachineError, OperationError, SandboxLostError, ShapeError
from turngate.machines import box, desktop, operation, sandbox
from turngate.machines import message as messages
from turngate.machines.forwards import Forwards
from turngate.machines.line import WINDOW, Line, Timing
from turngate.machines.message import Message
from turngate.machines.mux import Mux, Stream
from turngate.machines.workspace import order_of, secret_of
from turngate.schema import LineEnd, LineOpen
from turngate.wire.loop_thread import LoopThread

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[3] / "schema" / "testdata" / "lines.json").read_text())


@pytest.mark.parametrize("vector", VECTORS["messages"], ids=lambda v: v["kind"])
def test_vectors_of_messages(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["bytes"])
    message = Message(
        vector["kind"].encode(), vector["seq"], vector["ack"], vector["credit"], bytes.fromhex(vector["data"])
    )
    assert message.encode() == data
    assert messages.decode(data) == message


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=lambda v: v["kind"] + v.get("text", "")[:20])
def test_vectors_of_frames(vector: dict[str, Any]) -> None:
    text = vector.get("text", "")
    payload = text.encode() or bytes.fromhex(vector.get("data", ""))
    assert operation.frame(vector["kind"].encode(), payload).hex() == vector["bytes"]
    if vector["kind"] == "h":
        fields = json.loads(text)
        assert json.loads(operation.header(fields.pop("op"), fields)) == json.loads(text)
    if vector["kind"] == "f":
        assert isinstance(operation.failed("stat", payload), FileNotFoundError)
    if vector["kind"] == "d" and text:
        kinds = [(entry.name, entry.kind, entry.mode) for entry in map(sandbox.entry, json.loads(text))]
        assert kinds == [("a.txt", "file", 0o644), ("src", "folder", 0o755)]


def test_vectors_of_the_desktop() -> None:
    for vector in VECTORS["desktop"]["orders"]:
        fields = dict(vector)
        assert json.loads(desktop.order_of(fields.pop("op"), fields)) == vector
    sizes = [desktop.answer_of(json.dumps(vector).encode())[1] for vector in VECTORS["desktop"]["answers"]]
    assert sizes == [12345, 0, 0]
    for text in (b"", b"[]", b'{"bytes": -1}', b'{"bytes": 1e99}', b'{"bytes": "x"}'):
        with pytest.raises(ShapeError):
            desktop.answer_of(text)


def test_the_picture_of_an_answer() -> None:
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (100).to_bytes(4, "big") + (75).to_bytes(4, "big")
    for max_side in (100, 0):
        display = {"width": 800, "height": 600} if max_side else {"width": 100, "height": 75}
        assert desktop.picture_of(display, png, max_side).width == display["width"]
    wrong: list[tuple[dict[str, object], bytes]] = [
        ({"width": 800, "height": 600}, png),
        ({"width": 100, "height": 75}, b""),
        ({"width": 100, "height": 75}, png[:23]),
        ({"width": 100, "height": 75}, b"x" + png[1:]),
        ({}, png),
        ({"width": "x", "height": 75}, png),
        ({"width": [], "height": 75}, png),
        ({"width": float("inf"), "height": 75}, png),
    ]
    for answer, picture in wrong:
        with pytest.raises(ShapeError):
            desktop.picture_of(answer, picture, 0)


def test_vectors_of_orders_and_of_the_proof() -> None:
    assert order_of("exec-0a1b2c3d", {"A": "b"}, "nobody", 3600) == VECTORS["order"].encode()
    mark = "turngate-far "
    proof = {k: bytes.fromhex(v) for k, v in VECTORS["proof"].items()}
    assert secret_of("m1", VECTORS["answer"].removeprefix(mark).encode()) == (proof["secret"], "/workspace")
    with pytest.raises(MachineError, match="the disk is full"):
        secret_of("m1", VECTORS["refusal"].removeprefix(mark).encode())
    for role in ("worker", "box"):
        assert box.proof(proof["secret"], role, proof["worker_nonce"], proof["box_nonce"]) == proof[role]


@pytest.mark.parametrize("answer", [b"", b"[]", b"1", b'{"secret":7}', b'{"unsupported":1}', b"[" * 50_000], ids=len)
def test_an_answer_of_no_machine(answer: bytes) -> None:
    with pytest.raises(ShapeError):
        secret_of("m1", answer)


def test_failures_of_the_box() -> None:
    def of(**fields: Any) -> Exception:
        return operation.failed("read", json.dumps(fields).encode())

    assert isinstance(of(code="no_command", arg="x"), FileNotFoundError)
    large = of(code="too_large", arg="/a", limit=5)
    assert isinstance(large, OperationError)
    assert (large.code, str(large)) == ("too_large", "read: /a is larger than 5 bytes")
    for hostile in (b"[", b"[" * 50_000, b"7"):
        assert isinstance(operation.failed("read", hostile), OperationError)
    assert str(of(code="other", message="\x1b[31mred\nline\u202e")) == "read: \ufffd[31mred\ufffdline\ufffd"


async def read_all(line: Line) -> bytes:
    got = bytearray()
    while part := await line.read(1 << 20):
        got += part
    return bytes(got)


async def test_bytes_arrive_through_losses() -> None:
    pair = Pair(loss=0.05)
    data = {side: secrets.token_bytes(3 << 20) for side in ("client", "machine")}

    async def give(line: Line, content: bytes) -> None:
        for at in range(0, len(content), 100_000):
            await line.write(content[at : at + 100_000])

    async def exchange(side: str) -> bytes:
        line: Line = getattr(pair, side)
        _, got = await asyncio.gather(give(line, data[side]), line.exactly(3 << 20))
        line.finish()
        return got

    got = await asyncio.gather(exchange("client"), exchange("machine"))
    assert tuple(got) == (data["machine"], data["client"])
    await asyncio.gather(*pair.tasks)
    assert pair.lost > 0
    assert (pair.client.end.reason, pair.machine.end.reason) == ("", "")


async def test_a_line_waits_for_its_reader() -> None:
    pair = Pair()
    for _ in range(2 * WINDOW // 65536):
        await pair.client.write(bytes(65536))
    stuck = asyncio.ensure_future(pair.client.write(b"more"))
    assert await pair.machine.exactly(2 * WINDOW) == bytes(2 * WINDOW)
    await stuck
    assert await pair.machine.exactly(4) == b"more"
    for line in (pair.client, pair.machine):
        line.finish()
    await asyncio.gather(*pair.tasks)


async def nothing(data: bytes) -> None:
    del data


async def test_a_silent_side_is_given_up() -> None:
    line = Line(nothing, LineOpen(want="workspace"), Timing(beat=0.01, silence=0.05))
    await line.run()
    assert line.end.reason == "silent"
    with pytest.raises(ConnectionError):
        await line.write(b"x")
    assert await line.read(1) == b""


async def test_a_refusal_is_answered_with_a_reset() -> None:
    sent: list[Message] = []

    async def send(data: bytes) -> None:
        sent.append(messages.decode(data))

    line = Line(send, LineOpen(want="workspace"))
    line.receive(messages.reset("full", "all slots are taken"))
    await line.run()
    assert line.end == LineEnd(reason="full", text="all slots are taken")
    assert [m.kind for m in sent] == [messages.RESET]


async def test_a_lost_last_acknowledgement() -> None:
    pair = Pair()
    pair.machine.finish()
    assert await pair.client.read(1) == b""
    pair.client.receive(messages.reset("unknown", "the line has ended"))
    pair.client.finish()
    await pair.tasks[0]
    assert pair.client.end.reason == ""
    pair.machine.cancel("the test ends")
    await pair.tasks[1]


async def test_messages_of_a_hostile_side() -> None:
    """The line keeps to its bounds, and comes to its end."""
    numbers = random.Random(3)
    for _ in range(200):
        line = Line(nothing, LineOpen(want="workspace"))
        running = asyncio.ensure_future(line.run())
        for _ in range(20):
            kind = numbers.choice([b"o", b"d", b"a", b"e", b"d"])
            seq, ack, credit = (numbers.choice([0, 1, numbers.randrange(1 << 21), (1 << 64) - 1]) for _ in range(3))
            line.receive(Message(kind, seq, ack, credit, bytes(numbers.choice([0, 7, 65536]))))
            await asyncio.sleep(0)
            assert len(line._waiting) <= WINDOW
        line.cancel("the test ends")
        await running
        assert line.end.text == "the test ends"


class Asking:
    """A stream that a hostile box opens."""

    def __init__(self, said: bytes) -> None:
        self._said = [said]
        self.closed = False

    async def read(self) -> bytes:
        return self._said.pop() if self._said else b""

    async def close(self, whole: bool) -> None:
        self.closed = whole


async def test_a_machine_asks_for_another_port() -> None:
    connected = False

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected = True
        writer.close()

    here = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    port = here.sockets[0].getsockname()[1]
    forwards = Forwards()
    forwards.add(8000, "127.0.0.1", 1)
    for header in (b'{"port": %d}' % port, b'{"port": "x"}', b"[]", b"{", b"{}", b"[" * 50_000):
        stream = Asking(operation.frame(b"h", header))
        forwards.accept(cast("Stream", stream))
        await asyncio.gather(*forwards._carrying)
        assert stream.closed
    here.close()
    assert not connected


async def test_a_machine_that_takes_no_bytes() -> None:
    """The close of a box does not wait for it."""
    line = Line(nothing, LineOpen(want="workspace"), Timing(silence=1e6))
    running = asyncio.ensure_future(line.run())
    await line.write(bytes(WINDOW))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turngate.machines.box.END_WITHIN", 0.05)
        await box.Box(line, "m1").close()
    await running
    assert line.end.reason == "closed"


async def test_a_box_opens_a_stream_with_a_number_of_this_side() -> None:
    pair = Pair()
    accepted: list[Stream] = []
    mux = Mux(pair.client, accepted.append)
    running = asyncio.ensure_future(mux.run())
    await pair.machine.write(struct.pack(">BBHII", 0, 1, 1, 2, 0) + struct.pack(">BBHII", 0, 1, 1, 3, 0))
    await running
    assert ([stream.number for stream in accepted], mux.over) == ([2], True)
    pair.machine.finish()
    await asyncio.gather(*pair.tasks)


async def test_a_stream_is_left_while_the_machine_takes_no_bytes() -> None:
    """The machine hears of it when it goes on."""
    pair = Pair()
    mux = Mux(pair.client, lambda _: None)
    running = asyncio.ensure_future(mux.run())
    stream = await mux.open()
    for _ in range(2):  # the first one fills the window of the other side
        await pair.client.write(struct.pack(">BBHII", 0, 0, 0, 99, WINDOW) + bytes(WINDOW))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turngate.machines.operation.CLOSE_WITHIN", 0.01)
        await operation.Operation(stream, "exec").close()
    assert mux._leaving
    await pair.machine.exactly(12 + 2 * (12 + WINDOW))
    assert await pair.machine.exactly(12) == struct.pack(">BBHII", 0, 1, 8, stream.number, 0)
    assert not mux._leaving
    for line in (pair.client, pair.machine):
        line.cancel("the test ends")
    await asyncio.gather(running, *pair.tasks)


async def test_a_box_that_takes_operations_and_answers_none() -> None:
    """Each operation ends with an error after a time, and a command may run for longer."""
    pair = Pair()
    here = box.Box(pair.client, "m1")
    running = asyncio.ensure_future(here._mux.run())
    files = sandbox.Sandbox(here, "/")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turngate.machines.operation.ANSWER_WITHIN", 0.05)
        for asked in (files.read("a"), files.write("a", b"b"), files.list(), files.exec(["true"])):
            with pytest.raises(OperationError, match="no answer within") as silent:
                await asked
            assert silent.value.code == "no_answer"
    assert not here._mux._streams
    for line in (pair.client, pair.machine):
        line.cancel("the test ends")
    await asyncio.gather(running, *pair.tasks)


async def test_a_machine_that_beats_and_takes_no_bytes() -> None:
    """An operation whose header does not leave ends, too."""
    line = Line(nothing, LineOpen(want="workspace"), Timing(silence=1e6))
    running = asyncio.ensure_future(line.run())
    await line.write(bytes(WINDOW))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turngate.machines.operation.ANSWER_WITHIN", 0.05)
        with pytest.raises(OperationError, match="no answer within"):
            await sandbox.Sandbox(box.Box(line, "m1"), "/").exists("a")
    line.cancel("the test ends")
    await running


async def test_a_command_may_be_silent() -> None:
    """Only its end after a timeout has a limit."""

    class Silent(Scripted):
        async def next(self) -> tuple[bytes, bytes]:
            if self._frames:
                return await super().next()
            await asyncio.Event().wait()
            raise AssertionError

    async def run(timeout: float) -> None:
        await sandbox.Sandbox(cast("box.Box", Silent((b"p", b'{"job": 1}'))), "/").exec(["true"], timeout=timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turngate.machines.operation.ANSWER_WITHIN", 0.02)
        unlimited = asyncio.ensure_future(run(0))
        with pytest.raises(OperationError, match="no answer within"):
            await run(0.02)
        assert not unlimited.done()
        unlimited.cancel()
        await asyncio.gather(unlimited, return_exceptions=True)


def test_lists_of_a_hostile_box() -> None:
    def of(*files: dict[str, Any]) -> bytes:
        return json.dumps(files, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"

    one = {"name": "ä😀", "size": 5, "mode": 0o644}
    assert [e.name for e in sandbox.entries(of(one, {**one, "name": "b" * 1000}))] == ["ä😀", "b" * 1000]
    assert sandbox.entries(b"null") == sandbox.entries(b"[]") == []
    long = of({**one, "name": "c" * sandbox.MOST_ENTRY})
    many = of(*[one] * (sandbox.MOST_ENTRIES + 1))
    nested = b"[" + b"[" * 4000 + b"]" * 4000 + b"]"
    for data in (
        b"",
        b"{}",
        b"7",
        of(one)[:-2],
        of(one)[:-2] + b",]",
        of({}),
        of(one) + b"7",
        b"[\xff]",
        long,
        many,
        nested,
    ):
        with pytest.raises((KeyError, TypeError, ValueError, RecursionError)):
            sandbox.entries(data)


async def test_the_memory_for_a_list() -> None:
    """A hostile list is not decoded as a whole, which takes twenty times its size."""

    class Hostile(box.Box):
        def __init__(self) -> None:
            pass

        async def call(self, *args: Any, **named: Any) -> tuple[Any, bytes]:
            return None, listed

    listed = b"[" + b"{}," * (4 << 20) + b"{}]"
    tracemalloc.start()
    try:
        with pytest.raises(OperationError, match="cannot be read"):
            await sandbox.Sandbox(Hostile(), "/").list()
        assert tracemalloc.get_traced_memory()[1] < 2 * len(listed)
    finally:
        tracemalloc.stop()


class Scripted:
    """A box with one operation, whose answers are given."""

    def __init__(self, *frames: tuple[bytes, bytes]) -> None:
        self._frames = list(frames)
        self._sent = 0
        self.name = "exec"
        self.closed = 0

    async def begin(self, name: str, fields: Any) -> Scripted:
        return self

    async def next(self) -> tuple[bytes, bytes]:
        return self._frames.pop(0)

    async def answer(self) -> tuple[bytes, bytes]:
        return await operation.Operation.answer(cast("operation.Operation", self))

    async def send(self, kind: bytes) -> None:
        pass

    async def send_bytes(self, data: bytes) -> None:
        pass

    async def close(self) -> None:
        self.closed += 1

    async def lost(self) -> SandboxLostError:
        return SandboxLostError("m1", "failed", "the sandbox is lost")


async def test_a_machine_sends_more_than_it_was_asked_for() -> None:
    ran = Scripted(
        (b"p", b'{"job": 1}'), (b"o", bytes(7)), (b"r", bytes(7)), (b"o", bytes(7)), (b"k", b'{"stdout_bytes": 14}')
    )
    done = await sandbox.Sandbox(cast("box.Box", ran), "/").exec(["true"], most=10)
    assert (len(done.stdout), len(done.stderr), done.truncated) == (10, 7, True)
    assert ran.closed > 0


async def test_a_user_that_is_missing() -> None:
    class Refusing(Scripted):
        async def next(self) -> tuple[bytes, bytes]:
            raise operation.failed("exec", b'{"code": "no_user", "arg": "bob", "message": "it is not there"}')

    with pytest.raises(InvalidError, match="bob"):
        await sandbox.Sandbox(cast("box.Box", Refusing()), "/").exec(["true"], user="bob")


@pytest.mark.parametrize("frames", [
    [(b"p", b"{")], [(b"p", b"[]")], [(b"p", b'{"job": 1e999}')], [(b"p", b"[" * 100_000)],
    [(b"p", b'{"job": 1}'), (b"k", b"[]")], [(b"p", b'{"job": 1}'), (b"k", b'{"code": "x"}')],
])  # fmt: skip
async def test_an_answer_of_no_box(frames: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(SandboxLostError):
        await sandbox.Sandbox(cast("box.Box", Scripted(*frames)), "/").exec(["true"])


def test_ports_that_lead_out() -> None:
    forwards = Forwards()
    forwards.add(8000, "127.0.0.1", 1)
    with pytest.raises(OperationError, match="in use"):
        forwards.add(8000, "127.0.0.1", 2)
    assert forwards._targets == {8000: ("127.0.0.1", 1)}
    for port in (0, -1, 65536):
        with pytest.raises(InvalidError, match="from 1 to 65535"):
            forwards.add(port, "127.0.0.1", 1)


def test_the_end_of_a_loop_ends_those_that_wait() -> None:
    thread, begun, ended = LoopThread("test"), threading.Event(), []

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        with pytest.raises(ClosedError):
            thread.run(forever())
        ended.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    thread.stop()
    waiting.join()
    assert ended


def test_no_message() -> None:
    for data in (b"", b"d", bytes(25), b"x" + bytes(24), b"d" + bytes(24 + (64 << 10) + 1)):
        with pytest.raises(ShapeError):
            messages.decode(data)


def test_an_end_that_cannot_be_read() -> None:
    assert messages.end_of(b"\xc1").reason == "unknown"
    assert messages.end_of(messages.reset("full\x1b", "").data).reason == "full\ufffd"
