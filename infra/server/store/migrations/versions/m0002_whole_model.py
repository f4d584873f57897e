"""The whole model: what each part of the server keeps, one function a part."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """From the first tables, with what they hold."""
    _people_and_roles()
    _last_writer()
    _rest()
    _point_blocks()
    _applied_keys()
    _ids_never_twice()


def _people_and_roles() -> None:
    """Whoever had a key so far had made the organisation: an owner. A key without a role may only look."""
    op.add_column("keys", sa.Column("role", sa.Text(), nullable=False, server_default="viewer"))
    op.execute("UPDATE keys SET role = 'owner'")
    op.add_column("keys", sa.Column("last_used_ms", sa.BigInteger(), nullable=True))
    op.create_table(
        "people",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("email", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=True),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_people"),
        sa.UniqueConstraint("uid", name="uq_people_uid"),
        sa.UniqueConstraint("email", name="uq_people_email"),
    )
    op.create_table(
        "memberships",
        sa.Column("organisation_id", _id, autoincrement=False, nullable=False),
        sa.Column("person_id", _id, autoincrement=False, nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name="fk_memberships_organisation_id"
        ),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name="fk_memberships_person_id"),
        sa.PrimaryKeyConstraint("organisation_id", "person_id", name="pk_memberships"),
    )
    op.create_index("ix_memberships_person_id", "memberships", ["person_id"])
    # Organisations so far had nobody: the first one gets the owner whom a first start makes.
    op.execute(
        "INSERT INTO people (uid, email, name, created_ms)"
        " SELECT uid, 'owner@localhost', 'Owner', created_ms FROM organisations ORDER BY id LIMIT 1"
    )
    op.execute(
        "INSERT INTO memberships (organisation_id, person_id, role, created_ms)"
        " SELECT organisations.id, people.id, 'owner', people.created_ms"
        " FROM organisations JOIN people ON people.uid = organisations.uid"
    )
    op.create_table(
        "sign_ins",
        sa.Column("id", _id, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("person_id", _id, nullable=False),
        sa.Column("organisation_id", _id, nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["person_id"], ["people.id"], name="fk_sign_ins_person_id"),
        sa.ForeignKeyConstraint(
            ["organisation_id"], ["organisations.id"], name="fk_sign_ins_organisation_id"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_sign_ins"),
        sa.UniqueConstraint("hash", name="uq_sign_ins_hash"),
    )
    op.create_index("ix_sign_ins_person_id", "sign_ins", ["person_id"])
    op.create_index("ix_sign_ins_expires_ms", "sign_ins", ["expires_ms"])
    op.create_table(
        "views",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("organisation_id", _id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("setup", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.Column("updated_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["organisation_id"], ["organisations.id"], name="fk_views_organisation_id"),
        sa.PrimaryKeyConstraint("id", name="pk_views"),
        sa.UniqueConstraint("uid", name="uq_views_uid"),
        sa.UniqueConstraint("organisation_id", "name", name="uq_views_organisation_id_name"),
    )


def _rest() -> None:
    """Display names, deletion in pieces, ingestion keys, and requests that may be repeated."""
    op.add_column("experiments", sa.Column("display_name", sa.Text(), nullable=True))
    op.add_column("experiments", sa.Column("deleted_ms", sa.BigInteger(), nullable=True))
    op.create_table(
        "ingestion_keys",
        sa.Column("id", _id, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("session_id", _id, nullable=False),
        sa.Column("token_id", _id, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("last_used_ms", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name="fk_ingestion_keys_experiment_id"
        ),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], name="fk_ingestion_keys_session_id"),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name="fk_ingestion_keys_token_id"),
        sa.PrimaryKeyConstraint("id", name="pk_ingestion_keys"),
        sa.UniqueConstraint("uid", name="uq_ingestion_keys_uid"),
        sa.UniqueConstraint("session_id", name="uq_ingestion_keys_session_id"),
        sa.UniqueConstraint("token_id", name="uq_ingestion_keys_token_id"),
    )
    op.create_index("ix_ingestion_keys_experiment_id", "ingestion_keys", ["experiment_id"])
    op.create_table(
        "idempotency_keys",
        sa.Column("organisation_id", _id, autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("request_hash", sa.LargeBinary(), nullable=False),
        sa.Column("reply", sa.LargeBinary(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("organisation_id", "hash", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_ms", "idempotency_keys", ["created_ms"])
    op.create_table(
        "readiness",
        sa.Column("id", _id, autoincrement=False, nullable=False),
        sa.Column("checked_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_readiness"),
    )


def _point_blocks() -> None:
    """Points move into blocks, whose contents are theirs from the first point on."""
    from infra.server.store import moved_points
    from infra.server.store.schema import ExactDouble

    op.create_table(
        "point_blocks",
        sa.Column("id", _id, nullable=False),
        sa.Column("series_id", _id, nullable=False),
        sa.Column("first", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("min_step", sa.BigInteger(), nullable=False),
        sa.Column("max_step", sa.BigInteger(), nullable=False),
        sa.Column("min_ms", sa.BigInteger(), nullable=False),
        sa.Column("max_ms", sa.BigInteger(), nullable=False),
        sa.Column("summary", sa.LargeBinary(), nullable=True),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_point_blocks"),
        sa.UniqueConstraint("series_id", "first", name="uq_point_blocks_series_id_first"),
    )
    op.add_column("series", sa.Column("last_step", sa.BigInteger(), nullable=True))
    op.add_column("series", sa.Column("last_timestamp_ms", sa.BigInteger(), nullable=True))
    op.add_column("series", sa.Column("last_value", ExactDouble(), nullable=True))
    moved_points.move(op.get_bind())
    op.drop_table("points")


def _applied_keys() -> None:
    """Clients' random ids go together into rows. Each is known for as long as if it were applied now."""
    from infra.server.store import applied, clock

    op.create_table(
        "applied_keys",
        sa.Column("id", _id, nullable=False),
        sa.Column("experiment_id", _id, nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("depth", sa.BigInteger(), nullable=False),
        sa.Column("prefix", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("page", sa.LargeBinary(), nullable=False),
        sa.Column("keys", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_applied_keys"),
    )
    op.create_index("ix_applied_keys_generation", "applied_keys", ["generation"])
    op.create_index(
        "ix_applied_keys_experiment_id_generation", "applied_keys", ["experiment_id", "generation"]
    )
    applied.import_all(op.get_bind(), now_ms=clock.now_ms())
    op.drop_table("applied_ids")


def _ids_never_twice() -> None:
    """SQLite gave the id of the last row to the next one, once the last was deleted."""
    if op.get_bind().dialect.name == "sqlite":
        for table in ("experiments", "sessions", "series"):
            with op.batch_alter_table(
                table,
                recreate="always",
                reflect_kwargs={"resolve_fks": False},
                table_kwargs={"sqlite_autoincrement": True},
            ):
                pass


def _last_writer() -> None:
    op.create_table(
        "last_writer",
        sa.Column("id", _id, autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_last_writer"),
    )
