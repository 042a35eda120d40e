"""Options of rollouts and of rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypedDict

from ..rollouts.orphans import Choice
from ..schema import Fault, Limits, ToolSpec, Verify
from ..serving.open_calls import Check
from ..serving.tool import Tool
from ..serving.verifications import Verifier
from ..wire.names import Key


class ConnectOptions(TypedDict, total=False):
    """ConnectOptions are the options of Client.connect, which describes them."""

    context: str
    state: str | os.PathLike[str] | None
    shard: str
    take_over: bool
    orphans: Choice
    answer_all: bool
    lane: int
    slots: int
    tools: dict[str, Tool] | None
    verify: Verifier | None
    check: Check | None
    refused: Callable[[Key, Fault], None] | None
    start_within: float
    audit_every: float


class RolloutOptions(TypedDict, total=False):
    """RolloutOptions are the options of Client.submit_group, which describes them."""

    agent: str
    sandbox: str
    image: str
    labels: Mapping[str, str] | None
    tools: Sequence[ToolSpec]
    args: Sequence[str]
    max_turns: int
    system_prompt: str
    limits: Limits | None
    verify: Verify | None
    snapshot: bool | None


class RowOptions(TypedDict, total=False):
    """RowOptions are the options of turngate.rows, which describes them."""

    merge: str
    max_lost: int
    roles: Iterable[str]
    without_logprobs: bool
