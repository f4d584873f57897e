"""Runs: made under the name of an experiment, told how they go, judged by their checks when they end."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import orjson
import zstandard
from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Select,
    bindparam,
    delete,
    insert,
    select,
    update,
)

from infra.server.refusals import Refused
from infra.server.store import experiments as experiment_rows
from infra.server.store import telemetry
from infra.server.store.database import AnyRow, new_id
from infra.server.store.schema import experiments, run_counters, run_files, runs, telemetry_states
from runtime.telemetry import checks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "FINAL",
    "MAX_ATTEMPT",
    "New",
    "State",
    "by_name",
    "change",
    "create",
    "fence",
    "files_of",
    "find",
    "listed",
    "of_experiment",
    "packed",
    "states",
]

State = Literal["scheduled", "waiting", "running", "retrying", "done", "failed", "cancelled"]
FINAL = frozenset({"done", "failed", "cancelled"})
MAX_ATTEMPT = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """A run to make, checked. `layout` and `checks` are the files' text; `command` and `meta` JSON.

    `slug` unset: `run-<n>`, n being the organisation's next. `files` are packed; unset: nothing was shipped.
    """

    slug: str | None
    folder_id: int | None
    kind: Literal["command", "train"]
    layout: str | None
    checks: str | None
    command: str | None
    tree: str | None
    files: bytes | None
    meta: str


def create(connection: Connection, organisation_id: int, new: New, *, now_ms: int) -> str:
    """Make a run and return its id. One that has the slug is launched again: it keeps its telemetry and name.

    The slug's experiment is made where there is none; one that is there is left as it is.
    """
    slug = new.slug if new.slug is not None else _next_name(connection, organisation_id)
    experiment_id = experiment_rows.ensure(
        connection,
        organisation_id=organisation_id,
        slug=slug,
        meta=new.meta,
        folder_id=new.folder_id,
        now_ms=now_ms,
    )
    said = {
        "kind": new.kind,
        "state": "scheduled",
        "command": new.command,
        "tree": new.tree,
        "meta": new.meta,
        "layout": new.layout,
        "checks": new.checks,
    }
    found = connection.execute(
        select(runs.c.id, runs.c.uid).where(runs.c.experiment_id == experiment_id)
    ).first()
    if found is None:
        run_id, uid = _insert(connection, organisation_id, experiment_id, said, now_ms)
    else:
        run_id, uid = found.id, found.uid
        forgotten = ("reason", "exit_code", "flow_run_id", "verdicts", "result", "started_ms", "ended_ms")
        _set(connection, run_id, **said, **dict.fromkeys(forgotten))
    _keep_files(connection, run_id, new.files)
    return str(uid)


def find(connection: Connection, organisation_id: int, ref: str) -> AnyRow:
    """Return the run of an id or a name, with what its experiment is called and how far its telemetry is.

    Raises:
        Refused: There is none in the organisation.
    """
    row = _one(connection, _by(runs.c.uid), organisation_id, ref)
    if row is None:
        row = _one(connection, by_name(), organisation_id, ref)
    if row is None:
        raise Refused("run_not_found", f"no run has the name or the id {json.dumps(ref[:200])}")
    return row


def of_experiment(connection: Connection, organisation_id: int, experiment_id: int) -> AnyRow | None:
    """Return an experiment's run as `find` does, by what we call the experiment; None when it has none."""
    return _one(connection, _by(runs.c.experiment_id), organisation_id, experiment_id)


def states(connection: Connection, experiment_ids: Sequence[int]) -> dict[int, State]:
    """Return the states of the runs of experiments, by what we call those that have one."""
    rows = connection.execute(
        select(runs.c.experiment_id, runs.c.state).where(runs.c.experiment_id.in_(experiment_ids))
    )
    return {row.experiment_id: row.state for row in rows}


def listed(
    connection: Connection,
    organisation_id: int,
    *,
    name: str | None = None,
    before: str | None = None,
    limit: int,
) -> Sequence[AnyRow]:
    """Return runs without what may be long of them, the one made last first; `before` the one of an id.

    Raises:
        Refused: There is no run of that id.
    """
    long = ("meta", "layout", "checks", "verdicts", "result")
    found = _found(organisation_id, [column for column in runs.c if column.name not in long])
    if name is not None:
        found = _named(found, organisation_id, name)
    if before is not None:
        found = found.where(runs.c.id < find(connection, organisation_id, before).id)
    return connection.execute(found.order_by(runs.c.id.desc()).limit(limit)).all()


def packed(files: list[dict[str, Any]]) -> bytes:
    """Return a list of files as it is kept."""
    return zstandard.compress(orjson.dumps(files))


def files_of(connection: Connection, run_id: int) -> list[dict[str, Any]] | None:
    """Return what was shipped; None where nothing was."""
    kept = connection.execute(select(run_files.c.files).where(run_files.c.run_id == run_id)).scalar()
    if kept is None:
        return None
    found: list[dict[str, Any]] = orjson.loads(zstandard.decompress(kept))
    return found


