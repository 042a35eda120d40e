"""The handle on the sandbox of a rollout that the trainer verifies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nats.aio.msg import Msg

from ..errors import CallOverError, InvalidError, NotSentError, UnreachableError
from ..schema import Entry, Exit, Fault, Operation, OperationResult, Verdict, Verification, codec
from ..wire import body as bodies
from ..wire import names
from ..wire.link import Link
from ..wire.objects import Objects
from .kept_answer import Answer
from .open_calls import FaultError

REPEAT_AFTER = 10.0
"""Seconds without any answer after which an operation is requested again. A worker tells after 5 that it runs."""

MOST_DATA = 8 << 20
"""Bytes of a file, or of a command's input."""


@dataclass(slots=True)
class Output:
    """Output is the outcome of a command."""

    exit: Exit
    stdout: bytes
    stderr: bytes
    truncated: bool
    """One of them had more than 1 MiB."""


@dataclass(slots=True, eq=False)
class Handle:
    """Handle acts in the sandbox of a rollout. Its methods run one after the other, and wait for a worker that is away.

    They raise CallOverError after the end of the verification, FileNotFoundError for a missing file or program, and
    FaultError with the worker's fault for any other failure in the sandbox.
    """

    verification: Verification
    key: names.Key
    _answer: Answer
    _run: Callable[[Operation], Awaitable[OperationResult]]
    _finish: Callable[[Answer, Verdict | Fault], None]
    trace: Mapping[str, str] = field(default_factory=dict)
    """As that of a Call."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def rollout(self) -> str:
        return self.key.rollout

    @property
    def wanted(self) -> bool:
        """Whether the verdict is still wanted."""
        return self._answer.wanted

    async def exec(
        self,
        args: Sequence[str] = (),
        *,
        run: str = "",
        env: dict[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        stdin: bytes = b"",
        timeout: float = 0,
    ) -> Output:
        """Run a command to its end. One that fails, or exceeds its time, is no error: see Output.exit.

        Args:
            args: The argv, without a shell.
            run: Text for /bin/sh -c, in place of args.
            env: Variables, added to those of verify.env.
            cwd: Its directory. Default: the working directory of the sandbox.
            user: Its user. Default: verify.user.
            stdin: Its input, at most 8 MiB.
            timeout: Seconds. 0: to the end of the verification.
        """
        result = await self._operate(
            Operation(do="exec", args=list(args), run=run, env=env or {}, path=cwd, user=user, data=stdin,
                      timeout_ms=round(timeout * 1000))
        )  # fmt: skip
        return Output(result.exit or Exit(), result.stdout, result.stderr, result.truncated)

    async def read(self, path: str) -> bytes:
        """Return a file of at most 8 MiB."""
        return (await self._operate(Operation(do="read", path=path))).data

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str = "") -> None:
        """Create or replace a file, with its missing parents."""
        await self._operate(Operation(do="write", path=path, data=data, mode=mode, user=user))

    async def list(self, folder: str = "") -> Sequence[Entry]:
        """Return the files of a folder by name, at most 10,000. Default: the working directory."""
        return (await self._operate(Operation(do="list", path=folder))).files

    async def verdict(self, verdict: Verdict) -> None:
        """End the verification. For a handle that Client.handle returned.

        Raises:
            CallOverError: The verdict is not wanted any more.
            InvalidError: It has a wrong field. Nothing was sent.
        """
        if verdict.rewards and verdict.reward is None:
            raise InvalidError("reward", None, "want a number, since there are rewards")
        self._finish(self._answer, verdict)

    async def fault(self, fault: Fault) -> None:
        """End the verification without a reward. After a retryable status (425, 429, 5xx) the worker asks again."""
        fault.status = fault.status or 422
        self._finish(self._answer, fault)

    async def _operate(self, operation: Operation) -> OperationResult:
        if len(operation.data) > MOST_DATA:
            raise InvalidError("data", f"{len(operation.data)} bytes", f"at most {MOST_DATA} bytes")
        async with self._turn:
            return await self._run(operation)


def error_of(fault: Fault) -> Exception:
    """Return the error of an operation that failed."""
    if fault.code == "over":
        return CallOverError(fault.message)
    if fault.status == 404:
        return FileNotFoundError(fault.message)
    return FaultError(fault)


@dataclass(slots=True, eq=False)
class Operations:
    """Operations asks the worker of a verification for one operation after the other."""

    _answer: Answer
    _link: Link
    _objects: Objects
    _number: int = 0

    async def run(self, operation: Operation) -> OperationResult:
        body = bodies.compress(codec.encode(operation))
        if len(body.data) > self._link.max_payload - 4096:
            body = await bodies.claim(body, self._objects, names.tasks_bucket(self._trainer))
        self._number += 1
        headers = {"Rl-Kind": "operation", "Rl-Gen": self._answer.gen, "Rl-Seq": str(self._number), **body.headers}
        while True:
            msg = await self._request(body.data, headers)
            kind = (msg.headers or {}).get("Rl-Kind", "") if msg is not None else ""
            if msg is not None and kind == "final":
                return await self._result(msg)
            if msg is not None and kind == "fault":
                raise error_of(codec.decode(Fault, msg.data))

    @property
    def _trainer(self) -> str:
        return names.trainer_of(self._answer.key.rollout)

    async def _request(self, data: bytes, headers: dict[str, str]) -> Msg | None:
        """Request an operation once; None if no answer came. It ends with the verification."""
        if not self._answer.wanted:
            raise CallOverError(f"verification {self._answer.key} has ended")
        asking = asyncio.ensure_future(self._link.request(self._answer.reply, data, headers, REPEAT_AFTER))
        over = asyncio.ensure_future(self._answer.over.wait())
        try:
            await asyncio.wait({asking, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            if not asking.done():
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError, UnreachableError):
                    await asking
        if asking.cancelled():
            raise CallOverError(f"verification {self._answer.key} has ended")
        try:
            return asking.result()
        except NotSentError:  # the worker or the server is away
            await asyncio.sleep(0.5)
        except UnreachableError:
            pass
        return None

    async def _result(self, msg: Msg) -> OperationResult:
        headers, data = msg.headers or {}, msg.data
        if bodies.is_claim(headers):
            data = await bodies.fetch(headers, self._objects, names.artifacts_bucket(self._trainer))
        return codec.decode(OperationResult, bodies.decompress(headers, data))
