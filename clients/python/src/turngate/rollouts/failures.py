"""Kinds of failures of rollouts, and the use that a trainer makes of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..schema import Fault, Result

Failure = Literal[
    "none",
    "agent",
    "context",
    "agent_timeout",
    "no_calls",
    "refused",
    "no_reward",
    "infrastructure",
    "task",
    "cancelled",
]
"""A kind of failure.

none: a reward is known, several are without a headline, or the request has no verifier. The trainer finds the reward
itself in the last two cases, since result.reward is None. agent: as none, but the agent failed or reached a cap.
context: as agent, since the conversation was longer than the model's context.
agent_timeout: the agent did not end in time. no_calls: the agent ended without a call to its model, so the reward is
not the model's. refused: the agent ended after a refused model call, so the reward is not the model's.
no_reward: the agent ended, and the verifier gave no reward.
infrastructure: the worker, the sandbox or the trainer failed; workers have tried the rollout again by then, where that
helps. task: a failure of the task or the request, which a new try has, too.
"""

Treatment = Literal["train", "mask", "again"]
"""train; mask: leave its tokens out of the loss; again: submit its request again, under another id."""

TREATMENTS: Mapping[Failure, Treatment] = {
    "none": "train",
    "agent": "train",
    "context": "train",
    "agent_timeout": "mask",
    "no_calls": "mask",
    "refused": "mask",
    "no_reward": "again",
    "infrastructure": "again",
    "task": "mask",
    "cancelled": "mask",
}
"""The policy of SkyRL's generator for Harbor: a rollout whose context is full is trained on with its reward, one whose
agent did not end in time, called no model or ended after a refused call is masked, and without a reward, or if the
infrastructure failed, a rollout is run again. SkyRL tries twice in all; see Client.submit_again. In difference to it, a
failure of the task is masked at once, a rollout whose context is full keeps its own reward (there it is 0), and a
rollout that failed masks only itself (there all rollouts of its prompt). AReaL rejects a rollout without a reward, and
neither masks it nor tries it again.
"""


def failure(result: Result) -> Failure:
    """Return the kind of a result's failure."""
    fault, done = result.fault or Fault(code=""), result.status == "done"
    if result.status == "cancelled":
        return "cancelled"
    if result.status == "dead":
        return "infrastructure"
    if done and (fault.stage, fault.code) == ("agent", "timeout"):
        return "agent_timeout"
    if done and (fault.stage, fault.code) == ("agent", "no_calls"):
        return "no_calls"
    if done and (fault.stage, fault.code) == ("agent", "refused"):
        return "refused"
    if done and result.reward is None and not result.rewards and _verified(result, fault):
        return "no_reward"
    if done and (fault.stage, fault.code) == ("agent", "context_length_exceeded"):
        return "context"
    if done:
        return "agent" if fault.who == "agent" else "none"
    if fault.who in ("worker", "sandbox", "trainer"):
        return "infrastructure"
    return "no_reward" if fault.stage == "verify" else "task"


def _verified(result: Result, fault: Fault) -> bool:
    """Report whether a verifier ran, or should have."""
    names = ["/" + phase.name for phase in result.phases]  # that of a step is step/<name>/verify
    return bool(result.separation) or fault.stage == "verify" or any(name.endswith("/verify") for name in names)


def treatment(result: Result, policy: Mapping[Failure, Treatment] = TREATMENTS) -> Treatment:
    """Return the treatment of a result. A kind of failure that the policy lacks is masked."""
    return policy.get(failure(result), "mask")
