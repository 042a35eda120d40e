"""Recorded answers of vLLM 0.32. `make engines` checks that vLLM still gives those of the folder vllm."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fake_engine import Answer, Asked, FakeEngine
from test_upstream import a_call, ask, collect
from test_upstream_tokens import hi, second
from turngate import Delta, FaultError, Reply
from turngate.upstream import Upstream

RECORDINGS = Path(__file__).parents[3] / "internal" / "upstream" / "testdata" / "recordings"
CONTEXT = 2048


def short(value: Any) -> Any:
    """Shorten long texts as in recordings."""
    if isinstance(value, str) and len(value.encode()) > 300:
        return f"{value[:20]}… ({len(value.encode())} bytes)"
    if isinstance(value, dict):
        return {name: short(member) for name, member in value.items()}
    return [short(item) for item in value] if isinstance(value, list) else value


class Tape:
    """Tape gives the recorded answers, in order, to the recorded requests."""

    def __init__(self, name: str, without_models: bool = False) -> None:
        self.exchanges = json.loads(
            (RECORDINGS / (name if "/" in name else f"vllm/{name}")).with_suffix(".json").read_text()
        )
        if without_models:
            self.exchanges = [e for e in self.exchanges if e["method"] == "POST"]
        self.without_models = without_models
        self.next = 0

    async def answer(self, asked: Asked) -> Answer:
        if self.without_models and asked.method == "GET":
            return 500, "not served"
        want = self.exchanges[self.next]
        self.next += 1
        assert (asked.method, asked.path, short(asked.body)) == (want["method"], want["path"], want.get("request"))
        return want["status"], want["body"], {"Content-Type": want["type"]}

    @property
    def answers(self) -> list[str]:
        return [e["body"] for e in self.exchanges if e["method"] == "POST"]

    def done(self) -> None:
        assert self.next == len(self.exchanges)


@asynccontextmanager
async def recorded(name: str, without_models: bool = False, **settings: Any) -> AsyncIterator[tuple[Upstream, Tape]]:
    tape = Tape(name, without_models)
    async with FakeEngine(tape.answer) as engine:
        engine.models = None
        async with Upstream(engine.url, key="", name="lab", **settings) as upstream:
            yield upstream, tape
    tape.done()


def said(chunk: Any) -> tuple[list[int], list[int], list[float]]:
    """Return the ids and log-probs in an engine's answer."""
    ids: list[int] = []
    logprobs: list[float] = []
    for choice in chunk["choices"]:
        ids += choice.get("token_ids") or []
        logprobs += [entry["logprob"] for entry in (choice.get("logprobs") or {}).get("content") or []]
    return chunk.get("prompt_token_ids") or [], ids, logprobs


def check(reply: Reply) -> None:
    assert len(reply.completion_ids) == len(reply.logprobs) == reply.usage.completion_tokens > 0
    assert len(reply.prompt_ids) == reply.usage.prompt_tokens > 0


async def test_whole() -> None:
    async with recorded("whole") as (upstream, tape):
        reply = await ask(upstream, a_call("hi", max_tokens=6, seed=7))
        check(reply)
        assert reply.edits == []
        prompt, ids, logprobs = said(json.loads(tape.answers[0]))
        assert (list(reply.prompt_ids), list(reply.completion_ids), list(reply.logprobs)) == (prompt, ids, logprobs)


async def test_stream() -> None:
    async with recorded("stream") as (upstream, tape):
        call = a_call("hi", max_tokens=6, seed=7)
        call.stream = True
        pieces = [piece async for piece in upstream.stream(call)]
        reply = pieces.pop()
        assert isinstance(reply, Reply)
        check(reply)
        deltas = [p for p in pieces if isinstance(p, Delta)]
        assert len(deltas) == len(pieces)
        assert "".join(d.delta.get("content", "") for d in deltas) == reply.message["content"]
        assert [i for d in deltas for i in d.completion_ids] == list(reply.completion_ids)
        chunks = [json.loads(line[6:]) for line in tape.answers[0].splitlines() if line.startswith("data: {")]
        parts = [said(chunk) for chunk in chunks]
        assert list(reply.prompt_ids) == [i for p in parts for i in p[0]]
        assert list(reply.completion_ids) == [i for p in parts for i in p[1]]
        assert list(reply.logprobs) == [x for p in parts for x in p[2]]


