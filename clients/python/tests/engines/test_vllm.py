"""Upstream with a real vLLM, which `make engines` starts: TURNGATE_ENGINE is its URL.

The engine has a tiny model whose tokens are bytes and whose weights are random. TURNGATE_ENGINE_WEIGHTS is a folder
with other weights.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import pytest

from conftest import Server
from fake_worker import FakeWorker
from test_upstream import a_client, ask
from test_upstream_tokens import hi, second
from turngate import Call, FaultError, Reply
from turngate.upstream import Upstream

ENGINE, WEIGHTS = os.environ.get("TURNGATE_ENGINE", ""), os.environ.get("TURNGATE_ENGINE_WEIGHTS", "")
END = 258
"""The token that ends an answer. The random model seldom gives it by itself."""

pytestmark = [
    pytest.mark.skipif(not ENGINE, reason="SKIPPED: TURNGATE_ENGINE does not name an engine; make engines starts one"),
    pytest.mark.timeout(600),
]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=ENGINE, timeout=300) as client:
        yield client


async def scored(http: httpx.AsyncClient, reply: Reply) -> list[float]:
    """Return the engine's log-probs of an answer's tokens as a part of a prompt."""
    ids = [*reply.prompt_ids, *reply.completion_ids]
    body = {"model": "tiny", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
    answer = (await http.post("/v1/completions", json=body)).raise_for_status().json()
    each = answer["choices"][0]["prompt_logprobs"][len(reply.prompt_ids) :]
    return [entry[str(i)]["logprob"] for entry, i in zip(each, reply.completion_ids, strict=True)]


def furthest(a: Sequence[float], b: Sequence[float]) -> float:
    assert len(a) == len(b) > 0
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("tokens", ["", "vllm"])
async def test_ids_and_logprobs_are_the_engines_own(http: httpx.AsyncClient, tokens: str) -> None:
    said: list[bytes] = []

    async def keep(response: httpx.Response) -> None:
        said.append(await response.aread())

    async with (
        httpx.AsyncClient(timeout=300, event_hooks={"response": [keep]}) as watched,
        Upstream(ENGINE, key="", version="step-1", tokens=tokens, http=watched) as upstream,
    ):
        reply = await ask(upstream, hi(seed=7, max_tokens=40, temperature=1))
    answers = [json.loads(body) for body in said]
    (choice,) = [a["choices"][0] for a in answers if "choices" in a and a["choices"][0].get("token_ids")][:1]
    assert list(reply.completion_ids) == choice["token_ids"]
    assert list(reply.logprobs) == [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert reply.edits == []
    assert len(reply.completion_ids) == reply.usage.completion_tokens > 1
    assert furthest(await scored(http, reply), reply.logprobs) < 1e-3


async def test_both_ways_give_the_same_answer() -> None:
    async with Upstream(ENGINE, key="") as chat, Upstream(ENGINE, key="", tokens="vllm") as tokens:
        one, two = [await ask(u, hi(seed=7, max_tokens=40, top_logprobs=2)) for u in (chat, tokens)]
        assert list(one.prompt_ids) == list(two.prompt_ids)
        assert list(one.completion_ids) == list(two.completion_ids)
        assert furthest(one.logprobs, two.logprobs) < 1e-4
        assert one.message["content"] == two.message["content"]
        assert one.finish_reason == two.finish_reason == "length"
        for bad in ({"top_p": 1.5}, {"temperature": "hot"}, {"max_tokens": 0}):
            faults = []
            for u in (chat, tokens):
                with pytest.raises(FaultError) as e:
                    await ask(u, hi(**bad))
                faults.append((e.value.fault.status, bool(e.value.fault.agent_message)))
            assert faults == [(400, True)] * 2


async def test_a_prompt_begins_with_the_ids_of_the_answer_before() -> None:
    params: dict[str, Any] = {"seed": 7, "max_tokens": 200, "logit_bias": {str(END): 3}}
    async with Upstream(ENGINE, key="", tokens="vllm") as tokens, Upstream(ENGINE, key="") as chat:
        one = await ask(tokens, hi(**params))
        assert one.finish_reason == "stop"
        assert one.completion_ids[-1] == END
        assert "\ufffd" in one.message["content"]  # bytes that are no text, which a template cannot write again
        two = await ask(tokens, second(hi(**params), one.message))
        before = [*one.prompt_ids, *one.completion_ids]
        assert list(two.prompt_ids)[: len(before)] == before
        again = await ask(chat, second(hi(**params), one.message))
        assert list(again.prompt_ids)[: len(before)] != before


async def load(http: httpx.AsyncClient, folder: str) -> None:
    body = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
    (await http.post("/collective_rpc", json=body)).raise_for_status()
    (await http.post("/reset_prefix_cache")).raise_for_status()


@pytest.mark.parametrize("tokens", ["", "vllm"])
async def test_new_weights_between_hold_and_resume(http: httpx.AsyncClient, server: Server, tokens: str) -> None:
    old = (await http.get("/v1/models")).json()["data"][0]["root"]
    user = [{"role": "user", "content": "hi"}]
    params = {"seed": b"7", "max_tokens": b"40"}
    seen: list[str] = []
    async with (
        Upstream(ENGINE, key="", version="step-1", tokens=tokens) as upstream,
        a_client(server) as client,
        FakeWorker(server.url, server.creds("admin")) as worker,
    ):

        async def handler(call: Call) -> Reply:
            seen.append(call.rollout)
            return await upstream.answer(call)

        client.serve(handler)
        try:
            asked = [await worker.ask(worker.rollout(), 1, user, params=params) for _ in range(4)]
            first = (await asked[0].final(300)) if asked else None
            assert first is not None
            assert furthest(await scored(http, first), first.logprobs) < 1e-3
            async with upstream.hold(client, version="step-2"):
                others = [await a.final(300) for a in asked[1:]]  # the hold awaited them
                held = await worker.ask(worker.rollout(), 1, user, params=params)
                await held.frame("accept")
                await load(http, WEIGHTS)
                assert len(seen) == 4
            second_reply = await held.final(300)
            assert {o.versions[0].version for o in [first, *others]} == {"step-1"}
            assert second_reply.versions[0].version == "step-2"
            assert furthest(await scored(http, second_reply), second_reply.logprobs) < 1e-3
            assert furthest(await scored(http, first), first.logprobs) > 1e-2
        finally:
            await load(http, old)
    assert len(seen) == 5
