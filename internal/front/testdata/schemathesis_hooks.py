"""Hooks of schemathesis for the test of the front: valid waits become short ones, and bundles are bytes."""

import json
from typing import Any

import schemathesis

SHORT_MS = 50


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case, _kwargs: dict[str, Any]) -> None:
    """Shorten the waits of a request, which would last up to a minute each."""
    if isinstance(case.body, dict):
        wait = case.body.get("wait_ms", 10_000)
        if case.path == "/v1/cancel" and isinstance(wait, int) and SHORT_MS < wait <= 60_000:
            case.body["wait_ms"] = SHORT_MS
    if case.query and str(case.query.get("wait")).isdigit() and 0 < int(case.query["wait"]) <= 60:
        case.query["wait"] = 0


@schemathesis.serializer("application/zstd")
def bundle(_context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Return the body of an upload, which is no archive."""
    return value if isinstance(value, bytes) else json.dumps(value, default=str).encode()
