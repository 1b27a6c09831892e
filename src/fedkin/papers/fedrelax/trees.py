"""Figures 2, 3 and 4: decision trees, and mixture data (the paper prints no numbers for them).

The errors are mean squared errors on the clients' validation samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedkin import data
from fedkin.federation import Federation
from fedkin.papers.fedrelax.figures import ALPHAS, Figure, at, claims, clustered, figure, summary
from fedkin.papers.originals import as_published
from fedkin.run import train

DEPTH = 5
TREE_ITERATIONS = 5


def mixtures(runs: int, seed: int, **options: Any) -> list[Federation]:
    """One federation of 150 clients per run, each client a mixture of three linear models."""
    settings: dict[str, Any] = {"clients": 150, "noise": 0.0, **options}
    return [data.load("mixture", seed=seed + r, **settings) for r in range(runs)]


def validation_error(federation: Federation, model: str, alpha: float, rounds: int, seed: int = 0) -> float:
    """The mean validation error over clients after training."""
    method = as_published("fedrelax", {"alpha": alpha})
    result = train(federation, model, method, rounds=rounds, seed=seed, dtype="float64", eval_every=max(rounds, 1))
    return float(np.mean(result.metrics["post"]["validation_mse"]))


def oracle_tree_error(federation: Federation, depth: int = DEPTH) -> float:
    """The mean validation error of one tree per true cluster, fitted to the pooled samples of its clients."""
    from sklearn.tree import DecisionTreeRegressor

    clusters, errors = federation.truth["cluster"], np.zeros(len(federation))
    for cluster in np.unique(clusters):
        members = np.flatnonzero(clusters == cluster).tolist()
        x, y = (np.concatenate([federation.train[k][part] for k in members]) for part in (0, 1))
        tree = DecisionTreeRegressor(max_depth=depth, random_state=0).fit(x, y)
        for k in members:
            inputs, targets = federation.validation[k]
            errors[k] = np.square(tree.predict(inputs) - targets).mean()
    return float(errors.mean())


Cells = list[tuple[dict[str, Any], Sequence[Federation]]]


def _relative(cells: Cells, model: str, rounds: int, alphas: Sequence[float], oracle: bool) -> list[dict[str, Any]]:
    """Errors of all cells and α, relative to the Oracle's or to training alone."""
    rows = []
    for labels, federations in cells:
        alone = np.array([validation_error(f, model, 0.0, 0 if model != "linear" else rounds) for f in federations])
        base = np.array([oracle_tree_error(f) for f in federations]) if oracle else alone
        for alpha in alphas:
            values = alone
            if alpha > 0:
                values = np.array([validation_error(f, model, alpha, rounds) for f in federations])
            rows.append(summary(values / base, **labels, alpha=alpha, reference=None))
    return rows


def _below(found: Figure, alpha: float = 0.01, **labels: Any) -> Callable[[], bool]:
    return lambda: at(found, alpha=alpha, **labels) < at(found, alpha=0.0, **labels)


def figure_2a(runs: int = 5, seed: int = 0, dimensions: Sequence[int] = (2, 10, 50), clients: int = 150) -> Figure:
    """Depth-5 trees on clustered data without noise: error over the Oracle's, over the dimension."""
    started = time.perf_counter()
    cells: Cells = [({"d": d}, clustered(runs, seed, dimension=d, clients=clients)) for d in dimensions]
    rows = _relative(cells, f"tree:{DEPTH}", TREE_ITERATIONS, ALPHAS, oracle=True)
    found = figure("2a", "Trees on clustered data, no noise", "MSE / MSE of the Oracle", "d", rows, started)
    checks = {f"d/m = {d / 10:g}: coupling lowers the error": _below(found, d=d) for d in dimensions if d >= 10}
    return claims(found, checks)


