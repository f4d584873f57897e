"""Annotations read a page at a time: all of them, in one order, or a refusal."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.server.store import annotations
from infra.server.store.store import Store
from tests.support.databases import KINDS
from tests.support.series import Run


@pytest.fixture(scope="module", params=KINDS)
def store(request, tmp_path_factory):
    if request.param == "sqlite":
        store = Store(tmp_path_factory.mktemp("annotations") / "metrics.sqlite3")
        yield store
        store.close()
        return
    with request.getfixturevalue("postgres").database() as url:
        store = Store(url)
        yield store
        store.close()


def annotated(store, times):
    run = Run(store)
    run.open()
    rows = [
        {
            "uid": f"{run.experiment_id}-{number}",
            "experiment_id": run.experiment_id,
            "session_id": run.sessions[0].id,
            "text": f"é\x00{number}",
            "meta": f'{{"n":{number}}}',
            "at_ms": at_ms,
        }
        for number, at_ms in enumerate(times)
    ]
    if rows:
        store.write_now(lambda connection: annotations.append(connection, rows))
    return run


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 3), max_size=30))
def test_pages_give_what_one_reading_gives_the_newest_first(store, monkeypatch, times):
    monkeypatch.setattr(annotations, "_PAGE", 4)
    run = annotated(store, times)
    text = store.read_now(
        lambda connection: annotations.encoded(connection, run.experiment_id, max_bytes=1 << 20)
    )
    whole = store.read_now(
        lambda connection: annotations.of_experiment(connection, run.experiment_id, limit=100)
    )
    assert json.loads(text) == whole
    wanted = sorted(range(len(times)), key=lambda number: (times[number], number), reverse=True)
    assert [one["meta"]["n"] for one in whole] == wanted


def test_more_than_an_answer_takes_is_none_at_all(store):
    run = annotated(store, range(10))

    def encoded(max_bytes):
        return store.read_now(
            lambda connection: annotations.encoded(connection, run.experiment_id, max_bytes=max_bytes)
        )

    size = len(encoded(1 << 20))
    assert encoded(size) is not None
    assert encoded(size // 2) is None
