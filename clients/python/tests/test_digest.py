"""Digests of calls."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from turngate.wire import digest

VECTORS = Path(__file__).parents[3] / "schema" / "testdata" / "digests.json"


class Raw(str):
    """A number as it was written."""


def rewrite(value: Any) -> bytes:
    """Write JSON with its numbers unchanged."""
    if isinstance(value, Raw):
        return value.encode()
    if isinstance(value, dict):
        return b"{" + b",".join(json.dumps(k).encode() + b":" + rewrite(v) for k, v in value.items()) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(rewrite, value)) + b"]"
    return json.dumps(value).encode()


def vectors() -> list[dict[str, Any]]:
    loaded = json.loads(VECTORS.read_text(), parse_float=Raw, parse_int=Raw)
    assert isinstance(loaded, list)
    return loaded


@pytest.mark.parametrize("vector", vectors(), ids=lambda v: v["digest"][:8])
def test_vector(vector: dict[str, Any]) -> None:
    messages = [digest.hash_message(rewrite(m)) for m in vector["messages"]]
    tools = digest.hash_tools(rewrite(vector["tools"]) if "tools" in vector else b"")
    params = digest.hash_params({k: rewrite(v) for k, v in vector.get("params", {}).items()})
    assert digest.digest(messages, tools, params).hex() == vector["digest"]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0.0, "0"), (-0.0, "0"), (1.0, "1"), (-1.5, "-1.5"), (1e21, "1e+21"), (1e20, "100000000000000000000"),
        (1e-6, "0.000001"), (1e-7, "1e-7"), (123456789012345680000.0, "123456789012345680000"), (0.1, "0.1"),
        (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e+308"), (333333333.3333333, "333333333.3333333"),
        (1.2345e-10, "1.2345e-10"), (math.pi, "3.141592653589793"),
    ],
)  # fmt: skip
def test_numbers_as_inwrite_number(value: float, want: str) -> None:
    assert digest.write_number(value) == want


def test_names_are_sorted_by_utf16() -> None:
    assert digest._canonical(digest._parse('{"\\ufffd":1,"😀":2,"a":3}'.encode())) == '{"a":3,"😀":2,"\ufffd":1}'
