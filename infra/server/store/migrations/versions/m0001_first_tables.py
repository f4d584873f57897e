"""The first tables."""

import sqlalchemy as sa
from alembic import op

from infra.server.store.schema import ExactDouble

revision = "0001"
down_revision = None

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """From an empty database."""
    op.create_table(
        "applied_ids",
        sa.Column("experiment_id", _id, autoincrement=False, nullable=False),
        sa.Column("message_id", sa.Text(), nullable=False),
        sa.Column("applied_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("experiment_id", "message_id", name="pk_applied_ids"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "organisations",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_organisations"),
        sa.UniqueConstraint("uid", name="uq_organisations_uid"),
    )
    op.create_table(
        "points",
        sa.Column("series_id", _id, autoincrement=False, nullable=False),
        sa.Column("arrival", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("timestamp_ms", sa.BigInteger(), nullable=False),
        sa.Column("value", ExactDouble(), nullable=False),
        sa.Column("session_id", _id, nullable=False),
        sa.PrimaryKeyConstraint("series_id", "arrival", name="pk_points"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "folders",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("organisation_id", _id, nullable=False),
        sa.Column("parent_id", _id, nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name="fk_folders_organisation_id"),
        sa.ForeignKeyConstraint(["parent_id"], ["folders.id"], name="fk_folders_parent_id"),
        sa.PrimaryKeyConstraint("id", name="pk_folders"),
        sa.UniqueConstraint("uid", name="uq_folders_uid"),
    )
    op.create_table(
        "keys",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("organisation_id", _id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name="fk_keys_organisation_id"),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("hash", name="uq_keys_hash"),
        sa.UniqueConstraint("uid", name="uq_keys_uid"),
    )
    op.create_table(
        "experiments",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("organisation_id", _id, nullable=False),
        sa.Column("folder_id", _id, nullable=True),
        sa.Column("slug", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_meta", sa.Text(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("done_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_heartbeat_ms", sa.BigInteger(), nullable=True),
        sa.Column("last_event_ms", sa.BigInteger(), nullable=True),
        sa.Column("started_session_id", _id, nullable=True),
        sa.Column("experiment_revision", sa.BigInteger(), nullable=False),
        sa.Column("series_revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["folder_id"], ["folders.id"], name="fk_experiments_folder_id"),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name="fk_experiments_organisation_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_experiments"),
        sa.UniqueConstraint("organisation_id", "slug", name="uq_experiments_organisation_id_slug"),
        sa.UniqueConstraint("uid", name="uq_experiments_uid"),
    )
    op.create_index("ix_experiments_folder_id", "experiments", ["folder_id"], unique=False)
    op.create_table(
        "series",
        sa.Column("id", _id, nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("metadata", sa.Text(), nullable=False),
        sa.Column("metadata_hash", sa.LargeBinary(), nullable=False),
        sa.Column("num_points", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name="fk_series_experiment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_series"),
        sa.UniqueConstraint(
            "experiment_id", "name", "metadata_hash", name="uq_series_experiment_id_name_metadata_hash"
        ),
    )
    op.create_table(
        "sessions",
        sa.Column("id", _id, nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("sender", sa.Text(), nullable=True),
        sa.Column("opened_id", _id, nullable=True),
        sa.Column("carried", sa.Boolean(), nullable=False),
        sa.Column("opened_ms", sa.BigInteger(), nullable=False),
        sa.Column("next_sequence", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["opened_id"], ["sessions.id"], name="fk_sessions_opened_id"),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name="fk_sessions_experiment_id"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("experiment_id", "sender", name="uq_sessions_experiment_id_sender"),
    )
    op.create_table(
        "annotations",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("session_id", _id, nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("meta", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name="fk_annotations_experiment_id"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_annotations_session_id"),
        sa.PrimaryKeyConstraint("id", name="pk_annotations"),
        sa.UniqueConstraint("uid", name="uq_annotations_uid"),
    )
    op.create_index(
        "ix_annotations_experiment_id_at_ms", "annotations", ["experiment_id", "at_ms"], unique=False
    )
    op.create_table(
        "lifecycle",
        sa.Column("id", _id, nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("session_id", _id, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("error_meta", sa.Text(), nullable=True),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["experiment_id"], ["experiments.id"], name="fk_lifecycle_experiment_id"),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_lifecycle_session_id"),
        sa.PrimaryKeyConstraint("id", name="pk_lifecycle"),
    )
    op.create_index("ix_lifecycle_experiment_id", "lifecycle", ["experiment_id"], unique=False)
    op.create_table(
        "message_holes",
        sa.Column("session_id", _id, nullable=False),
        sa.Column("first", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("last", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_message_holes_session_id"),
        sa.PrimaryKeyConstraint("session_id", "first", name="pk_message_holes"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tokens",
        sa.Column("id", _id, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("session_id", _id, nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.Column("revoked_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_tokens_session_id"),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
        sa.UniqueConstraint("hash", name="uq_tokens_hash"),
    )
    op.create_index("ix_tokens_session_id", "tokens", ["session_id"], unique=False)
    op.create_index(
        "uq_folders_siblings",
        "folders",
        ["organisation_id", sa.text("coalesce(parent_id, 0)"), "name"],
        unique=True,
    )
