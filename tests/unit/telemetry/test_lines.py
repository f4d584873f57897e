"""Lines: masked before they are read, and reading may begin again behind none that a secret reaches over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.telemetry.lines import Lines
from runtime.telemetry.masking import Masker

SECRETS = {"TOKEN": "hunter2-hunter2", "KEY": "first line of it\nsecond line of it", "QUOTED": 'a"b\\cdef'}


def lines_of(data: bytes, sizes: list[int], secrets: dict[str, str] = SECRETS, start: int = 0):
    """Feed `data` in parts and return the lines with where they end, and the rest."""
    lines = Lines(Masker(secrets) if secrets else None)
    found, offset = [], start
    for size in [*sizes, len(data)]:
        found += lines.feed(data[offset : offset + size], offset)
        offset = min(len(data), offset + size)
    return found, lines.flush()


PIECES = st.sampled_from(
    [
        b"\n",
        b"{",
        b"a",
        b"***",
        *(value.encode() for value in SECRETS.values()),
        b"first line",
        b"\nsecond ",
        b"hunter2",
    ]
)
DATA = st.lists(PIECES, max_size=30).map(b"".join)
SIZES = st.lists(st.integers(1, 40), max_size=20)


@given(DATA, SIZES)
def test_the_lines_are_those_of_the_masked_whole(data, sizes):
    found, rest = lines_of(data, sizes)
    masked = Masker(SECRETS).mask(data)
    assert b"\n".join([*(line for line, _ in found), *rest]) == masked.removesuffix(b"\n")


@given(DATA, SIZES, st.data())
def test_beginning_again_behind_any_line_gives_the_same_lines(data, sizes, draw):
    found, rest = lines_of(data, sizes)
    ends = [index for index, (_, end) in enumerate(found) if end is not None]
    if ends:
        index = draw.draw(st.sampled_from(ends))
        again, again_rest = lines_of(data, sizes, start=found[index][1])
        assert [line for line, _ in again] + again_rest == [line for line, _ in found[index + 1 :]] + rest


@given(DATA, SIZES)
def test_without_secrets_every_line_ends_behind_its_line_feed(data, sizes):
    found, rest = lines_of(data, sizes, {})
    offset = 0
    for line, end in found:
        offset += len(line) + 1
        assert end == offset
        assert data[offset - 1 : offset] == b"\n"
    assert b"".join(rest) == data[offset:]


def test_a_secret_over_several_lines_holds_them_back_until_it_is_whole():
    lines = Lines(Masker(SECRETS))
    assert lines.feed(b'{"a": 1}\nfirst line of it\n', 0) == [(b'{"a": 1}', 9)]
    assert lines.feed(b"second line of it\n", 26) == [(b"***", None), (b"***", 44)]


def test_a_line_that_could_begin_a_secret_is_given_when_it_does_not():
    lines = Lines(Masker(SECRETS))
    assert lines.feed(b"first li", 0) == []
    assert lines.feed(b"st\n", 8) == [(b"first list", 11)]


@pytest.mark.parametrize("secrets", [{}, SECRETS], ids=["plain", "masked"])
def test_of_a_line_without_end_the_beginning_is_kept(secrets):
    lines = Lines(Masker(secrets) if secrets else None)
    for offset in range(0, 1_000_000, 1_000):
        assert lines.feed(b"x" * 1_000, offset) == []
    [(line, end)] = lines.feed(b"\n", 1_000_000)
    assert (len(line), end) == (4_099, 1_000_001)
