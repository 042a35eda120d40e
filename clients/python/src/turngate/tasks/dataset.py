"""Tasks of a data set: a folder of task directories, or examples of any kind."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import InvalidError, TaskError
from ..schema import Request
from .task import Task

Load = Callable[[Any], Task | Request]
"""It returns the task of one example of a data set, and runs in a thread."""

Tasks = str | os.PathLike[str] | Iterable[Any]
"""A task directory, a folder of them, or examples: tasks, requests, paths, or rows of a data set."""


def directories(folder: str | os.PathLike[str]) -> list[Path]:
    """Return a task directory, or the task directories in a folder by name, as `turngate run` finds them.

    Raises:
        TaskError: The folder is neither.
    """
    path = Path(folder)
    try:
        inside = sorted(at for at in path.iterdir() if _is_task(at))
    except OSError as e:
        raise TaskError(str(path), [e.strerror or str(e)]) from None
    if _is_task(path):
        return [path]
    if not inside:
        raise TaskError(str(path), ["it is no task directory and has none: want instruction.md or task.toml in it"])
    return inside


def _is_task(path: Path) -> bool:
    return (path / "instruction.md").exists() or (path / "task.toml").exists()


def examples(tasks: Tasks | Task | Request, epochs: int) -> Iterator[Any]:
    """Yield the examples of a data set; again for each epoch, and for 0 without end."""
    if isinstance(tasks, str | os.PathLike):
        tasks = directories(tasks)
    elif isinstance(tasks, Task | Request):
        tasks = [tasks]
    elif not isinstance(tasks, Iterable):
        raise InvalidError("tasks", type(tasks).__name__, "want a folder of tasks, or a list of examples")
    if epochs == 1:
        return iter(tasks)
    every = list(tasks)
    return itertools.chain.from_iterable(itertools.repeat(every, epochs)) if epochs else itertools.cycle(every)


async def task_of(example: Any, load: Load | None) -> Task | Request:
    """Return the task of an example.

    Raises:
        TaskError: The task directory is not valid.
        InvalidError: The example is of another kind, and there is no load.
    """
    if isinstance(example, Task | Request):
        return example
    if load is None and not isinstance(example, str | os.PathLike):
        raise InvalidError("tasks", type(example).__name__, "want a Task, a Request or a path, or load= for a data set")
    return await asyncio.to_thread(load or Task.load, example)
