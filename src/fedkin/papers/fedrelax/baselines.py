"""The paper's comparisons: Oracle, gradient-averaging FedAvg and IFCA, for linear models without bias."""

from __future__ import annotations

import numpy as np

from fedkin.federation import Federation
from fedkin.streams import Streams


def oracle(federation: Federation) -> np.ndarray:
    """Least squares on the pooled data of each client's true cluster, (K, d)."""
    clusters = federation.truth["cluster"]
    weights = np.empty((len(federation), federation.task.input_shape[0]))
    for cluster in np.unique(clusters):
        members = np.flatnonzero(clusters == cluster).tolist()
        x, y = (np.concatenate([federation.train[k][part] for k in members]) for part in (0, 1))
        weights[members] = np.linalg.lstsq(x, y, rcond=None)[0]
    return weights


def fedavg(federation: Federation, steps: int = 500, rate: float = 0.01, seed: int = 0) -> np.ndarray:
    """One model for all: w ← w − γ·mean_i ∇L_i(w), one step per iteration, from U(±1/√d). The same row for all, (K, d)."""
    return ifca(federation, 1, steps, rate, seed)


def ifca(federation: Federation, clusters: int, steps: int = 500, rate: float = 0.01, seed: int = 0) -> np.ndarray:
    """IFCA by gradient averaging from a single start: each client picks the model with the smallest loss on its samples,

    θ_j ← θ_j − γ·mean of the gradients of those who picked it.   Returns each client's model, (K, d).
    """
    gram, cross, power = (np.stack(parts) for parts in zip(*(_moments(x, y) for x, y in federation.train)))
    d = gram.shape[1]
    rng = Streams(seed).generator("ifca", clusters)
    models = rng.uniform(-1 / np.sqrt(d), 1 / np.sqrt(d), size=(clusters, d))
    picked = np.zeros(len(federation), dtype=np.int64)
    for _ in range(steps + 1):
        pull = np.einsum("kde,je->kjd", gram, models)
        losses = np.einsum("kjd,jd->kj", pull, models) - 2 * cross @ models.T + power[:, None]
        picked = losses.argmin(axis=1)
        slopes = 2 * (pull[np.arange(len(picked)), picked] - cross)
        step = np.zeros_like(models)
        for j in np.unique(picked):
            step[j] = slopes[picked == j].mean(axis=0)
        last, models = models, models - rate * step
    return last[picked]


def _moments(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    return x.T @ x / len(x), x.T @ y / len(x), float(np.square(y).mean())
