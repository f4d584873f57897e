"""Stores that fail under a run: S3 through a proxy that does as it is told, a local disk that fills up."""

import resource
import secrets
import threading
from contextlib import contextmanager

import pytest
import torch

from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.location import Location, open_store
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import Moved
from runtime.errors import Unavailable
from tests.support.checkpoints import NOTHING_UNSENT, SLUG, begin, same, save, saver_of, state, the

TENSORS = "/tensors-"
RECORD = "/run.json"


@pytest.fixture
def store(bucket):
    """The bucket as it is, without the proxy."""
    return open_store(f"{bucket.url}/run", bucket.env)


@pytest.fixture
def proxied(bucket, s3_proxy):
    return open_store(f"{bucket.url}/run", bucket.server.env(s3_proxy.endpoint))


def steps_of(store):
    return [entry.step for entry in the(Location(store).record()).checkpoints]


def fails(saver, step, match):
    assert saver.save(step, state(step), {}, lambda: NOTHING_UNSENT, lambda _: None)
    with pytest.raises(Unavailable, match=match):
        saver.wait(timeout_s=60)


class TestSaving:
    @pytest.mark.parametrize("path", [TENSORS, "/manifest-", RECORD])
    @pytest.mark.parametrize("kind", ["error", "slow_down", "reset", "lose_reply"])
    def test_a_glitch_costs_nothing_and_nothing_is_published_twice(
        self, proxied, store, s3_proxy, kind, path
    ):
        saver = saver_of(begin(proxied))
        glitch = s3_proxy.fail(kind, method="PUT", path=path, times=2)
        save(saver, 1)
        assert glitch.hits >= 1
        s3_proxy.heal()
        save(saver, 2)
        assert steps_of(store) == [1, 2]
        assert same(the(Location(store).find(slug=SLUG).checkpoint).tensors, state(2))

    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            ("error", "answers 500"),
            ("slow_down", "answers 503"),
            ("reset", "cannot be reached"),
            ("forbid", "refuses access"),
        ],
    )
    def test_an_outage_is_said_and_the_run_goes_on(  # noqa: PLR0917  (fixtures and parameters)
        self, proxied, store, s3_proxy, caplog, kind, said
    ):
        saver = saver_of(begin(proxied))
        save(saver, 1)
        s3_proxy.fail(kind)
        fails(saver, 2, said)
        assert "the checkpoint of step 2 is not stored" in caplog.text
        s3_proxy.heal()
        assert steps_of(store) == [1]
        save(saver, 3)
        assert steps_of(store) == [1, 3]

    @pytest.mark.parametrize("path", [TENSORS, "/manifest-", RECORD])
    def test_a_server_that_hangs_holds_nobody_beyond_his_time(self, proxied, store, s3_proxy, path):
        saver = saver_of(begin(proxied))
        save(saver, 1)
        s3_proxy.fail("hang", method="PUT", path=path)
        assert saver.save(2, state(2), {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(Unavailable, match="the time allowed for it is over"):
            saver.wait(timeout_s=0.5)
        assert steps_of(store) == [1]

    def test_a_bucket_that_goes_away_is_said(self, own_bucket):
        saver = saver_of(begin(open_store(own_bucket.url, own_bucket.env)))
        save(saver, 1)
        client = own_bucket.server.client()
        for key in own_bucket.keys():  # noqa: SIM118  (no dict)
            client.delete_object(Bucket=own_bucket.name, Key=key)
        client.delete_bucket(Bucket=own_bucket.name)
        fails(saver, 2, f"has no bucket {own_bucket.name}; create it")

    def test_a_body_that_arrives_wrong_is_refused_by_the_server(self, proxied, store, s3_proxy):
        """The checksum that travels with a PUT: a bit that flips on the way costs a retry, no checkpoint."""
        saver = saver_of(begin(proxied))
        glitch = s3_proxy.fail("corrupt_request", method="PUT", path=TENSORS, times=1)
        save(saver, 1)
        assert glitch.hits == 1
        assert same(the(Location(store).find(slug=SLUG).checkpoint).tensors, state(1))


class TestLoading:
    @pytest.fixture(autouse=True)
    def two_checkpoints(self, store):
        saver = saver_of(begin(store), shard_bytes=1000)
        save(saver, 1)
        save(saver, 2)

    @pytest.mark.parametrize("kind", ["error", "slow_down", "reset", "truncate", "corrupt"])
    @pytest.mark.parametrize("path", [TENSORS, "/manifest-"])
    def test_a_glitch_costs_a_second_read(self, proxied, s3_proxy, kind, path):
        glitch = s3_proxy.fail(kind, method="GET", path=path, times=2)
        found = Location(proxied).find(slug=SLUG)
        assert glitch.hits == 2
        assert found.refused == ()
        assert same(the(found.checkpoint).tensors, state(2))

    @pytest.mark.parametrize("what", [TENSORS, "/manifest-"])
    def test_bytes_that_stay_wrong_are_refused_and_the_older_one_is_loaded(
        self, proxied, s3_proxy, caplog, what
    ):
        s3_proxy.fail("corrupt", method="GET", path="step-00000002" + what)
        found = Location(proxied).find(slug=SLUG)
        assert the(found.checkpoint).step == 1
        assert same(the(found.checkpoint).tensors, state(1))
        assert [one.checkpoint.step for one in found.refused] == [2]
        assert "refused the checkpoint of step 2, attempt 1: step-00000002/" in caplog.text

    @pytest.mark.parametrize("kind", ["error", "slow_down", "reset", "truncate", "forbid"])
    def test_what_cannot_be_read_now_is_waited_for_and_not_refused(self, proxied, s3_proxy, kind):
        s3_proxy.fail(kind, method="GET", path="step-00000002" + TENSORS)
        with pytest.raises(Unavailable):
            Location(proxied).find(slug=SLUG)
        s3_proxy.heal()
        assert the(Location(proxied).find(slug=SLUG).checkpoint).step == 2

    @pytest.mark.parametrize(
        ("kind", "said"),
        [
            ("error", "answers 500"),
            ("slow_down", "answers 503"),
            ("reset", "cannot be reached"),
            ("forbid", "refuses access"),
        ],
    )
    def test_a_start_without_its_location_is_the_surroundings_fault(self, proxied, s3_proxy, kind, said):
        s3_proxy.fail(kind)
        with pytest.raises(Unavailable, match=said) as caught:
            Location(proxied).find(slug=SLUG)
        assert caught.value.exit_code == 75
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["lose_reply", "error"])
    def test_a_claim_survives_a_glitch(self, proxied, store, s3_proxy, kind):
        s3_proxy.fail(kind, method="PUT", path=RECORD, times=1)
        assert begin(proxied).number == 2
        assert the(Location(store).record()).attempt.number == 2


def test_a_server_without_conditions_is_refused_at_the_start_by_name(proxied, store, s3_proxy):
    s3_proxy.fail("ignore_conditions")
    with pytest.raises(Unavailable, match=r"s3://.*/run: the store ignores conditional writes"):
        begin(proxied)
    assert Location(store).record() is None


def test_a_key_that_may_only_read_cannot_begin(bucket, store):
    with pytest.raises(Unavailable, match="refuses access"):
        begin(open_store(f"{bucket.url}/run", bucket.server.reader_env()))
    assert Location(store).record() is None


@contextmanager
def no_file_grows_beyond(size_bytes):
    """The kernel's own refusal in the middle of a write: part of the data is written, then an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size_bytes", [0, 1, 700, 4096, 100_000])
def test_no_space_at_byte_n_leaves_the_old_checkpoint_and_no_file_of_the_new_one(
    tmp_path, size_bytes, caplog
):
    """100,000 bytes let the first shard through, the others not."""
    store = LocalStore(tmp_path)
    saver = saver_of(begin(store), shard_bytes=200_000)
    large = {"a": torch.randn(20_000), "b": torch.randn(20_000), "last": torch.randn(1, 30_000)}
    save(saver, 1, large)
    before = sorted(found.key for found in store.list())
    with no_file_grows_beyond(size_bytes):
        state = {"a": large["a"], "last": torch.zeros(3).expand(40_000, 3)}
        assert saver.save(2, state, {}, lambda: NOTHING_UNSENT, lambda _: None)
        with pytest.raises(Unavailable, match="File too large"):
            saver.wait(timeout_s=60)
    assert sorted(found.key for found in store.list()) == before
    assert "the checkpoint of step 2 is not stored" in caplog.text
    assert "free some space" in caplog.text
    assert same(the(Location(store).find(slug=SLUG).checkpoint).tensors, large)
    save(saver, 3)
    assert steps_of(store) == [1, 3]


@pytest.mark.parametrize("kind", ["memory", "local", "s3"])
def test_of_many_who_start_at_once_each_is_an_attempt_of_its_own(kind, tmp_path, request):
    if kind == "s3":
        bucket = request.getfixturevalue("bucket")
        stores = [open_store(f"{bucket.url}/run", bucket.env) for _ in range(6)]
    elif kind == "local":
        stores = [LocalStore(tmp_path) for _ in range(6)]
    else:
        stores = [MemoryStore()] * 6
    numbers, lock, start = [], threading.Lock(), threading.Barrier(6)

    def claim(store):
        location, session = Location(store), secrets.token_hex(16)
        start.wait()
        while True:
            try:
                attempt = location.claim(location.find(slug=SLUG), session=session)
            except Moved:
                continue
            with lock:
                numbers.append(attempt.number)
            return

    threads = [threading.Thread(target=claim, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [1, 2, 3, 4, 5, 6]
    assert the(Location(stores[0]).record()).attempt.number == 6
