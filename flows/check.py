"""What can be said of a run before it is scheduled: whether its file takes what is asked, and its bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flows.parameters import experiment_path
from flows.trainer import experiment_flags
from runtime.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from flows.parameters import TrainParameters

__all__ = ["check_experiment", "check_store"]

NOT_FOR_A_CHECK = ("SEXPGPU_METRICS", "SLUGLINE_LIFELINE_FD")
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
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("sexpgpu")),
            "check",
            str(path),
            *experiment_flags(replace(parameters, device="cpu", gpus=None)),
        ],
        env={name: value for name, value in environment.items() if name not in NOT_FOR_A_CHECK},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == Rejected.exit_code:
        last = (done.stderr.strip().splitlines() or ["the experiment is refused"])[-1]
        raise Rejected(last.removeprefix("sexpgpu: "))


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
