"""Dropout for stacked clients: masks from each client's own stream, so that chunks, workers and engines do not matter.

A layer's mask is 0 with probability p, else 1/(1 − p). Client k draws for its real samples alone, layer after layer, from a
generator of (seed, purpose, round, client); how far a batch is padded for the sake of others has no influence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn


class Drop(NamedTuple):
    """A dropout layer: its name in the module, its probability, and the shape of one sample there."""

    name: str
    p: float
    shape: tuple[int, ...]


class Masked(nn.Module):
    """Stands in for a dropout layer: multiplies by a mask that is handed in as a buffer; by 1 in evaluation mode."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.mask


class Noise:
    """The streams of k clients for one round; `words` (k,) seed them."""

    def __init__(self, words: np.ndarray) -> None:
        self.generators = [np.random.Generator(np.random.SFC64(int(word))) for word in words]

    def masks(self, weight: Tensor, drops: Sequence[Drop]) -> list[Tensor]:
        """A mask (a, b, *shape) for every layer and the first a clients; weight (a, b) is 0 for padding."""
        real, drawn = (weight > 0).sum(dim=1).tolist(), []
        for drop in drops:
            uniform = np.zeros((*weight.shape, *drop.shape), dtype=np.float32)
            for generator, line, n in zip(self.generators, uniform, real):
                generator.random(out=line[:n], dtype=np.float32)
            kept = torch.as_tensor(uniform).ge_(drop.p).to(weight.dtype)
            drawn.append(kept.mul_(1 / (1 - drop.p) if drop.p < 1 else 0.0))
        return drawn

    @property
    def state(self) -> list[dict[str, object]]:
        """Where the streams are, to draw the same masks again."""
        return [dict(generator.bit_generator.state) for generator in self.generators]

    @state.setter
    def state(self, kept: list[dict[str, object]]) -> None:
        for generator, where in zip(self.generators, kept):
            generator.bit_generator.state = where


def masked(module: nn.Module) -> nn.Module:
    """The module, its plain dropout layers replaced by `Masked` ones, in place."""
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Dropout:
            parent, _, child = name.rpartition(".")
            stand_in = Masked()
            stand_in._forward_hooks = layer._forward_hooks  # whoever listens to the layer hears its stand-in
            setattr(module.get_submodule(parent), child, stand_in)
    return module


def drops_of(module: nn.Module, inputs: Tensor) -> list[Drop]:
    """The dropout layers that act, in the order they are used on inputs (n, *input); ValueError where one is used twice."""
    found: list[Drop] = []

    def watch(name: str, p: float) -> None:
        def note(_: nn.Module, given: tuple[Tensor, ...], __: Tensor) -> None:
            if any(drop.name == name for drop in found) or given[0].shape[0] != len(inputs):
                raise ValueError("a dropout layer is used twice, or not on samples")
            found.append(Drop(name, p, tuple(given[0].shape[1:])))

        module.get_submodule(name).register_forward_hook(note)

    for name, layer in module.named_modules():
        if type(layer) is nn.Dropout and layer.p:
            watch(name, float(layer.p))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        module.eval()(inputs)
    return found
