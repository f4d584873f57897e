"""`div secret`: what commands need and nobody may read, kept in Prefect."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from flows.div.show import Json  # noqa: TC001 - Typer reads the annotations
from infra.client.errors import Rejected
from infra.client.output import print_json, print_table, say

__all__ = ["app"]

app = typer.Typer(help="Keep what commands need and nobody may read.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The variable that holds it, in capital letters: HF_TOKEN.")
]


@app.command(name="set")
def set_(name: Name) -> None:
    """Keep a secret; its value comes from a prompt that does not show it, or from standard input."""
    from flows.secret_names import check_secret_name
    from flows.stack import use_stack
    from runtime.telemetry.masking import check_secret

    check_secret_name(name)
    value = _value(name)
    check_secret(name, value)
    use_stack()
    from flows.secret_values import set_secret

    set_secret(name, value)
    say(f"secret: {name} is set")


@app.command(name="list")
def list_(*, as_json: Json = False) -> None:
    """List the names of the secrets, and when each was set; never a value."""
    from flows.stack import use_stack

    use_stack()
    from flows.secret_values import list_secrets

    found = {name: f"{updated:%Y-%m-%d %H:%M:%SZ}" for name, updated in list_secrets().items()}
    if as_json:
        print_json([{"name": name, "set": when} for name, when in found.items()])
        return
    print_table(("NAME", "SET"), found.items())


@app.command()
def remove(name: Name) -> None:
    """Forget a secret. Runs that ask for it can no longer start."""
    from flows.secret_names import check_secret_name
    from flows.stack import use_stack

    check_secret_name(name)
    use_stack()
    from flows.secret_values import remove_secret

    remove_secret(name)
    say(f"secret: {name} is removed")


def _value(name: str) -> str:
    """Read the value; of standard input all of it, without the line feed that ends it."""
    if sys.stdin.isatty():
        return str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    try:
        text = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise Rejected(f"the value of {name} is no UTF-8 text: encode it, for example as Base64.") from None
    return text.removesuffix("\n").removesuffix("\r")
