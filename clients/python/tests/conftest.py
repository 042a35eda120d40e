"""A NATS server and a worker of the turngate binary that TURNGATE names."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

TRAINERS = ("alpha", "other", "asked")
"""The fake worker asks the last one, which has no rollouts: no call of a rollout comes between its calls."""


@dataclass
class Server:
    """Server is a NATS server with a worker, in processes of their own."""

    binary: str
    state: Path
    port: int
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def creds(self, role: str) -> str:
        return str(self.state / "nats" / "creds" / f"{role}.nk")

    def start(self) -> None:
        """Start both, and wait until they are ready."""
        try:
            self._run("nats", "--state", str(self.state / "nats"), "--port", str(self.port), "--relaxed-sync",
                      "--trainers", ",".join(TRAINERS), ready="nats://")  # fmt: skip
            if not Path(self.creds("worker-w1")).exists():
                add = ["worker", "add", "w1", "--nats", self.url, "--keys", str(self.state / "nats" / "creds")]
                subprocess.run([self.binary, *add], check=True, capture_output=True)
            self._run("worker", "--state", str(self.state / "worker"), "--nats", self.url, "--creds",
                      self.creds("worker-w1"), "--sandboxes", "local", "--slots", "4", "--grace", "1s",
                      "--trainer-bundle-mb", "256", "--trainer-artifact-mb", "256", ready="ready")  # fmt: skip
        except BaseException:
            self.stop()
            raise

    def _run(self, *args: str, ready: str) -> None:
        env = {**os.environ, "TURNGATE_RUNS": str(self.state / "runs")}
        process = subprocess.Popen(
            [self.binary, *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        )
        self.processes.append(process)
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            pytest.fail(f"turngate {args[0]} ended: {''.join(said)}")
        drain(process.stdout)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        self.processes.clear()

    def wipe(self) -> None:
        """Delete everything that the stopped server stored, but the credentials."""
        shutil.rmtree(self.state / "nats" / "nats")


def drain(output: IO[str]) -> None:
    """Read the rest of a process's output, which would block the process when its pipe is full."""

    def read() -> None:
        with output:
            for _ in output:
                pass

    threading.Thread(target=read, daemon=True).start()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def turngate_binary() -> str:
    binary = os.environ.get("TURNGATE")
    if not binary:
        pytest.skip("SKIPPED: TURNGATE does not name the turngate binary (go build -o bin/turngate ./cmd/turngate)")
    return binary


def new_server(state: Path) -> Server:
    return Server(turngate_binary(), state, free_port())


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = new_server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server that a test may stop."""
    server = new_server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def binary() -> str:
    return turngate_binary()


@pytest.fixture(scope="session")
def tasks() -> Path:
    return Path(__file__).parents[3] / "examples" / "tasks"
