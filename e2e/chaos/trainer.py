"""A trainer of a chaos run, with the Python client. It does the same as the trainer of chaosproc.

It submits groups of four until a file tells it to stop submitting, answers every call, and ends when no rollout is
open. After a restart it goes on where it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from turngate import Call, Client, Delta, Reply, Request, TurngateError, UnreachableError
from turngate.schema import AgentChoice, SandboxChoice, Task

ENOUGH = "enough"


class Record:
    """Record appends lines to a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def write(self, **line: Any) -> None:
        os.write(self._file, (json.dumps(line) + "\n").encode())

    def before(self, op: str) -> set[str]:
        """Return the rollouts with an operation in the records of earlier processes."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines(keepends=True) if line.endswith("}\n")]
        return {line["id"] for line in lines if line["op"] == op}


def request(client: Client, n: int) -> Request:
    env = {"CHAOS_CALLS": str(1 + n % 4)}
    r = Request(
        id=client.new_id(f"r{n}"), trainer=client.name, group=f"g{n // 4}", index=n % 4, max_attempts=50,
        task=Task(name="chaos", instruction="work"), agent=AgentChoice(name="command", args=["agent"]),
        sandbox=SandboxChoice(backend="dummy", env=env),
    )  # fmt: skip
    env["CHAOS_ID"] = r.id
    r.gate.wait_ms = 600_000
    if n % 3 == 0:
        env["CHAOS_STREAM"], r.gate.stream = "1", "pass"
    if n % 20 == 19:
        r.agent, r.sandbox = AgentChoice(name="mini"), SandboxChoice(backend="local")
    elif n % 97 == 13:
        r.agent.args, r.max_attempts = ["poison"], 2
    elif n % 4 == 2:
        r.max_attempts = 2
    return r


class Trainer:
    def __init__(self, client: Client, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._record = Record(folder / f"trainer-{client.name}.jsonl")
        self._progress = folder / f"progress-{client.name}"

    def there(self, name: str) -> bool:
        return (self._folder / name).exists()

    async def answer(self, call: Call) -> AsyncIterator[Delta | Reply]:
        """Answer a call, whole or in pieces, with a new generation. It is recorded before any part of it is sent."""
        gen = secrets.token_hex(6)
        pieces = [f"gen:{gen} piece {i}. " for i in range(5)] if call.stream else [f"gen:{gen}"]
        text = "".join(pieces)
        self._record.write(op="generate", key=str(call.key), gen=gen, name=call.gen, text=text)
        await asyncio.sleep(0.05)
        if call.stream:
            for piece in pieces:
                yield Delta(delta={"content": piece})
                await asyncio.sleep(0.06)
        yield Reply(message={"role": "assistant", "content": text}, finish_reason="stop")

    async def submit_begun(self) -> int:
        """Submit the group again in whose submission an earlier process ended, and return the next rollout's number.

        Rollouts whose results were there are left out: a rollout that is submitted again gives its result again. So
        this comes before any result is taken. Enough may have been submitted meanwhile: the process may have died
        before the client knew of the group.
        """
        n = int(self._progress.read_text()) if self._progress.exists() else 0
        begun, ended = self._record.before("submit"), self._record.before("result")
        if request(self._client, n).id not in begun:
            return n
        await self._submit_group(n, ended)
        return n + 4

    async def submit_from(self, n: int) -> None:
        """Submit groups from rollout n on."""
        while not self.there(ENOUGH):
            await self._submit_group(n, set())
            n += 4
            await asyncio.sleep(0.35)
        (self._folder / f"submitted-{self._client.name}").touch()

    async def _submit_group(self, n: int, ended: set[str]) -> None:
        group = [r for r in (request(self._client, n + i) for i in range(4)) if r.id not in ended]
        for r in group:
            self._record.write(op="submit", id=r.id, max=r.max_attempts)
        if group:
            await self._client.submit(group)
        new = self._progress.with_suffix(".new")
        new.write_text(str(n + 4))
        new.rename(self._progress)

    async def cancel(self) -> None:
        """Cancel a group that was submitted a moment ago, now and then."""
        n = 5
        while True:
            await asyncio.sleep(3)
            with contextlib.suppress(TurngateError):  # it is repeated
                await self._client.cancel(group=f"g{n}", reason="chaos")
            n += 9

    async def results(self) -> None:
        """Record each result, until none is open and none will be."""
        getting: asyncio.Task[Any] | None = None
        while True:
            getting = getting or asyncio.create_task(self._client.next_result())
            await asyncio.wait([getting], timeout=0.2)
            if getting.done():
                r = getting.result()
                getting = None
                committed = [f"{c.call}/{c.gen}" for c in r.committed]
                self._record.write(op="result", id=r.id, attempt=r.attempt, status=r.status, generations=committed)
            elif self.there(ENOUGH) and self.there(f"submitted-{self._client.name}") and not self._client.outstanding:
                getting.cancel()
                return


async def main() -> None:
    flags = argparse.ArgumentParser()
    for name in ("nats", "creds", "name", "dir"):
        flags.add_argument("-" + name, required=True)
    flags.add_argument("-speed", type=float, default=1)
    given = flags.parse_args()
    folder = Path(given.dir)
    while True:
        try:
            client = await Client.connect(
                given.nats, given.creds, given.name,
                state=folder / f"ledger-{given.name}.jsonl", audit_every=300 / given.speed,
            )  # fmt: skip
            break
        except UnreachableError:
            await asyncio.sleep(0.2)
    async with client:
        trainer = Trainer(client, folder)
        client.serve(trainer.answer)
        print("ready", flush=True)
        begun = await trainer.submit_begun()
        results = asyncio.create_task(trainer.results())
        work = [results, asyncio.create_task(trainer.submit_from(begun)), asyncio.create_task(trainer.cancel())]
        while not results.done():
            ended, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                task.result()
                work.remove(task)
        for task in work:
            task.cancel()


asyncio.run(main())
