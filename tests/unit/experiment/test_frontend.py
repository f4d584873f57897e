from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime.errors import Rejected, Unavailable
from runtime.experiment.frontend import load_experiment
from tests.support.experiments import SMALL, write_project


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_project(tmp_path, {"small.py": SMALL})


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(Rejected) as refused:
        load_experiment(path, device="cpu", **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_identity_holds_every_key_of_the_open_metadata_in_order(small: Path):
    loaded = load_experiment(small, variant="tiny", knobs={"mode": "hard"}, eval_every=2, device="cpu")
    metadata = loaded.identity.metadata()
    sources = metadata.pop("sources")
    assert isinstance(sources, list)
    assert [source["path"] for source in sources] == ["small.py", "<core>", "<std/optim>"]
    assert all(len(source["sha256"]) == 64 for source in sources)
    knobs = {
        "steps": 2, "eval_every": 2, "rate": 0.25, "mode": "hard", "noisy": False, "name": "plain", "seed": 0,
    }  # fmt: skip
    assert list(metadata.items()) == [
        ("sexpgpu", runtime.__version__),
        ("entry", "small.py"),
        ("variant", "tiny"),
        ("knobs", knobs),
        (
            "run",
            {
                "steps": 2,
                "microbatches": 2,
                "evals": [{"name": "eval", "every": 2, "batches": 3}],
                "checkpoint_every": 4,
                "precision": "fp32",
                "seed": 0,
                "diagnostics": "off",
                "diagnose_every": None,
                "diagnose_first": None,
            },
        ),
        ("device", "cpu"),
        ("devices", []),
    ]
    assert loaded.identity.description("my-run") == "my-run: 2 steps of small.py"


def test_another_folder_is_not_another_identity(small: Path, tmp_path: Path):
    elsewhere = write_project(tmp_path / "checkout" / "of" / "another", {"small.py": SMALL})
    first, second = (load_experiment(path, device="cpu").identity for path in (small, elsewhere))
    assert first.metadata() == second.metadata()


def test_loading_twice_gives_equal_models_and_another_seed_another_one(small: Path):
    def weights(**options: Any) -> torch.Tensor:
        torch.rand(1)  # whatever was drawn before does not matter
        model = load_experiment(small, device="cpu", **options).experiment.model
        return torch.cat([parameter.flatten() for parameter in model.parameters()])

    assert torch.equal(weights(), weights())
    assert not torch.equal(weights(), weights(knobs={"seed": "1"}))


def test_steps_and_eval_every_are_bound_before_the_function_runs(small: Path):
    loaded = load_experiment(small, steps=20, eval_every=5, device="cpu")
    assert loaded.experiment.steps == 20
    assert loaded.experiment.stages[0].until == 10
    assert loaded.experiment.evaluations[0].every == 5


def test_a_non_finite_knob_is_a_string_in_the_identity(small: Path):
    identity = load_experiment(small, knobs={"rate": "-inf"}, device="cpu").identity
    assert identity.metadata()["knobs"]["rate"] == "-inf"  # type: ignore[index,call-overload] # it is a mapping


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "tini"}, "small.py:11: unknown variant 'tini', did you mean 'tiny'?"),
        ({"knobs": {"stepz": "3"}}, "small.py:11: unknown knob 'stepz', did you mean 'steps'?"),
        ({"knobs": {"mode": "x"}}, "small.py:11: knob mode takes one of easy, hard, got 'x'"),
        ({"knobs": {"steps": "0"}}, "small.py:11: the knob steps must be at least 1, got 0"),
        ({"knobs": {"seed": "-1"}}, "small.py:11: the knob seed must be an integer from 0 to 2^63-1, got -1"),
        ({"knobs": {"steps": "3"}, "steps": 4}, "the knob steps is given twice: by --steps and by --knob"),
        ({"steps": 1}, "small.py:39: until of stage 'easy' must be an integer, at least 1, got 0"),
        ({"knobs": {"name": "x" * 70_000}}, "the run's identity takes"),
    ],
)
def test_a_mistake_in_a_flag_is_one_line(small: Path, options: dict[str, Any], message: str):
    assert message in refusal(small, **options)


