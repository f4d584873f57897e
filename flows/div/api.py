"""`RunsApi`: what the commands ask of the runs that a Metrics server keeps."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.client.api import Client, part
from infra.client.errors import Refused, Rejected, Unavailable
from infra.client.http import httpx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = ["FINAL_STATES", "Log", "Points", "RunsApi", "connect"]

FINAL_STATES = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Points:
    """Points of a run as lines `{"seq": 1, "data": {...}}`, in chunks of whole lines.

    `final` says whether the run was over, and so these are its last points.
    """

    chunks: Iterator[bytes]
    last_seq: int
    final: bool


@dataclass(frozen=True, slots=True)
class Log:
    """What of one attempt's log was asked for, in chunks. `size_bytes` is where that log ends by now.

    `next_attempt` is the next one that has a log, `final` whether the run is over.
    """

    chunks: Iterator[bytes]
    attempt: int
    size_bytes: int
    next_attempt: int | None
    final: bool


class RunsApi(Client):
    """The server as `div` sees it. A run is named by its name or its id.

    Every call about a run that is not there raises `Rejected`.
    """

    def runs(self, *, limit: int, before: str | None = None) -> list[dict[str, Any]]:
        """Return at most `limit` runs (1,000 at most), the one made last first."""
        found: list[dict[str, Any]] = self.get("runs", limit=limit, before=before)["runs"]
        return found

    def run(self, name: str) -> dict[str, Any]:
        """Return a run."""
        found: dict[str, Any] = self.of_run(name, self.get)
        return found

    def files(self, name: str) -> Sequence[Mapping[str, Any]] | None:
        """Return what was shipped for a run as `{"path", "size_bytes", "blake3"}`, None if nothing was."""
        found: Sequence[Mapping[str, Any]] | None = self.of_run(name, self.get, "/files")["files"]
        return found

    def summary(self, name: str, *, after: int = 0, wait_s: float = 0) -> dict[str, Any]:
        """Return what a run's telemetry comes to: `keys` with what each holds, `points`, `dropped`, `final`.

        With `wait_s` the answer comes once there is a point after the one of seq `after`, or the run is over.
        """

        def ask(path: str) -> Any:
            return self.get(path, after=after, wait_s=f"{wait_s:g}")

        found: dict[str, Any] = self.of_run(name, ask, "/telemetry/summary")
        return found

    @contextmanager
    def points(self, name: str, *, after: int = 0, wait_s: float = 0) -> Iterator[Points]:
        """Stream the points after the one of seq `after`; they are read within the context."""

        def ask(path: str) -> httpx.Response:
            query: dict[str, str | int] = {"after": after, "wait_s": f"{wait_s:g}"}
            return self._send(self._http.build_request("GET", f"/api/v1/{path}", params=query), stream=True)

        response = self.of_run(name, ask, "/telemetry/points")
        try:
            yield self._points_of(response)
        finally:
            response.close()

    def check_run(self, *, folder: str | None, telemetry: str | None, checks: str | None) -> None:
        """See whether a run could be made in this folder, with these `telemetry.toml` and `checks.toml`.

        Raises:
            Rejected: there is no such folder.
            Refused: one of the files cannot be read.
        """
        try:
            self.post("runs/check", {"folder": folder, "telemetry": telemetry, "checks": checks})
        except Refused as refused:
            if refused.code != "folder_not_found":
                raise
            raise Rejected(
                f"--folder: {refused}; syvain-metrics folder create --parents PATH makes one"
            ) from refused

    def create(self, new: Mapping[str, Any]) -> dict[str, Any]:
        """Make a run, or launch the one of its slug again, and return it."""
        made: dict[str, Any] = self.post("runs", new)
        return made

    def tell(self, name: str, said: Mapping[str, Any]) -> None:
        """Change what a run's record says."""
        self.of_run(name, lambda path: self.patch(path, said))

    @contextmanager
    def log(self, name: str, *, attempt: int, after: int = 0, wait_s: float = 0) -> Iterator[Log]:
        """Stream an attempt's log from byte `after` on; it is read within the context.

        With `wait_s` the answer comes once there is more, a later attempt has a log, or the run is over.
        """

        def ask(path: str) -> httpx.Response:
            query: dict[str, str | int] = {"attempt": attempt, "after": after, "wait_s": f"{wait_s:g}"}
            return self._send(self._http.build_request("GET", f"/api/v1/{path}", params=query), stream=True)

        response = self.of_run(name, ask, "/log")
        try:
            yield self._log_of(response)
        finally:
            response.close()

    def of_run(self, name: str, ask: Callable[[str], Any], rest: str = "") -> Any:
        """Return what `ask` answers for the address of a run and what comes after it.

        Raises:
            Rejected: there is no such run.
        """
        named = self._named(name)
        try:
            if named:
                return ask(f"runs/{named}{rest}")
        except Refused as refused:
            if refused.code != "run_not_found":
                raise
        raise Rejected(f"there is no run {name!r}: div list shows those that there are")

    def _named(self, name: str) -> str:
        """Return what stands for a run in an address: its name, or its id where the name cannot."""
        if name and "/" not in name and name.strip("."):
            return part(name)
        found = self.get("runs", name=name, limit=1)["runs"] if name else []
        return str(found[0]["id"]) if found else ""

    def _points_of(self, response: httpx.Response) -> Points:
        try:
            last_seq, final = int(response.headers["x-last-seq"]), response.headers["x-run-final"] == "true"
        except (KeyError, ValueError) as error:
            raise self._garbled(f"points without {error}") from error
        return Points(self._whole_lines(response), last_seq, final)

    def _log_of(self, response: httpx.Response) -> Log:
        headers = response.headers
        try:
            attempt, size_bytes = int(headers["x-attempt"]), int(headers["x-log-size"])
            next_attempt = int(headers["x-next-attempt"]) if headers["x-next-attempt"] else None
            final = headers["x-run-final"] == "true"
        except (KeyError, ValueError) as error:
            raise self._garbled(f"a log without {error}") from error
        return Log(self._chunks(response), attempt, size_bytes, next_attempt, final)

    def _chunks(self, response: httpx.Response) -> Iterator[bytes]:
        try:
            yield from response.iter_bytes()
        except httpx.HTTPError as error:
            raise self._broken_off(error) from error

    def _broken_off(self, error: httpx.HTTPError) -> Unavailable:
        return Unavailable(f"{self._unreachable(error)}, in the middle of an answer: ask again")

    def _whole_lines(self, response: httpx.Response) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in response.iter_bytes():
                end = chunk.rfind(b"\n") + 1
                if end:
                    yield rest + chunk[:end]
                    rest = chunk[end:]
                else:
                    rest += chunk
        except httpx.HTTPError as error:
            raise self._broken_off(error) from error
        if rest:
            raise Unavailable(f"Metrics at {self.host} stopped in the middle of an answer: ask again")


def connect() -> RunsApi:
    """Return the connection that the environment, else the saved login, describes."""
    from runtime.events.syvain.settings import metrics_settings

    try:
        settings = metrics_settings(os.environ)
    except Rejected as unset:
        _use_stack(unset)
        settings = metrics_settings(os.environ)
    return RunsApi(settings)


def _use_stack(unset: Rejected) -> None:
    """Point this process at the stack of this machine.

    Raises:
        Rejected: it is not up; what is unset is said first.
    """
    from flows.stack import use_stack

    if os.environ.get("PREFECT_API_URL"):
        raise unset
    try:
        use_stack()
    except Rejected:
        raise Rejected(f"{unset}, or start a stack on this machine: slugline up") from None
