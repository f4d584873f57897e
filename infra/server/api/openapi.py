"""GET /api/openapi.json: every route of the application, made of what the routes say of themselves."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter, FastAPI, Request, Response

from infra.server.api import event_schemas
from infra.server.api.body import BoundedRoute
from infra.server.api.context import GuardedRoute
from infra.server.api.described import Operation, describe, operation_of
from infra.server.api.routes import routes_of
from infra.server.refusals import statuses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastapi.routing import APIRoute

__all__ = ["document", "install"]

router = APIRouter(route_class=BoundedRoute, tags=["health"])
Schema = dict[str, Any]
_REF = "#/components/schemas/{name}"
_EVERY = ("encoding_not_supported", "body_too_large", "malformed_request", "request_timeout", "server_error")
_GUARDED = ("unauthorized", "forbidden", "unavailable")
_ERROR: Schema = {
    "type": "object",
    "description": "Why a request was refused. The details begin with the code.",
    "required": ["data", "error"],
    "properties": {
        "data": {"type": "null"},
        "error": {
            "type": "object",
            "required": ["message", "details"],
            "properties": {
                "message": {"type": "string"},
                "details": {"type": "string", "pattern": "^code=[a-z_0-9]+(; .*)?$"},
            },
        },
    },
}
_KEY: Schema = {
    "name": "idempotency-key",
    "in": "header",
    "required": False,
    "description": "The same request under the same key is done once, and answered the same again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}
_SECURITY: dict[str, Schema] = {
    "key": {"type": "http", "scheme": "bearer", "description": "An API key, or an experiment's token."},
}
_ABOUT = (
    "Experiments with their metrics and annotations. Every reply of `/api/v1` is `{data, error}`; an event of"
    " `/api/v2` is answered for itself. Refusals that make sense to repeat are exactly 408, 425, 429 and 5xx."
)


@router.get("/api/openapi.json")
@describe(Operation(reply={"type": "object"}))
async def openapi(request: Request) -> Response:
    """Describe the API."""
    return Response(msgspec.json.encode(request.app.openapi()), media_type="application/json")


def install(app: FastAPI) -> None:
    """Describe the application, and answer with the description; the routes are all there by now."""
    app.include_router(router)
    made: list[Schema] = []

    def once() -> Schema:
        if not made:
            made.append(document(app))
        return made[0]

    app.openapi = once  # type: ignore[method-assign]  # FastAPI's own hook for it


def document(app: FastAPI) -> Schema:
    """Return the OpenAPI description of an application."""
    described = [(route, operation_of(route.endpoint)) for route in routes_of(app.routes)]
    schemas = _Schemas(operation for _, operation in described if operation is not None)
    paths: dict[str, Schema] = {}
    for route, operation in described:
        path = re.sub(r":\w+}", "}", route.path)
        said = _page(route) if operation is None else _operation(route, operation, schemas)
        paths.setdefault(path, {}).update((method.lower(), said) for method in sorted(route.methods or ()))
    return {
        "openapi": "3.1.0",
        "info": {"title": app.title, "version": "1", "description": _ABOUT},
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": schemas.components, "securitySchemes": _SECURITY},
    }


class _Schemas:
    """The schemas of all types that the routes name; a schema that is given as such stays as it is."""

    def __init__(self, operations: Iterable[Operation]) -> None:
        types: list[Any] = []
        for operation in operations:
            for kind in (operation.data, operation.reply, operation.body, operation.query):
                if kind is not None and not isinstance(kind, dict) and kind not in types:
                    types.append(kind)
        found, components = msgspec.json.schema_components(types, ref_template=_REF)
        self._of = list(zip(types, found, strict=True))
        self.components: dict[str, Schema] = {
            "Error": _ERROR,
            "FolderLevel": event_schemas.FOLDER_LEVEL,
            **components,
        }

    def of(self, kind: Any) -> Schema:
        """Return the schema of a type."""
        if isinstance(kind, dict):
            return kind
        return next(schema for one, schema in self._of if one is kind or one == kind)

    def fields(self, kind: type[msgspec.Struct]) -> Schema:
        """Return the schema of an object with its fields."""
        return self.components[self.of(kind)["$ref"].rpartition("/")[2]]


def _operation(route: APIRoute, operation: Operation, schemas: _Schemas) -> Schema:
    summary, _, description = inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n\n")
    said: Schema = {
        "operationId": route.name + ("_v2" if route.path.startswith("/api/v2/") else ""),
        "summary": summary,
        "tags": list(route.tags) or [route.endpoint.__module__.rpartition(".")[2]],
        "parameters": _parameters(route, operation, schemas),
        "responses": _responses(route, operation, schemas),
        "security": _security(route),
    }
    if description:
        said["description"] = description.replace("\n", " ")
    if operation.body is not None:
        content: Schema = {"schema": schemas.of(operation.body)}
        if operation.examples:
            content["examples"] = {name: {"value": value} for name, value in operation.examples.items()}
        said["requestBody"] = {"required": True, "content": {"application/json": content}}
    return said


def _page(route: APIRoute) -> Schema:
    """Describe a page for people, which says in words what happened."""
    return {
        "operationId": f"{route.name}_page_{min(route.methods or ('',)).lower()}",
        "summary": inspect.cleandoc(route.endpoint.__doc__ or "").partition("\n\n")[0],
        "tags": ["pages"],
        "parameters": _path_parameters(route),
        "responses": {"default": {"description": "A page.", "content": {"text/html": {}}}},
    }


def _security(route: APIRoute) -> list[Schema]:
    if not isinstance(route, GuardedRoute):
        return []
    return [{"key": []}, {}] if route.keyless else [{"key": []}]


def _path_parameters(route: APIRoute) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)(?::\w+)?}", route.path)
    ]


def _parameters(route: APIRoute, operation: Operation, schemas: _Schemas) -> list[Schema]:
    found = _path_parameters(route)
    if operation.query is not None:
        fields = schemas.fields(operation.query)
        found += [
            {"name": name, "in": "query", "required": name in fields.get("required", ()), "schema": schema}
            for name, schema in fields["properties"].items()
        ]
    return found + ([_KEY] if operation.repeatable else [])


def _responses(route: APIRoute, operation: Operation, schemas: _Schemas) -> Schema:
    found: Schema = {"200": _success(operation, schemas)}
    by_status: dict[int, list[str]] = {}
    for code in _codes(route, operation):
        by_status.setdefault(statuses()[code], []).append(code)
    for status, codes in sorted(by_status.items()):
        found[str(status)] = {
            "description": "Refused: " + ", ".join(f"`{code}`" for code in codes),
            "content": {"application/json": {"schema": {"$ref": _REF.format(name="Error")}}},
        }
    return found


def _success(operation: Operation, schemas: _Schemas) -> Schema:
    if operation.reply is not None:
        schema = schemas.of(operation.reply)
    else:
        schema = {
            "type": "object",
            "required": ["data", "error"],
            "properties": {"data": schemas.of(operation.data), "error": {"type": "null"}},
        }
    content = {operation.media: {"schema": schema}}
    for media in operation.other_media:
        content[media] = {"schema": {"type": "string"}}
    return {"description": "It went well.", "content": content}


def _codes(route: APIRoute, operation: Operation) -> list[str]:
    codes = [*_EVERY, *operation.codes]
    if isinstance(route, GuardedRoute):
        codes += _GUARDED
    if operation.body is not None or operation.query is not None:
        codes.append("invalid_request")
    if operation.repeatable:
        codes += ["invalid_request", "idempotency_key_in_progress", "idempotency_key_reused"]
    return list(dict.fromkeys(codes))
