"""Tasks: task directories in Harbor's format, and requests that others made of them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .. import schema
from ..errors import TaskError
from ..schema.codec import from_json
from . import command

_NETWORK_NOTE = " is not set: the default is no-network here and public in Harbor"


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
    """Keys and files of the task that have no effect."""
    missing: list[str] = field(default_factory=list)
    """Variables that the task asks for and was not given, with those for which it has a default."""

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of {self.directory}: {len(self.bundle)} bytes of files>"

    @property
    def name(self) -> str:
        return self.request.task.name

    @classmethod
    def load(cls, directory: str | os.PathLike[str], env: Iterable[str] | Mapping[str, str] = ()) -> Task:
        """Read a task directory, with `turngate task request`.

        The command is the program that the variable TURNGATE names, or turngate in PATH. A task may come from other
        people, so it reads only the variables of this process that env names, and no file outside its folder. A
        variable that it asks for and does not get is empty, unless the task has a default; a note of the result names
        it.

        Args:
            directory: The folder with instruction.md or steps/, task.toml, environment/, solution/ and tests/.
            env: Variables for ${VAR} in the task's env tables: names, with their values in os.environ, or a mapping of
                names to values.

        Raises:
            TaskError: It lists every mistake in the task.
            InvalidError: A name of env is not set in os.environ.
            MissingCommandError: There is no turngate. It says how to get it.
        """
        where = os.fspath(directory)
        printed, files = command.task_request(where, env)
        return cls(
            where, _request(where, printed["request"], files), files, printed.get("solution") or {},
            printed.get("warnings") or [], [variable["name"] for variable in printed.get("missing") or []],
        )  # fmt: skip

    @classmethod
    def from_request(
        cls, request: str | os.PathLike[str] | Mapping[str, Any], bundle: str | os.PathLike[str] | bytes
    ) -> Task:
        """Return the task that `turngate task request DIR --bundle FILE` printed, here or on another machine.

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
            files = bundle if isinstance(bundle, bytes) else Path(bundle).read_bytes()
        except (OSError, ValueError) as e:
            raise TaskError(where, [str(e)]) from None
        read = _request(where, values, files)
        solution = dict(read.agent.env)
        if read.agent.name == "oracle":
            read.agent.env = {}
        return cls(read.task.name, read, files, solution)

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


def _request(where: str, values: Mapping[str, Any], files: bytes) -> schema.Request:
    try:
        request = from_json(schema.Request, values)
    except ValueError as e:
        raise TaskError(where, [str(e)]) from None
    if hashlib.sha256(files).hexdigest() != request.task.bundle:
        raise TaskError(where, ["task.bundle: it is not the sha256 of the bundle"])
    return request
