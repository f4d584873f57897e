import pytest

from runtime.checkpoints import sweep as module
from runtime.checkpoints.location import Location
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.sweep import sweep
from runtime.errors import Unavailable
from runtime.events.targets import Backlog, Segment
from tests.support.checkpoints import begin, save, saver_of, the

NOW_MS = 10_000_000_000


class Clock:
    now_s = NOW_MS / 1000 - 2 * module.OLD_AFTER_MS / 1000

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return MemoryStore(clock_s=clock)


def keys(store):
    return {found.key for found in store.list()}


def do_sweep(store, attempt):
    sweep(store, attempt.session, now_ms=lambda: NOW_MS)


LEFT_OVER = [
    "step-00000004/tensors-0001-0007-00000.safetensors",
    "step-00000004/manifest-0001-0007.json",
    "step-00000012/tensors-0001-0003-00001.safetensors",
    "segments/never-published",
    "tmp/0123456789abcdef",
]


def test_what_dead_attempts_left_goes_and_what_the_record_names_stays(store):
    saver = saver_of(begin(store))
    save(saver, 4, backlog=lambda: Backlog(Segment("a", b"a"), ("a",)))
    named = keys(store)
    for key in LEFT_OVER:
        store.put(key, b"")
    do_sweep(store, begin(store))
    assert keys(store) == named


def test_a_refused_checkpoint_is_never_swept(store):
    saver = saver_of(begin(store))
    save(saver, 4)
    save(saver, 8, backlog=lambda: Backlog(Segment("a", b"a"), ("a",)))
    before = keys(store)
    (shard,) = [key for key in before if key.startswith("step-00000008/tensors")]
    store.put(shard, b"damaged")
    attempt = begin(store)
    assert attempt.started_from == 4
    do_sweep(store, attempt)
    assert keys(store) == before


def test_what_a_rewind_left_behind_is_swept(store):
    saver = saver_of(begin(store))
    save(saver, 4)
    save(saver, 8)
    do_sweep(store, begin(store, resume=4))
    assert {key.split("/")[0] for key in keys(store)} == {"run.json", "step-00000004"}


def test_what_is_young_stays(store, clock):
    begin(store)
    clock.now_s = NOW_MS / 1000
    for key in LEFT_OVER:
        store.put(key, b"")
    do_sweep(store, begin(store))
    assert keys(store) == {"run.json", *LEFT_OVER}


def test_a_live_attempts_files_stay_however_old(store):
    begin(store)
    attempt = begin(store)
    mine = "step-00000004/tensors-0002-0001-00000.safetensors"
    newer = "step-00000004/tensors-0003-0001-00000.safetensors"
    store.put(mine, b"")
    store.put(newer, b"")
    do_sweep(store, attempt)
    assert keys(store) == {"run.json", mine, newer}


def test_logs_ledgers_and_strangers_stay(store):
    strangers = {"attempts.json", "logs/attempt-0001.log", "step-00000004/notes.txt", "README", "step-4/x"}
    for key in strangers:
        store.put(key, b"")
    do_sweep(store, begin(store, resume="never"))
    assert keys(store) == {"run.json", *strangers}


def test_an_attempt_that_no_longer_owns_the_run_sweeps_nothing(store):
    """A zombie's listing may hold a newer attempt's files, which its own record does not name."""
    zombie = begin(store)
    for key in LEFT_OVER:
        store.put(key, b"")
    newer = saver_of(begin(store))
    save(newer, 4)
    before = keys(store)
    do_sweep(store, zombie)
    assert keys(store) == before


def test_a_sweep_that_fails_is_logged(store, caplog):
    attempt = begin(store)

    def away(prefix=""):
        raise Unavailable("the location is away")

    store.list = away
    do_sweep(store, attempt)
    assert "what earlier attempts left stays: the location is away" in caplog.text
    assert the(Location(store).record()).attempt.number == 1
