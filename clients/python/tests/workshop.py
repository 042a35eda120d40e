"""A server with a machine, which has a workspace."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import Server

MACHINE = "m1"


@contextmanager
def workshop(server: Server, *args: str) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Serve a machine of a server, with more arguments. Give the folder of its workspace, and its process."""
    keys = str(server.state / "nats" / "creds")
    if not Path(server.creds(f"machine-{MACHINE}")).exists():
        add = [server.binary, "machine", "add", MACHINE, "--nats", server.url, "--keys", keys]
        subprocess.run(add, check=True, capture_output=True)
    folder = Path(tempfile.mkdtemp(prefix="workspace-"))
    try:
        if os.geteuid() == 0:
            os.chown(folder, 1000, 1000)
        state = tempfile.mkdtemp(prefix="machine-", dir=server.state)
        server._run("machine", "serve", "--nats", server.url, "--creds", server.creds(f"machine-{MACHINE}"), "--slots", "2",
                    "--state", state, "--workspace", str(folder), "--grace", "1s", *args, ready="the machine is ready")  # fmt: skip
        process = server.processes.pop()
        try:
            yield folder, process
        finally:
            process.terminate()
            process.wait(60)
    finally:
        shutil.rmtree(folder)
