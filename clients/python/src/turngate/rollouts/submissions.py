"""The rollouts that a trainer submitted and that have no delivered result yet."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import (
    DigestError,
    GroupExistsError,
    InvalidError,
    NotFoundError,
    QueueFullError,
    ServerError,
    TurngateError,
)
from ..schema import Cancel, Request, State, codec
from ..tasks.task import Task, TaskRequest, notes_of
from ..wire import names, traces
from ..wire.link import log, waiting
from ..wire.objects import Objects
from ..wire.streams import DUPLICATE, MAX_BATCH, MSG_ID, Message, Streams, insist, passing, refused
from .ledger import Ledger, Submitted, submit_entry
from .slots import Slots

MOST_LOOSE = 250
"""Requests without a group in one batch."""

CANCELS_PER_MESSAGE = 200

MOST_BUNDLES = 1 << 30
"""Bytes of bundles that a process keeps, to store them again if the server loses them."""

MOST_DELIVERED = 10_000
"""Rollouts whose results were returned and that are not adopted."""

STATE_WITHIN = 1.0
"""Seconds that the read of a rollout's state may take."""

TERMINAL = ("done", "failed", "cancelled", "dead")


@dataclasses.dataclass(slots=True)
class _Queued:
    """_Queued is the outcome of a submission so far."""

    seqs: dict[str, int] = dataclasses.field(default_factory=dict)  # of requests that are surely on the queue
    unsure: bool = False  # the others may be, too
    new: bool = False  # no other process has used the ids


