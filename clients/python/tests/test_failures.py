"""Kinds of failures, from the vectors that Go's package trainer is tested with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turngate import Fault, Result, failure, treatment
from turngate.rollouts.failures import TREATMENTS
from turngate.schema import Phase

VECTORS = json.loads((Path(__file__).parents[3] / "trainer" / "testdata" / "failures.json").read_text())


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["about"]))
def test_failures(vector: dict[str, Any]) -> None:
    fault = Fault(**vector["fault"], message="-") if "fault" in vector else None
    fields = {name: vector[name] for name in ("status", "reward", "rewards", "separation") if name in vector}
    result = Result(fault=fault, phases=[Phase(**p) for p in vector.get("phases", [])], **fields)
    assert (failure(result), treatment(result)) == (vector["failure"], vector["treatment"])


def test_policies() -> None:
    assert {v["failure"] for v in VECTORS} == set(TREATMENTS)
    late = Result(status="done", fault=Fault(stage="agent", code="timeout", message="-", who="agent"))
    assert treatment(late, {**TREATMENTS, "agent_timeout": "train"}) == "train"
    assert treatment(late, {}) == "mask"