EDITS = [
    ("eval_every: int = 4", "eval_every: int = 4)", "small.py:13: SyntaxError: unmatched ')'"),
    ("import torch\n", "import torch, nothing_such\n", "small.py:4: ModuleNotFoundError: No module named"),
    (
        "model = nn.Linear(3, 1)",
        "model = nn.Linear(3, undefined)",
        "small.py:34: NameError: name 'undefined'",
    ),
    ("model = nn.Linear(3, 1)", "raise SystemExit(3)", "small.py:34: SystemExit: 3"),
    ("model = nn.Linear(3, 1)", "raise KeyError('a\\nb')", "small.py:34: KeyError: 'a\\nb'"),
    ("model = nn.Linear(3, 1)", "raise GeneratorExit", "small.py:34: GeneratorExit"),
    (
        "model = nn.Linear(3, 1)",
        "raise type('Mute', (Exception,), {'__str__': lambda _: 1 / 0})",
        "small.py:34: Mute: it has no text",
    ),
    (
        "    return Experiment(",
        "    return dict(",
        "small.py:33: experiment() must return an Experiment, got {",
    ),
    ("def experiment(", "def experimant(", "small.py: the file has no function experiment: write `def exp"),
    ("class Knobs:", "class Nobs:", "small.py:21: NameError: name 'Knobs' is not defined"),
    ("(frozen=True)", "()", "small.py:11: Knobs must be a frozen dataclass"),
    (
        "rate: float = 0.5",
        "rate: list = None",
        "small.py:11: knob rate has the type list; accepted: int, float",
    ),
    (
        "steps=knobs.steps,",
        "steps=7,",
        "small.py:33: experiment() must follow the knob steps, which is 8, got 7",
    ),
    ("seed=knobs.seed", "seed=5", "small.py:33: experiment() must follow the knob seed, which is 0, got 5"),
    ("microbatches=2", "microbatches=0", "small.py:35: microbatches must be an integer, at least 1, got 0"),
    ("batches=3", "batches=-3", "small.py:40: batches of evaluation 'eval' must be an integer, at least 1"),
    (
        "microbatches=2",
        "precision='fp8'",
        "small.py:35: precision must be one of fp32, bf16, fp16, got 'fp8'",
    ),
    (
        "microbatches=2",
        "learning_rate=lambda step: step - 5",
        "small.py:33: learning_rate must return a finite",
    ),
    ("microbatches=2", "learning_rate=lambda step: 1 / step", "small.py:42: ZeroDivisionError"),
    (
        "until=knobs.steps // 2",
        "until=8",
        "small.py:33: stage 'easy' must end before the last step 8, got un",
    ),
    ("until=knobs.steps // 2", "until=400", "stage 'easy' must end before the last step 8, got until=400"),
    ("seed: int = 0", "seed: str = 'x'", "small.py:11: the knob seed must be an integer"),
    (
        "seed: int = 0",
        "seed: int = 0\n    diagnostics: str = 'on'",
        "the knob diagnostics must be off, got 'on'",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), EDITS)
def test_a_mistake_in_the_file_is_one_line_with_its_place(tmp_path: Path, old: str, new: str, message: str):
    assert old in SMALL
    path = write_project(tmp_path, {"small.py": SMALL.replace(old, new)})
    names = set(sys.modules)
    text = refusal(path)
    assert message in text
    assert not [name for name in set(sys.modules) - names if name.startswith("experiment_")]


@pytest.mark.parametrize("asked", [{"steps": 10}, {"steps": 400}, {"knobs": {"steps": "10"}}])
def test_whoever_asks_for_fewer_steps_never_reaches_the_stages_after_them(tmp_path: Path, asked: Any):
    source = SMALL.replace("until=knobs.steps // 2", "until=400").replace(
        "steps: int = 8", "steps: int = 800"
    )
    path = write_project(tmp_path, {"small.py": source})
    made = load_experiment(path, device="cpu", **asked).experiment
    assert [stage.until for stage in made.stages] == [400, None]


