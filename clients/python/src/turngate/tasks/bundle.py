"""Bundles: the files of a task as a tar.zst."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from dataclasses import dataclass
from pathlib import Path

import zstandard

from . import folder

TOPS = ("environment", "solution", "steps", "tests")

MAX_FILES = 100_000
MAX_SIZE = 512 << 20
"""Largest size of a task's files together, in bytes: workers refuse a larger bundle."""


def pack(directory: Path) -> bytes:
    """Return a task's folders as a tar.zst. The same files give the same bytes: without times and owners.

    Raises:
        ValueError: An entry is neither a file, a folder nor a link inside the bundle, or the files are too large.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        left = _Left(MAX_FILES, MAX_SIZE)
        for top in TOPS:
            if folder.has(directory, top):
                if (directory / top).is_symlink() or not (directory / top).is_dir():
                    raise ValueError(f"{top} is not a folder")
                _add(tar, directory, directory / top, left)
    return zstandard.ZstdCompressor().compress(out.getvalue())


@dataclass(slots=True)
class _Left:
    files: int
    size: int


def _add(tar: tarfile.TarFile, root: Path, path: Path, left: _Left) -> None:
    name = path.relative_to(root).as_posix()
    status = path.lstat()
    left.files -= 1
    if left.files < 0:
        raise ValueError(f"more than {MAX_FILES} files")
    info = tarfile.TarInfo(name)
    info.mode = status.st_mode & 0o777
    if path.is_symlink():
        info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), info.linkname))
        if posixpath.isabs(info.linkname) or target.split("/")[0] == "..":
            raise ValueError(f"the link {name!r} points to {info.linkname!r}, out of the bundle")
        tar.addfile(info)
    elif path.is_dir():
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
        for entry in sorted(os.listdir(path)):  # noqa: PTH208 - names are sorted as in other clients
            _add(tar, root, path / entry, left)
    else:
        try:
            file = folder.open_regular(root, name)
        except OSError as e:
            raise ValueError(f"{name}: {e.strerror}") from None
        with file:
            info.size = os.fstat(file.fileno()).st_size
            left.size -= info.size
            if left.size < 0:
                most = f"the files of a task have at most {MAX_SIZE} bytes together"
                raise ValueError(f"{name} has {info.size} bytes: {most}")
            tar.addfile(info, file)
