"""Models as users have them at hand: an instance, lazy layers, outputs in the manner of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedkin
from fedkin.errors import FedkinError
from fedkin.run.callbacks import EarlyStop
from fedkin.testing.federations import CLASS_COUNT, uneven_federation

DATA = uneven_federation()


def same(a: fedkin.Result, b: fedkin.Result) -> bool:
    return bool(np.array_equal(a.rows, b.rows))


def test_an_instance_is_copied_and_its_weights_are_the_start() -> None:
    torch.manual_seed(3)
    net = nn.Linear(5, CLASS_COUNT)
    before = net.weight.detach().clone()
    result = fedkin.train(DATA, net, "fedavg", rounds=2)
    assert torch.equal(net.weight, before)
    assert same(result, fedkin.train(DATA, net, "fedavg", rounds=2))
    untrained = fedkin.train(DATA, net, "fedavg", rounds=0)
    assert np.allclose(untrained.rows[0][: before.numel()], before.numpy().ravel())
    several = fedkin.train(DATA, net, "ifca", rounds=2)
    assert len(np.unique(several.rows, axis=0)) > 1, "clusters do not all start from the same weights"


def test_lazy_layers_learn_their_shapes() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(CLASS_COUNT))

    by_factory = fedkin.train(DATA, net, "fedavg", rounds=3)
    assert by_factory.summary()["mean"] > 1 / CLASS_COUNT
    assert by_factory.rows.shape == (6, 5 * 8 + 8 + 8 * CLASS_COUNT + CLASS_COUNT)
    assert same(by_factory, fedkin.train(DATA, net, "fedavg", rounds=3))
    assert fedkin.train(DATA, net(), "fedavg", rounds=1).rows.shape == by_factory.rows.shape


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None


class Answering(nn.Module):
    """A network whose answer is an object, a dict or a pair."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(5, CLASS_COUNT), how

    def forward(self, x: Tensor) -> object:
        logits = self.layer(x)
        return {"object": Output(logits), "dict": {"logits": logits}, "pair": (logits, logits)}[self.how]


@pytest.mark.parametrize("how", ["object", "dict"])
def test_logits_are_taken_from_what_a_model_answers(how: str) -> None:
    result = fedkin.train(DATA, lambda: Answering(how), "fedavg", rounds=2)
    plain = fedkin.train(DATA, lambda: nn.Linear(5, CLASS_COUNT), "fedavg", rounds=2)
    assert np.allclose(result.rows, plain.rows, atol=1e-6)
    assert result.models["site-a"](torch.zeros(2, 5)).shape == (2, CLASS_COUNT)


def test_other_outputs_and_models_are_one_line() -> None:
    with pytest.raises(FedkinError, match="puts out a tuple, not a tensor"):
        fedkin.train(DATA, Answering("pair"), rounds=1)
    with pytest.raises(FedkinError, match="model must be the name"):
        fedkin.train(DATA, 3, rounds=1)  # type: ignore[arg-type]


def test_a_function_is_a_callback() -> None:
    seen: list[int] = []

    def watch(run: object, record: dict) -> bool:
        seen.append(record["round"])
        return len(seen) == 3

    result = fedkin.train(DATA, "mlr", rounds=9, callbacks=[watch])
    assert seen == [1, 2, 3]
    assert result.facts["rounds"] == 3
    with pytest.raises(FedkinError, match=r"must take two arguments: \(run, record\)"):
        fedkin.train(DATA, "mlr", rounds=1, callbacks=[lambda record: None])
    with pytest.raises(FedkinError, match=r"is a class; make one: EarlyStop\(\)"):
        fedkin.train(DATA, "mlr", rounds=1, callbacks=[EarlyStop])  # type: ignore[list-item]
