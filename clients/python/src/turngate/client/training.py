"""The loops of a trainer: groups of rollouts to train on, and evaluations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import DigestError, InvalidError, NotFoundError, ShapeError, TurngateError
from ..rollouts.failures import TREATMENTS, treatment
from ..rollouts.group import Evaluation, Group
from ..rollouts.tally import Treatments
from ..schema import Request, Result
from ..tasks.dataset import Load, Tasks, examples, task_of
from ..tasks.task import Task
from ..wire.cancelling import cancelled
from ..wire.link import log
from .options import RolloutOptions, RowOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .client import Client

LOOK_EVERY = 1.0
"""Seconds between looks for groups that are too old."""

Metrics = Callable[[dict[str, float]], object]
"""It gets numbers by name, such as wandb.log does."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """Plan says how groups are run."""

    n: int
    tries: int
    load: Load | None
    treatments: Treatments
    options: RolloutOptions
    rows: RowOptions | None = None  # None: they are not read
    stale: int | None = None


class Runner:
    """Runner runs groups of one loop."""

    def __init__(self, client: Client, plan: Plan, given: Iterator[Any]) -> None:
        self._client, self._plan, self._given = client, plan, given
        self._prefix = secrets.token_hex(4)
        self._number = 0
        self._running: set[asyncio.Task[Group | None]] = set()
        self._names: set[str] = set()  # of the groups that run

    async def groups(self, ahead: int) -> AsyncGenerator[Group, None]:
        """Yield groups as they are complete. Others run ahead while the caller works on one."""
        try:
            self._start(max(ahead, 1))
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                one = next(iter(done))
                self._running.discard(one)
                group = one.result()
                self._start(ahead if group is not None else max(ahead, 1))
                if group is not None:
                    yield group
                    self._start(max(ahead, 1))
        finally:
            await self._end()

    def _start(self, most: int) -> None:
        while len(self._running) < most:
            try:
                example = next(self._given)
            except StopIteration:
                return
            self._number += 1
            self._running.add(asyncio.ensure_future(self._group(self._number, example)))

    async def _end(self) -> None:
        await cancelled(self._running)
        for name in list(self._names):
            try:
                await self._client.cancel(group=name, reason="the loop over groups has ended")
            except TurngateError as e:
                log.debug("a cancel was not sent; it is repeated: %s", e)

    async def _group(self, number: int, example: Any) -> Group | None:
        """Run the group of an example until it is complete and not too old; None: it was too old each time."""
        task = await task_of(example, self._plan.load)
        for dropped in range(self._plan.tries):
            name = f"{self._prefix}-{number}" + (f"-{dropped + 1}" if dropped else "")
            self._names.add(name)
            group = await self._once(Group(name, number, example, task, [], dropped=dropped))
            self._names.discard(name)
            if group is not None:
                return group
            log.info("group %s is dropped: its answers are more than %s versions old", name, self._plan.stale)
        log.warning("the task of group %d is left out: its group was too old %d times", number, self._plan.tries)
        return None

    async def _once(self, group: Group) -> Group | None:
        await self._client.submit_group(group.task, self._plan.n, group=group.name, **self._plan.options)
        watching = asyncio.ensure_future(self._watch(group.name)) if self._plan.stale is not None else None
        try:
            results = await self._results(group, watching)
        finally:
            if watching is not None:
                await cancelled([watching])
        if watching is not None and not watching.cancelled():
            return None
        group.results = [results[i] for i in sorted(results)]
        group.usable = [r for r in group.results if treatment(r, self._plan.treatments) == "train"]
        group.newest = self._client._calls.newest
        if self._plan.rows is not None:
            for result in group.usable:
                await self._read(group, result)
        return None if self._old(group.oldest) else group

    async def _results(self, group: Group, watching: asyncio.Task[None] | None) -> dict[int, Result]:
        out: dict[int, Result] = {}
        async for result in self._client.results(group=group.name):
            out[result.index] = result
            over = watching is not None and watching.done()
            if not over and treatment(result, self._plan.treatments) == "again":
                try:
                    group.again += await self._client.submit_again(result, self._plan.tries) is not None
                except NotFoundError as e:
                    log.warning("rollout %s is not run again: %s", result.id, e)
        return out

    async def _read(self, group: Group, result: Result) -> None:
        try:
            made = await self._client.rows(result, **(self._plan.rows or {}))
        except (NotFoundError, DigestError, ShapeError) as e:
            log.warning("rollout %s is not trained on: %s", result.id, e)
            return
        group.rows += made
        group.findings += [f for f in made.findings if f.level != "info"]

    def _old(self, oldest: int | None) -> bool:
        newest, stale = self._client._calls.newest, self._plan.stale
        return stale is not None and newest is not None and oldest is not None and newest - oldest > stale

    async def _watch(self, name: str) -> None:
        """Return when an answer of a group is too old, and cancel its rollouts."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            members = self._client._submissions.members(name)
            if any(self._old(self._client._calls.oldest_of(r)) for r in members):
                await self._client.cancel(group=name, reason="an answer is too old")
                return


