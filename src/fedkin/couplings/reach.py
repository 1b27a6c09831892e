"""How far a client's rows can have come along couplings, round after round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedkin.couplings.coupling import Coupling


def passed_on(heard: Tensor, coupling: Coupling | None) -> Tensor:
    """What each client can have heard of every other after rows were coupled: all that those knew whose rows entered its own.

    heard (K, K): how many of client j's trainings can be known to client i; without a coupling that tells, everybody
    can know what anybody knew.
    """
    if coupling is None or (not coupling.linear and coupling.shares is None):
        return heard.max(dim=0, keepdim=True).values.expand_as(heard).clone()
    weights = coupling.sparse() if coupling.linear else coupling.shares
    entered = (weights.toarray() != 0) | np.eye(len(heard), dtype=bool)  # type: ignore[union-attr]
    patterns, which = np.unique(entered, axis=0, return_inverse=True)
    most = torch.stack([heard[torch.from_numpy(np.flatnonzero(pattern))].max(dim=0).values for pattern in patterns])
    return most[torch.from_numpy(which.reshape(-1))]
