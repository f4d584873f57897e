"""The REST API, version 1: one envelope, `{"data": X, "error": null}`, and one shape of errors."""

from infra.server.api.v1 import (
    annotations,
    experiments,
    folders,
    ingest,
    ingestion_keys,
    queries,
    run_checks,
    run_logs,
    run_panels,
    run_telemetry,
    runs,
)

__all__ = ["ROUTERS"]

ROUTERS = tuple(
    module.router
    for module in (
        folders,
        experiments,
        ingestion_keys,
        ingest,
        annotations,
        queries,
        run_checks,
        runs,
        run_telemetry,
        run_panels,
        run_logs,
    )
)
