"""Rollouts that a framework waits for, one by one or in groups."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypedDict

from ..client.client import Client
from ..errors import ClosedError, DigestError, InvalidError, NotFoundError, TurngateError
from ..schema import Delta, Reply, Request, Result, TranscriptLine
from ..serving.call import Call
from ..serving.policy import Policy, answers
from ..serving.threads import Threads
from ..tasks.task import Task
from ..trajectory import transcript
from ..trajectory.ending import Ending, ending
from ..trajectory.reader import Rows, rows
from ..trajectory.row import Row
from ..wire.cancelling import cancelled
from ..wire.link import log

ToTask = Callable[[Any], Task | Request]
"""It returns the task of one of the framework's examples."""


@dataclass(slots=True)
class Episode:
    """Episode is a rollout that has ended. Without rows there is nothing to train on: see result.fault and
    rows.findings.
    """

    result: Result
    rows: Rows
    recording: bytes
    """The transcript in its stored form; empty if there was no model call."""
    left_out: int = 0
    """Trained tokens of the rows that a framework which takes one row per rollout leaves out; see main."""

    @property
    def reward(self) -> float | None:
        """The reward; None if it is not known, which is not 0."""
        return self.result.reward

    @property
    def ended(self) -> Ending:
        """Why it ended."""
        return ending(self.result, self.rows.calls)

    @property
    def messages(self) -> list[Any]:
        """The conversation of the agent's last call that was answered, with the answer."""
        agents = {c.call for c in self.rows.calls if c.role == "agent"}
        last: list[Any] = []
        for line, messages in answered(self.recording):
            if line.call in agents and line.reply is not None:
                last = [*messages, line.reply.message]
        return last

    @property
    def samples(self) -> list[Sample]:
        """The rows that have tokens of the model, as prompts and responses."""
        return [Sample.of(row) for row in self.rows if 1 in row.loss_mask]

    @property
    def main(self) -> Sample | None:
        """The sample with the most tokens of the model, for frameworks that take one per rollout. The tokens of the
        others are logged and counted in left_out.
        """
        samples = self.samples
        main = max(samples, key=lambda s: sum(s.mask), default=None)
        self.left_out = sum(sum(s.mask) for s in samples if s is not main)
        if self.left_out:
            log.warning(
                "rollout %s has %d rows, and the framework takes one: %d of its %d trained tokens are left out",
                self.result.id, len(samples), self.left_out, self.rows.tokens.trained,
            )  # fmt: skip
        return main


def answered(recording: bytes) -> Iterator[tuple[TranscriptLine, list[Any]]]:
    """Yield the answers of a transcript in its stored form, each with all messages that it answers."""
    asked: dict[int, list[Any]] = {}
    for line in transcript.lines(recording) if recording else ():
        if line.request is not None:
            q = line.request
            asked[line.call] = [*asked.get(q.base, [])[: q.keep], *q.messages]
        elif line.reply is not None:
            yield line, asked.get(line.call, [])


@dataclass(slots=True)
class Sample:
    """Sample is a row, parted before the model's first token."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """1 on the model's tokens, 0 on context; as long as response_ids, as the next two."""
    logprobs: list[float]
    versions: list[int]
    """Policy versions; -1 on context and where they are not known."""

    @classmethod
    def of(cls, row: Row) -> Sample:
        """Part a row, which has at least one token of the model."""
        at = row.loss_mask.index(1)
        return cls(
            prompt_ids=row.input_ids[:at].tolist(),
            response_ids=row.input_ids[at:].tolist(),
            mask=row.loss_mask[at:].tolist(),
            logprobs=row.logprobs[at:].tolist(),
            versions=row.versions[at:].tolist(),
        )

    @property
    def trained(self) -> int:
        """The number of the model's tokens."""
        return sum(self.mask)

    def with_context(self, token: int) -> Sample:
        """Return the sample with a further token of the response, on which nothing is trained."""
        return Sample(
            prompt_ids=self.prompt_ids,
            response_ids=[*self.response_ids, token],
            mask=[*self.mask, 0],
            logprobs=[*self.logprobs, 0.0],
            versions=[*self.versions, -1],
        )

    def within(self, prompt: int, response: int) -> Sample:
        """Return the sample with at most so many tokens in its two parts: the rest of a longer prompt is context at
        the beginning of the response, and the end of a longer response is cut off.
        """
        rest = self.prompt_ids[prompt:]
        none = len(rest)
        return Sample(
            prompt_ids=self.prompt_ids[:prompt],
            response_ids=[*rest, *self.response_ids][:response],
            mask=[*[0] * none, *self.mask][:response],
            logprobs=[*[0.0] * none, *self.logprobs][:response],
            versions=[*[-1] * none, *self.versions][:response],
        )


