"""GRU layers of stacked clients. Torch runs a GRU as one program for one client, which vmap cannot stack; this one it can.

With x_t the input and h the state of n sequences, W, U the weights and b, c the biases of the gates r, z and ñ,

    r, z = σ(W x_t + b + U h + c),   ñ = tanh(W x_t + b + r∘κ),  κ = U h + c,   h ← ñ + z∘(h − ñ),

and backwards from δ = ∂/∂h of the last step to the first, all gradients by hand. W x_t + b of all steps is one product, and
so is the gradient of U. Shapes: k clients, T steps; gates of size s lie side by side, r z ñ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function

from fedkin.compute.compiled import script


def forwards(given: Tensor, weight: Tensor, bias: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """States (k, T, n, s) and what the way back needs, r z ñ κ (k, T, n, 4s).

    given = W x + b (k, T, n, 3s), weight U (k, 3s, s), bias c (k, 3s), h (k, n, s) the first state.
    """
    size, back = h.shape[2], weight.transpose(1, 2)
    states = given.new_empty([given.shape[0], given.shape[1], given.shape[2], size])
    kept = given.new_empty([given.shape[0], given.shape[1], given.shape[2], 4 * size])
    for t in range(given.shape[1]):
        now, inner = given[:, t], torch.baddbmm(bias.unsqueeze(1), h, back)
        gates = (now[..., : 2 * size] + inner[..., : 2 * size]).sigmoid_()
        own = inner[..., 2 * size :]
        new = torch.addcmul(now[..., 2 * size :], gates[..., :size], own).tanh_()
        h = torch.lerp(new, h, gates[..., size:])
        kept[:, t, :, : 2 * size] = gates
        kept[:, t, :, 2 * size : 3 * size] = new
        kept[:, t, :, 3 * size :] = own
        states[:, t] = h
    return states, kept


def backwards(
    slopes: Tensor, states: Tensor, kept: Tensor, weight: Tensor, first: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From ∂/∂states (k, T, n, s): ∂/∂given, ∂/∂weight, ∂/∂bias and ∂/∂first (shapes as in `forwards`)."""
    size, steps = first.shape[2], slopes.shape[1]
    of_given = slopes.new_empty([slopes.shape[0], steps, slopes.shape[2], 3 * size])
    of_inner = torch.empty_like(of_given)
    before = torch.cat([first.unsqueeze(1), states[:, : steps - 1]], dim=1)
    delta = torch.zeros_like(first)
    for back in range(steps):
        t = steps - 1 - back
        delta = delta + slopes[:, t]
        gates, new, own = kept[:, t, :, : 2 * size], kept[:, t, :, 2 * size : 3 * size], kept[:, t, :, 3 * size :]
        z = gates[..., size:]
        of_new = delta * (1 - z) * (1 - new * new)
        pair = torch.cat([of_new * own, delta * (before[:, t] - new)], dim=2).mul_(gates).mul_(1 - gates)
        of_given[:, t, :, : 2 * size] = pair
        of_given[:, t, :, 2 * size :] = of_new
        of_inner[:, t, :, : 2 * size] = pair
        of_inner[:, t, :, 2 * size :] = of_new * gates[..., :size]
        delta = torch.baddbmm(delta * z, of_inner[:, t], weight)
    flat = of_inner.flatten(1, 2)
    return of_given, torch.bmm(flat.transpose(1, 2), before.flatten(1, 2)), flat.sum(dim=1), delta


forwards, backwards = script(forwards), script(backwards)


def _stacked(function: Any, clients: int, places: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> Any:
    """Call a function of stacked tensors from inside vmap: the clients' axis comes first, what they share is repeated."""
    moved = (
        tensor.expand(clients, *tensor.shape) if place is None else tensor.movedim(place, 0)
        for place, tensor in zip(places, tensors)
    )
    return function(*moved)


def _alone(function: Any, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each[0] for each in function(*(tensor[None] for tensor in tensors)))


class _Recurrence(Function):
    """`forwards` of one client, with `backwards` as its gradient; vmap makes it that of many."""

    @staticmethod
    def forward(*tensors: Tensor) -> Any:
        return _alone(forwards, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output, inputs[1], inputs[3])

    @staticmethod
    def backward(ctx: Any, slopes: Tensor, _: Tensor) -> Any:
        return _Return.apply(slopes, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, places: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return _stacked(forwards, info.batch_size, places, tensors), (0, 0)


class _Return(Function):
    """`backwards` of one client; it has no gradient of its own."""

    @staticmethod
    def forward(*tensors: Tensor) -> Any:
        return _alone(backwards, tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(info: Any, places: tuple[int | None, ...], *tensors: Tensor) -> Any:
        return _stacked(backwards, info.batch_size, places, tensors), (0, 0, 0, 0)


class StackedGru(nn.Module):
    """Stands in for an nn.GRU and has its tensors under their names; sequences (n, T, d) or (T, n, d)."""

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.num_layers = layer.input_size, layer.hidden_size, layer.num_layers
        self.batch_first, self.bidirectional = layer.batch_first, layer.bidirectional
        for name, parameter in layer.named_parameters(recurse=False):
            self.register_parameter(name, parameter)

    def flatten_parameters(self) -> None:
        """Nothing to do: models call it on torch's layers."""

    def forward(self, x: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        if not isinstance(x, Tensor) or x.dim() != 3:
            raise NotImplementedError("packed or single sequences are not stacked")
        steps = x.transpose(0, 1) if self.batch_first else x
        last: list[Tensor] = []
        for layer in range(self.num_layers):
            found = []
            for end in ("", "_reverse") if self.bidirectional else ("",):
                zeros = steps.new_zeros((steps.shape[1], self.hidden_size))
                first = zeros if start is None else start[len(last)]
                states = self._run(steps.flip(0) if end else steps, first, f"l{layer}{end}")
                found.append(states.flip(0) if end else states)
                last.append(states[-1])
            steps = torch.cat(found, dim=2)
        return steps.transpose(0, 1) if self.batch_first else steps, torch.stack(last)

    def _run(self, steps: Tensor, first: Tensor, name: str) -> Tensor:
        """One layer in one direction: states (T, n, s)."""
        own: dict[str, Tensor] = dict(self.named_parameters(recurse=False))
        weight, bias = own[f"weight_hh_{name}"], own.get(f"bias_hh_{name}")
        given = nn.functional.linear(steps, own[f"weight_ih_{name}"], own.get(f"bias_ih_{name}"))
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        states: Tensor = _Recurrence.apply(given, weight, bias, first)[0]
        return states


def stackable(module: nn.Module) -> nn.Module:
    """The module, its GRU layers without dropout of their own replaced by `StackedGru` ones, in place."""
    for name, layer in list(module.named_modules()):
        if name and type(layer) is nn.GRU and not layer.dropout:
            parent, _, child = name.rpartition(".")
            stand_in = StackedGru(layer)
            stand_in._forward_hooks = layer._forward_hooks  # whoever listens to the layer hears its stand-in
            setattr(module.get_submodule(parent), child, stand_in)
    return module
