import base64
import socket
import time
import zlib

import pytest

from runtime.checkpoints import s3
from runtime.checkpoints.s3 import S3Store
from runtime.checkpoints.store import Conflict, Missing, require_conditional_writes
from runtime.errors import Rejected, Unavailable
from tests.support.ports import free_port
from tests.support.stores import HALF_A_MIB, StoreConformance


class TestS3Store(StoreConformance):
    @pytest.fixture
    def store(self, bucket):
        return S3Store(bucket.name, f"{bucket.prefix}/runs/one", bucket.env)


@pytest.fixture
def store(bucket):
    return S3Store(bucket.name, f"{bucket.prefix}/runs/one", bucket.env)


@pytest.fixture
def proxied(bucket, s3_proxy):
    return S3Store(bucket.name, f"{bucket.prefix}/runs/one", bucket.server.env(s3_proxy.endpoint))


def test_a_location_may_be_the_bucket_itself(own_bucket):
    store = S3Store(own_bucket.name, "", own_bucket.env)
    store.put("run.json", b"{}")
    assert store.url == f"s3://{own_bucket.name}"
    assert [found.key for found in store.list()] == own_bucket.keys() == ["run.json"]


def test_a_put_carries_s3s_own_checksum_and_leaves_no_multipart_behind(store, bucket):
    store.put("step-00000001/shard", memoryview(HALF_A_MIB))
    client = bucket.server.client()
    head = client.head_object(
        Bucket=bucket.name, Key=f"{bucket.prefix}/runs/one/step-00000001/shard", ChecksumMode="ENABLED"
    )
    assert head["ChecksumCRC32"] == base64.b64encode(zlib.crc32(HALF_A_MIB).to_bytes(4, "big")).decode()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=bucket.name)


def test_a_body_is_sent_in_pieces_that_end_with_it_and_again_after_a_rewind():
    data = HALF_A_MIB + HALF_A_MIB
    body = s3._Body(memoryview(data))
    for _ in range(2):
        pieces = list(iter(lambda: bytes(body.read(16_384)), b""))
        assert b"".join(pieces) == data
        assert {len(piece) for piece in pieces[:-1]} == {s3.SEND_CHUNK_BYTES}
        body.seek(0)


@pytest.mark.parametrize(
    ("bucket_name", "prefix"), [("Nope", "x"), ("", "x"), ("a", ""), ("with space", "x"), ("-ab", "x")]
)
def test_a_name_that_no_bucket_can_have_is_rejected(bucket_name, prefix):
    with pytest.raises(Rejected, match="names no bucket"):
        S3Store(bucket_name, prefix, {})


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://x", "http://"])
def test_an_endpoint_that_is_no_url_is_rejected(endpoint):
    with pytest.raises(Rejected, match="AWS_ENDPOINT_URL is no URL"):
        S3Store("bucket", "", {"AWS_ENDPOINT_URL": endpoint})


def test_half_a_key_is_rejected():
    with pytest.raises(Rejected, match="without the other: set both"):
        S3Store("bucket", "", {"AWS_ACCESS_KEY_ID": "only"})


def test_an_unknown_profile_is_rejected():
    with pytest.raises(Rejected, match="AWS_PROFILE"):
        S3Store("bucket", "", {"AWS_PROFILE": "there-is-no-such-profile"})


def test_a_bucket_that_is_missing_is_said(s3_server):
    store = S3Store("there-is-none", "x", s3_server.env())
    for ask in (
        lambda: store.get("run.json"),
        lambda: store.put("run.json", b""),
        lambda: store.put_if("run.json", b"", etag=None),
        lambda: list(store.list()),
    ):
        with pytest.raises(
            Unavailable, match="has no bucket there-is-none; create it, or correct the location"
        ):
            ask()


def test_wrong_keys_are_said_and_never_shown(bucket):
    store = S3Store(bucket.name, bucket.prefix, bucket.server.env(secret="hunter2-not-it"))
    with pytest.raises(Unavailable, match=r"refuses access .*check AWS_ACCESS_KEY_ID") as caught:
        store.get("run.json")
    assert "hunter2" not in str(caught.value)


