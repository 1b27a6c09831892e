"""Client graphs from node embeddings (SFL): two vectors per client, fitted so that the graph shows whose updates agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.nn import functional

from fedkin.graphs.learned import Shapes, strongest, unpack
from fedkin.streams import Streams, client_keys, uniform_words

SHARPNESS = 3.0
"""The factor a in the tanh."""
FIRST_SPREAD = 0.1
"""Standard deviation of the first embeddings: small, so that no tanh is saturated."""


@dataclass(frozen=True)
class EmbeddingGraph:
    """A = R + Rᵀ with R = ReLU(tanh(a (M₁M₂ᵀ − M₂M₁ᵀ))), M_i = tanh(a E_i Θ_i); each client keeps its k largest.

    R is the generator of the SFL paper. Of (i, j) and (j, i) it gives one alone a positive weight, so the sum of both
    directions, |tanh(…)|, is a symmetric graph with weights in [0, 1). Shapes: E_i (K, size), Θ_i (size, size).
    """

    clients: int
    size: int
    k: int

    @property
    def shapes(self) -> Shapes:
        return ((self.clients, self.size),) * 2 + ((self.size, self.size),) * 2

    def initial(self, streams: Streams, names: Sequence[str]) -> Tensor:
        """θ = (E₁, E₂, Θ₁, Θ₂) at the start: embeddings drawn by client name, Θ the identity."""
        words = uniform_words(streams.words("embedding", 0, client_keys(names)), 2 * self.size) >> np.uint64(11)
        drawn = FIRST_SPREAD * torch.as_tensor(ndtri((words.astype(np.float64) + 0.5) / 2**53))
        one = torch.eye(self.size, dtype=torch.float64)
        return torch.cat(
            [drawn[:, : self.size].reshape(-1), drawn[:, self.size :].reshape(-1), *(one.reshape(-1),) * 2]
        )

    def weights(self, theta: Tensor) -> Tensor:
        """The weights between all clients, (K, K), before the largest are chosen."""
        first, second, one, two = unpack(theta, self.shapes)
        m1, m2 = torch.tanh(SHARPNESS * first @ one), torch.tanh(SHARPNESS * second @ two)
        directed = torch.relu(torch.tanh(SHARPNESS * (m1 @ m2.T - m2 @ m1.T)))
        return directed + directed.T

    def graph(self, theta: Tensor) -> Tensor:
        """The adjacency (K, K): symmetric, non-negative, 0 on the diagonal and outside the edges kept by either end."""
        kept = strongest(self.weights(theta), self.k)
        return ((kept + kept.T) / 2).fill_diagonal_(0)

    def loss(self, theta: Tensor, target: Tensor, who: Tensor) -> Tensor:
        """Mean squared difference from the target (s, s) over all pairs of the clients `who` (s,)."""
        found = self.weights(theta)[who][:, who]
        pairs = ~torch.eye(len(who), dtype=torch.bool)
        return (found - target).square()[pairs].mean()


def agreement(updates: Tensor) -> Tensor:
    """max(cos, 0) of every pair of updates, (s, B) → (s, s): who wants to go the same way from the common start."""
    unit = functional.normalize(updates.double(), dim=1)
    return (unit @ unit.T).clamp(min=0)
