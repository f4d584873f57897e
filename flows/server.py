"""The Prefect server, as far as flows ask it: a handful of requests."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import msgspec
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.flow_runs import FLOWS, FlowRun, LogLine, State, slug_tag
from flows.prefect_client import RefusedError, page_base, prefect_client, translated
from runtime.errors import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prefect.client.orchestration import SyncPrefectClient

__all__ = ["Block", "Server", "connect"]

PAGE = 200
HEARTBEAT = "prefect.flow-run.heartbeat"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of Prefect: a named bundle of settings. `data` may hold secrets, and is not shown."""

    id: str
    name: str | None
    updated: datetime
    data: dict[str, Any] = field(default_factory=dict, repr=False)


@contextlib.contextmanager
def connect(*, retries: int | None = None) -> Iterator[Server]:
    """Talk to the server of `PREFECT_API_URL`; `retries` unset: as often as Prefect's settings say.

    Raises:
        Rejected: no server is set.
    """
    updates = {} if retries is None else {PREFECT_CLIENT_MAX_RETRIES: retries}
    with temporary_settings(updates), prefect_client() as client:
        yield Server(client)


class Server:
    """A connection. Every method raises `Unavailable` when the server cannot be reached or is starting."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client

    def runs(
        self,
        *,
        slug: str | None = None,
        states: Sequence[str] = (),
        limit: int | None = None,
        due_by: datetime | None = None,
    ) -> list[FlowRun]:
        """Return our flows' runs, newest first; `due_by` leaves out those planned for later."""
        wanted: dict[str, Any] = {}
        if slug is not None:
            wanted["tags"] = {"all_": [slug_tag(slug)]}
        if states:
            wanted["state"] = {"type": {"any_": list(states)}}
        if due_by is not None:
            wanted["expected_start_time"] = {"before_": due_by.isoformat()}
        found: list[FlowRun] = []
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            body = {
                "flows": {"name": {"any_": list(FLOWS)}},
                "flow_runs": wanted,
                "sort": "START_TIME_DESC",
                "limit": size,
                "offset": len(found),
            }
            page = self._ask("POST", "/flow_runs/filter", body, list[FlowRun])
            found += page
            if len(page) < size:
                break
        return sorted(found, key=lambda run: run.created, reverse=True)

    def run(self, flow_run_id: str) -> FlowRun:
        """Return one flow run."""
        return self._ask("GET", f"/flow_runs/{flow_run_id}", None, FlowRun)

    def states(self, flow_run_id: str) -> list[State]:
        """Return every state that a run has had, oldest first."""
        path = f"/flow_run_states/?flow_run_id={flow_run_id}"
        return sorted(self._ask("GET", path, None, list[State]), key=lambda state: state.timestamp)

    def set_state(
        self, flow_run_id: str, state: Mapping[str, Any], *, message: str, force: bool = False
    ) -> State | None:
        """Propose a state and return the one that the run has now (Prefect may choose another)."""
        body = {"state": {**state, "message": message}, "force": force}
        reply = self._ask("POST", f"/flow_runs/{flow_run_id}/set_state", body, _StateReply)
        return reply.state

    def end_task_runs(self, flow_run_id: str, *, message: str) -> None:
        """Mark as Crashed what still seems to run of a flow process that is dead: nobody else ever would."""
        body = {
            "flow_runs": {"id": {"any_": [flow_run_id]}},
            "task_runs": {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}},
        }
        state = {"type": "CRASHED", "message": message}
        for task_run in self._ask("POST", "/task_runs/filter", body, list[_Id]):
            self._send("POST", f"/task_runs/{task_run.id}/set_state", {"state": state, "force": True})

    def update(self, flow_run_id: str, **values: Any) -> None:
        """Replace a run's name, tags or parameters."""
        self._send("PATCH", f"/flow_runs/{flow_run_id}", values)

    def deployment_id(self, name: str) -> str:
        """Return the id of a deployment, `flow/name`.

        Raises:
            Rejected: there is none.
        """
        try:
            return self._ask("GET", f"/deployments/name/{name}", None, _Id).id
        except RefusedError as error:
            if error.status == httpx.codes.NOT_FOUND:
                raise Rejected(
                    f"no deployment {name!r}: make it with `python -m flows.deploy --pool NAME`."
                ) from None
            raise

    def deployment_name(self, deployment_id: str) -> str:
        """Return a deployment's own name."""
        return self._ask("GET", f"/deployments/{deployment_id}", None, _Name).name

    def create_run(
        self,
        deployment_id: str,
        *,
        slug: str,
        parameters: Mapping[str, Any],
        key: str,
        tags: Sequence[str] = (),
    ) -> tuple[FlowRun, bool]:
        """Create a run of `slug`; False: one of this `key` was there already and stays as it was.

        Raises:
            Rejected: Prefect does not take the parameters.
        """
        body = {
            "name": slug,
            "tags": sorted({*tags, slug_tag(slug)}),
            "idempotency_key": key,
            "parameters": {"parameters": dict(parameters)},
            "state": {"type": "SCHEDULED"},
        }
        response = self._send("POST", f"/deployments/{deployment_id}/create_flow_run", body)
        return _decode(response.content, FlowRun), response.status_code == httpx.codes.CREATED

    def last_heartbeat(self, flow_run_id: str) -> datetime | None:
        """Return when the run's flow process was last heard; unset: never, or too long ago to be kept."""
        body = {
            "filter": {
                "event": {"name": [HEARTBEAT]},
                "resource": {"id": [f"prefect.flow-run.{flow_run_id}"]},
                "order": "DESC",
            },
            "limit": 1,
        }
        events = self._ask("POST", "/events/filter", body, _Events).events
        return events[0].occurred if events else None

    def logs(self, flow_run_id: str, *, since: datetime) -> list[LogLine]:
        """Return a run's log lines from `since` on, oldest first."""
        found: list[LogLine] = []
        while len(found) % PAGE == 0:
            body = {
                "logs": {
                    "flow_run_id": {"any_": [flow_run_id]},
                    "timestamp": {"after_": since.isoformat()},
                },
                "sort": "TIMESTAMP_ASC",
                "offset": len(found),
                "limit": PAGE,
            }
            page = self._ask("POST", "/logs/filter", body, list[LogLine])
            found += page
            if not page:
                break
        return found

    def blocks(self, *, like: str, type_slug: str, with_secrets: bool) -> list[Block]:
        """Return the blocks of a type whose name holds `like`, with their secrets hidden unless asked for."""
        found: list[Block] = []
        while len(found) % PAGE == 0:
            body = {
                "block_documents": {"name": {"like_": like}},
                "block_types": {"slug": {"any_": [type_slug]}},
                "include_secrets": with_secrets,
                "offset": len(found),
                "limit": PAGE,
            }
            page = self._ask("POST", "/block_documents/filter", body, list[Block])
            found += page
            if not page:
                break
        return found

    def delete_block(self, block_id: str) -> None:
        """Delete a block; one that is gone is no error."""
        try:
            self._send("DELETE", f"/block_documents/{block_id}", None)
        except RefusedError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise

    def put_artifact(self, flow_run_id: str, *, key: str, type: str, data: Any, description: str) -> None:  # noqa: A002 - Prefect's word
        """Make the run's artifact `key`, or replace what it shows."""
        body = {"artifacts": {"key": {"any_": [key]}, "flow_run_id": {"any_": [flow_run_id]}}, "limit": 1}
        held = self._ask("POST", "/artifacts/filter", body, list[_Id])
        values = {"data": data, "description": description}
        if held:
            self._send("PATCH", f"/artifacts/{held[0].id}", values)
        else:
            self._send(
                "POST", "/artifacts/", {**values, "key": key, "type": type, "flow_run_id": flow_run_id}
            )

    def page(self, flow_run_id: str) -> str:
        """Return the address of the run's page in Prefect's UI."""
        return f"{page_base()}/runs/flow-run/{flow_run_id}"

    def _ask(self, method: str, path: str, body: Any, kind: type[T]) -> T:
        return _decode(self._send(method, path, body).content, kind)

    def _send(self, method: Any, path: Any, body: Any) -> httpx.Response:
        with translated():
            return self._client.request(method, path, json=body)


@dataclass(frozen=True, slots=True)
class _Id:
    id: str


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(frozen=True, slots=True)
class _StateReply:
    state: State | None = None


@dataclass(frozen=True, slots=True)
class _Event:
    occurred: datetime


@dataclass(frozen=True, slots=True)
class _Events:
    events: list[_Event]


def _decode(content: bytes, kind: type[T]) -> T:
    with translated():
        return msgspec.json.decode(content, type=kind)
