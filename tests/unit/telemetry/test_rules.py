"""The rules of a telemetry file, one sentence at a time, and under any bytes."""

import json
import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.telemetry import rules
from runtime.telemetry._json import MAX_DEPTH
from runtime.telemetry.rules import Reason, Rules, dropped_lines, leaves, number_text
from tests.support.docs import ROOT

WHOLE = {
    Reason.NOT_JSON,
    Reason.NOT_OBJECT,
    Reason.TOO_LONG,
    Reason.TOO_DEEP,
    Reason.TOO_MANY_NUMBERS,
    Reason.TOO_MANY_POINTS,
}

KEPT = {
    "each-number-under-its-key": (
        b'{"step": 120, "loss": 0.41, "lr": 0.0003}',
        {"step": 120, "loss": 0.41, "lr": 3e-4},
    ),
    "nested-objects-are-dotted": (
        b'{"eval": {"loss": 0.4, "on": {"x": 1}}}',
        {"eval.loss": 0.4, "eval.on.x": 1},
    ),
    "texts-booleans-and-nulls-are-passed-over": (b'{"a": "1", "b": true, "c": null, "d": 1}', {"d": 1}),
    "nan-and-infinities-are-passed-over": (b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1}', {"d": 1}),
    "arrays-are-passed-over": (b'{"a": [1, {"b": 2}, NaN], "d": 1}', {"d": 1}),
    "a-line-without-numbers-is-a-point": (b'{"a": "b", "c": {}}', {}),
    "an-empty-object-is-a-point": (b"{}", {}),
    "zero-keeps-its-sign": (b'{"a": -0.0, "b": -0, "c": 0}', {"a": -0.0, "b": 0, "c": 0}),
    "1e400-is-passed-over-like-infinity": (b'{"a": 1e400, "b": -1e400, "c": 1}', {"c": 1}),
    "a-number-of-400-digits-is-passed-over": (b'{"a": 1%s, "b": 2}' % (b"0" * 400), {"b": 2}),
    "1e-400-is-zero": (b'{"a": 1e-400}', {"a": 0.0}),
    "integers-of-64-bits-are-exact": (
        b'{"a": 9007199254740993, "b": 18446744073709551615, "c": -9223372036854775808}',
        {"a": 2**53 + 1, "b": 2**64 - 1, "c": -(2**63)},
    ),
    "larger-integers-are-the-nearest-double": (
        b'{"a": 18446744073709551616, "b": -9223372036854775809, "c": 1%s}' % (b"0" * 40),
        {"a": 2.0**64, "b": -(2.0**63), "c": 1e40},
    ),
    "of-equal-keys-the-last-stands-in-the-first-place": (b'{"a": 1, "b": 2, "a": 3}', {"a": 3, "b": 2}),
    "of-equal-keys-the-last-stands-whatever-it-is": (b'{"a": 1, "a": "x", "b": 2}', {"b": 2}),
    "of-equal-objects-the-last-stands": (b'{"a": {"b": 1}, "a": {"c": 2}}', {"a.c": 2}),
    "of-keys-equal-once-dotted-the-last-number-stands": (
        b'{"a": {"b": 1}, "c": 3, "a.b": 2}',
        {"a.b": 2, "c": 3},
    ),
    "what-is-passed-over-hides-no-number": (b'{"a": {"b": 1}, "a.b": "x"}', {"a.b": 1}),
    "a-dot-in-a-key-is-a-dot": (b'{"a.b": {"c.d": 1}}', {"a.b.c.d": 1}),
    "digits-dashes-and-underscores-are-letters-too": (
        b'{"a-1_B": 1, "0": 2, "-": 3}',
        {"a-1_B": 1, "0": 2, "-": 3},
    ),
    "an-escaped-key-is-the-key": (b'{"\\u006coss": 1}', {"loss": 1}),
    "a-byte-order-mark-is-passed-over": (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
    "a-line-may-end-in-crlf": (b'{"a": 1}\r\n', {"a": 1}),
    "a-line-may-end-in-cr": (b'{"a": 1}\r', {"a": 1}),
    "white-space-around-is-none-of-ours": (b' \t{"a": 1} ', {"a": 1}),
    "u2028-in-a-text-ends-no-line": ('{"t": "a\u2028b\u0085", "n": 1}'.encode(), {"n": 1}),
    "half-a-surrogate-pair-in-a-text-is-a-text": (
        b'{"t": "\\ud800", "u": "\\udc00\\ud800", "n": 1}',
        {"n": 1},
    ),
    "nan-in-a-text-is-a-text": (b'{"t": "NaN \\" Infinity 1e400", "n": NaN, "m": 1}', {"m": 1}),
}


@pytest.mark.parametrize(("line", "data"), KEPT.values(), ids=KEPT)
def test_what_is_kept(line, data):
    run = Rules()
    taken = run.take(line)
    assert taken == data
    assert [(key, type(value), str(value)) for key, value in (taken or {}).items()] == [
        (key, type(value), str(value)) for key, value in data.items()
    ]
    assert run.keys == list(data)
    assert run.points == 1
    assert not run.dropped


def nested(depth):
    """An object of `depth` levels with a number in the deepest, as in `{"":{"":1}}`."""
    return b'{"":' * depth + b"1" + b"}" * depth


DROPPED = {
    "text": (b"loss=0.4", Reason.NOT_JSON),
    "an-empty-line": (b"", Reason.NOT_JSON),
    "a-blank-line": (b" \t\r\n", Reason.NOT_JSON),
    "half-an-object": (b'{"step":1', Reason.NOT_JSON),
    "two-objects": (b'{"a":1}{"a":2}', Reason.NOT_JSON),
    "python": (b"{'a': 1}", Reason.NOT_JSON),
    "a-trailing-comma": (b'{"a": 1,}', Reason.NOT_JSON),
    "a-leading-zero": (b'{"a": 01}', Reason.NOT_JSON),
    "a-plus": (b'{"a": +1}', Reason.NOT_JSON),
    "no-digit-before-the-point": (b'{"a": .5}', Reason.NOT_JSON),
    "a-negative-nan": (b'{"a": -NaN}', Reason.NOT_JSON),
    "nan-spelt-otherwise": (b'{"a": nan}', Reason.NOT_JSON),
    "nan-glued-to-null": (b'{"a": NaNnull}', Reason.NOT_JSON),
    "a-huge-number-glued-to-a-digit": (b'{"a": 01e400}', Reason.NOT_JSON),
    "nan-as-a-key": (b"{NaN: 1}", Reason.NOT_JSON),
    "a-text-without-end": (b'{"a": NaN, "b', Reason.NOT_JSON),
    "a-text-that-ends-in-a-backslash": (b'{"a": NaN, "b\\', Reason.NOT_JSON),
    "a-control-character-in-a-text": (b'{"a": "\x01"}', Reason.NOT_JSON),
    "no-utf-8": (b'{"a": "\xff", "b": 1}', Reason.NOT_JSON),
    "half-a-character": ('{"a": "é'.encode()[:-1], Reason.NOT_JSON),
    "a-surrogate-in-utf-8": (b'{"a": "\xed\xa0\x80", "b": 1}', Reason.NOT_JSON),
    "utf-16": ('{"a": 1}'.encode("utf-16"), Reason.NOT_JSON),
    "two-byte-order-marks": (b'\xef\xbb\xbf\xef\xbb\xbf{"a": 1}', Reason.NOT_JSON),
    "a-zero-byte": (b'{"a": 1}\0', Reason.NOT_JSON),
    "true": (b"true", Reason.NOT_OBJECT),
    "a-number": (b"0.41", Reason.NOT_OBJECT),
    "a-text": (b'"loss"', Reason.NOT_OBJECT),
    "null": (b"null", Reason.NOT_OBJECT),
    "nan": (b"NaN", Reason.NOT_OBJECT),
    "an-array": (b'[{"a": 1}]', Reason.NOT_OBJECT),
    "4097-bytes": (b'{"a": 1}'.ljust(4097), Reason.TOO_LONG),
    "4097-bytes-that-are-no-json": (b"x" * 4097, Reason.TOO_LONG),
    "a-megabyte": (b"[" * 1_000_000, Reason.TOO_LONG),
    "arrays-1025-deep": (b'{"a":' + b"[" * 1024 + b"]" * 1024 + b"}", Reason.TOO_DEEP),
    "arrays-without-end": (b"[" * 4096, Reason.TOO_DEEP),
    "65-numbers": (json.dumps({f"k{n}": n for n in range(65)}).encode(), Reason.TOO_MANY_NUMBERS),
    "65-numbers-nested": (
        json.dumps({"a": {f"k{n}": n for n in range(64)}, "b": 1}).encode(),
        Reason.TOO_MANY_NUMBERS,
    ),
    "65-numbers-whose-keys-are-bad": (
        json.dumps({f"k/{n}": n for n in range(65)}).encode(),
        Reason.TOO_MANY_NUMBERS,
    ),
}


@pytest.mark.parametrize(("line", "reason"), DROPPED.values(), ids=DROPPED)
def test_what_is_dropped_whole(line, reason):
    run = Rules()
    assert run.take(line) is None
    assert run.dropped == {reason: 1}
    assert run.keys == []
    assert run.points == 0


def test_a_line_of_4096_bytes_is_kept_whatever_its_line_end():
    line = b'{"a": 1}'.ljust(4096)
    run = Rules()
    assert [run.take(line + end) for end in (b"", b"\n", b"\r\n", b"\r")] == [{"a": 1}] * 4


def test_objects_nest_as_deep_as_a_line_is_long():
    """Each level costs five bytes, so a line of 4 KiB holds 818 of them."""
    line = nested(818)
    assert len(line) <= 4096 < len(nested(820))
    run = Rules()
    assert run.take(line) == {}
    assert run.dropped == {Reason.BAD_KEY: 1}
    deep = b'{"a":' * 680 + b"1" + b"}" * 680
    assert run.take(deep) == {".".join("a" * 680): 1}


def test_arrays_1024_deep_are_passed_over():
    assert Rules().take(b'{"b": 1, "a":' + b"[" * 1023 + b"]" * 1023 + b"}") == {"b": 1}
    assert Rules().take(b'{"b": 1, "c": NaN, "a":' + b"[" * 1023 + b"]" * 1023 + b"}") == {"b": 1}


def test_brackets_in_a_text_nest_nothing():
    assert Rules().take(b'{"b": 1, "c": NaN, "a": "%s"}' % (b"[" * 4000)) == {"b": 1}


def test_numbers_in_arrays_and_numbers_that_are_passed_over_are_not_among_the_64():
    line = json.dumps(
        {f"k{n}": n for n in range(64)} | {"a": list(range(100)), "b": math.nan, "c": True, "d": "1"}
    )
    taken = Rules().take(line.encode())
    assert taken is not None
    assert len(taken) == 64


@pytest.mark.parametrize(
    "key",
    ["train/loss", "", ".", ".a", "a.", "a..b", "a b", "lösung", "损失", "٣", "a\n", "\ud800", "\x00", "a,b"],
    ids=ascii,
)
def test_a_number_under_a_bad_key_is_left_out_and_its_point_keeps_the_rest(key):
    run = Rules()
    assert run.take(json.dumps({"a": 1, key: 2, "b": 3}).encode()) == {"a": 1, "b": 3}
    assert run.dropped == {Reason.BAD_KEY: 1}
    assert run.keys == ["a", "b"]


def test_a_bad_part_of_a_dotted_key_is_a_bad_key_for_each_number_under_it():
    run = Rules()
    assert run.take(b'{"a/b": {"c": 1, "d": 2}, "e": {"": 3}, "": {"f": 4}, "g": 5}') == {"g": 5}
    assert run.dropped == {Reason.BAD_KEY: 4}


def test_what_is_passed_over_is_not_counted_even_under_a_bad_key():
    run = Rules()
    assert run.take(b'{"a/b": "x", "c/d": null, "e/f": NaN, "g/h": [1], "": true}') == {}
    assert not run.dropped


def test_a_point_at_the_257th_key_keeps_its_other_keys():
    run = Rules(keys=[f"k{n}" for n in range(255)])
    assert run.take(b'{"k0": 1, "new": 2, "newer": 3, "k254": 4}') == {"k0": 1, "new": 2, "k254": 4}
    assert run.take(b'{"newer": 3, "newest": 3}') == {}
    assert run.dropped == {Reason.TOO_MANY_KEYS: 3}
    assert len(run.keys) == 256
    assert run.keys[-1] == "new"
    assert run.points == 2


def test_the_200001st_point_is_dropped():
    run = Rules(points=199_999)
    assert run.take(b'{"a": 1}') == {"a": 1}
    assert run.take(b'{"b": 1, "c/d": 2}') is None
    assert run.take(b"no JSON") is None
    assert run.points == 200_000
    assert run.keys == ["a"]
    assert run.dropped == {Reason.TOO_MANY_POINTS: 1, Reason.NOT_JSON: 1}


def test_keys_stand_in_the_order_of_their_arrival():
    run = Rules()
    for line in (b'{"step": 1, "loss": 2}', b'{"eval": {"loss": 1}, "step": 2}', b'{"loss": 3, "a": 1}'):
        run.take(line)
    assert run.keys == ["step", "loss", "eval.loss", "a"]


def test_rules_go_on_where_others_stopped():
    lines = [b'{"a": 1}', b"x", b'{"b/c": 1, "d": 2}', b'{"a": 1, "e": 2}', b"true"]
    whole, first = Rules(), Rules()
    expected = [whole.take(line) for line in lines]
    taken = [first.take(line) for line in lines[:2]]
    wire = {reason.value: count for reason, count in first.dropped.items()}
    second = Rules(keys=first.keys, points=first.points, dropped=json.loads(json.dumps(wire)))
    taken += [second.take(line) for line in lines[2:]]
    assert taken == expected
    assert (second.keys, second.points, second.dropped) == (whole.keys, whole.points, whole.dropped)


def test_a_points_data_is_kept_as_it_is_when_the_rules_are_held_again():
    data = Rules().take(b'{"a": {"b": 1, "c": 18446744073709551616}, "d": -0.0}')
    assert data is not None
    assert Rules().keep(data) == data


def test_a_record_from_another_decoder_is_held_to_the_same_numbers():
    record = {"a": 2**64, "b": 10**400, "c": math.inf, "d": math.nan, "e": 2**64 - 1, "f": True}
    assert Rules().keep(record) == {"a": 2.0**64, "e": 2**64 - 1}


# What is said


def test_every_reason_has_a_text_for_one_and_for_many_which_ends_with_what_to_do():
    for reason in Reason:
        assert reason.one == reason.many(1)
        assert reason.many(12345) != reason.one
        assert "12345 " in reason.many(12345)
        assert reason.one.split("; ")[1] == reason.many(2).split("; ")[1]


def test_counts_are_said_in_the_sentence():
    dropped = {"not_json": 1, "bad_key": 3, "too_long": 0, "from_a_newer_server": 2}
    assert dropped_lines({"not_json": 3}) == [
        "telemetry: dropped 3 lines that are not JSON; write one JSON object per line"
    ]
    assert dropped_lines(dropped) == [
        "telemetry: dropped a line that is not JSON; write one JSON object per line",
        f"telemetry: {Reason.BAD_KEY.many(3)}",
        "telemetry: dropped 2: from_a_newer_server",
    ]
    assert dropped_lines(Rules(dropped={"not_object": 2}).dropped) == [
        "telemetry: dropped 2 lines that are JSON but not objects; write one JSON object per line"
    ]


def test_the_docs_list_both_texts_of_every_reason_and_the_limits():
    page = (ROOT / "docs" / "div.md").read_text()
    for reason in Reason:
        assert f"| `{reason.value}` | `{reason.one}`<br>`{reason.many(3)}` |" in page
    for limit in ("(4,096 bytes", "64 numbers", "1,024 levels", "256 keys", "200,000 points"):
        assert limit in page
    assert (rules.MAX_LINE_BYTES, rules.MAX_LINE_NUMBERS, MAX_DEPTH) == (4096, 64, 1024)
    assert (rules.MAX_RUN_KEYS, rules.MAX_RUN_POINTS) == (256, 200_000)


@pytest.mark.parametrize(
    ("value", "text"),
    [(41200, "41200"), (0.0412, "0.0412"), (2.31, "2.31"), (1.0, "1.0"), (1e-05, "1e-05"), (-0.0, "-0.0")],
)
def test_a_number_prints_in_its_fewest_digits(value, text):
    assert number_text(value) == text


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**64 - 1)))
def test_a_number_prints_so_that_it_reads_back_to_the_same_value(value):
    for read in (
        json.loads(number_text(value)),
        (Rules().take(b'{"a": %s}' % number_text(value).encode()) or {})["a"],
    ):
        assert (type(read), read, math.copysign(1, read)) == (type(value), value, math.copysign(1, value))


