"""What decides the bits of a run: re-seeding the generators, and the pins that a checkpoint keeps.

Measured (two AVX2 cores, torch 2.13): another number of threads, another processor capability, oneDNN on
against off, autocast, a fused optimiser and compiling each change the bits of a step; everything else that a
step depends on is a function of (seed, rank, step, microbatch) and of the checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runtime.experiment.model import Experiment

__all__ = ["Seeds", "configure", "observe", "reseed", "restore", "seeds_of"]

_SEEDS = struct.Struct("<QIQ")

_ENVIRONMENT = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "PYTHONHASHSEED",
)


class Seeds(NamedTuple):
    """What every generator is set to at one place of a run; of 64, 32 and 64 bits."""

    python: int
    numpy: int
    torch: int


def seeds_of(
    *, seed: int, rank: int, step: int, microbatch: int, purpose: str = "train"
) -> tuple[Seeds, Seeds]:
    """Return the seeds of one place of a run, a function of the arguments and of nothing else.

    The first are for drawing the batch, the others for computing its loss: with the same ones the noise of a
    loss would be the noise that is in the batch already. `purpose` keeps an evaluation's random numbers apart
    from training's.
    """
    text = f"{purpose}\0{seed}\0{rank}\0{step}\0{microbatch}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=2 * _SEEDS.size).digest()
    drawn, computed = map(Seeds._make, _SEEDS.iter_unpack(digest))
    return drawn, computed


def reseed(seeds: Seeds) -> None:
    """Set every generator, before each batch and forward pass: 7 µs on a CPU, 50 where the caches are cold.

    Seeding `random` with bytes would hash them first, and `torch.manual_seed` takes 170 µs: it looks at every
    kind of device.
    """
    random.seed(seeds.python)
    np.random.seed(seeds.numpy)  # noqa: NPY002 - the generator that files share
    torch.default_generator.manual_seed(seeds.torch)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call] # torch does not annotate it
        torch.cuda.manual_seed_all(seeds.torch)


def configure(experiment: Experiment, device: torch.device) -> None:
    """Switch on what makes a run repeat itself; to be called before anything is computed on the device.

    Deterministic kernels are on whenever something compiles or runs on a GPU: without them neither
    repeats even itself. A kernel that has no deterministic form is named in the log by torch's warning.
    """
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    if experiment.compile or device.type == "cuda":
        torch.use_deterministic_algorithms(mode=True, warn_only=True)
        # Filling every new tensor would cost a pass over memory and hide nothing that equality does not show.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a property


def observe(experiment: Experiment, device: torch.device) -> dict[str, Any]:
    """What decides bits here and now, as the JSON that a checkpoint keeps."""
    return {
        "torch": torch.__version__,
        "device": _device(device),
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        "threads": torch.get_num_threads(),
        "onednn": torch.backends.mkldnn.enabled,
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "precision": experiment.precision,
        "optimizer": _optimizer(experiment.optimizer),
        "compile": experiment.compile,
        "microbatches": experiment.microbatches,
        "stacking": 1,
    }


def restore(pinned: Mapping[str, Any], experiment: Experiment, device: torch.device) -> list[str]:
    """Set what can be set to what the checkpoint says; return a line for each thing that still differs.

    An empty list means that equal bits are promised. What the experiment file itself decides
    (precision, compile, microbatches) follows the file: a change there was asked for, and is said.
    """
    if isinstance(pinned.get("threads"), int):
        torch.set_num_threads(pinned["threads"])
    if isinstance(pinned.get("onednn"), bool) and pinned["onednn"] != torch.backends.mkldnn.enabled:
        torch.backends.mkldnn.set_flags(pinned["onednn"])  # type: ignore[no-untyped-call] # torch's
    if pinned.get("matmul_precision") in {"highest", "high", "medium"}:
        torch.set_float32_matmul_precision(pinned["matmul_precision"])
    now = observe(experiment, device)
    return [
        f"{name} was {pinned.get(name)!r} and is {value!r}"
        for name, value in now.items()
        if pinned.get(name) != value
    ]


def _device(device: torch.device) -> str:
    if device.type != "cuda":
        return device.type
    properties = torch.cuda.get_device_properties(device)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call] # torch does not annotate it
    version = f"CUDA {torch.version.cuda}, cuDNN {cudnn}"
    return f"{properties.name}, sm_{properties.major}{properties.minor}, {version}"


def _processor() -> str:
    """The processor's model: MKL and oneDNN choose their kernels by it, in ways they do not report."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Which implementation updates the parameters; torch chooses where `fused` and `foreach` are unset."""
    flags = ("fused", "foreach", "capturable")
    return {
        "class": type(optimizer).__qualname__,
        "groups": [{flag: group.get(flag) for flag in flags} for group in optimizer.param_groups],
    }
