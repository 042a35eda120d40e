"""OpenEnv's sessions in sandboxes on a machine."""

from __future__ import annotations

import socketserver
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from turngate import MachineError, SandboxLostError
from turngate.adapters.openenv_sandbox import MachineBackend, MachineJob, MachineSandbox
from workshop import MACHINE, workshop

pytest.importorskip("openenv", reason="SKIPPED: openenv is not installed; .ci/run and make adapters install it")

from openenv.core.harness import ResourceSession, ResourceSessionFactory, ToolResult, VerifyResult

HOME = "/home/user"
AGENT = (
    'exec 3<>/dev/tcp/127.0.0.1/18007; said=$(cat <&3); echo "$(cat instruction.txt) $MODEL $said" >answer.txt; exit 3'
)


class AgentSession(ResourceSession):
    """A session with an agent in a sandbox, as that of OpenEnv's opencode_env."""

    def __init__(self, sandbox: MachineSandbox, job: MachineJob) -> None:
        self.sandbox, self.job = sandbox, job

    def initial_messages(self) -> list[dict[str, Any]]:
        return []

    def list_tools(self) -> list[Any]:
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(error=name)

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> VerifyResult:
        answer = self.sandbox.exec(f"grep -c hello {HOME}/answer.txt")
        return VerifyResult(env_reward=float(answer.stdout), done=True)

    def close(self) -> None:
        self.job.kill()
        self.sandbox.kill()


class AgentFactory(ResourceSessionFactory[AgentSession]):
    def __init__(self, backend: MachineBackend) -> None:
        self._backend = backend

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> AgentSession:
        sandbox = self._backend.create(timeout_s=600, envs={"MODEL": "small"}, metadata={"episode_id": str(episode_id)})
        sandbox.write_text(f"{HOME}/instruction.txt", task)
        return AgentSession(sandbox, sandbox.start_bg(AGENT, cwd=HOME))


class Model(socketserver.BaseRequestHandler):
    """A server beside this process, which sends a word."""

    def handle(self) -> None:
        self.request.sendall(b"world")


@pytest.fixture(scope="module")
def backend(server: Server) -> Iterator[MachineBackend]:
    with socketserver.TCPServer(("127.0.0.1", 0), Model) as model:
        threading.Thread(target=model.serve_forever, daemon=True).start()
        address = "127.0.0.1", int(model.server_address[1])
        with (
            workshop(server),
            MachineBackend(MACHINE, server.url, server.creds("admin"), forward={18007: address}) as backend,
        ):
            yield backend
        model.shutdown()


def test_a_session(backend: MachineBackend) -> None:
    session = AgentFactory(backend).create("hello", episode_id=str(uuid.uuid4()))
    assert session.job.wait(100) == 3
    assert session.job.wait() == 3
    assert session.sandbox.read_text(f"{HOME}/answer.txt") == "hello small world\n"
    assert session.verify([]).env_reward == 1
    session.close()
    with pytest.raises(SandboxLostError):
        session.sandbox.exists(HOME)


def test_the_methods_of_a_sandbox(backend: MachineBackend, tmp_path: Path) -> None:
    sandbox = backend.create()
    try:
        done = sandbox.exec("set -o pipefail; echo out; echo err >&2; false | true")
        assert (done.exit_code, done.stdout, done.stderr) == (1, "out\n", "err\n")
        with pytest.raises(TimeoutError):
            sandbox.exec("sleep 1000", timeout=0.2)
        sandbox.write_text("/tmp/a/b.txt", "ä\n")
        assert sandbox.read_text("/tmp/a/b.txt") == "ä\n"
        assert [sandbox.exists(path) for path in ("/tmp/a/b.txt", "/tmp/a", "/tmp/b")] == [True, True, False]
        with pytest.raises(FileNotFoundError):
            sandbox.read_text("/tmp/b")
        job = sandbox.start_bg("echo begun >/tmp/begun; yes")  # the output is dropped
        with pytest.raises(TimeoutError):
            job.wait(0.05)
        assert sandbox.exec(f"kill -0 {job.pid}").exit_code == 0
        job.kill()
        assert job.wait(100) == 137
        job.kill()
        left = sandbox.start_bg("sleep 1000")
    finally:
        sandbox.kill()
    with pytest.raises(SandboxLostError):
        left.wait(100)
    left.kill()


def test_a_machine_that_is_not_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate.machines.workspace.HERE_WITHIN", 0.05)
    with MachineBackend("other", server.url, server.creds("admin")) as backend, pytest.raises(MachineError):
        backend.create()
