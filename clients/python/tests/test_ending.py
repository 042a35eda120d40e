"""Why rollouts ended, from the vectors that Go's package trajectory is tested with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turngate import Fault, RecordedCall, Result, ending
from turngate.trajectory.ending import ENDINGS

VECTORS = json.loads((Path(__file__).parents[3] / "trajectory" / "testdata" / "endings.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["about"]))
def test_endings(vector: dict[str, Any]) -> None:
    fault = Fault(**vector["fault"], message="-") if "fault" in vector else None
    calls = [RecordedCall(i, role=role, finish_reason=end) for i, (role, end) in enumerate(vector["calls"], 1)]
    assert ending(Result(status=vector["status"], fault=fault), calls) == vector["ending"]


def test_all_endings_have_a_vector() -> None:
    assert {v["ending"] for v in VECTORS} == set(ENDINGS)
