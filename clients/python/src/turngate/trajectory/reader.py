"""From a rollout's transcript to its training rows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import InvalidError, ShapeError
from ..schema import Result
from ..wire import names
from . import transcript
from .finding import ERROR, INFO, WARNING, Finding, Findings
from .linked_call import LinkedCall
from .linker import Linker, no_prompt
from .recorded_call import DISCARDED, Break, RecordedCall, break_text
from .repeats import repeats
from .row import Row
from .said import said
from .token_counts import CUT, Tokens, count
from .transcript_line import Answered, Asked, Line, read_line
from .versions import number

MOST_CALLS = 32_768
MOST_KEPT = 512 << 20
"""Bytes of token ids and log-probs of one rollout in memory."""
MOST_POSITIONS = 256 << 20
"""Tokens in all rows of a rollout together."""

_PER_CALL = 2048
_PER_TURN = 256

DEFAULT_ROLES = ("agent", "subagent")


def rows(
    recording: bytes | str | os.PathLike[str],
    result: Result | None = None,
    *,
    merge: str = "realign",
    max_lost: int = 0,
    roles: Iterable[str] = DEFAULT_ROLES,
    without_logprobs: bool = False,
) -> Rows:
    """Return the training rows of a rollout. docs/trajectories.md has the rules.

    Client.rows reads the transcript of a result from the server and calls this.

    Args:
        recording: A transcript in its stored form (transcript.jsonl.zst), or the path of one.
        result: The rollout's result. Without one every answer counts as committed, and the reward is not known.
        merge: The loosest way in which a call may join a row: clean, realign or fork.
        max_lost: Largest number of sampled tokens of one answer that a row may leave out of training because the next
            prompt has other tokens for them. If it would leave out more, a row begins with the next call.
        roles: Roles of the calls to train on: agent, subagent, aux.
        without_logprobs: Train on answers that have no log-probs, too. Their log-probs in rows are 0.

    A transcript that is damaged, or that the agent made unreadable, is no error: the rows end there, and findings have
    the reason.

    Raises:
        InvalidError: An option is not valid.
        OSError: The file cannot be read.
    """
    chosen = list(roles)
    if merge not in ("clean", "realign", "fork"):
        raise InvalidError("merge", merge, "want clean, realign or fork")
    if max_lost < 0:
        raise InvalidError("max_lost", max_lost, "want a number of tokens of 0 or more")
    for role in chosen:
        if role not in ("agent", "subagent", "aux"):
            raise InvalidError("roles", role, "want agent, subagent or aux")
    data = recording if isinstance(recording, bytes) else Path(recording).read_bytes()
    reader = _Reader(result, Linker(merge, max_lost), chosen, without_logprobs)
    reader.read(transcript.raw_lines(data))
    return reader.out


class Rows:
    """Rows are the training rows of one rollout, each made when it is asked for, and what was found in its recording.

    A rollout without a model call has no rows.
    """

    def __init__(self, result: Result | None) -> None:
        r = result or Result()
        self.rollout, self.attempt, self.group, self.index = r.id, r.attempt, r.group, r.index
        self.task, self.reward = r.task, r.reward
        self.calls: list[RecordedCall] = []
        """The model calls in the order of their requests, linked to a tree by parent."""
        self.tokens = Tokens()
        """Counts of the sampled and the trained tokens. Usually all are trained."""
        self.breaks: list[Break] = []
        """The places at which a row begins that is not the first, with their reasons."""
        self.findings: list[Finding] = []
        """Facts that a trainer should know; those of the level error keep calls out of the rows."""
        self._leaves: list[LinkedCall] = []
        self._numbers: dict[str, int] = {}  # of policy versions

    @property
    def errors(self) -> list[Finding]:
        """The findings of the level error."""
        return [f for f in self.findings if f.level == ERROR]

    def __len__(self) -> int:
        return len(self._leaves)

    def __repr__(self) -> str:
        reward = "unknown" if self.reward is None else f"{self.reward:g}"
        facts = f"{len(self)}, reward {reward}, {self.tokens}, {len(self.errors)} errors"
        return f"<Rows of {self.rollout or '?'}: {facts}>"

    def __iter__(self) -> Iterator[Row]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, at: int) -> Row:
        n = at if at >= 0 else at + len(self)
        leaf = self._leaves[at]
        row = Row(self.rollout, self.attempt, self.group, self.index, self.task, n, leaf.role, self.reward)
        path = []
        p: LinkedCall | None = leaf
        while p is not None:
            path.append(p)
            p = p.up
        for c in reversed(path):
            row._put(c, self._numbers)
        return row


class _EnoughError(Exception):
    """The rollout is larger than the bounds of a reader."""


class _Reader:
    def __init__(self, result: Result | None, linker: Linker, roles: list[str], without_logprobs: bool) -> None:
        self.out = Rows(result)
        self._committed = {k.call: k.gen for k in result.committed} if result is not None else None
        self._linker = linker
        self._roles = roles
        self._without_logprobs = without_logprobs
        self._findings = Findings()
        self.out.findings = self._findings
        self._calls: dict[int, LinkedCall] = {}
        self._kept = 0
        self._lines = 0
        self._last = 0

    def read(self, lines: Iterable[bytes]) -> None:
        try:
            for data in lines:
                self._line(read_line(data))
        except _EnoughError:
            text = f"the calls after call {self._last} are left out: the rollout is larger than the bounds of a reader"
            self._findings.add(ERROR, "too_large", 0, text)
        except ShapeError as e:
            self._findings.add(ERROR, "transcript_broken", 0, f"the rest is left out: {e}")
        self._finish()

    def _keep(self, size: int) -> None:
        self._kept += size
        if self._kept > MOST_KEPT:
            raise _EnoughError

    def _line(self, line: Line) -> None:
        self._lines += 1
        if line.left_out > 0:
            text = f"the transcript had no room for its last {line.left_out} lines"
            self._findings.add(ERROR, "transcript_truncated", 0, text)
        elif line.request is not None:
            self._began(line, line.request)
        elif not line.tool and (line.reply is not None or line.fault is not None):
            self._ended(line)

    def _began(self, line: Line, q: Asked) -> None:
        """Add a call."""
        n, calls = line.call, self._calls
        if n in calls:
            self._findings.add(WARNING, "duplicate", n, f"the transcript has call {n} twice; the first one counts")
            return
        if len(calls) == MOST_CALLS:
            raise _EnoughError
        c = LinkedCall(n, role=q.tag, tag=q.tag, model=q.model, at=line.at, index=len(calls), asked=self._lines)
        self._whose(c, q.key)
        base = calls.get(q.base)
        talk = self._linker.talk
        if not q.base and not q.keep:
            c.turn = talk.root
        elif base is None or base.turn is None or not 0 <= q.keep <= base.messages:
            text = f"the messages of call {n} are not known: it begins with {q.keep} messages of call {q.base}"
            self._findings.add(ERROR, "base_missing", n, text)
        else:
            c.turn, c.tools = talk.back(base.turn, q.keep), base.tools
        if q.tools:
            c.tools = q.tools != "[]"
        self._keep(_PER_CALL + _PER_TURN * len(q.messages))
        if c.turn is not None:
            for value, raw in q.messages:
                c.turn = talk.add(c.turn, value, raw)
            c.messages = c.turn.count
            c.turn.calls.append(c)
        calls[n], self._last = c, n

    def _whose(self, c: LinkedCall, key: str) -> None:
        """Compare a call's key with the rollout's id and attempt. The first key sets them."""
        out = self.out
        rollout, attempt = _owner(key)
        if not rollout:
            return
        if not out.rollout:
            out.rollout, out.attempt = rollout, attempt
        if (rollout, attempt) != (out.rollout, out.attempt):
            text = f"call {c.call} belongs to attempt {attempt} of rollout {rollout}"
            self._findings.add(ERROR, "other_rollout", c.call, text)

    def _ended(self, line: Line) -> None:
        """Add a call's answer and link the call."""
        n, c = line.call, self._calls.get(line.call)
        if c is None:
            self._findings.add(ERROR, "base_missing", n, f"the transcript lacks the request of call {n}")
            return
        if c.answered or c.refused:
            text = f"the transcript has the end of call {n} twice; the first one counts"
            self._findings.add(WARNING, "duplicate", n, text)
            return
        if line.reply is None:
            c.gen, c.ms, c.refused = line.gen, line.ms, True
            c.fault = str((line.fault or {}).get("message") or "")
            return
        self._answered(c, line, line.reply)

    def _answered(self, c: LinkedCall, line: Line, q: Answered) -> None:
        c.said = said(q.message)
        before, same = self._linker.by_messages(c)
        prompt = self._linker.read(q.prompt_ids, before)
        c.gen, c.ms = line.gen, line.ms
        c.answered, c.ended, c.finish_reason, c.versions = True, self._lines, q.finish_reason, q.versions
        c.committed = self._committed is None or self._committed.get(c.call) == c.gen
        c.prompt_tokens, c.completion_tokens = prompt.size, len(q.completion_ids)
        c.used = q.completion_tokens
        c.completion, c.logprobs = q.completion_ids, q.logprobs
        c.has_ids = prompt.size > 0
        self._findings.check_answer(c, q, self._roles, self._without_logprobs)
        self._linker.link(c, prompt, before, same)
        self._keep(4 * (len(c.fresh) + len(c.completion) + len(c.logprobs)) + 64 * len(c.versions))

    def _finish(self) -> None:
        """Link the calls without an answer and find the rows."""
        calls = list(self._calls.values())
        self.out.calls = [*calls]
        for c in calls:
            if not c.answered:
                before, same = self._linker.by_messages(c)
                self._linker.link(c, no_prompt(), before, same)
            if not c.committed:
                c.role = DISCARDED
        self._find_rows(calls)
        self.out.tokens = count(calls, self._roles)
        repeats(calls, self._findings)
        self._findings.check_all(calls, self._committed is not None, self.out.reward)

    def _find_rows(self, calls: list[LinkedCall]) -> None:
        """Find the last call of each row, and the row that trains each call: the first one that has it.

        Rows of the agent itself come first.
        """
        out = self.out
        for c in reversed(calls):  # a parent lies before its children
            if (c.continued or c.trainable) and c.up is not None:
                c.up.continued = True
        ends = [c for c in calls if c.trainable and not c.continued]
        positions = 0
        for c in sorted(ends, key=lambda c: c.tag != "agent"):
            positions += c.end
            if positions > MOST_POSITIONS:
                text = f"the rows from call {c.call} on are left out: all rows have more than {MOST_POSITIONS} tokens"
                self._findings.add(ERROR, "too_many_rows", c.call, text)
                break
            out._leaves.append(c)
            n = len(out._leaves)
            first, p = c, c
            while p is not None and not p.row:
                p.row, first = n, p
                p = p.up  # type: ignore[assignment]
            self._train(c, n)
            if first.up is not None:
                first.reason = "branch"
            if first.reason and n > 1:
                out.breaks.append(Break(first.call, first.parent, first.reason, first.drift, break_text(first)))
        self._number()
        for n, c in enumerate(out._leaves, 1):
            self._mixed(n, c)

    def _train(self, leaf: LinkedCall, row: int) -> None:
        """Count the tokens that a row trains of each call. The prompt of the next call may cut an answer."""
        after: LinkedCall | None = None  # the next call with ids in the row
        p: LinkedCall | None = leaf
        while p is not None and p.row == row:
            if p.trainable:
                size = p.completion_tokens
                lost = p.end - after.kept if after is not None else 0
                p.trained_tokens = size - lost
                if after is not None and lost:
                    p.untrained = CUT
                    text = f"{lost} of the {size} sampled tokens of call {p.call} are not trained"
                    text += f": the prompt of call {after.call} has other tokens for them"
                    self._findings.add(WARNING, CUT, p.call, text)
            if p.has_ids:
                after = p
            p = p.up

    def _number(self) -> None:
        """Give policy versions numbers: those at the ends of their names if they differ, otherwise 0, 1, ..."""
        numbers: dict[str, int] = {}
        digits = True
        for c in self._calls.values():
            for v in c.versions if c.row and c.trained else ():
                if v.version not in numbers:
                    n = number(v.version)
                    digits = digits and n is not None and n not in numbers.values()
                    numbers[v.version] = n or 0
        if not digits:
            numbers = {name: i for i, name in enumerate(numbers)}
            text = "the names of the policy versions do not end in numbers that differ; they are numbered from 0"
            self._findings.add(INFO, "versions_numbered", 0, f"{text} in the order of the calls")
        self.out._numbers = numbers

    def _mixed(self, row: int, leaf: LinkedCall) -> None:
        """Tell of a row that trains on several policy versions."""
        seen: set[str] = set()
        p: LinkedCall | None = leaf
        while p is not None and p.row == row:
            if p.trained:
                seen |= {v.version for v in p.versions if v.end > v.start}
            p = p.up
        if len(seen) > 1:
            text = ", ".join(sorted(seen)[:10])
            text = f"the row that ends with call {leaf.call} has tokens of the policy versions {text}"
            self._findings.add(WARNING, "versions_mixed", leaf.call, text)


_COUNT = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)


def _owner(key: str) -> tuple[str, int]:
    """Return the rollout and the attempt of a key; an empty rollout if it is none."""
    rollout, attempt, call = key.split("/") if key.count("/") == 2 else ("", "", "")
    if not _COUNT.fullmatch(attempt) or not _COUNT.fullmatch(call) or max(int(attempt), int(call)) > 1 << 30:
        return "", 0
    try:
        return names.check_id(rollout), int(attempt)
    except InvalidError:
        return "", 0
