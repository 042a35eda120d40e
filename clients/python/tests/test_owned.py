"""Files of other users."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turngate import InvalidError, owned
from turngate.link import credentials


def test_files_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "admin.nk"
    key.write_text("SUA")
    (tmp_path / "link").symlink_to(key)
    owned.check(key)
    owned.check(tmp_path / "none")
    if os.geteuid() == 0:  # only root can make a file of another user
        os.chown(key, 1000, 1000)
        monkeypatch.setattr(os, "geteuid", lambda: 2000)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: key.stat().st_uid + 1)
    for path in (key, tmp_path / "link"):
        with pytest.raises(InvalidError, match="want a readable file of this user: it belongs to the user"):
            credentials(str(path))
