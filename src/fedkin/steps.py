"""Step rules: how stacked clients move down their gradients. Each client has moments of its own, (k, P).

The formulas are those of torch.optim, to rounding. The moments lie in the open (`state`), so that they can be kept with the
client from round to round.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

Optimiser = Literal["sgd", "adam", "adamw", "rmsprop"]
EPSILON = 1e-8
BETAS = (0.9, 0.999)


class Rule(Protocol):
    """A step rule of k clients."""

    plain: bool
    """Whether a step is w ← w − γg and nothing else."""
    rate: float
    """γ; it may change from step to step."""
    state: dict[str, Tensor]
    """Moments by name, first axis the clients."""

    def step(self, weights: Tensor, slopes: Tensor) -> None:
        """Move the weights (a, P) of the first a clients down their gradients, in place. `slopes` may be written over."""


class SgdRule:
    """v ← m·v + g,  w ← w − γ·v."""

    def __init__(self, like: Tensor, rate: float, momentum: float = 0.0) -> None:
        self.rate, self.momentum, self.plain = rate, momentum, not momentum
        self.state = {"velocity": _zeros(like)} if momentum else {}

    def step(self, weights: Tensor, slopes: Tensor) -> None:
        if self.momentum:
            slopes = self.state["velocity"][: len(slopes)].mul_(self.momentum).add_(slopes)
        weights.add_(slopes, alpha=-self.rate)


class AdamRule:
    """m ← β₁m + (1−β₁)g,  v ← β₂v + (1−β₂)g²,  w ← w − γ·m̂ / (√v̂ + ε),  m̂ = m/(1−β₁ᵗ), v̂ = v/(1−β₂ᵗ).

    With `decay` λ (AdamW) the weights first shrink by 1 − γλ, apart from the moments. A client that takes part less often
    has made fewer steps t: each has its own count. (Kingma & Ba, Adam, 2015; Loshchilov & Hutter, 2019.)
    """

    plain = False

    def __init__(self, like: Tensor, rate: float, decay: float = 0.0, betas: tuple[float, float] = BETAS) -> None:
        self.rate, self.decay, self.betas = rate, decay, betas
        count = torch.zeros(len(like), dtype=torch.float64)
        self.state = {"mean": _zeros(like), "square": _zeros(like), "count": count}

    def step(self, weights: Tensor, slopes: Tensor) -> None:
        a = len(weights)
        count, mean, square = (self.state[name][:a] for name in ("count", "mean", "square"))
        if bool((count == count[0]).all()) and weights.is_contiguous() and slopes.is_contiguous():
            self._together(weights, slopes, mean, square, float(count[0]))
            count.add_(1)
            return
        one, two = self.betas
        count.add_(1)
        mean.lerp_(slopes, 1 - one)
        square.mul_(two).addcmul_(slopes, slopes, value=1 - two)
        if self.decay:
            weights.mul_(1 - self.rate * self.decay)
        roots = (1 - two**count).sqrt()
        factors = (self.rate * roots / (1 - one**count)).to(weights.dtype)[:, None]
        size = square.sqrt().add_((EPSILON * roots).to(weights.dtype)[:, None])
        weights.sub_(torch.div(mean, size, out=size).mul_(factors))

    def _together(self, weights: Tensor, slopes: Tensor, mean: Tensor, square: Tensor, count: float) -> None:
        """All clients have made as many steps: they are one vector, which torch's Adam moves in a single pass."""
        adam(
            [weights],
            [slopes],
            [mean],
            [square],
            [],
            [torch.tensor(count)],
            fused=True,
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=self.rate,
            weight_decay=self.decay,
            eps=EPSILON,
            maximize=False,
            decoupled_weight_decay=bool(self.decay),
        )


class RmspropRule:
    """v ← s·v + (1−s)·g²,  u ← m·u + g / (√v + ε),  w ← w − γ·u (Hinton, lecture 6e, 2012)."""

    plain = False

    def __init__(self, like: Tensor, rate: float, momentum: float = 0.0, smoothing: float = 0.99) -> None:
        self.rate, self.momentum, self.smoothing = rate, momentum, smoothing
        self.state = {"square": _zeros(like), **({"velocity": _zeros(like)} if momentum else {})}

    def step(self, weights: Tensor, slopes: Tensor) -> None:
        a, velocity = len(weights), self.state.get("velocity")
        own = None if velocity is None else velocity[:a]
        rmsprop(weights, slopes, self.state["square"][:a], own, self.rate, self.smoothing, self.momentum)


def rmsprop(
    weights: Tensor,
    slopes: Tensor,
    square: Tensor,
    velocity: Tensor | None,
    rate: float,
    smoothing: float = 0.99,
    momentum: float = 0.0,
) -> None:
    """One step of `RmspropRule` in place, on tensors of any one shape; no velocity: no momentum."""
    square.mul_(smoothing).addcmul_(slopes, slopes, value=1 - smoothing)
    if velocity is None:
        weights.addcdiv_(slopes, square.sqrt().add_(EPSILON), value=-rate)
    else:
        velocity.mul_(momentum).addcdiv_(slopes, square.sqrt().add_(EPSILON))
        weights.add_(velocity, alpha=-rate)


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
    if optimiser == "sgd":
        return SgdRule(like, rate, momentum)
    if optimiser == "rmsprop":
        return RmspropRule(like, rate, momentum, smoothing)
    return AdamRule(like, rate, weight_decay if optimiser == "adamw" else 0.0)


def _zeros(like: Tensor) -> Tensor:
    return torch.zeros_like(like, memory_format=torch.contiguous_format)
