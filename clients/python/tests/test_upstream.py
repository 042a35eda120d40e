"""Upstream with an engine of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from conftest import Server
from fake_engine import OK, STREAM_HEAD, Answer, Asked, FakeEngine, events
from fake_worker import TRAINER, FakeWorker, delta_of, header
from turngate import Call, Client, Delta, FaultError, InvalidError, Key, Reply
from turngate.schema.codec import raw_json
from turngate.upstream import Upstream

USER = {"role": "user", "content": "hi"}
CHUNK = (
    '{"prompt_token_ids":[1],"choices":[{"delta":{"content":"ok"},"token_ids":[5],'
    '"logprobs":{"content":[{"logprob":-1}]},"finish_reason":"stop"}]}'
)


def a_call(prompt: str, **params: Any) -> Call:
    call = Call(Key("alpha-1", 1, 1), cast(Any, None), cast(Any, None))
    call.stream, call.raw_tools = False, b""
    call.raw_messages = [raw_json({"role": "user", "content": prompt})]
    call.raw_params = {name: raw_json(value) for name, value in params.items()}
    return call


async def ask(upstream: Upstream, call: Call) -> Reply:
    return await upstream.answer(call)


async def collect(upstream: Upstream, call: Call, pieces: list[Delta | Reply]) -> None:
    async for piece in upstream.stream(call):
        pieces.append(piece)


async def always_ok(asked: Asked) -> Answer:
    return 200, OK


@pytest.fixture
async def worker(server: Server) -> AsyncIterator[FakeWorker]:
    async with FakeWorker(server.url, server.creds("admin")) as worker:
        yield worker


async def test_ids_and_logprobs_are_taken_out() -> None:
    async def handler(asked: Asked) -> Answer:
        return 200, (
            '{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[5,6],'
            '"logprobs":{"content":[{"logprob":-0.5},{"logprob":-1}]}}],"prompt_token_ids":[1,2,3],'
            '"usage":{"prompt_tokens":3,"completion_tokens":2}}'
        )

    async with (
        FakeEngine(handler) as engine,
        Upstream(engine.url + "/v1", key="sk-up", max_tokens=100, version="v7") as u,
    ):
        call = a_call("hi", temperature=0.5, max_tokens=5000)
        call.raw_tools = b'[{"x":1}]'
        reply = await ask(u, call)
        asked = engine.asked[-1]
    assert reply.message == {"role": "assistant", "content": "ok"}
    assert (list(reply.prompt_ids), list(reply.completion_ids), list(reply.logprobs)) == ([1, 2, 3], [5, 6], [-0.5, -1])
    assert [(s.version, s.start, s.end) for s in reply.versions] == [("v7", 0, 2)]
    assert asked.body == {"model": "served", "logprobs": True, "return_token_ids": True, "max_tokens": 100,
                          "temperature": 0.5, "tools": [{"x": 1}], "messages": [USER]}  # fmt: skip
    assert asked.headers["authorization"] == "Bearer sk-up"
    assert asked.headers["x-request-id"] == "alpha-1/1/1"
    assert asked.headers["x-session-id"] == asked.headers["x-smg-routing-key"] == "alpha-1"


@pytest.mark.parametrize(
    ("status", "want", "body", "code"),
    [
        (400, 400, "bad tool", "upstream"), (422, 400, "x", "upstream"), (429, 429, "", "upstream"),
        (500, 500, "", "upstream"), (503, 503, "", "upstream"), (404, 503, "no model", "upstream"),
        (401, 503, "", "upstream"), (302, 502, "", "upstream"),
        (400, 400, "maximum context length is 10", "context_length_exceeded"),
        (400, 503, '{"error":{"message":"\\"auto\\" tool choice requires --enable-auto-tool-choice"}}', "upstream"),
        (400, 502, '{"error":{"message":"Unrecognized request argument: return_token_ids"}}', "bad_answer"),
    ],
)  # fmt: skip
async def test_refusals_become_faults(status: int, want: int, body: str, code: str) -> None:
    async def handler(asked: Asked) -> Answer:
        return status, body, {"Retry-After": "7"}

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="", name="lab") as u:
        with pytest.raises(FaultError, match="upstream lab") as e:
            await ask(u, a_call("hi"))
    assert (e.value.fault.status, e.value.fault.code) == (want, code)
    assert (e.value.fault.retry_after_ms == 7000) == (status in (302, 429, 500, 503))
    assert len(engine.completions) == 1


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("logprobs", '{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop","token_ids":[5,6,7],"logprobs":{"content":[{"logprob":-1}]}}]}'),
        ("choices", '{"choices":[]}'),
        ("finish_reason", '{"choices":[{"message":{"role":"assistant","content":"ok"}}]}'),
        ("message", '{"choices":[{"finish_reason":"stop"}]}'),
        ("token_ids", '{"choices":[{"message":{},"finish_reason":"stop","token_ids":["a"]}]}'),
        ("read", '{"choices":'),
        ("read", "[]"),
    ],
)  # fmt: skip
async def test_an_answer_without_what_training_needs(field: str, body: str) -> None:
    async def handler(asked: Asked) -> Answer:
        return 200, body

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        with pytest.raises(FaultError, match=field) as e:
            await ask(u, a_call("hi"))
    assert e.value.fault.code == "bad_answer"


@pytest.mark.parametrize("plain", [False, True])
async def test_what_an_engine_drops_is_named(plain: bool) -> None:
    async def handler(asked: Asked) -> Answer:
        assert ("return_token_ids" in asked.body) is not plain
        return 200, '{"choices":[{"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],"usage":{}}'

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="", plain=plain) as u:
        reply = await ask(u, a_call("hi"))
    assert reply.edits == ([] if plain else ["logprobs", "return_token_ids"])


@pytest.mark.parametrize(
    "form",
    [
        '{"error":{"message":"Unsupported parameter: \'%s\' is not supported with this model. Use something else.","code":"unsupported_parameter"}}',
        '{"error":{"message":"Unrecognized request argument supplied: %s"}}',
        '{"error":{"message":"1 validation error:\\n  {\'type\': \'extra_forbidden\', \'loc\': \'body.%s\', \'msg\': \'x\'}","param":"body.x"}}',
        '{"detail":[{"type":"extra_forbidden","loc":["body","%s"],"msg":"Extra inputs are not permitted","input":1}]}',
        "Unknown parameter: '%s'",
    ],
)  # fmt: skip
async def test_unknown_parameters_are_left_out_of_all_calls(form: str) -> None:
    async def handler(asked: Asked) -> Answer:
        for name in ("max_tokens", "temperature"):
            if name in asked.body:
                return 400, form % name
        return 200, OK

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="", max_tokens=100) as u:
        for _ in range(2):
            reply = await ask(u, a_call("hi", temperature=0.5, max_tokens=5000))
            assert reply.edits == ["max_tokens", "temperature"]
            assert json.loads(reply.sampling) == {"max_completion_tokens": 100}
    assert len(engine.completions) == 4


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        '{"error":{"message":"max_tokens=32000 cannot be greater than max_model_len=16384. Please request fewer output tokens. (parameter=max_tokens, value=32000)","type":"BadRequestError","param":"max_tokens","code":400}}',
        '{"object":"error","message":"Requested token count exceeds the model\'s maximum context length of 16384 tokens. You requested a total of 41000 tokens: 9000 tokens from the input messages and 32000 tokens for the completion. Please reduce the number of tokens in the input messages or the completion to fit within the limit.","type":"BadRequestError","param":null,"code":400}',
        '{"error":{"message":"max_tokens is too large: 32000. This model supports at most 16384 completion tokens, whereas you provided 32000.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}',
    ],
)  # fmt: skip
async def test_a_completion_that_has_no_room_is_requested_without_its_bound(text: str, streamed: bool) -> None:
    async def handler(asked: Asked) -> Answer | None:
        if "max_tokens" in asked.body:
            return 400, text
        if not streamed:
            return 200, OK
        await asked.send(STREAM_HEAD + events(CHUNK, "[DONE]"))
        return None

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        call = a_call("hi", max_tokens=32000)
        if streamed:
            *_, last = [piece async for piece in u.stream(call)]
            assert isinstance(last, Reply)
            reply = last
        else:
            reply = await ask(u, call)
    assert reply.edits == ["max_tokens"]
    assert len(engine.completions) == 2


async def test_a_stream_that_breaks_off_is_asked_again() -> None:
    async def handler(asked: Asked) -> None:
        await asked.send(STREAM_HEAD + events(CHUNK))

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        pieces: list[Delta | Reply] = []
        with pytest.raises(FaultError, match="broke off") as e:
            await collect(u, a_call("hi"), pieces)
    assert e.value.fault.status == 502
    assert [p.delta for p in pieces if isinstance(p, Delta)] == [{"content": "ok"}]


async def test_a_refusal_in_a_stream() -> None:
    async def handler(asked: Asked) -> None:
        await asked.send(STREAM_HEAD + events('{"error":{"message":"prompt is too long: 9 > 5","code":400}}'))

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        with pytest.raises(FaultError) as e:
            _ = [piece async for piece in u.stream(a_call("hi"))]
    assert (e.value.fault.status, e.value.fault.code) == (400, "context_length_exceeded")


@pytest.mark.parametrize(
    ("delta", "name"),
    [('{"reasoning":"so"}', "reasoning"), ('{"reasoning":"so","reasoning_content":"so"}', "reasoning_content")],
)
async def test_a_streamed_message_is_joined(delta: str, name: str) -> None:
    chunks = [
        '{"prompt_token_ids":[1,2],"choices":[{"delta":{"role":"assistant","content":""}}]}',
        '{"choices":[{"delta":' + delta + ',"token_ids":[3],"logprobs":{"content":[{"logprob":-1}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"run","arguments":""}}]},"token_ids":[4],"logprobs":{"content":[{"logprob":-2}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},"token_ids":[5],"logprobs":{"content":[{"logprob":-3}]},"finish_reason":"tool_calls"}]}',
        '{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3}}',
    ]

    async def handler(asked: Asked) -> None:
        assert asked.body["stream"] is True
        await asked.send(STREAM_HEAD + events(*chunks, "[DONE]"))

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        *_, reply = [piece async for piece in u.stream(a_call("hi"))]
    assert isinstance(reply, Reply)
    call = {"id": "c1", "type": "function", "function": {"name": "run", "arguments": "{}"}}
    assert {k: v for k, v in reply.message.items() if v} == {
        "role": "assistant",
        name: "so",
        "tool_calls": [call],
    }
    assert (list(reply.completion_ids), list(reply.logprobs), list(reply.prompt_ids)) == (
        [3, 4, 5],
        [-1, -2, -3],
        [1, 2],
    )
    assert reply.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("deltas", "want"),
    [
        ([{"reasoning": "so "}, {"reasoning_content": "it"}, {"reasoning": " is"}], "so it is"),
        ([{"reasoning_content": "so "}, {"reasoning": "it", "reasoning_content": ""}], "so it"),
        ([{"reasoning": "so ", "reasoning_content": None}, {"reasoning": "it", "reasoning_content": "it"}], "so it"),
    ],
)
async def test_each_piece_of_reasoning_has_either_name_or_both(deltas: list[dict[str, str | None]], want: str) -> None:
    async def handler(asked: Asked) -> None:
        chunks = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
        await asked.send(STREAM_HEAD + events(*chunks, CHUNK, "[DONE]"))

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        *pieces, reply = [piece async for piece in u.stream(a_call("hi"))]
    assert isinstance(reply, Reply)
    assert reply.message == {"role": "assistant", "content": "ok", "reasoning_content": want}
    sent = [{name: value for name, value in delta.items() if value is not None} for delta in deltas]
    assert [p.delta for p in pieces if isinstance(p, Delta)][:-1] == sent


@pytest.mark.parametrize("keep", [True, False])
async def test_an_engine_that_wants_its_reasoning_back(keep: bool) -> None:
    async with FakeEngine(always_ok) as engine, Upstream(engine.url, key="", keep_reasoning=keep) as u:
        assert (await ask(u, a_call("hi"))).keep_reasoning is keep


async def test_an_engine_that_is_not_there() -> None:
    async with FakeEngine(always_ok) as engine:
        pass
    async with Upstream(engine.url, key="", model="m") as u:
        with pytest.raises(FaultError, match="cannot be reached") as e:
            await ask(u, a_call("hi"))
    assert e.value.fault.status == 503


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("127.0.0.1:8000", "ftp://x", "http://"):
        with pytest.raises(InvalidError, match="url"):
            Upstream(url)
    with pytest.raises(InvalidError) as e:
        Upstream("http://user:secret@host")
    assert "secret" not in str(e.value)
    with pytest.raises(InvalidError, match="max_tokens"):
        Upstream("http://host", max_tokens=-1)


async def test_the_key_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    monkeypatch.setenv("TURNGATE_UPSTREAM_KEY_FILE", str(tmp_path / "key"))
    async with FakeEngine(always_ok) as engine, Upstream(engine.url) as u:
        await ask(u, a_call("hi"))
    assert engine.asked[-1].headers["authorization"] == "Bearer sk-file"


async def test_it_serves_a_client(server: Server, worker: FakeWorker) -> None:
    async def handler(asked: Asked) -> Answer | None:
        if not asked.body.get("stream"):
            return 400, "maximum context length is 10"
        await asked.send(STREAM_HEAD + events(CHUNK, "[DONE]"))
        return None

    async with (
        FakeEngine(handler) as engine,
        Upstream(engine.url, key="", version="v1") as u,
        a_client(server) as client,
    ):
        client.serve(u)
        streamed = await worker.ask(worker.rollout(), 1, [USER], stream=True)
        assert delta_of(await streamed.frame("delta")) == {"content": "ok"}
        reply = await streamed.final()
        assert (list(reply.completion_ids), reply.versions[0].version) == ([5], "v1")
        fault = await (await worker.ask(worker.rollout(), 1, [USER])).fault()
        assert (fault.status, fault.code) == (400, "context_length_exceeded")


async def test_a_cancelled_call_ends_the_engines_request(server: Server, worker: FakeWorker) -> None:
    asked_now = asyncio.Event()

    async def handler(asked: Asked) -> None:
        asked_now.set()
        await asyncio.Event().wait()

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u, a_client(server) as client:
        client.serve(u)
        for stream in (False, True):
            rollout = worker.rollout()
            await worker.ask(rollout, 1, [USER], stream=stream)
            await asked_now.wait()
            await worker.cancel(rollout, 1)
            await asyncio.wait_for(engine.left.wait(), 10)
            asked_now.clear()
            engine.left.clear()


@pytest.mark.parametrize("abort", [False, True])
async def test_hold_around_new_weights(server: Server, worker: FakeWorker, abort: bool) -> None:
    asked_now, go_on = asyncio.Event(), asyncio.Event()

    async def handler(asked: Asked) -> Answer:
        asked_now.set()
        await go_on.wait()
        return 200, OK

    async with (
        FakeEngine(handler) as engine,
        Upstream(engine.url, key="", version="v1") as u,
        a_client(server) as client,
    ):
        client.serve(u)
        first = await worker.ask(worker.rollout(), 1, [USER])
        await asked_now.wait()
        if not abort:
            asyncio.get_running_loop().call_later(0.05, go_on.set)
        async with u.hold(client, version="v2", abort=abort):
            assert u.running == 0
            assert len(engine.completions) == 1
            second = await worker.ask(worker.rollout(), 1, [USER])
            assert header(await second.frame("accept"), "Rl-Held") == "1"
            assert len(engine.completions) == 1
            go_on.set()
        assert (await second.final()).versions[0].version == "v2"
        if abort:
            assert (await first.fault()).status == 503
        else:
            assert (await first.final()).versions[0].version == "v1"


async def test_a_call_that_was_just_handed_out_gets_no_old_version(server: Server, worker: FakeWorker) -> None:
    async with (
        FakeEngine(always_ok) as engine,
        Upstream(engine.url, key="", version="v1") as u,
        a_client(server) as client,
    ):
        asked = await worker.ask(worker.rollout(), 1, [USER])
        call = await client.next_call()
        answering = asyncio.ensure_future(u.answer(call))  # it has not begun
        async with u.hold(client, version="v2"):
            with pytest.raises(FaultError) as e:
                await answering
            assert engine.completions == []
            await call.fault(e.value.fault)
            assert (await asked.fault()).status == 503
            again = await worker.ask(call.rollout, 1, [USER])
            assert header(await again.frame("accept"), "Rl-Held") == "1"
            client.serve(u)
        assert (await again.final()).versions[0].version == "v2"


async def test_a_stream_that_was_just_handed_out_ends(server: Server, worker: FakeWorker) -> None:
    async with FakeEngine(always_ok) as engine, Upstream(engine.url, key="") as u, a_client(server) as client:
        call = a_call("hi")
        answering = asyncio.ensure_future(collect(u, call, []))
        async with u.hold(client):
            with pytest.raises(FaultError, match="aborted"):
                await answering
        assert engine.completions == []


async def test_after_a_failed_update_calls_stay_held(server: Server, worker: FakeWorker) -> None:
    async with (
        FakeEngine(always_ok) as engine,
        Upstream(engine.url, key="", version="v1") as u,
        a_client(server) as client,
    ):
        client.serve(u)
        with pytest.raises(RuntimeError):
            async with u.hold(client, version="v2"):
                raise RuntimeError("half of the weights")
        asked = await worker.ask(worker.rollout(), 1, [USER])
        await asked.frame("accept")
        assert u.version == "v1"
        assert engine.completions == []
        await client.resume()
        await asked.final()


class a_client:
    """A trainer."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def __aenter__(self) -> Client:
        self.client = await Client.connect(
            self._server.url, self._server.creds(f"trainer-{TRAINER}"), TRAINER, answer_all=True
        )
        return self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()