def test_a_key_that_may_only_read_is_told_so_when_it_writes(bucket):
    S3Store(bucket.name, bucket.prefix, bucket.env).put("run.json", b"{}")
    store = S3Store(bucket.name, bucket.prefix, bucket.server.reader_env())
    assert store.get("run.json")[0] == b"{}"
    for ask in (
        lambda: store.put("other", b""),
        lambda: store.put_if("run.json", b"", etag=None),
        lambda: store.delete(["run.json"]),
    ):
        with pytest.raises(Unavailable, match=r"refuses access|AccessDenied"):
            ask()


def test_a_port_where_nobody_listens_is_said(bucket):
    port = free_port()
    store = S3Store(bucket.name, bucket.prefix, bucket.server.env(f"http://127.0.0.1:{port}"))
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port} cannot be reached .* check AWS_ENDPOINT_URL"):
        store.get("run.json")


def test_a_server_that_never_answers_is_given_up_on_within_half_a_minute(bucket, monkeypatch):
    assert s3.CONTROL_TRIES * s3.CONTROL_READ_S < 25
    monkeypatch.setattr(s3, "CONTROL_READ_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        store = S3Store(bucket.name, bucket.prefix, bucket.server.env(f"http://127.0.0.1:{port}"))
        started_s = time.monotonic()
        with pytest.raises(Unavailable, match="cannot be reached"):
            store.get("run.json")
        assert time.monotonic() - started_s < 30


def test_one_glitch_of_a_small_request_goes_unnoticed(proxied, s3_proxy):
    for kind in ("error", "slow_down", "reset"):
        rule = s3_proxy.fail(kind, times=1)
        proxied.put_if(f"{kind}.json", b"{}", etag=None)
        assert rule.hits == 1


@pytest.mark.parametrize(
    ("kind", "text"), [("error", "answers 500"), ("slow_down", "answers 503"), ("reset", "cannot be reached")]
)
def test_a_server_that_keeps_failing_is_said(proxied, s3_proxy, kind, text):
    s3_proxy.fail(kind)
    for ask in (
        lambda: proxied.get("run.json"),
        lambda: proxied.put("shard", HALF_A_MIB),
        lambda: proxied.put_if("run.json", b"{}", etag=None),
        lambda: proxied.read_into("shard", memoryview(bytearray(10))),
        lambda: proxied.delete(["shard"]),
        lambda: list(proxied.list()),
    ):
        with pytest.raises(Unavailable, match=text):
            ask()


def test_a_body_that_ends_early_is_the_wires_fault_not_the_objects(proxied, s3_proxy):
    proxied.put("shard", HALF_A_MIB)
    s3_proxy.fail("truncate", method="GET")
    with pytest.raises(Unavailable):
        proxied.read_into("shard", memoryview(bytearray(len(HALF_A_MIB))))
    s3_proxy.heal()
    buffer = bytearray(len(HALF_A_MIB))
    proxied.read_into("shard", memoryview(buffer))
    assert buffer == HALF_A_MIB


def test_a_create_whose_reply_was_lost_conflicts_with_itself(proxied, s3_proxy):
    """boto3 sends it again, and the second try meets the first one's object: the caller must read it."""
    s3_proxy.fail("lose_reply", method="PUT", times=1)
    with pytest.raises(Conflict):
        proxied.put_if("run.json", b"mine", etag=None)
    assert proxied.get("run.json")[0] == b"mine"


def test_a_server_that_ignores_conditions_is_refused_by_name(proxied, s3_proxy, bucket):
    s3_proxy.fail("ignore_conditions")
    with pytest.raises(Unavailable, match=f"{bucket.url}/runs/one.*ignores conditional writes"):
        require_conditional_writes(proxied, "tmp/probe-1")
    with pytest.raises(Missing):
        proxied.get("tmp/probe-1")
