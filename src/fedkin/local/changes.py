"""Changes: the augmentation of many clients' batches at once, each from its own stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedkin.augment import Augmentation, Drawn
from fedkin.errors import FedkinError


@dataclass(frozen=True)
class Changes:
    """What is done to the batches of k clients; `words` (k,) seed their streams."""

    function: Augmentation
    words: np.ndarray
    classes: int

    def begin(self, labels: bool = True) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        """A function of x (a, b, …), y (a, b, …) and weight (a, b) of one step after the other, for the first a clients.

        It sees real samples alone (weight > 0): how far a batch is padded for the sake of others has no influence.
        `labels`: y are targets, and not something else of each sample.
        """
        classes = self.classes if labels else 0
        generators = [np.random.Generator(np.random.SFC64(int(word))) for word in self.words]

        def change(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
            real, targets = (weight > 0).sum(dim=1).tolist(), []
            for k, n in enumerate(real):
                own, target = self.function(Drawn(x[k, :n], y[k, :n], classes), generators[k])
                if own.shape != x[k, :n].shape or len(target) != n:
                    raise FedkinError(
                        f"augment made inputs of shape {tuple(own.shape)} and {len(target)} targets of "
                        f"{tuple(x[k, :n].shape)} and {n}; it must keep both"
                    )
                x[k, :n] = own
                targets.append(target)
            if all(target.dtype == y.dtype and target.shape[1:] == y.shape[2:] for target in targets):
                changed = y.clone()
            else:
                changed = torch.zeros((*y.shape[:2], *targets[0].shape[1:]), dtype=targets[0].dtype, device=y.device)
            for k, target in enumerate(targets):
                changed[k, : len(target)] = target
            return x, changed

        return change
