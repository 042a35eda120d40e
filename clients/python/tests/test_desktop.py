"""The desktop of a machine: a real server and a real machine, with an X server of the test."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from conftest import Server
from turngate import MachineError, OperationError
from turngate.machines import Machines, SyncMachines
from workshop import MACHINE, workshop


def lacks(why: str) -> NoReturn:
    if "xvfb" in os.environ.get("TURNGATE_REQUIRE", "").split(","):
        pytest.fail(f"TURNGATE_REQUIRE asks for xvfb: {why}")
    pytest.skip(f"SKIPPED, since xvfb is missing: {why}")


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    if shutil.which("Xvfb") is None:
        lacks("it is not installed")
    ready, write = os.pipe()
    screen = ["-screen", "0", "800x600x24", "-nolisten", "tcp", "-noreset"]
    with subprocess.Popen(
        ["Xvfb", "-displayfd", str(write), *screen], pass_fds=[write], stderr=subprocess.DEVNULL
    ) as x:
        os.close(write)
        try:
            with os.fdopen(ready) as said:
                number = said.read().strip()
            if not number or not Path(f"/tmp/.X11-unix/X{number}").exists():
                lacks("it gives no display")
            yield ":" + number
        finally:
            x.terminate()


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG")
    return struct.unpack(">II", png[16:24])


async def test_the_desktop(server: Server, display: str) -> None:
    with workshop(server, f"--desktop={display}", "--desktop-input"):
        async with await Machines.connect(server.url, server.creds("admin")) as machines:
            desktop = machines[MACHINE].desktop
            shown = await desktop.screenshot()
            assert (size(shown.png), shown.width, shown.height) == ((800, 600), 800, 600)
            small = await desktop.screenshot(max_side=100)
            assert (size(small.png), small.width, small.height) == ((100, 75), 800, 600)
            await desktop.move(1, 2)
            await desktop.click(3, 4, button="right", count=2)
            await desktop.drag(1, 2, 3, 4)
            await desktop.type("Hello, world\n")
            await desktop.key("ctrl+c", "Return")
            await desktop.scroll(1, 2, "down")
            with pytest.raises(OperationError) as outside:
                await desktop.click(100, 0, max_side=100)
            assert outside.value.code == "invalid"


def test_the_desktop_without_async_and_without_consent(server: Server, display: str) -> None:
    with workshop(server, f"--desktop={display}"), SyncMachines.connect(server.url, server.creds("admin")) as machines:
        desktop = machines[MACHINE].desktop
        assert size(desktop.screenshot(max_side=80).png) == (80, 60)
        with pytest.raises(OperationError) as refused:
            desktop.click(1, 2)
        assert refused.value.code == "consent"


async def test_a_machine_without_a_desktop(server: Server) -> None:
    with workshop(server):
        async with await Machines.connect(server.url, server.creds("admin")) as machines:
            with pytest.raises(MachineError, match="without --desktop") as missing:
                await machines[MACHINE].desktop.screenshot()
            assert missing.value.reason == "unsupported"
