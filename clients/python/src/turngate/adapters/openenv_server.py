"""A server of OpenEnv whose tool run_rollout runs one rollout: pip install 'turngate[openenv]'.

It is called as OpenEnv's environment for OpenCode is, and takes the name of the agent, too:

    uvicorn.run(create_app(Settings(url, creds, "local")), port=8000)

    with MCPToolClient("http://127.0.0.1:8000").sync() as env:
        env.reset()
        env.call_tool("run_rollout", instruction="…", setup=["…"], verify=["…"], agent="opencode",
                      base_url="http://127.0.0.1:8001/v1", model="policy")
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
import uuid
from dataclasses import dataclass
from typing import Any, cast

from fastapi import FastAPI
from fastmcp import FastMCP
from openenv.core.env_server import create_app as openenv_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State

from .. import schema
from ..client.sync import SyncClient
from ..errors import InvalidError
from ..schema import Command, Request, Result
from ..upstream import Upstream
from .openenv import training_trace
from .rollouts import Episode, Rollouts, answered

ROLLOUT_WITHIN = 3600.0
"""Seconds for a call of run_rollout unless the caller names another number."""

_TAIL = 2000

_MARK = "turngate: verify"
"""It begins the line that the verifier writes after each command, with the command's number and its seconds."""


@dataclass(slots=True)
class Settings:
    """Settings of the server."""

    url: str = "nats://127.0.0.1:4222"
    creds: str | None = None
    """A .creds file, or a file with an nkey seed."""
    name: str = "local"
    """Name of the trainer."""
    agent: str = "opencode"
    """The agent where the caller names none."""
    sandbox: str = "docker"
    image: str = ""
    """Image of the sandbox where the caller names none."""
    sessions: int = 256
    """Largest number of sessions at once, each of which may run one rollout."""


class Server:
    """Server has the connection of all sessions, which the first rollout opens."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._opening = threading.Lock()
        self._opened: tuple[SyncClient, Rollouts] | None = None

    async def run(self, request: Request, upstream: Upstream) -> Episode:
        """Run a rollout to its end. If this is cancelled, the rollout is cancelled."""
        client, rollouts = await asyncio.to_thread(self._open)

        async def work() -> Episode:
            async with upstream:
                return await rollouts.run(request, upstream)

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), client._thread.loop))

    def _open(self) -> tuple[SyncClient, Rollouts]:
        with self._opening:
            if self._opened is None:
                client = SyncClient.connect(self.settings.url, self.settings.creds, self.settings.name)
                self._opened = client, Rollouts(client.client, lambda request: request)
            return self._opened

    def close(self) -> None:
        """Close the connection."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            client, rollouts = opened
            client._run(rollouts.close())
            client.close()


