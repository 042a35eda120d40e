"""The texts of messages in logs and notebooks."""

from __future__ import annotations

from turngate import Reply, Request, Result, Task, schema
from turngate.tasks.task import TaskRequest


def test_a_result_is_one_short_line() -> None:
    text = repr(
        Result(
            id="alpha-1", task="hello", status="failed", calls={"agent": schema.CallStats(count=2)},
            fault=schema.Fault(code="agent_timeout", message="the agent took too long " * 100),
            artifacts=[schema.Artifact(name=f"file-{i}", sha256="0" * 64) for i in range(100)], notes=["note " * 100],
        )
    )  # fmt: skip
    assert text.startswith("<Result alpha-1 of 'hello': failed, reward unknown, 2 calls, agent_timeout: 'the agent ")
    assert len(text) < 150
    assert repr(Result(id="alpha-2", task="x", status="done", reward=0.5)) == (
        "<Result alpha-2 of 'x': done, reward 0.5, 0 calls>"
    )


def test_a_task_is_one_short_line() -> None:
    request = Request(task=schema.Task(name="hello", instruction="Do it. " * 10_000))
    assert repr(Task("tasks/hello", request, b"x" * 5000)) == "<Task 'hello' of tasks/hello: 5000 bytes of files>"


def test_other_messages_are_cut() -> None:
    messages = [
        Request(
            task=schema.Task(name="hello", instruction="Do it. " * 10_000), labels={str(i): "x" for i in range(64)}
        ),
        TaskRequest(id="alpha-1", labels={"x": "y" * 1_000_000}),
        Reply(message={"content": "x" * 100_000}, completion_ids=list(range(10_000)), logprobs=[-0.1] * 10_000),
        schema.Task(name="hello", instruction="Do it. " * 10_000),
    ]
    for message in messages:
        assert repr(message).startswith(type(message).__name__ + "(")
        assert len(repr(message)) < 300
    assert repr(schema.Fault(code="x", message="y")) == "Fault(code='x', message='y')"
