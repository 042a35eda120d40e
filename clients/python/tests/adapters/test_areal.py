"""AReaL's workflow with a real worker; AReaL itself is a recorded signature."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import recorded
from recorded import GOOD
from test_slime import read

from conftest import Server
from turngate import Task

torch = pytest.importorskip("torch", reason="SKIPPED: torch is not installed; make adapters installs it")


class Hyperparameters:
    def new(self, **more: Any) -> Hyperparameters:
        assert more == {"n_samples": 1}
        return self


class Engine:
    def __init__(self) -> None:
        self.asked: list[recorded.ModelRequest] = []

    async def agenerate(self, req: recorded.ModelRequest) -> recorded.ModelResponse:
        self.asked.append(req)
        n = len(self.asked)
        return recorded.ModelResponse(req.input_ids, [GOOD, GOOD], [-0.5, -0.25], [n, n + 1], "stop")


@pytest.fixture
async def workflow(server: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    recorded.areal(monkeypatch)
    adapter = importlib.import_module("turngate.adapters.areal")
    workflow = adapter.TurngateWorkflow(
        Hyperparameters(), recorded.Words(), lambda row: Task.load(row["task"]), url=server.url,
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
