"""Answers to calls, asked by a worker of the test."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgpack
import pytest
import zstandard

from conftest import Server
from fake_worker import TRAINER, FakeWorker, delta_of, header, kind_of
from turngate import (
    Call,
    CallOverError,
    Client,
    Delta,
    Fault,
    FaultError,
    InvalidError,
    Reply,
    Request,
    ToolUse,
    UnreachableError,
    VersionSpan,
)
from turngate.rollouts.ledger import Submitted
from turngate.schema.codec import encode, raw_json
from turngate.serving.call import check_reply
from turngate.wire.link import Link
from turngate.wire.names import Key
from turngate.wire.objects import Objects
from turngate.wire.streams import Streams

USER = {"role": "user", "content": "hi"}


def text(content: str) -> Reply:
    return Reply(message={"role": "assistant", "content": content}, finish_reason="stop")


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[FakeWorker]:
    async with FakeWorker(server.url, server.creds("admin")) as worker:
        yield worker


@contextlib.asynccontextmanager
async def trainer(server: Server, **options: Any) -> AsyncIterator[Client]:
    async with await Client.connect(
        server.url, server.creds(f"trainer-{TRAINER}"), TRAINER, answer_all=True, **options
    ) as client:
        yield client


async def test_one_answer_per_key(server: Server, worker: FakeWorker) -> None:
    seen: list[str] = []

    async def policy(call: Call) -> Reply:
        seen.append(str(call.key))
        return text("one")

    async with trainer(server) as client:
        client.serve(policy)
        rollout = worker.rollout()
        first = await (await worker.ask(rollout, 1, [USER])).frame("final")
        again = await (await worker.ask(rollout, 1, [USER])).frame("final")
    assert len(seen) == 1
    assert header(first, "Rl-Gen") == header(again, "Rl-Gen")
    assert first.data == again.data


async def test_a_repeated_call_joins_the_generation(server: Server, worker: FakeWorker) -> None:
    release = asyncio.Event()

    async def policy(call: Call) -> AsyncIterator[Delta]:
        yield Delta(delta={"role": "assistant"})
        yield Delta(delta={"content": "a"}, completion_ids=[1], logprobs=[-1.0])
        await release.wait()
        yield Delta(delta={"content": "b"}, completion_ids=[2], logprobs=[-2.0])

    async with trainer(server) as client:
        client.serve(policy)
        rollout = worker.rollout()
        asked = await worker.ask(rollout, 1, [USER])
        gen = header(await asked.frame("delta"), "Rl-Gen")
        await asked.frame("delta")
        resumed = await worker.ask(rollout, 1, [USER], headers={"Rl-Gen": gen, "Rl-Resume": "1"})
        assert kind_of(await resumed.frame()) == "accept"
        delta = await resumed.frame("delta")
        assert (header(delta, "Rl-Seq"), delta_of(delta)) == ("1", {"content": "a"})
        release.set()
        final = await resumed.frame("final")
        assert header(final, "Rl-Seq") == "3"
        assert header(final, "Rl-Gen") == gen
        reply = msgpack.unpackb(final.data)
        assert reply["message"] == b'{"role":"assistant","content":"ab"}'
        assert reply["completion_ids"] == b"\1\0\0\0\2\0\0\0"


async def test_fast_text_is_joined(server: Server, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.serving.call.MERGE_WITHIN", 0.1)  # on a busy machine 2 ms end between two pieces

    async def policy(call: Call) -> AsyncIterator[Delta]:
        for i in range(1000):
            yield Delta(delta={"content": "x"}, completion_ids=[i], logprobs=[-0.5])

    async with trainer(server) as client:
        client.serve(policy)
        asked = await worker.ask(worker.rollout(), 1, [USER])
        pieces, ids = "", 0
        while kind_of(frame := await asked.frame()) != "final":
            if kind_of(frame) == "delta":
                pieces += delta_of(frame)["content"]
                ids += len(msgpack.unpackb(frame.data)["completion_ids"]) // 4
        assert pieces == "x" * 1000
        assert ids == 1000
        assert int(header(frame, "Rl-Seq")) < 500


async def test_a_call_is_rebuilt_from_its_base(server: Server, worker: FakeWorker) -> None:
    calls: list[Call] = []

    async def policy(call: Call) -> Reply:
        assert call.messages
        calls.append(call)
        return text("ok")

    async with trainer(server) as client:
        client.serve(policy)
        rollout = worker.rollout()
        one, two = [USER], [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
        await (await worker.ask(rollout, 1, one, whole=one)).final()
        await (await worker.ask(rollout, 2, two, base=1, keep=1, whole=one + two)).final()
        assert calls[1].messages == one + two
        assert (calls[1].base, calls[1].keep) == (1, 1)
        assert calls[1].messages[0] is calls[0].messages[0]
        unknown = await worker.ask(rollout, 4, two, base=3, keep=1)
        assert kind_of(await unknown.frame()) == "need_full"
        other = await worker.ask(rollout, 5, two, base=1, keep=1, whole=[*one, *two, USER])
        assert kind_of(await other.frame()) == "need_full"
        await (await worker.ask(rollout, 5, one + two, whole=one + two)).final()
        wrong = await worker.ask(rollout, 6, one, whole=two)
        assert (await wrong.fault()).status == 400


async def test_accepts_beats_and_holds(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        await client.hold()
        rollout = worker.rollout()
        asked = await worker.ask(rollout, 1, [USER])
        accept = await asked.frame()
        assert (kind_of(accept), header(accept, "Rl-Held")) == ("accept", "1")
        client.serve(lambda call: answer(call))
        await client.resume()
        beat = await asked.frame("beat")
        assert header(beat, "Rl-Held") == ""
        await asked.final()
        await client.hold([rollout])
        other, held = worker.rollout(), await worker.ask(rollout, 2, [USER])
        await (await worker.ask(other, 1, [USER])).final()
        assert header(await held.frame("accept"), "Rl-Held") == "1"
        await client.hold(version="v1")
        await held.final()
        await (await worker.ask(other, 2, [USER])).final()
        await client.hold(version="v2")
        waits = await worker.ask(other, 3, [USER])
        assert header(await waits.frame(), "Rl-Held") == "1"


async def answer(call: Call) -> Reply:
    reply = text("ok")
    reply.versions = [VersionSpan(version="v2" if call.key.call > 1 else "v0", start=0, end=0)]
    return reply


async def test_pulling_calls(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        asked = await worker.ask(worker.rollout(), 1, [USER], params={"temperature": b"0.5"}, stream=True)
        call = await client.next_call()
        assert call.params == {"temperature": 0.5}
        assert call.stream
        accept = await asked.frame()  # it is not answered at once
        assert (kind_of(accept), header(accept, "Rl-Gen")) == ("accept", call.gen)
        with pytest.raises(InvalidError, match="logprobs"):
            await call.reply(
                Reply(message={"content": "x"}, finish_reason="stop", completion_ids=[1, 2], logprobs=[0.0])
            )
        with pytest.raises(InvalidError, match=r"message\.tool_calls\[0\]"):
            await call.reply(Reply(message={"tool_calls": [{"id": "a", "function": {}}]}, finish_reason="stop"))
        with pytest.raises(InvalidError, match="finish_reason"):
            await call.reply(Reply(message={"content": "x"}, finish_reason="eos"))
        use = {"id": "x" * 1100, "function": {"name": "f", "arguments": ""}}
        with pytest.raises(InvalidError, match=r"message\.tool_calls\[0\]\.id"):
            await call.reply(Reply(message={"tool_calls": [use]}, finish_reason="tool_calls"))
        await call.reply(text("later"))
        assert (await asked.final()).message == {"role": "assistant", "content": "later"}
        with pytest.raises(CallOverError):
            await call.reply(text("again"))


async def test_faults(server: Server, worker: FakeWorker) -> None:
    tries = 0

    async def policy(call: Call) -> Reply:
        nonlocal tries
        tries += 1
        if call.key.call == 2:
            raise FaultError(Fault(code="too_large", message="300 tokens, at most 200", status=413))
        if tries == 1:
            raise RuntimeError("out of memory")
        return text("ok")

    async with trainer(
        server, check=lambda call: Fault(code="no", message="-") if call.model == "bad" else None
    ) as client:
        client.serve(policy)
        rollout = worker.rollout()
        fault = await (await worker.ask(rollout, 1, [USER])).fault()
        assert fault.status == 500
        assert "out of memory" in fault.message
        await (await worker.ask(rollout, 1, [USER])).final()  # a retryable fault is not kept
        for _ in range(2):
            assert (await (await worker.ask(rollout, 2, [USER])).fault()).code == "too_large"
        assert tries == 3
        assert (await (await worker.ask(rollout, 3, [USER], model="bad")).fault()).status == 400
        assert (await (await worker.send(rollout, 4, b"junk")).fault()).code == "invalid"
        assert (await (await worker.ask(rollout, 5, [USER], v=2)).fault()).message.startswith("v:")


async def test_a_call_is_asked_again_after_a_check_that_raises(server: Server, worker: FakeWorker) -> None:
    def check(call: Call) -> Fault | None:
        if call.model == "unknown":
            raise KeyError(call.model)
        return Fault(code="x" * 65, message="-") if call.model == "long" else None

    async with trainer(server, check=check) as client:
        client.serve(answer)
        rollout = worker.rollout()
        for model, reason in (("unknown", "KeyError"), ("long", "code: '65 bytes'")):
            fault = await (await worker.ask(rollout, 1, [USER], model=model)).fault()
            assert (fault.code, fault.status) == ("internal", 500)
            assert reason in fault.message
        await (await worker.ask(rollout, 1, [USER])).final()


async def test_a_fault_that_is_not_valid_is_replaced(server: Server, worker: FakeWorker) -> None:
    async def policy(call: Call) -> Reply:
        raise FaultError(Fault(code="broken", message="x" * 65537 if call.key.call == 1 else "\ud800"))

    async with trainer(server) as client:
        client.serve(policy)
        rollout = worker.rollout()
        for number, reason in ((1, "message: '65537 bytes'"), (2, "surrogates not allowed")):
            fault = await (await worker.ask(rollout, number, [USER])).fault()
            assert (fault.code, fault.status, fault.who) == ("bad_answer", 502, "trainer")
            assert reason in fault.message


async def test_a_refused_answer_is_given_again(server: Server, worker: FakeWorker) -> None:
    refused: list[str] = []
    async with trainer(server, refused=lambda key, fault: refused.append(f"{key.call} {fault.message}")) as client:
        client.serve(answer)
        rollout = worker.rollout()
        first = await (await worker.ask(rollout, 1, [USER])).frame("final")
        await worker.reject(rollout, 1, header(first, "Rl-Gen"), Fault(code="bad_answer", message="logprobs: 1 values"))
        second = await (await worker.ask(rollout, 1, [USER])).frame("final")
        assert header(second, "Rl-Gen") != header(first, "Rl-Gen")
        assert refused == ["1 logprobs: 1 values"]
        assert client.refusals == 1
        await (await worker.ask(rollout, 2, [USER], headers={"Rl-Settled": "1"})).final()
        late = await worker.ask(rollout, 1, [USER])
        await (await worker.ask(rollout, 3, [USER])).final()
        assert late.frames.empty()  # neither the dropped answer nor a new one


async def test_attempts_and_cancels(server: Server, worker: FakeWorker) -> None:
    cancelled = asyncio.Event()
    started: asyncio.Queue[int] = asyncio.Queue()

    async def policy(call: Call) -> Reply:
        started.put_nowait(call.key.attempt)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with trainer(server) as client:
        client.serve(policy, concurrency=2)
        rollout = worker.rollout()
        await worker.ask(rollout, 1, [USER], attempt=2)
        assert await started.get() == 2
        assert (await (await worker.ask(rollout, 1, [USER], attempt=1)).fault()).code == "stale_attempt"
        await worker.ask(rollout, 1, [USER], attempt=3)  # ends the calls of the second
        await asyncio.wait_for(cancelled.wait(), 120)
        assert await started.get() == 3
        cancelled.clear()
        await worker.cancel(rollout, 1, attempt=3)
        await asyncio.wait_for(cancelled.wait(), 120)


async def test_a_fenced_worker_gets_no_answer_without_the_state(
    server: Server, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state file has the attempt."""

    async def unknown(rollout: str) -> None:
        raise UnreachableError("the state cannot be read")

    async with trainer(server) as client:
        monkeypatch.setattr(client._submissions, "state", unknown)
        rollout = worker.rollout()
        client._submissions.restore({rollout: Submitted(Request(id=rollout), attempt=3)})
        assert (await (await worker.ask(rollout, 1, [USER], attempt=2)).fault()).code == "stale_attempt"
        await worker.ask(rollout, 1, [USER], attempt=3)
        assert (await client.next_call()).key.attempt == 3


