"""Tasks in Harbor's format, schema 1.0 to 1.4."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from .. import schema
from ..errors import InvalidError, TaskError
from ..schema.codec import from_json
from . import bundle, folder
from .toml_table import Table

_NETWORKS = {"": "", "no-network": "none", "public": "open", "allowlist": "allowlist"}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?)(I?B)?\s*", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{([^}:]+)(:-(.*))?\}", re.DOTALL)

_NETWORK_NOTE = " is not set: the default is no-network here and public in Harbor"

_MAX_FILE = 1 << 20  # bytes of task.toml and of instruction.md

BUILD_MS = 600_000
"""Time limit of a build if the task names none."""


def notes_of(request: schema.Request) -> list[str]:
    """Return the notes of a request's task; the one about the default network only if the sandbox has that network."""
    if request.sandbox.network in ("", "none"):
        return request.task.notes
    return [note for note in request.task.notes if not note.endswith(_NETWORK_NOTE)]


class TaskRequest(schema.Request):
    """TaskRequest is a request with the files of its task, which a client stores before it submits the request."""

    files: bytes = b""


@dataclass(slots=True)
class Task:
    """Task is a task directory: its request, without id and agent, and its files."""

    directory: str
    request: schema.Request
    bundle: bytes
    solution: dict[str, str] = field(default_factory=dict)
    """Variables of the task's own solution; the agent oracle gets them."""
    warnings: list[str] = field(default_factory=list)
    """Keys of task.toml that are not known and not used."""
    missing: list[str] = field(default_factory=list)
    """Variables that the task asks for and was not given, with those for which it has a default."""

    @property
    def name(self) -> str:
        return self.request.task.name

    @classmethod
    def load(cls, directory: str | os.PathLike[str], env: Iterable[str] | Mapping[str, str] = ()) -> Task:
        """Read a task directory.

        A task may come from other people, so it reads only the variables of this process that env names, and no file
        outside its folder. A variable that it asks for and does not get is empty, unless the task has a default; a
        note of the result names it.

        Tasks with steps, with a docker-compose.yaml or with a verifier in a sandbox of its own are refused by name:
        `turngate task request` reads them for from_request.

        Args:
            directory: The folder with instruction.md, task.toml, environment/, solution/ and tests/.
            env: Variables for ${VAR} in the task's env tables: names, with their values in os.environ, or a mapping of
                names to values.

        Raises:
            TaskError: It lists every mistake in the task, and every part that is not supported.
            InvalidError: A name of env is not set in os.environ.
        """
        return _Reader(Path(directory), _given(env)).read()

    @classmethod
    def from_request(
        cls, request: str | os.PathLike[str] | Mapping[str, Any], bundle: str | os.PathLike[str] | bytes
    ) -> Task:
        """Return the task that `turngate task request DIR --bundle FILE` printed. It reads every task directory.

        Args:
            request: The printed JSON: an object, or the path of its file.
            bundle: The task's files: bytes, or the path of FILE.

        Raises:
            TaskError: The request cannot be read, or the bundle belongs to another task.
        """
        where = "request" if isinstance(request, Mapping) else str(request)
        try:
            values = request if isinstance(request, Mapping) else json.loads(Path(request).read_text())
            if not isinstance(values, Mapping):
                raise ValueError("it is not a JSON object")
            read = from_json(schema.Request, values)
            files = bundle if isinstance(bundle, bytes) else Path(bundle).read_bytes()
        except (OSError, ValueError) as e:
            raise TaskError(where, [str(e)]) from None
        if hashlib.sha256(files).hexdigest() != read.task.bundle:
            raise TaskError(where, ["task.bundle: it is not the sha256 of the bundle"])
        return cls(read.task.name, read, files, dict(read.agent.env))

    def request_for(self, agent: str, sandbox: str, image: str = "") -> TaskRequest:
        """Return the request of a rollout with an agent in a sandbox, without an id.

        Client.submit stores the task's files with it.

        Raises:
            TaskError: The sandbox cannot run this task.
        """
        request = TaskRequest(**{f.name: copy.deepcopy(getattr(self.request, f.name)) for f in fields(self.request)})
        request.files = self.bundle
        request.task.bundle = hashlib.sha256(self.bundle).hexdigest()
        request.agent.name, request.sandbox.backend = agent, sandbox
        if image:
            request.sandbox.image, request.sandbox.build = image, None
        if sandbox == "local" and request.sandbox.build is not None:
            raise TaskError(self.directory, ["environment/Dockerfile: the local sandbox cannot build it; use docker"])
        if agent == "oracle":
            request.agent.env = dict(self.solution)
        return request


