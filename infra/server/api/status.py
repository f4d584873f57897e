"""Whether the server answers, and whether a key is good."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from infra.server.api.context import require, store_of

__all__ = ["router"]

router = APIRouter()


@router.get("/healthz")
async def healthz(request: Request) -> dict[str, str]:
    """Answer once the database can be read."""
    await store_of(request).read(lambda connection: connection.exec_driver_sql("SELECT 1").scalar())
    return {"status": "ok"}


@router.get("/api/v1/auth/status")
@router.get("/api/v2/auth/status")
async def auth_status(request: Request) -> dict[str, Any]:
    """Say whom a key acts for."""
    organisation = (await require(request, "read")).organisation
    return {
        "data": {
            "auth": {"kind": "api_key"},
            "organization": {"id": organisation.uid, "name": organisation.name},
        },
        "error": None,
    }
