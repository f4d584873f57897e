"""The parts of a run's identity: what it is set to do, and the hashes of the code it is made of."""

from __future__ import annotations

import ast
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import runtime
from runtime.events.identity import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

    from runtime.events.kinds import Json
    from runtime.experiment.model import Experiment

__all__ = ["core_source", "describe_run", "standard_sources"]

RUNTIME = Path(runtime.__file__).parent


def describe_run(experiment: Experiment) -> dict[str, Json]:
    """Return the `run` part of the metadata."""
    return {
        "steps": experiment.steps,
        "microbatches": experiment.microbatches,
        "evals": [
            {"name": evaluation.name, "every": evaluation.every, "batches": evaluation.batches}
            for evaluation in experiment.evaluations
        ],
        "checkpoint_every": experiment.checkpoint_every,
        "precision": experiment.precision,
        "seed": experiment.seed,
        "diagnostics": "off",
        "diagnose_every": None,
        "diagnose_first": None,
    }


def core_source() -> Source:
    """Return `<core>`: the hash over the path and bytes of every file of the runtime's own code."""
    digest = sha256()
    for path in sorted(RUNTIME.rglob("*.py")):
        relative = path.relative_to(RUNTIME).as_posix()
        if not relative.startswith("std/"):
            digest.update(f"{relative}\0{sha256(path.read_bytes()).hexdigest()}\n".encode())
    return Source("<core>", digest.hexdigest())


def standard_sources(names: Iterable[str]) -> list[Source]:
    """Return `<std/name>` of each standard module in `names`, and of those that they import themselves."""
    found: dict[str, bytes] = {}
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found[name] = (RUNTIME / "std" / f"{name}.py").read_bytes()
            pending.extend(_standard_imports(found[name]))
    return [Source(f"<std/{name}>", sha256(code).hexdigest()) for name, code in sorted(found.items())]


def _standard_imports(code: bytes) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "runtime.std":
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("runtime.std."):
            names.append((node.module or "").removeprefix("runtime.std."))
    return names
