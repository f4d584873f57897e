import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.events import limits
from runtime.events.kinds import Annotation, Done, Event, Metric, Open
from tests.support.strict_json import strict, strict_lines

GOLDEN = (
    (Path(__file__).parents[2] / "contract" / "events" / "lines.jsonl").read_bytes().splitlines(keepends=True)
)
EVENTS: list[Event] = [
    Open(
        1790189597000,
        "my-run",
        "my-run: 8 steps of lm.py",
        {"sexpgpu": "0.1.0", "entry": "lm.py", "devices": []},
    ),
    Metric(1790189597015, 4, "eval/loss", 3.2047, {"split": "eval", "pass": "eval", "stage": "easy"}),
    Annotation(1790189597016, 4, "stage easy -> hard", {"to": "hard", "from": "easy"}),
    Metric(1790189597025, 4, "train/loss", 2.7658, {"split": "train", "stage": "hard"}),
    Metric(1790189597025, 4, "rate/tokens", 14530.17, {"split": "train", "stage": "hard"}),
    Annotation(
        1790189597055,
        8,
        "checkpoint /tmp/ckpt/step-00000008",
        {"checkpoint": "/tmp/ckpt/step-00000008", "seconds": 0.041},
    ),
    Done(1790189597074, "my-run"),
]


@pytest.mark.parametrize(("event", "line"), list(zip(EVENTS, GOLDEN, strict=True)))
def test_a_line_is_the_documented_one_byte_for_byte(event, line):
    assert event.encode() == line


def test_events_load_without_what_only_training_or_metrics_needs():
    program = (
        "import sys; import runtime.events.kinds, runtime.events.limits, runtime.events.targets;"
        "print([name for name in ('torch', 'prefect', 'httpx', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_failed_run_ends_with_the_same_done_line():
    assert Done(1, "r", error="boom").encode() == Done(1, "r").encode()


@pytest.mark.parametrize(
    ("value", "name"), [(math.nan, "nan"), (-math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")]
)
def test_a_value_that_is_not_finite_is_null_with_its_name_right_after(value, name):
    line = Metric(1, 2, "loss", value, {}).encode()
    assert (
        line
        == (
            f'{{"ts_ms":1,"step":2,"kind":"metric","name":"loss","value":null,"non_finite":"{name}","metadata":{{}}}}\n'
        ).encode()
    )


def test_knobs_that_are_not_finite_are_their_names_wherever_they_stand():
    event = Open(1, "r", "d", {"knobs": {"clip": math.inf, "list": [math.nan, (-math.inf, 1.0)]}})
    assert strict(event.encode())["metadata"] == {"knobs": {"clip": "inf", "list": ["nan", ["-inf", 1.0]]}}


def test_open_keeps_the_order_of_its_metadata_and_others_sort_it():
    keys = {"z": "1", "a": "2", "m": "3"}
    assert list(strict(Open(1, "r", "d", keys).encode())["metadata"]) == ["z", "a", "m"]
    assert list(strict(Metric(1, 2, "x", 1.0, keys).encode())["metadata"]) == ["a", "m", "z"]
    assert list(strict(Annotation(1, 2, "x", keys).encode())["metadata"]) == ["a", "m", "z"]


@pytest.mark.parametrize(
    "event",
    [
        Open(1, "\ud800", "d", {}),
        Open(1, "r", "d", {"k": ["\udfff"]}),
        Metric(1, 2, "x", 1.0, {"k": "\ud800"}),
        Annotation(1, 2, "\udc00", {}),
        Done(1, "\ud800"),
    ],
)
def test_lone_surrogates_are_refused(event):
    with pytest.raises(ValueError, match=r"an event of kind (open|metric|annotation|done) is not JSON"):
        event.encode()


@given(st.floats())
def test_every_float_survives_bit_for_bit(value):
    read = strict(Metric(1, 2, "x", value, {}).encode())
    if math.isfinite(value):
        assert math.copysign(1, read["value"]) == math.copysign(1, value)
        assert float(read["value"]) == value
    else:
        assert read["value"] is None


text = st.text(max_size=20)  # hypothesis makes no lone surrogates here, but everything else
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


@given(text, st.dictionaries(text, json_values, max_size=5))
def test_every_line_is_one_strict_json_object_without_a_space_outside_texts(annotation, metadata):
    for event in (Annotation(1, 2, annotation, metadata), Open(1, annotation, annotation, metadata)):
        line = event.encode()
        assert line.count(b"\n") == 1
        assert len(strict_lines(line)) == 1
    assert b'"kind":"annotation"' in Annotation(1, 2, annotation, metadata).encode()


def test_what_is_within_the_limits_is_not_touched():
    text = "a\n" * 7_999 + "b"
    fitted = Annotation.fitted(1, 2, text, {"changed": ["x"] * 1000})
    assert fitted == Annotation(1, 2, text, {"changed": ["x"] * 1000})


def test_a_long_annotation_loses_lines_from_its_end_and_says_how_many():
    text = "\n".join(f"source lib/module_{n}.py aaaaaaaaaaaa -> bbbbbbbbbbbb" for n in range(1000))
    fitted = Annotation.fitted(1, 2, text, {})
    lines = fitted.text.split("\n")
    assert limits.utf16_units(fitted.text) <= 16_000
    assert lines[:-1] == text.split("\n")[: len(lines) - 1]
    assert lines[-1] == f"... {1000 - (len(lines) - 1)} more lines"


def test_metadata_beyond_64_kib_loses_the_end_of_its_longest_list():
    changed = [f"source lib/module_{n}.py aaaaaaaaaaaa -> bbbbbbbbbbbb" for n in range(5_000)]
    fitted = Annotation.fitted(1, 123_456, "t", {"changed": changed, "checkpoint": "/c/step-00000004"})
    assert fitted.metadata["checkpoint"] == "/c/step-00000004"
    kept: Any = fitted.metadata["changed"]
    assert kept[:-1] == changed[: len(kept) - 1]
    assert kept[-1] == f"... {5_000 - len(kept) + 1} more lines"
    assert len(limits.compact({**fitted.metadata, "step": 123_456})) <= limits.MAX_METADATA_BYTES
    assert len(kept) > 1_000


def test_a_long_error_in_metadata_is_cut():
    fitted = Annotation.fitted(1, 2, "failed: x", {"error": "\0" * 100_000, "more": {"a": "b" * 70_000}})
    assert len(limits.compact({**fitted.metadata, "step": 2})) <= limits.MAX_METADATA_BYTES
    assert str(fitted.metadata["error"]).endswith("...")
    assert fitted.metadata["more"] == "too large to record"


def test_file_names_that_are_no_utf8_are_shown_escaped():
    fitted = Annotation.fitted(1, 2, "failed: /tmp/\udcff", {"error": ["/tmp/\udcff"]})
    assert fitted.text == r"failed: /tmp/\udcff"
    assert strict(fitted.encode())["metadata"] == {"error": [r"/tmp/\udcff"]}
