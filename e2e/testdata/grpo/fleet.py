"""turngate on this machine: a NATS server with a worker, and a second worker that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

TRAINER = "grpo"


class Fleet:
    """Fleet is the processes of turngate, each with a few slots."""

    def __init__(self, binary: str, state: Path, slots: int) -> None:
        self._binary = binary
        self._state = state
        self._slots = slots
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Future[bytes]] = []
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self._port = int(s.getsockname()[1])
        self.url = f"nats://127.0.0.1:{self._port}"
        self.creds = state / "up" / "creds" / f"trainer-{TRAINER}.nk"

    async def start(self) -> None:
        """Start NATS with a worker, and the worker `second`."""
        await self._run("up", "--state", str(self._state / "up"), "--port", str(self._port), "--relaxed-sync",
                        "--trainers", TRAINER, "--workers", "second")  # fmt: skip
        await self.start_second()

    async def start_second(self) -> None:
        """Start the second worker. After a kill it removes what its last life left."""
        await self._run("worker", "--state", str(self._state / "second"), "--nats", self.url,
                        "--creds", str(self._state / "up" / "creds" / "worker-second.nk"))  # fmt: skip

    async def _run(self, command: str, *more: str) -> None:
        """Start a process, and wait until it is ready."""
        process = await asyncio.create_subprocess_exec(
            self._binary, command, *more, "--slots", str(self._slots), "--sandboxes", "local", "--grace", "1s",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._processes.append(process)
        assert process.stdout is not None
        said = b""
        while b"ready" not in (line := await process.stdout.readline()):
            said += line
            if not line:
                raise RuntimeError(f"turngate {command} ended: {said.decode()}")
        # Its later lines are read, so that it never waits for a reader.
        self._readers.append(asyncio.ensure_future(process.stdout.read()))

    async def kill_second(self) -> None:
        """Kill the second worker as a lost machine would: it can do nothing about it."""
        process = self._processes.pop()
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async def stop(self) -> None:
        """End the processes, the last one first."""
        while self._processes:
            process = self._processes.pop()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await process.wait()


@contextlib.asynccontextmanager
async def fleet(binary: str, state: Path, slots: int) -> AsyncIterator[Fleet]:
    """Start turngate, and stop it at the end."""
    f = Fleet(binary, state, slots)
    try:
        await f.start()
        yield f
    finally:
        await f.stop()
