"""The event protocol as JSON schemas: what each event carries, what answers it, and an example of it.

The bodies are decoded elsewhere, event by event; a test sends every example of this module to a server.
"""

from __future__ import annotations

from typing import Any

from infra.server.refusals import statuses
from runtime.events import limits

__all__ = [
    "EXAMPLES",
    "EXPERIMENT_EVENTS",
    "FOLDER_LEVEL",
    "ID",
    "ORG_EVENTS",
    "PREFIX",
    "SERIES_EXAMPLE",
    "SERIES_LINES",
    "SERIES_QUERY",
    "batch",
    "batch_examples",
    "example",
    "replies",
]

Schema = dict[str, Any]
PREFIX = "syvain.v2."
ID = "00000000-0000-4000-8000-000000000000"


def _object(required: str = "", **properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        **({"required": required.split()} if required else {}),
    }


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _text(least: int = 0, most: int | None = None) -> Schema:
    return {"type": "string", "minLength": least, **({} if most is None else {"maxLength": most})}


_STRING: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TIME: Schema = {"type": "integer", "minimum": 0, "maximum": limits.MAX_TIMESTAMP_MS}
_WHEN = _or_null(_TIME)
_STEP: Schema = {"type": "integer", "minimum": 0, "maximum": limits.MAX_STEP}
_META: Schema = {"type": "object"}
_FOLDER: Schema = {"type": "string", "description": "A folder's id, or its path from the root."}
_PLACE = _or_null(_FOLDER)
_IDS = _array(_STRING, maxItems=500)
_NOTHING = _object()
_METRIC_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[ -~]*$"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _STRING}

_TOKEN = _object(
    "experimentId experimentToken expiresAtMs",
    experimentId=_STRING,
    experimentToken=_STRING,
    expiresAtMs=_TIME,
)
_REVISIONS = {"experimentRevision": _COUNT, "seriesRevision": _COUNT}
_RECORD = _object(
    "experimentId slug description meta status error createdAtMs updatedAtMs startedAtMs doneAtMs"
    " lastEventAtMs experimentRevision seriesRevision",
    experimentId=_STRING,
    slug=_STRING,
    displayName=_or_null(_STRING),
    description=_STRING,
    meta=_META,
    status={"enum": ["created", "running", "done", "error"]},
    error=_or_null(_object("message meta", message=_STRING, meta=_META)),
    createdAtMs=_TIME,
    updatedAtMs=_TIME,
    startedAtMs=_WHEN,
    doneAtMs=_WHEN,
    lastHeartbeatAtMs=_WHEN,
    lastEventAtMs=_WHEN,
    **_REVISIONS,
)
_LEVEL: Schema = {"$ref": "#/components/schemas/FolderLevel"}
FOLDER_LEVEL = _object(
    "folders experiments",
    folderId=_STRING,
    name=_STRING,
    folders=_array(_LEVEL),
    experiments=_array(_object("experimentId slug", experimentId=_STRING, slug=_STRING)),
)
_MISSING = {"missingExperimentIds": _array(_STRING)}
_ONE = _object("experimentId", experimentId=_STRING)
_SEVERAL = _object("experimentIds", experimentIds=_IDS)

