"""The calls of a rollout while it is read."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..schema import VersionSpan
from .recorded_call import RecordedCall
from .said import Said

if TYPE_CHECKING:
    from .message_tree import Turn


def no_ids() -> array[int]:
    """Return an empty list of token ids."""
    return array("i")


def new_hash() -> Any:
    """Return a hash of no tokens."""
    return hashlib.blake2b(digest_size=16)


@dataclass(slots=True, eq=False, repr=False)
class LinkedCall(RecordedCall):
    """LinkedCall is a recorded call with its answer, and its place among the calls of the rollout."""

    index: int = 0  # among the calls of the rollout
    up: LinkedCall | None = None  # the call before this one in its row
    turn: Turn | None = None  # the conversation; None: its messages are not known
    messages: int = 0
    asked: int = 0  # line of its request
    ended: int = 0  # line of its answer
    answered: bool = False
    refused: bool = False
    committed: bool = False
    has_ids: bool = False
    said: Said = field(default_factory=Said)
    used: int = 0  # completion tokens that the answer reports
    tools: bool = False  # the call offers tools
    kept: int = 0  # tokens of the row before that the prompt keeps
    fresh: array[int] = field(default_factory=no_ids)  # tokens of the prompt behind these
    completion: array[int] = field(default_factory=no_ids)
    logprobs: array[float] = field(default_factory=lambda: array("f"))
    versions: list[VersionSpan] = field(default_factory=list)
    hash: Any = None  # hash of all tokens up to the end of the completion
    continued: bool = False  # a call that continues this one, directly or not, is trainable
    row: int = 0  # 1, 2, ...: the row that trains the completion

    @property
    def end(self) -> int:
        """Number of tokens up to the end of the completion."""
        return self.kept + len(self.fresh) + len(self.completion)

    @property
    def begin_of_answer(self) -> int:
        """Number of tokens up to the end of the prompt."""
        return self.kept + len(self.fresh)

    def may_precede(self, later: LinkedCall) -> bool:
        """Report whether the agent knew the answer of this call when it asked the later one."""
        return self.answered and self.committed and self.ended < later.asked

    def join(self, before: LinkedCall, kept: int, drift: int, merge: str) -> None:
        """Continue the row of an earlier call."""
        self.up, self.parent, self.kept, self.drift, self.merge = before, before.call, kept, drift, merge

    def leave(self, before: LinkedCall, drift: int, reason: str) -> None:
        """Begin a row, although the call continues an earlier one."""
        self.parent, self.drift, self.merge, self.reason = before.call, drift, "fork", reason

    def add_tokens(self, fresh: array[int], begin: Any) -> None:
        """Set the tokens of the prompt behind the kept ones. begin is a hash of the kept ones."""
        self.fresh, self.hash = fresh, begin
        self.hash.update(self.fresh)
        self.hash.update(self.completion)


def with_ids(c: LinkedCall | None) -> LinkedCall | None:
    """Return the call if it has ids, else the nearest call with ids before it in its row."""
    while c is not None and not c.has_ids:
        c = c.up
    return c
