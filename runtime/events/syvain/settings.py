"""Which key goes to which Metrics host, found where the public clients find it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import orjson

from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT_HOST", "MetricsSettings", "metrics_settings"]

DEFAULT_HOST = "https://metrics.041.io"
_PREFIXES = ("O41_METRICS_", "SYVAIN_METRICS_")
_LOGINS = ("o41-metrics", "syvain-metrics")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Where Metrics is, and the organisation's key for it."""

    host: str
    api_key: str = field(repr=False)


def metrics_settings(env: Mapping[str, str]) -> MetricsSettings:
    """Return the settings from `env`, else from the login that the public command line saved.

    `O41_METRICS_API_KEY` and `O41_METRICS_HOST` come before their older `SYVAIN_METRICS_` names. A key goes
    only to the host that it belongs to: one from the environment to the environment's host (unset:
    https://metrics.041.io), a saved one to the host that it was saved for.

    Raises:
        Rejected: there is no key, the host is no URL, or the saved key belongs to another host.
    """
    key, host = _variable(env, "API_KEY"), _variable(env, "HOST")
    if key:
        return MetricsSettings(_origin(host or DEFAULT_HOST, "the Metrics host"), _sendable(key))
    path = _login_path(env)
    saved_host, saved_key = _read_login(path)
    saved = _origin(saved_host or DEFAULT_HOST, f"the host in {path}")
    if host and _origin(host, "the Metrics host") != saved:
        raise Rejected(
            f"the key saved in {path} belongs to {saved}, and the Metrics host is {host}:"
            " set O41_METRICS_API_KEY to a key of that host, or unset O41_METRICS_HOST"
        )
    return MetricsSettings(saved, _sendable(saved_key))


def _variable(env: Mapping[str, str], name: str) -> str:
    return next((value for prefix in _PREFIXES if (value := env.get(prefix + name, "").strip())), "")


def _login_path(env: Mapping[str, str]) -> Path:
    configured = Path(env.get("XDG_CONFIG_HOME", "").strip() or "unset")
    home = Path(env.get("HOME", "").strip() or Path.home())
    root = configured if configured.is_absolute() else home / ".config"
    paths = [root / name / "auth.json" for name in _LOGINS]
    return next((path for path in paths if path.exists()), paths[0])


def _read_login(path: Path) -> tuple[str, str]:
    try:
        login: Any = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise Rejected(
            "there is no key for Metrics: set O41_METRICS_API_KEY (and O41_METRICS_HOST, unless it is"
            f" {DEFAULT_HOST}), or log in so that {path} exists; for the stack of this machine,"
            ' eval "$(slugline env)" sets both'
        ) from error
    except (OSError, orjson.JSONDecodeError) as error:
        raise Rejected(f"the Metrics login {path} cannot be read: {error}: log in again") from error
    key = login.get("apiKey") if isinstance(login, dict) else None
    host = login.get("host", "") if isinstance(login, dict) else None
    if not isinstance(key, str) or not key.strip() or not isinstance(host, str):
        raise Rejected(f"the Metrics login {path} must hold apiKey and host as text: log in again")
    return host.strip(), key.strip()


def _sendable(key: str) -> str:
    if not re.fullmatch(r"[!-~]+", key):
        raise Rejected("the Metrics API key must be printable ASCII without spaces: copy it again")
    return key


def _origin(text: str, what: str) -> str:
    """Return an http or https URL without a slash at its end; a path in front of the API is kept."""
    url = text if "://" in text else f"https://{text}"
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or re.search(r"[^!-~]|[?#@\\]", url):
        raise Rejected(f"{what} must be a URL like http://127.0.0.1:4300 or {DEFAULT_HOST}, got {text!r}")
    return url.rstrip("/")
