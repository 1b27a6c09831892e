"""What hostile clients do: they alter what they send, or the samples they train on.

Attackers know each other and, which is the worst case, what the honest clients of the round send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Sight:
    """What attackers see of a round: where they and the others began, what training made of it."""

    received: Tensor
    """Their own rows before training, (a, B)."""
    trained: Tensor
    """Their own rows after honest training, (a, B)."""
    honest_received: Tensor
    """The honest clients' rows before training, (h, B)."""
    honest_trained: Tensor
    """The honest clients' rows after training, (h, B)."""
    noise: Callable[[], Tensor]
    """Standard normal numbers of the attackers' own, (a, B)."""

    @property
    def honest_update(self) -> Tensor:
        """The mean update of the honest clients, (B,); of the attackers' own where there are none."""
        if not len(self.honest_trained):
            return (self.trained - self.received).mean(dim=0)
        return (self.honest_trained - self.honest_received).mean(dim=0)


@dataclass(frozen=True)
class Attack:
    """A way to be hostile: rows to send in place of the trained ones (a, B), or samples to train on."""

    name: str
    about: str
    send: Callable[[Sight], Tensor] | None = None
    samples: Literal["labels", "backdoor"] | None = None


def sign_flip(sight: Sight, times: float = 10.0) -> Tensor:
    """w − 10·Δ: the own update, reversed and ten times as long."""
    return sight.received - times * (sight.trained - sight.received)


def large_norm(sight: Sight, times: float = 100.0) -> Tensor:
    """w + noise that is a hundred times as long as the honest clients' mean update."""
    noise = sight.noise()
    return sight.received + times * sight.honest_update.norm() * noise / noise.norm(dim=1, keepdim=True)


def a_little_is_enough(sight: Sight, deviations: float = 1.5) -> Tensor:
    """The honest mean minus 1.5 standard deviations in every coordinate: wrong, but inside the crowd.

    Reference: Baruch, Baruch and Goldberg, A Little Is Enough: Circumventing Defenses For Distributed Learning, 2019.
    """
    seen = sight.honest_trained if len(sight.honest_trained) > 1 else sight.trained
    spread = seen.std(dim=0) if len(seen) > 1 else torch.zeros_like(seen[0])
    return (seen.mean(dim=0) - deviations * spread).expand_as(sight.trained).clone()


def inner_product(sight: Sight, times: float = 0.5) -> Tensor:
    """w − ½·mean honest update: short, and against the direction in which the others go.

    Reference: Xie, Koyejo and Gupta, Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation, 2019.
    """
    return sight.received - times * sight.honest_update


def free_ride(sight: Sight) -> Tensor:
    """What was received is sent back, with a trace of noise so that it looks like training."""
    return sight.received + 1e-3 * sight.honest_update.norm() * sight.noise() / np.sqrt(sight.received.shape[1])


ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for attack in (
        Attack("sign-flip", "send the update reversed, ten times as long", sign_flip),
        Attack("large-norm", "send noise a hundred times as long as an update", large_norm),
        Attack("alie", "send the honest mean minus 1.5 standard deviations", a_little_is_enough),
        Attack("ipm", "send half the honest mean update, reversed", inner_product),
        Attack("label-flip", "train on labels in reverse order (y → C − 1 − y)", samples="labels"),
        Attack("backdoor", "train half of the samples, with a mark on them, as the first class", samples="backdoor"),
        Attack("free-rider", "send back what was received", free_ride),
    )
}
