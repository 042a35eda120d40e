"""Contexts of the nats command: servers and credentials by name."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ..errors import InvalidError

_OTHER = (
    "token", "user", "password", "nsc", "cert", "key", "ca", "user_jwt", "user_seed",
    "jetstream_domain", "jetstream_api_prefix", "socks_proxy", "tls_first",
)  # fmt: skip
"""Fields of contexts that this client does not use."""


_ROLE = re.compile(r"(ops|admin|(trainer|worker)-\w+)\.nk")
"""Names of credentials in the folder of a server."""


def read(name: str, role: str) -> tuple[str, str | None]:
    """Return the URL of a context's server, and the file with the credentials of a role; None: there is none.

    A credential in the folder that a server has made stands for that of the role there, such as trainer-local or admin.

    Contexts are files in nats/context, in the folder that XDG_CONFIG_HOME names, by default ~/.config.

    Raises:
        InvalidError: There is no such context, or it needs something that this client does not support.
    """
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    folder = Path(home, "nats", "context")
    path = folder / f"{name}.json"
    if not name or Path(name).name != name:
        raise InvalidError("context", name, f"want the name of a file in {folder}, without .json")
    try:
        fields = json.loads(path.read_text())
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
        raise InvalidError("context", name, f"there is no {path}; contexts are: {known}") from None
    except (OSError, ValueError) as e:
        raise InvalidError("context", name, f"{path} cannot be read: {e}") from None
    if not isinstance(fields, dict) or not all(isinstance(fields.get(f, ""), str) for f in ("url", "creds", "nkey")):
        raise InvalidError("context", name, f"{path} must be a JSON object whose url, creds and nkey are texts")
    other = [field for field in _OTHER if fields.get(field)]
    if other:
        raise InvalidError("context", name, f"{path} has {', '.join(other)}: want url, and creds or nkey")
    url, creds, nkey = (fields.get(field, "") for field in ("url", "creds", "nkey"))
    if not url or (creds and nkey):
        raise InvalidError("context", name, f"{path}: want url, and one of creds and nkey")
    if not creds and not nkey:
        return url, None
    file = Path(creds or nkey).expanduser()
    beside = file.with_name(f"{role}.nk")
    return url, str(beside if _ROLE.fullmatch(file.name) and beside.exists() else file)
