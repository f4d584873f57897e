"""Which Prefect, S3 and Metrics a command talks to: those of the environment, or of this machine's stack."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from runtime.errors import Rejected

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["use_stack"]


def use_stack(data: Path | None = None) -> None:
    """Point this process at the stack in `data`; unset: `PREFECT_API_URL` as it is, else the default stack.

    Prefect reads its settings when it is imported: call this before.

    Raises:
        Rejected: the stack is not up.
    """
    if data is None and os.environ.get("PREFECT_API_URL"):
        return
    from infra.local.directory import DataDirectory, default_data_directory
    from infra.local.environment import command_environment
    from infra.local.errors import StackError
    from infra.local.supervision import Supervisor

    try:
        directory = DataDirectory.at(data or default_data_directory(os.environ))
        if Supervisor(directory).pid() is None:
            raise Rejected(f"the stack in {directory.path} is not up: start it with slugline up")
        variables = command_environment(directory, os.environ)
    except StackError as error:
        raise Rejected(str(error)) from error
    os.environ.clear()
    os.environ.update(variables)
