"""Why a rollout ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from ..schema import Result
from .recorded_call import RecordedCall

Ending = Literal["stop", "length", "context", "cap", "timeout", "agent", "fault"]
"""The reason for which a rollout ended.

stop: the agent ended by itself, and all answers are whole. length: an answer to it or to a sub-agent was cut at its
largest length, the last one or one before. context: it ended after a call that was longer than the model's context.
cap: it reached the largest number of calls, of tokens or of repeats. timeout: it did not end in time. agent: it failed,
or ended with an error. fault: the rollout has no result of the agent's work.
"""

ENDINGS: tuple[Ending, ...] = get_args(Ending)

TRUNCATED: frozenset[Ending] = frozenset(("length", "context", "cap", "timeout"))
"""The endings that cut a rollout off, so that it may lack what the model would have done."""

_OF_AGENT: Mapping[str, Ending] = {
    "context_length_exceeded": "context",
    "call_cap": "cap",
    "token_cap": "cap",
    "repeats": "cap",
    "timeout": "timeout",
}


def ending(result: Result, calls: Iterable[RecordedCall]) -> Ending:
    """Return why a rollout ended, from its result and all its calls, which Rows.calls has."""
    if result.status != "done":
        return "fault"
    code = result.fault.code if result.fault is not None and result.fault.who == "agent" else ""
    if code in _OF_AGENT:
        return _OF_AGENT[code]
    if any(c.finish_reason == "length" and c.role in ("agent", "subagent") for c in calls):
        return "length"
    return "agent" if code else "stop"