def change(connection: Connection, row: AnyRow, said: dict[str, Any], *, now_ms: int) -> None:
    """Set what is said of a run. A final state has its checks judged by its result.

    `said` may have `state`, `reason`, `attempt`, `exit_code`, `flow_run_id` and `result`.

    Raises:
        Refused: It comes from an attempt that a newer one replaced.
    """
    attempt = said.get("attempt")
    if attempt is not None:
        fence(connection, row, attempt, now_ms=now_ms)
    values = dict(said)
    state = said.get("state", row.state)
    if state in FINAL:
        if state != row.state or row.ended_ms is None:
            values["ended_ms"] = now_ms
        if row.checks is not None:
            values["verdicts"] = _judged(row.checks, said.get("result", row.result))
    elif "state" in said:
        values |= {"ended_ms": None, "verdicts": None}
        values.setdefault("exit_code", None)
        if state == "running" and row.started_ms is None:
            values["started_ms"] = now_ms
    if values:
        _set(connection, row.id, **values)
        experiment_rows.changed(connection, row.experiment_id, now_ms=now_ms)


def fence(connection: Connection, row: AnyRow, attempt: int, *, now_ms: int) -> None:
    """Let nobody of an older attempt speak from now on, and note where the new one begins.

    Raises:
        Refused: The attempt itself is an older one.
    """
    if attempt < row.attempt:
        raise Refused(
            "superseded",
            f"attempt {attempt} of this run was replaced by attempt {row.attempt}: stop",
            details={"attempt": row.attempt},
        )
    if attempt > row.attempt:
        _set(connection, row.id, attempt=attempt)
        telemetry.mark_attempt(connection, row.id, attempt, now_ms=now_ms)


def _one(
    connection: Connection, statement: Select[*tuple[Any, ...]], organisation_id: int, value: str | int
) -> AnyRow | None:
    return connection.execute(statement, {"organisation_id": organisation_id, "value": value}).first()


@cache
def by_name() -> Select[*tuple[Any, ...]]:
    """Return what finds a run by its name.

    Every batch of points is looked up with it, and to make it takes longer than to run it.
    """
    return _named(_whole(), bindparam("organisation_id"), bindparam("value"))


@cache
def _by(column: ColumnElement[Any]) -> Select[*tuple[Any, ...]]:
    """Return what finds a run by a column that only one run has a value of."""
    return _whole().where(column == bindparam("value"))


def _whole() -> Select[*tuple[Any, ...]]:
    state = telemetry_states.c
    columns = [*runs.c, state.summary, state.dropped, state.attempts]
    return _found(bindparam("organisation_id"), columns)


def _named(
    found: Select[*tuple[Any, ...]],
    organisation_id: int | BindParameter[int],
    name: str | BindParameter[str],
) -> Select[*tuple[Any, ...]]:
    """Return what of runs is of a name. Names are indexed with the organisation of their experiments."""
    return found.where(experiments.c.organisation_id == organisation_id, experiments.c.slug == name)


def _found(
    organisation_id: int | BindParameter[int], columns: Sequence[ColumnElement[Any]]
) -> Select[*tuple[Any, ...]]:
    """Return what finds the runs that an organisation has, with what is asked for of them."""
    return (
        select(
            *columns,
            experiments.c.slug,
            experiments.c.uid.label("experiment_uid"),
            experiments.c.folder_id,
            telemetry_states.c.last_seq,
        )
        .join(experiments, experiments.c.id == runs.c.experiment_id)
        .join(telemetry_states, telemetry_states.c.run_id == runs.c.id)
        .where(runs.c.organisation_id == organisation_id, experiments.c.deleted_ms.is_(None))
    )


def _insert(
    connection: Connection, organisation_id: int, experiment_id: int, said: dict[str, Any], now_ms: int
) -> tuple[int, str]:
    uid = str(uuid.uuid4())
    made = connection.execute(
        insert(runs).values(
            uid=uid,
            organisation_id=organisation_id,
            experiment_id=experiment_id,
            attempt=0,
            created_ms=now_ms,
            **said,
        )
    )
    run_id = new_id(made)
    telemetry.begin(connection, run_id)
    return run_id, uid


def _next_name(connection: Connection, organisation_id: int) -> str:
    """Return `run-<n>` with the next n, which is never given again; a slug that somebody took is left out."""
    of_organisation = run_counters.c.organisation_id == organisation_id
    last = connection.execute(select(run_counters.c.last).where(of_organisation)).scalar()
    if last is None:
        last = 0
        connection.execute(insert(run_counters).values(organisation_id=organisation_id, last=0))
    name, taken = "", True
    while taken:
        last += 1
        name = f"run-{last}"
        taken = bool(experiment_rows.listed(connection, organisation_id, slug=name, limit=1))
    connection.execute(update(run_counters).where(of_organisation).values(last=last))
    return name


def _keep_files(connection: Connection, run_id: int, files: bytes | None) -> None:
    connection.execute(delete(run_files).where(run_files.c.run_id == run_id))
    if files is not None:
        connection.execute(insert(run_files).values(run_id=run_id, files=files))


def _judged(text: str, result: str | None) -> str:
    verdicts = checks.judge(checks.parse_checks(text), result)
    return orjson.dumps([verdict.to_json() for verdict in verdicts]).decode()


def _set(connection: Connection, run_id: int, **values: Any) -> None:
    connection.execute(update(runs).where(runs.c.id == run_id).values(**values))
