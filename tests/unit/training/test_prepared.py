from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from runtime.errors import Rejected
from runtime.experiment.frontend import load_experiment
from runtime.training.prepared import Prepared
from tests.support.experiments import SMALL, write_project

if TYPE_CHECKING:
    from pathlib import Path

BROKEN = "class Broken:\n    def state_dict(self):\n        {body}\n    load_state_dict = None\n\n\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("return self.missing", r"small\.py: the state cannot be captured: AttributeError: .* 'missing'"),
        (
            "return {'when': {1, 2}}",
            r"small\.py: state\.broken\.when is a set, which a checkpoint cannot keep",
        ),
    ],
)
def test_a_state_that_cannot_be_captured_is_the_files_mistake(tmp_path: Path, body: str, says: str):
    source = SMALL.replace("def experiment(", BROKEN.format(body=body) + "def experiment(")
    source = source.replace("microbatches=2", "state={'broken': Broken()}")
    loaded = load_experiment(write_project(tmp_path, {"small.py": source}), device="cpu")
    with pytest.raises(Rejected, match=says):
        Prepared(loaded)


def test_a_model_whose_state_dict_fails_is_the_files_mistake(tmp_path: Path):
    source = SMALL.replace(
        "    return Experiment(", "    model.state_dict = lambda *a, **k: 1 / 0\n    return Experiment("
    )
    loaded = load_experiment(write_project(tmp_path, {"small.py": source}), device="cpu")
    with pytest.raises(Rejected, match="the state cannot be captured: ZeroDivisionError"):
        Prepared(loaded)
