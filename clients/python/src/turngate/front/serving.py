"""Answers to calls over the WebSocket of a front."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from ..errors import (
    CallOverError,
    ClosedError,
    InUseError,
    InvalidError,
    ReplacedError,
    UnreachableError,
)
from ..schema import Call as CallMessage
from ..schema import Fault, Operation, OperationResult, ToolCall, ToolResult, Verdict, Verification, codec
from ..serving import tool, verifications
from ..serving.background import Background
from ..serving.call import Call
from ..serving.handle import Handle, error_of
from ..serving.handler import serve
from ..serving.kept_answer import Answer
from ..serving.policy import Policy
from ..serving.threads import Threads
from ..wire import traces
from ..wire.body import Body
from ..wire.cancelling import cancelled
from ..wire.link import log
from ..wire.names import Key, check_id
from ..wire.outbox import Frame
from .http import AGAIN_AFTER, PASSING, FrontError, Http, problem

OPEN_WITHIN = 100.0
"""Seconds until a front has taken the shard, for which it may have to wait for a process that is gone."""

MOST_FRAME = 512 << 20

MOST_KEPT = 256 << 20
"""Characters of answers that are kept for a worker that may not have them. The oldest are dropped beyond it."""

MOST_SELECTED = 10_000
"""Rollouts of a hold or an abort."""

REPLACED = 1008
"""Status with which a front ends the WebSocket after another process has taken the shard."""


quiet = logging.getLogger("turngate.front")
quiet.setLevel(logging.INFO)  # at DEBUG websockets logs the header with the token


def _only(rollouts: Iterable[str] | None) -> dict[str, list[str]]:
    """Return the fields of a frame that selects rollouts; none of all.

    Raises:
        InvalidError: A front would refuse the frame.
    """
    if rollouts is None:
        return {}
    ids = [check_id(rollout, f"rollouts[{i}]") for i, rollout in enumerate(rollouts)]
    if len(ids) > MOST_SELECTED:
        raise InvalidError("rollouts", f"{len(ids)} ids", f"want at most {MOST_SELECTED}")
    return {"rollouts": ids}


def _object(text: str | bytes) -> dict[str, Any]:
    """Return the frame of a text, with type, key and gen.

    Raises:
        InvalidError: It is no frame.
    """
    try:
        frame = json.loads(text)
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        raise InvalidError("frame", text[:100], "want a JSON object")
    for name in ("type", "key", "gen"):
        if not isinstance(frame.setdefault(name, ""), str):
            raise InvalidError(name, frame[name], "want a text")
    return frame


async def _close(connection: ClientConnection) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(connection.close(), 1)


class _Unsent:
    """_Unsent is in place of a connection to NATS: the answers go over the WebSocket."""

    def send(self, reply: str, frame: Frame) -> None:
        pass


@dataclass(slots=True, eq=False)
class _Open:
    """_Open is a call that is answered at this moment."""

    answer: Answer
    pieces: list[str] = field(default_factory=list)  # frames of its deltas, without the generation
    operation: asyncio.Future[dict[str, Any] | None] | None = None  # None as its result: it is sent again
    number: int = 0  # of the operation


@dataclass(slots=True)
class _Kept:
    """_Kept is the answer to a call."""

    frame: str  # without the generation
    gen: str = ""  # of the call for which it was written last; empty: of a tool call or a verification
    told: int = 0  # number of the connection with the front that has sent it to the worker; 0: none


class Serving:
    """Serving answers calls until it is closed. Front.serve makes it."""

    def __init__(
        self,
        http: Http,
        handler: Policy,
        concurrency: int,
        tools: dict[str, tool.Tool],
        verifier: verifications.Verifier | None,
        shard: str,
    ) -> None:
        self.background = Background()
        self._http = http
        self._handler = handler
        self._concurrency = concurrency
        self._tools = tools
        self._verifier = verifier
        self._shard = shard
        self._threads = Threads(concurrency, "turngate tool")
        self._arrived: asyncio.Queue[Call] = asyncio.Queue()
        self._out: asyncio.Queue[str] | None = None  # of the connection; None: there is none
        self._connection: ClientConnection | None = None  # the first one
        self._connections = 0
        self._open: dict[str, _Open] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0  # of the kept frames
        self._hold: dict[str, Any] | None = None  # the frame of the hold
        self._closed: ClosedError | None = None
        self._over = asyncio.Event()

    async def __aenter__(self) -> Serving:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def closed(self) -> ClosedError | None:
        """The reason of the end; None: it has not ended."""
        return self._closed

    async def wait(self) -> ClosedError:
        """Wait for the end, and return its reason, such as a ReplacedError."""
        await self._over.wait()
        assert self._closed is not None
        return self._closed

    async def start(self, take_over: bool) -> None:
        self._connection = connection = await self._connect(take_over)
        self.background.run(self._run(connection))
        self.background.run(serve(self, self._handler, self._concurrency))

    async def close(self) -> None:
        """Stop. Open calls are not answered: their workers ask the next process of this trainer."""
        self._end(ClosedError("the client is closed"))
        await self.background.close(asyncio.current_task())
        if self._connection is not None:  # the task that has it may have been cancelled before it began
            await _close(self._connection)

    def _end(self, reason: ClosedError) -> None:
        self._closed = self._closed or reason
        self._over.set()
        self.background.cancel()
        self._threads.shutdown()

    def hold(self, rollouts: Iterable[str] | None = None) -> None:
        """Hand out no model calls from now on, for example while weights are updated. It replaces any earlier hold.

        Args:
            rollouts: Ids of those whose calls wait, up to 10,000. Default: all.

        Raises:
            InvalidError: An id is not valid.
        """
        self._hold = {"type": "hold", **_only(rollouts)}
        self._write(self._hold)

    def resume(self) -> None:
        """End the hold."""
        self._hold = None
        self._write({"type": "resume"})

    def _holds(self, rollout: str) -> bool:
        return self._hold is not None and rollout in self._hold.get("rollouts", [rollout])

    def abort(self, rollouts: Iterable[str] | None = None) -> None:
        """End the model calls that the handler has begun: all, or those of some rollouts. Their workers ask again.

        Args:
            rollouts: Ids, up to 10,000. Default: all.

        Raises:
            InvalidError: An id is not valid; no call was ended.
        """
        chosen = _only(rollouts)
        for key, call in list(self._open.items()):
            of = key.partition("/")[0]
            if of not in ("tool", "verify") and of in chosen.get("rollouts", [of]):
                self._drop(key, call)
        self._write({"type": "abort", **chosen})

    # The calls, for the handlers of turngate.serving.

    async def next_call(self) -> Call:
        while True:
            call = await self._arrived.get()
            if call.wanted:
                return call

    # The connection.

    async def _connect(self, take_over: bool) -> ClientConnection:
        query = {"parallel": str(self._concurrency)}
        query |= {"shard": self._shard} if self._shard else {}
        query |= {"tools": ",".join(self._tools)} if self._tools else {}
        query |= {"verify": "true"} if self._verifier is not None else {}
        query |= {"take_over": "true"} if take_over else {}
        url = self._http.url.replace("http", "ws", 1) + "/v1/calls?" + urlencode(query)
        until = time.monotonic() + self._http.within
        while True:
            try:
                return await connect(
                    url, additional_headers=self._http.headers, open_timeout=OPEN_WITHIN, max_size=MOST_FRAME,
                    compression=None, logger=quiet,
                )  # fmt: skip
            except InvalidStatus as e:
                reason = problem(e.response.status_code, bytes(e.response.body or b""))
                if e.response.status_code == 409:
                    raise InUseError("of this token", self._shard or "0", "another process", 0) from None
                if e.response.status_code not in PASSING:
                    raise reason from None
            except (OSError, InvalidHandshake, asyncio.TimeoutError, ConnectionClosed) as e:
                reason = UnreachableError(f"{self._http.url}: {type(e).__name__}: {e}")
            if time.monotonic() > until and not self._connections:
                raise reason
            await asyncio.sleep(AGAIN_AFTER)

    async def _run(self, connection: ClientConnection) -> None:
        """Answer over one connection after the other."""
        while True:
            self._connections += 1
            self._out = asyncio.Queue()
            if self._hold is not None:
                self._write(self._hold)
            writing = self.background.run(self._send(connection, self._out))
            invalid: InvalidError | None = None
            try:
                async for text in connection:
                    self._read(_object(text))
            except ConnectionClosed:
                pass
            except InvalidError as e:
                invalid = e
            finally:
                self._out = None
                await cancelled([writing])
                await _close(connection)
            if invalid is not None:
                log.error("%s sent no frame of a front: %s", self._http.url, invalid)
                self._end(ClosedError(f"{self._http.url} sent no frame of a front: {invalid}"))
                return
            if connection.close_code == REPLACED:
                self._end(ReplacedError("of this token", self._shard or "0", "another process"))
                return
            log.info("the WebSocket has ended (%s); it is opened again", connection.close_code)
            try:
                connection = await self._connect(take_over=True)
            except Exception as e:
                log.error("%s", e)
                self._end(ClosedError(str(e)))
                return

    async def _send(self, connection: ClientConnection, out: asyncio.Queue[str]) -> None:
        with contextlib.suppress(ConnectionClosed):  # the reader notices it
            while True:
                await connection.send(await out.get())

    def _write(self, frame: Mapping[str, Any] | str, gen: str = "") -> None:
        """Write a frame, that of a model call with its generation.

        Without a connection it is dropped: its call comes again.
        """
        if self._out is not None:
            text = frame if isinstance(frame, str) else json.dumps(frame, ensure_ascii=False)
            self._out.put_nowait(f'{{"gen": {json.dumps(gen)}, {text[1:]}' if gen else text)

    def _read(self, frame: dict[str, Any]) -> None:
        """Carry out a frame. A call that cannot be read is refused: the others go on."""
        try:
            self._frame(frame)
        except Exception as e:
            key, gen, text = frame["key"], frame["gen"], f"{type(e).__name__}: {e}"
            log.error("a frame about %s cannot be read: %s", key, text)
            self._open.pop(key, None)
            if frame["type"] == "tool":
                result = codec.to_json(ToolResult(text=text, is_error=True))
                self._write({"type": "tool_result", "key": key, "tool_result": result})
            elif frame["type"] in ("call", "verify"):
                fault = Fault(stage="call", code="invalid", who="trainer", status=400, message=text)
                self._write({"type": "refuse", "key": key, "fault": codec.to_json(fault)}, gen)

    def _frame(self, frame: dict[str, Any]) -> None:
        key, gen, kind = frame["key"], frame["gen"], frame["type"]
        opened, kept = self._open.get(key), self._kept.get(key)
        if kind in ("call", "tool", "verify"):
            if opened is not None:
                self._again(opened, frame)
            elif kept is not None and kept.told != self._connections:  # else the worker refused it
                kept.gen = gen
                self._write(kept.frame, gen)
            elif kind == "call" and self._holds(key.partition("/")[0]):  # the front sent it before it read the hold
                fault = Fault(
                    stage="call", code="aborted", who="trainer", status=425, message="the trainer holds calls"
                )
                self._write({"type": "refuse", "key": key, "fault": codec.to_json(fault)}, gen)
            else:
                self._begin(key, frame)
        elif kind == "answered":
            if kept is not None and kept.gen == gen:
                kept.told = self._connections
        elif kind == "over":
            if opened is not None and opened.answer.gen == gen:
                self._drop(key, opened)
        elif opened is not None and opened.operation is not None and "number" in frame:  # operated, or an error
            if frame["number"] == opened.number and not opened.operation.done():  # else of one that was cancelled
                opened.operation.set_result(frame)
        elif kind == "error":
            text = str(frame.get("detail", ""))
            log.warning("the front did not take a frame about %s: %s", key, text)
            if frame.get("code") == "busy":
                return  # a delta was not taken: the answer has all of it
            if kept is not None and kept.gen == gen and not kept.told and not key.startswith("tool/"):
                fault = Fault(stage="call", code="bad_answer", who="trainer", status=502, message=text)
                self._forget(key)
                self._write({"type": "refuse", "key": key, "fault": codec.to_json(fault)}, gen)

    def _begin(self, key: str, frame: Mapping[str, Any]) -> None:
        rollout, attempt, number = key.split("/")[-3:]
        answer = Answer(Key(rollout, int(attempt), int(number)), frame["gen"], _Unsent())
        self._forget(key)
        self._open[key] = _Open(answer)
        if frame["type"] == "call":
            self._arrived.put_nowait(self._call(key, answer, frame))
            return
        trace = traces.of(frame)
        with traces.under(trace):
            if frame["type"] == "tool":
                work = self._tool(key, answer, codec.from_json(ToolCall, frame["tool"]))
                self.background.run_while_wanted(answer, work)
            elif self._verifier is not None:
                asked, run = codec.from_json(Verification, frame["verification"]), self._operations(key)
                handle = Handle(asked, answer.key, answer, run, lambda a, out: self._verdict(key, a, out), trace)
                self.background.run_while_wanted(answer, self._verify(handle, self._verifier))

    def _again(self, opened: _Open, frame: Mapping[str, Any]) -> None:
        """Go on with a call that comes again: its new front has nothing of it."""
        opened.answer.gen = frame["gen"]
        for piece in opened.pieces:
            self._write(piece, opened.answer.gen)
        if opened.operation is not None and not opened.operation.done():
            opened.operation.set_result(None)

    def _drop(self, key: str, opened: _Open) -> None:
        del self._open[key]
        opened.answer.give_up()
        if opened.operation is not None and not opened.operation.done():
            opened.operation.set_exception(CallOverError(f"verification {key} has ended"))

    # Answers.

    def _call(self, key: str, answer: Answer, came: Mapping[str, Any]) -> Call:
        async def send(_: Answer, kind: str, message: Any) -> None:
            codec.encode(message)  # checks all fields
            if kind == "delta":
                if not answer.wanted:
                    raise CallOverError(f"call {key} needs no answer any more")
                frame = json.dumps({"type": "delta", "key": key, "delta": codec.to_json(message)}, ensure_ascii=False)
                self._open[key].pieces.append(frame)
                self._write(frame, answer.gen)
                answer.sent = time.monotonic()
            elif kind == "fault":
                self._finish(key, answer, {"type": "refuse", "fault": codec.to_json(message)}, message)
            else:
                self._finish(key, answer, {"type": "answer", "reply": codec.to_json(message)})

        message = codec.from_json(CallMessage, came["call"])
        call = Call(answer.key, answer, send)
        call.tag, call.dialect, call.model, call.stream = message.tag, message.dialect, message.model, message.stream
        call.remaining_ms, call.base, call.keep = message.remaining_ms, message.base, message.keep
        call.trace = traces.of(came)
        call._parsed = list(message.messages)
        call._tools = message.tools or []
        call.raw_messages = [codec.raw_json(m) for m in message.messages]
        call.raw_tools = codec.raw_json(message.tools) if message.tools else b""
        call.raw_params = {name: codec.raw_json(value) for name, value in message.params.items()}
        return call

    async def _tool(self, key: str, answer: Answer, call: ToolCall) -> None:
        outcome = await tool.run(self._tools, answer.key, call, self._threads)
        if isinstance(outcome, Fault):
            outcome = ToolResult(text=outcome.message, is_error=True)
        with contextlib.suppress(CallOverError):
            self._finish(key, answer, {"type": "tool_result", "tool_result": codec.to_json(outcome)})

    async def _verify(self, handle: Handle, verifier: verifications.Verifier) -> None:
        try:
            await verifications.verify(handle, verifier)
        except asyncio.CancelledError:
            if self._closed is None:
                await verifications.leave(handle)
            raise

    def _verdict(self, key: str, answer: Answer, outcome: Verdict | Fault) -> None:
        codec.encode(outcome)  # checks all fields
        if isinstance(outcome, Fault):
            self._finish(key, answer, {"type": "refuse", "fault": codec.to_json(outcome)}, outcome)
        else:
            self._finish(key, answer, {"type": "verdict", "verdict": codec.to_json(outcome)})

    def _operations(self, key: str) -> Any:
        number = 0

        async def run(operation: Operation) -> OperationResult:
            nonlocal number
            number += 1
            codec.encode(operation)  # checks all fields
            frame = {"type": "operate", "key": key, "number": number, "operation": codec.to_json(operation)}
            while True:
                opened = self._open.get(key)
                if opened is None:
                    raise CallOverError(f"verification {key} has ended")
                opened.operation, opened.number = asyncio.get_running_loop().create_future(), number
                self._write(frame)
                out = await opened.operation
                if out is None:
                    continue
                if out["type"] == "operated":
                    if out.get("fault") is not None:
                        raise error_of(codec.from_json(Fault, out["fault"]))
                    return codec.from_json(OperationResult, out["result"])
                if out.get("code") != "busy":
                    raise FrontError(0, out.get("code", ""), out.get("detail", ""), out.get("field", ""))
                await asyncio.sleep(AGAIN_AFTER)

        return run

    def _finish(self, key: str, answer: Answer, frame: Mapping[str, Any], fault: Fault | None = None) -> None:
        """End a call with its last frame, which is kept, unless the worker asks for another one after it."""
        answer.finish("final", Body(b""))
        self._open.pop(key, None)
        text = json.dumps({**frame, "key": key}, ensure_ascii=False)
        if fault is None or not (fault.status in (425, 429) or fault.status >= 500):
            self._kept[key] = _Kept(text, answer.gen)
            self._size += len(text)
            while self._size > MOST_KEPT and len(self._kept) > 1:
                self._forget(next(iter(self._kept)))
        self._write(text, answer.gen)

    def _forget(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._size -= len(kept.frame)