def figure_2b(runs: int = 5, seed: int = 0, clients: int = 150) -> Figure:
    """The same over the noise σ, at d = m = 10."""
    started = time.perf_counter()
    cells: Cells = [
        ({"sigma": s}, clustered(runs, seed, dimension=10, noise=float(s), clients=clients)) for s in (0, 1, 5)
    ]
    rows = _relative(cells, f"tree:{DEPTH}", TREE_ITERATIONS, ALPHAS, oracle=True)
    found = figure("2b", "Trees on clustered data, d = m = 10", "MSE / MSE of the Oracle", "sigma", rows, started)

    def gain(sigma: int) -> float:
        return at(found, sigma=sigma, alpha=0.01) / at(found, sigma=sigma, alpha=0.0)

    return claims(found, {"the gain is larger with noise (σ=5 against σ=0)": lambda: gain(5) < gain(0)})


def _mixture_over_d(
    name: str, title: str, model: str, rounds: int, runs: int, seed: int, dimensions: Sequence[int], clients: int
) -> Figure:
    started = time.perf_counter()
    cells: Cells = [({"d": d}, mixtures(runs, seed, dimension=d, clients=clients)) for d in dimensions]
    return figure(name, title, "MSE(α) / MSE(0)", "d", _relative(cells, model, rounds, ALPHAS, oracle=False), started)


def _mixture_over_noise(name: str, title: str, model: str, rounds: int, runs: int, seed: int, clients: int) -> Figure:
    started = time.perf_counter()
    cells: Cells = [
        ({"sigma": s}, mixtures(runs, seed, dimension=10, noise=float(s), clients=clients)) for s in (0, 1, 5)
    ]
    rows = _relative(cells, model, rounds, (0.0, 0.01), oracle=False)
    return figure(name, title, "MSE(α) / MSE(0)", "sigma", rows, started)


def _all_below(found: Figure) -> dict[str, Callable[[], bool]]:
    return {
        f"below 1 at {found['x']} = {row[found['x']]:g}, α = {row['alpha']:g}": lambda row=row: row["mean"] < 1  # type: ignore[misc]
        for row in found["rows"]
        if row["alpha"] > 0
    }


def figure_3a(
    runs: int = 5, seed: int = 0, rounds: int = 500, dimensions: Sequence[int] = (2, 10, 50), clients: int = 150
) -> Figure:
    """Linear models on mixture data without noise: error over that of training alone, over the dimension."""
    title = "Linear models on mixtures, no noise"
    found = _mixture_over_d("3a", title, "linear", rounds, runs, seed, dimensions, clients)
    return claims(found, _all_below(found))


def figure_3b(runs: int = 5, seed: int = 0, rounds: int = 500, clients: int = 150) -> Figure:
    """The same over the noise, d = m = 10, α = 0.01."""
    found = _mixture_over_noise("3b", "Linear models on mixtures, d = m = 10", "linear", rounds, runs, seed, clients)
    return claims(found, _all_below(found))


def figure_4a(runs: int = 5, seed: int = 0, dimensions: Sequence[int] = (2, 10, 50), clients: int = 150) -> Figure:
    """Depth-5 trees on mixture data without noise: error over that of training alone, over the dimension."""
    title = "Trees on mixtures, no noise"
    found = _mixture_over_d("4a", title, f"tree:{DEPTH}", TREE_ITERATIONS, runs, seed, dimensions, clients)
    low = min(dimensions)
    return claims(
        found,
        {
            **{f"below 1 at d = {d}, α = 0.01": _below(found, d=d) for d in dimensions},
            f"strong coupling can hurt at low d/m (d = {low}: α=0.05 is worse than α=0.01)": lambda: (
                at(found, d=low, alpha=0.05) > at(found, d=low, alpha=0.01)
            ),
        },
    )


def figure_4b(runs: int = 5, seed: int = 0, clients: int = 150) -> Figure:
    """The same over the noise, d = m = 10, α = 0.01."""
    title = "Trees on mixtures, d = m = 10"
    found = _mixture_over_noise("4b", title, f"tree:{DEPTH}", TREE_ITERATIONS, runs, seed, clients)
    return claims(found, _all_below(found))