_LS = {"id": "a", "type": "function", "function": {"name": "ls", "arguments": '{"x":1}'}}
_MORE = {"id": "b", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("deltas", "want"),
    [
        (['{"index":0,"id":"a","function":{"name":"ls","arguments":"{\\"x\\""}}', '{"index":0,"function":{"arguments":":1}"}}', '{"index":0,"id":"b","function":{"name":"ls","arguments":"{}"}}'], [_LS, _MORE]),
        (['{"id":"a","function":{"name":"ls","arguments":"{\\"x\\""}}', '{"function":{"arguments":":1}"}}', '{"id":"b","function":{"name":"ls","arguments":"{}"}}'], [_LS, _MORE]),
        (['{"index":1,"id":"b","function":{"name":"ls","arguments":"{"}}', '{"index":0,"id":"a","function":{"name":"ls","arguments":"{\\"x\\""}}', '{"index":1,"function":{"arguments":"}"}},{"index":0,"function":{"arguments":":1}"}}'], [_LS, _MORE]),
        (['{"index":0,"id":"a","function":{"name":"ls","arguments":"{\\"x\\""}}', '{"index":0,"id":"a","function":{"name":"ls","arguments":":1}"}}'], [_LS]),
        (['{"index":0,"id":"a","function":{"name":"l"}}', '{"index":0,"function":{"name":"s","arguments":"{\\"x\\":1}"}}'], [_LS]),
        (['{"index":0,"id":"b","function":{"name":"ls","arguments":{}}}'], [_MORE]),
    ],
    ids=["one index for all", "no index", "mixed", "repeated", "name in parts", "object"],
)  # fmt: skip
async def test_odd_pieces_of_calls(deltas: list[str], want: list[Any]) -> None:
    async def handler(asked: Asked) -> None:
        head = '{"prompt_token_ids":[1],"choices":[{"delta":{"role":"assistant"},"token_ids":[5],"logprobs":{"content":[{"logprob":-1}]}}]}'
        chunks = [f'{{"choices":[{{"delta":{{"role":"assistant","tool_calls":[{d}]}}}}]}}' for d in deltas]
        end = '{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}'
        await asked.send(STREAM_HEAD + events('{"choices":[]}', head, *chunks, end, '{"choices":null}', "[DONE]"))

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        *pieces, reply = [piece async for piece in u.stream(a_call("hi"))]
    assert isinstance(reply, Reply)
    assert [dict(sorted(c.items())) for c in reply.message["tool_calls"]] == [dict(sorted(c.items())) for c in want]
    indexes = {c["index"] for p in pieces if isinstance(p, Delta) for c in p.delta.get("tool_calls", ())}
    assert len(indexes) == len(want)


