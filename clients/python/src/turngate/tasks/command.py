"""The command turngate, which reads task directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidError, MissingCommandError, TaskError


def task_request(directory: str, env: Iterable[str] | Mapping[str, str]) -> tuple[dict[str, Any], bytes]:
    """Return what `turngate task request --details` prints about a task directory, and the bundle of its files.

    Raises:
        TaskError: The task has mistakes.
        InvalidError: A variable of env is not set, or has no valid name or value.
        MissingCommandError: There is no turngate.
    """
    given = _given(env)
    with tempfile.TemporaryDirectory(prefix="turngate-task-") as folder:
        bundle = Path(folder) / "bundle"
        argv = [program(), "task", "request", "--details", "--bundle", str(bundle)]
        argv += [f"--task-env={name}" for name in given]  # the values are no arguments: other users can read these
        environment = {**os.environ, **given}
        try:
            done = subprocess.run(
                [*argv, "--", directory], env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
            )
        except OSError as e:
            raise MissingCommandError("Task.load", f"{argv[0]}: {e.strerror or e}") from None
        if done.returncode != 0:
            raise TaskError(directory, _problems(done.stderr.decode(errors="replace"), directory))
        return json.loads(done.stdout), bundle.read_bytes()


def _given(env: Iterable[str] | Mapping[str, str]) -> Mapping[str, str]:
    if isinstance(env, str):
        raise InvalidError("env", env, "want a list of names, or a mapping of names to values")
    if not isinstance(env, Mapping):
        want = "want the name of a variable that is set here, or a mapping of names to values"
        names = list(env)
        for name in names:
            if name not in os.environ:
                raise InvalidError("env", name, want)
        env = {name: os.environ[name] for name in names}
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise InvalidError("env", name, "want a name without =, and no NUL in it and in its value")
    return env


def program() -> str:
    """Return the path of the command: the one that TURNGATE names, or turngate in PATH.

    Raises:
        MissingCommandError: There is none.
    """
    named = os.environ.get("TURNGATE")
    found = shutil.which(named or "turngate")
    if found is None:
        why = f"{named}, which TURNGATE names, is no program" if named else "it is not in PATH, and TURNGATE is not set"
        raise MissingCommandError("Task.load", why)
    return found


def _problems(said: str, directory: str) -> list[str]:
    """Return the lines of an error without the parts that each of them has."""
    lines = [line.removeprefix("turngate: ").removeprefix(f"task {directory}: ") for line in said.splitlines()]
    return lines or ["turngate task request failed and gave no reason"]
