"""The two small programs around a trainer, run by path with the standard library only.

`child.py guard FD NOTICE` leads the attempt's process group. It ends with the group: when the life line on
FD ends (its only write end is the flow process's), it gives the group NOTICE seconds and kills what is
left, itself included. It works while the trainer hangs, ignores signals or has no life line of its own.

`child.py exec PARENT COMMAND...` becomes COMMAND, which gets SIGTERM when its parent's thread ends.
PR_SET_PDEATHSIG survives the exec, so no code runs between fork and exec in the many-threaded flow process.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
POLL_S = 0.2


def guard(lifeline: int, notice_s: float) -> None:
    """Outlast the flow process by at most `notice_s`, and let nothing of the group outlast that."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    select.select([lifeline], [], [])
    deadline = time.monotonic() + notice_s
    while time.monotonic() < deadline and others_of_group():
        time.sleep(POLL_S)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def others_of_group() -> bool:
    """Say whether any living process but this one is in its group."""
    group, me = os.getpgrp(), os.getpid()
    names = os.listdir("/proc")  # noqa: PTH208 - pathlib would double this program's start-up
    return any(int(name) != me and _group_of(name) == group for name in names if name.isdigit())


def _group_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - as above
            stat = file.read()
    except OSError:
        return None
    state, _parent, group = stat[stat.rindex(")") + 2 :].split()[:3]
    return None if state in "ZX" else int(group)


def become(parent: int, command: list[str]) -> None:
    """Ask for SIGTERM at the parent's death and become `command`."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)  # it died before we could ask
    try:
        os.execvp(command[0], command)  # noqa: S606 - the point of this program
    except OSError as error:
        sys.stderr.write(f"{command[0]} cannot be started: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    if sys.argv[1] == "guard":
        guard(int(sys.argv[2]), float(sys.argv[3]))
    else:
        become(int(sys.argv[2]), sys.argv[3:])
