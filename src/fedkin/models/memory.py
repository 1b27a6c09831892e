"""Remembering: a network with a memory of features and labels, whose nearest neighbours have a say in what it predicts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedkin.models.cut import cut
from fedkin.models.layout import Layout
from fedkin.models.spec import ModelSpec
from fedkin.task import Task

MEMORY = ("keys", "votes", "held", "share")
"""The buffers of a memory: features (N, d), labels (N, C), which places are filled (N,), and λ (1,)."""


class Remembering(nn.Module):
    """log((1 − λ) softmax(f(x)) + λ Σ_i w_i y_i) over the k nearest memories i, w = softmax(−‖h(x) − h_i‖/σ).

    In training it is the network alone, and with λ = 0 the network's log-probabilities.
    """

    keys: Tensor
    votes: Tensor
    held: Tensor
    share: Tensor

    def __init__(
        self, network: nn.Module, layer: str, capacity: int, size: int, classes: int, neighbours: int, scale: float
    ) -> None:
        super().__init__()
        self.network, self.classes, self.neighbours, self.scale = network, classes, neighbours, scale
        self.layer = layer
        for name, shape in zip(MEMORY, ((capacity, size), (capacity, classes), (capacity,), (1,))):
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            outputs: Tensor = self.network(x)
            return outputs
        outputs, features = self.seen(x)
        return self.mixed(outputs, self.told(features), self.share)

    def seen(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The network's outputs (n, C) and features (n, d)."""
        found: list[Tensor] = []
        hook = self.network.get_submodule(self.layer).register_forward_hook(lambda _l, _i, out: found.append(out))
        try:
            outputs = self.network(x)
        finally:
            hook.remove()
        return outputs.reshape(len(x), -1), found[0].reshape(len(x), -1)

    def told(self, features: Tensor, but: Tensor | None = None) -> Tensor:
        """What the nearest memories say of features (n, d): shares of the classes, (n, C), zeros where there are none.

        `but` (n,) are places in the memory that do not count (a sample's own); −1 for none.
        """
        apart = torch.cdist(features, self.keys).masked_fill(self.held == 0, torch.inf)
        if but is not None:
            apart = apart.masked_fill(but[:, None] == torch.arange(len(self.keys)), torch.inf)
        near, index = apart.topk(min(self.neighbours, len(self.keys)), dim=1, largest=False)
        weights = torch.softmax(-near / self.scale, dim=1).nan_to_num()
        return (weights[..., None] * self.votes[index]).sum(dim=1)

    @staticmethod
    def mixed(outputs: Tensor, told: Tensor, share: Tensor | float) -> Tensor:
        """log((1 − λ) softmax(outputs) + λ told); memories that say nothing leave the network alone."""
        share = share * (told.sum(dim=1, keepdim=True) > 0)
        chance = (1 - share) * torch.softmax(outputs, dim=1) + share * told
        return chance.clamp(min=torch.finfo(chance.dtype).tiny).log()


def with_memory(spec: ModelSpec, task: Task, layer: str, capacity: int, neighbours: int, scale: float) -> ModelSpec:
    """A network with a memory of `capacity` samples; one that has a memory already stays as it is."""
    if isinstance(spec.template(), Remembering):
        return spec
    size = cut(spec, task, layer).size

    def factory() -> nn.Module:
        how = layer, capacity, size, task.outputs, neighbours, scale
        return Remembering(spec.factory(), *how).to(spec.dtype)

    with torch.random.fork_rng(devices=[]):
        return ModelSpec(factory, Layout.of(factory()), spec.dtype, spec.name, placement=spec.placement)
