"""Stand-ins for frameworks that do not install without a GPU, with the recorded names and parameters of the real ones."""

from __future__ import annotations

import enum
import sys
import types
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import pytest

# areal 1.0.4 from PyPI: areal/api/workflow_api.py, areal/api/io_struct.py, areal/api/cli_args.py,
# areal/infra/workflow_context.py, areal/utils/stats_tracker.py.


class RolloutWorkflow(ABC):
    @abstractmethod
    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any: ...


@dataclass
class ModelRequest:
    rid: str = ""
    input_ids: list[int] = field(default_factory=list)
    gconfig: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Any = None
    image_data: list[str] | None = None
    processor: Any = None
    vision_msg_vllm: list[Any] | None = None


@dataclass
class ModelResponse:
    input_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    output_logprobs: list[float] = field(default_factory=list)
    output_versions: list[int] = field(default_factory=list)
    stop_reason: str = "stop"  # length, stop, tool_calls or abort


class Scalars:
    """The statistics of a scope of areal."""

    def __init__(self) -> None:
        self.kept: list[dict[str, float]] = []

    def scalar(self, **values: float) -> None:
        self.kept.append(values)


SCALARS: dict[str, Scalars] = {}
AREAL_COLUMNS = {"input_ids", "loss_mask", "logprobs", "versions", "attention_mask", "rewards"}


def areal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the used modules of areal importable."""
    SCALARS.clear()
    context, tracker = types.ModuleType("workflow_context"), types.ModuleType("stats_tracker")
    context.__dict__["stat_scope"] = lambda: "rollout"
    tracker.__dict__["get"] = lambda name="": SCALARS.setdefault(name, Scalars())
    for name, members in (
        ("areal", {"workflow_context": context}),
        ("areal.utils", {"stats_tracker": tracker}),
        ("areal.api", {}),
        ("areal.api.io_struct", {"ModelRequest": ModelRequest}),
        ("areal.api.workflow_api", {"RolloutWorkflow": RolloutWorkflow}),
    ):
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "turngate.adapters.areal", raising=False)


# slime at commit 0d234f3e3a83c81b7d37209994e0b994deacbb24 of THUDM/slime: slime/utils/types.py. Its function is
# called as custom_generate(args, sample, sampling_params[, evaluation]), see slime/rollout/sglang_rollout.py at
# commit 0044b40d6584cc8f6de5673ae52f7c1628ebd7f6.


@dataclass(slots=True)
class SlimeSample:
    group_index: int | None = None
    index: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    session_id: str | None = None

    class Status(enum.Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"


GOOD = 7
ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}


class Words:
    """A tokenizer whose model knows one word."""

    eos_token_id = 0

    def apply_chat_template(self, conversation: Any, **options: Any) -> list[int]:
        assert options["tokenize"]
        ids = []
        for m in conversation:
            ids += [ROLES[m["role"]], GOOD if m["role"] == "assistant" else 10 + len(m["content"]) % 50]
        return [*ids, ROLES["assistant"]]

    def decode(self, token_ids: Any, **options: Any) -> str:
        return " ".join("good" if i == GOOD else str(i) for i in token_ids)
