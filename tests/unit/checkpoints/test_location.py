import logging
import subprocess
import sys

import pytest

from runtime.checkpoints.local import LocalStore
from runtime.checkpoints.location import Location, open_location, open_store
from runtime.checkpoints.memory import MemoryStore
from runtime.checkpoints.record import Moved
from runtime.checkpoints.s3 import S3Store
from runtime.checkpoints.store import Missing
from runtime.errors import Rejected, Unavailable
from tests.support.checkpoints import SLUG, begin, same, save, saver_of, state, the
from tests.support.users import unprivileged


@pytest.fixture
def store():
    return MemoryStore("s3://bucket/run")


def run_with(store, steps, **found):
    attempt = begin(store, **found)
    saver = saver_of(attempt, keep_last=100)
    for step in steps:
        save(saver, step)
    saver.close()
    return attempt


def damage(store, prefix):
    """Flip a bit in the middle of the first file under `prefix`."""
    key = min(found.key for found in store.list(prefix))
    data = bytearray(store.get(key)[0])
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))
    return key


def steps_of(record):
    return [entry.step for entry in record.checkpoints]


def test_a_path_is_a_local_location_and_is_made_only_when_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    location = open_location("some/where", {})
    assert location.url == str(tmp_path / "some" / "where")
    assert location.is_local
    assert location.find(slug=SLUG).record is None
    assert not (tmp_path / "some").exists()


