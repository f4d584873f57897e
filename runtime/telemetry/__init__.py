"""The numbers that a run writes while it runs: written, followed, kept, laid out, judged."""

from runtime.telemetry.writer import Telemetry

__all__ = ["Telemetry"]
