"""A sandbox and an agent for Harbor's own command, which needs no Docker Compose with them.

Usage: PYTHONPATH=DIR harbor run --environment-import-path harbor_run:Container
--agent-import-path harbor_run:Scripted ...
"""

import asyncio
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.models.trajectories.agent import Agent
from harbor.models.trajectories.final_metrics import FinalMetrics
from harbor.models.trajectories.metrics import Metrics
from harbor.models.trajectories.observation import Observation
from harbor.models.trajectories.observation_result import ObservationResult
from harbor.models.trajectories.step import Step
from harbor.models.trajectories.tool_call import ToolCall
from harbor.models.trajectories.trajectory import Trajectory

IMAGE = "turngate-test-base:bookworm"


async def docker(*args, timeout=None):
    p = await asyncio.create_subprocess_exec(
        "docker", *args, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        out, err = await asyncio.wait_for(p.communicate(), timeout)
    except TimeoutError:
        p.kill()
        await p.wait()
        raise RuntimeError(f"no end after {timeout} s")
    return ExecResult(stdout=out.decode(errors="replace"), stderr=err.decode(errors="replace"), return_code=p.returncode)


async def must(*args):
    r = await docker(*args)
    if r.return_code != 0:
        raise RuntimeError(f"docker {args[0]}: {r.stderr}")
    return r.stdout.strip()


class Container(BaseEnvironment):
    """A container without a network, made with docker alone."""

    container = ""

    @staticmethod
    def type():
        return "container"

    @property
    def capabilities(self):
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self):
        pass

    async def start(self, force_build):
        self.container = await must("run", "-d", "--init", "--network", "none", "--workdir", "/app", IMAGE, "sleep", "600")
        await must("exec", self.container, "mkdir", "-p", "/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests", "/solution")

    async def stop(self, delete):
        if self.container:
            await docker("rm", "-f", "-v", self.container)

    async def upload_file(self, source_path, target_path):
        await must("exec", self.container, "mkdir", "-p", str(Path(target_path).parent))
        await must("cp", str(source_path), f"{self.container}:{target_path}")

    async def upload_dir(self, source_dir, target_dir):
        await must("exec", self.container, "mkdir", "-p", target_dir)
        await must("cp", f"{source_dir}/.", f"{self.container}:{target_dir}")

    async def download_file(self, source_path, target_path):
        await must("cp", f"{self.container}:{source_path}", str(target_path))

    async def download_dir(self, source_dir, target_dir):
        Path(target_dir).mkdir(parents=True, exist_ok=True)
        await must("cp", f"{self.container}:{source_dir}/.", str(target_dir))

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        args = ["exec"]
        for name, value in (env or {}).items():
            args += ["-e", f"{name}={value}"]
        if cwd:
            args += ["-w", cwd]
        if user is not None:
            args += ["-u", str(user)]
        return await docker(*args, self.container, "bash", "-c", command, timeout=timeout_sec)


class Scripted(BaseAgent):
    """Runs two commands, as a model would, and keeps the record with its tokens."""

    SUPPORTS_ATIF = True

    @staticmethod
    def name():
        return "scripted"

    def version(self):
        return "1.2.3"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        steps = [
            Step(step_id=1, source="system", message="You are careful."),
            Step(step_id=2, source="user", message=instruction),
        ]
        prompt = [1, 2, 3]
        for i, (why, command) in enumerate(
            [("I look first.", "pwd; ls"), ("I write the file.", "printf 'Hello, world!\\n' > hello.txt; mkdir -p /logs/artifacts; cp hello.txt /logs/artifacts/")]
        ):
            r = await environment.exec(command)
            steps.append(
                Step(
                    step_id=len(steps) + 1,
                    timestamp=f"2026-11-26T04:00:0{i}Z",
                    source="agent",
                    model_name=self.model_name,
                    message=f"Step {i + 1}",
                    reasoning_content=why,
                    tool_calls=[ToolCall(tool_call_id=f"t{i}", function_name="bash", arguments={"command": command})],
                    observation=Observation(results=[ObservationResult(source_call_id=f"t{i}", content=(r.stdout or "") + (r.stderr or ""))]),
                    metrics=Metrics(
                        prompt_tokens=len(prompt), completion_tokens=2, cost_usd=0.001,
                        prompt_token_ids=list(prompt), completion_token_ids=[10 + i, 20 + i], logprobs=[-0.5, -0.25],
                    ),
                )
            )
            prompt += [10 + i, 20 + i, 4]
        steps.append(
            Step(
                step_id=len(steps) + 1, source="agent", message="Done.",
                metrics=Metrics(prompt_tokens=len(prompt), completion_tokens=1, cost_usd=0.001, prompt_token_ids=list(prompt), completion_token_ids=[30], logprobs=[-1]),
            )
        )
        record = Trajectory(
            session_id="s", agent=Agent(name=self.name(), version=self.version(), model_name=self.model_name), steps=steps,
            final_metrics=FinalMetrics(total_steps=len(steps)),
        )
        (self.logs_dir / "trajectory.json").write_text(record.model_dump_json(exclude_none=True))
        used = [s.metrics for s in steps if s.metrics]
        context.n_input_tokens = sum(m.prompt_tokens for m in used)
        context.n_output_tokens = sum(m.completion_tokens for m in used)
        context.n_cache_tokens = 1
        context.cost_usd = sum(m.cost_usd for m in used)
