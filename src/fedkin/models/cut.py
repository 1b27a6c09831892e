"""Cut: a model in two, the extractor that makes features and the classifier that reads them.

Any nn.Module can be cut at a layer that every path from input to output goes through; its output, flattened to (n, d), is
the feature. Our networks are `Sequential(features=…, classifier=…)` and are cut at "features".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from fedkin.errors import FedkinError, unknown
from fedkin.models.spec import ModelSpec
from fedkin.task import Task


class Tapped(nn.Module):
    """A model that puts out its features too: (n, outputs + d), the features last."""

    def __init__(self, module: nn.Module, layer: str) -> None:
        super().__init__()
        self.module = module
        self.tapped: list[Tensor] = []
        module.get_submodule(layer).register_forward_hook(lambda _layer, _inputs, output: self.tapped.append(output))

    def forward(self, x: Tensor) -> Tensor:
        self.tapped.clear()
        outputs = self.module(x)
        return torch.cat([outputs.reshape(len(x), -1), self.tapped.pop().reshape(len(x), -1)], dim=1)


class _Given(nn.Module):
    """Stands in for a layer: whatever goes in, the given features come out."""

    value: Tensor

    def forward(self, *inputs: Any) -> Tensor:
        return self.value


class Head(nn.Module):
    """The classifier alone, in evaluation mode: features (n, d) → outputs (n, C).

    It is the whole model with one layer replaced; what comes before that layer runs on a made-up input and has no effect.
    """

    def __init__(self, module: nn.Module, layer: str, shape: tuple[int, ...], probe: Tensor) -> None:
        super().__init__()
        self.shape, self.probe = shape, probe
        self.given = _Given()
        module.set_submodule(layer, self.given)
        self.module = module
        self.eval()

    def forward(self, features: Tensor) -> Tensor:
        self.given.value = features.reshape(len(features), *self.shape)
        return self.module(self.probe.expand(len(features), *self.probe.shape[1:])).reshape(len(features), -1)


@dataclass(frozen=True)
class Cut:
    """Where a model is cut. `shape` is that of one sample's feature, `classifier` names the tensors after the cut."""

    spec: ModelSpec
    layer: str
    shape: tuple[int, ...]
    probe: Tensor
    classifier: tuple[str, ...]

    @property
    def size(self) -> int:
        """d, the length of a feature vector."""
        return prod(self.shape)

    @property
    def columns(self) -> Tensor:
        """The columns of the classifier's tensors, as a boolean (B,) mask."""
        return self.spec.layout.mask(self.classifier)

    def head(self) -> Head:
        """The classifier as a module; its values do not matter."""
        return Head(self.spec.template(), self.layer, self.shape, self.probe)

    def head_tensors(self, values: Tensor) -> dict[str, Tensor]:
        """The classifier's tensors by their names in `head()`, from the values of its columns (k, H)."""
        found, start = {}, 0
        for slot in self.spec.layout.slots:
            if slot.name in self.classifier:
                size = prod(slot.shape)
                found[f"module.{slot.name}"] = values[:, start : start + size].reshape(len(values), *slot.shape)
                start += size
        return found

    def tapped(self) -> ModelSpec:
        """The same model, which puts out its features too; its rows are those of the model."""
        return self.spec.seen_as(lambda module: Tapped(module, self.layer), "module.{}".format)


def cut(spec: ModelSpec, task: Task, layer: str) -> Cut:
    """Cut a model after `layer`, or say in one line why that cannot be done.

    Refused: a layer that does not exist, is used twice or has no single tensor as output; one that another path passes
    by; and one with no trained parameters before the cut, whose features would be the raw inputs.
    """
    module = spec.template().eval()
    names = [name for name, _ in module.named_modules() if name]
    if layer not in names:
        raise unknown("layer of the model for features", layer, names)
    seen: list[Any] = []
    module.get_submodule(layer).register_forward_hook(lambda _layer, _inputs, output: seen.append(output))
    blank = torch.zeros((2, *task.input_shape), dtype=torch.int64 if task.tokens else spec.dtype)
    with torch.no_grad():
        module(blank)
    if len(seen) != 1:
        raise FedkinError(f"features = {layer!r}: the model uses this layer {len(seen)} times per pass; choose another")
    output = seen[0]
    if not isinstance(output, Tensor) or not output.is_floating_point() or output.ndim < 2 or len(output) != 2:
        raise FedkinError(
            f"features = {layer!r}: its output is not one tensor with a row per sample; choose another layer"
        )
    found = Cut(spec, layer, tuple(output.shape[1:]), blank[:1], ())
    classifier = _behind(found)
    trained = {slot.name for slot in spec.layout.parameters}
    if trained <= set(classifier):
        raise FedkinError(
            f"features = {layer!r}: no trained parameters come before it, so its output is the raw input; "
            "choose a later layer or another model"
        )
    return Cut(spec, layer, found.shape, found.probe, classifier)


def _behind(found: Cut) -> tuple[str, ...]:
    """The tensors that the outputs depend on once the features are given."""
    head = found.head()
    features = torch.linspace(-1, 1, 2 * found.size, dtype=found.spec.dtype).reshape(2, -1)
    outputs = head(features)
    head.probe = found.probe + 1
    if not torch.equal(outputs, head(features)):
        raise FedkinError(
            f"features = {found.layer!r}: the input reaches the output by another path too; choose another layer"
        )
    parameters = {name: p for name, p in head.module.named_parameters() if p.requires_grad}
    slopes = torch.autograd.grad(outputs.sum(), list(parameters.values()), allow_unused=True)
    unused = {name for name, slope in zip(parameters, slopes) if slope is None}
    there = {name for name, _ in (*head.module.named_parameters(), *head.module.named_buffers())}
    return tuple(slot.name for slot in found.spec.layout.slots if slot.name in there - unused)
