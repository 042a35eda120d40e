"""A client of fronts."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any
from urllib.parse import quote

from ..errors import InvalidError
from ..schema import Event, Fault, Fleet, Request, Result
from ..schema.codec import encode, from_json, to_json
from ..serving.policy import Policy
from ..serving.tool import Tool
from ..serving.verifications import Verifier
from ..tasks.task import TaskRequest, notes_of
from .feed import Feed
from .http import FrontError, Http
from .serving import Serving

__all__ = ["Cancelled", "Front", "FrontError", "Rollout"]


@dataclass(slots=True, kw_only=True)
class Rollout:
    """Rollout is a rollout at one moment."""

    id: str
    status: str
    """queued, running, cancelling, done, failed, cancelled or dead."""
    attempt: int = 0
    group: str = ""
    index: int = 0
    task: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    worker: str = ""
    since: int = 0
    """Time of the status, in Unix ms; 0: not known."""
    reward: float | None = None
    fault: Fault | None = None
    request: Request | None = None
    """Of one that has not ended, if it was asked for alone."""
    result: Result | None = None
    """Of one that has ended, if it was asked for alone."""
    waits: str = ""
    """Reason why a queued one waits; empty: not known."""


@dataclass(slots=True)
class Cancelled:
    """Cancelled is the outcome of a cancel."""

    ended: list[str]
    open: list[str]
    """Those that had not ended in time: cancel them again."""


def _rollout(values: Mapping[str, Any]) -> Rollout:
    parts = {"fault": Fault, "request": Request, "result": Result}
    known = {name: value for name, value in values.items() if name in Rollout.__slots__}
    return Rollout(**{n: from_json(parts[n], v) if n in parts and v is not None else v for n, v in known.items()})


class Front:
    """Front submits rollouts, takes results and answers calls over HTTP.

    Each request is sent again while the front cannot be reached, for up to within seconds: to submit twice under one
    key, name of a group or id gives one rollout. So several fronts behind one address are as one.
    """

    def __init__(self, url: str, token: str, *, within: float = 60.0) -> None:
        self._http = Http(url, token, within)

    def __repr__(self) -> str:
        return f"<Front {self._http.url}>"

    async def __aenter__(self) -> Front:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.client.aclose()

    async def submit(self, requests: Request | Sequence[Request], *, key: str = "", lane: int = 2) -> list[str]:
        """Queue requests and return their ids. Adjacent requests of one group are queued all or none.

        Args:
            requests: Up to 1,000. One without an id gets one.
            key: Names this submission: the same one, also of another process, is queued once. Default: a random one.
            lane: Priority, 0 to 3; 0 is the most urgent.

        Raises:
            InvalidError: A request is not valid.
            FrontError: The front refused it; code is conflict if the key was used with other requests.
        """
        given = [requests] if isinstance(requests, Request) else list(requests)
        await self._store(given)
        body = {"requests": [_body(r) for r in given], "lane": lane}
        return await self._submit("/v1/rollouts", body, key)

    async def submit_group(
        self, request: Request, n: int = 1, *, group: str = "", key: str = "", lane: int = 2
    ) -> list[str]:
        """Queue n rollouts of one request, all or none, and return their ids.

        Args:
            request: Without an id and a group, such as Task.load(path).request_for("mini", "docker").
            n: 1 to 1,000.
            group: Name of the group: the same one is queued once. Default: a random one.
            key: As in submit, for a group without a name.
            lane: As in submit.
        """
        await self._store([request])
        body = {"group": group, "n": n, "request": _body(request), "lane": lane}
        return await self._submit("/v1/groups", body, key)

    async def _store(self, requests: Sequence[Request]) -> None:
        """Store the files of tasks that requests bring."""
        files = {r.task.bundle: r.files for r in requests if isinstance(r, TaskRequest)}
        for data in files.values():
            await self.put_bundle(data)

    async def _submit(self, path: str, body: Any, key: str) -> list[str]:
        headers = {"Idempotency-Key": key or secrets.token_hex(16)}
        ids: list[str] = (await self._http.ask("POST", path, json=body, headers=headers)).json()["ids"]
        return ids

    async def rollout(self, rollout: str) -> Rollout:
        """Return a rollout, with its request or its result.

        Raises:
            NotFoundError: This trainer has none with this id.
        """
        return _rollout((await self._http.ask("GET", f"/v1/rollouts/{quote(rollout, safe='')}")).json())

    async def rollouts(
        self, *, status: Sequence[str] = (), group: str = "", task: str = "", labels: Mapping[str, str] | None = None
    ) -> AsyncIterator[Rollout]:
        """Yield rollouts: those that wait, the oldest first, then the others, the newest first.

        Args:
            status: Those with one of these statuses. Default: all.
            group: Those of a group.
            task: Those of a task.
            labels: Those with these labels.
        """
        params: dict[str, Any] = {"limit": 200}
        params |= {name: value for name, value in (("group", group), ("task", task)) if value}
        if status:
            params["status"] = ",".join(status)
        if labels:
            params["label"] = [f"{name}={value}" for name, value in labels.items()]
        while True:
            page = (await self._http.ask("GET", "/v1/rollouts", params=params)).json()
            for values in page["rollouts"]:
                yield _rollout(values)
            if not page.get("next"):
                return
            params["cursor"] = page["next"]

    def events(self, rollout: str, *, after: str = "") -> Feed[Event]:
        """Iterate over the events of a rollout, from the first one or behind a cursor, until its result.

        A front without --events refuses it.
        """
        return Feed(self._http, f"/v1/rollouts/{quote(rollout, safe='')}/events", Event, after)

    def results(self, *, after: str = "") -> Feed[Result]:
        """Iterate over the results of this trainer in the order of their commits, without an end.

        Args:
            after: Cursor of an earlier feed. Default: from the first result that is stored. end: later results only.
        """
        return Feed(self._http, "/v1/results", Result, after)

    async def cancel(
        self,
        rollouts: Sequence[str] = (),
        *,
        group: str = "",
        everything: bool = False,
        reason: str = "",
        wait: float = 10.0,
    ) -> Cancelled:
        """End rollouts: those with these ids, those of a group, or all. Each still gets a result.

        Args:
            rollouts: Up to 10,000 ids.
            group: Name of a group.
            everything: All open rollouts of this trainer.
            reason: A text for the results.
            wait: Seconds to wait for their ends, up to 60.
        """
        if sum(map(bool, (rollouts, group, everything))) != 1:
            raise InvalidError("rollouts", f"{len(rollouts)} ids", "want one of rollouts, group and everything")
        body: dict[str, Any] = {"reason": reason, "wait_ms": round(wait * 1000)}
        body |= {"ids": list(rollouts)} if rollouts else {"group": group} if group else {"all": True}
        out = (await self._http.ask("POST", "/v1/cancel", json=body)).json()
        return Cancelled(out["ended"], out["open"])

    async def retry(self, rollout: str, *, key: str = "") -> str:
        """Submit the request of an ended rollout again, and return the new id. The same key gives the same one."""
        return (await self._submit(f"/v1/rollouts/{quote(rollout, safe='')}/retry", None, key))[0]

    async def put_bundle(self, data: bytes) -> str:
        """Store a task's files for workers, and return their sha256 for request.task.bundle."""
        headers = {"Content-Type": "application/zstd"}
        sha: str = (await self._http.ask("POST", "/v1/bundles", content=data, headers=headers)).json()["sha256"]
        return sha

    async def file(self, rollout: str, name: str) -> bytes:
        """Return an artifact of an ended rollout, such as transcript.jsonl.zst."""
        return (await self._http.ask("GET", f"/v1/rollouts/{quote(rollout, safe='')}/files/{quote(name)}")).content

    async def workers(self) -> Fleet:
        """Return the live workers."""
        return from_json(Fleet, (await self._http.ask("GET", "/v1/workers")).json())

    async def serve(
        self,
        handler: Policy,
        *,
        concurrency: int = 64,
        tools: Mapping[str, Tool] | None = None,
        verify: Verifier | None = None,
        shard: str = "",
        take_over: bool = False,
    ) -> Serving:
        """Answer the calls of a shard until the returned object is closed.

        It goes on after the death of a front, at the next one: a handler that runs answers the call, and an answer
        that the worker does not have is sent again.

        Args:
            handler: As of Client.serve.
            concurrency: Largest number of model calls, of tool calls and of verifications at once, up to 1,024.
            tools: As of Client.connect.
            verify: As of Client.connect. An operation that a cut has interrupted runs a second time.
            shard: As of Client.connect.
            take_over: Take the shard of another process, which ends.

        Raises:
            InUseError: Another process has the shard.
            FrontError: The front refused it.
            UnreachableError: No front answered in time.
        """
        serving = Serving(self._http, handler, concurrency, dict(tools or {}), verify, shard)
        await serving.start(take_over)
        return serving


def _body(request: Request) -> dict[str, Any]:
    plain = Request(**{name: getattr(request, name) for name in Request.__slots__})  # a TaskRequest has more
    plain.task = replace(request.task, notes=notes_of(request))
    checked = replace(plain)
    checked.trainer = checked.trainer or checked.id.partition("-")[0] or "x"
    checked.id = checked.id or f"{checked.trainer}-x"
    encode(checked)  # checks all fields
    out = to_json(plain)
    return {name: value for name, value in out.items() if value != "" or name not in ("id", "trainer")}
