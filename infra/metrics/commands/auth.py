"""`syvain-metrics auth`: which key is used, saved where the public clients look."""

from __future__ import annotations

import os
import sys
import time
from typing import Annotated

import typer

from infra.client.errors import Rejected
from infra.client.output import print_fields, print_json, say
from infra.metrics.commands._common import Json, connect

__all__ = ["app"]

app = typer.Typer(help="Save, show and remove the key that commands and clients use.")


@app.command()
def login(
    host: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server. Unset: O41_METRICS_HOST, else the public one."),
    ] = None,
) -> None:
    """Read a key from a prompt or from standard input, check it, and save it."""
    from infra.login_files import config_home, write_logins
    from infra.metrics.api import Api
    from runtime.events.syvain.settings import metrics_settings

    env = dict(os.environ)
    names = [f"{prefix}_METRICS_{name}" for prefix in ("O41", "SYVAIN") for name in ("API_KEY", "HOST")]
    given = host or next((env[name] for name in names if name.endswith("HOST") and env.get(name)), "")
    for name in names:
        env.pop(name, None)
    settings = metrics_settings(env | {"O41_METRICS_API_KEY": _read_key(), "O41_METRICS_HOST": given})
    with Api(settings) as api:
        found = api.get("auth/status")
    if found["auth"]["kind"] != "api_key":
        raise Rejected("that is the token of one experiment, not a key: give one that key create printed")
    written = write_logins(
        config_home(os.environ),
        key=settings.api_key,
        host=settings.host,
        organisation_id=str(found["organization"]["id"]),
        now_ms=time.time_ns() // 1_000_000,
    )
    for path in written:
        say(f"saved in {path}")
    if any(os.environ.get(name) for name in names if name.endswith("API_KEY")):
        say(
            "a key in the environment (O41_METRICS_API_KEY, SYVAIN_METRICS_API_KEY) goes before the saved one"
        )


@app.command()
def status(*, as_json: Json = False) -> None:
    """Say which server is used, for which organisation, and whether it takes the key."""
    with connect() as api:
        found = api.get("auth/status")
    fields = {
        "host": api.host,
        "organisation": found["organization"]["name"],
        "organisation_id": found["organization"]["id"],
        "kind": found["auth"]["kind"],
        "role": found["auth"].get("role"),
    }
    if as_json:
        print_json(fields)
    else:
        print_fields({name.replace("_", " "): value for name, value in fields.items()})


@app.command()
def logout() -> None:
    """Remove the saved key. The key itself stays good: key revoke ends it."""
    from infra.login_files import config_home, login_paths

    for path in login_paths(config_home(os.environ)):
        if path.exists():
            path.unlink()
            say(f"removed {path}")


def _read_key() -> str:
    if sys.stdin.isatty():
        import getpass

        text = getpass.getpass("API key: ")
    else:
        text = sys.stdin.readline()
    if not text.strip():
        raise Rejected("no key was given: type it at the prompt, or send it to standard input")
    return text.strip()
