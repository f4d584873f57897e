"""infra.metrics.already_there: what an experiment has is found again, as often as it has it."""

import random

import pytest

from infra.metrics.already_there import AlreadyThere, Fingerprints
from infra.metrics.api import Columns, Frame
from runtime.events.kinds import Annotation, Metric
from runtime.events.syvain import wire

SESSION = "0" * 32


def line(event, sequence=1):
    return wire.decode_line(wire.spool_line(SESSION, sequence, event, event.encode()))


def metric(step, value=0.5, *, ts_ms=1_000, name="loss", **metadata):
    return line(Metric(ts_ms, step, name, value, metadata))


def frame(*points, name="loss", **metadata):
    steps, times, values = zip(*points, strict=True)
    return Frame(name, metadata, Columns(list(steps), list(times), list(values)))


def there(*frames, annotations=()):
    return AlreadyThere(Fingerprints(), frames, annotations)


def test_an_empty_experiment_lacks_everything():
    lines = [metric(0), metric(1)]
    assert there().missing(lines) == lines


@pytest.mark.parametrize(
    "other",
    [
        metric(1),
        metric(0, 0.25),
        metric(0, ts_ms=1_001),
        metric(0, name="loss2"),
        metric(0, split="train"),
        metric(0, -0.5),
    ],
)
def test_a_point_that_differs_in_anything_is_missing(other):
    known = there(frame((0, 1_000, 0.5)))
    assert known.missing([other]) == [other]
    assert known.missing([metric(0)]) == []


def test_minus_zero_is_not_zero():
    known = there(frame((0, 1_000, -0.0)))
    assert len(known.missing([metric(0, 0.0)])) == 1
    assert known.missing([metric(0, -0.0)]) == []


def test_the_order_of_metadata_does_not_matter():
    known = there(frame((0, 1_000, 0.5), b="2", a="1"))
    assert known.missing([metric(0, a="1", b="2")]) == []


def test_a_point_is_there_as_often_as_it_is_there():
    known = there(frame((0, 1_000, 0.5), (0, 1_000, 0.5)))
    assert len(known.missing([metric(0)] * 3)) == 1
    assert len(known.missing([metric(0)])) == 1


def test_points_without_a_step_are_nobodys_points_with_one():
    known = there(frame((None, 1_000, 0.5)))
    assert len(known.missing([metric(0)])) == 1


def test_any_values_are_found_again():
    draw = random.Random(7)
    points = [
        (
            draw.randrange(2**53),
            draw.randrange(2**53),
            draw.uniform(-1, 1) * 10.0 ** draw.randrange(-300, 300),
        )
        for _ in range(2_000)
    ]
    known = there(frame(*points))
    shuffled = draw.sample(points, len(points))
    assert known.missing([metric(step, value, ts_ms=ts_ms) for step, ts_ms, value in shuffled]) == []


def test_an_annotation_is_there_as_often_as_it_is_there():
    said = Annotation(1_000, 3, "checkpoint", {"seconds": 0.5, "checkpoint": "x"})
    on_server = {
        "annotation": "checkpoint",
        "meta": {"checkpoint": "x", "step": 3, "seconds": 0.5},
        "createdAtMs": 1_000,
    }
    known = there(annotations=[on_server])
    assert [known.lacks(line(said)), known.lacks(line(said))] == [False, True]
    assert known.lacks(line(Annotation(1_000, 4, "checkpoint", {"seconds": 0.5, "checkpoint": "x"})))