def test_the_home_folder_may_be_written_as_a_tilde(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_location("~/runs", {}).url == str(tmp_path / "runs")


@pytest.mark.parametrize(
    ("spec", "url"),
    [
        ("s3://bucket/a/b", "s3://bucket/a/b"),
        ("s3://bucket/a/", "s3://bucket/a"),
        ("S3://bucket", "s3://bucket"),
    ],
)
def test_an_s3_location_is_a_bucket_and_a_prefix(spec, url):
    store = open_store(spec, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert isinstance(store, S3Store)
    assert store.url == url
    assert not Location(store).is_local


@pytest.mark.parametrize("spec", ["", "  ", "gs://bucket/x", "file:///tmp", "http://host/x", "://x"])
def test_what_is_no_location_is_rejected(spec):
    with pytest.raises(Rejected, match="--location takes a path or s3://bucket/prefix, got"):
        open_location(spec, {})


@pytest.mark.parametrize("spec", ["/tmp/" + "long" * 99, "~nobody-of-this-name/x"], ids=["long", "nobody"])
def test_a_path_that_cannot_be_looked_at_is_rejected(spec):
    with pytest.raises(Rejected, match=r"^--location .* cannot be reached: "):
        open_location(spec, {})


def test_a_path_that_is_not_ours_to_look_at_is_the_fault_of_the_surroundings(tmp_path):
    (tmp_path / "closed").mkdir(0)
    with unprivileged(), pytest.raises(Unavailable, match=r"^--location .* cannot be reached: .*denied"):
        open_location(f"{tmp_path}/closed/run", {})


@pytest.mark.parametrize("below", ["", "one", "one/two"])
def test_a_file_is_no_location_and_has_none_below_it(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(Rejected, match=r"/file is a file; name a directory"):
        open_location(str(tmp_path / "file" / below), {})


def test_nothing_there_means_step_0(store):
    found = Location(store).find(slug=SLUG)
    assert (found.record, found.checkpoint, found.refused) == (None, None, ())


def test_the_newest_checkpoint_is_found_with_all_its_state(store):
    run_with(store, [4, 8])
    checkpoint = the(Location(store).find(slug=SLUG).checkpoint)
    assert (checkpoint.step, checkpoint.attempt, checkpoint.path) == (8, 1, "s3://bucket/run/step-00000008")
    assert same(checkpoint.tensors, state(8))
    assert checkpoint.data == {"step": 8}


def test_finding_changes_nothing(store):
    run_with(store, [4, 8])
    damage(store, "step-00000008/tensors")
    before = {found.key: store.get(found.key) for found in store.list()}
    Location(store).find(slug=SLUG)
    assert {found.key: store.get(found.key) for found in store.list()} == before


@pytest.mark.parametrize("what", ["step-00000008/tensors", "step-00000008/manifest"])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_it_is_found(store, caplog, what):
    run_with(store, [4, 8])
    key = damage(store, what)
    found = Location(store).find(slug=SLUG)
    assert the(found.checkpoint).step == 4
    assert same(the(found.checkpoint).tensors, state(4))
    (refused,) = found.refused
    assert refused.checkpoint.step == 8
    assert key in refused.reason
    assert "is damaged: its BLAKE3 is" in refused.reason
    assert f"refused the checkpoint of step 8, attempt 1: {refused.reason}" in caplog.text


@pytest.mark.parametrize("what", ["step-00000008/tensors", "step-00000008/manifest"])
def test_a_file_that_is_missing_or_cut_short_is_refused(store, what):
    run_with(store, [4, 8])
    key = min(found.key for found in store.list(what))
    whole = store.get(key)[0]
    store.put(key, whole[:-1])
    assert the(Location(store).find(slug=SLUG).checkpoint).step == 4
    store.delete([key])
    found = Location(store).find(slug=SLUG)
    assert the(found.checkpoint).step == 4
    assert found.refused[0].reason == f"{key} is missing"


def test_of_two_saves_of_one_step_a_damaged_one_takes_only_itself_out_of_the_record(store):
    """A loader that dies of a signal leaves the boundary of a checkpoint to be saved once more."""
    run_with(store, [4, 8, 8])
    damage(store, "step-00000008/tensors-0001-0002")
    attempt = begin(store)
    checkpoint = the(attempt.checkpoint)
    assert (checkpoint.step, checkpoint.entry.manifest[-9:]) == (8, "0003.json")
    record = the(Location(store).record())
    assert steps_of(record) == [4, 8]
    assert [entry.checkpoint.manifest[-9:] for entry in record.refused] == ["0002.json"]


def test_what_was_refused_is_kept_apart_and_counts_no_more(store):
    run_with(store, [4, 8])
    damage(store, "step-00000008/tensors")
    attempt = begin(store)
    record = the(Location(store).record())
    assert attempt.started_from == 4
    assert steps_of(record) == [4]
    assert [(one.checkpoint.step, one.by_attempt) for one in record.refused] == [(8, 2)]
    saver = saver_of(attempt)
    for step in (8, 12, 16, 20):
        save(saver, step)
    assert any(found.key.startswith("step-00000008/tensors-0001") for found in store.list())
    assert not any(found.key.startswith("step-00000008/tensors-0002") for found in store.list())
    assert steps_of(Location(store).record()) == [16, 20]


def test_when_none_verifies_the_run_starts_over_and_says_so(store, caplog):
    run_with(store, [4, 8])
    damage(store, "step-00000004/tensors")
    damage(store, "step-00000008/tensors")
    found = Location(store).find(slug=SLUG)
    assert found.checkpoint is None
    assert [one.checkpoint.step for one in found.refused] == [8, 4]
    assert "no checkpoint at s3://bucket/run verifies: the run starts over at step 0" in caplog.text


def test_another_slugs_location_is_rejected(store):
    run_with(store, [4])
    with pytest.raises(Rejected, match="holds the run of slug a-run, not other: name another --location"):
        Location(store).find(slug="other")


def test_never_starts_over(store):
    run_with(store, [4, 8])
    attempt = begin(store, resume="never")
    assert (attempt.number, attempt.checkpoint, attempt.started_from) == (2, None, 0)
    assert steps_of(Location(store).record()) == []


def test_a_number_rewinds_and_drops_what_came_after(store):
    run_with(store, [4, 8, 12])
    attempt = begin(store, resume=8)
    assert the(attempt.checkpoint).step == 8
    assert steps_of(Location(store).record()) == [4, 8]


def test_a_number_takes_the_newest_attempts_copy(store):
    run_with(store, [4, 8])
    run_with(store, [8], resume=4)
    assert [(e.step, e.attempt) for e in the(Location(store).record()).checkpoints] == [(4, 1), (8, 2)]
    assert the(Location(store).find(slug=SLUG, resume=8).checkpoint).attempt == 2


@pytest.mark.parametrize("step", [5, 0, -4, 16])
def test_a_step_without_a_checkpoint_is_rejected_naming_those_there_are(store, step):
    run_with(store, [4, 8, 12])
    with pytest.raises(
        Rejected, match=f"no checkpoint of step {step} at .*: there are those of steps 4, 8, 12"
    ):
        Location(store).find(slug=SLUG, resume=step)


def test_a_step_is_asked_for_where_there_is_none_at_all(store):
    with pytest.raises(Rejected, match="no run has begun there"):
        Location(store).find(slug=SLUG, resume=4)
    begin(store)
    with pytest.raises(Rejected, match="there are none"):
        Location(store).find(slug=SLUG, resume=4)


def test_a_damaged_checkpoint_that_was_asked_for_is_rejected(store):
    run_with(store, [4, 8])
    key = damage(store, "step-00000008/tensors")
    with pytest.raises(Rejected, match=f"the checkpoint of step 8 .* is damaged: {key}"):
        Location(store).find(slug=SLUG, resume=8)


def test_a_lost_record_is_not_taken_for_a_new_run(store):
    run_with(store, [4])
    store.delete(["run.json"])
    with pytest.raises(Rejected, match=r"holds checkpoints but no run.json: rebuild it with"):
        Location(store).find(slug=SLUG)
    assert begin(store, resume="never").number == 1


def test_each_claim_raises_the_number_and_forgets_the_ending(store):
    first = begin(store)
    first.end("failed", 3)
    assert the(the(Location(store).record()).ended).status == "failed"
    assert [begin(store).number for _ in range(3)] == [2, 3, 4]
    assert the(Location(store).record()).ended is None


def test_two_who_found_the_same_cannot_both_claim(store):
    location = Location(store)
    one, two = location.find(slug=SLUG), location.find(slug=SLUG)
    location.claim(one, session="a" * 32)
    with pytest.raises(Moved, match="find again"):
        location.claim(two, session="b" * 32)
    assert location.claim(location.find(slug=SLUG), session="b" * 32).number == 2


def test_a_claim_sees_what_was_published_since(store):
    location = Location(store)
    live = begin(store)
    found = location.find(slug=SLUG)
    save(saver_of(live), 4)
    with pytest.raises(Moved):
        location.claim(found, session="b" * 32)
    assert the(location.find(slug=SLUG).checkpoint).step == 4


@pytest.mark.parametrize("is_first", [True, False])
def test_a_claim_whose_reply_was_lost_is_ours(store, is_first):
    from runtime.checkpoints.store import Conflict

    if not is_first:
        begin(store)
    location = Location(store)
    found = location.find(slug=SLUG)
    put_if = store.put_if

    def lose_the_reply(key, data, *, etag):
        put_if(key, data, etag=etag)
        raise Conflict(key)

    store.put_if = lose_the_reply
    assert location.claim(found, session="a" * 32).number == (1 if is_first else 2)


def test_a_store_that_ignores_conditions_is_refused_before_a_record_is_made(store):
    def put_anyway(key, data, *, etag):
        store.put(key, data)
        return "etag"

    store.put_if = put_anyway
    with pytest.raises(Unavailable, match="ignores conditional writes"):
        begin(store)
    with pytest.raises(Missing):
        store.get("run.json")


def test_reading_the_record_needs_no_torch(tmp_path):
    """The flow process looks at records all the time; torch would cost it a second and 200 MB."""
    run_with(LocalStore(tmp_path), [4])
    code = (
        "import sys\n"
        "from runtime.checkpoints.location import open_location\n"
        "newest = open_location(sys.argv[1], {}).record().newest\n"
        "print(newest.step, *{'torch', 'boto3'} & sys.modules.keys())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True, text=True
    )
    assert ended.stdout == "4\n"


def test_a_wrong_read_is_read_again_before_anything_is_refused(store, caplog):
    """The wire may have flipped the bit: the object is only refused when it is wrong three times."""
    run_with(store, [4, 8])
    read_into, wrong = store.read_into, iter([True, True, False])

    def flip(key, buffer):
        read_into(key, buffer)
        if next(wrong):
            buffer[-1] ^= 1

    store.read_into = flip
    with caplog.at_level(logging.WARNING):
        found = Location(store).find(slug=SLUG)
    assert the(found.checkpoint).step == 8
    assert found.refused == ()
    assert caplog.text.count("reading again: step-00000008/tensors") == 2


def test_a_store_that_is_away_is_no_reason_to_refuse(store):
    run_with(store, [4, 8])

    def away(key, buffer):
        raise Unavailable(f"{key} cannot be reached")

    store.read_into = away
    with pytest.raises(Unavailable, match="cannot be reached"):
        Location(store).find(slug=SLUG)
    assert the(Location(store).record()).refused == ()
