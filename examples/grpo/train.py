"""GRPO with turngate: a tiny policy learns a shell task through the agent mini. README.md tells what it shows."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import torch
from learner import Learner, batch_of
from policy import COLOURS, TURNS, Policy

from turngate import Client, Group, RolloutOptions, Task


def task_of(colour: str) -> Task:
    """Make the task of a colour."""
    task = Task.load(Path(__file__).parent / "task")
    task.request.task.instruction = f"write {colour} to answer"
    assert task.request.verify is not None
    task.request.verify.env = {"WANT": colour}
    return task


def show(numbers: dict[str, float]) -> None:
    """Print numbers of a group. With wandb.log in its place they are in W&B."""
    print(" ".join(f"{name} {numbers[name]:.3g}" for name in ("group", "reward/mean", "tokens/trained")), flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats", default="nats://127.0.0.1:4222", help="URL of the server of `turngate up`")
    parser.add_argument("--creds", default=".turngate/creds/trainer-local.nk", help="credentials of the trainer")
    parser.add_argument("--name", default="local", help="name of the trainer")
    parser.add_argument("--seed", type=int, default=1, help="of the policy")
    parser.add_argument("--steps", type=int, default=10, help="updates of the weights")
    args = parser.parse_args()
    torch.set_num_threads(1)  # the other core runs the agents
    policy = Policy(args.seed)
    learner = Learner(policy)
    options: RolloutOptions = {"agent": "mini", "sandbox": "local", "max_turns": TURNS}
    async with await Client.connect(args.nats, args.creds, args.name) as client:
        client.serve(policy.answer)
        before = await client.evaluate(COLOURS, n=8, load=task_of, **options)
        batch: list[Group] = []
        groups = client.groups(COLOURS, 8, ahead=3, epochs=args.steps, load=task_of, stale=4, metrics=show, **options)
        async for group in groups:
            batch.append(group)
            if len(batch) == len(COLOURS):
                await client.hold()  # calls wait; their answers come from the new weights
                policy.load(await asyncio.to_thread(learner.train, batch_of(batch)))
                await client.resume()
                batch.clear()
        after = await client.evaluate(COLOURS, n=8, load=task_of, **options)
    print(f"before: {before}\nafter: {after}")


if __name__ == "__main__":
    asyncio.run(main())