ORG_EVENTS: dict[str, tuple[Schema, str, Schema]] = {
    "experiment.open": (
        _object(
            "slug",
            slug=_text(1, limits.MAX_SLUG_UNITS),
            description=_text(0, limits.MAX_DESCRIPTION_UNITS),
            meta=_META,
        ),
        "experiment.opened",
        {**_TOKEN, "properties": {**_TOKEN["properties"], "acceptsTimestampMs": {"type": "boolean"}}},
    ),
    "experiment.tokenRefresh": (
        _object("experimentId experimentToken", experimentId=_STRING, experimentToken=_STRING),
        "experiment.tokenRefreshed",
        _TOKEN,
    ),
    "foldertree.read": (_NOTHING, "foldertree.read", _LEVEL),
    "folder.create": (
        _object("name", name=_text(1, 200), parentFolderId=_PLACE),
        "folder.created",
        _object("folderId", folderId=_STRING),
    ),
    "folder.rename": (
        _object("folderId name", folderId=_FOLDER, name=_text(1, 200)),
        "folder.renamed",
        _NOTHING,
    ),
    "folder.move": (
        _object("folderId toFolderId", folderId=_FOLDER, fromFolderId=_PLACE, toFolderId=_PLACE),
        "folder.moved",
        _NOTHING,
    ),
    "folderexperiment.move": (
        _object("experimentId toFolderId", experimentId=_STRING, fromFolderId=_PLACE, toFolderId=_PLACE),
        "folderexperiment.moved",
        _NOTHING,
    ),
    "query.experiment": (_ONE, "query.experiment.result", _object("experiment", experiment=_RECORD)),
    "query.experiments": (
        _SEVERAL,
        "query.experiments.result",
        _object("experiments missingExperimentIds", experiments=_array(_RECORD), **_MISSING),
    ),
    "query.revisions": (
        _SEVERAL,
        "query.revisions.result",
        _object(
            "revisions missingExperimentIds",
            revisions=_array(_object("experimentId", experimentId=_STRING, **_REVISIONS)),
            **_MISSING,
        ),
    ),
    "query.catalog": (
        _ONE,
        "query.catalog.result",
        _object(
            "experimentId series",
            experimentId=_STRING,
            series=_array(
                _object(
                    "seriesName metadata",
                    seriesName=_STRING,
                    metadata=_array(_object("key values", key=_STRING, values=_array(_STRING))),
                )
            ),
        ),
    ),
    "query.annotations": (
        _ONE,
        "query.annotations.result",
        _object(
            "annotations",
            annotations=_array(
                _object(
                    "annotationId annotation meta createdAtMs",
                    annotationId=_STRING,
                    annotation=_STRING,
                    meta=_META,
                    createdAtMs=_TIME,
                )
            ),
        ),
    ),
}
"""By name without its prefix: the event's data, the name of what answers it, that one's data."""

_PLAIN = _object("experimentId", experimentId=_STRING, timestampMs=_WHEN)
EXPERIMENT_EVENTS: dict[str, tuple[Schema, str, Schema]] = {
    "experiment.start": (_PLAIN, "experiment.started", _NOTHING),
    "experiment.metric": (
        _object(
            "experimentId metricName metricValue step",
            experimentId=_STRING,
            metricName=_METRIC_NAME,
            metricValue={"type": "number"},
            step=_STEP,
            timestampMs=_WHEN,
            meta=_TEXTS,
        ),
        "experiment.metricRecorded",
        _NOTHING,
    ),
    "experiment.annotate": (
        _object(
            "experimentId annotation",
            experimentId=_STRING,
            annotation=_text(1, limits.MAX_ANNOTATION_UNITS),
            meta=_META,
            timestampMs=_WHEN,
        ),
        "experiment.annotated",
        _object("annotationId", annotationId=_STRING),
    ),
    "experiment.done": (_PLAIN, "experiment.done", _NOTHING),
    "experiment.error": (
        _object(
            "experimentId error",
            experimentId=_STRING,
            error=_text(1, limits.MAX_ERROR_UNITS),
            meta=_META,
            timestampMs=_WHEN,
        ),
        "experiment.errored",
        _NOTHING,
    ),
    "experiment.tokenRevoke": (_PLAIN, "experiment.tokenRevoked", _NOTHING),
}

SERIES_QUERY = _object(
    "messageId event data",
    messageId=_STRING,
    event={"const": PREFIX + "query.experimentseries"},
    data=_object(
        "experimentId",
        experimentId=_STRING,
        seriesNames=_or_null(_array(_STRING, maxItems=1000)),
        filter=_array(_object("metadataKey", metadataKey=_STRING, metadataValue=_or_null(_STRING))),
        xAxis={"enum": ["step", "timestamp"]},
        copies={"enum": ["all", "newest"]},
    ),
)


def _reply(name: str, data: Schema, *, message_id: bool = True) -> Schema:
    required = "correlationId event data"
    ids = {"messageId": _STRING} if message_id else {}
    return _object(
        f"messageId {required}" if message_id else required,
        correlationId=_STRING,
        event={"const": PREFIX + name},
        data=data,
        **ids,
    )


