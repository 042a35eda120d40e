"""AReaL's workflow with a real worker; AReaL itself is a recorded signature."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import endings
import pytest
import recorded
from recorded import GOOD
from test_slime import read

from conftest import Server

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed; make adapters installs it")


class Hyperparameters:
    max_tokens = 4096

    def new(self, **more: Any) -> Hyperparameters:
        assert more == {"n_samples": 1}
        return self


class Engine:
    def __init__(self) -> None:
        self.asked: list[recorded.ModelRequest] = []
        self.way = "stop"

    async def agenerate(self, req: recorded.ModelRequest) -> recorded.ModelResponse:
        self.asked.append(req)
        n = len(self.asked)
        if n > 1 and self.way in ("context", "agent"):
            raise endings.RefusedError(endings.TOO_LONG if self.way == "context" else "top_p must be above 0")
        if n > 1 and self.way == "timeout":
            await asyncio.Event().wait()
        end = "length" if n == 1 and self.way == "length" else "stop"
        return recorded.ModelResponse(req.input_ids, [GOOD, GOOD], [-0.5, -0.25], [n, n + 1], end)


@pytest.fixture
async def workflow(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    recorded.areal(monkeypatch)
    adapter = importlib.import_module("turngate.adapters.areal")
    workflow = adapter.TurngateWorkflow(
        Hyperparameters(), recorded.Words(), lambda row: endings.task(row["task"], row.get("way", "stop")), url=server.url,
        creds=server.creds("trainer-alpha"), name="alpha", parse=read, sandbox="local",
    )  # fmt: skip
    assert issubclass(adapter.TurngateWorkflow, recorded.RolloutWorkflow)
    yield workflow
    await workflow.aclose()


async def test_an_episode_is_a_rollout(workflow: Any, tasks: Path) -> None:
    engine = Engine()
    out = await workflow.arun_episode(engine, {"task": tasks / "hello"})
    assert set(out) == recorded.AREAL_COLUMNS
    # The template renders an answer of two tokens as one, so each answer has a row.
    assert len(engine.asked) == 2
    n = len(engine.asked[-1].input_ids) + 2
    assert all(out[name].shape == (2, n) for name in recorded.AREAL_COLUMNS - {"rewards"})
    assert out["rewards"].tolist() == [1.0, 1.0]
    for row, (request, versions) in enumerate(zip(engine.asked, ([1, 2], [2, 3]), strict=True)):
        prompt, end = len(request.input_ids), len(request.input_ids) + 2
        ids, mask = out["input_ids"][row], out["loss_mask"][row]
        assert ids[:prompt].tolist() == request.input_ids
        assert mask.tolist() == [0] * prompt + [1] * 2 + [0] * (n - end)
        assert out["logprobs"][row][mask == 0].abs().sum() == 0
        assert out["logprobs"][row][mask == 1].tolist() == [-0.5, -0.25]
        assert out["versions"][row][mask == 1].tolist() == versions
        assert set(out["versions"][row][:prompt].tolist()) == {-1}
        assert out["attention_mask"][row].tolist() == [True] * end + [False] * (n - end)
    assert out["attention_mask"].dtype is torch.bool


async def test_an_episode_without_a_reward_is_rejected(workflow: Any, tasks: Path) -> None:
    assert await workflow.arun_episode(Engine(), {"task": tasks / "broken-setup"}) is None


@pytest.mark.parametrize("way", endings.WAYS)
async def test_the_statistics_have_the_end_of_an_episode(workflow: Any, tasks: Path, way: str) -> None:
    engine = Engine()
    engine.way = way
    out = await workflow.arun_episode(engine, {"task": tasks / "hello", "way": way})
    assert way == "timeout" or (out is None) == (way == "fault")
    [kept] = recorded.SCALARS["rollout"].kept
    assert {name: kept[f"turngate/ended_{name}"] for name in endings.WAYS} == {n: float(n == way) for n in endings.WAYS}


async def test_a_prompt_beyond_the_context(workflow: Any, tasks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hyperparameters, "max_tokens", 4)
    engine = Engine()
    assert await workflow.arun_episode(engine, {"task": tasks / "hello"}) is None
    assert engine.asked == []
    [kept] = recorded.SCALARS["rollout"].kept
    assert kept["turngate/ended_context"] == 1
