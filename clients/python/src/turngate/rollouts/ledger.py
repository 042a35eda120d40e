"""The state file of a trainer: its open rollouts, one JSON object a line, as Go's trainer writes it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import secrets
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidError, StateFileError
from ..schema import Request, codec
from ..wire import names
from ..wire import private_files as owned
from ..wire.link import log


@dataclass(slots=True)
class Submitted:
    """Submitted is a rollout without a delivered result."""

    request: Request
    lane: int = 2
    seq: int = 0  # sequence of its message in the queue
    attempt: int = 0  # the highest seen
    at: float = 0.0  # monotonic time of the submission; 0: by another process
    cancel: str | None = None  # reason of a cancel


class Ledger:
    """Ledger keeps the open rollouts. Without a path it keeps nothing."""

    def __init__(self, path: str | os.PathLike[str] | None, shard: str = names.DEFAULT_SHARD) -> None:
        self._shard = shard  # of this process
        self._path = Path(path) if path is not None else None
        self._file: io.FileIO | None = None
        self._lock = threading.Lock()
        self.owner = ""  # random name of the file; empty: there is no file

    def open(self) -> dict[str, Submitted]:
        """Lock the file, read it, and rewrite it without the ended rollouts.

        Raises:
            StateFileError: Another process has the file, it cannot be opened, or its content is damaged.
        """
        if self._path is None:
            return {}
        try:
            return self._open(self._path)
        except OSError as e:
            raise StateFileError(f"the state file {self._path}: {e.strerror}") from e

    def _open(self, path: Path) -> dict[str, Submitted]:
        owned.check(path)
        file = os.fdopen(os.open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600), "r+b", buffering=0)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateFileError(f"{path} is in use by another process") from None
            found, self.owner, shard = self._load_newest(file)
            self._move(found, shard)
            self.owner = self.owner or secrets.token_hex(8)
            self._rewrite(file, found)
        except BaseException:
            file.close()
            raise
        self._file = file
        return found

    def _move(self, found: dict[str, Submitted], before: str) -> None:
        """Give rollouts the shard of this process if they have that of the one before."""
        moved = [s for s in found.values() if (s.request.shard or names.DEFAULT_SHARD) == before != self._shard]
        for s in moved:
            s.request.shard = self._shard
        if moved:
            log.warning(
                "the state file is of a process with the shard %s: its %d open rollouts have the shard %s from now on, "
                "but the running ones send their calls to that shard", before, len(moved), self._shard,
            )  # fmt: skip

    def _load_newest(self, file: io.FileIO) -> tuple[dict[str, Submitted], str, str]:
        """Read the whole copy that an interrupted rewrite has left, or else the file."""
        assert self._path is not None
        copy = self._path.with_name(self._path.name + ".new")
        if not copy.exists():
            return _load(file.read(), self._path)
        return _load(copy.read_bytes(), copy)

    def _rewrite(self, file: io.FileIO, found: dict[str, Submitted]) -> None:
        assert self._path is not None
        lines = _line({"owner": self.owner, "shard": self._shard}) + b"".join(
            _line(submit_entry(s)) for s in found.values()
        )
        copy = self._path.with_name(self._path.name + ".new")
        # The copy must be whole on disk before the old content is dropped; the lock is on the old file.
        part = copy.with_name(copy.name + ".part")
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as side:
            side.write(lines)
            side.flush()
            os.fsync(side.fileno())
        part.rename(copy)
        directory = os.open(copy.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        file.truncate(0)
        _write(file, lines)
        os.fsync(file.fileno())
        copy.unlink()

    def write(self, entries: Iterable[dict[str, Any]], durable: bool = False) -> None:
        """Append entries, all or none. Durable ones are on disk when it returns, and others do not wait for that.

        Raises:
            StateFileError: They are not in the file, or not surely on disk.
        """
        if self._file is None:
            return
        lines = b"".join(map(_line, entries))
        with self._lock:
            size = 0
            try:
                size = os.fstat(self._file.fileno()).st_size
                _write(self._file, lines)
                number = self._file.fileno()
            except OSError as e:
                with contextlib.suppress(OSError):
                    self._file.truncate(size)  # half a line would make the file unreadable
                raise self._broken(e) from e
        if durable:
            try:
                os.fsync(number)
            except OSError as e:
                self._take_back(size, size + len(lines))
                raise self._broken(e) from e

    def _take_back(self, begin: int, end: int) -> None:
        """Remove the last entries, which begin and end there, unless others were appended meanwhile."""
        with self._lock, contextlib.suppress(OSError):
            if self._file is not None and os.fstat(self._file.fileno()).st_size == end:
                self._file.truncate(begin)

    def _broken(self, e: OSError) -> StateFileError:
        return StateFileError(f"the state file {self._path} cannot be written: {e.strerror}")

    def note(self, entries: Iterable[dict[str, Any]]) -> None:
        """Append entries that a restart can do without."""
        try:
            self.write(entries)
        except StateFileError as e:
            log.warning("%s; after a restart the trainer may get a result again, or submit a request again", e)

    def close(self) -> None:
        """Unlock the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def submit_entry(s: Submitted) -> dict[str, Any]:
    """Return the entry of a submission."""
    entry: dict[str, Any] = {"submit": codec.to_json(s.request)}
    for name, value in (("lane", s.lane), ("seq", s.seq), ("attempt", s.attempt)):
        if value:
            entry[name] = value
    return entry


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _write(file: io.FileIO, data: bytes) -> None:
    at = 0
    while at < len(data):
        at += file.write(data[at:]) or 0


def _load(data: bytes, path: Path) -> tuple[dict[str, Submitted], str, str]:
    found: dict[str, Submitted] = {}
    owner, shard = "", names.DEFAULT_SHARD
    for number, line in enumerate(io.BytesIO(data), 1):
        if not line.endswith(b"\n"):
            break  # it was never confirmed
        try:
            entry = json.loads(line)
            if "owner" in entry:
                owner, shard = str(entry["owner"]), str(entry.get("shard", shard))
            elif "submit" in entry:
                request = codec.from_json(Request, entry["submit"])
                found[request.id] = Submitted(
                    request, entry.get("lane", 0), entry.get("seq", 0), entry.get("attempt", 0)
                )
            elif entry.get("done"):
                found.pop(entry["id"], None)
            elif entry["id"] in found:
                s = found[entry["id"]]
                s.seq, s.attempt = max(s.seq, entry.get("seq", 0)), max(s.attempt, entry.get("attempt", 0))
        except (ValueError, KeyError, TypeError, AttributeError, InvalidError) as e:
            raise StateFileError(f"{path}, line {number}: {e}") from None
    return found, owner, shard
