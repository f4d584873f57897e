"""docs/metrics.md says what there is: every option, event, error code and table of the server."""

import inspect
import re
from pathlib import Path

import pytest

from infra.metrics.commands.server import start
from infra.server import refusals
from infra.server.api import event_schemas, org_events
from infra.server.api.app import create_app
from infra.server.store.store import Store

TEXT = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


@pytest.mark.parametrize("code", refusals._STATUS)
def test_every_error_code_stands_in_the_docs_with_its_status(code):
    rows = [line for line in TEXT.splitlines() if re.match(rf"\|[^|]*`{code}`[^|]*\|", line)]
    assert any(f"| {refusals._STATUS[code]} |" in row for row in rows)


@pytest.mark.parametrize(
    "name", [*org_events._QUERIES, *org_events._CHANGES, *event_schemas.EXPERIMENT_EVENTS]
)
def test_every_event_stands_in_the_docs(name):
    assert f"`{name.removeprefix('syvain.v2.')}`" in TEXT


@pytest.mark.parametrize("option", inspect.signature(start).parameters)
def test_every_option_stands_in_the_docs(option):
    assert f"`--{option.replace('_', '-')}`" in TEXT


def test_every_address_stands_in_the_docs(tmp_path):
    store = Store(tmp_path / "metrics.sqlite3")
    app = create_app(store, keyless=False)
    store.close()
    paths = {re.sub(r"{\w+}", "<id>", path) for path in app.openapi()["paths"]}
    assert len(paths) > 8
    assert [path for path in sorted(paths) if path not in TEXT] == []
