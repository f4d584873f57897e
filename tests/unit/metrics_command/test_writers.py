"""infra.metrics.writers: every format holds the same rows, and numbers read back to the same value."""

import csv
import io
import json
import sys

import pytest
from pyarrow import parquet

from infra.client.errors import Rejected
from infra.metrics.api import Columns, Frame
from infra.metrics.find import Placed
from infra.metrics.writers import COLUMNS, writer

PLACED = Placed("id-1", 'a "quoted", slug\nwith lines é', "/a/b")
FRAMES = [
    Frame("loss", {"z": "1", "a": "x,y"}, Columns([0, 1, 2], [10, 11, 2**53 - 1], [0.1, -0.0, 5e-324])),
    Frame("acc", {}, Columns([None, 2**53 - 2], [12, 13], [1e308, 1 / 3])),
]
ROWS = [
    ("id-1", PLACED.slug, "/a/b", frame.seriesName, frame.metadata, step, at_ms, value)
    for frame in FRAMES
    for step, at_ms, value in zip(frame.data.step, frame.data.timestampMs, frame.data.value, strict=True)
]


def written(kind):
    file = io.BytesIO()
    out = writer(kind, file)
    for frame in FRAMES:
        out.write(PLACED, frame)
    out.close()
    return file.getvalue()


def same(rows):
    assert [row[:7] for row in rows] == [row[:7] for row in ROWS]
    assert [row[7].hex() for row in rows] == [row[7].hex() for row in ROWS]


def test_csv_holds_every_row():
    header, *rows = csv.reader(io.StringIO(written("csv").decode(), newline=""))
    assert tuple(header) == COLUMNS
    same(
        [
            (*row[:4], json.loads(row[4]), int(row[5]) if row[5] else None, int(row[6]), float(row[7]))
            for row in rows
        ]
    )


def test_json_lines_hold_every_row():
    lines = [json.loads(line) for line in written("jsonl").decode().split("\n")[:-1]]
    assert all(tuple(line) == COLUMNS for line in lines)
    same([tuple(line.values()) for line in lines])


def test_parquet_holds_every_row():
    table = parquet.read_table(io.BytesIO(written("parquet")))
    assert tuple(table.column_names) == COLUMNS
    same(
        [(*row[:4], json.loads(row[4]), *row[5:]) for row in map(tuple, map(dict.values, table.to_pylist()))]
    )


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_nothing_to_write_is_a_valid_file(kind):
    file = io.BytesIO()
    writer(kind, file).close()
    if kind == "parquet":
        assert parquet.read_table(file).num_rows == 0
    else:
        assert file.getvalue().count(b"\n") == (kind == "csv")


def test_parquet_holds_a_bounded_number_of_points():
    file = io.BytesIO()
    out = writer("parquet", file)
    frame = Frame("loss", {}, Columns(list(range(50_000)), [0] * 50_000, [0.5] * 50_000))
    for _ in range(7):
        out.write(PLACED, frame)
    out.close()
    found = parquet.ParquetFile(file)
    assert (found.metadata.num_rows, found.metadata.num_row_groups) == (350_000, 3)


def test_without_pyarrow_parquet_is_refused_with_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Rejected, match=r"pip install 'slugline\[export\]'"):
        writer("parquet", io.BytesIO())
