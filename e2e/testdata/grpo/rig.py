"""Trains the policy of examples/grpo on two workers, kills one of them, and checks rows, log-probs and versions."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "grpo"))

import torch
from fleet import TRAINER, Fleet, fleet
from learner import Learner, batch_of
from policy import COLOURS, TURNS, Policy
from train import task_of

from turngate import Call, Client, Group, Reply


@dataclass
class Counts:
    """Counts of the whole run."""

    groups: int = 0
    results: set[str] = field(default_factory=set)
    again: int = 0  # results of a second attempt
    unknown: int = 0  # results without a reward
    errors: int = 0  # findings about rows
    updates: int = 0
    mixed: int = 0  # rows with tokens of two policy versions
    differences: list[torch.Tensor] = field(default_factory=list)

    def add(self, group: Group) -> None:
        self.groups += 1
        ids = {r.id for r in group.results}
        assert len(ids) == 8, group
        assert not ids & self.results, f"a rollout of {group} has two results"
        self.results |= ids
        self.again += sum(r.attempt > 1 for r in group.results)
        self.unknown += sum(r.reward is None for r in group.results)
        self.errors += sum(f.level == "error" for f in group.findings)
        self.mixed += sum(len(set(row.versions) - {-1}) > 1 for row in group.rows)


class Run:
    """Run trains one seed after the other."""

    def __init__(self, client: Client, fleet: Fleet) -> None:
        self.client = client
        self.fleet = fleet
        self.counts = Counts()
        self._policy = Policy(0)
        self._commanded = asyncio.Event()  # an agent got a command, after whose output it calls again
        client.serve(self._answer)

    async def _answer(self, call: Call) -> Reply:
        reply = await self._policy.answer(call)
        if reply.finish_reason == "tool_calls":
            self._commanded.set()
        return reply

    async def train(self, seed: int, steps: int, kill: bool) -> None:
        """Train one seed for some steps."""
        self._policy = Policy(seed)
        learner, rewards, batch = Learner(self._policy), list[float](), list[Group]()
        groups = self.client.groups(
            COLOURS, n=8, ahead=2 * len(COLOURS), epochs=steps, load=task_of, agent="mini", sandbox="local",
            max_turns=TURNS,
        )  # fmt: skip
        async for group in groups:
            self.counts.add(group)
            batch.append(group)
            if len(batch) < len(COLOURS):
                continue
            await self._hold()
            if kill and len(rewards) == 1 and steps > 3:  # with fewer steps, no group may run by then
                await self._lose_second()
            known = [r for g in batch for r in g.rewards if r is not None]
            rewards.append(sum(known) / len(known))
            data = batch_of(batch)
            self.counts.differences.append(await asyncio.to_thread(learner.differences, data))
            self._policy.load(await asyncio.to_thread(learner.train, data))
            await self.client.resume()
            self.counts.updates += 1
            batch.clear()
        print(f"seed {seed}: mean reward of each step {' '.join(f'{r:.2f}' for r in rewards)}", flush=True)

    async def _hold(self) -> None:
        """Make the agents' calls wait, soon after one of them was answered."""
        self._commanded.clear()
        with contextlib.suppress(asyncio.TimeoutError):  # no agent may be left
            await asyncio.wait_for(self._commanded.wait(), 1)  # the next call of this agent is held
        await self.client.hold()

    async def _lose_second(self) -> None:
        """Kill the second worker when both workers have rollouts, and start it again. The rollouts' calls wait."""
        while not all(worker.busy for worker in (await self.client.fleet()).workers):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await self.fleet.kill_second()
        print("worker second was killed in the middle of its rollouts", flush=True)
        await self.fleet.start_second()

    def report(self) -> None:
        """Print the counts."""
        c, differences = self.counts, torch.cat(self.counts.differences)
        print(f"log-probs: {len(differences)} tokens computed again, "
              f"largest difference {differences.max():.1e}, mean {differences.mean():.1e}")  # fmt: skip
        print(f"weights: {c.updates} updates between hold and resume, {c.mixed} rows with tokens of several versions")
        print(f"rollouts: {c.groups} groups, {len(c.results)} results, {c.again} of a second attempt, "
              f"{c.unknown} without a reward, {c.errors} errors in rows")  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turngate", required=True, help="the binary")
    parser.add_argument("--seeds", type=int, default=3, help="training runs, each with a policy of its own")
    parser.add_argument("--steps", type=int, default=10, help="updates of the weights in each")
    parser.add_argument("--slots", type=int, default=3, help="rollouts at once on each of the two workers")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the other core runs the agents
    with tempfile.TemporaryDirectory(prefix="turngate-grpo-") as state:
        async with (
            fleet(args.turngate, Path(state), args.slots) as f,
            await Client.connect(f.url, f.creds, TRAINER) as client,
        ):
            run = Run(client, f)
            for seed in range(1, args.seeds + 1):
                await run.train(seed, args.steps, kill=seed == 1)
            run.report()


if __name__ == "__main__":
    asyncio.run(main())
