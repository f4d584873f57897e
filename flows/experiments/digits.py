"""A classifier of scikit-learn's handwritten digits: over 97 % of held-out ones, in seconds on two cores.

sexpgpu run flows/experiments/digits.py
"""

# Shapes: B batch, P pixels, C classes.

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sexpgpu import Evaluation, Experiment, Stage, data, digits, metric, models, optim


@dataclass(frozen=True)
class Knobs:
    steps: int = 600
    batch_size: int = 64
    channels: int = 32
    dropout: float = 0.3
    peak_lr: float = 3e-3
    eval_every: int = 100
    checkpoint_every: int = 100
    seed: int = 0


VARIANTS = {"tiny": Knobs(steps=60, channels=8, eval_every=20, checkpoint_every=20)}


def loss(model: nn.Module, examples: tuple[Tensor, Tensor]) -> Tensor:
    pixels_BP, labels_B = examples
    logits_BC = model(pixels_BP)
    metric("accuracy", (logits_BC.argmax(-1) == labels_B).float().mean())
    return cross_entropy(logits_BC, labels_B)


def experiment(knobs: Knobs) -> Experiment:
    train, held_out = digits.load(held_out=0.2)
    all_held_out = data.InOrder(held_out, batch_size=128)
    model = models.Classifier(
        side=digits.SIDE, channels=knobs.channels, classes=digits.NUM_CLASSES, dropout=knobs.dropout
    )
    return Experiment(
        model=model,
        loss=loss,
        optimizer=optim.adamw(model),
        learning_rate=optim.warmup_cosine(knobs.peak_lr, warmup=knobs.steps // 20, steps=knobs.steps),
        stages=[Stage("train", data.Shuffled(train, batch_size=knobs.batch_size, seed=knobs.seed))],
        evaluations=[
            Evaluation(
                name="held-out", loader=all_held_out, every=knobs.eval_every, batches=len(all_held_out)
            )
        ],
        steps=knobs.steps,
        checkpoint_every=knobs.checkpoint_every,
        seed=knobs.seed,
    )
