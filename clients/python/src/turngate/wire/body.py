"""Bodies of messages: plain, compressed, or in an object."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import zstandard

from ..errors import ShapeError, TooLargeError
from ..schema.shape import MAX_BODY
from .objects import Objects

PACK_ABOVE = 128 << 10
"""Larger bodies are compressed."""

CLAIM_LIFE = "6h"

_ENCODING = "Rl-Encoding"
_CLAIM = "Rl-Claim"


@dataclass(slots=True)
class Body:
    """Body is the wire form of a body."""

    data: bytes
    headers: dict[str, str] = field(default_factory=dict)
    stale: float = 0.0  # monotonic time from which the object may be gone too soon; 0: never


def compress(data: bytes) -> Body:
    """Compress a large body, if this makes it smaller.

    Raises:
        TooLargeError: It has more than MAX_BODY bytes.
    """
    if len(data) <= PACK_ABOVE:
        return Body(data)
    if len(data) > MAX_BODY:
        raise TooLargeError("the body of a message", len(data), MAX_BODY)
    small = zstandard.ZstdCompressor(level=1).compress(data)
    return Body(small, {_ENCODING: "zstd"}) if len(small) < len(data) else Body(data)


async def claim(body: Body, objects: Objects, bucket: str) -> Body:
    """Put the data of a body into a bucket, and return a body that names the object."""
    sha = await objects.put(bucket, body.data, CLAIM_LIFE)
    return Body(b"", {**body.headers, _CLAIM: sha}, stale=time.monotonic() + 3 * 3600)


def is_claim(headers: Mapping[str, str]) -> bool:
    """Report whether the body is in an object."""
    return bool(headers.get(_CLAIM))


async def fetch(headers: Mapping[str, str], objects: Objects, bucket: str) -> bytes:
    """Return the data of the object that a message names."""
    return await objects.get(bucket, headers[_CLAIM], MAX_BODY)


def decompress(headers: Mapping[str, str], data: bytes) -> bytes:
    """Return the body as it was before it was packed.

    Raises:
        ShapeError: The encoding is not known, or the body is no zstd frame of at most MAX_BODY bytes.
    """
    encoding = headers.get(_ENCODING, "")
    if not encoding:
        return data
    if encoding != "zstd":
        raise ShapeError(f"{_ENCODING}: {encoding!r} is not known: want zstd")
    return unzstd(data, MAX_BODY)


def unzstd(data: bytes, limit: int) -> bytes:
    """Return the content of a zstd frame of at most limit bytes.

    Raises:
        ShapeError: It is none, or it is larger.
    """
    try:
        with zstandard.ZstdDecompressor(max_window_size=128 << 20).stream_reader(data, read_across_frames=True) as r:
            out = r.read(limit + 1)
    except zstandard.ZstdError as e:
        raise ShapeError(f"a body is no zstd frame: {e}") from None
    if len(out) > limit:
        raise ShapeError(f"a body has more than {limit} bytes after decompression")
    return out