# Any bytes


def oracle(line):
    """What the rules must make of one line in a new run, from the standard library's decoder."""
    text = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(text) > 4096:
        return Reason.TOO_LONG
    try:
        record = json.loads(
            line.removeprefix(b"\xef\xbb\xbf").decode(),
            parse_int=lambda digits: int(digits) if -(2**63) <= int(digits) < 2**64 else float(digits),
        )
    except ValueError:
        return Reason.NOT_JSON
    if not isinstance(record, dict):
        return Reason.NOT_OBJECT
    numbers = list(flat(record, ()))
    if len(numbers) > 64:
        return Reason.TOO_MANY_NUMBERS
    return {key: value for key, value in dict(numbers).items() if good(key)}


def flat(record, above):
    for key, value in record.items():
        if isinstance(value, dict):
            yield from flat(value, (*above, key))
        elif type(value) in {int, float} and math.isfinite(value):
            yield ".".join((*above, key)), value


def good(key):
    return all(
        part and set(part) <= {*string.ascii_letters, *string.digits, *"_-"} for part in key.split(".")
    )


def holds(line):
    run = Rules()
    taken = run.take(line)
    expected = oracle(line)
    if isinstance(expected, Reason):
        assert taken is None
        assert run.dropped == {expected: 1}
        assert (run.points, run.keys) == (0, [])
    else:
        assert taken == expected
        assert [(*item, type(item[1])) for item in (taken or {}).items()] == [
            (*item, type(item[1])) for item in expected.items()
        ]
        assert (run.points, run.keys) == (1, list(expected))
        assert set(run.dropped) <= {Reason.BAD_KEY}


