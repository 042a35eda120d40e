"""The client of a trainer."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..errors import ClosedError, InvalidError, TurngateError, UnreachableError
from ..rollouts.attachment import Attachment
from ..rollouts.capable import Offered
from ..rollouts.failures import TREATMENTS
from ..rollouts.ledger import Ledger
from ..rollouts.orphans import Choice, Orphans, check_orphans
from ..rollouts.progress import Progress
from ..rollouts.results import Results
from ..rollouts.slots import Load, Slots
from ..rollouts.stuck import Stuck
from ..rollouts.submissions import Submissions, check_group
from ..rollouts.tally import Treatments, Wanted
from ..schema import Fault, Limits, Request, Result, ToolSpec, Verify
from ..serving.holding import Holding
from ..serving.open_calls import BEAT_EVERY, Calls, Check
from ..serving.tool import Tool
from ..serving.verifications import Verifications, Verifier
from ..tasks.task import Task
from ..wire import contexts, names, traces
from ..wire.cancelling import cancelled, check_loop
from ..wire.link import Link, log, waiting
from ..wire.objects import Objects
from ..wire.streams import Streams
from .answering import Answering
from .files import Files
from .training import Training
from .workers import Workers

URL = "nats://127.0.0.1:4222"

DEFAULT_NAME = "local"
"""Name of the trainer that `turngate up` makes."""

START_WITHIN = 30.0
"""Seconds that a new client waits for its streams, which the first worker makes."""

AUDIT_EVERY = 300.0
AUDIT_AGE = 30
"""The part of the interval after which a new request is looked at."""
POLL_EVERY = 5.0
CANCEL_EVERY = 3.0
STUCK_EVERY = 2.0
FLEET_WITHIN = 1.0
"""Seconds that submit waits for the answer which workers are there."""
TRY = "turngate_try"
"""Label of a request that was submitted again."""

CANCEL_WITHIN = 1.0
"""Seconds that the end of a client waits until the cancels of groups with enough results are sent."""


class Client(Answering, Files, Training, Workers):
    """Client submits rollouts, answers the agents' model calls, and takes results. Use connect.

    It works on one event loop. A loop that computes for more than a second must leave the event loop free, or use
    SyncClient: otherwise workers take the trainer for absent.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._background: list[asyncio.Task[None]] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._cancelling: set[asyncio.Task[None]] = set()
        self._reason: ClosedError | None = None  # of the end
        self._closing: asyncio.Task[None] | None = None
        self._attachment: Attachment | None = None

    name: str
    _calls_link: Link
    _bulk_link: Link
    _ledger: Ledger
    _streams: Streams
    _objects: Objects
    _submissions: Submissions
    _holding: Holding
    _calls: Calls
    _verifications: Verifications
    _results: Results
    _stuck: Stuck
    _offered: Offered

    @classmethod
    async def connect(
        cls,
        url: str = URL,
        creds: str | os.PathLike[str] | None = None,
        name: str | None = None,
        *,
        context: str = "",
        state: str | os.PathLike[str] | None = None,
        shard: str = "",
        take_over: bool = False,
        orphans: Choice = "replace",
        answer_all: bool = False,
        lane: int = names.DEFAULT_LANE,
        slots: int = 0,
        tools: dict[str, Tool] | None = None,
        verify: Verifier | None = None,
        check: Check | None = None,
        refused: Callable[[names.Key, Fault], None] | None = None,
        start_within: float = START_WITHIN,
        audit_every: float = AUDIT_EVERY,
    ) -> Client:
        """Connect a trainer. From then on it accepts the calls of its rollouts.

        Args:
            url: URL of the NATS server; several separated by commas.
            creds: A .creds file, or a file with an nkey seed.
            name: Name of the trainer, to which the credentials belong. Default: local, with a shard that no other
                process has, so that several processes may run without names.
            context: Name of a context (`turngate context ls`), which has the URL and the credentials.
            state: A file with the open rollouts, so that this trainer still waits for them after a restart.
            shard: One process at a time answers the calls of a shard of the trainer. Its rollouts have this shard, too.
                Default: 0.
            take_over: Take the place of another process that has this name and shard, whose client is closed then.
            orphans: What is done with open rollouts of this name and shard that this process did not submit. replace:
                when this process has submitted its first rollouts, those of processes without a state file are ended,
                and the others left; a process that submits the ids of an earlier one again needs another rule. leave,
                cancel, adopt: all are, after connect. Their calls are answered in the last case only, and results waits
                for them.
            answer_all: Answer the calls of rollouts that other processes submit, too, such as those that gate.routes of
                their requests sends to this shard.
            lane: Priority of submitted rollouts, 0 to 3; 0 is the most urgent.
            slots: Largest number of submitted rollouts without a result; submit waits for the others. 0: no limit.
            tools: Tools that agents may use whose request lists them in agent.tools.
            verify: Finds the rewards of requests with verify.by "trainer": an async function of a Handle.
            check: Checks a call before it is accepted, without generating. A fault refuses the call. After an exception
                the worker asks again.
            refused: Called for each answer that a worker refused, with a fault that names the field. The worker asks
                for another one; after the third in a row the rollout fails.
            start_within: Seconds to wait for the server and for the trainer's streams.
            audit_every: Seconds between checks for rollouts that the server lost.

        Raises:
            UnreachableError: The server or the first worker did not answer in time.
            InvalidError: An argument is not valid, or the credentials are not those of this name.
            InUseError: Another process has this name and shard, and runs.
        """
        if name is None:
            name, shard = DEFAULT_NAME, shard or (names.DEFAULT_SHARD if state else f"p{secrets.token_hex(4)}")
        shard = shard or names.DEFAULT_SHARD
        names.check_trainer(name)
        names.check_token("shard", shard)
        check_orphans(orphans)
        if not 0 <= lane < names.LANES:
            raise InvalidError("lane", lane, f"want 0 to {names.LANES - 1}")
        credit = Slots(slots)
        self = cls()
        self.name = name
        path = os.fspath(creds) if creds is not None else None
        if context:
            if path is not None or url != URL:
                raise InvalidError("context", context, "want it without url and creds")
            url, path = await asyncio.to_thread(contexts.read, context, f"trainer-{name}")
        self._creds = path
        self._ledger = Ledger(state, shard)
        opened = await asyncio.to_thread(self._ledger.open)
        try:
            inbox = names.inbox(name)
            self._calls_link = await Link.open(url, path, f"{name} calls", inbox, start_within, quiet=True)
            self._bulk_link = await Link.open(url, path, f"{name} bulk", inbox, start_within)
        except BaseException:
            if hasattr(self, "_calls_link"):
                await self._calls_link.close()
            self._ledger.close()
            raise
        self._streams = Streams(self._bulk_link, reopen=self.opened)
        self._objects = Objects(self._streams)
        instance = secrets.token_hex(8)
        self._submissions = Submissions(name, shard, instance, self._streams, self._objects, self._ledger, lane, credit)
        self._submissions.restore(opened)
        self._offered = Offered()
        self._holding = Holding(name, self._bulk_link, instance, self._submissions.upstreamed)
        self._calls = Calls(
            name, self._calls_link, self._objects, self._holding,
            self._submissions.attempt_of, self._submissions.saw_attempt, check, tools, refused,
        )  # fmt: skip
        self._verifications = Verifications(self._calls, self._calls_link, self._objects, shard, verify)
        self._results = Results(name, self._streams, self._submissions, self._calls.knows, self._calls.ended)
        self._calls.on_rollout = self._results.began
        alone = Orphans(name, shard, orphans, self._streams, self._submissions)
        if not answer_all:
            self._submissions.adopting = orphans == "adopt"
            self._calls.answer_only(self._answers, alone.called)
        self._attachment = Attachment(
            name, self._bulk_link, instance, shard, self._ledger.owner, take_over
        )  # fmt: skip
        self._stuck = Stuck(
            self._submissions, self._streams, self.fleet, self._attachment.holder,
            lambda: (0, 0.0) if self._calls.asked else self._calls.unanswered(), self._calls.held,
            lambda: self._verifications.wanted,
        )  # fmt: skip
        self._calls.attached = lambda: self._attachment is not None and self._attachment.attached
        try:
            with waiting(lambda: f"waiting for a worker, which makes the streams of trainer {name}: {self._missing}"):
                await asyncio.wait_for(self._open_streams(), start_within)
            await self._submissions.look_at_store()
            await self._attachment.listen()
            await self._results.listen()
            await self._calls.listen(shard)
            if verify is not None:
                await self._verifications.listen()
            await self._attachment.attach()
        except asyncio.TimeoutError:
            await self.close()
            waited = f"the streams of trainer {name} are not there after {start_within:g} s"
            raise UnreachableError(f"{waited}: {self._missing}") from None
        except BaseException:
            await self.close()
            raise
        for seconds, work in (
            (BEAT_EVERY, self._beat),
            (BEAT_EVERY, self._holding.announce),
            (CANCEL_EVERY, self._submissions.repeat_cancels),
            (POLL_EVERY, self._poll),
            (STUCK_EVERY, self._stuck.look),
            (audit_every, lambda: self._audit(audit_every / AUDIT_AGE)),
        ):
            self._start(self._every(seconds, work))
        self._start(self._results.drop_over())
        self._start(self._keep(self._attachment, None if answer_all else alone))
        if slots:
            self._start(self._results.look_at(list(opened)))
        return self

    def __repr__(self) -> str:
        state = "closed" if self._reason is not None else f"{self.outstanding} rollouts outstanding"
        return f"<Client {getattr(self, 'name', '?')}: {state}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop. Open calls are not answered: their workers ask this trainer again after a restart.

        If it is cancelled, the client is closed nevertheless; a further close waits for that.

        Raises:
            ClosedError: The client was connected on another event loop.
        """
        check_loop(self._loop)
        await self._close(ClosedError("the client is closed"))

    async def _close(self, reason: ClosedError) -> None:
        if self._closing is None:
            self._reason = reason
            self._calls.stop(reason)
            self._submissions.slots.close(reason)
            self._results.close(reason)
            self._verifications.close(reason)
            self._closing = asyncio.get_running_loop().create_task(self._end(reason, asyncio.current_task()))
        await asyncio.shield(self._closing)

    async def _end(self, reason: ClosedError, by: asyncio.Task[Any] | None) -> None:
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=CANCEL_WITHIN)
        await cancelled(task for task in (*self._background, *self._serving, *self._cancelling) if task is not by)
        await self._calls.close(reason, by)
        if self._attachment is not None:
            await self._attachment.leave()
        await self._calls_link.close()
        await self._bulk_link.close()
        self._ledger.close()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        with traces.under({}):
            self._background.append(asyncio.get_running_loop().create_task(work))

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except TurngateError as e:
                log.debug("%s; it is tried again", e)
            except Exception as e:
                log.error("work of the client failed; it is tried again: %s: %s", type(e).__name__, e, exc_info=e)

    async def _keep(self, attachment: Attachment, orphans: Orphans | None) -> None:
        """Keep the place of this process. When another one has taken it, the client is closed."""

        def began() -> None:
            if orphans is not None:
                self._start(self._look_for(orphans))

        if attachment.attached:
            began()
        error = await attachment.keep(began)
        log.error("%s", error)
        await self._close(error if isinstance(error, ClosedError) else ClosedError(str(error)))

    async def _look_for(self, orphans: Orphans) -> None:
        await orphans.look(self._results.look_at)
        self._submissions.adopting = False
        self._results.wake()

    def _answers(self, rollout: str) -> bool:
        return rollout in self._submissions.open or self._verifications.waits_for(rollout)

    async def _beat(self) -> None:
        self._calls.beat()

    async def _poll(self) -> None:
        try:
            await self._results.look()
            for rollout in await self._submissions.look_at_store():
                self._results.hint(rollout)
        finally:
            self._results.wake()

    async def _audit(self, older: float) -> None:
        for rollout in await self._submissions.audit(older):
            self._results.hint(rollout)

    # Rollouts.

    def new_id(self, suffix: str = "") -> str:
        """Return an id for a rollout. A suffix of any form is possible; without one it is random."""
        return names.new_id(self.name, suffix or secrets.token_hex(8))

    async def put_bundle(self, data: bytes) -> str:
        """Store a task's files for workers, and return their sha256 for request.task.bundle."""
        return await self._submissions.put_bundle(data)

    async def submit(self, requests: Request | Sequence[Request]) -> list[str]:
        """Queue requests and return their ids. Adjacent requests of one group are queued all or none.

        It waits while all slots are taken, the queue is full, the server cannot be reached, or the trainer's queue is
        missing, which a worker makes. A request without an id gets one. If it is cancelled or fails, requests that are
        surely not on the queue are not outstanding. Others stay so: they give results if they are queued, and otherwise
        the next check submits them. To submit them again is safe.

        Raises:
            InvalidError: A request is not valid, or no live worker has its agent or sandbox. None was queued.
            StateFileError: The requests were not written to the state file. None of their group was queued.
            ClosedError: The client was closed while it waited for a slot.
        """
        return await self._submit([requests] if isinstance(requests, Request) else list(requests))

    async def _submit(self, given: list[Request], new: bool = False) -> list[str]:
        self._check()
        for request in given:
            request.id = request.id or self.new_id()
        batches = self._submissions.batches(given)
        await self._check_offered(given)
        await self._submissions.store_files(given)
        await self._holding.announce()  # before a worker can take the requests
        for batch in batches:
            await self._submissions.submit(batch, new)
        return [request.id for request in given]

    async def _check_offered(self, requests: list[Request]) -> None:
        try:
            fleet = await self.fleet(FLEET_WITHIN)
        except TurngateError as e:
            log.debug("it is not known what workers offer: %s", e)
            return
        self._offered.check(fleet, requests)

    async def submit_group(
        self,
        task: Task | Request,
        n: int = 1,
        *,
        agent: str = "mini",
        sandbox: str = "docker",
        image: str = "",
        group: str = "",
        labels: Mapping[str, str] | None = None,
        tools: Sequence[ToolSpec] = (),
        args: Sequence[str] = (),
        max_turns: int = 0,
        system_prompt: str = "",
        limits: Limits | None = None,
        verify: Verify | None = None,
        snapshot: bool | None = None,
    ) -> list[str]:
        """Queue n rollouts of one task, all or none, and return their ids.

        Args:
            task: A task, whose files are stored first, or a request to repeat.
            n: Number of rollouts, 1 to 1000.
            agent: Name of the agent; used with a task.
            sandbox: Name of the sandbox's backend; used with a task.
            image: Image of the sandbox instead of the task's own; used with a task.
            group: Name of the group, which the trainer has not used before. Default: a random one.
            labels: Labels of the results.
            tools: Tools of this trainer that the agent may use, in addition to those of a request.
            args: Arguments of the agent's command, added to its own.
            max_turns: Largest number of the agent's turns. 0: the task's, or no limit.
            system_prompt: Text for the agent's system prompt in place of the task's.
            limits: Durations of the stages. Each that is not 0 is used in place of the task's.
            verify: The verifier in place of the task's.
            snapshot: Whether the rollouts begin with the files of one setup. None: as the task says.

        Raises:
            InvalidError: An argument is not valid, or no live worker has the agent or the sandbox. None was queued.
            TaskError: The sandbox cannot run the task.
            GroupExistsError: The trainer has used the name of the group before.
        """
        check_group(task, n, group)
        self._check()
        if group:
            await self._submissions.check_new(group, self.new_id(f"{group}-0"))
        request: Request
        if isinstance(task, Task):
            request = task.request_for(agent, sandbox, image)
            request.task.bundle = await self.put_bundle(task.bundle)
        else:
            request = copy.deepcopy(task)
        request.labels = {**request.labels, **(labels or {})}
        request.agent.tools = [*request.agent.tools, *tools]
        request.agent.args = [*request.agent.args, *args]
        request.agent.max_turns = max_turns or request.agent.max_turns
        request.agent.system_prompt = system_prompt or request.agent.system_prompt
        for limit in dataclasses.fields(limits) if limits is not None else ():
            setattr(request.limits, limit.name, getattr(limits, limit.name) or getattr(request.limits, limit.name))
        request.verify = verify or request.verify
        request.snapshot = request.snapshot if snapshot is None else snapshot
        group = group or secrets.token_hex(8)
        out = []
        for index in range(n):
            one = copy.deepcopy(request)
            one.group, one.index, one.id = group, index, self.new_id(f"{group}-{index}")
            out.append(one)
        return await self._submit(out, new=True)

    @property
    def outstanding(self) -> int:
        """Number of submitted rollouts without a delivered result."""
        return len(self._submissions.open)

    @property
    def slots(self) -> int:
        """Largest number of submitted rollouts without a result; 0: no limit. It may be set at any time.

        A result frees a slot when it is stored, not when it is read. A group waits until it fits as a whole. A group
        that is larger than all slots is queued when no slot is taken.

        Raises:
            InvalidError: The number is negative.
        """
        return self._submissions.slots.most

    @slots.setter
    def slots(self, most: int) -> None:
        self._submissions.slots.most = most

    def load(self) -> Load:
        """Return what rollouts and calls wait for at this moment, to set slots by."""
        now, slots = time.monotonic(), self._submissions.slots
        (queued, submitted), (calls, came) = self._submissions.queued(), self._calls.unanswered()
        return Load(
            rollouts=slots.taken, waiting=sum(slots.waiting.values()),
            queued=queued, oldest_queued=now - submitted if submitted else 0.0,
            calls=calls, oldest_call=now - came if calls else 0.0,
        )  # fmt: skip

    async def next_result(self) -> Result:
        """Wait for the next result. Each is returned once.

        Raises:
            ClosedError: The client is closed.
        """
        check_loop(self._loop)
        return await self._results.next()

    async def results(
        self, *, group: str = "", enough: int = 0, treatments: Treatments = TREATMENTS, progress: bool = False
    ) -> AsyncIterator[Result]:
        """Yield results until no submitted rollout is outstanding, or none of a group.

        Several loops may run at once, such as one for each group. Each result goes to one of them. A loop that ends
        early leaves its other results to later ones.

        Args:
            group: Yield the results of this group only.
            enough: Number of usable results of a group after which its other rollouts are cancelled. These give results
                after that. Each group counts by itself, with the results of this loop. 0: none is cancelled.
            treatments: It says which results are usable: those to train on; see turngate.treatment.
            progress: Show a bar of tqdm with the number of results and their mean reward.

        Raises:
            ClosedError: The client is closed.
            MissingPackageError: There is no tqdm for the bar.
        """
        check_loop(self._loop)
        wanted = self._wanted(group, enough, treatments)
        bar = Progress(wanted.outstanding) if progress else None
        try:
            while (result := await wanted.next()) is not None:
                if bar is not None:
                    bar.add(result, wanted.outstanding)
                yield result
        finally:
            if bar is not None:
                bar.close()

    def _wanted(self, group: str, enough: int, treatments: Treatments) -> Wanted:
        return Wanted(self._results, self._submissions, self._cancel_rest, group, enough, treatments)

    def _cancel_rest(self, group: str) -> None:
        """Cancel the other rollouts of a group that has enough results."""

        async def send() -> None:
            try:
                await self.cancel(group=group, reason="the group has enough results")
            except TurngateError as e:
                log.debug("a cancel was not sent; it is repeated: %s", e)

        task = asyncio.get_running_loop().create_task(send(), name="turngate cancel")
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)

    async def result(self, rollout: str) -> Result:
        """Return the stored result of any rollout of this trainer.

        Raises:
            NotFoundError: There is none yet.
        """
        check_loop(self._loop)
        return await self._results.read(rollout)

    async def submit_again(self, result: Result, tries: int = 2) -> str | None:
        """Submit the request of a result again, for results with the treatment "again".

        The new rollout has the same group, index and labels, and the label turngate_try with its number, from 2 on. Its
        id follows from the result's, so that to submit it twice gives one rollout.

        Args:
            result: The result of a rollout that a worker took.
            tries: Number of tries in all.

        Returns:
            The id of the new rollout; None if all tries are used.

        Raises:
            NotFoundError: The server has no copy of the request: no worker took it, or it was deleted.
        """
        made = int(result.labels.get(TRY, "1"))
        if made >= tries:
            return None
        request = await self._submissions.request(result.id)
        request.id = self.new_id(f"{result.id.partition('-')[2]}-again")
        request.labels[TRY] = str(made + 1)
        request.shard = ""  # this process answers it
        await self.submit(request)
        return request.id

    async def cancel(
        self,
        rollouts: str | Iterable[str] | None = None,
        *,
        group: str = "",
        older: int | None = None,
        reason: str = "",
    ) -> None:
        """End rollouts, queued or running: some, or all open ones. Each still gets a result.

        Args:
            rollouts: An id, or ids.
            group: The rollouts of a group that were submitted here.
            older: The rollouts with an answer of a policy version whose number, at the end of its name, is below this
                one. Only this client's answers to the last attempt count.
            reason: At most 1024 bytes. It becomes a part of the message of each result's fault.
        """
        check_loop(self._loop)
        chosen: Iterable[str]
        if rollouts is not None:
            chosen = [rollouts] if isinstance(rollouts, str) else list(rollouts)
        elif group or older is None:
            chosen = self._submissions.members(group)
        else:
            chosen = self._calls.older(older)
        if older is not None:
            chosen = set(chosen).intersection(self._calls.older(older))
        await self._submissions.cancel(list(chosen), reason)
