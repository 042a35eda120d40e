"""Files of other users, and credentials that the server does not take."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import nkeys
import pytest

from conftest import Server
from turngate import Client, InvalidError, UnreachableError
from turngate.wire import private_files as owned
from turngate.wire.link import credentials


def test_files_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "admin.nk"
    key.write_text("SUA")
    (tmp_path / "link").symlink_to(key)
    owned.check(key)
    owned.check(tmp_path / "none")
    if os.geteuid() == 0:  # only root can make a file of another user
        os.chown(key, 1000, 1000)
        monkeypatch.setattr(os, "geteuid", lambda: 2000)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: key.stat().st_uid + 1)
    for path in (key, tmp_path / "link"):
        with pytest.raises(InvalidError, match="want a readable file of this user: it belongs to the user"):
            credentials(str(path))


async def test_wrong_credentials_are_named(server: Server, tmp_path: Path) -> None:
    key = tmp_path / "other.nk"
    key.write_bytes(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    with pytest.raises(UnreachableError, match=r"it wants credentials \(creds=\)"):
        await Client.connect(server.url)
    with pytest.raises(UnreachableError, match="not those of this server"):
        await Client.connect(server.url, key, "alpha")
    for other in ("trainer-other", "ops"):  # it cannot differ later, so nothing is waited for
        with pytest.raises(
            InvalidError, match=r"creds: .*want the credentials of the trainer alpha: .*permissions violation"
        ):
            await asyncio.wait_for(Client.connect(server.url, server.creds(other), "alpha", start_within=300), 60)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    while not any(text in r.message for r in caplog.records):  # noqa: ASYNC110 - logging has no event
        await asyncio.sleep(0.05)


async def test_an_outage_is_told_twice(own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Once at the loss and once at the return, also if the server is away for many tries."""
    async with await Client.connect(own_server.url, own_server.creds("trainer-alpha"), "alpha") as client:
        await asyncio.to_thread(own_server.stop)
        await logged(caplog, "is lost")
        await asyncio.sleep(3)  # it tries again every 250 ms
        await asyncio.to_thread(own_server.start)
        await logged(caplog, "is back after")
        assert client.outstanding == 0
    told = [r.message for r in caplog.records if r.levelno >= logging.WARNING and "NATS" in r.message]
    assert len(told) == 2, told


async def test_a_wait_for_the_server_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(UnreachableError, match="connect to NATS"):
        await Client.connect("nats://127.0.0.1:9", start_within=7)
    told = [r.message for r in caplog.records if "waiting for NATS at nats://127.0.0.1:9" in r.message]
    assert told
