"""Run by Alembic: migrates over the connection that the server hands in."""

from alembic import context

from infra.server.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
