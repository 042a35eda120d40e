"""TRL's AsyncGRPOTrainer on a CPU: its worker protocol with a real worker, and its harness worker's loop."""

from __future__ import annotations

import asyncio
import functools
import types
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted

from conftest import Server
from turngate import Call, Reply, Result, Row, Rows, Span, Task, VersionSpan
from turngate.client.sync import SyncClient

pytest.importorskip("trl", reason="SKIPPED: trl is not installed; make adapters installs it")

import endings
import tiny
import torch
from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_rollout_worker, packing
from trl.experimental.async_grpo.openenv_harness import HarnessRolloutWorker

from turngate.adapters.openenv import TurngateSessionFactory
from turngate.adapters.rollouts import Episode
from turngate.adapters.trl_async import RolloutWorker, _samples
from turngate.trajectory.ending import TRUNCATED


class Scripted:
    """A policy with the version that the trainer has set."""

    version = "0"

    async def __call__(self, call: Call) -> Reply:
        reply = await scripted.solve(call)
        for span in reply.versions:
            span.version = self.version
        return reply


class NoTransfer:
    """The trainer's model is nobody else's."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...
    def send_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for _ in weights:
            pass


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_q: torch.Tensor, ends_k: torch.Tensor,
    *_: int, softmax_scale: float, causal: bool, **__: object,
) -> torch.Tensor:  # fmt: skip
    """The attention of segments, for which TRL has a kernel for GPUs only."""
    assert causal
    out = []
    for q0, q1, k0, k1 in zip(ends_q[:-1], ends_q[1:], ends_k[:-1], ends_k[1:], strict=True):
        q, k, v = query[q0:q1].transpose(0, 1), key[k0:k1].transpose(0, 1), value[k0:k1].transpose(0, 1)
        seen = torch.ones(q.shape[1], k.shape[1]).tril(k.shape[1] - q.shape[1]).bool()
        one = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=softmax_scale)
        out.append(one.transpose(0, 1))
    return torch.cat(out)


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "none")
    monkeypatch.setattr(packing, "_flash_attn", lambda: types.SimpleNamespace(flash_attn_varlen_func=attention))


@pytest.fixture
def client(server: Server) -> Iterator[SyncClient]:
    with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        yield client


def kept(monkeypatch: pytest.MonkeyPatch, worker: Any) -> list[Any]:
    """Return the samples that a trainer takes from a worker, as it takes them."""
    samples: list[Any] = []
    take = worker.rollout_buffer.get

    def get(*args: Any, **more: Any) -> Any:
        samples.append(take(*args, **more))
        return samples[-1]

    monkeypatch.setattr(worker.rollout_buffer, "get", get)
    return samples


def trainer(tmp_path: Path, worker: Any, **more: Any) -> Any:
    tokenizer, path = tiny.tokenizer(), str(tmp_path / "model")
    tiny.model().save_pretrained(path)
    tokenizer.save_pretrained(path)
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[], save_strategy="no", logging_steps=1,
        per_device_train_batch_size=4, token_budget=0, disable_tqdm=True, **more,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": "good"}]}] * 8)
    return AsyncGRPOTrainer(
        model=path, reward_funcs=[], args=args, train_dataset=rows, processing_class=tokenizer, rollout_worker=worker,
        weight_transfer=NoTransfer(),
    )  # fmt: skip


def test_a_trainer_with_a_worker(
    client: SyncClient, tasks: Path, tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = RolloutWorker(
        client, [tasks / "hello"], Task.load, Scripted(), num_generations=4, groups=2, sandbox="local"
    )
    trained = trainer(tmp_path, worker, num_generations=4, max_steps=3)
    samples = kept(monkeypatch, worker)
    trained.train()
    logged = [entry for entry in trained.state.log_history if "reward" in entry]
    assert len(logged) == 3
    assert all(entry["reward"] == pytest.approx(0.5) for entry in logged)
    first = samples[0]
    assert first.input_ids.tolist() == scripted.IDS
    assert first.completion_mask.tolist() == scripted.MASK
    assert first.old_log_probs.tolist() == scripted.LOGPROBS
    assert [m["role"] for m in first.completion] == ["assistant", "tool", "assistant"]
    assert {round(s.advantage) for s in samples} == {1, -1}
    assert all(abs(s.advantage) == pytest.approx(1.0) for s in samples)
    assert {s.group_id for s in samples} >= {0, 1}
    assert worker._policy.version == str(trained.model_version)  # type: ignore[union-attr]
    assert max(s.model_version for s in samples) <= trained.model_version
    assert {result.status for result in client.results()} <= {"done", "cancelled"}  # stop cancelled the running ones


def test_the_harness_worker_with_sessions_of_openenv(
    server: Server, tasks: Path, tmp_path: Path, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_rollout_worker, "is_vllm_available", lambda: True)  # the policy needs none
    factory = functools.partial(
        TurngateSessionFactory, server.url, server.creds("trainer-alpha"), "alpha", task=scripted.of_prompt,
        policy=scripted.alternating, sandbox="local",
    )  # fmt: skip
    tokenizer = tiny.tokenizer()
    tokenizer.response_schema = {"type": "object", "properties": {"content": {"type": "string"}}}
    worker = HarnessRolloutWorker(
        harness_session_factory=factory, model_name="tiny", reward_funcs=[], processing_class=tokenizer, eos_token_ids=[1],
        dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": str(tasks / "hello")}]}] * 4),
        num_generations=2, max_inflight_tasks=2,
    )  # fmt: skip
    trained = trainer(tmp_path, worker, num_generations=2, max_steps=1)
    samples = kept(monkeypatch, worker)
    trained.train()
    assert trained.state.log_history[0]["rewards/harness_reward"] == pytest.approx(0.5)
    assert samples[0].input_ids.tolist() == scripted.IDS
    assert samples[0].completion_mask.tolist() == scripted.MASK
    assert samples[0].old_log_probs.tolist() == scripted.LOGPROBS
    assert {round(s.advantage, 3) for s in samples} == {1.0, -1.0}
    assert worker._process is None  # it has ended


def test_samples_of_rollouts_without_a_reward_are_left_out(client: SyncClient, tasks: Path) -> None:
    def task(_: Any) -> Any:
        request = Task.load(tasks / "hello").request_for("mini", "local")
        request.verify = None
        return request

    worker = RolloutWorker(client, [0], task, Scripted(), num_generations=2, groups=1)
    worker.start()
    metrics = worker.metrics_queue.get(timeout=60)
    worker.check_health(60)
    worker.stop()
    assert metrics["rollout/unknown_rewards"] == (2, 2)
    assert metrics["completions/clipped_ratio"] == (0, 2)
    assert metrics["rollout/ended_stop"] == (2, 2)
    assert worker.rollout_buffer.empty()


@pytest.mark.parametrize("way", endings.WAYS)
def test_the_metrics_of_a_group_have_the_ends_of_its_rollouts(client: SyncClient, tasks: Path, way: str) -> None:
    worker = RolloutWorker(
        client,
        [tasks / "hello"],
        lambda path: endings.task(path, way),
        endings.policy(way),
        num_generations=1,
        groups=1,
        sandbox="local",
    )
    worker.start()
    metrics = worker.metrics_queue.get(timeout=60)
    worker.stop()
    assert metrics["completions/clipped_ratio"] == (int(way in TRUNCATED), 1)
    assert [name for name in endings.WAYS if metrics[f"rollout/ended_{name}"] == (1, 1)] == [way]


class OneRow(Rows):
    def __init__(self, row: Row) -> None:
        super().__init__(None)
        self._row = row

    def __iter__(self) -> Iterator[Row]:
        yield self._row


def test_a_sample_has_the_number_of_its_oldest_version() -> None:
    spans = [VersionSpan(version="step-12", start=0, end=1), VersionSpan(version="step-7", start=1, end=2)]
    row = Row(
        input_ids=array("i", [1, 2, 3]), loss_mask=array("b", [0, 1, 1]), logprobs=array("f", [0, -1, -1]),
        versions=array("i", [-1, 0, 1]), calls=[Span(1, "agent", "g", 1, 3, True, "stop", spans)],
    )  # fmt: skip
    episode = Episode(Result(reward=1.0), OneRow(row), b"")
    [sample] = _samples(0, [episode], 13)
    assert sample.model_version == 7
    row.calls[0].versions = [VersionSpan(version="best", start=0, end=2)]
    [sample] = _samples(0, [episode], 13)
    assert sample.model_version == 13


def test_a_worker_that_cannot_run_rollouts_is_unhealthy(client: SyncClient, tmp_path: Path) -> None:
    worker = RolloutWorker(client, [tmp_path], Task.load, Scripted(), num_generations=2)
    worker.start()
    working = worker._working
    assert working is not None
    client._run(_ended(working))
    with pytest.raises(RuntimeError, match="not run"):
        worker.check_health(60)
    worker.stop()


async def _ended(working: Any) -> None:
    await asyncio.wait([working])
