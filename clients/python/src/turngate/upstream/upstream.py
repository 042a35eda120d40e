"""Upstream answers calls with an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from ..client.client import Client
from ..errors import InvalidError
from ..schema import Delta, Reply
from ..schema.codec import raw_json
from ..serving.call import Call
from ..serving.open_calls import FaultError
from ..serving.refusal import MOST_MESSAGE, Refusal, aborted, bad_answer, fail
from ..serving.tool import clip
from ..wire.cancelling import cancelled
from .broken import Broken
from .completion import SGL_HEADERS, Completion, Joined, parse, whole
from .http import Connection
from .limits import Limits
from .outage import Outage
from .request import Request, Settings
from .tokens import VLLM, SGLang, Template, Tokens

T = TypeVar("T")

MOST_TRIES = 8
"""Requests of one call: one for each parameter that the upstream does not know, and one for a completion that is too
long."""

PROBE_WITHIN = 30.0
"""Seconds within which an upstream that works answers a request for one token."""

SERVED_FOR = 60.0
"""Seconds for which the name of the model and its context are kept."""


class Upstream:
    """Upstream answers calls with an OpenAI-compatible server such as vLLM or SGLang.

    It asks the upstream for token ids and log-probs, and passes the upstream's message on unchanged. It is a handler
    for Client.serve. A refusal of the upstream becomes the fault of the call; a call that is over ends the upstream's
    request.
    """

    def __init__(
        self,
        url: str,
        *,
        version: str = "",
        model: str = "",
        key: str | None = None,
        max_tokens: int = 0,
        top_logprobs: int = 0,
        no_thinking: bool = False,
        keep_reasoning: bool = False,
        plain: bool = False,
        stream: bool = True,
        tokens: str = "",
        template: Template | None = None,
        affinity: tuple[str, ...] = ("X-Session-ID", "X-SMG-Routing-Key"),
        name: str = "",
        forget: float = 600.0,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """Check the settings. No request is sent.

        Args:
            url: URL of the upstream, with or without /v1.
            version: Policy version that the upstream runs, for the replies. hold changes it.
            model: Sent instead of the agent's model. Default: the server's only model.
            key: API key. Default: TURNGATE_UPSTREAM_KEY, or the content of the file TURNGATE_UPSTREAM_KEY_FILE.
            max_tokens: Largest completion of a call in tokens; 0: the rest of the upstream's context.
            top_logprobs: Alternatives to request for each token.
            no_thinking: Turn thinking off in chat templates such as Qwen's.
            keep_reasoning: Ask for the model's reasoning beside its earlier tool calls. Agents drop it, and the engine
                of a model that thinks between tool calls may refuse a call without it.
            plain: Ask for neither token ids nor log-probs, for an upstream without them that serves evaluation only.
            stream: Stream the answer to agents that ask for a stream.
            tokens: Ask for completions of token ids: "vllm" with vLLM's routes render, generate and derender, "sglang"
                with SGLang's /generate and a template. A prompt then begins with the very ids of the answers before
                it. Agents get whole answers. Default: ask for chat completions.
            template: The model's chat template, for "sglang".
            affinity: Headers with the rollout's id, by which routers send its calls to one replica: of vLLM's router
                and of SGLang's gateway.
            name: The upstream's name in faults. Default: the URL's host.
            forget: Seconds after which a refused parameter is tried again.
            http: A client with settings of its own, which the caller closes.

        Raises:
            InvalidError: An argument is not valid.
        """
        for field, value in (("max_tokens", max_tokens), ("top_logprobs", top_logprobs)):
            if value < 0:
                raise InvalidError(field, value, "want 0 or more")
        if tokens not in ("", "vllm", "sglang"):
            raise InvalidError("tokens", tokens, "want vllm, sglang or nothing")
        if (template is None) == (tokens == "sglang"):
            raise InvalidError("template", template, 'it belongs to tokens="sglang", and only to it')
        self.version = version
        self._http = Connection(url, _key() if key is None else key, http)
        self._settings = Settings(max_tokens, top_logprobs, no_thinking, keep_reasoning, plain, Limits(forget, {}))
        self._stream = stream and not tokens
        self._tokens: Tokens | None = VLLM(self._http) if tokens else None
        if template is not None:
            self._tokens = SGLang(self._http, template)
        self._affinity = affinity
        self._name = name or self._http.host
        self._model = model
        self._served: tuple[str, int] | None = None  # the model, and its context in tokens
        self._served_at = 0.0
        self._listing: asyncio.Task[tuple[str, int]] | None = None
        self._running: set[asyncio.Task[Any]] = set()
        self._stopped: set[asyncio.Task[Any]] = set()
        self._held = False
        self._broken = Broken(self._works)
        self._outage = Outage()

    async def __aenter__(self) -> Upstream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the upstream."""
        if self._listing is not None:
            self._listing.cancel()
        await self._http.close()

    def __call__(self, call: Call) -> Awaitable[Reply] | AsyncIterator[Delta | Reply]:
        """Answer a call: the handler for Client.serve."""
        return self.stream(call) if self._stream and call.stream else self.answer(call)

    @property
    def running(self) -> int:
        """Number of calls that the upstream answers now."""
        return len(self._running)

    @contextlib.asynccontextmanager
    async def hold(self, client: Client, version: str = "", *, abort: bool = False) -> AsyncIterator[None]:
        """Hold all calls of a client while the upstream's weights change.

        On entry new calls wait, and the ones that the upstream answers are awaited. On exit the upstream runs the new
        version, and the calls go on. After an exception they stay held, because the upstream's weights are not known.

        Args:
            client: The client that this answers for.
            version: Policy version of the new weights; empty: as before.
            abort: End the upstream's requests instead of waiting for them. Their workers ask again.

        Raises:
            InvalidError: It is no Client. A SyncClient has hold_upstream.
        """
        if not isinstance(client, Client):
            raise InvalidError("client", type(client).__name__, "want a Client; of a SyncClient use hold_upstream")
        self._held = True
        try:
            await client.hold()
            if abort:
                self._stopped.update(self._running)
                for task in self._stopped:
                    task.cancel()
            while self._running:
                await asyncio.wait(set(self._running))
        except BaseException:
            self._held = False
            await client.resume()
            raise
        try:
            yield
        finally:
            self._held = False
        self.version = version or self.version
        await client.resume()

    async def answer(self, call: Call) -> Reply:
        """Answer a call at once. The reply's edits name the agent's parameters that were changed or left out.

        Raises:
            FaultError: The upstream refused the call, or cannot be reached. A request that fails again and again while
                the upstream answers others has the fault bad_answer; so does a server of another kind. The time until
                the next try, which a fault says, grows while the upstream answers nothing.
        """
        request = Request(call, self._settings)

        async def once(length: int) -> Completion:
            if self._tokens is not None:
                return await self._tokens.complete(request, length, self._headers(call))
            return whole(await self._http.ask("POST", "/v1/chat/completions", request.body(), self._headers(call)))

        return await self._while_running(self._tries(request, once))

    async def stream(self, call: Call) -> AsyncIterator[Delta | Reply]:
        """Answer a call while it is generated: deltas, then the whole reply. Errors are those of answer."""
        more = {"stream": b"true", "stream_options": b'{"include_usage":true}'}
        request = Request(call, self._settings, more)
        pieces: asyncio.Queue[Delta | None] = asyncio.Queue(maxsize=64)

        async def once(_length: int) -> Completion:
            joined = Joined()
            async with contextlib.aclosing(
                self._http.events("/v1/chat/completions", request.body(), self._headers(call))
            ) as events:
                async for data in events:
                    delta = joined.add(data)
                    if delta is not None:
                        request.started = True
                        await pieces.put(delta)
            return joined.finish()

        async def all_of() -> Reply:
            try:
                return await self._tries(request, once)
            finally:
                await pieces.put(None)

        whole_reply = asyncio.ensure_future(self._while_running(all_of()))
        try:
            while (delta := await pieces.get()) is not None:
                yield delta
            yield await whole_reply
        finally:
            await cancelled([whole_reply])

    async def _while_running(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a request that a hold waits for, or ends."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task in self._stopped:
                raise self._named(aborted()) from None
            raise
        finally:
            task.cancel()
            self._running.discard(task)
            self._stopped.discard(task)

    async def _tries(self, request: Request, once: Callable[[int], Awaitable[Completion]]) -> Reply:
        """Send the request. It is repeated with a change if the refusal names one."""
        if self._held:  # the client handed it out before; the worker asks again, and then it waits
            raise self._named(aborted())
        try:
            for _ in range(MOST_TRIES):
                version = self.version
                try:
                    model, length = await self._model_of_upstream()
                    request.build(model, length)
                    reply = (await once(length)).reply(request, version)
                    self._broken.succeeded(request.call)
                    self._outage.over()
                    return reply
                except Refusal as no:
                    if no.status == 404:
                        self._served = None  # the upstream may run another model now
                    if not request.mend(no):
                        raise request.blame(no) from None
            raise fail(400, "refuses one parameter after the other")
        except FaultError as e:
            paced = self._outage.paced(e, self._http.root)
            raise self._named(await self._broken.judge(request.call, paced)) from None

    async def _works(self) -> bool:
        """Ask the upstream for one token, and report whether it answers."""
        try:
            model, _ = await self._model_of_upstream()
            body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
            answer = self._http.ask("POST", "/v1/chat/completions", raw_json(body), {})
            choices = parse(await asyncio.wait_for(answer, PROBE_WITHIN)).get("choices")
        except (FaultError, asyncio.TimeoutError):
            return False
        first = choices[0] if isinstance(choices, list) and choices else None
        works = isinstance(first, dict) and first.get("finish_reason") != "abort"
        if works:
            self._outage.over()
        return works

    def _named(self, e: FaultError) -> FaultError:
        e.fault.message = clip(f"upstream {self._name}: {e.fault.message}", MOST_MESSAGE)
        return FaultError(e.fault)

    def _headers(self, call: Call) -> dict[str, str]:
        """Return headers for the logs of the upstream and of proxies before it, and for routers."""
        ids = {} if self._settings.plain else dict.fromkeys(SGL_HEADERS, "1")
        return {"X-Request-Id": str(call.key), **ids, **dict.fromkeys(self._affinity, call.rollout)}

    # The upstream's model.

    async def _model_of_upstream(self) -> tuple[str, int]:
        """Return the model's name, and its context in tokens, 0 if unknown."""
        if self._served is not None and time.monotonic() - self._served_at < SERVED_FOR:
            return self._served
        known = self._served or ((self._model, 0) if self._model else None)
        if self._listing is None or self._listing.done():
            self._listing = asyncio.ensure_future(self._list())
            self._listing.add_done_callback(lambda task: task.cancelled() or task.exception())
        listing = self._listing
        try:
            # A call that can go on without the list does not wait long for it.
            self._served = await asyncio.wait_for(asyncio.shield(listing), 5 if known else None)
        except (FaultError, asyncio.TimeoutError):
            if known is None:
                raise
            self._served = known
        self._served_at = time.monotonic()
        return self._served

    async def _list(self) -> tuple[str, int]:
        listed = parse(await self._http.ask("GET", "/v1/models", None, {})).get("data")
        if not isinstance(listed, list):
            raise bad_answer("data: the list of models has none")
        models = [m for m in listed if isinstance(m, dict)]
        if not self._model and len(models) != 1:
            raise fail(503, f"it lists {len(models)} models: say which one with model")
        for m in models:
            if not self._model or m.get("id") == self._model:
                length = m.get("max_model_len")  # sent by vLLM and SGLang
                return str(m.get("id")), length if isinstance(length, int) and length > 0 else 0
        return self._model, 0


def _key() -> str:
    """Return TURNGATE_UPSTREAM_KEY, or the content of the file TURNGATE_UPSTREAM_KEY_FILE."""
    key, path = os.environ.get("TURNGATE_UPSTREAM_KEY", ""), os.environ.get("TURNGATE_UPSTREAM_KEY_FILE", "")
    return key or (Path(path).read_text().strip() if path else "")
