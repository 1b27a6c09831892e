"""A head that is one linear layer: where its weight and bias are, for methods that work on it as a matrix."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fedkin.algorithms.fedper import head_of
from fedkin.errors import FedkinError
from fedkin.models import ModelSpec
from fedkin.models.layout import Slot


@dataclass(frozen=True)
class LinearHead:
    """z ↦ Wz + c, W (C, d) and c (C,): columns `weight.start … bias.stop` of a row."""

    layer: str
    weight: Slot
    bias: Slot

    @property
    def columns(self) -> slice:
        return slice(self.weight.start, self.bias.stop)

    @property
    def biases(self) -> slice:
        return slice(self.bias.start, self.bias.stop)


def linear_head(spec: ModelSpec, method: str) -> LinearHead:
    """The last layer of a model, refused in one line where it is not one linear layer with a bias."""
    slots = [slot for slot in spec.layout.parameters if slot.name in head_of(spec.layout, None)]
    layer = slots[0].name.rpartition(".")[0] if slots else ""
    names = [f"{layer}.weight", f"{layer}.bias"]
    if [slot.name for slot in slots] != names or not isinstance(spec.template().get_submodule(layer), nn.Linear):
        raise FedkinError(
            f"{method} needs a network that ends in one linear layer with a bias (its classifier, or its last layer); "
            "choose another model"
        )
    return LinearHead(layer, *slots)