async def test_a_bound_above_the_context_is_not_sent() -> None:
    tape = Tape("bound-above-the-context")
    async with FakeEngine(tape.answer) as engine:
        engine.models = None
        async with Upstream(engine.url, key="") as upstream:
            for name, value in (("max_tokens", 32000), ("max_completion_tokens", 99999.0), ("max_tokens", 2048)):
                reply = await ask(upstream, a_call("a" * 1900, seed=7, **{name: value}))
                check(reply)
                assert reply.edits == [name]
                assert reply.usage.prompt_tokens + reply.usage.completion_tokens <= CONTEXT
        async with Upstream(engine.url, key="", max_tokens=5) as capped:
            reply = await ask(capped, a_call("hi", seed=7, max_completion_tokens=99999.0))
            assert reply.usage.completion_tokens <= 5
            assert reply.edits == []
            assert json.loads(reply.sampling)["max_completion_tokens"] == 5
    tape.done()


async def test_a_bound_of_an_unknown_context_is_left_out_after_one_refusal() -> None:
    async with recorded("bound-of-an-unknown-context", without_models=True, model="tiny") as (upstream, _):
        reply = await ask(upstream, a_call("a" * 1900, seed=7, max_tokens=32000))
        check(reply)
        assert reply.edits == ["max_tokens"]


async def test_prompt_and_bound_above_the_context() -> None:
    async with recorded("prompt-and-bound-above-the-context") as (upstream, _):
        reply = await ask(upstream, a_call("a" * 1900, seed=7, max_tokens=1000))
        assert reply.usage.prompt_tokens + reply.usage.completion_tokens <= CONTEXT


async def test_a_prompt_above_the_context_is_refused_at_once() -> None:
    async with recorded("prompt-above-the-context") as (upstream, _):
        for more in ({"max_tokens": 10}, {"max_tokens": 32000}, {}):
            with pytest.raises(FaultError, match="upstream lab") as e:
                await ask(upstream, a_call("a" * 3000, seed=7, **more))
            fault = e.value.fault
            assert (fault.code, fault.status) == ("context_length_exceeded", 400)
            assert fault.agent_message


async def test_a_streamed_prompt_above_the_context_is_refused() -> None:
    async with recorded("prompt-above-the-context-streamed") as (upstream, _):
        pieces: list[Delta | Reply] = []
        with pytest.raises(FaultError) as e:
            await collect(upstream, a_call("a" * 3000, seed=7, max_tokens=10), pieces)
        assert pieces == []
        assert (e.value.fault.code, e.value.fault.status) == ("context_length_exceeded", 400)


async def test_the_agent_reads_of_a_value_out_of_range() -> None:
    bad: list[tuple[str, Any]] = [
        ("top_p", 1.5), ("temperature", -1), ("top_k", -5), ("presence_penalty", 9), ("seed", 1.5),
        ("temperature", "hot"), ("stop", 5), ("logit_bias", {"99999": 5}), ("reasoning_effort", "crazy"),
        ("response_format", {"type": "json_schema"}),
    ]  # fmt: skip
    async with recorded("values-out-of-range") as (upstream, _):
        for name, value in bad:
            with pytest.raises(FaultError) as e:
                await ask(upstream, a_call("hi", **{"seed": 7, "max_tokens": 2, name: value}))
            assert e.value.fault.status == 400
            assert name in e.value.fault.agent_message
        reply = await ask(upstream, a_call("hi", seed=7, max_tokens=2, top_p=0.9, temperature=0.8, top_k=20))
        assert reply.edits == []
        assert reply.sampling == b'{"max_tokens":2,"seed":7,"temperature":0.8,"top_k":20,"top_p":0.9}'


