"""LoRA: low-rank adapters beside frozen linear layers, so that a client's row is its adapters and nothing else."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkin.errors import FedkinError
from fedkin.models.frozen import matching


class LowRank(nn.Module):
    """y = Wx + b + (α/r) B A x with W, b frozen; A (r, in) starts at random, B (out, r) at 0, so that y starts as it was.

    Reference: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base, alpha / rank
        like: dict[str, Any] = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_A = nn.Parameter(torch.empty((rank, base.in_features), **like))
        self.lora_B = nn.Parameter(torch.zeros((base.out_features, rank), **like))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw A again and set B to 0: what a second set of initial weights is made by."""
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B)

    def forward(self, x: Tensor) -> Tensor:
        added = functional.linear(functional.linear(x, self.lora_A), self.lora_B)
        out: Tensor = self.base(x) + self.scale * added
        return out


def lora(
    factory: Callable[[], nn.Module] | nn.Module,
    rank: int = 8,
    targets: str | Sequence[str] = "*",
    alpha: float | None = None,
    train: str | Sequence[str] = (),
) -> Callable[[], nn.Module]:
    """A model as `fedkin.train` takes it: the given one, frozen, with adapters of this rank at its linear layers.

    `targets` are patterns of names of nn.Linear layers (default: all), `alpha` scales what adapters add by alpha/rank
    (default: rank, a factor of 1), `train` names tensors that are trained beside the adapters, such as a new head.

    >>> net = lora(nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 3)), rank=2, targets="0")()
    >>> [(name, tuple(p.shape)) for name, p in net.named_parameters() if p.requires_grad]
    [('0.lora_A', (2, 20)), ('0.lora_B', (10, 2))]
    """
    if not callable(factory):
        raise FedkinError(
            f"lora: {factory!r} has no weights to adapt; give a trained module, or a function that makes one"
        )
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise FedkinError(f"lora: rank = {rank!r} is not allowed: it must be a whole number of at least 1")
    wanted, more = ([given] if isinstance(given, str) else list(given) for given in (targets, train))

    def adapted() -> nn.Module:
        module = copy.deepcopy(factory) if isinstance(factory, nn.Module) else factory()
        if not isinstance(module, nn.Module):
            raise FedkinError(
                f"lora: the factory returns a {type(module).__name__}; give one that returns an nn.Module"
            )
        module.requires_grad_(False)
        linear = [name for name, layer in module.named_modules() if type(layer) is nn.Linear]
        kept = set(matching(more, [name for name, _ in module.named_parameters()], "train")) if more else set()
        for name in matching(wanted, linear, "targets"):
            layer = module.get_submodule(name)
            if isinstance(layer, nn.Linear) and not any(own.startswith(f"{name}.") for own in kept):
                adapter = LowRank(layer, rank, float(rank if alpha is None else alpha))
                module = _replaced(module, name, adapter)
        for name, parameter in module.named_parameters():
            if name in kept:
                parameter.requires_grad_(True)
        _without_shortcut(module)
        return module

    return adapted


def _replaced(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    if not name:
        return layer
    module.set_submodule(name, layer)
    return module


def _without_shortcut(module: nn.Module) -> None:
    """Torch's encoder layers read the weights of their linear layers in evaluation, past any adapter: not these."""
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer) and any(isinstance(own, LowRank) for own in layer.modules()):
            layer.activation_relu_or_gelu = 0
