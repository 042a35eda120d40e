"""The workspace of a machine."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from ..errors import MachineError, ShapeError
from ..serving.handle import Output
from .box import Box
from .desktop import Desktop
from .fleet import Fleet
from .line import Line
from .message import plain
from .sandbox import MOST_OUTPUT, Process, Sandbox

CAPABILITY = "workspace"

HERE_WITHIN = 15.0
"""Seconds that a new sandbox waits for its machine, which announces itself every 2 s."""

OPEN_WITHIN = 60.0
"""Seconds that the machine may take for a new sandbox."""

DEFAULT_LIFE = 30 * 24 * 3600.0

_MARK, _READY = b"turngate-far ", b"ready"
_MOST_ANSWER = 1 << 20


class Workspace:
    """Workspace is the folder of a machine in which people with the admin's credential work."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self.name = name
        """The machine."""
        self.desktop = Desktop(name, fleet)
        """Its screen, pointer and keyboard, if its owner offers them."""
        self._fleet = fleet

    @contextlib.asynccontextmanager
    async def sandbox(
        self, *, env: Mapping[str, str] | None = None, user: str = "", life: float = DEFAULT_LIFE
    ) -> AsyncIterator[Sandbox]:
        """Make a sandbox for several commands, which ends with the block.

        Args:
            env: Variables of every command.
            user: User of commands without one. Default: the owner of the workspace, who is root in the sandbox.
            life: Seconds after which the sandbox ends in any case.

        Raises:
            MachineError: The machine is offline, has no workspace, takes no more work, or another reason.
        """
        sandbox = await self.open(env=env, user=user, life=life)
        try:
            yield sandbox
        finally:
            await sandbox.close()

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
        """Run a command to its end in a sandbox of its own. See Sandbox.exec."""
        async with self.sandbox() as sandbox:
            return await sandbox.exec(
                args, run=run, env=env, cwd=cwd, user=user, stdin=stdin, timeout=timeout, most=most
            )

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
    ) -> AsyncIterator[Process]:
        """Start a command in a sandbox of its own, which ends with the block. See Sandbox.start."""
        async with (
            self.sandbox() as sandbox,
            sandbox.start(args, run=run, env=env, cwd=cwd, user=user, timeout=timeout) as process,
        ):
            yield process

    async def open(
        self, *, env: Mapping[str, str] | None = None, user: str = "", life: float = DEFAULT_LIFE
    ) -> Sandbox:
        """Make a sandbox, which lives until its close. The arguments are those of sandbox."""
        order = order_of("exec-" + secrets.token_hex(4), env or {}, user, life)
        machine = await self._fleet.present(self.name, CAPABILITY, HERE_WITHIN)
        line = self._fleet.open(machine, CAPABILITY)
        box = Box(line, self.name)
        try:
            return Sandbox(box, await asyncio.wait_for(self._make(line, box, order), OPEN_WITHIN))
        except asyncio.TimeoutError:
            await box.close()
            raise MachineError(self.name, "failed", f"no sandbox within {OPEN_WITHIN:g} s") from None
        except (ConnectionError, ShapeError) as e:
            await box.close()
            reason, text = box.why()
            raise MachineError(self.name, reason, text or str(e)) from None
        except BaseException:
            await box.close()
            raise

    async def _make(self, line: Line, box: Box, order: bytes) -> str:
        """Have the machine make the sandbox, and return its working directory."""
        ready = await _marked(line)
        if ready != _READY:
            raise ShapeError(f"the machine answers {ready[:80]!r}")
        await line.write(order)
        secret, workdir = secret_of(self.name, await _marked(line))
        await box.open(secret)
        return workdir


def order_of(name: str, env: Mapping[str, str], user: str, life: float) -> bytes:
    """Return the order that makes a sandbox."""
    fields: dict[str, Any] = {"owner": "admin", "rollout": name, "attempt": 1}
    if user:
        fields["user"] = user
    if env:
        fields["env"] = dict(env)
    nanoseconds = {"ready": round(OPEN_WITHIN * 1e9), "life": round(life * 1e9)}
    return json.dumps({"create": fields | nanoseconds}).encode() + b"\n"


def secret_of(machine: str, answer: bytes) -> tuple[bytes, str]:
    """Return the secret of the box, and its working directory.

    Raises:
        MachineError: The machine made no sandbox.
        ShapeError: It is no answer.
    """
    try:
        fields = json.loads(answer)
        refused = fields.get("unsupported") or {}
        problem = fields.get("error") or refused.get("reason")
        if problem:
            raise MachineError(machine, "unsupported" if refused else "failed", plain(str(problem)))
        return base64.b64decode(fields.get("secret", "")), str(fields.get("workdir", ""))
    except (ValueError, AttributeError, TypeError, RecursionError) as e:
        raise ShapeError(f"the machine's answer cannot be read: {e}") from None


async def _marked(line: Line) -> bytes:
    text = await line.text(_MOST_ANSWER)
    if not text.startswith(_MARK):
        raise ShapeError(f"the machine says {text[:80]!r}")
    return text[len(_MARK) :]
