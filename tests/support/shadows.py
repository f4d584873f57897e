"""A folder that shadows our packages: what a user's `PYTHONPATH` may hold."""

from __future__ import annotations

from pathlib import Path

__all__ = ["shadows"]

ROOT = Path(__file__).parents[2]


def shadows(folder: Path) -> str:
    """Make packages called like ours in `folder`, none of which may ever be imported; return the folder."""
    for name in ("flows", "infra", "runtime"):
        package = folder / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('shadowed')\n")
    return str(folder)
