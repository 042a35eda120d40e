"""An upstream that is away, or is a server of another kind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from conftest import Server
from fake_engine import OK, Answer, Asked, FakeEngine
from fake_worker import FakeWorker
from test_upstream import a_client
from turngate import Call, FaultError, Key
from turngate.schema import Fault
from turngate.schema.codec import raw_json
from turngate.upstream import Upstream
from turngate.upstream.outage import MOST_PAUSE, Outage
from turngate.wire.quiet import Lines


def test_the_pause_grows_with_the_outage() -> None:
    outage, at, tries, last = Outage(), 0.0, 0, 0.0
    while at < 150:
        pause = outage.pause(1000 + at)
        assert last <= pause <= MOST_PAUSE
        tries, last = tries + 1, pause
        at += max(pause, 2)  # the worker waits for about 2 s at least
    assert tries <= 25
    outage.over()
    assert outage.pause(9999) == 0


@pytest.mark.parametrize(
    ("status", "body", "outage"),
    [
        (400, '{"error":{"message":"temperature must be at most 2"}}', False),
        (400, '{"error":{"message":"the prompt is longer than the model\'s context length"}}', False),
        (400, '{"error":{"message":"\\"auto\\" tool choice requires --enable-auto-tool-choice"}}', False),
        (401, '{"error":"Unauthorized"}', False),
        (404, '{"error":{"message":"no such model","param":"model"}}', False),
        (413, "too large", False),
        (501, "no", False),
        (200, '{"choices":[]}', False),
        (429, "busy", True),
        (500, "EngineDeadError", True),
        (502, "bad gateway", True),
        (503, "loading", True),
        (504, "timeout", True),
        (529, "overloaded", True),
        (0, "", True),  # no connection
    ],
)
async def test_a_refusal_is_no_outage(status: int, body: str, outage: bool) -> None:
    async def handler(asked: Asked) -> Answer:
        return status, body

    async with FakeEngine(handler) as engine:
        url = engine.url if status else "http://127.0.0.1:9"
        async with Upstream(url, key="", model="m", name="lab") as u:
            with pytest.raises(FaultError):
                await u.answer(a_call())
            assert (u._outage._since is not None) is outage


def test_a_repeated_failure_is_logged_at_growing_intervals() -> None:
    lines, logged = Lines(), []
    for s in range(200):
        if lines.speak(f"port {4000 + s}: it cannot be reached", 1000.0 + s) is not None:
            logged.append(s)
    assert logged == [0, 10, 30, 70, 150]
    assert lines.speak("another failure", 1200.0) == 0
    assert lines.speak("port 1: it cannot be reached", 9999.0) == 0


def a_call() -> Call:
    call = Call(Key("alpha-1", 1, 1), cast(Any, None), cast(Any, None))
    call.stream, call.raw_tools, call.raw_params = False, b"", {}
    call.raw_messages = [raw_json({"role": "user", "content": "hi"})]
    return call


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["", "served"])
@pytest.mark.parametrize(
    ("status", "body", "bad", "waits"),
    [
        (200, "<html>Welcome</html>", True, False),
        (200, '{"object":"response","output":[]}', True, False),
        (404, '{"detail":"Not Found"}', True, True),
        (404, "<html>404</html>", True, True),
        (404, '{"message":"The model `m` does not exist.","param":"model"}', False, True),
        (401, '{"error":"Unauthorized"}', False, True),
        (501, "Unsupported method ('POST')", True, True),
        (405, "Method Not Allowed", True, False),
        (503, "busy", False, True),
    ],
)
async def test_a_server_of_another_kind(
    status: int, body: str, bad: bool, waits: bool, model: str, stream: bool
) -> None:
    works = False

    async def handler(asked: Asked) -> Answer:
        return (200, OK) if works else (status, body)

    async def ask(u: Upstream) -> None:
        if stream:
            async for _ in u.stream(a_call()):
                pass
        else:
            await u.answer(a_call())

    async def fault_of(u: Upstream) -> Fault:
        with pytest.raises(FaultError, match="upstream lab") as e:
            await ask(u)
        return e.value.fault

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="", model=model, name="lab") as u:
        fault = await fault_of(u)
        assert (fault.code == "bad_answer") is bad
        assert fault.status >= 500
        works = True
        await u.answer(a_call())
        works = False
        if waits:
            assert (await fault_of(u)).code == "upstream"


async def test_a_server_without_http() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 ready\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with Upstream(url, key="") as u:
            with pytest.raises(FaultError) as e:
                await u.answer(a_call())
    assert e.value.fault.code == "bad_answer", e.value.fault.message


async def test_the_client_logs_an_upstream_that_is_away(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "turngate")
    async with (
        FakeWorker(server.url, server.creds("admin")) as worker,
        Upstream("http://127.0.0.1:9", key="", model="m", name="lab") as u,
        a_client(server) as client,
    ):
        client.serve(u)
        for _ in range(3):
            fault = await (await worker.ask(worker.rollout(), 1, [{"role": "user", "content": "hi"}])).fault()
            assert (fault.status, fault.code) == (503, "upstream")
    assert caplog.text.count("upstream lab: it cannot be reached") == 1
