"""A sandbox on a machine, and the commands in it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import math
import posixpath
import signal as signals
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ..errors import InvalidError, OperationError
from ..schema import Entry, Exit, codec
from ..serving.handle import Output
from . import operation as operations
from .box import Box
from .operation import EOF, OK, STARTED, STDERR, STDOUT, Operation, parsed

MOST_OUTPUT = 64 << 20
MOST_FILE = 64 << 20
MOST_LIST = 64 << 20

MOST_ENTRIES = 100_000
"""Files of a folder that the box lists."""

MOST_ENTRY = 4 << 10
"""Bytes of one of these, as JSON."""

_JSON, _UTF8 = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")

_FOLDER, _LINK = 1 << 31, 1 << 27
_OTHER = 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""Types of files, in the bits of Go's fs.FileMode."""


class Process:
    """Process is a command that runs. Iterate over it for its output: pairs of stdout or stderr, and bytes.

    Output that is not read stops the command after a while, as that of a pipe.
    """

    def __init__(self, in_box: Box, operation: Operation, job: int) -> None:
        self._box, self._operation, self._job = in_box, operation, job
        self._exit: Exit | None = None
        self._reading = asyncio.Lock()

    @property
    def exit(self) -> Exit | None:
        """The end of the command; None while it runs, or has output that was not read."""
        return self._exit

    async def write(self, data: bytes) -> None:
        """Write to its stdin, and wait until most of it is on its way.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        await self._send(data)

    async def close_stdin(self) -> None:
        """Close its stdin."""
        await self._send(None)

    async def _send(self, data: bytes | None) -> None:
        if self._exit is not None:
            return
        try:
            if data is None:
                await self._operation.send(EOF)
            else:
                await self._operation.send_bytes(data)
        except ConnectionError:
            if self._exit is None:
                raise await self._box.lost() from None

    def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        return self._output()

    async def _output(self) -> AsyncIterator[tuple[str, bytes]]:
        while True:
            part = await self._next()
            if part is None:
                return
            yield part

    async def _next(self) -> tuple[str, bytes] | None:
        async with self._reading:
            while self._exit is None:
                try:
                    kind, payload = await self._operation.next()
                    end = _exit_of(payload) if kind == OK else None
                except ConnectionError:
                    raise await self._box.lost() from None
                if kind == STDOUT:
                    return "stdout", payload
                if kind == STDERR:
                    return "stderr", payload
                if end is not None:
                    self._exit = end
                    await self._operation.close()
            return None

    async def wait(self, timeout: float | None = None) -> Exit:
        """Return the end of the command. Output that nothing reads is dropped.

        Raises:
            TimeoutError: It still runs after that many seconds. It runs on.
            SandboxLostError: The sandbox is gone.
        """
        try:
            await asyncio.wait_for(self._drain(), timeout)
        except asyncio.TimeoutError:  # before Python 3.11 another one
            raise TimeoutError(f"the command still runs after {timeout:g} s") from None
        assert self._exit is not None
        return self._exit

    async def _drain(self) -> None:
        while await self._next() is not None:
            pass

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Send a signal to the command's process group; SIGKILL goes to all processes that it started."""
        if self._exit is None:
            await self._box.call("signal", {"job": self._job, "signal": int(signal)})

    async def close(self) -> None:
        """Kill the command if it runs."""
        await self._operation.close()


