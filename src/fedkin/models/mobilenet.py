"""MobileNetV2 for small images: features + classifier."""

from __future__ import annotations

from torch import Tensor, nn

from fedkin.errors import FedkinError
from fedkin.models.networks import network, two_parts
from fedkin.task import Task

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion t, channels c, repetitions n, and stride s of the first block of every stage (table 2 of the paper)."""
STEM, FEATURES = 32, 1280


def convolution(
    before: int, after: int, size: int, stride: int = 1, groups: int = 1, bend: bool = True
) -> list[nn.Module]:
    """A convolution that keeps the size (but for the stride), batch norm and, where it bends, ReLU6."""
    layers: list[nn.Module] = [
        nn.Conv2d(before, after, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(after),
    ]
    return [*layers, nn.ReLU6()] if bend else layers


class InvertedResidual(nn.Module):
    """Widen t-fold (1×1), filter each channel (3×3), narrow without a nonlinearity (1×1); added to the input where the
    shapes agree."""

    def __init__(self, before: int, after: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        widen = convolution(before, wide, 1) if expansion > 1 else []
        filters = convolution(wide, wide, 3, stride, groups=wide)
        self.layers = nn.Sequential(*widen, *filters, *convolution(wide, after, 1, bend=False))
        self.shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.layers(x)
        return x + changed if self.shortcut else changed


@network("mobilenet-v2")
def mobilenet_v2(task: Task) -> nn.Module:
    """MobileNetV2 of width 1, features of 1280 numbers, dropout 0.2 and a linear layer (FedSKA, CIFAR-10).

    For images of 32×32: the first convolution has stride 1, as is usual for CIFAR, so that 2×2 pixels are averaged at the
    end; the network for 224×224 has stride 2 there, and the same parameters (2 236 682 with 10 classes). Weights start at
    random. FedSKA's released code starts from ImageNet weights.

    Reference: Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, 2018.
    """
    if len(task.input_shape) != 3:
        raise FedkinError(
            f"model 'mobilenet-v2' takes images (channels, height, width), but the data has {task.input_shape}"
        )
    layers, channels = convolution(task.input_shape[0], STEM, 3), STEM
    for expansion, after, repetitions, stride in STAGES:
        for block in range(repetitions):
            layers.append(InvertedResidual(channels, after, 1 if block else stride, expansion))
            channels = after
    layers += [*convolution(channels, FEATURES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return two_parts(layers, nn.Sequential(nn.Dropout(0.2), nn.Linear(FEATURES, task.outputs)))
