"""What can be said of a run before it is scheduled: of its file and what it is asked, bucket and folder."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.experiment_trainer import experiment_flags
from flows.parameters import experiment_path
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.parameters import TrainParameters

__all__ = ["check_experiment", "check_folder", "check_shipped", "check_store"]

NOT_FOR_A_CHECK = ("DIVERGENT_TELEMETRY_PATH", "SEXPGPU_METRICS", "SLUGLINE_LIFELINE_FD")
MISSING_OR_FORBIDDEN = {401, 403, 404}


def check_experiment(parameters: TrainParameters, environment: Mapping[str, str]) -> None:
    """Do with the experiment what `sexpgpu check` does, on the CPU: the worker may have what is missing here.

    A file that the experiment reads and this host lacks, or a check that dies, says nothing of a worker.

    Raises:
        Rejected: the mistake in the file, or in what is asked of it.
    """
    try:
        path = experiment_path(parameters.experiment)
    except (Rejected, Unavailable):
        return  # it is on the workers only
    code, said = _checked(path, parameters, environment)
    if code == Rejected.exit_code:
        raise Rejected(said)


def check_shipped(parameters: TrainParameters, environment: Mapping[str, str], *, directory: Path) -> None:
    """Do the same with the experiment file as it was shipped, in `directory`, where nothing else is.

    The check works in a folder of its own beside that, as an attempt does. What fails there and not where
    the file lies needs something that is not shipped.

    Raises:
        Rejected: that, or a mistake in the file or in what is asked of it.
    """
    file = Path(parameters.experiment)
    if not (directory / file.name).is_file():
        raise Rejected(
            f"{file.name} is left out of what is shipped, by .gitignore or .divignore: "
            f"bring it back with a line !{file.name} in {file.parent / '.divignore'}."
        )
    elsewhere = directory.parent / "work"
    elsewhere.mkdir(exist_ok=True)
    code, said = _checked(directory / file.name, parameters, environment, folder=elsewhere)
    if code not in (Rejected.exit_code, Unavailable.exit_code):
        return
    code_here, said_here = _checked(file, parameters, environment)
    if code_here == Rejected.exit_code:
        raise Rejected(said_here)
    if code_here == code == Unavailable.exit_code:
        return  # the workers may have it
    said = said.replace(str(directory), str(file.parent)).replace(
        str(directory.parent), str(file.parent.parent)
    )
    raise Rejected(
        f"{said.removesuffix('.')}, once it is shipped: only {file.parent} is, without what .gitignore and "
        ".divignore leave out. Keep there what the file needs, and name it by Path(__file__).parent."
    )


def _checked(
    file: Path, parameters: TrainParameters, environment: Mapping[str, str], *, folder: Path | None = None
) -> tuple[int, str]:
    """Run `sexpgpu check` in `folder` (unset: ours); return its exit code and its last line."""
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("sexpgpu")),
            "check",
            str(file),
            *experiment_flags(replace(parameters, device="cpu", gpus=None)),
        ],
        cwd=folder,
        env={name: value for name, value in environment.items() if name not in NOT_FOR_A_CHECK},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    last = (done.stderr.strip().splitlines() or ["the experiment is refused"])[-1]
    return done.returncode, last.removeprefix("sexpgpu: ")


def check_store(location: str | None, environment: Mapping[str, str] | None = None) -> None:
    """Look whether the bucket of an S3 location is there for us; one out of our reach may be in a worker's.

    Raises:
        Rejected: the server has no such bucket, or refuses access.
    """
    if location is None or not location.startswith("s3://"):
        return
    from botocore.exceptions import ClientError

    from runtime.checkpoints.location import open_location

    try:
        open_location(location, os.environ if environment is None else environment).record()
    except Unavailable as error:
        cause = error.__cause__
        status = cause.response["ResponseMetadata"]["HTTPStatusCode"] if isinstance(cause, ClientError) else 0
        if status in MISSING_OR_FORBIDDEN:
            raise Rejected(str(error)) from error


def check_folder(folder: str | None) -> None:
    """Look whether Metrics has the folder; a Metrics out of our reach may be in a worker's.

    Raises:
        Rejected: it has none.
    """
    if folder is None:
        return
    from flows.div.api import connect
    from infra.client.errors import Refused

    try:
        api = connect()
    except Rejected:
        return  # the workers may have the key
    with api, suppress(Refused, Unavailable):
        api.check_run(folder=folder, telemetry=None, checks=None)
