"""Rollouts in TRL's AsyncGRPOTrainer: pip install 'turngate[trl]'.

with SyncClient.connect(url, creds, "local") as client:
    worker = RolloutWorker(client, prompts, Task.load, Upstream(engine), num_generations=8, agent="opencode")
    AsyncGRPOTrainer(model, rollout_worker=worker, ...).train()
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

from ..client.sync import SyncClient
from ..serving.policy import Policy
from ..trajectory.ending import ENDINGS, TRUNCATED
from ..wire.cancelling import cancelled
from ..wire.link import log
from .rollouts import Episode, Rollouts, ToTask

_BEAT_EVERY = 1.0
_TRY_EVERY = 0.1


class RolloutWorker:
    """RolloutWorker has TRL's RolloutWorkerProtocol: it runs groups of rollouts over and over while the trainer trains.

    A sample's advantage is its reward's distance from the mean of its group in standard deviations. Each row of a
    rollout is a sample with the rollout's advantage. Rollouts without a known reward give no samples. The metric
    completions/clipped_ratio counts the rollouts that were cut off, rollout/ended_… all by the reasons of their ends.
    """

    rollout_buffer: queue.Queue[RolloutSample]
    metrics_queue: queue.Queue[dict[str, Any]]

    def __init__(
        self,
        client: SyncClient,
        prompts: Sequence[Any],
        task: ToTask,
        policy: Policy | None = None,
        *,
        num_generations: int = 8,
        groups: int = 8,
        most_waiting: int = 1024,
        **options: Any,
    ) -> None:
        """Prepare rollouts; start starts them.

        Args:
            client: A connected client.
            prompts: They are used in this order, again and again.
            task: It returns the task of a prompt.
            policy: It answers model calls. Its attribute version, which Upstream has, becomes each new model version.
                Default: the client serves already.
            num_generations: Number of rollouts in a group.
            groups: Number of groups that run at once.
            most_waiting: Number of samples that wait for the trainer. When it is reached, no group starts.
            options: agent, sandbox, image, labels, concurrency and max_lost of Rollouts.
        """
        self._client = client
        self._prompts, self._policy = prompts, policy
        self._size, self._at_once = num_generations, groups
        self._rollouts = Rollouts(client.client, task, policy, **options)
        self.rollout_buffer = queue.Queue(most_waiting)
        self.metrics_queue = queue.Queue(4096)
        self._version = 0
        self._working: asyncio.Task[None] | None = None
        self._beaten = time.monotonic()

    def start(self) -> None:
        """Begin to run rollouts."""
        if self._working is not None:
            return

        async def begin() -> asyncio.Task[None]:
            return asyncio.ensure_future(self._work())

        self._working = self._client._run(begin())

    def stop(self) -> None:
        """Cancel the rollouts that run."""
        working, self._working = self._working, None
        if working is None:
            return

        async def end() -> None:
            await cancelled([working])
            await self._rollouts.close()

        self._client._run(end())

    def update_model_version(self, model_version: int) -> None:
        """Tell the version of the policy that answers from now on."""
        self._version = model_version
        if hasattr(self._policy, "version"):
            self._policy.version = str(model_version)  # type: ignore[union-attr]

    def check_health(self, stale_after_s: float) -> None:
        """Check that rollouts are run.

        Raises:
            RuntimeError: They are not: a task is not valid, the client is closed, or its event loop is blocked.
        """
        working = self._working
        if working is not None and working.done():
            raise RuntimeError("rollouts are not run any more") from (
                None if working.cancelled() else working.exception()
            )
        age = time.monotonic() - self._beaten
        if working is not None and age > stale_after_s:
            raise RuntimeError(f"the event loop of the client is blocked for {age:.0f} s")

    async def _work(self) -> None:
        self._beaten = time.monotonic()
        running: set[asyncio.Task[None]] = set()
        numbered = enumerate(itertools.cycle(self._prompts))
        try:
            while True:
                while len(running) < self._at_once and not self.rollout_buffer.full():
                    number, prompt = next(numbered)
                    running.add(asyncio.ensure_future(self._group(number, prompt)))
                wait = _BEAT_EVERY if len(running) == self._at_once else _TRY_EVERY
                if running:
                    done, _ = await asyncio.wait(running, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    for group in done:
                        group.result()
                    running -= done
                else:
                    await asyncio.sleep(wait)
                self._beaten = time.monotonic()
        finally:
            await cancelled(running)

    async def _group(self, number: int, prompt: Any) -> None:
        version, began = self._version, time.monotonic()
        episodes = await self._rollouts.group(prompt, self._size)
        for sample in await asyncio.to_thread(_samples, number, episodes, version):
            while True:
                sample.enqueued_at = time.time()
                try:
                    self.rollout_buffer.put_nowait(sample)
                    break
                except queue.Full:
                    await asyncio.sleep(_TRY_EVERY)
        unknown = sum(e.reward is None for e in episodes)
        cut = sum(e.ended in TRUNCATED for e in episodes)
        metrics = {
            "rollout/group_s": time.monotonic() - began,
            "rollout/unknown_rewards": (unknown, len(episodes)),
            "completions/clipped_ratio": (cut, len(episodes)),
            **{f"rollout/ended_{name}": (sum(e.ended == name for e in episodes), len(episodes)) for name in ENDINGS},
        }
        try:
            self.metrics_queue.put_nowait(metrics)
        except queue.Full:
            log.debug("metrics of a group are dropped: the trainer reads none")


def _samples(number: int, episodes: Iterable[Episode], version: int) -> list[RolloutSample]:
    scored = [(e, e.reward) for e in episodes if e.reward is not None]
    rewards = numpy.array([reward for _, reward in scored])
    mean, deviation = (float(rewards.mean()), float(rewards.std())) if scored else (0.0, 0.0)
    out = []
    for episode, reward in scored:
        messages = episode.messages
        begun = next((i for i, m in enumerate(messages) if m.get("role") == "assistant"), len(messages))
        for row in episode.rows:
            if 1 not in row.loss_mask:
                continue
            values = row.numpy()
            out.append(
                RolloutSample(
                    prompt=messages[:begun],
                    completion=messages[begun:],
                    input_ids=values["input_ids"],
                    completion_mask=values["loss_mask"].astype(numpy.int64),
                    old_log_probs=values["logprobs"],
                    advantage=(reward - mean) / (deviation + 1e-8),
                    model_version=version if row.oldest is None else row.oldest,
                    group_id=number,
                    metrics={"reward": reward, "reward_std": deviation, "rewards/turngate": reward},
                )
            )
    return out
