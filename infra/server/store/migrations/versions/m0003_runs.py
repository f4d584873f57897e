"""Runs, their telemetry and their logs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Only new tables: what is there stays as it is."""
    _runs()
    _telemetry()
    _logs()


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("organisation_id", _id, nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("flow_run_id", sa.Text(), nullable=True),
        sa.Column("command", sa.Text(), nullable=True),
        sa.Column("tree", sa.Text(), nullable=True),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("layout", sa.Text(), nullable=True),
        sa.Column("checks", sa.Text(), nullable=True),
        sa.Column("verdicts", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name="fk_runs_organisation_id"),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name="fk_runs_experiment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
        sa.UniqueConstraint("uid", name="uq_runs_uid"),
        sa.UniqueConstraint("experiment_id", name="uq_runs_experiment_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_organisation_id_id", "runs", ["organisation_id", "id"])
    op.create_table(
        "run_files",
        sa.Column("run_id", _id, autoincrement=False, nullable=False),
        sa.Column("files", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_files_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_run_files"),
    )
    op.create_table(
        "run_counters",
        sa.Column("organisation_id", _id, autoincrement=False, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name="fk_run_counters_organisation_id"
        ),
        sa.PrimaryKeyConstraint("organisation_id", name="pk_run_counters"),
    )


def _telemetry() -> None:
    op.create_table(
        "telemetry_states",
        sa.Column("run_id", _id, autoincrement=False, nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.Text(), nullable=False),
        sa.Column("dropped", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Text(), nullable=False),
        sa.Column("cursor", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_telemetry_states_run_id"),
        sa.PrimaryKeyConstraint("run_id", name="pk_telemetry_states"),
    )
    op.create_table(
        "telemetry_blocks",
        sa.Column("id", _id, nullable=False),
        sa.Column("run_id", _id, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("num_points", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_telemetry_blocks"),
        sa.UniqueConstraint("run_id", "first", name="uq_telemetry_blocks_run_id_first"),
    )


def _logs() -> None:
    op.create_table(
        "run_logs",
        sa.Column("id", _id, nullable=False),
        sa.Column("run_id", _id, nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("sent", sa.BigInteger(), nullable=False),
        sa.Column("kept", sa.BigInteger(), nullable=False),
        sa.Column("cut_short", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_run_logs_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_run_logs"),
        sa.UniqueConstraint("run_id", "attempt", name="uq_run_logs_run_id_attempt"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "run_log_blocks",
        sa.Column("id", _id, nullable=False),
        sa.Column("log_id", _id, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("crc", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run_log_blocks"),
        sa.UniqueConstraint("log_id", "first", name="uq_run_log_blocks_log_id_first"),
    )
