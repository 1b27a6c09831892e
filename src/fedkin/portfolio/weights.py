"""Weights: from the sums that clients tell to temperatures, pooled and personal weights, and the gate.

Every quantity is fitted V = G + 1 times: variant v without group v of the held-out samples, the last with all of them. What
is fitted without a group is honest about it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import LinearConstraint, minimize

from fedkin.clients import Clients
from fedkin.portfolio.evidence import ERRORS, GAINS, GATHER, SHARES, TEMPER
from fedkin.run.deployed import PSEUDO_SAMPLES

KAPPA = 10.0
"""How many samples the pooled weights count for in a client's own."""
SMALLEST = 0.05
"""Members with less weight are dropped."""
TEMPERATURES = np.geomspace(0.25, 8.0, 26)
ITERATIONS = 60


@dataclass(frozen=True)
class Prior:
    """What a federation has learned about its members: their temperatures (M,), pooled weights (M,) and mean gain."""

    temperatures: np.ndarray
    pooled: np.ndarray
    gain: float


@dataclass(frozen=True)
class Weighed:
    """What the evidence says."""

    prior: Prior
    personal: np.ndarray
    """(K, M), rows sum to 1, small weights dropped."""
    gain: np.ndarray
    """Honest gain in loss over the first member, shrunk to the federation's mean, (K,)."""
    error: np.ndarray
    """Its standard error, (K,)."""
    count: np.ndarray
    """Held-out samples, (K,)."""


class Told:
    """Sums told by K·F further clients, added up over the folds of each client."""

    def __init__(self, clients: Clients, models: torch.Tensor, groups: int) -> None:
        """`models` (F, K, M, B). With one fold its samples are dealt out to `groups` groups, else a fold is one."""
        folds, self.size, self.members, _ = models.shape
        self.clients, self.everyone = clients, np.arange(folds * self.size)
        self.folds = folds
        self.variants = (folds if groups == 1 else groups) + 1
        fold = torch.arange(folds).repeat_interleave(self.size)
        per_client = {"models": models.flatten(0, 1), "fold": fold}
        told = clients.ask(GATHER, self.everyone, per_client, {"groups": groups, "variants": self.variants - 1})
        in_group = np.stack([self._sum(told[f"group{v}"]) for v in range(self.variants - 1)], axis=1)
        everything = self._sum(told["count"])
        self.count = np.concatenate([everything[:, None] - in_group, everything[:, None]], axis=1)  # (K, V)
        self.effective = self._sum(told["effective"])
        sound = told["sound"].view(folds, self.size, self.members).all(dim=0)
        sound[:, 0] |= ~sound.any(dim=1)
        self.sound: np.ndarray = sound.cpu().numpy()

    def _sum(self, values: torch.Tensor) -> np.ndarray:
        return values.double().reshape(self.folds, self.size, *values.shape[1:]).sum(dim=0).cpu().numpy()

    def ask(self, task: str, weights: np.ndarray | None = None, **shared: object) -> dict[str, np.ndarray]:
        """A question to all; `weights` (K, V, M) go to every fold of a client. Answers are sums over folds, (K, …)."""
        per_client = {} if weights is None else {"weights": torch.from_numpy(np.tile(weights, (self.folds, 1, 1)))}
        told = self.clients.ask(task, self.everyone, per_client, shared)
        return {name: self._sum(value) for name, value in told.arrays.items()}


def weigh(
    clients: Clients, models: torch.Tensor, classification: bool, groups: int = 1, known: Prior | None = None
) -> Weighed:
    """All of it, for members whose models are (F, K, M, B); member 0 is Local. `known` is not estimated again."""
    told = Told(clients, models, groups)
    given = None if known is None else np.tile(known.pooled, (told.variants, 1))
    if classification:
        temperatures = tempered(told) if known is None else known.temperatures
        pooled = _mixed_pool(told, temperatures) if given is None else given
        weights = _mixed_personal(told, temperatures, pooled)
    else:
        temperatures = np.ones(told.members)
        gram = told.ask(ERRORS, variants=told.variants)["gram"]
        pooled = _least_squares_pool(told, gram) if given is None else given
        weights = _least_squares_personal(told, gram, pooled)
    weights = without_small(weights)
    found = told.ask(GAINS, weights, temperatures=torch.from_numpy(temperatures))
    count = told.count[:, -1]
    mean = mean_gain(found["gain"], count) if known is None else known.gain
    gain, error = shrunken(found["gain"], found["square"], count, told.effective, mean)
    return Weighed(Prior(temperatures, pooled[-1], mean), weights[:, -1], gain, error, count)


def tempered(told: Told) -> np.ndarray:
    """One temperature per member, (M,): the smallest mean held-out loss, every client counting alike."""
    loss = told.ask(TEMPER, grid=torch.from_numpy(TEMPERATURES))["loss"]
    each = loss / np.maximum(told.count[:, -1], 1)[:, None, None]
    counts = (told.sound & (told.count[:, -1:] > 0))[:, :, None]
    return TEMPERATURES[(each * counts).sum(axis=0).argmin(axis=1)]


def _spread(told: Told, pooled: np.ndarray) -> np.ndarray:
    """Pooled weights (V, M) for every client, (K, V, M): members that broke off for a client get none there."""
    weights = pooled[None] * told.sound[:, None, :]
    weights[:, :, 0] += (weights.sum(axis=2) <= 0) * 1.0
    return weights / weights.sum(axis=2, keepdims=True)


