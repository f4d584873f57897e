"""The files in which the public clients look for a key, written by the server's first start and a login."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["config_home", "login_paths", "write_login", "write_logins", "write_private"]

_CLIENTS = ("syvain-metrics", "o41-metrics")


def config_home(env: Mapping[str, str]) -> Path:
    """Return `XDG_CONFIG_HOME`, else `~/.config`: where the clients look. A relative path counts as unset."""
    configured = Path(env.get("XDG_CONFIG_HOME", "").strip() or "unset")
    home = Path(env.get("HOME", "").strip() or Path.home())
    return configured if configured.is_absolute() else home / ".config"


def login_paths(root: Path) -> list[Path]:
    """Return the clients' files below a configuration directory."""
    return [root / client / "auth.json" for client in _CLIENTS]


def write_logins(root: Path, *, key: str, host: str, organisation_id: str, now_ms: int) -> list[Path]:
    """Write the files, which only their owner can read, and return them."""
    written = login_paths(root)
    for path in written:
        write_login(path, key=key, host=host, organisation_id=organisation_id, now_ms=now_ms)
    return written


def write_login(path: Path, *, key: str, host: str, organisation_id: str, now_ms: int) -> None:
    """Write one client's file, which only its owner can read."""
    content = {"apiKey": key, "host": host, "orgId": organisation_id, "loginAt": now_ms}
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, json.dumps(content, indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step; at no moment can anybody else read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