keys = st.one_of(
    st.sampled_from(["a", "b", "a.b", "", ".", "train/loss", "é", "\ud800", "0"]),
    st.text(alphabet=st.characters(codec=None), max_size=4),
)
scalars = st.one_of(
    st.integers(-(2**66), 2**66), st.floats(), st.booleans(), st.none(), st.text(max_size=4), st.just(10**400)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=20,
)
records = st.dictionaries(keys, values, max_size=6)
lines = st.builds(
    lambda record, ascii_only: json.dumps(record, ensure_ascii=ascii_only).encode(errors="replace"),
    records,
    st.booleans(),
)
TOKENS = [
    b"NaN",
    b"Infinity",
    b"-",
    b"1e400",
    b'"',
    b"\\",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
]
TOKENS += [b"0", b"1", b".", b"e", b" ", b"\xff", b"\xef\xbb\xbf", b"\r", b"\x00", b"true", b'"a":']


@given(lines)
def test_any_record_that_python_writes_is_taken_as_the_standard_library_reads_it(line):
    holds(line)


@given(
    lines, st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3), st.sampled_from(TOKENS)), max_size=4)
)
def test_a_line_broken_anywhere_is_taken_as_the_standard_library_reads_it(line, edits):
    for at, gone, new in edits:
        line = line[:at] + new + line[at + gone :]
    holds(line)


