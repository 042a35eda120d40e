"""Requests that no worker can run, and a server that loses its store."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from test_client import connect, policy
from turngate import InvalidError, Request, Task
from turngate.rollouts.capable import Offered, lacks, unable
from turngate.schema import Capacity, Fleet, Offer, codec

NEEDS = json.loads((Path(__file__).parents[3] / "schema" / "testdata" / "needs.json").read_text())
OFFER = Offer(
    backends=["local"], agents=["mini", "nop"], networks=["allowlist"], gpus=1, cpus=2.5, memory_bytes=1 << 30, pids=100
)


def request_of(vector: dict[str, Any]) -> Request:
    asked = {"agent": {"name": "mini"}, "sandbox": {"backend": "local"}, **vector["request"]}
    return codec.from_json(Request, asked)


@pytest.mark.parametrize("vector", NEEDS, ids=lambda vector: str(vector["about"]))
def test_lacks(vector: dict[str, Any]) -> None:
    lack = lacks(OFFER, request_of(vector))
    if "want" not in vector:
        assert lack is None
    else:
        assert lack is not None
        assert (lack.field, lack.value, lack.want) == (vector["field"], vector["value"], vector["want"])


def test_a_fleet() -> None:
    able = Capacity(worker="b", slots=1, offer=OFFER)
    other = Capacity(worker="a", slots=1, offer=Offer(backends=["docker"], agents=["mini"]))
    request = request_of({"request": {}})
    assert unable(Fleet(workers=[]), request) == ""
    assert unable(Fleet(workers=[other, able]), request) == ""
    assert unable(Fleet(workers=[other]), request).startswith("no worker offers what it asks:\na: sandbox.backend: ")
    able.draining = True
    assert unable(Fleet(workers=[able, other]), request).endswith("one of docker;\nb: it is draining")
    assert unable(Fleet(workers=[able]), request) == ""
    request.agent.name = "pi"
    with pytest.raises(InvalidError, match=r"agent\.name: 'pi' .* worker that is there: mini, nop"):
        Offered().check(Fleet(workers=[other, able]), [request])
    Offered().check(Fleet(workers=[]), [request])
    Offered().check(Fleet(workers=[able, Capacity(worker="c", offer=Offer())]), [request])  # it names no agents
    request.agent.name, request.sandbox.backend = "mini", "modal"
    with pytest.raises(InvalidError, match=r"sandbox\.backend: 'modal' .* worker that is there: docker, local"):
        Offered().check(Fleet(workers=[other, able]), [request])
    offered = Offered()
    request.sandbox.backend = "docker"
    offered.check(Fleet(workers=[other]), [request])
    offered.check(Fleet(workers=[able]), [request])  # the worker that has it is away for a while


async def test_an_agent_that_no_worker_has_is_refused(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        with pytest.raises(InvalidError, match=r"agent\.name: 'nobody' .*mini"):
            await client.submit_group(Task.load(tasks / "hello"), n=2, agent="nobody", sandbox="local")
        with pytest.raises(InvalidError, match=r"sandbox\.backend: 'modal' .*local"):
            await client.submit_group(Task.load(tasks / "hello"), n=2, sandbox="modal")
        assert client.outstanding == 0


async def test_rollouts_that_no_worker_can_run_are_logged(
    server: Server, tasks: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngate.rollouts.stuck.QUEUED_LONG", 0.0)
    async with await connect(server) as client:
        request = Task.load(tasks / "hello").request_for("mini", "local", "")
        request.sandbox.gpus = 1
        ids = await client.submit_group(request, n=2)
        caplog.set_level(logging.WARNING, "turngate")
        await client._stuck.look()
        await client._stuck.look()
        said = [r.getMessage() for r in caplog.records if " waits: " in r.getMessage()]
        assert len(said) == 1
        assert said[0].startswith(f"rollout {ids[0]} waits: no worker offers what it asks:\n")
        assert said[0].endswith(": sandbox.gpus: '1' is not valid: this worker offers at most 0")
        await client.cancel()
        assert {r.status async for r in client.results()} == {"cancelled"}


async def test_a_lost_store_is_seen_at_the_next_look(
    own_server: Server, tasks: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The check of old rollouts does not run."""
    async with await connect(own_server, audit_every=3600.0) as client:
        assert await client._submissions.look_at_store() == []
        ids = await client.submit_group(Task.load(tasks / "hello"), n=3, sandbox="local")
        own_server.stop()
        own_server.wipe()
        own_server.start()
        client.serve(policy)
        assert {r.id async for r in client.results()} == set(ids)
    assert "the server has lost its store" in caplog.text
