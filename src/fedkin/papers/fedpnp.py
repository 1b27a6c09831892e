"""FedPnP's figures 5 to 7: the client graph and the filters, without any training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedkin import data
from fedkin.couplings.denoisers import find_denoiser
from fedkin.federation import Federation
from fedkin.graphs import ClientGraph
from fedkin.graphs.similarity import correlated, from_statistics
from fedkin.graphs.statistics import moments


def client_graph(seed: int, source: dict[str, Any], weights: str = "similarity") -> dict[str, Any]:
    """Figure 5: the adjacency from four moments of the clients' data, or from the correlation of pooled samples."""
    federation = data.load(**{"seed": seed, **source})
    graph = correlation(federation) if weights == "correlation" else _from_moments(federation, weights)
    counts = federation.label_counts("train").astype(float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    agreement = np.minimum(shares[:, None], shares[None]).sum(axis=2)
    apart = ~np.eye(len(federation), dtype=bool)
    adjacency = graph.adjacency.toarray()
    found = {
        "lambda_1": graph.lambda_1(),
        "lambda_max": graph.lambda_max(),
        "follows_labels": float(np.corrcoef(adjacency[apart], agreement[apart])[0, 1]),
    }
    return {"pre": found, "post": found, "matrix": adjacency}


def _from_moments(federation: Federation, weights: str) -> ClientGraph:
    stats = np.stack([moments(x) for x, _ in federation.train])
    return from_statistics(stats, federation.names, weights, published=True)  # type: ignore[arg-type]


def correlation(federation: Federation) -> ClientGraph:
    """Pearson correlation of the clients' pooled (mean) samples, negative ones set to 0."""
    means = np.stack([np.asarray(x).reshape(len(x), -1).mean(axis=0) for x, _ in federation.train])
    return correlated(means, federation.names)


def filter_response(
    seed: int, source: dict[str, Any], denoiser: str = "soft", strengths: Sequence[float] = (0.0005,)
) -> dict[str, Any]:
    """Figures 6 and 7: h(λ) at the eigenvalues of the client graph. `h_1` and `h_max` are its values at λ_1 and λ_max."""
    graph = _from_moments(data.load(**{"seed": seed, **source}), "similarity")
    laplacian = np.diag(graph.adjacency.sum(axis=1)) - graph.adjacency.toarray()
    lambdas = np.linalg.eigvalsh(laplacian).clip(min=0)
    lines: dict[str, Any] = {}
    found: dict[str, float] = {}
    for strength in strengths:
        values = find_denoiser(denoiser).evaluate(lambdas, strength)
        lines[f"{strength:g}"] = {"x": lambdas, "y": values}
        found |= {"h_1": float(values[1]), "h_max": float(values[-1])}
    return {"pre": found, "post": found, "lines": lines}