async def test_a_foreign_reply_subject_gets_nothing(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        rollout = worker.rollout()
        heard: asyncio.Queue[Any] = asyncio.Queue()

        async def on(msg: Any) -> None:
            heard.put_nowait(msg)

        await worker.nc.subscribe("anything.else", cb=on)
        subject = f"rollout.{rollout}.llm.{TRAINER}.0.1.1"
        await worker.nc.publish(subject, b"", reply="anything.else")
        asked = await worker.ask(rollout, 2, [USER])
        await (await client.next_call()).reply(text("ok"))
        await asked.final()
        assert heard.empty()


async def test_large_bodies(server: Server, worker: FakeWorker) -> None:
    async with trainer(server) as client:
        rollout = worker.rollout()
        big = "é" * 300_000
        body = {"v": 1, "key": f"{rollout}/1/1", "tag": "agent", "dialect": "chat", "messages": [msgpack_json(big)]}
        packed = zstandard.ZstdCompressor().compress(msgpack.packb(body))
        asked = await worker.send(rollout, 1, packed, headers={"Rl-Encoding": "zstd"})
        call = await client.next_call()
        assert call.messages[0]["content"] == big
        await call.reply(text(big))
        final = await asked.frame("final")
        assert header(final, "Rl-Encoding") == "zstd"
        assert len(final.data) < 10_000
        # More than max_payload, and random: it goes through the object store, both ways.
        random = secrets.token_hex(10 << 20)
        body |= {"key": f"{rollout}/1/2", "messages": [msgpack_json(random)]}
        data = msgpack.packb(body)
        link = await Link.open(server.url, server.creds("admin"), "fake", "_INBOX.worker.fake")
        sha = await Objects(Streams(link)).put(
            f"artifacts_{TRAINER}", zstandard.ZstdCompressor(level=1).compress(data), "6h"
        )
        await link.close()
        asked = await worker.send(rollout, 2, b"", headers={"Rl-Encoding": "zstd", "Rl-Claim": sha})
        call = await client.next_call()
        assert call.messages[0]["content"] == random
        await call.reply(text(random))
        final = await asked.frame("final")
        stored = await client._objects.get(f"tasks_{TRAINER}", header(final, "Rl-Claim"))
        assert random.encode() in zstandard.ZstdDecompressor().decompress(stored, max_output_size=64 << 20)
        bomb = zstandard.ZstdCompressor().compress(b"\x81\xa1a\xc6" + bytes(40 << 20))
        await worker.send(rollout, 3, bomb, headers={"Rl-Encoding": "zstd"})
        asked = await worker.ask(rollout, 4, [USER])
        assert (await client.next_call()).key == Key(rollout, 1, 4)


async def test_a_large_body_is_read_once_at_a_time(
    server: Server, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with trainer(server) as client:
        rollout, go = worker.rollout(), asyncio.Event()
        reads: list[str] = []

        async def get(bucket: str, sha256: str, limit: int) -> bytes:
            reads.append(sha256)
            await go.wait()
            body: bytes = msgpack.packb({"v": 1, "key": f"{rollout}/1/{sha256}", "messages": [msgpack_json("hi")]})
            return body

        monkeypatch.setattr(client._objects, "get", get)
        asked = await worker.send(rollout, 1, b"", headers={"Rl-Claim": "1"})
        for _ in range(3):
            await worker.send(rollout, 1, b"", headers={"Rl-Claim": "1"}, asking=asked)
        await worker.send(rollout, 2, b"", headers={"Rl-Claim": "2"})
        await worker.cancel(rollout, 2)
        await worker.ask(rollout, 3, [USER])
        assert (await client.next_call()).key.call == 3  # the others came before it
        assert reads.count("1") == 1
        go.set()
        assert (await client.next_call()).key.call == 1
        await worker.ask(rollout, 4, [USER])
        assert (await client.next_call()).key.call == 4  # its worker gave the second one up
        assert client._calls._reading == {}


def msgpack_json(content: str) -> bytes:
    return raw_json({"role": "user", "content": content})


async def test_tools(server: Server, worker: FakeWorker) -> None:
    runs = 0

    async def search(use: ToolUse) -> str:
        nonlocal runs
        runs += 1
        if not use.arguments:
            raise ValueError("nothing to look for")
        return f"found {use.arguments['q']}"

    def count(use: ToolUse) -> str:
        return str(len(use.arguments))

    async with trainer(server, tools={"search": search, "count": count}):
        rollout = worker.rollout()

        async def use(call: int, name: str, arguments: bytes) -> Any:
            body = {"v": 1, "key": f"{rollout}/1/{call}", "name": name, "arguments": arguments}
            asked = await worker.send(rollout, call, msgpack.packb(body), what="tool")
            while kind_of(frame := await asked.frame()) == "accept":
                pass
            return frame

        assert msgpack.unpackb((await use(1, "search", b'{"q":"x"}')).data) == {"v": 1, "text": "found x"}
        await use(1, "search", b'{"q":"x"}')
        assert runs == 1
        assert msgpack.unpackb((await use(2, "search", b"{}")).data)["is_error"]
        assert kind_of(await use(3, "other", b"{}")) == "fault"
        assert msgpack.unpackb((await use(4, "count", b'{"a":1}')).data)["text"] == "1"


class EngineError(Exception):
    """A client of HTTP raises it with the words of an engine."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}, {message!r}")
        self.status, self.message = status, message


def http_error(status: int, body: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://engine/generate")
    return httpx.HTTPStatusError(
        "refused", request=request, response=httpx.Response(status, text=body, request=request)
    )


@pytest.mark.parametrize(
    ("raised", "code", "status"),
    [
        (EngineError(400, "This model's maximum context length is 10 tokens."), "context_length_exceeded", 400),
        (EngineError(400, '{"error": {"message": "x", "code": "context_length_exceeded"}}'), "context_length_exceeded", 400),
        (EngineError(413, "prompt is too long"), "context_length_exceeded", 400),
        (http_error(400, '{"error": {"message": "The input is longer than the model\'s context length."}}'), "context_length_exceeded", 400),
        (http_error(422, "top_p must be above 0"), "upstream", 400),
        (http_error(503, "no worker"), "internal", 500),
        (ValueError("Prompt length (30) exceeds the model's maximum context length (20)."), "context_length_exceeded", 400),
        (EngineError(422, "top_p must be above 0"), "upstream", 400),
        (EngineError(404, "no model"), "internal", 500),
        (EngineError(503, "no worker"), "internal", 500),
        (ValueError("top_p must be above 0"), "internal", 500),
    ],
)  # fmt: skip
async def test_a_refusal_of_an_engine_that_a_handler_raises(
    server: Server, worker: FakeWorker, raised: Exception, code: str, status: int
) -> None:
    async def policy(call: Call) -> Reply:
        raise raised

    async with trainer(server) as client:
        client.serve(policy)
        fault = await (await worker.ask(worker.rollout(), 1, [USER])).fault()
    assert (fault.code, fault.status) == (code, status)
    assert bool(fault.agent_message) == (code == "context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"logprobs": None}, "logprobs: 'None' is not valid: want a list"),
        ({"completion_ids": "12"}, "completion_ids: '12' is not valid: want a list"),
        ({"prompt_ids": 7}, "prompt_ids: '7' is not valid: want a list"),
        ({"versions": [3]}, "versions[0]: '3' is not valid: want a VersionSpan"),
        ({"usage": {"prompt_tokens": 3}}, "want a Usage"),
        ({"completion_ids": [2**40]}, "completion_ids: "),
        ({"prompt_ids": [1.5]}, "prompt_ids: "),
        ({"completion_ids": [1], "logprobs": ["-1"]}, "logprobs: "),
    ],
)
def test_a_wrong_field_of_a_reply_is_named(fields: dict[str, Any], says: str) -> None:
    reply = text("one")
    for name, value in fields.items():
        setattr(reply, name, value)

    def send() -> None:
        check_reply(reply)
        encode(reply)

    with pytest.raises(InvalidError) as e:
        send()
    assert says in str(e.value)
