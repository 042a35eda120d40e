"""The messages of all calls of a rollout as a tree, so that calls with a common beginning share memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import digest

if TYPE_CHECKING:
    from .recorded import RecordedCall

# unicode.IsSpace of Go; str.strip without characters takes more.
_SPACE = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


@dataclass(slots=True, eq=False)
class Turn:
    """Turn is the last message of a conversation."""

    up: Turn | None = None  # the conversation without this message; None: this one is empty
    jump: Turn | None = None  # a shorter conversation; see Conversations.back
    count: int = 0  # messages
    assistant: bool = False
    text: bytes = b""  # hash of the text of an assistant's message
    calls: list[RecordedCall] = field(default_factory=list)  # with exactly this conversation
    next: dict[bytes, Turn] = field(default_factory=dict)  # by the hash of the message


class Conversations:
    """Conversations holds the tree. root is the empty conversation."""

    def __init__(self) -> None:
        self.root = Turn()
        self.root.jump = self.root

    def add(self, after: Turn, value: Any, raw: str) -> Turn:
        """Return the conversation after with one more message."""
        key = digest.hash_message(raw.encode(errors="surrogatepass"))
        found = after.next.get(key)
        if found is not None:
            return found
        jump = after.jump
        assert jump is not None
        assert jump.jump is not None
        # Two jumps of the same length become one, as in a skew binary number. A way back then takes a number of steps
        # that is the logarithm of its length.
        same = after.count - jump.count == jump.count - jump.jump.count
        turn = Turn(after, jump.jump if same else after, after.count + 1)
        if isinstance(value, dict) and value.get("role") == "assistant":
            turn.assistant, turn.text = True, assistant_text(value)
        after.next[key] = turn
        return turn

    def back(self, turn: Turn, count: int) -> Turn:
        """Return the first count messages of a conversation."""
        while turn.count > count:
            assert turn.jump is not None
            assert turn.up is not None
            turn = turn.jump if turn.jump.count >= count else turn.up
        return turn

    def shared(self, a: Turn, b: Turn) -> int:
        """Return the number of messages with which both conversations begin."""
        count = min(a.count, b.count)
        a, b = self.back(a, count), self.back(b, count)
        while a is not b:  # of the same count, so their jumps have the same length
            if a.jump is not b.jump:
                assert a.jump is not None
                assert b.jump is not None
                a, b = a.jump, b.jump
            else:
                assert a.up is not None
                assert b.up is not None
                a, b = a.up, b.up
        return a.count


def assistant_text(value: Any) -> bytes:
    """Return a hash of the text of an assistant's message and the names of the tools that it calls.

    Agents send an answer of the model back in another form.
    """
    text, names = _read(value)
    parts = [text.strip(_SPACE), *names]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogatepass")).digest()


def wants_tools(value: Any) -> bool:
    """Report whether an answer calls tools."""
    return bool(_read(value)[1])


def _read(value: Any) -> tuple[str, list[str]]:
    """Return the text of a message and the names of its tools. JSON of another form is the text of a message."""
    if not isinstance(value, dict):
        return _compact(value), []
    calls = value.get("tool_calls")
    if not value.get("role") and value.get("content") is None and calls is None:
        return _compact(value), []
    texts = [value.get(name) for name in ("role", "refusal", "tool_call_id")]
    if not all(t is None or isinstance(t, str) for t in texts) or not (calls is None or isinstance(calls, list)):
        return _compact(value), []
    names = []
    for call in calls or ():
        if not isinstance(call, dict | None):
            return _compact(value), []
        given = [((call or {}).get(kind) or {}) for kind in ("function", "custom")]
        if not all(isinstance(g, dict) and isinstance(g.get("name") or "", str) for g in given):
            return _compact(value), []
        names.append(given[0].get("name") or given[1].get("name") or "")
    return _content(value.get("content")) or value.get("refusal") or "", names


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
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
