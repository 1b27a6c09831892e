"""Client graphs learned from features by self-supervision (FedSKA): a structure learner, a denoiser that trains it, and an
encoder that mixes features along the graph. All are plain functions of one flat parameter vector θ, float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor
from torch.nn import functional

from fedkin.errors import FedkinError
from fedkin.graphs.client_graph import ClientGraph
from fedkin.streams import Streams, client_keys, uniform_words

Similarity = Literal["inner", "cosine"]
Shapes = tuple[tuple[int, ...], ...]

MOST_NEIGHBOURS = 30
"""Neighbours that a learned graph keeps per client unless told otherwise (fewer where there are fewer clients)."""


def strongest(similarity: Tensor, k: int) -> Tensor:
    """Each row's k largest entries off the diagonal, and the diagonal itself; all others 0. (K, K) → (K, K).

    >>> strongest(torch.tensor([[9.0, 1.0, 2.0], [1.0, 9.0, 3.0], [2.0, 3.0, 9.0]]), 1)
    tensor([[9., 0., 2.],
            [0., 9., 3.],
            [0., 3., 9.]])
    """
    itself = torch.eye(len(similarity), dtype=torch.bool)
    best = similarity.masked_fill(itself, -torch.inf).topk(min(k, len(similarity) - 1), dim=1).indices
    return torch.where(itself.scatter(1, best, True), similarity, 0.0)


def normalise(weights: Tensor) -> Tensor:
    """D^{-1/2} A D^{-1/2} of a symmetric non-negative A, D its row sums; an empty row stays empty."""
    degree = weights.sum(dim=1)
    scale = torch.where(degree > 0, torch.where(degree > 0, degree, 1.0).rsqrt(), 0.0)  # no 1/0, in the gradient either
    return weights * (scale[:, None] * scale[None, :])


def unpack(theta: Tensor, shapes: Shapes) -> list[Tensor]:
    """The tensors in a flat vector, in order."""
    parts = theta.split([prod(shape) for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes)]


def _layers(*widths: int) -> Shapes:
    return tuple(shape for a, b in pairwise(widths) for shape in ((a, b), (b,)))


@dataclass(frozen=True)
class StructureLearner:
    """G, a two-layer perceptron d → d → d, and GNN_D, three graph convolutions d → hidden → hidden → d.

        Z = G(H);   S̃ = ReLU(sim(Z, Z)), each row's k largest kept, and itself;   S = D^{-1/2} ½(S̃ + S̃ᵀ) D^{-1/2}
        GNN_D(H̃, S):  X ← S (X W + b), ReLU between

    G starts as the identity (with its ReLU), GNN_D at uniform random weights of width 1/√(inputs).
    """

    size: int
    k: int
    hidden: int = 64
    similarity: Similarity = "inner"

    @property
    def shapes(self) -> Shapes:
        return _layers(self.size, self.size, self.size) + _layers(self.size, self.hidden, self.hidden, self.size)

    def initial(self, generator: np.random.Generator) -> Tensor:
        """θ = (G, GNN_D) at the start."""
        weight, zero = torch.eye(self.size, dtype=torch.float64), torch.zeros(self.size, dtype=torch.float64)
        denoiser: list[Tensor] = []
        for shape in self.shapes[4:]:
            width = (shape[0] if len(shape) == 2 else denoiser[-1].shape[0]) ** -0.5
            denoiser.append(torch.as_tensor(generator.uniform(-width, width, shape)))
        return torch.cat([t.reshape(-1) for t in (weight, zero, weight, zero, *denoiser)])

    def graph(self, theta: Tensor, features: Tensor) -> Tensor:
        """S (K, K) of features (K, d): symmetric, entries in [0, 1], 0 outside the edges kept in either direction."""
        w1, b1, w2, b2 = unpack(theta, self.shapes)[:4]
        z = torch.relu(features @ w1 + b1) @ w2 + b2
        if self.similarity == "cosine":
            z = functional.normalize(z, dim=1)
        kept = torch.relu(strongest(z @ z.T, self.k))
        return normalise((kept + kept.T) / 2)

    def denoise(self, theta: Tensor, noisy: Tensor, graph: Tensor) -> Tensor:
        """GNN_D: noisy features (K, d) and S → features (K, d)."""
        layers = unpack(theta, self.shapes)[4:]
        x = noisy
        for depth in range(0, len(layers), 2):
            x = graph @ ((torch.relu(x) if depth else x) @ layers[depth] + layers[depth + 1])
        return x


@dataclass(frozen=True)
class GraphEncoder:
    """GNN_E, one graph convolution d → d without activation: H^g = S (H W + b). It starts as the identity: H^g = S H."""

    size: int

    def initial(self) -> Tensor:
        weight, bias = torch.eye(self.size, dtype=torch.float64), torch.zeros(self.size, dtype=torch.float64)
        return torch.cat([weight.reshape(-1), bias])

    def encode(self, theta: Tensor, graph: Tensor, parts: Tensor, held: Tensor) -> Tensor:
        """Features of parts (K, m, d) mixed along S (K, K), each part among the clients that hold it, held (K, m)."""
        weight, bias = unpack(theta, ((self.size, self.size), (self.size,)))
        own = parts @ weight + bias
        if bool(held.all()):
            return torch.einsum("kl,lmd->kmd", graph, own)
        mixed = []
        for part in range(parts.shape[1]):
            among = held[:, part].to(graph.dtype)
            mixed.append(normalise(graph * among[:, None] * among[None, :]) @ own[:, part])
        return torch.stack(mixed, dim=1)


def masks(
    streams: Streams, round: int, names: Sequence[str], steps: int, size: int, rate: float
) -> tuple[Tensor, Tensor]:
    """Which entries are disturbed at each step, Bernoulli(rate), and N(0, 1) noise; both (steps, K, d).

    They depend on the seed, the round and each client's name, not on its place.
    """

    def uniform(purpose: str) -> np.ndarray:
        words = streams.words(purpose, round, client_keys(names))
        drawn = (uniform_words(words, steps * size) >> np.uint64(11)).astype(np.float64)
        return ((drawn + 0.5) / 2**53).reshape(len(names), steps, size).swapaxes(0, 1)

    return torch.as_tensor(uniform("mask") < rate), torch.from_numpy(ndtri(uniform("noise")))


# --- what a run keeps of its graphs -----------------------------------------------------------------------------------


def keep_snapshot(graphs: Tensor, rounds: Tensor, graph: Tensor, round: int) -> tuple[Tensor, Tensor]:
    """Graphs (s, K, K) and their rounds (s,) with that of a new round behind them.

    The graphs after rounds 1, 2, 4, 8, … stay; any other stays until the next one comes, so the last is always there.
    """
    if len(rounds):
        last = int(rounds[-1])
        stays = last & (last - 1) == 0
        graphs, rounds = (graphs, rounds) if stays else (graphs[:-1], rounds[:-1])
    return torch.cat([graphs, graph[None].to(graphs.dtype)]), torch.cat([rounds, torch.tensor([round])])


def snapshot(graphs: Tensor, rounds: Tensor, names: Sequence[str], round: int | None = None) -> ClientGraph:
    """The graph after a round (default: the last one kept), without self-loops."""
    kept = rounds.tolist()
    if round is not None and round not in kept:
        raise FedkinError(f"no graph of round {round} was kept; there are those of rounds {', '.join(map(str, kept))}")
    return ClientGraph.symmetrised(graphs[-1 if round is None else kept.index(round)].cpu().numpy(), names)
