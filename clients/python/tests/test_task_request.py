"""Requests that `turngate task request` prints."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from turngate import Task, TaskError
from turngate.schema.codec import encode, to_json


def printed(binary: str, directory: Path, bundle: Path, *flags: str) -> dict[str, Any]:
    """Return the JSON that the command prints."""
    argv = [binary, "task", "request", *flags, "--bundle", str(bundle), str(directory)]
    out: dict[str, Any] = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return out


def files(bundle: bytes) -> dict[str, tuple[int, bytes]]:
    """Return the mode and the content of each file of a bundle."""
    out = {}
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(bundle).read())) as tar:
        for member in tar:
            content = tar.extractfile(member)
            out[member.name.rstrip("/")] = (member.mode, content.read() if content else b"")
    return out


def compare(binary: str, directory: Path, tmp_path: Path) -> None:
    """Compare the request and the bundle that the command made with Task.load."""
    loaded = Task.load(directory, {})
    made = Task.from_request(printed(binary, directory, tmp_path / "bundle"), tmp_path / "bundle")
    assert files(made.bundle) == files(loaded.bundle), directory
    assert to_json(made.request) == to_json(loaded.request), directory


def test_both_ways_agree(binary: str, tasks: Path, tmp_path: Path) -> None:
    for directory in sorted(tasks.iterdir()):
        compare(binary, directory, tmp_path)


def test_both_ways_agree_on_public_tasks(binary: str, tmp_path: Path) -> None:
    folder = os.environ.get("TURNGATE_TASKS")
    if not folder:
        pytest.skip("SKIPPED: TURNGATE_TASKS names no folder of tasks")
    read = 0
    for directory in sorted(path.parent for path in Path(folder).glob("*/instruction.md")):
        compare(binary, directory, tmp_path)
        read += 1
    assert read


def test_a_request_from_another_machine(binary: str, tmp_path: Path) -> None:
    task = tmp_path / "stepped"
    for name, text in {
        "task.toml": "artifacts = ['/app/out.txt']\n[solution.env]\nA = 'b'\n[verifier]\nenvironment_mode = 'separate'\n"
        "[environment]\ndocker_image = 'debian:12'\n[[steps]]\nname = 'one'\n[[steps]]\nname = 'two'\n",
        "solution/solve.sh": "true\n",
        "steps/one/instruction.md": "One.\n",
        "steps/one/tests/test.sh": "true\n",
        "steps/two/instruction.md": "Two.\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    request, bundle = tmp_path / "request.json", tmp_path / "bundle"
    request.write_text(json.dumps(printed(binary, task, bundle, "--agent", "oracle")))
    made = Task.from_request(request, bundle)
    assert made.name == "stepped"
    assert [step.instruction for step in made.request.steps] == ["One.\n", "Two.\n"]
    separate = made.request.steps[0].verify
    assert separate is not None
    assert separate.separate is not None
    ready = made.request_for("oracle", "docker")
    ready.id, ready.trainer = "alpha-1", "alpha"
    assert ready.agent.env == {"A": "b"}
    assert made.request_for("mini", "docker").agent.env == {}, "the variables of the solution reach another agent"
    assert encode(ready)
    for wrong, field in ((b"", "task.bundle"), (tmp_path / "none", "none")):
        with pytest.raises(TaskError, match=field):
            Task.from_request(request, wrong)
    request.write_text("[]")
    with pytest.raises(TaskError, match="not a JSON object"):
        Task.from_request(request, bundle)
