"""The client without async, for notebooks and training loops.

An event loop in a thread of its own keeps calls alive while the caller computes.

    with SyncClient.connect(url, creds, "local") as client:
        client.serve(policy)
        client.submit_group(Task.load("tasks/hello"), n=4)
        for result in client.results():
            rows = client.rows(result)
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..errors import ClosedError
from ..rollouts.failures import TREATMENTS
from ..rollouts.group import Evaluation, Group
from ..rollouts.progress import Progress
from ..rollouts.slots import Load as Waiting
from ..rollouts.tally import Treatments
from ..schema import (
    Artifact,
    Delta,
    Entry,
    Fault,
    Fleet,
    Opened,
    Reply,
    Request,
    Result,
    TranscriptLine,
    Verdict,
    Verification,
)
from ..serving.call import Call
from ..serving.handle import Handle, Output
from ..serving.policy import Policy
from ..tasks.dataset import Load, Tasks
from ..tasks.task import Task
from ..trajectory.reader import Rows
from ..wire.link import OP_TIMEOUT
from ..wire.loop_thread import LoopThread
from .answering import Select
from .client import URL, Client
from .options import ConnectOptions, RolloutOptions, RowOptions
from .training import Metrics

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..upstream import Upstream

T = TypeVar("T")


class SyncClient:
    """SyncClient has the methods of Client. Each blocks until it is done, or for timeout seconds."""

    def __init__(self) -> None:
        self._thread = LoopThread("turngate")
        self._closed = self._closing = False

    client: Client
    """The client itself. It belongs to the thread's event loop."""

    @classmethod
    def connect(
        cls,
        url: str = URL,
        creds: str | os.PathLike[str] | None = None,
        name: str | None = None,
        **options: Unpack[ConnectOptions],
    ) -> SyncClient:
        """Connect a trainer; see Client.connect."""
        self = cls()
        try:
            self.client = self._run(Client.connect(url, creds, name, **options))
        except BaseException:
            self._thread.stop()
            raise
        return self

    def _run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        if self._closed and not self._closing:
            work.close()
            raise ClosedError("the client is closed")
        return self._thread.run(work, timeout)

    def _each(self, items: AsyncGenerator[T, None], timeout: float | None = None) -> Generator[T, None, None]:
        """Yield the items of a generator. It is closed if the caller leaves the loop, and has ended by an exception."""
        while (item := self._run(anext(items, None), timeout)) is not None:
            try:
                yield item
            except GeneratorExit:
                if not self._closed:
                    self._run(items.aclose())
                raise

    def __repr__(self) -> str:
        return repr(getattr(self, "client", None)).replace("Client", "SyncClient", 1)

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop, as Client.close."""
        if self._closed:
            return
        self._closed = self._closing = True
        if self._thread.forked:
            return  # the client is the other process's
        try:
            self._run(self.client.close())
        finally:
            self._closing = False
            self._thread.stop()

    @property
    def outstanding(self) -> int:
        """Number of submitted rollouts without a delivered result."""
        return self.client.outstanding

    @property
    def slots(self) -> int:
        """Largest number of submitted rollouts without a result; see Client.slots."""
        return self.client.slots

    @slots.setter
    def slots(self, most: int) -> None:
        async def change() -> None:
            self.client.slots = most

        self._run(change())

    def load(self) -> Waiting:
        """Return what rollouts and calls wait for; see Client.load."""

        async def read() -> Waiting:
            return self.client.load()

        return self._run(read())

    def submit(self, requests: Request | Sequence[Request], timeout: float | None = None) -> list[str]:
        """Queue requests and return their ids; see Client.submit."""
        return self._run(self.client.submit(requests), timeout)

    def submit_again(self, result: Result, tries: int = 2, timeout: float | None = None) -> str | None:
        """Submit the request of a result again, and return the new id; see Client.submit_again."""
        return self._run(self.client.submit_again(result, tries), timeout)

    def submit_group(
        self,
        task: Task | Request,
        n: int = 1,
        *,
        group: str = "",
        timeout: float | None = None,
        **options: Unpack[RolloutOptions],
    ) -> list[str]:
        """Queue n rollouts of one task, all or none, and return their ids; see Client.submit_group."""
        return self._run(self.client.submit_group(task, n, group=group, **options), timeout)

    def groups(
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
    ) -> Iterator[Group]:
        """Run n rollouts of each task, and yield each group when it is complete; see Client.groups."""
        groups = self.client.groups(
            tasks, n, ahead=ahead, epochs=epochs, load=load, tries=tries, stale=stale, treatments=treatments,
            rows=rows, **options,
        )  # fmt: skip
        with contextlib.closing(self._each(groups)) as each:
            for group in each:
                if metrics is not None:  # in the caller's thread
                    metrics(group.metrics)
                yield group

    def evaluate(
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
        """Run n rollouts of each task, and return their results: mean reward and pass@k; see Client.evaluate."""
        work = self.client.evaluate(
            tasks, n, at_once=at_once, load=load, tries=tries, treatments=treatments, **options
        )  # fmt: skip
        evaluation = self._run(work)
        if metrics is not None:
            metrics(evaluation.metrics)
        return evaluation

    def put_bundle(self, data: bytes, timeout: float | None = None) -> str:
        """Store a task's files for workers, and return their sha256 for request.task.bundle."""
        return self._run(self.client.put_bundle(data), timeout)

    def new_id(self, suffix: str = "") -> str:
        """Return an id for a rollout; see Client.new_id."""
        return self.client.new_id(suffix)

    def result(self, rollout: str, timeout: float | None = None) -> Result:
        """Return the stored result of any rollout of this trainer; see Client.result."""
        return self._run(self.client.result(rollout), timeout)

    def next_result(self, timeout: float | None = None) -> Result:
        """Wait for the next result. Each is returned once."""
        return self._run(self.client.next_result(), timeout)

    def results(
        self, *, group: str = "", enough: int = 0, treatments: Treatments = TREATMENTS, progress: bool = False
    ) -> Iterator[Result]:
        """Yield results until no submitted rollout is outstanding, or none of a group; see Client.results."""
        wanted = self.client._wanted(group, enough, treatments)
        bar = Progress(wanted.outstanding) if progress else None
        try:
            while (result := self._run(wanted.next())) is not None:
                if bar is not None:
                    bar.add(result, wanted.outstanding)
                yield result
        finally:
            if bar is not None:
                bar.close()

    def cancel(
        self,
        rollouts: str | Iterable[str] | None = None,
        *,
        group: str = "",
        older: int | None = None,
        reason: str = "",
    ) -> None:
        """End rollouts, queued or running; see Client.cancel."""
        self._run(self.client.cancel(rollouts, group=group, older=older, reason=reason))

    def hold(
        self,
        rollouts: str | Iterable[str] | Select | None = None,
        *,
        group: str = "",
        version: str = "",
        drain: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Make calls wait from now on: all, or a selection; see Client.hold."""
        self._run(self.client.hold(rollouts, group=group, version=version, drain=drain), timeout)

    @contextlib.contextmanager
    def hold_upstream(self, upstream: Upstream, version: str = "", *, abort: bool = False) -> Iterator[None]:
        """Hold all calls while the weights of an engine change; see Upstream.hold.

        with client.hold_upstream(engine, version="step-2"):
            load_the_new_weights()
        """
        holding = upstream.hold(self.client, version, abort=abort)
        self._run(holding.__aenter__())
        try:
            yield
        except BaseException as e:
            self._run(_failed(holding, e))
            raise
        self._run(holding.__aexit__(None, None, None))

    def abort(self, rollouts: str | Iterable[str] | Select | None = None, *, group: str = "", version: str = "") -> int:
        """End the answers that were begun, and return their number; see Client.abort."""

        async def end() -> int:
            return self.client.abort(rollouts, group=group, version=version)

        return self._run(end())

    def resume(self) -> None:
        """End any hold and hand out the waiting calls."""
        self._run(self.client.resume())

    @property
    def refusals(self) -> int:
        """Number of answers that workers refused."""
        return self.client.refusals

    def opened(self) -> Opened:
        """Ask a worker to make this trainer's streams if they are missing, and return the trainer's bounds."""
        return self._run(self.client.opened())

    def fleet(self, within: float = OP_TIMEOUT) -> Fleet:
        """Return the live workers: what each offers, and its used slots; see Client.fleet."""
        return self._run(self.client.fleet(within))

    def artifact(self, artifact: Artifact, timeout: float | None = None) -> Iterator[bytes]:
        """Yield a file of a rollout in pieces, each within timeout seconds; see Client.artifact."""
        yield from self._each(self.client.artifact(artifact), timeout)

    def read_artifact(self, artifact: Artifact, timeout: float | None = None) -> bytes:
        """Return a file of a rollout; see Client.read_artifact."""
        return self._run(self.client.read_artifact(artifact), timeout)

    def read_transcript(self, rollout: Result | str, timeout: float | None = None) -> bytes:
        """Return a rollout's transcript in its stored form; see Client.read_transcript."""
        return self._run(self.client.read_transcript(rollout), timeout)

    def transcript(self, rollout: Result | str, timeout: float | None = None) -> list[TranscriptLine]:
        """Return the calls and answers of a rollout; see Client.transcript."""

        async def read() -> list[TranscriptLine]:
            return [line async for line in self.client.transcript(rollout)]

        return self._run(read(), timeout)

    def rows(self, rollout: Result | str, timeout: float | None = None, **options: Unpack[RowOptions]) -> Rows:
        """Return the training rows of a rollout; see Client.rows."""
        return self._run(self.client.rows(rollout, **options), timeout)

    @contextlib.contextmanager
    def handle(self, rollout: str, timeout: float | None = None) -> Iterator[SyncHandle]:
        """Wait until the worker asks this trainer to verify a rollout, and act in its sandbox; see Client.handle.

        End it with the handle's verdict. Without one, or with an exception, the rollout fails without a reward. After
        an interrupt (Ctrl-C) the worker asks again.

            with client.handle(rollout) as handle:
                handle.verdict(Verdict(reward=float(b"42" in handle.read("answer.txt"))))

        Args:
            rollout: Id of the rollout.
            timeout: Seconds to wait for the worker's question.

        Raises:
            TimeoutError: The worker did not ask in time.
            InvalidError: Another caller waits for it.
            ClosedError: The client is closed.
        """
        asking = self.client.handle(rollout)
        handle = self._run(asking.__aenter__(), timeout)
        try:
            yield SyncHandle(handle, self._run)
        except Exception as e:
            self._run(asking.__aexit__(type(e), e, e.__traceback__))
            raise
        except BaseException:
            left = asyncio.CancelledError()  # an interrupt itself would end the thread's event loop
            with contextlib.suppress(concurrent.futures.CancelledError):
                self._run(asking.__aexit__(type(left), left, None))
            raise
        else:
            self._run(asking.__aexit__(None, None, None))

    def serve(self, handler: Policy, *, concurrency: int = 256) -> None:
        """Answer calls with handler in the background, until the client is closed; see Client.serve."""

        async def start() -> None:
            self.client.serve(handler, concurrency=concurrency)

        self._run(start())

    def next_call(self, timeout: float | None = None) -> Call:
        """Wait for the next call. Answer it with reply or fault of this client."""
        return self._run(self.client.next_call(), timeout)

    def reply(self, call: Call, reply: Reply) -> None:
        """Answer a call of next_call."""
        self._run(call.reply(reply))

    def delta(self, call: Call, delta: Delta) -> None:
        """Send a piece of the answer to a call of next_call."""
        self._run(call.delta(delta))

    def fault(self, call: Call, fault: Fault) -> None:
        """Refuse a call of next_call."""
        self._run(call.fault(fault))


async def _failed(holding: contextlib.AbstractAsyncContextManager[None], e: BaseException) -> None:
    """End a hold after an exception. An interrupt itself would end the thread's event loop."""
    seen = e if isinstance(e, Exception) else RuntimeError("interrupted")
    with contextlib.suppress(type(seen)):
        await holding.__aexit__(type(seen), seen, seen.__traceback__)


class _Run(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T]) -> T: ...


