"""Figures 1 and 5: linear models on clustered data. Values without `paper` are a simulation's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from fedkin import data
from fedkin.federation import Federation, Split
from fedkin.graphs import ClientGraph
from fedkin.papers.fedrelax import baselines
from fedkin.papers.fedrelax.bound import variation, variation_bound
from fedkin.papers.originals import as_published
from fedkin.run import train

ALPHAS = (0.0, 0.01, 0.05)
Figure = dict[str, Any]


def union_of(federations: Sequence[Federation]) -> Federation:
    """Independent federations as one that is not connected: all runs of a setting are then one training run."""
    import scipy.sparse as sp

    names = tuple(f"run-{r:02d}/{name}" for r, f in enumerate(federations) for name in f.names)
    graphs = [f.graph.adjacency for f in federations if f.graph is not None]

    def joined(part: str) -> Split:
        return Split.join([pair for f in federations for pair in getattr(f, part)])

    truth = {
        key: np.concatenate([f.truth[key] for f in federations])
        for key in ("weights", "rho")
        if key in federations[0].truth
    }
    if "cluster" in federations[0].truth:
        count = int(federations[0].truth["cluster"].max()) + 1
        truth["cluster"] = np.concatenate([f.truth["cluster"] + r * count for r, f in enumerate(federations)])
    return replace(
        federations[0],
        names=names,
        train=joined("train"),
        validation=joined("validation"),
        test=joined("test"),
        public={f"run-{r:02d}/{n}": x for r, f in enumerate(federations) for n, x in (f.public or {}).items()},
        graph=ClientGraph(sp.block_diag(graphs, format="csr"), names=names),
        truth=truth,
        source={},
    )


def clustered(runs: int, seed: int, **options: Any) -> list[Federation]:
    """One federation per run: new data, public sets and edges each time. 150 clients in 3 clusters unless told."""
    settings: dict[str, Any] = {"clients": 150, "clusters": 3, "noise": 0.0, **options}
    return [data.load("clusters", seed=seed + r, **settings) for r in range(runs)]


def fitted(
    federation: Federation,
    alpha: float,
    rounds: int,
    seed: int = 0,
    update: str = "gradient",
    callbacks: Sequence[Any] = (),
) -> np.ndarray:
    """The linear models after `rounds` exchanges, (K, d)."""
    method = as_published("fedrelax", {"alpha": alpha, "update": update})
    settings: dict[str, Any] = {"rounds": rounds, "seed": seed, "dtype": "float64", "eval_every": max(rounds, 1)}
    return train(federation, "linear", method, callbacks=callbacks, **settings).rows


def error(rows: np.ndarray, federations: Sequence[Federation]) -> np.ndarray:
    """(1/d)‖ŵ − w̄‖², averaged over the clients of every run, (runs,)."""
    truth = np.concatenate([f.truth["weights"] for f in federations])
    return np.square(rows - truth).mean(axis=1).reshape(len(federations), -1).mean(axis=1)


def summary(values: np.ndarray, **labels: Any) -> dict[str, Any]:
    """Mean and standard deviation over runs, with the labels of the cell."""
    return {**labels, "mean": float(values.mean()), "std": float(values.std()), "runs": [float(v) for v in values]}


def figure(name: str, title: str, metric: str, x: str, rows: list[dict[str, Any]], started: float) -> Figure:
    return {
        "figure": name,
        "title": title,
        "metric": metric,
        "x": x,
        "rows": rows,
        "claims": [],
        "seconds": round(time.perf_counter() - started, 1),
    }


def at(found: Figure, **labels: Any) -> float:
    """The mean of the cell with these labels."""
    return next(row["mean"] for row in found["rows"] if all(row[k] == v for k, v in labels.items()))


def claims(found: Figure, checks: dict[str, Callable[[], bool]]) -> Figure:
    """Add what the paper says, and whether the numbers here say so too."""
    return {**found, "claims": [{"says": says, "holds": bool(check())} for says, check in checks.items()]}


REFERENCE_1A = {2: (0.00, 0.06, 0.27), 10: (0.09, 0.11, 0.27), 20: (0.57, 0.20, 0.32), 50: (0.78, 0.36, 0.41), 100: (0.93, 0.56, 0.60)}  # fmt: skip
REFERENCE_1B = {0: (0.09, 0.11, 0.27), 1: (0.68, 0.13, 0.28), 5: (5.8, 0.79, 0.40)}


def figure_1a(
    runs: int = 5, seed: int = 0, rounds: int = 500, dimensions: Sequence[int] = (2, 10, 20, 50, 100)
) -> Figure:
    """Error of the weights over the dimension d at m = 10 samples, without noise."""
    started, rows = time.perf_counter(), []
    for d in dimensions:
        federations = clustered(runs, seed, dimension=d)
        union = union_of(federations)
        for alpha, reference in zip(ALPHAS, REFERENCE_1A[d]):
            values = error(fitted(union, alpha, rounds), federations)
            rows.append(summary(values, d=d, alpha=alpha, reference=reference))
    found = figure("1a", "Clustered data, no noise: error over the dimension", "(1/d)‖ŵ − w̄‖²", "d", rows, started)
    return claims(
        found,
        {
            f"d/m = {d / 10:g}: coupling (α=0.01) is better than training alone": lambda d=d: (  # type: ignore[misc]
                at(found, d=d, alpha=0.01) < at(found, d=d, alpha=0.0)
            )
            for d in dimensions
            if d >= 10
        },
    )


def figure_1b(runs: int = 5, seed: int = 0, rounds: int = 500) -> Figure:
    """Error of the weights over the noise σ, at d = m = 10."""
    started, rows = time.perf_counter(), []
    for noise, references in REFERENCE_1B.items():
        federations = clustered(runs, seed, dimension=10, noise=float(noise))
        union = union_of(federations)
        for alpha, reference in zip(ALPHAS, references):
            values = error(fitted(union, alpha, rounds), federations)
            rows.append(summary(values, sigma=noise, alpha=alpha, reference=reference))
    found = figure("1b", "Clustered data, d = m = 10: error over the noise", "(1/d)‖ŵ − w̄‖²", "sigma", rows, started)
    return claims(
        found,
        {
            "coupling prevents divergence at σ=5": lambda: (
                at(found, sigma=5, alpha=0.01) < 1 < at(found, sigma=5, alpha=0.0)
            )
        },
    )


def figure_1c(runs: int = 5, seed: int = 0, rounds: int = 500) -> Figure:
    """Five clusters of 30 clients, d = 50, no noise, against Oracle, FedAvg and IFCA with 5 and 2 clusters."""
    started = time.perf_counter()
    federations = clustered(runs, seed, clusters=5, dimension=50)
    union = union_of(federations)

    def each(solve: Callable[[Federation, int], np.ndarray]) -> np.ndarray:
        return error(np.concatenate([solve(f, seed + r) for r, f in enumerate(federations)]), federations)

    values = {
        ("Oracle", 0.0): each(lambda f, s: baselines.oracle(f)),
        ("IFCA(5)", 0.007): each(lambda f, s: baselines.ifca(f, 5, rounds, seed=s)),
        ("FedRelax α=0.01", 0.54): error(fitted(union, 0.01, rounds), federations),
        ("FedRelax α=0.05", 0.59): error(fitted(union, 0.05, rounds), federations),
        ("IFCA(2)", 0.71): each(lambda f, s: baselines.ifca(f, 2, rounds, seed=s)),
        ("FedAvg", 0.80): each(lambda f, s: baselines.fedavg(f, rounds, seed=s)),
        ("local", 0.86): error(fitted(union, 0.0, rounds), federations),
    }
    rows = [summary(found, method=name, reference=reference) for (name, reference), found in values.items()]
    found = figure("1c", "Five clusters, d = 50: error of the methods", "(1/d)‖ŵ − w̄‖²", "method", rows, started)
    order = ["Oracle", "IFCA(5)", "FedRelax α=0.01", "IFCA(2)", "FedAvg", "local"]

    def below(first: str, second: str) -> Callable[[], bool]:
        return lambda: at(found, method=first) < at(found, method=second)

    named = {f"{first} < {second}": below(first, second) for first, second in pairwise(order[1:])}
    return claims(found, {"Oracle ≈ IFCA(5)": lambda: at(found, method="IFCA(5)") < 0.05, **named})


ALPHAS_5 = (1e-4, 1e-2, 1e-1)
REFERENCE_5A = {0.1: (0.21, 1.6), 1.0: (19.0, 159.0), 5.0: (485.0, 3979.0)}
REFERENCE_5B = {0.2: (0.61, 15.9), 0.6: (0.26, 2.5), 1.0: (0.17, 1.0)}


def _variations(
    settings: dict[float, dict[str, Any]],
    label: str,
    references: dict[float, tuple[float, float]],
    runs: int,
    seed: int,
    rounds: int,
) -> Iterator[dict[str, Any]]:
    for value, options in settings.items():
        federations = clustered(runs, seed, clients=50, clusters=1, dimension=10, **options)
        union = union_of(federations)
        for alpha in ALPHAS_5:
            found = variation(fitted(union, alpha, rounds), union.truth["cluster"])
            bound = variation_bound(union, alpha)
            reference = references[value] if alpha == 1e-2 else (None, None)
            yield {
                **summary(found, alpha=alpha, reference=reference[0], **{label: value}),
                "bound": float(bound.mean()),
                "reference_bound": reference[1],
                "runs_within_bound": int((found <= bound).sum()),
            }


def _bound_claims(found: Figure, label: str, rising: bool) -> Figure:
    values = sorted({row[label] for row in found["rows"]})
    means = {alpha: [at(found, alpha=alpha, **{label: v}) for v in values] for alpha in ALPHAS_5}
    checks: dict[str, Callable[[], bool]] = {
        "the variation stays below the bound (means over runs)": lambda: all(
            r["mean"] < r["bound"] for r in found["rows"]
        ),
        "it falls with α": lambda: all(
            a > b for first, second in pairwise(ALPHAS_5) for a, b in zip(means[first], means[second])
        ),
    }
    name = "it rises with σ" if rising else "it falls with p_in"
    checks[name] = lambda: all((a < b) == rising for series in means.values() for a, b in pairwise(series))
    return claims(found, checks)


def figure_5a(runs: int = 50, seed: int = 0, rounds: int = 1000) -> Figure:
    """Variation within one cluster of 50 clients and its bound, over the noise σ (p_in = 0.8)."""
    started = time.perf_counter()
    settings = {sigma: {"noise": sigma, "p_in": 0.8} for sigma in REFERENCE_5A}
    rows = list(_variations(settings, "sigma", REFERENCE_5A, runs, seed, rounds))
    title = "One cluster, p_in = 0.8: variation and its bound over the noise"
    return _bound_claims(figure("5a", title, "Σ_i ‖ŵ_i − mean‖²", "sigma", rows, started), "sigma", rising=True)


def figure_5b(runs: int = 50, seed: int = 0, rounds: int = 1000) -> Figure:
    """The same over the density p_in of the cluster (σ = 0.1)."""
    started = time.perf_counter()
    settings = {p: {"noise": 0.1, "p_in": p} for p in REFERENCE_5B}
    rows = list(_variations(settings, "p_in", REFERENCE_5B, runs, seed, rounds))
    title = "One cluster, σ = 0.1: variation and its bound over the density"
    return _bound_claims(figure("5b", title, "Σ_i ‖ŵ_i − mean‖²", "p_in", rows, started), "p_in", rising=False)


def variation_over_rounds(
    alpha: float, noise: float, p_in: float, runs: int = 50, seed: int = 0, rounds: int = 1000, every: int = 20
) -> dict[str, Any]:
    """A curve of figure 5: the variation within one cluster of 50 clients over the exchanges, beside its bound.

    `within` is the exchange after which the mean over runs stays below the bound's.
    """
    federations = clustered(runs, seed, clients=50, clusters=1, dimension=10, noise=noise, p_in=p_in)
    union = union_of(federations)
    told: list[tuple[int, float]] = []

    def tell(run: Any, record: Any) -> None:
        if record["round"] % every == 0 or record["round"] == rounds:
            rows = run.clients.shard.store["weights"]  # where linear clients keep them between exchanges
            told.append((record["round"], float(variation(rows.numpy(), union.truth["cluster"]).mean())))

    fitted(union, alpha, rounds, seed, callbacks=[tell])
    bound = float(variation_bound(union, alpha).mean())
    above = [exchange for exchange, value in told if value > bound]
    x, y = zip(*told)
    found = {"mean": y[-1], "bound": bound, "within": above[-1] if above else 0}
    return {"pre": found, "post": found, "lines": {"variation": {"x": x, "y": y}, "bound": {"x": x, "y": [bound] * len(x)}}}  # fmt: skip
