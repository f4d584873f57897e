"""httpx without its own command line, which takes 40 ms to load: a seventh of what a command may start in."""

import sys

# None: not to be imported. httpx then does without, as where its extra `cli` is not installed.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

import httpx  # noqa: E402

__all__ = ["httpx"]
