"""The token ids of earlier calls, which the prompts of later calls begin with."""

from __future__ import annotations

import contextlib
import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..call import Call

MOST_TURNS = 8
"""Answers that are kept of one rollout. The prompt of a call that continues another one is rendered."""

MOST_KEPT = 512 << 20
"""Bytes of token ids that are kept. The rollouts that were not active for the longest time are dropped first."""


@dataclass(slots=True)
class Turn:
    """Turn is an answered call."""

    count: int
    """Number of its messages."""
    digest: bytes
    """Of its messages."""
    message: Mapping[str, Any]
    """The answer."""
    ids: array[int]
    """Of the prompt and the answer."""


class History:
    """History keeps the turns of the rollouts that were active last."""

    def __init__(self) -> None:
        self._rollouts: OrderedDict[tuple[str, int], list[Turn]] = OrderedDict()
        self._kept = 0

    def add(self, call: Call, message: Mapping[str, Any], ids: array[int]) -> None:
        """Add an answer that ended with its last token, not at its bound or in the middle of a text."""
        owner = call.key.rollout, call.key.attempt
        turns = self._rollouts.setdefault(owner, [])
        self._rollouts.move_to_end(owner)
        count = len(call.raw_messages)
        turns.append(Turn(count, _digests(call.raw_messages)[count - 1], message, ids))
        self._kept += 4 * len(ids)
        if len(turns) > MOST_TURNS:
            self._kept -= 4 * len(turns.pop(0).ids)
        while self._kept > MOST_KEPT and len(self._rollouts) > 1:
            _, dropped = self._rollouts.popitem(last=False)
            self._kept -= sum(4 * len(t.ids) for t in dropped)

    def before(self, call: Call) -> Turn | None:
        """Return the turn that a call continues: the longest whose messages and answer its messages begin with."""
        turns = self._rollouts.get((call.key.rollout, call.key.attempt))
        if not turns:
            return None
        digests = _digests(call.raw_messages)
        for turn in sorted(turns, key=lambda t: t.count, reverse=True):
            n = turn.count
            if n + 1 < len(digests) and digests[n - 1] == turn.digest and _same(turn.message, call.messages[n]):
                return turn
        return None


def _digests(messages: Sequence[bytes]) -> list[bytes]:
    """Return a digest of the first message, of the first two, and so on."""
    out, so_far = [], hashlib.sha256()
    for raw in messages:
        so_far.update(len(raw).to_bytes(8, "big") + raw)
        out.append(so_far.digest())
    return out


def joined(turn: Turn, until: Sequence[int], whole: Sequence[int]) -> Sequence[int]:
    """Return the prompt that continues a turn with the turn's own ids.

    Args:
        turn: The turn.
        until: The ids of the conversation up to the turn's answer, as the template writes them.
        whole: The ids of the whole prompt, as the template writes it. It is returned if the turn is not in it.
    """
    if list(whole[: len(until)]) != list(until) or turn.ids[-1] not in until:
        return whole
    end = len(until) - 1 - list(reversed(until)).index(turn.ids[-1])
    return [*turn.ids, *whole[end + 1 :]]


def _same(said: Mapping[str, Any], came: Mapping[str, Any]) -> bool:
    """Report whether an agent sent an answer back unchanged. Agents write arguments again, and null as empty text."""
    names = ("content", "reasoning_content", "reasoning", "refusal")
    if came.get("role") != "assistant" or any((said.get(n) or "") != (came.get(n) or "") for n in names):
        return False
    return _tools_of(said) == _tools_of(came)


def _tools_of(message: Mapping[str, Any]) -> list[Any]:
    out = []
    for call in message.get("tool_calls") or ():
        named = call.get("function") or call.get("custom") or {}
        arguments: Any = named.get("arguments", named.get("input"))
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            arguments = json.loads(arguments)
        out.append((call.get("id"), named.get("name"), arguments))
    return out
