"""Synthetic regression with a known client graph, as in FedRelax: clusters of a block model, and mixtures.

All clients hold linear data y = w·x + ε with x ~ N(0, I_d), ε ~ N(0, σ²), in float64. The truth is kept in
`federation.truth`, so results can be compared with it: "cluster" (K,) and "weights" (K, d), the vector of each client's
cluster; or "rho" (K, components) and "components" (components, d).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedkin.data.federate import Recipe, numbered
from fedkin.data.partition import largest_remainders
from fedkin.data.registry import dataset
from fedkin.data.source import Arrays
from fedkin.errors import FedkinError
from fedkin.federation import Federation

CITATION = "Y. SarcheshmehPour, A. Jung et al., FedRelax (settings of its numerical experiments)"


def _checked(recipe: Recipe, **positive: float) -> None:
    if recipe.partition not in (None, "natural"):
        raise FedkinError(f"a synthetic set makes its own clients; drop partition {recipe.partition!r}")
    if recipe.downsample is not None:
        raise FedkinError("a synthetic set is not down-sampled; set `samples` instead")
    for name, value in positive.items():
        if value < 1:
            raise FedkinError(f"{name} is {value}; it must be at least 1")


def _federation(
    names: Sequence[str],
    parts: Sequence[dict[str, Any]],
    adjacency: np.ndarray,
    truth: Mapping[str, np.ndarray],
) -> Federation:
    from fedkin.graphs import ClientGraph

    return Federation.from_arrays(
        {name: {part: own[part] for part in ("train", "validation", "test")} for name, own in zip(names, parts)},
        task="regression",
        public={name: own["public"] for name, own in zip(names, parts)},
        graph=ClientGraph(adjacency, names=names),
        truth=truth,
    )


def _points(weights: np.ndarray, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One point per row of `weights` (n, d): x ~ N(0, I), y = w·x + ε."""
    x = rng.normal(size=weights.shape)
    return x, np.einsum("nd,nd->n", weights, x) + noise * rng.normal(size=len(x))


@dataset(
    name="clusters",
    description="linear regression, clustered clients, stochastic block model graph",
    size="generated: 150 clients in 3 clusters, 10 training samples each unless told otherwise",
    clients="nodes",
    licence="generated, none",
    citation=CITATION,
)
def clusters(
    arrays: Arrays,
    recipe: Recipe,
    clusters: int = 3,
    dimension: int = 10,
    samples: int = 10,
    noise: float = 1.0,
    p_in: float = 0.8,
    p_out: float = 0.2,
    held_out: int = 100,
    public: int = 100,
) -> Federation:
    """Clients of a cluster c share w̄^(c) ~ N(0, I_d); clients i, j are joined with probability p_in or p_out.

    `samples` training points, `held_out` validation and as many test points, `public` unlabelled points per client.
    """
    _checked(recipe, clusters=clusters, dimension=dimension, samples=samples, held_out=held_out, public=public)
    count = recipe.clients or 150
    if count < clusters:
        raise FedkinError(f"{count} clients for {clusters} clusters; use at least one client per cluster")
    if not (0 <= p_in <= 1 and 0 <= p_out <= 1):
        raise FedkinError(f"p_in {p_in} and p_out {p_out} are probabilities; they must lie in [0, 1]")
    names = numbered("node", count)
    cluster = np.arange(count) * clusters // count
    centres = recipe.streams.generator("weights").normal(size=(clusters, dimension))
    chance = np.where(cluster[:, None] == cluster[None, :], p_in, p_out)
    upper = np.triu(recipe.streams.generator("edges").random((count, count)) < chance, k=1)
    adjacency = (upper | upper.T).astype(np.float64)
    parts = []
    for name, own in zip(names, cluster):
        rng = recipe.streams.generator("client", name)
        sizes = {"train": samples, "validation": held_out, "test": held_out}
        drawn: dict[str, Any] = {
            part: _points(np.broadcast_to(centres[own], (n, dimension)), noise, rng) for part, n in sizes.items()
        }
        parts.append(drawn | {"public": rng.normal(size=(public, dimension))})
    return _federation(names, parts, adjacency, {"cluster": cluster, "weights": centres[cluster]})


@dataset(
    name="mixture",
    description="linear regression, clients mix three components, complete weighted graph",
    size="generated: 150 clients, 10 training samples each unless told otherwise",
    clients="nodes",
    licence="generated, none",
    citation=CITATION,
)
def mixture(
    arrays: Arrays,
    recipe: Recipe,
    components: int = 3,
    dimension: int = 10,
    samples: int = 10,
    noise: float = 1.0,
    held_out: int = 100,
    public: int = 100,
) -> Federation:
    """Client i draws from component k in proportion ρ_i = softmax(s), s ~ N(0, I) (counts by largest remainders).

    The graph is complete with weights A_ij = Σ_k min(ρ_ik, ρ_jk).
    """
    _checked(recipe, components=components, dimension=dimension, samples=samples, held_out=held_out, public=public)
    names = numbered("node", recipe.clients or 150)
    centres = recipe.streams.generator("weights").normal(size=(components, dimension))
    rho, parts = [], []
    for name in names:
        rng = recipe.streams.generator("client", name)
        scores = np.exp(rng.normal(size=components))
        own = scores / scores.sum()
        drawn: dict[str, Any] = {}
        for part, n in {"train": samples, "validation": held_out, "test": held_out}.items():
            component = np.repeat(np.arange(components), largest_remainders(own, n))
            drawn[part] = _points(centres[component], noise, rng)
        rho.append(own)
        parts.append(drawn | {"public": rng.normal(size=(public, dimension))})
    shares = np.array(rho)
    adjacency = np.minimum(shares[:, None, :], shares[None, :, :]).sum(axis=2)
    np.fill_diagonal(adjacency, 0.0)
    return _federation(names, parts, adjacency, {"rho": shares, "components": centres})
