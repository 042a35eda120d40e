# Code generated from the Go package schema by "go test ./clients -update". DO NOT EDIT.
"""The messages of the protocol.

docs/messages.md has the same fields as tables. A field of type Any is JSON: a
value, or bytes with JSON text that is sent unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .fields import wire
from .text import brief, of_result

__all__ = [
    "Task",
    "MCPServer",
    "ToolSpec",
    "AgentChoice",
    "Build",
    "Mount",
    "File",
    "Tmpfs",
    "HostAddress",
    "Ulimit",
    "Probe",
    "After",
    "Container",
    "Service",
    "Folder",
    "SandboxChoice",
    "Model",
    "Route",
    "GateOptions",
    "Limits",
    "Command",
    "Healthcheck",
    "Hook",
    "Verify",
    "ArtifactRule",
    "Step",
    "Request",
    "Call",
    "Usage",
    "VersionSpan",
    "Reply",
    "Delta",
    "Fault",
    "ToolCall",
    "ToolResult",
    "Exit",
    "Verification",
    "Verdict",
    "Operation",
    "Entry",
    "OperationResult",
    "StepResult",
    "Phase",
    "CallStats",
    "ResultUsage",
    "Committed",
    "Artifact",
    "Result",
    "Hint",
    "State",
    "Cancel",
    "Hold",
    "Opened",
    "Process",
    "Attach",
    "Attached",
    "Offer",
    "Capacity",
    "Fleet",
    "PhaseEvent",
    "LLMEvent",
    "LogEvent",
    "WaitEvent",
    "NetEvent",
    "VerifyEvent",
    "ShellEvent",
    "Event",
    "TranscriptLine",
    "Load",
    "Presence",
    "Control",
    "Machine",
    "LineOpen",
    "LineEnd",
    "Enroll",
    "Enrolled",
]


@dataclass(slots=True, kw_only=True)
class Task:
    """Task is the task of the agent. Its files come from the bundle, never from a path on the worker."""

    name: str = field(default="", metadata=wire(keep=True, required=True, most=256))
    instruction: str = field(default="", metadata=wire(keep=True, most=1048576))
    bundle: str = ""
    """bundle is the sha256 (hex) of a tar.zst in the object store "tasks". Empty means the task has no files."""
    notes: list[str] = field(default_factory=list, metadata=wire(most=64, each=1000))
    """Notes list the parts of the task that differ from the author's version. They come first in the result's notes."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class MCPServer:
    """MCPServer is a server of the Model Context Protocol (https://modelcontextprotocol.io). If it has a Command,
    the agent starts it in the sandbox and speaks to it over stdin and stdout. If it has a URL, it runs already
    and the sandbox's network must reach it.
    """

    name: str = field(default="", metadata=wire(keep=True, required=True))
    command: list[str] = field(default_factory=list, metadata=wire(each=65536))
    """Argv."""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    """Of the command."""
    url: str = field(default="", metadata=wire(most=4096))
    """Instead of Command."""
    transport: str = field(default="", metadata=wire(one_of=("sse", "streamable-http",)))
    """transport is "sse" or "streamable-http" for a URL, and "stdio" or empty for a command."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class ToolSpec:
    """ToolSpec is a tool that the trainer runs for an agent."""

    name: str = field(default="", metadata=wire(keep=True, required=True))
    description: str = field(default="", metadata=wire(most=65536))
    parameters: Any = field(default=None, metadata=wire(form="json"))
    """A JSON schema of type object."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class AgentChoice:
    """AgentChoice names the agent and describes its start."""

    name: str = field(default="", metadata=wire(keep=True, required=True))
    version: str = field(default="", metadata=wire(most=256))
    """Default: the worker's pinned version."""
    args: list[str] = field(default_factory=list, metadata=wire(most=256, each=65536))
    """Added to its argv; the whole argv for "command"."""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    system_prompt: str = field(default="", metadata=wire(most=1048576))
    max_turns: int = field(default=0, metadata=wire(low=0, high=1048576))
    user: str = ""
    """user in the sandbox; default sandbox.user."""
    network: str = field(default="", metadata=wire(one_of=("allowlist", "none", "open",)))
    """network and Allow are the agent's network; default sandbox.network and sandbox.allow."""
    allow: list[str] = field(default_factory=list)
    mcp: list[MCPServer] = field(default_factory=list, metadata=wire(most=256))
    """Servers of tools for the agent."""
    skills_dir: str = field(default="", metadata=wire(most=4096))
    """skills_dir is a folder in the sandbox. The agent gets its entries as skills."""
    tools: list[ToolSpec] = field(default_factory=list, metadata=wire(most=256))
    """tools are run by the trainer. The agent reaches them through an MCP server named "trainer"; it cannot call any
    other tool of the trainer.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Build:
    """Build says how the image of a sandbox is built from files of the bundle."""

    context: str = field(default="", metadata=wire(most=4096))
    """Folder of the bundle; default environment."""
    dockerfile: str = field(default="", metadata=wire(most=4096))
    """Path in the context; default Dockerfile."""
    target: str = field(default="", metadata=wire(most=256))
    """Stage; default the last."""
    args: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Mount:
    """Mount shows a folder of the rollout in a container."""

    folder: str = field(default="", metadata=wire(keep=True, required=True))
    path: str = field(default="", metadata=wire(keep=True, required=True, most=4096))
    read_only: bool = False

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class File:
    """File is one file that is put into a container before it starts: a regular file of the bundle, or Content."""

    path: str = field(default="", metadata=wire(keep=True, required=True, most=4096))
    from_: str = field(default="", metadata=wire(name="from", most=4096))
    content: bytes = b""
    mode: int = field(default=0, metadata=wire(low=0, high=4095))
    """Permission bits; default: the bundle's, or 0444."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Tmpfs:
    """Tmpfs is a folder in memory."""

    path: str = field(default="", metadata=wire(keep=True, required=True, most=4096))
    size_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Default: half of the container's memory; in bytes."""
    mode: int = field(default=0, metadata=wire(low=0, high=4095))
    """Permission bits; default 01777."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class HostAddress:
    """HostAddress is a name and its address."""

    name: str = field(default="", metadata=wire(keep=True, required=True))
    address: str = field(default="", metadata=wire(keep=True, required=True))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Ulimit:
    """Ulimit is a limit of each process, named as Docker names it, such as nofile."""

    name: str = field(default="", metadata=wire(keep=True, required=True, one_of=("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nofile", "nproc", "sigpending", "stack",)))
    soft: int = field(default=0, metadata=wire(keep=True, low=-1, high=1125899906842624))
    """-1: none."""
    hard: int = field(default=0, metadata=wire(keep=True, low=-1, high=1125899906842624))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Probe:
    """Probe is a container's health check with the meaning of Docker's HEALTHCHECK: the container is healthy after
    one success, and unhealthy after Retries failures in a row, of which those within start_ms do not count.
    """

    test: list[str] = field(default_factory=list, metadata=wire(keep=True, required=True, each=65536))
    """Argv."""
    interval_ms: int = field(default=0, metadata=wire(low=0, high=86400000))
    """Default 30 000; in milliseconds."""
    timeout_ms: int = field(default=0, metadata=wire(low=0, high=86400000))
    """Default 30 000; in milliseconds."""
    start_ms: int = field(default=0, metadata=wire(low=0, high=86400000))
    """Milliseconds."""
    start_interval_ms: int = field(default=0, metadata=wire(low=0, high=86400000))
    """Default 5 000; in milliseconds."""
    retries: int = field(default=0, metadata=wire(low=0, high=100000))
    """Default 3."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class After:
    """After delays the start of a container until a side-car meets a condition."""

    service: str = field(default="", metadata=wire(keep=True, required=True))
    condition: str = field(default="", metadata=wire(keep=True, required=True, one_of=("completed", "healthy", "started",)))
    """The state that the side-car must have reached."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Container:
    """Container has the settings of one container besides its image and limits. Its paths are in the container or in
    the task's bundle, never on the worker.
    """

    entrypoint: list[str] = field(default_factory=list, metadata=wire(most=256, each=65536))
    """entrypoint replaces the image's entrypoint, and drops the image's command. In the agent's own container the
    two run in the background, and only if one is set here. Like Command it has the form of an argv.
    """
    command: list[str] = field(default_factory=list, metadata=wire(most=256, each=65536))
    """command replaces the image's command."""
    mounts: list[Mount] = field(default_factory=list, metadata=wire(most=64))
    files: list[File] = field(default_factory=list, metadata=wire(most=64))
    tmpfs: list[Tmpfs] = field(default_factory=list, metadata=wire(most=64))
    shm_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Of /dev/shm; default 64 MiB; in bytes."""
    hostname: str = ""
    hosts: list[HostAddress] = field(default_factory=list, metadata=wire(most=64))
    """Further lines of /etc/hosts."""
    ulimits: list[Ulimit] = field(default_factory=list, metadata=wire(most=64))
    health: Probe | None = None
    after: list[After] = field(default_factory=list, metadata=wire(most=16))
    """Side-cars that it waits for before it starts."""
    offline: bool = False
    """It has no network, not even that of the rollout."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Service:
    """Service is a side-car: a container beside the agent's own, on a network that these containers alone have.
    Other containers reach it under its name.
    """

    name: str = field(default="", metadata=wire(keep=True, required=True))
    image: str = field(default="", metadata=wire(most=512))
    build: Build | None = None
    """Instead of Image."""
    user: str = ""
    workdir: str = field(default="", metadata=wire(most=4096))
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    aliases: list[str] = field(default_factory=list, metadata=wire(most=16))
    """Further names."""
    restart: str = field(default="", metadata=wire(one_of=("always", "no", "on-failure",)))
    """No (default), on-failure, always."""
    cpus: float = field(default=0.0, metadata=wire(low=0, high=1024))
    """Its part of the sandbox's limits; default: side-cars without a part share half of the rest."""
    memory_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Bytes."""
    pids: int = field(default=0, metadata=wire(low=0, high=4194304))
    container: Container = field(default_factory=lambda: Container())

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Folder:
    """Folder is a writable folder of one rollout. Its containers may share it."""

    name: str = field(default="", metadata=wire(keep=True, required=True))
    from_: str = field(default="", metadata=wire(name="from", most=4096))
    """from is a folder of the bundle. Its files are in the folder at first."""
    seed: bool = False
    """Seed, without From, copies the files that the first image has at the folder's mount path."""
    keep: bool = False
    """Kept as the artifact folders/NAME.tar."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class SandboxChoice:
    """SandboxChoice describes the sandbox. CPUs, memory_bytes, disk_bytes and Pids are needs: the request goes to a
    worker that offers as much, and they become limits. If the backend cannot enforce a limit, the worker watches
    it where possible and adds a note to the result; if Strict names the limit, the rollout is refused instead. 0
    means the worker's own cap.
    """

    backend: str = field(default="", metadata=wire(keep=True))
    image: str = field(default="", metadata=wire(most=512))
    build: Build | None = None
    """Instead of Image."""
    network: str = field(default="", metadata=wire(one_of=("allowlist", "none", "open",)))
    """None (default), allowlist, open."""
    allow: list[str] = field(default_factory=list, metadata=wire(most=256, each=256))
    """Host names, *.domain, IP addresses and ranges."""
    cpus: float = field(default=0.0, metadata=wire(low=0, high=1024))
    memory_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Bytes."""
    disk_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Bytes."""
    pids: int = field(default=0, metadata=wire(low=0, high=4194304))
    strict: list[str] = field(default_factory=list, metadata=wire(most=256, one_of=("cpus", "disk_bytes", "memory_bytes", "pids",)))
    """Limits that must be enforced: cpus, memory_bytes, disk_bytes, pids."""
    gpus: int = field(default=0, metadata=wire(low=0, high=64))
    user: str = ""
    """Default: the backend's."""
    workdir: str = field(default="", metadata=wire(most=4096))
    """Default: the image's, or /workspace."""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    container: Container = field(default_factory=lambda: Container())
    """container has further settings of the agent's own container."""
    services: list[Service] = field(default_factory=list, metadata=wire(most=16))
    """Side-cars; the limits above are for all containers together."""
    folders: list[Folder] = field(default_factory=list, metadata=wire(most=32))
    """For Container.Mounts."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Model:
    """Model describes the model to the agent."""

    name: str = field(default="", metadata=wire(most=256))
    """Default "policy"."""
    sampling: Any = field(default=None, metadata=wire(form="json"))
    upstream: str = ""
    """A name in the worker's configuration."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Route:
    """Route is the destination of the calls of one tag. Exactly one field is set."""

    shard: str = ""
    """Another of the trainer's processes."""
    upstream: str = ""
    """An upstream in the worker's configuration."""
    reply: str = ""
    """A fixed text; no call is sent."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class GateOptions:
    """GateOptions bound and shape the agent's model calls."""

    stream: str = field(default="", metadata=wire(one_of=("buffer", "pass",)))
    """Buffer (default) or pass."""
    max_calls: int = field(default=0, metadata=wire(low=0, high=1073741824))
    """0: 1000."""
    max_tokens: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Completion tokens of all calls; 0: no cap."""
    max_repeats: int = field(default=0, metadata=wire(low=0, high=1073741824))
    """Calls in a row with the same prompt, or with the same answer to the agent's own turns; default 20."""
    max_parallel: int = field(default=0, metadata=wire(low=0, high=64))
    """Default 8; more wait."""
    wait_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Longest wait of a call without a trainer; default 1 800 000; in milliseconds."""
    routes: dict[str, Route] = field(default_factory=dict)
    """Routes send the calls of a tag to another place than the agent's turns, so that titles and summaries need not
    use the policy. Keys are tags.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Limits:
    """Limits are the durations of each stage in milliseconds. 0 means the default."""

    ready_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    install_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    setup_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    agent_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    verify_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Command:
    """Command is one command of the task, run by /bin/sh -c in the sandbox. It is the task author's own text, never
    assembled from parts.
    """

    run: str = field(default="", metadata=wire(keep=True, required=True, most=65536))
    user: str = ""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Healthcheck:
    """Healthcheck must succeed before an agent starts. The command is repeated until it succeeds once, or has failed
    Retries times in a row.
    """

    run: str = field(default="", metadata=wire(keep=True, required=True, most=65536))
    """For /bin/sh -c."""
    interval_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Between checks; default 5 000; in milliseconds."""
    timeout_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Of one check; default 30 000; in milliseconds."""
    start_period_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """In which failures do not count; default 0; in milliseconds."""
    start_interval_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Between checks in the start period; default 5 000; in milliseconds."""
    retries: int = field(default=0, metadata=wire(low=0, high=1000))
    """Default 3."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Hook:
    """Hook is a command that saves the state of a service to files."""

    run: str = field(default="", metadata=wire(keep=True, required=True, most=65536))
    """For /bin/sh -c."""
    service: str = ""
    """Default "main", the agent's container."""
    user: str = ""
    """Default: the service's."""
    timeout_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Verify:
    """Verify describes a verifier, which finds the reward. Its files are copied into the sandbox only after the
    agent has ended.
    """

    by: str = field(default="", metadata=wire(one_of=("trainer",)))
    """by is "trainer" if the trainer finds the reward: it gets a Verification, and acts in the sandbox until it
    answers. Such a verifier has no run. The bundle's tests are in /tests, if it has any.
    """
    run: str = field(default="", metadata=wire(most=65536))
    """run is the verifier's command. Empty means tests/test.sh of the bundle, at /tests/test.sh. In a step it means
    the step's tests/test.sh, or else the task's; /tests has the files of both.
    """
    user: str = ""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    network: str = field(default="", metadata=wire(one_of=("allowlist", "none", "open",)))
    """network and Allow are the verifier's network; default the network of its sandbox."""
    allow: list[str] = field(default_factory=list, metadata=wire(most=256, each=256))
    reward_key: str = field(default="", metadata=wire(most=256))
    """reward_key names the number in reward.json that becomes the reward. Default "reward", or the only number."""
    separate: SandboxChoice | None = None
    """separate runs the verifier in a second sandbox, which gets only the artifacts of the first sandbox, at their
    source paths. Backend and image default to the first sandbox's. Nil: the verifier runs in the agent's sandbox.
    """
    bundled: bool = False
    """bundled means that the image of the separate sandbox contains /tests."""
    processes: str = field(default="", metadata=wire(one_of=("end", "keep",)))
    """processes is "keep", the default, if processes that the agent left running go on while the verifier runs in
    the agent's sandbox. "end" ends them. Processes that use the verifier's files end in any case, and all of them
    if the verifier's network reaches more than the agent's.
    """
    collect: list[Hook] = field(default_factory=list, metadata=wire(most=256))
    """collect are commands that run after the agent and before artifacts are read. A failure only adds a note to the
    result.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class ArtifactRule:
    """ArtifactRule names a file or folder of a sandbox to keep."""

    source: str = field(default="", metadata=wire(keep=True, required=True, most=4096))
    """source is an absolute path, or relative to the working directory."""
    destination: str = field(default="", metadata=wire(most=1024))
    """destination is a relative path that names the artifact. Default: the source without its leading slash."""
    service: str = ""
    """service is the container that has the path. Default "main"."""
    exclude: list[str] = field(default_factory=list, metadata=wire(most=256, each=4096))
    """exclude are patterns of files to leave out of a folder, with the meaning of tar's --exclude."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Step:
    """Step is one part of a task with several instructions. The steps of a request run in order in one sandbox; each
    starts a new session of the agent. The files of a step are in the bundle below steps/<name>: workdir is copied
    into the working directory, workdir/setup.sh is run there, tests and solution belong to this step alone.
    """

    name: str = field(default="", metadata=wire(keep=True, required=True))
    instruction: str = field(default="", metadata=wire(keep=True, most=1048576))
    user: str = ""
    """Of the agent; default agent.user."""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    """Of the agent, on top of agent.env."""
    network: str = field(default="", metadata=wire(one_of=("allowlist", "none", "open",)))
    """Of the agent; default agent.network."""
    allow: list[str] = field(default_factory=list, metadata=wire(most=256, each=256))
    agent_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    verify_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    healthcheck: Healthcheck | None = None
    """healthcheck must succeed after the step's setup, before the agent starts."""
    verify: Verify | None = None
    """verify describes the verifier of this step. Nil: it is not verified."""
    artifacts: list[ArtifactRule] = field(default_factory=list, metadata=wire(most=256))
    """artifacts are kept after this step, in addition to the request's artifacts."""
    min_reward: dict[str, float] = field(default_factory=dict, metadata=wire(most=64))
    """min_reward ends the rollout after this step if one of these rewards is lower or missing."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Request:
    """Request asks for one rollout. A trainer publishes it; the rollout ends in exactly one Result."""

    v: int = field(default=1, metadata=wire(keep=True))
    id: str = field(default="", metadata=wire(keep=True, required=True))
    trainer: str = field(default="", metadata=wire(keep=True, required=True))
    shard: str = ""
    """The trainer's process that answers calls; default "0"."""
    process: str = ""
    """process is the instance of the process that submitted it, if that one keeps no file of its rollouts: the
    result is lost when that process is gone, and the next process of the shard may end the rollout. Empty: it
    stays.
    """
    group: str = field(default="", metadata=wire(most=256))
    """The same for rollouts of one prompt: any text that is new for the trainer."""
    index: int = field(default=0, metadata=wire(low=0, high=1073741824))
    """This rollout's place in its group, from 0."""
    mode: str = field(default="", metadata=wire(one_of=("black_box", "interception_gate", "transparent_proxy",)))
    """Default interception_gate."""
    task: Task = field(default_factory=lambda: Task(), metadata=wire(keep=True))
    agent: AgentChoice = field(default_factory=lambda: AgentChoice(), metadata=wire(keep=True))
    sandbox: SandboxChoice = field(default_factory=lambda: SandboxChoice(), metadata=wire(keep=True))
    model: Model = field(default_factory=lambda: Model())
    gate: GateOptions = field(default_factory=lambda: GateOptions())
    limits: Limits = field(default_factory=lambda: Limits())
    setup: list[Command] = field(default_factory=list, metadata=wire(most=256))
    snapshot: bool = False
    """Snapshot makes the rollouts of a group that run on one worker begin with the files of one setup, where the
    backend can copy a sandbox. Processes that the setup left are ended then. Without group it has no effect.
    """
    healthcheck: Healthcheck | None = None
    """healthcheck must succeed in the new sandbox before Setup runs. A sandbox that begins with a snapshot is not
    checked again.
    """
    verify: Verify | None = None
    """verify describes the verifier, which finds the reward. Nil: the rollout is not verified. A request with steps
    has a Verify in each step instead.
    """
    artifacts: list[ArtifactRule] = field(default_factory=list, metadata=wire(most=256))
    """artifacts are kept in addition to /logs/agent and /logs/artifacts. With steps they are kept after each step."""
    steps: list[Step] = field(default_factory=list, metadata=wire(most=64))
    """steps are the parts of a task with several instructions. They replace task.instruction and verify."""
    step_reward: str = field(default="", metadata=wire(one_of=("final", "mean",)))
    """Mean (default) or final."""
    max_attempts: int = field(default=0, metadata=wire(low=0, high=100))
    """Default 3."""
    attempt_floor: int = field(default=0, metadata=wire(low=0, high=1073741824))
    delay_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """Milliseconds."""
    labels: dict[str, str] = field(default_factory=dict, metadata=wire(most=64, each=65536))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Call:
    """Call is one model call in the canonical form, which has the semantics of OpenAI chat completions
    (https://platform.openai.com/docs/api-reference/chat/create). Messages, tools and parameters are the agent's
    own JSON, untouched.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    key: str = field(default="", metadata=wire(keep=True, required=True))
    tag: str = field(default="", metadata=wire(keep=True, required=True, one_of=("agent", "aux", "subagent",)))
    dialect: str = field(default="", metadata=wire(keep=True, required=True))
    model: str = field(default="", metadata=wire(most=256))
    messages: list[Any] = field(default_factory=list, metadata=wire(form="json", keep=True, most=100000))
    tools: Any = field(default=None, metadata=wire(form="json"))
    """An array; with Base only when it differs from the base's."""
    params: dict[str, Any] = field(default_factory=dict, metadata=wire(form="json", most=256))
    """Every other field of the agent's request; with Base only when they differ from the base's."""
    base: int = 0
    """Number of an earlier call of this attempt; Messages follow its first Keep messages. 0: Messages are complete."""
    keep: int = 0
    """Number of messages taken from the call Base."""
    digest: bytes = b""
    """Of the whole call, see docs/protocol.md."""
    stream: bool = False
    """The agent asked for a stream."""
    remaining_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """remaining_ms is how long the caller will still wait, in milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Usage:
    """Usage counts the tokens of one call."""

    prompt_tokens: int = field(default=0, metadata=wire(keep=True))
    completion_tokens: int = field(default=0, metadata=wire(keep=True))
    cached_tokens: int = 0
    """Of the prompt, which the model server had cached."""
    cost_usd: float | None = None
    """Nil: not known."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class VersionSpan:
    """VersionSpan names the policy version that generated the completion ids from Start up to End (excluded)."""

    version: str = field(default="", metadata=wire(keep=True))
    start: int = field(default=0, metadata=wire(keep=True))
    end: int = field(default=0, metadata=wire(keep=True))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Reply:
    """Reply is the whole answer to one call."""

    v: int = field(default=1, metadata=wire(keep=True))
    message: Any = field(default=None, metadata=wire(form="json", keep=True, required=True))
    """An OpenAI chat assistant message."""
    finish_reason: str = field(default="", metadata=wire(keep=True, required=True, one_of=("content_filter", "length", "stop", "tool_calls",)))
    usage: Usage = field(default_factory=lambda: Usage(), metadata=wire(keep=True))
    prompt_ids: Sequence[int] = field(default=(), metadata=wire(form="ids"))
    """Data for training. None of it ever reaches the agent."""
    completion_ids: Sequence[int] = field(default=(), metadata=wire(form="ids"))
    logprobs: Sequence[float] = field(default=(), metadata=wire(form="logprobs"))
    """One per completion id."""
    top_logprobs: Any = field(default=None, metadata=wire(form="json"))
    versions: list[VersionSpan] = field(default_factory=list, metadata=wire(most=100000))
    sampling: Any = field(default=None, metadata=wire(form="json"))
    """Effective parameters."""
    edits: list[str] = field(default_factory=list, metadata=wire(most=256))
    """Parameters that were changed before the upstream got them, or that it ignored."""
    retained: bool = False
    """The trainer keeps the ids under the call's key."""
    digest: bytes = b""
    """Of the retained ids."""
    keep_reasoning: bool = False
    """keep_reasoning asks for the message's reasoning in later calls that have its tool calls, also if the agent
    drops it. Models that think between tool calls need it.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Delta:
    """Delta is a piece of an answer that is still being generated: an OpenAI chat delta and its token ids."""

    v: int = field(default=1, metadata=wire(keep=True))
    delta: Any = field(default=None, metadata=wire(form="json", keep=True, required=True))
    """Choices[0].delta of a chat completion chunk."""
    completion_ids: Sequence[int] = field(default=(), metadata=wire(form="ids"))
    logprobs: Sequence[float] = field(default=(), metadata=wire(form="logprobs"))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Fault:
    """Fault describes a failure: its stage, its cause and the party that can mend it. As the answer to a model call
    it also carries an HTTP status.
    """

    stage: str = field(default="", metadata=wire(most=64))
    """Sandbox, setup, agent, verify, call, request, ..."""
    code: str = field(default="", metadata=wire(keep=True, required=True, most=64))
    message: str = field(default="", metadata=wire(keep=True, most=65536))
    who: str = field(default="", metadata=wire(most=16))
    """Agent, task, sandbox, trainer, worker or user; the answer to a model call may leave it out."""
    retryable: bool = False
    status: int = 0
    """status is the HTTP status of a fault that answers a model call: 400, 409, 410, 413, 425, 429 or 5xx. 0
    elsewhere.
    """
    agent_message: str = field(default="", metadata=wire(most=65536))
    """agent_message is text that the agent may read. Without it the agent reads a generic text; Message goes to
    events and results only.
    """
    retry_after_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """retry_after_ms is the time to wait before the next try, in milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class ToolCall:
    """ToolCall asks the trainer to run one of its tools. Its key has the form of a model call's key, but tool calls
    have numbers of their own.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    key: str = field(default="", metadata=wire(keep=True, required=True))
    name: str = field(default="", metadata=wire(keep=True, required=True))
    arguments: Any = field(default=None, metadata=wire(form="json", keep=True, required=True))
    """A JSON object, as the model wrote it."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class ToolResult:
    """ToolResult is the result of a tool call."""

    v: int = field(default=1, metadata=wire(keep=True))
    text: str = field(default="", metadata=wire(keep=True, most=1048576))
    is_error: bool = False
    """The text describes an error to the model."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Exit:
    """Exit describes the end of a process in the sandbox. It is data about the agent or task, never an error of
    turngate.
    """

    code: int = field(default=0, metadata=wire(keep=True))
    """Exit status; 128+signal when a signal ended it."""
    signal: str = ""
    """Such as "killed"; empty when it exited."""
    timed_out: bool = False
    oom: bool = False
    disk: bool = False
    """Ended because the sandbox exceeded its disk limit."""
    ms: int = field(default=0, metadata=wire(keep=True))
    """Wall time in milliseconds."""
    stdout_bytes: int = 0
    """Bytes."""
    stderr_bytes: int = 0
    """Bytes."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Verification:
    """Verification asks the trainer for the reward of a step, after the agent has ended. Until the trainer answers
    with a Verdict, it may send Operations on the sandbox. Its key has the form of a model call's key; the number
    is that of the step.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    key: str = field(default="", metadata=wire(keep=True, required=True))
    task: str = field(default="", metadata=wire(most=256))
    """The request's task.name."""
    bundle: str = ""
    """The request's task.bundle."""
    step: str = field(default="", metadata=wire(most=256))
    """Empty: the request has no steps."""
    instruction: str = field(default="", metadata=wire(most=1048576))
    """Of the step."""
    group: str = field(default="", metadata=wire(most=256))
    index: int = field(default=0, metadata=wire(low=0, high=1073741824))
    labels: dict[str, str] = field(default_factory=dict, metadata=wire(most=64, each=65536))
    workdir: str = field(default="", metadata=wire(keep=True, most=4096))
    """Working directory of the sandbox."""
    exit: Exit | None = None
    """Of the agent."""
    fault: Fault | None = None
    """Of the agent."""
    limit_ms: int = field(default=0, metadata=wire(keep=True, low=0, high=2592000000))
    """Time limit of the verification; in milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Verdict:
    """Verdict is the trainer's answer to a Verification. It becomes the step's result, or the rollout's if there are
    no steps.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    reward: float | None = field(default=None, metadata=wire(keep=True))
    """Null: not known, which is not 0."""
    rewards: dict[str, float] = field(default_factory=dict, metadata=wire(most=256))
    """rewards are the parts of the reward. The reward itself is added under verify.reward_key, or "reward", unless
    the name is taken.
    """
    metrics: dict[str, float] = field(default_factory=dict, metadata=wire(most=256))
    messages: list[str] = field(default_factory=list, metadata=wire(most=64, each=1000))
    """Notes of the result, for people."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Operation:
    """Operation is one action of the trainer in a sandbox that it verifies. Do selects the action; fields of other
    actions are empty. A relative path begins in the working directory.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    do: str = field(default="", metadata=wire(keep=True, required=True, one_of=("exec", "list", "read", "write",)))
    """Exec, read, write or list."""
    path: str = field(default="", metadata=wire(most=4096))
    """path is the file to read or write, the folder to list, or the directory of a command; default for list and
    exec: the working directory.
    """
    data: bytes = b""
    """data is the content to write, or the standard input of a command."""
    mode: int = field(default=0, metadata=wire(low=0, high=511))
    """Permission bits of a written file; default 0644."""
    user: str = ""
    """user runs the command, or owns the written file. Default verify.user."""
    args: list[str] = field(default_factory=list, metadata=wire(most=256, each=65536))
    """Of exec: the argv, without a shell."""
    run: str = field(default="", metadata=wire(most=65536))
    """run is text for /bin/sh -c, in place of args."""
    env: dict[str, str] = field(default_factory=dict, metadata=wire(most=256, each=65536))
    """Of exec, added to verify.env."""
    timeout_ms: int = field(default=0, metadata=wire(low=0, high=2592000000))
    """timeout_ms limits a command. 0, and more than is left of the verification: to its end. In milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Entry:
    """Entry is a file of a folder."""

    name: str = field(default="", metadata=wire(keep=True))
    """Without the folder."""
    kind: str = field(default="", metadata=wire(keep=True, required=True, one_of=("file", "folder", "link", "other",)))
    """File, folder, link or other."""
    size: int = field(default=0, metadata=wire(keep=True))
    mode: int = field(default=0, metadata=wire(keep=True))
    """Permission bits."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class OperationResult:
    """OperationResult is the outcome of an Operation that the worker ran. The failure of a command is data; other
    failures are a Fault.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    exit: Exit | None = None
    """Of a command."""
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    """The command wrote more than is here."""
    data: bytes = b""
    """Content of a file."""
    files: list[Entry] = field(default_factory=list, metadata=wire(most=10000))
    """Of a folder, by name."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class StepResult:
    """StepResult is the outcome of one step."""

    name: str = field(default="", metadata=wire(keep=True, required=True))
    reward: float | None = field(default=None, metadata=wire(keep=True))
    """Null: not known."""
    rewards: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None
    exit: Exit | None = None
    """Of the agent."""
    separation: str = ""
    phases: list[str] = field(default_factory=list)
    """Names of its phases in the result."""
    first_call: int = 0
    """first_call and last_call are the numbers of the first and last model call of the agent in this step. 0: it
    made no call.
    """
    last_call: int = 0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Phase:
    """Phase is a part of a rollout, with its time."""

    name: str = field(default="", metadata=wire(keep=True))
    """Create, upload, setup[0], agent, verify, step/<name>/agent, ..."""
    start: int = field(default=0, metadata=wire(keep=True))
    """Unix ms, for people."""
    ms: int = field(default=0, metadata=wire(keep=True))
    """Duration; in milliseconds."""
    exit: Exit | None = None
    """When the phase ran a command."""
    output: str = field(default="", metadata=wire(most=65536))
    """Tail of its output."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class CallStats:
    """CallStats counts the calls of one tag."""

    count: int = field(default=0, metadata=wire(keep=True))
    prompt_tokens: int = field(default=0, metadata=wire(keep=True))
    completion_tokens: int = field(default=0, metadata=wire(keep=True))
    cached_tokens: int = 0
    """Of the prompts, which the model server had cached."""
    cost_usd: float | None = None
    """cost_usd is the sum of the answers' costs. Nil if the cost of an answer is not known."""
    refused: int = 0
    """Answers that were refused."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class ResultUsage:
    """ResultUsage counts the resources of an attempt besides its model calls."""

    sandbox_seconds: float = field(default=0.0, metadata=wire(keep=True))
    """sandbox_seconds is the sum of the times for which the sandboxes of agent and verifiers existed, each with its
    side-cars.
    """
    sandbox_usd: float | None = None
    """sandbox_usd is the price of this time. Nil: the worker has no price for one of them."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Committed:
    """Committed names a generation that reached the agent. Train only on these generations."""

    call: int = field(default=0, metadata=wire(keep=True))
    gen: str = field(default="", metadata=wire(keep=True))
    digest: bytes = b""
    shard: str = ""
    tag: str = ""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Artifact:
    """Artifact is a file that the rollout left, kept in the object store under its sha256."""

    name: str = field(default="", metadata=wire(keep=True))
    size: int = field(default=0, metadata=wire(keep=True))
    sha256: str = field(default="", metadata=wire(keep=True, required=True))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Result:
    """Result is the outcome of a rollout. Every submitted request gets exactly one."""

    v: int = field(default=1, metadata=wire(keep=True))
    id: str = field(default="", metadata=wire(keep=True, required=True))
    trainer: str = field(default="", metadata=wire(keep=True))
    group: str = ""
    index: int = field(default=0, metadata=wire(keep=True))
    task: str = ""
    """The request's task.name."""
    attempt: int = field(default=0, metadata=wire(keep=True, low=0, high=1073741824))
    status: str = field(default="", metadata=wire(keep=True, required=True))
    reward: float | None = field(default=None, metadata=wire(keep=True))
    """Null: not known, which is not 0."""
    rewards: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    fault: Fault | None = None
    """With steps: the first fault of a step."""
    exit: Exit | None = None
    """Of the agent; with steps: of the last step that ran."""
    separation: str = ""
    """separation tells how far the verifier was from the agent: same-user, other-user or separate. With steps: the
    smallest. Empty: no verifier ran.
    """
    steps: list[StepResult] = field(default_factory=list, metadata=wire(most=64))
    """The steps that ran."""
    phases: list[Phase] = field(default_factory=list)
    calls: dict[str, CallStats] = field(default_factory=dict)
    """By tag."""
    usage: ResultUsage | None = None
    """Nil: no sandbox was made."""
    committed: list[Committed] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    transcript: str = ""
    """An artifact's name."""
    transcript_truncated: int = 0
    """transcript_truncated counts the last lines that did not fit into the transcript. If it is not 0, the record of
    the calls is incomplete.
    """
    notes: list[str] = field(default_factory=list, metadata=wire(most=256, each=65536))
    """notes are sentences for people, for example about limits that were only watched or parts of the task that are
    not supported.
    """
    edits: list[str] = field(default_factory=list)
    """As in Reply, of all calls."""
    worker: str = ""
    agent: str = ""
    agent_version: str = ""
    labels: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return of_result(self)


