"""Calls that repeat a prompt or an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .finding import WARNING, Findings
from .linker import may_precede
from .recorded import RecordedCall

REPEATS_FROM = 5
"""Number of calls one after the other from which a repetition is a finding."""


@dataclass(slots=True)
class _Repetition:
    """A number of calls with the same tag one after the other, each asked after the answer before, that have something
    in common.
    """

    what: str
    first: int = 0
    calls: int = 0

    def next(self, call: int, same: bool, findings: Findings) -> None:
        """Add a call."""
        if same:
            self.calls += 1
            return
        self.tell(findings)
        self.first, self.calls = call, 1

    def tell(self, findings: Findings) -> None:
        if self.calls >= REPEATS_FROM:
            text = f"{self.calls} calls one after the other, from call {self.first} on, have the same {self.what}"
            findings.add(WARNING, "repeats", self.first, text)


@dataclass(slots=True)
class _Talk:
    last: RecordedCall | None = None
    prompt: _Repetition = field(default_factory=lambda: _Repetition("messages"))
    answers: _Repetition = field(default_factory=lambda: _Repetition("answer"))


def repeats(calls: Iterable[RecordedCall], findings: Findings) -> None:
    """Tell of an agent that asks the same again and again, and of a model that answers the same."""
    talks: dict[str, _Talk] = {}  # by tag
    for c in calls:
        if not c._answered or not c._committed:
            continue
        talk = talks.setdefault(c.tag, _Talk())
        last = talk.last if talk.last is not None and may_precede(talk.last, c) else None
        talk.prompt.next(c.call, last is not None and c._turn is not None and c._turn is last._turn, findings)
        talk.answers.next(c.call, last is not None and c._said.whole == last._said.whole, findings)
        talk.last = c
    for talk in talks.values():
        talk.prompt.tell(findings)
        talk.answers.tell(findings)
