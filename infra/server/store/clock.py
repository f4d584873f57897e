"""The server's clock."""

import time

__all__ = ["now_ms"]


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000