class TurngateEnvironment(MCPEnvironment):
    """TurngateEnvironment is a session: reset begins an episode, and each rollout is a step."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, server: Server) -> None:
        self._server = server
        self._state = State(episode_id=str(uuid.uuid4()))
        mcp = FastMCP("turngate_env")
        mcp.tool(self.run_rollout, name="run_rollout")
        super().__init__(mcp)

    async def run_rollout(
        self,
        instruction: str,
        setup: list[str] | None = None,
        verify: list[str] | None = None,
        agent: str = "",
        base_url: str = "",
        api_key: str = "",
        model: str = "",
        endpoint: str = "",
        task_id: str = "",
        mode: str = "transparent_proxy",
        disable_thinking: bool | None = None,
        max_tokens_cap: int = 4096,
        top_logprobs: int = 0,
        agent_timeout_s: float = 600.0,
        template: str = "",
    ) -> str:
        """Run an agent on an instruction and return a JSON RolloutResult, as OpenEnv's environment for OpenCode does.

        The reward is the share of the verify commands that succeed, or the number that one of them writes to
        /logs/verifier/reward.txt. template is the image of the sandbox. Calls are always captured, in every mode.
        """
        if endpoint:
            raise InvalidError("endpoint", endpoint, "want base_url and model instead")
        s = self._server.settings
        checks = verify or []
        request = Request()
        request.task = schema.Task(name=task_id or "rollout", instruction=instruction)
        request.agent = schema.AgentChoice(name=agent or s.agent)
        request.sandbox = schema.SandboxChoice(backend=s.sandbox, image=template or s.image)
        request.limits.agent_ms = int(agent_timeout_s * 1000)
        request.setup = [Command(run=_bash(command)) for command in setup or []]
        if checks:
            request.verify = schema.Verify(run=_script(checks))
        upstream = Upstream(
            base_url, key=api_key, model=model, max_tokens=max_tokens_cap, top_logprobs=top_logprobs,
            no_thinking=bool(disable_thinking),
        )  # fmt: skip
        episode = await self._server.run(request, upstream)
        self._state.step_count += 1
        return json.dumps(_result(episode, task_id, mode, setup or [], checks))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Observation:
        """Begin an episode. A sandbox is made for each rollout."""
        self._state = State(episode_id=episode_id or str(uuid.uuid4()))
        return Observation(done=False, reward=None, metadata={"status": "ready", "tool": "run_rollout"})

    def step(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        """Call a tool."""
        return super().step(action, timeout_s=timeout_s or ROLLOUT_WITHIN, **more)

    async def step_async(self, action: Action, timeout_s: float | None = None, **more: Any) -> Observation:
        """Call a tool."""
        return await super().step_async(action, timeout_s=timeout_s or ROLLOUT_WITHIN, **more)

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        text = f"{type(action).__name__}: want a CallToolAction of run_rollout"
        return Observation(done=False, reward=None, metadata={"error": text})

    @property
    def state(self) -> State:
        """The episode and the number of its rollouts."""
        return self._state


def create_app(settings: Settings | Server) -> FastAPI:
    """Return the server as an ASGI app. Give it a Server to close its connection yourself."""
    server = settings if isinstance(settings, Server) else Server(settings)
    app = openenv_app(
        lambda: TurngateEnvironment(server), CallToolAction, CallToolObservation, env_name="turngate_env",
        max_concurrent_envs=server.settings.sessions,
    )  # fmt: skip
    return cast(FastAPI, app)


def _bash(command: str) -> str:
    """Return a command for /bin/sh that is run by bash where it is installed."""
    return f'exec "$(command -v bash || echo sh)" -c {shlex.quote(command)}'


def _script(commands: list[str]) -> str:
    """Return a verifier that runs commands and writes their exit statuses, and the reward, to reward.json."""
    lines = ["passed=0 all="]
    for i, command in enumerate(commands):
        lines += [
            "began=$(date +%s)",
            f"({_bash(command)}) 2>&1; code=$?",
            f"printf '\\n{_MARK} %d %d\\n' {i} $(($(date +%s) - began))",
            f'all="$all, \\"verify_{i}\\": $code"; if [ $code -eq 0 ]; then passed=$((passed + 1)); fi',
        ]
    lines += [
        f"share=$((passed * 1000000000 / {len(commands)}))",
        "reward=$(printf '%d.%09d' $((share / 1000000000)) $((share % 1000000000)))",
        "if [ -s /logs/verifier/reward.txt ]; then reward=$(cat /logs/verifier/reward.txt); fi",
        'echo "{\\"reward\\": $reward$all}" >/logs/verifier/reward.json',
    ]
    return "\n".join(lines)


def _result(episode: Episode, task_id: str, mode: str, setup: list[str], verify: list[str]) -> dict[str, Any]:
    result = episode.result
    phases = {p.name: p for p in result.phases}
    lines = {str(line.call): line for line, _ in answered(episode.recording)}
    turns = [
        {
            "turn": number,
            "latency_s": lines[turn.node_id].ms / 1000,
            "timestamp": lines[turn.node_id].at / 1000,
            "upstream_status": 200,
            "finish_reason": turn.response["choices"][0]["finish_reason"],
            "prompt_token_ids": turn.prompt_token_ids,
            "completion_token_ids": turn.completion_token_ids,
            "per_token_logps": turn.per_token_logps,
            "loss_mask": turn.loss_mask,
        }
        for number, turn in enumerate(training_trace(episode).turns, 1)
    ]
    setups = [
        {"cmd": command, "exit_code": p.exit.code, "stdout": p.output, "duration_s": p.ms / 1000}
        for i, command in enumerate(setup)
        if (p := phases.get(f"setup[{i}]")) is not None and p.exit is not None
    ]
    outputs = _outputs(phases["verify"].output if "verify" in phases else "")
    checks = [
        {"cmd": command, "exit_code": int(result.rewards[f"verify_{i}"]), **outputs.get(i, {})}
        for i, command in enumerate(verify)
        if f"verify_{i}" in result.rewards
    ]
    return {
        "task_id": task_id,
        "sandbox_id": result.id,
        "reward": result.reward,
        "agent_exit_code": result.exit.code if result.exit is not None else None,
        "wall_s": _wall(result),
        "mode": mode,
        "setup_results": setups,
        "verify_results": checks,
        "proxy_turns": turns,
        "agent_log_tail": phases["agent"].output[-_TAIL:] if "agent" in phases else "",
        "error": f"{result.fault.code}: {result.fault.message}" if result.fault is not None else None,
    }


def _outputs(output: str) -> dict[int, dict[str, Any]]:
    """Return the output of each verify command, both streams together, and its duration in whole seconds.

    The first ones may be missing, since the end of a long output is kept.
    """
    parts = re.split(rf"\n{_MARK} (\d+) (\d+)\n", output)
    ended = zip(parts[::3], parts[1::3], parts[2::3], strict=False)
    return {int(i): {"stdout": text, "duration_s": float(seconds)} for text, i, seconds in ended}


def _wall(result: Result) -> float:
    starts = [p.start for p in result.phases if p.start]
    ends = [p.start + p.ms for p in result.phases if p.start]
    return (max(ends) - min(starts)) / 1000 if starts else 0.0
