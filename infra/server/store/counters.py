"""What the store counts since it was opened, for whoever runs the server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Written by the writer's thread alone, read by any.

    They count what was applied, a moment before it is durable; what a failed commit undid is counted too.
    """

    points: int = 0
    """Points stored."""
    repeated: int = 0
    """Points that were stored before, sent again."""
    partitions_refused: int = 0
    """Points refused because their partition would have been one too many of its metric."""