@dataclass(slots=True, kw_only=True)
class Hint:
    """Hint tells a trainer that a result was committed. The stream is the truth; a lost hint costs time only. A hint
    with a fault is the only answer to a request that can have no result, because its id is missing or another
    trainer's.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    id: str = field(default="", metadata=wire(keep=True, required=True))
    """With a fault: the request's own, empty if it cannot be read."""
    fault: Fault | None = None
    """The reason for refusing the request."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class State:
    """State is the record of a rollout's owner. It alone decides which worker runs the rollout; the queue only wakes
    workers. Every write is a compare-and-set on the sequence of the last one.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    id: str = field(default="", metadata=wire(keep=True, required=True))
    trainer: str = field(default="", metadata=wire(keep=True))
    status: str = field(default="", metadata=wire(keep=True, required=True, one_of=("cancelled", "cancelling", "dead", "done", "failed", "queued", "running",)))
    attempt: int = field(default=0, metadata=wire(keep=True, low=0, high=1073741824))
    """Only grows, and fences earlier attempts."""
    tries: int = field(default=0, metadata=wire(keep=True, low=0, high=1073741824))
    """Counts against max_attempts."""
    owner_seq: int = 0
    """Stream sequence of the owner's queue message."""
    ack: str = ""
    """ack subject of that message, so that a successor can release it at once."""
    worker: str = ""
    instance: str = ""
    since: int = 0
    """Unix ms, for people."""
    fault: Fault | None = None
    """Of the last try that failed, or of the cancel, or of the result."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Cancel:
    """Cancel asks to end rollouts of one trainer, queued or running. Workers check that each id belongs to the
    trainer that the message's subject names.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    ids: list[str] = field(default_factory=list, metadata=wire(keep=True, most=10000))
    reason: str = field(default="", metadata=wire(most=1024))
    """Becomes a part of the message of the result's fault."""
    seqs: list[int] = field(default_factory=list)
    """seqs has the sequences of the rollouts' messages in the trainer's queue, in the order of IDs; 0: not known. A
    worker looks for the others in the queue.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Hold:
    """Hold lists the rollouts of one trainer that must not send new calls to an upstream, for example during an
    update of its weights. Open calls go on. A hold is valid until a newer one, and lapses when it is not
    repeated.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    instance: str = field(default="", metadata=wire(keep=True, required=True))
    """Of the trainer's process."""
    serial: int = field(default=0, metadata=wire(keep=True, required=True))
    """Grows with each hold of that process."""
    all: bool = False
    ids: list[str] = field(default_factory=list, metadata=wire(most=10000))
    """Used without All; empty: no rollout waits."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Opened:
    """Opened is a worker's answer to a trainer that asked for its streams. The bounds are the trainer's; 0: there is
    none.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    error: str = field(default="", metadata=wire(most=65536))
    """Reason why a stream is missing; empty: none is missing."""
    max_queue: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Requests in the queue."""
    max_queue_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Bytes of the requests in the queue."""
    max_bundle_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Bytes of bundles and large answers."""
    max_artifact_bytes: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Bytes of artifacts and large calls."""
    weight: int = field(default=0, metadata=wire(low=0, high=1000))
    """Share of the workers, compared with other trainers."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Process:
    """Process describes a process of a trainer. One process at a time answers the calls of a trainer's shard."""

    v: int = field(default=1, metadata=wire(keep=True))
    instance: str = field(default="", metadata=wire(keep=True, required=True))
    """Random name of this run."""
    owner: str = ""
    """Random name in its state file, so that the next process with this file has it too; empty: no file."""
    shard: str = field(default="", metadata=wire(keep=True, required=True))
    name: str = field(default="", metadata=wire(most=300))
    """Program, number of the process and host, for people."""
    since: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Its start in Unix ms; of two with one owner, the later one has the calls."""
    ended: bool = False
    """It has given its shard up."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Attach:
    """Attach asks for the calls of a shard. The process that has them asks again every 5 s, and with process.ended
    at its end.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    process: Process = field(default_factory=lambda: Process(), metadata=wire(keep=True))
    """The one that asks."""
    replace: str = ""
    """Instance of the process that it replaces."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Attached:
    """Attached is a worker's answer to an Attach."""

    v: int = field(default=1, metadata=wire(keep=True))
    error: str = field(default="", metadata=wire(most=65536))
    """Reason why it is not known which process has the calls; empty: it is known."""
    process: Process = field(default_factory=lambda: Process())
    """The one that has the calls now."""
    silent_ms: int = field(default=0, metadata=wire(low=0, high=1125899906842624))
    """Since it asked, if it is another one; in milliseconds."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Offer:
    """Offer lists the resources that a worker can give to one rollout. A limit of 0 means no limit."""

    backends: list[str] = field(default_factory=list, metadata=wire(keep=True))
    failing: dict[str, str] = field(default_factory=dict)
    """failing has the backends whose services make no sandboxes for now, with the reasons. The worker tries again."""
    agents: list[str] = field(default_factory=list, metadata=wire(keep=True))
    """Installed ones."""
    networks: list[str] = field(default_factory=list)
    """Besides none."""
    gpus: int = 0
    """0: none."""
    cpus: float = 0.0
    memory_bytes: int = 0
    """Bytes."""
    disk_bytes: int = 0
    """Bytes."""
    pids: int = 0
    images: list[str] = field(default_factory=list)
    """Warm ones."""
    upstreams: list[str] = field(default_factory=list)
    """That requests of the modes transparent_proxy and black_box can name."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Capacity:
    """Capacity is the capacity of one worker."""

    worker: str = field(default="", metadata=wire(keep=True, required=True))
    slots: int = field(default=0, metadata=wire(keep=True))
    busy: int = field(default=0, metadata=wire(keep=True))
    """Slots in use."""
    draining: bool = False
    full: bool = False
    """It takes no request now, though slots may be free, since its host has no room."""
    offer: Offer = field(default_factory=lambda: Offer(), metadata=wire(keep=True))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Fleet:
    """Fleet lists the live workers for a trainer, without the rollouts of other trainers."""

    v: int = field(default=1, metadata=wire(keep=True))
    workers: list[Capacity] = field(default_factory=list, metadata=wire(keep=True, most=100000))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class PhaseEvent:
    """PhaseEvent reports that a phase began, or ended after MS with Exit."""

    name: str = field(default="", metadata=wire(keep=True))
    ended: bool = False
    ms: int = 0
    """Milliseconds."""
    exit: Exit | None = None
    fault: Fault | None = None

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class LLMEvent:
    """LLMEvent tells that a model call began (Call is set) or ended (Reply or Fault is set)."""

    number: int = field(default=0, metadata=wire(keep=True))
    gen: str = ""
    ms: int = 0
    """Milliseconds."""
    call: Call | None = None
    reply: Reply | None = None
    fault: Fault | None = None
    note: str = ""
    """note lists changes that the gate made to the call or its answer. It is set instead of Call or Reply when they
    are too large to show.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class LogEvent:
    """LogEvent is a piece of output."""

    source: str = field(default="", metadata=wire(keep=True))
    """Agent, setup[0], verify, ..."""
    stream: str = field(default="", metadata=wire(keep=True))
    """Stdout or stderr."""
    text: str = field(default="", metadata=wire(keep=True))

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class WaitEvent:
    """WaitEvent tells that a rollout waits for something outside of it. It is sent when the wait begins, when the
    reason changes, every 30 s, and with Ended when the wait is over.
    """

    for_: str = field(default="", metadata=wire(name="for", keep=True, required=True, one_of=("hold", "sandbox", "server", "slot", "trainer", "upstream", "verify", "worker",)))
    """The thing that it waits for."""
    name: str = field(default="", metadata=wire(most=256))
    """Such as the name of an upstream or an image."""
    call: int = 0
    """The model call that waits; 0: all of the rollout."""
    ms: int = 0
    """Duration of the wait so far, in milliseconds."""
    tries: int = 0
    """Number of failed tries."""
    note: str = field(default="", metadata=wire(most=65536))
    """Details, such as "2 workers, no slot is free"; may have several lines."""
    fault: Fault | None = None
    """Of the last try that failed."""
    ended: bool = False

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class NetEvent:
    """NetEvent tells of one connection that a process in the sandbox requested from the proxy of the allowlist."""

    number: int = field(default=0, metadata=wire(keep=True))
    """1, 2, ... within the rollout."""
    phase: str = field(default="", metadata=wire(keep=True))
    """Of the rollout: agent, verify, ..."""
    host: str = field(default="", metadata=wire(keep=True))
    port: int = field(default=0, metadata=wire(keep=True))
    address: str = ""
    """IP address of the host."""
    allowed: bool = field(default=False, metadata=wire(keep=True))
    reason: str = ""
    """Of a refusal or failure."""
    ended: bool = False
    sent: int = 0
    """Bytes from the sandbox."""
    received: int = 0
    """Bytes to the sandbox."""
    ms: int = 0
    """Milliseconds."""
    omitted: int = 0
    """omitted counts the connections without an event. It is set in the last event of a rollout that made very many
    connections.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class VerifyEvent:
    """VerifyEvent tells of one operation of a trainer that verifies, after it ended. The output of a command comes
    as events of type log.
    """

    number: int = field(default=0, metadata=wire(keep=True))
    """Of the operation."""
    do: str = field(default="", metadata=wire(keep=True))
    """As in Operation."""
    path: str = ""
    command: str = ""
    """Its beginning."""
    bytes: int = 0
    """That were read or written."""
    ms: int = 0
    """Milliseconds."""
    exit: Exit | None = None
    fault: Fault | None = None

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class ShellEvent:
    """ShellEvent tells that an operator's command in the sandbox of a rollout began, or ended after MS with Exit or
    Fault.
    """

    number: int = field(default=0, metadata=wire(keep=True))
    """1, 2, ... within the attempt."""
    by: str = ""
    """Name that the operator gives, such as ann@host; it is not checked."""
    part: str = ""
    """Verifier: in the sandbox of a separate verifier."""
    user: str = ""
    """Of the command; empty: the sandbox's."""
    command: str = ""
    """Its beginning."""
    ended: bool = False
    ms: int = 0
    """Milliseconds."""
    exit: Exit | None = None
    fault: str = ""
    """Reason why the command did not run to its end."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Event:
    """Event shows people the progress of a rollout. Nothing depends on events: a full stream or a slow tap never
    delays a rollout.
    """

    v: int = field(default=1, metadata=wire(keep=True))
    type: str = field(default="", metadata=wire(keep=True, required=True, one_of=("llm", "log", "net", "phase", "result", "shell", "step", "verify", "wait",)))
    id: str = field(default="", metadata=wire(keep=True, required=True))
    attempt: int = field(default=0, metadata=wire(keep=True, low=0, high=1073741824))
    index: int = field(default=0, metadata=wire(keep=True))
    """1, 2, ... within the attempt."""
    at: int = field(default=0, metadata=wire(keep=True))
    """Unix ms."""
    phase: PhaseEvent | None = None
    step: Any = field(default=None, metadata=wire(form="json"))
    """An event of the agent: kind (text, tool_call, tool_result, usage, error, other), and text, tool, id, input,
    output or usage.
    """
    llm: LLMEvent | None = None
    log: LogEvent | None = None
    wait: WaitEvent | None = None
    net: NetEvent | None = None
    verify: VerifyEvent | None = None
    shell: ShellEvent | None = None
    result: Result | None = None

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class TranscriptLine:
    """TranscriptLine is one line of a rollout's transcript, an artifact of JSON lines, compressed with zstd. A call
    has two lines, its request and its end; a tool that the trainer ran has one.
    """

    at: int = 0
    """Unix ms, for people."""
    call: int = 0
    """1, 2, ...: the call's number in its attempt."""
    request: Call | None = None
    """With a base only its new part, as on the wire."""
    gen: str = ""
    """At the call's end: the generation that answered it."""
    ms: int = 0
    """Duration of the call or the tool; in milliseconds."""
    reply: Reply | None = None
    fault: Fault | None = None
    tool: str = ""
    arguments: Any = field(default=None, metadata=wire(form="json"))
    text: str = ""
    """The tool's result."""
    is_error: bool = False
    left_out: int = 0
    """Left_out, on the last line only, counts the lines that did not fit."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Load:
    """Load tells how busy a worker and its host are. 0 means that a value is not known."""

    cpus: int = 0
    """Of the host."""
    load: float = 0.0
    """Processes of the host that run or want to, mean of the last minute."""
    memory_bytes: int = 0
    """Of the host, or of the worker's control group if that has less; in bytes."""
    free_memory_bytes: int = 0
    """Of it, that programs can still get; in bytes."""
    worker_bytes: int = 0
    """Memory of the worker's process, without its sandboxes; in bytes."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Presence:
    """Presence announces a live worker and the rollouts that it can take."""

    v: int = field(default=1, metadata=wire(keep=True))
    worker: str = field(default="", metadata=wire(keep=True, required=True))
    instance: str = field(default="", metadata=wire(keep=True))
    version: str = ""
    slots: int = field(default=0, metadata=wire(keep=True))
    draining: bool = False
    full: str = ""
    """Reason for which it takes no request now, though slots may be free."""
    shells: bool = False
    """Operators may run commands in the sandboxes of its rollouts."""
    offer: Offer = field(default_factory=lambda: Offer(), metadata=wire(keep=True))
    running: list[str] = field(default_factory=list)
    load: Load | None = None
    """When the presence was made; null: not known."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Control:
    """Control is a command from one worker to another."""

    v: int = field(default=1, metadata=wire(keep=True))
    do: str = field(default="", metadata=wire(keep=True, required=True, one_of=("cancel", "copy", "give_back",)))
    id: str = field(default="", metadata=wire(keep=True, required=True))
    attempt: int = 0

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Machine:
    """Machine announces a machine that takes sandboxes, every 2 s."""

    v: int = field(default=1, metadata=wire(keep=True))
    machine: str = field(default="", metadata=wire(keep=True, required=True))
    instance: str = field(default="", metadata=wire(keep=True, required=True))
    """Of its process; a part of the subjects of its lines."""
    epoch: int = field(default=0, metadata=wire(keep=True))
    """Of two instances the one with the larger epoch is valid."""
    version: str = ""
    program: str = field(default="", metadata=wire(keep=True))
    """Sha256 of its turngate, as hex digits; a worker needs the same."""
    protocol: int = 0
    """Of the bytes in its lines; clients in other languages need the one that they know."""
    system: str = ""
    """Such as linux/amd64."""
    slots: int = field(default=0, metadata=wire(keep=True))
    """Most lines at once, without those to its desktop."""
    lines: int = 0
    """Of these, that are open."""
    draining: bool = False
    """Takes no more lines."""
    gone: bool = False
    """The last message of this instance."""
    missing: dict[str, str] = field(default_factory=dict)
    """missing has the reason for each capability that the machine lacks, such as sandbox."""
    cpus: int = 0
    load: float = 0.0
    """Processes that run or want to, mean of the last minute."""
    memory_bytes: int = 0
    """Bytes."""
    free_memory_bytes: int = 0
    """Bytes."""
    free_disk_bytes: int = 0
    """Where the machine keeps its files; in bytes."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class LineOpen:
    """LineOpen is the body of the message that opens a line to a machine, or to a worker."""

    v: int = field(default=1, metadata=wire(keep=True))
    want: str = field(default="", metadata=wire(keep=True, required=True))
    """The capability that the line is for: sandbox, workspace or desktop of a machine, shell of a worker."""
    id: str = ""
    """Rollout of a shell."""
    instance: str = ""
    """instance is the instance of the worker that has the rollout of a shell."""
    by: str = ""
    """Name of a shell's operator, for people; it is not checked."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class LineEnd:
    """LineEnd is the body of the last message of one side of a line, or of a refusal."""

    v: int = field(default=1, metadata=wire(keep=True))
    reason: str = ""
    """reason is the reason of a refusal or an abort; empty after a regular end."""
    status: int = 0
    """Exit status of the machine's process."""
    text: str = ""
    """For people."""

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Enroll:
    """Enroll asks that a host becomes a machine. The host sends it again to learn what became of it."""

    v: int = field(default=1, metadata=wire(keep=True))
    machine: str = field(default="", metadata=wire(keep=True, required=True))
    """The name that the host wants to have."""
    key: str = field(default="", metadata=wire(keep=True, required=True))
    """Public part of its nkey; the seed stays on the host."""
    host: str = ""
    system: str = ""
    """Such as linux/amd64."""
    version: str = ""
    check: bool = False
    """Check asks only whether the key is that of the machine now."""
    proof: bytes = field(default=b"", metadata=wire(keep=True))
    """proof is the key's signature of the lines "turngate enroll", machine, key, host, system and version, with a
    line feed between two of them.
    """

    def __repr__(self) -> str:
        return brief(self)


@dataclass(slots=True, kw_only=True)
class Enrolled:
    """Enrolled answers an Enroll. All hosts that enroll may hear it, so that it names none."""

    v: int = field(default=1, metadata=wire(keep=True))
    state: str = field(default="", metadata=wire(keep=True, required=True))
    text: str = ""
    """Of an invalid request: the reason, for people."""
    interval_ms: int = 0
    """Least time until the host may ask again; in milliseconds."""
    left_ms: int = 0
    """Time until the request expires; in milliseconds."""

    def __repr__(self) -> str:
        return brief(self)
