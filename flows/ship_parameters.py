"""What a shipped command is asked for: the parameters of the flow `ship`, checked before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping  # noqa: TC003 - Prefect reads the annotations
from dataclasses import dataclass, field, replace
from typing import Any

from flows.parameters import check_fields, check_notice, check_place, check_tree, check_whole, set_fields
from flows.secret_names import check_secret_name
from runtime.errors import Rejected

__all__ = ["ShipParameters", "ship_parameters"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESERVED = ("DIVERGENT_", "SLUGLINE_", "PREFECT__")
RESERVED_NAMES = ("CUDA_VISIBLE_DEVICES",)
MAX_COMMAND_WORDS = 4096
MAX_COMMAND_BYTES = 65_536
"""What the server keeps of a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipParameters:
    """A command, run in a shipped directory under one slug, and how stubbornly it is tried.

    `command` is the program and its arguments, no shell in between. `tree` is the digest of the directory,
    and `trees` the location where it lies; unset: `<SLUGLINE_LOCATION>/.trees` of the worker. `slug` unset:
    the deployment's name and the run's scheduled time. `folder` unset: the root. `telemetry` and `checks`
    are the texts of `telemetry.toml` and `checks.toml`, unset where there are none: the run of a schedule
    is created with them when its time has come. `env` is set for the command, and so are the organisation's
    `secrets` of these names. `gpus` unset: one where the host has any. `retries` is how many of the
    command's own failures are tried again. `location` unset: `<SLUGLINE_LOCATION>/<slug>`. `work_dir`,
    `interruptions`, `no_progress` and `notice_s` are those of `TrainParameters`.

    Raises:
        Rejected: a value that no run can have.
    """

    command: tuple[str, ...]
    tree: str
    trees: str | None = None
    slug: str | None = None
    folder: str | None = None
    telemetry: str | None = None
    checks: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    gpus: int | None = None
    retries: int = 0
    location: str | None = None
    interruptions: int = 10
    no_progress: int | None = None
    notice_s: float = 20.0
    work_dir: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "command", tuple(self.command))
        object.__setattr__(self, "secrets", tuple(dict.fromkeys(self.secrets)))
        _check_command(self.command)
        check_tree(self.tree)
        check_place(self.slug, self.location)
        check_place(None, self.trees)
        _check_environment(self.env, self.secrets)
        for name, least in {"gpus": 0, "retries": 0, "interruptions": 0, "no_progress": 1}.items():
            check_whole(name, getattr(self, name), least=least)
        check_notice(self.notice_s)

    @property
    def failures(self) -> int:
        """How many of the run's own errors are tried again: what `TrainParameters` calls so."""
        return self.retries

    def pinned(self, *, slug: str, location: str | None) -> ShipParameters:
        """Return the same with what a first start decides: its slug and its location."""
        return replace(self, slug=slug, location=location)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, for Prefect."""
        return set_fields(self)


def ship_parameters(values: Mapping[str, Any]) -> ShipParameters:
    """Return the parameters that Prefect keeps.

    Raises:
        Rejected: an unknown or missing field, or a bad value.
    """
    check_fields(ShipParameters, values, flow="ship")
    for name in ("command", "tree"):
        if name not in values:
            raise Rejected(f"{name} is missing: schedule the run with `div run -- COMMAND...`.")
    return ShipParameters(**values)


def _check_command(command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        raise Rejected("no command: name the program to run after --, as in `div run -- python train.py`.")
    for word in command:
        if "\0" in word:
            raise Rejected(f"a command's words are texts without NUL, got {word!r}.")
    size = len(json.dumps(command, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))
    if len(command) > MAX_COMMAND_WORDS or size > MAX_COMMAND_BYTES:
        raise Rejected(
            f"a command has at most {MAX_COMMAND_WORDS:,} words and {MAX_COMMAND_BYTES:,} bytes of JSON,"
            f" got {len(command):,} words and {size:,} bytes: have it read a list from a file."
        )


def _check_environment(env: Mapping[str, str], secrets: tuple[str, ...]) -> None:
    for name, value in env.items():
        _check_variable(name)
        if "\0" in value:
            raise Rejected(f"--env {name}: a variable's value is a text without NUL, got {value!r}.")
    for name in secrets:
        check_secret_name(name)
        _check_reserved(name)
        if name in env:
            raise Rejected(f"{name} is given as --env and as --secret: leave one of them out.")


def _check_variable(name: str) -> None:
    if not VARIABLE.fullmatch(name):
        raise Rejected(f"--env takes K=V, and K is of letters, digits and _, got {name!r}.")
    _check_reserved(name)


def _check_reserved(name: str) -> None:
    if name.startswith(RESERVED) or name in RESERVED_NAMES:
        raise Rejected(f"{name} is set by the run itself: choose another name.")
