"""Contexts of the nats command."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from turngate import Client, InvalidError
from turngate.client.sync import SyncClient
from turngate.wire import contexts


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("role", ["trainer-alpha", "ops"])
async def test_a_client_connects_by_the_name_of_a_context(server: Server, folder: Path, role: str) -> None:
    fields = {"description": "lab", "url": server.url, "nkey": server.creds(role), "creds": "", "token": ""}
    (folder / "lab.json").write_text(json.dumps(fields))
    async with await Client.connect(context="lab", name="alpha") as client:
        assert (await client.opened()).error == ""


def test_without_async(server: Server, folder: Path) -> None:
    fields = {"url": server.url, "nkey": server.creds("trainer-alpha")}
    (folder / "lab.json").write_text(json.dumps(fields))
    with SyncClient.connect(name="alpha", context="lab") as client:
        assert client.opened().error == ""


def test_files_of_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".config/nats/context").mkdir(parents=True)
    (tmp_path / ".config/nats/context/lab.json").write_text('{"url":"nats://lab","creds":"~/lab.creds"}')
    assert contexts.read("lab", "trainer-alpha") == ("nats://lab", str(tmp_path / "lab.creds"))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (None, "contexts are: other"),
        ("{", "cannot be read"),
        ("[]", "a JSON object"),
        ({"url": 1}, "texts"),
        ({"creds": "x"}, "want url"),
        ({"url": "nats://lab", "creds": "x", "nkey": "y"}, "one of creds and nkey"),
        ({"url": "nats://lab", "user": "me", "password": "secret"}, "has user, password"),
    ],
)
async def test_mistakes(folder: Path, content: Any, error: str) -> None:
    (folder / "other.json").write_text("{}")
    if content is not None:
        (folder / "lab.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InvalidError, match=f"context: 'lab'.*{re.escape(error)}"):
        await Client.connect(context="lab")


async def test_a_context_is_a_name_and_stands_alone(folder: Path) -> None:
    for name in ("../lab", "a/b"):
        with pytest.raises(InvalidError, match="context"):
            await Client.connect(context=name)
    with pytest.raises(InvalidError, match=r"context: 'lab'.*without url and creds"):
        await Client.connect("nats://other", context="lab")
    with pytest.raises(InvalidError, match=r"context: 'lab'.*without url and creds"):
        await Client.connect(creds="x", context="lab")
