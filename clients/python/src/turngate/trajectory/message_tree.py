"""The messages of all calls of a rollout as a tree, so that calls with a common beginning share memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..wire import digest
from .said import said

if TYPE_CHECKING:
    from .linked_call import LinkedCall


@dataclass(slots=True, eq=False)
class Turn:
    """Turn is the last message of a conversation."""

    up: Turn | None = None  # the conversation without this message; None: this one is empty
    jump: Turn | None = None  # a shorter conversation; see Conversations.back
    count: int = 0  # messages
    assistant: bool = False
    text: bytes = b""  # hash of the text of an assistant's message
    calls: list[LinkedCall] = field(default_factory=list)  # with exactly this conversation
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
            turn.assistant, turn.text = True, said(value).text
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
