"""Work on machines, with the admin's credential. See docs/machine.md.

async with await Machines.connect(url, creds) as machines:
    build1 = machines["build1"]
    made = await build1.exec(["make", "test"])
    async with build1.start(["python3", "-i"]) as process:
        await process.write(b"print(1)\\n")
    async with build1.sandbox() as sandbox:
        await sandbox.write("a.txt", b"text")
"""

from .desktop import Desktop, Screenshot
from .line import Timing
from .machines import Machines
from .sandbox import Process, Sandbox
from .sync import SyncDesktop, SyncMachines, SyncSandbox, SyncWorkspace
from .workspace import Workspace

__all__ = [
    "Desktop",
    "Machines",
    "Process",
    "Sandbox",
    "Screenshot",
    "SyncDesktop",
    "SyncMachines",
    "SyncSandbox",
    "SyncWorkspace",
    "Timing",
    "Workspace",
]
