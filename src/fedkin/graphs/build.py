"""Build a graph from a short description, such as "statistics", "knn:5" or "roads.csv"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedkin import plugins
from fedkin.errors import FedkinError
from fedkin.graphs import builders, similarity
from fedkin.graphs.client_graph import ClientGraph

Disclosed = Callable[..., np.ndarray]
"""What clients disclose: disclosed("statistics"), with options as keywords; stacked in the order of the names."""
Builder = Callable[[Sequence[str], Disclosed, int, str], ClientGraph]

_BUILDERS: dict[str, Builder] = {}


def builder(name: str) -> Callable[[Builder], Builder]:
    """Register a builder f(names, disclosed, seed, option): `option` is what follows the colon, "" without one."""

    def register(function: Builder) -> Builder:
        _BUILDERS[name] = function
        return function

    return register


def specs() -> tuple[str, ...]:
    """The names of builders, those of installed packages last."""
    return plugins.plugin_names("graph", _BUILDERS)


def build(spec: str, names: Sequence[str], disclosed: Disclosed, seed: int = 0) -> ClientGraph:
    """The graph that `spec` describes, over the clients `names`.

    `disclosed(what)` returns what the clients agreed to tell, stacked in the order of `names`, and is only called for
    what is needed: `statistics` (K, 4, M), `label_counts` (K, C), `sizes` (K,), `coordinates` (K, 2). A path ending in
    .csv or .parquet (edge list; clients it does not mention are isolated) or .npz is read and put in the order of `names`.
    A builder of one's own is named `package.module:function`, or by the name its package announces (fedkin.plugins).

    >>> build("random", ["a", "b", "c", "d"], disclosed=lambda what: None, seed=1).names
    ('a', 'b', 'c', 'd')
    """
    if spec.endswith((".csv", ".parquet")):
        return ClientGraph.from_edges(spec, names)
    if spec.endswith(".npz"):
        return ClientGraph.load(spec).align(names)
    name, option = plugins.split_name("graph", spec, _BUILDERS)
    function = plugins.find("graph", name, _BUILDERS, also=("FILE.csv", "FILE.parquet", "FILE.npz"))
    graph = function(names, disclosed, seed, option) if callable(function) else None
    if not isinstance(graph, ClientGraph):
        raise FedkinError(f"graph {spec!r} is no builder: it must be a function that returns a ClientGraph")
    return graph


@builder("complete")
def _complete(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    return builders.complete(names, _number("complete", option, 1.0))


@builder("empty")
def _empty(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    _nothing("empty", option)
    return builders.empty(names)


@builder("equal")
def _equal(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    return builders.equal(names, _number("equal", option, 0.5))


@builder("statistics")
def _statistics(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    """statistics[:published][:moments=A+B][:WEIGHTS[:SCALE]][:noise=ε,δ,LOW,HIGH], for example statistics:moments=mean+variance,
    statistics:gaussian, statistics:similarity:mean_degree, the paper's statistics:published or, with (1, 1e-5)-differentially
    private statistics of features in [0, 1], statistics:noise=1,1e-5,0,1."""
    option, _, noise = option.partition("noise=")
    words = option.removesuffix(":").split(":")
    how: dict[str, Any] = {"published": "published" in words}
    for word in words:
        if word.startswith("moments="):
            how["moments"] = word.removeprefix("moments=").split("+")
    weights, scale = ([w for w in words if w != "published" and "=" not in w] + ["", ""])[:2]
    stats = disclosed("statistics", **_noise(noise)) if noise else disclosed("statistics")
    return similarity.from_statistics(stats, names, weights or "similarity", scale or None, **how)  # type: ignore[arg-type]


@builder("correlation")
def _correlation(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    _nothing("correlation", option)
    return similarity.correlated(np.asarray(disclosed("statistics"), dtype=float)[:, 0], names)


@builder("kl")
def _kl(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    """kl, of inputs taken for normal, or kl:labels."""
    if option == "labels":
        return similarity.label_divergence(disclosed("label_counts"), names)
    _nothing("kl", option)
    return similarity.input_divergence(disclosed("statistics"), names)


@builder("gaussian")
def _gaussian(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    _nothing("gaussian", option)
    return similarity.gaussian(_standardised_means(disclosed), names)


@builder("knn")
def _knn(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    """knn[:K[:SEARCH]], for example knn:10 or knn:10:exact."""
    number, _, search = option.partition(":")
    k = int(_number("knn", number, 5, whole=True))
    return similarity.knn(_standardised_means(disclosed), k, names, search=search or "auto", seed=seed)  # type: ignore[arg-type]


@builder("labels")
def _labels(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    _nothing("labels", option)
    return builders.label_overlap(disclosed("label_counts"), names)


@builder("shared-labels")
def _shared_labels(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    main = int(_number("shared-labels", option, 5, whole=True))
    return builders.shared_labels(disclosed("label_counts"), names, main)


@builder("sizes")
def _sizes(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    _nothing("sizes", option)
    return builders.data_sizes(disclosed("sizes"), names)


@builder("random")
def _random(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    return builders.random(names, seed, _number("random", option, 0.25))


@builder("coordinates")
def _coordinates(names: Sequence[str], disclosed: Disclosed, seed: int, option: str) -> ClientGraph:
    """coordinates[:K], or coordinates:50km for a radius."""
    if option.endswith("km"):
        radius = _number("coordinates", option.removesuffix("km"), 0.0)
        return similarity.coordinates(disclosed("coordinates"), radius=radius, names=names)
    k = int(_number("coordinates", option, 5, whole=True))
    return similarity.coordinates(disclosed("coordinates"), k=k, names=names)


def _noise(option: str) -> dict[str, float]:
    """ε, δ and the range of the features, from "1,1e-5,0,1"."""
    numbers = [_number("statistics:noise=1,1e-5,0,1", part.strip(), 0.0) for part in option.split(",")]
    if len(numbers) != 4 or not (numbers[0] > 0 and 0 < numbers[1] < 1 and numbers[2] < numbers[3]):
        raise FedkinError(
            f"graph statistics:noise={option}: give ε > 0, δ between 0 and 1, and the range of the features, as in "
            "statistics:noise=1,1e-5,0,1"
        )
    return dict(zip(("epsilon", "delta", "low", "high"), numbers))


def _standardised_means(disclosed: Disclosed) -> np.ndarray:
    """Every client's mean per feature, each feature scaled to unit variance over clients. Shape (K, M)."""
    means = np.asarray(disclosed("statistics"), dtype=float)[:, 0]
    spread = means.std(axis=0)
    return (means - means.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _number(spec: str, option: str, default: float, whole: bool = False) -> float:
    try:
        value = float(option) if option else default
    except ValueError:
        value = float("nan")
    if not np.isfinite(value) or (whole and not float(value).is_integer()):
        kind = "a whole number" if whole else "a number"
        raise FedkinError(f"graph {spec}:{option}: {option!r} is not {kind}; for example {spec}:{default:g}")
    return value


def _nothing(spec: str, option: str) -> None:
    if option:
        raise FedkinError(f"graph {spec}:{option}: {spec!r} takes no option")
