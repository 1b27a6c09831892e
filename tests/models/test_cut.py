"""A model in two: the same outputs, the right tensors, and refusals in one line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError
from fedkin.models import Layout, ModelSpec
from fedkin.models.cut import Cut, cut
from fedkin.task import Task

TASK = Task("classification", (6,), classes=(0, 1, 2))
IMAGES = Task("classification", (1, 28, 28), classes=tuple(range(10)))
SERIES = Task("regression", (12,), output_shape=(12,))
TEXT = Task("classification", (9,), classes=tuple("abcde"), tokens=True)


class Own(nn.Module):
    """A user's module: features come from a method, not from a Sequential."""

    def __init__(self, skip: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)
        self.lstm = nn.LSTM(6, 4, batch_first=True)
        self.skip, self.twice = skip, twice

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(torch.relu(self.body(x)))
        h = h + self.lstm(x[:, None])[0][:, 0] * 0
        if self.twice:
            h = h + self.norm(h)
        if self.skip:
            h = h + x[:, :4]
        return self.head(h)


def rebuilt(found: Cut, x: Tensor) -> tuple[Tensor, Tensor]:
    """The model's outputs, and those of its classifier on its features."""
    row = found.spec.layout.pack(found.spec.template(), found.spec.dtype)
    tapped = found.tapped()
    both = tapped.layout.unpack(row, tapped.template()).eval()(x)
    outputs, features = both[:, : -found.size], both[:, -found.size :]
    tensors = {name: value[0] for name, value in found.head_tensors(row[None, found.columns]).items()}
    return outputs, torch.func.functional_call(found.head(), tensors, (features,))


@pytest.mark.parametrize(
    ("model", "task", "layer", "size"),
    [
        ("feature-mlp", IMAGES, "features", 64),
        ("mlp:5,4", TASK, "features", 4),
        ("mlp:5,4", TASK, "features.1", 5),
        ("bn-mlp:7", TASK, "features", 7),
        ("fedu-cifar10", Task("classification", (3, 32, 32), classes=tuple(range(10))), "features.2", 6 * 14 * 14),
        ("gru-forecaster:8,2", SERIES, "features", 16),
        ("lstm-text:8", TEXT, "features", 8),
        (Own, TASK, "norm", 4),
    ],
)
def test_the_classifier_on_the_features_is_the_model(model: object, task: Task, layer: str, size: int) -> None:
    found = cut(ModelSpec.of(model, task), task, layer)
    assert found.size == size
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 5, (3, 9), generator=generator) if task.tokens else torch.randn(3, *task.input_shape)
    outputs, again = rebuilt(found, x)
    assert torch.allclose(outputs, again, atol=1e-6)
    assert outputs.shape == (3, task.outputs)


def test_only_what_comes_after_the_cut_belongs_to_the_classifier() -> None:
    found = cut(ModelSpec.of("mlp:5,4", TASK), TASK, "features.1")
    assert found.classifier == ("features.3.weight", "features.3.bias", "classifier.weight", "classifier.bias")
    assert int(found.columns.sum()) == 5 * 4 + 4 + 4 * 3 + 3
    tapped = found.tapped()
    assert tapped.layout.width == found.spec.layout.width
    assert tapped.layout.n_parameters == found.spec.layout.n_parameters


def test_bad_cuts_are_refused_in_one_line() -> None:
    spec = ModelSpec.of("mlp:5", TASK)
    with pytest.raises(FedkinError, match="unknown layer of the model for features 'featurs'; did you mean 'features'"):
        cut(spec, TASK, "featurs")
    with pytest.raises(FedkinError, match="its output is the raw input"):
        cut(ModelSpec.of("mlr", TASK), TASK, "features")
    with pytest.raises(FedkinError, match="not one tensor with a row per sample"):
        cut(ModelSpec.of(Own, TASK), TASK, "lstm")
    with pytest.raises(FedkinError, match="by another path too"):
        cut(ModelSpec.of(lambda: Own(skip=True), TASK), TASK, "norm")
    with pytest.raises(FedkinError, match="uses this layer 2 times"):
        cut(ModelSpec.of(lambda: Own(twice=True), TASK), TASK, "norm")


def test_the_layout_of_the_tapped_model_has_the_same_columns() -> None:
    found = cut(ModelSpec.of("bn-mlp:7", TASK), TASK, "features")
    plain, tapped = found.spec.layout, Layout.of(found.tapped().template())
    assert [(s.shape, s.start) for s in plain.slots] == [(s.shape, s.start) for s in tapped.slots]
    assert len(plain.counters) == len(tapped.counters)
