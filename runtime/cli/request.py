"""What one run is asked for: every flag of `sexpgpu run`, checked, in one frozen value."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from runtime.errors import Rejected
from runtime.events import limits

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from runtime.experiment.frontend import Loaded

__all__ = ["DEFAULT_NOTICE_S", "RunRequest", "check_location", "check_target", "read_request"]

DEFAULT_NOTICE_S = 20.0
"""Under the 30 seconds that Prefect gives a run that it cancels."""

MAX_NOTICE_S = 86_400.0
"""A day. The kernel's clocks of waiting end at 24 of them."""

METRICS_KEYS = ("O41_METRICS_API_KEY", "SYVAIN_METRICS_API_KEY")

BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One start of one run.

    An unset `variant`, `steps`, `eval_every` means the file's own. `slug` is always set; `slug_given` says
    whether the user or `div run` chose it. An unset `location` means that nothing is kept, no `metrics` that
    events go nowhere, no `telemetry` that there is no file for it, an unset `device` the GPU where there is
    one. `location` and `metrics` are as they were given; who opens them reads them.
    """

    file: Path
    variant: str | None = None
    knobs: Mapping[str, str]
    steps: int | None = None
    eval_every: int | None = None
    slug: str
    slug_given: bool = True
    folder: str | None = None
    location: str | None = None
    metrics: tuple[str, ...] = ()
    telemetry: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    devices: tuple[int, ...] = ()
    resume: Literal["auto", "never"] | int = "auto"
    notice_s: float = DEFAULT_NOTICE_S
    json: bool = False

    def load(self) -> Loaded:
        """Load the experiment file as asked.

        Raises:
            Rejected: a mistake in the file or in what was asked of it.
            Unavailable: a file that the experiment reads is missing on this host.
        """
        from runtime.experiment.frontend import load_experiment

        return load_experiment(
            self.file,
            variant=self.variant,
            knobs=self.knobs,
            steps=self.steps,
            eval_every=self.eval_every,
            device=self.device,
            devices=self.devices,
        )


def read_request(given: argparse.Namespace, environ: Mapping[str, str], *, now: datetime) -> RunRequest:
    """Return the checked request that the flags and the environment make; `now` (UTC) names an unnamed run.

    What no flag says, `div run` says in the environment: slug, location, Metrics. Flags win.

    Raises:
        Rejected: a value that its flag does not take, or flags that contradict each other.
    """
    for flag in ("file", "variant", "slug", "folder", "location"):
        _check_text(flag, getattr(given, flag))
    if given.diagnostics not in {None, "off"}:
        raise Rejected(f"--diagnostics must be off, got {given.diagnostics!r}: others are not taken yet")
    file = Path(given.file)
    slug, slug_source = _said(given.slug, "--slug", environ, "SLUGLINE_SLUG")
    location, location_source = _said(given.location, "--location", environ, "SLUGLINE_CHECKPOINTS")
    request = RunRequest(
        file=file,
        variant=given.variant,
        knobs=_knobs(given.knob, steps=given.steps, eval_every=given.eval_every),
        steps=_integer("--steps", given.steps, at_least=1),
        eval_every=_integer("--eval-every", given.eval_every, at_least=1),
        slug=_slug(slug, file, now, source=slug_source),
        slug_given=slug is not None,
        folder=given.folder,
        location=_location(location, source=location_source),
        metrics=_metrics(given.metrics, environ),
        telemetry=_telemetry(environ),
        device=_device(given.device),
        devices=_devices(given.devices, given.device),
        resume=_resume(given.resume),
        notice_s=_seconds("--notice", given.notice),
        json=given.json,
    )
    _check_together(request)
    return request


def _check_text(flag: str, text: str | None) -> None:
    name = "FILE" if flag == "file" else f"--{flag}"
    if text is None:
        return
    if not text.strip() or "\0" in text:
        raise Rejected(f"{name} must be text, not empty and without NUL, got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Rejected(f"{name} must be valid Unicode, got {text!a}") from None


def _knobs(pairs: Sequence[str], *, steps: str | None, eval_every: str | None) -> dict[str, str]:
    knobs: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if equals == "" or not name.isidentifier():
            raise Rejected(f"--knob takes name=value, got {pair!a}")
        if name in knobs:
            raise Rejected(f"the knob {name} is given twice, as {knobs[name]!a} and {value!a}")
        knobs[name] = value
    for name, flag, bound in (("steps", "--steps", steps), ("eval_every", "--eval-every", eval_every)):
        if bound is not None and name in knobs:
            raise Rejected(
                f"the knob {name} is given twice, by {flag} {bound} and by --knob {name}={knobs[name]}"
            )
    return knobs


def _integer(flag: str, text: str | None, *, at_least: int) -> int | None:
    if text is None:
        return None
    value = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1
    if not at_least <= value <= limits.MAX_STEP:
        raise Rejected(f"{flag} must be an integer from {at_least} to {limits.MAX_STEP}, got {text!a}")
    return value


def _said(flag: str | None, name: str, environ: Mapping[str, str], variable: str) -> tuple[str | None, str]:
    """Return what the flag says, else the variable, and which it was; an empty variable says nothing."""
    if flag is not None:
        return flag, name
    return environ.get(variable) or None, variable


def _slug(text: str | None, file: Path, now: datetime, *, source: str) -> str:
    if text is None:
        time = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03d}Z"
        return f"{limits.cut_units(file.stem, 150)}-{time}"
    try:
        limits.check_slug(text)
    except ValueError as error:
        raise Rejected(f"{source}: {error}") from error
    return text


def check_location(text: str, *, source: str) -> None:
    """Refuse what names neither a path nor a bucket; `source` is what the user wrote it as."""
    if "://" in text:
        scheme, _, rest = text.partition("://")
        bucket, _, prefix = rest.partition("/")
        if scheme != "s3" or not BUCKET.fullmatch(bucket) or "//" in prefix:
            raise Rejected(f"{source} must be a path or s3://bucket/prefix, got {text!r}")


def check_target(text: str, *, source: str) -> None:
    """Refuse what names no kind of target; `source` is what the user wrote it as."""
    kind, _, path = text.partition(":")
    if text not in {"stdout", "syvain"} and not (kind == "jsonl" and path.strip() and "\0" not in path):
        raise Rejected(f"{source} takes jsonl:PATH, stdout or syvain, got {text!a}")


def _location(text: str | None, *, source: str) -> str | None:
    if text is not None:
        check_location(text, source=source)
    return text


def _metrics(given: Sequence[str], environ: Mapping[str, str]) -> tuple[str, ...]:
    source = "--metrics" if given else "SEXPGPU_METRICS"
    targets = given or environ.get("SEXPGPU_METRICS", "").split()
    for target in targets:
        check_target(target, source=source)
    if not targets and environ.get("DIVERGENT_RUN") and any(environ.get(key) for key in METRICS_KEYS):
        return ("syvain",)
    return tuple(targets)


def _telemetry(environ: Mapping[str, str]) -> Path | None:
    text = environ.get("DIVERGENT_TELEMETRY_PATH")
    return Path(text).absolute() if text else None  # the file may change the working directory


def _device(text: str | None) -> Literal["cpu", "cuda"] | None:
    if text not in {None, "cpu", "cuda"}:
        raise Rejected(f"--device must be cpu or cuda, got {text!a}")
    return cast("Literal['cpu', 'cuda'] | None", text)


def _devices(text: str | None, device: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    if device == "cpu":
        raise Rejected(f"--devices names CUDA devices, got {text!a} with --device cpu: leave one of them out")
    if not re.fullmatch(r"[0-9]{1,4}(,[0-9]{1,4})*", text):
        raise Rejected(f"--devices must be ordinals of CUDA devices such as 0, got {text!a}")
    ordinals = tuple(int(part) for part in text.split(","))
    if len(ordinals) > 1:
        raise Rejected(f"--devices takes one device, got {text}: runs on several are not taken yet")
    return ordinals


def _resume(text: str | None) -> Literal["auto", "never"] | int:
    if text is None or text == "auto":
        return "auto"
    if text == "never":
        return "never"
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise Rejected(f"--resume must be auto, never or the step of a checkpoint, got {text!a}")
    return int(text)


def _seconds(flag: str, text: str | None) -> float:
    if text is None:
        return DEFAULT_NOTICE_S
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_NOTICE_S:
        raise Rejected(
            f"{flag} must be a number of seconds above 0 and at most {MAX_NOTICE_S:,.0f}, got {text!a}"
        )
    return value


def _check_together(request: RunRequest) -> None:
    if isinstance(request.resume, int) and not (request.slug_given and request.location):
        missing = "--location" if request.slug_given else "--slug"
        raise Rejected(f"--resume {request.resume} needs --slug and --location, got no {missing}")
