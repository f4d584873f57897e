"""`syvain-metrics server`: run the Metrics server, and keep its data."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(help="Start the server, back it up, restore it, bring its tables up to date.")
