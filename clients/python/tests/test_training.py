"""Loops over complete groups, and evaluations, with a real worker."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from conftest import Server
from test_client import connect, shell
from turngate import (
    Call,
    Evaluation,
    Fault,
    Group,
    InvalidError,
    Limits,
    Reply,
    Request,
    Result,
    SyncClient,
    Task,
    TaskError,
    VersionSpan,
    failure,
    schema,
)
from turngate.rollouts.failures import TREATMENTS
from turngate.tasks.dataset import directories


class Policy:
    """Policy solves the hello task in every second rollout, with a version that the test sets."""

    def __init__(self) -> None:
        self.version = 1
        self.asked: list[Call] = []
        self.answered = 1 << 30  # number of rollouts that get answers
        self.asked_by_six = asyncio.Event()

    async def __call__(self, call: Call) -> Reply:
        self.asked.append(call)
        rollouts = list(dict.fromkeys(c.rollout for c in self.asked))
        if len(rollouts) == 6:
            self.asked_by_six.set()
        if call.rollout not in rollouts[: self.answered]:
            await asyncio.Event().wait()
        ids: dict[str, Any] = {"prompt_ids": [1, 2], "completion_ids": [3], "logprobs": [-0.5]}
        ids["versions"] = [VersionSpan(version=f"step-{self.version}", start=0, end=1)]
        if call.messages[-1]["role"] == "tool":
            ids["prompt_ids"] = [1, 2, 3, 4]
            return Reply(message={"role": "assistant", "content": "Done."}, finish_reason="stop", **ids)
        greeting = (
            "Hello, world!"
            if int(call.rollout.removesuffix("-again").removesuffix("-again")[-1]) % 2 == 0
            else "Good night!"
        )
        message = {"role": "assistant", "content": None, "tool_calls": [shell(f"echo '{greeting}' > hello.txt")]}
        return Reply(message=message, finish_reason="tool_calls", **ids)


@pytest.fixture
def folder(tasks: Path, tmp_path: Path) -> Path:
    """A folder of three tasks, beside a file."""
    for name in ("one", "two", "three"):
        shutil.copytree(tasks / "hello", tmp_path / "tasks" / name)
    (tmp_path / "tasks" / "README.md").write_text("not a task")
    return tmp_path / "tasks"


async def test_groups_of_a_folder(server: Server, folder: Path) -> None:
    async with await connect(server) as client:
        client.serve(Policy())
        seen: list[dict[str, float]] = []
        groups = [g async for g in client.groups(folder, n=4, ahead=2, sandbox="local", metrics=seen.append)]
        assert sorted(g.number for g in groups) == [1, 2, 3]
        assert sorted(str(g.example) for g in groups) == [str(folder / name) for name in ("one", "three", "two")]
        for g in groups:
            assert g.rewards == [1.0, 0.0, 1.0, 0.0]
            assert [r.index for r in g.results] == [0, 1, 2, 3]
            assert {row.rollout for row in g.rows} == {r.id for r in g.results}
            assert list(g.advantages().values()) == [1.0, -1.0, 1.0, -1.0]
            assert list(g.advantages(scale=False).values()) == [0.5, -0.5, 0.5, -0.5]
            assert "rewards 1, 0, 1, 0" in repr(g)
        assert len({g.name for g in groups}) == 3
        assert [m["group"] for m in seen] == [g.number for g in groups]
        assert seen[0] | {"reward/mean": 0.5, "rollouts": 4, "rollouts/usable": 4, "calls": 8} == seen[0]
        assert all(isinstance(v, int | float) for m in seen for v in m.values())
        assert client.outstanding == 0


async def test_groups_run_ahead(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        for ahead in (0, 2):
            policy = Policy()
            serving = client.serve(policy)
            policy.answered = 4
            groups = client.groups([tasks / "hello"], n=2, ahead=ahead, epochs=0, sandbox="local")
            async with contextlib.aclosing(groups):
                async for _ in groups:
                    if ahead:
                        await policy.asked_by_six.wait()  # three groups have begun
                    assert client.outstanding in ((2, 4) if ahead else (0,))
                    break
            assert {r.status async for r in client.results()} <= {"cancelled", "done"}
            serving.cancel()


async def test_rollouts_run_again(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        client.serve(Policy())
        policy = {**TREATMENTS, "none": "again"}
        [group] = [g async for g in client.groups([tasks / "hello"], n=2, tries=3, treatments=policy, sandbox="local")]
        assert (group.again, len(group.results)) == (4, 2)
        assert [r.labels["turngate_try"] for r in group.results] == ["3", "3"]
        assert group.rewards == [1.0, 0.0]
        assert (group.usable, group.rows) == ([], [])


async def test_a_group_that_is_too_old_begins_again(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        policy = Policy()

        async def answer(call: Call) -> Reply:
            policy.version = 9 if any(c.rollout != call.rollout for c in policy.asked) else 1
            return await policy(call)

        client.serve(answer)
        options: dict[str, Any] = {"n": 2, "sandbox": "local"}
        [group] = [g async for g in client.groups([tasks / "hello"], stale=4, **options)]
        assert (group.dropped, group.oldest, group.newest) == (1, 9, 9)
        assert group.name.endswith("-1-2")
        assert group.metrics["versions/behind"] == 0
        policy.asked.clear()
        assert [g async for g in client.groups([tasks / "hello"], stale=4, tries=1, **options)] == []


async def test_an_evaluation(server: Server, folder: Path) -> None:
    async with await connect(server) as client:
        client.serve(Policy())
        seen: list[dict[str, float]] = []
        evaluation = await client.evaluate(folder, n=4, sandbox="local", metrics=seen.append)
        assert [g.number for g in evaluation.groups] == [1, 2, 3]
        assert (evaluation.reward, len(evaluation.results)) == (0.5, 12)
        assert [evaluation.pass_at(k) for k in (1, 2, 4, 5)] == [0.5, pytest.approx(5 / 6), 1.0, None]
        assert evaluation.groups[0].rows == []
        assert seen[0]["pass@2"] == pytest.approx(5 / 6)
        assert "pass@4 1" in repr(evaluation)


def test_pass_at_k_leaves_unknown_rewards_out() -> None:
    def group(*rewards: float | None) -> Group:
        return Group("g", 1, None, Task("", None, b""), [Result(reward=r, status="done") for r in rewards])  # type: ignore[arg-type]

    e = Evaluation([group(1.0, None), group(0.0, 0.0)])
    assert (e.pass_at(1), e.pass_at(2)) == (0.5, 0.0)
    assert e.reward == pytest.approx(1 / 3)
    assert e.pass_at(1, passed=0.0) == 1.0
    assert Evaluation([group(None)]).pass_at(1) is None
    assert Evaluation([]).metrics == {"tasks": 0, "rollouts": 0, "rollouts/unknown": 0, "calls": 0,
                                      "tokens/prompt": 0, "tokens/completion": 0}  # fmt: skip


async def test_a_data_set_of_rows(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        client.serve(Policy())
        rows = [{"path": "hello"}, {"path": "hello"}]
        loop = client.groups(rows, n=1, load=lambda row: Task.load(tasks / row["path"]), sandbox="local")
        assert [g.example async for g in loop] == rows
        with pytest.raises(InvalidError, match="tasks: 'dict'"):
            await anext(client.groups(rows, n=1))


async def test_arguments_of_loops(server: Server, tmp_path: Path) -> None:
    async with await connect(server) as client:
        given: list[tuple[dict[str, Any], str]] = [
            ({"n": 0}, "n: '0'"), ({"n": True}, "n: 'True'"), ({"n": "4"}, "n: '4'"), ({"ahead": -1}, "ahead: '-1'"),
            ({"epochs": -1}, "epochs"), ({"tries": 0}, "tries"), ({"stale": -1}, "stale"), ({"tasks": 5}, "tasks: 'int'"),
        ]  # fmt: skip
        for arguments, wrong in given:
            with pytest.raises(InvalidError, match=wrong):
                await anext(client.groups(**{"tasks": [], **arguments}))
        with pytest.raises(TaskError, match="no task directory"):
            await anext(client.groups(tmp_path))
        with pytest.raises(TaskError, match="missing"):
            await anext(client.groups([tmp_path / "missing"]))
        assert [g async for g in client.groups([])] == []


def test_task_directories(folder: Path) -> None:
    assert directories(folder / "two") == [folder / "two"]
    assert [d.name for d in directories(str(folder))] == ["one", "three", "two"]


async def test_loops_without_async(server: Server, folder: Path) -> None:
    def work() -> tuple[list[Group], Evaluation, list[float]]:
        with SyncClient.connect(server.url, server.creds("trainer-alpha"), "alpha", orphans="cancel") as client:
            client.serve(Policy())
            seen: list[float] = []
            groups = list(client.groups(folder, 2, sandbox="local", metrics=lambda m: seen.append(m["group"])))
            for _ in client.groups(folder, 2, epochs=0, sandbox="local"):
                break
            return groups, client.evaluate(folder, sandbox="local"), seen

    groups, evaluation, seen = await asyncio.to_thread(work)
    assert [g.number for g in groups] == seen
    assert evaluation.reward == 1.0


async def test_options_of_a_group(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        client.serve(Policy())
        task = Task.load(tasks / "hello")
        [rollout] = await client.submit_group(
            task, sandbox="local", max_turns=1, system_prompt="Be brief.", args=[], snapshot=True,
            limits=Limits(agent_ms=50_000), labels={"run": "1"},
        )  # fmt: skip
        open_request = client._submissions.open[rollout].request
        assert (open_request.limits.agent_ms, open_request.limits.verify_ms) == (50_000, task.request.limits.verify_ms)
        assert (open_request.agent.system_prompt, open_request.snapshot) == ("Be brief.", True)
        result = await client.next_result()
        assert result.fault is not None
        assert failure(result) == "agent"
        assert result.calls["agent"].count == 1
        assert (task.request.labels, task.request.agent.max_turns) == ({}, 0)


async def test_arguments_of_a_group_are_named(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        task = Task.load(tasks / "hello")
        wrong: list[tuple[Any, dict[str, Any], str]] = [
            (tasks / "hello", {}, r"task: '.*hello' is not valid: want a Task"),
            ("hello", {}, "task: 'hello'"),
            ({"a": 1}, {}, "task: 'dict'"),
            (task, {"n": 0}, "n: '0'"),
            (task, {"n": 1001}, "n: '1001'"),
            (task, {"n": 2.0}, r"n: '2\.0'"),
            (task, {"labels": {"a": 1}}, r"labels\['a'\]: '1' is not valid: want a text"),
            (task, {"labels": {1: "a"}}, "labels: '1' is not valid: want texts as names"),
            (task, {"group": 5}, "group: '5'"),
            (task, {"max_turns": "3"}, r"agent.max_turns: '3' is not valid: want a number without a fraction"),
            (task, {"args": [1]}, r"agent.args\[0\]: '1'"),
            (task, {"system_prompt": 1}, "agent.system_prompt"),
            (task, {"limits": Limits(agent_ms=1.5)}, r"limits.agent_ms: '1\.5'"),  # type: ignore[arg-type]
            (task, {"agent": None}, "agent.name"),
            (task, {"verify": "trainer"}, "verify: 'trainer' is not valid: want Verify"),
            (task, {"tools": ["search"]}, r"agent.tools\[0\]: 'search' is not valid: want ToolSpec"),
        ]
        for what, options, match in wrong:
            with pytest.raises(InvalidError, match=match):
                await client.submit_group(what, **{"sandbox": "local", **options})
        assert client.outstanding == 0


async def test_an_ordinary_function_answers(server: Server, tasks: Path) -> None:
    policy = Policy()

    def handler(call: Call) -> Reply:
        return asyncio.run(policy(call))

    async with await connect(server) as client:
        client.serve(handler)
        await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
        assert (await client.next_result()).reward == 1.0
        with pytest.raises(InvalidError, match="handler: 'int'"):
            client.serve(5)  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="concurrency: '0'"):
            client.serve(handler, concurrency=0)


async def test_exceptions_of_a_handler_have_a_bound(server: Server, tasks: Path) -> None:
    count = 0

    async def broken(call: Call) -> Reply:
        nonlocal count
        count += 1
        return Reply(message=call.nothing)  # type: ignore[attr-defined]

    async with await connect(server) as client:
        client.serve(broken)
        await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
        result = await client.next_result()
    assert (result.status, count) == ("failed", 8)
    assert isinstance(result.fault, Fault)
    assert result.fault.who == "trainer"
    assert "AttributeError" in result.fault.message


async def test_a_request_of_a_task_brings_its_files(server: Server, tasks: Path, tmp_path: Path) -> None:
    shutil.copytree(tasks / "hello", tmp_path / "hello")
    (tmp_path / "hello" / "tests" / "new").write_text(secrets.token_hex(8))  # no other test has stored these files
    async with await connect(server) as client:
        client.serve(Policy())
        task = Task.load(tmp_path / "hello")
        one, two = task.request_for("mini", "local"), task.request_for("mini", "local")
        one.id, two.id = client.new_id(f"{secrets.token_hex(4)}-0"), client.new_id(f"{secrets.token_hex(4)}-2")
        await client.submit([one, copy.deepcopy(two)])
        assert [(await client.next_result()).reward for _ in range(2)] == [1.0, 1.0]
        plain = Request(task=schema.Task(name="t", instruction="x", bundle="0" * 64))
        plain.agent.name, plain.sandbox.backend = "mini", "local"
        with pytest.raises(InvalidError, match=r"requests\[0\].task.bundle: '0000"):
            await client.submit(plain)


async def test_usage_follows_from_ids(server: Server, tasks: Path) -> None:
    async with await connect(server) as client:
        client.serve(Policy())
        await client.submit_group(Task.load(tasks / "hello"), sandbox="local")
        calls = (await client.next_result()).calls["agent"]
        assert (calls.count, calls.prompt_tokens, calls.completion_tokens) == (2, 6, 2)
