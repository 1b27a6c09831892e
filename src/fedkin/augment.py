"""Augmentation: training batches are changed at random before each step. One function, and a name for each ready-made one.

    crop:p       images are shifted by up to p pixels each way, zeros come in (4)
    flip[:q]     images are mirrored left to right with probability q (0.5)
    mixup[:a]    samples and targets are mixed in pairs, λx + (1 − λ)x', λ ~ Beta(a, a) for each batch (0.2)

Several are done in turn: "crop:4+flip". One of your own is a function of a batch and a NumPy generator that returns inputs
and targets, `lambda batch, rng: (batch.x + 0.1 * torch.from_numpy(rng.standard_normal(batch.x.shape)), batch.y)`. It sees
the real samples of one client's batch, and the generator is the client's own, of (seed, purpose, round, client name), so that
chunks, workers and engines do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedkin.errors import FedkinError, unknown

if TYPE_CHECKING:
    from torch import Tensor


class Drawn(NamedTuple):
    """A batch of one client: inputs (n, *input shape), targets (n, …), and the number of classes (0: targets are numbers)."""

    x: Tensor
    y: Tensor
    classes: int = 0


Augmentation = Callable[[Drawn, np.random.Generator], "tuple[Tensor, Tensor]"]


def crop(padding: float = 4) -> Augmentation:
    """Shift each image (C, H, W) by −p…p pixels down and right; zeros come in."""
    p = _option("crop", padding, 1, math.inf, whole=True)

    def cropped(batch: Drawn, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        import torch

        n, _, height, width = batch.x.shape
        corner = torch.from_numpy(rng.integers(0, 2 * p + 1, (2, n))).to(batch.x.device)
        rows = corner[0][:, None] + torch.arange(height, device=batch.x.device)
        columns = corner[1][:, None] + torch.arange(width, device=batch.x.device)
        padded = torch.nn.functional.pad(batch.x, (p, p, p, p))
        own = torch.arange(n, device=batch.x.device)[:, None, None]
        return padded.movedim(1, 3)[own, rows[:, :, None], columns[:, None, :]].movedim(3, 1), batch.y

    return cropped


def flip(share: float = 0.5) -> Augmentation:
    """Mirror each image left to right with probability q."""
    q = _option("flip", share, 0, 1)

    def flipped(batch: Drawn, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        import torch

        chosen = torch.from_numpy(rng.random(len(batch.x)) < q).to(batch.x.device)
        return torch.where(chosen[:, None, None, None], batch.x.flip(-1), batch.x), batch.y

    return flipped


def mixup(alpha: float = 0.2) -> Augmentation:
    """Mix samples, and targets as distributions over classes, in pairs (Zhang et al., mixup, 2018)."""
    a = _option("mixup", alpha, 0, math.inf)

    def mixed(batch: Drawn, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        import torch

        share = float(rng.beta(a, a))
        other = torch.from_numpy(rng.permutation(len(batch.x))).to(batch.x.device)
        y = batch.y
        if batch.classes and not y.is_floating_point():
            y = torch.nn.functional.one_hot(y, batch.classes).to(batch.x.dtype)
        return share * batch.x + (1 - share) * batch.x[other], share * y + (1 - share) * y[other]

    return mixed


def in_turn(*functions: Augmentation) -> Augmentation:
    """Several augmentations, one after the other."""

    def turned(batch: Drawn, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        for function in functions:
            batch = Drawn(*function(batch, rng), batch.classes)
        return batch.x, batch.y

    return turned


AUGMENTATIONS: dict[str, Callable[..., Augmentation]] = {"crop": crop, "flip": flip, "mixup": mixup}
NEED_IMAGES = ("crop", "flip")


def augmentation(asked: Any) -> Augmentation:
    """What a run asks for: a function, or names joined by "+".

    >>> augmentation("crop:2+flip").__name__
    'turned'
    """
    if callable(asked):
        return asked
    if not isinstance(asked, str):
        raise FedkinError(f"augment is {asked!r}; give names such as 'crop:4+flip', or a function of a batch")
    return in_turn(*(_one(part.strip()) for part in asked.split("+")))


def names_in(asked: Any) -> list[str]:
    """The ready-made ones that are asked for by name."""
    return [part.strip().partition(":")[0] for part in asked.split("+")] if isinstance(asked, str) else []


def _one(text: str) -> Augmentation:
    name, _, option = text.partition(":")
    if name not in AUGMENTATIONS:
        raise unknown("augmentation", name, list(AUGMENTATIONS))
    try:
        given = [float(option)] if option else []
    except ValueError:
        raise FedkinError(f"augment {text!r}: its option must be a number, as in crop:4, flip:0.5, mixup:0.2") from None
    return AUGMENTATIONS[name](*given)


def _option(name: str, value: Any, low: float, high: float, whole: bool = False) -> Any:
    """A number within bounds (0 excluded), or one line."""
    good = isinstance(value, int | float) and low <= value <= high and 0 < value < math.inf
    if not good or (whole and value != int(value)):
        kind = "a whole number" if whole else "a number"
        span = f"at least {low:g}" if whole else f"above {low:g}" + ("" if high == math.inf else f", at most {high:g}")
        raise FedkinError(f"augment {name}:{value}: its option must be {kind} {span}")
    return int(value) if whole else float(value)