class Training:
    """Training are the methods of a client that run groups of rollouts."""

    async def groups(
        self,
        tasks: Tasks | Task | Request,
        n: int = 8,
        *,
        ahead: int = 1,
        epochs: int = 1,
        load: Load | None = None,
        tries: int = 2,
        stale: int | None = None,
        treatments: Treatments = TREATMENTS,
        rows: RowOptions | None = None,
        metrics: Metrics | None = None,
        **options: Unpack[RolloutOptions],
    ) -> AsyncGenerator[Group, None]:
        """Run n rollouts of each task, and yield each group when all its rollouts have results, with its rows.

            async for group in client.groups("tasks", n=8, ahead=2, agent="opencode"):
                advantages = group.advantages()
                train([(row, advantages[row.rollout]) for row in group.rows if row.rollout in advantages])

        Rollouts without a reward or with a failed worker are submitted again. Groups come as they are complete. When
        the loop ends early, the other rollouts are cancelled.

        Args:
            tasks: A folder of task directories, or a list, an iterator or a data set of examples.
            n: Number of rollouts of a task, 1 to 1000.
            ahead: Number of groups that run while the caller works on one. 0: each group begins when it is asked for.
            epochs: Number of times that the tasks are used; 0: without end.
            load: It makes the task of an example. Default: tasks and requests are used as they are, paths are loaded.
            tries: Number of tries in all: of a rollout with the treatment "again", and of a group that is too old.
            stale: Largest number of policy versions between the oldest answer of a group and the newest one of this
                client, by the numbers at the ends of their names. A group that is older is cancelled and begins again.
            treatments: It says which rollouts run again, and which are used; see turngate.treatment.
            rows: Options of turngate.rows.
            metrics: It is called with the numbers of each group: wandb.log, or a function of yours.
            options: Options of submit_group.

        Raises:
            InvalidError: An argument is not valid.
            TaskError: A task is not valid.
            ClosedError: The client is closed.
        """
        _check(n, ahead, epochs, tries, stale)
        plan = Plan(
            n=n, tries=tries, load=load, treatments=treatments, options=options, rows=rows or {}, stale=stale
        )  # fmt: skip
        async for group in _runner(self, plan, tasks, epochs).groups(ahead):
            if metrics is not None:
                metrics(group.metrics)
            yield group

    async def evaluate(
        self,
        tasks: Tasks | Task | Request,
        n: int = 1,
        *,
        at_once: int = 64,
        load: Load | None = None,
        tries: int = 2,
        treatments: Treatments = TREATMENTS,
        metrics: Metrics | None = None,
        **options: Unpack[RolloutOptions],
    ) -> Evaluation:
        """Run n rollouts of each task, and return their results: mean reward, pass@k, and each group.

            evaluation = await client.evaluate("tasks", n=4, agent="opencode")
            evaluation.reward, evaluation.pass_at(4)

        Args:
            tasks: As in groups.
            n: Number of rollouts of a task.
            at_once: Number of tasks that run at once.
            load: As in groups.
            tries: Number of tries in all of a rollout with the treatment "again".
            treatments: As in groups.
            metrics: It is called once, with the numbers of all rollouts.
            options: Options of submit_group.

        Raises:
            InvalidError: An argument is not valid.
            TaskError: A task is not valid.
            ClosedError: The client is closed.
        """
        _check(n, at_once, 1, tries, None)
        plan = Plan(n=n, tries=tries, load=load, treatments=treatments, options=options)
        done = [g async for g in _runner(self, plan, tasks, 1).groups(at_once)]
        evaluation = Evaluation(sorted(done, key=lambda g: g.number))
        if metrics is not None:
            metrics(evaluation.metrics)
        return evaluation


def _runner(client: Any, plan: Plan, tasks: Any, epochs: int) -> Runner:
    return Runner(client, plan, examples(tasks, epochs))


def _check(n: int, ahead: int, epochs: int, tries: int, stale: int | None) -> None:
    numbers = (("n", n, 1), ("ahead", ahead, 0), ("epochs", epochs, 0), ("tries", tries, 1), ("stale", stale, 0))
    for name, value, least in numbers:
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidError(name, value, f"want a number of {least} or more")
