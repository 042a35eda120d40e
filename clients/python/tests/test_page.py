"""The programs of docs/trainers.md: they import what they use."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "trainers.md").read_text()
BLOCKS = re.findall(r"(?ms)^```python\n(.*?)^```", PAGE)

# Names that the reader has: places of the server, and parts of their own training.
READERS = (
    "url", "creds", "client", "engine", "tokenizer", "model", "args", "options", "config", "read", "train", "training",
    "load_the_new_weights",
)  # fmt: skip


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block).splitlines()[0])
def test_names_are_imported(block: str) -> None:
    names = ", ".join(f'"{name}"' for name in READERS)
    argv = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F401", "--output-format", "concise",
            "--config", f"builtins = [{names}]", "-"]  # fmt: skip
    done = subprocess.run(argv, input=block, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for module, imported in re.findall(r"(?m)^from (turngate) import (.*)$", block):
        for name in imported.split(", "):
            assert hasattr(importlib.import_module(module), name), name
