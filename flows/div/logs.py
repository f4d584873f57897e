"""`div logs`: what a run's attempts printed, one after the other, and what they print next."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.div.show import RunName  # noqa: TC001 - Typer reads the annotations
from infra.client.errors import Unavailable
from infra.client.output import say, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from flows.div.api import RunsApi
    from flows.div.following import Patience

__all__ = ["Follow", "exit_code", "follow", "logs"]

Follow = Annotated[
    bool,
    typer.Option("--follow", "-f", help="Follow the log until the run ends, and exit as its command did."),
]
WAIT_S = 5.0
"""For so long the server holds back an answer without news; how the run stands is looked at in between."""


def logs(run: RunName, *, following: Follow = False) -> None:
    """Print the log of a run, all its attempts in order."""
    from flows.div.api import connect

    with connect() as api:
        if following:
            raise typer.Exit(follow(api, run, attempt=1))
        at: int | None = 1
        first = True
        while at is not None:
            at = _print(api, run, at, is_first=first)
            first = False


def follow(api: RunsApi, run: str, *, attempt: int, when_quiet: Callable[[], None] = lambda: None) -> int:
    """Print the log from `attempt` on until the run is over, and return the exit code of its command.

    `when_quiet` is called every few seconds while there is no news.

    Raises:
        Unavailable: the server was away for too long.
        BrokenPipeError: nobody reads.
    """
    from flows.div.following import Patience

    followed = _Followed(api, run, attempt, when_quiet, Patience("logs"))
    try:
        while not followed.step():
            pass
    except KeyboardInterrupt:
        name = shown(run)
        say(f"{name} goes on: div logs -f {name} shows it again, div cancel {name} ends it")
        raise
    return followed.exit_code


def exit_code(run: dict[str, Any]) -> int:
    """Return what following a run that is over exits with: as its command did, where that says it."""
    if run["state"] == "cancelled":
        return 130
    if run["state"] == "done":
        return int(run["exit_code"] or 0)
    return int(run["exit_code"] or 1)


def _print(api: RunsApi, run: str, attempt: int, *, is_first: bool) -> int | None:
    """Print an attempt's log, and return the next one that has one."""
    with api.log(run, attempt=attempt) as log:
        if log.size_bytes and not is_first:
            say(f"-- attempt {log.attempt} --")
        for chunk in log.chunks:
            _write(chunk)
        return log.next_attempt


class _Followed:
    """How far a run's log was read, and how the run stood when it was last looked at."""

    def __init__(
        self,
        api: RunsApi,
        run: str,
        attempt: int,
        when_quiet: Callable[[], None],
        patience: Patience,
    ) -> None:
        self._api, self._run, self._patience = api, run, patience
        self._when_quiet = when_quiet
        self._attempt, self._after = attempt, 0
        self._wait_s = 0.0  # at first the question is whether there is such a run at all
        self._settled = False
        self._stood: tuple[str, str | None] | None = None
        self.exit_code = 0

    def step(self) -> bool:
        """Print what is new, and say whether the run is over and all of its log printed."""
        from flows.div.following import check_that_somebody_reads

        try:
            over = self._read()
            self._patience.reached()
        except Unavailable as error:
            self._patience.wait(error)
            over = False
        check_that_somebody_reads()
        return over

    def _read(self) -> bool:
        before = self._after
        with self._api.log(self._run, attempt=self._attempt, after=before, wait_s=self._wait_s) as log:
            for chunk in log.chunks:
                _write(chunk)
                self._after += len(chunk)
        self._wait_s = WAIT_S
        self._stand()
        if self._after < log.size_bytes or self._after > before:
            self._settled = False
            return False
        if log.next_attempt is not None:
            # The last lines of one attempt may come after the first of the next: it is asked once more.
            if self._settled:
                say(f"-- attempt {log.next_attempt} --")
                self._attempt, self._after = log.next_attempt, 0
            self._settled = not self._settled
            return False
        if not log.final:
            self._when_quiet()
        return log.final

    def _stand(self) -> None:
        """Say how the run stands, whenever that is another."""
        run = self._api.run(self._run)
        stands = (run["state"], run["reason"])
        if stands != self._stood:
            self._stood = stands
            why = f": {shown(stands[1])}" if stands[1] and stands[1] != stands[0] else ""
            say(f"{shown(run['name'])}: {stands[0]}{why}")
        self.exit_code = exit_code(run)


def _write(chunk: bytes) -> None:
    sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
