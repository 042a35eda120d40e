"""Task directories."""

from __future__ import annotations

import io
import os
import socket
import tarfile
from pathlib import Path

import pytest
import zstandard

from turngate import InvalidError, MissingCommandError, Task, TaskError
from turngate.schema.codec import encode

pytestmark = pytest.mark.usefixtures("binary")


def make(directory: Path, toml: str = "", **files: str) -> Path:
    (directory / "task.toml").write_text(toml)
    (directory / "instruction.md").write_text("Do it.\n")
    for name, text in files.items():
        path = directory / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_all_plain_keys(tmp_path: Path) -> None:
    toml = """
schema_version = "1.4"
artifacts = ["out.txt", {source = "/db", destination = "db", exclude = ["*.log"]}]
[task]
name = "t"
[agent]
timeout_sec = 1.5
user = 1000
network_mode = "allowlist"
allowed_hosts = ["PyPI.org"]
[verifier]
timeout_sec = 60
env = {KEY = "${KEY}", OTHER = "${NONE:-x}"}
[[verifier.collect]]
command = "dump"
[environment]
docker_image = "debian:12"
cpus = 2
memory_mb = 512
storage = "1.5G"
workdir = "/app"
env = {A = "b"}
allow_internet = true
healthcheck = {command = "true", retries = 2, interval_sec = 0.5}
mcp_servers = [{name = "m", transport = "stdio", command = "serve", args = ["-x"]}]
unknown = 1
[solution]
env = {S = "1"}
[turngate]
setup = ["git init"]
reward_key = "score"
max_calls = 9
max_repeats = 4
snapshot = true
"""
    task = Task.load(make(tmp_path, toml, tests__test_dot_sh="x", solution__solve_dot_sh="y"), {"KEY": "secret"})
    r = task.request
    assert (task.name, r.task.instruction) == ("t", "Do it.\n")
    assert (r.sandbox.image, r.sandbox.cpus, r.sandbox.memory_bytes, r.sandbox.disk_bytes) == (
        "debian:12",
        2,
        512 << 20,
        1610612736,
    )
    assert (r.sandbox.network, r.agent.network, r.agent.allow) == ("open", "allowlist", ["pypi.org"])
    assert (r.agent.user, r.limits.agent_ms, r.limits.verify_ms, r.limits.install_ms) == ("1000", 1500, 60_000, 600_000)
    assert r.verify is not None
    assert (r.verify.env, r.verify.reward_key, r.verify.collect[0].run) == (
        {"KEY": "secret", "OTHER": "x"},
        "score",
        "dump",
    )
    assert r.healthcheck is not None
    assert (r.healthcheck.retries, r.healthcheck.interval_ms) == (2, 500)
    assert r.agent.mcp[0].command == ["serve", "-x"]
    assert (r.setup[0].run, r.gate.max_calls, r.gate.max_repeats, r.snapshot) == ("git init", 9, 4, True)
    assert [(a.source, a.destination) for a in r.artifacts] == [("out.txt", ""), ("/db", "db")]
    assert task.warnings == ["task.toml: environment.unknown is an unknown key and has no effect"]
    assert task.request_for("oracle", "docker").agent.env == {"S": "1"}
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().decompressobj().decompress(task.bundle))) as tar:
        assert tar.getnames() == ["solution", "solution/solve.sh", "tests", "tests/test.sh"]
        assert {m.mtime for m in tar} == {0}
    assert Task.load(tmp_path, {"KEY": "secret"}).bundle == task.bundle


@pytest.mark.parametrize(
    ("toml", "noted"),
    [("", True), ("[environment]\nallow_internet = false", False), ("[environment]\nnetwork_mode = 'public'", False)],
)
def test_a_network_by_default_is_noted(tmp_path: Path, toml: str, noted: bool) -> None:
    text = "task.toml: environment.network_mode is not set: the default is no-network here and public in Harbor"
    assert Task.load(make(tmp_path, toml)).request.task.notes == ([text] if noted else [])


