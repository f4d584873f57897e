from __future__ import annotations

from runtime.training.changes import changes

OLD = {
    "knobs": {"width": 8, "rate": 0.1, "old": None},
    "sources": [{"path": "train.py", "sha256": "a" * 64}, {"path": "gone.py", "sha256": "b" * 64}],
}


def test_the_same_files_under_the_same_selection_have_no_line():
    assert changes(OLD, OLD) == []


def test_a_line_per_source_then_per_knob_that_moved():
    new = {
        "knobs": {"width": 16, "rate": 0.1, "name": "ä"},
        "sources": [{"path": "train.py", "sha256": "c" * 64}, {"path": "new.py", "sha256": "d" * 64}],
    }
    assert changes(OLD, new) == [
        f"source train.py {'a' * 12} -> {'c' * 12}",
        "source gone.py is gone",
        "source new.py is new",
        "knob width 8 -> 16",
        "knob old is gone",
        "knob name is new",
    ]


def test_knobs_are_shown_as_compact_json():
    old, new = {"knobs": {"a": [1, "x"], "b": None}}, {"knobs": {"a": [1, "y"], "b": {"k": True}}}
    assert changes(old, new) == ['knob a [1,"x"] -> [1,"y"]', 'knob b null -> {"k":true}']


def test_sources_too_large_to_record_are_not_compared():
    assert changes({**OLD, "sources": "900 files, too large to record"}, OLD) == []
