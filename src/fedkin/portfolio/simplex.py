"""Weights on the simplex: many small convex problems at once, and their solution from slopes and curvatures."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Expansion = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Value (N,), slopes (N, M) and curvatures (N, M, M) of N smooth convex functions."""

EXCHANGES = 20
"""Slopes and curvatures are asked for at most so often."""


def on_simplex(gram: np.ndarray, linear: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """argmin over the simplex of wᵀ G w + lᵀ w − Σ prior log w, (N, M), for G (N, M, M), l and prior > 0 (N, M).

    Newton's method on the constraint Σ w = 1 with a barrier that is taken away in steps; a step goes at most 99 % of the
    way to the boundary.

    >>> on_simplex(np.diag([1.0, 3.0])[None], np.zeros((1, 2)), np.full((1, 2), 1e-9)).round(3)
    array([[0.75, 0.25]])
    """
    n, members = linear.shape
    size = np.abs(np.diagonal(gram, axis1=1, axis2=2)).mean(axis=1) + np.abs(linear).mean(axis=1) + prior.sum(axis=1)
    size = np.maximum(size, 1e-12)[:, None]
    quadratic, slope, prior = 2 * gram / size[:, :, None], linear / size, prior / size
    w = np.full((n, members), 1 / members)
    system = np.zeros((n, members + 1, members + 1))
    system[:, :members, members] = system[:, members, :members] = 1
    right = np.zeros((n, members + 1, 1))
    for barrier in np.repeat(10.0 ** -np.arange(1, 11), 4):
        pull = prior + barrier / members
        system[:, :members, :members] = quadratic
        system[:, np.arange(members), np.arange(members)] += pull / w**2 + 1e-12
        right[:, :members, 0] = pull / w - slope - np.einsum("nml,nl->nm", quadratic, w)
        step = np.linalg.solve(system, right)[:, :members, 0]
        way = np.minimum(1.0, 0.99 / np.maximum((-step / w).max(axis=1, keepdims=True), 1e-300))
        w = np.maximum(w + way * step, 1e-300)
        w /= w.sum(axis=1, keepdims=True)
    return w


def minimised(
    ask: Callable[[np.ndarray], Expansion], start: np.ndarray, prior: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """argmin over the simplex of f_n(w) − Σ prior_n log w for N functions, and the values f_n there, (N, M) and (N,).

    Each time `ask` tells value, slopes and curvatures at (N, M) weights, the quadratic model is minimised on the simplex; a
    step that does not go down is halved. Ends when no weight moves by 1e-4.
    """
    best, at = start, ask(start)
    cost = at[0] - _barrier(prior, start)
    for _ in range(EXCHANGES):
        _, slopes, curvature = at
        linear = slopes - np.einsum("nml,nl->nm", curvature, best)
        step = on_simplex(curvature / 2, linear, prior) - best
        moved = np.abs(step).max()
        if moved < 1e-4:
            break
        for _ in range(4):
            tried = ask(best + step)
            found = tried[0] - _barrier(prior, best + step)
            worse = found > cost + 1e-9 * np.abs(cost)
            if not worse.any():
                break
            step = np.where(worse[:, None], step / 2, step)
        good = found <= cost + 1e-9 * np.abs(cost)
        best = np.where(good[:, None], best + step, best)
        cost = np.where(good, found, cost)
        kept = [np.where(good.reshape(-1, *[1] * (new.ndim - 1)), new, old) for new, old in zip(tried, at)]
        at = kept[0], kept[1], kept[2]
        if not good.any():
            break
    return best, at[0]


def _barrier(prior: np.ndarray, w: np.ndarray) -> np.ndarray:
    return np.asarray((prior * np.log(np.maximum(w, 1e-300))).sum(axis=1))