class Submissions:
    """Submissions submits, cancels, and submits again the rollouts that the server lost."""

    def __init__(
        self,
        trainer: str,
        shard: str,
        instance: str,
        streams: Streams,
        objects: Objects,
        ledger: Ledger,
        lane: int,
        slots: Slots,
    ) -> None:
        self.trainer = trainer
        self._shard = shard if shard != names.DEFAULT_SHARD else ""
        self._instance = instance  # of this process
        self.open: dict[str, Submitted] = {}
        self.orphans: dict[str, int] = {}  # rollouts of other processes that are cancelled, with their queue sequences
        self.slots = slots
        self.on_drop: Callable[[str], None] | None = (
            None  # called with the group of each rollout that is no longer open
        )
        self._groups: dict[str, dict[str, None]] = {}
        self._streams = streams
        self._objects = objects
        self._ledger = ledger
        self._lane = lane
        self._bundles: dict[str, bytes] = {}
        self._stored: set[str] = set()  # sha256 of bundles that the server surely had
        self._submitting: set[str] = set()
        self._delivered: dict[str, None] = {}  # newest rollouts with returned results
        self._adopt_one = asyncio.Lock()
        self.adopting = False  # orphans that will be adopted are looked for
        self.working = asyncio.Event()  # rollouts of this process are on the queue
        self._store = ""  # name of the store, see look_at_store

    def restore(self, opened: Mapping[str, Submitted]) -> None:
        """Make the rollouts of a state file open."""
        for s in opened.values():
            self._add(s)
            self.working.set()

    def members(self, group: str) -> Collection[str]:
        """Return the open rollouts of a group, or all if its name is empty."""
        return self._groups.get(group, ()) if group else self.open

    def expected(self, group: str) -> bool:
        """Report whether a group, or with an empty name any, has open rollouts or requests that wait for a slot.

        It may get orphans, too.
        """
        waiting = self.slots.waiting
        return self.adopting or bool(self.members(group) or (waiting.get(group) if group else waiting))

    def _add(self, s: Submitted) -> None:
        self.open[s.request.id] = s
        self.slots.take(s.request.id)
        if s.request.group:
            self._groups.setdefault(s.request.group, {})[s.request.id] = None

    def _drop(self, rollout: str) -> bool:
        """Drop a rollout, and report whether it was open."""
        s = self.open.pop(rollout, None)
        if s is None:
            return False
        self.slots.free(rollout)
        group = s.request.group
        if group:
            del self._groups[group][rollout]
            if not self._groups[group]:
                del self._groups[group]
        if self.on_drop is not None:
            self.on_drop(group)
        return True

    def has(self, rollout: str) -> bool:
        """Report whether a rollout was submitted or adopted here."""
        return rollout in self.open or rollout in self._delivered

    async def adopt(self, s: Submitted) -> None:
        """Make a rollout open that another process has put on the queue, unless it is, or its result was returned here.

        It is in the state file before its result can be.
        """
        async with self._adopt_one:
            if self.has(s.request.id):
                return
            await asyncio.to_thread(self._ledger.write, [submit_entry(s)], True)
            if s.request.id not in self.open:
                self._add(s)

    async def put_bundle(self, data: bytes) -> str:
        """Store a task's files and return their sha256 for request.task.bundle."""
        sha = await self._objects.put(names.tasks_bucket(self.trainer), data)
        if sum(map(len, self._bundles.values())) + len(data) <= MOST_BUNDLES:
            self._bundles.setdefault(sha, data)
        self._stored.add(sha)
        return sha

    async def store_files(self, requests: Sequence[Request]) -> None:
        """Store the files of tasks that requests bring, and check that those of other requests are stored.

        Raises:
            InvalidError: They are not.
        """
        for i, request in enumerate(requests):
            sha = request.task.bundle
            if not sha or sha in self._stored:
                continue
            if isinstance(request, TaskRequest) and hashlib.sha256(request.files).hexdigest() == sha:
                await self.put_bundle(request.files)
                continue
            with contextlib.suppress(DigestError):
                if await self._objects.info(names.tasks_bucket(self.trainer), sha) is None:
                    want = "want the sha256 of stored files: call put_bundle(task.bundle) before, or submit_group(task)"
                    raise InvalidError(f"requests[{i}].task.bundle", sha, want)
            self._stored.add(sha)

    async def check_new(self, group: str, rollout: str) -> None:
        """Check that the name of a group is new.

        Args:
            group: The name.
            rollout: Id of the first rollout of a group with this name.

        Raises:
            GroupExistsError: It is not.
        """
        if self.members(group):
            raise GroupExistsError(group, "rollouts of this process that are open")
        records = names.records(self.trainer)
        for subject in (names.state(rollout), names.result(rollout)):
            found = await insist(f"look up group {group}", functools.partial(self._streams.last, records, subject))
            if found is not None:
                raise GroupExistsError(group, f"{found.time.replace('T', ' ')} UTC or earlier")

    def batches(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Check requests, and collect those that are queued all or none.

        Raises:
            InvalidError: A request is not valid.
        """
        out: list[list[Request]] = []
        for i, given in enumerate(requests):
            task = dataclasses.replace(given.task, notes=notes_of(given))
            shard = given.shard or self._shard
            request = dataclasses.replace(
                given, trainer=self.trainer, shard=shard, process=self._process_of(shard), task=task
            )
            names.check_id(request.id, f"requests[{i}].id")
            if names.trainer_of(request.id) != self.trainer:
                raise InvalidError(f"requests[{i}].id", request.id, f'must begin with its trainer, "{self.trainer}-"')
            codec.encode(request)
            last = out[-1] if out else []
            if last and last[0].group == request.group and (request.group or len(last) < MOST_LOOSE):
                last.append(request)
            else:
                out.append([request])
            if len(out[-1]) > MAX_BATCH:
                raise InvalidError(f"requests[{i}].group", request.group, f"at most {MAX_BATCH} rollouts in a group")
        return out

    def _process_of(self, shard: str) -> str:
        """Name this process in a request of its shard, unless a state file keeps the request."""
        of_this_shard = (shard or names.DEFAULT_SHARD) == (self._shard or names.DEFAULT_SHARD)
        return self._instance if of_this_shard and not self._ledger.owner else ""

    async def submit(self, batch: list[Request], new: bool = False) -> None:
        """Queue a batch and make its rollouts open. It waits while the queue is full or the server away, and for slots.

        A group is queued whole, other requests as slots become free. If it ends early, requests that are surely not on
        the queue are not open; the others stay so.

        With new, the ids are no earlier ones.

        Raises:
            StateFileError: The requests were not written down. None was queued.
            ClosedError: The client was closed while it waited for a slot.
            GroupExistsError: They are.
        """
        group = batch[0].group
        self._count_waiting(group, len(batch))
        try:
            while batch:
                async with self.slots.turn:
                    fresh = sum(r.id not in self.open for r in batch)
                    n = await self.slots.room(fresh if group else 1, fresh) if fresh else 0
                    some = batch if n == fresh else batch[:n]
                    fresh_ids = self._made_open(some)
                batch = batch[len(some) :]
                self._count_waiting(group, -len(some))
                await self._submit(some, fresh_ids, _Queued(new=new))
                self.working.set()
        finally:
            self._count_waiting(group, -len(batch))

    def _count_waiting(self, group: str, n: int) -> None:
        """Count n more requests of a group that wait for a slot."""
        waiting = self.slots.waiting
        waiting[group] = waiting.get(group, 0) + n
        if not waiting[group]:
            del waiting[group]
            if self.on_drop is not None:
                self.on_drop(group)

    def _made_open(self, batch: list[Request]) -> set[str]:
        """Make rollouts open, and return those that were not: an earlier submit of the same id may have succeeded."""
        fresh = {r.id for r in batch if r.id not in self.open}
        now = time.monotonic()
        for r in batch:
            if r.id not in self.open:
                self._add(Submitted(r, self._lane, at=now))
        return fresh

    async def _submit(self, batch: list[Request], fresh: set[str], queued: _Queued) -> None:
        known = [self.open[r.id] for r in batch]
        submitting = {r.id for r in batch} - self._submitting
        self._submitting |= submitting
        try:
            writing = asyncio.ensure_future(asyncio.to_thread(self._ledger.write, list(map(submit_entry, known)), True))
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await asyncio.wait({writing})  # the notes below come after it
                raise
            await self._enqueue(self._lane, batch, queued)
        finally:
            self._submitting -= submitting
            self._note(batch, fresh, queued)

    def _note(self, batch: list[Request], fresh: set[str], queued: _Queued) -> None:
        """Write down which requests are on the queue, and drop those that surely are not."""
        entries: list[dict[str, Any]] = []
        for r in batch:
            s = self.open.get(r.id)
            if r.id in queued.seqs:
                entries.append({"id": r.id, "seq": queued.seqs[r.id]})
                if s is not None:
                    s.seq = queued.seqs[r.id]
            elif r.id in fresh and not queued.unsure:
                self._drop(r.id)
                entries.append({"id": r.id, "done": True})
        self._ledger.note(entries)

    async def _enqueue(self, lane: int, batch: list[Request], queued: _Queued) -> None:
        """Repeat the submission until the queue has the batch."""
        wait, why = 0.05, "the server has not answered"
        with waiting(lambda: f"submit waits, and {len(batch)} requests are not on the queue yet: {why}"):
            while True:
                try:
                    await self._queue(lane, batch, queued)
                    return
                except TurngateError as e:
                    queued.unsure = queued.unsure or not refused(e)
                    if not passing(e):
                        raise
                    why = str(e)
                except BaseException:
                    queued.unsure = True  # it was cancelled while the server worked on it
                    raise
                await asyncio.sleep(wait)
                wait = min(2 * wait, 2.0)

    async def _queue(self, lane: int, batch: list[Request], queued: _Queued) -> None:
        """Queue a batch, each request once."""
        subject = names.requests(lane, self.trainer)
        trace = traces.current()
        messages = [Message(subject, codec.encode(r), {MSG_ID: r.id, **trace}) for r in batch]
        first = queued.new and not queued.unsure
        if len(messages) > 1:
            try:
                last = await self._streams.store_batch(messages)
            except ServerError as e:
                if e.err_code != DUPLICATE:
                    raise
                if first:
                    raise GroupExistsError(batch[0].group, "the last two minutes") from None
                # The queue has some of them already, since an earlier answer was lost: one by one each is queued once.
                queued.unsure = True
            else:
                queued.seqs |= {r.id: last - i for i, r in enumerate(reversed(batch))}
                return
        for r, m in zip(batch, messages, strict=True):
            if not first:
                queued.seqs[r.id] = await self._streams.store(m)
                continue
            queued.seqs[r.id], duplicate = await self._streams.store_once(m)
            if duplicate:
                del queued.seqs[r.id]
                raise GroupExistsError(r.group, "the last two minutes")

    def upstreamed(self) -> list[str]:
        """Return the open rollouts with calls that their worker sends to an upstream itself."""

        return [r for r, s in self.open.items() if _has_upstream(s.request)]

    def queued(self) -> tuple[int, float]:
        """Return the number of rollouts without a call so far, and the monotonic time of the first submission of these.

        The time is 0 if an earlier process submitted all of them. Rollouts whose agent is answered by an upstream are
        not among them, since they make no call here.
        """
        waiting = [s for rollout, s in self.open.items() if not s.attempt and self.slots.has(rollout)]
        times = [s.at for s in waiting if s.request.mode in ("", "interception_gate")]
        return len(times), min((at for at in times if at), default=0.0)

    # Records.

    async def state(self, rollout: str) -> State | None:
        """Return the state of a rollout; None if no worker has taken it yet."""
        found = await self._streams.last(names.records(self.trainer), names.state(rollout))
        return codec.decode(State, found.data) if found else None

    async def request(self, rollout: str) -> Request:
        """Return the request of a rollout, for another one. Its files are stored again if this process has them.

        It waits while the server cannot be reached.

        Raises:
            NotFoundError: No worker took it, or the server has deleted it.
        """
        read = functools.partial(self._streams.last, names.records(self.trainer), names.request(rollout))
        found = await insist(f"read the request of rollout {rollout}", read)
        if found is None:
            raise NotFoundError(f"the server has no copy of the request of rollout {rollout}")
        request = codec.decode(Request, found.data)
        request.attempt_floor = 0
        bundle = self._bundles.get(request.task.bundle)
        if bundle is not None:
            await self.put_bundle(bundle)
        return request

    async def has_result(self, rollout: str) -> bool:
        """Report whether the result of a rollout is stored."""
        return await self._streams.last(names.records(self.trainer), names.result(rollout)) is not None

    async def attempt_of(self, rollout: str) -> tuple[int, bool]:
        """Return the highest attempt of a rollout, and whether the rollout has ended.

        Without an answer of the server within a second, it is the attempt that this process knows: the worker of a call
        waits two seconds for a frame.
        """
        state: State | None = None
        try:
            state = await asyncio.wait_for(self.state(rollout), STATE_WITHIN)
        except (TurngateError, asyncio.TimeoutError) as e:
            log.debug("the state of %s could not be read: %s", rollout, e)
        own = self.open.get(rollout)
        known = own.attempt if own else 0
        return (max(known, state.attempt), state.status in TERMINAL) if state else (known, False)

    def saw_attempt(self, rollout: str, attempt: int) -> None:
        """Keep the highest attempt of a rollout, also over restarts."""
        s = self.open.get(rollout)
        if s is not None and attempt > s.attempt:
            s.attempt = attempt
            self._ledger.note([{"id": rollout, "attempt": attempt}])

    def ended(self, rollout: str) -> bool:
        """Drop a rollout that has its result, and report whether it was open."""
        if not self._drop(rollout):
            return False
        self._delivered[rollout] = None
        if len(self._delivered) > MOST_DELIVERED:
            del self._delivered[next(iter(self._delivered))]
        self._ledger.note([{"id": rollout, "done": True}])
        return True

    async def look_at_store(self) -> list[str]:
        """Submit the open rollouts again if the server has lost them with its store, as audit does.

        The queue and the records then have been made again, at another time.
        """
        streams = names.queue(self.trainer), names.records(self.trainer)
        store = " ".join([await self._streams.created(stream) for stream in streams])
        found: list[str] = []
        if self._store not in ("", store):
            log.warning("the server has lost its store; requests that it does not have are submitted again")
            self._stored.clear()
            found = await self.audit(0)
        self._store = store
        return found

    async def audit(self, older: float) -> list[str]:
        """Submit again the rollouts that the server lost. Return those that may have a result.

        Args:
            older: Seconds since their submission.
        """
        finished = []
        now = time.monotonic()
        for rollout, s in list(self.open.items()):
            if now - s.at < older or rollout in self._submitting:
                continue
            if await self._lost(rollout):
                await self._again(rollout)
            elif await self.has_result(rollout):
                finished.append(rollout)
        return finished

    async def _lost(self, rollout: str) -> bool:
        state = await self.state(rollout)
        if state is not None:
            self.saw_attempt(rollout, state.attempt)
            return False
        s = self.open.get(rollout)
        if s is None or await self.has_result(rollout):
            return False
        if s.seq:
            found = await self._streams.at(names.queue(self.trainer), s.seq)
            if found is not None and codec.unpack_map(found.data).get("id") == rollout:
                return False
        return await self._streams.last(names.queue(self.trainer), names.parked(rollout)) is None

    async def _again(self, rollout: str) -> None:
        s = self.open.get(rollout)
        if s is None:
            return
        bundle = self._bundles.get(s.request.task.bundle)
        if bundle is not None:
            await self.put_bundle(bundle)
        floor = max(s.request.attempt_floor, s.attempt)
        try:
            queued = _Queued()
            await self._queue(s.lane, [dataclasses.replace(s.request, attempt_floor=floor)], queued)
        except QueueFullError:
            return  # with a full queue it would be lost again
        s.seq, s.at = queued.seqs[rollout], time.monotonic()
        log.warning("the server had lost the request %s; it was submitted again", rollout)
        self._ledger.note([{"id": rollout, "seq": s.seq}])

    # Cancels.

    async def cancel(self, rollouts: Sequence[str], reason: str) -> None:
        """Ask workers to end rollouts, and again until each open one has its result."""
        codec.encode(Cancel(reason=reason))  # a reason that is too long is refused before it is noted
        for rollout in rollouts:
            s = self.open.get(rollout)
            if s is not None:
                s.cancel = reason
        await self._ask_to_cancel(rollouts, reason)

    async def _ask_to_cancel(self, rollouts: Sequence[str], reason: str) -> None:
        for at in range(0, len(rollouts), CANCELS_PER_MESSAGE):
            ids = list(rollouts[at : at + CANCELS_PER_MESSAGE])
            seqs = [self.open[r].seq if r in self.open else self.orphans.get(r, 0) for r in ids]
            message = Cancel(ids=ids, seqs=seqs, reason=reason)
            await self._streams.link.publish(names.trainer_subject(self.trainer, "cancel"), codec.encode(message))

    async def repeat_cancels(self) -> None:
        """Send the cancels of rollouts without a result again."""
        wanted: dict[str, list[str]] = {}
        for rollout, s in self.open.items():
            if s.cancel is not None:
                wanted.setdefault(s.cancel, []).append(rollout)
        if self.orphans:
            wanted.setdefault("the process that submitted it is gone", []).extend(self.orphans)
        for reason, rollouts in wanted.items():
            await self._ask_to_cancel(rollouts, reason)


def check_group(task: object, n: object, group: object) -> None:
    """Check the arguments of a group.

    Raises:
        InvalidError: One of them is wrong.
    """
    if not isinstance(task, Task | Request):
        shown = task if isinstance(task, str | os.PathLike) else type(task).__name__
        raise InvalidError("task", shown, "want a Task, such as Task.load(path), or a Request")
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_BATCH:
        raise InvalidError("n", n, f"want a number of rollouts from 1 to {MAX_BATCH}")
    if not isinstance(group, str):
        raise InvalidError("group", group, "want a text")


def _has_upstream(request: Request) -> bool:
    return request.mode == "transparent_proxy" or any(r.upstream for r in request.gate.routes.values())
