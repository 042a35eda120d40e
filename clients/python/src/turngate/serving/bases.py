"""Whole calls, kept as bases of later calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidError
from ..schema.codec import unpack_map
from ..wire import digest, tame
from ..wire.names import Key

MOST = 8
"""Calls of a rollout that are kept. A call with an older base is requested whole."""


@dataclass(slots=True)
class Body:
    """Body is a call as it came, with its raw JSON."""

    tag: str
    dialect: str
    model: str
    messages: list[bytes]
    tools: bytes | None
    params: dict[str, bytes] | None
    base: int
    keep: int
    digest: bytes
    stream: bool
    remaining_ms: int


def read(key: Key, data: bytes) -> Body:
    """Return the call that a body has.

    Raises:
        ShapeError: The bytes are no message.
        InvalidError: A field is wrong.
    """
    m = unpack_map(data)
    if m.get("v") != 1:
        raise InvalidError("v", m.get("v"), "want 1")
    if m.get("key") != str(key):
        raise InvalidError("key", m.get("key"), f"want the subject's, {key}")
    messages = _typed(m, "messages", list, [])
    params = _typed(m, "params", dict, None)
    for name, values in (("messages", messages), ("params", (params or {}).values())):
        if not all(isinstance(v, bytes) for v in values):
            raise InvalidError(name, "an entry", "want a bin with JSON text")
    body = Body(
        tag=_typed(m, "tag", str, "agent"),
        dialect=_typed(m, "dialect", str, ""),
        model=_typed(m, "model", str, ""),
        messages=messages,
        tools=_typed(m, "tools", bytes, None),
        params=params,
        base=_typed(m, "base", int, 0),
        keep=_typed(m, "keep", int, 0),
        digest=_typed(m, "digest", bytes, b""),
        stream=bool(m.get("stream", False)),
        remaining_ms=_typed(m, "remaining_ms", int, 0),
    )
    if body.base < 0 or body.keep < 0 or (not body.base and body.keep):
        raise InvalidError("keep", f"base {body.base}, keep {body.keep}", "both 0, or base 1 or more")
    if not messages and not body.keep:
        raise InvalidError("messages", "none", "want at least one")
    if len(body.digest) not in (0, 32):
        raise InvalidError("digest", f"{len(body.digest)} bytes", "want 32")
    tame.check_count([*messages, body.tools or b"", *(params or {}).values()])
    for i, message in enumerate(messages, body.keep):
        tame.check(message, f"messages[{i}]")
    tame.check(body.tools or b"", "tools")
    for name, value in (params or {}).items():
        tame.check(value, f"params.{name}")
    return body


def _typed(m: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = m.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise InvalidError(name, type(value).__name__, f"want {kind.__name__}")
    return value


@dataclass(slots=True)
class Known:
    """Known is a whole call."""

    number: int
    messages: list[bytes]
    parsed: list[Any]  # the messages' values, where they were read; shared by the calls of a rollout
    hashes: list[bytes]
    tools: bytes
    params: dict[str, bytes]
    tools_hash: bytes
    params_hash: bytes


@dataclass(slots=True)
class Bases:
    """Bases are the calls of an attempt that a later call may be based on."""

    calls: dict[int, Known] = field(default_factory=dict)

    def whole(self, number: int, body: Body) -> Known | None:
        """Return the whole call with this number, and keep it; None if its worker must send it whole.

        Raises:
            InvalidError: A whole call is not the one that its worker meant.
        """
        base = self.calls.get(body.base) if body.base else None
        if body.base and (base is None or body.keep > len(base.messages)):
            return None
        fresh = [digest.hash_message(m) for m in body.messages]
        if base is None:
            tools, params = body.tools or b"", body.params or {}
            if tools == digest.NO_TOOLS:
                tools = b""
            known = Known(
                number, body.messages, [None] * len(fresh), fresh, tools, params,
                digest.hash_tools(tools), digest.hash_params(params),
            )  # fmt: skip
        else:
            known = _based(base, number, body, fresh)
        if body.digest and body.digest != digest.digest(known.hashes, known.tools_hash, known.params_hash):
            if base is not None:
                return None
            raise InvalidError("digest", body.digest.hex(), "want that of the call that came with it")
        self.calls[number] = known
        if len(self.calls) > MOST:
            del self.calls[min(self.calls)]
        return known


def _based(base: Known, number: int, body: Body, fresh: list[bytes]) -> Known:
    keep = body.keep
    tools, tools_hash = base.tools, base.tools_hash
    if body.tools is not None and body.tools != b"":
        tools = b"" if body.tools == digest.NO_TOOLS else body.tools
        tools_hash = digest.hash_tools(tools)
    params, params_hash = base.params, base.params_hash
    if body.params is not None:
        params, params_hash = body.params, digest.hash_params(body.params)
    parsed = base.parsed[:keep] + [None] * len(fresh)
    hashes = base.hashes[:keep] + fresh
    return Known(number, base.messages[:keep] + body.messages, parsed, hashes, tools, params, tools_hash, params_hash)
