"""Answered calls of rollouts, with their token ids, which the prompts of later calls begin with."""

from __future__ import annotations

import contextlib
import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .call import Call

MOST_TURNS = 8
"""Answers that are kept of one rollout. A call that continues an older one is rendered whole."""

MOST_KEPT = 512 << 20
"""Bytes of token ids that are kept. The rollouts that were not active for the longest time are dropped first."""

Messages = list[Mapping[str, Any]]


@dataclass(slots=True)
class Turn:
    """Turn is an answered call."""

    count: int
    """Number of its messages."""
    digest: bytes
    """Of its tools and messages."""
    message: Mapping[str, Any]
    """The answer."""
    ids: array[int]
    """Of the prompt and the answer."""
    ended: bool = True
    """The answer has the token that ends it, since it was not cut at its largest length."""


class Turns:
    """Turns keeps the answers of the rollouts that were active last."""

    def __init__(self) -> None:
        self._rollouts: OrderedDict[tuple[str, int], list[Turn]] = OrderedDict()
        self._kept = 0

    def add(self, call: Call, message: Mapping[str, Any], ids: array[int], ended: bool = True) -> None:
        """Add the answer of a call."""
        owner = call.key.rollout, call.key.attempt
        turns = self._rollouts.setdefault(owner, [])
        self._rollouts.move_to_end(owner)
        count = len(call.raw_messages)
        turns.append(Turn(count, _digests(call)[count - 1], message, ids, ended))
        self._kept += 4 * len(ids)
        if len(turns) > MOST_TURNS:
            self._kept -= 4 * len(turns.pop(0).ids)
        while self._kept > MOST_KEPT and len(self._rollouts) > 1:
            _, dropped = self._rollouts.popitem(last=False)
            self._kept -= sum(4 * len(t.ids) for t in dropped)

    def before(self, call: Call) -> Turn | None:
        """Return the turn that a call continues: the longest whose messages and answer its messages begin with.

        A call with other tools continues none, since the turn's ids have the tools of its own call.
        """
        turns = self._rollouts.get((call.key.rollout, call.key.attempt))
        if not turns:
            return None
        digests = _digests(call)
        for turn in sorted(turns, key=lambda t: t.count, reverse=True):
            n = turn.count
            if n + 1 < len(digests) and digests[n - 1] == turn.digest and _same(turn.message, call.messages[n]):
                return turn
        return None


def _digests(call: Call) -> list[bytes]:
    """Return a digest of a call's tools and first message, of its tools and first two messages, and so on."""
    out, so_far = [], hashlib.sha256()
    for raw in (call.raw_tools, *call.raw_messages):
        so_far.update(len(raw).to_bytes(8, "big") + raw)
        out.append(so_far.digest())
    return out[1:]


def probes(messages: Sequence[Mapping[str, Any]], at: int) -> tuple[Messages, Messages, Messages]:
    """Return short conversations that show where the template writes the messages behind an answer.

    The first one is the beginning of a conversation, an answer in the form of the one at an index, and the messages
    behind it. In the second one the answer is empty, and in the third one the message behind the answer is another.
    """
    first = next((i + 1 for i, m in enumerate(messages[:at]) if m.get("role") == "user"), at)
    begin, answer, behind = messages[:first], messages[at], list(messages[at + 1 :])
    other = [{**behind[0], "content": "\u2042"}, *behind[1:]]
    return (
        [*begin, _saying(answer, "x"), *behind],
        [*begin, _saying(answer, ""), *behind],
        [*begin, _saying(answer, "x"), *other],
    )


def _saying(answer: Mapping[str, Any], word: str) -> dict[str, Any]:
    """Return an answer that ends with a word: in its text, or in the arguments of its last tool."""
    out = {name: value for name, value in answer.items() if name not in ("reasoning", "reasoning_content")}
    if not out.get("tool_calls"):
        return {**out, "content": word}
    *tools, last = out["tool_calls"]
    if "custom" in last:
        last = {**last, "custom": {**last["custom"], "input": word}}
    else:
        arguments = json.dumps({word: word} if word else {})
        last = {**last, "function": {**last["function"], "arguments": arguments}}
    return {**out, "tool_calls": [*tools, last]}


def continued(turn: Turn, rendered: Sequence[Sequence[int]], ends: Collection[int] = ()) -> list[int] | None:
    """Return the prompt that continues a turn: the turn's own ids, and the template's for the messages behind it.

    Args:
        turn: The turn.
        rendered: The ids of the three probes, each with the tokens that begin the next answer.
        ends: Tokens that end an answer, besides the turn's last one.

    Returns:
        The ids; None if the place of the messages is not certain.
    """
    whole, empty, other = (list(ids) for ids in rendered)
    low, high = len(whole) - _common(whole[::-1], empty[::-1]), _common(whole, other)
    if whole in (empty, other) or not 0 < low <= high:
        return None
    last = turn.ids[-1]
    for closing in ({last} if turn.ended else set(), set(ends)):
        at = next((i for i in range(high - 1, low - 1, -1) if whole[i] in closing), None)
        if at is not None:
            return [*turn.ids, *whole[at + (last in closing) :]]
    if turn.message.get("tool_calls"):
        return None  # behind the place are tokens that belong to the call
    return [*turn.ids, *whole[low:]]


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of tokens with which both begin."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def _same(said: Mapping[str, Any], came: Mapping[str, Any]) -> bool:
    """Report whether an agent sent an answer back with its meaning.

    Agents write arguments again, null as empty text and text as parts; they trim text, leave reasoning out, and name
    tool calls anew.
    """
    if came.get("role") != "assistant" or _text(said.get("content")) != _text(came.get("content")):
        return False
    if (said.get("refusal") or "") != (came.get("refusal") or ""):
        return False
    thought = [_text(m.get("reasoning_content") or m.get("reasoning")) for m in (said, came)]
    return thought[1] in ("", thought[0]) and _tools_of(said) == _tools_of(came)


def _text(content: Any) -> Any:
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        content = "".join(str(p.get("text") or "") for p in content)
    return content.strip() if isinstance(content, str) else content or ""


def _tools_of(message: Mapping[str, Any]) -> list[Any]:
    out = []
    for call in message.get("tool_calls") or ():
        named = call.get("function") or call.get("custom") or {}
        arguments: Any = named.get("arguments", named.get("input"))
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
        out.append((named.get("name"), arguments))
    return out
