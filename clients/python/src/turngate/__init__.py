"""Train on the rollouts of CLI coding agents, over NATS.

async with await Client.connect(url, creds, "local") as client:
    client.serve(policy)
    await client.submit_group(Task.load("tasks/hello"), n=4)
    async for result in client.results():
        for row in await client.rows(result):
            train(row.input_ids, row.loss_mask, row.logprobs, row.reward)
"""

from typing import TYPE_CHECKING, Any

from .call import Call
from .calls import FaultError
from .client import Client
from .conversation import Conversation
from .errors import (
    BucketFullError,
    CallOverError,
    ClosedError,
    DigestError,
    GroupExistsError,
    InUseError,
    InvalidError,
    MissingPackageError,
    NotFoundError,
    NotOpenedError,
    NotSentError,
    QueueFullError,
    ReplacedError,
    ServerError,
    ShapeError,
    StateFileError,
    TaskError,
    TooLargeError,
    TurngateError,
    UnreachableError,
)
from .failures import failure, treatment
from .finding import Finding
from .handle import Handle, Output
from .names import Key, new_id
from .options import RolloutOptions, RowOptions
from .recorded import Break, RecordedCall
from .rollout_group import Evaluation, Group
from .rollout_rows import Rows, rows
from .row import Row, Span
from .schema import (
    Artifact,
    Delta,
    Fault,
    Limits,
    Reply,
    Request,
    Result,
    ToolSpec,
    TranscriptLine,
    Usage,
    Verdict,
    Verify,
    VersionSpan,
)
from .slots import Load
from .sync import SyncClient
from .task import Task
from .tokens import Tokens
from .tool import ToolUse

if TYPE_CHECKING:
    from .upstream import Upstream as Upstream

__all__ = [
    "Artifact",
    "Break",
    "BucketFullError",
    "Call",
    "CallOverError",
    "Client",
    "ClosedError",
    "Conversation",
    "Delta",
    "DigestError",
    "Evaluation",
    "Fault",
    "FaultError",
    "Finding",
    "Group",
    "GroupExistsError",
    "Handle",
    "InUseError",
    "InvalidError",
    "Key",
    "Limits",
    "Load",
    "MissingPackageError",
    "NotFoundError",
    "NotOpenedError",
    "NotSentError",
    "Output",
    "QueueFullError",
    "RecordedCall",
    "ReplacedError",
    "Reply",
    "Request",
    "Result",
    "RolloutOptions",
    "Row",
    "RowOptions",
    "Rows",
    "ServerError",
    "ShapeError",
    "Span",
    "StateFileError",
    "SyncClient",
    "Task",
    "TaskError",
    "Tokens",
    "TooLargeError",
    "ToolSpec",
    "ToolUse",
    "TranscriptLine",
    "TurngateError",
    "UnreachableError",
    "Usage",
    "Verdict",
    "Verify",
    "VersionSpan",
    "failure",
    "new_id",
    "rows",
    "treatment",
]


def __getattr__(name: str) -> Any:
    """Import Upstream when it is used: its package httpx is an extra."""
    if name != "Upstream":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from .upstream import Upstream
    except ModuleNotFoundError as e:
        raise MissingPackageError("turngate.Upstream", "turngate[upstream]") from e
    return Upstream
