"""The tables. Times are epoch milliseconds; `id` is ours and small, `uid` is what the world sees.

JSON stands in text columns as compact JSON: what was sent comes back, number formats included.
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import UserDefinedType

__all__ = [
    "ExactDouble",
    "annotations",
    "applied_keys",
    "experiments",
    "folders",
    "idempotency_keys",
    "ingestion_keys",
    "keys",
    "last_writer",
    "lifecycle",
    "memberships",
    "message_holes",
    "metadata",
    "organisations",
    "people",
    "point_blocks",
    "readiness",
    "run_counters",
    "run_files",
    "run_log_blocks",
    "run_logs",
    "runs",
    "series",
    "sessions",
    "sign_ins",
    "telemetry_blocks",
    "telemetry_states",
    "tokens",
    "views",
]

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class ExactDouble(UserDefinedType[float]):
    """A double that comes back bit for bit: SQLite's REAL columns store -0.0 as the integer 0."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the SQL type of most databases."""
        return "DOUBLE PRECISION"


@compiles(ExactDouble, "sqlite")
def _exact_double_sqlite(_type: ExactDouble, _compiler: Any, **_: Any) -> str:
    return "BLOB"  # no affinity: SQLite keeps the eight bytes it is given


_Id = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER PRIMARY KEY is SQLite's own row id
# `sqlite_autoincrement`: a stream that is read or a writer may still know a row that was deleted by its id,
# which is then never another row's. PostgreSQL gives no id twice anyway.

