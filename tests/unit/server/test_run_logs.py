"""A run's logs in the store, on both databases."""

import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.server.refusals import Refused
from infra.server.store import deflated, removal, run_logs, runs, sql
from infra.server.store.store import Store
from tests.support.run_points import new_run


@pytest.fixture
def store(address):
    store = Store(address)
    yield store
    store.close()


@pytest.fixture
def file_store(file_address):
    store = Store(file_address)
    yield store
    store.close()


class Writer:
    """Appends to logs of one run."""

    def __init__(self, store):
        self.store = store
        self.run = new_run(store, slug=str(uuid.uuid4()))
        self.run_id = store.read_now(lambda connection: runs.find(connection, *self.run).id)

    def append(self, text, *, offset, attempt=1):
        return self.store.write_now(
            lambda connection: run_logs.append(
                connection, self.run_id, attempt=attempt, offset=offset, text=text.encode()
            )
        )

    def read(self, attempt=1, after=0):
        log = self.store.read_now(lambda connection: run_logs.find(connection, self.run_id, attempt))
        parts = run_logs.parts(self.store.read_now, log, after=after)
        return b"".join(deflated.unpack(part.data) for part in parts).decode()


def test_a_text_is_appended_where_the_log_ends_and_nowhere_else(store):
    writer = Writer(store)
    assert writer.append("é\n", offset=0)[2:4] == (3, 3)
    for offset in (0, 2, 4):
        with pytest.raises(Refused) as refused:
            writer.append("two\n", offset=offset)
        assert (refused.value.code, refused.value.stored) == ("offset_moved", {"offset": 3})
    writer.append("two\n", offset=3)
    assert (writer.read(), writer.read(after=3), writer.read(after=7)) == ("é\ntwo\n", "two\n", "")


def test_each_attempt_has_a_log_of_its_own(store):
    writer = Writer(store)
    writer.append("one", offset=0, attempt=1)
    writer.append("three", offset=0, attempt=3)
    writer.append("!", offset=3, attempt=1)
    assert (writer.read(1), writer.read(3)) == ("one!", "three")

    def which(connection):
        found = (
            run_logs.newest(connection, writer.run_id),
            run_logs.next_after(connection, writer.run_id, 1),
            run_logs.next_after(connection, writer.run_id, 3),
        )
        return [None if log is None else log.attempt for log in found]

    assert store.read_now(which) == [3, 3, None]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.text("aé\n", max_size=60), max_size=40), after=st.integers(0, 500))
def test_however_it_is_cut_the_log_is_all_texts_after_one_another(file_store, texts, after):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_logs, "_BLOCK_BYTES", 50)
        patch.setattr(run_logs, "_FAN_OUT", 3)
        patch.setattr(run_logs, "_READ_AT_ONCE", 2)
        writer = Writer(file_store)
        writer.append("", offset=0)

        def append_all(connection):
            sent = 0
            for text in texts:
                log = run_logs.append(connection, writer.run_id, attempt=1, offset=sent, text=text.encode())
                sent = log.sent

        file_store.write_now(append_all)
        whole = "".join(texts).encode()
        assert writer.read() == whole.decode()
        log = file_store.read_now(lambda connection: run_logs.find(connection, writer.run_id, 1))
        parts = run_logs.parts(file_store.read_now, log, after=after)
        assert b"".join(deflated.unpack(part.data) for part in parts) == whole[after:]


def test_a_run_that_says_too_much_is_cut_at_a_line_and_says_so(file_store, monkeypatch):
    monkeypatch.setattr(run_logs, "MAX_LOG_BYTES", 20)
    writer = Writer(file_store)
    writer.append("12345\n", offset=0)
    writer.append("1\n2\n3\n4\n5\n6\n7\n8\n9\n", offset=6)
    kept = "12345\n1\n2\n3\n4\n5\n6\n7\n"
    note = run_logs._FULL.decode()
    assert writer.read() == kept + note
    assert writer.append("more\n", offset=24).sent == 29, "what is not kept is counted all the same"
    assert writer.read() == kept + note
    writer.append("another attempt\n", offset=0, attempt=2)
    assert writer.read(2) == note
    assert note.count("\n") == 1
    assert "64 MiB" in note


def test_logs_go_with_the_run(store):
    writer = Writer(store)
    for number in range(40):
        writer.append("line\n", offset=5 * number)
    store.write_now(
        lambda connection: removal.begin(
            connection, runs.find(connection, *writer.run).experiment_id, now_ms=2
        )
    )
    while store.write_now(removal.step):
        pass
    counts = "SELECT (SELECT count(*) FROM run_logs) + (SELECT count(*) FROM run_log_blocks)"
    assert store.read_now(lambda connection: sql.scalar(connection, counts)) == 0
