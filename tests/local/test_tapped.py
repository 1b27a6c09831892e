"""Penalties of features: the hand-written chain against vmap of autograd."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedkin import Federation, train
from fedkin.algorithms.feddbe import drift
from fedkin.algorithms.fedproto import distance
from fedkin.local.batches import Batch
from fedkin.local.features import guided_loss, misalignment
from fedkin.local.kernels import choose_kernel
from fedkin.local.kernels.linear import LinearKernel
from fedkin.local.kernels.tapped import Penalty, TappedKernel, layers_up_to
from fedkin.models import ModelSpec
from fedkin.models.cut import cut
from fedkin.task import Task
from fedkin.task.losses import loss_of

CLASSES = Task("classification", (6,), classes=("a", "b", "c"))
NUMBERS = Task("regression", (6,), output_shape=(3,))


def deep() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.ReLU()),
        nn.Linear(5, 4),
        nn.Tanh(),
        nn.Linear(4, 3),
    )


@pytest.mark.parametrize("task", [CLASSES, NUMBERS], ids=["classes", "numbers"])
@pytest.mark.parametrize(
    ("penalty", "weighed"), [(misalignment, False), (distance, False), (drift, True)], ids=["cosine", "squares", "mean"]
)
def test_the_chain_with_a_penalty_is_the_vmapped_program(task: Task, penalty: Penalty, weighed: bool) -> None:
    torch.manual_seed(0)
    spec = ModelSpec.of(deep, task, torch.float64)
    choice = choose_kernel(spec, task)
    tapped = cut(spec, task, "0").tapped()
    rows = torch.stack([spec.layout.pack(deep().double(), torch.float64) for _ in range(3)])
    x, guides = torch.randn(3, 8, 6, dtype=torch.float64), torch.randn(3, 8, 5, dtype=torch.float64)
    y = torch.randint(3, (3, 8)) if task is CLASSES else torch.randn(3, 8, 3, dtype=torch.float64)
    weight = torch.rand(3, 8, dtype=torch.float64)
    weight = weight / weight.sum(dim=1, keepdim=True)
    batch = Batch(x, y, weight, (guides, weight) if weighed else (guides,))
    linear = choice.make()
    assert isinstance(linear, LinearKernel)
    fast = TappedKernel(linear, 2, 0.7, penalty)
    slow = choice.variant(tapped, guided_loss(loss_of(task), 3, 0.7, penalty))
    found, expected = torch.empty_like(rows), torch.empty_like(rows)
    losses = fast.gradient(rows, batch, found)
    wanted = slow.gradient(rows, batch, expected)
    torch.testing.assert_close(losses, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(fast.outputs(rows, x), slow.outputs(rows, x), rtol=1e-12, atol=1e-12)


def test_features_are_tapped_only_where_the_next_layer_gets_them_as_they_are() -> None:
    assert layers_up_to(deep(), "0") == 2
    assert layers_up_to(deep(), "0.1") == 1
    assert layers_up_to(deep(), "0.0") is None  # before the activation
    assert layers_up_to(deep(), "3") is None  # the outputs
    assert layers_up_to(deep(), "elsewhere") is None


def by_one_hot(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that vmap cannot take: torch's one_hot looks at its targets in Python."""
    return (outputs - nn.functional.one_hot(targets, outputs.shape[1])).square().mean(dim=1)


def by_arange(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - (targets[:, None] == torch.arange(outputs.shape[1])).to(outputs)).square().mean(dim=1)


def cut_and_dropping() -> nn.Module:
    body = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.ReLU())
    return nn.Sequential(OrderedDict(features=body, classifier=nn.Linear(4, 3)))


@pytest.mark.parametrize("method", ["fedska", "fedproto"])
def test_a_loss_that_vmap_cannot_take_trains_one_client_after_the_other(method: str) -> None:
    rng = np.random.default_rng(0)
    held = Federation.from_arrays({f"c{k}": (rng.normal(size=(20, 5)), rng.integers(0, 3, 20)) for k in range(3)})
    one, other = (
        train(held, "mlp:4", method, rounds=2, loss=loss, dtype="float64").rows for loss in (by_one_hot, by_arange)
    )
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
    assert np.isfinite(train(held, cut_and_dropping, method, rounds=1, loss=by_one_hot).rows).all()
