"""An experiment file's directory is shipped: what is checked is what is stored, and what workers run."""

from __future__ import annotations

import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from flows import check, shipment
from flows.endings import Ending
from flows.hidden import Hidden
from flows.parameters import TrainParameters
from flows.pulse import Upkeep
from flows.records import record_of
from flows.report import Report
from flows.shipment import ship_experiment, trees_of
from flows.train import Experiments
from runtime.checkpoints.local import LocalStore
from runtime.errors import Rejected
from runtime.experiment.frontend import load_experiment
from tests.support.docs import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIGITS = (ROOT / "flows/experiments/digits.py").read_text()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "lib").mkdir(parents=True)
    (folder / "exp.py").write_text(f"{DIGITS}\nimport lib.sizes\n")
    (folder / "lib/sizes.py").write_text("WIDTH = 16\n")
    return folder


def ship(root: Path, **more: Any) -> TrainParameters:
    parameters = TrainParameters(experiment=str(root / "exp.py"), slug="a", variant="tiny", **more)
    return ship_experiment(parameters, str(root.parent / "trees"), os.environ).parameters


@pytest.fixture
def unchecked(monkeypatch) -> None:
    """Each check costs seconds."""
    monkeypatch.setattr(shipment, "check_shipped", lambda *_given, **_more: None)