ERROR_DATA = _object(
    "code message status retryable",
    code={"enum": sorted(statuses())},
    message=_STRING,
    status={"type": "integer"},
    retryable={"type": "boolean"},
    retryAfterMs=_COUNT,
    details=_META,
)
_COUNTS = {"batches": _COUNT, "points": _COUNT}
SERIES_LINES: Schema = {
    "description": "Each line of the reply.",
    "anyOf": [
        _reply(
            "query.series.data",
            _object(
                "experimentId seriesName metadata data",
                experimentId=_STRING,
                seriesName=_STRING,
                metadata=_TEXTS,
                data=_object(
                    "step timestampMs value",
                    step=_array(_or_null(_STEP)),
                    timestampMs=_array(_TIME),
                    value=_array({"type": "number"}),
                ),
            ),
            message_id=False,
        ),
        _reply(
            "query.experimentseries.series",
            _object("seriesName batches points", seriesName=_STRING, **_COUNTS),
            message_id=False,
        ),
        _reply(
            "query.experimentseries.done",
            _object("series batches points", series=_COUNT, **_COUNTS),
            message_id=False,
        ),
        _reply("error", ERROR_DATA, message_id=False),
    ],
}


def batch(events: dict[str, tuple[Schema, str, Schema]]) -> Schema:
    """Return the schema of a body: up to 1,000 of some events, in any order."""
    kinds = [
        _object("messageId event data", messageId=_text(), event={"const": PREFIX + name}, data=data)
        for name, (data, _, _) in events.items()
    ]
    return _array({"anyOf": kinds}, maxItems=limits.MAX_BATCH_EVENTS)


def replies(events: dict[str, tuple[Schema, str, Schema]]) -> Schema:
    """Return the schema of what answers them: as many, in the same order, each by itself."""
    kinds = [_reply(name, data) for _, name, data in events.values()]
    return _array({"anyOf": [*kinds, _reply("error", ERROR_DATA)]})


def batch_examples(events: dict[str, tuple[Schema, str, Schema]]) -> dict[str, Any]:
    """Return a body for each event, by its name."""
    return {name: [example(name, EXAMPLES[name])] for name in events}


def example(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return an event as it is sent."""
    return {"messageId": f"example-{name}", "event": PREFIX + name, "data": data}


EXAMPLES: dict[str, dict[str, Any]] = {
    "experiment.open": {"slug": "run-1", "description": "the first", "meta": {"lr": 0.1}},
    "experiment.tokenRefresh": {"experimentId": ID, "experimentToken": "slt_..."},
    "foldertree.read": {},
    "folder.create": {"name": "mamba", "parentFolderId": None},
    "folder.rename": {"folderId": "/mamba", "name": "mamba-2"},
    "folder.move": {"folderId": "/mamba-2", "fromFolderId": None, "toFolderId": None},
    "folderexperiment.move": {"experimentId": ID, "fromFolderId": None, "toFolderId": "/mamba-2"},
    "query.experiment": {"experimentId": ID},
    "query.experiments": {"experimentIds": [ID]},
    "query.revisions": {"experimentIds": [ID]},
    "query.catalog": {"experimentId": ID},
    "query.annotations": {"experimentId": ID},
    "experiment.start": {"experimentId": ID},
    "experiment.metric": {
        "experimentId": ID,
        "metricName": "loss",
        "metricValue": 0.5,
        "step": 1,
        "timestampMs": 1_700_000_000_000,
        "meta": {"split": "train"},
    },
    "experiment.annotate": {"experimentId": ID, "annotation": "a note", "meta": {"step": 1}},
    "experiment.error": {
        "experimentId": ID,
        "error": "ValueError: boom",
        "meta": {"error_type": "ValueError"},
    },
    "experiment.done": {"experimentId": ID},
    "experiment.tokenRevoke": {"experimentId": ID},
}
"""The data of one event of each name. A server that has an experiment puts its id in the place of `ID`."""

SERIES_EXAMPLE = {
    "messageId": "series",
    "event": PREFIX + "query.experimentseries",
    "data": {"experimentId": ID, "seriesNames": ["loss"], "filter": [], "xAxis": "step"},
}
