"""An agent of verifiers with turngate's harness: its model, its trace, turngate's sandbox and verifier."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import endings
import pytest
import scripted

from conftest import Server

pytest.importorskip("verifiers", reason="SKIPPED: verifiers is not installed; .ci/run and make adapters install it")

from aiohttp import web
from verifiers.v1.agent import Agent, AgentConfig
from verifiers.v1.clients import EvalClientConfig
from verifiers.v1.runtimes import SubprocessConfig
from verifiers.v1.task import Task as VerifiersTask
from verifiers.v1.task import TaskData

from turngate.adapters.verifiers import TurngateConfig, TurngateHarness


class HarborData(TaskData):
    directory: str = ""
    way: str = "stop"


class HarborTask(VerifiersTask[HarborData]):
    pass


class OfDirectory(TurngateHarness):
    def task(self, data: TaskData) -> Any:
        return endings.task(Path(data.directory), data.way) if isinstance(data, HarborData) else super().task(data)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> str:
    """The user's module that exports the harness."""
    module = ModuleType("harbor_harness")
    module.__dict__.update(OfDirectory=OfDirectory, __all__=["OfDirectory"])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.fixture
async def engine() -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """An engine with OpenAI's API that solves the hello task."""
    asked: list[dict[str, Any]] = []
    over = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body)
        done, way = body["messages"][-1]["role"] == "tool", request.match_info.get("way")
        if done and way in ("context", "agent"):
            text = endings.TOO_LONG if way == "context" else "top_p must be above 0"
            return web.json_response({"error": {"message": text, "type": "BadRequestError"}}, status=400)
        if done and way == "timeout":
            await over.wait()
        message = {"role": "assistant", "content": "Done."} if done else scripted.act("Hello, world!")
        end = "stop" if done else "length" if way == "length" else "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": end}
        usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
        return web.json_response({"id": "1", "object": "chat.completion", "created": 1, "model": "m",
                                  "choices": [choice], "usage": usage})  # fmt: skip

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    app.router.add_post("/{way}/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", asked
    over.set()
    await runner.cleanup()


def agent_of(server: Server, module: str, url: str) -> Agent:
    return Agent(AgentConfig(
        harness={"id": module, "url": server.url, "creds": server.creds("trainer-alpha"), "trainer": "alpha", "sandbox": "local"},
        runtime=SubprocessConfig(), model="m", client=EvalClientConfig(base_url=url, api_key_var="NONE"),
    ))  # fmt: skip


@pytest.fixture
async def agent(server: Server, module: str, engine: tuple[str, Any]) -> AsyncIterator[Agent]:
    agent = agent_of(server, module, f"{engine[0]}/v1")
    yield agent
    await agent.harness.aclose()


async def test_a_rollout_is_a_trace(agent: Agent, tasks: Path, engine: tuple[str, list[dict[str, Any]]]) -> None:
    assert isinstance(agent.harness.config, TurngateConfig)
    trace = await agent.run(HarborTask(HarborData(idx=0, prompt="hello", directory=str(tasks / "hello"))))
    assert trace.ok, trace.errors
    assert trace.reward == 1.0
    assert trace.rewards["turngate"].score == 1.0
    assert trace.num_turns == 2
    assert trace.usage.prompt_tokens == 18
    assert trace.stop_condition == "agent_completed"
    assert trace.info["turngate"]["status"] == "done"
    roles = [node.message.role for node in trace.nodes]
    assert roles[-3:] == ["assistant", "tool", "assistant"]
    assert all("stream" not in body and body["model"] == "m" for body in engine[1])
    json.dumps(trace.model_dump(mode="json"))


CONDITIONS = {
    "stop": "agent_completed", "length": "max_output_tokens", "context": "max_total_tokens", "cap": "max_turns",
    "timeout": "agent_timeout", "agent": "provider_error", "fault": "sandbox_error",
}  # fmt: skip


@pytest.mark.parametrize("way", endings.WAYS)
async def test_a_trace_has_the_condition_of_its_end(
    server: Server, module: str, engine: tuple[str, Any], tasks: Path, way: str
) -> None:
    agent = agent_of(server, module, f"{engine[0]}/{way}/v1")
    row = HarborData(idx=0, prompt="hello", directory=str(tasks / "hello"), way=way)
    trace = await agent.run(HarborTask(row))
    await agent.harness.aclose()
    assert trace.stop_condition == CONDITIONS[way], trace.errors
    assert trace.info["turngate"]["ended"] == way
    assert trace.ok == (way not in ("agent", "fault")), trace.errors
    assert trace.is_truncated == (way in ("length", "context", "cap"))
    assert trace.is_timeout == (way == "timeout")
    assert way in ("timeout", "agent") or trace.reward == (0.0 if way == "fault" else 1.0)
    if way == "context":
        assert len(engine[1]) == 2  # the refused call is not sent again


async def test_a_limit_of_verifiers_ends_the_agent(agent: Agent, tasks: Path) -> None:
    agent.limits = dataclasses.replace(agent.limits, max_turns=1)
    trace = await agent.run(HarborTask(HarborData(idx=0, prompt="hello", directory=str(tasks / "hello"))))
    assert trace.stop_condition == "max_turns", trace.errors
    assert trace.num_turns == 1
    assert trace.reward == 1.0  # the file was written in the first turn


async def test_a_row_with_only_a_prompt(agent: Agent) -> None:
    trace = await agent.run(VerifiersTask(TaskData(idx=3, prompt="Say hello.", system_prompt="Be brief.")))
    assert trace.ok, trace.errors
    assert trace.rewards == {}  # nothing verified it
    said = [(node.message.role, node.message.content) for node in trace.nodes[:2]]
    assert said[0][0] == "system"
    assert "Be brief." in str(said[0][1])
    assert said[1] == ("user", "Say hello.")


async def test_a_sandbox_that_is_missing_is_an_error_of_the_sandbox(agent: Agent, tasks: Path) -> None:
    directory = str(tasks / "broken-setup")
    trace = await agent.run(HarborTask(HarborData(idx=0, prompt="hello", directory=directory)))
    assert not trace.ok
    assert trace.rewards == {}
    assert "setup" in str(trace.errors[-1].message)
