"""verl's agent loop with a real worker; verl's servers are a stand-in with the signature of its client."""

from __future__ import annotations

import asyncio
import inspect
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import scripted

from conftest import Server
from turngate import Call, InvalidError, Request, Task, TaskError

pytest.importorskip("verl", reason="SKIPPED: verl is not installed; make adapters installs it")

import endings
import tiny
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from turngate.adapters.verl import TurngateAgentLoop

GOOD = 7


def read(text: str, call: Call) -> dict[str, Any]:
    if call.messages[-1]["role"] == "tool":
        return {"content": text}
    return {**scripted.act("Hello, world!"), "content": text}


class OfDirectory(TurngateAgentLoop):
    def parse(self, text: str, call: Call) -> dict[str, Any]:
        return read(text, call)

    def task(self, row: dict[str, Any]) -> Task | Request:
        return endings.task(Path(row["extra_info"]["task"]), row["extra_info"].get("way", "stop"))


class Servers:
    """It always writes the word good."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.way = "stop"

    async def generate(self, request_id: str, **named: Any) -> TokenOutput:
        inspect.signature(LLMServerClient.generate).bind(self, request_id, **named)
        self.asked.append({"request_id": request_id, **named})
        first = len(self.asked) == 1
        if self.way == "context" and not first:
            raise ValueError("Prompt length (30) exceeds the model's maximum context length (20).")
        if self.way == "agent" and not first:
            raise endings.RefusedError("top_p must be above 0")
        if self.way == "timeout" and not first:
            await asyncio.Event().wait()
        n = named["sampling_params"]["max_tokens"] if self.way == "length" and first else 1
        # verl's vLLM server calls an answer of the largest length completed, too.
        return TokenOutput(token_ids=[GOOD] * n, log_probs=[-0.5] * n, stop_reason="completed",
                           extra_fields={"global_steps": len(self.asked)})  # fmt: skip


def loop_of(servers: Servers, server: Server, creds: str, prompt: int = 2048, response: int = 64) -> OfDirectory:
    rollout = {"prompt_length": prompt, "response_length": response}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}})
    return OfDirectory(
        DictConfigWrap(config), servers, tiny.tokenizer(), None, object, DictConfigWrap(OmegaConf.create({})),
        url=server.url, creds=creds, name="alpha", sandbox="local",
    )  # fmt: skip


@pytest.fixture
async def made(server: Server) -> AsyncIterator[tuple[OfDirectory, Servers]]:
    servers = Servers()
    loop = loop_of(servers, server, server.creds("trainer-alpha"))
    yield loop, servers
    await loop.aclose()


async def test_a_loop_is_a_rollout(made: tuple[OfDirectory, Servers], tasks: Path) -> None:
    loop, servers = made
    sampling = {"temperature": 0.5, "max_tokens": 8}
    out = await loop.run(sampling, raw_prompt=[], extra_info={"task": str(tasks / "hello")})
    assert isinstance(out, AgentLoopOutput)
    first, second = servers.asked
    assert first["request_id"] == second["request_id"] == out.extra_fields["turngate_rollout"]
    assert first["sampling_params"] == sampling
    assert out.prompt_ids == first["prompt_ids"]
    assert out.prompt_ids + out.response_ids[:-1] == second["prompt_ids"]
    assert out.response_mask[0] == out.response_mask[-1] == 1
    assert sum(out.response_mask) == 2
    assert out.response_logprobs == [-0.5 * m for m in out.response_mask]
    assert out.reward_score == 1.0
    assert (out.extra_fields["min_global_steps"], out.extra_fields["max_global_steps"]) == (1, 2)
    assert out.as_dict()["rm_scores"][-1] == 1.0


async def test_a_prompt_longer_than_its_part(server: Server, tasks: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rest of the prompt is context of the response; an answer that does not fit is told."""
    row = {"raw_prompt": [], "extra_info": {"task": str(tasks / "hello")}}
    outs = []
    for response in (4096, 8):
        servers = Servers()
        loop = loop_of(servers, server, server.creds("trainer-alpha"), prompt=16, response=response)
        outs.append(await loop.run({"max_tokens": 8}, **row))
        await loop.aclose()
        assert outs[-1].prompt_ids == servers.asked[0]["prompt_ids"][:16]
        assert (outs[-1].prompt_ids + outs[-1].response_ids)[: 16 + 8] == servers.asked[0]["prompt_ids"][: 16 + 8]
    long, short = outs
    assert (long.extra_fields["turngate_ended"], short.extra_fields["turngate_ended"]) == ("stop", "length")
    assert (sum(long.response_mask), long.reward_score, long.extra_fields["turngate_left_out"]) == (2, 1.0, 0)
    assert (sum(short.response_mask), short.reward_score, short.extra_fields["turngate_left_out"]) == (0, None, 2)
    assert len(short.response_ids) == 8
    assert "2 of its 2 trained tokens are left out, beyond prompt_length 16 and response_length 8" in caplog.text


async def test_a_loop_without_a_row_trains_nothing(made: tuple[OfDirectory, Servers], tasks: Path) -> None:
    out = await made[0].run({}, raw_prompt=[], extra_info={"task": str(tasks / "broken-setup")})
    assert out.response_mask == [0]
    assert out.reward_score is None


@pytest.mark.parametrize("way", endings.WAYS)
async def test_a_row_has_the_reason_of_its_end(made: tuple[OfDirectory, Servers], tasks: Path, way: str) -> None:
    loop, servers = made
    servers.way = way
    info = {"task": str(tasks / "hello"), "way": way}
    out = await loop.run({"max_tokens": 4}, raw_prompt=[], extra_info=info)
    assert out.extra_fields["turngate_ended"] == way
    assert way == "timeout" or out.reward_score == (None if way == "fault" else 1.0)


async def test_the_largest_length_of_an_answer(made: tuple[OfDirectory, Servers]) -> None:
    loop, _ = made  # prompt_length 2048, response_length 64
    assert loop._bound({"max_tokens": 8}, [1] * 10) == 8
    assert loop._bound({}, [1] * 10) == 64
    assert loop._bound({}, [1] * 2100) == 12
    assert loop._bound({}, [1] * 3000) == 1


async def test_a_row_after_a_failed_connect_connects_again(server: Server, tmp_path: Path) -> None:
    creds = tmp_path / "alpha.nk"
    loop = loop_of(Servers(), server, str(creds))
    row = {"raw_prompt": [], "extra_info": {"task": str(tmp_path / "none")}}
    with pytest.raises(InvalidError, match="creds"):
        await loop.run({}, **row)
    shutil.copy(server.creds("trainer-alpha"), creds)
    with pytest.raises(TaskError):  # it is connected, and has no such task
        await loop.run({}, **row)
    await loop.aclose()
