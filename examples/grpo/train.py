"""GRPO with turngate: a tiny policy learns a shell task through the agent mini. README.md tells what it shows."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import copy
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from fleet import TRAINER, Fleet, fleet
from learner import Learner, batch_of
from policy import COLOURS, TURNS, Policy

from turngate import Call, Client, Reply, Request, Result, Row, Task

HERE = Path(__file__).parent
GROUP = 8
"""Rollouts of a group. A group is one instruction."""

AHEAD = 2
"""Steps for which rollouts are queued or run at once."""


@dataclass
class Counts:
    """Counts of the whole run."""

    submitted: int = 0
    results: int = 0
    again: int = 0  # results of a second attempt
    unknown: int = 0  # results without a reward
    errors: int = 0  # findings about rows
    updates: int = 0
    mixed: int = 0  # rows with tokens of two policy versions
    differences: list[torch.Tensor] = field(default_factory=list)


class Seed:
    """Seed is one training run: a policy, its learner, and the groups that are not complete."""

    def __init__(self, seed: int, counts: Counts) -> None:
        self.seed = seed
        self.policy = Policy(seed)
        self.rewards: list[float] = []  # mean reward of each step
        self._learner = Learner(self.policy)
        self._counts = counts
        self._asked = 0
        self._results: dict[str, list[Result]] = {}
        self._rows: dict[str, list[Row]] = {}
        self.complete: list[str] = []

    def requests(self, template: Request, client: Client) -> list[Request]:
        """Return the requests of the next step: a group for each colour."""
        out = []
        for colour in COLOURS:
            self._asked += 1
            group = f"seed{self.seed}-group{self._asked}"
            for index in range(GROUP):
                request = copy.deepcopy(template)
                request.id, request.group, request.index = client.new_id(f"{group}-{index}"), group, index
                request.task.instruction = f"write {colour} to answer"
                assert request.verify is not None
                request.verify.env = {"WANT": colour}
                out.append(request)
        return out

    def add(self, result: Result, rows: list[Row]) -> None:
        """Add a result. A result without a reward has nothing to train on."""
        results = self._results.setdefault(result.group, [])
        results.append(result)
        self._rows.setdefault(result.group, []).extend(rows if result.reward is not None else [])
        if len(results) == GROUP:
            self.complete.append(result.group)

    async def hold(self, client: Client) -> None:
        """Make the agents' calls wait, soon after one of them was answered."""
        self.policy.commanded.clear()
        with contextlib.suppress(asyncio.TimeoutError):  # no agent may be left
            await asyncio.wait_for(self.policy.commanded.wait(), 1)  # the next call of this agent is held
        await client.hold()

    async def step(self, client: Client) -> None:
        """Train on the complete groups, while calls wait. Their next answers come from the new weights."""
        groups, self.complete = self.complete, []
        rows = [row for group in groups for row in self._rows.pop(group)]
        results = [result for group in groups for result in self._results.pop(group)]
        rewards = [r.reward for r in results if r.reward is not None]
        faults = {r.fault.message for r in results if r.fault is not None}
        if not rewards:
            raise RuntimeError(f"no rollout of {', '.join(groups)} has a reward: {faults}")
        self.rewards.append(sum(rewards) / len(rewards))
        batch = batch_of(rows)
        self._counts.differences.append(await asyncio.to_thread(self._learner.differences, batch))
        self.policy.load(await asyncio.to_thread(self._learner.train, batch))
        await client.resume()
        self._counts.updates += 1


class Run:
    """Run trains one seed after the other. Rollouts that a killed worker had come back when later seeds train."""

    def __init__(self, client: Client, fleet: Fleet, template: Request) -> None:
        self.client = client
        self.fleet = fleet
        self.counts = Counts()
        self._template = template
        self._seeds: dict[str, Seed] = {}  # by rollout
        self._ended: set[str] = set()
        client.serve(self._answer)

    async def _answer(self, call: Call) -> Reply:
        return await self._seeds[call.rollout].policy.answer(call)

    async def _submit(self, seed: Seed) -> None:
        requests = seed.requests(self._template, self.client)
        self._seeds.update((request.id, seed) for request in requests)
        self.counts.submitted += len(await self.client.submit(requests))

    async def take(self) -> None:
        """Take one result and its rows."""
        result = await self.client.next_result()
        rows = await self.client.rows(result)
        counts = self.counts
        assert result.id not in self._ended, f"{result.id} has two results"
        self._ended.add(result.id)
        counts.results += 1
        counts.again += result.attempt > 1
        counts.unknown += result.reward is None
        counts.errors += len(rows.errors)
        counts.mixed += sum(len(set(row.versions) - {-1}) > 1 for row in rows)
        self._seeds[result.id].add(result, list(rows))

    async def train(self, number: int, steps: int, kill: bool) -> None:
        """Train one seed for some steps."""
        seed = Seed(number, self.counts)
        for _ in range(AHEAD):
            await self._submit(seed)
        for step in range(1, steps + 1):
            while len(seed.complete) < len(COLOURS):
                await self.take()
            await seed.hold(self.client)
            if step <= steps - AHEAD:
                await self._submit(seed)
                if kill and step == 2:  # workers have rollouts for sure only after a submit
                    await self._lose_second()
            await seed.step(self.client)
        print(f"seed {number}: mean reward of each step {' '.join(f'{r:.2f}' for r in seed.rewards)}", flush=True)

    async def _lose_second(self) -> None:
        """Kill the second worker when both workers have rollouts, and start it again. The rollouts' calls wait."""
        while not all(worker.busy for worker in (await self.client.fleet()).workers):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        await self.fleet.kill_second()
        print("worker second was killed in the middle of its rollouts", flush=True)
        await self.fleet.start_second()

    async def finish(self) -> None:
        """Wait for the rollouts that the killed worker had, and print the counts."""
        while self.client.outstanding:
            await self.take()
        c, differences = self.counts, torch.cat(self.counts.differences)
        print(f"log-probs: {len(differences)} tokens computed again, "
              f"largest difference {differences.max():.1e}, mean {differences.mean():.1e}")  # fmt: skip
        print(f"weights: {c.updates} updates between hold and resume, {c.mixed} rows with tokens of several versions")
        print(f"rollouts: {c.submitted} submitted, {c.results} results, {c.again} of a second attempt, "
              f"{c.unknown} without a reward, {c.errors} errors in rows")  # fmt: skip


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turngate", default="bin/turngate", help="the binary (make build)")
    parser.add_argument("--seeds", type=int, default=3, help="training runs, each with a policy of its own")
    parser.add_argument("--steps", type=int, default=10, help="updates of the weights in each")
    parser.add_argument("--slots", type=int, default=3, help="rollouts at once on each of the two workers")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the other core runs the agents
    task = Task.load(HERE / "task")
    with tempfile.TemporaryDirectory(prefix="turngate-grpo-") as state:
        async with (
            fleet(args.turngate, Path(state), args.slots) as f,
            await Client.connect(f.url, f.creds, TRAINER) as client,
        ):
            template = task.request_for("mini", "local")
            template.task.bundle = await client.put_bundle(task.bundle)
            template.agent.max_turns = TURNS
            run = Run(client, f, template)
            for seed in range(1, args.seeds + 1):
                await run.train(seed, args.steps, kill=seed == 1)
            await run.finish()


if __name__ == "__main__":
    asyncio.run(main())
