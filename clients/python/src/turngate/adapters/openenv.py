"""Rollouts as sessions of OpenEnv, whose agents own their loops: pip install 'turngate[openenv]'.

TRL's HarnessRolloutWorker makes the factory in a process of its own, so all that it gets can be pickled:

    factory = functools.partial(
        TurngateSessionFactory, url, creds, "trainer", task=Task.load, agent="opencode",
        policy=functools.partial(Upstream, "http://127.0.0.1:8000"),
    )
    worker = HarnessRolloutWorker(harness_session_factory=factory, ...)
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast

from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, TrainingTrace, VerifyResult
from openenv.core.harness.training import TrainingTurn

from ..client.sync import SyncClient
from ..schema import Delta, Reply, TranscriptLine
from ..serving.call import Call
from ..serving.policy import Policy
from .rollouts import Episode, Rollouts, Running, ToTask, answered

_TRAINED = ("agent", "subagent")
_CANCELLED_WITHIN = 120.0


class TurngateSession(ResourceSession):
    """TurngateSession is one rollout: a TrainableSession and a LoopOwningSession of OpenEnv."""

    def __init__(self, client: SyncClient, running: Running) -> None:
        self._client = client
        self._running = running
        self._ended: Episode | None = None

    @property
    def episode(self) -> Episode:
        """The rollout, which must have ended.

        Raises:
            RuntimeError: It has not.
        """
        if self._ended is None:
            raise RuntimeError("the rollout has not ended: call wait_for_completion first")
        return self._ended

    def wait_for_completion(self, timeout_s: float | None = None) -> int:
        """Wait until the agent and the verifier have ended, and return the agent's exit code; 1 if it did not run.

        Raises:
            TimeoutError: The agent's time is over; its calls are kept. Or timeout_s is over: the rollout was cancelled,
                and has no calls.
        """
        late = False
        try:
            [self._ended] = self._client._run(self._running.episodes(), timeout_s)
        except TimeoutError:  # before Python 3.11, that of concurrent.futures is another one
            late = True
            self._client._run(self._running.cancel("its time is over"))
            [self._ended] = self._client._run(self._running.episodes(), _CANCELLED_WITHIN)
        end = self._ended.result.exit
        if late or (end is not None and end.timed_out):
            raise TimeoutError(f"the time of rollout {self._ended.result.id} is over")
        return end.code if end is not None else 1

    def fetch_training_trace(self) -> TrainingTrace:
        """Return the calls that reached the agent, but helpers' calls such as titles."""
        return training_trace(self.episode)

    def fetch_proxy_trace(self) -> list[dict[str, Any]]:
        """Return the calls as OpenEnv's trace entries."""
        return cast("list[dict[str, Any]]", self.fetch_training_trace().to_trace_entries())

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        """Return the reward of the task's own verifier; None if it is not known."""
        result = self.episode.result
        artifacts: dict[str, Any] = {"rollout": result.id, "status": result.status, "attempt": result.attempt}
        artifacts["ended"] = self.episode.ended
        if result.fault is not None:
            artifacts["fault"] = f"{result.fault.code}: {result.fault.message}"
        metrics = dict(result.rewards | result.metrics)
        return VerifyResult(env_reward=result.reward, done=True, metrics=metrics, artifacts=artifacts)

    def close(self) -> None:
        """Cancel the rollout if it still runs."""
        if self._ended is None:
            self._client._run(self._running.cancel("the session was closed"))

    def initial_messages(self) -> list[dict[str, Any]]:
        """Return nothing: the agent writes its own prompt."""
        return []

    def list_tools(self) -> list[Any]:
        """Return nothing: the agent has its own tools."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Fail: the agent has its own tools."""
        return ToolResult(error=f"{name}: the agent has its own tools")


class TurngateSessionFactory(ResourceSessionFactory[TurngateSession]):
    """TurngateSessionFactory starts a rollout for each session. It connects for the first one."""

    def __init__(
        self,
        url: str = "nats://127.0.0.1:4222",
        creds: str | None = None,
        name: str = "local",
        *,
        task: ToTask,
        policy: Callable[[], Policy] | None = None,
        sampling: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Prepare sessions.

        Args:
            url: URL of the NATS server.
            creds: A .creds file, or a file with an nkey seed.
            name: Name of the trainer, which is connected once.
            task: It returns the task of the task that create gets. With Task.load, these are paths.
            policy: It makes the policy that answers model calls, such as functools.partial(Upstream, url).
            sampling: Parameters of all model calls, in place of the agent's.
            options: agent, sandbox, image, labels, concurrency and max_lost of Rollouts.
        """
        self._server = (url, creds, name)
        self._task, self._policy, self._options = task, policy, options
        self._sampling = {name: json.dumps(value).encode() for name, value in (sampling or {}).items()}
        self._opening = threading.Lock()
        self._opened: tuple[SyncClient, Rollouts] | None = None

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> TurngateSession:
        """Start a rollout of a task.

        Raises:
            TaskError: The task is not valid.
            UnreachableError: The server or the first worker did not answer in time.
        """
        client, rollouts = self._open()
        return TurngateSession(client, client._run(rollouts.start(task)))

    def close(self) -> None:
        """Close the connection. A later session opens another one."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            client, rollouts = opened
            client._run(rollouts.close())
            client.close()

    def _open(self) -> tuple[SyncClient, Rollouts]:
        with self._opening:
            if self._opened is None:
                policy = self._policy() if self._policy is not None else None
                client = SyncClient.connect(*self._server)
                if policy is not None and self._sampling:
                    policy = _sampled(policy, self._sampling)
                self._opened = client, Rollouts(client.client, self._task, policy, **self._options)
            return self._opened


def _sampled(policy: Policy, sampling: Mapping[str, bytes]) -> Policy:
    def with_sampling(call: Call) -> Awaitable[Reply] | AsyncIterator[Delta | Reply] | Reply:
        call.raw_params = {**call.raw_params, **sampling}
        return policy(call)

    return with_sampling


def training_trace(episode: Episode) -> TrainingTrace:
    """Return a rollout as OpenEnv's trace: a turn for each call of the agent and its sub-agents that reached it.

    Calls that must not be trained on, see Rows.findings, have a mask of zeros; without ids they are left out.
    """
    trained = {c.call: c.trainable for c in episode.rows.calls if c.role in _TRAINED}
    turns = [
        _turn(line, messages, trained[line.call])
        for line, messages in answered(episode.recording)
        if line.call in trained
    ]
    return TrainingTrace(turns=[turn for turn in turns if turn is not None])


def _turn(line: TranscriptLine, messages: list[Any], trained: bool) -> TrainingTurn | None:
    reply = line.reply
    assert reply is not None
    prompt, ids = [int(i) for i in reply.prompt_ids], [int(i) for i in reply.completion_ids]
    if not prompt or len(reply.logprobs) != len(ids):
        return None
    choice = {"index": 0, "message": reply.message, "finish_reason": reply.finish_reason}
    return TrainingTurn(
        node_id=str(line.call),
        prompt_token_ids=prompt,
        completion_token_ids=ids,
        per_token_logps=[min(float(x), 0.0) for x in reply.logprobs],  # OpenEnv refuses rounding errors above 0
        loss_mask=[0] * len(prompt) + [int(trained)] * len(ids),
        request={"messages": messages},
        response={"choices": [choice]},
        metadata={"gen": line.gen, "versions": sorted({v.version for v in reply.versions})},
    )
