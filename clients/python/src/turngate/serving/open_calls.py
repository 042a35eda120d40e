"""The open calls of a trainer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from ..errors import CallOverError, ClosedError, InvalidError, ShapeError, TurngateError
from ..schema import Fault, ToolCall, Verdict, codec
from ..trajectory import versions
from ..wire import body as bodies
from ..wire import names, traces
from ..wire.link import Link, log
from ..wire.names import Key
from ..wire.objects import Objects
from ..wire.outbox import Frame, Outbox
from ..wire.quiet import Lines
from . import tool
from .background import Background
from .bases import Bases, read
from .call import Call
from .holding import Holding
from .kept_answer import Answer, IncomingCall
from .threads import Threads

BEAT_EVERY = 5.0
FORGET_AFTER = 24 * 3600.0
"""Seconds without a call after which the calls of a rollout without a result are dropped."""

MOST_WAITING = 64
"""Calls that wait for their rollout's state; further ones are asked again by their workers."""

Check = Callable[[Call], "Fault | None"]


class FaultError(TurngateError):
    """A handler raises it to refuse a call with a fault of its own."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.code}: {fault.message}")
        self.fault = fault


@dataclass(slots=True, eq=False)
class Rollout:
    """Rollout has the calls of a rollout until its result."""

    attempt: int = 0  # the highest seen
    ready: bool = False  # its state was read, since this process may have been restarted
    waiting: list[IncomingCall] = field(default_factory=list)
    calls: dict[int, Answer] = field(default_factory=dict)
    tools: dict[int, Answer] = field(default_factory=dict)
    verifications: dict[int, Answer] = field(default_factory=dict)
    bases: Bases = field(default_factory=Bases)
    touched: float = field(default_factory=time.monotonic)
    version: str = ""  # policy version of its newest answer
    oldest: int | None = None  # smallest number of a policy version of the attempt's answers

    def of(self, kind: str) -> dict[int, Answer]:
        return {"llm": self.calls, "tool": self.tools, "verify": self.verifications}[kind]

    def answers(self) -> list[Answer]:
        return [*self.calls.values(), *self.tools.values(), *self.verifications.values()]

    def give_up(self) -> None:
        for answer in self.answers():
            answer.give_up()


class Calls:
    """Calls accepts calls, keeps them alive with beats, and answers each key once."""

    def __init__(
        self,
        trainer: str,
        link: Link,
        objects: Objects,
        holding: Holding,
        attempt_of: Callable[[str], Awaitable[tuple[int, bool]]],
        saw_attempt: Callable[[str, int], None],
        check: Check | None = None,
        tools: dict[str, tool.Tool] | None = None,
        refused: Callable[[Key, Fault], None] | None = None,
    ) -> None:
        self.background = Background()
        self.refusals = 0  # answers that workers refused
        self.newest: int | None = None  # largest number of a policy version that answered here
        self.on_verification: Callable[[IncomingCall, Callable[[], Answer]], None] | None = None
        self.on_rollout: Callable[[str], None] | None = None  # called with each rollout at its first call
        self.attached: Callable[[], bool] = lambda: True  # this process has the calls of its shard
        self._refused = refused
        self._trainer = trainer
        self._link = link
        self._objects = objects
        self._holding = holding
        self._attempt_of = attempt_of
        self._saw_attempt = saw_attempt
        self._check = check
        self._raised = Lines()  # by check
        self._tools = tools or {}
        self._threads = Threads(tool.THREADS, "turngate tool")
        self._outbox = Outbox(link)
        self._rollouts: dict[str, Rollout] = {}
        self._reading: dict[tuple[str, str, str], asyncio.Task[None]] = {}  # by object, subject and inbox of a call
        self._queue: deque[Call] = deque()
        self._arrived = asyncio.Event()
        self._gens = 0
        self.asked = False  # somebody serves or pulls calls, or has done so
        self._closed: ClosedError | None = None
        self._answers: Callable[[str], bool] = lambda _rollout: True
        self._orphan: Callable[[str], Awaitable[bool]] | None = None

    def answer_only(self, answers: Callable[[str], bool], orphan: Callable[[str], Awaitable[bool]]) -> None:
        """Answer the calls of some rollouts only.

        Args:
            answers: Reports whether the calls of a rollout are answered.
            orphan: Called at the first call of another one. It reports whether its calls are answered from now on.
        """
        self._answers, self._orphan = answers, orphan

    async def listen(self, shard: str) -> None:
        """Take calls from now on."""
        await self._link.subscribe(names.calls(self._trainer, shard), self._on_call)
        if self._tools:
            await self._link.subscribe(names.tools(self._trainer, shard), self._on_tool)

    async def listen_verifications(self, shard: str) -> None:
        """Take verifications from now on."""
        await self._link.subscribe(names.verifications(self._trainer, shard), self._on_verification)

    def stop(self, reason: ClosedError) -> None:
        """Answer nothing from now on."""
        self._closed = self._closed or reason

    async def close(self, reason: ClosedError, by: asyncio.Task[Any] | None) -> None:
        """End all work on calls but the task by, which waits for it. Their workers ask another process of this trainer,
        or this one after a restart.
        """
        self.stop(reason)
        self._arrived.set()
        self._queue.clear()
        await self.background.close(by)
        self._threads.shutdown()
        await self._outbox.close()

    @property
    def closed(self) -> ClosedError | None:
        """The reason of the end; None: it has not ended."""
        return self._closed

    # Requests of workers.

    async def _on_call(self, msg: Msg) -> None:
        self._on_message(msg, "llm")

    async def _on_tool(self, msg: Msg) -> None:
        self._on_message(msg, "tool")

    async def _on_verification(self, msg: Msg) -> None:
        self._on_message(msg, "verify")

    def _on_message(self, msg: Msg, of: str) -> None:
        key, headers = names.parse_call(msg.subject, self._trainer), msg.headers or {}
        if key is None or self._closed is not None or not self.attached():
            return
        if headers.get("Rl-Kind") == "cancel":
            for (_, subject, _), task in self._reading.items():
                if subject == msg.subject:
                    task.cancel()
            self._cancelled(key, of)
            return
        if headers.get("Rl-Kind") == "reject":
            self._rejected(key, of, headers.get("Rl-Gen", ""), msg.data)
            return
        if not names.is_gate_inbox(msg.reply, self._trainer):
            log.warning("call %s: its reply subject is not a gate's; it is dropped", key)
            return
        incoming = IncomingCall(key, msg.reply, of, headers.get("Rl-Gen", ""), trace=traces.of(headers))
        resume = headers.get("Rl-Resume", "")
        incoming.resume = int(resume) if incoming.resume_gen and resume.isdecimal() and len(resume) < 10 else 0
        incoming.received = [int(n) for n in headers.get("Rl-Settled", "").split(",") if n.isdecimal() and len(n) < 10]
        if bodies.is_claim(headers):
            self._read(incoming, headers, msg.subject)
        else:
            self._unpacked(incoming, headers, msg.data)

    def _read(self, incoming: IncomingCall, headers: dict[str, str], subject: str) -> None:
        """Read the body of a call in an object, once at a time.

        The worker of a call that is not accepted asks again each few seconds, and the reads of a large body would delay
        each other without end.
        """
        reading = headers["Rl-Claim"], subject, incoming.reply
        if reading not in self._reading:
            task = self._reading[reading] = self.background.run(self._claimed(incoming, headers))
            task.add_done_callback(lambda _: self._reading.pop(reading))

    async def _claimed(self, incoming: IncomingCall, headers: dict[str, str]) -> None:
        bucket = names.artifacts_bucket(self._trainer)
        try:
            data = await asyncio.wait_for(bodies.fetch(headers, self._objects, bucket), 60)
        except (TurngateError, asyncio.TimeoutError) as e:
            log.warning("call %s: its body cannot be read; its worker asks again: %s", incoming.key, e)
            return
        self._unpacked(incoming, headers, data)

    def _unpacked(self, incoming: IncomingCall, headers: dict[str, str], data: bytes) -> None:
        try:
            incoming.body = bodies.decompress(headers, data)
        except ShapeError as e:
            log.warning("call %s: its body cannot be read; its worker asks again: %s", incoming.key, e)
            return
        self._receive(incoming)

    def _cancelled(self, key: Key, of: str) -> None:
        rollout = self._rollouts.get(key.rollout)
        if rollout is None:
            return
        rollout.waiting = [w for w in rollout.waiting if w.key != key or w.kind != of]
        if rollout.ready and rollout.attempt == key.attempt:
            answer = rollout.of(of).pop(key.call, None)
            if answer is not None:
                answer.give_up()

    def _rejected(self, key: Key, of: str, gen: str, data: bytes) -> None:
        """Forget a generation that a worker refused. The worker asks again and gets a new one."""
        try:
            fault = codec.decode(Fault, data)
        except (ShapeError, InvalidError) as e:
            fault = Fault(code="bad_answer", message=f"the reason cannot be read: {e}", who="trainer")
        self.refusals += 1
        log.warning("call %s: the worker refused generation %s: %s", key, gen, fault.message)
        rollout = self._rollouts.get(key.rollout)
        if rollout is not None and rollout.attempt == key.attempt:
            given = rollout.of(of)
            answer = given.get(key.call)
            if answer is not None and answer.gen == gen:
                del given[key.call]
                answer.give_up()
        if self._refused is not None:
            self._refused(key, fault)

    def _stale(self, incoming: IncomingCall, text: str) -> None:
        fault = Fault(stage="call", code="stale_attempt", who="worker", status=409, message=text)
        self._outbox.send(incoming.reply, Frame("fault", self._new_gen(), body=bodies.Body(codec.encode(fault))))

    def _new_gen(self) -> str:
        self._gens += 1
        return f"{self._holding.instance}{self._gens:x}"

    def _receive(self, incoming: IncomingCall) -> None:
        key = incoming.key
        rollout = self._rollouts.get(key.rollout)
        if rollout is None:
            rollout = self._rollouts[key.rollout] = Rollout()
            self.background.run(self._learn(key.rollout, rollout))
            if self.on_rollout is not None:
                self.on_rollout(key.rollout)
        if not rollout.ready:
            if len(rollout.waiting) < MOST_WAITING:
                rollout.waiting.append(incoming)
            return
        if not self._answers(key.rollout):
            return
        rollout.touched = time.monotonic()
        if key.attempt < rollout.attempt:
            self._stale(incoming, f"attempt {key.attempt} is over, {rollout.attempt} has begun")
            return
        if key.attempt > rollout.attempt:
            rollout.attempt = key.attempt
            rollout.give_up()
            rollout.calls, rollout.tools, rollout.verifications, rollout.bases = {}, {}, {}, Bases()
            rollout.oldest = None
        self._saw_attempt(key.rollout, key.attempt)
        for number in incoming.received:
            if number in rollout.of(incoming.kind):
                rollout.of(incoming.kind)[number].drop()
        known = rollout.of(incoming.kind).get(key.call)
        if known is not None:
            known.attach(incoming, self._holding.holds(key.rollout))
            return
        given = rollout.of(incoming.kind)

        def open_answer() -> Answer:
            answer = given[key.call] = Answer(key, self._new_gen(), self._outbox)
            return answer

        if incoming.kind == "verify":
            if self.on_verification is not None:
                self.on_verification(incoming, open_answer)
            return
        answer = open_answer()
        if incoming.kind == "tool":
            answer.open(incoming.reply)
            with traces.under(incoming.trace):
                self.background.run_while_wanted(answer, self._run_tool(incoming, answer))
        else:
            self._begin(rollout, incoming, answer)

    async def _learn(self, name: str, rollout: Rollout) -> None:
        """Read the highest attempt, so that a fenced worker gets no answer from a restarted trainer either."""
        attempt, over = await self._attempt_of(name)
        rollout.attempt, rollout.ready = max(rollout.attempt, attempt), True
        waiting, rollout.waiting = rollout.waiting, []
        if over and self._rollouts.get(name) is rollout:
            del self._rollouts[name]
        if not over and not self._answers(name) and (self._orphan is None or not await self._orphan(name)):
            self._rollouts.pop(name, None)  # its worker asks again
            return
        for incoming in waiting:
            if over:
                self._stale(incoming, "the rollout has a result")
            else:
                self._receive(incoming)

    def _begin(self, rollout: Rollout, incoming: IncomingCall, answer: Answer) -> None:
        """Decode, check and queue a new call."""
        call = Call(incoming.key, answer, self._send)
        try:
            came = read(incoming.key, incoming.body)
            whole = rollout.bases.whole(incoming.key.call, came)
        except (ShapeError, InvalidError) as e:
            answer.open(incoming.reply)
            answer.finish("fault", bodies.Body(codec.encode(tool.refusal(e))))
            return
        if whole is None:
            del rollout.calls[incoming.key.call]
            answer.give_up()
            self._outbox.send(incoming.reply, Frame("need_full"))
            return
        call.tag, call.dialect, call.model = came.tag, came.dialect, came.model
        call.stream, call.remaining_ms = came.stream, came.remaining_ms
        call.base, call.keep, call.trace = came.base, came.keep, incoming.trace
        call.raw_messages, call.raw_tools, call.raw_params = whole.messages, whole.tools, whole.params
        call._parsed = whole.parsed
        answer.open(incoming.reply)
        fault = self._checked(call)
        if fault is not None:
            self._finish_fault(answer, fault)
            return
        if self._holding.holds(incoming.key.rollout):
            answer.sign(held=True)
        self._queue.append(call)
        self._arrived.set()

    def _checked(self, call: Call) -> Fault | None:
        """Return the fault with which a new call is refused; None: there is none."""
        try:
            fault = self._check(call) if self._check is not None else None
            if fault is not None:
                fault.status = fault.status or 400
                codec.encode(fault)
            return fault
        except Exception as e:
            text = f"check raised {type(e).__name__}: {e}"
            if self._raised.speak(text) is not None:
                log.error("call %s: %s", call.key, text, exc_info=e)
            message = tool.clip(text, 65536)
            return Fault(stage="call", code="internal", who="trainer", status=500, message=message)

    # Answers.

    async def _send(self, answer: Answer, kind: str, message: Any) -> None:
        body = bodies.compress(codec.encode(message))
        if len(body.data) > self._link.max_payload - 4096:
            body = await bodies.claim(body, self._objects, names.tasks_bucket(self._trainer))
        if kind == "delta":
            answer.add(body)
            await self._outbox.room()
        elif kind == "fault":
            self._finish_fault(answer, message, body)
        else:
            rollout = self._rollouts.get(answer.key.rollout)
            if rollout is not None and rollout.attempt == answer.key.attempt and message.versions:
                rollout.version = message.versions[-1].version
                numbers = rollout.oldest, versions.oldest(message.versions)
                rollout.oldest = min((n for n in numbers if n is not None), default=None)
                latest = self.newest, versions.newest(message.versions)
                self.newest = max((n for n in latest if n is not None), default=None)
            answer.finish(kind, body)

    def _finish_fault(self, answer: Answer, fault: Fault, body: bodies.Body | None = None) -> None:
        body = body or bodies.Body(codec.encode(fault))
        retryable = fault.status in (425, 429) or fault.status >= 500
        rollout = self._rollouts.get(answer.key.rollout)
        if retryable and rollout is not None and rollout.calls.get(answer.key.call) is answer:
            del rollout.calls[answer.key.call]  # the worker asks again and gets a new generation
        answer.finish("fault", body, retain=not retryable)

    async def _run_tool(self, incoming: IncomingCall, answer: Answer) -> None:
        try:
            outcome = await tool.run(self._tools, incoming.key, codec.decode(ToolCall, incoming.body), self._threads)
        except (ShapeError, InvalidError) as e:
            outcome = tool.refusal(e)
        with contextlib.suppress(CallOverError):
            if isinstance(outcome, Fault):
                answer.finish("fault", bodies.Body(codec.encode(outcome)))
            else:
                await self._send_tool(answer, codec.encode(outcome))

    def finish_verification(self, answer: Answer, outcome: Verdict | Fault) -> None:
        """Answer a verification.

        Raises:
            InvalidError: A field is wrong. Nothing was sent.
        """
        body = bodies.Body(codec.encode(outcome))
        if not isinstance(outcome, Fault):
            answer.finish("final", body)
            return
        retryable = outcome.status in (425, 429) or outcome.status >= 500
        rollout = self._rollouts.get(answer.key.rollout)
        if retryable and rollout is not None and rollout.verifications.get(answer.key.call) is answer:
            del rollout.verifications[answer.key.call]  # the worker asks again and gets a new generation
        answer.finish("fault", body, retain=not retryable)

    async def _send_tool(self, answer: Answer, data: bytes) -> None:
        body = bodies.compress(data)
        if len(body.data) > self._link.max_payload - 4096:
            body = await bodies.claim(body, self._objects, names.tasks_bucket(self._trainer))
        answer.finish("final", body)

    async def next_call(self) -> Call:
        """Wait for the next call that is not held and still needs an answer.

        Raises:
            ClosedError: The client is closed.
        """
        self.asked = True
        while self._closed is None:
            for i, call in enumerate(self._queue):
                if not self._holding.holds(call.rollout):
                    del self._queue[i]
                    if call.wanted:
                        call._answer.out = True
                        if self._queue:
                            self._arrived.set()
                        return call
                    break
            else:
                self._arrived.clear()
                await self._arrived.wait()
        raise self._closed

    def in_hand(self, selected: Callable[[str], bool]) -> list[Answer]:
        """Return the model calls of selected rollouts that were handed out and have no answer yet."""
        chosen = [r for name, r in self._rollouts.items() if selected(name)]
        return [answer for r in chosen for answer in r.calls.values() if answer.out and answer.wanted]

    def abort(self, selected: Callable[[str], bool]) -> int:
        """End the generations of selected rollouts, and return their number. Their workers ask again."""
        ended = self.in_hand(selected)
        for answer in ended:
            text = "the generation was ended, and the call is answered anew"
            fault = Fault(stage="call", code="aborted", who="trainer", status=425, message=text)
            self._finish_fault(answer, fault)
        return len(ended)

    # Upkeep.

    def hold_changed(self) -> None:
        """Tell the workers of the calls in the queue, since it stops their agents' clocks."""
        for call in self._queue:
            call._answer.sign(self._holding.holds(call.rollout))
        self._arrived.set()

    def beat(self) -> None:
        """Send a beat for every open call, and forget rollouts without calls."""
        waiting = {call._answer: self._holding.holds(call.rollout) for call in self._queue}
        old = time.monotonic() - FORGET_AFTER
        for name, rollout in list(self._rollouts.items()):
            for answer in rollout.answers():
                answer.sign(waiting.get(answer, False))
            if rollout.touched < old:
                self.ended(name)

    def unanswered(self) -> tuple[int, float]:
        """Return the number of calls that were not handed out and are not held, and the monotonic time of the first."""
        open_here = [r for name, r in self._rollouts.items() if not self._holding.holds(name)]
        times = [answer.since for r in open_here for answer in r.calls.values() if answer.wanted and not answer.out]
        return len(times), min(times, default=0.0)

    def held(self) -> tuple[int, float, float]:
        """Return the number of held calls, and the monotonic times at which the first came and the hold began."""
        times = [call._answer.since for call in self._queue if call.wanted and self._holding.holds(call.rollout)]
        return len(times), min(times, default=0.0), self._holding.since

    def version_of(self, rollout: str) -> str:
        """Return the policy version of a rollout's newest answer."""
        known = self._rollouts.get(rollout)
        return known.version if known else ""

    def oldest_of(self, rollout: str) -> int | None:
        """Return the smallest number of a policy version of a rollout's answers; None: none is known."""
        known = self._rollouts.get(rollout)
        return known.oldest if known else None

    def older(self, version: int) -> list[str]:
        """Return the rollouts with an answer of a policy version below a number."""
        return [r for r, known in self._rollouts.items() if known.oldest is not None and known.oldest < version]

    def knows(self, rollout: str) -> bool:
        """Report whether a rollout has calls here."""
        return rollout in self._rollouts

    def ended(self, rollout: str) -> None:
        """Drop the calls of a rollout that has its result."""
        known = self._rollouts.pop(rollout, None)
        if known is not None:
            known.give_up()
