"""What a run is: the metadata and the description that its `open` carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.errors import Rejected
from runtime.events import limits
from runtime.events.kinds import Json, Open, plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Identity", "Source", "fit_metadata"]


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the manifest: its path as the manifest records it, its SHA-256 in hex."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The whole identity of a run, the same in a file, a pipe and Metrics.

    `variant` unset means that none was selected. `devices` holds CUDA ordinals in rank order; on the CPU
    it is empty.
    """

    sexpgpu: str
    entry: str
    variant: str | None
    knobs: Mapping[str, Json]
    run: Mapping[str, Json]
    sources: Sequence[Source]
    device: str
    devices: Sequence[int] = ()

    def metadata(self) -> dict[str, Json]:
        """Return the metadata in the order of the documented table, within 64 KiB.

        Raises:
            Rejected: it passes 64 KiB even without its sources.
        """
        return fit_metadata(
            {
                "sexpgpu": self.sexpgpu,
                "entry": self.entry,
                "variant": self.variant,
                "knobs": self.knobs,
                "run": self.run,
                "sources": [{"path": source.path, "sha256": source.sha256} for source in self.sources],
                "device": self.device,
                "devices": list(self.devices),
            }
        )

    def description(self, slug: str) -> str:
        """Return `<slug>: <steps> steps of <entry>`."""
        return f"{slug}: {self.run['steps']} steps of {self.entry}"

    def open(self, slug: str, *, ts_ms: int) -> Open:
        """Return the event that opens an attempt of this run. Raises `Rejected` as `metadata` does."""
        return Open(ts_ms, slug, self.description(slug), self.metadata())


def fit_metadata(metadata: Mapping[str, Json]) -> dict[str, Json]:
    """Return the metadata of an `open` in at most 64 KiB of compact JSON.

    Above that, `sources` becomes `<n> files, too large to record` and the rest survives.

    Raises:
        Rejected: it is still larger, or is no JSON (a lone surrogate, an integer beyond 64 bits).
    """
    fitted = {key: plain(value) for key, value in metadata.items()}
    try:
        if len(limits.compact(fitted)) > limits.MAX_METADATA_BYTES:
            sources = fitted.get("sources")
            fitted["sources"] = (
                f"{len(sources) if isinstance(sources, list) else 0} files, too large to record"
            )
        if len(limits.compact(fitted)) <= limits.MAX_METADATA_BYTES:
            return fitted
    except ValueError as error:
        raise Rejected(f"the run's identity cannot be recorded: {error}") from error
    size = len(limits.compact(fitted))
    sizes = sorted(((len(limits.compact(value)), key) for key, value in fitted.items()), reverse=True)
    largest = ", ".join(f"{key} {bytes_:,}" for bytes_, key in sizes[:3])
    raise Rejected(
        f"the run's identity takes {size:,} bytes of JSON without its sources, Metrics takes"
        f" {limits.MAX_METADATA_BYTES:,}; the largest parts are {largest}: make the knobs smaller"
    )
