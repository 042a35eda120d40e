"""The recorded model calls of a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DISCARDED = "discarded"
"""Role of a call without an answer that reached the agent. Other roles are the tags of calls."""


@dataclass(slots=True, eq=False, repr=False)
class RecordedCall:
    """RecordedCall is a model call of a rollout that has ended."""

    call: int
    """1, 2, ...: its number in its attempt."""
    parent: int = 0
    """Number of the call that this one continues; 0: none."""
    role: str = ""
    """agent, subagent, aux or discarded."""
    merge: str = ""
    """How it joins its parent: root, clean, realign or fork."""
    reason: str = ""
    """Reason of a break: compaction, edit, subagent, aux, branch, drift, prompt or policy."""
    drift: int = 0
    """Tokens of the parent's path that the prompt does not begin with."""
    gen: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    trained_tokens: int = 0
    """Number of completion ids that a row trains."""
    trainable: bool = False
    """The model's tokens may be trained on. Rows.findings has the reasons against it."""
    untrained: str = ""
    """Reason for which no row trains the others; see Tokens."""

    tag: str = ""
    model: str = ""
    at: int = 0
    """Unix milliseconds of the request."""
    ms: int = 0
    """Duration in milliseconds."""
    fault: str = ""
    """Reason for which it got no answer."""

    def __repr__(self) -> str:
        tokens = f"{self.prompt_tokens} and {self.completion_tokens} tokens, {self.trained_tokens} trained"
        return f"<RecordedCall {self.call}: {self.role or '?'}, {self.fault or self.finish_reason or '?'}, {tokens}>"

    @property
    def trained(self) -> bool:
        """A row trains a token of the completion, or more."""
        return self.trained_tokens > 0

    def to_dict(self) -> dict[str, Any]:
        """Return the call as JSON of the vectors has it."""
        out: dict[str, Any] = {"call": self.call, "parent": self.parent, "role": self.role, "merge": self.merge}
        for name in ("reason", "drift", "gen", "finish_reason"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        out |= {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        out |= {"trained_tokens": self.trained_tokens, "trained": self.trained}
        return {**out, "untrained": self.untrained} if self.untrained else out


@dataclass(slots=True)
class Break:
    """Break is a place at which a row begins that is not the rollout's first."""

    call: int
    after: int
    """The call that it follows in its conversation; 0: none."""
    reason: str
    drift: int = 0
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the break as JSON of the vectors has it, without the text."""
        out: dict[str, Any] = {"call": self.call, "after": self.after, "reason": self.reason}
        return {**out, "drift": self.drift} if self.drift else out


def break_text(c: RecordedCall) -> str:
    """Return a sentence about the break before a call."""
    n, before, drift = c.call, c.parent, c.drift
    texts = {
        "compaction": f"call {n} begins with a shorter conversation than before",
        "edit": f"the agent changed an earlier message before call {n}",
        "subagent": f"call {n} begins the conversation of a sub-agent",
        "aux": f"call {n} begins the conversation of a helper",
        "branch": f"call {n} continues call {before}, as an earlier call does",
        "drift": f"the answer of call {before} has other token ids in the prompt of call {n}: {drift} tokens differ",
        "prompt": f"the prompt of call {n} differs from that of call {before} before its answer: {drift} tokens differ",
    }
    return texts.get(c.reason, f"call {n} has a row of its own")
