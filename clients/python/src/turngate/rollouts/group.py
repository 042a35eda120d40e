"""Groups of rollouts that are complete, and evaluations."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..schema import Request, Result
from ..tasks.task import Task
from ..trajectory.finding import Finding
from ..trajectory.row import Row
from .failures import failure


@dataclass(slots=True)
class Group:
    """Group is the rollouts of one task that all have their results."""

    name: str
    """As in result.group."""
    number: int
    """Of the group in its loop, from 1 in the order of the tasks."""
    example: Any
    """The example of the data set; the path of a task directory."""
    task: Task | Request
    results: list[Result]
    """One for each rollout, by index; of a rollout that ran again the last one."""
    usable: list[Result] = field(default_factory=list)
    """The results to train on, by their treatment."""
    rows: list[Row] = field(default_factory=list)
    """The training rows of the usable results."""
    findings: list[Finding] = field(default_factory=list)
    """Errors and warnings about the rows."""
    again: int = 0
    """Number of rollouts that were submitted again."""
    dropped: int = 0
    """Number of earlier groups of this task that were too old."""
    newest: int | None = None
    """Largest number of a policy version that this client answered with until the group was complete."""

    def __repr__(self) -> str:
        known = ", ".join("?" if r is None else f"{r:g}" for r in self.rewards[:8]) + ", …" * (len(self.rewards) > 8)
        return f"<Group {self.name}: {len(self.results)} rollouts, rewards {known}, {len(self.rows)} rows>"

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each rollout; None: it is not known, which is not 0."""
        return [r.reward for r in self.results]

    @property
    def oldest(self) -> int | None:
        """Smallest number of a policy version that generated a trained token; None: none is known."""
        return min((row.oldest for row in self.rows if row.oldest is not None), default=None)

    def advantages(self, *, scale: bool = True) -> dict[str, float]:
        """Return the advantage of each usable rollout with a known reward: its distance from their mean, by id.

        Args:
            scale: Divide it by the standard deviation of these rewards, if that is not 0.
        """
        known = {r.id: r.reward for r in self.usable if r.reward is not None}
        if not known:
            return {}
        mean, deviation = statistics.fmean(known.values()), statistics.pstdev(known.values())
        by = deviation if scale and deviation else 1.0
        return {rollout: (reward - mean) / by for rollout, reward in known.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers about the group, for W&B, TensorBoard and others."""
        out: dict[str, float] = {
            "group": self.number,
            **_of_results(self.results),
            "rollouts/usable": len(self.usable),
            "rollouts/again": self.again,
            "groups/dropped": self.dropped,
            "rows": len(self.rows),
            "rows/errors": sum(f.level == "error" for f in self.findings),
            "tokens/trained": sum(sum(row.loss_mask) for row in self.rows),
        }
        if self.newest is not None and self.oldest is not None:
            out["versions/behind"] = self.newest - self.oldest
        return out


def _of_results(results: Sequence[Result]) -> dict[str, float]:
    rewards = [r.reward for r in results if r.reward is not None]
    calls = [c for r in results for c in r.calls.values()]
    out: dict[str, float] = {"rollouts": len(results), "rollouts/unknown": len(results) - len(rewards)}
    if rewards:
        out |= {"reward/mean": statistics.fmean(rewards), "reward/std": statistics.pstdev(rewards)}
        out |= {"reward/min": min(rewards), "reward/max": max(rewards)}
    out |= {f"failures/{kind}": n for kind, n in Counter(failure(r) for r in results).items() if kind != "none"}
    out["calls"] = sum(c.count for c in calls)
    out["tokens/prompt"] = sum(c.prompt_tokens for c in calls)
    out["tokens/completion"] = sum(c.completion_tokens for c in calls)
    agents = [p.ms for r in results for p in r.phases if p.name.rpartition("/")[2] == "agent"]
    if agents:
        out["seconds/agent"] = sum(agents) / 1000 / len(results)
    return out


@dataclass(slots=True)
class Evaluation:
    """Evaluation is the rollouts of all tasks of a data set."""

    groups: list[Group]
    """One for each task, in their order."""

    def __repr__(self) -> str:
        numbers = ", ".join(
            f"{name} {value:.3g}" for name, value in self.metrics.items() if "@" in name or "mean" in name
        )
        return f"<Evaluation of {len(self.groups)} tasks: {numbers}>"

    @property
    def results(self) -> list[Result]:
        """The results of all rollouts."""
        return [r for g in self.groups for r in g.results]

    @property
    def reward(self) -> float | None:
        """Mean of the known rewards; None: none is known."""
        return statistics.fmean(known) if (known := [r.reward for r in self.results if r.reward is not None]) else None

    def pass_at(self, k: int, *, passed: float = 1.0) -> float | None:
        """Estimate the chance that one of k rollouts of a task passes, without bias (Chen and others, 2021).

        Rollouts without a known reward do not count, and tasks with fewer than k others are left out.

        Args:
            k: Number of rollouts.
            passed: Smallest reward of a rollout that passed.

        Returns:
            The mean over the tasks; None: no task has k rollouts with a reward.
        """
        known = [[r for r in g.rewards if r is not None] for g in self.groups]
        chances = []
        for rewards in known:
            n, failed = len(rewards), sum(r < passed for r in rewards)
            if 0 < k <= n:
                chances.append(1 - math.comb(failed, k) / math.comb(n, k))
        return statistics.fmean(chances) if chances else None

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers about all rollouts, with pass@k for the powers of two up to the number of rollouts of a task."""
        out = {"tasks": float(len(self.groups)), **_of_results(self.results)}
        most = max((len(g.results) for g in self.groups), default=0)
        for k in (1 << i for i in range(most.bit_length())):
            chance = self.pass_at(k)
            if chance is not None:
                out[f"pass@{k}"] = chance
        return out
