"""Which workers can run a request, by their offers."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InvalidError
from ..schema import Fleet, Offer, Request, SandboxChoice, Verify

MOST_REASONS, MOST_OF_REASON, MOST_NAMED = 16, 400, 4
"""Bounds of a text about workers: its reasons, the characters of each, and the workers that it names."""


def lacks(offer: Offer, request: Request) -> InvalidError | None:
    """Name the first thing that a request asks for and an offer does not have; None: its worker can run it."""
    verifiers = _verifiers(request)
    sandboxes = [request.sandbox, *(v.separate for v in verifiers if v.separate is not None)]
    networks = _networks(request, verifiers)
    backends, agent, has = _backends(request), request.agent.name, _list(offer.backends)
    proxied, upstream = request.mode not in ("", "interception_gate"), request.model.upstream
    routes = sorted({r.upstream for r in request.gate.routes.values() if r.upstream})
    cpus, memory = max(map(_cpus, sandboxes)), max(map(_memory, sandboxes))
    disk, pids = max(s.disk_bytes for s in sandboxes), max(s.pids for s in sandboxes)
    gpus = max(s.gpus for s in sandboxes)
    installed = f"one that is installed there: {_list(offer.agents)}; `turngate agent install {agent}` adds one"
    checks: list[tuple[str, object, bool, str]] = [
        ("sandbox.backend", " and ".join(backends), _extra(backends, offer.backends), f"one of {has}"),
        ("agent.name", agent, agent not in offer.agents, installed),
        ("sandbox.network", " and ".join(networks), _extra(networks, offer.networks),
         ", ".join(["none", *offer.networks])),
        ("model.upstream", upstream, proxied and upstream not in offer.upstreams, f"one of {_list(offer.upstreams)}"),
        ("sandbox.gpus", gpus, gpus > offer.gpus, f"at most {offer.gpus}"),
        ("sandbox.cpus", f"{cpus:g}", 0 < offer.cpus < cpus, f"at most {offer.cpus:g}"),
        ("sandbox.memory_bytes", memory, 0 < offer.memory_bytes < memory, f"at most {offer.memory_bytes}"),
        ("sandbox.disk_bytes", disk, 0 < offer.disk_bytes < disk, f"at most {offer.disk_bytes}"),
        ("sandbox.pids", pids, 0 < offer.pids < pids, f"at most {offer.pids}"),
        ("gate.routes", ", ".join(routes), _extra(routes, offer.upstreams),
         f"the upstreams {_list(offer.upstreams)}"),
    ]  # fmt: skip
    for field, value, missing, want in checks:
        if missing:
            return InvalidError(field, value, f"this worker offers {want}")
    return None


def unable(fleet: Fleet, request: Request) -> str:
    """Say why no worker that is there can run a request, with a line for each reason; empty: one can, or none is there.

    It is empty, too, if all workers are draining.
    """
    reasons: dict[str, list[str]] = {}
    lacking = False
    for w in fleet.workers:
        lack = lacks(w.offer, request)
        if lack is None and not w.draining:
            return ""
        lacking = lacking or not w.draining
        why = "it is draining" if lack is None else " ".join(str(lack).split())[:MOST_OF_REASON]
        reasons.setdefault(why, []).append(w.worker)
    if not lacking:
        return ""
    named = sorted((sorted(workers), why) for why, workers in reasons.items())
    lines = [f"{_few(workers)}: {why}" for workers, why in named[:MOST_REASONS]]
    if (more := len(named) - MOST_REASONS) > 0:
        lines.append(f"{more} more reasons")
    return "no worker offers what it asks:\n" + ";\n".join(lines)


def _few(workers: list[str]) -> str:
    more = len(workers) - MOST_NAMED
    return ", ".join(workers[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


class Offered:
    """Offered has the agents and the kinds of sandboxes that workers offer, or have offered."""

    def __init__(self) -> None:
        self._agents: set[str] = set()
        self._backends: set[str] = set()

    def check(self, fleet: Fleet, requests: Iterable[Request]) -> None:
        """Check that a live worker has each request's agent and sandboxes, or has had them, if the workers say so.

        A worker that restarts is away for a while, so what it offered is remembered.

        Raises:
            InvalidError: None has one of them.
        """
        requests = list(requests)
        agents, backends = [w.offer.agents for w in fleet.workers], [w.offer.backends for w in fleet.workers]
        remedy = "turngate agent install adds one to a worker's host"
        asked: list[str] = [request.agent.name for request in requests]
        _check("agent.name", "an agent", asked, agents, self._agents, remedy)
        asked = [name for request in requests for name in _backends(request)]
        _check(
            "sandbox.backend", "a sandbox", asked, backends, self._backends, "--sandboxes of a worker names its kinds"
        )


def _check(field: str, what: str, asked: Iterable[str], offers: list[list[str]], seen: set[str], remedy: str) -> None:
    if not offers or not all(offers):
        return
    there = sorted({name for names in offers for name in names})
    seen.update(there)
    for name in asked:
        if name and name not in seen:
            want = f"want {what} of a worker that is there: {', '.join(there)}; {remedy}"
            raise InvalidError(field, name, want)


def _backends(request: Request) -> list[str]:
    separate = [v.separate for v in _verifiers(request) if v.separate is not None]
    return sorted({s.backend for s in (request.sandbox, *separate)})


def no_slot(fleet: Fleet, request: Request) -> str:
    """Say that no worker that can run a request has a free slot; empty: one has, or none can run it."""
    able = [w for w in fleet.workers if not w.draining and lacks(w.offer, request) is None]
    if not able or any(w.busy < w.slots and not w.full for w in able):
        return ""
    return f"no slot is free: the workers that could take it ({len(able)}) have {sum(w.slots for w in able)}"


def _verifiers(request: Request) -> list[Verify]:
    return [v for v in (request.verify, *(s.verify for s in request.steps)) if v is not None]


def _networks(request: Request, verifiers: Iterable[Verify]) -> list[str]:
    """List the networks, except none, that the sandboxes and phases of a request need."""
    own = request.sandbox.network
    agent = request.agent.network or own
    asked = {own, agent, *(s.network or agent for s in request.steps)}
    for v in verifiers:
        separate = v.separate.network if v.separate is not None else own
        asked |= {separate, v.network or separate}
    return [n for n in ("open", "allowlist") if n in asked]


def _cpus(s: SandboxChoice) -> float:
    return max(s.cpus, sum(side.cpus for side in s.services))


def _memory(s: SandboxChoice) -> int:
    return max(s.memory_bytes, sum(side.memory_bytes for side in s.services))


def _extra(wanted: Iterable[str], offered: Iterable[str]) -> bool:
    return not set(wanted) <= set(offered)


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "(none)"
