"""Calls that are put together from their base, asked for whole, or refused: the golden vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from conftest import Server
from fake_worker import TRAINER, FakeWorker, kind_of
from turngate import Call, Client, Reply
from turngate.schema.codec import raw_json
from turngate.wire import digest

VECTORS = Path(__file__).parents[3] / "schema" / "testdata" / "need_full.json"


def vectors() -> list[dict[str, Any]]:
    loaded = json.loads(VECTORS.read_text())
    assert isinstance(loaded, list)
    return loaded


def digest_of(messages: Sequence[Any], tools: Sequence[Any] | None, params: Mapping[str, Any]) -> str:
    hashes = [digest.hash_message(raw_json(m)) for m in messages]
    of_tools = digest.hash_tools(raw_json(tools) if tools else b"")
    return digest.digest(hashes, of_tools, digest.hash_params({k: raw_json(v) for k, v in params.items()})).hex()


def body_of(key: str, asked: dict[str, Any]) -> bytes:
    body: dict[str, Any] = {"v": 1, "key": key, "tag": "agent", "dialect": "chat"}
    body |= {name: asked[name] for name in ("base", "keep") if name in asked}
    body["messages"] = [raw_json(m) for m in asked["messages"]]
    if "tools" in asked:
        body["tools"] = raw_json(asked["tools"])
    if "params" in asked:
        body["params"] = {name: raw_json(value) for name, value in asked["params"].items()}
    if "digest" in asked:
        body["digest"] = bytes.fromhex(asked["digest"])
    return bytes(msgpack.packb(body))


@pytest.mark.parametrize("vector", vectors(), ids=lambda v: v["name"])
async def test_vector(server: Server, vector: dict[str, Any]) -> None:
    given: list[str] = []

    async def policy(call: Call) -> Reply:
        given.append(digest_of(call.messages, call.tools, call.params))
        return Reply(message={"role": "assistant", "content": "ok"}, finish_reason="stop")

    name = TRAINER
    async with (
        await Client.connect(server.url, server.creds(f"trainer-{name}"), name, answer_all=True) as client,
        FakeWorker(server.url, server.creds("admin")) as worker,
    ):
        client.serve(policy)
        rollout = worker.rollout()
        for asked in vector["calls"]:
            attempt, number, meant = asked["attempt"], asked["number"], asked["meant"]
            asking = await worker.send(
                rollout, number, body_of(f"{rollout}/{attempt}/{number}", asked), attempt=attempt
            )
            while (kind := kind_of(await asking.frame())) in ("accept", "beat"):
                pass
            assert kind == {"whole": "final"}.get(asked["answer"], asked["answer"]), number
            if kind == "final":
                want = digest_of(meant["messages"], meant.get("tools"), meant.get("params", {}))
                assert given.pop() == want, number
