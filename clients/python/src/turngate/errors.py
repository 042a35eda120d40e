"""Errors of the client."""

from __future__ import annotations

from numbers import Number


class TurngateError(Exception):
    """Base of all errors of this package."""


class InvalidError(TurngateError, ValueError):
    """A field of a message has a wrong value. A retry does not help."""

    def __init__(self, field: str, value: object, want: str) -> None:
        text = str(value)
        if isinstance(value, Number) and type(value).__module__ != "builtins":  # such as numpy.int64
            text += f" of {type(value).__module__}.{type(value).__name__}"
        if len(text) > 80:
            text = text[:80] + "…"
        super().__init__(f"{field}: {text!r} is not valid: {want}")
        self.field = field
        self.value = text
        self.want = want


class ShapeError(TurngateError, ValueError):
    """Bytes are not a msgpack map within the bounds of the protocol."""


class UnreachableError(TurngateError, ConnectionError):
    """NATS, or a worker that must answer, cannot be reached at this moment."""


class NotSentError(UnreachableError):
    """There is no connection at this moment, or nothing takes the message: nothing was stored."""


class NotOpenedError(NotSentError):
    """A stream of the trainer does not exist at this moment. Workers make it when one is there."""


class StateFileError(TurngateError):
    """The state file is in use by another process, or cannot be read or written."""


class QueueFullError(TurngateError):
    """The trainer's request queue is full. Try again when workers have taken requests."""

    def __init__(self, text: str, err_code: int) -> None:
        super().__init__(text)
        self.err_code = err_code


class BucketFullError(TurngateError):
    """The trainer's bucket has as many bytes as it may have. The bound must be raised, or old files deleted."""


class NotFoundError(TurngateError, LookupError):
    """An object, a record or a stream does not exist."""


class TooLargeError(TurngateError, ValueError):
    """A message or a file is larger than its bound. Nothing was sent."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} has {size} bytes; at most {limit} are possible")
        self.size = size
        self.limit = limit


class DigestError(TurngateError):
    """The content of an object does not match its sha256."""


class CallOverError(TurngateError):
    """The call has its answer, its worker gave it up, or its attempt is over."""


class ClosedError(TurngateError):
    """The client is closed."""


class InUseError(TurngateError):
    """Another process answers the calls of this trainer's shard."""

    def __init__(self, trainer: str, shard: str, process: str, silent: float, copied: bool = False) -> None:
        process += ", which has a copy of this process's state file" if copied else ""
        since = f", which was last heard {silent:.0f} s ago and does not answer" if silent else ""
        super().__init__(
            f"shard {shard} of trainer {trainer} is in use by {process}{since}: end that one, give this one another "
            "name or shard, or let it take over (take_over=True)"
        )
        self.process = process
        self.silent = silent


class ReplacedError(ClosedError):
    """Another process has taken the place of this one, whose client is closed."""

    def __init__(self, trainer: str, shard: str, process: str, copied: bool = False) -> None:
        reason = ": it has a copy of this process's state file" if copied else ""
        super().__init__(
            f"this process of trainer {trainer} was replaced by {process}, which answers the calls of shard {shard} "
            f"now{reason}"
        )
        self.process = process


class MachineError(TurngateError):
    """A machine gives no sandbox. Nothing ran there."""

    def __init__(self, machine: str, reason: str, text: str) -> None:
        super().__init__(f"the machine {machine}: {text}")
        self.machine = machine
        self.reason = reason
        """offline, protocol, failed, or a reason of docs/machine.md such as full."""


class SandboxLostError(MachineError):
    """A sandbox on a machine has ended by itself, or cannot be reached. What ran there may have done its work."""


class OperationError(TurngateError):
    """An operation in a sandbox on a machine failed. The sandbox runs on."""

    def __init__(self, operation: str, code: str, text: str) -> None:
        super().__init__(f"{operation}: {text}")
        self.code = code
        """refused, too_large, no_answer (the machine may still carry it out) or other."""


class GroupExistsError(InvalidError):
    """The trainer has used the name of a group before. Nothing was queued."""

    def __init__(self, group: str, when: str) -> None:
        super().__init__("group", group, f"the name is in use since {when}; want a new one, or none for a random one")


class ServerError(TurngateError):
    """The NATS server refused an operation of JetStream."""

    def __init__(self, what: str, code: int, err_code: int, text: str) -> None:
        super().__init__(f"{what}: {text} ({err_code})")
        self.code = code
        self.err_code = err_code


class TaskError(TurngateError, ValueError):
    """A task directory or a task's request is not valid, or a sandbox cannot run the task."""

    def __init__(self, directory: str, problems: list[str]) -> None:
        super().__init__("\n".join(f"task {directory}: {problem}" for problem in problems))
        self.problems = problems


class MissingPackageError(TurngateError, ImportError):
    """A package that this part needs is not installed."""

    def __init__(self, part: str, package: str) -> None:
        super().__init__(f"{part} needs {package}: pip install {package}")


class MissingCommandError(TurngateError, FileNotFoundError):
    """The command turngate, which a part needs, is missing or cannot be run."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(
            f"{part} needs the command turngate: {reason}. `make build` in turngate's repository makes bin/turngate, "
            "one file without dependencies: copy it into a folder of PATH, or set TURNGATE to its path. Without "
            "it, use Task.from_request with the files of `turngate task request DIR --bundle FILE` on another machine."
        )