class Host:
    """A worker's host, on which nothing is but what it fetches."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "host"
        self.folder.mkdir()
        self.store = LocalStore(home / "location")
        self.ran: list[Path] = []

    def command(self, _parameters: TrainParameters, *, experiment: Path, **_more: Any) -> list[str]:
        self.ran.append(experiment)
        return ["true"]

    def run(self, parameters: TrainParameters) -> Ending:
        report = Report(slug="a", flow_run_id="f", events=self.folder / "events", log=logging.getLogger("a"))

        class Here:
            folder, store, environment = self.folder, self.store, {**os.environ, "SLUGLINE_GPUS": "0"}
            upkeep, page = Upkeep(self.store, "t", progress=report.steps), None
            hidden = Hidden(dict, {})

        Here.report = report  # type: ignore[attr-defined] # its name is that of the variable
        trainer = Experiments(self.command).trainer(parameters, Here)  # type: ignore[arg-type] # a stand-in
        return trainer(1, lambda _process: None).ending


@pytest.mark.usefixtures("unchecked")
def test_a_worker_runs_what_was_shipped_whatever_became_of_the_file(root, tmp_path):
    before = load_experiment(root / "exp.py", variant="tiny", device="cpu").identity
    parameters = ship(root)
    shutil.rmtree(root)
    host = Host(tmp_path)
    assert host.run(parameters) is Ending.DONE
    (file,) = host.ran
    assert parameters.tree is not None
    assert file == host.folder / f"tree-{parameters.tree[:16]}" / "exp.py"
    assert load_experiment(file, variant="tiny", device="cpu").identity == before
    assert [source.path for source in before.sources][:2] == ["exp.py", "lib/sizes.py"]


@pytest.mark.usefixtures("unchecked")
def test_the_parameters_say_all_that_a_worker_needs_and_the_record_lists_what_was_shipped(root, tmp_path):
    parameters = ship(root)
    assert parameters.to_json() == {
        "experiment": "exp.py",
        "tree": parameters.tree,
        "trees": str(tmp_path / "trees"),
        "slug": "a",
        "variant": "tiny",
    }
    record = record_of(parameters)
    assert record.tree == parameters.tree
    assert record.files is not None
    assert [file["path"] for file in record.files() or ()] == ["exp.py", "lib/sizes.py"]
    shutil.rmtree(tmp_path / "trees")
    assert record.files() is None


@pytest.mark.usefixtures("unchecked")
def test_the_same_directory_is_uploaded_once_and_what_is_said_of_it_is_one_line(root, tmp_path):
    parameters = TrainParameters(experiment=str(root / "exp.py"), variant="tiny")
    first, second = (ship_experiment(parameters, str(tmp_path / "trees"), os.environ) for _ in range(2))
    size_bytes = sum(path.stat().st_size for path in root.rglob("*.py"))
    about = f"2 files, {size_bytes:,} bytes, {first.tree.digest[:12]}"
    assert (str(first), str(second)) == (f"shipped: {about}", f"shipped before: {about}")


@pytest.mark.usefixtures("unchecked")
def test_a_directory_that_is_gone_from_another_hosts_disk_is_waited_for(root, tmp_path):
    parameters = ship(root)
    shutil.rmtree(tmp_path / "trees")
    assert Host(tmp_path).run(parameters) is Ending.UNAVAILABLE


def left_out(root: Path) -> None:
    (root / ".gitignore").write_text("lib/\n")
    (root / ".git").mkdir()


def reads(root: Path, expression: str) -> None:
    with (root / "exp.py").open("a") as file:
        file.write(f"from pathlib import Path\nopen({expression})\n")


def above(root: Path) -> None:
    (root.parent / "corpus.txt").write_text("text")
    reads(root, "Path(__file__).parent.parent / 'corpus.txt'")


def by_a_link(root: Path) -> None:
    (root.parent / "helper.py").write_text("")
    (root / "helper.py").symlink_to("../helper.py")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (left_out, ["ModuleNotFoundError: No module named 'lib'", "once it is shipped: only {root} is"]),
        (above, ["'{root.parent}/corpus.txt' is missing on this host, once it is shipped: only {root} is"]),
        (by_a_link, ["the link helper.py leads out of the directory"]),
        (
            lambda root: (root / ".divignore").write_text("exp.py\n"),
            ["exp.py is left out of what is shipped", "with a line !exp.py in {root}/.divignore"],
        ),
    ],
    ids=["left out", "above", "link", "itself left out"],
)
def test_what_only_this_place_has_is_refused_in_one_line_and_nothing_is_stored(root, tmp_path, change, says):
    change(root)
    with pytest.raises(Rejected) as refused:
        ship(root)
    assert "\n" not in str(refused.value)
    for part in says:
        assert part.format(root=root) in str(refused.value)
    assert not (tmp_path / "trees").exists()


@pytest.mark.parametrize(
    ("shipped", "here", "told"),
    [
        ((0, ""), None, None),
        ((1, "it died"), None, None),
        ((75, "/data is missing on this host"), (75, "/data is missing on this host"), None),
        ((2, "exp.py:1: a mistake"), (2, "exp.py:1: a mistake"), "exp.py:1: a mistake"),
        ((75, "x is missing"), (0, ""), "x is missing, once it is shipped: "),
        ((2, "no module"), (75, "/data is missing"), "no module, once it is shipped: "),
    ],
    ids=["well", "dies", "the workers may have it", "a mistake", "a file here", "a module here"],
)
def test_what_a_check_says_where_only_the_shipped_directory_is(root, monkeypatch, shipped, here, told):
    answers: Iterator[tuple[int, str]] = iter([shipped, here])

    def checked(file: Path, *_given: Any, folder: Path | None = None) -> tuple[int, str]:
        # An attempt works elsewhere than we do: what is named from our working folder is not there.
        assert (folder is None) is (file == root / "exp.py")
        assert folder is None or list(folder.iterdir()) == []
        return next(answers)

    monkeypatch.setattr(check, "_checked", checked)
    if told is None:
        assert ship(root).tree
        return
    with pytest.raises(Rejected) as refused:
        ship(root)
    assert str(refused.value).startswith(told)
    assert str(refused.value).endswith(told) is not told.endswith(" ")


@pytest.mark.parametrize(
    ("prefix", "location", "trees"),
    [
        ("s3://bucket/runs/", "s3://other/a", "s3://bucket/runs/.trees"),
        (None, "s3://other/a/", "s3://other/a/.trees"),
        (None, "/shared/a", "/shared/a/.trees"),
        (None, None, None),
    ],
    ids=["prefix", "S3 location", "folder", "neither"],
)
def test_directories_lie_beside_the_runs_else_inside_the_run(prefix, location, trees):
    environment = {} if prefix is None else {"SLUGLINE_LOCATION": prefix}
    assert trees_of(TrainParameters(experiment="/a.py", location=location), environment) == trees


def test_a_module_is_not_shipped_and_found_where_it_is_installed(tmp_path):
    host = Host(tmp_path)
    assert host.run(TrainParameters(experiment="flows.experiments.digits", slug="a")) is Ending.DONE
    assert host.ran == [ROOT / "flows/experiments/digits.py"]
