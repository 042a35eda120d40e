"""A harness for verifiers whose program is any agent of turngate: pip install 'turngate[verifiers]'.

verifiers loads a harness from a module of yours, which exports it:

    from turngate import Task
    from turngate.adapters.verifiers import TurngateHarness

    class Harness(TurngateHarness):
        def task(self, data):
            return Task.load(data.directory)

    __all__ = ["Harness"]
"""

from __future__ import annotations

from typing import Any

import httpx
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.errors import SandboxError
from verifiers.v1.harness import Harness
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace

from .. import schema
from ..client.client import Client
from ..schema import Fault, Reply, Request, Usage
from ..serving.call import Call
from ..serving.refusal import CONTEXT, fail, refused
from ..tasks.task import Task
from ..trajectory.ending import Ending
from .rollouts import Connection, ConnectionOptions, Episode

_STATUSES = (400, 409, 410, 413, 425, 429)
_STREAMING = ("stream", "stream_options")


class TurngateConfig(HarnessConfig):
    """TurngateConfig names the NATS server, the trainer, the agent and its sandbox."""

    url: str = "nats://127.0.0.1:4222"
    creds: str | None = None
    """A .creds file, or a file with an nkey seed."""
    trainer: str = "local"
    """Name of the trainer. Each process needs one of its own."""
    agent: str = "mini"
    sandbox: str = "docker"
    image: str = ""
    """Image of the sandbox instead of the task's own."""
    concurrency: int = 256
    """Largest number of model calls that are answered at once."""


class TurngateHarness(Harness[TurngateConfig]):
    """TurngateHarness runs a rollout for each launch. Its model calls go to verifiers' endpoint, which records them.

    The agent works in turngate's sandbox; the runtime of verifiers stays empty. The reward and the metrics of the
    task's own verifier become the trace's, with the name "turngate". A rollout that was cut off stops the trace with
    the name of verifiers' limit of the same kind, so that it is truncated.
    """

    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False

    def __init__(self, config: TurngateConfig) -> None:
        super().__init__(config)
        options = ConnectionOptions(
            url=config.url, creds=config.creds, name=config.trainer, agent=config.agent, sandbox=config.sandbox,
            image=config.image, concurrency=config.concurrency,
        )  # fmt: skip
        self._connection = Connection(self.task, options)

    def task(self, data: TaskData) -> Task | Request:
        """Return the task of a row. Override it for tasks with files; by default the row's prompt is all."""
        system, prompt = self.resolve_text_prompt(data)
        request = Request()
        request.task = schema.Task(name=data.name or data.id or f"task-{data.idx}", instruction=prompt or "")
        request.agent = schema.AgentChoice(name=self.config.agent, system_prompt=system or "")
        request.sandbox = schema.SandboxChoice(
            backend=self.config.sandbox, image=self.config.image or data.image or "", workdir=data.workdir or ""
        )
        return request

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
    ) -> ProgramResult:
        """Run a rollout to its end."""
        rollouts = await self._connection.rollouts()
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx.AsyncClient(base_url=endpoint, headers=headers, timeout=None) as http:

            async def policy(call: Call) -> Reply:
                return await _ask(http, ctx.model, call)

            episode = await rollouts.run(data, policy)
        return await self._ended(rollouts.client, trace, episode)

    async def aclose(self) -> None:
        """Close the connection. A later launch opens another one."""
        await self._connection.close()

    async def _ended(self, client: Client, trace: Trace, episode: Episode) -> ProgramResult:
        result, ended = episode.result, episode.ended
        trace.info["turngate"] = {
            "rollout": result.id, "attempt": result.attempt, "status": result.status, "worker": result.worker,
            "ended": ended,
        }  # fmt: skip
        if result.reward is not None:
            trace.record_reward("turngate", result.reward)
        trace.record_metrics({f"turngate/{name}": value for name, value in (result.rewards | result.metrics).items()})
        logs = {a.name: a for a in result.artifacts}
        out, err = [
            (await client.read_artifact(logs[name])).decode(errors="replace") if name in logs else ""
            for name in ("agent.stdout.log", "agent.stderr.log")
        ]
        fault = result.fault
        text = f"{fault.code}: {fault.message}" if fault is not None else result.status
        if ended == "fault":
            raise SandboxError(f"rollout {result.id}: {text}")
        _stop(trace, ended, fault)
        code = result.exit.code if result.exit is not None else 1
        if ended == "agent":
            code, err = code or 1, f"{err}\n{text}"
        return ProgramResult(code, out, err)


def _stop(trace: Trace, ended: Ending, fault: Fault | None) -> None:
    """Stop the trace of a rollout that was cut off, with the name of verifiers' limit of the same kind."""
    if trace.stop_condition is not None:  # a limit of verifiers itself ended the agent
        return
    if ended == "timeout":
        trace.record_timeout("agent")
    elif ended == "cap" and fault is not None and fault.code != "token_cap":
        trace.stop("max_turns")
    elif ended in ("cap", "length"):
        trace.stop("max_output_tokens")
    elif ended == "context":
        trace.stop("max_total_tokens")


async def _ask(http: httpx.AsyncClient, model: str, call: Call) -> Reply:
    body: dict[str, Any] = {name: value for name, value in call.params.items() if name not in _STREAMING}
    body |= {"model": model, "messages": list(call.messages)}
    if call.tools:
        body["tools"] = list(call.tools)
    try:
        answer = await http.post("/chat/completions", json=body)
    except httpx.HTTPError as e:
        raise fail(503, f"{type(e).__name__}: {e}") from e
    if answer.status_code != 200:
        no = refused(answer.status_code, answer.reason_phrase, answer.headers, answer.content)
        if no.fault.code != CONTEXT:  # verifiers relays refusals of its engine, which nobody mends while a call waits
            status = answer.status_code if answer.status_code in _STATUSES or answer.status_code >= 500 else 400
            no.fault = Fault(stage="call", code="refused", status=status, message=answer.text[:4096])
        raise no
    said = answer.json()
    choice, usage = said["choices"][0], said.get("usage") or {}
    message = {name: value for name, value in choice["message"].items() if value is not None or name == "content"}
    return Reply(
        message=message,
        finish_reason=choice.get("finish_reason") or "stop",
        usage=Usage(
            prompt_tokens=usage.get("prompt_tokens") or 0, completion_tokens=usage.get("completion_tokens") or 0
        ),
    )
