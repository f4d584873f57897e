"""A language model of Python code, byte by byte: short windows first, then long ones.

It learns from the standard library's own source, which every machine with Python has.
    sexpgpu run flows/experiments/python_lm.py --variant tiny
"""

# Shapes: B batch, T time, V vocabulary.

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sexpgpu import Evaluation, Experiment, Stage, metric, models, optim, text


@dataclass(frozen=True)
class Knobs:
    steps: int = 2000
    short_part: float = 0.5  # of all steps are trained on short windows
    short_window: int = 64
    long_window: int = 256
    batch_tokens: int = 4096  # bytes in a microbatch, at either length
    microbatches: int = 1
    width: int = 256
    depth: int = 6
    heads: int = 4
    dropout: float = 0.1
    peak_lr: float = 1e-3
    warmup_part: float = 0.05
    eval_every: int = 100
    eval_batches: int = 8
    checkpoint_every: int = 100
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: int = 0


VARIANTS = {
    "tiny": Knobs(
        steps=200, long_window=128, batch_tokens=512, width=64, depth=2, eval_every=50, checkpoint_every=20
    ),
    "gpu": Knobs(steps=20_000, batch_tokens=65_536, width=768, depth=12, heads=12, precision="bf16"),
}


def loss(model: nn.Module, windows: tuple[Tensor, Tensor]) -> Tensor:
    inputs_BT, targets_BT = windows
    logits_BTV = model(inputs_BT)
    metric("accuracy", (logits_BTV.argmax(-1) == targets_BT).float().mean())
    return cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())


def experiment(knobs: Knobs) -> Experiment:
    train, held_out = text.python_source().split(held_out=0.05)

    def windows(corpus: text.Corpus, length: int) -> text.Windows:
        return text.Windows(corpus, batch_size=knobs.batch_tokens // length, length=length, seed=knobs.seed)

    model = models.Transformer(
        vocabulary=text.NUM_BYTES,
        width=knobs.width,
        depth=knobs.depth,
        heads=knobs.heads,
        dropout=knobs.dropout,
    )
    rate = optim.warmup_cosine(
        knobs.peak_lr,
        warmup=int(knobs.warmup_part * knobs.steps),
        steps=knobs.steps,
        floor=knobs.peak_lr / 10,
    )
    return Experiment(
        model=model,
        loss=loss,
        optimizer=optim.adamw(model),
        learning_rate=rate,
        clip_norm=1.0,
        stages=[
            Stage(
                "short", windows(train, knobs.short_window), until=max(int(knobs.short_part * knobs.steps), 1)
            ),
            Stage("long", windows(train, knobs.long_window)),
        ],
        evaluations=[
            Evaluation(
                name="held-out",
                loader=windows(held_out, knobs.long_window),
                every=knobs.eval_every,
                batches=knobs.eval_batches,
            ),
        ],
        steps=knobs.steps,
        microbatches=knobs.microbatches,
        checkpoint_every=knobs.checkpoint_every,
        precision=knobs.precision,
        seed=knobs.seed,
    )