def _given(env: Iterable[str] | Mapping[str, str]) -> Mapping[str, str]:
    if isinstance(env, Mapping):
        return env
    if isinstance(env, str):
        raise InvalidError("env", env, "want a list of names, or a mapping of names to values")
    names = list(env)
    for name in names:
        if name not in os.environ:
            raise InvalidError(
                "env", name, "want the name of a variable that is set here, or a mapping of names to values"
            )
    return {name: os.environ[name] for name in names}


class _Reader:
    def __init__(self, directory: Path, env: Mapping[str, str]) -> None:
        self._dir = directory
        self._env = env
        self._missing: list[str] = []
        self._empty: list[str] = []
        self._problems: list[str] = []
        self._warnings: list[str] = []

    def read(self) -> Task:
        top = self._config()
        request = schema.Request()
        request.task.name = str(top.table("task").free().get("name") or self._dir.resolve().name)
        request.task.instruction = self._instruction()
        self._unsupported(top)
        environment = top.table("environment")
        self._sandbox(request, environment)
        self._agent(request, top.table("agent"), environment)
        self._verifier(request, top.table("verifier"), top.table("turngate"))
        solution = self._expand("solution.env", top.table("solution").texts("env"))
        request.artifacts = [self._artifact(f"artifacts[{i}]", a) for i, a in enumerate(top.items("artifacts"))]
        for key in ("schema_version", "version", "source", "metadata"):
            top.free().get(key)
            top.used.add(key)
        top.report_unknown()
        if self._empty:
            text = "the submitter did not give the task these variables, so they are empty: " + ", ".join(self._empty)
            request.task.notes.insert(0, text[:1000])
        files = b""
        try:
            files = bundle.pack(self._dir)
        except (OSError, ValueError) as e:
            self._problems.append(f"files: {e}")
        if self._problems:
            raise TaskError(str(self._dir), list(dict.fromkeys(self._problems)))
        if not folder.has(self._dir, "solution"):
            solution = {}
        return Task(str(self._dir), request, files, solution, self._warnings, self._missing)

    def _config(self) -> Table:
        values: dict[str, Any] = {}
        if folder.has(self._dir, "task.toml"):
            try:
                values = tomllib.loads(folder.read(self._dir, "task.toml", _MAX_FILE).decode())
            except (OSError, ValueError) as e:
                raise TaskError(str(self._dir), [f"task.toml: {getattr(e, 'strerror', None) or e}"]) from None
        return Table("", values, self._problems, self._warnings)

    def _instruction(self) -> str:
        try:
            text = folder.read(self._dir, "instruction.md", _MAX_FILE).decode()
        except (OSError, ValueError) as e:
            self._problems.append(f"instruction.md: {getattr(e, 'strerror', None) or e}")
            return ""
        if not text.strip():
            self._problems.append("instruction.md: it is empty")
        return text

    def _unsupported(self, top: Table) -> None:
        verifier = top.table("verifier")
        for found, what in (
            (bool(top.items("steps")), "steps"),
            (folder.has(self._dir, "environment/docker-compose.yaml"), "environment/docker-compose.yaml"),
            (verifier.text("environment_mode") == "separate" or bool(verifier.table("environment").free()),
             "verifier.environment"),
        ):  # fmt: skip
            if found:
                instead = f"use Task.from_request with `turngate task request {self._dir}`"
                self._problems.append(f"{what}: Task.load does not support it; {instead}")
        top.text("multi_step_reward_strategy")

    def _sandbox(self, request: schema.Request, t: Table) -> None:
        s = request.sandbox
        s.image, s.workdir = t.text("docker_image"), t.text("workdir")
        s.cpus, s.gpus = t.number("cpus"), int(t.number("gpus"))
        s.memory_bytes = self._size(t, "memory")
        s.disk_bytes = self._size(t, "storage")
        s.env = self._expand("environment.env", t.texts("env"))
        allowed = t.flag("allow_internet")
        if not t.text("network_mode") and "allow_internet" not in t.free():
            request.task.notes.append(f"task.toml: {t.name('network_mode')}{_NETWORK_NOTE}")
        s.network, s.allow = self._network(t)
        s.network = s.network or ("open" if allowed else "none")
        if not s.image and folder.has(self._dir, "environment/Dockerfile"):
            s.build = schema.Build()
        request.limits.install_ms = t.milliseconds("build_timeout_sec") or BUILD_MS
        request.healthcheck = self._health(t.table("healthcheck"))
        t.items("gpu_types")

    def _size(self, t: Table, name: str) -> int:
        megabytes, text = t.number(name + "_mb"), t.text(name)
        if megabytes or not text:
            return int(megabytes * (1 << 20))
        m = _SIZE.fullmatch(text)
        if m is None:
            self._problems.append(f"{t.name(name)}: {text!r} is not valid: want a size such as 512M or 4G")
            return 0
        return int(float(m[1]) * 1024 ** " KMGT".index(m[2].upper() or " "))

    def _network(self, t: Table) -> tuple[str, list[str]]:
        mode, allow = t.text("network_mode"), t.strings("allowed_hosts")
        if mode not in _NETWORKS:
            want = "public, no-network or allowlist"
            self._problems.append(f"{t.name('network_mode')}: {mode!r} is not valid: want {want}")
        if allow and mode != "allowlist":
            self._problems.append(f'{t.name("allowed_hosts")}: only with network_mode = "allowlist"')
            return "", []
        return _NETWORKS.get(mode, ""), [host.strip().lower().rstrip(".") for host in allow]

    def _health(self, t: Table) -> schema.Healthcheck | None:
        if not t.free():
            return None
        check = schema.Healthcheck(run=t.text("command"), retries=int(t.number("retries")))
        if not check.run.strip():
            self._problems.append(f"{t.name('command')}: it is empty: want a shell command")
        for key, attribute in (
            ("interval_sec", "interval_ms"),
            ("timeout_sec", "timeout_ms"),
            ("start_period_sec", "start_period_ms"),
            ("start_interval_sec", "start_interval_ms"),
        ):
            setattr(check, attribute, t.milliseconds(key, zero=True))
        return check

    def _agent(self, request: schema.Request, t: Table, environment: Table) -> None:
        request.limits.agent_ms = t.milliseconds("timeout_sec")
        request.agent.user = t.user("user")
        request.agent.network, request.agent.allow = self._network(t)
        request.agent.skills_dir = environment.text("skills_dir")
        request.agent.mcp = [self._mcp(m) for m in environment.tables("mcp_servers")]

    def _mcp(self, t: Table) -> schema.MCPServer:
        server = schema.MCPServer(name=t.text("name"), transport=t.text("transport") or "sse")
        url, command, arguments = t.text("url"), t.text("command"), t.strings("args")
        if server.transport == "http":
            server.transport = "streamable-http"
        if server.transport == "stdio":
            server.command = [command, *arguments]
        else:
            server.url = url
        if server.transport not in ("stdio", "sse", "streamable-http"):
            self._problems.append(f"{t.name('transport')}: {server.transport!r}: want stdio, sse or streamable-http")
        elif not (command if server.transport == "stdio" else url):
            self._problems.append(f"{t.name('command' if server.transport == 'stdio' else 'url')}: it is required")
        return server

    def _verifier(self, request: schema.Request, t: Table, own: Table) -> None:
        request.limits.verify_ms = t.milliseconds("timeout_sec")
        verify = schema.Verify(user=t.user("user"), env=self._expand("verifier.env", t.texts("env")))
        verify.network, verify.allow = self._network(t)
        verify.reward_key = own.text("reward_key")
        verify.processes = t.text("processes")
        if verify.processes not in ("", "keep", "end"):
            self._problems.append(f"{t.name('processes')}: {verify.processes!r}: want keep or end")
        for hook in t.tables("collect"):
            verify.collect.append(
                schema.Hook(
                    run=hook.text("command"),
                    service=hook.text("service"),
                    user=hook.user("user"),
                    timeout_ms=hook.milliseconds("timeout_sec", zero=True),
                )
            )
        request.setup = [schema.Command(run=s) for s in own.strings("setup")]
        request.snapshot = own.flag("snapshot")
        request.gate.max_calls = int(own.number("max_calls"))
        request.gate.max_repeats = int(own.number("max_repeats"))
        if folder.has(self._dir, "tests/test.sh"):
            request.verify = verify

    def _artifact(self, at: str, value: Any) -> schema.ArtifactRule:
        if isinstance(value, str):
            return schema.ArtifactRule(source=value)
        if not isinstance(value, dict):
            self._problems.append(f"{at}: {value!r} is not valid: want a path, or a table with source")
            return schema.ArtifactRule(source="?")
        t = Table(at, value, self._problems, self._warnings)
        rule = schema.ArtifactRule(
            source=t.text("source"),
            destination=t.text("destination"),
            service=t.text("service"),
            exclude=t.strings("exclude"),
        )
        if not rule.source:
            self._problems.append(f"{at}.source: it is required")
        t.report_unknown()
        return rule

    def _expand(self, at: str, env: Mapping[str, str]) -> dict[str, str]:
        """Replace values of the form ${VAR} or ${VAR:-default}."""
        out = {}
        for name, value in env.items():
            m = _VARIABLE.fullmatch(value)
            if m is None:
                out[name] = value
            elif m[1] in self._env:
                out[name] = self._env[m[1]]
            else:
                out[name] = m[3] or ""
                if m[1] not in self._missing:
                    self._missing.append(m[1])
                if not m[2] and m[1] not in self._empty:
                    self._empty.append(m[1])
        return out
