"""The links between the calls of a rollout."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass

from .linked_call import LinkedCall, new_hash, no_ids, with_ids
from .message_tree import Conversations
from .transcript_line import IDList

MOST_BACK = 4096
"""Messages before a call's last one among which its parent is looked for."""

MOST_TIPS = 8
"""Conversations that may take turns without their prompts being parsed from the beginning."""


@dataclass(slots=True)
class Prompt:
    """Prompt has the token ids of a prompt: those behind near's tokens, or all."""

    near: LinkedCall | None  # the prompt begins with all its tokens; None: ids has the whole prompt
    ids: array[int]
    list: IDList

    @property
    def known(self) -> int:
        """Number of tokens before ids."""
        return self.near.end if self.near else 0

    @property
    def size(self) -> int:
        return self.known + len(self.ids)

    def behind(self, kept: int) -> array[int]:
        """Return the ids behind the first kept tokens."""
        return self.ids[kept - self.known :]


class Linker:
    """Linker finds for each call the call that it continues."""

    def __init__(self, merge: str, max_lost: int) -> None:
        self.talk = Conversations()
        self._merge = merge
        self._max_lost = max_lost
        self._lengths: list[int] = []  # of the lists of tokens up to the end of a call, in order
        self._ends: dict[tuple[int, bytes], list[LinkedCall]] = {}  # by length and hash of this list, as asked
        self._tips: dict[LinkedCall, str] = {}  # text of these lists, the newest last
        self._packed: tuple[LinkedCall | None, bytes] = (None, b"")  # the last call of _tokens, and its tokens
        self._agent: LinkedCall | None = None  # the last one of the agent itself with an answer that it got

    def by_messages(self, c: LinkedCall) -> tuple[LinkedCall | None, bool]:
        """Return the call that c continues by its messages, and whether the answer in them is the model's."""
        turn, n = c.turn, 0
        found = None
        while turn is not None and turn.up is not None and n < MOST_BACK:
            if turn.assistant:
                for p in reversed(turn.up.calls[-MOST_BACK:]):
                    if p is c or not p.may_precede(c):
                        continue
                    if p.said.text == turn.text:
                        return p, True
                    if found is None:
                        found = p
                if found is not None:
                    return found, False
            turn, n = turn.up, n + 1
        return None, False

    def read(self, ids: IDList, before: LinkedCall | None) -> Prompt:
        """Read a prompt's ids. If it begins with the tokens of the call before, only the rest is parsed.

        Raises:
            ShapeError: They are no ids.
        """
        near = with_ids(before)
        text = self._tips.get(near) if near is not None else None
        if text is not None:
            rest = ids.after(text)
            if rest is not None:
                return Prompt(near, rest, ids)
        return Prompt(None, ids.ids(), ids)

    def link(self, c: LinkedCall, prompt: Prompt, before: LinkedCall | None, same: bool) -> None:
        """Find the call's parent, and keep the tokens that the parent's row lacks."""
        self._join(c, prompt, before, same)
        if c.merge != "root" and self._merge == "fork" and c.up is not None:
            c.up, c.kept, c.drift, c.merge, c.reason = None, 0, 0, "fork", "policy"
        if c.tag == "agent" and c.answered and c.committed:
            self._agent = c
        if not c.has_ids:
            return
        if c.kept < prompt.known:  # a fork: its row has the whole prompt
            prompt = Prompt(None, prompt.list.ids(), prompt.list)
        self._grow(c, prompt)
        if c.committed:
            if (c.end, c.hash.digest()) not in self._ends:
                at = bisect_left(self._lengths, c.end)
                if at == len(self._lengths) or self._lengths[at] != c.end:
                    insort(self._lengths, c.end)
            insort(self._ends.setdefault((c.end, c.hash.digest()), []), c, key=lambda c: c.index)

    def _grow(self, c: LinkedCall, prompt: Prompt) -> None:
        p = with_ids(c.up)
        begin = new_hash()
        if p is not None and c.kept == p.end:
            begin = p.hash.copy()
            self._tips.pop(p, None)
        elif p is not None:
            begin.update(self._tokens(p)[: 4 * c.kept])
        c.add_tokens(prompt.behind(c.kept), begin)
        if len(self._tips) == MOST_TIPS:
            del self._tips[next(iter(self._tips))]
        self._tips[c] = prompt.list.with_more(c.completion)

    def _tokens(self, c: LinkedCall) -> bytes:
        """Return the packed tokens of a call's row up to the end of its completion."""
        known, begin = self._packed
        path, p = [], with_ids(c)
        while p is not None and p is not known:
            path.append(p)
            p = with_ids(p.up)
        out = bytearray(begin if p is not None else b"")
        for p in reversed(path):
            del out[4 * p.kept :]
            out += memoryview(p.fresh).cast("B")
            out += memoryview(p.completion).cast("B")
        self._packed = c, bytes(out)
        return self._packed[1]

    def _by_tokens(self, c: LinkedCall, prompt: Prompt) -> LinkedCall | None:
        """Return the call with the longest list of tokens that the prompt continues; of several the last one."""
        best, known = prompt.near, prompt.known
        total = best.hash.copy() if best is not None else new_hash()
        packed, done = memoryview(prompt.ids), 0
        for i in range(bisect_left(self._lengths, known), len(self._lengths)):
            length = self._lengths[i]
            if length > prompt.size:
                break
            total.update(packed[done : length - known])
            done = length - known
            for p in reversed(self._ends.get((length, total.digest()), ())):
                if not p.may_precede(c) or (best is not None and best.end == length and best.index >= p.index):
                    continue
                best = p
                break
        return best

    def _join(self, c: LinkedCall, prompt: Prompt, before: LinkedCall | None, same: bool) -> None:
        near = with_ids(before)
        if c.has_ids:
            p = self._by_tokens(c, prompt)
            if p is not None and not (same and self._drifted(before, near, p, prompt)):
                kept = p.end
                # Calls without ids may lie between the two.
                c.join(before if before is not None and near is p else p, kept, 0, "clean")
                return
        if before is None:
            self._begin(c)
        elif not c.has_ids or near is None:
            if same:
                c.join(before, 0, 0, "clean")
            else:
                c.leave(before, 0, "edit")
        else:
            kept = common(self._tokens(near), memoryview(prompt.ids).cast("B"))
            drift = near.end - kept
            in_answer = kept >= near.begin_of_answer
            if in_answer and self._merge == "realign" and (drift <= self._max_lost or not near.trainable):
                c.join(before, kept, drift, "realign")
            elif not same:
                c.leave(before, drift, "edit")
            else:
                c.leave(before, drift, "drift" if in_answer else "prompt")

    def _drifted(self, before: LinkedCall | None, near: LinkedCall | None, p: LinkedCall, prompt: Prompt) -> bool:
        """Report whether the prompt differs from the tokens of near, and before stands later than p.

        near has the tokens of before, and the prompt begins with all tokens of p. The place of p is not known without
        its messages.
        """
        if before is None or near is None or near is p or prompt.near is near:
            return False
        if p.turn is None or before.messages <= p.messages:
            return False
        return common(self._tokens(near), memoryview(prompt.ids).cast("B")) < near.end

    def _begin(self, c: LinkedCall) -> None:
        """Begin a conversation."""
        c.merge = "root"
        agent = self._agent
        if c.tag in ("aux", "subagent"):
            c.reason = c.tag
        elif agent is not None and agent.ended < c.asked and c.turn is not None:
            c.merge, c.parent = "fork", agent.call
            shared = self.talk.shared(c.turn, agent.turn or self.talk.root)
            if shared == c.messages:
                c.reason = "branch"
            else:
                c.reason = "compaction" if c.messages <= agent.messages else "edit"


def common(a: bytes, b: memoryview[int]) -> int:
    """Return the number of tokens with which both packed lists begin."""
    low, high = 0, min(len(a), len(b)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if a[4 * low : 4 * middle] == b[4 * low : 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low


def no_prompt() -> Prompt:
    """Return the prompt of a call without ids."""
    return Prompt(None, no_ids(), IDList())
