"""The golden vectors of the protocol."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest

from turngate import schema
from turngate.schema import codec

VECTORS = Path(__file__).parents[3] / "schema" / "testdata"


def message_of(name: str) -> type[Any]:
    """Return the message of a vector, by the longest name that its file begins with."""
    files = {re.sub(r"([a-z])([A-Z])", r"\1_\2", cls).lower(): cls for cls in schema.__all__}
    best = max((f for f in files if name == f or name.startswith(f + "_")), key=len)
    cls = getattr(schema, files[best])
    assert isinstance(cls, type)
    return cls


def values(data: bytes) -> Any:
    """Return a msgpack body with its raw JSON parsed, which is what two equal encodings have in common."""
    return parsed(msgpack.unpackb(data, raw=False))


def parsed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: parsed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [parsed(v) for v in value]
    if isinstance(value, bytes):
        try:
            return ("json", json.loads(value))
        except ValueError:
            return value
    return value


@pytest.mark.parametrize("path", sorted(VECTORS.glob("*.msgpack")), ids=lambda p: p.stem)
def test_vector(path: Path) -> None:
    data = path.read_bytes()
    message = codec.decode(message_of(path.stem), data)
    want = json.loads(path.with_suffix(".json").read_text())
    assert codec.to_json(message) == want
    assert codec.from_json(type(message), want) == message
    assert values(codec.encode(message)) == values(data)
