"""`sexpgpu check`: everything up to step 0, and nothing touched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.errors import Rejected
from runtime.experiment._checks import with_article
from runtime.experiment.model import Batch, Reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runtime.checkpoints.reader import Checkpoint
    from runtime.cli.request import RunRequest
    from runtime.experiment.frontend import Loaded
    from runtime.experiment.model import Evaluation, Loader, Stage

__all__ = ["check"]


def check(request: RunRequest, environ: Mapping[str, str]) -> str:
    """Do everything up to step 0 and return what `sexpgpu check` prints: a table, or JSON if asked.

    The file is loaded, its model made, batch 0 of every loader drawn; the targets are looked at as far as
    that touches nothing, and the checkpoint that a run would go on from is read and must fit.

    Raises:
        Rejected: a mistake in the file or in a flag, or a location where this run cannot go on.
        Unavailable: the location cannot be reached, or a file that the experiment reads is missing here.
    """
    checkpoint = _check_places(request, environ)
    from runtime.training.prepared import Prepared

    loaded = request.load()
    Prepared(loaded).fit(checkpoint)
    drawn = _Drawn.of(loaded)
    if request.json:
        return json.dumps(loaded.identity.metadata(), ensure_ascii=False)
    return "\n".join(_table(loaded, drawn))


def _check_places(request: RunRequest, environ: Mapping[str, str]) -> Checkpoint | None:
    """Look at the targets, and return the checkpoint that a run would go on from."""
    from runtime.training.run import checked_targets

    checked_targets(request, environ, session="0" * 32)
    if request.location is None:
        return None
    from runtime.checkpoints.location import open_location

    return open_location(request.location, environ).find(slug=request.slug, resume=request.resume).checkpoint


@dataclass(frozen=True, slots=True)
class _Drawn:
    """The size of batch 0 of each loader, in words, by name."""

    stages: dict[str, str]
    evaluations: dict[str, str]

    @classmethod
    def of(cls, loaded: Loaded) -> _Drawn:
        experiment = loaded.experiment
        return cls(
            {stage.name: _draw(f"stage {stage.name!r}", stage.loader) for stage in experiment.stages},
            {
                evaluation.name: _draw(f"evaluation {evaluation.name!r}", evaluation.loader)
                for evaluation in experiment.evaluations
            },
        )


def _draw(where: str, loader: Loader) -> str:
    try:
        batch = loader.batch(0)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        from runtime.experiment.frontend import mistake

        raise mistake(f"batch 0 of {where} cannot be drawn", error) from error
    if not isinstance(batch, Batch):
        raise Rejected(f"the loader of {where} must return a Batch, got {with_article(type(batch).__name__)}")
    _check_tensors(where, batch.data)
    tokens = "" if batch.num_tokens is None else f", {batch.num_tokens:,} tokens"
    return f"{batch.num_examples:,} examples{tokens}"


def _check_tensors(where: str, data: Any) -> None:
    import torch

    leaves = list(_leaves(data))
    if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise Rejected(
            f"batch 0 of {where} holds no tensor: Batch.data nests tensors in tuples, lists, dicts"
        )
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
            raise Rejected(f"batch 0 of {where} must be on the CPU, got a tensor on {leaf.device}")


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, dict):
        data = list(data.values())
    if isinstance(data, list | tuple):
        for part in data:
            yield from _leaves(part)
    else:
        yield data


def _table(loaded: Loaded, drawn: _Drawn) -> Iterator[str]:
    experiment, identity = loaded.experiment, loaded.identity
    yield _row("entry", identity.entry)
    yield _row("variant", identity.variant or "none: the defaults of Knobs")
    yield _row("device", " ".join([identity.device, *map(str, identity.devices)]))
    yield from _rows("knobs", {name: json.dumps(value) for name, value in identity.knobs.items()})
    yield _row("parameters", _parameters(loaded))
    every = experiment.checkpoint_every
    microbatches = f"{experiment.microbatches} microbatch{'es' if experiment.microbatches > 1 else ''}"
    yield _row("steps", f"{experiment.steps:,}, each of {microbatches} in {experiment.precision}")
    yield _row("checkpoints", f"every {every:,} steps and at the end" if every else "at the end")
    stages = {
        stage.name: f"{_until(stage)}; batch 0: {drawn.stages[stage.name]}" for stage in experiment.stages
    }
    yield from _rows("stages", stages)
    evaluations = {
        evaluation.name: f"{_when(evaluation)}; batch 0: {drawn.evaluations[evaluation.name]}"
        for evaluation in experiment.evaluations
    }
    yield from _rows("evaluations", evaluations)
    yield from _rows("sources", {source.path: source.sha256[:12] for source in identity.sources})


def _parameters(loaded: Loaded) -> str:
    model, optimizer = loaded.experiment.model, loaded.experiment.optimizer
    trained = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
    sizes = {id(parameter): parameter.numel() for parameter in model.parameters()}
    total = sum(sizes.values())
    return f"{total:,}, of which {sum(sizes[key] for key in trained):,} are trained"


def _until(stage: Stage) -> str:
    if stage.until is None:
        return "to the end"
    if isinstance(stage.until, Reached):
        reached = stage.until
        bound = f"<= {reached.at_most}" if reached.at_most is not None else f">= {reached.at_least}"
        return f"until {reached.metric} of {reached.evaluation} {bound}"
    return f"until step {stage.until:,}"


def _when(evaluation: Evaluation) -> str:
    start = "at the start, " if evaluation.at_start else ""
    return f"{start}every {evaluation.every:,} steps, {evaluation.batches:,} batches"


def _row(name: str, text: str) -> str:
    return f"{name:<12}  {text}"


def _rows(name: str, values: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, values), default=0)
    for number, (key, text) in enumerate(values.items()):
        yield _row("" if number else name, f"{key:<{width}}  {text}")
    if not values:
        yield _row(name, "none")
