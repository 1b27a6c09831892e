"""Several clients as one network: their channels side by side, convolutions and norms in groups that never meet.

Client j of k owns channels jC…(j+1)C−1 of every image. A convolution becomes one with k times the groups, batch norm works
per channel and so per client, activations and pooling do not care; linear layers are one batched product. With the
channels last in memory, small networks (6–32 channels) fill the processor's vectors, which one client alone cannot.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedkin.local.batches import Batch
from fedkin.local.kernels.linear import chain_of
from fedkin.local.kernels.looped import LoopedKernel, pooled_first
from fedkin.local.noise import Noise
from fedkin.models import ModelSpec
from fedkin.task.losses import PerSample

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
_AS_IS = (
    *(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
)
WIDEST, LARGEST = 32, 8192
"""With more channels, or more numbers per image after a convolution, one client alone fills vectors and cache."""


def groupable(module: nn.Module, inputs: Tensor) -> bool:
    """Whether a network is a plain chain of layers that can be grouped and gains by it; `inputs` (n, *input) to try."""
    layers = [layer for _, layer in chain_of("", module)]
    own = [layer for layer in layers if any(True for _ in layer.parameters())]
    if len({*map(id, own)}) < len(own):  # parameters at several places have the name of one of them
        return False
    if not any(type(layer) in (nn.Conv2d, *_NORMS) for layer in layers):
        return False
    for layer in layers:
        if type(layer) is nn.Conv2d:
            if layer.padding_mode != "zeros" or layer.out_channels > WIDEST:
                return False
        elif type(layer) in _NORMS:
            if not layer.affine or not layer.track_running_stats or layer.momentum is None:
                return False
        elif type(layer) is nn.Flatten:
            if layer.start_dim != 1 or layer.end_dim != -1:
                return False
        elif type(layer) is not nn.Linear and type(layer) not in _AS_IS:
            return False
    h = inputs
    with torch.no_grad():
        for layer in layers:
            h = layer.eval()(h)
            if type(layer) is nn.Conv2d and h[0].numel() > LARGEST:
                return False
    return True


class GroupedKernel:
    """Gradients and outputs of a few clients at a time, as one grouped network."""

    name = "grouped"
    chunk = 8  # measured: 4 to 8 clients are best, 16 leave the cache

    def __init__(self, spec: ModelSpec, loss: PerSample, channels_last: bool = False) -> None:
        self.layout, self.loss = spec.layout, loss
        self.noise: Noise | None = None
        self.alone = LoopedKernel(spec, loss, channels_last)
        module = spec.template()
        self.layers = pooled_first(chain_of("", module))
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self.frozen = {name: tensors[name].detach() for name in spec.layout.frozen}
        self.first_alone = first_alone(self.layers[0][1])
        self.normed = any(type(layer) in _NORMS for _, layer in self.layers)

    def outputs(self, rows: Tensor, x: Tensor, counters: Tensor | None = None) -> Tensor:
        """(k, B) rows and (k, n, *input) inputs → (k, n, outputs), in evaluation mode."""
        tensors = {slot.name: _together(slot.view(rows)) for slot in self.layout.slots}
        with torch.no_grad():
            return self._forward(tensors | self._alike(len(rows)), x, training=False)

    def _alike(self, k: int) -> dict[str, Tensor]:
        """The frozen tensors as if each of k clients had its own."""
        return {n: _together(t.expand(k, *t.shape)) for n, t in self.frozen.items() if t.dim()}

    def gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None = None) -> Tensor:
        """Write the gradient of Σ_i weight_ki ℓ_ki into `out` (k, P); return the losses (k,).

        Batch norm must not see the padding of a short batch: clients with one are worked on alone.
        """
        short = batch.weight[:, -1] == 0 if self.normed else torch.zeros(len(rows), dtype=torch.bool)
        if len(rows) == 1 or batch.x.shape[1] == 1:
            short = torch.ones_like(short)
        if not short.any():
            return self._gradient(rows, batch, out, counters)
        losses = rows.new_empty(len(rows))
        for k in torch.nonzero(short).flatten().tolist():
            one = slice(k, k + 1)
            own = None if counters is None else counters[one]
            losses[one] = self.alone.gradient(rows[one], batch.among(one), out[one], own)
        full = torch.nonzero(~short).flatten()
        if len(full):
            some, slopes = rows[full], out[full]
            own = None if counters is None else counters[full]
            losses[full] = self._gradient(some, batch.among(full), slopes, own)
            rows[full], out[full] = some, slopes
            if counters is not None and own is not None:
                counters[full] = own
        return losses

    def _gradient(self, rows: Tensor, batch: Batch, out: Tensor, counters: Tensor | None) -> Tensor:
        x, y, weight, more = batch
        leaves = {slot.name: _together(slot.view(rows)).detach().requires_grad_() for slot in self.layout.parameters}
        fixed = {slot.name: _together(slot.view(rows)) for slot in self.layout.buffers}
        outputs = self._forward({**leaves, **fixed, **self._alike(len(rows))}, x, training=True)
        each = self.loss(outputs.flatten(0, 1), y.flatten(0, 1), *(entry.flatten(0, 1) for entry in more))
        losses = (each.view(weight.shape) * weight).sum(dim=1)
        slopes = torch.autograd.grad(losses.sum(), list(leaves.values()))
        for slot, slope in zip(self.layout.parameters, slopes):
            slot.view(out).copy_(_apart(slope, len(rows)))
        for slot in self.layout.buffers:
            slot.view(rows).copy_(_apart(fixed[slot.name], len(rows)))
        if counters is not None:
            counters += 1  # the only integers of these networks are batch norm's counts of batches, none of them frozen
        return losses.detach()

    def _forward(self, tensors: dict[str, Tensor], x: Tensor, training: bool) -> Tensor:
        """(k, n, *input) → (k, n, outputs). Batch norm moves its running statistics in `tensors`."""
        k, n = x.shape[:2]
        layers = self.layers
        if self.first_alone:
            h, layers = self._first(tensors, x), layers[1:]
        elif x.dim() == 5:  # images: (n, kC, H, W), channels last in memory
            h = x.permute(1, 3, 4, 0, 2).contiguous().flatten(3).permute(0, 3, 1, 2)
        else:
            h = x.transpose(0, 1).flatten(1)
        for name, layer in layers:
            weight, bias = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
            kind: Any = type(layer)
            if kind is nn.Conv2d:
                assert weight is not None
                how: Any = layer.stride, layer.padding, layer.dilation, k * int(layer.groups)  # type: ignore[arg-type]
                h = functional.conv2d(h, weight, bias, *how)
            elif kind is nn.Linear:
                assert weight is not None
                h = h.unflatten(1, (k, -1)).transpose(0, 1)
                w = weight.transpose(1, 2)
                h = torch.bmm(h, w) if bias is None else torch.baddbmm(bias.view(k, 1, -1), h, w)
                h = h.transpose(0, 1).flatten(1)
            elif kind in _NORMS:
                mean, variance = tensors[f"{name}.running_mean"], tensors[f"{name}.running_var"]
                moves = training and f"{name}.running_mean" not in self.frozen
                h = functional.batch_norm(h, mean, variance, weight, bias, moves, layer.momentum, layer.eps)  # type: ignore[arg-type]
            elif kind is nn.Flatten:
                h = h.flatten(1)
            else:
                h = layer(h)
        return h.view(n, k, -1).transpose(0, 1)

    def _first(self, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
        """The first convolution client by client, (k, n, *input) → (n, kC, H, W), channels last in memory."""
        name, layer = self.layers[0]
        weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
        how: Any = layer.stride, layer.padding, layer.dilation
        biases = [None] * len(x) if bias is None else bias.chunk(len(x))
        found = [
            functional.conv2d(images.contiguous(memory_format=torch.channels_last), w, b, *how)
            for images, w, b in zip(x, weight.chunk(len(x)), biases)
        ]
        return torch.cat(found, dim=1)


def first_alone(layer: nn.Module) -> bool:
    """Whether a first convolution is faster client by client than in groups: of three channels, without AVX-512.

    oneDNN's gradient of grouped filters for channels last takes five times as long there (2.13: 1.5 against 0.3 ms for 20
    images of 3×32×32 and 6 filters; with AVX-512 or one channel nothing is gained)."""
    few = type(layer) is nn.Conv2d and layer.groups == 1 and layer.in_channels == 3
    return few and torch.backends.cpu.get_cpu_capability() == "AVX2"


def _together(tensor: Tensor) -> Tensor:
    """(k, c) or (k, c, …) of k clients → (kc,) or filters (kc, …), channels last; matrices (k, out, in) stay stacked."""
    if tensor.dim() == 3:
        return tensor
    tensor = tensor.flatten(0, 1)
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.contiguous()


def _apart(tensor: Tensor, k: int) -> Tensor:
    return tensor if tensor.dim() == 3 else tensor.unflatten(0, (k, -1))
