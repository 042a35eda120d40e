"""Upstream with engines that complete token ids."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fake_engine import Answer, Asked, FakeEngine
from test_upstream import a_call, ask
from turngate import Call, FaultError, InvalidError, Key
from turngate.schema.codec import raw_json
from turngate.serving import turns
from turngate.upstream import Upstream

MODELS = '{"data":[{"id":"served","max_model_len":40}]}'
BEGIN, END, NEWLINE = 1, 2, 3


class Letters:
    """Letters is a template with a token for each letter. It writes an answer in capitals otherwise than it was said."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], answer: bool
    ) -> list[int]:
        ids: list[int] = []
        for m in messages:
            ids += [BEGIN, *map(ord, (m.get("content") or "").lower()), END, NEWLINE]
        return [*ids, BEGIN] if answer else ids

    def parse(self, ids: Sequence[int], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"role": "assistant", "content": "".join(chr(i) for i in ids if i != END)}


def second(first: Call, answer: Mapping[str, Any], number: int = 2) -> Call:
    call = a_call("")
    call.key = Key("alpha-1", 1, number)
    call.raw_messages = [*first.raw_messages, raw_json(answer), raw_json({"role": "user", "content": "more"})]
    call._parsed = [None] * 3
    return call


def hi(**params: Any) -> Call:
    call = a_call("hi", **params)
    call._parsed = [None]
    return call


async def test_vllm_renders_generates_and_parses() -> None:
    template = Letters()

    async def handler(asked: Asked) -> Answer:
        body = asked.body
        if asked.path == "/v1/chat/completions/render":
            ids = template.render(body["messages"], [], body.get("add_generation_prompt", True))
            return 200, json.dumps(
                {"token_ids": ids, "sampling_params": {"max_tokens": 9, "logprobs": 0}, "model": "served"}
            )
        if asked.path == "/inference/v1/generate":
            logprobs = {"content": [{"token_id": i, "logprob": -0.5} for i in (79, 75, END)]}
            choice = {"token_ids": [79, 75, END], "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None}
            return 200, json.dumps({"request_id": "x", "choices": [choice]})
        assert asked.path == "/v1/chat/completions/derender"
        assert body["chat_request"]["messages"]
        message = template.parse(body["generate_response"]["choices"][0]["token_ids"], [])
        return 200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})

    async with FakeEngine(handler, MODELS) as engine, Upstream(engine.url, key="", tokens="vllm", version="v1") as u:
        one = await ask(u, hi(temperature=0.5))
        assert one.message["content"] == "OK"
        assert (list(one.completion_ids), list(one.logprobs)) == ([79, 75, END], [-0.5] * 3)
        assert (one.versions[0].version, one.versions[0].end, one.finish_reason) == ("v1", 3, "stop")
        two = await ask(u, second(hi(), one.message))
        # The template would write the answer in small letters.
        assert list(two.prompt_ids) == [*one.prompt_ids, 79, 75, END, NEWLINE, BEGIN, *b"more", END, NEWLINE, BEGIN]
        generated = [a.body for a in engine.asked if a.path == "/inference/v1/generate"]
        assert generated[1]["token_ids"] == list(two.prompt_ids)
        assert generated[1]["sampling_params"]["max_tokens"] == 40 - len(two.prompt_ids)
        edited = await ask(u, second(hi(), {"role": "assistant", "content": "ok"}, 3))
        assert list(edited.prompt_ids) == template.render(second(hi(), {"content": "ok"}).messages, [], True)


