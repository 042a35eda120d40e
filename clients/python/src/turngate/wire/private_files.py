"""Files of other users, who could put keys or states there."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def check(path: str | os.PathLike[str]) -> None:
    """Refuse a file that belongs neither to this process's user nor to root. For root, the folder's owner is one more.

    Raises:
        OSError: It is another user's, or cannot be described.
    """
    at = Path(path)
    own = {0, os.geteuid()}
    try:
        if os.geteuid() == 0:
            own.add(at.absolute().parent.stat().st_uid)
        owners = [at.lstat().st_uid, at.stat().st_uid]  # of a link, and of its target
    except FileNotFoundError:
        return
    for owner in owners:
        if owner not in own:
            raise OSError(errno.EPERM, f"it belongs to the user {owner}")
