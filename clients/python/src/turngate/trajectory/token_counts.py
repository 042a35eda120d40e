"""Counts of the tokens that the model sampled."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from .linked_call import LinkedCall

CUT = "tokens_lost"
"""Reason for which tokens are not trained: the next prompt of the row has other tokens for the end of the answer."""

_MOST = (1 << 31) - 1


@dataclass(slots=True)
class Untrained:
    """Untrained counts sampled tokens that are not trained for one reason: role, or the code of a finding."""

    reason: str
    calls: int = 0
    tokens: int = 0
    """0 for calls without ids and usage."""


@dataclass(slots=True)
class Tokens:
    """Tokens counts the tokens that the model sampled in calls of the chosen roles. Usually all are trained."""

    sampled: int = 0
    """Number of completion ids, and for calls without ids the number that their usage reports."""
    trained: int = 0
    """Number of tokens with a loss mask of 1 in all rows."""
    untrained: list[Untrained] = field(default_factory=list)
    """The others by their reasons, in the order of these."""
    others: int = 0
    """Number of sampled tokens in calls of other roles."""

    def __str__(self) -> str:
        text = f"{self.trained} of {self.sampled} sampled tokens trained"
        if self.sampled:
            text += f" ({self.trained * 100 // self.sampled} %)"
        if self.untrained:
            parts = [f"{u.tokens} in {u.calls} call{'s' * (u.calls != 1)} ({u.reason})" for u in self.untrained]
            text += f"; not trained {', '.join(parts)}"
        return f"{text}; {self.others} of other roles" if self.others else text

    def to_dict(self) -> dict[str, Any]:
        """Return the counts as JSON of the vectors has them."""
        out: dict[str, Any] = {"sampled": self.sampled, "trained": self.trained}
        if self.untrained:
            out["untrained"] = [{"reason": u.reason, "calls": u.calls, "tokens": u.tokens} for u in self.untrained]
        return {**out, "others": self.others} if self.others else out


def count(calls: Iterable[LinkedCall], roles: Container[str]) -> Tokens:
    """Count the tokens of all answers."""
    out, reasons = Tokens(), dict[str, Untrained]()
    for c in calls:
        sampled = c.completion_tokens or min(max(c.used, 0), _MOST)
        if c.tag not in roles:
            out.others += sampled
            continue
        if c.trainable and not c.row:
            c.untrained = "too_many_rows"
        out.sampled += sampled
        out.trained += c.trained_tokens
        if c.untrained:
            u = reasons.setdefault(c.untrained, Untrained(c.untrained))
            u.calls += 1
            u.tokens += sampled - c.trained_tokens
    out.untrained = [reasons[name] for name in sorted(reasons)]
    return out
