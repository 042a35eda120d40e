"""Objects with metadata that are not those of an object."""

from __future__ import annotations

import hashlib
import json
import secrets

import pytest

from conftest import Server
from turngate import Client, DigestError
from turngate.wire import names
from turngate.wire.streams import Message


@pytest.mark.parametrize(
    "metadata",
    [
        "{", "[]", "null", "\x80", "[" * 100_000, "{}",
        '{"size":3}', '{"size":3,"nuid":""}', '{"size":3,"nuid":7}', '{"size":3,"nuid":">"}', '{"size":3,"nuid":"a.b"}',
        '{"size":"x","nuid":"a"}', '{"size":-1,"nuid":"a"}', '{"size":true,"nuid":"a"}', '{"size":null,"nuid":"a"}',
    ],
)  # fmt: skip
async def test_broken_metadata_are_refused_and_replaced(server: Server, metadata: str) -> None:
    data = secrets.token_bytes(3)
    sha, bucket = hashlib.sha256(data).hexdigest(), "tasks_alpha"
    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        broken = Message(names.object_meta(bucket, sha), metadata.encode("latin-1"), {"Nats-Rollup": "sub"})
        await client._streams.store(broken)
        with pytest.raises(DigestError, match=sha):
            await client._objects.get(bucket, sha)
        assert await client.put_bundle(data) == sha
        assert await client._objects.get(bucket, sha) == data


async def test_an_object_of_another_size_is_replaced(server: Server) -> None:
    data = secrets.token_bytes(3)
    sha, bucket = hashlib.sha256(data).hexdigest(), "tasks_alpha"
    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        wrong = Message(names.object_meta(bucket, sha), b'{"size":2,"nuid":"abc"}', {"Nats-Rollup": "sub"})
        await client._streams.store(wrong)
        assert await client.put_bundle(data) == sha
        assert await client._objects.get(bucket, sha) == data


async def test_deleted_objects_are_stored_again(server: Server) -> None:
    data = secrets.token_bytes(3)
    sha, bucket = hashlib.sha256(data).hexdigest(), "tasks_alpha"
    async with await Client.connect(server.url, server.creds("trainer-alpha"), "alpha") as client:
        deleted = Message(names.object_meta(bucket, sha), json.dumps({"deleted": True}).encode())
        await client._streams.store(deleted)
        assert await client._objects.info(bucket, sha) is None
        assert await client.put_bundle(data) == sha
        assert await client._objects.get(bucket, sha) == data
