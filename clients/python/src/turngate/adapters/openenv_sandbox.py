"""Sandboxes for OpenEnv's session factories, such as that of its opencode_env, on a machine of the user's own.

    backend = MachineBackend("build1", url, "STATE/creds/admin.nk", forward={8000: ("127.0.0.1", 8000)})
    factory = OpenCodeSessionFactory(config=config, sandbox_backend=backend)

The classes have the methods of OpenEnv's SandboxBackend, SandboxHandle and BgJob, and need no package of OpenEnv. A
sandbox has no network but the ports of forward, such as that of a model's server. Its home folder and /tmp end with it;
/workspace is the machine's workspace, which stays and which all sandboxes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..client.client import URL
from ..errors import OperationError, SandboxLostError
from ..machines import Machines, Process, Sandbox
from ..schema import Exit
from ..wire.loop_thread import LoopThread

_SHELL = 'command -v bash >/dev/null && exec bash -c "$1"; exec sh -c "$1"'

_MOST_PID = 100
"""Bytes of a command's number."""


@dataclass
class Ran:
    """Ran is the outcome of a command, as OpenEnv's ExecResult."""

    exit_code: int
    stdout: str
    stderr: str


class MachineJob:
    """MachineJob is a command in the background, as OpenEnv's BgJob. Its output is dropped."""

    def __init__(self, thread: LoopThread, process: Process, pid: int) -> None:
        self._thread, self._process = thread, process
        self._ended: asyncio.Future[Exit] = thread.run(self._follow())
        self.pid = pid
        """Its number in the sandbox."""

    async def _follow(self) -> asyncio.Future[Exit]:
        following = asyncio.ensure_future(self._process.wait())
        following.add_done_callback(lambda f: f.cancelled() or f.exception())  # wait raises it, if it is called
        return following

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the command has ended, and return its exit code.

        Raises:
            TimeoutError: It still runs after that many seconds.
            SandboxLostError: The sandbox is gone.
        """
        self._thread.run(self._wait(timeout))
        if not self._ended.done():
            raise TimeoutError(f"the command still runs after {timeout:g} s")
        return self._ended.result().code

    async def _wait(self, timeout: float | None) -> None:
        await asyncio.wait({self._ended}, timeout=timeout)

    def kill(self) -> None:
        """Kill the command and its children."""
        with contextlib.suppress(SandboxLostError, OperationError):  # it has ended with its sandbox
            self._thread.run(self._process.kill())


class MachineSandbox:
    """MachineSandbox is a sandbox on a machine, as OpenEnv's SandboxHandle."""

    def __init__(self, thread: LoopThread, machine: str, sandbox: Sandbox) -> None:
        self._thread = thread
        self.raw = sandbox
        """The sandbox itself, which belongs to the backend's event loop."""
        self.sandbox_id = f"{machine}-{secrets.token_hex(4)}"

    def exec(
        self,
        cmd: str,
        *,
        envs: Mapping[str, str] | None = None,
        cwd: str | None = None,
        timeout: float | None = 60,
    ) -> Ran:
        """Run a command of a shell: bash if there is one.

        Raises:
            TimeoutError: It still ran after that many seconds, and was killed.
            SandboxLostError: The sandbox is gone.
        """
        done = self._thread.run(
            self.raw.exec(["sh", "-c", _SHELL, "sh", cmd], env=envs, cwd=cwd or "", timeout=timeout or 0)
        )
        if done.exit.timed_out:
            raise TimeoutError(f"the command still ran after {timeout:g} s")
        return Ran(done.exit.code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    def start_bg(self, cmd: str, *, envs: Mapping[str, str] | None = None, cwd: str | None = None) -> MachineJob:
        """Start a command of a shell in the background."""
        process, pid = self._thread.run(self._begin(cmd, envs, cwd or ""))
        return MachineJob(self._thread, process, pid)

    async def _begin(self, cmd: str, envs: Mapping[str, str] | None, cwd: str) -> tuple[Process, int]:
        process = await self.raw.begin(["sh", "-c", "echo $$; " + _SHELL, "sh", cmd], env=envs, cwd=cwd)
        try:
            await process.close_stdin()
            said = b""
            async for _, data in process:
                said += data
                if b"\n" in said or len(said) > _MOST_PID:
                    break
            return process, int(said.partition(b"\n")[0][:_MOST_PID])
        except ValueError:
            await process.close()
            raise OperationError("exec", "other", "the command did not start") from None
        except BaseException:
            await process.close()
            raise

    def write_text(self, path: str, content: str) -> None:
        """Write a file, with its missing folders."""
        self._thread.run(self.raw.write(path, content.encode()))

    def read_text(self, path: str) -> str:
        """Return a file as text.

        Raises:
            FileNotFoundError: It does not exist.
        """
        return self._thread.run(self.raw.read(path)).decode()

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or folder."""
        return self._thread.run(self.raw.exists(path))

    def kill(self) -> None:
        """End the sandbox with everything in it."""
        self._thread.run(self.raw.close())


class MachineBackend:
    """MachineBackend makes sandboxes in the workspace of a machine, as OpenEnv's SandboxBackend.

    It connects for the first one. Each takes a slot of the machine.
    """

    def __init__(
        self,
        machine: str,
        url: str = URL,
        creds: str | os.PathLike[str] | None = None,
        *,
        context: str = "",
        forward: Mapping[int, tuple[str, int]] | None = None,
    ) -> None:
        """Prepare sandboxes.

        Args:
            machine: Name of the machine, which is served with --workspace.
            url: URL of the NATS server.
            creds: The admin's credential.
            context: Name of a context, in place of both.
            forward: Ports of 127.0.0.1 in each sandbox, with the host and port to which they lead, as seen from this
                process: {8000: ("127.0.0.1", 8000)} for a model's server.
        """
        self._machine = machine
        self._server: tuple[str, str | os.PathLike[str] | None, str] = (url, creds, context)
        self._forward = dict(forward or {})
        self._opening = threading.Lock()
        self._opened: tuple[LoopThread, Machines] | None = None

    def create(
        self,
        *,
        timeout_s: int = 900,
        envs: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> MachineSandbox:
        """Make a sandbox, which ends after timeout_s seconds. metadata is not used.

        Raises:
            MachineError: The machine is offline, has no free slot, or another reason.
            UnreachableError: The server did not answer in time.
        """
        del metadata
        thread, machines = self._open()
        sandbox = thread.run(self._make(machines, envs, timeout_s))
        return MachineSandbox(thread, self._machine, sandbox)

    async def _make(self, machines: Machines, envs: Mapping[str, str] | None, life: float) -> Sandbox:
        sandbox = await machines[self._machine].open(env=envs, life=life)
        try:
            for inside, (host, port) in self._forward.items():
                await sandbox.forward(inside, host, port)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def close(self) -> None:
        """End all sandboxes, and the connection. A later sandbox opens another one."""
        with self._opening:
            opened, self._opened = self._opened, None
        if opened is not None:
            thread, machines = opened
            try:
                thread.run(machines.close())
            finally:
                thread.stop()

    def _open(self) -> tuple[LoopThread, Machines]:
        with self._opening:
            if self._opened is None:
                url, creds, context = self._server
                thread = LoopThread("turngate machines")
                try:
                    self._opened = thread, thread.run(Machines.connect(url, creds, context=context))
                except BaseException:
                    thread.stop()
                    raise
            return self._opened

    def __enter__(self) -> MachineBackend:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