@given(st.lists(st.sampled_from(TOKENS), max_size=12).map(b"".join))
def test_tokens_in_any_order_are_taken_as_the_standard_library_reads_them(line):
    holds(line)


@given(
    st.lists(
        st.one_of(
            lines,
            st.binary(max_size=40),
            st.lists(st.sampled_from(TOKENS), max_size=9).map(b"".join),
            st.sampled_from([line for line, _ in DROPPED.values()]),
        ),
        max_size=25,
    )
)
def test_whatever_bytes_come_the_counts_add_up_and_whole_records_survive(many):
    run, alone = Rules(), Rules()
    points = [data for line in many if (data := run.take(line)) is not None]
    assert run.points == len(points)
    assert len(many) == len(points) + sum(run.dropped[reason] for reason in WHOLE)
    assert set().union(*points) == set(run.keys)
    assert len(run.keys) == len(set(run.keys)) <= rules.MAX_RUN_KEYS
    assert all(good(key) for key in run.keys)
    assert all(math.isfinite(value) for data in points for value in data.values())
    whole = [line for line in many if not isinstance(oracle_or_deep(line), Reason)]
    assert [alone.take(line) for line in whole] == points


def oracle_or_deep(line):
    return Reason.TOO_DEEP if line.count(b"[") > 1_000 else oracle(line)


@given(st.integers(0, 300), st.lists(st.lists(st.integers(0, 400), max_size=70), max_size=12))
def test_a_run_never_has_more_than_256_keys_nor_a_point_more_than_64_numbers(known, many):
    run = Rules(keys=[f"k{n}" for n in range(min(known, 256))])
    for numbers in many:
        before = len(run.keys)
        data = run.take(json.dumps({f"k{n}": n for n in numbers}, separators=(",", ":")).encode())
        if data is None:
            assert len(set(numbers)) > 64
            assert len(run.keys) == before
        else:
            assert len(data) <= 64
            assert {f"k{n}" for n in numbers if n < min(known, 256)} <= set(data) <= set(run.keys)
    assert len(run.keys) <= 256


@given(records)
def test_leaves_are_those_of_a_plain_recursion(record):
    def plain(inner, above):
        for key, value in inner.items():
            if isinstance(value, dict):
                yield from plain(value, above + key + ".")
            else:
                yield above + key, value

    assert str(list(leaves(record))) == str(list(plain(record, "")))
