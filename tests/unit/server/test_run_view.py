"""What the Telemetry tab shows of a run, as far as pages do not show it better."""

import pytest

from infra.server.store import access, run_logs, runs
from infra.server.store import experiments as experiment_rows
from infra.server.store.runs import New
from infra.server.store.store import Store
from infra.server.web import run_view, views

NEW = {
    "folder_id": None,
    "kind": "command",
    "layout": None,
    "checks": None,
    "command": None,
    "tree": None,
    "files": None,
    "meta": "{}",
}


@pytest.fixture
def store(file_address):
    store = Store(file_address)
    store.write_now(lambda connection: access.create_organisation(connection, "ours", now_ms=1))
    yield store
    store.close()


def shown(store, *logs, **new):
    """A run with logs as the tab shows it."""

    def work(connection):
        runs.create(connection, 1, New(slug="run", **(NEW | new)), now_ms=1)
        row = runs.find(connection, 1, "run")
        for attempt, text in logs:
            run_logs.append(connection, row.id, attempt=attempt, offset=0, text=text.encode())
        return run_view.run(connection, 1, row.experiment_id)

    return store.write_now(work)


def test_a_log_is_shown_as_a_terminal_leaves_it(store):
    text = "\x1b[1;32mgreen\x1b[0m\r\n  0%|\r 50%|\r100%|\ndone\r\nhalf a line"
    assert shown(store, (1, text))["log"]["tail"] == "green\n100%|\ndone\nhalf a line"


def test_of_a_long_log_the_last_whole_lines_are_shown(store):
    log = shown(store, (1, "first\n"), (3, "".join(f"{at} {'é' * 300}\n" for at in range(1000))))["log"]
    lines = log["tail"].split("\n")
    assert lines[-1] == f"999 {'é' * 300}"
    assert all(line.endswith("é" * 300) for line in lines)
    assert 40 < len(lines) < 60
    assert (log["attempt"], log["earlier"], log["whole"]) == (3, [1], False)


def test_of_a_progress_bar_that_never_ends_its_line_the_last_state_is_shown(store):
    """A log's end without a line feed is one line, however long: what a terminal shows of it is its end."""
    bar = "".join(f"{at:>6}/99999\r" for at in range(10_000))
    log = shown(store, (1, f"begin\n{bar}"))["log"]
    assert (log["tail"], log["whole"]) == ("  9999/99999", False)


def test_a_log_of_many_short_lines_is_cut_to_the_last_ones(store):
    log = shown(store, (1, "".join(f"{at}\n" for at in range(500))))["log"]
    assert log["tail"].split("\n") == [str(at) for at in range(300, 500)]


def test_a_layout_that_this_version_cannot_read_is_named(store):
    board = shown(store, layout="[[panel]]\n")["board"]
    assert "[[panel]] 1 has no y" in board["unreadable"]
    assert board["panels"] == []


def test_an_experiment_without_a_run_has_none(store):
    def work(connection):
        row = experiment_rows.ensure(
            connection, organisation_id=1, slug="s", meta="{}", folder_id=None, now_ms=1
        )
        return run_view.run(connection, 1, row), run_view.state(connection, 1, row)

    assert store.write_now(work) == (None, None)


def test_numbers_and_sizes_are_said_as_people_read_them():
    assert [views.number(value) for value in (41200, 0.0412, 2**60, 1e-9, -3, 3.0)] == [
        "41,200",
        "0.0412",
        "1.15292e+18",
        "1e-09",
        "-3",
        "3",
    ]
    assert [views.size(value) for value in (1, 1023, 1024, 5 * 2**30)] == [
        "1 B",
        "1023 B",
        "1.0 KiB",
        "5.0 GiB",
    ]
