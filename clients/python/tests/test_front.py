"""A trainer behind turngate serve."""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import hashlib
import json
import logging
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("websockets")

from websockets.asyncio.server import ServerConnection, serve

from conftest import Server, drain, free_port
from turngate import Call, Delta, Handle, InUseError, NotFoundError, Reply, Request, Task, ToolUse, Verdict, Verify
from turngate.errors import InvalidError
from turngate.front import Feed, Front, FrontError
from turngate.schema import AgentChoice, Event, SandboxChoice
from turngate.schema import Task as RequestTask

TOKEN = "secret-of-the-test"


class Process:
    """Process is a front that is killed and started again on the same port."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        tokens = folder / "tokens.yaml"
        digest = hashlib.sha256(TOKEN.encode()).hexdigest()
        tokens.write_text(f'- {{trainer: alpha, sha256: {digest}, creds: "{server.creds("trainer-alpha")}"}}\n')
        tokens.chmod(0o600)
        self._args = [server.binary, "serve", "--nats", server.url, "--tokens", str(tokens), "--listen",
                      f"127.0.0.1:{port}", "--events", server.creds("ops")]  # fmt: skip
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._args, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "serving trainers" in line:
                drain(self.process.stderr)
                return
        pytest.fail("the front ended")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def process(server: Server, tmp_path: Path) -> Iterator[Process]:
    process = Process(server, tmp_path)
    yield process
    process.kill()


@pytest.fixture
async def front(process: Process) -> AsyncIterator[Front]:
    async with Front(process.url, TOKEN) as front:
        yield front


def mini(**more: Any) -> Request:
    return Request(task=RequestTask(name="t", instruction="say done"), agent=AgentChoice(name="mini"),
                   sandbox=SandboxChoice(backend="local"), **more)  # fmt: skip


def done() -> Reply:
    return Reply(message={"role": "assistant", "content": "done"}, finish_reason="stop", prompt_ids=[1],
                 completion_ids=[2], logprobs=[-1.0])  # fmt: skip


async def results(front: Front, ids: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    feed = front.results()
    async with contextlib.aclosing(feed):
        async for result in feed:
            if result.id in ids:
                out[result.id] = result
            if len(out) == len(ids):
                break
    return out


async def test_a_group_from_submit_to_events(front: Front, tasks: Path) -> None:
    """The same submit is one; lists, events with resume, results, files and retries of its rollouts."""
    request = await asyncio.to_thread(Task.load, tasks / "hello")
    ids = await front.submit_group(request.request_for("oracle", "local"), 2, group="front-1")
    assert await front.submit_group(request.request_for("oracle", "local"), 2, group="front-1") == ids
    with pytest.raises(FrontError) as refused:
        await front.submit_group(mini(), 2, group="front-1")
    assert (refused.value.status, refused.value.code) == (409, "conflict")
    ended = await results(front, ids)
    assert [ended[i].reward for i in ids] == [1.0, 1.0]
    assert {
        r.id: (r.status, r.reward) async for r in front.rollouts(group="front-1", status=["done"])
    } == dict.fromkeys(ids, ("done", 1.0))
    one = await front.rollout(ids[0])
    assert one.result is not None
    assert one.result.group == "front-1"
    assert len(await front.file(ids[0], one.result.artifacts[0].name)) > 0

    feed = front.events(ids[0])
    events = [event async for event in feed]
    assert events[-1].type == "result"
    middle: Feed[Event] = front.events(ids[0])
    async for _ in middle:
        break
    await middle.aclose()
    assert [event.at async for event in front.events(ids[0], after=middle.cursor)] == [e.at for e in events[1:]]

    again = await front.retry(ids[0], key="k")
    assert await front.retry(ids[0], key="k") == again
    assert (await results(front, [again]))[again].reward == 1.0
    with pytest.raises(NotFoundError):
        await front.rollout("alpha-unknown")
    assert (await front.workers()).workers


async def test_cancel(front: Front) -> None:
    ids = await front.submit([mini(), mini()], key="cancel")
    assert await front.submit([mini(), mini()], key="cancel") == ids
    assert sorted((await front.cancel(ids, wait=30)).ended) == sorted(ids)
    assert {r.status for r in (await results(front, ids)).values()} == {"cancelled"}


async def test_the_front_is_killed_in_a_call(front: Front, process: Process) -> None:
    """Each rollout of the group ends in its first attempt, and each call is answered by one generation."""
    generated: Counter[str] = Counter()
    began, restarted = asyncio.Event(), asyncio.Event()

    async def policy(call: Call) -> Reply:
        generated[str(call.key)] += 1
        began.set()
        await restarted.wait()
        return done()

    async with await front.serve(policy) as serving:
        with pytest.raises(InUseError):
            await front.serve(policy)
        ids = await front.submit_group(mini(), 2, group="killed")
        await began.wait()
        process.kill()
        await asyncio.to_thread(process.start)
        restarted.set()
        ended = await results(front, ids)
        assert serving.closed is None
    assert [(ended[i].status, ended[i].attempt, len(ended[i].committed)) for i in ids] == [("done", 1, 1)] * 2
    assert set(generated.values()) == {1}
    assert len(generated) == 2


async def test_the_front_is_killed_in_a_verification(front: Front, process: Process) -> None:
    """The verifier runs once, and its operations go on in the same sandbox."""
    ran = 0

    async def verify(handle: Handle) -> Verdict:
        nonlocal ran
        ran += 1
        assert (await handle.read("out.txt")) == b"made\n"
        with pytest.raises(FileNotFoundError):
            await handle.read("missing")
        process.kill()
        await asyncio.to_thread(process.start)
        await handle.write("kept.txt", b"by the verifier")
        output = await handle.exec(run="cat kept.txt; exit 3")
        assert (output.exit.code, output.stdout) == (3, b"by the verifier")
        return Verdict(reward=0.25)

    request = mini(verify=Verify(by="trainer"))
    request.agent = AgentChoice(name="command", args=["sh", "-c", "echo made > out.txt"])
    async with await front.serve(lambda call: done(), verify=verify):
        ids = await front.submit(request)
        ended = (await results(front, ids))[ids[0]]
    assert (ended.status, ended.attempt, ended.reward, ran) == ("done", 1, 0.25, 1)


async def test_a_hold(front: Front) -> None:
    """A call waits for the end of a hold."""
    holding = True

    async def policy(call: Call) -> Reply:
        assert not holding
        return done()

    async with await front.serve(policy) as serving:
        serving.hold()
        ids = await front.submit(mini())
        async with contextlib.aclosing(front.events(ids[0])) as events:
            async for event in events:
                if event.wait is not None and event.wait.for_ == "hold":
                    break
        holding = False
        serving.resume()
        assert (await results(front, ids))[ids[0]].status == "done"


async def test_a_hold_of_some_rollouts() -> None:
    """It begins again with the next WebSocket, and an abort ends the calls of its rollouts alone."""
    written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    began, cancelled = asyncio.Semaphore(0), []

    async def policy(call: Call) -> Reply:
        began.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(call.rollout)
            raise
        return done()

    async def answer(connection: ServerConnection) -> None:
        for rollout in ("alpha-1", "alpha-2"):
            call = {"v": 1, "key": f"{rollout}/1/1", "messages": [], "params": {}}
            await connection.send(json.dumps({"type": "call", "key": f"{rollout}/1/1", "gen": "a", "call": call}))
        written.put_nowait(json.loads(await connection.recv()))

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(policy) as serving:
            await began.acquire()
            await began.acquire()
            for wrong in ("alpha-1", ["alpha-1", "x"], ["alpha-1"] * 10_001):
                with pytest.raises(InvalidError, match="rollouts"):
                    serving.abort(wrong)
            serving.hold(["alpha-2"])
            frames = [await written.get() for _ in range(2)]
            serving.abort(["alpha-1"])
            frames.append(await written.get())
            assert cancelled == ["alpha-1"]
    hold = {"type": "hold", "rollouts": ["alpha-2"]}
    assert frames[:2] == [hold, hold]


async def test_a_call_that_crosses_a_hold() -> None:
    """Its worker asks again: no call begins between hold and resume."""
    written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    generated: list[str] = []

    async def policy(call: Call) -> Reply:
        generated.append(call.gen)
        return done()

    async def answer(connection: ServerConnection) -> None:
        async def ask(rollout: str, gen: str) -> None:
            call = {"v": 1, "key": f"{rollout}/1/1", "messages": [], "params": {}}
            await connection.send(json.dumps({"type": "call", "key": f"{rollout}/1/1", "gen": gen, "call": call}))

        written.put_nowait(json.loads(await connection.recv()))
        await ask("alpha-1", "a")
        written.put_nowait(json.loads(await connection.recv()))
        await ask("alpha-2", "b")
        written.put_nowait(json.loads(await connection.recv()))
        async for text in connection:  # resume
            written.put_nowait(json.loads(text))
            await ask("alpha-1", "c")
            written.put_nowait(json.loads(await connection.recv()))

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(policy) as serving:
            serving.hold(["alpha-1"])
            frames = [await written.get() for _ in range(3)]
            serving.resume()
            frames += [await written.get() for _ in range(2)]
    assert [(f["type"], f.get("gen")) for f in frames] == [
        ("hold", None), ("refuse", "a"), ("answer", "b"), ("resume", None), ("answer", "c"),
    ]  # fmt: skip
    assert frames[1]["fault"]["status"] == 425
    assert generated == ["b", "c"]


async def test_a_tool_runs_once() -> None:
    """A tool call that comes again on another WebSocket gets the same result."""
    uses: list[dict[str, Any]] = []
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def search(use: ToolUse) -> str:
        uses.append(use.arguments)
        if use.arguments["q"] == 2:
            raise ValueError("no such page")
        return "found"

    def ask(number: int) -> str:
        key = f"alpha-1/1/{number}"
        call = {"v": 1, "key": key, "name": "search", "arguments": {"q": number}}
        return json.dumps({"type": "tool", "key": f"tool/{key}", "tool": call})

    async def answer(connection: ServerConnection) -> None:
        await connection.send(ask(1))
        await connection.send(ask(2))
        for _ in range(2):
            answers.put_nowait(json.loads(await connection.recv()))

    async with serve(answer, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        front = Front(f"http://127.0.0.1:{port}", TOKEN)
        async with front, await front.serve(lambda call: done(), tools={"search": search}):
            got = [await answers.get() for _ in range(4)]  # of two connections
    results = [{"text": "found"}, {"text": "no such page", "is_error": True}]
    for one in (got[:2], got[2:]):
        assert [a["key"] for a in one] == ["tool/alpha-1/1/1", "tool/alpha-1/1/2"]
        assert [{k: v for k, v in a["tool_result"].items() if k != "v"} for a in one] == results
    assert uses == [{"q": 1}, {"q": 2}]


async def test_a_tool_and_a_handler_that_raise_cancelled_error() -> None:
    """Both are answered: the model reads that its tool was cancelled, and the worker asks for the answer again."""
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def awaited(use: ToolUse) -> str:
        raise asyncio.CancelledError

    def ordinary(use: ToolUse) -> str:
        raise concurrent.futures.CancelledError

    def policy(call: Call) -> Reply:
        raise asyncio.CancelledError

    async def answer(connection: ServerConnection) -> None:
        for number, name in enumerate(("awaited", "ordinary"), 1):
            key = f"alpha-1/1/{number}"
            call = {"v": 1, "key": key, "name": name, "arguments": {}}
            await connection.send(json.dumps({"type": "tool", "key": f"tool/{key}", "tool": call}))
            answers.put_nowait(json.loads(await connection.recv()))
        message = {"v": 1, "key": "alpha-1/1/1", "messages": [], "params": {}}
        await connection.send(json.dumps({"type": "call", "key": "alpha-1/1/1", "gen": "a", "call": message}))
        answers.put_nowait(json.loads(await connection.recv()))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(policy, tools={"awaited": awaited, "ordinary": ordinary}):
            of_tools, refused = [await answers.get() for _ in range(2)], await answers.get()
    for got in of_tools:
        assert (got["tool_result"]["text"], got["tool_result"]["is_error"]) == ("the tool was cancelled", True)
    assert (refused["type"], refused["fault"]["status"]) == ("refuse", 500)


async def test_a_running_tool_is_cancelled_with_its_front() -> None:
    """Nothing answers its call: the worker asks the next process of the trainer."""
    began, cancelled = asyncio.Event(), asyncio.Event()
    written: list[str | bytes] = []

    async def slow(use: ToolUse) -> str:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return ""

    async def answer(connection: ServerConnection) -> None:
        call = {"v": 1, "key": "alpha-1/1/1", "name": "slow", "arguments": {}}
        await connection.send(json.dumps({"type": "tool", "key": "tool/alpha-1/1/1", "tool": call}))
        async for text in connection:
            written.append(text)

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front:
            async with await front.serve(lambda call: done(), tools={"slow": slow}):
                await began.wait()
            assert cancelled.is_set()
    assert not written


def verification(number: int) -> dict[str, Any]:
    key = f"alpha-1/1/{number}"
    return {"type": "verify", "key": f"verify/{key}", "verification": {"v": 1, "key": key, "workdir": "/w"}}


async def test_a_late_result_is_not_of_the_next_operation() -> None:
    """The result of an operation whose caller has left comes while the next one runs."""
    cut: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    began = asyncio.Event()

    async def verify(handle: Handle) -> Verdict:
        slow = asyncio.ensure_future(handle.read("slow"))
        await began.wait()
        slow.cancel()
        cut.set_result(await handle.read("next"))
        return Verdict(reward=1.0)

    async def answer(connection: ServerConnection) -> None:
        def operated(number: int, text: str) -> str:
            result = {"v": 1, "data": base64.b64encode(text.encode()).decode()}
            return json.dumps({"type": "operated", "key": "verify/alpha-1/1/1", "number": number, "result": result})

        await connection.send(json.dumps(verification(1)))
        first = json.loads(await connection.recv())
        began.set()
        second = json.loads(await connection.recv())
        await connection.send(operated(first["number"], "of slow"))
        await connection.send(operated(second["number"], "of next"))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(lambda call: done(), verify=verify):
            assert await cut == b"of next"


async def test_serve_ends_at_once() -> None:
    """The WebSocket is closed, so that the front has the shard no more."""
    ended = asyncio.Event()

    async def answer(connection: ServerConnection) -> None:
        await connection.wait_closed()
        ended.set()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front:
            await (await front.serve(lambda call: done())).close()
            await asyncio.wait_for(ended.wait(), 30)


async def test_a_verifier_is_cancelled() -> None:
    """Its worker is told, and asks again."""
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    tries: list[Handle] = []

    async def verify(handle: Handle) -> Verdict:
        tries.append(handle)
        if len(tries) == 1:
            shared: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
            shared.cancel()
            return await shared
        return Verdict(reward=1.0)

    async def answer(connection: ServerConnection) -> None:
        for _ in range(2):
            await connection.send(json.dumps(verification(1)))
            answers.put_nowait(json.loads(await connection.recv()))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(lambda call: done(), verify=verify):
            refused, answered = await answers.get(), await answers.get()
    assert (refused["type"], refused["fault"]["status"]) == ("refuse", 503)
    assert (answered["type"], answered["verdict"]["reward"]) == ("verdict", 1.0)


async def test_a_frame_that_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    """Its call is refused, the next one is answered, and no log has the token."""
    answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def answer(connection: ServerConnection) -> None:
        calls = [{"v": 1, "messages": 7}, {"v": 1, "key": "alpha-1/1/2", "messages": [], "params": {}}]
        for number, call in enumerate(calls, 1):
            await connection.send(json.dumps({"type": "call", "key": f"alpha-1/1/{number}", "call": call}))
            answers.put_nowait(json.loads(await connection.recv()))
        await connection.wait_closed()

    caplog.set_level(logging.DEBUG)
    async with serve(answer, "127.0.0.1", 0, logger=logging.getLogger("test.server")) as server:
        logging.getLogger("test.server").setLevel(logging.WARNING)  # it has the header
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(lambda call: done()):
            refused, answered = await answers.get(), await answers.get()
    assert (refused["type"], refused["fault"]["status"]) == ("refuse", 400)
    assert (answered["type"], answered["key"]) == ("answer", "alpha-1/1/2")
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    "text", ["[1]", "{", "[" * 100_000, '{"type": "call", "key": {}}', '{"type": "over", "gen": 1}']
)
async def test_a_frame_that_is_none(text: str) -> None:
    """The front is none, or of another version: Serving ends with the reason."""

    async def answer(connection: ServerConnection) -> None:
        await connection.send(text)
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(lambda call: done()) as serving:
            reason = await serving.wait()
            assert "no frame of a front" in str(reason)
            assert serving.closed is reason


async def test_a_delta_that_a_busy_front_did_not_take() -> None:
    """Its refusal comes after the answer, which has all of it: the answer is kept for a worker that asks again."""
    generated: list[str] = []
    written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def policy(call: Call) -> Reply:
        generated.append(call.gen)
        await call.delta(Delta(delta={"content": "done"}))
        return done()

    async def answer(connection: ServerConnection) -> None:
        async def ask(gen: str) -> None:
            call = {"v": 1, "key": "alpha-1/1/1", "messages": [], "params": {}}
            await connection.send(json.dumps({"type": "call", "key": "alpha-1/1/1", "gen": gen, "call": call}))

        await ask("a")
        for _ in range(2):
            written.put_nowait(json.loads(await connection.recv()))
        busy = {"type": "error", "key": "alpha-1/1/1", "gen": "a", "code": "busy", "detail": "too much memory"}
        await connection.send(json.dumps(busy))
        await ask("b")
        written.put_nowait(json.loads(await connection.recv()))
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(policy):
            frames = [await written.get() for _ in range(3)]
    assert [(f["type"], f["gen"]) for f in frames] == [("delta", "a"), ("answer", "a"), ("answer", "b")]
    assert generated == ["a"]


async def test_frames_of_a_call_that_comes_again() -> None:
    """What comes late about one generation does nothing to the next one, and an answer is sent again for the next."""
    generated: list[str] = []
    written: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def policy(call: Call) -> Reply:
        generated.append(call.gen)
        return done()

    async def answer(connection: ServerConnection) -> None:
        async def send(kind: str, gen: str, **more: Any) -> None:
            await connection.send(json.dumps({"type": kind, "key": "alpha-1/1/1", "gen": gen, **more}))

        async def ask(gen: str) -> None:
            await send("call", gen, call={"v": 1, "key": "alpha-1/1/1", "messages": [], "params": {}})
            written.put_nowait(json.loads(await connection.recv()))

        await ask("a")
        await ask("b")  # the worker does not have the answer
        await send("answered", "a")
        await ask("c")
        await send("answered", "c")
        await ask("d")  # the worker refused the answer
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(policy):
            frames = [await written.get() for _ in range(4)]
    assert [(f["type"], f["key"], f["gen"]) for f in frames] == [("answer", "alpha-1/1/1", g) for g in "abcd"]
    assert generated == ["a", "d"]


async def test_a_late_end_is_not_of_the_next_generation() -> None:
    """A generation goes on if the front tells of the end of the one before it."""
    went_on: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    began, over = asyncio.Event(), asyncio.Event()

    async def policy(call: Call) -> Reply:
        began.set()
        await over.wait()
        return done()

    async def answer(connection: ServerConnection) -> None:
        call = {"v": 1, "key": "alpha-1/1/1", "messages": [], "params": {}}
        await connection.send(json.dumps({"type": "call", "key": "alpha-1/1/1", "gen": "b", "call": call}))
        await began.wait()
        await connection.send(json.dumps({"type": "over", "key": "alpha-1/1/1", "gen": "a"}))
        await (await connection.ping())
        over.set()
        went_on.set_result(json.loads(await connection.recv())["gen"])
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        front = Front(f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", TOKEN)
        async with front, await front.serve(policy):
            assert await went_on == "b"


async def test_a_stream_is_cut_while_it_is_quiet() -> None:
    """Each connection has its own time to come back, and U+0085 in a text does not end a line."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n:\n\n")
        if connections == 5:
            result = {"v": 1, "id": "alpha-1", "status": "done", "group": "a\x85b"}
            writer.write(f"event: result\nid: 1.2\ndata: {json.dumps(result, ensure_ascii=False)}\n\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Front(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN, within=0.6) as front:
        async with contextlib.aclosing(front.results()) as feed:
            result = await anext(feed)
        assert (result.group, feed.cursor, connections) == ("a\x85b", "1.2", 5)


async def test_requests_have_a_connection_each() -> None:
    """More than the 100 of httpx are answered together."""
    many = 120
    together = asyncio.Event()
    came: list[None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.append(None)
        if len(came) == many:
            together.set()
        await together.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, Front(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", TOKEN) as front:
        assert await asyncio.gather(*(front.file("alpha-1", "a") for _ in range(many))) == [b"x"] * many


async def test_wrong_tokens(process: Process) -> None:
    async with Front(process.url, "wrong", within=1) as front:
        with pytest.raises(FrontError) as refused:
            await front.submit(mini())
        assert refused.value.code == "unauthorized"
        with pytest.raises(FrontError):
            await front.serve(lambda call: done())
