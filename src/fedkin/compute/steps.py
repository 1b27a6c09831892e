"""Step rules: how stacked clients move down their gradients. Each client has moments of its own, (k, P).

The formulas are those of torch.optim, to rounding. The moments lie in the open (`Rule.state`), so that they can be kept with the
client from round to round. `move` is compiled, so that kernels take it into their own programs.

From 256 parameters on a client's step is one pass over its own memory, by torch's fused optimisers; with fewer, one operation
after the other serves all clients at once. Which way is taken, and where a client's vector begins and ends, does not depend on
who is beside it, and neither do its numbers, to the last bit.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedkin.compute.compiled import script

Optimiser = Literal["sgd", "adam", "adamw", "rmsprop"]
EPSILON = 1e-8
BETAS = (0.9, 0.999)


def _one_pass(weights: Tensor, slopes: Tensor) -> bool:
    return weights.shape[1] >= 256 and weights.stride(1) == 1 and slopes.stride(1) == 1 and not weights.is_cuda


def _sgd(weights: Tensor, slopes: Tensor, moments: list[Tensor], rate: float, momentum: float) -> None:
    """v ← m·v + g,  w ← w − γ·v; without moments v = g."""
    if len(moments) == 0:
        weights.sub_(slopes, alpha=rate)
    elif _one_pass(weights, slopes):
        torch._fused_sgd_(
            weights.unbind(),
            slopes.unbind(),
            moments[0].unbind(),
            weight_decay=0.0,
            momentum=momentum,
            lr=rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
    else:
        weights.sub_(moments[0].mul_(momentum).add_(slopes), alpha=rate)


def _fused_adam(
    weights: Tensor,
    slopes: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    rate: float,
    decay: float,
    one: float,
    two: float,
    epsilon: float,
) -> None:
    none: list[Tensor] = []
    torch._fused_adamw_(  # of unbound tensors: TorchScript drops the call where lists are made otherwise (2.13)
        weights.unbind(),
        slopes.unbind(),
        mean.unbind(),
        square.unbind(),
        none,
        count.unbind(),
        lr=rate,
        beta1=one,
        beta2=two,
        weight_decay=decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )


def _adam(
    weights: Tensor,
    slopes: Tensor,
    moments: list[Tensor],
    rate: float,
    decay: float,
    one: float,
    two: float,
    epsilon: float,
) -> None:
    """m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  w ← w − γ·m̂ / (√v̂ + ε),  m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ).

    With `decay` λ (AdamW) the weights first shrink by 1 − γλ, apart from the moments. A client that takes part less often
    has made fewer steps t: each has its own count. (Kingma & Ba, Adam, 2015; Loshchilov & Hutter, 2019.)
    """
    mean, square, count = moments[0], moments[1], moments[2]
    count.add_(1)
    if _one_pass(weights, slopes):
        _fused_adam(weights, slopes, mean, square, count, rate, decay, one, two, epsilon)
        return
    mean.lerp_(slopes, 1 - one)
    square.mul_(two).addcmul_(slopes, slopes, value=1 - two)
    if decay > 0:
        weights.mul_(1 - rate * decay)
    roots = (1 - torch.pow(two, count)).sqrt()
    factors = (rate * roots / (1 - torch.pow(one, count))).to(weights).unsqueeze(1)
    size = square.sqrt().add_((epsilon * roots).to(weights).unsqueeze(1))
    weights.sub_(size.reciprocal_().mul_(mean).mul_(factors))


def _rmsprop(
    weights: Tensor,
    slopes: Tensor,
    moments: list[Tensor],
    rate: float,
    momentum: float,
    smoothing: float,
    epsilon: float,
) -> None:
    """v ← s·v + (1−s)·g²,  u ← m·u + g / (√v + ε),  w ← w − γ·u; without a second moment m = 0 (Hinton, lecture 6e, 2012)."""
    square = moments[0]
    if len(moments) == 1 and _one_pass(weights, slopes):
        # Adam with β₁ = 0, whose mean is the gradient itself, after so many steps that nothing is corrected any more.
        late = torch.full([weights.shape[0]], 1e9, dtype=torch.float64)
        _fused_adam(weights, slopes, slopes, square, late, rate, 0.0, 0.0, smoothing, epsilon)
        return
    size = square.mul_(smoothing).addcmul_(slopes, slopes, value=1 - smoothing).sqrt().add_(epsilon)
    if len(moments) == 1:
        weights.addcdiv_(slopes, size, value=-rate)
    else:
        weights.sub_(moments[1].mul_(momentum).addcdiv_(slopes, size), alpha=rate)


def move(rule: str, weights: Tensor, slopes: Tensor, moments: list[Tensor], numbers: list[float]) -> None:
    """One step of the weights (a, P) down the gradients (a, P), in place; `slopes` may be written over.

    moments: velocity or none (sgd); mean, square (a, P) and count (a,) (adam); square and with momentum velocity (rmsprop).
    numbers: γ, m; γ, λ, β₁, β₂, ε; γ, m, s, ε.
    """
    if rule == "adam":
        _adam(weights, slopes, moments, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4])
    elif rule == "rmsprop":
        _rmsprop(weights, slopes, moments, numbers[0], numbers[1], numbers[2], numbers[3])
    else:
        _sgd(weights, slopes, moments, numbers[0], numbers[1])


_one_pass, _sgd, _fused_adam = script(_one_pass), script(_sgd), script(_fused_adam)
_adam, _rmsprop = script(_adam), script(_rmsprop)
move = script(move)


class Rule:
    """A step rule of k clients: its name and constants as `move` knows them, and what it remembers."""

    def __init__(self, name: str, rate: float, constants: list[float], state: dict[str, Tensor]) -> None:
        self.name, self.constants = name, constants
        self.rate = rate
        """γ; it may change from step to step."""
        self.state = state
        """Moments by name, first axis the clients."""
        self.plain = name == "sgd" and not state
        """Whether a step is w ← w − γg and nothing else."""

    @property
    def moments(self) -> list[Tensor]:
        return list(self.state.values())

    @property
    def numbers(self) -> list[float]:
        return [self.rate, *self.constants]

    def step(self, weights: Tensor, slopes: Tensor) -> None:
        """Move the weights (a, P) of the first a clients down their gradients, in place. `slopes` may be written over."""
        move(self.name, weights, slopes, [moment[: len(weights)] for moment in self.moments], self.numbers)


def step_rule(
    optimiser: Optimiser,
    like: Tensor,
    rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    smoothing: float = 0.99,
) -> Rule:
    """The rule of a name, for clients with weights like these (k, P), its moments at zero.

    `weight_decay` is AdamW's; with the other rules it is a term of the gradient (`terms.Decay`). `smoothing` is RMSprop's.
    """
    velocity = {"velocity": _zeros(like)} if momentum else {}
    if optimiser == "sgd":
        return Rule("sgd", rate, [momentum], velocity)
    if optimiser == "rmsprop":
        return Rule("rmsprop", rate, [momentum, smoothing, EPSILON], {"square": _zeros(like), **velocity})
    moments = {"mean": _zeros(like), "square": _zeros(like), "count": torch.zeros(len(like), dtype=torch.float64)}
    return Rule("adam", rate, [weight_decay if optimiser == "adamw" else 0.0, *BETAS, EPSILON], moments)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format)
