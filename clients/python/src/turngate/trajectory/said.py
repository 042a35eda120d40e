"""The part of an answer by which calls are compared."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

# unicode.IsSpace of Go; str.strip without characters takes more.
_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(slots=True)
class Said:
    """Said is the part of an answer by which calls are compared. Agents send an answer back in another form."""

    text: bytes = b""  # hash of its text and the names of the tools that it calls
    whole: bytes = b""  # hash of these, its reasoning and the arguments of the tools
    tools: bool = False  # it calls tools


def said(value: Any) -> Said:
    """Read an assistant's message."""
    text, reasoning, calls = _read(value)
    text = text.strip(_SPACE)
    names, parts = [name for name, _ in calls], [part for call in calls for part in call]
    return Said(_hash([text, *names]), _hash([text, reasoning, *parts]), bool(calls))


def _hash(parts: list[str]) -> bytes:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()


def _read(value: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Return the text of a message, its reasoning, and name and arguments of its tool calls.

    JSON of another form is the text of a message.
    """
    if not isinstance(value, dict):
        return _compact(value), "", []
    calls = value.get("tool_calls")
    if not value.get("role") and value.get("content") is None and calls is None:
        return _compact(value), "", []
    texts = [value.get(name) for name in ("role", "refusal", "tool_call_id")]
    if not all(t is None or isinstance(t, str) for t in texts) or not (calls is None or isinstance(calls, list)):
        return _compact(value), "", []
    tools = []
    for call in calls or ():
        if not isinstance(call, dict | None):
            return _compact(value), "", []
        given = [((call or {}).get(kind) or {}) for kind in ("function", "custom")]
        if not all(isinstance(g, dict) and isinstance(g.get("name") or "", str) for g in given):
            return _compact(value), "", []
        if given[0].get("name"):
            tools.append((given[0]["name"], _string(given[0].get("arguments"))))
        else:
            tools.append((given[1].get("name") or "", _string(given[1].get("input"))))
    reasoning = _string(value.get("reasoning_content")) or _string(value.get("reasoning"))
    return _content(value.get("content")) or value.get("refusal") or "", reasoning, tools


def _content(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return _compact(content)
    text = ""
    for part in content:
        kind = _string(part.get("type"))
        if kind in ("text", "input_text", "output_text"):
            text += _string(part.get("text"))
        elif kind == "refusal":
            text += _string(part.get("refusal"))
        elif kind not in ("image_url", "input_audio"):
            text += f"[{kind}]"
    return text


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):  # too deep
        return ""
