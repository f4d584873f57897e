"""The API description is true: it names every route, its examples fit, and a server behaves as it says."""

import copy
import json
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from infra.server.api import event_schemas, org_events
from infra.server.api.app import create_app
from infra.server.api.routes import routes_of
from infra.server.store.store import Store
from tests.support.metrics_server import MetricsClient, running_server
from tests.support.rest import Rest

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
PAGES = {
    "/",
    "/app/experiments/{experiment_id}",
    "/dashboard",
    "/dashboard/experiments/{experiment_id}",
    "/dashboard/experiments/{experiment_id}/telemetry",
    "/sign-in",
    "/sign-out",
}


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("app") / "metrics.sqlite3")
    app = create_app(store, keyless=False)
    store.close()
    return app


@pytest.fixture(scope="module")
def document(server):
    client = MetricsClient(server.url, server.key)
    found = client.http.get("/api/openapi.json").json()
    client.close()
    return found


def validator(document, schema):
    return Draft202012Validator({**schema, "components": document["components"]})


def test_every_route_is_described_and_all_but_pages_say_what_they_answer(app):
    paths = app.openapi()["paths"]
    named = {(path.replace(":path", ""), method) for path, method in _routes(app)}
    assert named == {(path, method.upper()) for path, item in paths.items() for method in item}
    pages = {path for path, item in paths.items() for said in item.values() if "default" in said["responses"]}
    assert pages == PAGES
    assert all(said["summary"] for item in paths.values() for said in item.values())
    ids = [said["operationId"] for item in paths.values() for said in item.values()]
    assert len(ids) == len(set(ids))


def _routes(app):
    return [(route.path, method) for route in routes_of(app.routes) for method in route.methods or ()]


def test_the_document_is_openapi_and_every_schema_is_one(document):
    assert document["openapi"] == "3.1.0"
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    assert "slt_" not in json.dumps(document["components"])


def test_every_example_fits_its_schema(document):
    examples = [
        (said["requestBody"]["content"]["application/json"], example["value"])
        for item in document["paths"].values()
        for said in item.values()
        if "requestBody" in said
        for example in said["requestBody"]["content"]["application/json"].get("examples", {}).values()
    ]
    assert len(examples) > 25
    for content, value in examples:
        validator(document, content["schema"]).validate(value)


def test_the_schemas_name_every_event_that_a_server_knows():
    known = {name.removeprefix("syvain.v2.") for name in [*org_events._QUERIES, *org_events._CHANGES]}
    assert set(event_schemas.ORG_EVENTS) == known
    assert set(event_schemas.EXAMPLES) == known | set(event_schemas.EXPERIMENT_EVENTS)


def test_a_server_takes_every_example_of_an_event_and_answers_as_the_schema_says(document, client, slug):
    experiment = client.open(slug)
    folders = {"/mamba": f"/{slug}", "/mamba-2": f"/{slug}-2", "mamba": slug, "mamba-2": f"{slug}-2"}

    def made_ours(value):
        text = json.dumps(value).replace(event_schemas.ID, experiment.id).replace("slt_...", experiment.token)
        for theirs, ours in folders.items():
            text = text.replace(json.dumps(theirs), json.dumps(ours))
        return json.loads(text)

    for events, post, path in (
        (event_schemas.ORG_EVENTS, client.post, "/api/v2/events"),
        (event_schemas.EXPERIMENT_EVENTS, experiment.post, "/api/v2/experiments/{experiment_id}/events"),
    ):
        said = document["paths"][path]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
        for name, (_, reply, _) in events.items():
            event = made_ours(event_schemas.example(name, event_schemas.EXAMPLES[name]))
            answered = post([event]).json()
            validator(document, said).validate(answered)
            assert answered[0]["event"] == f"syvain.v2.{reply}", answered


def test_what_the_description_refuses_a_server_refuses_too(document, client, slug):
    """Each required field of each event is left out once; the error fits the schema of errors."""
    experiment = client.open(slug)
    for events, post in (
        (event_schemas.ORG_EVENTS, client.post),
        (event_schemas.EXPERIMENT_EVENTS, experiment.post),
    ):
        said = {**event_schemas.replies(events)}
        for name, (data, _, _) in events.items():
            for field in data.get("required", ()):
                event = copy.deepcopy(event_schemas.example(name, event_schemas.EXAMPLES[name]))
                del event["data"][field]
                (reply,) = answered = post([event]).json()
                assert reply["event"] == "syvain.v2.error", (name, field)
                validator(document, said).validate(answered)


def test_lines_of_a_stream_fit_their_schema(document, client, slug):
    experiment = client.open(slug)
    experiment.send(experiment.metric("loss", 1.0, 1))
    lines = client.stream(experiment.id, seriesNames=["loss", "nothing"])
    assert len(lines) == 4
    lines += client.stream("nope")
    for line in lines:
        validator(document, event_schemas.SERIES_LINES).validate(line)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory):
    """A server of its own: what is made up here may delete keys and folders."""
    with running_server(tmp_path_factory.mktemp("fuzzed") / "data") as server:
        yield server


def test_made_up_requests_meet_no_server_error_and_nothing_undescribed(fuzzed):
    client = MetricsClient(fuzzed.url, fuzzed.key)
    rest = Rest(client)
    schema = schemathesis.openapi.from_url(f"{fuzzed.url}/api/openapi.json")
    statuses: Counter[int] = Counter()
    folder_id = ""
    for result in schema.get_all_operations():
        operation = result.ok()  # type: ignore[union-attr]  # an invalid document has no such method
        if operation.path not in PAGES:
            experiment = client.open("run-1")
            made = rest.send("POST", "/folders", {"name": "mamba"})
            folder_id = made.json()["data"]["folder"]["folder_id"] if made.status_code == 200 else folder_id
            run = rest.ask("POST", "/runs", {"slug": "run-1"})
            known = {"experiment_id": experiment.id, "folder_id": folder_id, "run_id": run["id"]}
            statuses.update(_try(operation, _key(operation, client, experiment), known))
    assert sum(statuses.values()) > 400
    assert statuses[200] > 100
    assert client.http.get("/readyz").status_code == 200
    client.close()


def _key(operation, client, experiment):
    """Return what opens a route."""
    if operation.path.endswith(("/ingest", "{experiment_id}/events")):
        return Rest(client).ingestion_token(experiment.id)
    return client.key


def _try(operation, key, known):
    """Send made-up requests and return how often each status came."""
    statuses: Counter[int] = Counter()

    @given(case=operation.as_strategy(), of_something=st.booleans())
    @settings(
        max_examples=8,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def each(case, of_something):
        if of_something:  # most ids that are made up are of nothing
            case.path_parameters = {
                name: known.get(name, value) for name, value in (case.path_parameters or {}).items()
            }
        if "wait_s" in (case.query or {}):
            case.query["wait_s"] = 0
        response = case.call(headers={"authorization": f"Bearer {key}"})
        statuses[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    each()
    return statuses
