"""Train on the rollouts of CLI coding agents, over NATS.

async with await Client.connect(url, creds, "local") as client:
    client.serve(policy)
    await client.submit_group(Task.load("tasks/hello"), n=4)
    async for result in client.results():
        for row in await client.rows(result):
            train(row.input_ids, row.loss_mask, row.logprobs, row.reward)
"""

from typing import TYPE_CHECKING, Any

from .client.client import Client
from .client.options import RolloutOptions, RowOptions
from .client.sync import SyncClient
from .errors import (
    BucketFullError,
    CallOverError,
    ClosedError,
    DigestError,
    GroupExistsError,
    InUseError,
    InvalidError,
    MachineError,
    MissingCommandError,
    MissingPackageError,
    NotFoundError,
    NotOpenedError,
    NotSentError,
    OperationError,
    QueueFullError,
    ReplacedError,
    SandboxLostError,
    ServerError,
    ShapeError,
    StateFileError,
    TaskError,
    TooLargeError,
    TurngateError,
    UnreachableError,
)
from .rollouts.failures import failure, treatment
from .rollouts.group import Evaluation, Group
from .rollouts.slots import Load
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
from .serving.call import Call
from .serving.conversation import Conversation
from .serving.handle import Handle, Output
from .serving.open_calls import FaultError
from .serving.tool import ToolUse
from .tasks.task import Task
from .trajectory.ending import ending
from .trajectory.finding import Finding
from .trajectory.reader import Rows, rows
from .trajectory.recorded_call import Break, RecordedCall
from .trajectory.row import Row, Span
from .trajectory.token_counts import Tokens
from .wire.names import Key, new_id

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
    "MachineError",
    "MissingCommandError",
    "MissingPackageError",
    "NotFoundError",
    "NotOpenedError",
    "NotSentError",
    "OperationError",
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
    "SandboxLostError",
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
    "ending",
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
