"""The whole model: what each part of the server keeps, one function a part."""

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """From the first tables, with what they hold."""