@pytest.mark.parametrize(
    ("toml", "field", "value"),
    [
        ("[agent]\nuser = -1", "agent.user", '"-1"'),
        ("[agent]\nuser = 4294967295", "agent.user", '"4294967295"'),
        ("[agent]\nuser = 'a b'", "agent.user", '"a b"'),
        ("[agent]\nuser = 'é'", "agent.user", '"é"'),
        ("[agent]\nuser = '٣'", "agent.user", '"٣"'),
        ('[agent]\nuser = "a\\n"', "agent.user", r'"a\n"'),
        ("[agent]\nuser = ':a'", "agent.user", '":a"'),
        ("[agent]\nuser = 'a:'", "agent.user", '"a:"'),
        ("[agent]\nuser = 'a:b:c'", "agent.user", '"a:b:c"'),
        ("[verifier]\nuser = 'a:-b'", "verifier.user", '"a:-b"'),
        (f"[verifier]\nuser = '{65 * 'a'}'", "verifier.user", f'"{65 * "a"}"'),
        ("[[verifier.collect]]\ncommand = 'x'\nuser = '/'", "verifier.collect[0].user", '"/"'),
    ],
)
def test_a_user_that_cannot_exist_is_refused(tmp_path: Path, toml: str, field: str, value: str) -> None:
    with pytest.raises(TaskError) as e:
        Task.load(make(tmp_path, toml))
    assert e.value.problems == [f"{field}: {value} is not valid: want a user name or uid, optionally :group"]


@pytest.mark.parametrize("value", [True, 1.5, [1]])
def test_a_user_is_text_or_a_number(tmp_path: Path, value: object) -> None:
    with pytest.raises(TaskError) as e:
        Task.load(make(tmp_path, f"[agent]\nuser = {str(value).lower()}"))
    assert e.value.problems == [f"agent.user: {str(value).lower()} is not valid: want a user name or uid"]


@pytest.mark.parametrize(
    "user", ["", "root", "0", "4294967294", "0000000000001", "a.b_c-9:0", "9" * 10 + "x", 64 * "a"]
)
def test_users(tmp_path: Path, user: str) -> None:
    assert Task.load(make(tmp_path, f"[agent]\nuser = '{user}'")).request.agent.user == user


def test_every_mistake_is_listed(tmp_path: Path) -> None:
    toml = """
[agent]
timeout_sec = -1
network_mode = "sometimes"
[environment]
memory = "much"
env = {A = "${MISSING}"}
[verifier]
environment_mode = "sometimes"
[[steps]]
name = "one"
"""
    with pytest.raises(TaskError) as e:
        Task.load(make(tmp_path, toml, environment__docker_minus_compose="x"), {})
    for field in ("agent.timeout_sec", "agent.network_mode", "environment.memory", "verifier.environment_mode",
                  "steps/one/instruction.md"):  # fmt: skip
        assert any(p.startswith(field) for p in e.value.problems), (field, e.value.problems)


def test_a_value_of_a_wrong_type(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as e:
        Task.load(make(tmp_path, '[environment]\ncpus = "two"'))
    assert e.value.problems == ["environment.cpus: the string in line 2 is not valid: want a number"]


def test_steps_services_and_separate_verifiers(tmp_path: Path) -> None:
    """Parts that once only the command read."""
    toml = "[environment]\ndocker_image = 'debian:12'\n[verifier]\nenvironment_mode = 'separate'\n[[steps]]\nname = 'one'\n"
    files = {"steps/one/instruction.md": "One.", "steps/one/tests/test.sh": "true",
             "environment/docker-compose.yaml": "services: {db: {image: 'postgres:16'}}"}  # fmt: skip
    task = Task.load(make(tmp_path, toml, **files))
    [step] = task.request.steps
    assert step.instruction == "One."
    assert step.verify is not None
    assert step.verify.separate is not None
    assert [service.name for service in task.request.sandbox.services] == ["db"]
    ready = task.request_for("mini", "docker")
    ready.id, ready.trainer = "alpha-1", "alpha"
    assert encode(ready)


@pytest.mark.parametrize("program", ["", "/nowhere/turngate", "/"])
def test_without_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setenv("TURNGATE", program)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingCommandError, match=r"make build.*TURNGATE.*Task\.from_request") as e:
        Task.load(make(tmp_path))
    assert (program or "PATH") in str(e.value)


