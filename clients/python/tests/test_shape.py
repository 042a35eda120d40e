"""Bodies of any form."""

from __future__ import annotations

import random
import zlib

import msgpack
import pytest
import zstandard

from turngate import InvalidError, Request, ShapeError, schema
from turngate.schema import codec
from turngate.schema.packed import pack_ids, pack_logprobs, unpack_ids
from turngate.schema.shape import check_shape
from turngate.serving import bases
from turngate.wire.body import compress, decompress
from turngate.wire.names import Key


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x80\x80", b"\x90", b"\x81", b"\x81\xa1a", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xc6\xff\xff\xff\xff", b"\x81\xa1a" + b"\x91" * 20 + b"\xc0", b"\x81\xa1a\xc1",
        b"\xdf\x00\x10\x00\x00" + b"\xa1a\xc0" * (1 << 20),
    ],
    ids=range(12),
)  # fmt: skip
def test_malformed(data: bytes) -> None:
    with pytest.raises(ShapeError):
        codec.decode(schema.Hint, data)


def test_what_msgpack_writes_is_read() -> None:
    rng = random.Random(1)

    def value(depth: int) -> object:
        kind = rng.randrange(8 if depth else 5)
        if kind == 0:
            return rng.getrandbits(rng.choice((3, 8, 16, 32, 63)))
        if kind == 1:
            return -rng.getrandbits(rng.choice((3, 8, 16, 32, 40)))
        if kind < 5:
            return (None, rng.random(), "é" * rng.choice((1, 20, 200, 70_000)))[kind - 2]
        if kind == 5:
            return [value(depth - 1) for _ in range(rng.choice((0, 3, 20)))]
        if kind == 6:
            return {str(i): value(depth - 1) for i in range(rng.choice((0, 3, 20)))}
        return bytes(rng.choice((0, 200, 300, 70_000)))

    for _ in range(100):
        data = msgpack.packb({str(i): value(3) for i in range(rng.randrange(5))})
        check_shape(data)
        with pytest.raises(ShapeError):
            check_shape(data[:-1])


def test_noise_is_refused_or_read() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        data = rng.randbytes(rng.randrange(40))
        try:
            codec.decode(Request, b"\x81" + data)
        except (ShapeError, InvalidError):
            continue


def test_wrong_types_are_named() -> None:
    for body, field in (
        ({"v": 1, "id": 3}, "id"),
        ({"v": True}, "v"),
        ({"v": 1, "task": []}, "task"),
        ({"v": 1, "setup": [1]}, r"setup"),
        ({"v": 1, "model": {"sampling": "x"}}, r"model\.sampling"),
        ({"v": 1, "model": {"sampling": b"{"}}, r"model\.sampling"),
    ):
        with pytest.raises(InvalidError, match=field):
            codec.decode(Request, msgpack.packb(body))


@pytest.mark.parametrize("value", [b"1", b"{}", b'"\\""', b"null"])
@pytest.mark.parametrize("spread", [False, True])
def test_calls_of_too_many_values_are_refused(value: bytes, spread: bool) -> None:
    """To read millions of them would stop the event loop for many seconds."""

    def call(values: int) -> bytes:
        lists = [b"[" + b",".join([value] * (values // 100)) + b"]"] * 100
        messages = lists if spread else [b"[" + b",".join(lists) + b"]"]
        data: bytes = msgpack.packb({"v": 1, "key": "a-1/1/1", "messages": messages})
        return data

    key = Key("a-1", 1, 1)
    bases.read(key, call(260_000))
    with pytest.raises(InvalidError, match="at most 262144 values"):
        bases.read(key, call(264_000))


def test_token_data() -> None:
    ids = [0, 1, 2**31 - 1, -1]
    assert list(unpack_ids(pack_ids(ids))) == ids
    assert pack_logprobs([-0.25]) == b"\x00\x00\x80\xbe"
    with pytest.raises(InvalidError):
        pack_ids([2**31])
    with pytest.raises(InvalidError):
        unpack_ids(b"abc")


def test_bodies() -> None:
    small, large = b"x" * 1000, b"x" * 1_000_000
    assert compress(small).data is small
    packed = compress(large)
    assert decompress(packed.headers, packed.data) == large
    bomb = zstandard.ZstdCompressor().compress(bytes(40 << 20))
    for data in (bomb, zlib.compress(large), b""):
        with pytest.raises(ShapeError):
            decompress({"Rl-Encoding": "zstd"}, data or b"junk")
    with pytest.raises(ShapeError, match="gzip"):
        decompress({"Rl-Encoding": "gzip"}, b"")
