"""flows.div.forms: the page's examples byte for byte, and numbers that read back to the same value."""

import csv
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.div.forms import columns_form, json_form, summary_table
from tests.support.telemetry_runs import page_points

GOLDEN = Path(__file__).parents[2] / "contract" / "telemetry"
KEYS = ["step", "loss", "eval.loss", "lr-2", "x"]
NUMBERS = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, -0.5, 3e-4, 1e16, 5e-324, 1.7976931348623157e308, 2**53 + 1, 41200]),
)
POINTS = st.lists(st.dictionaries(st.sampled_from(KEYS), NUMBERS), max_size=20)


def lines_of(points):
    """The points as the server keeps them."""
    return "".join(
        f'{{"seq": {seq}, "data": {json.dumps(data)}}}\n' for seq, data in enumerate(points, 1)
    ).encode()


def summary_of(points):
    counts: Counter[str] = Counter()
    values: dict[str, list[float]] = {}
    for point in points:
        counts.update(point.keys())
        for key, value in point.items():
            values.setdefault(key, []).append(value)
    return [
        {"key": key, "count": counts[key], "last": found[-1], "min": min(found), "max": max(found)}
        for key, found in values.items()
    ]


def table(form, lines):
    header, rows = form
    return header + rows(lines)


def same(one, other):
    """Equal to the bit: -0.0 is not 0.0, and 1 is not 1.0."""
    return type(one) is type(other) and one == other and math.copysign(1, one) == math.copysign(1, other)


def test_the_table_of_every_key_is_the_page_s_example():
    assert summary_table(summary_of(page_points())) == (GOLDEN / "table.txt").read_text()


def test_a_table_s_columns_are_as_wide_as_their_longest_cell_and_two_numbers_at_least_seven():
    rows = [
        {"key": "a", "count": 1234567, "last": 1, "min": -0.30000000000000004, "max": 5},
        {"key": "a.longer.key", "count": 1, "last": 2, "min": 0, "max": 41200},
    ]
    assert summary_table(rows) == (
        "key           count    last     min                   max\n"
        "a             1234567  1        -0.30000000000000004  5\n"
        "a.longer.key  1        2        0                     41200\n"
    )


def test_the_table_of_no_keys_is_its_header():
    assert summary_table([]) == "key  count  last     min      max\n"


@pytest.mark.parametrize(
    ("golden", "columns", "separator"),
    [
        ("columns.tsv", ["step", "loss", "eval_loss"], "\t"),
        ("epoch.tsv", ["epoch", "loss"], "\t"),
        ("all.csv", ["step", "loss", "epoch", "eval_loss"], ","),
    ],
)
def test_points_as_columns_are_the_golden_files(golden, columns, separator):
    lines = (GOLDEN / "points.jsonl").read_bytes()
    assert table(columns_form(columns, separator), lines) == (GOLDEN / golden).read_bytes()


def test_points_as_json_stay_as_they_are_or_have_the_keys_that_were_asked_for():
    lines = (GOLDEN / "points.jsonl").read_bytes()
    assert json_form([])(lines) == lines
    assert json_form(["loss", "step", "loss", "none", "no/key"])(lines).decode() == (
        '{"seq": 1, "data": {"loss": 2.31, "step": 100}}\n'
        '{"seq": 2, "data": {"loss": 0.0003, "step": 200}}\n'
        '{"seq": 3, "data": {"step": 300}}\n'
        '{"seq": 4, "data": {"loss": 0.41}}\n'
    )


def test_a_point_without_numbers_is_a_row():
    lines = lines_of([{}, {"loss": 1}])
    assert table(columns_form([None, "loss"], "\t"), lines) == b"seq\tloss\n1\t\n2\t1\n"
    assert json_form(["loss"])(lines) == b'{"seq": 1, "data": {}}\n{"seq": 2, "data": {"loss": 1}}\n'


def test_a_header_quotes_what_needs_it_and_a_key_that_cannot_be_is_an_empty_column():
    odd = ["a,b", 'a"b', "a\nb", "a\tb", "", "\udcff", "loss"]
    lines = lines_of([{"loss": -0.5}])
    assert table(columns_form([None, *odd], ","), lines) == (
        b'seq,"a,b","a""b","a\nb",a\tb,,\\udcff,loss\n1,,,,,,,-0.5\n'
    )
    assert table(columns_form(["a\tb", "a,b"], "\t"), lines) == b'"a\tb"\ta,b\n\t\n'


def test_one_column_may_stand_alone_and_one_may_come_twice():
    lines = lines_of([{"loss": 1}, {}])
    assert table(columns_form(["loss"], "\t"), lines) == b"loss\n1\n\n"
    assert table(columns_form(["loss", "loss"], "\t"), lines) == b"loss\tloss\n1\t1\n\t\n"


def test_no_lines_are_no_rows():
    assert table(columns_form([None], ","), b"") == b"seq\n"
    assert json_form(["loss"])(b"") == b""


@settings(deadline=None)  # other tests share the processor
@given(points=POINTS)
def test_numbers_read_back_to_the_same_value(points):
    lines = lines_of(points)
    text = table(columns_form([None, *KEYS], ","), lines).decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["seq"] for row in rows] == [str(seq) for seq in range(1, len(points) + 1)]
    for row, point in zip(rows, points, strict=True):
        found = {key: json.loads(row[key]) for key in KEYS if row[key]}
        assert found.keys() == point.keys()
        assert all(same(found[key], value) for key, value in point.items())
    for line, point in zip(json_form(KEYS)(lines).splitlines(), points, strict=True):
        found = json.loads(line)["data"]
        assert found.keys() == point.keys()
        assert all(same(found[key], value) for key, value in point.items())


@settings(deadline=None)  # other tests share the processor
@given(points=POINTS.filter(any))
def test_the_table_s_numbers_read_back_to_the_same_value(points):
    for line, one in zip(summary_table(summary_of(points)).splitlines()[1:], summary_of(points), strict=True):
        key, count, *numbers = line.split()
        assert (key, int(count)) == (one["key"], one["count"])
        assert all(
            same(json.loads(text), one[name])
            for text, name in zip(numbers, ("last", "min", "max"), strict=True)
        )
