"""Sessions of OpenEnv over a real worker."""

from __future__ import annotations

import contextlib
import functools
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import endings
import pytest
import scripted

from conftest import Server
from turngate import Call, Reply, Request, Task, TaskError

pytest.importorskip("openenv", reason="SKIPPED: openenv is not installed; .ci/run and make adapters install it")

from openenv.core.harness import LoopOwningSession, TrainableSession

from turngate.adapters.openenv import TurngateSessionFactory
from turngate.serving.policy import Policy


def solver() -> Policy:
    return scripted.solve


acted = threading.Event()


def hanging() -> Policy:
    acted.clear()
    return never


async def never(call: Call) -> Reply:
    """Act once and answer no further call."""
    if call.messages[-1]["role"] == "tool":
        acted.set()
        await call.over()
    return scripted.answer(call, "Hello, world!")


def checking() -> Policy:
    return check


async def check(call: Call) -> Reply:
    assert call.params["temperature"] == 0.75
    assert call.params["top_k"] == -1
    return scripted.answer(call, "Hello, world!")


@pytest.fixture
def factories(server: Server) -> Iterator[functools.partial[TurngateSessionFactory]]:
    made = []

    class Factory(TurngateSessionFactory):
        def __init__(self, *args: object, **more: object) -> None:
            super().__init__(*args, **more)  # type: ignore[arg-type]
            made.append(self)

    yield functools.partial(
        Factory, server.url, server.creds("trainer-alpha"), "alpha", task=Task.load, sandbox="local"
    )
    for factory in made:
        factory.close()


def test_a_session_is_a_rollout(factories: functools.partial[TurngateSessionFactory], tasks: Path) -> None:
    session = factories(policy=solver).create(tasks / "hello", seed=1, episode_id="e")
    assert isinstance(session, TrainableSession)
    assert isinstance(session, LoopOwningSession)
    with pytest.raises(RuntimeError, match="wait_for_completion"):
        session.fetch_training_trace()
    assert session.wait_for_completion(60) == 0
    trace = session.fetch_training_trace()
    first, second = trace.turns
    assert first.prompt_token_ids == scripted.PROMPT
    assert first.completion_token_ids == scripted.ACT
    assert first.per_token_logps == [-0.5, -0.25]
    assert first.loss_mask == [0, 0, 0, 1, 1]
    assert second.prompt_token_ids == [*scripted.PROMPT, *scripted.ACT, *scripted.SEEN]
    assert second.request["messages"][: len(first.request["messages"])] == first.request["messages"]
    assert second.request["messages"][-1]["role"] == "tool"
    assert second.response["choices"][0]["message"]["content"] == "Done."
    assert second.metadata["versions"] == ["3"]
    assert [e["metadata"]["node_id"] for e in session.fetch_proxy_trace()] == ["1", "2"]
    verified = session.verify([])
    assert verified.env_reward == 1.0
    assert verified.artifacts["status"] == "done"
    assert session.initial_messages() == session.list_tools() == []
    assert session.call_tool("bash", {}).error
    session.close()


def test_sampling_replaces_the_agents_parameters(
    factories: functools.partial[TurngateSessionFactory], tasks: Path
) -> None:
    session = factories(policy=checking, sampling={"temperature": 0.75, "top_k": -1}).create(tasks / "hello")
    session.wait_for_completion(60)
    assert session.verify([]).env_reward == 1.0


def test_a_session_whose_time_is_over_is_cancelled(
    factories: functools.partial[TurngateSessionFactory], tasks: Path
) -> None:
    session = factories(policy=hanging).create(tasks / "hello")
    assert acted.wait(60)
    with pytest.raises(TimeoutError):
        session.wait_for_completion(0.1)
    assert session.fetch_training_trace().turns == []
    assert session.verify([]).env_reward is None
    assert session.verify([]).artifacts["status"] == "cancelled"


def short(directory: Path) -> Request:
    request = Task.load(directory).request_for("mini", "local")
    request.limits.agent_ms = 4000
    request.verify = None
    return request


def test_an_agent_whose_time_is_over_keeps_its_calls(
    factories: functools.partial[TurngateSessionFactory], tasks: Path
) -> None:
    session = factories(policy=hanging, task=short).create(tasks / "hello")
    with pytest.raises(TimeoutError):
        session.wait_for_completion()
    acts = [t.completion_token_ids for t in session.fetch_training_trace().turns]
    assert acts == ([scripted.ACT] if acted.is_set() else [])  # a busy machine has no time for the first call


def test_a_closed_session_is_cancelled(factories: functools.partial[TurngateSessionFactory], tasks: Path) -> None:
    session = factories(policy=hanging).create(tasks / "hello")
    session.close()
    session.wait_for_completion(60)
    assert session.episode.result.status == "cancelled"


def test_a_rollout_that_cannot_run_has_no_reward(
    factories: functools.partial[TurngateSessionFactory], tasks: Path, tmp_path: Path
) -> None:
    factory = factories(policy=solver)
    with pytest.raises(TaskError):
        factory.create(tmp_path)
    session = factory.create(tasks / "broken-setup")
    assert session.wait_for_completion() == 1
    assert session.fetch_training_trace().turns == []
    verified = session.verify([])
    assert verified.env_reward is None
    assert "setup" in verified.artifacts["fault"]


@pytest.mark.parametrize("way", endings.WAYS)
def test_a_session_has_the_reason_of_its_end(
    factories: functools.partial[TurngateSessionFactory], tasks: Path, way: str
) -> None:
    factory = factories(policy=functools.partial(endings.policy, way), task=functools.partial(endings.task, way=way))
    session = factory.create(tasks / "hello")
    with pytest.raises(TimeoutError) if way == "timeout" else contextlib.nullcontext():
        session.wait_for_completion(60)
    assert session.verify([]).artifacts["ended"] == way


def test_a_factory_travels_to_another_process(server: Server) -> None:
    factory = functools.partial(TurngateSessionFactory, server.url, task=Task.load, policy=solver)
    assert pickle.loads(pickle.dumps(factory)).keywords == factory.keywords
