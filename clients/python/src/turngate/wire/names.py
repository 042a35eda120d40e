"""Ids, keys, subjects, streams and buckets of the protocol."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from ..errors import InvalidError

LANES = 4
"""Priorities of requests; 0 is the most urgent."""

DEFAULT_LANE = 2

DEFAULT_SHARD = "0"
"""Shard of a request, and of a process, without one."""

_TRAINER = re.compile(r"[a-z0-9_]{1,20}", re.ASCII)
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,40}", re.ASCII)
_COUNT = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)


def check_trainer(name: str) -> str:
    """Return a trainer's name.

    Raises:
        InvalidError: The name is not valid.
    """
    if not _TRAINER.fullmatch(name) or name == "requests":
        raise InvalidError("trainer", name, "want 1 to 20 characters of a-z, 0-9, _, and not requests")
    return name


def check_token(field: str, name: str) -> str:
    """Return a name that is one token of a subject, such as a shard.

    Raises:
        InvalidError: The name is not valid.
    """
    if not _TOKEN.fullmatch(name):
        raise InvalidError(field, name, "want 1 to 40 characters of A-Z, a-z, 0-9, _ and -")
    return name


def check_id(rollout: str, field: str = "id") -> str:
    """Return the id of a rollout, <trainer>-<suffix>.

    Raises:
        InvalidError: The id is not valid.
    """
    check_token(field, rollout)
    trainer, _, suffix = rollout.partition("-")
    if not suffix or not _TRAINER.fullmatch(trainer) or trainer == "requests":
        raise InvalidError(field, rollout, 'want "<trainer>-<suffix>"')
    return rollout


def new_id(trainer: str, suffix: str) -> str:
    """Join a trainer's name and a suffix of any form. A suffix that is no valid token is replaced by its hash.

    Raises:
        InvalidError: The trainer's name is not valid, or the suffix is empty.
    """
    check_trainer(trainer)
    if not suffix:
        raise InvalidError("id", suffix, "the suffix must not be empty")
    rollout = f"{trainer}-{suffix}"
    if _TOKEN.fullmatch(rollout):
        return rollout
    hashed = base64.b32encode(hashlib.sha256(suffix.encode()).digest()).decode().lower()
    return f"{trainer}-{hashed[: min(26, 40 - len(trainer) - 1)]}"


def trainer_of(rollout: str) -> str:
    """Return the trainer's name that an id begins with."""
    return rollout.partition("-")[0]


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """Key names one model call, or one tool call, of one execution of a rollout."""

    rollout: str
    attempt: int
    call: int

    def __str__(self) -> str:
        return f"{self.rollout}/{self.attempt}/{self.call}"


def requests(lane: int, trainer: str) -> str:
    return f"rollout.requests.p{lane}.{trainer}"


def queue(trainer: str) -> str:
    """Return the stream of a trainer's requests."""
    return f"REQ_{trainer}"


def parked(rollout: str) -> str:
    """Return the subject of a rollout's parked request, with wildcards for its lane and class."""
    return f"parked.{trainer_of(rollout)}.*.*.{rollout}"


def records(trainer: str) -> str:
    """Return the stream of the states and results of a trainer's rollouts."""
    return f"REC_{trainer}"


def state(rollout: str) -> str:
    return f"record.{trainer_of(rollout)}.{rollout}.state"


def request(rollout: str) -> str:
    """Return the subject of the copy of a request that its worker keeps."""
    return f"record.{trainer_of(rollout)}.{rollout}.request"


def result(rollout: str) -> str:
    return f"record.{trainer_of(rollout)}.{rollout}.result"


def results_of(trainer: str) -> str:
    return f"record.{trainer}.*.result"


def rollout_of(record: str) -> str:
    """Return the rollout of a record's subject; empty if it is none."""
    tokens = record.split(".")
    return tokens[2] if len(tokens) == 4 and tokens[0] == "record" else ""


def tasks_bucket(trainer: str) -> str:
    """Return the bucket of task bundles and large answers."""
    return f"tasks_{trainer}"


def artifacts_bucket(trainer: str) -> str:
    """Return the bucket of artifacts and large calls."""
    return f"artifacts_{trainer}"


def object_stream(bucket: str) -> str:
    return f"OBJ_{bucket}"


def object_meta(bucket: str, name: str) -> str:
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def object_chunks(bucket: str, nuid: str) -> str:
    return f"$O.{bucket}.C.{nuid}"


def calls(trainer: str, shard: str) -> str:
    """Return the subject of the model calls of a shard, or of all shards."""
    return f"rollout.*.llm.{trainer}.{shard}.*.*" if shard else f"rollout.*.llm.{trainer}.>"


def tools(trainer: str, shard: str) -> str:
    """Return the subject of the tool calls of a shard, or of all shards."""
    return calls(trainer, shard).replace(".llm.", ".tool.")


def verifications(trainer: str, shard: str) -> str:
    """Return the subject of the verifications of a shard, or of all shards."""
    return calls(trainer, shard).replace(".llm.", ".verify.")


def parse_call(subject: str, trainer: str) -> Key | None:
    """Return the key in the subject of a call of any kind; None if the subject is malformed or foreign."""
    tokens = subject.split(".")
    if len(tokens) != 7 or tokens[0] != "rollout" or tokens[2] not in ("llm", "tool", "verify") or tokens[3] != trainer:
        return None
    rollout, attempt, call = tokens[1], tokens[5], tokens[6]
    if trainer_of(rollout) != trainer or not _TOKEN.fullmatch(rollout):
        return None
    if not _COUNT.fullmatch(attempt) or not _COUNT.fullmatch(call):
        return None
    return Key(rollout, int(attempt), int(call))


def is_gate_inbox(subject: str, trainer: str) -> bool:
    """Report whether frames of this trainer may be published on a reply subject."""
    prefix = f"_INBOX.gate.{trainer}."
    rest = subject[len(prefix) :]
    return subject.startswith(prefix) and rest.count(".") == 2 and not any(c in rest for c in "*> ")


ADMIN_INBOX = "_INBOX.admin.admin"
"""Prefix of the inboxes of people with the admin's credential."""


def inbox(trainer: str) -> str:
    """Return the prefix of the trainer's own inboxes, the only one that its permissions allow."""
    return f"_INBOX.trainer.{trainer}"


def trainer_subject(trainer: str, what: str) -> str:
    """Return trainer.<trainer>.<what>, with what one of open, results, events, cancel, hold and fleet."""
    return f"trainer.{trainer}.{what}"
