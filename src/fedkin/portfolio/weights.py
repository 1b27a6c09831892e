"""Weights: from the sums that clients tell to temperatures, pooled and personal weights, and the gate.

Every quantity is fitted V = G + 1 times: variant v without group v of the held-out samples, the last with all of them. What
is fitted without a group is honest about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from fedkin.clients import Clients
from fedkin.portfolio.evidence import COUNT, ERRORS, GAINS, SLOPES
from fedkin.portfolio.simplex import Expansion, minimised, on_simplex
from fedkin.run.deployed import PSEUDO_SAMPLES

KAPPA = 10.0
"""How many samples the pooled weights count for in a client's own."""
SMALLEST = 0.05
"""Members with less weight are dropped."""
TEMPERATURES = np.geomspace(0.25, 8.0, 26)
FLAT = 1e-6
"""A prior that only keeps weights above zero."""


@dataclass(frozen=True)
class Prior:
    """What a federation has learned about its members: their temperatures (M,), pooled weights (M,), mean gain and for how
    many samples of a client that gain counts."""

    temperatures: np.ndarray
    pooled: np.ndarray
    gain: float
    samples: float = PSEUDO_SAMPLES


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
    effective: np.ndarray
    """How many of them tell something, (K,): few where nearly all are of one class."""


class Sums(Protocol):
    """Sums over held-out samples of what M members say, for K = `size` clients and V variants."""

    size: int
    members: list[str]
    variants: torch.Tensor
    count: np.ndarray
    """Held-out samples, (K, V)."""
    effective: np.ndarray
    sound: np.ndarray

    def ask(self, task: str, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """The answer to a task of `evidence`, by name."""

    def slopes(self, weights: np.ndarray) -> Expansion:
        """Value (K, V), slopes (K, V, M) and curvatures of the clients' losses at weights (K, V, M)."""


class Told:
    """Sums told by further clients, fold after fold, added up over the folds of each client."""

    def __init__(
        self,
        clients: Clients,
        size: int,
        folds: Sequence[int],
        members: Sequence[str],
        groups: int = 1,
        temperatures: np.ndarray | None = None,
    ) -> None:
        """`folds` of `size` clients each. With one fold its samples are dealt out to `groups` groups, else a fold is one."""
        self.clients, self.size, self.folds, self.members = clients, size, list(folds), list(members)
        self.everyone = np.concatenate([fold * size + np.arange(size) for fold in self.folds])
        parts = len(self.folds) if groups == 1 else groups
        self.variants = torch.cat([1 - torch.eye(parts), torch.ones(1, parts)]).double()
        place = torch.arange(len(self.folds)).repeat_interleave(size)
        self.per_client = {"fold": place}
        self.shared = {"members": self.members, "groups": groups, "variants": self.variants}
        if temperatures is not None:
            self.shared["temperatures"] = torch.from_numpy(temperatures)
        told = self._told(COUNT)
        self.count, self.effective = self._sum(told["held_out"]), self._sum(told["effective"])
        self.sound = told["sound"].view(len(self.folds), size, -1).all(dim=0).numpy()

    def _told(self, task: str, **per_client: torch.Tensor) -> dict[str, torch.Tensor]:
        """Answers in the order of `everyone`; of those who gave none, zeros."""
        replies = self.clients.ask(task, self.everyone, {**self.per_client, **per_client}, self.shared)
        if len(replies) == len(self.everyone):
            return dict(replies.arrays)
        at = torch.from_numpy(np.searchsorted(self.everyone, replies.ids))
        found = {}
        for name, value in replies.arrays.items():
            found[name] = value.new_zeros((len(self.everyone), *value.shape[1:]))
            found[name][at] = value
        return found

    def _sum(self, values: torch.Tensor) -> np.ndarray:
        return np.asarray(
            values.double().reshape(len(self.folds), self.size, *values.shape[1:]).sum(dim=0).numpy(), dtype=float
        )

    def ask(self, task: str, weights: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """A question to all; `weights` (K, V, M) go to every fold of a client. Answers are sums over folds, (K, …)."""
        given = {} if weights is None else {"weights": torch.from_numpy(np.tile(weights, (len(self.folds), 1, 1)))}
        return {name: self._sum(value) for name, value in self._told(task, **given).items()}

    def slopes(self, weights: np.ndarray) -> Expansion:
        """Value (K, V), slopes (K, V, M) and curvatures of the clients' losses at weights (K, V, M)."""
        told = self.ask(SLOPES, weights)
        return told["value"], told["slopes"], told["curvature"]


def weigh(
    told: Sums, temperatures: np.ndarray, classification: bool, fit: np.ndarray, known: Prior | None = None
) -> Weighed:
    """All of it; member 0 is Local. `known` is not estimated again. `fit` (K, M) are the members' training losses."""
    variants = len(told.variants)
    given = None if known is None else np.tile(known.pooled, (variants, 1))
    if classification:
        pooled = mixed_pool(told)[0] if given is None else given
        weights = _mixed_personal(told, pooled)
    else:
        gram = told.ask(ERRORS)["gram"]
        pooled = least_squares_pool(told, gram)[0] if given is None else given
        weights = _least_squares_personal(told, gram, pooled)
    weights = without_small(_sound_alone(weights, told.sound, fit))
    found = told.ask(GAINS, weights)
    count = told.count[:, -1]
    gains = found["gain"], found["square"], count
    samples = pseudo_samples(*gains) if known is None else known.samples
    prior = Prior(temperatures, pooled[-1], mean_gain(*gains[::2]) if known is None else known.gain, samples)
    gain, error = shrunken(*gains, told.effective, prior)
    return Weighed(prior, weights[:, -1], gain, error, count, told.effective)


def tempered(losses: np.ndarray, counts: np.ndarray) -> tuple[int, float]:
    """Which temperature of the grid has the smallest mean held-out loss, every client counting alike, and that loss.

    `losses` (K, G) are sums over a client's samples, `counts` (K,) their numbers; clients without any are left out.
    """
    there = counts > 0
    if not there.any():
        return int(np.abs(np.log(TEMPERATURES)).argmin()), float("inf")
    means = (losses[there] / counts[there, None]).mean(axis=0)
    best = int(means.argmin())
    return best, float(means[best])


def _alike(count: np.ndarray) -> np.ndarray:
    """How much a sample of each client counts in each variant, (K, V), so that clients count alike."""
    there = count > 0
    return np.asarray(there / np.maximum(count, 1) / np.maximum(there.sum(axis=0), 1))


def mixed_pool(told: Sums) -> tuple[np.ndarray, np.ndarray]:
    """w0 (V, M) that minimise the mean of the clients' losses −log Σ_m w_m p_m, and these losses (V,)."""
    alike = _alike(told.count)

    def ask(weights: np.ndarray) -> Expansion:
        value, slopes, curvature = told.slopes(np.tile(weights, (told.size, 1, 1)))
        summed = np.einsum("kv,kvm->vm", alike, slopes), np.einsum("kv,kvml->vml", alike, curvature)
        return (alike * value).sum(axis=0), *summed

    shape = len(told.variants), len(told.members)
    return minimised(ask, np.full(shape, 1 / shape[1]), np.full(shape, FLAT))


def _mixed_personal(told: Sums, pooled: np.ndarray) -> np.ndarray:
    """w_i (K, V, M) = argmin −Σ_s log Σ_m w_m p_m(s) − κ Σ w0 log w."""
    shape = told.size, *pooled.shape
    flat = told.size * len(pooled), pooled.shape[1]
    prior = np.tile(KAPPA * np.maximum(pooled, FLAT), (told.size, 1, 1)).reshape(flat)

    def ask(weights: np.ndarray) -> Expansion:
        value, slopes, curvature = told.slopes(weights.reshape(shape))
        return value.reshape(-1), slopes.reshape(flat), curvature.reshape(*flat, flat[1])

    return minimised(ask, prior / prior.sum(axis=1, keepdims=True), prior)[0].reshape(shape)


def least_squares_pool(told: Sums, gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """w0 (V, M) with the smallest mean squared error on the simplex, every client counting alike, and that error (V,)."""
    means = np.einsum("kv,kvml->vml", _alike(told.count), gram)
    found = on_simplex(means, np.zeros(means.shape[:2]), np.full(means.shape[:2], FLAT))
    return found, np.einsum("vm,vml,vl->v", found, means, found)


def _least_squares_personal(told: Sums, gram: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """w_i (K, V, M) = argmin wᵀG_i w/(2σ_i²) − κ Σ w0 log w; σ_i² the MSE of the federation's best member."""
    errors = np.diagonal(gram, axis1=2, axis2=3)
    mean = np.einsum("kv,kvm->vm", _alike(told.count), errors)  # (V, M)
    best = mean.argmin(axis=1)
    variants = np.arange(len(pooled))
    sigma = (errors[:, variants, best] + 5 * mean[variants, best]) / (told.count + 5)  # (K, V)
    size = told.size * len(pooled), pooled.shape[1]
    scaled = (gram / (2 * np.maximum(sigma, 1e-12))[:, :, None, None]).reshape(*size, size[1])
    prior = np.tile(KAPPA * np.maximum(pooled, FLAT), (told.size, 1, 1)).reshape(size)
    return on_simplex(scaled, np.zeros(size), prior).reshape(told.size, *pooled.shape)


def _sound_alone(weights: np.ndarray, sound: np.ndarray, fit: np.ndarray) -> np.ndarray:
    """Weights (K, V, M); what members have that broke off for a client (`sound` (K, M)) goes to its first sound one.

    A client for whom all went astray has the member that fits it best, `fit` (K, M).
    """
    moved = np.where(sound[:, None, :], weights, 0)
    first = np.where(sound.any(axis=1), sound.argmax(axis=1), fit.argmin(axis=1))
    moved[np.arange(len(weights)), :, first] += (weights * ~sound[:, None, :]).sum(axis=2)
    return moved


def without_small(weights: np.ndarray) -> np.ndarray:
    """Weights (K, V, M) without those below 0.05 (the largest stays), scaled to sum 1."""
    largest = weights.max(axis=2, keepdims=True)
    kept = np.where((weights >= SMALLEST) | (weights == largest), weights, 0)
    return np.asarray(kept / kept.sum(axis=2, keepdims=True))


def mean_gain(gain: np.ndarray, count: np.ndarray) -> float:
    """The mean of the clients' mean gains."""
    there = count > 0
    return float((gain[there] / count[there]).mean()) if there.any() else 0.0


def pseudo_samples(gain: np.ndarray, square: np.ndarray, count: np.ndarray) -> float:
    """How many samples the federation's mean gain counts for in a client's own: σ²/τ², at least 1 and at most 10.

    σ² is the variance of a sample's gain within clients, τ² that of the clients' mean gains beyond what σ² explains: where
    clients are unlike, the others say little of one (Morris 1983, Parametric empirical Bayes inference).
    """
    several = count > 1
    if several.sum() < 2:
        return PSEUDO_SAMPLES
    n, own = count[several], gain[several] / count[several]
    within = np.maximum(square[several] - n * own**2, 0).sum() / (n - 1).sum()
    between = own.var(ddof=1) - within * (1 / n).mean()
    return PSEUDO_SAMPLES if within >= PSEUDO_SAMPLES * between else float(max(1.0, within / between))


def shrunken(
    gain: np.ndarray, square: np.ndarray, count: np.ndarray, effective: np.ndarray, prior: Prior
) -> tuple[np.ndarray, np.ndarray]:
    """Mean gains (K,) shrunk to the federation's, and their standard errors.

    A client counts with its `effective` samples: where nearly all are of one class its own loss is a poor judge.
    """
    n, others = np.maximum(count, 1), prior.samples
    own = gain / n
    spread = np.sqrt(np.maximum(square / n - own**2, 0) / n)
    return (effective * own + others * prior.gain) / (effective + others), spread * effective / (effective + others)
