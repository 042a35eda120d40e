"""Assistant messages in the form of OpenAI chat: their checks, and the sum of deltas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..errors import InvalidError
from ..schema import Delta, Reply, Usage
from ..schema.codec import parse_json

_TEXTS = ("refusal", "reasoning_content", "reasoning")

_CALL_ID_MOST = 1000


def check_answer(message: Any, field: str, whole: bool) -> None:
    """Check an assistant message, or with whole=False a delta, in the form that every dialect can write.

    Raises:
        InvalidError: A member is wrong.
    """
    if isinstance(message, bytes):
        message = parse_json(message, field)
    if not isinstance(message, dict):
        raise InvalidError(field, type(message).__name__, "want a JSON object")
    if message.get("role", "assistant") not in (None, "assistant"):
        raise InvalidError(f"{field}.role", message["role"], 'want "assistant"')
    content = message.get("content")
    if isinstance(content, list) and whole:
        for i, part in enumerate(content):
            if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
                raise InvalidError(f"{field}.content[{i}]", part, "want a part of type text or refusal")
            _text(part.get(part["type"], ""), f"{field}.content[{i}].{part['type']}", or_null=False)
    else:
        _text(content, f"{field}.content")
    for name in _TEXTS:
        _text(message.get(name), f"{field}.{name}")
    calls = message.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise InvalidError(f"{field}.tool_calls", type(calls).__name__, "want a list, or null")
    for i, call in enumerate(calls):
        _tool_call(call, f"{field}.tool_calls[{i}]", whole)


def _text(value: Any, field: str, or_null: bool = True) -> None:
    if not isinstance(value, str) and not (or_null and value is None):
        raise InvalidError(field, type(value).__name__, "want a string" + (" or null" if or_null else ""))


def _tool_call(call: Any, field: str, whole: bool) -> None:
    if not isinstance(call, dict):
        raise InvalidError(field, type(call).__name__, "want an object with id, type and function")
    if not isinstance(call.get("index", 0), int):
        raise InvalidError(f"{field}.index", call["index"], "want a number of 0 or more")
    _text(call.get("id"), f"{field}.id")
    if len(call.get("id") or "") > _CALL_ID_MOST:
        raise InvalidError(f"{field}.id", f"{len(call['id'])} characters", f"want at most {_CALL_ID_MOST}")
    kind = call.get("type")
    if kind not in (None, "function", "custom"):
        raise InvalidError(f"{field}.type", kind, "want function or custom")
    custom = kind == "custom" or ("function" not in call and "custom" in call)
    member, argument = ("custom", "input") if custom else ("function", "arguments")
    named = call.get(member)
    if named is None and not whole:
        return
    if not isinstance(named, dict):
        raise InvalidError(f"{field}.{member}", type(named).__name__, f"want an object with name and {argument}")
    for name in ("name", argument):
        _text(named.get(name), f"{field}.{member}.{name}", or_null=not whole)


def sum_of(deltas: Iterable[Delta]) -> Reply:
    """Return the reply that consists of deltas: their texts, tool calls, token ids and log-probs."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    ids: list[int] = []
    logprobs: list[float] = []
    for d in deltas:
        piece = parse_json(d.delta, "delta") if isinstance(d.delta, bytes) else d.delta
        for name in ("content", *_TEXTS):
            if isinstance(piece.get(name), str):
                message[name] = (message.get(name) or "") + piece[name]
        for at, part in enumerate(piece.get("tool_calls") or ()):
            _add_call(calls.setdefault(part.get("index", at), {}), part)
        ids.extend(d.completion_ids)
        logprobs.extend(d.logprobs)
    if calls:
        message["tool_calls"] = [calls[i] for i in sorted(calls)]
    elif message["content"] is None:
        message["content"] = ""
    return Reply(
        message=message,
        finish_reason="tool_calls" if calls else "stop",
        usage=Usage(completion_tokens=len(ids)),
        completion_ids=ids,
        logprobs=logprobs,
    )


def _add_call(call: dict[str, Any], part: dict[str, Any]) -> None:
    for name, value in part.items():
        if name in ("function", "custom") and isinstance(value, dict):
            inner = call.setdefault(name, {})
            for k, v in value.items():
                if k == "name" and v == inner.get(k):
                    continue  # it is repeated
                inner[k] = inner.get(k, "") + v if k in ("name", "arguments", "input") and isinstance(v, str) else v
        elif name != "index" and value is not None:
            call[name] = value
    call.setdefault("type", "function")
