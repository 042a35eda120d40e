"""Facts about a recorded rollout that a trainer should know."""

from __future__ import annotations

import math
from array import array
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from .linked_call import LinkedCall
from .recorded_call import break_text
from .transcript_line import Answered

INFO = "info"
WARNING = "warning"
"""A reader should look at it; nothing is left out because of it."""
ERROR = "error"
"""A call is not trained on, or the transcript lacks a part."""

TOLERANCE = 1e-6
"""Largest log-prob above 0 that rounding explains."""


@dataclass(slots=True)
class Finding:
    """Finding is one fact. Its codes are those of docs/trajectories.md."""

    level: str
    """info, warning or error."""
    code: str
    call: int = 0
    """0: the rollout as a whole."""
    text: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON of the vectors has it, without the text."""
        out: dict[str, Any] = {"level": self.level, "code": self.code}
        return {**out, "call": self.call} if self.call else out


class Findings(list[Finding]):
    """Findings collects the facts about one rollout."""

    def add(self, level: str, code: str, call: int, text: str) -> None:
        self.append(Finding(level, code, call, text))

    def check_answer(self, c: LinkedCall, answered: Answered, roles: Container[str], without_logprobs: bool) -> None:
        """Decide whether an answer may be trained on."""
        n = c.call
        if not c.committed:
            c.untrained = "not_committed"
            self.add(INFO, "not_committed", n, f"the answer of call {n} did not reach the agent")
            return
        if c.tag not in roles:
            c.untrained = "role"
            return
        if not c.completion_tokens and answered.retained:
            c.untrained = "ids_retained"
            self.add(INFO, "ids_retained", n, f"the trainer keeps the ids of call {n}")
            return
        if not c.completion_tokens and c.has_ids and not answered.completion_tokens:
            self.add(WARNING, "empty_completion", n, f"the answer of call {n} has no tokens")
            return
        if not c.completion_tokens:
            self._bad(c, "ids_missing", "has no completion ids")
            return
        if not c.has_ids:
            self._bad(c, "prompt_ids_missing", "has completion ids, but no prompt ids")
            return
        c.trainable = True
        if c.finish_reason == "length":
            self.add(WARNING, "truncated", n, f"the answer of call {n} was cut at its largest length")
        self._check_ids(c, answered)
        reported = (answered.prompt_tokens, answered.completion_tokens)
        has = (c.prompt_tokens, c.completion_tokens)
        if any(t > 0 and t != h for t, h in zip(reported, has, strict=True)):
            text = f"call {n} reports {reported[0]} + {reported[1]} tokens and has {has[0]} + {has[1]} ids"
            self.add(WARNING, "usage", n, text)
        self._check_logprobs(c, without_logprobs)
        self._check_versions(c)

    def _bad(self, c: LinkedCall, code: str, text: str) -> None:
        c.trainable, c.untrained = False, c.untrained or code
        self.add(ERROR, code, c.call, f"call {c.call} {text}")

    def _check_ids(self, c: LinkedCall, answered: Answered) -> None:
        prompt = answered.prompt_ids
        if prompt.text.find("-", prompt.start, prompt.end) >= 0:
            at = _negative(prompt.ids())
            if at >= 0:
                self._bad(c, "id_negative", f"has a negative prompt id at place {at}")
                return
        at = _negative(c.completion)
        if at >= 0:
            self._bad(c, "id_negative", f"has a negative completion id at place {at}")

    def _check_logprobs(self, c: LinkedCall, without_logprobs: bool) -> None:
        values = c.logprobs
        if not values and without_logprobs:
            self.add(INFO, "logprobs_missing", c.call, f"call {c.call} has no log-probs")
        elif not values:
            self._bad(c, "logprobs_missing", "has no log-probs")
        elif len(values) != c.completion_tokens:
            text = f"has {len(values)} log-probs for {c.completion_tokens} completion ids"
            self._bad(c, "logprobs_length", text)
        elif not (max(values) <= TOLERANCE and min(values) > -math.inf):
            at = next(i for i, v in enumerate(values) if not math.isfinite(v) or v > TOLERANCE)
            if math.isfinite(values[at]):
                self._bad(c, "logprob_positive", f"has a log-prob of {values[at]:g}, at place {at}")
            else:
                self._bad(c, "logprob_not_finite", f"has a log-prob that is not finite, at place {at}")

    def _check_versions(self, c: LinkedCall) -> None:
        """Tell whether each completion id has one policy version."""
        at = 0
        for span in c.versions:
            if span.start != at or span.end < span.start:
                break
            at = span.end
        if c.versions and at != c.completion_tokens:
            text = f"the policy versions of call {c.call} do not cover its {c.completion_tokens} tokens once each"
            self.add(WARNING, "version_spans", c.call, text)

    def check_all(self, calls: list[LinkedCall], committed_known: bool, reward: float | None) -> None:
        """Add the findings about the rollout as a whole, and put all in the order of their calls."""
        last = 0
        for c in calls:
            self._check_call(c)
            if c.call > last + 1:
                self.add(WARNING, "gap", c.call, f"the transcript has no call between {last} and {c.call}")
            last = max(last, c.call)
        own = [c for c in calls if c.tag == "agent" and c.answered]
        if any(c.tools for c in own) and not any(c.said.tools for c in own):
            self.add(WARNING, "no_tool_calls", 0, "the agent offers tools and the model calls none")
        trained = [c for c in calls if c.row > 0 and c.trained]
        nameless = sum(not c.versions for c in trained)
        if nameless:
            self.add(INFO, "versions_missing", 0, f"{nameless} calls have no policy version")
        if not trained:
            self.add(ERROR, "nothing_to_train", 0, "no call can be trained on")
        if not committed_known:
            text = "without a result every answer counts as one that reached the agent"
            self.add(INFO, "committed_unknown", 0, text)
        elif reward is None:
            self.add(INFO, "reward_missing", 0, "the rollout has no reward")
        self.sort(key=lambda f: f.call or math.inf)

    def _check_call(self, c: LinkedCall) -> None:
        n = c.call
        if c.refused:
            self.add(INFO, "refused", n, f"call {n} got no answer: {c.fault}")
        elif not c.answered:
            self.add(WARNING, "unanswered", n, f"the transcript has no end of call {n}")
        elif c.merge == "realign":
            text = f"the prompt of call {n} has other tokens for the last {c.drift} of the answer before"
            self.add(INFO, "realigned", n, f"{text}; its own are context")
        elif c.merge == "fork" and c.reason in ("drift", "prompt"):
            self.add(WARNING, "prefix_mismatch", n, break_text(c))


def _negative(ids: array[int]) -> int:
    """Return the place of the first negative id; -1 if there is none."""
    if not ids or min(ids) >= 0:
        return -1
    return next(i for i, v in enumerate(ids) if v < 0)