def test_the_command_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binary: str) -> None:
    (tmp_path / "turngate").symlink_to(Path(binary).resolve())
    monkeypatch.delenv("TURNGATE")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Task.load(make(tmp_path)).request.task.instruction == "Do it.\n"


def test_values_of_variables_are_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "turngate"
    program.write_text('#!/bin/sh\necho "turngate: $*" >&2\nexit 2\n')
    program.chmod(0o700)
    monkeypatch.setenv("TURNGATE", str(program))
    with pytest.raises(TaskError) as e:
        Task.load(make(tmp_path), {"KEY": "secret"})
    assert "--task-env=KEY" in str(e.value)
    assert "secret" not in str(e.value)
    for wrong in ({"A=B": "x"}, {"": "x"}, {"A": "\0"}):
        with pytest.raises(InvalidError, match="want a name without ="):
            Task.load(tmp_path, wrong)


def test_links_stay_inside(tmp_path: Path) -> None:
    make(tmp_path, tests__test_dot_sh="x")
    (tmp_path / "tests" / "out").symlink_to("../../secret")
    with pytest.raises(TaskError, match="outside the bundle"):
        Task.load(tmp_path)


def test_a_task_reads_no_variable_of_its_submitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, secret = "TURNGATE_TEST_SECRET", "the-submitters-secret"
    monkeypatch.setenv(name, secret)
    toml = (
        "[verifier.env]\nA = '${TURNGATE_TEST_SECRET}'\n[environment.env]\nB = '${TURNGATE_TEST_SECRET:-none}'\n"
        "[solution.env]\nC = '${OTHER}'\n"
    )
    make(tmp_path, toml, tests__test_dot_sh="", solution__solve_dot_sh="")
    task = Task.load(tmp_path)
    assert task.request.verify is not None
    assert (task.request.verify.env, task.request.sandbox.env, task.solution) == ({"A": ""}, {"B": "none"}, {"C": ""})
    assert task.request.task.notes[0].endswith(f"so they are empty: {name}, OTHER")
    assert task.missing == [name, "OTHER"]
    task = Task.load(tmp_path, env=[name])
    assert task.request.verify is not None
    assert (task.request.verify.env, task.request.sandbox.env, task.missing) == (
        {"A": secret},
        {"B": secret},
        ["OTHER"],
    )
    assert Task.load(tmp_path, env={name: "x"}).request.sandbox.env == {"B": "x"}
    with pytest.raises(InvalidError, match="env: 'NOT_SET' is not valid"):
        Task.load(tmp_path, env=["NOT_SET"])
    with pytest.raises(InvalidError, match="want a list of names"):
        Task.load(tmp_path, env=name)


@pytest.mark.parametrize("kind", ["link", "relative", "fifo", "socket", "device", "procfs", "large"])
@pytest.mark.parametrize("place", ["instruction.md", "task.toml", "tests/test.sh", "environment/Dockerfile", "tests"])
def test_no_file_outside_a_task_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: str) -> None:
    (tmp_path / "id_rsa").write_text("PRIVATE")
    task = tmp_path / "t"
    task.mkdir()
    make(task, tests__test_dot_sh="", environment__Dockerfile="")
    at = task / place
    if at.is_dir():
        (at / "test.sh").unlink()
        at.rmdir()
    else:
        at.unlink()
    if kind == "link":
        at.symlink_to(tmp_path / "id_rsa")
    elif kind == "relative":
        at.symlink_to(os.path.relpath(tmp_path / "id_rsa", at.parent))
    elif kind == "fifo":
        os.mkfifo(at)
    elif kind == "socket":
        monkeypatch.chdir(at.parent)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(at.name)
    elif kind == "large":
        with at.open("wb") as f:
            f.truncate(300 << 30)
    else:
        at.symlink_to({"device": "/dev/zero", "procfs": "/proc/self/environ"}[kind])
    with pytest.raises(TaskError) as e:
        Task.load(task)
    assert at.name in str(e.value)
    assert "PRIVATE" not in str(e.value)


def test_links_inside_a_task_are_followed(tmp_path: Path) -> None:
    make(tmp_path, texts__a_dot_md="the text")
    (tmp_path / "instruction.md").unlink()
    (tmp_path / "instruction.md").symlink_to("texts/a.md")
    assert Task.load(tmp_path).request.task.instruction == "the text"