@pytest.mark.parametrize(("arguments", "want"), [('{"a": [1]}', '{"a": [1]}'), ("null", "{}"), ('"{"', "{")])
async def test_arguments_of_a_whole_answer_become_a_text(arguments: str, want: str) -> None:
    async def handler(asked: Asked) -> Answer:
        function = f'{{"name":"f","arguments":{arguments}}}'
        message = (
            f'{{"role":"assistant","content":null,"tool_calls":[{{"id":"a","type":"function","function":{function}}}]}}'
        )
        return 200, OK.replace('{"role":"assistant","content":"ok"}', message)

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        reply = await ask(u, a_call("hi"))
    assert reply.message["tool_calls"][0]["function"]["arguments"] == want


@pytest.mark.parametrize(
    ("status", "body", "down", "tries"),
    [(500, "CUDA error", False, 3), (200, OK.replace('"stop"', '"abort"'), False, 10), (200, "", False, 1),
     (503, "busy", False, 0), (429, "busy", False, 0), (500, "EngineDeadError", True, 0),
     (200, OK.replace('"stop"', '"abort"'), True, 0)],
)  # fmt: skip
async def test_a_request_that_always_breaks(status: int, body: str, down: bool, tries: int) -> None:
    """Such a request is a bad answer after a few tries, if the upstream answers others."""

    async def handler(asked: Asked) -> Answer:
        return (status, body) if down or "poison" in str(asked.body) else (200, OK)

    async with FakeEngine(handler) as engine, Upstream(engine.url, key="") as u:
        for n in range(1, 13):
            with pytest.raises(FaultError) as e:
                await ask(u, a_call("poison"))
            assert (e.value.fault.code == "bad_answer") == (0 < tries <= n), e.value.fault
            assert e.value.fault.status == 429 or e.value.fault.status >= 500
        probes = sum("poison" not in str(body) for body in engine.completions)
    assert (probes > 0) == (tries > 1 or down)