async def test_vllm_with_a_template_that_leaves_earlier_thinking_out() -> None:
    def render(messages: Sequence[Mapping[str, Any]], answer: bool) -> list[int]:
        last = max(i for i, m in enumerate(messages) if m["role"] == "user")
        return Letters().render(
            [{**m, "content": (m.get("reasoning_content") or "") * (i > last) + m["content"]} for i, m in enumerate(messages)],
            [], answer,
        )  # fmt: skip

    async def handler(asked: Asked) -> Answer:
        body = asked.body
        if asked.path == "/v1/chat/completions/render":
            ids = render(body["messages"], body.get("add_generation_prompt", True))
            return 200, json.dumps({"token_ids": ids, "sampling_params": {}, "model": "served"})
        if asked.path == "/inference/v1/generate":
            logprobs = {"content": [{"token_id": i, "logprob": -0.5} for i in (104, 79, END)]}
            choice = {"token_ids": [104, 79, END], "logprobs": logprobs, "finish_reason": "stop", "stop_reason": None}
            return 200, json.dumps({"request_id": "x", "choices": [choice]})
        message = {"role": "assistant", "content": "O", "reasoning_content": "h"}
        return 200, json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})

    async with FakeEngine(handler, MODELS) as engine, Upstream(engine.url, key="", tokens="vllm") as u:
        one = await ask(u, hi())
        for answer in (one.message, {"role": "assistant", "content": "O"}):  # an agent may leave the thinking out
            two = await ask(u, second(hi(), answer))
            assert list(two.prompt_ids) == [
                *one.prompt_ids,
                104,
                79,
                END,
                NEWLINE,
                BEGIN,
                *b"more",
                END,
                NEWLINE,
                BEGIN,
            ]


async def test_sglang_generates_with_a_template() -> None:
    async def handler(asked: Asked) -> Answer:
        assert asked.path == "/generate"
        meta = {
            "finish_reason": {"type": "stop", "matched": END},
            "output_token_logprobs": [[-0.5, 79, None], [-1.5, END, None]],
            "weight_version": "7",
        }
        return 200, json.dumps({"text": "O", "meta_info": meta})

    async with (
        FakeEngine(handler, MODELS) as engine,
        Upstream(engine.url, key="", tokens="sglang", template=Letters(), max_tokens=20) as u,
    ):
        one = await ask(u, hi(temperature=0.5, seed=3, tool_choice="auto", max_tokens=5))
        body = engine.asked[-1].body
        assert body["input_ids"] == list(one.prompt_ids) == Letters().render([{"content": "hi"}], [], True)
        assert body["sampling_params"] == {"max_new_tokens": 5, "temperature": 0.5, "sampling_seed": 3}
        assert body["return_logprob"] is True
        assert one.edits == ["tool_choice"]
        assert json.loads(one.sampling) == {"max_tokens": 5, "temperature": 0.5, "seed": 3}
        assert (list(one.completion_ids), list(one.logprobs)) == ([79, END], [-0.5, -1.5])
        assert (one.message["content"], one.finish_reason, one.versions[0].version) == ("O", "stop", "7")
        two = await ask(u, second(hi(), one.message))
        assert list(two.prompt_ids)[:8] == [*one.prompt_ids, 79, END]
        with pytest.raises(FaultError) as e:
            await ask(u, hi_of(50))
        assert (e.value.fault.code, e.value.fault.status) == ("context_length_exceeded", 400)


def hi_of(length: int) -> Call:
    call = a_call("x" * length)
    call._parsed = [None]
    return call


async def test_an_answer_of_sglang_without_ids() -> None:
    async def handler(asked: Asked) -> Answer:
        return 200, '{"text":"x","meta_info":{"finish_reason":{"type":"stop"}}}'

    async with (
        FakeEngine(handler, MODELS) as engine,
        Upstream(engine.url, key="", tokens="sglang", template=Letters()) as u,
    ):
        with pytest.raises(FaultError, match="meta_info") as e:
            await ask(u, hi())
        assert e.value.fault.code == "bad_answer"


def test_turns_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_KEPT", 40)
    kept, answer = turns.Turns(), {"role": "assistant", "content": "OK"}
    one, other = hi(), hi()
    other.key = Key("alpha-2", 1, 1)
    kept.add(one, answer, array("i", [BEGIN] * 6))
    assert kept.before(second(one, answer)) is not None
    assert kept.before(second(hi(), {**answer, "content": "ok"})) is None
    kept.add(other, answer, array("i", [BEGIN] * 6))
    assert kept.before(second(one, answer)) is None
    for _ in range(20):
        kept.add(other, answer, array("i", [BEGIN] * 6))
    assert kept._kept == 4 * 6 * turns.MOST_TURNS


def test_settings_of_tokens_are_checked() -> None:
    with pytest.raises(InvalidError, match="tokens"):
        Upstream("http://host", key="", tokens="other")
    with pytest.raises(InvalidError, match="template"):
        Upstream("http://host", key="", tokens="sglang")
    with pytest.raises(InvalidError, match="template"):
        Upstream("http://host", key="", template=Letters())
