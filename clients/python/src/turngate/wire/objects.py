"""Objects: files in a bucket under their sha256, in the layout of NATS ADR-20."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

from ..errors import (
    BucketFullError,
    DigestError,
    InvalidError,
    NotFoundError,
    QueueFullError,
    ServerError,
    TooLargeError,
)
from . import names
from .streams import EXPECT, HEADER_ROOM, STREAM_FULL, WRONG_LAST, Message, Stored, Streams, insist

MAX_FILE = 2 << 30
"""Largest bundle or artifact in bytes."""

CHUNK = 1 << 20


class Objects:
    """Objects reads and writes files. While the server cannot be reached, its methods try again."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def info(self, bucket: str, sha256: str) -> dict[str, Any] | None:
        """Return the metadata of an object; None if there is none.

        The members "size" and "nuid" are checked. The member "expires" tells whether the server deletes it after a
        while.

        Raises:
            DigestError: The metadata are not those of an object.
        """

        async def look() -> Stored | None:
            return await self._streams.last(names.object_stream(bucket), names.object_meta(bucket, sha256))

        found = await insist(f"look up object {sha256}", look)
        if found is None:
            return None
        try:
            info = json.loads(found.data)
            if not isinstance(info, dict):
                raise InvalidError("metadata", type(info).__name__, "want a JSON object")
            if info.get("deleted"):
                return None
            names.check_token("nuid", info.get("nuid", ""))  # it becomes a part of a subject
            size = info.setdefault("size", 0)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise InvalidError("size", size, "want a number of bytes")
        except (TypeError, ValueError, RecursionError) as e:
            raise DigestError(f"look up object {sha256} in {bucket}: {e}") from None
        return {**info, "expires": found.expires}

    async def put(self, bucket: str, data: bytes, life: str = "") -> str:
        """Store a file, unless the bucket has it for ever already, and return its sha256.

        Args:
            bucket: Name of the bucket.
            data: The file.
            life: Time after which the server deletes it, such as "6h"; empty: never.

        Raises:
            TooLargeError: The file is larger than MAX_FILE.
            BucketFullError: The bucket has no room.
        """
        sha = hashlib.sha256(data).hexdigest()
        if len(data) > MAX_FILE:
            raise TooLargeError(f"object {sha}", len(data), MAX_FILE)
        if not life:
            with contextlib.suppress(DigestError):  # metadata that no reader accepts are replaced
                there = await self.info(bucket, sha)
                if there is not None and not there["expires"] and there["size"] == len(data):
                    return sha
        headers = {"Nats-TTL": life} if life else {}
        nuid, count, last = self._streams.nuid(), 0, 0
        room = min(CHUNK, max(self._streams.link.max_payload - HEADER_ROOM, HEADER_ROOM))
        for at in range(0, len(data), room):
            chunk = Message(names.object_chunks(bucket, nuid), data[at : at + room], {**headers, EXPECT: str(last)})
            last = await self._chunk(bucket, chunk, last)
            count += 1
        meta = {
            "name": sha,
            "options": {"max_chunk_size": CHUNK},
            "bucket": bucket,
            "nuid": nuid,
            "size": len(data),
            "mtime": datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z"),
            "chunks": count,
            "digest": "SHA-256=" + base64.urlsafe_b64encode(bytes.fromhex(sha)).decode(),
        }
        named = Message(names.object_meta(bucket, sha), json.dumps(meta).encode(), {**headers, "Nats-Rollup": "sub"})
        await insist(f"name object {sha}", lambda: self._store(named))
        return sha

    async def _store(self, message: Message) -> int:
        try:
            return await self._streams.store(message)
        except QueueFullError as e:
            if e.err_code == STREAM_FULL:
                raise BucketFullError(f"{message.subject}: the bucket is full: {e}") from None
            raise

    async def _chunk(self, bucket: str, chunk: Message, after: int) -> int:
        """Store the next chunk exactly once and return its sequence. after is that of the chunk before."""

        async def store() -> int:
            try:
                return await self._store(chunk)
            except ServerError as e:
                if e.err_code not in WRONG_LAST:
                    raise
                # Nothing else writes to this subject: an earlier try was stored and its answer was lost.
                stored = await self._streams.last(names.object_stream(bucket), chunk.subject)
                if stored is None or stored.seq <= after:
                    raise
                return stored.seq

        return await insist(f"write {chunk.subject}", store)

    async def chunks(self, bucket: str, sha256: str, limit: int = MAX_FILE) -> AsyncIterator[bytes]:
        """Yield an object in pieces and check its sha256 at the end.

        Raises:
            NotFoundError: There is no such object, or a part of it is missing.
            TooLargeError: It has more than limit bytes.
            DigestError: Its content is another, or its metadata are not those of an object. Drop the pieces.
        """
        info = await self.info(bucket, sha256)
        if info is None:
            raise NotFoundError(f"object {sha256} in {bucket} does not exist")
        size, done, seq = info["size"], 0, 1
        if size > limit:
            raise TooLargeError(f"object {sha256}", size, limit)
        subject = names.object_chunks(bucket, info["nuid"])
        total = hashlib.sha256()
        while done < size:
            from_seq = seq

            async def read(at: int = from_seq) -> Stored | None:
                return await self._streams.next(names.object_stream(bucket), subject, at)

            piece = await insist(f"read {subject}", read)
            if piece is None or not piece.data:
                raise NotFoundError(f"object {sha256} in {bucket} ends at byte {done} of {size}")
            seq = piece.seq + 1
            done += len(piece.data)
            total.update(piece.data)
            yield piece.data
        if total.hexdigest() != sha256 or done != size:
            raise DigestError(f"object {sha256} in {bucket} has sha256 {total.hexdigest()}")

    async def get(self, bucket: str, sha256: str, limit: int = MAX_FILE) -> bytes:
        """Return an object. Errors are those of chunks."""
        return b"".join([piece async for piece in self.chunks(bucket, sha256, limit)])
