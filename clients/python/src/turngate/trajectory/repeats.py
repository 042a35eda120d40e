"""Calls that repeat a prompt or an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .finding import WARNING, Findings
from .linked_call import LinkedCall

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
        self.report(findings)
        self.first, self.calls = call, 1

    def report(self, findings: Findings) -> None:
        if self.calls >= REPEATS_FROM:
            text = f"{self.calls} calls one after the other, from call {self.first} on, have the same {self.what}"
            findings.add(WARNING, "repeats", self.first, text)


def repeats(calls: Iterable[LinkedCall], findings: Findings) -> None:
    """Tell of an agent that asks the same again and again, and of a model that answers its own turns the same.

    Titles and the turns of sub-agents may have the same answers.
    """
    before: dict[str, LinkedCall] = {}  # by tag
    prompts: dict[str, _Repetition] = {}
    answers = _Repetition("answer")
    for c in calls:
        if not c.answered or not c.committed:
            continue
        last = before.get(c.tag)
        if last is not None and not last.may_precede(c):
            last = None
        prompt = prompts.setdefault(c.tag, _Repetition("messages"))
        prompt.next(c.call, last is not None and c.turn is not None and c.turn is last.turn, findings)
        if c.tag == "agent":
            answers.next(c.call, last is not None and c.said.whole == last.said.whole, findings)
        before[c.tag] = c
    for repetition in (*prompts.values(), answers):
        repetition.report(findings)
