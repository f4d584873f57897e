# ruff: noqa: N806 - tensors carry their shape
from __future__ import annotations

import math

import pytest
import torch

from runtime.errors import Rejected
from runtime.std.models import Classifier, Transformer


def transformer(**changes: float) -> Transformer:
    torch.manual_seed(0)
    sizes = {"vocabulary": 11, "width": 16, "depth": 2, "heads": 2, **changes}
    return Transformer(**sizes)  # type: ignore[arg-type] # dropout is the only float


def test_a_byte_does_not_see_what_follows_it():
    model, tokens_BT = transformer(), torch.randint(11, (2, 9))
    logits_BTV = model(tokens_BT)
    assert logits_BTV.shape == (2, 9, 11)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 5] = (changed_BT[:, 5] + 1) % 11
    moved_BT = (model(changed_BT) - logits_BTV).abs().amax(-1) > 1e-6
    assert not moved_BT[:, :5].any()
    assert moved_BT[:, 5:].all()


def test_a_byte_sees_in_which_order_the_others_came():
    model = transformer()
    one, other = model(torch.tensor([[1, 2, 3]])), model(torch.tensor([[2, 1, 3]]))
    assert not torch.allclose(one[:, -1], other[:, -1])


def test_a_new_model_is_as_unsure_as_it_can_be():
    logits_BTV = transformer(width=64)(torch.randint(11, (4, 20)))
    loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), torch.randint(11, (80,)))
    assert abs(float(loss.detach()) - math.log(11)) < 0.1


def test_dropout_is_for_training_only():
    model, tokens_BT = transformer(dropout=0.5), torch.randint(11, (1, 9))
    assert not torch.equal(model(tokens_BT), model(tokens_BT))
    model.eval()
    assert torch.equal(model(tokens_BT), model(tokens_BT))


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(Rejected, match="even multiple of heads, got width=15 and heads=2"):
        transformer(width=15)
    with pytest.raises(Rejected, match="even multiple of heads, got width=6 and heads=2"):
        transformer(width=6)


def test_the_classifier_has_one_logit_a_class_and_a_gradient_everywhere():
    model = Classifier(side=8, channels=4, classes=10)
    logits_BC = model(torch.rand(5, 64))
    assert logits_BC.shape == (5, 10)
    logits_BC.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