def test_a_variant_whose_steps_end_before_a_stage_does_is_a_mistake_in_the_file(tmp_path: Path):
    source = SMALL.replace("until=knobs.steps // 2", "until=4")
    assert "stage 'easy' must end before the last step 2, got until=4" in refusal(
        write_project(tmp_path, {"small.py": source}), variant="tiny"
    )


def test_a_mistake_in_a_module_beside_the_file_is_placed_there(tmp_path: Path):
    files = {"small.py": "import parts.broken\n" + SMALL, "parts/broken.py": "x = 1\nx.y"}
    assert refusal(write_project(tmp_path, files)).startswith(
        "parts/broken.py:2: AttributeError: 'int' object"
    )
    (tmp_path / "parts" / "broken.py").write_text("x = (")
    assert refusal(tmp_path / "small.py").startswith("parts/broken.py:1: SyntaxError: '(' was never closed")


def test_a_private_name_never_shows_in_a_mistake(tmp_path: Path):
    path = write_project(
        tmp_path, {"small.py": "from parts import nothing\n" + SMALL, "parts/__init__.py": ""}
    )
    text = refusal(path)
    assert "cannot import name 'nothing' from 'parts'" in text
    assert "experiment_" not in text


def test_a_missing_file_that_the_experiment_reads_is_the_surroundings_fault(tmp_path: Path):
    source = SMALL.replace("model = nn.Linear(3, 1)", "model = open('/nowhere/corpus.txt')")
    path = write_project(tmp_path, {"small.py": source})
    with pytest.raises(Unavailable, match=r"small.py:34: '/nowhere/corpus.txt' is missing on this host"):
        load_experiment(path, device="cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py", "no experiment file at"),
        (f"{'long' * 99}.py", "the experiment file cannot be reached: [Errno 36] File name too long"),
        ("notes.txt", "an experiment file is a Python file whose name ends in .py, got"),
        ("folder.py", "an experiment file is a Python file whose name ends in .py, got"),
    ],
)
def test_a_path_that_is_no_experiment_file_is_refused(tmp_path: Path, name: str, message: str):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "notes.txt").touch()
    assert message in refusal(tmp_path / name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a host without a CUDA device says")
def test_a_host_without_a_cuda_device_refuses_one_and_defaults_to_the_cpu(small: Path):
    assert load_experiment(small).identity.device == "cpu"
    with pytest.raises(Rejected, match="--device cuda needs a CUDA device, and torch finds none here"):
        load_experiment(small, device="cuda")
    with pytest.raises(Rejected, match="--device cuda needs a CUDA device"):
        load_experiment(small, devices=[0])


def test_devices_of_a_cpu_and_unknown_devices_are_refused(small: Path):
    with pytest.raises(Rejected, match="--devices names CUDA devices"):
        load_experiment(small, device="cpu", devices=[0])
    with pytest.raises(Rejected, match="--device must be cpu or cuda, got 'tpu'"):
        load_experiment(small, device="tpu")


def test_the_file_in_the_documentation_is_an_experiment_and_its_mistakes_read_as_it_says(tmp_path: Path):
    pytest.importorskip("sklearn")
    page = (Path(__file__).parents[3] / "docs" / "experiment-files.md").read_text()
    source = page.partition("```python\n")[2].partition("```")[0]
    path = write_project(tmp_path, {"my_digits.py": source})
    assert load_experiment(path, variant="tiny", device="cpu").experiment.steps == 60
    assert f"sexpgpu: {refusal(path, knobs={'peak_rl': '1'})}\n" in page
    path.write_text(source.replace("digits.load(", "undefined("))
    assert f"sexpgpu: {refusal(path)}\n" in page
    path.write_text(source.replace("steps=knobs.steps,\n        ch", "steps=0,\n        ch"))
    assert f"sexpgpu: {refusal(path)}\n" in page