class Running:
    """Running are rollouts that were started. Use Rollouts.start."""

    def __init__(self, rollouts: Rollouts, results: dict[str, asyncio.Future[Result]]) -> None:
        self._rollouts = rollouts
        self.results = results

    async def episodes(self) -> list[Episode]:
        """Wait until all have ended.

        Raises:
            ClosedError: The client was closed.
        """
        await asyncio.wait(self.results.values())
        return list(await asyncio.gather(*(self._rollouts.episode(f.result()) for f in self.results.values())))

    async def cancel(self, reason: str = "") -> None:
        """End the rollouts that still run. Each still gets a result."""
        open_ids = [i for i, result in self.results.items() if not result.done()]
        if open_ids:
            await self._rollouts.client.cancel(open_ids, reason=reason)


class Rollouts:
    """Rollouts runs rollouts with one client, whose results it takes all.

    It is used on the client's event loop. Rollouts of a run that is cancelled are cancelled, too.
    """

    def __init__(
        self,
        client: Client,
        task: ToTask,
        policy: Policy | None = None,
        *,
        agent: str = "mini",
        sandbox: str = "docker",
        image: str = "",
        labels: dict[str, str] | None = None,
        concurrency: int = 256,
        max_lost: int = 0,
    ) -> None:
        """Prepare rollouts.

        Args:
            client: A connected client.
            task: It returns the task of an example. Task.load does where examples are paths of tasks.
            policy: It answers model calls. Without one, and without policies of the runs, the client serves already.
            agent: Name of the agent.
            sandbox: Name of the sandbox's backend.
            image: Image of the sandbox instead of the task's own.
            labels: Labels of the results.
            concurrency: Largest number of calls that are answered at once.
            max_lost: Largest number of sampled tokens of one answer that a row may leave out; see turngate.rows.

        Raises:
            InvalidError: max_lost is below 0.
        """
        if max_lost < 0:
            raise InvalidError("max_lost", max_lost, "want a number of tokens of 0 or more")
        self.client = client
        self._max_lost = max_lost
        self._task = task
        self._policy = policy
        self._options: dict[str, Any] = {"agent": agent, "sandbox": sandbox, "image": image, "labels": labels}
        self._concurrency = concurrency
        self._threads = Threads(concurrency, "turngate policy")
        self._policies: dict[str, Policy] = {}
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._serving: asyncio.Task[None] | None = None
        self._taking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Rollouts:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop answering calls and taking results. The client stays open."""
        await cancelled(task for task in (self._serving, self._taking) if task is not None)
        self._serving = self._taking = None
        self._threads.shutdown()
        self._threads = Threads(self._concurrency, "turngate policy")

    @property
    def waiting(self) -> list[str]:
        """Ids of the rollouts that have not ended."""
        return list(self._waiting)

    async def run(self, example: Any, policy: Policy | None = None) -> Episode:
        """Run one rollout of an example to its end."""
        [episode] = await self.group(example, 1, policy)
        return episode

    async def group(self, example: Any, n: int, policy: Policy | None = None) -> list[Episode]:
        """Run n rollouts of an example to their ends; see start."""
        running = await self.start(example, n, policy)
        try:
            return await running.episodes()
        except asyncio.CancelledError:
            with contextlib.suppress(TurngateError):  # the client repeats it
                await running.cancel("the framework no longer waits for it")
            raise

    async def start(self, example: Any, n: int = 1, policy: Policy | None = None) -> Running:
        """Start n rollouts of an example.

        Args:
            example: An example, from which the task is made.
            n: Number of rollouts.
            policy: It answers the calls of these rollouts.

        Raises:
            TaskError: The task is not valid.
            InvalidError: The request is not valid.
            ClosedError: The client is closed.
        """
        task = await asyncio.to_thread(self._task, example)
        self._serve(policy)
        group = secrets.token_hex(8)
        ids = [self.client.new_id(f"{group}-{index}") for index in range(n)]
        running = Running(self, {i: asyncio.get_running_loop().create_future() for i in ids})
        self._waiting |= running.results
        if policy is not None:
            self._policies |= dict.fromkeys(ids, policy)
        try:
            await self.client.submit_group(task, n, group=group, **self._options)
        except BaseException:
            for i in ids:
                self._waiting.pop(i, None)
                self._policies.pop(i, None)
            with contextlib.suppress(TurngateError):
                await self.client.cancel(group=group, reason="it was not started")  # rollouts that may be queued
            raise
        return running

    async def groups(self, wanted: Iterable[tuple[Any, int]], policy: Policy | None = None) -> list[list[Episode]]:
        """Run groups of rollouts of several examples at once. If one fails to start, all are cancelled."""
        running = [asyncio.ensure_future(self.group(example, n, policy)) for example, n in wanted]
        try:
            return list(await asyncio.gather(*running))
        finally:
            await cancelled(running)

    async def episode(self, result: Result) -> Episode:
        """Return a rollout that has ended with its rows."""
        try:
            recording = await self.client.read_transcript(result) if result.transcript else b""
        except (NotFoundError, DigestError) as e:
            log.warning("rollout %s is not trained on: %s", result.id, e)
            return Episode(result, Rows(result), b"")
        made = await asyncio.to_thread(rows, recording, result, max_lost=self._max_lost)
        return Episode(result, made, recording)

    def _serve(self, policy: Policy | None) -> None:
        if self._taking is None or self._taking.done():
            self._taking = asyncio.get_running_loop().create_task(self._take(), name="turngate results")
        if self._serving is None and (policy or self._policy) is not None:
            self._serving = self.client.serve(self._answer, concurrency=self._concurrency)

    async def _take(self) -> None:
        while True:
            try:
                result = await self.client.next_result()
            except ClosedError as e:
                for future in self._waiting.values():
                    if not future.done():
                        future.set_exception(e)
                return
            waiting = self._waiting.pop(result.id, None)
            self._policies.pop(result.id, None)
            if waiting is None:
                log.info("nobody waits for the result of rollout %s", result.id)
            elif not waiting.done():
                waiting.set_result(result)

    async def _answer(self, call: Call) -> AsyncIterator[Delta | Reply]:
        policy = self._policies.get(call.rollout, self._policy)
        if policy is None:
            raise RuntimeError(f"rollout {call.rollout} is none of this process")
        async for piece in answers(policy, call, self._threads):
            yield piece


class ConnectionOptions(TypedDict, total=False):
    """ConnectionOptions are the server and the trainer of an adapter, and options of Rollouts, which describes them."""

    url: str
    """URL of the NATS server. Default: nats://127.0.0.1:4222."""
    creds: str | None
    """A .creds file, or a file with an nkey seed."""
    name: str
    """Name of the trainer; default local. Each process needs one of its own."""
    agent: str
    sandbox: str
    image: str
    labels: dict[str, str] | None
    concurrency: int
    max_lost: int


class Connection:
    """Connection connects a client for the first rollout of a framework that makes its parts outside of the event loop.

    A further rollout on the same event loop uses the same client.
    """

    def __init__(self, task: ToTask, options: ConnectionOptions) -> None:
        self._task, self._options = task, dict[str, Any](options)
        server = {name: self._options.pop(name) for name in ("url", "creds", "name") if name in options}
        self._server = {"name": "local", **server}
        self._opening = asyncio.Lock()
        self._opened: Rollouts | None = None

    async def rollouts(self) -> Rollouts:
        """Return the rollouts of the client.

        Raises:
            UnreachableError: The server or the first worker did not answer in time.
        """
        async with self._opening:
            if self._opened is None:
                self._opened = Rollouts(await Client.connect(**self._server), self._task, **self._options)
            return self._opened

    async def close(self) -> None:
        """Close the client. A later rollout connects another one."""
        async with self._opening:
            opened, self._opened = self._opened, None
            if opened is not None:
                await opened.close()
                await opened.client.close()
