import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.events import limits

ACCEPTED = [
    (limits.check_metric_name, "train/loss"),
    (limits.check_metric_name, "a" * 256),
    (limits.check_metric_name, "/" * 170),  # 1 + 3 * 170 = 511
    (limits.check_metric_name, " ~"),
    (limits.check_metric_metadata, {}),
    (limits.check_metric_metadata, {"": ""}),
    (limits.check_metric_metadata, {"k" * 128: "v" * 512}),
    (limits.check_metric_metadata, {"é" * 64: "é" * 256}),
    (limits.check_metric_metadata, {str(n): "v" for n in range(32)}),
    (limits.check_step, 0),
    (limits.check_step, 2**53 - 2),
    (limits.check_timestamp_ms, 2**53 - 1),
    (limits.check_slug, "s" * 200),
    (limits.check_slug, "😀" * 100),
    (limits.check_slug, "\0"),
    (limits.check_description, ""),
    (limits.check_description, "d" * 4_000),
    (limits.check_annotation, "😀" * 8_000),
    (limits.check_error, "e" * 8_000),
]

REFUSED = [
    (limits.check_metric_name, "", "1 to 256 printable ASCII characters, got ''"),
    (limits.check_metric_name, "a" * 257, "of 257"),
    (limits.check_metric_name, "é", "printable"),
    (limits.check_metric_name, "a\n", "printable"),
    (limits.check_metric_name, "\x7f", "printable"),
    (limits.check_metric_name, "/" * 171, "at most 512 characters in a URL .*, got 514"),
    (limits.check_metric_name, 3, "must be text, got 3"),
    (limits.check_metric_metadata, {str(n): "v" for n in range(33)}, "at most 32 keys, got 33"),
    (limits.check_metric_metadata, {"k" * 129: "v"}, "at most 128 bytes, got 129"),
    (limits.check_metric_metadata, {"é" * 65: "v"}, "at most 128 bytes, got 130"),
    (limits.check_metric_metadata, {"k": "v" * 513}, "at most 512 bytes, got 513"),
    (limits.check_metric_metadata, {str(n): "v" * 500 for n in range(9)}, "at most 4,096 bytes of JSON"),
    (limits.check_metric_metadata, {"layer": 3}, "metadata 'layer' of a metric must be text, got 3"),
    (limits.check_metric_metadata, {3: "v"}, "a key of a metric's metadata must be text, got 3"),
    (limits.check_metric_metadata, {"k": "\ud800"}, "lone surrogate"),
    (limits.check_metric_metadata, {"\ud800": "v"}, "lone surrogate"),
    (limits.check_step, -1, "from 0 to 9007199254740990, got -1"),
    (limits.check_step, 2**53 - 1, "from 0"),
    (limits.check_step, True, "got True"),
    (limits.check_step, 1.0, "got 1.0"),
    (limits.check_timestamp_ms, 2**53, "a time in milliseconds"),
    (limits.check_slug, "", "1 to 200 UTF-16 units long, got 0"),
    (limits.check_slug, "s" * 201, "got 201"),
    (limits.check_slug, "😀" * 101, "got 202"),
    (limits.check_slug, "a\ud800", "lone surrogate"),
    (limits.check_slug, None, "must be text, got None"),
    (limits.check_description, "d" * 4_001, "got 4,001"),
    (limits.check_annotation, "", "1 to 16,000 UTF-16 units long, got 0"),
    (limits.check_annotation, "a" * 16_001, "got 16,001"),
    (limits.check_error, "e" * 8_001, "got 8,001"),
    (limits.compact, {"k": 2**64}, "not JSON"),
    (limits.compact, {"k": "\udc00"}, "not JSON"),
]


@pytest.mark.parametrize(("check", "value"), ACCEPTED)
def test_what_the_wire_takes_passes(check, value):
    check(value)


@pytest.mark.parametrize(("check", "value", "message"), REFUSED)
def test_what_the_wire_refuses_is_said_in_one_line_with_the_value(check, value, message):
    with pytest.raises(ValueError, match=message) as caught:
        check(value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    assert not re.search("[\ud800-\udfff]", str(caught.value))


def test_metadata_nested_too_deep_is_refused():
    deep: object = 1
    for _ in range(127):
        deep = [deep]
    limits.check_nesting("meta", {"k": deep})
    with pytest.raises(ValueError, match="meta nests at most 128 deep"):
        limits.check_nesting("meta", {"k": (deep, 1)})


def test_a_metric_is_its_name_and_its_metadata():
    limits.check_metric("loss", {"split": "train"})
    with pytest.raises(ValueError, match="name"):
        limits.check_metric("", {})
    with pytest.raises(ValueError, match="metadata"):
        limits.check_metric("loss", {"k": "v" * 600})


@given(st.text(), st.integers(1, 40))
def test_cutting_units_keeps_the_longest_beginning_that_fits(text, units):
    cut = limits.cut_units(text, units)
    assert text.startswith(cut)
    assert limits.utf16_units(cut) == len(cut.encode("utf-16-le")) // 2 <= units
    longer = text[: len(cut) + 1]
    assert longer == cut or limits.utf16_units(longer) > units


@given(st.lists(st.text(max_size=30), min_size=1, max_size=30), st.integers(40, 200))
def test_cutting_lines_fits_and_counts_every_line(lines, units):
    text = "\n".join(lines)
    lines = text.split("\n")
    cut = limits.cut_lines(text, units)
    assert limits.utf16_units(cut) <= units
    if cut != text:
        *kept, last = cut.split("\n")
        if last.startswith("... "):
            assert last == f"... {len(lines) - len(kept)} more lines"
        else:
            kept = [last]
        assert kept == lines[: len(kept)] or (len(kept) == 1 and kept[0].endswith("..."))


def test_one_line_that_is_too_long_is_cut_and_ends_in_dots():
    assert limits.cut_lines("x" * 100, 50) == "x" * 47 + "..."
    cut = limits.cut_lines("😀" * 100 + "\nmore\nlines", 60)
    assert cut.endswith("...\n... 2 more lines")
    assert limits.utf16_units(cut) <= 60
