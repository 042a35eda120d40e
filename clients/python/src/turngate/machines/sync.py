"""Machines without async, for notebooks and scripts.

with SyncMachines.connect(url, creds) as machines:
    print(machines["build1"].exec(["make", "test"]).stdout)
    with machines["build1"].sandbox() as sandbox:
        sandbox.write("a.txt", b"text")
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypedDict

from ..client.client import URL
from ..schema import Entry, Machine
from ..serving.handle import Output
from ..wire.loop_thread import LoopThread
from .desktop import Desktop, Screenshot
from .machines import Machines
from .sandbox import MOST_FILE, Sandbox
from .workspace import DEFAULT_LIFE, Workspace

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ExecOptions(TypedDict, total=False):
    """ExecOptions are those of Sandbox.exec."""

    run: str
    env: Mapping[str, str]
    cwd: str
    user: str
    stdin: bytes
    timeout: float
    most: int


class SyncSandbox:
    """SyncSandbox has the methods of Sandbox but those of a command that runs. Each blocks until it is done."""

    def __init__(self, thread: LoopThread, sandbox: Sandbox) -> None:
        self._thread = thread
        self.sandbox = sandbox
        """The sandbox itself. It belongs to the thread's event loop."""

    def exec(self, args: Sequence[str] = (), **options: Unpack[ExecOptions]) -> Output:
        """Run a command to its end; see Sandbox.exec."""
        return self._thread.run(self.sandbox.exec(args, **options))

    def read(self, path: str, most: int = MOST_FILE) -> bytes:
        """Return a file of at most so many bytes."""
        return self._thread.run(self.sandbox.read(path, most))

    def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str = "") -> None:
        """Create or replace a file in one step, with its missing parents."""
        self._thread.run(self.sandbox.write(path, data, mode=mode, user=user))

    def exists(self, path: str) -> bool:
        """Return whether there is a file, a folder or a link of this path."""
        return self._thread.run(self.sandbox.exists(path))

    def list(self, folder: str = "") -> Sequence[Entry]:
        """Return the files of a folder by name; see Sandbox.list."""
        return self._thread.run(self.sandbox.list(folder))

    def mkdir(self, folder: str, *, mode: int = 0o755, user: str = "") -> None:
        """Make a folder with its missing parents."""
        self._thread.run(self.sandbox.mkdir(folder, mode=mode, user=user))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with everything in it."""
        self._thread.run(self.sandbox.remove(path))

    def forward(self, inside: int, host: str, port: int) -> None:
        """Make a port of the sandbox lead to a host and port; see Sandbox.forward."""
        self._thread.run(self.sandbox.forward(inside, host, port))

    def close(self) -> None:
        """End the sandbox with everything in it."""
        self._thread.run(self.sandbox.close())


class SyncDesktop:
    """SyncDesktop has the methods of Desktop. Each blocks until it is done."""

    def __init__(self, thread: LoopThread, desktop: Desktop) -> None:
        self._thread, self._desktop = thread, desktop

    def screenshot(self, *, max_side: int = 0) -> Screenshot:
        """Return a picture of the display."""
        return self._thread.run(self._desktop.screenshot(max_side=max_side))

    def move(self, x: int, y: int, *, max_side: int = 0) -> None:
        """Move the pointer."""
        self._thread.run(self._desktop.move(x, y, max_side=max_side))

    def click(self, x: int, y: int, *, button: str = "left", count: int = 1, max_side: int = 0) -> None:
        """Click with a button; see Desktop.click."""
        self._thread.run(self._desktop.click(x, y, button=button, count=count, max_side=max_side))

    def drag(self, x: int, y: int, to_x: int, to_y: int, *, button: str = "left", max_side: int = 0) -> None:
        """Press a button at a point, and release it at another."""
        self._thread.run(self._desktop.drag(x, y, to_x, to_y, button=button, max_side=max_side))

    def type(self, text: str) -> None:
        """Type a text; see Desktop.type."""
        self._thread.run(self._desktop.type(text))

    def key(self, *keys: str) -> None:
        """Press keys one after another; see Desktop.key."""
        self._thread.run(self._desktop.key(*keys))

    def scroll(self, x: int, y: int, direction: str, steps: int = 3, *, max_side: int = 0) -> None:
        """Scroll at a point; see Desktop.scroll."""
        self._thread.run(self._desktop.scroll(x, y, direction, steps, max_side=max_side))


class SyncWorkspace:
    """SyncWorkspace is the workspace of a machine; see Workspace."""

    def __init__(self, thread: LoopThread, workspace: Workspace) -> None:
        self._thread, self._workspace = thread, workspace
        self.desktop = SyncDesktop(thread, workspace.desktop)
        """The machine's screen, pointer and keyboard, if its owner offers them."""

    def exec(self, args: Sequence[str] = (), **options: Unpack[ExecOptions]) -> Output:
        """Run a command to its end in a sandbox of its own; see Sandbox.exec."""
        return self._thread.run(self._workspace.exec(args, **options))

    @contextlib.contextmanager
    def sandbox(
        self, *, env: Mapping[str, str] | None = None, user: str = "", life: float = DEFAULT_LIFE
    ) -> Iterator[SyncSandbox]:
        """Make a sandbox for several commands, which ends with the block; see Workspace.sandbox."""
        sandbox = SyncSandbox(self._thread, self._thread.run(self._workspace.open(env=env, user=user, life=life)))
        try:
            yield sandbox
        finally:
            sandbox.close()


class SyncMachines:
    """SyncMachines is Machines with an event loop in a thread of its own. Use connect."""

    def __init__(self, thread: LoopThread, machines: Machines) -> None:
        self._thread, self._machines = thread, machines

    @classmethod
    def connect(cls, url: str = URL, creds: str | os.PathLike[str] | None = None, *, context: str = "") -> SyncMachines:
        """Connect; see Machines.connect."""
        thread = LoopThread("turngate machines")
        try:
            return cls(thread, thread.run(Machines.connect(url, creds, context=context)))
        except BaseException:
            thread.stop()
            raise

    def __getitem__(self, name: str) -> SyncWorkspace:
        """Return the workspace of a machine, which need not be there yet."""
        return SyncWorkspace(self._thread, self._machines[name])

    def list(self) -> Sequence[Machine]:
        """Listen for 3 s, and return the machines that are there, sorted by name."""
        return self._thread.run(self._machines.list())

    def close(self) -> None:
        """End all sandboxes, and disconnect."""
        try:
            self._thread.run(self._machines.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> SyncMachines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
