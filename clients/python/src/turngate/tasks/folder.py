"""Files of a task's folder.

The author of a task may be another person, so a link that leaves the folder, a FIFO, a device and a file over its bound
are errors, and none of them delays the reader.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def has(root: Path, name: str) -> bool:
    """Report whether the folder has an entry of this name, of any kind."""
    try:
        parent = (root / name).parent.resolve(strict=True)
        parent.relative_to(root.resolve(strict=True))
        (parent / Path(name).name).lstat()
    except (OSError, ValueError, RuntimeError):
        return False
    return True


def read(root: Path, name: str, most: int) -> bytes:
    """Return the content of a regular file of at most most bytes.

    Raises:
        OSError: There is no such file.
    """
    with open_regular(root, name) as file:
        data = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else b""
        if len(data) > most or os.fstat(file.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"it has more than {most} bytes")
    return data


def open_regular(root: Path, name: str) -> BinaryIO:
    """Open a regular file for reading. Links inside the folder are followed.

    Raises:
        OSError: There is no such file.
    """
    try:
        at = (root / name).resolve(strict=True)
        at.relative_to(root.resolve(strict=True))
    except ValueError:
        raise OSError(errno.EXDEV, "it is a link that leaves the task's folder: want a file inside") from None
    except RuntimeError:  # a loop of links, before Python 3.13
        raise OSError(errno.ELOOP, "it is a link to itself") from None
    _check(at.lstat().st_mode)  # opening a device can have effects
    file = os.fdopen(os.open(at, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC), "rb")
    try:
        _check(os.fstat(file.fileno()).st_mode)
    except OSError:
        file.close()
        raise
    return file


def _check(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kind = "something else"
    if stat.S_ISDIR(mode):
        kind = "a folder"
    elif stat.S_ISFIFO(mode):
        kind = "a FIFO"
    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        kind = "a device"
    elif stat.S_ISSOCK(mode):
        kind = "a socket"
    raise OSError(errno.EINVAL, f"it is {kind}: want a regular file")