organisations = Table(
    "organisations",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("organisation_id", _Id, ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("created_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    Column("role", Text, nullable=False, server_default="viewer"),
    Column("last_used_ms", BigInteger),
)

# A person may be a member of several organisations. Without a password nobody signs in as them.
people = Table(
    "people",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("email", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("password_hash", Text),
    Column("created_ms", BigInteger, nullable=False),
)

memberships = Table(
    "memberships",
    metadata,
    Column("organisation_id", _Id, ForeignKey("organisations.id"), primary_key=True, autoincrement=False),
    Column("person_id", _Id, ForeignKey("people.id"), primary_key=True, autoincrement=False),
    Column("role", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Index("ix_memberships_person_id", "person_id"),
)

# A person's browser, within one organisation at a time.
sign_ins = Table(
    "sign_ins",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("person_id", _Id, ForeignKey("people.id"), nullable=False, index=True),
    Column("organisation_id", _Id, ForeignKey("organisations.id"), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False, index=True),
)

# A saved setup of the app; it holds ids, so that renames and moves do not break it.
views = Table(
    "views",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("organisation_id", _Id, ForeignKey("organisations.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("setup", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    UniqueConstraint("organisation_id", "name"),
)

folders = Table(
    "folders",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("organisation_id", _Id, ForeignKey("organisations.id"), nullable=False),
    Column("parent_id", _Id, ForeignKey("folders.id")),
    Column("name", Text, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
)
# Names are unique among siblings, and the folders at the root are siblings too.
Index(
    "uq_folders_siblings",
    folders.c.organisation_id,
    func.coalesce(folders.c.parent_id, 0),
    folders.c.name,
    unique=True,
)

experiments = Table(
    "experiments",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("organisation_id", _Id, ForeignKey("organisations.id"), nullable=False),
    Column("folder_id", _Id, ForeignKey("folders.id"), index=True),
    Column("slug", Text, nullable=False),
    Column("description", Text, nullable=False),
    Column("meta", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("error_message", Text),
    Column("error_meta", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("started_ms", BigInteger),
    Column("done_ms", BigInteger),
    Column("last_heartbeat_ms", BigInteger),
    Column("last_event_ms", BigInteger),
    # The session that holds the run: endings told by an older one change nothing.
    Column("started_session_id", _Id),
    Column("experiment_revision", BigInteger, nullable=False),
    Column("series_revision", BigInteger, nullable=False),
    # What people read instead of the slug; unset, the slug.
    Column("display_name", Text),
    # Set, it is there for nobody any more and its rows go away piece by piece; the slug is free again.
    Column("deleted_ms", BigInteger),
    UniqueConstraint("organisation_id", "slug"),
    sqlite_autoincrement=True,
)

# One process that writes to an experiment: every open begins one, and so does every session that our own
# message ids name (`sender`). For the latter, `opened_id` is the one whose token its events first came under,
# and `carried` says that they were only passed on by it: an older process's.
# `next_sequence` is one past the highest applied sequence number; what lies below it and was not applied is
# in message_holes.
sessions = Table(
    "sessions",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("experiment_id", _Id, ForeignKey("experiments.id"), nullable=False),
    Column("sender", Text),
    Column("opened_id", _Id, ForeignKey("sessions.id")),
    Column("carried", Boolean, nullable=False),
    Column("opened_ms", BigInteger, nullable=False),
    Column("next_sequence", BigInteger, nullable=False),
    UniqueConstraint("experiment_id", "sender"),
    sqlite_autoincrement=True,
)

message_holes = Table(
    "message_holes",
    metadata,
    Column("session_id", _Id, ForeignKey("sessions.id"), primary_key=True),
    Column("first", BigInteger, primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

# Ids of clients that draw them at random, many to a row: a tree by their first bits (applied.py).
# `generation` counts weeks; `page` is the filter of a row's keys, and stands before them, so that reading it
# does not read them.
applied_keys = Table(
    "applied_keys",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("experiment_id", _Id, nullable=False),
    Column("generation", BigInteger, nullable=False, index=True),
    Column("depth", BigInteger, nullable=False),
    Column("prefix", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("page", LargeBinary, nullable=False),
    Column("keys", LargeBinary, nullable=False),
    Index("ix_applied_keys_experiment_id_generation", "experiment_id", "generation"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("hash", LargeBinary, nullable=False, unique=True),
    Column("session_id", _Id, ForeignKey("sessions.id"), nullable=False, index=True),
    Column("created_ms", BigInteger, nullable=False),
    Column("expires_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
)

# One metric name under one exact metadata map. The hash stands for the map in the index: the map itself may
# be 4 KiB.
series = Table(
    "series",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("experiment_id", _Id, ForeignKey("experiments.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("metadata_hash", LargeBinary, nullable=False),
    Column("num_points", BigInteger, nullable=False),
    # The point that arrived last: what a list of values shows, without unpacking a block.
    Column("last_step", BigInteger),
    Column("last_timestamp_ms", BigInteger),
    Column("last_value", ExactDouble),
    UniqueConstraint("experiment_id", "name", "metadata_hash"),
    sqlite_autoincrement=True,
)

# Every copy of every step: the points of one series that arrived one after another, packed (codec.py), from
# the `first`-th of the series on. Steps are -1 where there is none. A chunk, which no later point changes,
# has a summary for charts; it stands before the points, so that reading it does not read them. No foreign
# keys: this is the hot table.
point_blocks = Table(
    "point_blocks",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("series_id", _Id, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("min_step", BigInteger, nullable=False),
    Column("max_step", BigInteger, nullable=False),
    Column("min_ms", BigInteger, nullable=False),
    Column("max_ms", BigInteger, nullable=False),
    Column("summary", LargeBinary),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("series_id", "first"),
)

annotations = Table(
    "annotations",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("experiment_id", _Id, ForeignKey("experiments.id"), nullable=False),
    Column("session_id", _Id, ForeignKey("sessions.id"), nullable=False),
    Column("text", Text, nullable=False),
    Column("meta", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Index("ix_annotations_experiment_id_at_ms", "experiment_id", "at_ms"),
)

# Every start, done and error that was told, also those that changed no status.
lifecycle = Table(
    "lifecycle",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("experiment_id", _Id, ForeignKey("experiments.id"), nullable=False, index=True),
    Column("session_id", _Id, ForeignKey("sessions.id"), nullable=False),
    Column("kind", Text, nullable=False),
    Column("error_message", Text),
    Column("error_meta", Text),
    Column("at_ms", BigInteger, nullable=False),
)

# Tokens that the REST API hands out for writing to one experiment, each with a session of its own. When they
# expire and whether they were revoked stands in tokens.
ingestion_keys = Table(
    "ingestion_keys",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("experiment_id", _Id, ForeignKey("experiments.id"), nullable=False, index=True),
    Column("session_id", _Id, ForeignKey("sessions.id"), nullable=False, unique=True),
    Column("token_id", _Id, ForeignKey("tokens.id"), nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("last_used_ms", BigInteger),
)

# What was answered to requests that a client may repeat. `request_hash` tells the same request from another
# one that came under the same key.
idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("organisation_id", _Id, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, primary_key=True),
    Column("request_hash", LargeBinary, nullable=False),
    Column("reply", LargeBinary, nullable=False),
    Column("created_ms", BigInteger, nullable=False, index=True),
)

# What was shipped to a worker, or trains: one run of an experiment, which gives it its name and its folder.
# `layout` and `checks` are what was sent, word for word. `attempt` is the newest: what an older one says is
# refused.
runs = Table(
    "runs",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("uid", Text, nullable=False, unique=True),
    Column("organisation_id", _Id, ForeignKey("organisations.id"), nullable=False),
    Column("experiment_id", _Id, ForeignKey("experiments.id"), nullable=False, unique=True),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("attempt", BigInteger, nullable=False),
    Column("exit_code", BigInteger),
    Column("flow_run_id", Text),
    Column("command", Text),
    Column("tree", Text),
    Column("meta", Text, nullable=False),
    Column("layout", Text),
    Column("checks", Text),
    Column("verdicts", Text),
    Column("result", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Index("ix_runs_organisation_id_id", "organisation_id", "id"),
    sqlite_autoincrement=True,
)

# The files of a run's tree, packed: there may be many, and most looks at a run do not look at them.
run_files = Table(
    "run_files",
    metadata,
    Column("run_id", _Id, ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    Column("files", LargeBinary, nullable=False),
)

# The number of the last run that an organisation was given a name for.
run_counters = Table(
    "run_counters",
    metadata,
    Column("organisation_id", _Id, ForeignKey("organisations.id"), primary_key=True, autoincrement=False),
    Column("last", BigInteger, nullable=False),
)

# How far a run's telemetry is: the points are numbered from 1 to `last_seq`. `summary` has a list for each
# key in order of arrival (key, count, last, min, max), `attempts` one for each attempt (number, the last seq
# before it, when), `cursor` is whatever the tail of the file wants to know again.
telemetry_states = Table(
    "telemetry_states",
    metadata,
    Column("run_id", _Id, ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    Column("last_seq", BigInteger, nullable=False),
    Column("summary", Text, nullable=False),
    Column("dropped", Text, nullable=False),
    Column("attempts", Text, nullable=False),
    Column("cursor", Text),
)

# A run's points as the lines that readers get, deflated (deflated.py): from the one of seq `first` on. `size`
# and `crc` are those of the lines.
telemetry_blocks = Table(
    "telemetry_blocks",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("num_points", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("crc", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("run_id", "first"),
)

# One attempt's log: how many bytes were sent and how many are kept, and whether it was cut short.
run_logs = Table(
    "run_logs",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("run_id", _Id, ForeignKey("runs.id"), nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("sent", BigInteger, nullable=False),
    Column("kept", BigInteger, nullable=False),
    Column("cut_short", Boolean, nullable=False),
    UniqueConstraint("run_id", "attempt"),
    sqlite_autoincrement=True,
)

# A part of a log, from its `first`-th byte on.
run_log_blocks = Table(
    "run_log_blocks",
    metadata,
    Column("id", _Id, primary_key=True),
    Column("log_id", _Id, nullable=False),
    Column("first", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("crc", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    UniqueConstraint("log_id", "first"),
)

# One row that is written to find out whether anything can be.
readiness = Table(
    "readiness",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("checked_ms", BigInteger, nullable=False),
)

# One row: which process committed last. Others' commits make what a process remembers of the database wrong.
last_writer = Table(
    "last_writer",
    metadata,
    Column("id", _Id, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
)
