"""`python -m sexpgpu infra.local.launch SERVICE`: become that service, with the stack's environment.

The supervisor starts every service through this, so that no key stands in its configuration and a restart
reads what is true now.
"""

import os
import sys
from pathlib import Path

from infra.local.directory import DataDirectory
from infra.local.environment import MARKER, service_environment
from infra.local.services import service

__all__: list[str] = []


def main() -> None:
    """Replace this process with the service named on the command line."""
    directory = DataDirectory(Path(os.environ[MARKER]))
    argv = service(sys.argv[1]).command(directory)
    os.execve(argv[0], argv, service_environment(directory, os.environ))  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
