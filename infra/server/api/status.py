"""Whether the server answers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from infra.server.api.context import store_of

__all__ = ["router"]

router = APIRouter()


@router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """Answer once the database can be read."""
    await store_of(request).read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    return {"status": "ok"}