class SyncHandle:
    """SyncHandle has the methods of Handle; each blocks until it is done. Their errors are those of Handle."""

    def __init__(self, handle: Handle, run: _Run) -> None:
        self._handle = handle
        self._run = run

    @property
    def verification(self) -> Verification:
        """The worker's question: the task, the step, the agent's exit."""
        return self._handle.verification

    @property
    def rollout(self) -> str:
        return self._handle.rollout

    @property
    def wanted(self) -> bool:
        """Whether the verdict is still wanted."""
        return self._handle.wanted

    def exec(
        self,
        args: Sequence[str] = (),
        *,
        run: str = "",
        env: dict[str, str] | None = None,
        cwd: str = "",
        user: str = "",
        stdin: bytes = b"",
        timeout: float = 0,
    ) -> Output:
        """Run a command to its end; see Handle.exec."""
        work = self._handle.exec(args, run=run, env=env, cwd=cwd, user=user, stdin=stdin, timeout=timeout)
        return self._run(work)

    def read(self, path: str) -> bytes:
        """Return a file of at most 8 MiB."""
        return self._run(self._handle.read(path))

    def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str = "") -> None:
        """Create or replace a file, with its missing parents."""
        self._run(self._handle.write(path, data, mode=mode, user=user))

    def list(self, folder: str = "") -> Sequence[Entry]:
        """Return the files of a folder by name, at most 10,000. Default: the working directory."""
        return self._run(self._handle.list(folder))

    def verdict(self, verdict: Verdict) -> None:
        """End the verification; see Handle.verdict."""
        self._run(self._handle.verdict(verdict))

    def fault(self, fault: Fault) -> None:
        """End the verification without a reward; see Handle.fault."""
        self._run(self._handle.fault(fault))
