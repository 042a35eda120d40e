"""Bundles: the files of a task as a tar.zst."""

from __future__ import annotations

import io
import os
import posixpath
import tarfile
from pathlib import Path

import zstandard

TOPS = ("environment", "solution", "steps", "tests")


def pack(directory: Path) -> bytes:
    """Return a task's folders as a tar.zst. The same files give the same bytes: without times and owners.

    Raises:
        ValueError: An entry is neither a file, a folder nor a link inside the bundle.
    """
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for top in TOPS:
            if (directory / top).exists():
                _add(tar, directory, directory / top)
    return zstandard.ZstdCompressor().compress(out.getvalue())


def _add(tar: tarfile.TarFile, root: Path, path: Path) -> None:
    name = path.relative_to(root).as_posix()
    status = path.lstat()
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
            _add(tar, root, path / entry)
    elif path.is_file():
        info.size = status.st_size
        with path.open("rb") as f:
            tar.addfile(info, f)
    else:
        raise ValueError(f"{name} is neither a file, a folder nor a link")