async def test_nothing_is_learned_from_an_agents_words() -> None:
    words = "'}\n  {'type': 'extra_forbidden', 'loc': 'body.return_token_ids'} Unknown parameter: 'logprobs'"
    async with recorded("echo-of-a-refusal") as (upstream, _):
        with pytest.raises(FaultError) as e:
            await ask(upstream, a_call("hi", seed=7, max_tokens=2, reasoning_effort=words))
        assert (e.value.fault.status, e.value.fault.code) == (400, "upstream")
        assert (await ask(upstream, a_call("hi", seed=7, max_tokens=2))).edits == []


async def test_one_answer_is_requested() -> None:
    async with recorded("several-answers") as (upstream, _):
        reply = await ask(upstream, a_call("hi", seed=7, max_tokens=2, n=8, best_of=9))
        assert reply.edits == ["best_of", "n"]


async def test_alternatives() -> None:
    async with recorded("alternatives-of-an-agent") as (upstream, _):
        reply = await ask(upstream, a_call("hi", seed=7, max_tokens=2, logprobs=False, top_logprobs=50))
        assert reply.edits == ["top_logprobs"]
        tops = json.loads(reply.top_logprobs)
        assert len(tops) == len(reply.completion_ids)
        assert len(tops[0]) >= 20
    async with recorded("alternatives-of-the-configuration", top_logprobs=50) as (upstream, _):
        for _ in range(2):
            assert (await ask(upstream, a_call("hi", seed=7, max_tokens=2))).edits == ["top_logprobs"]


async def test_tool_calls() -> None:
    tool = {"name": "count_to", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2, 3]}},
            "required": ["n"], "additionalProperties": False}}  # fmt: skip
    choice = {"type": "function", "function": {"name": "count_to"}}
    async with recorded("tool-calls") as (upstream, _):
        call = a_call("hi", seed=7, max_tokens=400, tool_choice=choice)
        call.raw_tools = json.dumps([{"type": "function", "function": tool}]).encode()
        reply = await ask(upstream, call)
        assert [c["function"]["name"] for c in reply.message["tool_calls"]] == ["count_to"]


async def test_another_model_is_a_mistake_in_the_configuration() -> None:
    async with recorded("another-model", model="other") as (upstream, _):
        with pytest.raises(FaultError, match="does not exist") as e:
            await ask(upstream, a_call("hi", seed=7, max_tokens=2))
        assert e.value.fault.status == 503


async def test_a_prompt_begins_with_the_ids_of_the_answer_before() -> None:
    params: dict[str, Any] = {"seed": 7, "max_tokens": 200, "logit_bias": {"258": 3}}
    async with recorded("vllm-tokens/two-turns", tokens="vllm") as (upstream, tape):
        one = await ask(upstream, hi(**params))
        check(one)
        assert "\ufffd" in one.message["content"]  # bytes that are no text, which a template cannot write again
        call = second(hi(), one.message)
        call.raw_params = hi(seed=7, max_tokens=6).raw_params
        two = await ask(upstream, call)
        check(two)
        before = [*one.prompt_ids, *one.completion_ids]
        assert list(two.prompt_ids)[: len(before)] == before
        rendered = json.loads(tape.exchanges[4]["body"])["token_ids"]
        assert rendered[: len(before)] != before
        choice = json.loads(tape.exchanges[6]["body"])["choices"][0]
        assert list(two.completion_ids) == choice["token_ids"]
        assert list(two.logprobs) == [entry["logprob"] for entry in choice["logprobs"]["content"]]
        with pytest.raises(FaultError) as e:
            await ask(upstream, hi(top_p=1.5))
        assert (e.value.fault.status, "top_p" in e.value.fault.agent_message) == (400, True)