class Sandbox:
    """Sandbox is a sandbox on a machine, until close. Its paths are absolute, or in the workspace.

    Its methods raise SandboxLostError when it is gone, FileNotFoundError for a missing file or program, and
    OperationError for any other failure in it.
    """

    def __init__(self, in_box: Box, workdir: str) -> None:
        self._box = in_box
        self.workdir = workdir
        """The workspace, which is the working directory."""

    async def exec(
        self,
        args: Sequence[str] = (),
        *,
        run: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        stdin: bytes = b"",
        timeout: float = 0,
        most: int = MOST_OUTPUT,
    ) -> Output:
        """Run a command to its end. One that fails, or exceeds its time, is no error: see Output.exit.

        Args:
            args: The argv, without a shell.
            run: Text for /bin/sh -c, in place of args.
            env: Variables, added to those of the sandbox.
            cwd: Its directory. Default: the workspace.
            user: Its user. Default: the owner of the workspace, who is root in the sandbox.
            stdin: Its input.
            timeout: Seconds, after which it is killed. 0: until the end of the sandbox.
            most: Bytes of stdout and of stderr that are kept, of each.
        """
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        async with self.start(args, run=run, env=env, cwd=cwd, user=user, timeout=timeout, most=most) as process:
            feeding = asyncio.ensure_future(_feed(process, stdin))
            within = timeout + operations.ANSWER_WITHIN if timeout else None
            try:
                await asyncio.wait_for(_keep(process, kept, most), within)
            except asyncio.TimeoutError:
                raise operations.no_answer("exec") from None
            finally:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            end = process.exit
        assert end is not None
        out, err = bytes(kept["stdout"]), bytes(kept["stderr"])
        return Output(end, out, err, end.stdout_bytes > len(out) or end.stderr_bytes > len(err))

    @contextlib.asynccontextmanager
    async def start(
        self,
        args: Sequence[str] = (),
        *,
        run: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        timeout: float = 0,
        most: int = 1 << 62,
    ) -> AsyncIterator[Process]:
        """Start a command, which is killed at the end of the block. The arguments are those of exec."""
        process = await self.begin(args, run=run, env=env, cwd=cwd, user=user, timeout=timeout, most=most)
        try:
            yield process
        finally:
            await process.close()

    async def begin(
        self,
        args: Sequence[str] = (),
        *,
        run: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        timeout: float = 0,
        most: int = 1 << 62,
    ) -> Process:
        """Start a command, which runs until it ends, or Process.close. The arguments are those of exec."""
        if bool(args) == bool(run):
            raise InvalidError("args", list(args), "want args or run")
        operation = await self._box.begin("exec", {
            "args": list(args) or ["/bin/sh", "-c", run],
            "env": [f"{name}={value}" for name, value in sorted((env or {}).items())],
            "path": self._at(cwd) if cwd else "", "user": user, "timeout_ms": math.ceil(timeout * 1000), "limit": most,
        })  # fmt: skip
        try:
            kind, payload = await operation.answer()
            if kind != STARTED:
                raise ConnectionError(f"the box answers with a frame of the kind {kind!r}")
            return Process(self._box, operation, _job_of(payload))
        except ConnectionError:
            await operation.close()
            raise await self._box.lost() from None
        except BaseException:
            await operation.close()
            raise

    async def read(self, path: str, most: int = MOST_FILE) -> bytes:
        """Return a file of at most so many bytes."""
        return (await self._box.call("read", {"path": self._at(path), "limit": most}, most=most))[1]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str = "") -> None:
        """Create or replace a file in one step, with its missing parents."""
        await self._box.call("write", {"path": self._at(path), "mode": mode, "owner": user}, data)

    async def exists(self, path: str) -> bool:
        """Return whether there is a file, a folder or a link of this path."""
        try:
            await self._box.call("stat", {"path": self._at(path)})
        except FileNotFoundError:
            return False
        return True

    async def list(self, folder: str = "") -> list[Entry]:
        """Return the files of a folder by name, at most 100,000. Default: the workspace."""
        data = (await self._box.call("list", {"path": self._at(folder)}, most=MOST_LIST))[1]
        try:
            return entries(data)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            raise OperationError("list", "other", "the box's answer cannot be read") from None

    async def mkdir(self, folder: str, *, mode: int = 0o755, user: str = "") -> None:
        """Make a folder with its missing parents. One that exists stays as it is."""
        await self._box.call("mkdir", {"path": self._at(folder), "mode": mode, "owner": user})

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it. A missing one is no error."""
        await self._box.call("remove", {"path": self._at(path)})

    async def forward(self, inside: int, host: str, port: int) -> None:
        """Carry connections to a port of 127.0.0.1 in the sandbox to a host and port, as seen from this process.

        Programs in the sandbox then reach that port, such as a model's server, and nothing else. It ends with the
        sandbox; at most 16 ports lead out.
        """
        await self._box.forward(inside, host, port)

    async def close(self) -> None:
        """End the sandbox with everything in it, and wait until the machine has removed it, 20 s at most."""
        await self._box.close()

    def _at(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self.workdir, path))


def _job_of(payload: bytes) -> int:
    try:
        return int(parsed(payload)["job"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConnectionError("the number of a command cannot be read") from None


def _exit_of(payload: bytes) -> Exit:
    try:
        return codec.from_json(Exit, parsed(payload))
    except (InvalidError, AttributeError):
        raise ConnectionError("the exit of a command cannot be read") from None


async def _keep(process: Process, kept: Mapping[str, bytearray], most: int) -> None:
    async for name, data in process:
        kept[name] += data[: most - len(kept[name])]  # a hostile machine may send more


async def _feed(process: Process, stdin: bytes) -> None:
    await process.write(stdin)
    await process.close_stdin()


def entries(data: bytes) -> list[Entry]:
    """Return the files of the box's list. One is decoded at a time, since a hostile box decides on their form.

    Raises:
        ValueError, KeyError, TypeError, OverflowError, RecursionError: It is no list of at most MOST_ENTRIES files.
    """
    files: list[Entry] = []
    data = data.strip()
    if data in (b"null", b"[]"):
        return files
    at = 0
    while data[at : at + 1] == (b"," if files else b"["):
        if len(files) == MOST_ENTRIES:
            raise ValueError("too many files")
        text = _UTF8().decode(data[at + 1 : at + 1 + MOST_ENTRY])  # without a character that is cut
        file, end = _JSON.raw_decode(text)
        files.append(entry(file))
        at += 1 + len(text[:end].encode())
    if data[at:] != b"]":
        raise ValueError("no list")
    return files


def entry(file: dict[str, Any]) -> Entry:
    """Return a file of the box's list."""
    mode = int(file["mode"])
    kind = "folder" if mode & _FOLDER else "link" if mode & _LINK else "other" if mode & _OTHER else "file"
    return Entry(name=str(file["name"]), kind=kind, size=int(file["size"]), mode=mode & 0o777)
