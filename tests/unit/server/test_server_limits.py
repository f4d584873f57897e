"""What the server accepts beyond the shared limits."""

import json

import pytest

from infra.server import limits
from infra.server.limits import check_folder_name, check_message_id, check_value, compact_object, partition
from infra.server.refusals import RETRYABLE_STATUSES, Refused, StoreUnavailable


def test_a_partition_is_the_same_for_any_order_of_its_metadata():
    assert partition("loss", (("b", "2"), ("a", "1"))) == partition("loss", (("a", "1"), ("b", "2")))
    assert partition("loss", (("b", "2"), ("a", "1"))).metadata == '{"a":"1","b":"2"}'


def test_partitions_differ_by_name_key_and_value():
    all_items = [(), (("a", ""),), (("", "a"),), (("a", "1"),), (("a", "1"), ("b", ""))]
    assert len({partition("loss", items).hash for items in all_items}) == len(all_items)


@pytest.mark.parametrize("name", ["", "a" * 257, "é", "a\nb", "%" * 171])
def test_a_metric_name_out_of_bounds_is_refused(name):
    with pytest.raises(Refused) as refused:
        partition(name, ())
    assert (refused.value.code, refused.value.status, refused.value.retryable) == (
        "limit_exceeded",
        422,
        False,
    )


@pytest.mark.parametrize("name", ["a" * 256, "%" * 170, " ~"])
def test_a_metric_name_at_its_bounds_is_taken(name):
    assert partition(name, ()).name == name


def test_an_object_at_the_limit_is_taken_and_one_byte_more_is_refused_with_both_numbers():
    empty = len('{"a":""}')
    assert len(compact_object({"a": "x" * (65_536 - empty)}, field="meta")) == 65_536
    with pytest.raises(
        Refused, match=r"meta takes at most 65,536 bytes of compact JSON, got 65,537"
    ) as refused:
        compact_object({"a": "x" * (65_537 - empty)}, field="meta")
    assert refused.value.details == {"field": "meta", "size": 65_537, "limit": 65_536}


def test_whole_floats_count_as_javascript_writes_them():
    """A client that counts 1.0 as one byte sent this within its limit."""
    text = compact_object({"a": [1.0] * 30_000}, field="meta")
    assert len(text) > 65_536
    assert json.loads(text) == {"a": [1.0] * 30_000}


def test_number_formats_survive():
    assert compact_object({"a": [1.0, 1, -0.0, 5e-324, 2**63 - 1]}, field="meta") == (
        '{"a":[1.0,1,-0.0,5e-324,9223372036854775807]}'
    )


def test_an_integer_beyond_64_bits_is_the_nearest_double_as_a_client_writes_it():
    seeds = {"a": [2**64 - 1, -(2**63), 2**64, {"b": -(2**127)}]}
    assert json.loads(compact_object(seeds, field="meta")) == seeds
    assert compact_object({"a": 2**64}, field="meta") == '{"a":1.8446744073709552e+19}'
    with pytest.raises(Refused, match="too large") as refused:
        compact_object({"a": 10**400}, field="meta")
    assert refused.value.code == "invalid_event"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"\udfff": 1}, [[float("-inf")]]])
def test_what_strict_json_cannot_say_is_refused(value):
    with pytest.raises(Refused) as refused:
        compact_object({"a": value}, field="meta")
    assert refused.value.code == "invalid_event"


def test_a_huge_object_is_refused_by_its_size_before_its_values_are_looked_at(monkeypatch):
    monkeypatch.setattr(limits, "_check_strict", pytest.fail)
    with pytest.raises(Refused, match="at most 65,536 bytes"):
        compact_object({"a": [[]] * 200_000}, field="meta")


def test_nesting_is_bounded():
    deep: object = 1
    for _ in range(127):
        deep = [deep]
    compact_object({"a": deep}, field="meta")
    with pytest.raises(Refused, match="at most 128 deep"):
        compact_object({"a": [deep]}, field="meta")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number_is_refused(value):
    with pytest.raises(Refused, match="must be finite"):
        check_value(value)


@pytest.mark.parametrize("message_id", ["", "x" * 257, "é" * 129])
def test_a_message_id_out_of_bounds_is_refused(message_id):
    with pytest.raises(Refused, match="1 to 256 bytes"):
        check_message_id(message_id)


@pytest.mark.parametrize("name", ["", "a/b", "x" * 201, "\ud800"])
def test_a_folder_name_out_of_bounds_is_refused(name):
    with pytest.raises(ValueError, match=f"1 to 200 UTF-16 units without `/`, got {len(name)}: '"):
        check_folder_name(name)


def test_retryable_is_said_of_exactly_the_statuses_that_clients_retry():
    codes = ["unauthorized", "limit_exceeded", "server_error", "unavailable", "folder_already_exists"]
    for refusal in [*(Refused(code, "x") for code in codes), StoreUnavailable("x")]:
        assert refusal.retryable == (refusal.status in RETRYABLE_STATUSES)
        assert refusal.retryable == (refusal.status in {408, 425, 429} or refusal.status >= 500)
