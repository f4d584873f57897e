import pytest

from runtime.errors import Rejected
from runtime.events import limits
from runtime.events.identity import Identity, Source
from tests.support.strict_json import strict


def identity(**changes):
    given = {
        "sexpgpu": "0.1.0",
        "entry": "lm.py",
        "variant": None,
        "knobs": {"width": 64},
        "run": {"steps": 8},
        "sources": [Source("lm.py", "a" * 64), Source("<core>", "b" * 64)],
        "device": "cpu",
    }
    return Identity(**(given | changes))


def test_the_metadata_stands_in_the_documented_order():
    event = identity(device="cuda", devices=(1, 0)).open("my-run", ts_ms=5)
    line = strict(event.encode())
    assert line["description"] == "my-run: 8 steps of lm.py"
    assert list(line["metadata"].items()) == [
        ("sexpgpu", "0.1.0"),
        ("entry", "lm.py"),
        ("variant", None),
        ("knobs", {"width": 64}),
        ("run", {"steps": 8}),
        ("sources", [{"path": "lm.py", "sha256": "a" * 64}, {"path": "<core>", "sha256": "b" * 64}]),
        ("device", "cuda"),
        ("devices", [1, 0]),
    ]


def test_sources_stay_up_to_exactly_64_kib_and_are_only_counted_above():
    base = identity()
    room = limits.MAX_METADATA_BYTES - len(limits.compact(base.metadata()))
    exact = identity(knobs={"width": 64, "t": "x" * (room - len(',"t":""'))})
    assert len(limits.compact(exact.metadata())) == limits.MAX_METADATA_BYTES
    assert exact.metadata()["sources"] == base.metadata()["sources"]
    over = identity(knobs={"width": 64, "t": "x" * (room - len(',"t":""') + 1)})
    assert over.metadata() == exact.metadata() | {
        "knobs": over.knobs,
        "sources": "2 files, too large to record",
    }


def test_what_passes_64_kib_without_its_sources_is_refused_with_the_sizes():
    with pytest.raises(
        Rejected,
        match=r"takes 70,\d\d\d bytes of JSON without its sources, Metrics takes 65,536.*knobs 70,0\d\d",
    ):
        identity(knobs={"t": "x" * 70_000}).metadata()


@pytest.mark.parametrize("knobs", [{"t": "\ud800"}, {"n": 2**64}])
def test_what_is_no_json_is_refused(knobs):
    with pytest.raises(Rejected, match=r"the run's identity cannot be recorded: .* is not JSON"):
        identity(knobs=knobs).metadata()


def test_a_knob_that_is_not_finite_is_its_name():
    assert identity(knobs={"clip": float("inf")}).metadata()["knobs"] == {"clip": "inf"}