def _mixed_pool(told: Told, temperatures: np.ndarray) -> np.ndarray:
    """w0 (V, M) by EM: w0 ← mean over clients of their mean responsibilities."""
    pooled = np.full((told.variants, told.members), 1 / told.members)
    taking_part = told.count > 0
    for _ in range(ITERATIONS):
        shares = told.ask(SHARES, _spread(told, pooled), temperatures=torch.from_numpy(temperatures))["shares"]
        means = shares / np.maximum(told.count, 1)[:, :, None]
        total = (means * taking_part[:, :, None]).sum(axis=0)
        pooled = total / np.maximum(total.sum(axis=1, keepdims=True), 1e-300)
    return pooled


def _mixed_personal(told: Told, temperatures: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """w_i (K, V, M) by EM: w ← (Σ_s r_s + κ·w0)/(n_i + κ)."""
    prior = _spread(told, pooled)
    weights = prior
    for _ in range(ITERATIONS):
        shares = told.ask(SHARES, weights, temperatures=torch.from_numpy(temperatures))["shares"]
        weights = (shares + KAPPA * prior) / (told.count + KAPPA)[:, :, None]
        weights = weights / weights.sum(axis=2, keepdims=True)
    return weights


def _least_squares_pool(told: Told, gram: np.ndarray) -> np.ndarray:
    """w0 (V, M): the smallest mean squared error on the simplex, every client counting alike."""
    fit = np.array([m == 0 or bool(told.sound[:, m].all()) for m in range(told.members)])
    means = (gram / np.maximum(told.count, 1)[:, :, None, None]).mean(axis=0)
    found = np.zeros((told.variants, told.members))
    for v in range(told.variants):
        found[v, fit] = on_simplex(means[v][np.ix_(fit, fit)], np.full(fit.sum(), 1e-6))
    return found


def _least_squares_personal(told: Told, gram: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """w_i (K, V, M) = argmin wᵀG_i w/(2σ_i²) − κ Σ w0 log w; σ_i² the MSE of the federation's best member."""
    prior = _spread(told, pooled)
    weights = prior.copy()
    errors = np.diagonal(gram, axis1=2, axis2=3)
    mean = (errors / np.maximum(told.count, 1)[:, :, None]).mean(axis=0)
    everywhere = np.array([m == 0 or bool(told.sound[:, m].all()) for m in range(told.members)])
    for v in range(told.variants):
        best = int(np.where(everywhere, mean[v], np.inf).argmin())
        for k in range(told.size):
            use = np.flatnonzero(prior[k, v] > 1e-4)
            sigma = (errors[k, v, best] + 5 * mean[v, best]) / (told.count[k, v] + 5)
            part = gram[k, v][np.ix_(use, use)] / (2 * max(sigma, 1e-12))
            weights[k, v] = 0
            weights[k, v, use] = on_simplex(part, KAPPA * prior[k, v, use])
    return weights


def on_simplex(gram: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """argmin over the simplex of wᵀ G w − Σ prior log w, (M,): a convex problem, solved by SLSQP.

    >>> on_simplex(np.diag([1.0, 3.0]), np.full(2, 1e-9)).round(3)
    array([0.75, 0.25])
    """
    if len(gram) == 1:
        return np.ones(1)
    scale = max(float(np.trace(gram)) / len(gram) + float(prior.sum()), 1e-12)

    def value(w: np.ndarray) -> tuple[float, np.ndarray]:
        safe = np.maximum(w, 1e-9)
        return (w @ gram @ w - prior @ np.log(safe)) / scale, (2 * gram @ w - prior / safe) / scale

    start = prior / prior.sum()
    bounds = [(1e-9, 1.0)] * len(start)
    total = LinearConstraint(np.ones((1, len(start))), 1, 1)
    found = minimize(value, start, jac=True, bounds=bounds, constraints=total, method="SLSQP")
    w = np.clip(found.x if np.isfinite(found.x).all() else start, 0, None)
    return w / w.sum()


def without_small(weights: np.ndarray) -> np.ndarray:
    """Weights (K, V, M) without those below 0.05 (the largest stays), scaled to sum 1."""
    largest = weights.max(axis=2, keepdims=True)
    kept = np.where((weights >= SMALLEST) | (weights == largest), weights, 0)
    return kept / kept.sum(axis=2, keepdims=True)


def mean_gain(gain: np.ndarray, count: np.ndarray) -> float:
    """The mean of the clients' mean gains."""
    there = count > 0
    return float((gain[there] / count[there]).mean()) if there.any() else 0.0


def shrunken(
    gain: np.ndarray, square: np.ndarray, count: np.ndarray, effective: np.ndarray, mean: float
) -> tuple[np.ndarray, np.ndarray]:
    """Mean gains (K,) shrunk to the federation's with 10 pseudo-samples, and their standard errors.

    A client counts with its `effective` samples: where nearly all are of one class its own loss is a poor judge.
    """
    n = np.maximum(count, 1)
    own = gain / n
    spread = np.sqrt(np.maximum(square / n - own**2, 0) / n)
    return (effective * own + PSEUDO_SAMPLES * mean) / (effective + PSEUDO_SAMPLES), spread * effective / (
        effective + PSEUDO_SAMPLES
    )
